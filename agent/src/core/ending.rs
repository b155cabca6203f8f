//! How a run ended, and what phase and reason that makes.

use std::fmt;

use mete_model::{Bytes, Code, Exit, TaskPhase, Timestamp, Usage};

use super::event::StartTask;

/// The way a run ended, as a runtime saw it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ending {
    /// By itself, with this code.
    Code(u8),
    /// By this signal.
    Signal(u8),
    /// The command could not be executed.
    ExecFailed(String),
    /// Its memory limit is less than a process needs to come into being.
    MemoryTooSmall(String),
    /// Something failed before the command ran.
    PrepareFailed(String),
    /// Not ready in time.
    LaunchTimeout(String),
    /// Stopped before any of it ran.
    NeverStarted,
    /// The process that watched over it died.
    SupervisorLost,
    /// Nobody saw it.
    Unknown,
    /// The machine was booted since.
    Rebooted,
}

impl fmt::Display for Ending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Code(code) => write!(f, "exit code {code}"),
            Self::Signal(signal) => write!(f, "signal {signal}"),
            Self::ExecFailed(text) | Self::MemoryTooSmall(text) | Self::PrepareFailed(text) => {
                f.write_str(text)
            }
            Self::LaunchTimeout(stage) => write!(f, "not running in time; stage: {stage}"),
            Self::NeverStarted => f.write_str("stopped before its first instruction"),
            Self::SupervisorLost => f.write_str("the process that watched over it died"),
            Self::Unknown => f.write_str("nobody saw how it ended"),
            Self::Rebooted => f.write_str("the node was started anew"),
        }
    }
}

/// The whole story of an end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunEnd {
    /// How.
    pub ending: Ending,
    /// When; `None` when nobody saw it.
    pub at: Option<Timestamp>,
    /// What it used.
    pub usage: Option<Usage>,
    /// A stop had been asked for before the main process ended.
    pub stop_asked: bool,
    /// The run's own time limit asked for the stop.
    pub time_limit: bool,
    /// That no leader was heard for too long asked for the stop.
    pub out_of_contact: bool,
    /// The kernel killed it for want of memory: its own limit (true) or the machine's (false).
    pub out_of_memory: Option<bool>,
    /// Facts for people, may be empty.
    pub note: String,
}

impl RunEnd {
    /// An end of which nothing but the way is known.
    #[must_use]
    pub fn bare(ending: Ending) -> Self {
        Self {
            ending,
            at: None,
            usage: None,
            stop_asked: false,
            time_limit: false,
            out_of_contact: false,
            out_of_memory: None,
            note: String::new(),
        }
    }
}

/// Phase, reason, exit and message of the last status.
pub(super) struct Verdict {
    pub(super) phase: TaskPhase,
    pub(super) reason: Option<Code>,
    pub(super) exit: Option<Exit>,
    pub(super) message: String,
}

/// What an end means for the run. `killed` is the reason of a kill that was asked for.
pub(super) fn judge(end: &RunEnd, killed: Option<Code>, start: &StartTask) -> Verdict {
    let exit = match end.ending {
        Ending::Code(code) => Some(Exit::Code(code)),
        Ending::Signal(signal) => Some(Exit::Signal(signal)),
        Ending::ExecFailed(_)
        | Ending::MemoryTooSmall(_)
        | Ending::PrepareFailed(_)
        | Ending::LaunchTimeout(_)
        | Ending::NeverStarted
        | Ending::SupervisorLost
        | Ending::Unknown
        | Ending::Rebooted => None,
    };
    let (phase, reason, message) = if end.time_limit {
        let limit = start.spec.time_limit;
        let limit = limit.map_or_else(String::new, |limit| format!(" of {limit}"));
        (
            TaskPhase::Failed,
            Some(Code::TimeLimit),
            format!("passed its time limit{limit}"),
        )
    } else if end.out_of_contact {
        let limit = start.spec.partition.stop_if_silent;
        let limit = limit.map_or_else(String::new, |limit| format!(" for {limit}"));
        (
            TaskPhase::Killed,
            Some(Code::OutOfContact),
            format!("its node had not heard from a leader{limit}"),
        )
    } else if let Some(reason) = killed.filter(|_| ended_by_the_kill(end)) {
        (TaskPhase::Killed, Some(reason), "ended as asked".to_owned())
    } else {
        by_itself(end, start.resources.memory)
    };
    let message = match (message.is_empty(), end.note.is_empty()) {
        (_, true) => message,
        (true, false) => end.note.clone(),
        (false, false) => format!("{message}; {}", end.note),
    };
    Verdict {
        phase,
        reason,
        exit,
        message,
    }
}

/// A run that had ended by itself before the kill reached it keeps its own end.
fn ended_by_the_kill(end: &RunEnd) -> bool {
    match end.ending {
        Ending::Code(_) | Ending::Signal(_) => end.stop_asked,
        Ending::NeverStarted
        | Ending::ExecFailed(_)
        | Ending::MemoryTooSmall(_)
        | Ending::PrepareFailed(_)
        | Ending::LaunchTimeout(_)
        | Ending::SupervisorLost
        | Ending::Unknown => true,
        Ending::Rebooted => false,
    }
}

fn by_itself(end: &RunEnd, memory: Bytes) -> (TaskPhase, Option<Code>, String) {
    let failed = |reason, message: String| (TaskPhase::Failed, Some(reason), message);
    if let Some(own_limit) = end.out_of_memory {
        return if own_limit {
            let peak = end.usage.map(|usage| usage.memory_peak);
            let peak = peak.filter(|peak| !peak.is_zero());
            let peak = peak.map_or_else(String::new, |peak| format!("; it used {peak} at most"));
            failed(
                Code::OutOfMemory,
                format!("passed its memory limit of {memory}{peak}"),
            )
        } else {
            failed(
                Code::NodeOutOfMemory,
                "the machine ran out of memory".to_owned(),
            )
        };
    }
    let text = end.ending.to_string();
    match &end.ending {
        Ending::Code(0) => (TaskPhase::Finished, None, String::new()),
        Ending::Code(_) => failed(Code::ExitCode, text),
        Ending::Signal(_) => failed(Code::Signal, text),
        Ending::ExecFailed(_) => failed(Code::ExecFailed, text),
        // The task's own doing like every other end of this code: another node changes nothing.
        Ending::MemoryTooSmall(_) => failed(Code::OutOfMemory, text),
        Ending::PrepareFailed(_) | Ending::NeverStarted => failed(Code::PrepareFailed, text),
        Ending::LaunchTimeout(_) => failed(Code::LaunchTimeout, text),
        Ending::SupervisorLost => failed(Code::SupervisorLost, text),
        Ending::Unknown => failed(Code::ExitUnknown, text),
        Ending::Rebooted => (TaskPhase::Lost, Some(Code::NodeRebooted), text),
    }
}
