//! `mete bench launches`: committed launches through Raft with fsync, on simulated agents; and from
//! an offer to a running process on a real one.
//!
//! A launch counts when its accept is committed and its task's `Running` status has reached the
//! framework and was acknowledged.
//!
//! One master, framework and simulated agents share one process; several masters are processes of
//! their own. The real agent is a process of its
//! own, as on any node: starting a process costs its parent more the more memory it has, and a node
//! never has the memory of thousands of simulated ones. It joins the same cluster: while processes
//! start on it the simulated agents are connected, their tasks run and their beacons go on.

use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use mete_model::Code;
use mete_model::task::FakeTask;
use mete_proto::admin::v1::{GetRaftRequest, GetStatusRequest};
use mete_sdk::{Claim, TaskSpec};
use tokio::process::{Child, Command};

use super::masters::{Fakes, Masters};
use super::subject::{Start, Subject};
use super::{Figures, Home, decimal, percentile, resident_mib};
use crate::cli::support::client::{Cluster, admin};
use crate::cli::support::error::{CliError, Outcome};
use crate::daemon::dev::{DevCluster, Settings};

/// Claims made one after another to time demand → offer.
const PROBES: usize = 200;

/// Real processes started one after another.
const PROCESSES: usize = 100;

/// Tasks at the most.
const MOST_TASKS: u32 = 1_000_000;

/// What one claim may ask for.
const TASKS_OF_A_CLAIM: u32 = 100_000;

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
    /// Masters: one in this process, or several as processes of their own.
    pub masters: u32,
}

/// Measures.
///
/// # Errors
/// Sizes that cannot be, or a part that failed.
pub async fn run(size: Size) -> Outcome<Figures> {
    if size.agents == 0 || size.tasks == 0 || size.tasks > MOST_TASKS {
        return Err(super::usage(format!(
            "--agents starts at 1, --tasks is within 1 to {MOST_TASKS}"
        )));
    }
    if size.masters.is_multiple_of(2) || size.masters > 7 {
        return Err(super::usage("--masters is 1, 3, 5 or 7"));
    }
    let home = Home::make()?;
    let mut figures = Figures::default();
    measure(&size, &home.0, &mut figures).await?;
    Ok(figures)
}

/// What is measured on.
enum Site {
    /// One master in this process.
    One(Box<DevCluster>),
    /// Masters that are processes of their own.
    Several {
        masters: Masters,
        fakes: Fakes,
        registered: Duration,
    },
}

impl Site {
    async fn start(size: &Size, home: &Path) -> Outcome<Self> {
        // Until they are killed: what is measured is launching, not ending.
        let unsaid = FakeTask::default();
        if size.masters > 1 {
            let count = usize::try_from(size.masters).unwrap_or(usize::MAX);
            let masters = Masters::start(home, count).await?;
            masters.make_role().await?;
            let began = Instant::now();
            let fakes = Fakes::start(&masters, size.agents, unsaid).await?;
            return Ok(Self::Several {
                masters,
                fakes,
                registered: began.elapsed(),
            });
        }
        let settings = Settings {
            nodes: 0,
            fake: size.agents,
            state_directory: Some(home.join("launches")),
            batch: false,
            unsaid,
            ..Settings::default()
        };
        let cluster = DevCluster::start(&settings).await?;
        Ok(Self::One(Box::new(cluster)))
    }

    fn addresses(&self) -> Vec<String> {
        match self {
            Self::One(cluster) => vec![cluster.address.clone()],
            Self::Several { masters, .. } => masters.addresses.clone(),
        }
    }

    fn client(&self) -> Cluster {
        Cluster::new(self.addresses(), CALL)
    }

    fn registered(&self) -> Duration {
        match self {
            Self::One(cluster) => cluster.ready_in,
            Self::Several { registered, .. } => *registered,
        }
    }

    /// Memory of the largest master in MiB; with one master, of the whole process.
    fn resident_mib(&self) -> u64 {
        match self {
            Self::One(_) => resident_mib(),
            Self::Several { masters, .. } => masters.resident_mib(),
        }
    }

    async fn stop(self) -> Outcome {
        match self {
            Self::One(cluster) => cluster.stop().await,
            Self::Several { masters, fakes, .. } => {
                drop((fakes, masters));
                Ok(())
            }
        }
    }
}

async fn measure(size: &Size, home: &Path, figures: &mut Figures) -> Outcome {
    let site = Site::start(size, home).await?;
    let mut subject = Subject::connect(site.addresses(), "bench").await?;
    let before = flushes(&site).await?;

    let spec = TaskSpec::command("task", ["simulated"]);
    let began = Instant::now();
    let mut latencies = Vec::new();
    let mut left = size.tasks;
    // One claim after another where one cannot ask for all.
    for number in 0.. {
        let count = left.min(TASKS_OF_A_CLAIM);
        if count == 0 {
            break;
        }
        left -= count;
        let claim = format!("tasks-{number}");
        let wanted = Claim::cpu_milli(100).memory_mib(64).count(count);
        subject.want(&claim, wanted).await?;
        let count = usize::try_from(count).unwrap_or(usize::MAX);
        latencies.append(&mut subject.run_all(&claim, count, &spec).await?);
    }
    let seconds = began.elapsed().as_secs_f64();
    let rss = site.resident_mib();
    let after = flushes(&site).await?;
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
        decimal(site.registered().as_secs_f64() * 1000.0),
    );
    figures.put("refused", subject.refused);
    figures.put("masters", size.masters);
    figures.put("in_one_process", size.masters == 1);
    let agent = RealAgent::start(&site, home, size.agents).await?;
    measure_real(&mut subject, figures).await?;
    subject.teardown().await?;
    agent.stop().await?;
    site.stop().await
}

async fn flushes(site: &Site) -> Outcome<u64> {
    let call = |channel| async move { admin(channel).get_raft(GetRaftRequest {}).await };
    Ok(site.client().call(call).await?.flushes)
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
    async fn start(site: &Site, home: &Path, simulated: u32) -> Outcome<Self> {
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
            .args(site.addresses().iter().flat_map(|at| ["--master", at]))
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
            let status = site
                .client()
                .call(|channel| async move {
                    admin(channel).get_status(GetStatusRequest::default()).await
                })
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
