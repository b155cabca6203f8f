//! Which records one append or trim writes and removes: pure, no I/O.
//!
//! Keeps a map of the chunks on disk (first index → extent, a few bytes each) so that an overwrite
//! after a conflict knows what it cuts and a trim what it may drop. The stores carry the plan out.

use std::collections::BTreeMap;

use crate::store::Entry;
use crate::store::chunk::{self, Key, Record, Stamp};

/// One chunk on disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extent {
    /// Its last index (its first is the map's key).
    pub last: u64,
    /// How many keys it takes: 1, or the pieces of one large entry.
    pub keys: u32,
    /// Bytes of its values.
    pub bytes: u64,
}

/// What to do to the records.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Plan {
    /// Records to write.
    pub writes: Vec<(Key, Vec<u8>)>,
    /// Records to remove. Never one that is also written.
    pub removals: Vec<Key>,
}

impl Plan {
    /// The single write of a plan that needs no batch to be atomic.
    #[must_use]
    pub fn single(&self) -> Option<&(Key, Vec<u8>)> {
        match self.writes.as_slice() {
            [write] if self.removals.is_empty() => Some(write),
            _ => None,
        }
    }
}

/// Where the chunks are.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ChunkMap {
    chunks: BTreeMap<u64, Extent>,
}

impl ChunkMap {
    /// Notes a chunk found at the start.
    pub fn insert(&mut self, first: u64, extent: Extent) {
        self.chunks.insert(first, extent);
    }

    /// The last index that is in the log, if any is.
    #[must_use]
    pub fn last_index(&self) -> Option<u64> {
        self.chunks.last_key_value().map(|(_, extent)| extent.last)
    }

    /// The first index that is in the log, if any is.
    #[must_use]
    pub fn first_index(&self) -> Option<u64> {
        self.chunks.first_key_value().map(|(first, _)| *first)
    }

    /// Bytes of all values.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.chunks.values().map(|extent| extent.bytes).sum()
    }

    /// The keys of every chunk, in order.
    #[must_use]
    pub fn keys(&self) -> Vec<Key> {
        self.chunks
            .iter()
            .flat_map(|(first, extent)| extent_keys(*first, *extent))
            .collect()
    }

    /// Plans an append: entries from the first one's index on replace what is there.
    ///
    /// `stamp` gives the sequence of the first record written; each further record takes the next
    /// one, and `stamp` is left at the next free one. `read` fetches a record that has to be cut.
    ///
    /// # Errors
    /// What `read` gives.
    pub fn append<E>(
        &mut self,
        stamp: &mut Stamp,
        entries: &[Entry],
        mut read: impl FnMut(&Key) -> Result<Record, E>,
    ) -> Result<Plan, E> {
        let mut plan = Plan::default();
        let Some(first) = entries.first().map(|entry| entry.index) else {
            return Ok(plan);
        };
        if let Some(kept) = self.cut_middle(first, &mut read)? {
            self.write(&mut plan, stamp, &kept);
        }
        let removed = self.chunks.split_off(&first);
        self.write(&mut plan, stamp, entries);
        let written: std::collections::BTreeSet<&Key> =
            plan.writes.iter().map(|(key, _)| key).collect();
        plan.removals = removed
            .into_iter()
            .flat_map(|(first, extent)| extent_keys(first, extent))
            .filter(|key| !written.contains(key))
            .collect();
        Ok(plan)
    }

    /// If `from` lies inside a chunk: the entries of that chunk below it.
    fn cut_middle<E>(
        &self,
        from: u64,
        read: &mut impl FnMut(&Key) -> Result<Record, E>,
    ) -> Result<Option<Vec<Entry>>, E> {
        let Some((first, extent)) = self.chunks.range(..from).next_back() else {
            return Ok(None);
        };
        if extent.last < from {
            return Ok(None);
        }
        // A chunk of several keys holds one entry and cannot be cut in the middle.
        match read(&chunk::entry_key(*first, 0))? {
            Record::Chunk(_, entries) => Ok(Some(
                entries
                    .into_iter()
                    .filter(|entry| entry.index < from)
                    .collect(),
            )),
            Record::Piece(..) | Record::Head(..) => Ok(None),
        }
    }

    fn write(&mut self, plan: &mut Plan, stamp: &mut Stamp, mut entries: &[Entry]) {
        while let Some(entry) = entries.first() {
            let (keys, bytes, taken) = if chunk::fits_alone(entry) {
                let (value, taken) = chunk::encode_chunk(stamp, entries);
                let bytes = value.len();
                plan.writes.push((chunk::entry_key(entry.index, 0), value));
                (1, bytes, taken)
            } else {
                let pieces = chunk::encode_pieces(stamp, entry);
                let bytes = pieces.iter().map(|(_, value)| value.len()).sum();
                let keys = pieces.len();
                plan.writes.extend(pieces);
                (keys, bytes, 1)
            };
            stamp.sequence += 1;
            let last = entry.index + (taken as u64).saturating_sub(1);
            let keys = u32::try_from(keys).unwrap_or(u32::MAX);
            self.chunks.insert(
                entry.index,
                Extent {
                    last,
                    keys,
                    bytes: bytes as u64,
                },
            );
            entries = entries.get(taken..).unwrap_or_default();
        }
    }

    /// The keys of every chunk that lies wholly below `first_kept`; they are forgotten here.
    pub fn trim(&mut self, first_kept: u64) -> Vec<Key> {
        let mut keys = Vec::new();
        while let Some((first, extent)) = self.chunks.first_key_value() {
            if extent.last >= first_kept {
                break;
            }
            keys.extend(extent_keys(*first, *extent));
            self.chunks.pop_first();
        }
        keys
    }

    /// Forgets everything; gives the keys.
    pub fn clear(&mut self) -> Vec<Key> {
        let keys = self.keys();
        self.chunks.clear();
        keys
    }
}

fn extent_keys(first: u64, extent: Extent) -> impl Iterator<Item = Key> {
    (0..extent.keys).map(move |piece| chunk::entry_key(first, piece))
}
