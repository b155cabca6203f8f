//! Leave to replace runs whose agents are unreachable: slowly, and not while too many are.
//!
//! That the time of a run has come is the state's knowledge; here is only how fast the leave is
//! given. When the network heals, agents come back within seconds and nothing needs to be ended,
//! unless somebody was too quick. So a new leader waits as long as it waits for agents to return,
//! one agent's runs are marked in a second, and none while more than a fifth of all agents are
//! unreachable: then it is not they who are lost.

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
    again: Monotonic,
    held: bool,
}

impl Replacements {
    pub(super) fn begin(began: Now, window: u64) -> Self {
        Self {
            again: began.monotonic.after(window),
            held: false,
        }
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
        let Some(agent) = state.replaceable_agent(now.at) else {
            self.replacements.held = false;
            return;
        };
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
        // One that is on its way back is admitted in a moment.
        if held || self.presence.link(agent).is_some() {
            return;
        }
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
