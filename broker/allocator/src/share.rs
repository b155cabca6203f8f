//! Exact weighted shares, and the steps in which the fair order advances.

use std::cmp::Ordering;

/// `num / den`, compared exactly; a zero denominator with something above it is more than any
/// number, nothing of nothing is nothing.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Share {
    num: u128,
    den: u128,
}

impl Share {
    /// Nothing.
    pub(crate) const ZERO: Self = Self { num: 0, den: 1 };

    /// Makes the share `amount / capacity`, divided by a weight in thousandths (0 counts as 1;
    /// who has weight 0 is ordered last by the caller).
    pub(crate) fn new(amount: u64, capacity: u64, weight_milli: u32) -> Self {
        if amount == 0 {
            return Self::ZERO;
        }
        let weight = weight_milli.max(1);
        let common = gcd(weight, 1000);
        let part = |number: u32| u128::from(number.checked_div(common).unwrap_or(number));
        Self {
            num: u128::from(amount).saturating_mul(part(1000)),
            den: u128::from(capacity).saturating_mul(part(weight)),
        }
    }

    /// The whole steps of `1 / grid` that lie below this share.
    pub(crate) fn step(self, grid: u64) -> u128 {
        self.num
            .saturating_mul(u128::from(grid))
            .checked_div(self.den)
            .unwrap_or(u128::MAX)
    }
}

/// The largest amount of a kind with `capacity` whose weighted share is at most
/// `(step + 1) / grid`.
pub(crate) fn most_within(step: u128, grid: u64, capacity: u64, weight_milli: u32) -> u64 {
    let below = u128::from(grid).saturating_mul(1000);
    let above = u128::from(capacity).saturating_mul(u128::from(weight_milli.max(1)));
    let most = above
        .saturating_mul(step.saturating_add(1))
        .checked_div(below)
        .unwrap_or(0);
    u64::try_from(most).unwrap_or(u64::MAX)
}

fn gcd(mut a: u32, mut b: u32) -> u32 {
    while let Some(rest) = a.checked_rem(b) {
        (a, b) = (b, rest);
    }
    a.max(1)
}

/// Compares two fractions whose cross products do not fit, by their continued fractions.
fn compare_slowly(mut left: (u128, u128), mut right: (u128, u128)) -> Ordering {
    let mut turned = false;
    loop {
        let whole = |(num, den): (u128, u128)| num.checked_div(den);
        let order = match (whole(left), whole(right)) {
            (None, None) => return Ordering::Equal,
            (None, Some(_)) => Ordering::Greater,
            (Some(_), None) => Ordering::Less,
            (Some(a), Some(b)) => a.cmp(&b),
        };
        if order != Ordering::Equal {
            return if turned { order.reverse() } else { order };
        }
        let rest = |(num, den): (u128, u128)| (den, num.checked_rem(den).unwrap_or(0));
        (left, right) = (rest(left), rest(right));
        turned = !turned;
    }
}

impl Ord for Share {
    fn cmp(&self, other: &Self) -> Ordering {
        match (self.den, other.den) {
            (0, 0) => return Ordering::Equal,
            (0, _) => return Ordering::Greater,
            (_, 0) => return Ordering::Less,
            _ => {}
        }
        let left = self.num.checked_mul(other.den);
        let right = other.num.checked_mul(self.den);
        match (left, right) {
            (Some(left), Some(right)) => left.cmp(&right),
            _ => compare_slowly((self.num, self.den), (other.num, other.den)),
        }
    }
}

impl PartialOrd for Share {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Share {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Share {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_weight_divides_the_share_exactly() {
        assert_eq!(Share::new(1, 3, 1000), Share::new(2, 6, 1000));
        assert_eq!(Share::new(3, 10, 3000), Share::new(1, 10, 1000));
        assert!(Share::new(3, 10, 2999) > Share::new(1, 10, 1000));
        assert!(Share::new(1, 0, 1000) > Share::new(u64::MAX, 1, 1));
        assert_eq!(Share::new(0, 0, 1000), Share::ZERO);
    }

    #[test]
    fn products_beyond_128_bits_are_compared_all_the_same() {
        let huge = u64::MAX;
        assert!(Share::new(huge, huge, 4_000_000_007) < Share::new(huge, huge, 4_000_000_005));
        assert!(Share::new(huge, huge, 3) > Share::new(huge, huge, 4_000_000_007));
        assert_eq!(compare_slowly((7, 3), (14, 6)), Ordering::Equal);
        assert_eq!(compare_slowly((7, 3), (15, 6)), Ordering::Less);
        assert_eq!(compare_slowly((8, 3), (15, 6)), Ordering::Greater);
    }

    #[test]
    fn the_most_within_a_step_is_still_in_it() {
        let share = Share::new(250, 1000, 1000);
        assert_eq!(share.step(100), 25);
        assert_eq!(most_within(25, 100, 1000, 1000), 260);
        assert_eq!(most_within(25, 100, 1000, 2000), 520);
    }
}
