//! What a grant, an offer or a capacity counts, per kind. The only place that decides it.
//!
//! Charged is what is withdrawn, not what was asked. A device counts in its class and in every
//! ancestor class, so that "10 GPUs of any type" and "5 of this model" are both one number.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::demand::Shape;
use crate::device::ClassPath;
use crate::fraction::Fraction;
use crate::resources::Resources;

/// A kind of resource that is counted.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Kind {
    /// Milli-CPU, exclusive cores included.
    Cpu,
    /// Bytes.
    Memory,
    /// Bytes.
    Disk,
    /// Thousandths of devices of this class and all below it.
    Device(ClassPath),
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cpu => f.pad("cpu"),
            Self::Memory => f.pad("mem"),
            Self::Disk => f.pad("disk"),
            Self::Device(class) => f.pad(&format!("dev/{class}")),
        }
    }
}

/// Amounts by kind; a kind that is absent counts zero.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Charge(BTreeMap<Kind, u64>);

impl Charge {
    /// What `resources` count.
    #[must_use]
    pub fn of(resources: &Resources) -> Self {
        let mut charge = Self::base(resources.cpu.0, resources.memory.0, resources.disk.0);
        for share in &resources.devices {
            charge.count_class(&share.class, u64::from(share.milli));
        }
        charge
    }

    /// What one task of `shape` counts.
    #[must_use]
    pub fn of_shape(shape: &Shape) -> Self {
        let mut charge = Self::base(shape.cpu_in_all().0, shape.memory.0, shape.disk.0);
        for want in &shape.devices {
            let milli = u64::from(want.count).saturating_mul(u64::from(want.milli));
            charge.count_class(&want.class, milli);
        }
        charge
    }

    fn base(cpu: u64, memory: u64, disk: u64) -> Self {
        let amounts = [(Kind::Cpu, cpu), (Kind::Memory, memory), (Kind::Disk, disk)];
        Self(
            amounts
                .into_iter()
                .filter(|(_, amount)| *amount > 0)
                .collect(),
        )
    }

    fn count_class(&mut self, class: &ClassPath, milli: u64) {
        let text = class.as_str();
        let ends = text
            .match_indices('/')
            .map(|(at, _)| at)
            .chain([text.len()]);
        for end in ends {
            if let Ok(ancestor) = ClassPath::new(text.get(..end).unwrap_or(text)) {
                let sum = self.0.entry(Kind::Device(ancestor)).or_default();
                *sum = sum.saturating_add(milli);
            }
        }
    }

    /// The amount of one kind.
    #[must_use]
    pub fn get(&self, kind: &Kind) -> u64 {
        self.0.get(kind).copied().unwrap_or(0)
    }

    /// Kinds with an amount above zero, in order.
    pub fn iter(&self) -> impl Iterator<Item = (&Kind, u64)> {
        self.0.iter().map(|(kind, amount)| (kind, *amount))
    }

    /// Says whether nothing is charged.
    #[must_use]
    pub fn is_zero(&self) -> bool {
        self.0.is_empty()
    }

    /// Adds another charge.
    pub fn add(&mut self, other: &Self) {
        for (kind, amount) in &other.0 {
            let sum = self.0.entry(kind.clone()).or_default();
            *sum = sum.saturating_add(*amount);
        }
    }

    /// Takes another charge away, nothing below zero; kinds at zero vanish.
    pub fn subtract(&mut self, other: &Self) {
        for (kind, amount) in &other.0 {
            if let Some(sum) = self.0.get_mut(kind) {
                *sum = sum.saturating_sub(*amount);
                if *sum == 0 {
                    self.0.remove(kind);
                }
            }
        }
    }

    /// The largest share of any kind: `max_r self_r / capacity_r`.
    #[must_use]
    pub fn dominant_share(&self, capacity: &Self) -> Fraction {
        self.iter()
            .map(|(kind, amount)| Fraction::new(amount, capacity.get(kind)))
            .max()
            .unwrap_or(Fraction::ZERO)
    }
}

impl FromIterator<(Kind, u64)> for Charge {
    /// Zero amounts are left out; of a kind that comes twice the last amount counts.
    fn from_iter<I: IntoIterator<Item = (Kind, u64)>>(amounts: I) -> Self {
        Self(
            amounts
                .into_iter()
                .filter(|(_, amount)| *amount > 0)
                .collect(),
        )
    }
}
