//! From a grant to the kernel: control groups of either version behind the same verbs.
//!
//! The runtime asks [`Isolation`] for a [`Leaf`] with [`Limits`]; the shim enters it, kills it and
//! reads its counters. Which hierarchy serves which controller is decided for each controller from
//! mountinfo, never from path names, so a hybrid host uses both versions for one task. What the
//! host cannot enforce is said, per kind, in [`Isolation::enforcement`]; nothing is dropped
//! silently.
//!
//! No directory outside `<cgroup root>/mete/<agent>` is ever written, moved or removed, with two
//! exceptions on v2: controllers are switched on along the path from the root down, and an agent
//! that is alone in an inner node moves itself into a leaf there, since an inner node may hold no
//! process. Who owns a task is not known here. `<agent>` is what the caller names the agent by,
//! unlike any other on this machine.
//!
//! ```text
//! <cgroup root>/mete/<agent>/     "top": carries the agent's part of the machine as limits
//!     shims/                      v2 only: where the shims live
//!     shared/                     v1 cpuset only: the one directory of all shared tasks
//!     <group>/<run>/              the leaf of one run; CPU weight on <group>, the rest on <run>
//! ```

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

mod facts;
mod files;
mod isolation;
mod limits;
mod mounts;
#[cfg(test)]
mod tests;
mod v1;
mod v2;

pub use self::facts::{Facts, OutOfMemory};
pub use self::files::{CgroupFiles, KernelFiles};
pub use self::isolation::{Enforcement, EnforcementLevel, Isolation};
pub use self::limits::{Difference, LEAST_MEMORY, Limits, PartLimits};
pub use self::mounts::{Hierarchies, Home};
pub use self::v1::V1;
pub use self::v2::V2;

/// A kernel controller that mete uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Controller {
    /// Weight and quota.
    Cpu,
    /// CPU time used (v1; on v2 it is part of `cpu` and always counted).
    Cpuacct,
    /// Which CPUs and memory nodes.
    Cpuset,
    /// Memory limit and peak.
    Memory,
    /// Number of processes and threads.
    Pids,
    /// Freezing, for a kill without gaps (v1; on v2 every group can be frozen).
    Freezer,
}

impl Controller {
    /// All of them.
    pub const ALL: [Self; 6] = [
        Self::Cpu,
        Self::Cpuacct,
        Self::Cpuset,
        Self::Memory,
        Self::Pids,
        Self::Freezer,
    ];

    /// The kernel's name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Cpu => "cpu",
            Self::Cpuacct => "cpuacct",
            Self::Cpuset => "cpuset",
            Self::Memory => "memory",
            Self::Pids => "pids",
            Self::Freezer => "freezer",
        }
    }

    /// The controller of this kernel name, if mete uses it.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL
            .into_iter()
            .find(|controller| controller.name() == name)
    }
}

/// The directory of a leaf in one v1 hierarchy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeafV1 {
    /// Where.
    pub directory: PathBuf,
    /// False: shared with other tasks; entered, never killed, read or removed.
    pub owned: bool,
}

/// The control groups of one run, by path. Empty on a host without usable ones.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Leaf {
    /// In the v2 tree.
    pub v2: Option<PathBuf>,
    /// In each v1 hierarchy.
    pub v1: BTreeMap<Controller, LeafV1>,
}

impl Leaf {
    /// Whether the host gave nothing at all.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.v2.is_none() && self.v1.is_empty()
    }

    /// Whether processes can be found, counted and killed through it.
    #[must_use]
    pub fn tracks(&self) -> bool {
        self.v2.is_some() || self.v1.values().any(|leaf| leaf.owned)
    }

    /// The distinct v1 directories of its own: two controllers of one mount share theirs.
    #[must_use]
    pub fn owned_v1(&self) -> Vec<&Path> {
        self.distinct(|leaf| leaf.owned)
    }

    /// The distinct v1 directories to enter.
    #[must_use]
    pub fn entered_v1(&self) -> Vec<&Path> {
        self.distinct(|_| true)
    }

    fn distinct(&self, wanted: impl Fn(&LeafV1) -> bool) -> Vec<&Path> {
        let mut directories: Vec<&Path> = self
            .v1
            .values()
            .filter(|leaf| wanted(leaf))
            .map(|leaf| leaf.directory.as_path())
            .collect();
        directories.sort_unstable();
        directories.dedup();
        directories
    }
}

/// Names of a leaf below the agent's top; each one directory name.
#[derive(Debug, Clone, Copy)]
pub struct LeafName<'a> {
    /// The task group.
    pub group: &'a str,
    /// The run in it.
    pub run: &'a str,
}

/// The verbs, the same for both versions. Each touches only what its version holds of a leaf.
pub trait Cgroups: std::fmt::Debug + Send + Sync {
    /// What it serves here.
    fn controllers(&self) -> Vec<Controller>;

    /// Makes the agent's top directories, with `part` as their limits. Harmless when repeated.
    ///
    /// # Errors
    /// The first write that the kernel refused.
    fn prepare_top(&self, part: &PartLimits) -> Result<(), IsolateError>;

    /// Makes the group and leaf directories, writes `limits`, reads them back, and adds the
    /// directories to `leaf`.
    ///
    /// # Errors
    /// The first write refused, or the first value that reads back different.
    fn create(
        &self,
        name: LeafName<'_>,
        limits: &Limits,
        leaf: &mut Leaf,
    ) -> Result<(), IsolateError>;

    /// What the kernel holds that is not what `limits` say.
    ///
    /// # Errors
    /// A file that should be there cannot be read.
    fn differences(&self, leaf: &Leaf, limits: &Limits) -> Result<Vec<Difference>, IsolateError>;

    /// Moves the calling, single-threaded process in.
    ///
    /// # Errors
    /// The hierarchy that refused.
    fn enter(&self, leaf: &Leaf) -> Result<(), IsolateError>;

    /// Sends SIGKILL to every process in the leaf. One pass: repeat until [`Cgroups::populated`]
    /// says no.
    ///
    /// # Errors
    /// A control file that should be there cannot be used.
    fn kill(&self, leaf: &Leaf) -> Result<(), IsolateError>;

    /// Whether any process is in the leaf; `None` if this version does not track it.
    ///
    /// # Errors
    /// A control file that should be there cannot be read.
    fn populated(&self, leaf: &Leaf) -> Result<Option<bool>, IsolateError>;

    /// The processes in the leaf; `None` if this version does not track it.
    ///
    /// # Errors
    /// A control file that should be there cannot be read.
    fn processes(&self, leaf: &Leaf) -> Result<Option<Vec<u32>>, IsolateError>;

    /// Adds what the kernel counted to `facts`. A counter this kernel lacks stays as it is.
    fn read_facts(&self, leaf: &Leaf, facts: &mut Facts);

    /// Removes the leaf's own directories, and the group's if it is then empty. A directory that is
    /// not there counts as removed.
    ///
    /// # Errors
    /// The kernel says it is busy: try again.
    fn remove(&self, leaf: &Leaf) -> Result<(), IsolateError>;
}

/// What the kernel would not do.
#[derive(Debug, thiserror::Error)]
pub enum IsolateError {
    /// One file or directory operation.
    #[error("{what} {path}: {source}")]
    Io {
        /// "write 5 to", "make", "remove", "read".
        what: String,
        /// Where.
        path: PathBuf,
        /// What the kernel said.
        #[source]
        source: std::io::Error,
    },
    /// A limit that reads back different from what was written.
    #[error("{0}; another program manages this cgroup, or the kernel cannot enforce it")]
    NotTaken(Difference),
    /// A name that would leave the agent's directory.
    #[error("{name:?} cannot be the name of a cgroup: one to 255 bytes, no slash, no leading dot")]
    Name {
        /// As given.
        name: String,
    },
}

impl IsolateError {
    /// Whether the kernel said "busy", which passes.
    #[must_use]
    pub fn is_busy(&self) -> bool {
        match self {
            Self::Io { source, .. } => source.kind() == std::io::ErrorKind::ResourceBusy,
            Self::NotTaken(_) | Self::Name { .. } => false,
        }
    }

    /// Whether something that should be there is not.
    #[must_use]
    pub fn is_missing(&self) -> bool {
        match self {
            Self::Io { source, .. } => source.kind() == std::io::ErrorKind::NotFound,
            Self::NotTaken(_) | Self::Name { .. } => false,
        }
    }
}

/// Refuses a name that is not exactly one directory below its parent.
pub(crate) fn check_name(name: &str) -> Result<(), IsolateError> {
    let fits = !name.is_empty() && name.len() <= 255;
    if fits && !name.starts_with('.') && !name.contains(['/', '\0', '\n']) {
        Ok(())
    } else {
        Err(IsolateError::Name {
            name: name.to_owned(),
        })
    }
}
