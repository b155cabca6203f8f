//! Logical CPUs and how they hang together: enumerated from sysfs, never divided.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use super::{Core, DiscoverError};

/// No machine has more; bounds what a damaged file can make us build.
const MOST_CPUS: u32 = 65_536;

/// The numbers in a kernel list: "0-3,8". Empty text is the empty list.
///
/// # Errors
/// Text without meaning; the offending piece is returned.
pub fn parse_list(text: &str) -> Result<BTreeSet<u32>, String> {
    let mut numbers = BTreeSet::new();
    for piece in text
        .trim()
        .split(',')
        .map(str::trim)
        .filter(|piece| !piece.is_empty())
    {
        let (first, last) = piece.split_once('-').unwrap_or((piece, piece));
        let (Ok(first), Ok(last)) = (first.parse::<u32>(), last.parse::<u32>()) else {
            return Err(piece.to_owned());
        };
        if first > last || last >= MOST_CPUS {
            return Err(piece.to_owned());
        }
        numbers.extend(first..=last);
    }
    Ok(numbers)
}

/// The shortest kernel list of these numbers.
#[must_use]
pub fn format_list<'a>(numbers: impl IntoIterator<Item = &'a u32>) -> String {
    let sorted: BTreeSet<u32> = numbers.into_iter().copied().collect();
    let mut pieces: Vec<String> = Vec::new();
    let mut run: Option<(u32, u32)> = None;
    let piece = |(first, last): (u32, u32)| {
        if first == last {
            first.to_string()
        } else {
            format!("{first}-{last}")
        }
    };
    for number in sorted {
        run = match run {
            Some((first, last)) if last.checked_add(1) == Some(number) => Some((first, number)),
            Some(done) => {
                pieces.push(piece(done));
                Some((number, number))
            }
            None => Some((number, number)),
        };
    }
    pieces.extend(run.map(piece));
    pieces.join(",")
}

/// The online CPUs of a machine and those of them that may be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cpus {
    /// All online.
    pub online: BTreeSet<u32>,
    /// Those in `allowed`, described.
    pub cores: Vec<Core>,
}

/// Reads the CPUs below `sysfs`. `allowed` is this process's affinity; `None` on a fixture.
///
/// # Errors
/// The list of online CPUs is missing or without meaning, or none of them is allowed.
pub fn read(sysfs: &Path, allowed: Option<&BTreeSet<u32>>) -> Result<Cpus, DiscoverError> {
    let folder = sysfs.join("devices/system/cpu");
    let online = required_list(&folder.join("online"))?;
    let isolated = optional_list(&folder.join("isolated"));
    let nodes = numa_nodes(sysfs);
    let cores: Vec<Core> = online
        .iter()
        .filter(|cpu| allowed.is_none_or(|allowed| allowed.contains(cpu)))
        .map(|cpu| core(&folder, *cpu, &online, &isolated, &nodes))
        .collect();
    if cores.is_empty() {
        return Err(DiscoverError::NoCpu {
            online: format_list(&online),
            allowed: allowed.map_or_else(String::new, format_list),
        });
    }
    Ok(Cpus { online, cores })
}

fn core(
    folder: &Path,
    cpu: u32,
    online: &BTreeSet<u32>,
    isolated: &BTreeSet<u32>,
    nodes: &BTreeMap<u32, u32>,
) -> Core {
    let topology = folder.join(format!("cpu{cpu}/topology"));
    let number = |file: &str| optional_number(&topology.join(file));
    let mut siblings = optional_list(&topology.join("thread_siblings_list"));
    if siblings.is_empty() {
        siblings = optional_list(&topology.join("core_cpus_list"));
    }
    siblings.retain(|sibling| online.contains(sibling));
    siblings.insert(cpu);
    Core {
        cpu,
        numa_node: nodes.get(&cpu).copied(),
        package: number("physical_package_id").unwrap_or(0),
        die: number("die_id").unwrap_or(0),
        // Without a core id each CPU is a core of its own.
        core: number("core_id").unwrap_or(cpu),
        siblings: siblings.into_iter().collect(),
        isolated: isolated.contains(&cpu),
    }
}

/// CPU → NUMA node. Ids may have holes; nodes without CPUs are simply not in it.
fn numa_nodes(sysfs: &Path) -> BTreeMap<u32, u32> {
    let folder = sysfs.join("devices/system/node");
    let mut nodes = BTreeMap::new();
    for node in optional_list(&folder.join("online")) {
        for cpu in optional_list(&folder.join(format!("node{node}/cpulist"))) {
            nodes.insert(cpu, node);
        }
    }
    nodes
}

fn required_list(path: &Path) -> Result<BTreeSet<u32>, DiscoverError> {
    let text = std::fs::read_to_string(path).map_err(|source| DiscoverError::Read {
        path: path.to_owned(),
        kind: "sysfs",
        source,
    })?;
    parse_list(&text).map_err(|piece| DiscoverError::Content {
        path: path.to_owned(),
        found: piece.chars().take(40).collect(),
        expected: "a list of CPUs such as 0-3,8",
    })
}

/// Missing or without meaning: empty. Used only where empty has a defined meaning.
pub(super) fn optional_list(path: &Path) -> BTreeSet<u32> {
    std::fs::read_to_string(path)
        .ok()
        .and_then(|text| parse_list(&text).ok())
        .unwrap_or_default()
}

/// Negative ids mean "unknown" to the kernel, as a missing file does.
fn optional_number(path: &Path) -> Option<u32> {
    std::fs::read_to_string(path).ok()?.trim().parse().ok()
}

/// The CPUs that this process may run on: its affinity mask, which its cpuset already cuts.
#[must_use]
pub fn allowed() -> Option<BTreeSet<u32>> {
    let mask = rustix::thread::sched_getaffinity(None).ok()?;
    let cpus = (0..rustix::thread::CpuSet::MAX_CPU).filter(|cpu| mask.is_set(*cpu));
    Some(cpus.filter_map(|cpu| u32::try_from(cpu).ok()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn lists_without_meaning_are_refused_with_the_piece_at_fault() {
        for (text, piece) in [("0-3,x", "x"), ("3-1", "3-1"), ("0-99999999", "0-99999999")] {
            assert_eq!(parse_list(text), Err(piece.to_owned()), "{text}");
        }
    }

    #[test]
    fn kernel_text_with_a_line_end_and_an_empty_file_are_lists() {
        assert_eq!(parse_list("0-1,4\n").map(|list| list.len()), Ok(3));
        assert_eq!(parse_list("\n").map(|list| list.len()), Ok(0));
    }

    proptest! {
        #[test]
        fn a_list_survives_being_written_and_read(
            numbers in prop::collection::btree_set(0_u32..5000, 0..60)
        ) {
            prop_assert_eq!(parse_list(&format_list(&numbers)), Ok(numbers));
        }
    }
}
