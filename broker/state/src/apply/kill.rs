//! Kills: a wish that is kept until the run is over. Every run named gets an answer.

use mete_model::{Code, FrameworkId, RunId, Span};

use super::validate::Faults;
use super::{Plan, Turn, preview_of, runs};
use crate::command::AgentCondition;
use crate::effect::{ItemVerdict, Verdict};
use crate::limits::ITEMS_OF_A_CALL;
use crate::record::{Kill, Run};
use crate::rejection::Rejection;
use crate::state::{Preview, State};

/// Runs to be ended.
#[derive(Debug)]
pub(crate) struct Killing<'a> {
    runs: Vec<(FrameworkId, &'a RunId)>,
    verdicts: Vec<ItemVerdict>,
    wish: Kill,
    changes: bool,
}

pub(crate) fn by_framework<'a>(
    state: &State,
    framework: FrameworkId,
    runs: &'a [RunId],
    grace: Option<Span>,
    reason: &str,
) -> Result<Killing<'a>, Rejection> {
    let runs = runs.iter().map(|run| (framework, run)).collect();
    plan(
        state,
        runs,
        wish(grace, reason, Code::KilledByFramework, ""),
    )
}

pub(crate) fn by_operator<'a>(
    state: &State,
    runs: &'a [(FrameworkId, RunId)],
    grace: Option<Span>,
    reason: &str,
    actor: &str,
) -> Result<Killing<'a>, Rejection> {
    let runs = runs
        .iter()
        .map(|(framework, run)| (*framework, run))
        .collect();
    plan(
        state,
        runs,
        wish(grace, reason, Code::KilledByOperator, actor),
    )
}

fn wish(grace: Option<Span>, reason: &str, by: Code, actor: &str) -> Kill {
    Kill {
        // Set when it is written.
        since: mete_model::Timestamp::default(),
        grace,
        by,
        actor: actor.to_owned(),
        reason: reason.to_owned(),
    }
}

fn plan<'a>(
    state: &State,
    runs: Vec<(FrameworkId, &'a RunId)>,
    wish: Kill,
) -> Result<Killing<'a>, Rejection> {
    let mut faults = Faults::default();
    faults.list("runs", runs.len(), ITEMS_OF_A_CALL);
    faults.words("reason", &wish.reason);
    faults.words("actor", &wish.actor);
    faults.result()?;
    let verdicts = runs
        .iter()
        .map(|(framework, run)| judge(state, *framework, run))
        .collect();
    let changes = runs.iter().any(|(framework, run)| {
        let live = state.run(*framework, run);
        live.is_some_and(|live| runs::kill_changes(live, wish.grace))
    });
    Ok(Killing {
        runs,
        verdicts,
        wish,
        changes,
    })
}

fn judge(state: &State, framework: FrameworkId, id: &RunId) -> ItemVerdict {
    let over = |phase| ItemVerdict {
        code: Code::AlreadyTerminal,
        detail: format!("{id} is {phase}"),
    };
    if let Some(run) = state.run(framework, id) {
        if run.phase.is_terminal() {
            return over(run.phase);
        }
        return ItemVerdict {
            code: Code::Ok,
            detail: owed_detail(state, run),
        };
    }
    if let Some(past) = state.past_run(framework, id) {
        return over(past.phase);
    }
    if let Some(ended) = state.ended_run(framework, id) {
        return over(ended.phase);
    }
    ItemVerdict {
        code: Code::NotFound,
        detail: format!("no run {id} is known"),
    }
}

/// Says when the agent cannot be told now.
fn owed_detail(state: &State, run: &Run) -> String {
    match state.agents.get(&run.agent) {
        Some(agent) if agent.condition == AgentCondition::Unreachable => format!(
            "agent '{}' is unreachable; the kill is owed until it is back or gone",
            agent.node_name
        ),
        Some(_) | None => String::new(),
    }
}

impl Plan for Killing<'_> {
    fn preview(&self) -> Preview {
        preview_of(self.changes, &Verdict::Killed(self.verdicts.clone()))
    }

    fn write(mut self, state: &mut State, turn: &mut Turn) -> Verdict {
        self.wish.since = turn.at;
        for (framework, run) in &self.runs {
            runs::kill(state, turn, *framework, run, &self.wish);
        }
        Verdict::Killed(self.verdicts)
    }
}
