//! What every store promises, as a model and random lives to hold a store against it.
//!
//! The model is a plain vector. A life is a list of acts with restarts in between; after each
//! restart the store must know exactly what the model knows.

use proptest::prelude::*;

use crate::store::{
    Applied, Entry, EntryKind, HardState, Loaded, LogStore, Manifest, OpenError, Origin,
    SnapshotSource,
};

/// One act on a store.
#[derive(Debug, Clone)]
pub(super) enum Act {
    /// Append entries of these sizes, replacing the last `back` ones that no snapshot holds.
    Append {
        back: u64,
        sizes: Vec<usize>,
        new_term: bool,
    },
    /// Write the hard state alone: a vote in a new term.
    Vote(u64),
    /// Save an applied index.
    SaveApplied,
    /// Take a snapshot at some index below the end.
    Snapshot { below_end: u64, bytes: usize },
    /// Trim, keeping this many entries below the snapshot.
    Trim { keep: u64 },
    /// Receive a snapshot this far above the end.
    Install { above_end: u64, bytes: usize },
    /// Housekeeping.
    Tidy,
    /// Close and open again.
    Restart,
}

pub(super) fn act() -> impl Strategy<Value = Act> {
    // Around the size of a value, and far above it.
    let size = prop_oneof![
        6 => 0..300_usize,
        2 => 6_700..7_100_usize,
        1 => 20_000..60_000_usize,
    ];
    prop_oneof![
        8 => (0..4_u64, prop::collection::vec(size, 1..40), any::<bool>())
            .prop_map(|(back, sizes, new_term)| Act::Append { back, sizes, new_term }),
        2 => (1..4_u64).prop_map(Act::Vote),
        2 => Just(Act::SaveApplied),
        2 => (0..30_u64, 0..3_000_000_usize)
            .prop_map(|(below_end, bytes)| Act::Snapshot { below_end, bytes }),
        2 => (0..20_u64).prop_map(|keep| Act::Trim { keep }),
        1 => (1..50_u64, 0..2_000_usize)
            .prop_map(|(above_end, bytes)| Act::Install { above_end, bytes }),
        2 => Just(Act::Tidy),
        2 => Just(Act::Restart),
    ]
}

pub(super) fn life() -> impl Strategy<Value = Vec<Act>> {
    prop::collection::vec(act(), 1..40)
}

/// What a store must know.
#[derive(Debug, Clone, Default)]
pub(super) struct Model {
    hard: HardState,
    applied: Option<Applied>,
    manifest: Option<(Manifest, Vec<u8>)>,
    entries: Vec<Entry>,
    /// Entries below this may or may not be there.
    first_kept: u64,
    marker: u8,
}

impl Model {
    fn base(&self) -> u64 {
        self.manifest
            .as_ref()
            .map_or(0, |(manifest, _)| manifest.at.index)
    }

    fn last(&self) -> u64 {
        self.entries.last().map_or(self.base(), |entry| entry.index)
    }

    fn at(&self, index: u64) -> Applied {
        let entry = self.entries.iter().find(|entry| entry.index == index);
        let term = entry.map_or(self.hard.term, |entry| entry.term);
        Applied {
            index,
            term,
            membership: index.to_le_bytes().to_vec(),
        }
    }

    /// Does the act on the store and on the model.
    pub(super) fn act(&mut self, store: &mut dyn LogStore, act: &Act) {
        self.marker = self.marker.wrapping_add(1);
        match act {
            Act::Append {
                back,
                sizes,
                new_term,
            } => {
                self.append(store, *back, sizes, *new_term);
            }
            Act::Vote(node) => {
                self.hard.term += 1;
                self.hard.vote = *node;
                store.append(&[], &self.hard).expect("a sound disk");
            }
            Act::SaveApplied => {
                let at = self.at(self.last());
                self.hard.commit = self.hard.commit.max(at.index);
                store.save_applied(&self.hard, &at).expect("a sound disk");
                self.applied = Some(at);
            }
            Act::Snapshot { below_end, bytes } => {
                let index = self.last().saturating_sub(*below_end);
                if index <= self.base() {
                    return;
                }
                let (manifest, content) = self.write(store, index, *bytes);
                store.publish_snapshot(&manifest).expect("a sound disk");
                self.manifest = Some((manifest, content));
            }
            Act::Trim { keep } => {
                let first_kept = self.base().saturating_sub(*keep) + 1;
                store.trim(first_kept).expect("a sound disk");
                self.first_kept = self.first_kept.max(first_kept);
            }
            Act::Install { above_end, bytes } => {
                let (manifest, content) = self.write(store, self.last() + above_end, *bytes);
                self.hard.commit = manifest.at.index;
                store
                    .install_snapshot(&manifest, &self.hard)
                    .expect("a sound disk");
                self.entries.clear();
                self.applied = Some(manifest.at.clone());
                self.manifest = Some((manifest, content));
            }
            Act::Tidy => store.tidy().expect("a sound disk"),
            Act::Restart => {}
        }
    }

    fn append(&mut self, store: &mut dyn LogStore, back: u64, sizes: &[usize], new_term: bool) {
        let floor = self
            .base()
            .max(self.applied.as_ref().map_or(0, |at| at.index));
        let floor = floor.max(self.hard.commit);
        let first = self.last().saturating_sub(back).max(floor) + 1;
        self.hard.term += u64::from(new_term || first <= self.last() || self.hard.term == 0);
        let (term, marker) = (self.hard.term, self.marker);
        let kinds = [EntryKind::Command, EntryKind::Change, EntryKind::ChangeV2];
        let entries: Vec<Entry> = (first..)
            .zip(sizes)
            .map(|(index, size)| Entry {
                index,
                term,
                kind: kinds[size % 3],
                data: vec![marker; *size],
            })
            .collect();
        store.append(&entries, &self.hard).expect("a sound disk");
        self.entries.retain(|entry| entry.index < first);
        self.entries.extend(entries);
    }

    fn write(&self, store: &dyn LogStore, index: u64, bytes: usize) -> (Manifest, Vec<u8>) {
        let content: Vec<u8> = (0..bytes)
            .map(|at| at.to_le_bytes()[at % 3] ^ self.marker)
            .collect();
        let mut writer = store
            .snapshot_writer(&self.at(index), Origin::Made)
            .expect("a sound disk");
        writer.write_all(&content).expect("a sound disk");
        (
            writer.finish(u64::from(self.marker)).expect("a sound disk"),
            content,
        )
    }

    /// Holds what a store found at its start against the model.
    pub(super) fn check(&self, loaded: &Loaded) {
        let applied = self.applied.as_ref().map_or(0, |applied| applied.index);
        let commit = self.hard.commit.max(self.base()).max(applied);
        assert_eq!(
            loaded.hard,
            HardState {
                commit,
                ..self.hard
            }
        );
        // A store that never saved one may give the default.
        assert_eq!(
            loaded.applied.clone().unwrap_or_default(),
            self.applied.clone().unwrap_or_default()
        );
        assert_eq!(
            loaded.manifest.as_ref(),
            self.manifest.as_ref().map(|(manifest, _)| manifest)
        );
        assert_eq!(loaded.cut_from, None);
        let needed = |entry: &&Entry| entry.index >= self.first_kept;
        let expected: Vec<&Entry> = self.entries.iter().filter(needed).collect();
        let found: Vec<&Entry> = loaded.entries.iter().filter(needed).collect();
        assert_eq!(found, expected);
        for entry in loaded
            .entries
            .iter()
            .filter(|entry| entry.index < self.first_kept)
        {
            assert!(
                self.entries.contains(entry),
                "an entry below the trim is not what it was"
            );
        }
    }

    pub(super) fn check_snapshot(&self, store: &dyn LogStore) {
        let Some((manifest, content)) = &self.manifest else {
            return;
        };
        let mut source: Box<dyn SnapshotSource> = store
            .open_snapshot(manifest)
            .expect("the live snapshot is there");
        let mut found = Vec::new();
        source
            .read_to_end(&mut found)
            .expect("the live snapshot is sound");
        assert_eq!(found, *content);
    }
}

/// Lives one life: `open` opens the store, the first time on an empty place.
pub(super) fn live<S: LogStore>(acts: &[Act], mut open: impl FnMut() -> Result<S, OpenError>) {
    let mut model = Model::default();
    let mut store = open().expect("an empty place becomes a store");
    store
        .take_loaded()
        .expect("a fresh store has not been asked yet");
    for act in acts.iter().chain([&Act::Restart]) {
        model.act(&mut store, act);
        if matches!(act, Act::Restart) {
            store.close().expect("a sound disk");
            drop(store);
            store = open().expect("a sound store opens again");
            model.check(&store.take_loaded().expect("not asked yet"));
            model.check_snapshot(&store);
        }
    }
}
