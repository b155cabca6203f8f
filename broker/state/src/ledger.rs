//! Who holds what on each agent, and the same grants summed by framework and by role.
//!
//! Derived from the runs: a run is booked when it is launched and released once, when its phase
//! becomes terminal. An agent that shrank below what it has given away has nothing free, and gets
//! free again only as far as it is really below its total.

use std::collections::{BTreeMap, BTreeSet};

use mete_model::quota::Charge;
use mete_model::{AgentId, FrameworkId, Resources, RolePath, RunId};

use crate::record::Run;

/// What one agent has given away.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Holdings {
    /// What it has in all.
    pub(crate) total: Resources,
    /// Sum of its grants; may pass `total`.
    pub(crate) granted: Resources,
    /// total − granted, nothing below zero.
    pub(crate) free: Resources,
    /// Runs whose phase is not terminal.
    pub(crate) runs: BTreeSet<(FrameworkId, RunId)>,
}

impl Holdings {
    fn refresh(&mut self) {
        self.free = self.total.clone();
        self.free.saturating_subtract(&self.granted);
    }
}

/// Grants by agent, by framework and by role.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Ledger {
    agents: BTreeMap<AgentId, Holdings>,
    frameworks: BTreeMap<FrameworkId, BTreeMap<RolePath, Charge>>,
    /// Each role and each of its ancestors; a parent's sum holds its children's.
    roles: BTreeMap<Box<str>, Charge>,
    all: Charge,
}

impl Ledger {
    /// The agent has so much now; grants stay.
    pub(crate) fn set_total(&mut self, agent: AgentId, total: &Resources) {
        let holdings = self.agents.entry(agent).or_default();
        holdings.total = total.clone();
        holdings.refresh();
    }

    /// The agent's record is dropped; nothing may be granted on it.
    pub(crate) fn drop_agent(&mut self, agent: AgentId) {
        self.agents.remove(&agent);
    }

    pub(crate) fn holdings(&self, agent: AgentId) -> Option<&Holdings> {
        self.agents.get(&agent)
    }

    pub(crate) fn framework(&self, framework: FrameworkId) -> Option<&BTreeMap<RolePath, Charge>> {
        self.frameworks.get(&framework)
    }

    pub(crate) fn role(&self, path: &str) -> Option<&Charge> {
        self.roles.get(path)
    }

    /// Says whether any run is charged to exactly this role.
    pub(crate) fn is_charged(&self, path: &RolePath) -> bool {
        let mut frameworks = self.frameworks.values();
        frameworks.any(|roles| roles.contains_key(path))
    }

    pub(crate) fn all(&self) -> &Charge {
        &self.all
    }

    /// Books what the run holds.
    pub(crate) fn book(&mut self, run: &Run) {
        let holdings = self.agents.entry(run.agent).or_default();
        holdings.granted.add(&run.resources);
        holdings.runs.insert((run.framework, run.id.clone()));
        if holdings.free.subtract(&run.resources).is_err() {
            // Booked beyond what is there: only when a snapshot of a shrunk agent is read.
            holdings.refresh();
        }
        let charge = Charge::of(&run.resources);
        self.all.add(&charge);
        self.frameworks
            .entry(run.framework)
            .or_default()
            .entry(run.role.clone())
            .or_default()
            .add(&charge);
        for path in run.role.with_ancestors() {
            match self.roles.get_mut(path) {
                Some(sum) => sum.add(&charge),
                None => {
                    self.roles.insert(path.into(), charge.clone());
                }
            }
        }
    }

    /// Gives back what the run held. The caller sees to it that this happens once.
    pub(crate) fn release(&mut self, run: &Run) {
        if let Some(holdings) = self.agents.get_mut(&run.agent) {
            holdings.granted.saturating_subtract(&run.resources);
            holdings.runs.remove(&(run.framework, run.id.clone()));
            holdings.refresh();
        }
        let charge = Charge::of(&run.resources);
        self.all.subtract(&charge);
        if let Some(roles) = self.frameworks.get_mut(&run.framework) {
            if let Some(sum) = roles.get_mut(&run.role) {
                sum.subtract(&charge);
                if sum.is_zero() {
                    roles.remove(&run.role);
                }
            }
            if roles.is_empty() {
                self.frameworks.remove(&run.framework);
            }
        }
        for path in run.role.with_ancestors() {
            if let Some(sum) = self.roles.get_mut(path) {
                sum.subtract(&charge);
                if sum.is_zero() {
                    self.roles.remove(path);
                }
            }
        }
    }

    /// Every agent and what it has given away.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (AgentId, &Holdings)> {
        self.agents.iter().map(|(id, holdings)| (*id, holdings))
    }
}
