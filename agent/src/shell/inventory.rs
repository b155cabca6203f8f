//! What of this machine is offered: the part that is this agent's, less what is reserved.

use std::collections::BTreeSet;

use mete_model::{
    Bytes, CpuSet, DeviceShare, Enforcement, Inventory, MilliCpu, Resources, device::WHOLE,
};

use crate::config::Config;
use crate::discover::part::Part;
use crate::discover::{self, Core};
use crate::isolate::{self, EnforcementLevel};

/// Memory that is kept back for the host unless the configuration says otherwise.
const RESERVED_MEMORY: u64 = 1 << 30;

/// Describes the agent to the broker.
pub(super) fn describe(
    config: &Config,
    machine: &discover::Inventory,
    enforcement: &[isolate::Enforcement],
) -> Inventory {
    let (cpu, cores) = cpus(&config.part, machine);
    let memory = memory(config, machine);
    // A tenth stays free, so that the state of the agent itself always has room.
    let disk = machine.disk.available_bytes / 10 * 9;
    let mut devices: Vec<DeviceShare> = config
        .devices
        .iter()
        .filter(|device| device.healthy)
        .map(|device| DeviceShare {
            id: device.id.clone(),
            class: device.class.clone(),
            milli: WHOLE,
        })
        .collect();
    devices.sort();
    Inventory {
        total: Resources {
            cpu: MilliCpu(cpu),
            memory: Bytes(memory),
            disk: Bytes(disk),
            cores,
            devices,
        },
        devices: config.devices.clone(),
        labels: config.labels.clone(),
        topology_epoch: 1,
        boot_id: machine.boot_id.clone(),
        enforcement: enforcement
            .iter()
            .map(|found| (found.kind.to_owned(), level(found.level)))
            .collect(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        fake: false,
        node_address: config.node_address.clone(),
    }
}

fn level(level: EnforcementLevel) -> Enforcement {
    match level {
        EnforcementLevel::Enforced => Enforcement::Enforced,
        EnforcementLevel::AffinityOnly => Enforcement::AffinityOnly,
        EnforcementLevel::AccountedOnly => Enforcement::AccountedOnly,
    }
}

/// Milli-CPU in all, and the cores that may be named.
fn cpus(part: &Part, machine: &discover::Inventory) -> (u64, CpuSet) {
    match part {
        Part::Whole => {
            let reserved = reserved_cores(&machine.cores);
            let cores: CpuSet = machine
                .cores
                .iter()
                .map(|core| core.cpu)
                .filter(|cpu| !reserved.contains(cpu))
                .collect();
            (u64::from(cores.len()).saturating_mul(1000), cores)
        }
        Part::Share { cpu_milli, .. } => (*cpu_milli, CpuSet::new()),
        Part::Set { cpus, .. } => {
            // Only cores that are given whole, all their threads, may be named.
            let whole = |core: &&Core| core.siblings.iter().all(|cpu| cpus.contains(cpu));
            let named: CpuSet = machine
                .cores
                .iter()
                .filter(|core| cpus.contains(&core.cpu))
                .filter(whole)
                .map(|core| core.cpu)
                .collect();
            let count = u64::try_from(cpus.len()).unwrap_or(u64::MAX);
            (count.saturating_mul(1000), named)
        }
    }
}

/// None on a machine with at most two CPUs, else the first core with its siblings.
fn reserved_cores(cores: &[Core]) -> BTreeSet<u32> {
    if cores.len() <= 2 {
        return BTreeSet::new();
    }
    cores
        .first()
        .map(|core| core.siblings.iter().copied().collect())
        .unwrap_or_default()
}

fn memory(config: &Config, machine: &discover::Inventory) -> u64 {
    match &config.part {
        Part::Whole => {
            let usable = machine.memory.usable_bytes;
            let reserved = config
                .reserved_memory
                .unwrap_or_else(|| (usable / 16).min(RESERVED_MEMORY));
            usable.saturating_sub(reserved)
        }
        Part::Share { memory_bytes, .. } | Part::Set { memory_bytes, .. } => *memory_bytes,
    }
}
