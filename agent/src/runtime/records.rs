//! The directory of one run on a file system that does not outlive the boot: what agent and shim
//! leave for each other, each file written new and renamed.
//!
//! ```text
//! <run directory>/<run name>/
//!     spec      what the shim is to do (agent, before the shim starts)
//!     alive     locked for as long as the shim lives
//!     control   the shim's socket
//!     run       the run record (shim, before the gate opens)
//!     exit      the exit record (shim, when nothing is left of the run)
//!     errors    what the shim had to complain about; normally empty
//! ```

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Read};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use mete_proto::internal::v1::{
    ExitRecord, LeafFacts, RunRecord, ShimCgroupV1, ShimCgroups, ShimSpec, exit_record,
};
use prost::Message;
use rustix::fs::{FlockOperation, flock};

use super::{Ended, Ending, RunName};
use crate::isolate::{Controller, Facts, Leaf, LeafV1};

/// A record is small; more is damage, and is not written either.
pub(crate) const MOST_BYTES: u64 = 4 << 20;

/// One run's directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunDirectory {
    path: PathBuf,
}

impl RunDirectory {
    /// The directory at `path`, whether it is there or not.
    #[must_use]
    pub fn at(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into() }
    }

    /// The directory of `run` below the agent's.
    #[must_use]
    pub fn of(below: &Path, run: &RunName) -> Self {
        Self::at(below.join(run.as_str()))
    }

    /// Makes it. This is what keeps a run from being started twice.
    ///
    /// # Errors
    /// `AlreadyExists`: the run was prepared before.
    pub fn create(&self) -> io::Result<()> {
        DirBuilder::new().mode(0o700).create(&self.path)
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What the shim is to do.
    ///
    /// # Errors
    /// Unreadable or damaged; `NotFound` when it was never written.
    pub fn spec(&self) -> io::Result<ShimSpec> {
        self.read("spec")
    }

    /// The run record, if the shim came so far.
    ///
    /// # Errors
    /// Unreadable or damaged.
    pub fn run_record(&self) -> io::Result<Option<RunRecord>> {
        optional(self.read("run"))
    }

    /// The exit record, if the run is over.
    ///
    /// # Errors
    /// Unreadable or damaged.
    pub fn exit_record(&self) -> io::Result<Option<ExitRecord>> {
        optional(self.read("exit"))
    }

    pub(crate) fn read<M: Message + Default>(&self, name: &str) -> io::Result<M> {
        let mut bytes = Vec::new();
        File::open(self.path.join(name))?
            .take(MOST_BYTES)
            .read_to_end(&mut bytes)?;
        M::decode(bytes.as_slice())
            .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
    }

    /// Writes one record so that a reader sees it whole or not at all.
    ///
    /// # Errors
    /// No room, most likely; or more than a reader takes.
    pub fn write<M: Message>(&self, name: &str, record: &M) -> io::Result<()> {
        let size = u64::try_from(record.encoded_len()).unwrap_or(u64::MAX);
        if size > MOST_BYTES {
            let text = format!("{size} bytes; a record holds at most {MOST_BYTES}");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        }
        let new = self.path.join(format!("{name}.new"));
        std::fs::write(&new, record.encode_to_vec())?;
        // No fsync: after a boot these records mean nothing.
        std::fs::rename(new, self.path.join(name))
    }

    /// Takes the lock that says "a shim lives"; the shim inherits the descriptor.
    ///
    /// # Errors
    /// `WouldBlock` when a shim lives.
    pub fn lock_alive(&self) -> io::Result<File> {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(self.path.join("alive"))?;
        flock(&file, FlockOperation::NonBlockingLockExclusive)?;
        Ok(file)
    }

    /// Whether a shim lives: it holds the lock from before its first instruction to its last.
    ///
    /// # Errors
    /// The lock file is there and cannot be opened.
    pub fn shim_lives(&self) -> io::Result<bool> {
        let file = match File::open(self.path.join("alive")) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
            Err(error) => return Err(error),
        };
        match flock(&file, FlockOperation::NonBlockingLockShared) {
            Ok(()) => Ok(false),
            Err(rustix::io::Errno::WOULDBLOCK) => Ok(true),
            Err(errno) => Err(errno.into()),
        }
    }

    /// The file for the shim's complaints.
    ///
    /// # Errors
    /// It cannot be made.
    pub fn errors_file(&self) -> io::Result<File> {
        OpenOptions::new()
            .append(true)
            .create(true)
            .mode(0o600)
            .open(self.path.join("errors"))
    }

    /// What the shim complained about, shortened.
    #[must_use]
    pub fn errors(&self) -> String {
        let mut text = Vec::new();
        let file = File::open(self.path.join("errors"));
        let _nothing = file.and_then(|file| file.take(2000).read_to_end(&mut text));
        String::from_utf8_lossy(&text).trim().to_owned()
    }

    /// The shim's end of its socket. The path of a socket is limited to 107 bytes, so it is named
    /// through an open directory.
    ///
    /// # Errors
    /// It cannot be made.
    pub fn listen(&self) -> io::Result<UnixListener> {
        let directory = File::open(&self.path)?;
        UnixListener::bind(format!("/proc/self/fd/{}/control", directory.as_raw_fd()))
    }

    /// The agent's end.
    ///
    /// # Errors
    /// `NotFound` before the shim listens, `ConnectionRefused` after it is gone.
    pub fn connect(&self) -> io::Result<UnixStream> {
        let directory = File::open(&self.path)?;
        UnixStream::connect(format!("/proc/self/fd/{}/control", directory.as_raw_fd()))
    }

    /// Removes everything. Harmless when repeated.
    ///
    /// # Errors
    /// The file system refuses.
    pub fn remove(&self) -> io::Result<()> {
        match std::fs::remove_dir_all(&self.path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            Ok(()) | Err(_) => Ok(()),
        }
    }
}

fn optional<M>(read: io::Result<M>) -> io::Result<Option<M>> {
    match read {
        Ok(record) => Ok(Some(record)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// A leaf as the shim is told of it.
#[must_use]
pub fn leaf_to_wire(leaf: &Leaf) -> ShimCgroups {
    let text = |path: &Path| path.to_string_lossy().into_owned();
    ShimCgroups {
        v2_directory: leaf.v2.as_deref().map(text).unwrap_or_default(),
        v1: leaf
            .v1
            .iter()
            .map(|(controller, at)| ShimCgroupV1 {
                controller: controller.name().to_owned(),
                directory: text(&at.directory),
                owned: at.owned,
            })
            .collect(),
    }
}

/// And back; controllers of a newer version are left alone.
#[must_use]
pub fn leaf_from_wire(wire: &ShimCgroups) -> Leaf {
    Leaf {
        v2: (!wire.v2_directory.is_empty()).then(|| PathBuf::from(&wire.v2_directory)),
        v1: wire
            .v1
            .iter()
            .filter_map(|at| {
                let controller = Controller::named(&at.controller)?;
                Some((
                    controller,
                    LeafV1 {
                        directory: (&at.directory).into(),
                        owned: at.owned,
                    },
                ))
            })
            .collect(),
    }
}

/// What the kernel counted, for an exit record.
#[must_use]
pub fn facts_to_wire(facts: &Facts) -> LeafFacts {
    LeafFacts {
        cpu_ns: facts.cpu_ns,
        memory_peak_bytes: facts.memory_peak_bytes,
        throttled_ns: facts.throttled_ns,
        oom_kills: facts.oom_kills,
        memory_limit_hits: facts.memory_limit_hits,
        group_limit_hits: facts.group_limit_hits,
        pids_limit_hits: facts.pids_limit_hits,
    }
}

fn facts_from_wire(wire: &LeafFacts) -> Facts {
    Facts {
        cpu_ns: wire.cpu_ns,
        memory_peak_bytes: wire.memory_peak_bytes,
        throttled_ns: wire.throttled_ns,
        oom_kills: wire.oom_kills,
        memory_limit_hits: wire.memory_limit_hits,
        group_limit_hits: wire.group_limit_hits,
        pids_limit_hits: wire.pids_limit_hits,
    }
}

/// An exit record as the runtime tells it.
#[must_use]
pub fn ended_from_wire(record: &ExitRecord) -> Ended {
    let ending = match &record.how {
        Some(exit_record::How::Code(code)) => {
            u8::try_from(*code).map_or(Ending::Unknown, Ending::Code)
        }
        Some(exit_record::How::Signal(signal)) => Ending::Signal(*signal),
        Some(exit_record::How::Failure(failure)) => {
            let (stage, text) = (failure.stage.clone(), failure.text.clone());
            if matches!(failure.stage.as_str(), "execve" | "change directory") {
                Ending::ExecFailed {
                    stage,
                    errno: failure.errno,
                    text,
                }
            } else {
                Ending::PrepareFailed { stage, text }
            }
        }
        Some(exit_record::How::NeverStarted(_)) => Ending::NeverStarted,
        None => Ending::Unknown,
    };
    Ended {
        started_ms: record.started_ms,
        ended_ms: record.ended_ms,
        facts: record
            .facts
            .as_ref()
            .map(facts_from_wire)
            .unwrap_or_default(),
        stop_asked: record.stop_asked,
        time_limit: record.time_limit,
        out_of_contact: record.out_of_contact,
        forced: record.forced,
        log_bytes_dropped: record.log_bytes_dropped,
        ..Ended::bare(ending)
    }
}

/// Now, in Unix milliseconds.
#[must_use]
pub fn now_ms() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.map_or(0, |since| {
        u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
    })
}
