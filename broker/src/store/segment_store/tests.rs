//! The plain-file store keeps the contract, cuts an unfinished end and refuses damage.

use proptest::prelude::*;

use super::*;
use crate::store::contract::{life, live};

const CLUSTER: ClusterId = [6; 16];

fn open(dir: &Path) -> Result<SegmentStore, OpenError> {
    SegmentStore::open(dir, CLUSTER, 1, 200_000)
}

fn filled(dir: &Path) -> Vec<u8> {
    let mut store = open(dir).expect("an empty directory");
    for index in 1..=9 {
        let entry = Entry {
            index,
            term: 1,
            kind: EntryKind::Command,
            data: vec![7; 100],
        };
        store
            .append(
                &[entry],
                &HardState {
                    term: 1,
                    vote: 0,
                    commit: 0,
                },
            )
            .expect("room");
    }
    fs::read(segment_path(dir, 1)).expect("the first segment")
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, ..ProptestConfig::default() })]

    #[test]
    fn every_life_keeps_the_contract(acts in life()) {
        let dir = tempfile::tempdir().expect("a temporary directory");
        live(&acts, || open(dir.path()));
    }
}

#[test]
fn an_unfinished_frame_at_the_end_is_cut_off() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let bytes = filled(dir.path());
    fs::write(segment_path(dir.path(), 1), &bytes[..bytes.len() - 3]).expect("room");

    let loaded = open(dir.path())
        .expect("it opens")
        .take_loaded()
        .expect("new");

    assert_eq!((loaded.entries.len(), loaded.cut_from), (8, Some(9)));
}

#[test]
fn damage_in_the_middle_is_refused() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let mut bytes = filled(dir.path());
    let middle = bytes.len() / 2;
    bytes[middle] ^= 4;
    fs::write(segment_path(dir.path(), 1), &bytes).expect("room");

    assert!(matches!(open(dir.path()), Err(OpenError::Damaged { .. })));
}

#[test]
fn a_store_of_another_node_is_refused() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    filled(dir.path());

    let opened = SegmentStore::open(dir.path(), CLUSTER, 2, 200_000);

    assert!(matches!(opened, Err(OpenError::Identity { .. })));
}
