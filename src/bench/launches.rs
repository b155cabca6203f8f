//! `mete bench launches`: committed launches through Raft with fsync, on simulated agents; and from
//! an offer to a running process on a real one.
//!
//! A launch counts when its accept is committed and its task's `Running` status has reached the
//! framework and was acknowledged.
//!
//! Master, framework and simulated agents share one process. The real agent is a process of its
//! own, as on any node: starting a process costs its parent more the more memory it has, and a node
//! never has the memory of thousands of simulated ones. It joins the same cluster: while processes
//! start on it the simulated agents are connected, their tasks run and their beacons go on.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use mete_model::Code;
use mete_model::task::FakeTask;
use mete_proto::admin::v1::{GetRaftRequest, GetStatusRequest};
use mete_sdk::{Claim, TaskSpec};
use tokio::process::{Child, Command};
use uuid::Uuid;

use super::subject::{Start, Subject};
use super::{Figures, decimal, percentile, resident_mib};
use crate::cli::support::client::admin;
use crate::cli::support::error::{CliError, Outcome};
use crate::daemon::dev::{DevCluster, Settings};

/// Claims made one after another to time demand → offer.
const PROBES: usize = 200;

/// Real processes started one after another.
const PROCESSES: usize = 100;

/// A class of devices that only the real agent has.
const DEVICE: &str = "bench/process";

/// Longest time until the real agent is registered, and until it has ended.
const AGENT_READY: Duration = Duration::from_secs(15);

/// Between two looks whether it is.
const LOOK_AGAIN: Duration = Duration::from_millis(20);

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
    let measured = measure(&size, &home, &mut figures).await;
    if temporary {
        // What is left of it is in a temporary directory.
        let _ = std::fs::remove_dir_all(&home);
    }
    measured.map(|()| figures)
}

async fn measure(size: &Size, home: &Path, figures: &mut Figures) -> Outcome {
    let settings = Settings {
        nodes: 0,
        fake: size.agents,
        state_directory: Some(home.join("launches")),
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
    let agent = RealAgent::start(&cluster, home, size.agents).await?;
    measure_real(&mut subject, figures).await?;
    subject.teardown().await?;
    agent.stop().await?;
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

/// One part of a start's time.
type Stage = fn(&Start) -> f64;

/// From an offer in hand to a real process that runs, one after another.
async fn measure_real(subject: &mut Subject, figures: &mut Figures) -> Outcome {
    let mut all = Vec::with_capacity(PROCESSES);
    for number in 0..PROCESSES {
        let claim = format!("real-{number}");
        let spec = TaskSpec::command(&claim, ["true"]);
        // The device is on the real agent only.
        let wanted = Claim::cpu_milli(100)
            .memory_mib(16)
            .device_milli(DEVICE, 10);
        subject.want(&claim, wanted.count(1)).await?;
        all.push(subject.start_one(&claim, &spec).await?);
    }
    figures.put("real_processes", PROCESSES);
    let stages: [(&str, Stage); 3] = [
        ("offer_to_running", |start| start.whole),
        ("accept_to_started", |start| start.started),
        ("started_to_told", |start| start.told),
    ];
    for (name, of) in stages {
        let mut stage: Vec<f64> = all.iter().map(of).collect();
        figures.put(
            &format!("{name}_p50_ms"),
            decimal(percentile(&mut stage, 50)),
        );
        figures.put(
            &format!("{name}_p99_ms"),
            decimal(percentile(&mut stage, 99)),
        );
    }
    figures.put("real_agent_in_own_process", true);
    Ok(())
}

/// `mete agent start` as a child of this process.
#[derive(Debug)]
struct RealAgent {
    child: Child,
}

impl RealAgent {
    /// Starts it and waits until the master counts it beside so many simulated ones.
    async fn start(cluster: &DevCluster, home: &Path, simulated: u32) -> Outcome<Self> {
        let failed = |error: std::io::Error| {
            CliError::new(Code::File, format!("start the real agent: {error}"))
        };
        let program = std::env::current_exe().map_err(failed)?;
        std::fs::create_dir_all(home).map_err(failed)?;
        let log = home.join("agent.log");
        let says = std::fs::File::create(&log).map_err(failed)?;
        let child = Command::new(program)
            .args([
                "agent",
                "start",
                "--name",
                "real",
                "--listen",
                "127.0.0.1:0",
            ])
            .args(["--master", &cluster.address])
            .args(["--device", &format!("{DEVICE}=real")])
            .arg("--state-dir")
            .arg(home.join("agent"))
            .arg("--run-dir")
            .arg(home.join("run"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(says)
            .kill_on_drop(true)
            .spawn()
            .map_err(failed)?;
        let mut agent = Self { child };
        let deadline = Instant::now()
            .checked_add(AGENT_READY)
            .unwrap_or_else(Instant::now);
        loop {
            let status = cluster
                .client(CALL)
                .call(|channel| async move { admin(channel).get_status(GetStatusRequest {}).await })
                .await?;
            if status.nodes.get("ready").copied().unwrap_or(0) > simulated {
                return Ok(agent);
            }
            let ended = agent.child.try_wait().map_err(failed)?;
            if ended.is_some() || Instant::now() >= deadline {
                let said = std::fs::read_to_string(&log).unwrap_or_default();
                let sentence = "the real agent of the bench did not register";
                return Err(CliError::new(Code::TimedOut, sentence).fact(said.trim()));
            }
            tokio::time::sleep(LOOK_AGAIN).await;
        }
    }

    /// Asks it to stop and waits for its end; after a while it is killed.
    async fn stop(mut self) -> Outcome {
        if let Some(pid) = self.child.id().and_then(|pid| i32::try_from(pid).ok())
            && let Some(pid) = rustix::process::Pid::from_raw(pid)
        {
            // One that has ended by itself needs no word.
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        }
        if tokio::time::timeout(AGENT_READY, self.child.wait())
            .await
            .is_err()
        {
            // Killed when it is dropped.
            tracing::warn!("the real agent of the bench did not end in time");
        }
        Ok(())
    }
}
