//! Does a shape fit these resources, with which names, else why not.
//!
//! One answer everywhere: the allocator carves offers with it, the SDK packs with it, `mete why`
//! explains with it, and the agent's own picks follow it.

use std::fmt;

use crate::cpu_set::CpuSet;
use crate::demand::{DeviceWant, Shape};
use crate::device::{ClassPath, DeviceShare, WHOLE};
use crate::quantity::{Bytes, MilliCpu};
use crate::reason::Code;
use crate::resources::Resources;

/// Why a shape does not fit: the first thing that is short.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Miss {
    /// Too little CPU.
    Cpu {
        /// Asked for.
        want: MilliCpu,
        /// Free.
        have: MilliCpu,
    },
    /// Too little memory.
    Memory {
        /// Asked for.
        want: Bytes,
        /// Free.
        have: Bytes,
    },
    /// Too little disk.
    Disk {
        /// Asked for.
        want: Bytes,
        /// Free.
        have: Bytes,
    },
    /// Too few exclusive cores by name.
    Cores {
        /// Asked for.
        want: u32,
        /// Free.
        have: u32,
    },
    /// Too few devices of the class with enough left on each.
    Devices {
        /// The class asked for.
        class: ClassPath,
        /// Thousandths of each.
        milli: u32,
        /// Devices asked for.
        want: u32,
        /// Devices that would do.
        have: u32,
    },
}

impl Miss {
    /// The stable code, as nodes are grouped by it.
    #[must_use]
    pub fn code(&self) -> Code {
        match self {
            Self::Cpu { .. } => Code::CpuShort,
            Self::Memory { .. } => Code::MemoryShort,
            Self::Disk { .. } => Code::DiskShort,
            Self::Cores { .. } => Code::CoresShort,
            Self::Devices { .. } => Code::DeviceShort,
        }
    }

    /// Kind, want and have, for arithmetic shown to people.
    #[must_use]
    pub fn amounts(&self) -> (String, u64, u64) {
        match self {
            Self::Cpu { want, have } => ("cpu_milli".to_owned(), want.0, have.0),
            Self::Memory { want, have } => ("memory_bytes".to_owned(), want.0, have.0),
            Self::Disk { want, have } => ("disk_bytes".to_owned(), want.0, have.0),
            Self::Cores { want, have } => ("cores".to_owned(), u64::from(*want), u64::from(*have)),
            Self::Devices {
                class, want, have, ..
            } => (format!("dev/{class}"), u64::from(*want), u64::from(*have)),
        }
    }
}

impl fmt::Display for Miss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cpu { want, have } => write!(f, "want {want} cpu, have {have}"),
            Self::Memory { want, have } => write!(f, "want {want} memory, have {have}"),
            Self::Disk { want, have } => write!(f, "want {want} disk, have {have}"),
            Self::Cores { want, have } => write!(f, "want {want} exclusive cores, have {have}"),
            Self::Devices {
                class,
                milli,
                want,
                have,
            } if *milli == WHOLE => {
                write!(f, "want {want} {class}, have {have}")
            }
            Self::Devices {
                class, milli, have, ..
            } => {
                write!(
                    f,
                    "want {milli} thousandths of one {class}, {have} devices have that"
                )
            }
        }
    }
}

/// Picks the names that one task of `shape` would take from `free`.
///
/// Cores: the lowest numbers. Whole devices: lowest id first, and only untouched ones. Shares: the
/// device with the least left that still fits, so that whole devices stay whole (best fit).
///
/// # Errors
/// The first thing that is short.
pub fn fit(shape: &Shape, free: &Resources) -> Result<Resources, Miss> {
    let cpu = shape.cpu_in_all();
    if cpu > free.cpu {
        return Err(Miss::Cpu {
            want: cpu,
            have: free.cpu,
        });
    }
    if shape.memory > free.memory {
        return Err(Miss::Memory {
            want: shape.memory,
            have: free.memory,
        });
    }
    if shape.disk > free.disk {
        return Err(Miss::Disk {
            want: shape.disk,
            have: free.disk,
        });
    }
    let cores = if shape.cores == 0 {
        CpuSet::new()
    } else {
        free.cores.lowest(shape.cores).ok_or(Miss::Cores {
            want: shape.cores,
            have: free.cores.len(),
        })?
    };
    let mut devices = Vec::new();
    for want in &shape.devices {
        pick_devices(want, &free.devices, &mut devices)?;
    }
    devices.sort();
    Ok(Resources {
        cpu,
        memory: shape.memory,
        disk: shape.disk,
        cores,
        devices,
    })
}

/// Appends to `picked` what satisfies `want`; a device already picked for another want is passed.
fn pick_devices(
    want: &DeviceWant,
    free: &[DeviceShare],
    picked: &mut Vec<DeviceShare>,
) -> Result<(), Miss> {
    let already = picked.len();
    let suits = |device: &&DeviceShare| {
        device.milli >= want.milli
            && device.class.is_within(&want.class)
            && !picked.iter().any(|taken| taken.id == device.id)
    };
    let mut candidates: Vec<&DeviceShare> = free.iter().filter(suits).collect();
    let needed = usize::try_from(want.count).unwrap_or(usize::MAX);
    if candidates.len() < needed {
        return Err(Miss::Devices {
            class: want.class.clone(),
            milli: want.milli,
            want: want.count,
            have: u32::try_from(candidates.len()).unwrap_or(u32::MAX),
        });
    }
    // Stable: equal remainders keep the order of ids.
    candidates.sort_by_key(|device| device.milli);
    picked.extend(
        candidates
            .into_iter()
            .take(needed)
            .map(|device| DeviceShare {
                id: device.id.clone(),
                class: device.class.clone(),
                milli: want.milli,
            }),
    );
    debug_assert!(picked.len() >= already, "picking never takes away");
    Ok(())
}

/// Carves up to `most` tasks of `shape` out of `free`: the sum of their names and how many.
///
/// The same picks, in the same order, as calling [`fit`] and subtracting, task after task.
#[must_use]
pub fn carve(shape: &Shape, free: &Resources, most: u32) -> (Resources, u32) {
    let mut left = free.clone();
    let mut sum = Resources::default();
    let mut count: u32 = 0;
    // Without names every task takes the same: divide instead of looping.
    if shape.cores == 0 && shape.devices.is_empty() {
        let count = how_many(shape, free, most);
        let times = u64::from(count);
        let sum = Resources {
            cpu: MilliCpu(shape.cpu.0.saturating_mul(times)),
            memory: Bytes(shape.memory.0.saturating_mul(times)),
            disk: Bytes(shape.disk.0.saturating_mul(times)),
            ..Resources::default()
        };
        return (sum, count);
    }
    while count < most {
        let Ok(task) = fit(shape, &left) else { break };
        if left.subtract(&task).is_err() {
            break;
        }
        sum.add(&task);
        count = count.saturating_add(1);
    }
    (sum, count)
}

/// How many tasks of a shape without names fit, `most` at the most.
fn how_many(shape: &Shape, free: &Resources, most: u32) -> u32 {
    let by = |want: u64, have: u64| have.checked_div(want).unwrap_or(u64::MAX);
    let count = by(shape.cpu.0, free.cpu.0)
        .min(by(shape.memory.0, free.memory.0))
        .min(by(shape.disk.0, free.disk.0))
        .min(u64::from(most));
    u32::try_from(count).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::DeviceId;

    fn gpu(id: &str, milli: u32) -> DeviceShare {
        DeviceShare {
            id: DeviceId::new(id).expect("an id"),
            class: ClassPath::new("gpu/t4").expect("a class"),
            milli,
        }
    }

    fn wants(count: u32, milli: u32) -> Shape {
        let class = ClassPath::new("gpu").expect("a class");
        Shape {
            cpu: MilliCpu(500),
            devices: vec![DeviceWant {
                class,
                count,
                milli,
            }],
            ..Shape::default()
        }
    }

    fn machine(devices: Vec<DeviceShare>) -> Resources {
        Resources {
            cpu: MilliCpu(4000),
            devices,
            ..Resources::default()
        }
    }

    #[test]
    fn a_share_goes_to_the_fullest_device_that_still_has_room() {
        let free = machine(vec![gpu("a", 1000), gpu("b", 500), gpu("c", 300)]);
        let task = fit(&wants(1, 400), &free).expect("fits");
        assert_eq!(task.devices, [gpu("b", 400)]);
    }

    #[test]
    fn whole_devices_never_come_from_shared_ones() {
        let free = machine(vec![gpu("a", 1000), gpu("b", 999)]);
        let miss = fit(&wants(2, 1000), &free).expect_err("one is shared");
        assert_eq!(miss.to_string(), "want 2 gpu, have 1");
    }

    #[test]
    fn carving_equals_fitting_task_after_task() {
        let free = machine(vec![gpu("a", 1000), gpu("b", 900)]);
        let shape = wants(1, 300);
        let (sum, count) = carve(&shape, &free, 100);

        let mut left = free.clone();
        let mut again = Resources::default();
        let mut tasks = 0;
        while let Ok(task) = fit(&shape, &left) {
            left.subtract(&task).expect("it was free");
            again.add(&task);
            tasks += 1;
        }
        assert_eq!((sum, count), (again, tasks));
        assert_eq!(count, 6);
    }
}
