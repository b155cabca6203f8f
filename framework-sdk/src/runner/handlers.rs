//! The loop that calls a framework's handlers, one at a time.

use std::collections::HashSet;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use mete_model::RunId;
use tokio::sync::mpsc;
use tokio::time::{Instant, Interval, MissedTickBehavior};

use super::held::Held;
use crate::accept::{LaunchVerdict, Refuse};
use crate::core::Backoff;
use crate::error::{Error, Result};
use crate::event::{Connected, Event, Events};
use crate::framework::Framework;
use crate::offers::{Offer, Offers};
use crate::session::Session;
use crate::task::TaskUpdate;

/// Statuses handed over at once.
const UPDATES_AT_ONCE: usize = 4_096;

/// Refusals that wait for the handler.
const REFUSALS_WAITING: usize = 1_024;

/// After a failed handler its offers are hidden so long: at once would be a storm.
const AFTER_FAILURE: Refuse = Refuse::For(Duration::from_secs(1));

/// How long a handler may go on after the process was told to stop.
const FINISH_WITHIN: Duration = Duration::from_secs(5);

/// What came of calling a handler.
enum Outcome {
    Done,
    Failed,
    Panicked,
}

pub(super) struct Handlers<F> {
    framework: F,
    session: Session,
    events: Events,
    held: Held,
    refusals: mpsc::Receiver<Vec<LaunchVerdict>>,
    refused: mpsc::Sender<Vec<LaunchVerdict>>,
    tick: Option<Interval>,
    /// Where things stand, and when the framework hears it. Until then it hears nothing else.
    connecting: Option<(Connected, Instant)>,
    /// The framework has heard where things stand. It is not asked for anything before: what it
    /// would ask for might run already.
    told: bool,
    /// Between tries of `connected`, and before it is called anew after a panic.
    backoff: Backoff,
}

impl<F: Framework> Handlers<F> {
    pub(super) fn new(
        framework: F,
        session: Session,
        events: Events,
        tick: Option<Duration>,
    ) -> Self {
        let (refused, refusals) = mpsc::channel(REFUSALS_WAITING);
        let tick = tick.map(|every| {
            let mut interval = tokio::time::interval_at(Instant::now() + every, every);
            interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
            interval
        });
        Self {
            framework,
            session,
            events,
            held: Held::default(),
            refusals,
            refused,
            tick,
            connecting: None,
            told: false,
            backoff: Backoff::default(),
        }
    }

    pub(super) async fn run(mut self, stop: impl Future<Output = ()> + Send) -> Result<()> {
        let mut stop = pin!(stop);
        let session = self.session.clone();
        // A runner that is dropped leaves no stream behind on which nobody listens.
        let _ended = Sever(session.clone());
        let closed = loop {
            let step = tokio::select! {
                biased;
                () = &mut stop => {
                    session.disconnect().await;
                    return Ok(());
                }
                step = self.wait() => step,
            };
            let mut deal = pin!(self.deal_with(step));
            let over = tokio::select! {
                biased;
                over = &mut deal => over,
                () = &mut stop => {
                    // A handler may finish what it does, but cannot keep the process from ending.
                    let _ = tokio::time::timeout(FINISH_WITHIN, &mut deal).await;
                    session.disconnect().await;
                    return Ok(());
                }
            };
            if let Some(error) = over {
                break error;
            }
        };
        let ended_by_us = session.core.teardown_asked() && matches!(closed, Error::TornDown);
        if ended_by_us || matches!(closed, Error::Closed) {
            Ok(())
        } else {
            Err(closed)
        }
    }

    /// Waits for the next thing to do. Nothing is lost when it is dropped.
    async fn wait(&mut self) -> Step {
        let due = self.held.next_due();
        let connect_due = self.connecting.as_ref().map(|(_, due)| *due);
        let core = std::sync::Arc::clone(&self.session.core);
        if connect_due.is_some() {
            return tokio::select! {
                () = until(connect_due) => Step::Connect,
                why = core.until_closed() => Step::Event(Some(Event::Closed(why))),
            };
        }
        tokio::select! {
            event = self.events.next() => Step::Event(event),
            Some(launches) = self.refusals.recv() => Step::Refused(launches),
            () = until(due) => Step::Due,
            () = ticked(&mut self.tick), if self.told => Step::Tick,
            () = core.wake.notified(), if self.told => Step::Tick,
        }
    }

    /// Gives the reason when the session is over.
    async fn deal_with(&mut self, step: Step) -> Option<Error> {
        match step {
            Step::Event(None) => return Some(self.session.closed().unwrap_or(Error::Closed)),
            Step::Event(Some(Event::Closed(error))) => return Some(error),
            Step::Event(Some(event)) => self.event(event).await,
            Step::Connect => self.connect().await,
            Step::Refused(launches) => self.launches_refused(launches).await,
            Step::Due => {
                let due = self.held.due();
                self.updates(due, true).await;
            }
            Step::Tick => {
                let call = self.framework.tick(&self.session);
                let outcome = watched("tick", call).await;
                self.note(&outcome);
            }
        }
        None
    }

    async fn event(&mut self, event: Event) {
        let session = &self.session;
        let outcome = match event {
            Event::Connected(connected) => {
                self.connecting = Some((connected, Instant::now()));
                return self.connect().await;
            }
            Event::Offers(offers) => return self.offers(offers).await,
            Event::Update(update) => {
                let mut updates = vec![update];
                updates.append(&mut self.events.ready_updates(UPDATES_AT_ONCE - 1));
                let free = self.held.pass(updates);
                return self.updates(free, false).await;
            }
            Event::Rescinded(rescinded) => {
                watched("rescinded", self.framework.rescinded(session, rescinded)).await
            }
            Event::AgentChanged(change) => {
                watched(
                    "agent_changed",
                    self.framework.agent_changed(session, change),
                )
                .await
            }
            Event::Replaceable(runs) => {
                watched("replaceable", self.framework.replaceable(session, runs)).await
            }
            Event::Disconnected(why) => {
                tracing::info!(framework = session.name(), why, "stream lost; reconnecting");
                watched("disconnected", self.framework.disconnected(session, why)).await
            }
            Event::Closed(_) => return,
        };
        self.note(&outcome);
    }

    /// One try to tell the framework where things stand; what fails is due again later.
    async fn connect(&mut self) {
        let Some((connected, _)) = self.connecting.take() else {
            return;
        };
        let call = self.framework.connected(&self.session, connected.clone());
        match watched("connected", call).await {
            Outcome::Done => {
                self.told = true;
                self.backoff.reset();
            }
            Outcome::Failed | Outcome::Panicked => {
                self.connecting = Some((connected, Instant::now() + self.backoff.next()));
            }
        }
    }

    async fn offers(&mut self, offers: Vec<Offer>) {
        let mut offers = Offers::new(&self.session, offers);
        let began = Instant::now();
        let outcome = watched("offers", self.framework.offers(&self.session, &mut offers)).await;
        warn_when_close(&offers, began);
        match outcome {
            Outcome::Done => {}
            Outcome::Failed => offers.decline("the framework's handler failed", AFTER_FAILURE),
            Outcome::Panicked => {
                offers.forget_launches();
                offers.decline("the framework's handler panicked", AFTER_FAILURE);
            }
        }
        self.note(&outcome);
        // The session being over is heard as an event of its own.
        let Ok(submitted) = offers.submit().await else {
            return;
        };
        if !submitted.unsent.is_empty() {
            self.launches_refused(submitted.unsent).await;
        }
        for accepting in submitted.accepting {
            let refused = self.refused.clone();
            tokio::spawn(async move {
                let not_granted: Vec<LaunchVerdict> = accepting
                    .verdicts()
                    .await
                    .into_iter()
                    .filter(|verdict| verdict.outcome.is_err())
                    .collect();
                if !not_granted.is_empty() {
                    // The runner may have ended meanwhile.
                    let _ = refused.send(not_granted).await;
                }
            });
        }
    }

    async fn launches_refused(&mut self, launches: Vec<LaunchVerdict>) {
        for verdict in &launches {
            if let Err(reason) = &verdict.outcome {
                tracing::debug!(run = %verdict.run, %reason, "launch not granted");
            }
        }
        let call = self.framework.refused(&self.session, launches);
        let outcome = watched("refused", call).await;
        self.note(&outcome);
    }

    /// Hands statuses over, acknowledges what was handled, and holds what was not.
    async fn updates(&mut self, updates: Vec<TaskUpdate>, again: bool) {
        if updates.is_empty() {
            return;
        }
        let runs: Vec<RunId> = distinct_runs(&updates);
        let call = self.framework.updates(&self.session, updates.clone());
        let outcome = watched("update", call).await;
        let failed = match outcome {
            Outcome::Done => {
                let done = updates.iter().map(|update| (update.run(), update.sequence));
                self.session.acknowledge_all(done);
                Vec::new()
            }
            Outcome::Failed | Outcome::Panicked => {
                let view = self.session.core.view();
                updates
                    .into_iter()
                    .filter(|update| !view.is_handled(&update.run(), update.sequence))
                    .collect()
            }
        };
        if again {
            self.held.tried(&runs, failed);
        } else {
            self.held.hold(failed);
        }
        self.note(&outcome);
    }

    fn note(&mut self, outcome: &Outcome) {
        if matches!(outcome, Outcome::Panicked) {
            // What the framework knew may be half changed: it hears anew where things stand.
            let connected = Connected {
                resumed: true,
                snapshot: self.session.snapshot(),
            };
            self.connecting = Some((connected, Instant::now() + self.backoff.next()));
        }
    }
}

/// Closes the session when the runner ends, in whatever way; after a polite end it changes nothing.
struct Sever(Session);

impl Drop for Sever {
    fn drop(&mut self) {
        self.0.sever();
    }
}

enum Step {
    Event(Option<Event>),
    Connect,
    Refused(Vec<LaunchVerdict>),
    Due,
    Tick,
}

fn distinct_runs(updates: &[TaskUpdate]) -> Vec<RunId> {
    let mut seen = HashSet::new();
    let runs = updates.iter().map(TaskUpdate::run);
    runs.filter(|run| seen.insert(run.clone())).collect()
}

async fn until(due: Option<Instant>) {
    match due {
        Some(due) => tokio::time::sleep_until(due).await,
        None => std::future::pending().await,
    }
}

async fn ticked(tick: &mut Option<Interval>) {
    match tick {
        Some(tick) => {
            tick.tick().await;
        }
        None => std::future::pending().await,
    }
}

/// Calls a handler; an error or a panic of it is logged and goes no further.
async fn watched(name: &str, call: impl Future<Output = Result<()>>) -> Outcome {
    let mut call = pin!(call);
    let outcome = std::future::poll_fn(|cx| {
        match std::panic::catch_unwind(AssertUnwindSafe(|| call.as_mut().poll(cx))) {
            Ok(Poll::Ready(result)) => Poll::Ready(Ok(result)),
            Ok(Poll::Pending) => Poll::Pending,
            Err(panic) => Poll::Ready(Err(panic_text(&*panic))),
        }
    })
    .await;
    match outcome {
        Ok(Ok(())) => Outcome::Done,
        Ok(Err(error)) => {
            // A session that is over fails every handler; that is told once, at its end.
            if !error.is_final() {
                tracing::warn!(handler = name, %error, "handler failed");
            }
            Outcome::Failed
        }
        Err(panic) => {
            tracing::error!(
                handler = name,
                panic,
                "handler panicked; tasks keep running"
            );
            Outcome::Panicked
        }
    }
}

fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "a value that is not text".to_owned())
}

/// Says so when a handler used most of the time that its offers had.
fn warn_when_close(offers: &Offers, began: Instant) {
    let Some(deadline) = offers.first_deadline() else {
        return;
    };
    let life = deadline.saturating_duration_since(began);
    let took = began.elapsed();
    if took * 5 >= life * 4 && !life.is_zero() {
        tracing::warn!(
            took_ms = u64::try_from(took.as_millis()).unwrap_or(u64::MAX),
            life_ms = u64::try_from(life.as_millis()).unwrap_or(u64::MAX),
            "the offers handler comes close to its offers' expiry"
        );
    }
}
