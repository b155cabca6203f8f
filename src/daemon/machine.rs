//! This machine among several agents, and machines that are only imagined.

use std::collections::BTreeMap;
use std::path::Path;

use mete_agent::discover::part::Part;
use mete_agent::discover::{Roots, discover};
use mete_model::device::WHOLE;
use mete_model::{
    Bytes, ClassPath, Code, Device, DeviceId, DeviceShare, Inventory, MilliCpu, Resources,
};

use crate::cli::support::error::{CliError, Outcome};

/// Memory kept back for the host at the most.
const RESERVED: u64 = 1 << 30;

/// Divides this machine among so many agents: whole cores where there are enough, else equal
/// shares.
///
/// # Errors
/// The machine cannot be described, or its parts would be too small.
pub fn divide(home: &Path, nodes: u32) -> Outcome<Vec<Part>> {
    if nodes == 0 {
        return Ok(Vec::new());
    }
    if nodes == 1 {
        return Ok(vec![Part::Whole]);
    }
    let machine = discover(&Roots::default(), home)
        .map_err(|error| CliError::new(Code::File, error.to_string()))?;
    let usable = machine.memory.usable_bytes;
    let memory = usable.saturating_sub((usable / 16).min(RESERVED)) / u64::from(nodes);
    let cpus: Vec<u32> = machine.cores.iter().map(|core| core.cpu).collect();
    let count = usize::try_from(nodes).unwrap_or(usize::MAX);
    let milli = u64::try_from(cpus.len()).unwrap_or(0).saturating_mul(1000) / u64::from(nodes);
    if milli < 10 || memory < 64 << 20 {
        let sentence = format!(
            "{nodes} agents would have {} cpu and {} each; the smallest part is 0.01 and 64 MiB",
            MilliCpu(milli),
            Bytes(memory)
        );
        return Err(CliError::new(Code::Usage, sentence).next("--fake N", "imagine agents instead"));
    }
    let each = cpus.len() / count;
    if each == 0 {
        return Ok(vec![
            Part::Share {
                cpu_milli: milli,
                memory_bytes: memory
            };
            count
        ]);
    }
    let sets = cpus.chunks(each).take(count).map(|chunk| Part::Set {
        cpus: chunk.iter().copied().collect(),
        memory_bytes: memory,
    });
    Ok(sets.collect())
}

/// A node of a simulated cluster: 16 CPUs and 64 GiB, every fourth one with four GPUs.
#[must_use]
pub fn imagined(number: u32) -> Inventory {
    let class = ClassPath::new("gpu/t4").ok();
    let devices: Vec<Device> = match class {
        Some(class) if number.is_multiple_of(4) => (0..4)
            .filter_map(|at| DeviceId::new(&format!("gpu-{at}")).ok())
            .map(|id| Device {
                id,
                class: class.clone(),
                attributes: BTreeMap::from([("memory_mib".to_owned(), "16384".to_owned())]),
                healthy: true,
            })
            .collect(),
        _ => Vec::new(),
    };
    node(MilliCpu(16_000), Bytes(64 << 30), devices)
}

/// A simulated node of this size.
#[must_use]
pub fn node(cpu: MilliCpu, memory: Bytes, devices: Vec<Device>) -> Inventory {
    let shares = devices.iter().map(|device| DeviceShare {
        id: device.id.clone(),
        class: device.class.clone(),
        milli: WHOLE,
    });
    Inventory {
        total: Resources {
            cpu,
            memory,
            disk: Bytes(1 << 40),
            cores: (0..u32::try_from(cpu.0 / 1000).unwrap_or(0)).collect(),
            devices: shares.collect(),
        },
        devices,
        boot_id: "simulated".to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        fake: true,
        topology_epoch: 1,
        ..Inventory::default()
    }
}

/// What differs from production here, in words.
#[must_use]
pub fn differences() -> &'static str {
    if rustix::process::geteuid().is_root() {
        "no encryption (loopback only)"
    } else {
        "no encryption (loopback only), no cgroup limits, cores not exclusive (not root)"
    }
}
