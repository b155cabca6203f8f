//! Who contends: one queue for each framework and role with waiting claims, patched with every
//! change, so that a round does not work out again what each of them holds and is first to want.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use mete_model::quota::Charge;
use mete_model::{ClaimId, FrameworkId, RolePath, Shape};

use super::ClaimView;
use super::book::View;
use super::free::Free;
use super::kinds::{Amounts, Sums, add};
use crate::share::Weight;

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

/// What is the same for all waiting claims of one shape.
#[derive(Clone, Debug)]
pub(crate) struct ShapeEntry {
    pub(crate) need: Free,
    pub(crate) charge: Vec<(usize, u64)>,
    /// Queues with claims of it.
    pub(super) queues: usize,
}

/// A role in which something is held or wanted.
#[derive(Clone, Debug, Default)]
pub(crate) struct RoleEntry {
    pub(crate) weight: Weight,
    /// What its frameworks hold, to add to and to take from.
    pub(super) sums: Sums,
    /// The same as amounts.
    pub(crate) held: Amounts,
    /// Queues in it.
    pub(super) queues: usize,
}

/// Waiting claims of one framework in one role. There is none without claims.
#[derive(Clone, Debug)]
pub(crate) struct Queue {
    pub(crate) path: RolePath,
    /// The role's number.
    pub(crate) role: usize,
    /// The framework is connected, and not suppressed in this role.
    pub(crate) served: bool,
    /// What the framework holds in this role.
    pub(crate) held: Amounts,
    /// In the order of shapes.
    pub(crate) sources: Vec<Source>,
}

/// Waiting claims of one shape.
#[derive(Clone, Debug)]
pub(crate) struct Source {
    /// The shape's number.
    pub(crate) shape: usize,
    pub(crate) places: BTreeSet<Place>,
}

impl View {
    /// The queue of a framework in a role, if anything waits there.
    pub(crate) fn queue_of(&self, framework: FrameworkId, path: &RolePath) -> Option<&Queue> {
        let queues = self.queues.get(&framework)?;
        let at = queues.binary_search_by(|queue| queue.path.cmp(path)).ok()?;
        queues.get(at)
    }

    /// What a framework holds in a role, as amounts.
    pub(super) fn held_by(&self, framework: FrameworkId, role: &RolePath) -> Amounts {
        let mut held = Amounts::new();
        let entry = self.frameworks.get(&framework);
        let pairs = entry.and_then(|entry| entry.held.get(role));
        for (kind, amount) in pairs.into_iter().flatten() {
            add(&mut held, *kind, *amount);
        }
        held
    }

    /// Says anew of each queue of a framework what follows from the framework.
    pub(super) fn settle_queues(&mut self, framework: FrameworkId) {
        let Some(mut queues) = self.queues.remove(&framework) else {
            return;
        };
        for queue in &mut queues {
            queue.served = self.is_served(framework, &queue.path);
            queue.held = self.held_by(framework, &queue.path);
        }
        self.queues.insert(framework, queues);
    }

    pub(super) fn enter_queue(&mut self, framework: FrameworkId, id: &ClaimId, claim: &ClaimView) {
        if claim.remaining == 0 {
            return;
        }
        let (number, at) = (self.shape_number(&claim.shape), claim.shape.clone());
        let queue = self.queue(framework, &claim.role);
        let queues = self.queues.entry(framework).or_default();
        let Some(queue) = queues.get_mut(queue) else {
            return;
        };
        let shapes = &self.shapes;
        let place = queue.sources.binary_search_by(|source| {
            let shape = shapes.key(source.shape);
            shape.cmp(&Some(&at))
        });
        let place = place.unwrap_or_else(|place| {
            let places = BTreeSet::new();
            let shape = number;
            queue.sources.insert(place, Source { shape, places });
            if let Some(entry) = self.shapes.at_mut(number) {
                entry.queues = entry.queues.saturating_add(1);
            }
            place
        });
        if let Some(source) = queue.sources.get_mut(place) {
            source.places.insert(Place::of(id, claim));
        }
    }

    fn shape_number(&mut self, shape: &Shape) -> usize {
        if let Some((_, number)) = self.shapes.find(shape) {
            return number;
        }
        let charge = self.kinds.pairs(&Charge::of_shape(shape));
        self.shapes.number(shape, || ShapeEntry {
            need: Free::need(shape),
            charge,
            queues: 0,
        })
    }

    /// The place of a queue among those of its framework, a new one if there is none.
    fn queue(&mut self, framework: FrameworkId, path: &RolePath) -> usize {
        let queues = self.queues.entry(framework).or_default();
        match queues.binary_search_by(|queue| queue.path.cmp(path)) {
            Ok(at) => at,
            Err(at) => {
                let role = self.role_number(path);
                if let Some(entry) = self.role_entries.at_mut(role) {
                    entry.queues = entry.queues.saturating_add(1);
                }
                let queue = Queue {
                    path: path.clone(),
                    role,
                    served: self.is_served(framework, path),
                    held: self.held_by(framework, path),
                    sources: Vec::new(),
                };
                let queues = self.queues.entry(framework).or_default();
                queues.insert(at, queue);
                self.queue_count = self.queue_count.saturating_add(1);
                at
            }
        }
    }

    pub(super) fn leave_queue(&mut self, framework: FrameworkId, id: &ClaimId, claim: &ClaimView) {
        if claim.remaining == 0 {
            return;
        }
        let Some((_, number)) = self.shapes.find(&claim.shape) else {
            return;
        };
        let Some(queues) = self.queues.get_mut(&framework) else {
            return;
        };
        let Ok(at) = queues.binary_search_by(|queue| queue.path.cmp(&claim.role)) else {
            return;
        };
        let Some(queue) = queues.get_mut(at) else {
            return;
        };
        let Some(of) = queue
            .sources
            .iter()
            .position(|source| source.shape == number)
        else {
            return;
        };
        if let Some(source) = queue.sources.get_mut(of) {
            source.places.remove(&Place::of(id, claim));
            if !source.places.is_empty() {
                return;
            }
        }
        queue.sources.remove(of);
        let role = queue.role;
        let is_over = queue.sources.is_empty();
        if is_over {
            queues.remove(at);
            if queues.is_empty() {
                self.queues.remove(&framework);
            }
            self.queue_count = self.queue_count.saturating_sub(1);
        }
        if let Some(entry) = self.shapes.at_mut(number) {
            entry.queues = entry.queues.saturating_sub(1);
            if entry.queues == 0 {
                self.shapes.remove(&claim.shape);
            }
        }
        if is_over && let Some(entry) = self.role_entries.at_mut(role) {
            entry.queues = entry.queues.saturating_sub(1);
            self.forget_idle_role(&claim.role);
        }
    }

    /// The number of a role, a new one if it has none.
    pub(super) fn role_number(&mut self, path: &RolePath) -> usize {
        let weight = Weight::new(self.weight_milli(path));
        self.role_entries.number(path, || RoleEntry {
            weight,
            ..RoleEntry::default()
        })
    }

    /// Adds to what a role holds, or takes from it.
    pub(super) fn count_held(&mut self, path: &RolePath, pairs: &[(usize, u64)], more: bool) {
        let number = self.role_number(path);
        if let Some(entry) = self.role_entries.at_mut(number) {
            if more {
                entry.sums.add(pairs);
            } else {
                entry.sums.subtract(pairs);
            }
            for (kind, _) in pairs {
                let sum = entry.sums.get(*kind);
                super::kinds::set(&mut entry.held, *kind, sum);
            }
        }
        self.forget_idle_role(path);
    }

    /// Removes a role in which nothing is held or wanted.
    fn forget_idle_role(&mut self, path: &RolePath) {
        let entry = self.role_entries.get(path);
        if entry.is_some_and(|entry| entry.queues == 0 && entry.sums.is_zero()) {
            self.role_entries.remove(path);
        }
    }
}
