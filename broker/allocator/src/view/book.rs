//! The view itself: what it holds, and the questions a round asks it.

use std::collections::{BTreeMap, BTreeSet};

use mete_model::quota::{Charge, Kind};
use mete_model::{AgentId, ClaimId, ClassPath, FrameworkId, Resources, RolePath, Shape};

use super::kinds::{Amounts, Kinds, Sums, amount};
use super::numbered::Numbered;
use super::queues::{Queue, RoleEntry, ShapeEntry};
use super::tree::Tree;
use super::{AgentView, ClaimView, FrameworkView, RefusalView, RoleView};

/// Weight of a role that was never put, in thousandths.
const WEIGHT: u32 = 1000;

/// What the allocator looks at. Made empty, then patched; see [`View::patch`].
#[derive(Clone, Debug, Default)]
pub struct View {
    pub(crate) agents: BTreeMap<AgentId, AgentEntry>,
    pub(crate) frameworks: BTreeMap<FrameworkId, FrameworkEntry>,
    pub(super) roles: BTreeMap<RolePath, RoleView>,
    pub(crate) claims: BTreeMap<FrameworkId, BTreeMap<ClaimId, ClaimView>>,
    pub(super) refusals: BTreeMap<(FrameworkId, RolePath), BTreeMap<AgentId, RefusalView>>,

    // Everything below follows from the above.
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
    /// Roles in which something is held or wanted.
    pub(crate) role_entries: Numbered<RolePath, RoleEntry>,
    /// What waiting claims want.
    pub(crate) shapes: Numbered<Shape, ShapeEntry>,
    /// By framework: its queues in the order of roles.
    pub(crate) queues: BTreeMap<FrameworkId, Vec<Queue>>,
    /// How many queues there are.
    pub(super) queue_count: usize,
    /// Who takes plain offers, and in which role.
    pub(crate) takers: BTreeSet<(RolePath, FrameworkId)>,
}

/// An agent with its small number, so that a round keeps its notes in an array.
#[derive(Clone, Debug)]
pub(crate) struct AgentEntry {
    pub(crate) slot: usize,
    pub(crate) view: AgentView,
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

impl View {
    /// A view of nothing.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// One agent.
    #[must_use]
    pub fn agent(&self, agent: AgentId) -> Option<&AgentView> {
        self.agents.get(&agent).map(|entry| &entry.view)
    }

    /// All agents by id.
    pub fn agents(&self) -> impl Iterator<Item = (AgentId, &AgentView)> {
        self.agents.iter().map(|(id, entry)| (*id, &entry.view))
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
        self.role_entries
            .get(role)
            .map_or_else(Charge::default, |entry| self.charge(&entry.sums))
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
        if self.refusals.is_empty() {
            return None;
        }
        self.refusals.get(&(framework, role.clone()))
    }

    /// Charges are compared in steps of one part in so many: fine enough that nobody notices, and
    /// coarse enough that a round takes a bounded number of turns per framework.
    pub(crate) fn grid(&self) -> u64 {
        let queues = u64::try_from(self.queue_count).unwrap_or(u64::MAX);
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
        self.charge_of(|number| sums.get(number))
    }

    fn charge_of(&self, amount: impl Fn(usize) -> u64) -> Charge {
        self.kinds
            .iter()
            .map(|(kind, number)| (kind.clone(), amount(number)))
            .collect()
    }

    /// Everything the view knows and has worked out, as text in a fixed order: two views that are
    /// the same give the same text, whatever patches led there.
    #[must_use]
    pub fn audit(&self) -> String {
        use std::fmt::Write as _;
        let mut text = format!(
            "agents {:?}\nroles {:?}\nclaims {:?}\nrefusals {:?}\ncapacity {:?}\nfree {:?} {}\n\
             schedulable {}\nqueues {}\ntakers {:?}\n",
            self.agents().collect::<Vec<_>>(),
            self.roles,
            self.claims,
            self.refusals,
            self.capacity(),
            self.free(),
            self.free_cores,
            self.schedulable,
            self.queue_count,
            self.takers,
        );
        for (id, entry) in &self.frameworks {
            let _ = writeln!(text, "framework {id} {:?}", entry.view);
        }
        for (role, _, entry) in self.role_entries.iter() {
            let held = self.charge_of(|kind| amount(&entry.held, kind));
            let (sums, weight) = (self.held(role), entry.weight);
            let queues = entry.queues;
            let _ = writeln!(text, "role {role} {sums:?} {held:?} {weight:?} {queues}");
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
        for (shape, _, entry) in self.shapes.iter() {
            let _ = writeln!(text, "shape {shape:?} {:?} {}", entry.need, entry.queues);
        }
        for (framework, queues) in &self.queues {
            for queue in queues {
                let (path, served) = (&queue.path, queue.served);
                let role = self.role_entries.key(queue.role);
                let held = self.charge_of(|kind| amount(&queue.held, kind));
                let _ = writeln!(text, "queue {framework} {path} {role:?} {served} {held:?}");
                for source in &queue.sources {
                    let shape = self.shapes.key(source.shape);
                    let _ = writeln!(text, "  {shape:?} {:?}", source.places);
                }
            }
        }
        text
    }

    /// Above every number in use.
    pub(crate) fn slots_end(&self) -> usize {
        self.agents.len().saturating_add(self.spare_slots.len())
    }

    /// A shape that is waited for.
    pub(crate) fn shape(&self, shape: &Shape) -> Option<(&Shape, &ShapeEntry)> {
        let (shape, number) = self.shapes.find(shape)?;
        Some((shape, self.shapes.at(number)?))
    }

    pub(crate) fn number(&self, kind: &Kind) -> Option<usize> {
        self.kinds.find(kind)
    }
}
