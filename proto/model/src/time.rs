//! Points and spans of time as integers. Nothing here reads a clock.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::text::BadText;

/// Milliseconds since the Unix epoch, stamped by a leader, an agent or a test.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Timestamp(pub u64);

/// A length of time in milliseconds.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Span(pub u64);

impl Timestamp {
    /// The point `span` later, the last one there is at the most.
    #[must_use]
    pub fn after(self, span: Span) -> Self {
        Self(self.0.saturating_add(span.0))
    }

    /// How long ago `earlier` was; nothing if it is later.
    #[must_use]
    pub fn since(self, earlier: Self) -> Span {
        Span(self.0.saturating_sub(earlier.0))
    }
}

impl Span {
    /// No time at all.
    pub const ZERO: Self = Self(0);

    /// So many seconds.
    #[must_use]
    pub const fn seconds(count: u64) -> Self {
        Self(count.saturating_mul(1000))
    }

    /// So many minutes.
    #[must_use]
    pub const fn minutes(count: u64) -> Self {
        Self::seconds(count.saturating_mul(60))
    }

    /// As people read it: tenths of seconds below ten of them, and nothing finer.
    #[must_use]
    pub fn rough(self) -> String {
        match self.0 {
            0 => "0s".to_owned(),
            1..100 => "<0.1s".to_owned(),
            100..1000 => format!("0.{}s", self.0 / 100),
            _ => self.to_string(),
        }
    }

    /// So many days.
    #[must_use]
    pub const fn days(count: u64) -> Self {
        Self::minutes(count.saturating_mul(24 * 60))
    }
}

impl From<Span> for std::time::Duration {
    fn from(span: Span) -> Self {
        Self::from_millis(span.0)
    }
}

impl fmt::Display for Span {
    /// The two largest units: `14m`, `1h52m`, `2d3h`, `9.6s`, `40ms`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.0 / 1000;
        let (big, big_unit, small, small_unit) = match seconds {
            0 => return f.pad(&format!("{}ms", self.0)),
            1..60 => {
                let tenths = (self.0 % 1000) / 100;
                return if tenths == 0 || seconds >= 10 {
                    f.pad(&format!("{seconds}s"))
                } else {
                    f.pad(&format!("{seconds}.{tenths}s"))
                };
            }
            60..3600 => (seconds / 60, "m", seconds % 60, "s"),
            3600..86_400 => (seconds / 3600, "h", (seconds % 3600) / 60, "m"),
            _ => (seconds / 86_400, "d", (seconds % 86_400) / 3600, "h"),
        };
        if small == 0 {
            f.pad(&format!("{big}{big_unit}"))
        } else {
            f.pad(&format!("{big}{big_unit}{small}{small_unit}"))
        }
    }
}

impl FromStr for Span {
    type Err = BadText;

    /// `500ms`, `30s`, `10m`, `1h30m`, `7d`; a unit is needed, but `0` needs none.
    fn from_str(text: &str) -> Result<Self, BadText> {
        let rule = "whole numbers with units, such as 500ms, 30s, 10m, 1h30m or 7d";
        let bad = || BadText::new("length of time", text, rule);
        if text == "0" {
            return Ok(Self::ZERO);
        }
        let mut rest = text;
        let mut total: u64 = 0;
        if rest.is_empty() {
            return Err(bad());
        }
        while !rest.is_empty() {
            let at = rest.find(|c: char| !c.is_ascii_digit()).ok_or_else(bad)?;
            let (number, tail) = rest.split_at(at);
            let number: u64 = number.parse().map_err(|_| bad())?;
            let end = tail
                .find(|c: char| c.is_ascii_digit())
                .unwrap_or(tail.len());
            let (unit, tail) = tail.split_at(end);
            let unit: u64 = match unit {
                "ms" => 1,
                "s" => 1000,
                "m" | "min" => 60_000,
                "h" => 3_600_000,
                "d" => 86_400_000,
                _ => return Err(bad()),
            };
            total = number
                .checked_mul(unit)
                .and_then(|part| total.checked_add(part))
                .ok_or_else(bad)?;
            rest = tail;
        }
        Ok(Self(total))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rough_span_is_rounded_to_what_people_read() {
        let read = [0, 1, 99, 100, 430, 999, 1000, 9650, 61_000].map(|ms| Span(ms).rough());
        let wanted = [
            "0s", "<0.1s", "<0.1s", "0.1s", "0.4s", "0.9s", "1s", "9.6s", "1m1s",
        ];
        assert_eq!(read, wanted);
    }

    #[test]
    fn spans_read_and_print_the_same_words() {
        for text in ["500ms", "30s", "10m", "1h30m", "7d", "2d3h"] {
            let span: Span = text.parse().expect("a span");
            assert_eq!(span.to_string(), text);
        }
        for bad in ["", "5", "s", "-1s", "1y", "99999999999999999999d"] {
            assert!(bad.parse::<Span>().is_err(), "{bad}");
        }
    }
}
