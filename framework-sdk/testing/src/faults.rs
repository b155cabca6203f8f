//! What shall go wrong between a framework and its broker, and what went through.
//!
//! Rules are set by a test and taken by the proxy. Everything is counted, never random: a script
//! says which call, so that it repeats.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use mete_model::{OfferId, RunId, TaskId, TaskPhase};
use mete_proto::framework::v1 as fw;
use mete_proto::types::v1 as pb;
use tokio::sync::watch;

use crate::tasks::Tasks;

/// The calls of a framework.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[expect(
    missing_docs,
    reason = "each is the call of its name in the framework service"
)]
pub enum Method {
    UpdateDemand,
    Accept,
    Decline,
    Suppress,
    Revive,
    UpdateFramework,
    Kill,
    Acknowledge,
    Reconcile,
    StoreGet,
    StoreList,
    StoreWrite,
    Teardown,
}

/// What happens to one call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Fate {
    pub(crate) delay: Duration,
    pub(crate) lose_request: bool,
    pub(crate) lose_reply: bool,
    pub(crate) twice: bool,
}

#[derive(Debug, Default)]
struct Rules {
    lose_requests: BTreeMap<Method, u32>,
    lose_replies: BTreeMap<Method, u32>,
    twice: BTreeMap<Method, u32>,
    delays: BTreeMap<Method, Duration>,
    calls: BTreeMap<Method, u64>,
    duplicate_updates: bool,
    tasks: Tasks,
    offers: BTreeSet<OfferId>,
    acknowledged: BTreeMap<(String, RunId), u64>,
    doubled: Vec<RunId>,
}

/// The rules of one broker. Clones are the same rules.
#[derive(Clone, Debug)]
pub struct Faults {
    rules: Arc<Mutex<Rules>>,
    /// Rises with each order to drop all streams.
    drops: watch::Sender<u64>,
    /// Nothing passes in either direction.
    silent: watch::Sender<bool>,
}

impl Default for Faults {
    fn default() -> Self {
        Self {
            rules: Arc::default(),
            drops: watch::Sender::new(0),
            silent: watch::Sender::new(false),
        }
    }
}

impl Faults {
    fn rules(&self) -> MutexGuard<'_, Rules> {
        self.rules.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The next `count` calls of this kind never reach the broker; the caller sees a broken call.
    pub fn lose_requests(&self, method: Method, count: u32) {
        self.rules().lose_requests.insert(method, count);
    }

    /// The next `count` calls of this kind are done, but the caller sees a broken call.
    pub fn lose_replies(&self, method: Method, count: u32) {
        self.rules().lose_replies.insert(method, count);
    }

    /// The next `count` calls of this kind reach the broker twice.
    pub fn send_twice(&self, method: Method, count: u32) {
        self.rules().twice.insert(method, count);
    }

    /// Calls of this kind take so much longer from now on.
    pub fn delay(&self, method: Method, delay: Duration) {
        self.rules().delays.insert(method, delay);
    }

    /// Every status comes twice from now on.
    pub fn duplicate_updates(&self) {
        self.rules().duplicate_updates = true;
    }

    /// Ends all event streams once.
    pub fn drop_streams(&self) {
        self.drops.send_modify(|count| *count += 1);
    }

    /// From now on nothing passes, and nobody is told: as if a cable were cut.
    pub fn silence(&self) {
        self.silent.send_replace(true);
    }

    /// Everything works again; what was lost stays lost.
    pub fn heal(&self) {
        let mut rules = self.rules();
        rules.lose_requests.clear();
        rules.lose_replies.clear();
        rules.twice.clear();
        rules.delays.clear();
        rules.duplicate_updates = false;
        drop(rules);
        self.silent.send_replace(false);
    }

    /// Calls of this kind so far.
    #[must_use]
    pub fn calls(&self, method: Method) -> u64 {
        self.rules().calls.get(&method).copied().unwrap_or(0)
    }

    /// What frameworks were told of their tasks.
    #[must_use]
    pub fn tasks(&self) -> Tasks {
        self.rules().tasks.clone()
    }

    /// Runs whose end was told and not acknowledged.
    #[must_use]
    pub fn unacknowledged_ends(&self) -> Vec<RunId> {
        let rules = self.rules();
        let ended = rules
            .tasks
            .by_run
            .iter()
            .filter(|(_, phase)| phase.is_terminal());
        ended
            .filter(|(key, _)| !rules.acknowledged.contains_key(*key))
            .map(|((_, run), _)| run.clone())
            .collect()
    }

    /// Runs that were told to be at work again after their end: must never be.
    #[must_use]
    pub fn risen(&self) -> Vec<RunId> {
        self.rules().doubled.clone()
    }

    pub(crate) fn offers_seen(&self) -> Vec<OfferId> {
        self.rules().offers.iter().copied().collect()
    }

    pub(crate) fn fate(&self, method: Method) -> Fate {
        let mut rules = self.rules();
        *rules.calls.entry(method).or_default() += 1;
        Fate {
            delay: rules.delays.get(&method).copied().unwrap_or_default(),
            lose_request: take_one(&mut rules.lose_requests, method),
            lose_reply: take_one(&mut rules.lose_replies, method),
            twice: take_one(&mut rules.twice, method),
        }
    }

    pub(crate) fn duplicates(&self) -> bool {
        self.rules().duplicate_updates
    }

    pub(crate) fn drops(&self) -> watch::Receiver<u64> {
        self.drops.subscribe()
    }

    /// Waits while nothing passes.
    pub(crate) async fn while_silent(&self) {
        let mut silent = self.silent.subscribe();
        // The sender lives as long as these rules.
        drop(silent.wait_for(|silent| !*silent).await);
    }

    pub(crate) fn saw_event(&self, framework: &str, event: &fw::Event) {
        use fw::event::Event;
        match &event.event {
            Some(Event::Status(status)) => self.saw_status(framework, status),
            Some(Event::Snapshot(page)) => {
                for run in &page.runs {
                    self.saw_phase(framework, run.run.as_ref(), run.phase);
                }
            }
            Some(Event::Offers(offers)) => {
                let ids = offers.offers.iter().filter_map(|offer| offer.id);
                self.rules().offers.extend(ids.map(|id| OfferId {
                    term: id.term,
                    number: id.number,
                }));
            }
            Some(
                Event::Subscribed(_)
                | Event::SnapshotEnd(_)
                | Event::Rescinded(_)
                | Event::AgentChanged(_)
                | Event::Heartbeat(_)
                | Event::Moved(_),
            )
            | None => {}
        }
    }

    fn saw_status(&self, framework: &str, status: &pb::Status) {
        let run = status.run.as_ref().and_then(|run| run.run.as_ref());
        self.saw_phase(framework, run, status.phase);
    }

    fn saw_phase(&self, framework: &str, run: Option<&pb::Run>, phase: i32) {
        let Some(run) = run.and_then(run_id) else {
            return;
        };
        let Some(phase) = phase_of(phase) else { return };
        let mut rules = self.rules();
        let key = (framework.to_owned(), run.clone());
        let before = rules.tasks.by_run.get(&key).copied();
        match before {
            // Told again, or an older status that comes behind a snapshot.
            Some(before) if before >= phase && !before.is_terminal() => {}
            // An end may be told often; only another end, or work after it, is a defect.
            Some(before) if before.is_terminal() => {
                if phase.is_terminal() && phase != before {
                    rules.doubled.push(run);
                }
            }
            Some(_) | None => {
                rules.tasks.by_run.insert(key, phase);
            }
        }
    }

    pub(crate) fn saw_granted(&self, framework: &str, run: Option<&pb::Run>) {
        self.saw_phase(framework, run, pb::TaskPhase::Staging.into());
    }

    pub(crate) fn saw_acknowledged(&self, framework: &str, items: &[fw::RunSequence]) {
        let mut rules = self.rules();
        for item in items {
            if let Some(run) = item.run.as_ref().and_then(run_id) {
                let key = (framework.to_owned(), run);
                let highest = rules.acknowledged.entry(key).or_default();
                *highest = (*highest).max(item.sequence);
            }
        }
    }
}

fn take_one(counts: &mut BTreeMap<Method, u32>, method: Method) -> bool {
    match counts.get_mut(&method) {
        Some(count) if *count > 0 => {
            *count -= 1;
            true
        }
        Some(_) | None => false,
    }
}

fn run_id(run: &pb::Run) -> Option<RunId> {
    let task = TaskId::new(&run.task).ok()?;
    Some(RunId::new(task, run.attempt))
}

fn phase_of(phase: i32) -> Option<TaskPhase> {
    Some(match pb::TaskPhase::try_from(phase).ok()? {
        pb::TaskPhase::Unspecified => return None,
        pb::TaskPhase::Staging => TaskPhase::Staging,
        pb::TaskPhase::Starting => TaskPhase::Starting,
        pb::TaskPhase::Running => TaskPhase::Running,
        pb::TaskPhase::Finishing => TaskPhase::Finishing,
        pb::TaskPhase::Finished => TaskPhase::Finished,
        pb::TaskPhase::Failed => TaskPhase::Failed,
        pb::TaskPhase::Killed => TaskPhase::Killed,
        pb::TaskPhase::Lost => TaskPhase::Lost,
        pb::TaskPhase::Refused => TaskPhase::Refused,
    })
}
