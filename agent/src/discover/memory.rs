//! Memory of the machine, and how much of it this process may use.

use std::path::Path;

use super::{DiscoverError, Memory, NodeMemory};
use crate::isolate::{Controller, Hierarchies};

/// v1 writes "no limit" as the largest number of whole pages.
const V1_UNLIMITED: u64 = i64::MAX as u64 / 2;

/// Reads the memory below the two roots; `own_cgroup` says whether limits of this process's own
/// cgroups count (they say nothing about a fixture).
///
/// # Errors
/// `meminfo` is missing or names no total.
pub fn read(procfs: &Path, sysfs: &Path, own_cgroup: bool) -> Result<Memory, DiscoverError> {
    let path = procfs.join("meminfo");
    let text = std::fs::read_to_string(&path).map_err(|source| DiscoverError::Read {
        path: path.clone(),
        kind: "procfs",
        source,
    })?;
    let machine_bytes = total(&text).ok_or_else(|| DiscoverError::Content {
        path,
        found: text
            .lines()
            .next()
            .unwrap_or_default()
            .chars()
            .take(40)
            .collect(),
        expected: "a line such as \"MemTotal: 16384 kB\"",
    })?;
    let limit = if own_cgroup {
        cgroup_limit(procfs)
    } else {
        None
    };
    Ok(Memory {
        machine_bytes,
        usable_bytes: limit.map_or(machine_bytes, |limit| limit.min(machine_bytes)),
        nodes: nodes(sysfs),
    })
}

/// The kB number after `MemTotal:`, in a machine's or in a node's meminfo, as bytes.
fn total(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find(|line| line.contains("MemTotal:"))?;
    let (_, amount) = line.split_once("MemTotal:")?;
    let kilobytes: u64 = amount.split_whitespace().next()?.parse().ok()?;
    kilobytes.checked_mul(1024)
}

fn nodes(sysfs: &Path) -> Vec<NodeMemory> {
    let folder = sysfs.join("devices/system/node");
    super::cpu::optional_list(&folder.join("online"))
        .into_iter()
        .filter_map(|node| {
            let text = std::fs::read_to_string(folder.join(format!("node{node}/meminfo"))).ok()?;
            Some(NodeMemory {
                node,
                total_bytes: total(&text)?,
            })
        })
        .collect()
}

/// The lowest memory limit on this process, from its own cgroup up to the mount.
fn cgroup_limit(procfs: &Path) -> Option<u64> {
    let found = Hierarchies::read(procfs, None).ok()?;
    let v1 = found.v1.get(&Controller::Memory);
    let (home, file) = match v1 {
        Some(home) => (home, "memory.limit_in_bytes"),
        None => (found.v2.as_ref()?, "memory.max"),
    };
    home.base
        .ancestors()
        .take_while(|at| at.starts_with(&home.mount))
        .filter_map(|at| std::fs::read_to_string(at.join(file)).ok())
        .filter_map(|text| text.trim().parse().ok())
        .filter(|limit| *limit < V1_UNLIMITED)
        .min()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_kinds_of_meminfo_give_bytes() {
        assert_eq!(
            total("MemTotal:       16 kB\nMemFree: 1 kB\n"),
            Some(16 * 1024)
        );
        assert_eq!(total("\nNode 0 MemTotal:       32 kB\n"), Some(32 * 1024));
        assert_eq!(total("MemTotal: many kB\n"), None);
        assert_eq!(total("MemTotal: 99999999999999999999 kB\n"), None);
    }
}
