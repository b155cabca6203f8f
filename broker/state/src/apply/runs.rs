//! What happens to a run whoever causes it: a status is recorded, a kill is wished, it is over.
//!
//! All rooms that touch a run come through here, so that the ledger is released at one place and
//! a status takes one path whether an agent, the master or an operator makes it.

use std::collections::btree_map::Entry;
use std::sync::Arc;

use mete_model::{Code, FrameworkId, RunId, Status, StatusSource, TaskPhase};

use super::{Turn, replace};
use crate::due::Lapse;
use crate::effect::{Change, Effect};
use crate::limits::STATUSES_OF_A_RUN;
use crate::record::{Kill, Run};
use crate::state::State;

/// Records a status that is newer than all others of a live run.
pub(crate) fn record(state: &mut State, turn: &mut Turn, framework: FrameworkId, status: Status) {
    let ended_framework = state.tombstones.contains_key(&framework);
    let runs = state.runs.get_mut(&framework);
    let Some(run) = runs.and_then(|runs| runs.get_mut(&status.run)) else {
        return;
    };
    let (id, sequence) = (run.id.clone(), status.sequence);
    let run = Arc::make_mut(run);
    let over = note(run, turn, status);
    if over {
        state.ledger.release(run);
        turn.holdings_changed(run);
    }
    turn.changed(Change::Run(framework, id.clone()));
    let agent = run.agent;
    let replaces = run.replacement.places().replaces.clone();
    if ended_framework {
        // Nobody is left to be told.
        acknowledge(state, turn, framework, &id, sequence);
        state.refresh_lapse(Lapse::Tombstone(framework));
    } else {
        turn.owe(Effect::TellStatus {
            framework,
            run: id,
            sequence,
        });
    }
    if over {
        state.refresh_agent(agent);
        // Its place is free again, if that other run is still away.
        if let Some(old) = replaces {
            replace::tell(state, turn, framework, &old);
        }
    }
}

/// Moves the run by the status and says whether it is over with it.
fn note(run: &mut Run, turn: &Turn, mut status: Status) -> bool {
    // Only forward: a status that was on its way when a kill moved the run on keeps its number.
    if !status.phase.is_terminal() {
        status.phase = status.phase.max(run.phase);
    }
    if status.phase == TaskPhase::Killed && status.reason.is_none() {
        status.reason = run.kill.as_ref().map(|kill| kill.by);
    }
    // Numbers in between were merged on their way.
    status.coalesced |= status.sequence > run.sequence.saturating_add(1);
    status.run = run.id.clone();
    if status.phase >= TaskPhase::Running && run.started.is_none() && was_started(&status) {
        run.started = Some(turn.at);
    }
    run.phase = status.phase;
    run.sequence = status.sequence;
    run.revision = turn.revision;
    let over = status.phase.is_terminal();
    if over {
        run.ended = Some(turn.at);
        run.replacement.change(|places| places.replaceable = None);
    }
    run.statuses.push(status);
    if run.statuses.len() > STATUSES_OF_A_RUN {
        let merged = run.statuses.remove(0);
        if let Some(next) = run.statuses.first_mut() {
            next.coalesced |= merged.sequence > run.acknowledged;
        }
    }
    over
}

/// `Running`, or an end that only something that ran can have.
fn was_started(status: &Status) -> bool {
    status.phase == TaskPhase::Running || status.exit.is_some()
}

/// Ends a live run by the master's or an operator's word: nothing will be heard of it any more.
pub(crate) fn lose(
    state: &mut State,
    turn: &mut Turn,
    framework: FrameworkId,
    run: &RunId,
    reason: Code,
    message: &str,
) {
    let Some(sequence) = state.run(framework, run).map(|run| run.sequence) else {
        return;
    };
    let source = if reason == Code::GoneByOperator {
        StatusSource::Operator
    } else {
        StatusSource::Master
    };
    let status = Status {
        run: run.clone(),
        sequence: sequence.saturating_add(1),
        phase: TaskPhase::Lost,
        reason: Some(reason),
        message: message.to_owned(),
        source,
        at: turn.at,
        exit: None,
        usage: None,
        coalesced: false,
    };
    record(state, turn, framework, status);
}

/// Takes the acknowledgement of 1 … `sequence`; a run that is over goes to history with its last.
pub(crate) fn acknowledge(
    state: &mut State,
    turn: &mut Turn,
    framework: FrameworkId,
    id: &RunId,
    sequence: u64,
) {
    let Entry::Occupied(mut runs) = state.runs.entry(framework) else {
        return;
    };
    let Some(run) = runs.get_mut().get_mut(id) else {
        return;
    };
    if sequence > run.acknowledged {
        let run = Arc::make_mut(run);
        run.acknowledged = sequence.min(run.sequence);
        run.revision = turn.revision;
        let acknowledged = run.acknowledged;
        run.statuses.retain(|status| {
            let told = status.sequence <= acknowledged;
            !told || status.reason.is_some() || status.phase.is_terminal()
        });
        run.statuses.shrink_to_fit();
        turn.changed(Change::Run(framework, id.clone()));
    }
    if run.phase.is_terminal() && run.acknowledged >= run.sequence {
        if let Some(run) = runs.get_mut().remove(id) {
            for (framework, run) in state.history.put(run) {
                turn.changed(Change::Run(framework, run));
            }
        }
        if runs.get().is_empty() {
            runs.remove();
        }
    }
}

/// Says whether this kill would change the run: the first does, a later one if its grace is less.
pub(crate) fn kill_changes(run: &Run, grace: Option<mete_model::Span>) -> bool {
    if run.phase.is_terminal() {
        return false;
    }
    run.kill.is_none() || grace.is_some_and(|grace| grace < run.kill_grace())
}

/// Keeps the wish that a live run ends, until it has; its agent is told.
pub(crate) fn kill(
    state: &mut State,
    turn: &mut Turn,
    framework: FrameworkId,
    id: &RunId,
    wish: &Kill,
) {
    let runs = state.runs.get_mut(&framework);
    let Some(run) = runs.and_then(|runs| runs.get_mut(id)) else {
        return;
    };
    if !kill_changes(run, wish.grace) {
        return;
    }
    let run = Arc::make_mut(run);
    match &mut run.kill {
        Some(kill) => kill.grace = wish.grace,
        None => run.kill = Some(Box::new(wish.clone())),
    }
    run.phase = run.phase.max(TaskPhase::Finishing);
    run.revision = turn.revision;
    turn.changed(Change::Run(framework, id.clone()));
    turn.owe(Effect::KillTask {
        agent: run.agent,
        framework,
        run: run.id.clone(),
    });
}
