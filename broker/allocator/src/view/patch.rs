//! Patches: each puts or removes one thing and keeps every index true.

use mete_model::quota::Charge;
use mete_model::{AgentId, ClaimId, ClassPath, FrameworkId, Resources, RolePath};

use super::book::{FrameworkEntry, Place, ShapeEntry, View};
use super::free::Free;
use super::tree::Entry;
use super::{AgentView, Change, ClaimView, FrameworkView, RefusalView};

impl View {
    /// Applies one change. Putting again replaces; removing what is not there does nothing.
    pub fn patch(&mut self, change: Change) {
        match change {
            Change::Agent(id, agent) => self.patch_agent(id, agent),
            Change::Framework(id, framework) => self.patch_framework(id, framework),
            Change::Role(path, Some(role)) => {
                self.roles.insert(path, role);
            }
            Change::Role(path, None) => {
                self.roles.remove(&path);
            }
            Change::Claim(framework, id, claim) => self.patch_claim(framework, id, claim),
            Change::Refusal(framework, role, agent, refusal) => {
                self.patch_refusal((framework, role), agent, refusal);
            }
        }
    }

    fn patch_agent(&mut self, id: AgentId, agent: Option<AgentView>) {
        let next = self.slots_end();
        let spare = &mut self.spare_slots;
        let slot = *self
            .slots
            .entry(id)
            .or_insert_with(|| spare.pop().unwrap_or(next));
        if let Some(old) = self.agents.remove(&id) {
            self.count_agent((id, slot), &old, false);
        }
        if let Some(new) = agent {
            self.count_agent((id, slot), &new, true);
            self.agents.insert(id, new);
        } else {
            self.slots.remove(&id);
            self.spare_slots.push(slot);
            for refusals in self.refusals.values_mut() {
                refusals.remove(&id);
            }
            self.refusals.retain(|_, refusals| !refusals.is_empty());
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
            for (role, held) in old.held {
                if let Some(sums) = self.role_held.get_mut(&role) {
                    sums.subtract(&held);
                    if sums.is_zero() {
                        self.role_held.remove(&role);
                    }
                }
            }
        }
        if let Some(view) = framework {
            let entry = self.count_framework(view);
            self.frameworks.insert(id, entry);
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
                self.role_held.entry(role.clone()).or_default().add(&held);
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

    fn enter_queue(&mut self, framework: FrameworkId, id: &ClaimId, claim: &ClaimView) {
        if claim.remaining == 0 {
            return;
        }
        let key = (claim.role.clone(), framework);
        let charge = self.kinds.pairs(&Charge::of_shape(&claim.shape));
        let entry = self
            .shapes
            .entry(claim.shape.clone())
            .or_insert_with(|| ShapeEntry {
                need: Free::need(&claim.shape),
                charge,
                queues: std::collections::BTreeMap::new(),
            });
        let place = Place::of(id, claim);
        entry.queues.entry(key.clone()).or_default().insert(place);
        let waiting = self.waiting.entry(key).or_default();
        *waiting = waiting.saturating_add(1);
    }

    fn leave_queue(&mut self, framework: FrameworkId, id: &ClaimId, claim: &ClaimView) {
        if claim.remaining == 0 {
            return;
        }
        let key = (claim.role.clone(), framework);
        if let Some(entry) = self.shapes.get_mut(&claim.shape) {
            if let Some(queue) = entry.queues.get_mut(&key) {
                queue.remove(&Place::of(id, claim));
                if queue.is_empty() {
                    entry.queues.remove(&key);
                }
            }
            if entry.queues.is_empty() {
                self.shapes.remove(&claim.shape);
            }
        }
        if let Some(waiting) = self.waiting.get_mut(&key) {
            *waiting = waiting.saturating_sub(1);
            if *waiting == 0 {
                self.waiting.remove(&key);
            }
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
