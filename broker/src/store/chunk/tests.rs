//! Records come back as they were written, under their own key, or not at all.

use proptest::prelude::*;

use super::*;

const CLUSTER: ClusterId = [4; 16];

fn stamp() -> Stamp {
    let hard = HardState {
        term: 9,
        vote: 2,
        commit: 70,
    };
    Stamp {
        cluster: CLUSTER,
        sequence: 12,
        hard,
        flushed: 71,
    }
}

fn entry(index: u64, size: usize) -> Entry {
    Entry {
        index,
        term: 9,
        kind: EntryKind::Command,
        data: vec![b'd'; size],
    }
}

#[test]
fn entries_fill_a_value_up_to_the_limit_and_not_beyond() {
    let entries: Vec<Entry> = (80..180).map(|index| entry(index, 250)).collect();

    let (value, count) = encode_chunk(&stamp(), &entries);

    assert!(
        value.len() <= VALUE_LIMIT && value.len() + 263 > VALUE_LIMIT,
        "{}",
        value.len()
    );
    let record = Record::Chunk(stamp(), entries[..count].to_vec());
    assert_eq!(decode(&entry_key(80, 0), &value, &CLUSTER), Ok(record));
}

#[test]
fn the_largest_entry_that_fits_alone_fills_one_value_and_the_next_one_goes_into_pieces() {
    let largest = VALUE_LIMIT - CHUNK_BYTES - ENTRY_BYTES;
    assert!(fits_alone(&entry(1, largest)) && !fits_alone(&entry(1, largest + 1)));
    assert_eq!(
        encode_chunk(&stamp(), &[entry(1, largest)]).0.len(),
        VALUE_LIMIT
    );

    let pieces = encode_pieces(&stamp(), &entry(1, 20_000));
    let mut content = Vec::new();
    for (number, (key, value)) in pieces.iter().enumerate() {
        assert!(value.len() <= VALUE_LIMIT);
        let Ok(Record::Piece(_, piece)) = decode(key, value, &CLUSTER) else {
            panic!("a piece")
        };
        assert_eq!(piece.last, number + 1 == pieces.len());
        content.extend(piece.data);
    }
    assert_eq!(content, entry(1, 20_000).data);
}

#[test]
fn a_record_under_another_key_or_of_another_cluster_is_refused() {
    let (value, _) = encode_chunk(&stamp(), &[entry(80, 10)]);

    assert_eq!(
        decode(&entry_key(81, 0), &value, &CLUSTER),
        Err(Bad::Checksum)
    );
    assert_eq!(
        decode(&entry_key(80, 0), &value, &[5; 16]),
        Err(Bad::Cluster)
    );
}

#[test]
fn keys_sort_as_their_indexes_do() {
    let keys = [
        entry_key(1, 0),
        entry_key(255, 0),
        entry_key(256, 0),
        entry_key(256, 1),
    ];

    assert!(keys.is_sorted() && keys.iter().all(|key| key.as_slice() < HEAD_KEY));
    assert_eq!(parse_entry_key(&keys[3]), Some((256, 1)));
    assert_eq!(parse_entry_key(HEAD_KEY), None);
}

#[test]
fn head_and_manifest_come_back() {
    let at = Applied {
        index: 70,
        term: 8,
        membership: b"members".to_vec(),
    };
    let head = encode_head(&stamp(), &at);
    assert_eq!(
        decode(HEAD_KEY, &head, &CLUSTER),
        Ok(Record::Head(stamp(), at.clone()))
    );

    let manifest = Manifest {
        file: "snap-0000000070".to_owned(),
        at,
        bytes: 5,
        digest: 6,
    };
    let value = encode_meta(b"mmanifest", &encode_manifest(&manifest));
    let body = decode_meta(b"mmanifest", &value).expect("just written");
    assert_eq!(decode_manifest(body), Ok(manifest));
    assert_eq!(decode_meta(b"mnode", &value), Err(Bad::Checksum));
}

proptest! {
    #[test]
    fn one_flipped_bit_is_always_noticed(at in any::<prop::sample::Index>(), bit in 0..8_u8) {
        let (mut value, _) = encode_chunk(&stamp(), &[entry(80, 40), entry(81, 0)]);
        let at = at.index(value.len());
        value[at] ^= 1 << bit;
        prop_assert!(decode(&entry_key(80, 0), &value, &CLUSTER).is_err());
    }

    /// Also behind a right checksum: whatever wrote it, reading it never panics.
    #[test]
    fn arbitrary_records_never_panic(
        kind in 0..5_u8, body in prop::collection::vec(any::<u8>(), 0..200),
    ) {
        for key in [entry_key(80, 0), HEAD_KEY.to_vec(), b"mnode".to_vec()] {
            let sealed = seal(&key, [&[FORMAT, kind], body.as_slice()].concat());
            prop_assert!(decode(&key, &sealed, &CLUSTER).is_err());
            prop_assert!(decode(&key, &body, &CLUSTER).is_err());
            let _ = decode_manifest(&body);
        }
    }
}
