//! Exact weighted shares, and the steps in which the fair order advances.

use std::cmp::Ordering;

/// Parts of a whole share in [`Share::rough`].
const ROUGH_BITS: u32 = 48;

/// A weight, in lowest terms of what it divides by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Weight {
    /// In thousandths.
    pub(crate) milli: u32,
    /// 1000 and `milli` (0 counts as 1) without their common factor.
    times: u32,
    parts: u32,
}

impl Weight {
    /// A weight of 1.
    pub(crate) const ONE: Self = Self {
        milli: 1000,
        times: 1,
        parts: 1,
    };

    /// A weight in thousandths; 0 counts as 1 (who has weight 0 is ordered last by the caller).
    pub(crate) fn new(milli: u32) -> Self {
        let weight = milli.max(1);
        let common = gcd(weight, 1000);
        let part = |number: u32| number.checked_div(common).unwrap_or(number);
        Self {
            milli,
            times: part(1000),
            parts: part(weight),
        }
    }
}

impl Default for Weight {
    fn default() -> Self {
        Self::ONE
    }
}

/// `amount / capacity ÷ weight`, compared exactly; no capacity with something above it is more
/// than any number, nothing of nothing is nothing.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Share {
    /// The share in parts of 2^48, rounded down; the largest number when it is more. It decides
    /// nearly every comparison, and never wrongly.
    rough: u64,
    amount: u64,
    capacity: u64,
    times: u32,
    parts: u32,
}

impl Share {
    /// Nothing.
    pub(crate) const ZERO: Self = Self {
        rough: 0,
        amount: 0,
        capacity: 1,
        times: 1,
        parts: 1,
    };

    /// Makes the share `amount / capacity`, divided by a weight in thousandths.
    pub(crate) fn new(amount: u64, capacity: u64, weight_milli: u32) -> Self {
        Self::weighted(amount, capacity, Weight::new(weight_milli))
    }

    /// The same with a weight that is at hand.
    pub(crate) fn weighted(amount: u64, capacity: u64, weight: Weight) -> Self {
        if amount == 0 {
            return Self::ZERO;
        }
        let (times, parts) = (weight.times, weight.parts);
        let mut share = Self {
            rough: u64::MAX,
            amount,
            capacity,
            times,
            parts,
        };
        // Below 2^64 × 1000, so nothing is shifted out.
        let above = share.num() << ROUGH_BITS;
        if let Some(rough) = above.checked_div(share.den()) {
            share.rough = u64::try_from(rough).unwrap_or(u64::MAX);
        }
        share
    }

    fn num(self) -> u128 {
        u128::from(self.amount).saturating_mul(u128::from(self.times))
    }

    fn den(self) -> u128 {
        u128::from(self.capacity).saturating_mul(u128::from(self.parts))
    }

    /// The whole steps of `1 / grid` that lie below this share.
    pub(crate) fn step(self, grid: u64) -> u128 {
        self.num()
            .saturating_mul(u128::from(grid))
            .checked_div(self.den())
            .unwrap_or(u128::MAX)
    }

    /// Compares without the rough numbers.
    fn compare_exactly(self, other: Self) -> Ordering {
        let (left, right) = ((self.num(), self.den()), (other.num(), other.den()));
        match (left.1, right.1) {
            (0, 0) => return Ordering::Equal,
            (0, _) => return Ordering::Greater,
            (_, 0) => return Ordering::Less,
            _ => {}
        }
        match (left.0.checked_mul(right.1), right.0.checked_mul(left.1)) {
            (Some(left), Some(right)) => left.cmp(&right),
            _ => compare_slowly(left, right),
        }
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
        let roughly = self.rough.cmp(&other.rough);
        roughly.then_with(|| self.compare_exactly(*other))
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
    fn the_rough_comparison_never_contradicts_the_exact_one() {
        let amounts = [
            0,
            1,
            2,
            3,
            999,
            1 << 20,
            (1 << 54) + 1,
            u64::MAX - 1,
            u64::MAX,
        ];
        let weights = [0, 1, 1000, 1001, 2000, 3500, u32::MAX];
        let mut shares = Vec::new();
        for amount in amounts {
            for capacity in amounts {
                shares.extend(weights.map(|weight| Share::new(amount, capacity, weight)));
            }
        }
        for left in &shares {
            for right in &shares {
                let exactly = left.compare_exactly(*right);
                assert_eq!(left.cmp(right), exactly, "{left:?} {right:?}");
            }
        }
    }

    #[test]
    fn the_most_within_a_step_is_still_in_it() {
        let share = Share::new(250, 1000, 1000);
        assert_eq!(share.step(100), 25);
        assert_eq!(most_within(25, 100, 1000, 1000), 260);
        assert_eq!(most_within(25, 100, 1000, 2000), 520);
    }
}
