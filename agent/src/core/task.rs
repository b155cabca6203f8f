//! One run from its start to its last confirmed status.

use mete_model::task::{KILL_GRACE, LAUNCH_TIMEOUT};
use mete_model::{Code, Span, Status, StatusSource, TaskPhase, Timestamp, Usage};

use super::action::{Action, Record};
use super::ending::{RunEnd, judge};
use super::event::{KillTask, StartTask};
use super::updates::Updates;
use super::{AgentCore, RunKey};

/// A kill that was asked for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Kill {
    pub(super) grace: Span,
    pub(super) reason: Code,
}

/// One run.
#[derive(Debug)]
pub(super) struct Task {
    pub(super) start: StartTask,
    pub(super) phase: TaskPhase,
    pub(super) updates: Updates,
    pub(super) kill: Option<Kill>,
    /// To be forgotten without a word once it is over.
    pub(super) discarded: bool,
    /// Not handed to the runtime yet: names it needs are still held by a run that is ending.
    pub(super) waiting: bool,
    /// Nothing of it is with the runtime (never was, or is over).
    pub(super) released: bool,
    /// When the start was asked for.
    pub(super) since: Timestamp,
    pub(super) quarantined: Option<String>,
}

impl Task {
    pub(super) fn new(start: StartTask, since: Timestamp) -> Self {
        Self {
            start,
            phase: TaskPhase::Staging,
            updates: Updates::default(),
            kill: None,
            discarded: false,
            waiting: false,
            released: false,
            since,
            quarantined: None,
        }
    }

    pub(super) fn holds_resources(&self) -> bool {
        !self.phase.is_terminal()
    }

    pub(super) fn is_slow_to_start(&self, now: Timestamp, limit: Span) -> bool {
        self.phase == TaskPhase::Staging && !self.discarded && now.since(self.since) >= limit
    }

    fn spec_grace(&self) -> Span {
        self.start.spec.kill_grace.unwrap_or(KILL_GRACE)
    }
}

/// What a status says, before it is numbered.
struct Saying {
    phase: TaskPhase,
    reason: Option<Code>,
    message: String,
    exit: Option<mete_model::Exit>,
    usage: Option<Usage>,
    at: Timestamp,
}

impl Saying {
    fn plain(phase: TaskPhase, at: Timestamp) -> Self {
        Self {
            phase,
            reason: None,
            message: String::new(),
            exit: None,
            usage: None,
            at,
        }
    }
}

impl AgentCore {
    pub(super) fn start(&mut self, start: StartTask, now: Timestamp, actions: &mut Vec<Action>) {
        if self.tasks.contains_key(&start.key) {
            return;
        }
        let key = start.key.clone();
        let refusal = self.refusal(&start);
        let waits = self.holder_of_names(&start.resources).is_some();
        let mut task = Task::new(start, now);
        task.waiting = waits && refusal.is_none();
        actions.push(Action::Record(Record::Run {
            start: Box::new(task.start.clone()),
            phase: task.phase,
            next_sequence: 1,
        }));
        if refusal.is_none() && !task.waiting {
            actions.push(Action::Prepare(Box::new(task.start.clone())));
        }
        task.released = refusal.is_some();
        self.tasks.insert(key.clone(), task);
        if let Some((reason, message)) = refusal {
            let mut saying = Saying::plain(TaskPhase::Refused, now);
            saying.reason = Some(reason);
            saying.message = message;
            self.tell(&key, saying, actions);
        }
    }

    /// Why a launch cannot even be tried here.
    fn refusal(&self, start: &StartTask) -> Option<(Code, String)> {
        if let Some(pressure) = &self.disk_pressure {
            return Some((Code::DiskPressure, pressure.clone()));
        }
        self.missing_names(&start.resources).map(|missing| {
            (
                Code::DeviceGone,
                format!("{missing} is not on this node any more"),
            )
        })
    }

    pub(super) fn kill(&mut self, kill: KillTask, now: Timestamp, actions: &mut Vec<Action>) {
        let Some(task) = self.tasks.get_mut(&kill.key) else {
            self.kill_unknown(kill, now, actions);
            return;
        };
        if task.phase.is_terminal() || task.discarded {
            return;
        }
        let grace = kill.grace.unwrap_or_else(|| task.spec_grace());
        // A later stop may shorten the grace, never lengthen it.
        let already = task.kill.map(|kill| kill.grace);
        if already.is_some_and(|already| already <= grace) {
            return;
        }
        let reason = task.kill.map_or(kill.reason, |kill| kill.reason);
        task.kill = Some(Kill { grace, reason });
        let waiting = task.waiting;
        let key = kill.key;
        actions.push(Action::Record(Record::Kill {
            key: key.clone(),
            grace,
            reason,
            discard: false,
        }));
        if waiting {
            let end = RunEnd::bare(super::Ending::NeverStarted);
            self.ended(&key, &end, now, actions);
            return;
        }
        if already.is_none() {
            self.tell(&key, Saying::plain(TaskPhase::Finishing, now), actions);
        }
        actions.push(Action::Stop { key, grace });
    }

    /// A kill that overtook its start, or whose start never came: the end is told from here, and
    /// remembered until the broker has it, so that a late start finds the run over.
    fn kill_unknown(&mut self, kill: KillTask, now: Timestamp, actions: &mut Vec<Action>) {
        let start = StartTask {
            key: kill.key.clone(),
            grant: mete_model::GrantId::default(),
            resources: mete_model::Resources::default(),
            spec: std::sync::Arc::default(),
            environment: std::collections::BTreeMap::new(),
            labels: std::collections::BTreeMap::new(),
            role: None,
            framework_name: String::new(),
        };
        let mut task = Task::new(start, now);
        task.released = true;
        actions.push(Action::Record(Record::Run {
            start: Box::new(task.start.clone()),
            phase: task.phase,
            next_sequence: 1,
        }));
        self.tasks.insert(kill.key.clone(), task);
        let mut saying = Saying::plain(TaskPhase::Killed, now);
        saying.reason = Some(kill.reason);
        saying.message = "ended before it was started".to_owned();
        self.tell(&kill.key, saying, actions);
    }

    pub(super) fn discard(&mut self, key: &RunKey, now: Timestamp, actions: &mut Vec<Action>) {
        let Some(task) = self.tasks.get_mut(key) else {
            return;
        };
        if task.discarded {
            return;
        }
        task.discarded = true;
        if task.phase.is_terminal() || task.waiting {
            self.drop_task(key, actions);
            return;
        }
        let grace = task.spec_grace();
        actions.push(Action::Record(Record::Kill {
            key: key.clone(),
            grace,
            reason: Code::KilledByOperator,
            discard: true,
        }));
        actions.push(Action::Stop {
            key: key.clone(),
            grace,
        });
        tracing::debug!(run = %key, at = now.0, "discarding a run that the master does not want");
    }

    pub(super) fn forget(
        &mut self,
        key: &RunKey,
        sequence: u64,
        now: Timestamp,
        actions: &mut Vec<Action>,
    ) {
        let Some(task) = self.tasks.get_mut(key) else {
            return;
        };
        let again = task.updates.confirm(sequence);
        let settled = task.phase.is_terminal() && task.updates.is_settled();
        if settled {
            self.drop_task(key, actions);
            return;
        }
        actions.push(Action::Record(Record::Confirmed {
            key: key.clone(),
            sequence,
        }));
        let Some(status) = again else { return };
        tracing::info!(run = %key, sequence, at = now.0, "numbering a status anew");
        actions.push(Action::Record(Record::Update {
            framework: key.framework,
            status: Box::new(status.clone()),
        }));
        actions.push(Action::Send(vec![(key.framework, status)]));
    }

    pub(super) fn started(
        &mut self,
        key: &RunKey,
        at: Timestamp,
        now: Timestamp,
        actions: &mut Vec<Action>,
    ) {
        let Some(task) = self.tasks.get(key) else {
            return;
        };
        if task.phase.may_become(TaskPhase::Running) && !task.discarded {
            let at = if at.0 == 0 { now } else { at };
            self.tell(key, Saying::plain(TaskPhase::Running, at), actions);
        }
    }

    pub(super) fn tell_starting(
        &mut self,
        key: &RunKey,
        now: Timestamp,
        actions: &mut Vec<Action>,
    ) {
        let waits = self.tasks.get(key).is_some_and(|task| task.waiting);
        let mut saying = Saying::plain(TaskPhase::Starting, now);
        if waits {
            "its cores or devices are still held by a run that is ending"
                .clone_into(&mut saying.message);
        }
        self.tell(key, saying, actions);
    }

    pub(super) fn stuck(
        &mut self,
        key: &RunKey,
        message: String,
        now: Timestamp,
        actions: &mut Vec<Action>,
    ) {
        let Some(task) = self.tasks.get_mut(key) else {
            return;
        };
        task.quarantined = Some(message.clone());
        // A run that was already told as finishing is told again only through its end: a phase
        // never repeats. Its ledger row says what holds it.
        if task.phase.may_become(TaskPhase::Finishing) && !task.discarded {
            let mut saying = Saying::plain(TaskPhase::Finishing, now);
            saying.message = message;
            self.tell(key, saying, actions);
        }
    }

    pub(super) fn ended(
        &mut self,
        key: &RunKey,
        end: &RunEnd,
        now: Timestamp,
        actions: &mut Vec<Action>,
    ) {
        let Some(task) = self.tasks.get_mut(key) else {
            return;
        };
        if task.phase.is_terminal() {
            return;
        }
        task.waiting = false;
        task.quarantined = None;
        if task.discarded {
            self.drop_task(key, actions);
            self.retry_waiting(now, actions);
            return;
        }
        let verdict = judge(end, task.kill.map(|kill| kill.reason), &task.start);
        let saying = Saying {
            phase: verdict.phase,
            reason: verdict.reason,
            message: verdict.message,
            exit: verdict.exit,
            usage: end.usage,
            at: end.at.unwrap_or(now),
        };
        self.tell(key, saying, actions);
        // The end is in this turn's records, so the runtime's own trace is not needed any more.
        actions.push(Action::Release(key.clone()));
        if let Some(task) = self.tasks.get_mut(key) {
            task.released = true;
        }
        self.retry_waiting(now, actions);
    }

    /// Numbers a status, records it, sends it.
    fn tell(&mut self, key: &RunKey, saying: Saying, actions: &mut Vec<Action>) {
        let Some(task) = self.tasks.get_mut(key) else {
            return;
        };
        if !task.phase.may_become(saying.phase) {
            return;
        }
        task.phase = saying.phase;
        let status = task.updates.number(Status {
            run: key.run.clone(),
            sequence: 0,
            phase: saying.phase,
            reason: saying.reason,
            message: saying.message,
            source: StatusSource::Agent,
            at: saying.at,
            exit: saying.exit,
            usage: saying.usage,
            coalesced: false,
        });
        actions.push(Action::Record(Record::Update {
            framework: key.framework,
            status: Box::new(status.clone()),
        }));
        if self.linked {
            actions.push(Action::Send(vec![(key.framework, status)]));
        }
    }

    fn drop_task(&mut self, key: &RunKey, actions: &mut Vec<Action>) {
        if let Some(task) = self.tasks.remove(key) {
            actions.push(Action::Record(Record::Forget(key.clone())));
            if !task.released && !task.waiting {
                actions.push(Action::Release(key.clone()));
            }
        }
    }

    /// Starts what waited for names that are free now.
    pub(super) fn retry_waiting(&mut self, now: Timestamp, actions: &mut Vec<Action>) {
        let waiting: Vec<RunKey> = self
            .tasks
            .iter()
            .filter(|(_, task)| task.waiting)
            .map(|(key, _)| key.clone())
            .collect();
        for key in waiting {
            let Some(task) = self.tasks.get(&key) else {
                continue;
            };
            if self.holder_of_names(&task.start.resources).is_some() {
                continue;
            }
            if let Some(task) = self.tasks.get_mut(&key) {
                task.waiting = false;
                task.since = now;
                actions.push(Action::Prepare(Box::new(task.start.clone())));
            }
        }
    }

    /// Ends what waits for names and may not begin any more, its node being out of contact. Runs
    /// that the runtime has end themselves, also when this process is not there.
    pub(super) fn end_silent(&mut self, silence: Span, now: Timestamp, actions: &mut Vec<Action>) {
        let over = |task: &Task| {
            let limit = task.start.spec.partition.stop_if_silent;
            task.waiting && limit.is_some_and(|limit| limit <= silence)
        };
        let over: Vec<RunKey> = self
            .tasks
            .iter()
            .filter(|(_, task)| over(task))
            .map(|(key, _)| key.clone())
            .collect();
        for key in over {
            let mut end = RunEnd::bare(super::Ending::NeverStarted);
            end.out_of_contact = true;
            self.ended(&key, &end, now, actions);
        }
    }

    /// Ends what has waited for names longer than a launch may take.
    pub(super) fn expire_waiting(&mut self, now: Timestamp, actions: &mut Vec<Action>) {
        let late: Vec<RunKey> = self
            .tasks
            .iter()
            .filter(|(_, task)| {
                let limit = task.start.spec.launch_timeout.unwrap_or(LAUNCH_TIMEOUT);
                task.waiting && now.since(task.since) >= limit
            })
            .map(|(key, _)| key.clone())
            .collect();
        for key in late {
            let stage = "waiting for its cores or devices".to_owned();
            let end = RunEnd::bare(super::Ending::LaunchTimeout(stage));
            self.ended(&key, &end, now, actions);
        }
    }
}
