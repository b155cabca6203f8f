//! Patches: each puts or removes one thing and keeps every index true.

use mete_model::quota::Charge;
use mete_model::{AgentId, ClaimId, ClassPath, FrameworkId, Resources, RolePath};

use super::book::{AgentEntry, FrameworkEntry, View};
use super::free::Free;
use super::tree::Entry;
use super::{AgentView, Change, ClaimView, FrameworkView, RefusalView, RoleView};
use crate::share::Weight;

impl View {
    /// Applies one change. Putting again replaces; removing what is not there does nothing.
    pub fn patch(&mut self, change: Change) {
        match change {
            Change::Agent(id, agent) => self.patch_agent(id, agent),
            Change::Framework(id, framework) => self.patch_framework(id, framework),
            Change::Role(path, role) => self.patch_role(path, role),
            Change::Claim(framework, id, claim) => self.patch_claim(framework, id, claim),
            Change::Refusal(framework, role, agent, refusal) => {
                self.patch_refusal((framework, role), agent, refusal);
            }
        }
    }

    fn patch_agent(&mut self, id: AgentId, agent: Option<AgentView>) {
        let next = self.slots_end();
        let old = self.agents.remove(&id);
        if let Some(old) = &old {
            self.count_agent((id, old.slot), &old.view, false);
        }
        if let Some(view) = agent {
            let slot = old.map(|old| old.slot);
            let slot = slot.or_else(|| self.spare_slots.pop()).unwrap_or(next);
            self.count_agent((id, slot), &view, true);
            self.agents.insert(id, AgentEntry { slot, view });
            return;
        }
        self.spare_slots.extend(old.map(|old| old.slot));
        for refusals in self.refusals.values_mut() {
            refusals.remove(&id);
        }
        self.refusals.retain(|_, refusals| !refusals.is_empty());
    }

    fn patch_role(&mut self, path: RolePath, role: Option<RoleView>) {
        match role {
            Some(role) => self.roles.insert(path.clone(), role),
            None => self.roles.remove(&path),
        };
        let weight = Weight::new(self.weight_milli(&path));
        let number = self.role_entries.find(&path).map(|(_, number)| number);
        if let Some(entry) = number.and_then(|number| self.role_entries.at_mut(number)) {
            entry.weight = weight;
        }
    }

    /// Counts an agent in or out of sums and orders.
    fn count_agent(&mut self, (id, slot): (AgentId, usize), agent: &AgentView, comes: bool) {
        let total = self.kinds.pairs(&Charge::of(&agent.total));
        let classes = classes_of(&agent.total);
        let group = self.groups.entry(classes.clone()).or_default();
        let entry = |free: Free| Entry {
            agent: id,
            slot,
            free,
        };
        let numbers = Free::of(&agent.total);
        if comes {
            self.capacity.add(&total);
            group.total.insert(entry(numbers));
        } else {
            self.capacity.subtract(&total);
            group.total.remove(id, &numbers);
        }
        if agent.schedulable {
            let free = self.kinds.pairs(&Charge::of(&agent.free));
            let numbers = Free::of(&agent.free);
            let cores = u128::from(numbers.cores);
            if comes {
                self.free.add(&free);
                self.free_cores = self.free_cores.saturating_add(cores);
                self.schedulable = self.schedulable.saturating_add(1);
                group.free.insert(entry(numbers));
            } else {
                self.free.subtract(&free);
                self.free_cores = self.free_cores.saturating_sub(cores);
                self.schedulable = self.schedulable.saturating_sub(1);
                group.free.remove(id, &numbers);
            }
        }
        if group.total.is_empty() {
            self.groups.remove(&classes);
        }
    }

    fn patch_framework(&mut self, id: FrameworkId, framework: Option<FrameworkView>) {
        if let Some(old) = self.frameworks.remove(&id) {
            for (role, held) in &old.held {
                self.count_held(role, held, false);
            }
            for role in taken_in(&old.view) {
                self.takers.remove(&(role.clone(), id));
            }
        }
        if let Some(view) = framework {
            for role in taken_in(&view) {
                self.takers.insert((role.clone(), id));
            }
            let entry = self.count_framework(view);
            self.frameworks.insert(id, entry);
            self.settle_queues(id);
            return;
        }
        let claims: Vec<ClaimId> = self
            .claims
            .get(&id)
            .map(|claims| claims.keys().cloned().collect())
            .unwrap_or_default();
        for claim in claims {
            self.patch_claim(id, claim, None);
        }
        self.refusals.retain(|(framework, _), _| *framework != id);
    }

    fn count_framework(&mut self, view: FrameworkView) -> FrameworkEntry {
        let offered = self.kinds.amounts(&view.offered);
        let mut entry = FrameworkEntry {
            held: std::collections::BTreeMap::new(),
            offered,
            view,
        };
        for (role, held) in &entry.view.held {
            let held = self.kinds.pairs(held);
            if !held.is_empty() {
                self.count_held(role, &held, true);
                entry.held.insert(role.clone(), held);
            }
        }
        entry
    }

    fn patch_claim(&mut self, framework: FrameworkId, id: ClaimId, claim: Option<ClaimView>) {
        if let Some(claims) = self.claims.get_mut(&framework)
            && let Some(old) = claims.remove(&id)
        {
            if claims.is_empty() {
                self.claims.remove(&framework);
            }
            self.leave_queue(framework, &id, &old);
        }
        if let Some(new) = claim {
            self.enter_queue(framework, &id, &new);
            self.claims.entry(framework).or_default().insert(id, new);
        }
    }

    fn patch_refusal(
        &mut self,
        key: (FrameworkId, RolePath),
        agent: AgentId,
        refusal: Option<RefusalView>,
    ) {
        if let Some(refusal) = refusal {
            self.refusals.entry(key).or_default().insert(agent, refusal);
        } else if let Some(refusals) = self.refusals.get_mut(&key) {
            refusals.remove(&agent);
            if refusals.is_empty() {
                self.refusals.remove(&key);
            }
        }
    }
}

/// The roles in which a framework takes plain offers.
fn taken_in(view: &FrameworkView) -> impl Iterator<Item = &RolePath> {
    let takes = view.connected && view.plain_offers;
    let open = move |(_, suppressed): &(&RolePath, &bool)| takes && !**suppressed;
    view.roles.iter().filter(open).map(|(role, _)| role)
}

/// The exact classes of an agent's devices, each once, in order.
pub(crate) fn classes_of(total: &Resources) -> Vec<ClassPath> {
    let mut classes: Vec<ClassPath> = Vec::new();
    for device in &total.devices {
        if let Err(at) = classes.binary_search(&device.class) {
            classes.insert(at, device.class.clone());
        }
    }
    classes
}
