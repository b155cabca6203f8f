//! What a round gives: placements to be offered, and a reason for each claim that got nothing.

use mete_model::{AgentId, ClaimId, Code, FrameworkId, Resources, RolePath};

/// How much work one round may do. Counts, never milliseconds, so that a round is reproducible.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Placements made.
    pub placements: usize,
    /// Agents examined.
    pub agents: usize,
}

impl Limits {
    /// No limit: one whole round.
    pub const NONE: Self = Self {
        placements: usize::MAX,
        agents: usize::MAX,
    };
}

/// What has changed since the last round: only this is looked at, unless `all`.
#[derive(Clone, Debug, Default)]
pub struct Dirty {
    /// Look at everything.
    pub all: bool,
    /// Claims that are new or changed.
    pub claims: Vec<(FrameworkId, ClaimId)>,
    /// Agents that have more free, or are schedulable again.
    pub agents: Vec<AgentId>,
    /// Frameworks that came back, revived, want plain offers, or have less out than before (their
    /// cap leaves more room).
    pub frameworks: Vec<FrameworkId>,
}

/// Resources of one agent for one claim, to be offered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placement {
    /// To whom.
    pub framework: FrameworkId,
    /// Who is charged.
    pub role: RolePath,
    /// `None` for a plain offer.
    pub claim: Option<ClaimId>,
    /// Where.
    pub agent: AgentId,
    /// By name.
    pub resources: Resources,
    /// Tasks of the claim's shape in it; 0 for a plain offer.
    pub slots: u32,
}

/// Why a claim still waits after a round.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Waiting {
    /// Whose.
    pub framework: FrameworkId,
    /// Which.
    pub claim: ClaimId,
    /// Tasks that still wait.
    pub remaining: u32,
    /// The dominant reason, of the part "waiting".
    pub reason: Code,
    /// Want, have: of the kind that is short, where one is.
    pub short: Option<Short>,
    /// For `ORDER`: the claim that goes first.
    pub behind: Option<(FrameworkId, ClaimId)>,
}

/// The arithmetic behind a reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Short {
    /// "cpu", "mem", "disk", "cores", "dev/gpu/t4".
    pub kind: String,
    /// Asked for by one task.
    pub want: u64,
    /// The most that one agent has (`NO_SHAPE`, `INFEASIBLE`) or all together (`NO_CAPACITY`).
    pub have: u64,
}

/// The result of a round. It always exists; "nothing" is a result with reasons.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Round {
    /// In the order they were decided.
    pub placements: Vec<Placement>,
    /// One for each looked-at claim that still waits.
    pub waiting: Vec<Waiting>,
    /// The limits ended it: call again with `Dirty::all`.
    pub unfinished: bool,
    /// Agents looked at, for measurements.
    pub agents_examined: usize,
}
