//! One agent's free resources in a few numbers, and what a shape needs in the same ones.
//!
//! Comparing them is the fast half of "does it fit". It is exact for everything but devices of
//! several classes on one agent, where [`mete_model::fit`] has the last word.

use mete_model::device::WHOLE;
use mete_model::{Resources, Shape};

/// Numbers of one agent (or the most of many), or the needs of one task.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Free {
    /// Thousandths of devices in all.
    pub(crate) devices: u64,
    /// Milli-CPU.
    pub(crate) cpu: u64,
    /// Bytes.
    pub(crate) memory: u64,
    /// Bytes.
    pub(crate) disk: u64,
    /// Named cores.
    pub(crate) cores: u32,
    /// Untouched devices.
    pub(crate) whole: u32,
    /// The largest thousandths of any one device.
    pub(crate) best: u32,
}

impl Free {
    /// The numbers of some resources.
    pub(crate) fn of(resources: &Resources) -> Self {
        let mut free = Self {
            cpu: resources.cpu.0,
            memory: resources.memory.0,
            disk: resources.disk.0,
            cores: resources.cores.len(),
            ..Self::default()
        };
        for device in &resources.devices {
            free.devices = free.devices.saturating_add(u64::from(device.milli));
            free.best = free.best.max(device.milli);
            if device.milli >= WHOLE {
                free.whole = free.whole.saturating_add(1);
            }
        }
        free
    }

    /// The needs of one task.
    pub(crate) fn need(shape: &Shape) -> Self {
        let mut need = Self {
            cpu: shape.cpu_in_all().0,
            memory: shape.memory.0,
            disk: shape.disk.0,
            cores: shape.cores,
            ..Self::default()
        };
        for want in &shape.devices {
            let milli = u64::from(want.count).saturating_mul(u64::from(want.milli));
            need.devices = need.devices.saturating_add(milli);
            need.best = need.best.max(want.milli);
            if want.milli >= WHOLE {
                need.whole = need.whole.saturating_add(want.count);
            }
        }
        need
    }

    /// Says whether these numbers are all at least `need`.
    pub(crate) fn covers(&self, need: &Self) -> bool {
        self.cpu >= need.cpu
            && self.memory >= need.memory
            && self.disk >= need.disk
            && self.cores >= need.cores
            && self.devices >= need.devices
            && self.whole >= need.whole
            && self.best >= need.best
    }

    /// Raises each number to the other's.
    pub(crate) fn raise(&mut self, other: &Self) {
        self.devices = self.devices.max(other.devices);
        self.cpu = self.cpu.max(other.cpu);
        self.memory = self.memory.max(other.memory);
        self.disk = self.disk.max(other.disk);
        self.cores = self.cores.max(other.cores);
        self.whole = self.whole.max(other.whole);
        self.best = self.best.max(other.best);
    }

    /// How many numbers there are.
    pub(crate) const NUMBERS: usize = 7;

    /// All numbers.
    pub(crate) fn numbers(&self) -> [u64; Self::NUMBERS] {
        [
            self.devices,
            self.cpu,
            self.memory,
            self.disk,
            u64::from(self.cores),
            u64::from(self.whole),
            u64::from(self.best),
        ]
    }

    /// For each number, whether it is at least the other's.
    pub(crate) fn reaches(&self, most: &Self) -> [bool; Self::NUMBERS] {
        [
            self.devices >= most.devices,
            self.cpu >= most.cpu,
            self.memory >= most.memory,
            self.disk >= most.disk,
            self.cores >= most.cores,
            self.whole >= most.whole,
            self.best >= most.best,
        ]
    }

    /// How far `need` gets, in the order in which [`mete_model::fit`] looks: the number of kinds
    /// that are there, and how much there is of the first that is short.
    pub(crate) fn progress(&self, need: &Self) -> (u8, u64) {
        let kinds = [
            (need.cpu, self.cpu),
            (need.memory, self.memory),
            (need.disk, self.disk),
            (u64::from(need.cores), u64::from(self.cores)),
        ];
        for (at, (want, have)) in (0_u8..).zip(kinds) {
            if have < want {
                return (at, have);
            }
        }
        if need.devices > self.devices || need.whole > self.whole || need.best > self.best {
            let have = if need.whole > 0 {
                self.whole
            } else {
                self.best
            };
            return (4, u64::from(have));
        }
        (5, 0)
    }

    /// How many tasks of `need` fit, for shapes without names; `most` at the most.
    pub(crate) fn how_many(&self, need: &Self, most: u32) -> u32 {
        let by = |want: u64, have: u64| have.checked_div(want).unwrap_or(u64::MAX);
        let count = by(need.cpu, self.cpu)
            .min(by(need.memory, self.memory))
            .min(by(need.disk, self.disk))
            .min(u64::from(most));
        u32::try_from(count).unwrap_or(most)
    }

    /// Takes `count` tasks of `need` away, for shapes without names.
    pub(crate) fn take(&mut self, need: &Self, count: u32) {
        let times = |amount: u64| amount.saturating_mul(u64::from(count));
        self.cpu = self.cpu.saturating_sub(times(need.cpu));
        self.memory = self.memory.saturating_sub(times(need.memory));
        self.disk = self.disk.saturating_sub(times(need.disk));
    }
}
