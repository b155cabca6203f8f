//! After a restart: what the checkpoint says, what really runs, and what the master wants.
//!
//! Nothing is killed on a guess. A run that the checkpoint does not know but that lives is kept,
//! told to the leader, and ended only if the leader does not want it.

use std::collections::BTreeMap;

use mete_model::{Status, TaskPhase, Timestamp};

use super::action::{Action, Record};
use super::ending::{Ending, RunEnd};
use super::event::StartTask;
use super::task::{Kill, Task};
use super::updates::Updates;
use super::{AgentCore, RunKey};

/// A run as the checkpoint has it, all its records folded.
#[derive(Clone, Debug)]
pub struct RecordedRun {
    /// As it was asked for.
    pub start: StartTask,
    /// The phase of the last status, or of the run record.
    pub phase: TaskPhase,
    /// The number its next status gets.
    pub next_sequence: u64,
    /// What the broker has not confirmed, in order.
    pub unconfirmed: Vec<Status>,
    /// A kill that was asked for: the record of it.
    pub kill: Option<Record>,
}

/// A run that left traces on this machine.
#[derive(Clone, Debug)]
pub struct Found {
    /// Which; runs whose traces do not say are not listed here.
    pub key: RunKey,
    /// As its description says, for a run that the checkpoint has lost.
    pub start: Option<StartTask>,
    /// What it is now.
    pub state: FoundState,
}

/// What a found run is now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FoundState {
    /// Lives, or its end will be told once it is adopted.
    Adoptable,
    /// Nothing of it ever ran and nothing will; it may be prepared again.
    NeverStarted,
}

impl AgentCore {
    /// Brings what was recorded and what was found together. Call it once, before any event.
    ///
    /// `rebooted`: the machine was started anew, so no process of ours can be alive.
    pub fn restore(
        &mut self,
        recorded: Vec<RecordedRun>,
        found: Vec<Found>,
        rebooted: bool,
        now: Timestamp,
    ) -> Vec<Action> {
        let mut actions = Vec::new();
        let mut found: BTreeMap<RunKey, Found> = found
            .into_iter()
            .map(|found| (found.key.clone(), found))
            .collect();
        for run in recorded {
            let here = found.remove(&run.start.key);
            self.restore_run(run, here.as_ref(), rebooted, now, &mut actions);
        }
        for (key, orphan) in found {
            self.keep_orphan(key, orphan, now, &mut actions);
        }
        // Only now is known who holds what: a start that waited for names goes on waiting.
        self.retry_waiting(now, &mut actions);
        actions
    }

    fn restore_run(
        &mut self,
        run: RecordedRun,
        found: Option<&Found>,
        rebooted: bool,
        now: Timestamp,
        actions: &mut Vec<Action>,
    ) {
        let key = run.start.key.clone();
        let mut task = Task::new(run.start, now);
        task.phase = run.phase;
        task.updates = Updates::restored(run.next_sequence, run.unconfirmed);
        if let Some(Record::Kill {
            grace,
            reason,
            discard,
            ..
        }) = run.kill
        {
            task.kill = Some(Kill { grace, reason });
            task.discarded = discard;
        }
        let over = task.phase.is_terminal();
        let asked = task.kill;
        let start = task.start.clone();
        task.released = over && found.is_none();
        self.tasks.insert(key.clone(), task);
        if over {
            if found.is_some() {
                actions.push(Action::Release(key));
            }
            return;
        }
        if rebooted {
            self.ended(&key, &RunEnd::bare(Ending::Rebooted), now, actions);
            return;
        }
        match (found.map(|found| found.state), asked) {
            (Some(FoundState::Adoptable), _) => {
                actions.push(Action::Adopt(key.clone()));
                if let Some(kill) = asked {
                    actions.push(Action::Stop {
                        key,
                        grace: kill.grace,
                    });
                }
            }
            // The record was durable before anything was done, and nothing was done.
            (Some(FoundState::NeverStarted) | None, Some(_)) => {
                self.ended(&key, &RunEnd::bare(Ending::NeverStarted), now, actions);
            }
            (Some(FoundState::NeverStarted), None) => {
                actions.push(Action::Release(key.clone()));
                self.prepare_later(&key);
            }
            (None, None) if self.was_started(&start) => {
                self.ended(&key, &RunEnd::bare(Ending::Unknown), now, actions);
            }
            (None, None) => self.prepare_later(&key),
        }
    }

    /// Prepared once everything that was recorded or found has its place in the ledger.
    fn prepare_later(&mut self, key: &RunKey) {
        if let Some(task) = self.tasks.get_mut(key) {
            task.waiting = true;
        }
    }

    /// A status beyond `Staging` was told: the command may have run, so it must not run again.
    fn was_started(&self, start: &StartTask) -> bool {
        self.tasks
            .get(&start.key)
            .is_some_and(|task| task.phase >= TaskPhase::Running)
    }

    fn keep_orphan(
        &mut self,
        key: RunKey,
        orphan: Found,
        now: Timestamp,
        actions: &mut Vec<Action>,
    ) {
        let Some(start) = orphan.start else { return };
        if orphan.state == FoundState::NeverStarted {
            actions.push(Action::Release(key));
            return;
        }
        let mut task = Task::new(start, now);
        task.quarantined = Some("the checkpoint does not know it".to_owned());
        actions.push(Action::Record(Record::Run {
            start: Box::new(task.start.clone()),
            phase: task.phase,
            next_sequence: 1,
        }));
        actions.push(Action::Adopt(key.clone()));
        self.tasks.insert(key, task);
    }
}
