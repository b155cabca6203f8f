//! What time alone takes away: old history, settled tombstones, agents long gone.

use mete_model::{AgentId, FrameworkId, Timestamp};

use super::{Plan, Turn, preview_of};
use crate::command::AgentCondition;
use crate::due::Lapse;
use crate::effect::{Change, Verdict};
use crate::limits::TOMBSTONES;
use crate::state::{Preview, State};

/// What lapses now.
#[derive(Debug)]
pub(crate) struct Tick {
    agents: Vec<AgentId>,
    tombstones: Vec<FrameworkId>,
    history: bool,
}

pub(crate) fn tick(state: &State, now: Timestamp) -> Tick {
    let mut tick = Tick {
        agents: Vec::new(),
        tombstones: Vec::new(),
        history: state.history.next_due().is_some_and(|due| due <= now),
    };
    for lapse in state.lapses.until(now) {
        match lapse {
            Lapse::Agent(id) => tick.agents.push(id),
            Lapse::Tombstone(id) => tick.tombstones.push(id),
            // Commands of their own: `RemoveFramework`, `MarkReplaceable`.
            Lapse::Framework(_) | Lapse::Runs(_) => {}
        }
    }
    tick
}

impl Plan for Tick {
    fn preview(&self) -> Preview {
        let changes = self.history || !self.agents.is_empty() || !self.tombstones.is_empty();
        preview_of(changes, &Verdict::Done)
    }

    fn write(self, state: &mut State, turn: &mut Turn) -> Verdict {
        for id in self.agents {
            state.drop_agent(turn, id);
        }
        for id in self.tombstones {
            state.drop_tombstone(turn, id);
        }
        if self.history {
            for (framework, run) in state.history.age(turn.at) {
                turn.changed(Change::Run(framework, run));
            }
        }
        Verdict::Done
    }
}

impl State {
    /// Forgets an agent that is gone, or unreachable and without runs.
    pub(crate) fn drop_agent(&mut self, turn: &mut Turn, id: AgentId) {
        let Some(agent) = self.agents.remove(&id) else {
            return;
        };
        if self.by_key.get(&agent.node_key) == Some(&id) {
            self.by_key.remove(&agent.node_key);
        }
        if self.by_node.get(&agent.node_name) == Some(&id) {
            self.by_node.remove(&agent.node_name);
        }
        self.ledger.drop_agent(id);
        self.refresh_agent(id);
        turn.changed(Change::Agent(id));
    }

    fn drop_tombstone(&mut self, turn: &mut Turn, id: FrameworkId) {
        self.tombstones.remove(&id);
        self.refresh_lapse(Lapse::Tombstone(id));
        turn.changed(Change::Framework(id));
    }

    /// Keeps the number of tombstones within bounds: the oldest settled ones go first.
    pub(crate) fn drop_surplus_tombstones(&mut self, turn: &mut Turn) {
        while self.tombstones.len() > TOMBSTONES
            && let Some(Lapse::Tombstone(id)) = self
                .lapses
                .first(|lapse| matches!(lapse, Lapse::Tombstone(_)))
        {
            self.drop_tombstone(turn, id);
        }
    }

    /// Keeps the number of gone agents within bounds.
    pub(crate) fn drop_surplus_agents(&mut self, turn: &mut Turn) {
        let gone = |agent: &&crate::record::Agent| agent.condition == AgentCondition::Gone;
        if self.agents.len() <= TOMBSTONES
            || self.agents.values().filter(gone).count() <= TOMBSTONES
        {
            return;
        }
        let oldest = self
            .agents
            .values()
            .filter(gone)
            .min_by_key(|agent| agent.since);
        if let Some(id) = oldest.map(|agent| agent.id) {
            self.drop_agent(turn, id);
        }
    }
}
