//! One framework of the replay: declares pods as claims, launches what it is offered.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use mete_model::{RunId, Span, TaskId, TaskPhase};
use mete_sdk::{Event, Events, Launch, Offers, Refuse, Session, SessionConfig, TaskSpec};
use mete_testing::TestBroker;
use mete_testing::broker::ADDRESS;

use super::trace::Pod;
use crate::cli::support::error::Outcome;
use crate::daemon::batch::from_sdk;

/// Statuses taken in one turn.
const MOST_UPDATES: usize = 4096;

/// How long each pod runs; absent = until the end.
type Lives = Arc<Mutex<BTreeMap<String, Span>>>;

#[derive(Debug, Default)]
struct Counts {
    placed: AtomicUsize,
    running: AtomicUsize,
}

/// A framework.
#[derive(Debug)]
pub(super) struct Player {
    session: Session,
    lives: Lives,
    counts: Arc<Counts>,
}

impl Player {
    /// Subscribes a framework of this name in the role of this name, and lets it play.
    pub(super) async fn join(broker: &TestBroker, name: &str) -> Outcome<Self> {
        let mut config = SessionConfig::new(vec![ADDRESS.to_owned()], name, name);
        config.dial = broker.dial();
        let (session, events) = Session::open(config).map_err(|error| from_sdk(&error))?;
        session.ready().await.map_err(|error| from_sdk(&error))?;
        let lives = Lives::default();
        let counts = Arc::new(Counts::default());
        tokio::spawn(play(
            session.clone(),
            events,
            Arc::clone(&lives),
            Arc::clone(&counts),
        ));
        Ok(Self {
            session,
            lives,
            counts,
        })
    }

    /// Declares pods; each runs for `life`, or until the end.
    pub(super) async fn declare(&self, pods: &[&Pod], life: Option<Span>) -> Outcome {
        if pods.is_empty() {
            return Ok(());
        }
        if let Some(life) = life {
            let mut lives = self.lives.lock().unwrap_or_else(PoisonError::into_inner);
            lives.extend(pods.iter().map(|pod| (pod.name.clone(), life)));
        }
        let claims = pods.iter().map(|pod| (pod.name.as_str(), pod.claim()));
        self.session
            .want_all(claims)
            .await
            .map_err(|error| from_sdk(&error))
    }

    /// Launches that were committed.
    pub(super) fn placed(&self) -> usize {
        self.counts.placed.load(Ordering::Relaxed)
    }

    /// Tasks that began to run, ended ones included.
    pub(super) fn running(&self) -> usize {
        self.counts.running.load(Ordering::Relaxed)
    }
}

async fn play(session: Session, mut events: Events, lives: Lives, counts: Arc<Counts>) {
    let mut begun = std::collections::BTreeSet::new();
    while let Some(event) = events.next().await {
        match event {
            Event::Offers(list) => {
                let mut offers = Offers::new(&session, list);
                for claim in offers.claims() {
                    while let Some(slot) = offers.take(claim.as_str()) {
                        if let Some(launch) = launch(claim.as_str(), &lives) {
                            offers.launch_as(slot, launch);
                        }
                    }
                }
                offers.decline("nothing of the pod waits", Refuse::UntilDemandChanges);
                let Ok(submitted) = offers.submit().await else {
                    return;
                };
                for accepting in submitted.accepting {
                    let counts = Arc::clone(&counts);
                    tokio::spawn(async move {
                        if let Ok(verdicts) = accepting.await {
                            let granted = verdicts.iter().filter(|one| one.outcome.is_ok()).count();
                            counts.placed.fetch_add(granted, Ordering::Relaxed);
                        }
                    });
                }
            }
            Event::Update(update) => {
                let mut updates = vec![update];
                updates.extend(events.ready_updates(MOST_UPDATES));
                for update in &updates {
                    if update.phase >= TaskPhase::Running && begun.insert(update.run()) {
                        counts.running.fetch_add(1, Ordering::Relaxed);
                    }
                }
                session.acknowledge_all(updates.iter().map(|one| (one.run(), one.sequence)));
            }
            Event::Closed(error) => {
                tracing::error!(%error, "a framework of the replay has ended");
                return;
            }
            Event::Connected(_)
            | Event::Rescinded(_)
            | Event::AgentChanged(_)
            | Event::Replaceable(_)
            | Event::Disconnected(_)
            | _ => {}
        }
    }
}

fn launch(pod: &str, lives: &Lives) -> Option<Launch> {
    let life = lives
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .get(pod)
        .copied();
    let mut spec = TaskSpec::command(pod, ["pod"]);
    if let Some(Span(ms)) = life {
        spec = spec.fake(Duration::from_millis(ms), 0);
    }
    Some(Launch::new(
        RunId::new(TaskId::new(pod).ok()?, 1),
        Arc::new(spec.run),
    ))
}
