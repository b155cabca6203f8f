//! Crashes at every byte and every step, damage, another boot, and a disk without room.

use std::fs;
use std::path::Path;

use super::*;

const BOOT: Uuid = Uuid::from_u128(1);
const AGENT: Uuid = Uuid::from_u128(2);

fn record(kind: u16, text: &str) -> Record {
    Record {
        kind,
        payload: text.as_bytes().to_vec(),
    }
}

fn open(directory: &Path) -> (Checkpoint, Recovered) {
    Checkpoint::open(directory, BOOT, Uuid::from_u128(99)).expect("always opens")
}

/// A directory with three batches, and where each ends in the file.
fn written() -> (tempfile::TempDir, Vec<Vec<Record>>, Vec<u64>) {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let batches = vec![
        vec![record(1, "grant"), record(1, "launch"), record(2, "status")],
        vec![record(7, "")],
        vec![record(4, "kill"), record(2, &"long ".repeat(3))],
    ];
    let (mut checkpoint, _) =
        Checkpoint::open(directory.path(), BOOT, AGENT).expect("an empty directory");
    let ends = batches
        .iter()
        .map(|batch| {
            checkpoint.append(batch).expect("room");
            checkpoint.size()
        })
        .collect();
    (directory, batches, ends)
}

fn whole_batches(batches: &[Vec<Record>], ends: &[u64], cut: u64) -> Vec<Record> {
    let whole = ends.iter().filter(|end| **end <= cut).count();
    batches[..whole].concat()
}

#[test]
fn a_crash_at_every_byte_leaves_whole_batches_and_an_agent_that_starts() {
    let (directory, batches, ends) = written();
    let bytes = fs::read(directory.path().join(CURRENT)).expect("written");
    let last = *ends.last().expect("three batches");
    let start = 68;

    for cut in start..=last {
        for zeros_follow in [true, false] {
            let crashed = tempfile::tempdir().expect("a temporary directory");
            let length = usize::try_from(cut).expect("small");
            let mut kept = bytes[..length].to_vec();
            if zeros_follow {
                kept.resize(bytes.len(), 0);
            }
            fs::write(crashed.path().join(CURRENT), kept).expect("room");

            let (mut checkpoint, found) = open(crashed.path());

            assert_eq!(
                found.records,
                whole_batches(&batches, &ends, cut),
                "cut at {cut}"
            );
            assert_eq!(found.agent_id, AGENT, "cut at {cut}");
            if cut == start || ends.contains(&cut) {
                assert!(found.damage.is_empty(), "cut at {cut}: {:?}", found.damage);
            }
            checkpoint.append(&[record(9, "next")]).expect("room");
            let (_, again) = open(crashed.path());
            assert_eq!(
                again.records.last(),
                Some(&record(9, "next")),
                "cut at {cut}"
            );
        }
    }
}

#[test]
fn a_flipped_bit_ends_the_reading_there_and_never_invents_a_record() {
    let (directory, batches, ends) = written();
    let bytes = fs::read(directory.path().join(CURRENT)).expect("written");
    let all = batches.concat();
    let last = usize::try_from(*ends.last().expect("three batches")).expect("small");

    for at in 68..last {
        let damaged = tempfile::tempdir().expect("a temporary directory");
        let mut bytes = bytes.clone();
        bytes[at] ^= 0x10;
        fs::write(damaged.path().join(CURRENT), bytes).expect("room");

        let (_, found) = open(damaged.path());

        assert!(
            all.starts_with(&found.records),
            "flipped at {at}: {:?}",
            found.records
        );
        assert!(
            found.records.len() < all.len(),
            "flipped at {at} and not noticed"
        );
        assert!(!found.damage.is_empty(), "flipped at {at} and not told");
    }
}

#[test]
fn bytes_of_an_earlier_use_of_the_space_are_never_read_as_records() {
    let (directory, _, ends) = written();
    let path = directory.path().join(CURRENT);
    let bytes = fs::read(&path).expect("written");
    let (first, third) = (
        usize::try_from(ends[0]).expect("small"),
        usize::try_from(ends[2]).expect("small"),
    );

    // The first batch again, then what stood behind another one.
    let mut mixed = bytes[..first].to_vec();
    mixed.extend(&bytes[68..third]);
    fs::write(&path, mixed).expect("room");

    let (_, found) = open(directory.path());
    assert_eq!(
        found.records.len(),
        3,
        "only the first batch is its own: {:?}",
        found.records
    );
}

#[test]
fn a_crash_at_every_step_of_a_compaction_keeps_everything() {
    let (directory, batches, _) = written();
    let all = batches.concat();
    let live = vec![record(1, "live")];
    let copy = |names: &[(&str, &str)]| {
        let to = tempfile::tempdir().expect("a temporary directory");
        for (from, name) in names {
            fs::copy(directory.path().join(from), to.path().join(name)).expect("there");
        }
        to
    };
    let header = Header {
        counter: 50,
        agent_id: AGENT,
        boot_id: BOOT,
        epoch: 3,
    };
    write_next(directory.path(), &header, &live).expect("room");

    // Half written, complete, the present one moved away, both moved.
    let half = copy(&[(CURRENT, CURRENT)]);
    let next = fs::read(directory.path().join(NEXT)).expect("written");
    fs::write(half.path().join(NEXT), &next[..80]).expect("room");
    assert_eq!(open(half.path()).1.records, all, "half written");
    let complete = copy(&[(CURRENT, CURRENT), (NEXT, NEXT)]);
    assert_eq!(open(complete.path()).1.records, all, "written, not renamed");
    let moved = copy(&[(CURRENT, PREVIOUS), (NEXT, NEXT)]);
    assert_eq!(open(moved.path()).1.records, all, "present one renamed");
    let done = copy(&[(CURRENT, PREVIOUS), (NEXT, CURRENT)]);
    let (_, found) = open(done.path());
    assert_eq!((found.records, found.topology_epoch), (live, 3), "done");
}

#[test]
fn a_damaged_file_gives_way_to_the_one_before_it_and_is_kept_for_people() {
    let (directory, batches, _) = written();
    drop(open(directory.path()));
    let path = directory.path().join(CURRENT);
    let mut bytes = fs::read(&path).expect("written");
    bytes[20] ^= 1;
    fs::write(&path, bytes).expect("room");

    let (_, found) = open(directory.path());

    assert_eq!(
        found.records,
        batches.concat(),
        "the previous one holds the same"
    );
    assert!(
        found.damage[0].contains("wrong checksum"),
        "{:?}",
        found.damage
    );
    assert!(directory.path().join(DAMAGED).exists());
}

#[test]
fn with_both_files_damaged_the_agent_starts_and_says_that_it_knows_nothing() {
    let (directory, _, _) = written();
    drop(open(directory.path()));
    for (name, content) in [(CURRENT, &b"METEAGNTgarbage"[..]), (PREVIOUS, b"")] {
        fs::write(directory.path().join(name), content).expect("room");
    }

    let (mut checkpoint, found) = open(directory.path());

    assert!(!found.found && found.records.is_empty());
    assert_eq!(found.damage.len(), 2, "{:?}", found.damage);
    assert_eq!(found.agent_id, Uuid::from_u128(99), "a fresh identity");
    checkpoint.append(&[record(1, "goes on")]).expect("works");
}

#[test]
fn another_boot_is_told_once_and_the_identity_stays() {
    let (directory, batches, _) = written();

    let (_, first) =
        Checkpoint::open(directory.path(), Uuid::from_u128(7), Uuid::nil()).expect("always opens");
    let (_, second) =
        Checkpoint::open(directory.path(), Uuid::from_u128(7), Uuid::nil()).expect("always opens");

    assert!(first.rebooted && !second.rebooted);
    assert_eq!((first.agent_id, first.records), (AGENT, batches.concat()));
}

#[test]
fn a_compaction_drops_what_is_over_and_is_wanted_when_the_file_has_doubled() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let (mut checkpoint, _) = open(directory.path());
    let mut appended = 0;
    while !checkpoint.wants_compaction() {
        checkpoint
            .append(&[record(2, &"x".repeat(1000))])
            .expect("room");
        appended += 1;
        assert!(appended < 1000, "never wanted");
    }
    let live = [record(1, "only this")];
    checkpoint.set_topology_epoch(4);

    checkpoint.compact(&live).expect("room");

    assert!(!checkpoint.wants_compaction());
    checkpoint.append(&[record(1, "and this")]).expect("room");
    let (_, found) = open(directory.path());
    assert_eq!(
        found.records,
        [record(1, "only this"), record(1, "and this")]
    );
    assert_eq!(found.topology_epoch, 4);
}

#[test]
fn a_header_of_a_later_format_is_refused_by_its_number() {
    let header = Header {
        counter: 1,
        agent_id: AGENT,
        boot_id: BOOT,
        epoch: 0,
    };
    let mut bytes = header.encode();
    bytes[8] = 2;
    let crc = crc32c::crc32c(&bytes[..64]);
    bytes[64..68].copy_from_slice(&crc.to_le_bytes());

    let error = Header::decode(&bytes).expect_err("a later format");

    assert!(
        error.contains("format 2") && error.contains("up to 1"),
        "{error}"
    );
}

#[test]
fn a_record_that_could_never_be_read_back_is_refused_before_it_is_written() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let (mut checkpoint, _) = open(directory.path());
    let size = checkpoint.size();

    checkpoint
        .append(&[record(0, "no kind")])
        .expect_err("kind 0");
    checkpoint
        .append(&[Record {
            kind: 1,
            payload: vec![0; (16 << 20) + 1],
        }])
        .expect_err("too large");

    assert_eq!(checkpoint.size(), size);
}

#[test]
fn entries_come_back_and_unknown_ones_are_carried_along() {
    use mete_proto::internal::v1::CheckpointKill;

    let kill = Entry::Kill(CheckpointKill {
        grace_ms: 5,
        ..CheckpointKill::default()
    });
    assert_eq!(Entry::from_record(&kill.to_record()), kill);
    for strange in [
        record(77, "from the future"),
        record(4, "\u{7f} not a message"),
    ] {
        let entry = Entry::from_record(&strange);
        assert_eq!(entry, Entry::Unknown(strange.clone()));
        assert_eq!(entry.to_record(), strange);
    }
}

#[test]
fn a_checkpoint_of_the_first_format_still_loads() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/corpus/checkpoint-1");
    if std::env::var_os("METE_WRITE_CORPUS").is_some() {
        let (directory, _, ends) = written();
        let bytes = fs::read(directory.path().join(CURRENT)).expect("written");
        let end = usize::try_from(ends[2]).expect("small");
        fs::create_dir_all(corpus.parent().expect("has one")).expect("writable");
        fs::write(&corpus, &bytes[..end]).expect("writable");
    }
    let directory = tempfile::tempdir().expect("a temporary directory");
    fs::copy(&corpus, directory.path().join(CURRENT)).expect("in the repository");

    let (_, found) = open(directory.path());

    assert_eq!(found.agent_id, AGENT);
    assert_eq!(found.damage, Vec::<String>::new());
    let kinds: Vec<u16> = found.records.iter().map(|record| record.kind).collect();
    assert_eq!(kinds, [1, 1, 2, 7, 4, 2]);
}

#[test]
fn a_full_disk_stops_no_append_until_the_allocated_space_is_used_and_nothing_is_lost() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let mounted = std::process::Command::new("mount")
        .args(["-t", "tmpfs", "-o", "size=4m", "tmpfs"])
        .arg(directory.path())
        .status();
    if !mounted.is_ok_and(|status| status.success()) {
        eprintln!("NOT TESTED: mounting a tmpfs needs root");
        return;
    }
    let outcome = std::panic::catch_unwind(|| on_full_disk(directory.path()));
    let _left = std::process::Command::new("umount")
        .arg(directory.path())
        .status();
    if let Err(panic) = outcome {
        std::panic::resume_unwind(panic);
    }
}

fn on_full_disk(path: &Path) {
    let (mut checkpoint, _) = open(path);
    let filler = path.join("filler");
    fs::write(&filler, vec![0; 8 << 20]).expect_err("less room than that");
    let piece = record(2, &"y".repeat(10_000));

    let mut kept = 0;
    let error = loop {
        match checkpoint.append(std::slice::from_ref(&piece)) {
            Ok(()) => kept += 1,
            Err(error) => break error,
        }
        assert!(kept < 1000, "the disk was not full");
    };

    assert_eq!(error.kind(), io::ErrorKind::StorageFull);
    assert!(
        kept >= 50,
        "half a chunk is allocated ahead, but only {kept} fitted"
    );
    // Compaction has its own space, and afterwards there is room again.
    checkpoint
        .compact(std::slice::from_ref(&piece))
        .expect("has space kept for it");
    checkpoint
        .append(std::slice::from_ref(&piece))
        .expect("room again");
    let (_, found) = open(path);
    assert_eq!(found.records.len(), 2);
}
