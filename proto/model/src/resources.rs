//! What is on one agent: quantities and names, and their arithmetic.
//!
//! A [`Resources`] value is a total, a free set, an offer or a grant. Named cores are *within* the
//! cpu amount: a grant of cores 4-5 has `cpu = 2000`. So one rule covers shared and exclusive use:
//! a grant fits if its cpu amount fits the free cpu and its names are among the free names.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::cpu_set::CpuSet;
use crate::device::{Device, DeviceShare};
use crate::quantity::{Bytes, MilliCpu};

/// Quantities and names on one agent.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Resources {
    /// All CPU meant, 1000 for each named core included.
    pub cpu: MilliCpu,
    /// Memory.
    pub memory: Bytes,
    /// Disk of the task directory's file system.
    pub disk: Bytes,
    /// Cores by name.
    pub cores: CpuSet,
    /// Devices by name, sorted by id, each id once, no zero share.
    pub devices: Vec<DeviceShare>,
}

/// What is missing: the first thing that does not fit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Shortage {
    /// Less CPU than wanted.
    Cpu {
        /// Asked for.
        want: MilliCpu,
        /// There.
        have: MilliCpu,
    },
    /// Less memory than wanted.
    Memory {
        /// Asked for.
        want: Bytes,
        /// There.
        have: Bytes,
    },
    /// Less disk than wanted.
    Disk {
        /// Asked for.
        want: Bytes,
        /// There.
        have: Bytes,
    },
    /// These cores are not there.
    Cores(CpuSet),
    /// This device, or so much of it, is not there; `have` is what is left of it.
    Device {
        /// Asked for.
        want: DeviceShare,
        /// Thousandths there.
        have: u32,
    },
}

impl fmt::Display for Shortage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cpu { want, have } => write!(f, "wants {want} cpu, {have} free"),
            Self::Memory { want, have } => write!(f, "wants {want} memory, {have} free"),
            Self::Disk { want, have } => write!(f, "wants {want} disk, {have} free"),
            Self::Cores(cores) => write!(f, "cores {cores} are not free"),
            Self::Device { want, have } => {
                write!(
                    f,
                    "device {} has {have} of {} thousandths free",
                    want.id, want.milli
                )
            }
        }
    }
}

impl Resources {
    /// Nothing at all.
    #[must_use]
    pub fn is_zero(&self) -> bool {
        *self == Self::default()
    }

    /// The first thing of `wanted` that is not in here, or `None` if all of it is.
    #[must_use]
    pub fn shortage(&self, wanted: &Self) -> Option<Shortage> {
        if wanted.cpu > self.cpu {
            return Some(Shortage::Cpu {
                want: wanted.cpu,
                have: self.cpu,
            });
        }
        if wanted.memory > self.memory {
            return Some(Shortage::Memory {
                want: wanted.memory,
                have: self.memory,
            });
        }
        if wanted.disk > self.disk {
            return Some(Shortage::Disk {
                want: wanted.disk,
                have: self.disk,
            });
        }
        let missing = wanted.cores.difference(&self.cores);
        if !missing.is_empty() {
            return Some(Shortage::Cores(missing));
        }
        wanted.devices.iter().find_map(|want| {
            let have = self.share_of(want);
            (have < want.milli).then(|| Shortage::Device {
                want: want.clone(),
                have,
            })
        })
    }

    /// Says whether all of `wanted` is in here.
    #[must_use]
    pub fn contains(&self, wanted: &Self) -> bool {
        self.shortage(wanted).is_none()
    }

    fn share_of(&self, want: &DeviceShare) -> u32 {
        self.devices
            .binary_search_by(|device| device.id.cmp(&want.id))
            .ok()
            .and_then(|at| self.devices.get(at))
            .filter(|device| device.class == want.class)
            .map_or(0, |device| device.milli)
    }

    /// Takes `taken` out.
    ///
    /// # Errors
    /// The [`Shortage`], and nothing is changed.
    pub fn subtract(&mut self, taken: &Self) -> Result<(), Shortage> {
        if let Some(shortage) = self.shortage(taken) {
            return Err(shortage);
        }
        self.cpu = self.cpu.saturating_sub(taken.cpu);
        self.memory = self.memory.saturating_sub(taken.memory);
        self.disk = self.disk.saturating_sub(taken.disk);
        if !taken.cores.is_empty() {
            self.cores = self.cores.difference(&taken.cores);
        }
        for share in &taken.devices {
            if let Ok(at) = self
                .devices
                .binary_search_by(|device| device.id.cmp(&share.id))
                && let Some(device) = self.devices.get_mut(at)
            {
                device.milli = device.milli.saturating_sub(share.milli);
            }
        }
        if !taken.devices.is_empty() {
            self.devices.retain(|device| device.milli > 0);
        }
        Ok(())
    }

    /// Takes away what is there of `taken`, nothing below zero: for agents that shrank below
    /// what they have given away.
    pub fn saturating_subtract(&mut self, taken: &Self) {
        self.cpu = self.cpu.saturating_sub(taken.cpu);
        self.memory = self.memory.saturating_sub(taken.memory);
        self.disk = self.disk.saturating_sub(taken.disk);
        self.cores = self.cores.difference(&taken.cores);
        for share in &taken.devices {
            if let Ok(at) = self
                .devices
                .binary_search_by(|device| device.id.cmp(&share.id))
                && let Some(device) = self.devices.get_mut(at)
            {
                device.milli = device.milli.saturating_sub(share.milli);
            }
        }
        self.devices.retain(|device| device.milli > 0);
    }

    /// Puts `added` in; amounts stop at the largest number, names are united.
    pub fn add(&mut self, added: &Self) {
        self.cpu = self.cpu.saturating_add(added.cpu);
        self.memory = self.memory.saturating_add(added.memory);
        self.disk = self.disk.saturating_add(added.disk);
        if !added.cores.is_empty() {
            self.cores = self.cores.union(&added.cores);
        }
        for share in &added.devices {
            match self
                .devices
                .binary_search_by(|device| device.id.cmp(&share.id))
            {
                Ok(at) => {
                    if let Some(device) = self.devices.get_mut(at) {
                        device.milli = device.milli.saturating_add(share.milli);
                    }
                }
                Err(at) => self.devices.insert(at, share.clone()),
            }
        }
    }

    /// Thousandths of devices per exact class, in class order.
    #[must_use]
    pub fn device_milli_by_class(&self) -> BTreeMap<&crate::ClassPath, u64> {
        let mut sums: BTreeMap<&crate::ClassPath, u64> = BTreeMap::new();
        for share in &self.devices {
            let sum = sums.entry(&share.class).or_default();
            *sum = sum.saturating_add(u64::from(share.milli));
        }
        sums
    }
}

/// Whether an agent can hold a task to what it was granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Enforcement {
    /// The kernel keeps the task within its grant.
    Enforced,
    /// The task starts on its cores but could leave them.
    AffinityOnly,
    /// Counted, not enforced.
    AccountedOnly,
}

/// What an agent has, as it says itself.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Inventory {
    /// What may be granted in all; unhealthy devices are left out.
    pub total: Resources,
    /// All devices with their attributes and health.
    pub devices: Vec<Device>,
    /// Labels of the node.
    pub labels: BTreeMap<String, String>,
    /// Raised when the hardware changes.
    pub topology_epoch: u64,
    /// Changes with each boot of the machine.
    pub boot_id: String,
    /// By kind: `cpu`, `memory`, `disk`, `cores`.
    pub enforcement: BTreeMap<String, Enforcement>,
    /// Release of the agent.
    pub version: String,
    /// Simulated: no process is ever started.
    pub fake: bool,
    /// Where the node API listens; empty when there is none.
    pub node_address: String,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::{ClassPath, DeviceId};

    fn gpu(id: &str, milli: u32) -> DeviceShare {
        DeviceShare {
            id: DeviceId::new(id).expect("an id"),
            class: ClassPath::new("gpu/t4").expect("a class"),
            milli,
        }
    }

    #[test]
    fn subtract_takes_all_or_nothing_and_add_gives_it_back() {
        let total = Resources {
            cpu: MilliCpu(4000),
            memory: Bytes(100),
            disk: Bytes(10),
            cores: "0-3".parse().expect("a set"),
            devices: vec![gpu("a", 1000), gpu("b", 1000)],
        };
        let part = Resources {
            cpu: MilliCpu(1000),
            cores: "2".parse().expect("a set"),
            devices: vec![gpu("b", 400)],
            ..Resources::default()
        };

        let mut free = total.clone();
        free.subtract(&part).expect("fits");
        assert_eq!(free.cores.to_string(), "0-1,3");
        assert_eq!(free.share_of(&gpu("b", 1)), 600);
        let before = free.clone();
        let shortage = free.subtract(&part).expect_err("core 2 is gone");
        assert_eq!(shortage, Shortage::Cores("2".parse().expect("a set")));
        assert_eq!(free, before);
        free.add(&part);
        assert_eq!(free, total);
    }
}
