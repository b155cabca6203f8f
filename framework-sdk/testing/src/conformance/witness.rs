//! Stands around a framework, fails where a script says so, and checks what it is told.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use mete_model::RunId;
use mete_sdk::{
    AgentChanged, Connected, Error, Framework, LaunchVerdict, Offers, Replaceable, Rescinded,
    Result, Session, TaskUpdate,
};

/// Handlers that shall fail, and how often.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Failures {
    /// `update` gives an error.
    pub update_errors: u32,
    /// `update` panics.
    pub update_panics: u32,
    /// `offers` gives an error before the framework sees them.
    pub offers_errors: u32,
    /// `offers` panics after the framework has chosen.
    pub offers_panics: u32,
    /// `connected` gives an error.
    pub connected_errors: u32,
}

#[derive(Debug, Default)]
struct Told {
    /// Highest sequence handled, and whether it was an end, by process: another one knows nothing
    /// of what the first one was told.
    by_run: BTreeMap<(u32, RunId), (u64, bool)>,
    processes: u32,
    /// Runs whose end was handled by any process.
    ended: BTreeMap<RunId, u32>,
    connected: u32,
    offers: u32,
    updates: u32,
    wrong: Vec<String>,
    failures: Failures,
}

/// What a framework was told, over all its processes. Clones are the same log.
#[derive(Clone, Debug)]
pub struct Log {
    told: Arc<Mutex<Told>>,
}

impl Log {
    pub(super) fn new(failures: Failures) -> Self {
        let told = Told {
            failures,
            ..Told::default()
        };
        Self {
            told: Arc::new(Mutex::new(told)),
        }
    }

    fn told(&self) -> MutexGuard<'_, Told> {
        self.told.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Times that the framework was told where things stand.
    #[must_use]
    pub fn connected(&self) -> u32 {
        self.told().connected
    }

    /// Times that it was given offers.
    #[must_use]
    pub fn offers(&self) -> u32 {
        self.told().offers
    }

    /// Statuses that it handled.
    #[must_use]
    pub fn updates(&self) -> u32 {
        self.told().updates
    }

    /// Runs whose end it handled.
    #[must_use]
    pub fn ended(&self) -> usize {
        self.told().ended.len()
    }

    /// What it was told against the promises.
    #[must_use]
    pub fn wrong(&self) -> Vec<String> {
        self.told().wrong.clone()
    }

    fn new_process(&self) -> u32 {
        let mut told = self.told();
        told.processes += 1;
        told.processes
    }

    fn fails(&self, which: impl FnOnce(&mut Failures) -> &mut u32) -> bool {
        let mut told = self.told();
        let left = which(&mut told.failures);
        let fails = *left > 0;
        *left = left.saturating_sub(1);
        fails
    }

    /// Checks a status that was handled.
    fn handled(&self, process: u32, update: &TaskUpdate) {
        let mut told = self.told();
        told.updates += 1;
        let run = update.run();
        let terminal = update.is_terminal();
        if let Some((before, over)) = told.by_run.get(&(process, run.clone())).copied() {
            if over {
                let text = format!("{run}: {} came after its end", update.phase);
                told.wrong.push(text);
            } else if update.sequence <= before && update.sequence > 0 {
                let text = format!("{run}: sequence {} came after {before}", update.sequence);
                told.wrong.push(text);
            }
        }
        let key = (process, run.clone());
        told.by_run.insert(key, (update.sequence, terminal));
        if terminal {
            *told.ended.entry(run).or_default() += 1;
        }
    }
}

/// A framework that is watched.
#[derive(Debug)]
pub struct Witness<F> {
    inner: F,
    log: Log,
    process: u32,
}

impl<F> Witness<F> {
    pub(super) fn new(inner: F, log: Log) -> Self {
        let process = log.new_process();
        Self {
            inner,
            log,
            process,
        }
    }
}

impl<F: Framework> Framework for Witness<F> {
    async fn connected(&mut self, session: &Session, connected: Connected) -> Result<()> {
        if self.log.fails(|left| &mut left.connected_errors) {
            return Err(Error::handler("the script makes it fail"));
        }
        self.log.told().connected += 1;
        self.inner.connected(session, connected).await
    }

    async fn offers(&mut self, session: &Session, offers: &mut Offers) -> Result<()> {
        self.log.told().offers += 1;
        if self.log.fails(|left| &mut left.offers_errors) {
            return Err(Error::handler("the script makes it fail"));
        }
        self.inner.offers(session, offers).await?;
        assert!(
            !self.log.fails(|left| &mut left.offers_panics),
            "the script makes it panic"
        );
        Ok(())
    }

    async fn update(&mut self, session: &Session, update: TaskUpdate) -> Result<()> {
        if self.log.fails(|left| &mut left.update_errors) {
            return Err(Error::handler("the script makes it fail"));
        }
        assert!(
            !self.log.fails(|left| &mut left.update_panics),
            "the script makes it panic"
        );
        // Before the framework may end itself over it.
        self.log.handled(self.process, &update);
        self.inner.update(session, update).await
    }

    async fn refused(&mut self, session: &Session, launches: Vec<LaunchVerdict>) -> Result<()> {
        self.inner.refused(session, launches).await
    }

    async fn rescinded(&mut self, session: &Session, rescinded: Rescinded) -> Result<()> {
        self.inner.rescinded(session, rescinded).await
    }

    async fn replaceable(&mut self, session: &Session, runs: Replaceable) -> Result<()> {
        self.inner.replaceable(session, runs).await
    }

    async fn agent_changed(&mut self, session: &Session, change: AgentChanged) -> Result<()> {
        self.inner.agent_changed(session, change).await
    }

    async fn disconnected(&mut self, session: &Session, why: String) -> Result<()> {
        self.inner.disconnected(session, why).await
    }

    async fn tick(&mut self, session: &Session) -> Result<()> {
        self.inner.tick(session).await
    }
}
