//! What time alone makes necessary: the state and a point in time give commands.
//!
//! The leader asks with its stamp clock, which goes on from `State::clock` when its term begins: a
//! change of leader may extend a deadline, never shorten it.

use std::collections::{BTreeMap, BTreeSet};

use mete_model::{AgentId, FrameworkId, Timestamp};

use crate::apply::replace;
use crate::command::{AgentCondition, Command};
use crate::limits::{DUE_AT_ONCE, TOMBSTONE_AGE};
use crate::state::State;

/// Who ends a framework whose time without a stream is over.
pub const FAILOVER_TIMEOUT: &str = "failover timeout";

/// Something that ends by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Lapse {
    /// An agent that is gone, or unreachable and without runs, is forgotten.
    Agent(AgentId),
    /// A framework without a stream is torn down.
    Framework(FrameworkId),
    /// A torn-down framework without runs is forgotten.
    Tombstone(FrameworkId),
    /// Runs of an unreachable agent may be replaced. Kept apart: leave is given slowly and not
    /// while too many agents are unreachable, and what waits for it must not hold up the rest.
    Runs(AgentId),
}

/// When each of them does.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Lapses {
    when: BTreeMap<Lapse, Timestamp>,
    order: BTreeSet<(Timestamp, Lapse)>,
    replaceable: BTreeSet<(Timestamp, AgentId)>,
}

impl Lapses {
    fn set(&mut self, lapse: Lapse, when: Option<Timestamp>) {
        if let Some(before) = self.when.remove(&lapse) {
            match lapse {
                Lapse::Runs(agent) => self.replaceable.remove(&(before, agent)),
                Lapse::Agent(_) | Lapse::Framework(_) | Lapse::Tombstone(_) => {
                    self.order.remove(&(before, lapse))
                }
            };
        }
        if let Some(when) = when {
            self.when.insert(lapse, when);
            match lapse {
                Lapse::Runs(agent) => self.replaceable.insert((when, agent)),
                Lapse::Agent(_) | Lapse::Framework(_) | Lapse::Tombstone(_) => {
                    self.order.insert((when, lapse))
                }
            };
        }
    }

    /// Those that have lapsed, in order of time.
    pub(crate) fn until(&self, now: Timestamp) -> impl Iterator<Item = Lapse> {
        let lapsed = self.order.iter().take_while(move |(when, _)| *when <= now);
        lapsed.map(|(_, lapse)| *lapse)
    }

    /// The first of a kind.
    pub(crate) fn first(&self, kind: impl Fn(&Lapse) -> bool) -> Option<Lapse> {
        let mut lapses = self.order.iter().map(|(_, lapse)| *lapse);
        lapses.find(kind)
    }

    /// The agents whose runs may be replaced; the longest wait first.
    pub(crate) fn replaceable(&self, now: Timestamp) -> impl Iterator<Item = AgentId> {
        let due = self.replaceable.iter();
        let due = due.take_while(move |(when, _)| *when <= now);
        due.map(|(_, agent)| *agent)
    }

    fn next(&self) -> Option<Timestamp> {
        self.order.first().map(|(when, _)| *when)
    }
}

impl State {
    /// Commands that are necessary at `now`, oldest first; a bounded number at once.
    #[must_use]
    pub fn due(&self, now: Timestamp) -> Vec<Command> {
        let mut due: Vec<Command> = Vec::new();
        let mut tick = self.history.next_due().is_some_and(|when| when <= now);
        for lapse in self.lapses.until(now).take(DUE_AT_ONCE) {
            match lapse {
                Lapse::Framework(framework) => due.push(Command::RemoveFramework {
                    framework,
                    actor: FAILOVER_TIMEOUT.to_owned(),
                }),
                Lapse::Agent(_) | Lapse::Tombstone(_) | Lapse::Runs(_) => tick = true,
            }
        }
        if tick {
            due.push(Command::Tick);
        }
        due
    }

    /// When [`State::due`] next gives something, if nothing else happens.
    #[must_use]
    pub fn next_due(&self) -> Option<Timestamp> {
        let history = self.history.next_due();
        self.lapses.next().into_iter().chain(history).min()
    }

    /// When a framework without a stream is torn down.
    #[must_use]
    pub fn failover_deadline(&self, framework: FrameworkId) -> Option<Timestamp> {
        self.lapses.when.get(&Lapse::Framework(framework)).copied()
    }

    /// To be called after each change of what a lapse depends on.
    pub(crate) fn refresh_lapse(&mut self, lapse: Lapse) {
        if let Lapse::Tombstone(id) = lapse {
            self.settle(id);
        }
        let when = self.lapse_of(lapse);
        self.lapses.set(lapse, when);
    }

    /// The same for both lapses of an agent.
    pub(crate) fn refresh_agent(&mut self, id: AgentId) {
        self.refresh_lapse(Lapse::Agent(id));
        self.refresh_lapse(Lapse::Runs(id));
    }

    /// A torn-down framework is settled when its last run has ended.
    fn settle(&mut self, id: FrameworkId) {
        let (clock, left) = (self.meta.clock, self.runs.contains_key(&id));
        if let Some(tombstone) = self.tombstones.get_mut(&id)
            && tombstone.settled.is_none()
            && !left
        {
            tombstone.settled = Some(clock);
        }
    }

    fn lapse_of(&self, lapse: Lapse) -> Option<Timestamp> {
        match lapse {
            Lapse::Agent(id) => {
                let agent = self.agents.get(&id)?;
                let holds = self.ledger.holdings(id);
                let idle = holds.is_none_or(|holdings| holdings.runs.is_empty());
                let lapses = match agent.condition {
                    AgentCondition::Ready => false,
                    AgentCondition::Unreachable => idle,
                    AgentCondition::Gone => true,
                };
                lapses.then(|| agent.since.after(TOMBSTONE_AGE))
            }
            Lapse::Framework(id) => {
                let framework = self.frameworks.get(&id)?;
                let timeout = framework.settings.failover_timeout?;
                Some(framework.away?.after(timeout))
            }
            Lapse::Runs(id) => {
                let agent = self.agents.get(&id)?;
                if agent.condition != AgentCondition::Unreachable {
                    return None;
                }
                let runs = self.runs_on(id);
                runs.filter_map(|run| replace::when(run, agent.since)).min()
            }
            Lapse::Tombstone(id) => {
                let settled = self.tombstones.get(&id)?.settled?;
                Some(settled.after(TOMBSTONE_AGE))
            }
        }
    }

    /// Works out all lapses anew.
    pub(crate) fn rebuilt_lapses(&self) -> Lapses {
        let mut lapses = Lapses::default();
        let agents = self.agents.keys().copied().map(Lapse::Agent);
        let frameworks = self.frameworks.keys().copied().map(Lapse::Framework);
        let tombstones = self.tombstones.keys().copied().map(Lapse::Tombstone);
        let runs = self.agents.keys().copied().map(Lapse::Runs);
        for lapse in agents.chain(frameworks).chain(tombstones).chain(runs) {
            lapses.set(lapse, self.lapse_of(lapse));
        }
        lapses
    }
}
