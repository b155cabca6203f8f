//! Who holds what on this agent. Only grants are kept; what is free is derived.

use mete_model::{CpuSet, Resources, TaskPhase};

use super::{AgentCore, RunKey};

/// One row of the ledger, for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LedgerRow {
    /// Which run.
    pub key: RunKey,
    /// Where it is.
    pub phase: TaskPhase,
    /// What it holds.
    pub resources: Resources,
    /// Statuses the broker has not confirmed.
    pub unconfirmed: usize,
    /// Why its resources are set aside, if they are.
    pub quarantined: Option<String>,
}

impl AgentCore {
    /// total − Σ grants; nothing below zero.
    #[must_use]
    pub fn free(&self) -> Resources {
        let mut free = self.inventory.total.clone();
        for task in self.tasks.values().filter(|task| task.holds_resources()) {
            free.saturating_subtract(&task.start.resources);
        }
        free
    }

    /// All runs with what they hold, in order.
    #[must_use]
    pub fn ledger(&self) -> Vec<LedgerRow> {
        self.tasks
            .iter()
            .map(|(key, task)| LedgerRow {
                key: key.clone(),
                phase: task.phase,
                resources: task.start.resources.clone(),
                unconfirmed: task.updates.unconfirmed().count(),
                quarantined: task.quarantined.clone(),
            })
            .collect()
    }

    /// The first run that holds a core or device which `wanted` names; it must end first.
    pub(super) fn holder_of_names(&self, wanted: &Resources) -> Option<&RunKey> {
        if wanted.cores.is_empty() && wanted.devices.is_empty() {
            return None;
        }
        self.tasks
            .iter()
            .filter(|(_, task)| task.holds_resources() && !task.waiting)
            .find(|(_, task)| self.names_collide(wanted, &task.start.resources))
            .map(|(key, _)| key)
    }

    fn names_collide(&self, a: &Resources, b: &Resources) -> bool {
        if !a.cores.intersection(&b.cores).is_empty() {
            return true;
        }
        a.devices.iter().any(|share| {
            let whole = self
                .inventory
                .total
                .devices
                .iter()
                .find(|device| device.id == share.id);
            let capacity = whole.map_or(0, |device| device.milli);
            let held: u32 = self
                .tasks
                .values()
                .filter(|task| task.holds_resources() && !task.waiting)
                .flat_map(|task| &task.start.resources.devices)
                .filter(|other| other.id == share.id)
                .map(|other| other.milli)
                .fold(0, u32::saturating_add);
            b.devices.iter().any(|other| other.id == share.id)
                && held.saturating_add(share.milli) > capacity
        })
    }

    /// Names in `wanted` that this machine does not have (any more).
    pub(super) fn missing_names(&self, wanted: &Resources) -> Option<String> {
        let absent: CpuSet = wanted.cores.difference(&self.inventory.total.cores);
        if !absent.is_empty() {
            return Some(format!("cores {absent}"));
        }
        let has = |id| {
            self.inventory
                .total
                .devices
                .iter()
                .any(|device| device.id == id)
        };
        wanted
            .devices
            .iter()
            .find(|share| !has(share.id.clone()))
            .map(|share| format!("device {}", share.id))
    }
}
