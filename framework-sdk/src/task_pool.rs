//! Layer 3: keep N tasks of each kind running. Offers are invisible.
//!
//! A [`TaskPool`] is a [`Framework`]: give it to a [`crate::Runner`] with a tick of about a second
//! and change it through its [`PoolHandle`] at any time. A task that ends is started again after a
//! pause that grows while it fails quickly. A pool that is started again, also elsewhere, takes its
//! tasks over by their labels: none is started twice. It keeps nothing on disk: what is wanted has
//! to be set again, for example from the [`crate::store`].

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use mete_model::{RunId, TaskPhase};
use tokio::time::Instant;

use crate::accept::LaunchVerdict;
use crate::claims::Claim;
use crate::error::{Error, Result};
use crate::event::{AgentChanged, Connected, Replaceable};
use crate::framework::Framework;
use crate::offers::Offers;
use crate::session::Session;
use crate::task::{Launch, TaskSpec, TaskUpdate};

mod group;

use group::{Away, Found, Group};

/// How long an offer that finds nothing due is to stay away while a launch may still be refused.
const AGAIN: Duration = Duration::from_secs(1);

/// The label that says which kind a task of a pool is.
pub(crate) const KIND: &str = "pool";

/// The label, and the environment variable `METE_INDEX`, that count the tasks of a kind from 0.
pub(crate) const INDEX: &str = "pool-index";

/// Tasks that shall run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// How many at the same time.
    pub count: u32,
    /// What each needs; its own count does not matter.
    pub claim: Claim,
    /// What each runs; a change holds for tasks started later.
    pub task: TaskSpec,
    /// The pause before a task is started again: from, and at the most.
    pub pause: (Duration, Duration),
}

impl Wanted {
    /// So many of these; pauses from 1 s to 1 min.
    #[must_use]
    pub fn new(count: u32, claim: Claim, task: TaskSpec) -> Self {
        Self {
            count,
            claim,
            task,
            pause: (Duration::from_secs(1), Duration::from_secs(60)),
        }
    }
}

/// How one kind of task stands.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GroupStatus {
    /// The kind.
    pub name: String,
    /// How many shall run.
    pub wanted: u32,
    /// How many run.
    pub running: u32,
    /// How many are launched and do not run yet, or are being stopped.
    pub moving: u32,
    /// How many wait for an offer.
    pub waiting: u32,
    /// How many wait for the end of their pause.
    pub pausing: u32,
    /// How many have been started again since this process began.
    pub restarts: u64,
    /// What the last end said.
    pub last_end: String,
}

#[derive(Debug, Default)]
struct Shared {
    wanted: BTreeMap<String, Wanted>,
    status: BTreeMap<String, GroupStatus>,
    session: Option<Session>,
}

/// Changes a pool and looks at it, from any task.
#[derive(Clone, Debug, Default)]
pub struct PoolHandle {
    shared: Arc<Mutex<Shared>>,
}

impl PoolHandle {
    fn shared(&self) -> MutexGuard<'_, Shared> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts or changes a kind. Fewer than before: the highest indices are stopped.
    ///
    /// # Errors
    /// [`crate::Error::Invalid`] for a name that cannot be a claim's or a task's, or for a claim
    /// that is not permitted.
    pub fn set(&self, name: &str, wanted: Wanted) -> Result<()> {
        mete_model::TaskId::new(name)?;
        if let Some(bad) = wanted.task.run.partition.faults().first() {
            return Err(Error::field(bad.part, &bad.fault));
        }
        wanted.claim.shape()?;
        self.shared().wanted.insert(name.to_owned(), wanted);
        self.wake();
        Ok(())
    }

    /// Stops all tasks of a kind and forgets it; `false` if there is none.
    pub fn remove(&self, name: &str) -> bool {
        let known = self.shared().wanted.remove(name).is_some();
        self.wake();
        known
    }

    /// How each kind stands.
    #[must_use]
    pub fn status(&self) -> Vec<GroupStatus> {
        self.shared().status.values().cloned().collect()
    }

    fn wake(&self) {
        if let Some(session) = &self.shared().session {
            session.wake();
        }
    }
}

/// Keeps tasks running. See the module.
#[derive(Debug, Default)]
pub struct TaskPool {
    handle: PoolHandle,
    groups: BTreeMap<String, Group>,
}

impl TaskPool {
    /// A pool that wants nothing yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// A handle to it.
    #[must_use]
    pub fn handle(&self) -> PoolHandle {
        self.handle.clone()
    }

    /// Brings every kind nearer to what is wanted: stops what is too many, asks for what is due.
    async fn settle(&mut self, session: &Session) -> Result<()> {
        let wanted = self.handle.shared().wanted.clone();
        for name in wanted.keys() {
            self.groups.entry(name.clone()).or_default();
        }
        for group in self.groups.values_mut() {
            group.settle_away(|run| match session.run(run) {
                None => Away::Over,
                Some(info) if info.replaceable.is_some() => Away::Replaceable,
                Some(_) => Away::Back,
            });
        }
        let now = Instant::now();
        let mut kill = Vec::new();
        let mut withdraw = Vec::new();
        for (name, group) in &mut self.groups {
            let wanted = wanted.get(name);
            group.resize(wanted.map_or(0, |wanted| wanted.count));
            kill.extend(group.surplus());
            match wanted {
                Some(wanted) => {
                    let due = group.due(now);
                    if due > 0 || session.claim(name).is_some() {
                        let claim = wanted.claim.clone();
                        session.want_remaining(name, claim, due).await?;
                    }
                }
                None => withdraw.push(name.clone()),
            }
        }
        session
            .withdraw(withdraw.iter().map(String::as_str))
            .await?;
        if !kill.is_empty() {
            // Verdicts do not matter: what is not over is found here again.
            session.kill(&kill, None, "more than wanted").await?;
        }
        self.groups
            .retain(|name, group| wanted.contains_key(name) || !group.is_empty());
        self.publish(&wanted, now);
        Ok(())
    }

    /// Empties the places of runs that may be replaced.
    async fn lose(&mut self, runs: &[RunId], session: &Session) -> Result<()> {
        for run in runs {
            for group in self.groups.values_mut() {
                if group.may_be_replaced(run) {
                    break;
                }
            }
        }
        self.settle(session).await
    }

    fn publish(&self, wanted: &BTreeMap<String, Wanted>, now: Instant) {
        let status = self.groups.iter().map(|(name, group)| {
            let count = wanted.get(name).map_or(0, |wanted| wanted.count);
            (name.clone(), group.status(name, count, now))
        });
        self.handle.shared().status = status.collect();
    }
}

impl Framework for TaskPool {
    async fn connected(&mut self, session: &Session, connected: Connected) -> Result<()> {
        self.handle.shared().session = Some(session.clone());
        // As the session knows it now: the snapshot may be older than the last launches.
        for group in self.groups.values_mut() {
            group.forget_unsent(|run| session.run(run).is_some());
        }
        let mut doubled = Vec::new();
        let live = connected.snapshot.runs.iter();
        let live = live.filter(|run| !run.phase.is_terminal());
        let replaced: BTreeSet<RunId> = live.filter_map(|run| run.replaces.clone()).collect();
        let mut replaceable = Vec::new();
        for run in connected.snapshot.runs {
            let (Some(kind), Some(index)) = (run.labels.get(KIND), run.labels.get(INDEX)) else {
                continue;
            };
            let Ok(index) = index.parse() else { continue };
            let group = self.groups.entry(kind.clone()).or_default();
            if replaced.contains(&run.run) {
                group.was_replaced(index, &run.run);
                continue;
            }
            if run.replaceable.is_some() {
                replaceable.push(run.run.clone());
            }
            if group.find(index, &run.run, run.phase) == Found::Another {
                doubled.push(run.run);
            }
        }
        if !doubled.is_empty() {
            session.kill(&doubled, None, "doubled").await?;
        }
        self.lose(&replaceable, session).await
    }

    async fn offers(&mut self, session: &Session, offers: &mut Offers) -> Result<()> {
        let wanted = self.handle.shared().wanted.clone();
        let now = Instant::now();
        for (name, wanted) in &wanted {
            let group = self.groups.entry(name.clone()).or_default();
            let spec = Arc::new(wanted.task.run.clone());
            while let Some(index) = group.next_due(now) {
                let Some(slot) = offers.take(name) else { break };
                let run = session.new_run(name)?;
                let mut launch = Launch::new(run.clone(), Arc::clone(&spec));
                launch.replaces = group.replaces(index, |old| {
                    session
                        .run(old)
                        .is_some_and(|old| old.replaceable.is_some())
                });
                launch.labels.insert(KIND.to_owned(), name.clone());
                launch.labels.insert(INDEX.to_owned(), index.to_string());
                let variable = "METE_INDEX".to_owned();
                launch.environment.insert(variable, index.to_string());
                offers.launch_as(slot, launch);
                group.started(index, run);
            }
        }
        // A launch that is refused later wants again what it wanted, and so changes no demand: what
        // is hidden until demand changes would stay hidden.
        let refuse = if self.groups.values().any(Group::may_be_refused) {
            crate::Refuse::For(AGAIN)
        } else {
            crate::Refuse::UntilDemandChanges
        };
        offers.decline("no task of the pool is due", refuse);
        Ok(())
    }

    async fn update(&mut self, session: &Session, update: TaskUpdate) -> Result<()> {
        self.updates(session, vec![update]).await
    }

    async fn updates(&mut self, session: &Session, updates: Vec<TaskUpdate>) -> Result<()> {
        let now = Instant::now();
        let pauses: BTreeMap<String, (Duration, Duration)> = {
            let shared = self.handle.shared();
            let kinds = shared.wanted.iter();
            kinds
                .map(|(name, wanted)| (name.clone(), wanted.pause))
                .collect()
        };
        for update in &updates {
            let run = update.run();
            for (name, group) in &mut self.groups {
                let pause = pauses.get(name).copied().unwrap_or_default();
                if group.heard(&run, update, pause, now) {
                    break;
                }
            }
        }
        self.settle(session).await
    }

    async fn refused(&mut self, session: &Session, launches: Vec<LaunchVerdict>) -> Result<()> {
        for verdict in launches {
            for group in self.groups.values_mut() {
                group.not_granted(&verdict.run);
            }
        }
        self.settle(session).await
    }

    async fn agent_changed(&mut self, session: &Session, _change: AgentChanged) -> Result<()> {
        self.settle(session).await
    }

    async fn replaceable(&mut self, session: &Session, runs: Replaceable) -> Result<()> {
        self.lose(&runs.runs, session).await
    }

    async fn tick(&mut self, session: &Session) -> Result<()> {
        self.settle(session).await
    }
}

/// Says whether a run in this phase does its work.
fn works(phase: TaskPhase) -> bool {
    phase == TaskPhase::Running
}

/// What a status says about an end, for people.
fn end_text(run: &RunId, update: &TaskUpdate) -> String {
    match update.reason {
        Some(reason) => format!("{run} {} ({reason}) {}", update.phase, update.message),
        None => format!("{run} {} {}", update.phase, update.message),
    }
}
