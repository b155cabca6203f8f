//! What comes out of a command: the answer, what is owed to others, and what has changed.

use mete_model::{AgentId, ClaimId, Code, FrameworkId, GrantId, RolePath, RunId};

use crate::command::AgentCondition;

/// Everything one applied command gives.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// For the caller; a repeated call gets the first one again.
    pub verdict: Verdict,
    /// Log index the verdict was made at: the command's own, an earlier one for a repeated call.
    pub revision: u64,
    /// To be carried out by the leader; each may be lost, `State::owed` finds it again.
    pub effects: Vec<Effect>,
    /// Which objects have changed, for views and rows.
    pub changes: Vec<Change>,
}

/// The typed answer to a command.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub enum Verdict {
    /// Done; nothing more to say.
    #[default]
    Done,
    /// To `AdmitAgent`.
    Admitted {
        /// The agent's id, new or kept.
        agent: AgentId,
        /// Runs that the agent has and must end without telling anybody.
        discard: Vec<(FrameworkId, RunId)>,
    },
    /// To `Subscribe`.
    Subscribed {
        /// The framework's id, new or kept.
        framework: FrameworkId,
        /// The incarnation from now on.
        incarnation: u64,
        /// It existed before.
        known: bool,
    },
    /// To `Launch`: one for each task, in order.
    Launched(Vec<LaunchVerdict>),
    /// To `Kill` and `KillByOperator`: one for each run, in order.
    Killed(Vec<ItemVerdict>),
    /// To `Acknowledge`: one for each item, in order.
    Acknowledged(Vec<ItemVerdict>),
    /// To `WriteStore`.
    StoreWritten(StoreVerdict),
    /// To `Teardown` and `RemoveFramework`: runs that are still being killed.
    TornDown(Vec<RunId>),
    /// To `AddMaster`: its node id.
    MasterAdded {
        /// Never used before, and never again.
        node: u64,
    },
    /// To `SetRole`: whether it is new.
    RoleSet {
        /// It did not exist before.
        created: bool,
    },
}

/// The answer for one task of a launch.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct LaunchVerdict {
    /// `Ok`, or why not.
    pub code: Code,
    /// Facts, for people; empty for `Ok`.
    pub detail: String,
    /// The grant of an `Ok`; of the first run where it is `ALREADY_EXISTS`.
    pub grant: Option<GrantId>,
}

/// The answer for one item of a list.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ItemVerdict {
    /// `Ok`, or why not.
    pub code: Code,
    /// Facts, for people.
    pub detail: String,
}

/// The answer to a store write.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum StoreVerdict {
    /// Written; the revision is the log index it applied at.
    Written,
    /// Keys whose revision differs, with the present one (0 = absent). Nothing was done.
    Conflict(Vec<(Vec<u8>, u64)>),
    /// Bytes in use, wanted, limit. Nothing was done.
    Full {
        /// Bytes now.
        used: u64,
        /// Bytes after the write.
        wanted: u64,
        /// Bytes permitted.
        limit: u64,
    },
}

/// Something owed to an agent or a framework.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// A staged run to be started; its facts are in the state.
    StartTask {
        /// Where.
        agent: AgentId,
        /// Whose.
        framework: FrameworkId,
        /// Which.
        run: RunId,
    },
    /// A run to be ended; grace and reason are in the state.
    KillTask {
        /// Where.
        agent: AgentId,
        /// Whose.
        framework: FrameworkId,
        /// Which.
        run: RunId,
    },
    /// A run the agent must end and forget without telling anybody.
    DiscardTask {
        /// Where.
        agent: AgentId,
        /// Whose.
        framework: FrameworkId,
        /// Which.
        run: RunId,
    },
    /// Statuses up to `sequence` are durable here.
    ForgetStatuses {
        /// Where.
        agent: AgentId,
        /// Whose.
        framework: FrameworkId,
        /// Which.
        run: RunId,
        /// Covers 1 … sequence.
        sequence: u64,
    },
    /// A status the framework has not acknowledged.
    TellStatus {
        /// Whose.
        framework: FrameworkId,
        /// Which.
        run: RunId,
        /// The status; it is in the state until acknowledged.
        sequence: u64,
    },
    /// An agent that holds runs of the framework has changed.
    TellAgent {
        /// Whose.
        framework: FrameworkId,
        /// Which.
        agent: AgentId,
        /// How it is now.
        condition: AgentCondition,
    },
    /// A run of the framework may be replaced: its agent is unreachable for too long.
    TellReplaceable {
        /// Whose.
        framework: FrameworkId,
        /// Which agent.
        agent: AgentId,
        /// Which run.
        run: RunId,
    },
    /// Streams of older incarnations must end.
    Fence {
        /// Whose.
        framework: FrameworkId,
        /// The one that is right now.
        incarnation: u64,
    },
    /// All streams of the framework must end: it is torn down.
    EndStreams {
        /// Whose.
        framework: FrameworkId,
    },
}

/// An object that a command has changed. Look the object up: absent means removed.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Change {
    /// An agent: inventory, condition, or what is granted on it.
    Agent(AgentId),
    /// A framework: settings, connection, or what it holds.
    Framework(FrameworkId),
    /// A role: weight, or what it uses.
    Role(RolePath),
    /// A claim: content, or how much of it is launched.
    Claim(FrameworkId, ClaimId),
    /// A run: phase, statuses, kill; in history when it is over and acknowledged.
    Run(FrameworkId, RunId),
    /// A master, by node id: address, what its seat shall be.
    Master(u64),
}
