//! Exact shares: compared by cross-multiplication, never rounded.

use std::cmp::Ordering;

/// `numerator / denominator`, both non-negative; a zero denominator is larger than any number.
#[derive(Clone, Copy, Debug)]
pub struct Fraction {
    numerator: u64,
    denominator: u64,
}

impl Fraction {
    /// Nothing.
    pub const ZERO: Self = Self {
        numerator: 0,
        denominator: 1,
    };

    /// Makes the fraction; nothing of nothing is nothing.
    #[must_use]
    pub fn new(numerator: u64, denominator: u64) -> Self {
        if numerator == 0 {
            Self::ZERO
        } else {
            Self {
                numerator,
                denominator,
            }
        }
    }
}

impl Ord for Fraction {
    fn cmp(&self, other: &Self) -> Ordering {
        let left = u128::from(self.numerator).saturating_mul(u128::from(other.denominator));
        let right = u128::from(other.numerator).saturating_mul(u128::from(self.denominator));
        match (self.denominator, other.denominator) {
            (0, 0) => Ordering::Equal,
            (0, _) => Ordering::Greater,
            (_, 0) => Ordering::Less,
            _ => left.cmp(&right),
        }
    }
}

impl PartialOrd for Fraction {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Fraction {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Fraction {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thirds_compare_exactly_and_no_capacity_is_most() {
        assert_eq!(Fraction::new(1, 3), Fraction::new(2, 6));
        assert!(Fraction::new(u64::MAX, 3) > Fraction::new(u64::MAX, 4));
        assert!(Fraction::new(1, 0) > Fraction::new(u64::MAX, 1));
        assert_eq!(Fraction::new(0, 0), Fraction::ZERO);
    }
}
