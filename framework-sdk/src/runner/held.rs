//! Statuses that their handler refused: they come again with growing pauses, in order for each run,
//! while other runs go on.

use std::collections::BTreeMap;

use mete_model::RunId;
use tokio::time::Instant;

use crate::core::Backoff;
use crate::task::TaskUpdate;

#[derive(Debug, Default)]
struct HeldRun {
    updates: Vec<TaskUpdate>,
    backoff: Backoff,
    due: Option<Instant>,
}

#[derive(Debug, Default)]
pub(super) struct Held {
    runs: BTreeMap<RunId, HeldRun>,
}

impl Held {
    /// Keeps back what belongs behind a held status; gives what may be handed over now.
    pub(super) fn pass(&mut self, updates: Vec<TaskUpdate>) -> Vec<TaskUpdate> {
        if self.runs.is_empty() {
            return updates;
        }
        let mut free = Vec::with_capacity(updates.len());
        for update in updates {
            match self.runs.get_mut(&update.run()) {
                Some(held) => held.updates.push(update),
                None => free.push(update),
            }
        }
        free
    }

    /// Holds statuses that failed, in order.
    pub(super) fn hold(&mut self, updates: Vec<TaskUpdate>) {
        let now = Instant::now();
        for update in updates {
            let held = self.runs.entry(update.run()).or_default();
            if held.due.is_none() {
                held.due = Some(now + held.backoff.next());
            }
            held.updates.push(update);
        }
    }

    /// When something is due next.
    pub(super) fn next_due(&self) -> Option<Instant> {
        self.runs.values().filter_map(|held| held.due).min()
    }

    /// What is due; it stays held, so that later statuses of its runs wait behind it.
    pub(super) fn due(&mut self) -> Vec<TaskUpdate> {
        let now = Instant::now();
        let mut updates = Vec::new();
        for held in self.runs.values_mut() {
            if held.due.is_some_and(|due| due <= now) {
                held.due = None;
                updates.append(&mut held.updates);
            }
        }
        updates
    }

    /// After another try: runs that are through are free again, the others wait longer.
    pub(super) fn tried(&mut self, runs: &[RunId], failed: Vec<TaskUpdate>) {
        self.hold(failed);
        for run in runs {
            if self
                .runs
                .get(run)
                .is_some_and(|held| held.updates.is_empty())
            {
                self.runs.remove(run);
            }
        }
    }
}
