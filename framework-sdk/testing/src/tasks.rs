//! What became of tasks, as their frameworks were told.

use std::collections::BTreeMap;

use mete_model::{RunId, TaskPhase};

/// Every run of every framework and the last phase that its framework was told.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tasks {
    /// By framework id and run.
    pub by_run: BTreeMap<(String, RunId), TaskPhase>,
}

impl Tasks {
    /// Runs in this phase.
    #[must_use]
    pub fn in_phase(&self, phase: TaskPhase) -> usize {
        self.by_run.values().filter(|is| **is == phase).count()
    }

    /// All that were ever granted.
    #[must_use]
    pub fn launched(&self) -> usize {
        self.by_run.len()
    }

    /// Runs that ended well.
    #[must_use]
    pub fn finished(&self) -> usize {
        self.in_phase(TaskPhase::Finished)
    }

    /// Runs at work.
    #[must_use]
    pub fn running(&self) -> usize {
        self.in_phase(TaskPhase::Running)
    }

    /// Runs that are not over.
    #[must_use]
    pub fn live(&self) -> usize {
        self.by_run
            .values()
            .filter(|phase| !phase.is_terminal())
            .count()
    }
}
