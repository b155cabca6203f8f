//! Leave to replace runs whose agents are unreachable: slowly, and not while too many are.
//!
//! That the time of a run has come is the state's knowledge; here is only how fast the leave is
//! given. When the network heals, agents come back within seconds and nothing needs to be ended,
//! unless somebody was too quick. So a new leader waits as long as it waits for agents to return,
//! one agent's runs are marked in a second, and none while more than a fifth of all agents are
//! unreachable: then it is not they who are lost.
//!
//! The state's time may jump with the clock of a new leader. A run that ends itself out of reach
//! must have had that long, and its grace, by a clock that does not: so much passes here, from when
//! this leader saw its agent unreachable or began to lead.

use std::collections::BTreeMap;

use mete_model::partition::SILENT_GRACE;
use mete_model::{AgentId, Span};
use mete_state::{Command, State};

use super::applied::Waiting;
use super::{LeaderTerm, Now};
use crate::event::Monotonic;

/// Between the runs of one agent and those of the next, in milliseconds.
const TURN: u64 = 1000;

/// No leave while more than one part in so many of the agents is unreachable.
const PARTS: usize = 5;

/// How the leave stands.
#[derive(Debug)]
pub(super) struct Replacements {
    began: Monotonic,
    again: Monotonic,
    held: bool,
    /// When this leader saw an agent become unreachable.
    lost: BTreeMap<AgentId, Monotonic>,
}

impl Replacements {
    pub(super) fn begin(began: Now, window: u64) -> Self {
        Self {
            began: began.monotonic,
            again: began.monotonic.after(window),
            held: false,
            lost: BTreeMap::new(),
        }
    }

    pub(super) fn lost(&mut self, agent: AgentId, now: Now) {
        self.lost.insert(agent, now.monotonic);
    }

    pub(super) fn found(&mut self, agent: AgentId) {
        self.lost.remove(&agent);
    }

    /// Whether a run that ends itself after so long out of reach is over by now. The last word that
    /// its agent had is older than the agent's loss by `patience`, if this leader saw it lost; a
    /// leader before may have given one until it ended.
    fn is_over(&self, agent: AgentId, silence: Span, patience: Span, now: Now) -> bool {
        let (since, before) = match self.lost.get(&agent) {
            Some(lost) => (*lost, patience),
            None => (self.began, Span::ZERO),
        };
        let passed = now.monotonic.since(since).saturating_add(before.0);
        passed >= silence.0.saturating_add(SILENT_GRACE.0)
    }
}

/// Too many agents are unreachable for it to be their fault. A single one never is too many: a
/// small cluster could otherwise replace nothing.
#[must_use]
pub fn is_held(unreachable: usize, agents: usize) -> bool {
    unreachable > 1 && unreachable.saturating_mul(PARTS) > agents
}

impl LeaderTerm {
    /// Marks the runs of one agent of which the time has come.
    pub(super) fn permit_replacements(&mut self, state: &State, now: Now) {
        if self.due_on_the_way > 0 || now.monotonic < self.replacements.again {
            return;
        }
        if state.replaceable_agents(now.at).next().is_none() {
            self.replacements.held = false;
            return;
        }
        self.replacements.again = now.monotonic.after(TURN);
        let (unreachable, agents) = state.unreachable_agents();
        let held = is_held(unreachable, agents);
        if held && !self.replacements.held {
            tracing::error!(
                unreachable,
                agents,
                "too many agents are unreachable: no run is replaced until more are back, or were \
                 removed for good"
            );
        }
        self.replacements.held = held;
        if held {
            return;
        }
        let may_be = |agent: &AgentId| {
            // One that is on its way back is admitted in a moment.
            let is_back = self.presence.link(*agent).is_some();
            let silence = state.longest_silence(*agent, now.at);
            let patience = self.timing.silence;
            let is_over = |silence| (self.replacements).is_over(*agent, silence, patience, now);
            !is_back && silence.is_none_or(is_over)
        };
        let Some(agent) = state.replaceable_agents(now.at).find(may_be) else {
            return;
        };
        tracing::warn!(%agent, "unreachable for too long: its runs may be replaced");
        self.due_on_the_way = self.due_on_the_way.saturating_add(1);
        self.log(Command::MarkReplaceable { agent }, now, Waiting::Due);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_than_a_fifth_is_too_many_and_one_alone_never_is() {
        for (unreachable, agents, held) in [
            (0, 0, false),
            (1, 1, false),
            (1, 4, false),
            (2, 4, true),
            (2, 10, false),
            (3, 10, true),
            (200, 1000, false),
            (201, 1000, true),
        ] {
            assert_eq!(
                is_held(unreachable, agents),
                held,
                "{unreachable} of {agents}"
            );
        }
    }
}
