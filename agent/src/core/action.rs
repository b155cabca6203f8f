//! Everything the core may ask for.

use mete_model::{Code, FrameworkId, Inventory, Span, Status, TaskPhase};

use super::RunKey;
use super::event::StartTask;

/// One thing to do. Records of a turn are written, together, before anything else of that turn.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// To be durable before what follows.
    Record(Record),
    /// Make the run ready and start it.
    Prepare(Box<StartTask>),
    /// End the run.
    Stop {
        /// Which.
        key: RunKey,
        /// SIGTERM to SIGKILL.
        grace: Span,
    },
    /// Watch a run that an earlier agent process started.
    Adopt(RunKey),
    /// Remove what the runtime keeps of an ended run.
    Release(RunKey),
    /// Statuses for the broker, in order per run.
    Send(Vec<(FrameworkId, Status)>),
    /// The machine has changed: tell the broker.
    SendInventory(Box<Inventory>),
}

/// One durable fact.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Record {
    /// The agent is responsible for this run.
    Run {
        /// As it was asked for.
        start: Box<StartTask>,
        /// Where it is.
        phase: TaskPhase,
        /// The number its next status gets.
        next_sequence: u64,
    },
    /// A status that the broker does not have yet.
    Update {
        /// Whose.
        framework: FrameworkId,
        /// The status.
        status: Box<Status>,
    },
    /// The broker has the statuses up to here.
    Confirmed {
        /// Which run.
        key: RunKey,
        /// Covers 1 … sequence.
        sequence: u64,
    },
    /// A kill asked for and not yet done.
    Kill {
        /// Which run.
        key: RunKey,
        /// SIGTERM to SIGKILL.
        grace: Span,
        /// Reason of the status to come.
        reason: Code,
        /// The run is to be forgotten without a status.
        discard: bool,
    },
    /// Nothing of the run is kept any more.
    Forget(RunKey),
}

/// A run as the agent tells a leader that it has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeldRun {
    /// Which.
    pub key: RunKey,
    /// Where it is.
    pub phase: TaskPhase,
    /// The last status numbered.
    pub last_sequence: u64,
}
