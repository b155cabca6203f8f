//! What a run may have, as the files of each cgroup version.

use std::fmt;
use std::path::{Path, PathBuf};

use super::files::{self, CgroupFiles};
use super::{Controller, IsolateError};

/// The period of CPU quota, microseconds.
const PERIOD_US: u64 = 100_000;
/// The kernel refuses a quota below 1 ms, which is 10 mCPU of the period.
const LEAST_QUOTA_MILLI: u64 = 10;

/// No process comes into being with less memory, bytes: its stack, tables and first pages are
/// charged to it (measured on x86-64: the smallest program of a C library fails at 384 KiB).
pub const LEAST_MEMORY: u64 = 512 << 10;

/// What the kernel is to enforce for one run.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Limits {
    /// Share of contended CPU, milli-CPUs; 0 takes the kernel's least.
    pub cpu_milli: u64,
    /// Most CPU time per time, milli-CPUs. Never together with `cores`.
    pub cpu_limit_milli: Option<u64>,
    /// Most memory, bytes; rounded up to whole pages.
    pub memory_bytes: Option<u64>,
    /// Most processes and threads.
    pub pids: Option<u64>,
    /// Named logical CPUs; empty: the shared set.
    pub cores: Vec<u32>,
}

/// The part of the machine that one of several agents was given; limits of its top directory.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PartLimits {
    /// Most CPU time per time for everything on this agent. Never together with `cores`.
    pub cpu_milli: Option<u64>,
    /// Only these logical CPUs; empty: all.
    pub cores: Vec<u32>,
    /// Most memory, bytes.
    pub memory_bytes: Option<u64>,
}

/// A control file that does not hold what it should.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Difference {
    /// Which.
    pub path: PathBuf,
    /// What was wanted.
    pub wanted: String,
    /// What is there.
    pub found: String,
}

impl fmt::Display for Difference {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            path,
            wanted,
            found,
        } = self;
        write!(
            formatter,
            "{} holds {found:?} where {wanted:?} was written",
            path.display()
        )
    }
}

/// One file and what it is to hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Setting {
    pub(super) controller: Controller,
    pub(super) file: &'static str,
    pub(super) value: String,
    /// Absent on some kernels without harm.
    pub(super) optional: bool,
}

impl Setting {
    fn new(controller: Controller, file: &'static str, value: impl Into<String>) -> Self {
        Self {
            controller,
            file,
            value: value.into(),
            optional: false,
        }
    }

    fn optional(controller: Controller, file: &'static str, value: impl Into<String>) -> Self {
        Self {
            optional: true,
            ..Self::new(controller, file, value)
        }
    }
}

/// `cpu.shares`: 1 core = 1024.
pub(super) fn shares(cpu_milli: u64) -> u64 {
    (u128::from(cpu_milli) * 1024 / 1000)
        .clamp(2, 262_144)
        .try_into()
        .unwrap_or(262_144)
}

/// `cpu.weight`: 1 core = 100.
pub(super) fn weight(cpu_milli: u64) -> u64 {
    (cpu_milli / 10).clamp(1, 10_000)
}

/// CPU time per period, microseconds.
pub(super) fn quota_us(cpu_milli: u64) -> u64 {
    cpu_milli
        .max(LEAST_QUOTA_MILLI)
        .saturating_mul(PERIOD_US / 1000)
}

/// CPU numbers as the kernel writes them: "0-3,8".
#[must_use]
pub(super) fn ranges(cores: &[u32]) -> String {
    crate::discover::cpu::format_list(cores)
}

fn whole_pages(bytes: u64) -> u64 {
    let page = u64::try_from(rustix::param::page_size()).unwrap_or(4096);
    bytes.div_ceil(page).saturating_mul(page)
}

/// What a v1 leaf is to hold. The weight is on its group.
pub(super) fn leaf_v1(limits: &Limits) -> Vec<Setting> {
    let mut settings = Vec::new();
    if let Some(limit) = limits.cpu_limit_milli.filter(|_| limits.cores.is_empty()) {
        settings.push(Setting::new(
            Controller::Cpu,
            "cpu.cfs_period_us",
            PERIOD_US.to_string(),
        ));
        let quota = quota_us(limit).to_string();
        settings.push(Setting::new(Controller::Cpu, "cpu.cfs_quota_us", quota));
    }
    settings.extend(memory_v1(limits.memory_bytes));
    settings.extend(pids(limits.pids));
    if !limits.cores.is_empty() {
        let cores = ranges(&limits.cores);
        settings.push(Setting::new(Controller::Cpuset, "cpuset.cpus", cores));
    }
    settings
}

/// What a v2 leaf is to hold. The weight is on its group.
pub(super) fn leaf_v2(limits: &Limits) -> Vec<Setting> {
    let mut settings = Vec::new();
    if let Some(limit) = limits.cpu_limit_milli.filter(|_| limits.cores.is_empty()) {
        let value = format!("{} {PERIOD_US}", quota_us(limit));
        settings.push(Setting::new(Controller::Cpu, "cpu.max", value));
    }
    settings.extend(memory_v2(limits.memory_bytes));
    if limits.memory_bytes.is_some() {
        settings.push(Setting::optional(
            Controller::Memory,
            "memory.oom.group",
            "1",
        ));
    }
    settings.extend(pids(limits.pids));
    if !limits.cores.is_empty() {
        let cores = ranges(&limits.cores);
        settings.push(Setting::new(Controller::Cpuset, "cpuset.cpus", cores));
    }
    settings
}

/// The weight of a v1 group.
pub(super) fn group_v1(limits: &Limits) -> Vec<Setting> {
    vec![Setting::new(
        Controller::Cpu,
        "cpu.shares",
        shares(limits.cpu_milli).to_string(),
    )]
}

/// The weight of a v2 group.
pub(super) fn group_v2(limits: &Limits) -> Vec<Setting> {
    vec![Setting::new(
        Controller::Cpu,
        "cpu.weight",
        weight(limits.cpu_milli).to_string(),
    )]
}

/// What a v1 top is to hold. Its cpuset is filled by `v1.rs`, since it may not be empty.
pub(super) fn top_v1(part: &PartLimits) -> Vec<Setting> {
    let mut settings = Vec::new();
    if let Some(limit) = part.cpu_milli.filter(|_| part.cores.is_empty()) {
        settings.push(Setting::new(
            Controller::Cpu,
            "cpu.cfs_period_us",
            PERIOD_US.to_string(),
        ));
        let quota = quota_us(limit).to_string();
        settings.push(Setting::new(Controller::Cpu, "cpu.cfs_quota_us", quota));
    }
    settings.extend(memory_v1(part.memory_bytes));
    settings
}

/// What a v2 top is to hold.
pub(super) fn top_v2(part: &PartLimits) -> Vec<Setting> {
    let mut settings = Vec::new();
    if let Some(limit) = part.cpu_milli.filter(|_| part.cores.is_empty()) {
        let value = format!("{} {PERIOD_US}", quota_us(limit));
        settings.push(Setting::new(Controller::Cpu, "cpu.max", value));
    }
    settings.extend(memory_v2(part.memory_bytes));
    if !part.cores.is_empty() {
        settings.push(Setting::new(
            Controller::Cpuset,
            "cpuset.cpus",
            ranges(&part.cores),
        ));
    }
    settings
}

fn memory_v1(bytes: Option<u64>) -> Vec<Setting> {
    let Some(bytes) = bytes.map(whole_pages) else {
        return Vec::new();
    };
    let value = bytes.to_string();
    // Memory with swap may never be below memory alone: in a new group this order raises nothing.
    vec![
        Setting::new(Controller::Memory, "memory.limit_in_bytes", value.clone()),
        Setting::optional(Controller::Memory, "memory.memsw.limit_in_bytes", value),
    ]
}

fn memory_v2(bytes: Option<u64>) -> Vec<Setting> {
    let Some(bytes) = bytes.map(whole_pages) else {
        return Vec::new();
    };
    vec![
        Setting::new(Controller::Memory, "memory.max", bytes.to_string()),
        Setting::optional(Controller::Memory, "memory.swap.max", "0"),
    ]
}

fn pids(most: Option<u64>) -> Vec<Setting> {
    most.map(|most| Setting::new(Controller::Pids, "pids.max", most.to_string()))
        .into_iter()
        .collect()
}

/// Writes one setting unless the kernel holds it already, and reads it back.
pub(super) fn apply(
    files: &dyn CgroupFiles,
    directory: &Path,
    setting: &Setting,
) -> Result<(), IsolateError> {
    let path = directory.join(setting.file);
    match difference(files, directory, setting) {
        Ok(None) => return Ok(()),
        Ok(Some(_)) => {}
        Err(error) if setting.optional && error.is_missing() => return Ok(()),
        Err(error) => return Err(error),
    }
    files::write(files, &path, &setting.value)?;
    match difference(files, directory, setting)? {
        None => Ok(()),
        Some(difference) => Err(IsolateError::NotTaken(difference)),
    }
}

/// What the kernel holds instead, if it is something else.
pub(super) fn difference(
    files: &dyn CgroupFiles,
    directory: &Path,
    setting: &Setting,
) -> Result<Option<Difference>, IsolateError> {
    let path = directory.join(setting.file);
    let found = files::read(files, &path)?.trim().to_owned();
    if found == setting.value {
        return Ok(None);
    }
    Ok(Some(Difference {
        path,
        wanted: setting.value.clone(),
        found,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_cpu_amount_up_to_256_cores_maps_monotonously_into_the_kernels_ranges() {
        let (mut share, mut relative, mut quota) = (0, 0, 0);
        for milli in 1..=256_000 {
            assert!(
                shares(milli) >= share && (2..=262_144).contains(&shares(milli)),
                "{milli}"
            );
            assert!(
                weight(milli) >= relative && (1..=10_000).contains(&weight(milli)),
                "{milli}"
            );
            assert!(
                quota_us(milli) >= quota && quota_us(milli) >= 1_000,
                "{milli}"
            );
            (share, relative, quota) = (shares(milli), weight(milli), quota_us(milli));
        }
        assert_eq!(
            (shares(1000), weight(1000), quota_us(1000)),
            (1024, 100, 100_000)
        );
    }

    #[test]
    fn amounts_beyond_every_machine_do_not_wrap() {
        assert_eq!(shares(u64::MAX), 262_144);
        assert_eq!(weight(u64::MAX), 10_000);
        assert_eq!(quota_us(u64::MAX), u64::MAX);
    }

    #[test]
    fn named_cores_never_get_a_quota() {
        let limits = Limits {
            cpu_limit_milli: Some(500),
            cores: vec![1, 2],
            ..Limits::default()
        };

        let files: Vec<_> = leaf_v1(&limits)
            .into_iter()
            .map(|setting| setting.file)
            .collect();
        assert_eq!(files, ["cpuset.cpus"]);
        let files: Vec<_> = leaf_v2(&limits)
            .into_iter()
            .map(|setting| setting.file)
            .collect();
        assert_eq!(files, ["cpuset.cpus"]);
    }
}
