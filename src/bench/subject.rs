//! A framework for measurements: it launches what it is offered and notes when.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use mete_model::{Code, RunId, TaskId, TaskPhase};
use mete_sdk::{
    Claim, Event, Events, Launch, Offer, Offers, Refuse, Session, SessionConfig, TaskSpec,
};

use crate::cli::support::error::{CliError, Outcome};
use crate::daemon::batch::from_sdk;

/// Longest wait for anything.
const PATIENCE: Duration = Duration::from_secs(120);

/// Statuses taken in one turn.
const MOST_UPDATES: usize = 8192;

/// The framework.
#[derive(Debug)]
pub(super) struct Subject {
    session: Session,
    events: Events,
    /// When a run's accept was sent, until it runs.
    sent: HashMap<RunId, Instant>,
    /// Launches that were refused and sent again.
    pub(super) refused: u64,
    next: u64,
}

/// Where the time of one start went, in milliseconds.
#[derive(Clone, Copy, Debug)]
pub(super) struct Start {
    /// From the accept, the offer in hand, to the `Running` status at the framework.
    pub(super) whole: f64,
    /// From the accept until the agent said that the process runs: sent, judged, logged, flushed,
    /// told to the agent, recorded there, started. By the wall clock, in whole milliseconds.
    pub(super) started: f64,
    /// From there to the framework: sent, logged, flushed, told.
    pub(super) told: f64,
}

impl Subject {
    /// Connects a framework named `name` in role `dev`.
    ///
    /// # Errors
    /// Why there is no session.
    pub(super) async fn connect(masters: Vec<String>, name: &str) -> Outcome<Self> {
        let config = SessionConfig::new(masters, name, "dev");
        let (session, events) = Session::open(config).map_err(|error| from_sdk(&error))?;
        let subject = Self {
            session,
            events,
            sent: HashMap::new(),
            refused: 0,
            next: 0,
        };
        tokio::time::timeout(PATIENCE, subject.session.ready())
            .await
            .map_err(|_late| late("a session"))?
            .map_err(|error| from_sdk(&error))?;
        Ok(subject)
    }

    /// Asks for tasks.
    ///
    /// # Errors
    /// The refusal.
    pub(super) async fn want(&self, claim: &str, wanted: Claim) -> Outcome {
        self.session
            .want(claim, wanted)
            .await
            .map_err(|error| from_sdk(&error))
    }

    /// Takes a claim back.
    ///
    /// # Errors
    /// The refusal.
    pub(super) async fn withdraw(&self, claim: &str) -> Outcome {
        self.session
            .withdraw([claim])
            .await
            .map_err(|error| from_sdk(&error))
    }

    async fn next_event(&mut self, what: &str) -> Outcome<Event> {
        let next = tokio::time::timeout(PATIENCE, self.events.next()).await;
        match next.map_err(|_late| late(what))? {
            Some(Event::Closed(error)) => Err(from_sdk(&error)),
            Some(event) => Ok(event),
            None => Err(CliError::new(Code::Internal, "the session has ended")),
        }
    }

    /// Waits for the first offer for a claim and keeps it.
    ///
    /// # Errors
    /// `TIMED_OUT`.
    pub(super) async fn first_offer(&mut self, claim: &str) -> Outcome<Vec<Offer>> {
        loop {
            if let Event::Offers(offers) = self.next_event("an offer").await?
                && offers
                    .iter()
                    .any(|offer| offer.claim.as_ref().is_some_and(|id| id.as_str() == claim))
            {
                return Ok(offers);
            }
        }
    }

    /// Launches on every slot for a claim, and gives the rest back.
    ///
    /// # Errors
    /// Why the session is over.
    pub(super) async fn launch(
        &mut self,
        offers: Vec<Offer>,
        claim: &str,
        spec: &TaskSpec,
    ) -> Outcome {
        let shared = std::sync::Arc::new(spec.run.clone());
        let mut offers = Offers::new(&self.session, offers);
        let now = Instant::now();
        while let Some(slot) = offers.take(claim) {
            self.next = self.next.saturating_add(1);
            let task = TaskId::new(&format!("{}-{}", spec.name, self.next))
                .map_err(|error| CliError::new(Code::Internal, error.to_string()))?;
            let run = RunId::new(task, 1);
            self.sent.insert(run.clone(), now);
            offers.launch_as(slot, Launch::new(run, std::sync::Arc::clone(&shared)));
        }
        offers.decline("not wanted", Refuse::UntilDemandChanges);
        // Verdicts are heard through the statuses; a refused launch counts down nothing and is
        // offered again, and its lost time is in the latency of the run that replaces it.
        let submitted = offers.submit().await.map_err(|error| from_sdk(&error))?;
        self.refused = self
            .refused
            .saturating_add(u64::try_from(submitted.unsent.len()).unwrap_or(0));
        Ok(())
    }

    /// Launches until so many tasks run and are acknowledged; gives each run's milliseconds from
    /// its accept to its `Running` status.
    ///
    /// # Errors
    /// `TIMED_OUT`, or why the session is over.
    pub(super) async fn run_all(
        &mut self,
        claim: &str,
        count: usize,
        spec: &TaskSpec,
    ) -> Outcome<Vec<f64>> {
        let mut latencies = Vec::with_capacity(count);
        while latencies.len() < count {
            match self.next_event("tasks to run").await? {
                Event::Offers(offers) => self.launch(offers, claim, spec).await?,
                Event::Update(update) => {
                    let mut updates = vec![update];
                    updates.extend(self.events.ready_updates(MOST_UPDATES));
                    let now = Instant::now();
                    for update in &updates {
                        if update.phase >= TaskPhase::Running
                            && let Some(sent) = self.sent.remove(&update.run())
                        {
                            latencies.push(now.duration_since(sent).as_secs_f64() * 1000.0);
                        }
                    }
                    let items = updates.iter().map(|update| (update.run(), update.sequence));
                    self.session.acknowledge_all(items);
                }
                Event::Connected(_)
                | Event::Rescinded(_)
                | Event::AgentChanged(_)
                | Event::Replaceable(_)
                | Event::Disconnected(_)
                | Event::Closed(_) => {}
                _ => {}
            }
        }
        self.session.acknowledged(PATIENCE).await;
        Ok(latencies)
    }

    /// Launches one task on the first offer for a claim, and says where its time went.
    ///
    /// # Errors
    /// `TIMED_OUT`, or why the session is over.
    pub(super) async fn start_one(&mut self, claim: &str, spec: &TaskSpec) -> Outcome<Start> {
        let offers = self.first_offer(claim).await?;
        let (began, began_at) = (Instant::now(), wall_ms());
        self.launch(offers, claim, spec).await?;
        loop {
            let Event::Update(update) = self.next_event("a process to run").await? else {
                continue;
            };
            self.session
                .acknowledge_all([(update.run(), update.sequence)]);
            if update.phase >= TaskPhase::Running && self.sent.remove(&update.run()).is_some() {
                let (whole, now) = (began.elapsed(), wall_ms());
                let runs = update.at.0.clamp(began_at, now.max(began_at));
                return Ok(Start {
                    whole: milliseconds(whole),
                    started: milliseconds(Duration::from_millis(runs.saturating_sub(began_at))),
                    told: milliseconds(Duration::from_millis(now.saturating_sub(runs))),
                });
            }
        }
    }

    /// Tasks that run, as far as the framework knows.
    pub(super) fn running(&self) -> usize {
        let runs = self.session.snapshot().runs;
        let running = runs.iter().filter(|run| run.phase == TaskPhase::Running);
        running.count()
    }

    /// Ends the framework and all its tasks.
    ///
    /// # Errors
    /// Why the session is over.
    pub(super) async fn teardown(self) -> Outcome {
        self.session
            .teardown()
            .await
            .map_err(|error| from_sdk(&error))
    }
}

fn milliseconds(span: Duration) -> f64 {
    span.as_secs_f64() * 1000.0
}

fn wall_ms() -> u64 {
    mete_agent::fake::wall_clock().0
}

fn late(what: &str) -> CliError {
    let sentence = format!("waited {}s for {what}", PATIENCE.as_secs());
    CliError::new(Code::TimedOut, sentence)
}
