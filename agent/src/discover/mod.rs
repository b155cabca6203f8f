//! What this machine has, read from root paths, so that a directory tree can be a machine.
//!
//! The shell calls [`discover`] at start and again when it wants to know what changed. The answer
//! is plain data, honest about what this process may really use: CPUs outside its affinity mask and
//! memory above its cgroup's limit are not reported. A missing file has a defined meaning each and
//! is never an error unless without it nothing can be said. It does not know that a broker exists,
//! and does not decide what is reserved or shared.

use std::path::{Path, PathBuf};

pub mod cpu;
pub mod disk;
pub mod lock;
pub mod memory;
pub mod part;
pub mod separate;

/// Where the kernel's files are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Roots {
    /// `/sys`.
    pub sysfs: PathBuf,
    /// `/proc`.
    pub procfs: PathBuf,
}

impl Default for Roots {
    fn default() -> Self {
        Self {
            sysfs: "/sys".into(),
            procfs: "/proc".into(),
        }
    }
}

impl Roots {
    /// Whether these are the running kernel's own files: only then do this process's affinity and
    /// cgroup say anything about them.
    #[must_use]
    pub fn live(&self) -> bool {
        *self == Self::default()
    }
}

/// One online logical CPU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Core {
    /// The kernel's number of the logical CPU.
    pub cpu: u32,
    /// NUMA node; `None` where the kernel names none.
    pub numa_node: Option<u32>,
    /// Physical package (socket).
    pub package: u32,
    /// Die in the package; 0 where the kernel names none.
    pub die: u32,
    /// Physical core, unique only within its package and die.
    pub core: u32,
    /// All online logical CPUs of the same physical core, itself included, ascending.
    pub siblings: Vec<u32>,
    /// On the kernel's list of isolated CPUs.
    pub isolated: bool,
}

/// Memory of one NUMA node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NodeMemory {
    /// NUMA node.
    pub node: u32,
    /// Bytes in all.
    pub total_bytes: u64,
}

/// Memory of the machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Memory {
    /// Installed, as the kernel counts it, bytes.
    pub machine_bytes: u64,
    /// What this process may use: the machine's, or a lower limit of its cgroup.
    pub usable_bytes: u64,
    /// By NUMA node, ascending; empty where the kernel names none.
    pub nodes: Vec<NodeMemory>,
}

/// The file system that holds the state directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Disk {
    /// Size, bytes.
    pub total_bytes: u64,
    /// Free for this user, bytes.
    pub available_bytes: u64,
}

/// What this machine has and this agent may use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Inventory {
    /// Usable online CPUs, ascending.
    pub cores: Vec<Core>,
    /// How many CPUs are online on the machine, usable or not.
    pub online_cpus: u32,
    /// Memory.
    pub memory: Memory,
    /// Disk of the state directory.
    pub disk: Disk,
    /// Name of the host.
    pub hostname: String,
    /// Changes with each boot, lower-case uuid text.
    pub boot_id: String,
}

/// Why a machine could not be described.
#[derive(Debug, thiserror::Error)]
pub enum DiscoverError {
    /// A file without which nothing can be said.
    #[error("read {path}: {source}; is it the root of a {kind}?")]
    Read {
        /// Which file.
        path: PathBuf,
        /// "sysfs" or "procfs".
        kind: &'static str,
        /// What the kernel said.
        #[source]
        source: std::io::Error,
    },
    /// A file with content that has no meaning.
    #[error("{path} holds {found:?}, expected {expected}")]
    Content {
        /// Which file.
        path: PathBuf,
        /// What is there, shortened.
        found: String,
        /// What should be.
        expected: &'static str,
    },
    /// No CPU is left that this process may use.
    #[error("none of the online CPUs {online} is in this process's affinity mask {allowed}")]
    NoCpu {
        /// Online, as ranges.
        online: String,
        /// Allowed, as ranges.
        allowed: String,
    },
}

/// Describes the machine below `roots`, with the disk that holds `state_directory`.
///
/// # Errors
/// A file without which nothing can be said is missing or without meaning.
pub fn discover(roots: &Roots, state_directory: &Path) -> Result<Inventory, DiscoverError> {
    let allowed = if roots.live() { cpu::allowed() } else { None };
    let cpus = cpu::read(&roots.sysfs, allowed.as_ref())?;
    Ok(Inventory {
        online_cpus: u32::try_from(cpus.online.len()).unwrap_or(u32::MAX),
        cores: cpus.cores,
        memory: memory::read(&roots.procfs, &roots.sysfs, roots.live())?,
        disk: disk::read(state_directory)?,
        hostname: text(&roots.procfs.join("sys/kernel/hostname"))?,
        boot_id: boot_id(&roots.procfs)?,
    })
}

/// The id of this boot, lower-case uuid text.
///
/// # Errors
/// The file is missing or empty.
pub fn boot_id(procfs: &Path) -> Result<String, DiscoverError> {
    text(&procfs.join("sys/kernel/random/boot_id"))
}

fn text(path: &Path) -> Result<String, DiscoverError> {
    let content = std::fs::read_to_string(path).map_err(|source| DiscoverError::Read {
        path: path.to_owned(),
        kind: "procfs",
        source,
    })?;
    let content = content.trim();
    if content.is_empty() || content.len() > 255 {
        return Err(DiscoverError::Content {
            path: path.to_owned(),
            found: content.chars().take(40).collect(),
            expected: "one short line",
        });
    }
    Ok(content.to_owned())
}
