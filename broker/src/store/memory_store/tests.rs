//! The store in memory keeps the contract, and its disk loses exactly what it is told to.

use proptest::prelude::*;

use super::*;
use crate::store::chunk;
use crate::store::contract::{Model, act, life, live};
use crate::store::{Entry, EntryKind};

const CLUSTER: ClusterId = [5; 16];

fn open(disk: &MemoryDisk) -> Result<MemoryStore, OpenError> {
    if disk.keys().is_empty() {
        MemoryStore::found(disk, CLUSTER, 1)
    } else {
        MemoryStore::open(disk)
    }
}

fn entries(indexes: std::ops::RangeInclusive<u64>, term: u64, size: usize) -> Vec<Entry> {
    let kind = EntryKind::Command;
    indexes
        .map(|index| Entry {
            index,
            term,
            kind,
            data: vec![b'x'; size],
        })
        .collect()
}

fn hard(term: u64, commit: u64) -> HardState {
    HardState {
        term,
        vote: 1,
        commit,
    }
}

/// A disk with three turns of three entries, the store closed without a goodbye.
fn three_turns(size: usize) -> MemoryDisk {
    let disk = MemoryDisk::new();
    let mut store = open(&disk).expect("an empty disk");
    for turn in 0..3 {
        let first = turn * 3 + 1;
        store
            .append(&entries(first..=first + 2, 1, size), &hard(1, turn * 3))
            .expect("a sound disk");
    }
    disk
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]

    #[test]
    fn every_life_keeps_the_contract(acts in life()) {
        let disk = MemoryDisk::new();
        live(&acts, || open(&disk));
    }

    /// The last act is interrupted: of its writes only a prefix survives. What was there before
    /// must be there, and the store must open.
    #[test]
    fn a_crash_in_the_middle_of_an_act_leaves_what_was_before(
        acts in life(), last in act(), kept in 0..4_usize,
    ) {
        let disk = MemoryDisk::new();
        let mut model = Model::default();
        let mut store = open(&disk).expect("an empty disk");
        for act in &acts {
            model.act(&mut store, act);
        }
        store.close().expect("a sound disk");
        let before = MemoryStore::open(&disk).expect("it opens").take_loaded().expect("new");
        disk.set_faults(FaultPlan { flushes_lie: true, ..FaultPlan::default() });
        model.act(&mut store, &last);
        drop(store);
        disk.crash(kept);
        disk.set_faults(FaultPlan::default());
        // A lying flush lets the store delete the old snapshot too early; real ones are covered by
        // the power-cut replay, so such a life ends here.
        let Ok(mut reopened) = MemoryStore::open(&disk) else { return Ok(()) };
        let after = reopened.take_loaded().expect("new");
        prop_assert!(after.hard.term >= before.hard.term);
        let floor = before.hard.commit;
        for entry in before.entries.iter().filter(|entry| entry.index <= floor) {
            let gone_by_right = after.manifest.as_ref().is_some_and(|m| m.at.index >= entry.index);
            prop_assert!(gone_by_right || after.entries.contains(entry), "lost {}", entry.index);
        }
    }
}

#[test]
fn a_damaged_record_below_the_flushed_mark_refuses_and_names_the_last_good_index() {
    let disk = three_turns(10);
    assert!(disk.damage(&chunk::entry_key(4, 0), |value| value[70] ^= 1));

    let error = MemoryStore::open(&disk).expect_err("index 4 was flushed before the third turn");

    assert!(
        matches!(
            &error,
            OpenError::Damaged {
                last_good: Some(3),
                ..
            }
        ),
        "{error}"
    );
    assert!(
        error
            .to_string()
            .contains("start on a copy of the directory"),
        "{error}"
    );
}

#[test]
fn a_damaged_last_write_is_cut_off_as_unfinished() {
    let disk = three_turns(10);
    assert!(disk.damage(&chunk::entry_key(7, 0), |value| value.truncate(50)));

    let loaded = MemoryStore::open(&disk)
        .expect("it opens")
        .take_loaded()
        .expect("new");

    assert_eq!((loaded.cut_from, loaded.entries.len()), (Some(7), 6));
    let again = MemoryStore::open(&disk)
        .expect("it opens again")
        .take_loaded()
        .expect("new");
    assert_eq!((again.cut_from, again.entries), (None, loaded.entries));
}

#[test]
fn after_a_graceful_end_even_the_last_record_is_known_to_be_whole() {
    let disk = three_turns(10);
    MemoryStore::open(&disk)
        .expect("it opens")
        .close()
        .expect("a sound disk");
    assert!(disk.damage(&chunk::entry_key(7, 0), |value| value.truncate(50)));

    let error = MemoryStore::open(&disk).expect_err("the mark covers index 9");

    assert!(matches!(
        error,
        OpenError::Damaged {
            last_good: Some(6),
            ..
        }
    ));
}

#[test]
fn a_missing_record_or_piece_below_the_mark_refuses() {
    for (size, key) in [
        (10, chunk::entry_key(4, 0)),
        (20_000, chunk::entry_key(2, 1)),
    ] {
        let disk = three_turns(size);
        disk.remove(&key)
            .and_then(|()| disk.flush())
            .expect("a sound disk");

        let opened = MemoryStore::open(&disk);

        assert!(matches!(opened, Err(OpenError::Damaged { .. })), "{key:?}");
    }
}

#[test]
fn a_store_of_a_later_format_is_not_called_damaged() {
    let disk = three_turns(10);
    let key = chunk::entry_key(1, 0);
    assert!(disk.damage(&key, |value| {
        value[0] = 9;
        let body = value.len() - 4;
        let crc = crc32c::crc32c_append(crc32c::crc32c(&key), &value[..body]);
        value[body..].copy_from_slice(&crc.to_le_bytes());
    }));

    let opened = MemoryStore::open(&disk);

    assert!(matches!(
        opened,
        Err(OpenError::Format {
            found: 9,
            known: 1,
            ..
        })
    ));
}

#[test]
fn no_value_is_ever_above_the_limit() {
    let disk = three_turns(30_000);
    let records = disk.records();

    let longest = records.iter().map(|(_, value)| value.len()).max();

    assert!(
        longest.is_some_and(|longest| longest <= chunk::VALUE_LIMIT),
        "{longest:?}"
    );
    assert!(records.len() > 9 * 4);
}
