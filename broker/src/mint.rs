//! Where new ids come from: the only randomness of a leader.

use mete_model::{AgentId, FrameworkId};
use uuid::Uuid;

/// Makes ids. Random in the product, counted in a simulator.
pub trait Mint: Send + Sync + std::fmt::Debug {
    /// An id that was never used.
    fn uuid(&mut self) -> Uuid;

    /// A source of the same kind for another term.
    fn fork(&mut self) -> Box<dyn Mint>;

    /// An id for a new agent.
    fn agent(&mut self) -> AgentId {
        AgentId(self.uuid())
    }

    /// An id for a new framework.
    fn framework(&mut self) -> FrameworkId {
        FrameworkId(self.uuid())
    }
}

/// Ids from the system's randomness.
#[derive(Clone, Copy, Debug, Default)]
pub struct Random;

impl Mint for Random {
    fn uuid(&mut self) -> Uuid {
        Uuid::new_v4()
    }

    fn fork(&mut self) -> Box<dyn Mint> {
        Box::new(Self)
    }
}

/// Ids that a seed decides: for simulators and tests, where everything must repeat.
#[derive(Clone, Copy, Debug)]
pub struct Counted {
    seed: u64,
    count: u64,
}

impl Counted {
    /// Ids of this seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self { seed, count: 0 }
    }
}

impl Mint for Counted {
    fn uuid(&mut self) -> Uuid {
        self.count = self.count.wrapping_add(1);
        Uuid::from_u64_pair(scatter(self.seed), scatter(self.seed ^ self.count))
    }

    fn fork(&mut self) -> Box<dyn Mint> {
        self.count = self.count.wrapping_add(1);
        Box::new(Self::new(scatter(self.seed ^ self.count)))
    }
}

/// Spreads the bits of a counter (the finalizer of splitmix64): one to one, so no two collide.
fn scatter(number: u64) -> u64 {
    let mut mixed = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counted_ids_repeat_by_seed_and_never_within_one() {
        let (mut first, mut again, mut other) = (Counted::new(7), Counted::new(7), Counted::new(8));
        let mut seen = std::collections::BTreeSet::new();
        for _ in 0..1000 {
            let id = first.uuid();
            assert_eq!(id, again.uuid());
            assert_ne!(id, other.uuid());
            assert!(seen.insert(id));
        }
    }
}
