//! A sorted map that is copied in a moment: copies share what neither of them has changed.
//!
//! A snapshot is a copy of the state while commands go on. Entries stand in leaves of at most
//! [`LEAF`], each behind a shared pointer: a copy takes one pointer for each leaf, and a change
//! copies the one leaf it falls into, once for each copy that still holds it. Without a copy alive
//! nothing is ever copied.

use std::borrow::Borrow;
use std::ops::Bound;
use std::sync::Arc;

/// Entries of one leaf. Larger: quicker copies of the map; smaller: quicker first changes of a leaf
/// that is shared.
const LEAF: usize = 128;

type Leaf<K, V> = Vec<(K, V)>;

/// A sorted map; see the module.
#[derive(Clone, Debug)]
pub(crate) struct CowMap<K, V> {
    /// In order; none is empty.
    leaves: Vec<Arc<Leaf<K, V>>>,
    len: usize,
}

impl<K, V> Default for CowMap<K, V> {
    fn default() -> Self {
        Self {
            leaves: Vec::new(),
            len: 0,
        }
    }
}

impl<K, V> CowMap<K, V> {
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Entries in order of their keys.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&K, &V)> {
        let entries = self.leaves.iter().flat_map(|leaf| leaf.iter());
        entries.map(|(key, value)| (key, value))
    }

    pub(crate) fn keys(&self) -> impl Iterator<Item = &K> {
        self.iter().map(|(key, _)| key)
    }

    pub(crate) fn values(&self) -> impl Iterator<Item = &V> {
        self.iter().map(|(_, value)| value)
    }

    /// The entry with the lowest key.
    pub(crate) fn first(&self) -> Option<(&K, &V)> {
        self.iter().next()
    }
}

impl<K: Ord, V> CowMap<K, V> {
    pub(crate) fn get<Q: Ord + ?Sized>(&self, key: &Q) -> Option<&V>
    where
        K: Borrow<Q>,
    {
        let leaf = self.leaves.get(self.leaf_of(key)?)?;
        let at = position(leaf, key).ok()?;
        leaf.get(at).map(|(_, value)| value)
    }

    pub(crate) fn contains_key<Q: Ord + ?Sized>(&self, key: &Q) -> bool
    where
        K: Borrow<Q>,
    {
        self.get(key).is_some()
    }

    /// Entries from a key on, in order.
    pub(crate) fn range_from<'a, Q: Ord + ?Sized>(
        &'a self,
        from: Bound<&Q>,
    ) -> impl Iterator<Item = (&'a K, &'a V)> + use<'a, K, V, Q>
    where
        K: Borrow<Q>,
    {
        let (leaf, entry) = match from {
            Bound::Unbounded => (0, 0),
            Bound::Included(key) | Bound::Excluded(key) => {
                let leaf = self.leaf_of(key).unwrap_or(0);
                let entry = match self.leaves.get(leaf).map(|leaf| position(leaf, key)) {
                    Some(Ok(at)) if matches!(from, Bound::Excluded(_)) => at.saturating_add(1),
                    Some(Ok(at) | Err(at)) => at,
                    None => 0,
                };
                (leaf, entry)
            }
        };
        let first = self.leaves.get(leaf).map_or(&[][..], |leaf| leaf);
        let rest = self.leaves.get(leaf.saturating_add(1)..).unwrap_or(&[]);
        let entries = first.get(entry..).unwrap_or(&[]).iter();
        entries
            .chain(rest.iter().flat_map(|leaf| leaf.iter()))
            .map(|(key, value)| (key, value))
    }

    /// The last leaf that does not begin above the key; the first one when all do.
    fn leaf_of<Q: Ord + ?Sized>(&self, key: &Q) -> Option<usize>
    where
        K: Borrow<Q>,
    {
        let begins_below = |leaf: &Arc<Leaf<K, V>>| {
            let first = leaf.first();
            first.is_some_and(|(first, _)| first.borrow() <= key)
        };
        let after = self.leaves.partition_point(begins_below);
        (!self.leaves.is_empty()).then(|| after.saturating_sub(1))
    }
}

impl<K: Ord + Clone, V: Clone> CowMap<K, V> {
    pub(crate) fn get_mut<Q: Ord + ?Sized>(&mut self, key: &Q) -> Option<&mut V>
    where
        K: Borrow<Q>,
    {
        let at = self.leaf_of(key)?;
        let leaf = self.leaves.get_mut(at)?;
        let at = position(leaf, key).ok()?;
        Arc::make_mut(leaf).get_mut(at).map(|(_, value)| value)
    }

    /// Puts a value; gives the one that was there.
    pub(crate) fn insert(&mut self, key: K, value: V) -> Option<V> {
        let Some(number) = self.leaf_of(&key) else {
            self.leaves.push(Arc::new(vec![(key, value)]));
            self.len = 1;
            return None;
        };
        let is_last = number.saturating_add(1) == self.leaves.len();
        let leaf = Arc::make_mut(self.leaves.get_mut(number)?);
        match position(leaf, &key) {
            Ok(at) => {
                let (_, present) = leaf.get_mut(at)?;
                return Some(std::mem::replace(present, value));
            }
            // Keys that only rise fill their leaves: nothing is moved, none stays half empty.
            Err(at) if leaf.len() >= LEAF && is_last && at == leaf.len() => {
                leaf.shrink_to_fit();
                self.leaves.push(Arc::new(vec![(key, value)]));
            }
            Err(at) => {
                leaf.insert(at, (key, value));
                if leaf.len() > LEAF {
                    let upper = leaf.split_off(leaf.len() / 2);
                    leaf.shrink_to_fit();
                    self.leaves
                        .insert(number.saturating_add(1), Arc::new(upper));
                }
            }
        }
        self.len = self.len.saturating_add(1);
        None
    }

    /// Takes an entry out.
    pub(crate) fn remove<Q: Ord + ?Sized>(&mut self, key: &Q) -> Option<V>
    where
        K: Borrow<Q>,
    {
        let number = self.leaf_of(key)?;
        let shared = self.leaves.get_mut(number)?;
        let at = position(shared, key).ok()?;
        let leaf = Arc::make_mut(shared);
        let (_, value) = leaf.remove(at);
        self.len = self.len.saturating_sub(1);
        let left = leaf.len();
        if left == 0 {
            self.leaves.remove(number);
        } else if left < LEAF / 4 && !self.join(number) && number > 0 {
            self.join(number.saturating_sub(1));
        }
        Some(value)
    }

    /// Joins a leaf with the one after it, if both fit into half a leaf.
    fn join(&mut self, number: usize) -> bool {
        let next = number.saturating_add(1);
        let small = self.leaves.get(number).map_or(0, |leaf| leaf.len());
        let fits = |leaf: &Arc<Leaf<K, V>>| leaf.len().saturating_add(small) <= LEAF / 2;
        if !self.leaves.get(next).is_some_and(fits) {
            return false;
        }
        let upper = Arc::unwrap_or_clone(self.leaves.remove(next));
        if let Some(leaf) = self.leaves.get_mut(number) {
            Arc::make_mut(leaf).extend(upper);
        }
        true
    }
}

impl<K: Ord + Clone, V: Clone> IntoIterator for CowMap<K, V> {
    type Item = (K, V);
    type IntoIter = std::iter::FlatMap<
        std::vec::IntoIter<Arc<Leaf<K, V>>>,
        Leaf<K, V>,
        fn(Arc<Leaf<K, V>>) -> Leaf<K, V>,
    >;

    fn into_iter(self) -> Self::IntoIter {
        self.leaves.into_iter().flat_map(Arc::unwrap_or_clone)
    }
}

fn position<K, V, Q>(leaf: &[(K, V)], key: &Q) -> Result<usize, usize>
where
    K: Borrow<Q>,
    Q: Ord + ?Sized,
{
    leaf.binary_search_by(|(present, _)| present.borrow().cmp(key))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    /// Numbers that look like chance and are the same in each run.
    struct Dice(u64);

    impl Dice {
        fn roll(&mut self, below: u64) -> u64 {
            self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005);
            self.0 = self.0.wrapping_add(1_442_695_040_888_963_407);
            (self.0 >> 33).checked_rem(below).unwrap_or(0)
        }
    }

    fn content(map: &CowMap<u64, u64>) -> Vec<(u64, u64)> {
        map.iter().map(|(key, value)| (*key, *value)).collect()
    }

    fn same(map: &CowMap<u64, u64>, model: &BTreeMap<u64, u64>) {
        assert!(map.iter().eq(model.iter()));
        assert_eq!((map.len(), map.is_empty()), (model.len(), model.is_empty()));
        let (most, least) = (map.leaves.iter().map(|leaf| leaf.len()).max(), 1);
        assert!(most.unwrap_or(least) <= LEAF);
        assert!(map.leaves.iter().all(|leaf| leaf.len() >= least));
    }

    #[test]
    fn it_does_what_a_sorted_map_does_and_copies_never_change() {
        for seed in 0..8 {
            let mut dice = Dice(seed);
            let mut map: CowMap<u64, u64> = CowMap::default();
            let mut model: BTreeMap<u64, u64> = BTreeMap::new();
            let mut copies: Vec<(CowMap<u64, u64>, BTreeMap<u64, u64>)> = Vec::new();
            // Grows, shrinks to nothing, and is filled again.
            for (steps, removes) in [(3_000, 2), (6_000, 8), (500, 0)] {
                for _ in 0..steps {
                    let key = dice.roll(2_000);
                    if dice.roll(10) < removes {
                        assert_eq!(map.remove(&key), model.remove(&key));
                    } else if dice.roll(4) == 0 {
                        let (mine, its) = (map.get_mut(&key), model.get_mut(&key));
                        assert_eq!(mine.is_some(), its.is_some());
                        if let (Some(mine), Some(its)) = (mine, its) {
                            (*mine, *its) = (mine.wrapping_add(1), its.wrapping_add(1));
                        }
                    } else {
                        assert_eq!(map.insert(key, seed), model.insert(key, seed));
                    }
                    assert_eq!(map.get(&key), model.get(&key));
                    if dice.roll(500) == 0 {
                        copies.push((map.clone(), model.clone()));
                    }
                }
                same(&map, &model);
            }
            assert!(copies.len() > 5, "{} copies", copies.len());
            for (copy, model) in &copies {
                same(copy, model);
            }
            assert!(map.into_iter().eq(model));
        }
    }

    #[test]
    fn a_range_begins_at_in_or_after_its_key_wherever_that_stands() {
        let mut map = CowMap::default();
        assert_eq!(map.range_from(Bound::Included(&3)).count(), 0);
        for key in (10..2_010).step_by(2) {
            map.insert(key, key);
        }
        let model: BTreeMap<u64, u64> = content(&map).into_iter().collect();
        for from in 0..2_020 {
            for bound in [
                Bound::Included(from),
                Bound::Excluded(from),
                Bound::Unbounded,
            ] {
                let mine = map.range_from(bound.as_ref());
                assert!(mine.eq(model.range((bound, Bound::Unbounded))), "{bound:?}");
            }
        }
    }

    #[test]
    fn a_change_copies_one_leaf_and_keys_that_rise_fill_theirs() {
        let mut map = CowMap::default();
        for key in 0..10_000_u64 {
            map.insert(key, 0_u64);
        }
        assert!(map.leaves.len() <= 10_000_usize.div_ceil(LEAF));
        let copy = map.clone();

        *map.get_mut(&5_000).expect("it is there") = 1;

        let shared = map.leaves.iter().zip(&copy.leaves);
        let copied = shared.filter(|(mine, its)| !Arc::ptr_eq(mine, its)).count();
        assert_eq!(copied, 1);
        assert_eq!((map.get(&5_000), copy.get(&5_000)), (Some(&1), Some(&0)));
    }

    #[test]
    fn a_map_that_was_thinned_out_does_not_keep_its_leaves() {
        let mut map = CowMap::default();
        for key in 0..100_000_u64 {
            map.insert(key, ());
        }
        for key in (0..100_000).filter(|key| key % 100 != 0) {
            map.remove(&key);
        }
        assert_eq!(map.len(), 1_000);
        assert!(
            map.leaves.len() <= 1_000 / (LEAF / 8),
            "{}",
            map.leaves.len()
        );
    }
}
