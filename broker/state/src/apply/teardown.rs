//! The end of a framework: its runs are killed, everything else of it is taken away at once.
//!
//! What its runs hold stays charged until their agents confirm. The id is never used again; the
//! name may be, at once, for a new framework.

use mete_model::{Code, FrameworkId, RunId};

use super::validate::Faults;
use super::{Plan, Turn, preview_of, runs};
use crate::command::Caller;
use crate::due::Lapse;
use crate::effect::{Change, Effect, Verdict};
use crate::record::{Kill, Tombstone};
use crate::rejection::Rejection;
use crate::state::{Preview, State};

/// A framework that ends, or has.
#[derive(Debug)]
pub(crate) struct Teardown<'a> {
    framework: FrameworkId,
    call: u64,
    actor: &'a str,
    /// It was torn down before: the runs that are left are named again.
    before: Option<Verdict>,
}

pub(crate) fn by_framework(state: &State, caller: &Caller) -> Result<Teardown<'static>, Rejection> {
    super::calls::find(state, caller.framework)?;
    Ok(Teardown {
        framework: caller.framework,
        call: caller.call,
        actor: "itself",
        before: None,
    })
}

pub(crate) fn by_operator<'a>(
    state: &State,
    framework: FrameworkId,
    actor: &'a str,
) -> Result<Teardown<'a>, Rejection> {
    let mut faults = Faults::default();
    faults.words("actor", actor);
    faults.result()?;
    let torn_down = state.tombstones.contains_key(&framework);
    if !torn_down {
        super::calls::find(state, framework)?;
    }
    Ok(Teardown {
        framework,
        call: 0,
        actor,
        before: torn_down.then(|| Verdict::TornDown(still_ending(state, framework))),
    })
}

/// Runs of a framework that have not ended.
pub(crate) fn still_ending(state: &State, framework: FrameworkId) -> Vec<RunId> {
    state
        .runs(framework)
        .filter(|run| !run.phase.is_terminal())
        .map(|run| run.id.clone())
        .collect()
}

impl Plan for Teardown<'_> {
    fn preview(&self) -> Preview {
        match &self.before {
            Some(verdict) => preview_of(false, verdict),
            None => Preview::Change,
        }
    }

    fn write(self, state: &mut State, turn: &mut Turn) -> Verdict {
        if let Some(verdict) = self.before {
            return verdict;
        }
        let id = self.framework;
        let Some(framework) = state.frameworks.remove(&id) else {
            return Verdict::TornDown(Vec::new());
        };
        let key = (framework.principal.clone(), framework.name.clone());
        state.by_name.remove(&key);
        state.tombstones.insert(
            id,
            Tombstone {
                framework: id,
                principal: framework.principal,
                name: framework.name,
                incarnation: framework.incarnation,
                call: self.call,
                actor: self.actor.to_owned(),
                torn_down: turn.at,
                settled: None,
                revision: turn.revision,
            },
        );
        turn.changed(Change::Framework(id));
        for (claim, _) in state.claims.remove(&id).unwrap_or_default() {
            turn.changed(Change::Claim(id, claim));
        }
        if let Some(store) = state.stores.remove(&id) {
            state.store_bytes = state.store_bytes.saturating_sub(store.bytes);
        }
        state.calls.remove(&id);
        let left = end_runs(state, turn, id);
        state.refresh_lapse(Lapse::Framework(id));
        state.refresh_lapse(Lapse::Tombstone(id));
        state.drop_surplus_tombstones(turn);
        turn.owe(Effect::EndStreams { framework: id });
        Verdict::TornDown(left)
    }
}

/// Kills what lives; what is over needs no acknowledgement any more.
fn end_runs(state: &mut State, turn: &mut Turn, framework: FrameworkId) -> Vec<RunId> {
    let wish = Kill {
        since: turn.at,
        grace: None,
        by: Code::KilledByTeardown,
        actor: String::new(),
        reason: "its framework was torn down".to_owned(),
    };
    let all: Vec<RunId> = state.runs(framework).map(|run| run.id.clone()).collect();
    for run in &all {
        runs::acknowledge(state, turn, framework, run, u64::MAX);
        runs::kill(state, turn, framework, run, &wish);
    }
    still_ending(state, framework)
}
