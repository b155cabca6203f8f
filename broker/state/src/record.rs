//! The records the state is made of. They are what a snapshot holds, one by one; everything else
//! (what is free, sums by role, indexes) is worked out from them.
//!
//! Every record carries the `revision` (log index) of its last change.

use std::hash::{Hash, Hasher};
use std::sync::Arc;

use mete_model::{
    AgentId, Claim, ClaimId, Code, FrameworkId, GrantId, Inventory, NodeKey, Resources, RolePath,
    RunId, Span, Status, TaskPhase, TaskSpec, Timestamp, task::KILL_GRACE,
};

use crate::command::{AgentCondition, FrameworkSettings};
use crate::effect::Verdict;
use crate::texts::Texts;

/// What belongs to no object: where the log is, the clock, the counters.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Meta {
    /// Log index of the last command that was applied.
    pub revision: u64,
    /// The latest time a leader has stamped; never runs backwards.
    pub clock: Timestamp,
    /// The last grant that was given.
    pub last_grant: GrantId,
    /// The highest node id any master ever had; none is given twice.
    pub last_master: u64,
    /// Which behaviour the commands have: raised when every master has a release that knows it.
    pub level: u32,
}

impl Hash for Meta {
    /// What a later release has added counts only when it is used, so that a snapshot of an earlier
    /// one keeps its digest.
    fn hash<H: Hasher>(&self, hash: &mut H) {
        (self.revision, self.clock, self.last_grant).hash(hash);
        if (self.last_master, self.level) != (0, 0) {
            (self.last_master, self.level).hash(hash);
        }
    }
}

/// One of the masters: where it listens, and what its seat shall be. The seat it has at the moment
/// is the replica's knowledge, not the state's.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Master {
    /// Its node id, never used again after it has left.
    pub node: u64,
    /// Where the others and clients dial it, `host:port`.
    pub address: String,
    /// What its seat shall be.
    pub seat: Seat,
    /// A master that leaves in the very step that gives this one its vote; 0 = none.
    pub replaces: u64,
    /// When it was first named.
    pub added: Timestamp,
    /// Of the last change.
    pub revision: u64,
}

/// What a master's seat shall be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Seat {
    /// Receives the log and has no vote.
    Learner,
    /// Has a vote as soon as it has caught up.
    Voter,
    /// Is on its way out.
    Leaving,
}

/// A machine.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Agent {
    /// Kept for ever.
    pub id: AgentId,
    /// What it is recognised by.
    pub node_key: NodeKey,
    /// Unique among agents that are not gone.
    pub node_name: String,
    /// What it has; shared, since snapshots and rows copy it.
    pub inventory: Arc<Inventory>,
    /// Ready, unreachable or gone.
    pub condition: AgentCondition,
    /// Since when it is so; kept across leader changes.
    pub since: Timestamp,
    /// When it was first admitted.
    pub admitted: Timestamp,
    /// Of the last change.
    pub revision: u64,
}

/// A framework that is not torn down.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Framework {
    /// Minted by a leader.
    pub id: FrameworkId,
    /// Who subscribed.
    pub principal: String,
    /// With the principal its identity.
    pub name: String,
    /// Of the process that counts.
    pub incarnation: u64,
    /// Roles, suppressed roles and the rest.
    pub settings: FrameworkSettings,
    /// When it first subscribed.
    pub subscribed: Timestamp,
    /// Since when it has no stream; `None` = it has one.
    pub away: Option<Timestamp>,
    /// Version of its demand.
    pub demand_version: u64,
    /// All calls of this incarnation up to here have been answered.
    pub answered: u64,
    /// Of the last change.
    pub revision: u64,
}

/// A role.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Role {
    /// Its place in the tree.
    pub path: RolePath,
    /// In thousandths; 0 = only what nobody else wants.
    pub weight_milli: u32,
    /// When it was made.
    pub created: Timestamp,
    /// Of the last change.
    pub revision: u64,
}

/// A claim and how much of it is launched.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ClaimRecord {
    /// Whose.
    pub framework: FrameworkId,
    /// As declared.
    pub claim: Claim,
    /// Launches so far; only rises.
    pub launched: u32,
    /// When it was first declared.
    pub submitted: Timestamp,
    /// Log index at which it was first declared; launches before it do not count against it.
    pub declared: u64,
    /// Of the last change.
    pub revision: u64,
}

impl ClaimRecord {
    /// How many may still be launched.
    #[must_use]
    pub fn remaining(&self) -> u32 {
        self.claim.count.saturating_sub(self.launched)
    }
}

/// One launch of a task: live, or over and not yet acknowledged, or in history.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Run {
    /// Whose.
    pub framework: FrameworkId,
    /// Unique for ever in its framework.
    pub id: RunId,
    /// Where.
    pub agent: AgentId,
    /// Who is charged.
    pub role: RolePath,
    /// The claim it counts against.
    pub claim: Option<ClaimId>,
    /// The grant behind it.
    pub grant: GrantId,
    /// What it holds, until its phase is terminal.
    pub resources: Resources,
    /// How it runs; one copy for all runs that are the same.
    pub spec: Arc<TaskSpec>,
    /// Over the spec's environment.
    pub environment: Texts,
    /// Over the spec's labels.
    pub labels: Texts,
    /// Where it is in its life.
    pub phase: TaskPhase,
    /// When its launch was committed.
    pub launched: Timestamp,
    /// At which log index.
    pub launched_at: u64,
    /// When it was first seen running.
    pub started: Option<Timestamp>,
    /// When its phase became terminal.
    pub ended: Option<Timestamp>,
    /// The last status that was recorded; 0 = nothing was heard yet.
    pub sequence: u64,
    /// Statuses up to here are acknowledged.
    pub acknowledged: u64,
    /// In order: all that are not acknowledged, and of the others those with a reason and the
    /// one that ended it.
    pub statuses: Vec<Status>,
    /// Somebody wants it ended.
    pub kill: Option<Box<Kill>>,
    /// Whose place it took, and who took its.
    pub replacement: Replacement,
    /// Of the last change.
    pub revision: u64,
}

impl Run {
    /// Statuses that the framework has not acknowledged, in order.
    pub fn unacknowledged(&self) -> impl Iterator<Item = &Status> {
        self.statuses
            .iter()
            .filter(|status| status.sequence > self.acknowledged)
    }

    /// Every reason that was ever given, oldest first.
    pub fn reasons(&self) -> impl Iterator<Item = Code> {
        self.statuses.iter().filter_map(|status| status.reason)
    }

    /// The status that ended it.
    #[must_use]
    pub fn end(&self) -> Option<&Status> {
        self.statuses
            .last()
            .filter(|status| status.phase.is_terminal())
    }

    /// SIGTERM to SIGKILL, as it would be if it were killed now.
    #[must_use]
    pub fn kill_grace(&self) -> Span {
        self.kill
            .as_ref()
            .and_then(|kill| kill.grace)
            .or(self.spec.kill_grace)
            .unwrap_or(KILL_GRACE)
    }
}

/// What stands of a run's replacement: nothing for nearly all runs, which then takes no room and,
/// so that a snapshot of an earlier release keeps its digest, no part in a hash.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Replacement(Option<Box<Places>>);

/// Whose place a run took, and who took its.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Places {
    /// Since when another run may take its place: its agent is unreachable for too long.
    pub replaceable: Option<Timestamp>,
    /// The run whose place it took.
    pub replaces: Option<RunId>,
    /// The run that took its place last.
    pub replaced_by: Option<RunId>,
}

impl Places {
    /// Nothing at all.
    const NONE: Self = Self {
        replaceable: None,
        replaces: None,
        replaced_by: None,
    };
}

impl Hash for Replacement {
    fn hash<H: Hasher>(&self, hash: &mut H) {
        if let Some(places) = &self.0 {
            places.hash(hash);
        }
    }
}

impl From<Places> for Replacement {
    fn from(places: Places) -> Self {
        Self((places != Places::NONE).then(|| Box::new(places)))
    }
}

impl Replacement {
    /// What stands.
    #[must_use]
    pub fn places(&self) -> &Places {
        self.0.as_deref().unwrap_or(&Places::NONE)
    }

    pub(crate) fn change(&mut self, change: impl FnOnce(&mut Places)) {
        let mut places = self.0.take().map_or(Places::NONE, |places| *places);
        change(&mut places);
        *self = Self::from(places);
    }
}

/// The persisted wish that a run ends.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Kill {
    /// When it was first wished.
    pub since: Timestamp,
    /// SIGTERM to SIGKILL; `None` = the spec's.
    pub grace: Option<Span>,
    /// `KILLED_BY_FRAMEWORK`, `KILLED_BY_OPERATOR`, `KILLED_BY_TEARDOWN` or `REPLACED`.
    pub by: Code,
    /// The operator, when one did.
    pub actor: String,
    /// For people.
    pub reason: String,
}

/// What is remembered of a run that history has dropped: enough to refuse a second launch.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct EndedRun {
    /// Whose.
    pub framework: FrameworkId,
    /// Which.
    pub run: RunId,
    /// Where it was.
    pub agent: AgentId,
    /// Its grant.
    pub grant: GrantId,
    /// How it ended.
    pub phase: TaskPhase,
    /// When.
    pub ended: Timestamp,
}

/// One record of a framework's store.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct StoreRecord {
    /// Whose.
    pub framework: FrameworkId,
    /// 1 to 512 bytes.
    pub key: Vec<u8>,
    /// At most 256 KiB.
    pub value: Arc<[u8]>,
    /// Log index of its last write.
    pub revision: u64,
}

/// The first answer to a call, kept until the framework says that it has it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct StoredVerdict {
    /// Whose.
    pub framework: FrameworkId,
    /// The call, in the framework's present incarnation.
    pub call: u64,
    /// Log index it applied at.
    pub revision: u64,
    /// The answer.
    pub verdict: Verdict,
}

/// A framework that was torn down.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Tombstone {
    /// Never used again.
    pub framework: FrameworkId,
    /// Who it was.
    pub principal: String,
    /// What it was called; the name may be used again.
    pub name: String,
    /// Its last incarnation; a successor of the name begins above it.
    pub incarnation: u64,
    /// The call that ended it, 0 if it was none: repeated, it is answered again.
    pub call: u64,
    /// Who ended it.
    pub actor: String,
    /// When.
    pub torn_down: Timestamp,
    /// When its last run was confirmed ended; `None` = some are still being killed.
    pub settled: Option<Timestamp>,
    /// Of the last change.
    pub revision: u64,
}
