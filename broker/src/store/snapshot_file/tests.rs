//! A snapshot comes back whole or not at all.

use proptest::prelude::*;

use super::*;

const CLUSTER: ClusterId = [3; 16];

fn at() -> Applied {
    Applied {
        index: 88_213,
        term: 4,
        membership: b"one, two, three".to_vec(),
    }
}

fn written(dir: &Path, content: &[u8]) -> Manifest {
    let mut writer =
        FileWriter::create(dir, &CLUSTER, &at(), Origin::Made).expect("an empty directory");
    writer.write_all(content).expect("room on the disk");
    Box::new(writer)
        .finish(0x00d1_6e57)
        .expect("room on the disk")
}

fn content(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|at| at.to_le_bytes()[at % 3]).collect()
}

#[test]
fn what_was_written_comes_back_with_its_manifest() {
    for bytes in [0, 1, PIECE_BYTES - 1, PIECE_BYTES, 2 * PIECE_BYTES + 17] {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let manifest = written(dir.path(), &content(bytes));
        let path = dir.path().join(&manifest.file);

        let mut read = Vec::new();
        let mut reader = SnapshotReader::open(&path).expect("a whole file");
        reader.read_to_end(&mut read).expect("a whole file");

        assert_eq!(read, content(bytes));
        assert_eq!(reader.digest(), Some(manifest.digest));
        assert_eq!(inspect(&path).expect("a whole file"), (CLUSTER, manifest));
        assert_eq!(
            std::fs::read_dir(dir.path()).expect("it is there").count(),
            1
        );
    }
}

#[test]
fn an_unfinished_file_never_has_the_final_name() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let mut writer =
        FileWriter::create(dir.path(), &CLUSTER, &at(), Origin::Made).expect("a directory");
    writer
        .write_all(&content(3 * PIECE_BYTES))
        .expect("room on the disk");
    drop(writer);

    let names: Vec<_> = std::fs::read_dir(dir.path())
        .expect("it is there")
        .map(|entry| entry.expect("it is there").file_name())
        .collect();
    assert_eq!(names, ["snap-0000088213.new"]);
}

#[test]
fn a_file_cut_anywhere_or_longer_than_it_was_is_refused() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let manifest = written(dir.path(), &content(500));
    let whole = std::fs::read(dir.path().join(&manifest.file)).expect("just written");

    for length in 0..whole.len() {
        assert!(read_all(&whole[..length]).is_err(), "cut at {length}");
    }
    assert!(read_all(&[whole.as_slice(), b"x"].concat()).is_err());
    assert_eq!(read_all(&whole).expect("the whole one"), content(500));
}

fn read_all(bytes: &[u8]) -> io::Result<Vec<u8>> {
    let mut out = Vec::new();
    SnapshotReader::new(bytes)?.read_to_end(&mut out)?;
    Ok(out)
}

proptest! {
    #[test]
    fn one_flipped_bit_anywhere_is_noticed(at in any::<prop::sample::Index>(), bit in 0..8_u8) {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let manifest = written(dir.path(), &content(900));
        let mut bytes = std::fs::read(dir.path().join(&manifest.file)).expect("just written");
        let at = at.index(bytes.len());
        bytes[at] ^= 1 << bit;

        prop_assert!(read_all(&bytes).is_err(), "bit {} of byte {}", bit, at);
    }

    #[test]
    fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        let with_magic = [MAGIC.as_slice(), &[VERSION], &bytes].concat();
        prop_assert!(read_all(&bytes).is_err());
        prop_assert!(read_all(&with_magic).is_err());
    }
}
