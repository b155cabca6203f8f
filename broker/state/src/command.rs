//! What goes into the log. Each command is complete: ids are minted, time is stamped, nothing is
//! left to look up, so that every replica does the same with it.

use std::collections::BTreeMap;
use std::sync::Arc;

use mete_model::{
    AgentId, Claim, ClaimId, Code, FrameworkId, Inventory, NodeKey, Resources, RolePath, RunId,
    Span, Status, TaskPhase, TaskSpec, Timestamp,
};

use crate::record::Seat;

/// A command and the time its leader stamped it with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stamped {
    /// The leader's clock; applying takes the later of it and the last one.
    pub at: Timestamp,
    /// What to do.
    pub command: Command,
}

/// One change of the replicated truth.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// An agent is new, or came back with something changed.
    AdmitAgent(AdmitAgent),
    /// The leader has lost an agent, or has it back unchanged.
    SetAgentCondition {
        /// Which.
        agent: AgentId,
        /// `Ready` or `Unreachable`.
        condition: AgentCondition,
    },
    /// Runs of an unreachable agent may be replaced: all of which the time has come.
    MarkReplaceable {
        /// Which agent's.
        agent: AgentId,
    },
    /// An operator says that an agent never comes back.
    RemoveAgent {
        /// Which.
        agent: AgentId,
        /// Who said so.
        actor: String,
    },
    /// A framework process subscribes.
    Subscribe(Subscribe),
    /// A framework's last stream has closed: its failover timeout begins.
    Disconnect {
        /// Which.
        framework: FrameworkId,
        /// Of this incarnation; an older one is ignored.
        incarnation: u64,
    },
    /// A framework changes itself.
    UpdateFramework {
        /// Who calls.
        caller: Caller,
        /// The new settings, whole.
        settings: FrameworkSettings,
    },
    /// Claims put and withdrawn.
    UpdateDemand {
        /// Who calls.
        caller: Caller,
        /// Rises with each change.
        version: u64,
        /// Claims put or changed.
        upsert: Vec<Claim>,
        /// Claims withdrawn; unknown ones are passed.
        remove: Vec<ClaimId>,
    },
    /// Roles suppressed or revived by the framework.
    Suppress {
        /// Who calls.
        caller: Caller,
        /// Which roles; empty = all of the framework.
        roles: Vec<RolePath>,
        /// True = suppress, false = revive.
        suppressed: bool,
    },
    /// Roles suppressed or revived by an operator.
    SuppressByOperator {
        /// Which framework.
        framework: FrameworkId,
        /// To suppress.
        suppress: Vec<RolePath>,
        /// To revive.
        revive: Vec<RolePath>,
        /// Who said so.
        actor: String,
    },
    /// Tasks launched on one agent; whether an offer was behind it is not known here.
    Launch(Launch),
    /// Runs to be ended, by their framework.
    Kill {
        /// Who calls.
        caller: Caller,
        /// Which runs.
        runs: Vec<RunId>,
        /// SIGTERM to SIGKILL; `None` = the spec's.
        grace: Option<Span>,
        /// For people.
        reason: String,
    },
    /// Runs to be ended, by an operator.
    KillByOperator {
        /// Which runs.
        runs: Vec<(FrameworkId, RunId)>,
        /// SIGTERM to SIGKILL; `None` = the spec's.
        grace: Option<Span>,
        /// For people.
        reason: String,
        /// Who said so.
        actor: String,
    },
    /// Statuses of one agent's runs, in order.
    RecordStatuses {
        /// The agent that sent them.
        agent: AgentId,
        /// In order per run.
        statuses: Vec<(FrameworkId, Status)>,
    },
    /// Statuses that a framework has handled.
    Acknowledge {
        /// Who calls.
        caller: Caller,
        /// Run and the sequence up to which.
        items: Vec<(RunId, u64)>,
    },
    /// Records of the framework's store, all or nothing.
    WriteStore {
        /// Who calls.
        caller: Caller,
        /// Key, value, expected revision (0 = must not exist).
        puts: Vec<StorePut>,
        /// Key, expected revision.
        deletes: Vec<StoreDelete>,
    },
    /// The framework ends itself.
    Teardown {
        /// Who calls.
        caller: Caller,
    },
    /// An operator, or the failover timeout, ends a framework.
    RemoveFramework {
        /// Which.
        framework: FrameworkId,
        /// Who said so; "failover timeout" when time did.
        actor: String,
    },
    /// A role made or changed.
    SetRole {
        /// Which.
        path: RolePath,
        /// In thousandths; `None` = unchanged, 1000 for a new role.
        weight_milli: Option<u32>,
        /// Who said so.
        actor: String,
    },
    /// A role removed.
    RemoveRole {
        /// Which.
        path: RolePath,
        /// Who said so.
        actor: String,
    },
    /// A master that is to join: it gets its node id when this applies.
    AddMaster(AddMaster),
    /// Something of a master changes, or one names itself. The membership follows.
    SetMaster(SetMaster),
    /// A master has left: its record goes, its node id is never used again.
    RemoveMaster {
        /// Its node id.
        node: u64,
        /// Who said so.
        actor: String,
    },
    /// Every master knows this level: commands behave by it from here on.
    RaiseLevel {
        /// Rises by any number; a lower one changes nothing.
        level: u32,
    },
    /// Time alone: history ages, tombstones lapse.
    Tick,
}

/// A master that is to join.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AddMaster {
    /// `host:port`, no other master's but that of the one it replaces.
    pub address: String,
    /// What its seat shall be.
    pub seat: Seat,
    /// A known master that leaves in the very step that gives this one its vote; 0 = none.
    pub replaces: u64,
    /// Its node id lies above this one, and above every id there ever was.
    pub above: u64,
    /// Who said so.
    pub actor: String,
}

/// What changes of a master; what is not given stays as it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SetMaster {
    /// Its node id: a known one, or, for one that names itself, above every id there ever was.
    pub node: u64,
    /// `host:port`, no other master's.
    pub address: Option<String>,
    /// What its seat shall be.
    pub seat: Option<Seat>,
    /// A known master that leaves in the very step that gives this one its vote; 0 = none.
    pub replaces: Option<u64>,
    /// Who said so.
    pub actor: String,
}

impl Command {
    /// The framework that calls, for commands that one gives.
    #[must_use]
    pub fn caller(&self) -> Option<&Caller> {
        match self {
            Self::UpdateFramework { caller, .. }
            | Self::UpdateDemand { caller, .. }
            | Self::Suppress { caller, .. }
            | Self::Kill { caller, .. }
            | Self::Acknowledge { caller, .. }
            | Self::WriteStore { caller, .. }
            | Self::Teardown { caller } => Some(caller),
            Self::Launch(launch) => Some(&launch.caller),
            Self::AdmitAgent(_)
            | Self::SetAgentCondition { .. }
            | Self::MarkReplaceable { .. }
            | Self::RemoveAgent { .. }
            | Self::Subscribe(_)
            | Self::Disconnect { .. }
            | Self::SuppressByOperator { .. }
            | Self::KillByOperator { .. }
            | Self::RecordStatuses { .. }
            | Self::RemoveFramework { .. }
            | Self::SetRole { .. }
            | Self::RemoveRole { .. }
            | Self::AddMaster(_)
            | Self::SetMaster(_)
            | Self::RemoveMaster { .. }
            | Self::RaiseLevel { .. }
            | Self::Tick => None,
        }
    }
}

/// What every call of a framework carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caller {
    /// Who.
    pub framework: FrameworkId,
    /// The fence, compared when the command applies.
    pub incarnation: u64,
    /// The idempotency key within the incarnation; 0 = none.
    pub call: u64,
    /// Verdicts up to this call need not be kept.
    pub answered: u64,
}

/// An agent that is new, or came back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdmitAgent {
    /// Minted for a new agent; ignored when `node_key` is known.
    pub agent: AgentId,
    /// Its identity.
    pub node_key: NodeKey,
    /// 1 to 253 printable characters, unique among agents that are not gone. The same name with
    /// another key is the same node with a wiped disk: the record is kept, its old runs end
    /// `Lost` with `AGENT_WIPED`.
    pub node_name: String,
    /// What it has.
    pub inventory: Inventory,
    /// Every run it has. Runs of the state that it should have and has not end `Lost` with
    /// `NOT_ON_NODE` (those never reported by it and still `Staging` are started again instead);
    /// another boot id ends all old ones with `NODE_REBOOTED`.
    pub held: Vec<HeldRun>,
}

/// A run that an agent has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeldRun {
    /// Whose.
    pub framework: FrameworkId,
    /// Which.
    pub run: RunId,
    /// Where it is.
    pub phase: TaskPhase,
    /// The last status it has numbered.
    pub last_sequence: u64,
}

/// What the cluster knows of an agent, as far as it is replicated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum AgentCondition {
    /// Heard from.
    Ready,
    /// Lost; its runs may live.
    Unreachable,
    /// Never coming back, by an operator's word.
    Gone,
}

/// A framework process subscribes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subscribe {
    /// Minted for a new framework; ignored when (principal, name) is known.
    pub framework: FrameworkId,
    /// Who, as authenticated.
    pub principal: String,
    /// 1 to 128 characters.
    pub name: String,
    /// 0 = a new process; otherwise the incarnation to continue.
    pub incarnation: u64,
    /// Roles and the rest.
    pub settings: FrameworkSettings,
}

/// What a framework says about itself.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct FrameworkSettings {
    /// Sorted, each once, at least one.
    pub roles: Vec<RolePath>,
    /// A subset of `roles`.
    pub suppressed: Vec<RolePath>,
    /// Without a stream for so long = torn down. `None` = never.
    pub failover_timeout: Option<Span>,
    /// Whole-node offers without claims.
    pub plain_offers: bool,
    /// Shown and searched.
    pub labels: BTreeMap<String, String>,
    /// Where it serves an API of its own.
    pub service_address: String,
}

/// Tasks launched on one agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Launch {
    /// Who calls.
    pub caller: Caller,
    /// Who is charged.
    pub role: RolePath,
    /// Where.
    pub agent: AgentId,
    /// The topology the names come from.
    pub topology_epoch: u64,
    /// One for each task.
    pub tasks: Vec<LaunchTask>,
    /// False: one refused task refuses all.
    pub each_alone: bool,
}

/// One task of a launch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LaunchTask {
    /// Unique for ever in its framework.
    pub run: RunId,
    /// The claim it counts against; `None` on plain offers.
    pub claim: Option<ClaimId>,
    /// What it holds.
    pub resources: Resources,
    /// How it runs; shared among tasks.
    pub spec: Arc<TaskSpec>,
    /// Over the spec's environment.
    pub environment: BTreeMap<String, String>,
    /// Over the spec's labels.
    pub labels: BTreeMap<String, String>,
    /// A run that may be replaced, and whose place this one takes.
    pub replaces: Option<RunId>,
}

/// A record to write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StorePut {
    /// 1 to 512 bytes.
    pub key: Vec<u8>,
    /// At most 256 KiB.
    pub value: Vec<u8>,
    /// The revision it must have; 0 = must not exist.
    pub expected: Option<u64>,
}

/// A record to delete.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreDelete {
    /// 1 to 512 bytes.
    pub key: Vec<u8>,
    /// The revision it must have.
    pub expected: Option<u64>,
}

/// Reason of a master-made end, shared by the rooms that make them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MasterEnd {
    /// The phase it ends in.
    pub phase: TaskPhase,
    /// Why.
    pub reason: Code,
}
