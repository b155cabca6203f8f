//! Agents in the order of their free resources, in leaves that are shared until they are changed.
//!
//! A round works on a copy. The tree has three levels: blocks, their leaves, the agents of a leaf.
//! Copying it costs one reference per block; what a round books on copies one block and one leaf.
//! Blocks and leaves know the most of each number in them, so that a search steps over those in
//! which nothing can fit.

use std::ops::ControlFlow;
use std::sync::Arc;

use mete_model::AgentId;

use super::free::Free;

/// Agents of one leaf, and leaves of one block, at the most.
const WIDTH: usize = 64;

/// The order of best fit: the fullest devices first, then the least CPU, then the least memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Key {
    devices: u64,
    cpu: u64,
    memory: u64,
    /// The agent's id as a number, which is in the order of ids; zero is below every agent.
    agent: u128,
}

impl Key {
    fn of(agent: AgentId, free: &Free) -> Self {
        Self {
            agent: agent.0.as_u128(),
            ..Self::below(free)
        }
    }

    fn below(free: &Free) -> Self {
        Self {
            devices: free.devices,
            cpu: free.cpu,
            memory: free.memory,
            agent: 0,
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

/// Copied with room for one more than a leaf may hold, so that an insertion does not move it.
#[derive(Debug)]
struct Entries(Vec<Entry>);

impl Clone for Entries {
    fn clone(&self) -> Self {
        let mut entries = Vec::with_capacity(WIDTH.saturating_add(1));
        entries.extend_from_slice(&self.0);
        Self(entries)
    }
}

#[derive(Clone, Debug)]
struct Leaf {
    /// Not above the first entry.
    low: Key,
    most: Free,
    /// By number of [`Free::numbers`]: how many entries have the most of it.
    holders: [u8; Free::NUMBERS],
    entries: Arc<Entries>,
}

impl Leaf {
    fn new(low: Key, entries: Vec<Entry>) -> Self {
        let mut leaf = Self {
            low,
            most: Free::default(),
            holders: [0; Free::NUMBERS],
            entries: Arc::new(Entries(entries)),
        };
        leaf.measure();
        leaf
    }

    fn len(&self) -> usize {
        self.entries.0.len()
    }

    fn measure(&mut self) {
        let mut most = Free::default();
        for entry in &self.entries.0 {
            most.raise(&entry.free);
        }
        self.most = most;
        self.holders = [0; Free::NUMBERS];
        for entry in &self.entries.0 {
            for (holders, has) in self.holders.iter_mut().zip(entry.free.reaches(&most)) {
                *holders = holders.saturating_add(u8::from(has));
            }
        }
    }

    /// Counts an entry in.
    fn count(&mut self, free: &Free) {
        let before = self.most.numbers();
        self.most.raise(free);
        let numbers = before.into_iter().zip(free.numbers());
        for (holders, (before, now)) in self.holders.iter_mut().zip(numbers) {
            *holders = match now.cmp(&before) {
                std::cmp::Ordering::Less => *holders,
                std::cmp::Ordering::Equal => holders.saturating_add(1),
                std::cmp::Ordering::Greater => 1,
            };
        }
    }

    /// Counts an entry out that was taken away; says whether the most has become less.
    fn discount(&mut self, free: &Free) -> bool {
        let mut last = false;
        let numbers = free.numbers().into_iter().zip(free.reaches(&self.most));
        for (holders, (number, has)) in self.holders.iter_mut().zip(numbers) {
            *holders = holders.saturating_sub(u8::from(has));
            last |= has && *holders == 0 && number > 0;
        }
        if last {
            self.measure();
        }
        last
    }

    fn find(&self, key: &Key) -> Result<usize, usize> {
        self.entries
            .0
            .binary_search_by(|entry| entry.key().cmp(key))
    }

    /// Puts an entry in; a leaf that has grown too large gives its upper half away.
    fn insert(&mut self, entry: Entry) -> Option<Self> {
        let key = entry.key();
        self.low = self.low.min(key);
        if let Err(place) = self.find(&key) {
            let entries = Arc::make_mut(&mut self.entries);
            entries.0.insert(place, entry);
            self.count(&entry.free);
        }
        if self.len() <= WIDTH {
            return None;
        }
        let entries = Arc::make_mut(&mut self.entries);
        let upper = entries.0.split_off(WIDTH / 2);
        self.measure();
        let low = upper.first()?.key();
        Some(Self::new(low, upper))
    }
}

#[derive(Clone, Debug)]
struct Block {
    /// Not above the first leaf.
    low: Key,
    most: Free,
    leaves: Arc<Vec<Leaf>>,
}

impl Block {
    fn new(low: Key, leaves: Vec<Leaf>) -> Self {
        let mut block = Self {
            low,
            most: Free::default(),
            leaves: Arc::new(leaves),
        };
        block.measure();
        block
    }

    fn measure(&mut self) {
        let mut most = Free::default();
        for leaf in self.leaves.iter() {
            most.raise(&leaf.most);
        }
        self.most = most;
    }

    /// Puts an entry in; a block that has grown too large gives its upper half away.
    fn insert(&mut self, entry: Entry) -> Option<Self> {
        let key = entry.key();
        self.low = self.low.min(key);
        self.most.raise(&entry.free);
        let at = last_not_above(&self.leaves, |leaf| leaf.low <= key);
        let leaves = Arc::make_mut(&mut self.leaves);
        let upper = leaves.get_mut(at)?.insert(entry)?;
        leaves.insert(at.saturating_add(1), upper);
        if leaves.len() <= WIDTH {
            return None;
        }
        let upper = leaves.split_off(WIDTH / 2);
        self.measure();
        let low = upper.first()?.low;
        Some(Self::new(low, upper))
    }

    /// Takes an entry out.
    fn remove(&mut self, key: &Key) {
        let at = last_not_above(&self.leaves, |leaf| leaf.low <= *key);
        let leaves = Arc::make_mut(&mut self.leaves);
        let Some(leaf) = leaves.get_mut(at) else {
            return;
        };
        let Ok(place) = leaf.find(key) else {
            return;
        };
        let before = leaf.most;
        let entry = Arc::make_mut(&mut leaf.entries).0.remove(place);
        let less = leaf.discount(&entry.free);
        let left = leaf.len();
        if left == 0 {
            leaves.remove(at);
        } else if left < WIDTH / 8 {
            join(leaves, at);
        }
        if (less || left == 0) && before.reaches(&self.most).contains(&true) {
            self.measure();
        }
    }
}

/// Appends a small leaf to the one before it, if both fit well.
fn join(leaves: &mut Vec<Leaf>, at: usize) {
    let Some(before) = at.checked_sub(1) else {
        return;
    };
    let len = |at: usize| leaves.get(at).map_or(WIDTH, Leaf::len);
    if len(before).saturating_add(len(at)) > WIDTH / 2 {
        return;
    }
    let small = leaves.remove(at);
    if let Some(leaf) = leaves.get_mut(before) {
        let entries = Arc::make_mut(&mut leaf.entries);
        entries.0.extend_from_slice(&small.entries.0);
        leaf.measure();
    }
}

/// The last of some that begin not above something, the first if all begin above it.
fn last_not_above<T>(sorted: &[T], not_above: impl FnMut(&T) -> bool) -> usize {
    sorted.partition_point(not_above).saturating_sub(1)
}

/// The ordered set.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tree {
    blocks: Vec<Block>,
}

impl Tree {
    /// Says whether nothing is in it.
    pub(crate) fn is_empty(&self) -> bool {
        self.blocks.is_empty()
    }

    /// Puts an agent in, which must not be in.
    pub(crate) fn insert(&mut self, entry: Entry) {
        let key = entry.key();
        let at = last_not_above(&self.blocks, |block| block.low <= key);
        let Some(block) = self.blocks.get_mut(at) else {
            let leaf = Leaf::new(key, vec![entry]);
            self.blocks.push(Block::new(key, vec![leaf]));
            return;
        };
        if let Some(upper) = block.insert(entry) {
            self.blocks.insert(at.saturating_add(1), upper);
        }
    }

    /// Takes an agent out, as it was put in.
    pub(crate) fn remove(&mut self, agent: AgentId, free: &Free) {
        let key = Key::of(agent, free);
        let at = last_not_above(&self.blocks, |block| block.low <= key);
        let Some(block) = self.blocks.get_mut(at) else {
            return;
        };
        block.remove(&key);
        if block.leaves.is_empty() {
            self.blocks.remove(at);
        }
    }

    /// Shows each agent whose numbers cover `need`, best fit first, until told to stop; gives how
    /// many agents were looked at.
    pub(crate) fn scan(
        &self,
        need: &Free,
        mut each: impl FnMut(&Entry) -> ControlFlow<()>,
    ) -> usize {
        let lowest = Key::below(need);
        let mut looked: usize = 0;
        let first = last_not_above(&self.blocks, |block| block.low <= lowest);
        for block in self.blocks.iter().skip(first) {
            if !block.most.covers(need) {
                continue;
            }
            let first = last_not_above(&block.leaves, |leaf| leaf.low <= lowest);
            for leaf in block.leaves.iter().skip(first) {
                if !leaf.most.covers(need) {
                    continue;
                }
                for entry in &leaf.entries.0 {
                    looked = looked.saturating_add(1);
                    if entry.free.covers(need) && each(entry).is_break() {
                        return looked;
                    }
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
        let is_reached = |best: &Option<((u8, u64), Entry)>, most: &Free| {
            let most = progress(most);
            best.is_some_and(|(reached, _)| reached >= most)
        };
        for block in &self.blocks {
            if is_reached(&best, &block.most) {
                continue;
            }
            for leaf in block.leaves.iter() {
                if is_reached(&best, &leaf.most) {
                    continue;
                }
                for entry in &leaf.entries.0 {
                    let reached = progress(&entry.free);
                    if best.is_none_or(|(before, _)| reached > before) {
                        best = Some((reached, *entry));
                    }
                }
            }
        }
        best
    }

    /// All agents in order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Entry> {
        self.blocks
            .iter()
            .flat_map(|block| block.leaves.iter())
            .flat_map(|leaf| leaf.entries.0.iter())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    /// A small generator (xorshift).
    fn below(state: &mut u64, limit: u64) -> u64 {
        *state ^= *state << 13;
        *state ^= *state >> 7;
        *state ^= *state << 17;
        (*state >> 11).checked_rem(limit).unwrap_or(0)
    }

    fn made_up(state: &mut u64) -> Free {
        let whole = u32::try_from(below(state, 3)).expect("a small number");
        Free {
            devices: u64::from(whole).saturating_mul(1000),
            cpu: below(state, 40),
            memory: below(state, 40),
            disk: 7,
            cores: 0,
            whole,
            best: if whole > 0 { 1000 } else { 0 },
        }
    }

    /// Says whether what blocks and leaves say of themselves is so.
    fn check(tree: &Tree) {
        for block in &tree.blocks {
            assert!(!block.leaves.is_empty() && block.leaves.len() <= WIDTH);
            let again = Block::new(block.low, block.leaves.to_vec());
            assert_eq!(block.most, again.most);
            for leaf in block.leaves.iter() {
                let entries = &leaf.entries.0;
                assert!(!entries.is_empty() && entries.len() <= WIDTH);
                let again = Leaf::new(leaf.low, entries.clone());
                assert_eq!((leaf.most, leaf.holders), (again.most, again.holders));
            }
        }
    }

    #[test]
    fn a_tree_that_is_patched_for_long_gives_what_a_search_over_all_gives() {
        let mut state = 88_172_645_463_325_252;
        let mut all: BTreeMap<u32, Free> = BTreeMap::new();
        let mut tree = Tree::default();
        for step in 0..30_000_u32 {
            // First it grows to a few blocks, then it changes, then it is emptied.
            let limit = if step < 20_000 { 6_000 } else { 600 };
            let number = u32::try_from(below(&mut state, limit)).expect("a small number");
            let agent = crate::reference::agent_id(number);
            if let Some(free) = all.remove(&number) {
                tree.remove(agent, &free);
            }
            if step < 20_000 {
                let (slot, free) = (0, made_up(&mut state));
                all.insert(number, free);
                tree.insert(Entry { agent, slot, free });
            } else if let Some((number, free)) = all.pop_last() {
                tree.remove(crate::reference::agent_id(number), &free);
            }
            if step.is_multiple_of(500) {
                check(&tree);
                compare(&tree, &all, &made_up(&mut state));
            }
        }
        assert!(all.is_empty() && tree.is_empty());
    }

    fn compare(tree: &Tree, all: &BTreeMap<u32, Free>, need: &Free) {
        let id = crate::reference::agent_id;
        let mut sorted: Vec<Key> = all
            .iter()
            .map(|(at, free)| Key::of(id(*at), free))
            .collect();
        sorted.sort_unstable();
        assert_eq!(tree.iter().map(Entry::key).collect::<Vec<_>>(), sorted);

        let fits = all.iter().filter(|(_, free)| free.covers(need));
        let mut fits: Vec<Key> = fits.map(|(at, free)| Key::of(id(*at), free)).collect();
        fits.sort_unstable();
        let mut shown = Vec::new();
        tree.scan(need, |entry| {
            shown.push(entry.key());
            ControlFlow::Continue(())
        });
        assert_eq!(shown, fits);

        let reached = all.values().map(|free| free.progress(need)).max();
        let nearest = tree.nearest(need, false).map(|(reached, _)| reached);
        assert_eq!(nearest, reached);
    }
}
