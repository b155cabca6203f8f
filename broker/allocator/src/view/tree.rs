//! Agents in the order of their free resources, in chunks that are shared until they are changed.
//!
//! A round works on a copy: copying costs one reference per chunk, and only chunks that the round
//! books on are really copied. Each chunk knows the most of each number in it, so that a search
//! steps over those in which nothing can fit.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;

use mete_model::AgentId;

use super::free::Free;

/// Entries of one chunk at the most.
const CHUNK: usize = 64;

/// The order of best fit: the fullest devices first, then the least CPU, then the least memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Key {
    devices: u64,
    cpu: u64,
    memory: u64,
    /// Below every agent when there is none.
    agent: Option<AgentId>,
}

impl Key {
    fn of(agent: AgentId, free: &Free) -> Self {
        Self {
            agent: Some(agent),
            ..Self::below(free)
        }
    }

    fn below(free: &Free) -> Self {
        Self {
            devices: free.devices,
            cpu: free.cpu,
            memory: free.memory,
            agent: None,
        }
    }
}

/// One agent in the order.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry {
    pub(crate) agent: AgentId,
    /// The agent's number in the view; it has no say in the order.
    pub(crate) slot: usize,
    pub(crate) free: Free,
}

impl Entry {
    /// Its place in the order.
    pub(crate) fn key(&self) -> Key {
        Key::of(self.agent, &self.free)
    }
}

#[derive(Clone, Debug, Default)]
struct Chunk {
    most: Free,
    entries: Vec<Entry>,
}

impl Chunk {
    fn new(entries: Vec<Entry>) -> Self {
        let mut chunk = Self {
            most: Free::default(),
            entries,
        };
        chunk.measure();
        chunk
    }

    fn measure(&mut self) {
        self.most = Free::default();
        for entry in &self.entries {
            self.most.raise(&entry.free);
        }
    }

    /// Puts an entry in; a chunk that has grown too large gives its upper half away.
    fn insert(&mut self, entry: Entry) -> Option<(Key, Self)> {
        if let Err(place) = self.find(&entry.key()) {
            self.entries.insert(place, entry);
            self.most.raise(&entry.free);
        }
        if self.entries.len() <= CHUNK {
            return None;
        }
        let upper = Self::new(self.entries.split_off(CHUNK / 2));
        self.measure();
        let first = upper.entries.first()?.key();
        Some((first, upper))
    }

    fn find(&self, key: &Key) -> Result<usize, usize> {
        self.entries.binary_search_by(|entry| entry.key().cmp(key))
    }
}

/// The ordered set.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tree {
    /// By a key that is not above the first entry; entries lie below the next chunk's key.
    chunks: BTreeMap<Key, Arc<Chunk>>,
}

impl Tree {
    /// Says whether nothing is in it.
    pub(crate) fn is_empty(&self) -> bool {
        self.chunks.is_empty()
    }

    /// Puts an agent in, which must not be in.
    pub(crate) fn insert(&mut self, entry: Entry) {
        let key = entry.key();
        if let Some((_, chunk)) = self.chunks.range_mut(..=key).next_back() {
            let upper = Arc::make_mut(chunk).insert(entry);
            if let Some((first, upper)) = upper {
                self.chunks.insert(first, Arc::new(upper));
            }
            return;
        }
        // Below all: the first chunk begins here from now on.
        let mut chunk = match self.chunks.pop_first() {
            Some((_, chunk)) => chunk,
            None => Arc::default(),
        };
        let upper = Arc::make_mut(&mut chunk).insert(entry);
        self.chunks.insert(key, chunk);
        if let Some((first, upper)) = upper {
            self.chunks.insert(first, Arc::new(upper));
        }
    }

    /// Takes an agent out, as it was put in.
    pub(crate) fn remove(&mut self, agent: AgentId, free: &Free) {
        let key = Key::of(agent, free);
        let Some((at, chunk)) = self.chunks.range_mut(..=key).next_back() else {
            return;
        };
        let at = *at;
        let chunk = Arc::make_mut(chunk);
        if let Ok(place) = chunk.find(&key) {
            chunk.entries.remove(place);
        }
        let left = chunk.entries.len();
        if left == 0 {
            self.chunks.remove(&at);
            return;
        }
        if free.touches(&chunk.most) {
            chunk.measure();
        }
        if left < CHUNK / 8 {
            self.join(at, left);
        }
    }

    /// Appends a small chunk to the one before it, if both fit well.
    fn join(&mut self, at: Key, left: usize) {
        let before = self.chunks.range_mut(..at).next_back();
        if before.is_none_or(|(_, chunk)| chunk.entries.len().saturating_add(left) > CHUNK / 2) {
            return;
        }
        let Some(small) = self.chunks.remove(&at) else {
            return;
        };
        if let Some((_, chunk)) = self.chunks.range_mut(..at).next_back() {
            let chunk = Arc::make_mut(chunk);
            chunk.entries.extend_from_slice(&small.entries);
            chunk.most.raise(&small.most);
        }
    }

    fn chunk_for(&self, key: &Key) -> Option<Key> {
        self.chunks.range(..=*key).next_back().map(|(at, _)| *at)
    }

    /// Shows each agent whose numbers cover `need`, best fit first, until told to stop; gives how
    /// many agents were looked at.
    pub(crate) fn scan(
        &self,
        need: &Free,
        mut each: impl FnMut(&Entry) -> ControlFlow<()>,
    ) -> usize {
        let lowest = Key::below(need);
        let from = self.chunk_for(&lowest).unwrap_or(lowest);
        let mut looked: usize = 0;
        for chunk in self.chunks.range(from..).map(|(_, chunk)| chunk) {
            if !chunk.most.covers(need) {
                continue;
            }
            for entry in &chunk.entries {
                looked = looked.saturating_add(1);
                if entry.free.covers(need) && each(entry).is_break() {
                    return looked;
                }
            }
        }
        looked
    }

    /// The agent that comes closest to covering `need`, by [`Free::progress`]. `no_devices` says
    /// that the devices here are not of the wanted class.
    pub(crate) fn nearest(&self, need: &Free, no_devices: bool) -> Option<((u8, u64), Entry)> {
        let progress = |free: &Free| {
            let (kinds, have) = free.progress(need);
            if no_devices && kinds >= 4 {
                (4, 0)
            } else {
                (kinds, have)
            }
        };
        let mut best: Option<((u8, u64), Entry)> = None;
        for chunk in self.chunks.values() {
            let most = progress(&chunk.most);
            if best.is_some_and(|(reached, _)| reached >= most) {
                continue;
            }
            for entry in &chunk.entries {
                let reached = progress(&entry.free);
                if best.is_none_or(|(before, _)| reached > before) {
                    best = Some((reached, *entry));
                }
            }
        }
        best
    }

    /// All agents in order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Entry> {
        self.chunks.values().flat_map(|chunk| chunk.entries.iter())
    }
}
