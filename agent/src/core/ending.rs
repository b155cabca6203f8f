//! How a run ended, and what phase and reason that makes.

use mete_model::{Code, Exit, Span, TaskPhase, Timestamp, Usage};

/// The way a run ended, as a runtime saw it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ending {
    /// By itself, with this code.
    Code(u8),
    /// By this signal.
    Signal(u8),
    /// The command could not be executed.
    ExecFailed(String),
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
pub(super) fn judge(end: &RunEnd, killed: Option<Code>, time_limit: Option<Span>) -> Verdict {
    let exit = match end.ending {
        Ending::Code(code) => Some(Exit::Code(code)),
        Ending::Signal(signal) => Some(Exit::Signal(signal)),
        Ending::ExecFailed(_)
        | Ending::PrepareFailed(_)
        | Ending::LaunchTimeout(_)
        | Ending::NeverStarted
        | Ending::SupervisorLost
        | Ending::Unknown
        | Ending::Rebooted => None,
    };
    let (phase, reason, message) = if end.time_limit {
        let limit = time_limit.map_or_else(String::new, |limit| format!(" of {limit}"));
        (
            TaskPhase::Failed,
            Some(Code::TimeLimit),
            format!("passed its time limit{limit}"),
        )
    } else if let Some(reason) = killed.filter(|_| ended_by_the_kill(end)) {
        (TaskPhase::Killed, Some(reason), "ended as asked".to_owned())
    } else {
        by_itself(end)
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
        | Ending::PrepareFailed(_)
        | Ending::LaunchTimeout(_)
        | Ending::SupervisorLost
        | Ending::Unknown => true,
        Ending::Rebooted => false,
    }
}

fn by_itself(end: &RunEnd) -> (TaskPhase, Option<Code>, String) {
    let failed = |reason, message: String| (TaskPhase::Failed, Some(reason), message);
    if let Some(own_limit) = end.out_of_memory {
        return if own_limit {
            failed(Code::OutOfMemory, "passed its memory limit".to_owned())
        } else {
            failed(
                Code::NodeOutOfMemory,
                "the machine ran out of memory".to_owned(),
            )
        };
    }
    match &end.ending {
        Ending::Code(0) => (TaskPhase::Finished, None, String::new()),
        Ending::Code(code) => failed(Code::ExitCode, format!("exit code {code}")),
        Ending::Signal(signal) => failed(Code::Signal, format!("signal {signal}")),
        Ending::ExecFailed(text) => failed(Code::ExecFailed, text.clone()),
        Ending::PrepareFailed(text) => failed(Code::PrepareFailed, text.clone()),
        Ending::LaunchTimeout(stage) => failed(
            Code::LaunchTimeout,
            format!("not running in time; stage: {stage}"),
        ),
        Ending::NeverStarted => failed(
            Code::PrepareFailed,
            "stopped before its first instruction".to_owned(),
        ),
        Ending::SupervisorLost => failed(
            Code::SupervisorLost,
            "the process that watched over it died".to_owned(),
        ),
        Ending::Unknown => failed(Code::ExitUnknown, "nobody saw how it ended".to_owned()),
        Ending::Rebooted => (
            TaskPhase::Lost,
            Some(Code::NodeRebooted),
            "the node was started anew".to_owned(),
        ),
    }
}
