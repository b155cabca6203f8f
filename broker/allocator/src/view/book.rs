//! The view itself: what it holds, and the questions a round asks it.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use mete_model::quota::{Charge, Kind};
use mete_model::{AgentId, ClaimId, ClassPath, FrameworkId, Resources, RolePath, Shape};

use super::free::Free;
use super::kinds::{Amounts, Kinds, Sums};
use super::tree::Tree;
use super::{AgentView, ClaimView, FrameworkView, RefusalView, RoleView};

/// Weight of a role that was never put, in thousandths.
const WEIGHT: u32 = 1000;

/// What the allocator looks at. Made empty, then patched; see [`View::patch`].
#[derive(Clone, Debug, Default)]
pub struct View {
    pub(crate) agents: BTreeMap<AgentId, AgentView>,
    pub(crate) frameworks: BTreeMap<FrameworkId, FrameworkEntry>,
    pub(super) roles: BTreeMap<RolePath, RoleView>,
    pub(crate) claims: BTreeMap<FrameworkId, BTreeMap<ClaimId, ClaimView>>,
    pub(super) refusals: BTreeMap<(FrameworkId, RolePath), BTreeMap<AgentId, RefusalView>>,

    // Everything below follows from the above.
    /// Agents by small numbers, so that a round keeps its notes in an array.
    pub(super) slots: BTreeMap<AgentId, usize>,
    /// Numbers of agents that were removed.
    pub(super) spare_slots: Vec<usize>,
    pub(super) kinds: Kinds,
    /// Agents by the exact classes of the devices they have, healthy ones.
    pub(crate) groups: BTreeMap<Vec<ClassPath>, Group>,
    /// What all agents have, schedulable or not: they still hold what was granted.
    pub(crate) capacity: Sums,
    /// What schedulable agents have free.
    pub(crate) free: Sums,
    pub(crate) free_cores: u128,
    pub(crate) schedulable: usize,
    /// By role: what its frameworks hold.
    pub(crate) role_held: BTreeMap<RolePath, Sums>,
    /// Claims with something remaining, by what one task needs.
    pub(crate) shapes: BTreeMap<Shape, ShapeEntry>,
    /// How many claims wait by role and framework.
    pub(crate) waiting: BTreeMap<(RolePath, FrameworkId), usize>,
}

/// A framework with its charges as numbers.
#[derive(Clone, Debug)]
pub(crate) struct FrameworkEntry {
    pub(crate) view: FrameworkView,
    pub(crate) held: BTreeMap<RolePath, Vec<(usize, u64)>>,
    pub(crate) offered: Amounts,
}

/// Agents with the same classes of devices.
#[derive(Clone, Debug, Default)]
pub(crate) struct Group {
    /// Schedulable ones by what is free.
    pub(crate) free: Tree,
    /// All by what they have.
    pub(crate) total: Tree,
}

/// Waiting claims of one shape.
#[derive(Clone, Debug)]
pub(crate) struct ShapeEntry {
    pub(crate) need: Free,
    pub(crate) charge: Vec<(usize, u64)>,
    pub(crate) queues: BTreeMap<(RolePath, FrameworkId), BTreeSet<Place>>,
}

/// A claim's place in its framework's order.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Place {
    pub(crate) priority: Reverse<i32>,
    pub(crate) submitted: u64,
    pub(crate) claim: ClaimId,
}

impl Place {
    pub(crate) fn of(claim: &ClaimId, view: &ClaimView) -> Self {
        Self {
            priority: Reverse(view.priority),
            submitted: view.submitted,
            claim: claim.clone(),
        }
    }
}

impl View {
    /// A view of nothing.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// One agent.
    #[must_use]
    pub fn agent(&self, agent: AgentId) -> Option<&AgentView> {
        self.agents.get(&agent)
    }

    /// All agents by id.
    pub fn agents(&self) -> impl Iterator<Item = (AgentId, &AgentView)> {
        self.agents.iter().map(|(id, view)| (*id, view))
    }

    /// One framework.
    #[must_use]
    pub fn framework(&self, framework: FrameworkId) -> Option<&FrameworkView> {
        self.frameworks.get(&framework).map(|entry| &entry.view)
    }

    /// All frameworks by id.
    pub fn frameworks(&self) -> impl Iterator<Item = (FrameworkId, &FrameworkView)> {
        self.frameworks.iter().map(|(id, entry)| (*id, &entry.view))
    }

    /// One claim.
    #[must_use]
    pub fn claim(&self, framework: FrameworkId, claim: &ClaimId) -> Option<&ClaimView> {
        self.claims.get(&framework)?.get(claim)
    }

    /// All claims, also those that wait for nothing, by framework and id.
    pub fn claims(&self) -> impl Iterator<Item = (FrameworkId, &ClaimId, &ClaimView)> {
        self.claims
            .iter()
            .flat_map(|(framework, claims)| claims.iter().map(|(id, view)| (*framework, id, view)))
    }

    /// The weight of a role in thousandths; 1000 unless it was put otherwise.
    #[must_use]
    pub fn weight_milli(&self, role: &RolePath) -> u32 {
        self.roles
            .get(role)
            .map_or(WEIGHT, |role| role.weight_milli)
    }

    /// What all agents have, schedulable or not. Shares are shares of this.
    #[must_use]
    pub fn capacity(&self) -> Charge {
        self.charge(&self.capacity)
    }

    /// What schedulable agents have free.
    #[must_use]
    pub fn free(&self) -> Charge {
        self.charge(&self.free)
    }

    /// What the frameworks of a role hold, offers included.
    #[must_use]
    pub fn held(&self, role: &RolePath) -> Charge {
        self.role_held
            .get(role)
            .map_or_else(Charge::default, |sums| self.charge(sums))
    }

    /// Says whether offers may go to this framework in this role: connected, not suppressed.
    #[must_use]
    pub fn is_served(&self, framework: FrameworkId, role: &RolePath) -> bool {
        self.framework(framework)
            .is_some_and(|view| view.connected && view.roles.get(role) == Some(&false))
    }

    /// Says whether the agent, with so much free, is hidden from a claim of this shape (`None`:
    /// from plain offers) by what the framework refused there.
    #[must_use]
    pub fn is_refused(
        &self,
        (framework, role): (FrameworkId, &RolePath),
        agent: AgentId,
        shape: Option<&Shape>,
        free: &Resources,
    ) -> bool {
        self.refusals_of(framework, role)
            .and_then(|refusals| refusals.get(&agent))
            .is_some_and(|refusal| refusal.hides(shape, free))
    }

    pub(crate) fn refusals_of(
        &self,
        framework: FrameworkId,
        role: &RolePath,
    ) -> Option<&BTreeMap<AgentId, RefusalView>> {
        self.refusals.get(&(framework, role.clone()))
    }

    /// Charges are compared in steps of one part in so many: fine enough that nobody notices, and
    /// coarse enough that a round takes a bounded number of turns per framework.
    pub(crate) fn grid(&self) -> u64 {
        let queues = u64::try_from(self.waiting.len()).unwrap_or(u64::MAX);
        queues.saturating_mul(16).max(4096)
    }

    /// The first kind whose sum over all schedulable agents is less than one task needs: its name,
    /// what is wanted and what there is.
    pub(crate) fn short_sum(
        &self,
        entry: &ShapeEntry,
        taken: &Sums,
        taken_cores: u64,
    ) -> Option<(String, u64, u64)> {
        for (kind, number) in self.kinds.iter() {
            let want = entry
                .charge
                .iter()
                .find(|(kind, _)| *kind == number)
                .map_or(0, |(_, amount)| *amount);
            let have = self.free.get(number).saturating_sub(taken.get(number));
            if have < want {
                return Some((kind.to_string(), want, have));
            }
        }
        let cores = self.free_cores.saturating_sub(u128::from(taken_cores));
        let cores = u64::try_from(cores).unwrap_or(u64::MAX);
        let want = u64::from(entry.need.cores);
        (cores < want).then(|| ("cores".to_owned(), want, cores))
    }

    fn charge(&self, sums: &Sums) -> Charge {
        self.kinds
            .iter()
            .map(|(kind, number)| (kind.clone(), sums.get(number)))
            .collect()
    }

    /// Everything the view knows and has worked out, as text in a fixed order: two views that are
    /// the same give the same text, whatever patches led there.
    #[must_use]
    pub fn audit(&self) -> String {
        use std::fmt::Write as _;
        let mut text = format!(
            "agents {:?}\nroles {:?}\nclaims {:?}\nrefusals {:?}\ncapacity {:?}\nfree {:?} {}\n\
             schedulable {}\nwaiting {:?}\n",
            self.agents,
            self.roles,
            self.claims,
            self.refusals,
            self.capacity(),
            self.free(),
            self.free_cores,
            self.schedulable,
            self.waiting,
        );
        for (id, entry) in &self.frameworks {
            let _ = writeln!(text, "framework {id} {:?}", entry.view);
        }
        for role in self.role_held.keys() {
            let _ = writeln!(text, "held {role} {:?}", self.held(role));
        }
        for (classes, group) in &self.groups {
            let free: Vec<_> = group
                .free
                .iter()
                .map(|entry| (entry.agent, entry.free))
                .collect();
            let total: Vec<_> = group
                .total
                .iter()
                .map(|entry| (entry.agent, entry.free))
                .collect();
            let _ = writeln!(text, "group {classes:?} {free:?} {total:?}");
        }
        for (shape, entry) in &self.shapes {
            let _ = writeln!(text, "shape {shape:?} {:?} {:?}", entry.need, entry.queues);
        }
        text
    }

    /// The number of an agent that is known.
    pub(crate) fn slot(&self, agent: AgentId) -> Option<usize> {
        self.slots.get(&agent).copied()
    }

    /// Above every number in use.
    pub(crate) fn slots_end(&self) -> usize {
        self.slots.len().saturating_add(self.spare_slots.len())
    }

    pub(crate) fn number(&self, kind: &Kind) -> Option<usize> {
        self.kinds.find(kind)
    }
}
