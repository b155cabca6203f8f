//! Statuses: each run's in order, at least once, an end is final and has a cause.
//!
//! A run on a machine that lives ends because its command ended or because somebody asked for it,
//! never because masters changed.

use std::collections::{BTreeMap, BTreeSet};

use mete_agent::core::RunKey;
use mete_model::{Code, FrameworkId, RunId, Status, TaskPhase};
use mete_state::State;

use crate::agenda::Time;
use crate::random::Digest;
use crate::script::named;

#[derive(Debug, Default)]
struct Facts {
    told: BTreeMap<u64, TaskPhase>,
    kill_asked: bool,
    excused: bool,
    launched: bool,
}

/// What frameworks were told.
#[derive(Debug, Default)]
pub(crate) struct Statuses {
    runs: BTreeMap<(FrameworkId, RunId), Facts>,
    /// Up to where each process knows each run.
    known: BTreeMap<(usize, FrameworkId, RunId), u64>,
    machines_failed: usize,
    machines_changed: BTreeSet<usize>,
}

impl Statuses {
    fn facts(&mut self, framework: FrameworkId, run: &RunId) -> &mut Facts {
        self.runs.entry((framework, run.clone())).or_default()
    }

    pub(crate) fn kill_asked(&mut self, framework: FrameworkId, run: &RunId) {
        self.facts(framework, run).kill_asked = true;
    }

    pub(crate) fn launched(&mut self, framework: FrameworkId, run: &RunId) {
        self.facts(framework, run).launched = true;
    }

    /// The run's machine has failed: any end is explained.
    pub(crate) fn excuse(&mut self, key: &RunKey) {
        self.facts(key.framework, &key.run).excused = true;
    }

    pub(crate) fn machine_failed(&mut self, _agent: usize, _at: Time) {
        self.machines_failed += 1;
    }

    pub(crate) fn machine_changed(&mut self, agent: usize) {
        self.machines_changed.insert(agent);
    }

    /// A snapshot says that the framework has acknowledged the run up to here.
    pub(crate) fn shown(&mut self, client: usize, framework: FrameworkId, run: &RunId, to: u64) {
        let known = self.known.entry((client, framework, run.clone()));
        let known = known.or_default();
        *known = (*known).max(to);
    }

    /// A process was told a status.
    pub(crate) fn told(
        &mut self,
        client: usize,
        framework: FrameworkId,
        status: &Status,
    ) -> Vec<String> {
        let (sequence, phase) = (status.sequence, status.phase);
        let name = named(framework, &status.run);
        let mut found = Vec::new();
        let known = self.known.entry((client, framework, status.run.clone()));
        let known = known.or_default();
        if sequence > *known + 1 && !status.coalesced {
            found.push(format!(
                "client {client} was told status {sequence} of {name} and knew {known} only"
            ));
        }
        *known = (*known).max(sequence);
        let failed = self.machines_failed > 0;
        let changed = !self.machines_changed.is_empty();
        let facts = self.facts(framework, &status.run);
        if let Some(first) = facts.told.insert(sequence, phase)
            && first != phase
        {
            found.push(format!(
                "status {sequence} of {name} was {first} and is {phase}"
            ));
        }
        let before = facts.told.range(..sequence).next_back();
        // A run that is being killed shows as finishing whatever its agent says meanwhile, so one
        // phase may come twice.
        let is_back = |earlier: TaskPhase| {
            !earlier.may_become(phase) && (earlier != phase || phase.is_terminal())
        };
        if let Some((at, earlier)) = before.filter(|(_, earlier)| is_back(**earlier)) {
            found.push(format!(
                "{name} went from {earlier} ({at}) to {phase} ({sequence})"
            ));
        }
        let explained = match phase {
            TaskPhase::Killed => facts.kill_asked || facts.excused || failed,
            TaskPhase::Lost | TaskPhase::Failed => facts.excused || failed,
            TaskPhase::Refused => changed || failed,
            TaskPhase::Staging
            | TaskPhase::Starting
            | TaskPhase::Running
            | TaskPhase::Finishing
            | TaskPhase::Finished => true,
        };
        if !explained {
            let reason = status.reason.map_or("without a reason", Code::as_str);
            found.push(format!(
                "{name} is {phase} ({reason}: {}), and nobody asked for it",
                status.message
            ));
        }
        found
    }

    /// When everything is over: what the leader's state says, all frameworks know.
    pub(crate) fn finish(&self, state: &State) -> Vec<String> {
        let mut found = Vec::new();
        for ((framework, run), facts) in &self.runs {
            let name = named(*framework, run);
            let live = state.run(*framework, run);
            let past = state.past_run(*framework, run);
            let ended = state.ended_run(*framework, run);
            let end = match (live, past, ended) {
                (Some(run), _, _) | (None, Some(run), _) => Some(run.phase),
                (None, None, Some(ended)) => Some(ended.phase),
                (None, None, None) => None,
            };
            let Some(phase) = end else {
                if facts.launched {
                    found.push(format!("{name} was launched and is not known any more"));
                }
                continue;
            };
            let last = facts.told.last_key_value().map(|(_, phase)| *phase);
            if phase.is_terminal() && last != Some(phase) {
                found.push(format!(
                    "{name} is {phase}, and the last that was told is {last:?}"
                ));
            }
        }
        found
    }

    pub(crate) fn digest(&self, digest: &mut Digest) {
        for ((framework, run), facts) in &self.runs {
            digest.add_bytes(framework.0.as_bytes());
            digest.add_bytes(run.task.as_str().as_bytes());
            for (sequence, phase) in &facts.told {
                digest.add(*sequence);
                digest.add_bytes(phase.word().as_bytes());
            }
        }
    }
}
