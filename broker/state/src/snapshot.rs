//! The state taken apart into records and put together again.
//!
//! The broker's format room encodes the parts one by one, so that a snapshot is written and read
//! in slices. What is derived (free resources, sums, indexes) is not written but worked out.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use mete_model::{AgentId, FrameworkId, Resources};

use crate::apply;
use crate::command::AgentCondition;
use crate::due::Lapses;
use crate::ledger::Ledger;
use crate::record::{
    Agent, ClaimRecord, EndedRun, Framework, Master, Meta, Role, Run, StoreRecord, StoredVerdict,
    Tombstone,
};
use crate::specs::Specs;
use crate::state::State;

/// One record of a snapshot. They come in the order of the variants; within one, in key order
/// (history: oldest first).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Part {
    /// Always the first, once.
    Meta(Meta),
    /// A master.
    Master(Master),
    /// A role.
    Role(Role),
    /// An agent.
    Agent(Agent),
    /// A framework.
    Framework(Framework),
    /// A framework that was torn down.
    Tombstone(Tombstone),
    /// A claim.
    Claim(ClaimRecord),
    /// A run that is live, or over and not acknowledged.
    Run(Box<Run>),
    /// A run that is over and acknowledged, oldest first.
    History(Box<Run>),
    /// What is left of a run that history dropped, oldest first.
    Ended(EndedRun),
    /// A record of a framework's store.
    Store(StoreRecord),
    /// An answer that may be asked for again.
    Verdict(StoredVerdict),
}

/// Why parts do not make a state: the snapshot is damaged or not ours.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BadParts {
    /// There is no [`Part::Meta`] at the front.
    NoMeta,
    /// There is a second one.
    SecondMeta,
    /// A record speaks of a framework that no record describes.
    NoFramework(FrameworkId),
    /// A live run is on an agent that no record describes.
    NoAgent(AgentId),
    /// Two records have one key; says of what kind.
    Twice(&'static str),
}

impl fmt::Display for BadParts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoMeta => f.write_str("snapshot does not begin with its meta record"),
            Self::SecondMeta => f.write_str("snapshot has two meta records"),
            Self::NoFramework(id) => {
                write!(f, "snapshot speaks of framework {id} and does not have it")
            }
            Self::NoAgent(id) => write!(f, "snapshot has a run on agent {id} and not the agent"),
            Self::Twice(what) => write!(f, "snapshot has two records of {what}"),
        }
    }
}

impl std::error::Error for BadParts {}

/// The records of a state as they were at one moment, to be written out while the state goes on.
///
/// Taken in a moment, whatever the state holds: it shares every record with the state until the
/// state changes it. What is derived is not in it.
#[derive(Clone, Debug)]
pub struct Records {
    /// With nothing derived.
    state: State,
}

impl Records {
    /// As [`State::to_parts`], of the moment at which they were taken.
    pub fn to_parts(&self) -> impl Iterator<Item = Part> {
        self.state.to_parts()
    }

    /// As [`State::digest`], of the moment at which they were taken.
    #[must_use]
    pub fn digest(&self) -> u64 {
        self.state.digest()
    }
}

impl State {
    /// The records as they are now; for a snapshot that is written while commands go on.
    #[must_use]
    pub fn records(&self) -> Records {
        Records {
            state: Self {
                meta: self.meta.clone(),
                masters: self.masters.clone(),
                roles: self.roles.clone(),
                agents: self.agents.clone(),
                frameworks: self.frameworks.clone(),
                tombstones: self.tombstones.clone(),
                claims: self.claims.clone(),
                runs: self.runs.clone(),
                history: self.history.records(),
                stores: self.stores.clone(),
                calls: self.calls.clone(),
                // Derived, and of no use to a reader of records. Named one by one, so that the
                // compiler asks about every new field.
                ledger: Ledger::default(),
                store_bytes: 0,
                by_key: BTreeMap::new(),
                by_node: BTreeMap::new(),
                by_name: BTreeMap::new(),
                lapses: Lapses::default(),
                specs: Specs::default(),
            },
        }
    }

    /// All records, in the order of [`Part`]'s variants.
    pub fn to_parts(&self) -> impl Iterator<Item = Part> {
        let claims = self.claims.values().flat_map(|claims| claims.values());
        let runs = self.runs.values().flat_map(|runs| runs.values());
        let store = self
            .stores
            .values()
            .flat_map(|store| store.records.values());
        let verdicts = self
            .calls
            .values()
            .flat_map(|calls| calls.verdicts.values());
        std::iter::once(Part::Meta(self.meta.clone()))
            .chain(self.masters.values().cloned().map(Part::Master))
            .chain(self.roles.values().cloned().map(Part::Role))
            .chain(self.agents.values().cloned().map(Part::Agent))
            .chain(self.frameworks.values().cloned().map(Part::Framework))
            .chain(self.tombstones.values().cloned().map(Part::Tombstone))
            .chain(claims.cloned().map(Part::Claim))
            .chain(runs.map(|run| Part::Run(Box::new((**run).clone()))))
            .chain(
                self.history
                    .iter()
                    .map(|run| Part::History(Box::new(run.clone()))),
            )
            .chain(self.history.names().cloned().map(Part::Ended))
            .chain(store.cloned().map(Part::Store))
            .chain(verdicts.cloned().map(Part::Verdict))
    }

    /// The state that [`State::to_parts`] took apart.
    ///
    /// # Errors
    /// [`BadParts`] for what is not such a list.
    pub fn from_parts(parts: impl IntoIterator<Item = Part>) -> Result<Self, BadParts> {
        let mut parts = parts.into_iter();
        let Some(Part::Meta(meta)) = parts.next() else {
            return Err(BadParts::NoMeta);
        };
        let mut state = Self {
            meta,
            ..Self::default()
        };
        for part in parts {
            state.restore(part)?;
        }
        state.lapses = state.rebuilt_lapses();
        Ok(state)
    }

    fn restore(&mut self, part: Part) -> Result<(), BadParts> {
        match part {
            Part::Meta(_) => Err(BadParts::SecondMeta),
            Part::Master(master) => {
                let before = self.masters.insert(master.node, master);
                once(before.is_none(), "a master")
            }
            Part::Role(role) => {
                let key = role.path.clone();
                once(self.roles.insert(key, role).is_none(), "a role")
            }
            Part::Agent(agent) => self.restore_agent(agent),
            Part::Framework(framework) => {
                let key = (framework.principal.clone(), framework.name.clone());
                self.by_name.insert(key, framework.id);
                let before = self.frameworks.insert(framework.id, framework);
                once(before.is_none(), "a framework")
            }
            Part::Tombstone(tombstone) => {
                let before = self.tombstones.insert(tombstone.framework, tombstone);
                once(before.is_none(), "a torn-down framework")
            }
            Part::Claim(record) => {
                self.must_know(record.framework)?;
                let claims = self.claims.entry(record.framework).or_default();
                let before = claims.insert(record.claim.id.clone(), record);
                once(before.is_none(), "a claim")
            }
            Part::Run(run) => self.restore_run(*run),
            Part::History(run) => {
                let known = self.history.get(run.framework, &run.id).is_none();
                // Within its bounds when it was written, so nothing is too much.
                self.history.put(Arc::from(run));
                once(known, "a run in history")
            }
            Part::Ended(ended) => {
                let known = self.history.name(ended.framework, &ended.run).is_none();
                self.history.put_name(ended);
                once(known, "an ended run")
            }
            Part::Store(record) => {
                self.must_know(record.framework)?;
                let store = self.stores.entry(record.framework).or_default();
                let before = store.bytes;
                let new = store.restore(record);
                let added = store.bytes.saturating_sub(before);
                self.store_bytes = self.store_bytes.saturating_add(added);
                once(new, "a store key")
            }
            Part::Verdict(verdict) => {
                self.must_know(verdict.framework)?;
                let calls = self.calls.entry(verdict.framework).or_default();
                let new = !calls.verdicts.contains_key(&verdict.call);
                apply::calls::put(calls, verdict);
                once(new, "a verdict")
            }
        }
    }

    fn restore_agent(&mut self, agent: Agent) -> Result<(), BadParts> {
        // A gone agent's key may be another one's by now; the later admission has it.
        let gone = agent.condition == AgentCondition::Gone;
        if gone {
            self.by_key.entry(agent.node_key).or_insert(agent.id);
            self.ledger.set_total(agent.id, &Resources::default());
        } else {
            self.by_key.insert(agent.node_key, agent.id);
            self.by_node.insert(agent.node_name.clone(), agent.id);
            self.ledger.set_total(agent.id, &agent.inventory.total);
        }
        once(self.agents.insert(agent.id, agent).is_none(), "an agent")
    }

    fn restore_run(&mut self, run: Run) -> Result<(), BadParts> {
        if !self.tombstones.contains_key(&run.framework) {
            self.must_know(run.framework)?;
        }
        if !run.phase.is_terminal() && !self.agents.contains_key(&run.agent) {
            return Err(BadParts::NoAgent(run.agent));
        }
        let new = self.run(run.framework, &run.id).is_none();
        once(new, "a run")?;
        self.put_run(run);
        Ok(())
    }

    fn must_know(&self, framework: FrameworkId) -> Result<(), BadParts> {
        if self.frameworks.contains_key(&framework) {
            Ok(())
        } else {
            Err(BadParts::NoFramework(framework))
        }
    }
}

fn once(new: bool, what: &'static str) -> Result<(), BadParts> {
    if new {
        Ok(())
    } else {
        Err(BadParts::Twice(what))
    }
}
