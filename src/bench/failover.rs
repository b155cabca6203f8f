//! `mete bench failover`: the leading master is killed with SIGKILL while tasks are launched and
//! records are written; how long until the new leader has committed the first accept.
//!
//! Masters are processes of their own with fsync; agents are simulated. A round's time runs from
//! the kill to the `Running` status of a task whose demand was declared after it. Demand, offer,
//! accept, commit, start and status are all in it, so it is an upper bound of the time to the first
//! accept. Afterwards every acknowledged record must be there, and none of the tasks that ran
//! before may have been touched.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use mete_model::Code;
use mete_model::task::FakeTask;
use mete_sdk::store::Write;
use mete_sdk::{Claim, Session, SessionConfig, TaskSpec};

use super::masters::{Fakes, Masters};
use super::subject::Subject;
use super::{Figures, Home, decimal, percentile, usage};
use crate::cli::support::error::{CliError, Outcome};
use crate::daemon::batch::from_sdk;

/// Tasks that run through all rounds.
const STANDING: u32 = 200;

/// How long a task of the load runs.
const SHORT: Duration = Duration::from_millis(200);

/// How large the bench is.
#[derive(Clone, Copy, Debug)]
pub struct Size {
    /// Leaders killed.
    pub rounds: u32,
    /// Masters.
    pub masters: u32,
    /// Simulated agents.
    pub agents: u32,
}

/// Measures.
///
/// # Errors
/// Sizes that cannot be, or a part that failed.
pub async fn run(size: Size) -> Outcome<Figures> {
    if size.rounds == 0 || size.agents == 0 || !may_lose_one(size.masters) {
        return Err(usage(
            "--rounds and --agents start at 1, --masters is 3, 5 or 7",
        ));
    }
    let home = Home::make()?;
    measure(size, &home.0).await
}

async fn measure(size: Size, home: &Path) -> Outcome<Figures> {
    let count = usize::try_from(size.masters).unwrap_or(usize::MAX);
    let mut masters = Masters::start(home, count).await?;
    masters.make_role().await?;
    let _fakes = Fakes::start(&masters, size.agents, FakeTask::default()).await?;
    let all = masters.addresses.clone();
    let standing = standing(all.clone(), STANDING).await?;

    let load = load(all.clone()).await?;
    let writer = Writer::start(all.clone())?;
    let mut probe = Subject::connect(all, "probe").await?;
    let mut times = Vec::new();
    let spec = TaskSpec::command("probe", ["simulated"]);
    for round in 0..size.rounds {
        let leader = masters.settled().await?;
        let began = Instant::now();
        masters.kill(leader).await?;
        let claim = format!("probe-{round}");
        let wanted = Claim::cpu_milli(10).memory_mib(16).count(1);
        probe.want(&claim, wanted).await?;
        probe.run_all(&claim, 1, &spec).await?;
        times.push(began.elapsed().as_secs_f64() * 1000.0);
        probe.withdraw(&claim).await?;
        masters.launch(leader)?;
    }
    masters.settled().await?;
    let launched = load.stop().await?;
    let (acknowledged, lost) = writer.stop().await?;
    let tasks = usize::try_from(STANDING).unwrap_or(usize::MAX);
    let touched = tasks.saturating_sub(standing.running());

    let mut figures = Figures::default();
    figures.put("rounds", size.rounds);
    figures.put("p50_ms", decimal(percentile(&mut times, 50)));
    figures.put("p99_ms", decimal(percentile(&mut times, 99)));
    figures.put("max_ms", decimal(percentile(&mut times, 100)));
    figures.put("lost_writes", lost);
    figures.put("tasks_touched", touched);
    figures.put("writes", acknowledged);
    figures.put("launches_beside", launched);
    figures.put("standing_tasks", STANDING);
    figures.put("masters", size.masters);
    figures.put("agents", size.agents);
    Ok(figures)
}

/// So many masters still decide when one is lost, and none of them is there for nothing.
pub(super) fn may_lose_one(masters: u32) -> bool {
    masters % 2 == 1 && (3..=7).contains(&masters)
}

/// A framework with so many tasks that run on.
///
/// # Errors
/// Why they do not run.
pub(super) async fn standing(masters: Vec<String>, tasks: u32) -> Outcome<Subject> {
    let mut standing = Subject::connect(masters, "standing").await?;
    let spec = TaskSpec::command("standing", ["simulated"]);
    let claim = Claim::cpu_milli(10).memory_mib(16).count(tasks);
    standing.want("standing", claim).await?;
    let count = usize::try_from(tasks).unwrap_or(usize::MAX);
    standing.run_all("standing", count, &spec).await?;
    Ok(standing)
}

/// Short tasks launched all the time.
#[derive(Debug)]
pub(super) struct Load {
    stop: tokio::sync::oneshot::Sender<()>,
    running: tokio::task::JoinHandle<Outcome<u64>>,
}

/// Launches them until it is stopped.
///
/// # Errors
/// Why there is no session.
pub(super) async fn load(masters: Vec<String>) -> Outcome<Load> {
    let mut subject = Subject::connect(masters, "load").await?;
    let (stop, stopped) = tokio::sync::oneshot::channel();
    let running = tokio::spawn(async move {
        let mut launched = 0_u64;
        let spec = TaskSpec::command("load", ["simulated"]).fake(SHORT, 0);
        let work = async {
            for number in 0_u64.. {
                let claim = format!("load-{number}");
                let wanted = Claim::cpu_milli(10).memory_mib(16).count(20);
                subject.want(&claim, wanted).await?;
                subject.run_all(&claim, 20, &spec).await?;
                subject.withdraw(&claim).await?;
                launched = launched.saturating_add(20);
            }
            Ok(())
        };
        tokio::select! {
            failed = work => failed.map(|()| 0),
            _ = stopped => Ok(launched),
        }
    });
    Ok(Load { stop, running })
}

impl Load {
    /// Ends it; gives how many were launched.
    ///
    /// # Errors
    /// What it failed with.
    pub(super) async fn stop(self) -> Outcome<u64> {
        // One that has failed says so when it is joined.
        let _ = self.stop.send(());
        joined(self.running.await)
    }
}

/// Records written one after another; what was acknowledged is remembered.
struct Writer {
    session: Session,
    acknowledged: Arc<Mutex<BTreeMap<String, String>>>,
    running: tokio::task::JoinHandle<()>,
}

impl Writer {
    fn start(masters: Vec<String>) -> Outcome<Self> {
        let config = SessionConfig::new(masters, "writer", "dev");
        let (session, mut events) = Session::open(config).map_err(|error| from_sdk(&error))?;
        let acknowledged = Arc::<Mutex<BTreeMap<String, String>>>::default();
        let (writing, noted) = (session.clone(), Arc::clone(&acknowledged));
        let running = tokio::spawn(async move {
            let drain = async { while events.next().await.is_some() {} };
            let write = async {
                for number in 0_u64.. {
                    let (key, value) = (format!("k{}", number % 5_000), number.to_string());
                    let write = Write::new().put(key.clone(), value.clone());
                    if writing.store().write(write).await.is_ok() {
                        let mut noted = noted.lock().unwrap_or_else(PoisonError::into_inner);
                        noted.insert(key, value);
                    }
                }
            };
            tokio::join!(drain, write);
        });
        Ok(Self {
            session,
            acknowledged,
            running,
        })
    }

    /// Writes acknowledged, and keys whose newest acknowledged value is not there.
    async fn stop(self) -> Outcome<(u64, u64)> {
        self.running.abort();
        let acknowledged = self.acknowledged.lock();
        let acknowledged = acknowledged.unwrap_or_else(PoisonError::into_inner).clone();
        let (mut lost, mut newest) = (0_u64, 0_u64);
        for (key, value) in acknowledged {
            let found = self.session.store().get(key).await;
            let found = found.map_err(|error| from_sdk(&error))?;
            let number = |text: &str| text.parse::<u64>().unwrap_or(0);
            newest = newest.max(number(&value));
            let there = found.map_or(0, |record| number(&String::from_utf8_lossy(&record.value)));
            // The last write may have been done and not acknowledged: later is fine, earlier never.
            lost = lost.saturating_add(u64::from(there < number(&value)));
        }
        Ok((newest, lost))
    }
}

fn joined<T>(joined: Result<Outcome<T>, tokio::task::JoinError>) -> Outcome<T> {
    joined.map_err(|error| CliError::new(Code::Internal, error.to_string()))?
}
