//! What this process knows of its framework: runs, claims, and which statuses came through.
//!
//! Plain data without a clock or a connection. The session feeds it with snapshots, statuses and
//! verdicts; `live_tasks` and `wanted` are answered from it. It filters duplicates by (run,
//! sequence) and finds runs that vanished. A launch counts from the moment it is sent, because its
//! first status may overtake the reply.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};

use mete_model::{ClaimId, Code, RunId, StatusSource, TaskPhase, Timestamp};

use crate::event::{AgentChanged, Replaceable, Snapshot};
use crate::task::{AgentCondition, ClaimInfo, RunInfo, TaskUpdate};
use crate::wire::SnapshotRun;

/// Ended runs that are remembered, so that a late duplicate is known as one.
const ENDED_KEPT: usize = 65_536;

/// What to do with a status that came in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Receipt {
    /// Not seen before: hand it over.
    New,
    /// Already on its way to the handler.
    Duplicate,
    /// Handled before: acknowledge it again, the first acknowledgement may be lost.
    Handled,
}

#[derive(Debug)]
struct Run {
    info: RunInfo,
    /// Highest sequence that came in.
    received: u64,
    /// Highest sequence whose handler returned.
    handled: u64,
    /// Sent, and not known to be committed yet.
    launching: bool,
    /// An end came in; the handler may not know yet.
    ending: bool,
    /// The end was handed over.
    ended: bool,
    /// A snapshot below this revision need not have the run. While it is launching: what had come
    /// in when it was sent, so it is committed later than that.
    since: u64,
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct View {
    runs: HashMap<RunId, Run>,
    claims: BTreeMap<ClaimId, ClaimInfo>,
    launching: BTreeMap<ClaimId, u32>,
    live: usize,
    ended: HashMap<RunId, u64>,
    ended_order: VecDeque<RunId>,
    pub(crate) demand_version: u64,
    /// Highest revision of anything that came in.
    pub(crate) revision: u64,
    /// Everything up to this revision came in.
    complete: u64,
    pub(crate) suppressed: Vec<String>,
}

/// A snapshot as it came, before it is joined with what is known.
#[derive(Default)]
pub(crate) struct Arrived {
    pub(crate) runs: Vec<SnapshotRun>,
    pub(crate) claims: Vec<ClaimInfo>,
    pub(crate) demand_version: u64,
    pub(crate) suppressed: Vec<String>,
    pub(crate) revision: u64,
    pub(crate) changes_only: bool,
}

impl View {
    /// Tasks that are not over, launches on their way included.
    pub(crate) fn live(&self) -> usize {
        self.live
    }

    /// Tasks that the claims still want, launches on their way left out.
    pub(crate) fn wanted(&self) -> u64 {
        self.claims
            .values()
            .map(|claim| {
                let launching = self.launching.get(&claim.claim.id).copied().unwrap_or(0);
                u64::from(claim.remaining().saturating_sub(launching))
            })
            .sum()
    }

    /// Notes that an event of this revision came in; 0 = it belongs to none.
    pub(crate) fn heard(&mut self, revision: u64) {
        self.revision = self.revision.max(revision);
        // There may be more of the same revision, but none of an earlier one.
        self.complete = self.complete.max(revision.saturating_sub(1));
    }

    /// From which revision on the broker has to tell what changed; 0 = everything.
    ///
    /// Below the launches that are on their way: whether they are in the log, and in their claims'
    /// counts, is only known when the answer is.
    pub(crate) fn resume_revision(&self) -> u64 {
        let launching = self.runs.values().filter(|run| run.launching);
        launching.map(|run| run.since).fold(self.complete, u64::min)
    }

    pub(crate) fn claim(&self, id: &ClaimId) -> Option<&ClaimInfo> {
        self.claims.get(id)
    }

    /// Tasks launched for a claim, those on their way included.
    pub(crate) fn launched_for(&self, id: &ClaimId) -> u32 {
        let committed = self.claims.get(id).map_or(0, |info| info.launched);
        let launching = self.launching.get(id).copied().unwrap_or(0);
        committed.saturating_add(launching)
    }

    pub(crate) fn run(&self, run: &RunId) -> Option<&RunInfo> {
        self.runs
            .get(run)
            .filter(|run| !run.ended)
            .map(|run| &run.info)
    }

    pub(crate) fn snapshot(&self) -> Snapshot {
        let live = self.runs.values().filter(|run| !run.ended);
        let mut runs: Vec<RunInfo> = live.map(|run| run.info.clone()).collect();
        runs.sort_by(|a, b| a.run.cmp(&b.run));
        Snapshot {
            runs,
            claims: self.claims.values().cloned().collect(),
            suppressed_roles: self.suppressed.clone(),
            revision: self.revision,
        }
    }

    /// Notes the claims as the broker now has them.
    pub(crate) fn declared(&mut self, upsert: &[mete_model::Claim], remove: &[ClaimId]) {
        for claim in upsert {
            match self.claims.get_mut(&claim.id) {
                Some(known) => known.claim = claim.clone(),
                None => {
                    let info = ClaimInfo {
                        claim: claim.clone(),
                        launched: 0,
                    };
                    self.claims.insert(claim.id.clone(), info);
                }
            }
        }
        for id in remove {
            self.claims.remove(id);
        }
    }

    /// Notes launches that are about to be sent. A run that is known already stays as it is.
    pub(crate) fn launching(&mut self, infos: impl IntoIterator<Item = RunInfo>) {
        for info in infos {
            if self.runs.contains_key(&info.run) || self.ended.contains_key(&info.run) {
                continue;
            }
            if let Some(claim) = &info.claim {
                *self.launching.entry(claim.clone()).or_default() += 1;
            }
            self.live += 1;
            let run = Run {
                since: self.revision,
                ..Run::new(info, true)
            };
            self.runs.insert(run.info.run.clone(), run);
        }
    }

    /// The launch was committed at `revision`.
    pub(crate) fn launched(&mut self, run: &RunId, revision: u64) {
        if let Some(known) = self.runs.get_mut(run) {
            known.since = known.since.max(revision);
        }
        let old = self
            .runs
            .get(run)
            .and_then(|known| known.info.replaces.clone());
        if let Some(old) = old {
            self.not_replaceable(&old);
        }
        self.confirm(run, true);
    }

    /// The launch was refused, or nobody will ever answer it.
    pub(crate) fn refused(&mut self, run: &RunId) {
        let still_open = self.runs.get(run).is_some_and(|known| known.launching);
        if still_open && let Some(known) = self.runs.remove(run) {
            self.live -= 1;
            self.no_longer_launching(known.info.claim.as_ref());
        }
    }

    fn confirm(&mut self, run: &RunId, count_down: bool) {
        let Some(known) = self.runs.get_mut(run).filter(|known| known.launching) else {
            return;
        };
        known.launching = false;
        let claim = known.info.claim.clone();
        self.no_longer_launching(claim.as_ref());
        if count_down
            && let Some(id) = claim
            && let Some(info) = self.claims.get_mut(&id)
        {
            info.launched = info.launched.saturating_add(1);
        }
    }

    fn no_longer_launching(&mut self, claim: Option<&ClaimId>) {
        if let Some(id) = claim
            && let Some(count) = self.launching.get_mut(id)
        {
            *count = count.saturating_sub(1);
            if *count == 0 {
                self.launching.remove(id);
            }
        }
    }

    /// Notes a status as it comes in, fills in what the launch knew, and says what to do with it.
    pub(crate) fn receive(&mut self, update: &mut TaskUpdate) -> Receipt {
        let run = update.run();
        if let Some(last) = self.ended.get(&run) {
            // Nothing comes after an end: whatever this is, it was dealt with.
            return if update.sequence <= *last {
                Receipt::Handled
            } else {
                Receipt::Duplicate
            };
        }
        self.confirm(&run, true);
        let live = &mut self.live;
        let known = self.runs.entry(run.clone()).or_insert_with(|| {
            *live += 1;
            Run::new(RunInfo::unknown(run), false)
        });
        if known.info.agent.is_none() {
            known.info.agent = update.agent;
        }
        update.claim.clone_from(&known.info.claim);
        update.agent = update.agent.or(known.info.agent);
        if update.sequence <= known.handled {
            return Receipt::Handled;
        }
        if update.sequence <= known.received || known.ending {
            return Receipt::Duplicate;
        }
        known.received = update.sequence;
        known.ending = update.phase.is_terminal();
        Receipt::New
    }

    /// Notes that a status is being handed to its handler.
    pub(crate) fn hand_over(&mut self, update: &TaskUpdate) {
        if let Some(known) = self.runs.get_mut(&update.run()) {
            known.info.phase = update.phase;
            if update.phase.is_terminal() && !known.ended {
                known.ended = true;
                self.live -= 1;
            }
        }
    }

    /// Says whether a status was handled already.
    pub(crate) fn is_handled(&self, run: &RunId, sequence: u64) -> bool {
        match self.runs.get(run) {
            Some(known) => sequence > 0 && sequence <= known.handled,
            None => true,
        }
    }

    /// Notes that a status was handled.
    pub(crate) fn handled(&mut self, run: &RunId, sequence: u64) {
        if let Some(known) = self.runs.get_mut(run) {
            known.handled = known.handled.max(sequence);
        }
    }

    /// The broker has an acknowledgement up to `sequence`; an ended run may now be forgotten.
    pub(crate) fn acknowledged(&mut self, run: &RunId, sequence: u64) {
        let over = self
            .runs
            .get(run)
            .is_some_and(|known| known.ended && known.received <= sequence);
        if !over {
            return;
        }
        self.runs.remove(run);
        self.ended.insert(run.clone(), sequence);
        self.ended_order.push_back(run.clone());
        while self.ended_order.len() > ENDED_KEPT {
            if let Some(oldest) = self.ended_order.pop_front() {
                self.ended.remove(&oldest);
            }
        }
    }

    /// Forgets a run that the broker does not know either.
    pub(crate) fn forget(&mut self, run: &RunId) {
        let last = self.runs.get(run).map_or(0, |known| known.received);
        self.acknowledged(run, last);
    }

    pub(crate) fn replaceable(&mut self, told: &Replaceable) {
        for run in &told.runs {
            if let Some(known) = self.runs.get_mut(run) {
                known.info.replaceable = Some(told.since);
            }
        }
    }

    /// Another run has taken its place, or it may not be replaced after all.
    pub(crate) fn not_replaceable(&mut self, run: &RunId) {
        if let Some(known) = self.runs.get_mut(run) {
            known.info.replaceable = None;
        }
    }

    pub(crate) fn agent_changed(&mut self, change: &AgentChanged) {
        for run in self.runs.values_mut() {
            if run.info.agent == Some(change.agent) {
                run.info.agent_condition = change.condition;
                if change.condition == AgentCondition::Ready {
                    run.info.replaceable = None;
                }
            }
        }
    }

    /// Joins a snapshot with what is known. Gives the statuses that nobody has handled yet, runs
    /// that the broker no longer knows among them.
    pub(crate) fn restore(&mut self, arrived: Arrived) -> Vec<TaskUpdate> {
        let mut open = Vec::new();
        let mut named = HashSet::new();
        for run in arrived.runs {
            named.insert(run.info.run.clone());
            open.extend(self.restore_run(run, arrived.revision));
        }
        // Also of changes only, a snapshot names every claim.
        self.claims.clear();
        for info in arrived.claims {
            self.claims.insert(info.claim.id.clone(), info);
        }
        self.demand_version = self.demand_version.max(arrived.demand_version);
        self.suppressed = arrived.suppressed;
        self.revision = self.revision.max(arrived.revision);
        self.complete = self.complete.max(arrived.revision);
        if !arrived.changes_only {
            open.extend(self.vanished(&named, arrived.revision));
        }
        open
    }

    fn restore_run(&mut self, arrived: SnapshotRun, revision: u64) -> Vec<TaskUpdate> {
        let id = arrived.info.run.clone();
        if self.ended.contains_key(&id) {
            // Its end was handled; the acknowledgement is in the log behind this snapshot.
            return Vec::new();
        }
        // The snapshot's own count includes it already.
        self.confirm(&id, false);
        let live = &mut self.live;
        let known = self.runs.entry(id).or_insert_with(|| {
            *live += 1;
            let mut run = Run::new(arrived.info.clone(), false);
            run.received = arrived.acknowledged;
            run.handled = arrived.acknowledged;
            if run.info.phase.is_terminal() {
                // Its end is among the statuses that follow.
                run.info.phase = TaskPhase::Running;
            }
            run
        });
        let phase = known.info.phase;
        known.info = RunInfo {
            phase,
            ..arrived.info
        };
        known.since = known.since.max(revision);
        let mut open = Vec::new();
        for mut update in arrived.unacknowledged {
            if self.receive(&mut update) == Receipt::New {
                open.push(update);
            }
        }
        open
    }

    /// Runs that this process knows and a complete snapshot does not: they are lost, and said so.
    fn vanished(&mut self, named: &HashSet<RunId>, revision: u64) -> Vec<TaskUpdate> {
        let gone = self.runs.values_mut().filter(|run| {
            !run.launching && !run.ending && run.since <= revision && !named.contains(&run.info.run)
        });
        let mut updates: Vec<TaskUpdate> = gone
            .map(|run| {
                run.ending = true;
                vanished_update(&run.info)
            })
            .collect();
        updates.sort_by_key(TaskUpdate::run);
        updates
    }

    /// The node API of the agent that holds a run; empty if not known.
    pub(crate) fn node_address(&self, run: &RunId) -> Option<String> {
        self.runs.get(run).map(|run| run.info.node_address.clone())
    }
}

impl Run {
    fn new(info: RunInfo, launching: bool) -> Self {
        Self {
            info,
            received: 0,
            handled: 0,
            launching,
            ending: false,
            ended: false,
            since: 0,
        }
    }
}

fn vanished_update(info: &RunInfo) -> TaskUpdate {
    TaskUpdate {
        task: info.run.task.clone(),
        attempt: info.run.attempt,
        sequence: 0,
        phase: TaskPhase::Lost,
        reason: Some(Code::NotFound),
        message: "the broker no longer knows this run".to_owned(),
        source: StatusSource::Framework,
        at: Timestamp::default(),
        exit: None,
        usage: None,
        coalesced: false,
        agent: info.agent,
        claim: info.claim.clone(),
    }
}

#[cfg(test)]
mod tests;
