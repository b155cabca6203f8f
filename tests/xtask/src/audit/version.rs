//! Versions and the ranges that advisories speak of: `>= 1.2.3, < 1.3`, `^0.4`, `~1.2`, `= 1.0.0`.
//!
//! Pre-releases are ordered before their release and lie in a range like any other version: an
//! advisory means what stands between its bounds.

use std::cmp::Ordering;

/// A version; what it says about its build does not count.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Version {
    numbers: [u64; 3],
    pre: Vec<String>,
}

impl Version {
    /// Reads `1.2.3`, `1.2`, `1` or `1.2.3-rc.1+build`; gives how many numbers were written.
    fn read(text: &str) -> Option<(Self, usize)> {
        let text = text.split('+').next()?.trim();
        let (numbers, pre) = text.split_once('-').unwrap_or((text, ""));
        let mut read = [0; 3];
        let mut count = 0;
        for part in numbers.split('.') {
            *read.get_mut(count)? = part.parse().ok()?;
            count += 1;
        }
        let pre = pre.split('.').filter(|part| !part.is_empty());
        let version = Self {
            numbers: read,
            pre: pre.map(str::to_owned).collect(),
        };
        Some((version, count))
    }

    /// A package's own version.
    pub(super) fn parse(text: &str) -> Option<Self> {
        Self::read(text).map(|(version, _)| version)
    }

    fn at_least(numbers: [u64; 3]) -> Self {
        Self {
            numbers,
            pre: Vec::new(),
        }
    }
}

impl Ord for Version {
    fn cmp(&self, other: &Self) -> Ordering {
        let numbers = self.numbers.cmp(&other.numbers);
        let pre = || match (self.pre.is_empty(), other.pre.is_empty()) {
            (true, true) => Ordering::Equal,
            (true, false) => Ordering::Greater,
            (false, true) => Ordering::Less,
            (false, false) => pre_releases(&self.pre, &other.pre),
        };
        numbers.then_with(pre)
    }
}

impl PartialOrd for Version {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// Numbers as numbers and before words; the shorter of two that begin alike comes first.
fn pre_releases(one: &[String], other: &[String]) -> Ordering {
    let pairs = one.iter().zip(other);
    let order = pairs.map(|(a, b)| match (a.parse::<u64>(), b.parse::<u64>()) {
        (Ok(a), Ok(b)) => a.cmp(&b),
        (Ok(_), Err(_)) => Ordering::Less,
        (Err(_), Ok(_)) => Ordering::Greater,
        (Err(_), Err(_)) => a.cmp(b),
    });
    order
        .reduce(Ordering::then)
        .unwrap_or(Ordering::Equal)
        .then(one.len().cmp(&other.len()))
}

/// Whether `version` lies in `range`; `None` when the range cannot be read.
pub(super) fn lies_in(version: &Version, range: &str) -> Option<bool> {
    let mut inside = true;
    for part in range.split(',') {
        inside &= meets(version, part.trim())?;
    }
    Some(inside)
}

fn meets(version: &Version, bound: &str) -> Option<bool> {
    if bound == "*" {
        return Some(true);
    }
    let digits = bound.find(|c: char| c.is_ascii_digit())?;
    let (sign, text) = bound.split_at(digits);
    let (named, count) = Version::read(text)?;
    let [major, minor, patch] = named.numbers;
    Some(match sign.trim() {
        ">=" => *version >= named,
        ">" => *version > named,
        "<" => *version < named,
        "<=" => *version <= named,
        "=" => *version == named,
        "~" => {
            let end = if count == 1 {
                [major + 1, 0, 0]
            } else {
                [major, minor + 1, 0]
            };
            *version >= named && *version < Version::at_least(end)
        }
        // Without a sign it means the same: what is compatible.
        "^" | "" => {
            let end = match (major, minor, count) {
                (0, 0, 3) => [0, 0, patch + 1],
                (0, _, 2 | 3) => [0, minor + 1, 0],
                _ => [major + 1, 0, 0],
            };
            *version >= named && *version < Version::at_least(end)
        }
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_ordered_by_numbers_and_pre_releases_come_first() {
        let ordered = [
            "0.9.10",
            "1.0.0-alpha",
            "1.0.0-alpha.1",
            "1.0.0-alpha.beta",
            "1.0.0-beta.2",
            "1.0.0-beta.11",
            "1.0.0-rc.1",
            "1.0.0",
            "1.0.1",
            "1.10.0",
        ];
        let versions: Vec<Version> = ordered
            .iter()
            .map(|text| Version::parse(text).expect("a version"))
            .collect();
        assert!(versions.is_sorted());
        assert_eq!(Version::parse("1.0.0+x"), Version::parse("1.0.0"));
        for bad in ["", "1.2.3.4", "a.b", "1..2"] {
            assert_eq!(Version::parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn ranges_mean_what_advisories_mean_by_them() {
        let table = [
            (">= 1.2.3", "1.2.3", true),
            (">= 1.2.3", "1.2.2", false),
            (">=1.2, <1.4", "1.3.9", true),
            (">= 1.2, < 1.4", "1.4.0", false),
            ("^1.2.3", "1.9.0", true),
            ("^1.2.3", "2.0.0", false),
            ("^0.4.1", "0.4.9", true),
            ("^0.4.1", "0.5.0", false),
            ("^0.0.3", "0.0.4", false),
            ("^0", "0.7.1", true),
            ("~1.2", "1.2.9", true),
            ("~1.2", "1.3.0", false),
            ("= 2.0.0", "2.0.0", true),
            ("< 1.0", "1.0.0-rc.1", true),
            ("> 1.0.0", "1.0.0", false),
            ("*", "3.1.4", true),
        ];
        for (range, version, wanted) in table {
            let read = Version::parse(version).expect("a version");
            assert_eq!(lies_in(&read, range), Some(wanted), "{version} in {range}");
        }
        let version = Version::parse("1.0.0").expect("a version");
        for bad in ["", "newest", "!= 1.0", ">= x"] {
            assert_eq!(lies_in(&version, bad), None, "{bad}");
        }
    }
}
