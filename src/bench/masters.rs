//! Masters as processes of their own on loopback, and simulated agents in this one: for benches
//! that kill masters.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::time::{Duration, Instant};

use mete_agent::driver::AgentState;
use mete_agent::fake::{FakeAgent, PooledDial, wall_clock};
use mete_model::task::FakeTask;
use mete_model::{Code, NodeKey};
use mete_proto::admin::v1::{GetRaftRequest, GetRaftResponse, GetStatusRequest, SetRoleRequest};
use mete_proto::dial::TcpDial;
use tokio::process::{Child, Command};
use tokio::sync::watch;
use tokio::task::JoinSet;
use uuid::Uuid;

use crate::cli::support::client::{Cluster, admin};
use crate::cli::support::error::{CliError, Outcome};
use crate::daemon::machine;

/// Longest wait for anything.
const PATIENCE: Duration = Duration::from_secs(60);

/// Between two looks.
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// A cluster of masters.
#[derive(Debug)]
pub(super) struct Masters {
    home: PathBuf,
    pub(super) addresses: Vec<String>,
    children: Vec<Option<Child>>,
}

impl Masters {
    /// Founds and starts `count` masters below `home`.
    ///
    /// # Errors
    /// What the processes say, or that they are late.
    pub(super) async fn start(home: &Path, count: usize) -> Outcome<Self> {
        let mut addresses = Vec::new();
        let mut held = Vec::new();
        for _ in 0..count {
            let listener = crate::daemon::bind("127.0.0.1:0", false).await?;
            let address = listener.local_addr();
            addresses.push(
                address
                    .map_err(|error| file("a free port", &error))?
                    .to_string(),
            );
            held.push(listener);
        }
        drop(held);
        let mut masters = Self {
            home: home.to_owned(),
            addresses,
            children: (0..count).map(|_| None).collect(),
        };
        let cluster = Uuid::new_v4().to_string();
        for at in 0..count {
            let node = (at + 1).to_string();
            let mut arguments = vec!["--node", &node, "--cluster", &cluster];
            let all = masters.addresses.join(",");
            arguments.extend(["--masters", &all]);
            let done = masters.command("init", at)?.args(arguments).output().await;
            let done = done.map_err(|error| file("mete master init", &error))?;
            if !done.status.success() {
                let said = String::from_utf8_lossy(&done.stderr).into_owned();
                return Err(CliError::new(Code::Internal, said));
            }
        }
        for at in 0..count {
            masters.launch(at)?;
        }
        masters.settled().await?;
        Ok(masters)
    }

    fn command(&self, verb: &str, at: usize) -> Outcome<Command> {
        let own = std::env::current_exe().map_err(|error| file("the path of mete", &error))?;
        let mut command = Command::new(own);
        command
            .args(["master", verb, "--state-dir"])
            .arg(self.home.join(format!("m{}", at + 1)))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .kill_on_drop(true);
        Ok(command)
    }

    /// Starts one that does not run.
    ///
    /// # Errors
    /// It cannot be started.
    pub(super) fn launch(&mut self, at: usize) -> Outcome {
        let mut command = self.command("start", at)?;
        let address = self.addresses.get(at).cloned().unwrap_or_default();
        command.args(["--listen", &address]).stderr(Stdio::null());
        let child = command
            .spawn()
            .map_err(|error| file("mete master start", &error))?;
        if let Some(place) = self.children.get_mut(at) {
            *place = Some(child);
        }
        Ok(())
    }

    /// Ends one as a power cut would: SIGKILL.
    ///
    /// # Errors
    /// It cannot be killed.
    pub(super) async fn kill(&mut self, at: usize) -> Outcome {
        if let Some(mut child) = self.children.get_mut(at).and_then(Option::take) {
            let killed = child.kill().await;
            killed.map_err(|error| file("a master's process", &error))?;
        }
        Ok(())
    }

    /// Resident memory of all masters in MiB.
    pub(super) fn resident_mib(&self) -> u64 {
        let pids = self.children.iter().flatten().filter_map(Child::id);
        pids.map(super::resident_mib_of).max().unwrap_or(0)
    }

    /// What one says of the masters.
    pub(super) async fn raft(&self, at: usize) -> Option<GetRaftResponse> {
        let address = self.addresses.get(at)?.clone();
        let cluster = Cluster::new(vec![address], Duration::from_secs(1));
        let call = |channel| async move { admin(channel).get_raft(GetRaftRequest {}).await };
        cluster.call(call).await.ok()
    }

    /// Which one leads.
    pub(super) async fn leader(&self) -> Option<usize> {
        for at in 0..self.addresses.len() {
            if let Some(raft) = self.raft(at).await
                && raft.leader == raft.answered_by
                && raft.leader != 0
            {
                return Some(at);
            }
        }
        None
    }

    /// Waits until one leads and all others answer it; gives the leader.
    ///
    /// # Errors
    /// `TIMED_OUT`.
    pub(super) async fn settled(&self) -> Outcome<usize> {
        let begun = Instant::now();
        while begun.elapsed() < PATIENCE {
            if let Some(leader) = self.leader().await
                && let Some(raft) = self.raft(leader).await
                && raft.answering == raft.voters
                && raft.masters.iter().all(|master| master.lag < 1_000)
            {
                return Ok(leader);
            }
            tokio::time::sleep(LOOK_AGAIN).await;
        }
        let sentence = "the masters do not find together";
        Err(CliError::new(Code::TimedOut, sentence))
    }

    /// Makes the role that benches run in.
    ///
    /// # Errors
    /// The refusal.
    pub(super) async fn make_role(&self) -> Outcome {
        let cluster = Cluster::new(self.addresses.clone(), PATIENCE);
        let request = SetRoleRequest {
            path: "dev".to_owned(),
            ..SetRoleRequest::default()
        };
        let call = |channel| {
            let request = request.clone();
            async move { admin(channel).set_role(request).await }
        };
        cluster.call(call).await.map(drop)
    }

    /// A client of all of them.
    pub(super) fn client(&self) -> Cluster {
        Cluster::new(self.addresses.clone(), PATIENCE)
    }
}

/// Simulated agents; they end when this is dropped.
#[derive(Debug)]
pub(super) struct Fakes {
    _running: JoinSet<()>,
}

impl Fakes {
    /// Starts so many, and waits until all are registered.
    ///
    /// # Errors
    /// `TIMED_OUT`.
    pub(super) async fn start(masters: &Masters, count: u32, unsaid: FakeTask) -> Outcome<Self> {
        let dial = Arc::new(PooledDial::for_agents(Arc::new(TcpDial::default()), count));
        let mut running = JoinSet::new();
        for number in 1..=count {
            let agent = FakeAgent {
                node_key: NodeKey(Uuid::new_v4()),
                node_name: format!("f{number:05}"),
                inventory: machine::imagined(number),
                masters: masters.addresses.clone(),
                dial: dial.clone(),
                start_delay: Duration::from_millis(5),
                beacon: Duration::from_secs(3),
                clock: wall_clock,
            };
            running.spawn(async move {
                let changes = watch::Sender::new(AgentState::default());
                let forever = std::future::pending::<()>();
                agent.run_playing(unsaid, changes, forever).await;
            });
        }
        let fakes = Self { _running: running };
        fakes.ready(masters, count).await?;
        Ok(fakes)
    }

    /// Waits until so many are ready; gives how long that took.
    ///
    /// # Errors
    /// `TIMED_OUT`.
    pub(super) async fn ready(&self, masters: &Masters, count: u32) -> Outcome<Duration> {
        let (begun, client) = (Instant::now(), masters.client());
        while begun.elapsed() < PATIENCE {
            let call = |channel| async move {
                admin(channel).get_status(GetStatusRequest::default()).await
            };
            if let Ok(status) = client.call(call).await
                && status
                    .nodes
                    .get("ready")
                    .is_some_and(|ready| *ready >= count)
            {
                return Ok(begun.elapsed());
            }
            tokio::time::sleep(LOOK_AGAIN).await;
        }
        let sentence = format!("{count} simulated agents do not register");
        Err(CliError::new(Code::TimedOut, sentence))
    }
}

fn file(what: &str, error: &std::io::Error) -> CliError {
    CliError::new(Code::File, format!("{what}: {error}"))
}
