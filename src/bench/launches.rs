//! `mete bench launches`: committed launches through Raft with fsync, on simulated agents; and from
//! an offer to a running process on a real one.
//!
//! A launch counts when its accept is committed and its task's `Running` status has reached the
//! framework and was acknowledged.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use mete_model::task::FakeTask;
use mete_proto::admin::v1::{GetRaftRequest, GetStatusRequest};
use mete_sdk::{Claim, TaskSpec};
use uuid::Uuid;

use super::subject::Subject;
use super::{Figures, decimal, percentile, resident_mib};
use crate::cli::support::client::admin;
use crate::cli::support::error::Outcome;
use crate::daemon::dev::{DevCluster, Settings};

/// Claims made one after another to time demand → offer.
const PROBES: usize = 200;

/// Real processes started one after another.
const PROCESSES: usize = 100;

/// A call of the bench.
const CALL: Duration = Duration::from_secs(30);

/// How large the bench is.
#[derive(Clone, Debug)]
pub struct Size {
    /// Simulated agents.
    pub agents: u32,
    /// Tasks launched.
    pub tasks: u32,
    /// Where the master keeps its state; `None` = a temporary directory.
    pub state_directory: Option<PathBuf>,
}

/// Measures.
///
/// # Errors
/// Sizes that cannot be, or a part that failed.
pub async fn run(size: Size) -> Outcome<Figures> {
    if size.agents == 0 || size.tasks == 0 || size.tasks > 100_000 {
        return Err(super::usage(
            "--agents starts at 1, --tasks is within 1 to 100000",
        ));
    }
    let (home, temporary) = match size.state_directory.clone() {
        Some(home) => (home, false),
        None => {
            let name = format!("mete-bench-{}", Uuid::new_v4().simple());
            (std::env::temp_dir().join(name), true)
        }
    };
    let mut figures = Figures::default();
    let measured = measure(&size, home.join("launches"), &mut figures).await;
    let measured = match measured {
        Ok(()) => measure_real(home.join("process"), &mut figures).await,
        Err(error) => Err(error),
    };
    if temporary {
        // What is left of it is in a temporary directory.
        let _ = std::fs::remove_dir_all(&home);
    }
    measured.map(|()| figures)
}

async fn measure(size: &Size, home: PathBuf, figures: &mut Figures) -> Outcome {
    let settings = Settings {
        nodes: 0,
        fake: size.agents,
        state_directory: Some(home),
        batch: false,
        // Until they are killed: what is measured is launching, not ending.
        unsaid: FakeTask::default(),
        ..Settings::default()
    };
    let cluster = DevCluster::start(&settings).await?;
    let registered = cluster.ready_in;
    let mut subject = Subject::connect(&cluster.address, "bench").await?;
    let before = flushes(&cluster).await?;

    let spec = TaskSpec::command("task", ["simulated"]);
    let began = Instant::now();
    subject
        .want(
            "tasks",
            Claim::cpu_milli(100).memory_mib(64).count(size.tasks),
        )
        .await?;
    let count = usize::try_from(size.tasks).unwrap_or(usize::MAX);
    let mut latencies = subject.run_all("tasks", count, &spec).await?;
    let seconds = began.elapsed().as_secs_f64();
    let rss = resident_mib();
    let after = flushes(&cluster).await?;
    let mut probes = probe(&mut subject, PROBES).await?;

    figures.put("agents", size.agents);
    figures.put("tasks", size.tasks);
    figures.put("launches_per_s", decimal(f64::from(size.tasks) / seconds));
    figures.put("p50_ms", decimal(percentile(&mut latencies, 50)));
    figures.put("p99_ms", decimal(percentile(&mut latencies, 99)));
    figures.put(
        "demand_to_offer_p50_ms",
        decimal(percentile(&mut probes, 50)),
    );
    figures.put(
        "demand_to_offer_p99_ms",
        decimal(percentile(&mut probes, 99)),
    );
    figures.put("rss_mib", rss);
    figures.put("flushes", after.saturating_sub(before));
    figures.put(
        "agents_registered_ms",
        decimal(registered.as_secs_f64() * 1000.0),
    );
    figures.put("refused", subject.refused);
    figures.put("masters", 1);
    figures.put("in_one_process", true);
    subject.teardown().await?;
    cluster.stop().await
}

async fn flushes(cluster: &DevCluster) -> Outcome<u64> {
    let raft = cluster
        .client(CALL)
        .call(|channel| async move { admin(channel).get_raft(GetRaftRequest {}).await })
        .await?;
    if raft.flushes > 0 {
        return Ok(raft.flushes);
    }
    let status = cluster
        .client(CALL)
        .call(|channel| async move { admin(channel).get_status(GetStatusRequest {}).await })
        .await?;
    Ok(status.counters.get("flushes").copied().unwrap_or(0))
}

/// Milliseconds from declaring one claim to its first offer, so many times.
async fn probe(subject: &mut Subject, times: usize) -> Outcome<Vec<f64>> {
    let mut all = Vec::with_capacity(times);
    for number in 0..times {
        let claim = format!("probe-{number}");
        let began = Instant::now();
        let offered = async {
            let wanting = Claim::cpu_milli(100).memory_mib(64).count(1);
            subject.want(&claim, wanting).await?;
            subject.first_offer(&claim).await
        };
        let offers = offered.await?;
        all.push(began.elapsed().as_secs_f64() * 1000.0);
        drop(offers);
        subject.withdraw(&claim).await?;
    }
    Ok(all)
}

/// From an offer in hand to a real process that runs, one after another.
async fn measure_real(home: PathBuf, figures: &mut Figures) -> Outcome {
    let settings = Settings {
        nodes: 1,
        state_directory: Some(home),
        batch: false,
        ..Settings::default()
    };
    let cluster = DevCluster::start(&settings).await?;
    let mut subject = Subject::connect(&cluster.address, "bench").await?;
    let mut all = Vec::with_capacity(PROCESSES);
    for number in 0..PROCESSES {
        let claim = format!("real-{number}");
        let spec = TaskSpec::command(&claim, ["true"]);
        subject
            .want(&claim, Claim::cpu_milli(100).memory_mib(16).count(1))
            .await?;
        all.extend(subject.run_all(&claim, 1, &spec).await?);
    }
    figures.put("real_processes", PROCESSES);
    figures.put("offer_to_running_p50_ms", decimal(percentile(&mut all, 50)));
    figures.put("offer_to_running_p99_ms", decimal(percentile(&mut all, 99)));
    subject.teardown().await?;
    cluster.stop().await
}
