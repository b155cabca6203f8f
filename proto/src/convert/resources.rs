//! Quantities and names on one agent.

use mete_model::{CpuSet, Resources};

use super::device::{read_shares, write_share};
use super::faults::{At, Faults};
use super::quantity::{read_bytes, read_cpu};
use crate::types::v1 as wire;

/// Text of a set of cores, in bytes: every second of 8192 CPUs, named one by one.
const LONGEST_CORES: usize = 32 * 1024;

/// Reads resources. An absent message is nothing at all. The cpu amount includes 1000 for each
/// named core; less is a fault.
pub fn read_resources(
    resources: Option<wire::Resources>,
    at: At<'_>,
    faults: &mut Faults,
) -> Option<Resources> {
    let resources = resources.unwrap_or_default();
    let cpu = read_cpu(resources.cpu_milli, at.field("cpu_milli"), faults);
    let memory = read_bytes(resources.memory_bytes, at.field("memory_bytes"), faults);
    let disk = read_bytes(resources.disk_bytes, at.field("disk_bytes"), faults);
    let cores = read_cores(&resources.cores, at.field("cores"), faults);
    let devices = read_shares(&resources.devices, at.field("devices"), faults);
    let read = Resources {
        cpu: cpu?,
        memory: memory?,
        disk: disk?,
        cores: cores?,
        devices: devices?,
    };
    let named = u64::from(read.cores.len()) * 1000;
    if read.cpu.0 < named {
        faults.add(
            at.field("cpu_milli"),
            format_args!(
                "{} is less than the {named} of the named cores {}",
                read.cpu.0, read.cores
            ),
        );
        return None;
    }
    Some(read)
}

fn read_cores(text: &str, at: At<'_>, faults: &mut Faults) -> Option<CpuSet> {
    if text.len() > LONGEST_CORES {
        faults.add(
            at,
            format_args!(
                "{} bytes are more than the {LONGEST_CORES} permitted",
                text.len()
            ),
        );
        return None;
    }
    text.parse().map_err(|error| faults.add(at, error)).ok()
}

/// Writes resources.
#[must_use]
pub fn write_resources(resources: &Resources) -> wire::Resources {
    wire::Resources {
        cpu_milli: resources.cpu.0,
        memory_bytes: resources.memory.0,
        disk_bytes: resources.disk.0,
        cores: resources.cores.to_string(),
        devices: resources.devices.iter().map(write_share).collect(),
    }
}
