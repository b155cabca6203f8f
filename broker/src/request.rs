//! What may be asked of the loop, and how it answers. Plain data in the model's words.

use std::collections::BTreeMap;

use mete_model::{
    AgentId, Claim, ClaimId, Code, FrameworkId, OfferId, Resources, RolePath, RunId, Span, TaskSpec,
};
use mete_state::command::{FrameworkSettings, StoreDelete, StorePut};
use mete_state::{Caller, FieldFault, ItemVerdict, Rejection, Verdict};
use std::sync::Arc;

/// One call.
#[derive(Clone, Debug)]
pub enum Request {
    /// A framework's call: fenced, ordered and repeatable by its header.
    Framework {
        /// Identity, fence, order, repeat protection.
        caller: Caller,
        /// What it wants.
        action: FrameworkAction,
    },
    /// An operator's call.
    Operator {
        /// Who, for the audit.
        actor: String,
        /// What it wants.
        action: OperatorAction,
        /// Check everything, change nothing.
        dry_run: bool,
    },
    /// A point in the log from which a read on this leader sees every answer given before.
    ReadPoint,
}

/// What a framework may ask for.
#[derive(Clone, Debug)]
pub enum FrameworkAction {
    /// Claims put and withdrawn.
    UpdateDemand {
        /// Rises with each change.
        version: u64,
        /// Claims put or changed.
        upsert: Vec<Claim>,
        /// Claims withdrawn.
        remove: Vec<ClaimId>,
    },
    /// Launches on offers of one agent.
    Accept(Accept),
    /// Offers given back.
    Decline {
        /// Which.
        offers: Vec<OfferId>,
        /// For `mete why`.
        reason: String,
        /// How long what they carried stays hidden.
        refuse: Refuse,
    },
    /// Roles suppressed or revived; empty = all of the framework.
    Suppress {
        /// Which.
        roles: Vec<RolePath>,
        /// True = suppress, false = revive.
        suppressed: bool,
    },
    /// New settings, whole.
    UpdateFramework {
        /// All of them.
        settings: FrameworkSettings,
    },
    /// Runs to be ended.
    Kill {
        /// Which.
        runs: Vec<RunId>,
        /// SIGTERM to SIGKILL; `None` = the spec's.
        grace: Option<Span>,
        /// For people.
        reason: String,
    },
    /// Statuses that have been handled.
    Acknowledge {
        /// Run and the sequence up to which.
        items: Vec<(RunId, u64)>,
    },
    /// Records of the store, all or nothing.
    WriteStore {
        /// To write.
        puts: Vec<StorePut>,
        /// To delete.
        deletes: Vec<StoreDelete>,
    },
    /// The end of the framework.
    Teardown,
    /// A read of its own things: the fence is compared, then a [`Reply::ReadAt`] says from which
    /// revision on the state may be read.
    Read,
}

/// Launches on offers of one agent.
#[derive(Clone, Debug)]
pub struct Accept {
    /// At least one, all of one agent and one role.
    pub offers: Vec<OfferId>,
    /// What to launch; may be empty (everything is given back).
    pub launches: Vec<AcceptLaunch>,
    /// False: one refused launch refuses all.
    pub each_alone: bool,
    /// Why what is not used is not used.
    pub unused_reason: String,
    /// How long what is not used stays hidden; `None` = it may be offered at once.
    pub unused_refuse: Option<Refuse>,
}

/// One task of an accept.
#[derive(Clone, Debug)]
pub struct AcceptLaunch {
    /// Unique for ever in its framework.
    pub run: RunId,
    /// The claim it counts against.
    pub claim: Option<ClaimId>,
    /// What it holds.
    pub resources: Resources,
    /// How it runs.
    pub spec: Arc<TaskSpec>,
    /// Over the spec's environment.
    pub environment: BTreeMap<String, String>,
    /// Over the spec's labels.
    pub labels: BTreeMap<String, String>,
    /// A run whose place it takes.
    pub replaces: Option<RunId>,
}

/// How long a refusal lasts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refuse {
    /// Until the framework's demand in that role changes.
    UntilDemandChanges,
    /// So long, at most [`LONGEST_REFUSAL`].
    For(Span),
}

/// A refusal that is longer reads as "until demand changes".
pub const LONGEST_REFUSAL: Span = Span::days(7);

impl Refuse {
    /// From the wire's milliseconds: 0 and anything too long mean until demand changes.
    #[must_use]
    pub fn from_milliseconds(milliseconds: u64) -> Self {
        if milliseconds == 0 || milliseconds > LONGEST_REFUSAL.0 {
            Self::UntilDemandChanges
        } else {
            Self::For(Span(milliseconds))
        }
    }
}

/// What an operator may ask for.
#[derive(Clone, Debug)]
pub enum OperatorAction {
    /// A role made or changed.
    SetRole {
        /// Which.
        path: RolePath,
        /// In thousandths; `None` = unchanged.
        weight_milli: Option<u32>,
    },
    /// A role removed.
    RemoveRole {
        /// Which.
        path: RolePath,
    },
    /// Runs to be ended.
    KillTasks {
        /// Which.
        runs: Vec<(FrameworkId, RunId)>,
        /// SIGTERM to SIGKILL; `None` = the spec's.
        grace: Option<Span>,
        /// For people.
        reason: String,
    },
    /// Roles of a framework suppressed or revived.
    SuppressFramework {
        /// Which framework.
        framework: FrameworkId,
        /// To suppress.
        suppress: Vec<RolePath>,
        /// To revive.
        revive: Vec<RolePath>,
    },
    /// A framework torn down.
    RemoveFramework {
        /// Which.
        framework: FrameworkId,
    },
    /// Open offers taken back.
    RescindOffers {
        /// Which.
        offers: Vec<OfferId>,
    },
    /// A master named, so that it may join.
    AddMaster {
        /// `host:port`.
        address: String,
        /// Gets no vote by itself.
        learner: bool,
        /// A voter that leaves when this one gets its vote.
        replaces: Option<u64>,
        /// Its node id lies above this one; filled in by the loop, which knows the members.
        above: u64,
    },
    /// A vote for a master that was added without one.
    PromoteMaster {
        /// Its node id.
        node: u64,
    },
    /// A master taken out, for ever.
    RemoveMaster {
        /// Its node id.
        node: u64,
    },
    /// The leadership given to another voter.
    HandOver {
        /// Its node id; `None` = any that has everything.
        to: Option<u64>,
    },
    /// A node that never comes back.
    RemoveNode {
        /// Which.
        agent: AgentId,
    },
}

/// The answer to a call that was evaluated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// The command applied at this revision, with this verdict. Of a dry run, and of a call that
    /// changed nothing, the revision is the last applied one.
    Applied {
        /// Index of the log.
        revision: u64,
        /// The state's answer.
        verdict: Verdict,
    },
    /// One verdict for each offer, in order; nothing was logged.
    Offers {
        /// `OK`, `OFFER_EXPIRED`, `OFFER_RESCINDED` or `NOT_FOUND`.
        verdicts: Vec<ItemVerdict>,
    },
    /// The leadership goes to this master, unless it dies meanwhile.
    HandedOver {
        /// Its node id.
        to: u64,
    },
    /// Reads of the applied state from this revision on are linearizable.
    ReadAt {
        /// Index of the log.
        revision: u64,
    },
}

/// Where the leader is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leader {
    /// Its `host:port`; empty when not known.
    pub address: String,
    /// The term this is known from.
    pub term: u64,
}

/// A call of which nothing was done, or whose outcome is unknown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// Code, sentence, fields at fault.
    pub rejection: Rejection,
    /// For `NOT_LEADER`.
    pub leader: Option<Leader>,
    /// When to come again, where it differs from the code's usual time.
    pub retry_after: Option<Span>,
}

impl Refusal {
    /// A refusal with a code and a sentence.
    #[must_use]
    pub fn new(code: Code, detail: impl Into<String>) -> Self {
        Self::from(Rejection::new(code, detail))
    }

    /// An `INVALID` that names one field.
    #[must_use]
    pub fn field(field: impl Into<String>, fault: impl Into<String>) -> Self {
        Self::from(Rejection::field(field, fault))
    }

    /// `BUSY` with the time to come again.
    #[must_use]
    pub fn busy(detail: impl Into<String>, again_in: Span) -> Self {
        Self {
            retry_after: Some(again_in),
            ..Self::new(Code::Busy, detail)
        }
    }

    /// `UNKNOWN`: it may or may not have been done.
    #[must_use]
    pub fn unknown() -> Self {
        Self::new(
            Code::Unknown,
            "this master stopped leading before it knew the outcome; ask the leader again with \
             the same call number",
        )
    }

    /// The code.
    #[must_use]
    pub fn code(&self) -> Code {
        self.rejection.code
    }

    /// The fields at fault.
    #[must_use]
    pub fn fields(&self) -> &[FieldFault] {
        &self.rejection.fields
    }
}

impl From<Rejection> for Refusal {
    fn from(rejection: Rejection) -> Self {
        Self {
            rejection,
            leader: None,
            retry_after: None,
        }
    }
}

impl std::fmt::Display for Refusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.rejection.fmt(f)
    }
}

impl std::error::Error for Refusal {}
