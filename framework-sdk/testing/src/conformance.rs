//! Runs any framework through fault scripts: no task lost, none doubled, nothing told twice.
//!
//! Each script has a broker of its own with two nodes. After its faults everything heals, and the
//! framework must come to rest: what was granted is over or runs as it should, every end was
//! acknowledged, and there are as many tasks as the framework is expected to run. A witness around
//! the framework checks what it was told on the way.
//!
//! [`conformance()`] is for what implements [`Framework`]. A framework with a loop of its own on
//! the session, such as batch, goes through [`conformance_of`]: without a witness, and without the
//! scripts in which handlers fail.

use std::collections::BTreeMap;
use std::time::Duration;

use mete_sdk::{Error, Framework, TaskPhase};

use crate::broker::{Running, TestBroker};
use crate::wait;

mod scripts;
mod witness;

pub use scripts::{SCRIPTS, Script};
pub use witness::{Failures, Log, Witness};

/// How long a framework may take to come to rest after the last fault.
const REST_WITHIN: Duration = Duration::from_secs(300);

/// How long a framework that keeps tasks running must leave them alone.
const STEADY_FOR: Duration = Duration::from_secs(30);

/// The name under which a framework runs here; a restarted one takes it over.
pub const NAME: &str = "framework";

/// What a framework makes of its tasks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Work {
    /// Each is launched once; one that is lost is over.
    Once,
    /// Each is launched until it has finished.
    UntilFinished,
    /// So many run at all times.
    Always,
}

/// What a framework does when nothing goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Expect {
    tasks: usize,
    work: Work,
    ends: bool,
}

impl Expect {
    /// It launches so many tasks in all, each once.
    #[must_use]
    pub fn once(tasks: usize) -> Self {
        Self {
            tasks,
            work: Work::Once,
            ends: false,
        }
    }

    /// It has so many tasks, and launches each again, as another attempt, until it has finished.
    #[must_use]
    pub fn until_finished(tasks: usize) -> Self {
        Self {
            work: Work::UntilFinished,
            ..Self::once(tasks)
        }
    }

    /// It keeps so many tasks running; they never end by themselves here.
    #[must_use]
    pub fn always(tasks: usize) -> Self {
        Self {
            work: Work::Always,
            ..Self::once(tasks)
        }
    }

    /// It tears itself down when its tasks are over.
    #[must_use]
    pub fn and_ends(mut self) -> Self {
        self.ends = true;
        self
    }
}

/// Starts one process of what is tried.
trait Subject: Send + Sync {
    fn start(&self, broker: &TestBroker, log: &Log) -> Running;

    /// Its handlers are called by a runner, with the witness around them.
    fn is_watched(&self) -> bool;
}

/// What implements [`Framework`], made anew for each process.
struct Made<M>(M);

impl<F: Framework, M: Fn() -> F + Send + Sync> Subject for Made<M> {
    fn start(&self, broker: &TestBroker, log: &Log) -> Running {
        broker.run_as(NAME, Witness::new((self.0)(), log.clone()))
    }

    fn is_watched(&self) -> bool {
        true
    }
}

/// What has a loop of its own.
struct Own<S>(S);

impl<S: Fn(&TestBroker) -> Running + Send + Sync> Subject for Own<S> {
    fn start(&self, broker: &TestBroker, _: &Log) -> Running {
        (self.0)(broker)
    }

    fn is_watched(&self) -> bool {
        false
    }
}

/// One framework in one script.
struct Trial<'a> {
    broker: TestBroker,
    /// The present process of the framework.
    running: Running,
    /// What the framework was told, over all its processes.
    log: Log,
    subject: &'a dyn Subject,
}

impl<'a> Trial<'a> {
    async fn start(subject: &'a dyn Subject, failures: Failures, expect: Expect) -> Self {
        let broker = TestBroker::builder()
            .nodes("n", 2, |node| {
                let node = node.cpus(8).memory_gib(16).gpus(2, "a100");
                match expect.work {
                    Work::Once | Work::UntilFinished => node,
                    Work::Always => node.tasks_run(Duration::ZERO, 0),
                }
            })
            .start()
            .await;
        let log = Log::new(failures);
        let running = subject.start(&broker, &log);
        Self {
            broker,
            running,
            log,
            subject,
        }
    }

    /// Another process of the same name starts.
    fn next_process(&mut self) -> Running {
        let next = self.subject.start(&self.broker, &self.log);
        std::mem::replace(&mut self.running, next)
    }

    /// The process dies on the spot and another one of the same name starts.
    fn restart(&mut self) {
        self.next_process().crash();
    }

    /// Another process starts while the first one lives: the first one must stop, and say why.
    async fn take_over(&mut self) -> Result<(), String> {
        let mut older = self.next_process();
        self.until("the older process to stop", || older.is_over())
            .await?;
        match older.ended(Duration::ZERO).await {
            Err(Error::Superseded) => Ok(()),
            other => Err(format!("the older process ended with {other:?}")),
        }
    }

    /// Waits until this holds.
    async fn until(&self, what: &str, condition: impl FnMut() -> bool) -> Result<(), String> {
        wait::try_until(what, REST_WITHIN, condition)
            .await
            .map_err(|late| format!("{late}\n{}", self.picture()))
    }

    async fn judge(&mut self, expect: Expect) -> Result<(), String> {
        self.broker.heal();
        let (faults, log) = (self.broker.faults().clone(), self.log.clone());
        let watched = self.subject.is_watched();
        match expect.work {
            Work::Once | Work::UntilFinished => {
                let all = |count: usize| count >= expect.tasks;
                self.until("all tasks to be over and told", || {
                    let tasks = faults.tasks();
                    let over = match expect.work {
                        Work::UntilFinished => tasks.finished(),
                        Work::Once | Work::Always => tasks.launched(),
                    };
                    all(over) && tasks.live() == 0 && (!watched || all(log.ended()))
                })
                .await?;
            }
            Work::Always => {
                self.steady(expect.tasks, "all tasks to run").await?;
                self.broker.advance(STEADY_FOR).await;
                self.steady(expect.tasks, "all tasks to run on").await?;
            }
        }
        if expect.ends {
            let running = &self.running;
            self.until("the framework to end itself", || running.is_over())
                .await?;
        } else {
            self.until("every end to be acknowledged", || {
                faults.unacknowledged_ends().is_empty()
            })
            .await?;
        }
        self.verdict(expect)
    }

    /// Waits until exactly so many tasks run, as their framework was told and as the nodes have it.
    async fn steady(&self, tasks: usize, what: &str) -> Result<(), String> {
        let faults = self.broker.faults().clone();
        self.until(what, || {
            let told = faults.tasks();
            told.running() == tasks && told.live() == tasks
        })
        .await?;
        let nodes = self.broker.running_on_nodes().await;
        if nodes == tasks {
            Ok(())
        } else {
            Err(format!("{nodes} tasks run on nodes where {tasks} are told"))
        }
    }

    fn verdict(&self, expect: Expect) -> Result<(), String> {
        let mut wrong = self.log.wrong();
        let tasks = self.broker.tasks();
        let wanted = match expect.work {
            Work::Once => expect.tasks,
            Work::UntilFinished | Work::Always => {
                expect.tasks.saturating_add(tasks.in_phase(TaskPhase::Lost))
            }
        };
        if tasks.launched() != wanted {
            wrong.push(format!(
                "{} tasks were launched where {wanted} were wanted",
                tasks.launched()
            ));
        }
        if expect.work == Work::UntilFinished {
            let mut finished: BTreeMap<_, usize> = BTreeMap::new();
            for ((_, run), phase) in &tasks.by_run {
                let count = finished.entry(run.task.clone()).or_default();
                *count += usize::from(*phase == TaskPhase::Finished);
            }
            let odd = finished.iter().filter(|(_, count)| **count != 1);
            wrong.extend(odd.map(|(task, count)| format!("{task} finished {count} times")));
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
    M: Fn() -> F + Send + Sync,
{
    all(&Made(make), expect).await;
}

/// The same for a framework that has a loop of its own: `start` starts one process of it under the
/// name [`NAME`], which takes over from an earlier one.
///
/// # Panics
/// As [`conformance()`].
pub async fn conformance_of<S>(start: S, expect: Expect)
where
    S: Fn(&TestBroker) -> Running + Send + Sync,
{
    all(&Own(start), expect).await;
}

async fn all(subject: &dyn Subject, expect: Expect) {
    let mut failed = Vec::new();
    let mut tried: usize = 0;
    for script in SCRIPTS {
        if !subject.is_watched() && script.failures() != Failures::default() {
            continue;
        }
        tried += 1;
        if let Err(why) = try_one(*script, subject, expect).await {
            failed.push(format!("{}: {why}", script.name()));
        }
    }
    assert!(
        failed.is_empty(),
        "{} of {tried} fault scripts failed:\n\n{}",
        failed.len(),
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
    M: Fn() -> F + Send + Sync,
{
    try_one(script, &Made(make), expect).await
}

/// Runs a framework that has a loop of its own through one script.
///
/// # Errors
/// What was wrong, for people.
pub async fn conform_process_to<S>(script: Script, start: S, expect: Expect) -> Result<(), String>
where
    S: Fn(&TestBroker) -> Running + Send + Sync,
{
    try_one(script, &Own(start), expect).await.map(drop)
}

async fn try_one(script: Script, subject: &dyn Subject, expect: Expect) -> Result<Log, String> {
    let mut trial = Trial::start(subject, script.failures(), expect).await;
    script.play(&mut trial).await?;
    trial.judge(expect).await?;
    Ok(trial.log)
}
