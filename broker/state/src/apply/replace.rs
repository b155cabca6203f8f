//! Runs whose agent is away for too long: they may be replaced, and one of the two goes when it is
//! back.
//!
//! The time counts from the replicated moment at which the agent was lost, so a change of leader
//! may extend it, never shorten it. A mark gives leave, it ends nothing: an agent that comes back
//! before anybody made use of it finds everything as it was.

use std::collections::BTreeMap;

use mete_model::{AgentId, Code, FrameworkId, Keep, RunId, Span, TaskPhase, Timestamp};

use super::{Plan, Turn, preview_of, runs};
use crate::command::{AgentCondition, HeldRun};
use crate::due::Lapse;
use crate::effect::{Change, Effect, Verdict};
use crate::record::{Kill, Places, Run};
use crate::rejection::Rejection;
use crate::state::{Preview, State};

/// Runs of one agent of which the time has come.
#[derive(Debug)]
pub(crate) struct Mark {
    agent: AgentId,
    runs: Vec<(FrameworkId, RunId)>,
}

pub(crate) fn mark(state: &State, at: Timestamp, id: AgentId) -> Result<Mark, Rejection> {
    let agent = super::agents::find(state, id)?;
    let mut runs = Vec::new();
    if agent.condition == AgentCondition::Unreachable {
        let due = |run: &&Run| when(run, agent.since).is_some_and(|when| when <= at);
        let due = state.runs_on(id).filter(due);
        runs.extend(due.map(|run| (run.framework, run.id.clone())));
    }
    Ok(Mark { agent: id, runs })
}

/// When a live run on an agent that is lost since then is to be marked; `None` = never, or it is.
pub(crate) fn when(run: &Run, lost: Timestamp) -> Option<Timestamp> {
    let patience = run.spec.partition.replace_after?;
    let marked = run.replacement.places().replaceable.is_some();
    (!marked).then(|| lost.after(patience))
}

impl Plan for Mark {
    fn preview(&self) -> Preview {
        preview_of(!self.runs.is_empty(), &Verdict::Done)
    }

    fn write(self, state: &mut State, turn: &mut Turn) -> Verdict {
        let at = turn.at;
        for (framework, run) in &self.runs {
            put(state, turn, *framework, run, |places| {
                places.replaceable = Some(at);
            });
            tell(state, turn, *framework, run);
        }
        state.refresh_lapse(Lapse::Runs(self.agent));
        Verdict::Done
    }
}

/// Changes what stands of a run's replacement.
fn put(
    state: &mut State,
    turn: &mut Turn,
    framework: FrameworkId,
    id: &RunId,
    change: impl FnOnce(&mut Places),
) {
    let runs = state.runs.get_mut(&framework);
    if let Some(run) = runs.and_then(|runs| runs.get_mut(id)) {
        let run = std::sync::Arc::make_mut(run);
        run.replacement.change(change);
        run.revision = turn.revision;
        turn.changed(Change::Run(framework, id.clone()));
    }
}

/// Tells the framework that a run of it may be replaced, if it may.
pub(crate) fn tell(state: &State, turn: &mut Turn, framework: FrameworkId, id: &RunId) {
    let Some(run) = state.run(framework, id) else {
        return;
    };
    if state.frameworks.contains_key(&framework) && state.is_replaceable(run) {
        turn.owe(Effect::TellReplaceable {
            framework,
            agent: run.agent,
            run: id.clone(),
        });
    }
}

/// A run was booked that takes the place of another.
pub(crate) fn replaced(
    state: &mut State,
    turn: &mut Turn,
    framework: FrameworkId,
    old: &RunId,
    new: &RunId,
) {
    put(state, turn, framework, old, |places| {
        places.replaced_by = Some(new.clone());
    });
}

/// The agent is back: of each of its runs that was replaced, the run stays that its spec says; what
/// was not replaced goes on as if nothing had been. `held` is what it brings back, if it said so: a
/// run that is over there needs no choice, and one that never began has nothing to be kept for.
pub(crate) fn settle(state: &mut State, turn: &mut Turn, agent: AgentId, held: Option<&[HeldRun]>) {
    let touched = state.runs_on(agent).filter(|run| {
        let places = run.replacement.places();
        places.replaceable.is_some() || places.replaced_by.is_some()
    });
    let mut touched = touched.peekable();
    if touched.peek().is_none() {
        return;
    }
    let held: Option<Held<'_>> = held.map(|held| {
        let held = held.iter();
        held.map(|held| ((held.framework, &held.run), held.phase))
            .collect()
    });
    let touched: Vec<(FrameworkId, RunId, Option<RunId>, Stays)> = touched
        .map(|run| {
            let by = run.replacement.places().replaced_by.clone();
            let stays = stays(state, run, held.as_ref());
            (run.framework, run.id.clone(), by, stays)
        })
        .collect();
    for (framework, old, new, stays) in touched {
        put(state, turn, framework, &old, |places| {
            places.replaceable = None;
            if stays != Stays::Newest {
                places.replaced_by = None;
            }
        });
        match (new, stays) {
            (None, _) | (_, Stays::WhatLives) => {}
            (Some(new), Stays::Newest) => end(state, turn, framework, &old, &new, "took its place"),
            (Some(new), Stays::Oldest) => {
                for new in chain(state, framework, new) {
                    end(state, turn, framework, &new, &old, "is back");
                }
            }
        }
    }
}

/// Runs that an agent has, and where they are.
type Held<'a> = BTreeMap<(FrameworkId, &'a RunId), TaskPhase>;

/// Which of two runs stays.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stays {
    Newest,
    Oldest,
    /// One of them is over already.
    WhatLives,
}

fn stays(state: &State, run: &Run, held: Option<&Held<'_>>) -> Stays {
    let back = held.map(|held| held.get(&(run.framework, &run.id)));
    // A successor that came to nothing is no reason to end the one that still works.
    let has_failed = || {
        let successor = run.replacement.places().replaced_by.as_ref();
        successor.is_some_and(|new| {
            let new = state.any_run(run.framework, new);
            new.is_none_or(|new| new.phase.is_terminal() && new.phase != TaskPhase::Finished)
        })
    };
    match (back, run.spec.partition.keep) {
        (Some(Some(phase)), _) if phase.is_terminal() => Stays::WhatLives,
        (Some(None), _) => Stays::Newest,
        (_, Keep::Newest) if has_failed() => Stays::WhatLives,
        (_, Keep::Newest) => Stays::Newest,
        (Some(Some(_)) | None, Keep::Oldest) => Stays::Oldest,
    }
}

/// The run, the one that took its place, and so on.
fn chain(state: &State, framework: FrameworkId, first: RunId) -> Vec<RunId> {
    let mut chain = vec![first];
    while let Some(next) = chain
        .last()
        .and_then(|last| state.any_run(framework, last))
        .and_then(|run| run.replacement.places().replaced_by.clone())
        // Each run was launched after the one it replaces, so this ends; a bound all the same.
        .filter(|next| !chain.contains(next))
    {
        chain.push(next);
    }
    chain
}

fn end(
    state: &mut State,
    turn: &mut Turn,
    framework: FrameworkId,
    run: &RunId,
    other: &RunId,
    why: &str,
) {
    let wish = Kill {
        since: turn.at,
        grace: None,
        by: Code::Replaced,
        actor: String::new(),
        reason: format!("{other} {why}"),
    };
    runs::kill(state, turn, framework, run, &wish);
}

impl State {
    /// Says whether a launch may take the place of this run: it is marked, and no run that took its
    /// place is live.
    #[must_use]
    pub fn is_replaceable(&self, run: &Run) -> bool {
        let places = run.replacement.places();
        let successor = places.replaced_by.as_ref();
        let taken = successor
            .and_then(|new| self.run(run.framework, new))
            .is_some_and(|new| !new.phase.is_terminal());
        places.replaceable.is_some() && !run.phase.is_terminal() && !taken
    }

    /// Why no launch may take the place of this run; `None` if one may.
    pub(crate) fn not_replaceable(&self, framework: FrameworkId, id: &RunId) -> Option<String> {
        let Some(run) = self.run(framework, id) else {
            return Some(match self.any_run(framework, id) {
                Some(past) => format!("{id} is {}; launch without replacing it", past.phase),
                None => format!("no run {id} is known; launch without replacing it"),
            });
        };
        if self.is_replaceable(run) {
            return None;
        }
        let node = self.agents.get(&run.agent);
        let places = run.replacement.places();
        Some(match (&places.replaced_by, places.replaceable) {
            _ if run.phase.is_terminal() => {
                format!("{id} is {}; launch without replacing it", run.phase)
            }
            (Some(by), Some(_)) => format!("{by} has taken the place of {id} already"),
            (_, None) | (None, Some(_)) => {
                let agent = node.map_or("", |agent| agent.node_name.as_str());
                match run.spec.partition.replace_after {
                    Some(after) => format!(
                        "{id} lives on agent '{agent}' and becomes replaceable when that has been \
                         unreachable for {after}"
                    ),
                    None => {
                        format!("{id} lives on agent '{agent}' and its spec has no replace_after")
                    }
                }
            }
        })
    }

    /// A run wherever it is kept whole.
    fn any_run(&self, framework: FrameworkId, id: &RunId) -> Option<&Run> {
        let live = self.run(framework, id);
        live.or_else(|| self.past_run(framework, id))
    }

    /// Agents with runs that have waited past the time at which they may be replaced; the longest
    /// wait first.
    pub fn replaceable_agents(&self, now: Timestamp) -> impl Iterator<Item = AgentId> {
        self.lapses.replaceable(now)
    }

    /// The longest `stop_if_silent` of the agent's runs that may be replaced at `now`: so long they
    /// may go on out of reach.
    #[must_use]
    pub fn longest_silence(&self, agent: AgentId, now: Timestamp) -> Option<Span> {
        let lost = self.agents.get(&agent)?.since;
        let due = |run: &&Run| when(run, lost).is_some_and(|when| when <= now);
        let due = self.runs_on(agent).filter(due);
        due.filter_map(|run| run.spec.partition.stop_if_silent)
            .max()
    }

    /// How many agents are unreachable, of how many there are (gone ones left out).
    #[must_use]
    pub fn unreachable_agents(&self) -> (usize, usize) {
        let known = self.agents.values();
        let add = |count: usize| count.saturating_add(1);
        known.fold((0, 0), |(lost, all), agent| match agent.condition {
            AgentCondition::Ready => (lost, add(all)),
            AgentCondition::Unreachable => (add(lost), add(all)),
            AgentCondition::Gone => (lost, all),
        })
    }
}
