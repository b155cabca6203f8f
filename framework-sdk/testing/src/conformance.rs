//! Runs any framework through fault scripts: no task lost, none doubled, nothing told twice.
//!
//! Each script has a broker of its own with two nodes. After its faults everything heals, and the
//! framework must come to rest: every run that was granted has ended, every end was acknowledged,
//! and there are as many as the framework is expected to run. A witness around the framework checks
//! what it was told on the way.

use std::time::Duration;

use mete_sdk::Framework;

use crate::broker::{Running, TestBroker};
use crate::wait;

mod scripts;
mod witness;

pub use scripts::{SCRIPTS, Script};
pub use witness::{Failures, Log, Witness};

/// How long a framework may take to come to rest after the last fault.
const REST_WITHIN: Duration = Duration::from_secs(300);

/// The name under which a framework runs here; a restarted one takes it over.
const NAME: &str = "framework";

/// What a framework does when nothing goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Expect {
    /// Tasks that it runs in all, each once.
    pub tasks: usize,
    /// It tears itself down when they are over.
    pub ends: bool,
}

/// One framework in one script.
#[derive(Debug)]
pub struct Trial<M> {
    /// The broker of this script.
    pub broker: TestBroker,
    /// The present process of the framework.
    pub running: Running,
    /// What the framework was told, over all its processes.
    pub log: Log,
    make: M,
}

impl<F: Framework, M: Fn() -> F> Trial<M> {
    async fn start(make: M, failures: Failures) -> Self {
        let broker = TestBroker::builder()
            .nodes("n", 2, |node| node.cpus(8).memory_gib(16).gpus(2, "a100"))
            .start()
            .await;
        let log = Log::new(failures);
        let running = broker.run_as(NAME, Witness::new(make(), log.clone()));
        Self {
            broker,
            running,
            log,
            make,
        }
    }

    /// The process dies on the spot and another one of the same name starts.
    pub fn restart(&mut self) {
        self.log.new_process();
        let next = self
            .broker
            .run_as(NAME, Witness::new((self.make)(), self.log.clone()));
        std::mem::replace(&mut self.running, next).crash();
    }

    /// Waits until this holds.
    pub async fn until(&self, what: &str, condition: impl FnMut() -> bool) -> Result<(), String> {
        wait::try_until(what, REST_WITHIN, condition).await
    }

    async fn judge(&mut self, expect: Expect) -> Result<(), String> {
        self.broker.faults().heal();
        let (faults, log) = (self.broker.faults().clone(), self.log.clone());
        self.until("all tasks to be over and told", || {
            let tasks = faults.tasks();
            tasks.launched() >= expect.tasks && tasks.live() == 0 && log.ended() >= expect.tasks
        })
        .await
        .map_err(|late| format!("{late}\n{}", self.picture()))?;
        if expect.ends {
            let running = &self.running;
            self.until("the framework to end itself", || running.is_over())
                .await
                .map_err(|late| format!("{late}\n{}", self.picture()))?;
        } else {
            self.until("every end to be acknowledged", || {
                faults.unacknowledged_ends().is_empty()
            })
            .await
            .map_err(|late| format!("{late}\n{}", self.picture()))?;
        }
        self.verdict(expect)
    }

    fn verdict(&self, expect: Expect) -> Result<(), String> {
        let mut wrong = self.log.wrong();
        let tasks = self.broker.tasks();
        if tasks.launched() != expect.tasks {
            wrong.push(format!(
                "{} tasks were launched where {} were wanted",
                tasks.launched(),
                expect.tasks
            ));
        }
        let risen = self.broker.faults().risen();
        if !risen.is_empty() {
            wrong.push(format!("told two different ends of {risen:?}"));
        }
        if wrong.is_empty() {
            Ok(())
        } else {
            Err(format!("{}\n{}", wrong.join("\n"), self.picture()))
        }
    }

    fn picture(&self) -> String {
        format!(
            "tasks: {:?}\nlive for the SDK: {}, wanted: {}, closed: {:?}\ntold: {:?}",
            self.broker.tasks(),
            self.running.session.live_tasks(),
            self.running.session.wanted(),
            self.running.session.closed(),
            self.log
        )
    }
}

/// Runs the framework that `make` makes through every script. Needs a runtime with a paused clock
/// (`#[tokio::test(start_paused = true)]`): the scripts let minutes pass.
///
/// # Panics
/// With every script that failed, and what was wrong.
pub async fn conformance<F, M>(make: M, expect: Expect)
where
    F: Framework,
    M: Fn() -> F + Clone,
{
    let mut failed = Vec::new();
    for script in SCRIPTS {
        if let Err(why) = conform_to(*script, make.clone(), expect).await {
            failed.push(format!("{}: {why}", script.name()));
        }
    }
    assert!(
        failed.is_empty(),
        "{} of {} fault scripts failed:\n\n{}",
        failed.len(),
        SCRIPTS.len(),
        failed.join("\n\n")
    );
}

/// Runs a framework through one script; gives what it was told.
///
/// # Errors
/// What was wrong, for people.
pub async fn conform_to<F, M>(script: Script, make: M, expect: Expect) -> Result<Log, String>
where
    F: Framework,
    M: Fn() -> F,
{
    let mut trial = Trial::start(make, script.failures()).await;
    script.play(&mut trial).await?;
    trial.judge(expect).await?;
    Ok(trial.log)
}
