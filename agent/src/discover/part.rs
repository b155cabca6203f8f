//! Several agents on one machine: each says which part it was given, and no two parts may meet.
//!
//! The parts are small text files beside each other, one for each agent, locked for as long as the
//! agent lives: a file whose lock is free belongs to nobody any more. One more lock orders those
//! who look and write. Agents of different users do not see each other's parts.

use std::collections::BTreeSet;
use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{Read, Seek, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};

use super::Inventory;
use super::cpu::{format_list, parse_list};

/// The smallest part of a machine: milli-CPUs.
pub const LEAST_CPU_MILLI: u64 = 10;
/// The smallest part of a machine: bytes.
pub const LEAST_MEMORY_BYTES: u64 = 64 << 20;

/// What one agent was given of its machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Part {
    /// All of it (less what is reserved): stands alone.
    Whole,
    /// So much of the shared CPUs and memory (`--share 500m,1GiB`).
    Share {
        /// Milli-CPUs.
        cpu_milli: u64,
        /// Bytes.
        memory_bytes: u64,
    },
    /// Exactly these CPUs (`--cpus 2-3 --memory 4GiB`).
    Set {
        /// Logical CPUs.
        cpus: BTreeSet<u32>,
        /// Bytes.
        memory_bytes: u64,
    },
}

impl Part {
    fn cpu_milli(&self, machine: u64) -> u64 {
        match self {
            Self::Whole => machine,
            Self::Share { cpu_milli, .. } => *cpu_milli,
            Self::Set { cpus, .. } => u64::try_from(cpus.len())
                .unwrap_or(u64::MAX)
                .saturating_mul(1000),
        }
    }

    fn memory_bytes(&self, machine: u64) -> u64 {
        match self {
            Self::Whole => machine,
            Self::Share { memory_bytes, .. } | Self::Set { memory_bytes, .. } => *memory_bytes,
        }
    }

    fn encode(&self, agent: &str) -> String {
        let pid = std::process::id();
        let part = match self {
            Self::Whole => "whole".to_owned(),
            Self::Share {
                cpu_milli,
                memory_bytes,
            } => {
                format!("share cpu_milli={cpu_milli} memory_bytes={memory_bytes}")
            }
            Self::Set { cpus, memory_bytes } => {
                format!("set cpus={} memory_bytes={memory_bytes}", format_list(cpus))
            }
        };
        format!("1 agent={agent} pid={pid} {part}\n")
    }

    fn decode(text: &str) -> Option<Self> {
        let mut words = text.split_whitespace();
        if words.next()? != "1" {
            return None;
        }
        let rest: Vec<&str> = words.collect();
        let value = |key: &str| {
            rest.iter()
                .find_map(|word| word.strip_prefix(key)?.strip_prefix('='))
        };
        if rest.contains(&"whole") {
            Some(Self::Whole)
        } else if rest.contains(&"share") {
            Some(Self::Share {
                cpu_milli: value("cpu_milli")?.parse().ok()?,
                memory_bytes: value("memory_bytes")?.parse().ok()?,
            })
        } else if rest.contains(&"set") {
            Some(Self::Set {
                cpus: parse_list(value("cpus")?).ok()?,
                memory_bytes: value("memory_bytes")?.parse().ok()?,
            })
        } else {
            None
        }
    }
}

/// Why a part cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum PartError {
    /// Another agent has the whole machine, or this one wants it beside others.
    #[error(
        "agent {other} already runs on this machine and {reason}; give each agent its part with \
         --share CPUS,MEMORY or --cpus SET --memory N"
    )]
    NotAlone {
        /// The other agent.
        other: String,
        /// Which of the two wants all.
        reason: &'static str,
    },
    /// It would not be the name of one file. Who starts agents has checked that before.
    #[error("{agent:?} cannot be the name of an agent: it names a file; choose another --name")]
    Name {
        /// The name.
        agent: String,
    },
    /// The same name twice.
    #[error("an agent named {agent} already runs on this machine; choose another --name")]
    SameName {
        /// The name.
        agent: String,
    },
    /// Two sets meet.
    #[error("cpus {cpus} were already given to agent {other}; choose others")]
    Overlap {
        /// Those in both.
        cpus: String,
        /// Who has them.
        other: String,
    },
    /// The sum is above the machine.
    #[error(
        "the agents of this machine would have {asked} of {machine} {kind}, {others} of them \
         given to others; ask for at most {left}"
    )]
    Above {
        /// "milli-CPUs" or "bytes of memory".
        kind: &'static str,
        /// All parts together.
        asked: u64,
        /// What is there.
        machine: u64,
        /// Given to others.
        others: u64,
        /// What could be asked for.
        left: u64,
    },
    /// Below the least, or not on this machine.
    #[error("{what}; the smallest part is 10m CPU and 64 MiB, on CPUs that are online: {online}")]
    Invalid {
        /// What is wrong.
        what: String,
        /// The CPUs there are.
        online: String,
    },
    /// The registry cannot be used.
    #[error("{what} {path}: {source}")]
    Io {
        /// What was tried.
        what: &'static str,
        /// On what.
        path: PathBuf,
        /// What the kernel said.
        #[source]
        source: std::io::Error,
    },
}

/// An agent's entry; dropping it gives the part back.
#[derive(Debug)]
pub struct PartClaim {
    _file: File,
    path: PathBuf,
}

impl Drop for PartClaim {
    fn drop(&mut self) {
        // The lock goes with the file; the name is only tidied up.
        let _left = std::fs::remove_file(&self.path);
    }
}

/// Where the agents of this user on this machine keep what they share while the machine is up:
/// below `/run/mete` for root, else the user's runtime directory, else a private directory in
/// `/tmp`.
#[must_use]
pub fn runtime_directory() -> PathBuf {
    let uid = rustix::process::geteuid().as_raw();
    if uid == 0 {
        return PathBuf::from("/run/mete");
    }
    match std::env::var_os("XDG_RUNTIME_DIR").filter(|path| !path.is_empty()) {
        Some(path) => PathBuf::from(path).join("mete"),
        None => PathBuf::from(format!("/tmp/mete-{uid}")),
    }
}

/// Where one agent keeps the records of its runs below a [`runtime_directory`], apart from the
/// parts.
#[must_use]
pub fn run_directory(runtime_directory: &Path, agent: &str) -> PathBuf {
    runtime_directory.join("agents").join(agent)
}

/// The same for a host whose runtime directory is on a disk, as in many containers: in memory if
/// there is such a place that is private to this user.
///
/// Each run makes and removes half a dozen small files there, which a disk's file system is slow at
/// (measured with ext4 at a few hundred starts: more than all the rest of a start). What is there
/// already from an earlier agent process is never left for another place.
#[must_use]
pub fn run_directory_in_memory(runtime_directory: &Path, agent: &str) -> PathBuf {
    let usual = run_directory(runtime_directory, agent);
    let used = std::fs::read_dir(&usual).is_ok_and(|mut entries| entries.next().is_some());
    if used || is_in_memory(runtime_directory) {
        return usual;
    }
    private_memory().map_or(usual, |private| run_directory(&private, agent))
}

/// The run directories, as of [`run_directory`], that are below a runtime directory.
///
/// # Errors
/// The directory is there and cannot be read.
pub fn run_directories(runtime_directory: &Path) -> std::io::Result<Vec<PathBuf>> {
    let entries = match std::fs::read_dir(runtime_directory.join("agents")) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let mut found = Vec::new();
    for entry in entries {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            found.push(entry.path());
        }
    }
    Ok(found)
}

const SHARED_MEMORY: &str = "/dev/shm";

/// A directory in memory that is private to this user, if this host has such a place.
pub(super) fn private_memory() -> Option<PathBuf> {
    let shared = Path::new(SHARED_MEMORY);
    let uid = rustix::process::geteuid().as_raw();
    let private = shared.join(format!("mete-{uid}"));
    (is_in_memory(shared) && private_directory(&private).is_ok()).then_some(private)
}

/// Whether `path`, or the nearest directory above it that is there, is on a tmpfs.
#[must_use]
pub fn is_in_memory(path: &Path) -> bool {
    /// As in statfs(2).
    const TMPFS: u64 = 0x0102_1994;
    let there = path.ancestors().find(|above| above.is_dir());
    there
        .and_then(|above| rustix::fs::statfs(above).ok())
        .is_some_and(|found| u64::try_from(found.f_type) == Ok(TMPFS))
}

/// Makes `directory` private to this user, or refuses one that is somebody else's.
///
/// # Errors
/// It cannot be made, or is not a directory of this user.
pub fn private_directory(directory: &Path) -> std::io::Result<()> {
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(directory)?;
    let found = std::fs::symlink_metadata(directory)?;
    let own = found.uid() == rustix::process::geteuid().as_raw();
    if found.is_dir() && own && found.mode() & 0o022 == 0 {
        return Ok(());
    }
    let text = "is not a directory that only this user may write";
    Err(std::io::Error::new(
        std::io::ErrorKind::PermissionDenied,
        text,
    ))
}

/// Takes `part` of the machine for `agent`, if it meets no other's.
///
/// # Errors
/// The part is too small, not on this machine, or meets the part of another running agent.
pub fn claim(
    directory: &Path,
    agent: &str,
    part: &Part,
    machine: &Inventory,
) -> Result<PartClaim, PartError> {
    check(part, machine)?;
    if crate::isolate::check_name(agent).is_err() {
        return Err(PartError::Name {
            agent: agent.to_owned(),
        });
    }
    let parts = directory.join("parts");
    let io = |what, path: &Path| {
        let path = path.to_owned();
        move |source| PartError::Io { what, path, source }
    };
    private_directory(directory).map_err(io("use", directory))?;
    private_directory(&parts).map_err(io("use", &parts))?;
    let order = directory.join("parts.lock");
    let gate = open(&order).map_err(io("open", &order))?;
    flock(&gate, FlockOperation::LockExclusive)
        .map_err(|errno| io("lock", &order)(errno.into()))?;

    let path = parts.join(agent);
    let mut others = Vec::new();
    for entry in std::fs::read_dir(&parts).map_err(io("read", &parts))? {
        let entry = entry.map_err(io("read", &parts))?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if let Some(other) = living(&entry.path()).map_err(io("read", &entry.path()))? {
            if name == agent {
                return Err(PartError::SameName { agent: name });
            }
            others.push((name, other));
        }
    }
    compare(part, &others, machine)?;

    let mut file = open(&path).map_err(io("open", &path))?;
    flock(&file, FlockOperation::NonBlockingLockExclusive)
        .map_err(|errno| io("lock", &path)(errno.into()))?;
    file.set_len(0)
        .and_then(|()| file.rewind())
        .and_then(|()| file.write_all(part.encode(agent).as_bytes()))
        .map_err(io("write", &path))?;
    Ok(PartClaim { _file: file, path })
}

fn open(path: &Path) -> std::io::Result<File> {
    OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(path)
}

/// The part in a file that some process holds; a file that nobody holds is removed.
fn living(path: &Path) -> std::io::Result<Option<Part>> {
    let file = OpenOptions::new().read(true).open(path)?;
    if flock(&file, FlockOperation::NonBlockingLockShared).is_ok() {
        std::fs::remove_file(path)?;
        return Ok(None);
    }
    let mut text = String::new();
    (&file).take(100_000).read_to_string(&mut text)?;
    // A newer agent's form that we cannot read: nothing is safe beside it.
    Ok(Some(Part::decode(&text).unwrap_or(Part::Whole)))
}

fn check(part: &Part, machine: &Inventory) -> Result<(), PartError> {
    let online: BTreeSet<u32> = machine.cores.iter().map(|core| core.cpu).collect();
    let invalid = |what: String| PartError::Invalid {
        what,
        online: format_list(&online),
    };
    match part {
        Part::Whole => return Ok(()),
        Part::Share { cpu_milli, .. } => {
            if *cpu_milli < LEAST_CPU_MILLI {
                return Err(invalid(format!("a share of {cpu_milli}m CPU is too small")));
            }
        }
        Part::Set { cpus, .. } => {
            let strange: BTreeSet<u32> = cpus.difference(&online).copied().collect();
            if !strange.is_empty() {
                return Err(invalid(format!(
                    "cpus {} are not online",
                    format_list(&strange)
                )));
            }
            if cpus.is_empty() {
                return Err(invalid("the set of CPUs is empty".to_owned()));
            }
        }
    }
    let memory = part.memory_bytes(0);
    if memory < LEAST_MEMORY_BYTES {
        return Err(invalid(format!("{memory} bytes of memory are too small")));
    }
    Ok(())
}

fn compare(part: &Part, others: &[(String, Part)], machine: &Inventory) -> Result<(), PartError> {
    for (other, theirs) in others {
        if *theirs == Part::Whole || *part == Part::Whole {
            let reason = if *theirs == Part::Whole {
                "offers all of it"
            } else {
                "this one would offer all of it"
            };
            return Err(PartError::NotAlone {
                other: other.clone(),
                reason,
            });
        }
        if let (Part::Set { cpus, .. }, Part::Set { cpus: theirs, .. }) = (part, theirs) {
            let both: BTreeSet<u32> = cpus.intersection(theirs).copied().collect();
            if !both.is_empty() {
                let cpus = format_list(&both);
                return Err(PartError::Overlap {
                    cpus,
                    other: other.clone(),
                });
            }
        }
    }
    let cpus = u64::try_from(machine.cores.len())
        .unwrap_or(u64::MAX)
        .saturating_mul(1000);
    let memory = machine.memory.usable_bytes;
    let given = |of: &dyn Fn(&Part) -> u64| {
        others
            .iter()
            .fold(0_u64, |sum, (_, part)| sum.saturating_add(of(part)))
    };
    for (kind, machine, own, others) in [
        (
            "milli-CPUs",
            cpus,
            part.cpu_milli(cpus),
            given(&|part| part.cpu_milli(cpus)),
        ),
        (
            "bytes of memory",
            memory,
            part.memory_bytes(memory),
            given(&|part| part.memory_bytes(memory)),
        ),
    ] {
        let asked = own.saturating_add(others);
        if asked > machine {
            let left = machine.saturating_sub(others);
            return Err(PartError::Above {
                kind,
                asked,
                machine,
                others,
                left,
            });
        }
    }
    Ok(())
}
