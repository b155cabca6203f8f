//! Sets of logical CPUs: set algebra and the kernel's text form `0-3,8`.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::text::BadText;

/// The largest CPU number that is accepted; the kernel's own limit is 8191.
pub const LARGEST_CPU: u32 = 8191;

/// A set of CPU numbers, kept as bits.
#[derive(Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CpuSet {
    // No trailing zero words, so that equal sets are equal values.
    words: Vec<u64>,
}

impl CpuSet {
    /// The empty set.
    #[must_use]
    pub const fn new() -> Self {
        Self { words: Vec::new() }
    }

    /// Adds a CPU; numbers above [`LARGEST_CPU`] are refused with `false`.
    pub fn insert(&mut self, cpu: u32) -> bool {
        if cpu > LARGEST_CPU {
            return false;
        }
        let (word, bit) = position(cpu);
        if self.words.len() <= word {
            self.words.resize(word.saturating_add(1), 0);
        }
        if let Some(slot) = self.words.get_mut(word) {
            *slot |= bit;
        }
        true
    }

    /// Says whether the CPU is in the set.
    #[must_use]
    pub fn contains(&self, cpu: u32) -> bool {
        let (word, bit) = position(cpu);
        self.words.get(word).is_some_and(|slot| slot & bit != 0)
    }

    /// How many CPUs there are.
    #[must_use]
    pub fn len(&self) -> u32 {
        self.words
            .iter()
            .map(|word| word.count_ones())
            .fold(0, u32::saturating_add)
    }

    /// Says whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.words.is_empty()
    }

    /// The numbers, rising.
    pub fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        (0_u32..).zip(&self.words).flat_map(|(index, word)| {
            (0_u32..64)
                .filter(move |bit| word & (1_u64 << bit) != 0)
                .map(move |bit| index.saturating_mul(64).saturating_add(bit))
        })
    }

    /// What is in either set.
    #[must_use]
    pub fn union(&self, other: &Self) -> Self {
        self.zip(other, |a, b| a | b)
    }

    /// What is in both sets.
    #[must_use]
    pub fn intersection(&self, other: &Self) -> Self {
        self.zip(other, |a, b| a & b)
    }

    /// What is in this set and not in the other.
    #[must_use]
    pub fn difference(&self, other: &Self) -> Self {
        self.zip(other, |a, b| a & !b)
    }

    /// Says whether all of `other` is in this set.
    #[must_use]
    pub fn includes(&self, other: &Self) -> bool {
        other.difference(self).is_empty()
    }

    /// The lowest `count` CPUs, or `None` if there are fewer.
    #[must_use]
    pub fn lowest(&self, count: u32) -> Option<Self> {
        (self.len() >= count).then(|| {
            self.iter()
                .take(usize::try_from(count).unwrap_or(usize::MAX))
                .collect()
        })
    }

    fn zip(&self, other: &Self, combine: impl Fn(u64, u64) -> u64) -> Self {
        let longest = self.words.len().max(other.words.len());
        let at = |words: &[u64], index: usize| words.get(index).copied().unwrap_or(0);
        let mut words: Vec<u64> = (0..longest)
            .map(|index| combine(at(&self.words, index), at(&other.words, index)))
            .collect();
        while words.last() == Some(&0) {
            words.pop();
        }
        Self { words }
    }
}

fn position(cpu: u32) -> (usize, u64) {
    (
        usize::try_from(cpu / 64).unwrap_or(usize::MAX),
        1_u64 << (cpu % 64),
    )
}

impl FromIterator<u32> for CpuSet {
    /// Numbers above [`LARGEST_CPU`] are left out.
    fn from_iter<I: IntoIterator<Item = u32>>(cpus: I) -> Self {
        let mut set = Self::new();
        for cpu in cpus {
            set.insert(cpu);
        }
        set
    }
}

impl fmt::Display for CpuSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut cpus = self.iter().peekable();
        let mut first = true;
        while let Some(start) = cpus.next() {
            let mut end = start;
            while let Some(next) = cpus.next_if(|next| *next == end.saturating_add(1)) {
                end = next;
            }
            if !first {
                f.write_str(",")?;
            }
            first = false;
            if start == end {
                write!(f, "{start}")?
            } else {
                write!(f, "{start}-{end}")?
            }
        }
        Ok(())
    }
}

impl fmt::Debug for CpuSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CpuSet({self})")
    }
}

impl FromStr for CpuSet {
    type Err = BadText;

    fn from_str(text: &str) -> Result<Self, BadText> {
        let bad = || {
            BadText::new(
                "cpu set",
                text,
                "ranges such as 0-3,8 with numbers up to 8191",
            )
        };
        let mut set = Self::new();
        for part in text
            .split(',')
            .map(str::trim)
            .filter(|_| !text.trim().is_empty())
        {
            let (start, end) = part.split_once('-').unwrap_or((part, part));
            let start: u32 = start.parse().map_err(|_| bad())?;
            let end: u32 = end.parse().map_err(|_| bad())?;
            if end < start || end > LARGEST_CPU {
                return Err(bad());
            }
            for cpu in start..=end {
                set.insert(cpu);
            }
        }
        Ok(set)
    }
}

impl Serialize for CpuSet {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for CpuSet {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?
            .parse()
            .map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_form_and_algebra_agree() {
        let a: CpuSet = "0-3,8,70".parse().expect("a set");
        let b: CpuSet = "2-5".parse().expect("a set");
        assert_eq!(a.to_string(), "0-3,8,70");
        assert_eq!(a.union(&b).to_string(), "0-5,8,70");
        assert_eq!(a.intersection(&b).to_string(), "2-3");
        assert_eq!(a.difference(&b).to_string(), "0-1,8,70");
        assert_eq!(a.lowest(2).expect("two").to_string(), "0-1");
        assert_eq!(a.difference(&a), CpuSet::new());
        assert!("3-1".parse::<CpuSet>().is_err());
        assert!("0-99999".parse::<CpuSet>().is_err());
        assert!("".parse::<CpuSet>().expect("empty").is_empty());
    }
}
