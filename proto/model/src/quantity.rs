//! Quantities as types: milli-CPU, bytes, thousandths of a device. Integers, checked, with units.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::text::BadText;

macro_rules! quantities {
    ($($(#[$doc:meta])* $name:ident;)*) => {$(
        $(#[$doc])*
        #[derive(
            Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash,
            Serialize, Deserialize,
        )]
        #[serde(transparent)]
        pub struct $name(pub u64);

        impl $name {
            /// Nothing.
            pub const ZERO: Self = Self(0);

            /// The sum, or `None` where it does not fit 64 bits.
            #[must_use]
            pub fn checked_add(self, other: Self) -> Option<Self> {
                self.0.checked_add(other.0).map(Self)
            }

            /// What is left, or `None` where `other` is more.
            #[must_use]
            pub fn checked_sub(self, other: Self) -> Option<Self> {
                self.0.checked_sub(other.0).map(Self)
            }

            /// What is left, nothing at the least.
            #[must_use]
            pub fn saturating_sub(self, other: Self) -> Self {
                Self(self.0.saturating_sub(other.0))
            }

            /// The sum, the largest number at the most.
            #[must_use]
            pub fn saturating_add(self, other: Self) -> Self {
                Self(self.0.saturating_add(other.0))
            }

            /// `count` times as much, or `None` where it does not fit.
            #[must_use]
            pub fn checked_mul(self, count: u64) -> Option<Self> {
                self.0.checked_mul(count).map(Self)
            }

            /// Says whether it is nothing.
            #[must_use]
            pub fn is_zero(self) -> bool {
                self.0 == 0
            }
        }
    )*};
}

quantities! {
    /// Thousandths of a logical CPU.
    MilliCpu;
    /// Bytes of memory or disk.
    Bytes;
    /// Thousandths of devices; 1000 is one whole device.
    DeviceMilli;
}

/// The largest amount of any kind that is accepted from outside: sums of a million of them fit.
pub const LARGEST: u64 = 1 << 53;

impl fmt::Display for MilliCpu {
    /// `2`, `0.5`, `1.25`: CPUs, without trailing zeros.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&thousandths(self.0))
    }
}

impl fmt::Display for DeviceMilli {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&thousandths(self.0))
    }
}

fn thousandths(value: u64) -> String {
    let (whole, part) = (value / 1000, value % 1000);
    if part == 0 {
        return whole.to_string();
    }
    let text = format!("{whole}.{part:03}");
    text.trim_end_matches('0').to_owned()
}

impl fmt::Display for Bytes {
    /// Binary units, one decimal below ten where it says something: `96 GiB`, `1.5 GiB`, `0`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [(&str, u32); 5] = [
            ("PiB", 50),
            ("TiB", 40),
            ("GiB", 30),
            ("MiB", 20),
            ("KiB", 10),
        ];
        for (unit, shift) in UNITS {
            let size = 1_u64 << shift;
            if self.0 < size {
                continue;
            }
            let whole = self.0 >> shift;
            // Tenths of the rest; the rest is below 2^50, so ten times it fits.
            let tenths = ((self.0 & (size.wrapping_sub(1))).saturating_mul(10)) >> shift;
            return if whole >= 10 || tenths == 0 {
                f.pad(&format!("{whole} {unit}"))
            } else {
                f.pad(&format!("{whole}.{tenths} {unit}"))
            };
        }
        if self.0 == 0 {
            f.pad("0")
        } else {
            f.pad(&format!("{} B", self.0))
        }
    }
}

impl FromStr for MilliCpu {
    type Err = BadText;

    /// `2`, `0.5`, `500m`. Finer than a thousandth is refused.
    fn from_str(text: &str) -> Result<Self, BadText> {
        let rule = "cpus such as 2, 0.5 or 500m, at most 9007199254740 and not below 0.001";
        let bad = || BadText::new("cpu amount", text, rule);
        let milli = match text.strip_suffix('m') {
            Some(milli) => digits(milli).ok_or_else(bad)?,
            None => decimal_thousandths(text).ok_or_else(bad)?,
        };
        if milli > LARGEST {
            Err(bad())
        } else {
            Ok(Self(milli))
        }
    }
}

fn digits(text: &str) -> Option<u64> {
    if text.is_empty() || !text.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    text.parse().ok()
}

/// `1.25` to 1250; `None` for more than three decimals that are not zeros, signs, or overflow.
fn decimal_thousandths(text: &str) -> Option<u64> {
    let (whole, part) = text.split_once('.').unwrap_or((text, ""));
    let trimmed = part.trim_end_matches('0');
    if trimmed.len() > 3 || !part.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    let thousandths = format!("{trimmed:0<3}").parse::<u64>().ok()?;
    digits(whole)?.checked_mul(1000)?.checked_add(thousandths)
}

impl FromStr for Bytes {
    type Err = BadText;

    /// `32GiB`, `10GB`, `500MiB`, or a plain number of bytes. `GB` is 10⁹, `GiB` 2³⁰.
    fn from_str(text: &str) -> Result<Self, BadText> {
        let rule = "a number with a unit (B, KB, MB, GB, TB, PB, KiB, MiB, GiB, TiB, PiB) such as \
                    1.5GiB, at most 8PiB";
        let bad = || BadText::new("amount of memory", text, rule);
        let at = text
            .find(|c: char| !c.is_ascii_digit() && c != '.')
            .unwrap_or(text.len());
        let (number, unit) = text.split_at(at);
        let unit: u64 = match unit.trim() {
            "" | "B" => 1,
            "KB" => 1_000,
            "MB" => 1_000_000,
            "GB" => 1_000_000_000,
            "TB" => 1_000_000_000_000,
            "PB" => 1_000_000_000_000_000,
            "KiB" => 1 << 10,
            "MiB" => 1 << 20,
            "GiB" => 1 << 30,
            "TiB" => 1 << 40,
            "PiB" => 1 << 50,
            _ => return Err(bad()),
        };
        // Through thousandths, so that `1.5GiB` is exact.
        let thousandths = decimal_thousandths(number).ok_or_else(bad)?;
        let scaled = u128::from(thousandths)
            .checked_mul(u128::from(unit))
            .ok_or_else(bad)?;
        if scaled % 1000 != 0 {
            return Err(bad());
        }
        let bytes = u64::try_from(scaled / 1000).map_err(|_| bad())?;
        if bytes > LARGEST {
            Err(bad())
        } else {
            Ok(Self(bytes))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_text_is_exact_to_a_thousandth_and_refuses_less() {
        assert_eq!("2".parse(), Ok(MilliCpu(2000)));
        assert_eq!("0.5".parse(), Ok(MilliCpu(500)));
        assert_eq!("250m".parse(), Ok(MilliCpu(250)));
        assert_eq!("0".parse(), Ok(MilliCpu(0)));
        let error = "0.0001".parse::<MilliCpu>().expect_err("too fine");
        assert!(error.to_string().contains("below 0.001"), "{error}");
        for bad in [
            "",
            "-1",
            "1e3",
            "NaN",
            "1.2.3",
            "99999999999999999999",
            "0x10",
            "+1",
        ] {
            assert!(bad.parse::<MilliCpu>().is_err(), "{bad}");
        }
    }

    #[test]
    fn byte_text_knows_decimal_and_binary_units() {
        assert_eq!("1GB".parse(), Ok(Bytes(1_000_000_000)));
        assert_eq!("1GiB".parse(), Ok(Bytes(1 << 30)));
        assert_eq!("1.5GiB".parse(), Ok(Bytes(3 << 29)));
        assert_eq!("1024".parse(), Ok(Bytes(1024)));
        assert_eq!(Bytes(3 << 29).to_string(), "1.5 GiB");
        assert_eq!(Bytes(96 << 30).to_string(), "96 GiB");
        assert_eq!("8PiB".parse(), Ok(Bytes(LARGEST)));
        let error = "9PiB".parse::<Bytes>().expect_err("too much").to_string();
        assert!(
            error.contains("9PiB") && error.contains("at most 8PiB"),
            "{error}"
        );
        for bad in ["", "GiB", "1XB", "99999999TiB", "-1GiB"] {
            assert!(bad.parse::<Bytes>().is_err(), "{bad}");
        }
    }
}
