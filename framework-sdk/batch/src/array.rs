//! Array syntax: `0-99`, `0-99:2`, `1,3,7`, with a throttle `%8` behind it.

use std::fmt;

/// Elements of one array at the most.
pub const MOST_ELEMENTS: usize = 100_000;

/// Largest index.
pub const LARGEST_INDEX: u32 = 9_999_999;

/// The indices of an array, rising, each once, and how many may run at a time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Array {
    /// Rising, each once, at least one.
    pub indices: Vec<u32>,
    /// 0 = no throttle.
    pub throttle: u32,
}

/// Why a text is no array.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadArray(String);

impl fmt::Display for BadArray {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}; use ranges such as 0-99, 0-99:2 or 1,3,7, with %8 behind them to run 8 at a time",
            self.0
        )
    }
}

impl std::error::Error for BadArray {}

impl std::str::FromStr for Array {
    type Err = BadArray;

    fn from_str(text: &str) -> Result<Self, BadArray> {
        let (ranges, throttle) = match text.split_once('%') {
            Some((ranges, throttle)) => (ranges, Some(throttle)),
            None => (text, None),
        };
        let throttle = match throttle {
            Some(throttle) => match throttle.parse() {
                Ok(throttle) if throttle > 0 => throttle,
                _ => return Err(BadArray(format!("'%{throttle}' is no throttle from 1"))),
            },
            None => 0,
        };
        Ok(Self {
            indices: read_indices(ranges)?,
            throttle,
        })
    }
}

/// The indices of `0-3,7`, rising, each once.
///
/// # Errors
/// What is wrong, and what is permitted.
pub fn read_indices(text: &str) -> Result<Vec<u32>, BadArray> {
    let mut indices = Vec::new();
    for part in text.split(',') {
        let (range, step) = match part.split_once(':') {
            Some((range, step)) => (range, number(step, part)?),
            None => (part, 1),
        };
        let (first, last) = match range.split_once('-') {
            Some((first, last)) => (number(first, part)?, number(last, part)?),
            None => {
                let only = number(range, part)?;
                (only, only)
            }
        };
        if last < first || step == 0 {
            return Err(BadArray(format!("'{part}' is no rising range")));
        }
        let more = usize::try_from((last - first) / step).unwrap_or(usize::MAX);
        if indices.len().saturating_add(more) >= MOST_ELEMENTS {
            let most = MOST_ELEMENTS;
            return Err(BadArray(format!("'{text}' has more than {most} elements")));
        }
        let step = usize::try_from(step).unwrap_or(usize::MAX);
        indices.extend((first..=last).step_by(step));
    }
    indices.sort_unstable();
    indices.dedup();
    Ok(indices)
}

fn number(text: &str, part: &str) -> Result<u32, BadArray> {
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let number = if digits { text.parse().ok() } else { None };
    number
        .filter(|number| *number <= LARGEST_INDEX)
        .ok_or_else(|| {
            BadArray(format!(
                "'{part}' is no index or range up to {LARGEST_INDEX}"
            ))
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn indices(text: &str) -> Vec<u32> {
        text.parse::<Array>().expect("an array").indices
    }

    #[test]
    fn ranges_steps_and_lists_give_each_index_once() {
        assert_eq!(indices("0-3"), [0, 1, 2, 3]);
        assert_eq!(indices("0-9:4"), [0, 4, 8]);
        assert_eq!(indices("7,1-2,2"), [1, 2, 7]);
        assert_eq!("0-9%2".parse::<Array>().expect("an array").throttle, 2);
    }

    #[test]
    fn what_is_no_array_is_refused_with_the_part_at_fault() {
        for bad in [
            "", "a", "3-1", "1-", "-1", "1-2:0", "0-9%0", "0-9%x", "1,,2", "0-100000",
        ] {
            let error = bad.parse::<Array>().expect_err(bad);
            assert!(error.to_string().contains("use ranges"), "{error}");
        }
    }
}
