//! Layer 2: runs a [`Framework`]: opens its session, calls it, and cleans up after it.
//!
//! Ends when the framework is torn down, when a newer process takes over, or when it is told to
//! stop; tasks end in the first case only. Everything else (a lost leader, a failed handler, a
//! panic) is dealt with here.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use crate::client::SharedDial;
use crate::error::{Error, Result};
use crate::framework::Framework;
use crate::session::{Session, SessionConfig};

mod handlers;
mod held;

use handlers::Handlers;

/// Where a master listens when nothing else is said.
const DEFAULT_MASTER: &str = "127.0.0.1:7443";

/// Builds and runs a framework.
#[derive(Clone, Debug)]
pub struct Runner {
    config: SessionConfig,
    tick: Option<Duration>,
}

impl Runner {
    /// Masters from `METE_MASTER` (addresses joined by commas), else the one on this machine.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the variable is set and is not a list of `host:port`.
    pub fn from_env() -> Result<Self> {
        match std::env::var("METE_MASTER") {
            Ok(text) => Ok(Self::new(masters_of(&text)?)),
            Err(std::env::VarError::NotPresent) => Ok(Self::new(vec![DEFAULT_MASTER.to_owned()])),
            Err(std::env::VarError::NotUnicode(_)) => {
                Err(Error::field("METE_MASTER", "is not readable as text"))
            }
        }
    }

    /// Masters as `host:port`; one is enough to find the others.
    #[must_use]
    pub fn new(masters: Vec<String>) -> Self {
        let mut config = SessionConfig::new(masters, "", "");
        config.roles.clear();
        Self { config, tick: None }
    }

    /// The framework's name: with its principal the identity that survives restarts.
    #[must_use]
    pub fn name(mut self, name: &str) -> Self {
        name.clone_into(&mut self.config.name);
        self
    }

    /// A role that may be charged; may be called for several.
    #[must_use]
    pub fn role(mut self, role: &str) -> Self {
        self.config.roles.push(role.to_owned());
        self
    }

    /// How long tasks live without their framework; 7 days if not said.
    #[must_use]
    pub fn failover_timeout(mut self, timeout: Duration) -> Self {
        self.config.failover_timeout = Some(timeout);
        self
    }

    /// The framework ends with its stream, and its tasks with it.
    #[must_use]
    pub fn ephemeral(mut self) -> Self {
        self.config.ephemeral = true;
        self.config.failover_timeout = None;
        self
    }

    /// Takes whole-node offers without claims.
    #[must_use]
    pub fn plain_offers(mut self) -> Self {
        self.config.plain_offers = true;
        self
    }

    /// A label that is shown, never interpreted.
    #[must_use]
    pub fn label(mut self, name: &str, value: &str) -> Self {
        self.config.labels.insert(name.to_owned(), value.to_owned());
        self
    }

    /// Where the framework serves an API of its own, `host:port`.
    #[must_use]
    pub fn service_address(mut self, address: &str) -> Self {
        address.clone_into(&mut self.config.service_address);
        self
    }

    /// Calls `tick` in this rhythm.
    #[must_use]
    pub fn tick(mut self, every: Duration) -> Self {
        self.tick = Some(every.max(Duration::from_millis(1)));
        self
    }

    /// How addresses are reached; TCP if not said.
    #[must_use]
    pub fn dial(mut self, dial: SharedDial) -> Self {
        self.config.dial = dial;
        self
    }

    /// Runs until the framework is torn down or superseded, or the process is told to stop by
    /// Ctrl-C or SIGTERM: then it disconnects and leaves its tasks alone.
    ///
    /// # Errors
    /// [`Error::Superseded`], [`Error::TornDown`] when somebody else did it, or what makes the
    /// broker refuse this framework: [`Error::Invalid`], [`Error::Denied`].
    pub async fn run<F: Framework>(self, framework: F) -> Result<()> {
        self.run_until(framework, told_to_stop()).await
    }

    /// As [`Runner::run`], but stops when `stop` completes instead of at signals.
    ///
    /// # Errors
    /// As [`Runner::run`].
    pub async fn run_until<F: Framework>(
        self,
        framework: F,
        stop: impl Future<Output = ()> + Send,
    ) -> Result<()> {
        let (session, events) = Session::open(self.config)?;
        Handlers::new(framework, session, events, self.tick)
            .run(stop)
            .await
    }

    /// As [`Runner::run_until`], in a task of its own; gives the session at once.
    ///
    /// # Errors
    /// [`Error::Invalid`] as [`Session::open`].
    pub fn spawn<F: Framework>(
        self,
        framework: F,
        stop: impl Future<Output = ()> + Send + 'static,
    ) -> Result<(Session, tokio::task::JoinHandle<Result<()>>)> {
        let (session, events) = Session::open(self.config)?;
        let handlers = Handlers::new(framework, session.clone(), events, self.tick);
        Ok((session, tokio::spawn(handlers.run(stop))))
    }

    /// Shares the dial with other clients of the same masters.
    #[must_use]
    pub fn shared_dial(&self) -> SharedDial {
        Arc::clone(&self.config.dial)
    }
}

/// Reads `host:port` addresses joined by commas.
fn masters_of(text: &str) -> Result<Vec<String>> {
    let masters: Vec<String> = text
        .split(',')
        .map(str::trim)
        .filter(|address| !address.is_empty())
        .map(str::to_owned)
        .collect();
    let bad = masters.iter().find(|address| {
        let port = address
            .rsplit_once(':')
            .map(|(_, port)| port.parse::<u16>());
        !matches!(port, Some(Ok(_)))
    });
    if let Some(bad) = bad {
        let fault = format!("'{bad}' is not host:port");
        return Err(Error::field("METE_MASTER", fault));
    }
    if masters.is_empty() {
        return Err(Error::field("METE_MASTER", "is set but names no master"));
    }
    Ok(masters)
}

/// Completes at Ctrl-C or SIGTERM.
async fn told_to_stop() {
    let interrupt = tokio::signal::ctrl_c();
    #[cfg(unix)]
    {
        use tokio::signal::unix::{SignalKind, signal};
        if let Ok(mut terminate) = signal(SignalKind::terminate()) {
            tokio::select! {
                _ = interrupt => {}
                _ = terminate.recv() => {}
            }
            return;
        }
    }
    if interrupt.await.is_err() {
        // No signals here: then nobody can ask, and the framework goes on.
        std::future::pending::<()>().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn masters_are_a_list_of_addresses_and_nothing_else() {
        let masters = masters_of("m1:7443, m2:7443,").expect("two");
        assert_eq!(masters, ["m1:7443", "m2:7443"]);
        for bad in ["", ",", "m1", "m1:port", "m1:99999"] {
            let error = masters_of(bad).expect_err(bad);
            assert!(error.to_string().contains("METE_MASTER"), "{error}");
        }
    }
}
