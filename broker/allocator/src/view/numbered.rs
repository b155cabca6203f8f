//! Things that have a key and a small number, so that a round keeps its notes on them in arrays.

use std::collections::BTreeMap;

/// A map whose values can also be found by number. Numbers of removed ones are given again.
#[derive(Clone, Debug)]
pub(crate) struct Numbered<K, V> {
    numbers: BTreeMap<K, usize>,
    values: Vec<Option<(K, V)>>,
    spare: Vec<usize>,
}

impl<K, V> Default for Numbered<K, V> {
    fn default() -> Self {
        Self {
            numbers: BTreeMap::new(),
            values: Vec::new(),
            spare: Vec::new(),
        }
    }
}

impl<K: Ord + Clone, V> Numbered<K, V> {
    /// The number of a key and the key as it is kept.
    pub(crate) fn find(&self, key: &K) -> Option<(&K, usize)> {
        let (key, number) = self.numbers.get_key_value(key)?;
        Some((key, *number))
    }

    /// The value of a key.
    pub(crate) fn get(&self, key: &K) -> Option<&V> {
        self.at(*self.numbers.get(key)?)
    }

    /// The value with a number.
    pub(crate) fn at(&self, number: usize) -> Option<&V> {
        self.values.get(number)?.as_ref().map(|(_, value)| value)
    }

    /// The key with a number.
    pub(crate) fn key(&self, number: usize) -> Option<&K> {
        self.values.get(number)?.as_ref().map(|(key, _)| key)
    }

    /// The value with a number, to be changed.
    pub(crate) fn at_mut(&mut self, number: usize) -> Option<&mut V> {
        let value = self.values.get_mut(number)?.as_mut();
        value.map(|(_, value)| value)
    }

    /// The number of a key, which gets a value and a number if it has none.
    pub(crate) fn number(&mut self, key: &K, value: impl FnOnce() -> V) -> usize {
        if let Some(number) = self.numbers.get(key) {
            return *number;
        }
        let number = self.spare.pop().unwrap_or(self.values.len());
        if let Some(place) = self.values.get_mut(number) {
            *place = Some((key.clone(), value()));
        } else {
            self.values.push(Some((key.clone(), value())));
        }
        self.numbers.insert(key.clone(), number);
        number
    }

    /// Takes a key out.
    pub(crate) fn remove(&mut self, key: &K) {
        if let Some(number) = self.numbers.remove(key) {
            if let Some(place) = self.values.get_mut(number) {
                *place = None;
            }
            self.spare.push(number);
        }
    }

    /// All in the order of keys.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&K, usize, &V)> {
        self.numbers
            .iter()
            .filter_map(|(key, number)| Some((key, *number, self.at(*number)?)))
    }

    /// Above every number in use.
    pub(crate) fn end(&self) -> usize {
        self.values.len()
    }
}
