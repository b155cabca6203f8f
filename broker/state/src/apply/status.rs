//! Statuses that agents send: recorded once, in order, then the agent may forget them.
//!
//! Nothing here refuses an odd status, or a stuck one would block its agent's stream for ever: what
//! is old is forgotten again, what should not live is discarded, what is too long is cut.

use mete_model::{AgentId, Code, FrameworkId, Status};

use super::validate::Faults;
use super::{Plan, Turn, preview_of, runs};
use crate::effect::{Effect, Verdict};
use crate::limits::{ITEMS_OF_A_CALL, STATUS_BYTES};
use crate::rejection::Rejection;
use crate::state::{Preview, State};

/// Statuses of a known agent.
#[derive(Debug)]
pub(crate) struct Record<'a> {
    agent: AgentId,
    statuses: &'a [(FrameworkId, Status)],
}

pub(crate) fn record<'a>(
    state: &State,
    agent: AgentId,
    statuses: &'a [(FrameworkId, Status)],
) -> Result<Record<'a>, Rejection> {
    let mut faults = Faults::default();
    faults.list("statuses", statuses.len(), ITEMS_OF_A_CALL);
    faults.result()?;
    if !state.agents.contains_key(&agent) {
        return Err(Rejection::new(
            Code::NotFound,
            format!("no agent {agent} is known; let it be admitted first"),
        ));
    }
    Ok(Record { agent, statuses })
}

/// What one status is to the state.
enum Judgement {
    /// To be recorded.
    New,
    /// Recorded before, or of a run that is over; the agent may forget everything up to here. For
    /// a run that lives this is the last number recorded: an agent that has lost its memory of the
    /// run numbers from 1 again, and learns from it that its numbers mean nothing here.
    Old(u64),
    /// The run should not be on this agent.
    Stray,
}

fn judge(state: &State, agent: AgentId, framework: FrameworkId, status: &Status) -> Judgement {
    let stray = if status.phase.is_terminal() {
        Judgement::Old(status.sequence)
    } else {
        Judgement::Stray
    };
    match state.run(framework, &status.run) {
        Some(run) if run.agent != agent => stray,
        Some(run) if status.sequence <= run.sequence => Judgement::Old(run.sequence),
        Some(run) if run.phase.is_terminal() => stray,
        Some(_) => Judgement::New,
        // In history, a late copy of what was recorded is no reason to end anything again, but a
        // run of history does not live.
        None => match state.past_run(framework, &status.run) {
            Some(past) if past.agent == agent && status.sequence <= past.sequence => {
                Judgement::Old(status.sequence)
            }
            Some(_) | None => stray,
        },
    }
}

impl Plan for Record<'_> {
    fn preview(&self) -> Preview {
        // Also what is old is answered: the agent waits for leave to forget it.
        preview_of(!self.statuses.is_empty(), &Verdict::Done)
    }

    fn write(self, state: &mut State, turn: &mut Turn) -> Verdict {
        let agent = self.agent;
        for (framework, status) in self.statuses {
            let framework = *framework;
            let mut forget = status.sequence;
            match judge(state, agent, framework, status) {
                Judgement::New => {
                    let mut status = status.clone();
                    cut(&mut status.message);
                    runs::record(state, turn, framework, status);
                }
                Judgement::Old(sequence) => forget = sequence,
                Judgement::Stray => turn.owe(Effect::DiscardTask {
                    agent,
                    framework,
                    run: status.run.clone(),
                }),
            }
            turn.forget(agent, framework, &status.run, forget);
        }
        Verdict::Done
    }
}

impl Turn {
    /// The agent may forget statuses up to here; later ones of the same run replace earlier.
    fn forget(
        &mut self,
        agent: AgentId,
        framework: FrameworkId,
        run: &mete_model::RunId,
        sequence: u64,
    ) {
        self.owe(Effect::ForgetStatuses {
            agent,
            framework,
            run: run.clone(),
            sequence,
        });
    }
}

/// Cuts a message to its limit, at a character's border.
fn cut(message: &mut String) {
    if message.len() > STATUS_BYTES {
        message.truncate(message.floor_char_boundary(STATUS_BYTES));
    }
}
