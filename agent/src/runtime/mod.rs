//! Runs what the core decided to run, and tells how it went.
//!
//! The shell hands a [`Launch`] to a [`Runtime`]; everything that happens afterwards comes back as
//! [`RuntimeEvent`]s on one bounded queue, in order for each run. No verb waits: a stuck runtime,
//! plugin or cgroup blocks only its own run. The promises are those of any runtime of mete:
//!
//! - nothing runs before [`Runtime::start`] (or [`Gate::Open`]) and nothing runs twice: a name
//!   that was prepared once is refused afterwards;
//! - [`RuntimeEvent::Ended`] means gone: no process of the run is left, its cgroup is removed or
//!   named as one that would not go;
//! - exit codes and signals are exact, also for runs that ended while no agent was there;
//! - the runtime never kills a process whose identity it has not compared with its own record.
//!
//! It does not know why a run has these cores, who owns it, or what a broker is.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

use tokio::sync::mpsc;

use crate::isolate::Limits;
pub use crate::isolate::{Facts, OutOfMemory};

pub mod contact;
pub mod frame;
pub mod identity;
pub mod logs;
pub mod process;
pub mod records;
pub mod shim;
pub mod spawn;
pub mod user;

mod desk;
mod found;
mod launch;
mod leftovers;
mod supervise;

pub use self::identity::RunName;

/// How a run of the `process` runtime waits between "ready" and its first instruction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Gate {
    /// Starts as soon as it is prepared.
    Open,
    /// Waits for [`Runtime::start`].
    Wait,
}

/// The user a task runs as; numbers, already looked up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TaskUser {
    /// User id.
    pub uid: u32,
    /// Primary group id.
    pub gid: u32,
    /// Supplementary group ids.
    pub groups: Vec<u32>,
    /// Home directory, for `HOME`.
    pub home: PathBuf,
}

/// One resource limit by its lower-case name ("nofile"); `u64::MAX` means unlimited.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResourceLimit {
    /// As in getrlimit(2) without `RLIMIT_`.
    pub name: String,
    /// What the task starts with.
    pub soft: u64,
    /// How far it may raise it.
    pub hard: u64,
}

/// Everything needed to run one task once.
#[derive(Debug, Clone)]
pub struct Launch {
    /// Directory-safe name, unique for ever on this agent.
    pub run: RunName,
    /// Opaque: returned with every found run, so that the caller knows its own again.
    pub reference: Vec<u8>,
    /// argv, never empty; the first is looked up in the task's `PATH` unless it holds a slash.
    pub command: Vec<String>,
    /// The task's own variables; `PATH`, `HOME` and `METE_RUN` are added where absent.
    pub environment: BTreeMap<String, String>,
    /// Where the command begins.
    pub working_directory: PathBuf,
    /// Make it (mode 0755, the task's user) when it is not there; otherwise the run ends in
    /// [`Ending::ExecFailed`].
    pub make_working_directory: bool,
    /// None: the agent's own user.
    pub user: Option<TaskUser>,
    /// Where `log`, `log.1` … are written; made when absent.
    pub log_directory: PathBuf,
    /// Size at which a log file is put aside.
    pub log_file_bytes: u64,
    /// How many log files are kept, the current one included; at least 1.
    pub log_files: u32,
    /// What the kernel is to enforce.
    pub limits: Limits,
    /// Named logical CPUs; empty: the shared set.
    pub cores: Vec<u32>,
    /// Over the defaults of the runtime.
    pub resource_limits: Vec<ResourceLimit>,
    /// SIGTERM to SIGKILL unless the stop says otherwise, milliseconds.
    pub kill_grace_ms: u64,
    /// All steps up to "ready" together, milliseconds.
    pub prepare_timeout_ms: u64,
    /// From start to a stop that the shim begins by itself; 0: none.
    pub time_limit_ms: u64,
    /// The longest time without word from a leader, until a stop that the shim begins by itself,
    /// milliseconds; 0: none.
    pub stop_if_silent_ms: u64,
    /// Whether to wait for [`Runtime::start`].
    pub gate: Gate,
}

/// How a run is to be ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stop {
    /// Signal to SIGKILL, milliseconds. A later stop may shorten it, never lengthen it.
    pub grace_ms: u64,
    /// First signal; 0 means SIGTERM.
    pub signal: u32,
}

/// How a run ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ending {
    /// The main process left with this code, 0 to 255.
    Code(u8),
    /// The main process died of this signal.
    Signal(u32),
    /// The command cannot be run as it was asked for; code `EXEC_FAILED`.
    ExecFailed {
        /// What was tried: "check the command", "change directory", "execve".
        stage: String,
        /// The kernel's number, 0 where there is none.
        errno: i32,
        /// For people.
        text: String,
    },
    /// Its memory limit is less than a process needs to come into being; code `OUT_OF_MEMORY`.
    MemoryTooSmall {
        /// For people.
        text: String,
    },
    /// Something on this node failed before the gate: cgroup, disk, shim.
    PrepareFailed {
        /// What was tried.
        stage: String,
        /// For people.
        text: String,
    },
    /// Not ready within [`Launch::prepare_timeout_ms`]; code `LAUNCH_TIMEOUT`.
    PrepareTimeout {
        /// What was under way.
        stage: String,
    },
    /// Stopped at or before the gate: no user instruction ran.
    NeverStarted,
    /// The shim died alone and its task with it; code `SUPERVISOR_LOST`.
    SupervisorLost,
    /// The end was not seen by anybody; code `EXIT_UNKNOWN`.
    Unknown,
    /// The machine was booted since; code `NODE_REBOOTED`.
    Rebooted,
}

/// The whole story of a run's end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ended {
    /// How.
    pub ending: Ending,
    /// Unix milliseconds of execve; 0 when it never started.
    pub started_ms: u64,
    /// Unix milliseconds; 0 when nobody saw it.
    pub ended_ms: u64,
    /// What it used.
    pub facts: Facts,
    /// A stop had been asked for before the main process ended.
    pub stop_asked: bool,
    /// The run's own time limit asked for the stop.
    pub time_limit: bool,
    /// That no leader was heard asked for the stop.
    pub out_of_contact: bool,
    /// SIGKILL was needed.
    pub forced: bool,
    /// Output lost because the disk was full, bytes.
    pub log_bytes_dropped: u64,
    /// Set when the empty cgroup could not be removed: path and error. Its grant is best
    /// quarantined; the runtime tries again on [`Runtime::forget`].
    pub cgroup_left: Option<String>,
}

impl Ended {
    /// An end of which nothing but the way is known.
    #[must_use]
    pub fn bare(ending: Ending) -> Self {
        Self {
            ending,
            started_ms: 0,
            ended_ms: 0,
            facts: Facts::default(),
            stop_asked: false,
            time_limit: false,
            out_of_contact: false,
            forced: false,
            log_bytes_dropped: 0,
            cgroup_left: None,
        }
    }
}

/// A process that SIGKILL has not ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StuckProcess {
    /// Its id.
    pub pid: u32,
    /// One letter of proc(5): `D` is a process that waits for a device.
    pub state: String,
    /// The kernel function it waits in, where readable.
    pub wait_channel: String,
    /// Its name.
    pub command: String,
}

/// What a runtime tells. For each run in this order, each at most once except `Stuck`:
/// `Prepared`, `Started`, `Stopping`, `Stuck`, `Ended`; any but the last may be absent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RuntimeEvent {
    /// Everything is ready and no user instruction has run.
    Prepared {
        /// Which.
        run: RunName,
        /// The main process.
        pid: u32,
    },
    /// The command runs.
    Started {
        /// Which.
        run: RunName,
        /// Unix milliseconds.
        at_ms: u64,
    },
    /// A stop is under way.
    Stopping {
        /// Which.
        run: RunName,
        /// Unix milliseconds of the force.
        force_at_ms: u64,
    },
    /// Force did not help within 10 s; told again when the list changes.
    Stuck {
        /// Which.
        run: RunName,
        /// What is left, at most 32.
        processes: Vec<StuckProcess>,
        /// How many are left in all.
        total: u32,
    },
    /// Over, and nothing of it is left.
    Ended {
        /// Which.
        run: RunName,
        /// How.
        ended: Ended,
    },
}

impl RuntimeEvent {
    /// The run it is about.
    #[must_use]
    pub fn run(&self) -> &RunName {
        match self {
            Self::Prepared { run, .. }
            | Self::Started { run, .. }
            | Self::Stopping { run, .. }
            | Self::Stuck { run, .. }
            | Self::Ended { run, .. } => run,
        }
    }
}

/// What a run left behind by an earlier agent process is now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FoundState {
    /// Its shim lives; after [`Runtime::adopt`] its events come, beginning with the present state.
    Alive,
    /// It ended; the record says how. [`Runtime::adopt`] tells it as an event.
    Ended(Ended),
    /// Nothing of the command ever ran, and nothing will: may be forgotten and prepared again.
    NeverStarted,
    /// No shim, no exit record; [`Runtime::adopt`] ends what is left and tells `Ended`.
    Lost(Ending),
}

/// A run found on this node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FoundRun {
    /// Its name.
    pub run: RunName,
    /// [`Launch::reference`], empty when even the description is unreadable.
    pub reference: Vec<u8>,
    /// What it is now.
    pub state: FoundState,
}

/// The end of the queue that a runtime fills.
pub type Events = mpsc::Receiver<RuntimeEvent>;

/// Why a runtime could not be made ready or listed.
#[derive(Debug, thiserror::Error)]
#[error("{what}: {path}: {source}")]
pub struct RuntimeError {
    /// What was tried.
    pub what: &'static str,
    /// On which file or directory.
    pub path: PathBuf,
    /// What the kernel said.
    #[source]
    pub source: std::io::Error,
}

impl RuntimeError {
    /// An I/O error together with what was tried.
    pub fn new(what: &'static str, path: impl Into<PathBuf>, source: std::io::Error) -> Self {
        Self {
            what,
            path: path.into(),
            source,
        }
    }
}

/// The verbs of a runtime. All return at once; what becomes of them are events. Verbs for one run
/// are carried out in order; verbs for a run that is over or unknown do nothing.
pub trait Runtime: Send + Sync + fmt::Debug {
    /// Makes everything ready for `launch` and stops before its first instruction.
    ///
    /// Ends in `Prepared` (and `Started` with [`Gate::Open`]) or in `Ended`. A name that is
    /// already there is answered by `Ended` with [`Ending::PrepareFailed`] only if it is not
    /// watched by this runtime; if it is, nothing happens: a launch is never done twice.
    fn prepare(&self, launch: Launch);

    /// Opens the gate; `environment` is added to the task's own.
    fn start(&self, run: &RunName, environment: BTreeMap<String, String>);

    /// Sends `signal` to the main process.
    fn signal(&self, run: &RunName, signal: u32);

    /// Ends the run, at whatever stage it is.
    fn stop(&self, run: &RunName, stop: Stop);

    /// All runs that left traces here, by the rules of adoption. Blocks on the file system; call
    /// it once, before anything else.
    ///
    /// # Errors
    /// The directory of records cannot be read. A single bad record is a `Lost` run, not an error.
    fn list(&self) -> Result<Vec<FoundRun>, RuntimeError>;

    /// Watches a found run; its present state comes as events first.
    fn adopt(&self, run: &RunName);

    /// Removes the records of a run that has ended, and its cgroup if that was left. Call it once
    /// the end is in the checkpoint. Does nothing while the run lives.
    fn forget(&self, run: &RunName);
}
