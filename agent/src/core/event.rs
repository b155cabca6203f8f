//! Everything that may enter the core.

use std::collections::BTreeMap;
use std::sync::Arc;

use mete_model::{
    AgentId, Code, GrantId, Inventory, Resources, RolePath, Span, TaskSpec, Timestamp,
};

use super::RunKey;
use super::ending::RunEnd;

/// One thing that happened.
#[derive(Clone, Debug)]
pub enum Event {
    /// A leader has admitted this agent.
    Welcome {
        /// The agent's id.
        agent: AgentId,
        /// Runs to end and forget without telling anybody.
        discard: Vec<RunKey>,
    },
    /// The stream to the leader is gone.
    LinkLost,
    /// A run to be started; harmless when repeated.
    Start(Box<StartTask>),
    /// A run to be ended; a later one may shorten the grace.
    Kill(KillTask),
    /// A run to be ended and forgotten without telling anybody.
    Discard(RunKey),
    /// Statuses up to `sequence` are durable on the master's side.
    Forget {
        /// Which run.
        key: RunKey,
        /// Covers 1 … sequence.
        sequence: u64,
    },
    /// The command runs.
    Started {
        /// Which run.
        key: RunKey,
        /// Since when.
        at: Timestamp,
    },
    /// Force did not help.
    Stuck {
        /// Which run.
        key: RunKey,
        /// What is left, for people.
        message: String,
    },
    /// A run is over and nothing of it is left.
    Ended {
        /// Which run.
        key: RunKey,
        /// How.
        end: RunEnd,
    },
    /// The disk of state or logs is nearly full (why), or no longer (`None`).
    DiskPressure(Option<String>),
    /// The machine has changed.
    Inventory(Box<Inventory>),
    /// No leader was heard for so long.
    Silent(Span),
    /// Time has passed.
    Tick,
}

/// A run to be started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StartTask {
    /// Which.
    pub key: RunKey,
    /// Its grant.
    pub grant: GrantId,
    /// What it holds.
    pub resources: Resources,
    /// How it runs.
    pub spec: Arc<TaskSpec>,
    /// Over the spec's environment.
    pub environment: BTreeMap<String, String>,
    /// Over the spec's labels.
    pub labels: BTreeMap<String, String>,
    /// Who is charged, for the task's environment.
    pub role: Option<RolePath>,
    /// The framework's name, for the task's environment.
    pub framework_name: String,
}

/// A run to be ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KillTask {
    /// Which.
    pub key: RunKey,
    /// SIGTERM to SIGKILL; `None` = the spec's.
    pub grace: Option<Span>,
    /// Reason of the `Killed` status.
    pub reason: Code,
}
