//! One file per noun. Each has a half that only reads and may refuse (it gives a plan), and a half
//! that only writes and cannot fail (the plan's `write`). Between the two lies one line of
//! `State::apply`; `State::check` runs the first half alone.

pub(crate) mod acknowledge;
pub(crate) mod agents;
pub(crate) mod calls;
pub(crate) mod demand;
pub(crate) mod frameworks;
pub(crate) mod kill;
pub(crate) mod launch;
pub(crate) mod masters;
pub(crate) mod replace;
pub(crate) mod roles;
pub(crate) mod runs;
pub(crate) mod status;
pub(crate) mod store;
pub(crate) mod teardown;
pub(crate) mod tick;
pub(crate) mod validate;

use std::collections::BTreeSet;

use mete_model::{RolePath, Timestamp};

use crate::effect::{Change, Effect, Outcome, Verdict};
use crate::record::Run;
use crate::state::{Preview, State};

/// A command that has passed its checks.
pub(crate) trait Plan {
    /// What writing would do.
    fn preview(&self) -> Preview;

    /// Does it. The state is the one the plan was made for.
    fn write(self, state: &mut State, turn: &mut Turn) -> Verdict;
}

/// What one command gathers while it writes.
#[derive(Debug)]
pub(crate) struct Turn {
    pub(crate) revision: u64,
    pub(crate) at: Timestamp,
    effects: Vec<Effect>,
    changes: BTreeSet<Change>,
}

impl Turn {
    pub(crate) fn new(revision: u64, at: Timestamp) -> Self {
        Self {
            revision,
            at,
            effects: Vec::new(),
            changes: BTreeSet::new(),
        }
    }

    pub(crate) fn owe(&mut self, effect: Effect) {
        self.effects.push(effect);
    }

    pub(crate) fn changed(&mut self, change: Change) {
        self.changes.insert(change);
    }

    /// Something was booked for the run or given back: agent, framework and roles show it.
    pub(crate) fn holdings_changed(&mut self, run: &Run) {
        self.changed(Change::Agent(run.agent));
        self.changed(Change::Framework(run.framework));
        for path in run.role.with_ancestors() {
            if path == run.role.as_str() {
                self.changed(Change::Role(run.role.clone()));
            } else if let Ok(ancestor) = RolePath::new(path) {
                self.changed(Change::Role(ancestor));
            }
        }
    }

    pub(crate) fn into_outcome(self, verdict: Verdict) -> Outcome {
        Outcome {
            verdict,
            revision: self.revision,
            effects: self.effects,
            changes: self.changes.into_iter().collect(),
        }
    }
}

/// `NoChange` with this verdict unless something changes.
pub(crate) fn preview_of(changes: bool, verdict: &Verdict) -> Preview {
    if changes {
        Preview::Change
    } else {
        Preview::NoChange(verdict.clone())
    }
}
