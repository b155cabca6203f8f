//! What shall go wrong between a framework and its broker, and what went through.
//!
//! Rules are set by a test and taken by the proxy. Everything is counted, never random: a script
//! says which call, so that it repeats.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use mete_model::{Code, OfferId, RunId};
use mete_proto::convert::{At, read_phase, read_run, whole};
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

/// How a subscription that asks for what changed is answered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Resumes {
    /// As the broker does.
    #[default]
    AsTheBroker,
    /// With everything, as a new leader must.
    WithEverything,
    /// With what changed, whenever the point that is asked from is known.
    WithChanges,
}

/// What happens to one call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Fate {
    pub(crate) delay: Duration,
    pub(crate) refuse: Option<Code>,
    pub(crate) lose_request: bool,
    pub(crate) lose_reply: bool,
    pub(crate) twice: bool,
}

#[derive(Debug, Default)]
struct Rules {
    refuse: BTreeMap<Method, (Code, u32)>,
    lose_requests: BTreeMap<Method, u32>,
    lose_replies: BTreeMap<Method, u32>,
    twice: BTreeMap<Method, u32>,
    delays: BTreeMap<Method, Duration>,
    calls: BTreeMap<Method, u64>,
    duplicate_updates: bool,
    delay_updates: Duration,
    resumes: Resumes,
    /// What each framework was told when a stream of it was opened.
    openings: BTreeMap<String, Told>,
    /// Statuses that went through, with their frameworks; the first so many.
    statuses: Vec<(String, fw::Event)>,
    tasks: Tasks,
    offers: BTreeSet<OfferId>,
    acknowledged: BTreeMap<(String, RunId), u64>,
    doubled: Vec<RunId>,
}

/// Statuses that are kept to be told again.
const STATUSES_KEPT: usize = 10_000;

/// What a framework was told of everything, at a revision.
#[derive(Clone, Debug, Default)]
struct Told {
    revision: u64,
    runs: BTreeMap<RunId, fw::RunStatus>,
}

/// The opening of one stream on its way through the proxy.
#[derive(Debug, Default)]
pub(crate) struct Opening {
    /// Only what differs from this is passed on.
    before: Option<Told>,
    now: Told,
    /// The broker itself tells only what changed.
    changes_only: bool,
}

/// The rules of one broker. Clones are the same rules.
#[derive(Clone, Debug)]
pub struct Faults {
    rules: Arc<Mutex<Rules>>,
    /// Rises with each order to drop all streams.
    drops: watch::Sender<u64>,
    /// Rises with each order to tell every status again.
    replays: watch::Sender<u64>,
    /// Nothing passes in either direction.
    silent: watch::Sender<bool>,
}

impl Default for Faults {
    fn default() -> Self {
        Self {
            rules: Arc::default(),
            drops: watch::Sender::new(0),
            replays: watch::Sender::new(0),
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

    /// The next `count` calls of this kind are refused with this code; nothing of them is done.
    pub fn refuse(&self, method: Method, code: Code, count: u32) {
        self.rules().refuse.insert(method, (code, count));
    }

    /// Calls of this kind take so much longer from now on.
    pub fn delay(&self, method: Method, delay: Duration) {
        self.rules().delays.insert(method, delay);
    }

    /// Every status comes twice from now on.
    pub fn duplicate_updates(&self) {
        self.rules().duplicate_updates = true;
    }

    /// Statuses come so much later from now on, and so does what comes behind them.
    pub fn delay_updates(&self, delay: Duration) {
        self.rules().delay_updates = delay;
    }

    /// Every status that ever went through is told again, late and out of place.
    pub fn replay_updates(&self) {
        self.replays.send_modify(|count| *count += 1);
    }

    /// How reconnects are answered from now on.
    pub fn answer_resumes(&self, how: Resumes) {
        self.rules().resumes = how;
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
        rules.refuse.clear();
        rules.lose_requests.clear();
        rules.lose_replies.clear();
        rules.twice.clear();
        rules.delays.clear();
        rules.duplicate_updates = false;
        rules.delay_updates = Duration::ZERO;
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
            refuse: take_refusal(&mut rules.refuse, method),
            lose_request: take_one(&mut rules.lose_requests, method),
            lose_reply: take_one(&mut rules.lose_replies, method),
            twice: take_one(&mut rules.twice, method),
        }
    }

    pub(crate) fn duplicates(&self) -> bool {
        self.rules().duplicate_updates
    }

    pub(crate) fn update_delay(&self) -> Duration {
        self.rules().delay_updates
    }

    /// What the broker is asked instead of `resume_revision`.
    pub(crate) fn resume_revision(&self, asked: u64) -> u64 {
        match self.rules().resumes {
            Resumes::AsTheBroker => asked,
            // The changes are worked out here, from everything.
            Resumes::WithEverything | Resumes::WithChanges => 0,
        }
    }

    /// Takes in the first word of a stream, and says in it what will be passed on.
    pub(crate) fn begin_opening(&self, hello: &mut fw::Subscribed, resume: u64) -> Opening {
        let rules = self.rules();
        let before = rules.openings.get(&hello.framework_id);
        let known = before.filter(|told| resume > 0 && told.revision <= resume);
        let mut opening = Opening {
            changes_only: hello.changes_only,
            ..Opening::default()
        };
        if opening.changes_only {
            opening.now = before.cloned().unwrap_or_default();
        } else if rules.resumes == Resumes::WithChanges && known.is_some() {
            opening.before = known.cloned();
            hello.changes_only = true;
        }
        opening
    }

    pub(crate) fn end_opening(&self, framework: &str, mut opening: Opening, revision: u64) {
        opening.now.revision = revision;
        let mut rules = self.rules();
        rules.openings.insert(framework.to_owned(), opening.now);
    }

    pub(crate) fn keep_status(&self, framework: &str, event: &fw::Event) {
        let mut rules = self.rules();
        if rules.statuses.len() < STATUSES_KEPT {
            rules.statuses.push((framework.to_owned(), event.clone()));
        }
    }

    pub(crate) fn kept_statuses(&self, framework: &str) -> Vec<fw::Event> {
        let rules = self.rules();
        let kept = rules.statuses.iter().filter(|(of, _)| of == framework);
        kept.map(|(_, event)| event.clone()).collect()
    }

    pub(crate) fn replays(&self) -> watch::Receiver<u64> {
        self.replays.subscribe()
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
                | Event::RunsReplaceable(_)
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
        let read = whole(|faults| read_phase(phase, At::root("phase"), faults));
        let Ok(phase) = read else { return };
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

impl Opening {
    /// Takes in a page, and leaves of it what is passed on: all claims, since one that is missing
    /// was withdrawn, and the runs that may have changed.
    pub(crate) fn filter_page(&mut self, page: &mut fw::Snapshot) {
        let Self { before, now, .. } = self;
        page.runs.retain(|run| {
            let Some(id) = run.run.as_ref().and_then(run_id) else {
                return true;
            };
            now.runs.insert(id.clone(), run.clone());
            before
                .as_ref()
                .is_none_or(|told| told.runs.get(&id) != Some(run))
        });
    }
}

fn take_refusal(refusals: &mut BTreeMap<Method, (Code, u32)>, method: Method) -> Option<Code> {
    match refusals.get_mut(&method) {
        Some((code, count)) if *count > 0 => {
            *count -= 1;
            Some(*code)
        }
        Some(_) | None => None,
    }
}

fn run_id(run: &pb::Run) -> Option<RunId> {
    whole(|faults| read_run(Some(run.clone()), At::root("run"), faults)).ok()
}
