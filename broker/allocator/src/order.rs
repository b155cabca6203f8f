//! The fair order as arithmetic: dominant shares including the claim, and the cap.

use crate::share::{Share, Weight, most_within};
use crate::view::ShapeEntry;
use crate::view::kinds::{Amounts, amount};

/// Capacity by kind, and the steps in which shares advance.
#[derive(Clone, Debug)]
pub(crate) struct Scale {
    pub(crate) capacity: Amounts,
    pub(crate) grid: u64,
}

impl Scale {
    /// `max_r (held_r + more_r) / C_r ÷ weight`.
    pub(crate) fn share(&self, held: &[u64], more: &[(usize, u64)], weight: Weight) -> Share {
        let mut most = (0_u64, 1_u64);
        let kinds = held.len().max(self.capacity.len());
        let mut consider = |number: usize, sum: u64| {
            let capacity = amount(&self.capacity, number);
            if sum > 0 && is_more((sum, capacity), most) {
                most = (sum, capacity);
            }
        };
        for number in 0..kinds {
            consider(number, amount(held, number));
        }
        for (number, more) in more {
            consider(*number, amount(held, *number).saturating_add(*more));
        }
        Share::weighted(most.0, most.1, weight)
    }

    /// Tasks until the share, which is that of what is held and one task, passes the next step of
    /// the grid; at least one.
    pub(crate) fn tasks_in_step(
        &self,
        share: Share,
        held: &[u64],
        task: &[(usize, u64)],
        weight_milli: u32,
    ) -> u32 {
        let step = share.step(self.grid);
        let tasks = task
            .iter()
            .map(|(number, want)| {
                let capacity = amount(&self.capacity, *number);
                most_within(step, self.grid, capacity, weight_milli)
                    .saturating_sub(amount(held, *number))
                    .checked_div(*want)
                    .unwrap_or(u64::MAX)
            })
            .min()
            .unwrap_or(u64::MAX);
        u32::try_from(tasks).unwrap_or(u32::MAX).max(1)
    }

    /// A quarter of one kind, halved so many times.
    pub(crate) fn cap(&self, number: usize, halvings: u32) -> u64 {
        let quarter = amount(&self.capacity, number) >> 2;
        quarter.checked_shr(halvings).unwrap_or(0)
    }

    /// Tasks that may go out to a framework which has `offered` out: at the most a quarter of the
    /// cluster (halved after expiries), but always one task of the claim.
    pub(crate) fn room(&self, offered: &[u64], entry: &ShapeEntry, halvings: u32) -> u32 {
        let tasks = entry
            .charge
            .iter()
            .map(|(number, want)| {
                self.cap(*number, halvings)
                    .max(*want)
                    .saturating_sub(amount(offered, *number))
                    .checked_div(*want)
                    .unwrap_or(u64::MAX)
            })
            .min()
            .unwrap_or(u64::MAX);
        u32::try_from(tasks).unwrap_or(u32::MAX)
    }
}

fn is_more(left: (u64, u64), right: (u64, u64)) -> bool {
    match (left.1, right.1) {
        (_, 0) => false,
        (0, _) => true,
        _ => {
            let product = |a: u64, b: u64| u128::from(a).saturating_mul(u128::from(b));
            product(left.0, right.1) > product(right.0, left.1)
        }
    }
}
