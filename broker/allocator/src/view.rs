//! What the allocator looks at: free resources, waiting claims, shares. Patched, never rebuilt
//! within a term.
//!
//! The leader keeps one [`View`] and patches it with every change of the state and of its offer
//! book. Everything is given as numbers and names; the view knows no offers' ids and no time.
//!
//! Patches may come in any order: a claim may be put before its framework, a framework before its
//! role. A role that was never put has weight 1.

mod book;
pub(crate) mod free;
pub(crate) mod kinds;
mod numbered;
mod patch;
mod queues;
pub(crate) mod tree;

pub(crate) use book::AgentEntry;
pub use book::View;
pub(crate) use patch::classes_of;
pub(crate) use queues::{Place, Queue, RoleEntry, ShapeEntry};

use std::collections::BTreeMap;

use mete_model::{AgentId, ClaimId, FrameworkId, Resources, RolePath, Shape, fit};

/// One agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AgentView {
    /// What it has in all.
    pub total: Resources,
    /// total − granted − offered; never below zero.
    pub free: Resources,
    /// Ready, and back since this leader took over.
    pub schedulable: bool,
}

/// One framework.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FrameworkView {
    /// Has a stream.
    pub connected: bool,
    /// Wants whole-node offers without claims.
    pub plain_offers: bool,
    /// Its roles, and whether each is suppressed.
    pub roles: BTreeMap<RolePath, bool>,
    /// By role: granted and offered together. What the fair order counts.
    pub held: BTreeMap<RolePath, mete_model::quota::Charge>,
    /// Offered and not answered: what the cap counts.
    pub offered: mete_model::quota::Charge,
    /// Halves the cap: 0 = whole, 1 = half … (offers that expired in a row).
    pub cap_halvings: u32,
}

/// One role.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RoleView {
    /// In thousandths; 0 = only what nobody else wants.
    pub weight_milli: u32,
}

/// One claim that may wait.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClaimView {
    /// Who is charged.
    pub role: RolePath,
    /// What one task needs.
    pub shape: Shape,
    /// count − launched − offered.
    pub remaining: u32,
    /// Higher first inside the role.
    pub priority: i32,
    /// Orders claims of equal priority: lower first (the time of submission in ms).
    pub submitted: u64,
}

/// What one framework refused on one agent. Hides the agent from a claim while both hold: a task of
/// the claim is no more than what was refused, and nothing more has become free since.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RefusalView {
    /// What was declined.
    pub resources: Resources,
    /// All that was free on the agent once the declined offer was back in it.
    pub free: Resources,
    /// Others that stand beside it: each hides by itself.
    pub others: Vec<RefusalView>,
}

impl RefusalView {
    /// Says whether the agent, with so much free now, is hidden from a claim of this shape; `None`
    /// for a plain offer, which is of all that is free.
    #[must_use]
    pub fn hides(&self, shape: Option<&Shape>, free: &Resources) -> bool {
        let by_itself = self.free.contains(free)
            && shape.is_none_or(|shape| fit(shape, &self.resources).is_ok());
        by_itself || self.others.iter().any(|other| other.hides(shape, free))
    }
}

/// One patch of the view. `None` removes.
#[derive(Clone, Debug)]
pub enum Change {
    /// An agent put or removed.
    Agent(AgentId, Option<AgentView>),
    /// A framework put or removed; removing takes its claims and refusals along.
    Framework(FrameworkId, Option<FrameworkView>),
    /// A role put or removed.
    Role(RolePath, Option<RoleView>),
    /// A claim put or removed.
    Claim(FrameworkId, ClaimId, Option<ClaimView>),
    /// A refusal put or lifted: by framework, role and agent.
    Refusal(FrameworkId, RolePath, AgentId, Option<RefusalView>),
}
