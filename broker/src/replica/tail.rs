//! The log's tail in memory: what the raft crate reads instead of the disk.
//!
//! Holds every entry from the last trim on, bounded by count and bytes through the snapshots that
//! the replica takes. Everything here is also on disk, or about to be in this very turn.

use std::cell::Cell;
use std::collections::VecDeque;

use raft::{Error, GetEntriesContext, RaftState, Storage, StorageError};

use crate::replica::wire::{self, RaftConfState, RaftEntry, RaftHardState, RaftSnapshot};
use crate::store::{Applied, Entry};

/// Entries in memory, the membership, and where the live snapshot stands.
#[derive(Debug)]
pub(super) struct Tail {
    /// Index and term right below the first entry.
    below: (u64, u64),
    entries: VecDeque<RaftEntry>,
    bytes: usize,
    hard: RaftHardState,
    conf: RaftConfState,
    live: Option<Applied>,
    /// Set when a peer needs a newer snapshot than the live one.
    wanted: Cell<bool>,
}

impl Tail {
    /// Builds the tail from what the store found. Entries are without gaps and touch `live`.
    pub(super) fn new(
        live: Option<Applied>,
        stored: Vec<Entry>,
        hard: RaftHardState,
        conf: RaftConfState,
    ) -> Self {
        let mut entries: VecDeque<RaftEntry> = stored.into_iter().map(wire::from_stored).collect();
        let base = live.as_ref().map_or((0, 0), |live| (live.index, live.term));
        let begins_right_above = entries
            .front()
            .is_none_or(|first| first.index == base.0 + 1);
        let below = if begins_right_above {
            base
        } else {
            // The term below the first entry is not stored, so the first one gives its place up.
            entries
                .pop_front()
                .map_or(base, |first| (first.index, first.term))
        };
        let bytes = entries.iter().map(entry_bytes).sum();
        Self {
            below,
            entries,
            bytes,
            hard,
            conf,
            live,
            wanted: Cell::new(false),
        }
    }

    pub(super) fn first(&self) -> u64 {
        self.below.0 + 1
    }

    pub(super) fn last(&self) -> u64 {
        self.below.0 + self.entries.len() as u64
    }

    /// Bytes of content above `index`.
    pub(super) fn bytes_above(&self, index: u64) -> usize {
        self.range(index + 1, self.last() + 1)
            .map(entry_bytes)
            .sum()
    }

    pub(super) fn set_hard(&mut self, hard: RaftHardState) {
        self.hard = hard;
    }

    pub(super) fn set_conf(&mut self, conf: RaftConfState) {
        self.conf = conf;
    }

    pub(super) fn set_live(&mut self, live: Applied) {
        self.live = Some(live);
        self.wanted.set(false);
    }

    /// True once after a peer asked for a newer snapshot.
    pub(super) fn take_wanted(&self) -> bool {
        self.wanted.take()
    }

    /// Adds entries; from the first one's index on they replace what was there.
    pub(super) fn append(&mut self, entries: Vec<RaftEntry>) {
        let Some(first) = entries.first().map(|entry| entry.index) else {
            return;
        };
        assert!(
            first >= self.first() && first <= self.last() + 1,
            "entries from {first} do not fit a log of {}..={}",
            self.first(),
            self.last()
        );
        while self.last() >= first {
            let dropped = self.entries.pop_back();
            self.bytes -= dropped.as_ref().map_or(0, entry_bytes);
        }
        self.bytes += entries.iter().map(entry_bytes).sum::<usize>();
        self.entries.extend(entries);
    }

    /// Forgets entries below `first_kept`.
    pub(super) fn trim(&mut self, first_kept: u64) {
        while self.first() < first_kept {
            let Some(entry) = self.entries.pop_front() else {
                break;
            };
            self.bytes -= entry_bytes(&entry);
            self.below = (entry.index, entry.term);
        }
    }

    /// Starts over from an installed snapshot.
    pub(super) fn install(&mut self, live: Applied, conf: RaftConfState) {
        self.entries.clear();
        self.bytes = 0;
        self.below = (live.index, live.term);
        self.conf = conf;
        self.hard.commit = self.hard.commit.max(live.index);
        self.set_live(live);
    }

    fn range(&self, low: u64, high: u64) -> impl Iterator<Item = &RaftEntry> {
        let skip = low.saturating_sub(self.first());
        let count = high.saturating_sub(low.max(self.first()));
        let clamp = |number: u64| usize::try_from(number).unwrap_or(usize::MAX);
        self.entries.iter().skip(clamp(skip)).take(clamp(count))
    }
}

/// Content plus a little for the frame.
fn entry_bytes(entry: &RaftEntry) -> usize {
    entry.get_data().len() + 32
}

impl Storage for Tail {
    fn initial_state(&self) -> raft::Result<RaftState> {
        Ok(RaftState::new(self.hard.clone(), self.conf.clone()))
    }

    fn entries(
        &self,
        low: u64,
        high: u64,
        max_size: impl Into<Option<u64>>,
        _context: GetEntriesContext,
    ) -> raft::Result<Vec<RaftEntry>> {
        if low < self.first() {
            return Err(Error::Store(StorageError::Compacted));
        }
        assert!(
            high <= self.last() + 1,
            "entries up to {high} asked, the log ends at {}",
            self.last()
        );
        let limit = max_size.into().unwrap_or(u64::MAX);
        let (mut taken, mut size) = (Vec::new(), 0_u64);
        for entry in self.range(low, high) {
            size = size.saturating_add(entry_bytes(entry) as u64);
            // At least one, whatever the limit says: else a large entry would never travel.
            if size > limit && !taken.is_empty() {
                break;
            }
            taken.push(entry.clone());
        }
        Ok(taken)
    }

    fn term(&self, index: u64) -> raft::Result<u64> {
        let (below, term) = self.below;
        if index == below {
            return Ok(term);
        }
        if index < below {
            // The live snapshot's own term is known even when the tail begins above it.
            let live = self.live.as_ref().filter(|live| live.index == index);
            return live
                .map(|live| live.term)
                .ok_or(Error::Store(StorageError::Compacted));
        }
        let entry = self.range(index, index + 1).next();
        entry
            .map(|entry| entry.term)
            .ok_or(Error::Store(StorageError::Unavailable))
    }

    fn first_index(&self) -> raft::Result<u64> {
        Ok(self.first())
    }

    fn last_index(&self) -> raft::Result<u64> {
        Ok(self.last())
    }

    fn snapshot(&self, request_index: u64, to: u64) -> raft::Result<RaftSnapshot> {
        let usable = self
            .live
            .as_ref()
            .filter(|live| live.index >= request_index && live.index + 1 >= self.first());
        let with_conf = usable.and_then(|live| {
            let conf = wire::decode_conf(&live.membership).ok()?;
            // A peer refuses a snapshot from before it was a member: it needs a newer one.
            wire::has_member(&conf, to).then_some((live, conf))
        });
        let Some((live, conf)) = with_conf else {
            self.wanted.set(true);
            return Err(Error::Store(StorageError::SnapshotTemporarilyUnavailable));
        };
        Ok(wire::snapshot(live.index, live.term, conf))
    }
}
