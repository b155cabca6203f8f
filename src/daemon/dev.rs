//! `mete dev`: a whole cluster in one process: master, agents (real and simulated), batch.
//!
//! Rootless, loopback only. Also the ground that `mete demo` and the benches stand on.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use mete_agent::discover::separate::runtime_directory_of;
use mete_agent::driver::AgentState;
use mete_agent::fake::{FakeAgent, PooledDial, wall_clock};
use mete_broker::config::{Config as MasterConfig, Storage};
use mete_broker::server::Listeners;
use mete_model::task::FakeTask;
use mete_model::{Code, MilliCpu, NodeKey, Span};
use mete_proto::admin::v1::{Filter, GetStatusRequest, GetStatusResponse, Kind, SetRoleRequest};
use mete_proto::dial::TcpDial;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinSet;
use uuid::Uuid;

use super::leave::leave_nothing;
use super::leftovers::{self, Home};
use super::{bind, machine, make_directory, stop_signal};
use crate::cli::support::client::{Cluster, admin};
use crate::cli::support::context::{ClientConfig, Context, config_path};
use crate::cli::support::error::{CliError, Outcome};
use crate::cli::support::print::{note, out};

/// Longest time until everything stands.
const READY: Duration = Duration::from_secs(30);

/// Between two looks whether it stands.
const SHORTEST_PAUSE: Duration = Duration::from_millis(5);
const LONGEST_PAUSE: Duration = Duration::from_millis(200);

/// A call while it stops.
const CALL: Duration = Duration::from_secs(5);

/// How a simulated agent plays a task that says nothing about being simulated.
const PRETENDED: FakeTask = FakeTask {
    run: Span::seconds(2),
    exit_code: 0,
};

/// What the cluster is made of.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Real agents that divide this machine.
    pub nodes: u32,
    /// Simulated agents.
    pub fake: u32,
    /// Keeps the state; `None` = lost when this stops.
    pub state_directory: Option<PathBuf>,
    /// Where the master listens.
    pub listen: String,
    /// Permits an address that is not loopback.
    pub insecure: bool,
    /// Roles made beside `batch`, `service` and `dev`.
    pub roles: Vec<String>,
    /// With the batch framework.
    pub batch: bool,
    /// How simulated agents play tasks that do not say it themselves.
    pub unsaid: FakeTask,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            nodes: 1,
            fake: 0,
            state_directory: None,
            listen: "127.0.0.1:0".to_owned(),
            insecure: false,
            roles: Vec::new(),
            batch: true,
            unsaid: PRETENDED,
        }
    }
}

/// Roles that every dev cluster has.
const ROLES: [&str; 3] = ["batch", "service", "dev"];

/// How far the stopping has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Stop {
    None,
    Frameworks,
    All,
}

/// A cluster that stands.
#[derive(Debug)]
pub struct DevCluster {
    /// The master's `host:port`.
    pub address: String,
    /// From the beginning until everything stood.
    pub ready_in: Duration,
    /// What the master said then.
    pub status: GetStatusResponse,
    parts: JoinSet<Outcome>,
    stop: watch::Sender<Stop>,
    /// Removed when the cluster stops, if it was made for it; its lock says that the cluster lives.
    temporary: Option<Home>,
}

impl DevCluster {
    /// Starts everything and waits until it stands.
    ///
    /// # Errors
    /// Whatever kept a part from starting, or `TIMED_OUT`.
    pub async fn start(settings: &Settings) -> Outcome<Self> {
        let began = Instant::now();
        let listener = bind(&settings.listen, settings.insecure).await?;
        let address = listener
            .local_addr()
            .map_err(|error| CliError::new(Code::File, format!("read the address: {error}")))?
            .to_string();
        let (home, temporary) = home(settings)?;
        let stop = watch::Sender::new(Stop::None);
        let mut cluster = Self {
            address: address.clone(),
            ready_in: Duration::ZERO,
            status: GetStatusResponse::default(),
            parts: JoinSet::new(),
            stop,
            temporary,
        };
        cluster.spawn_master(settings, &home, listener);
        let asking = Cluster::new(vec![address], READY);
        cluster
            .wait_for("the master to lead", &asking, |status| status.term > 0)
            .await?;
        make_roles(&asking, &settings.roles).await?;
        cluster.spawn_agents(settings, &home).await?;
        cluster.spawn_fakes(settings.fake, settings.unsaid);
        if settings.batch {
            cluster.spawn_batch(settings).await?;
        }
        let nodes = settings.nodes.saturating_add(settings.fake);
        let frameworks = u32::from(settings.batch);
        let stands = |status: &GetStatusResponse| {
            status.nodes.get("ready").copied().unwrap_or(0) >= nodes
                && status.frameworks_connected >= frameworks
        };
        cluster.status = cluster
            .wait_for("agents and frameworks", &asking, stands)
            .await?;
        cluster.ready_in = began.elapsed();
        Ok(cluster)
    }

    /// How to ask this cluster.
    #[must_use]
    pub fn client(&self, timeout: Duration) -> Cluster {
        Cluster::new(vec![self.address.clone()], timeout)
    }

    /// Stops everything: frameworks first, so that nothing is launched any more. A cluster that
    /// keeps its state leaves its tasks alone; one that keeps none ends them, since nobody could
    /// find them again.
    pub async fn stop(mut self) -> Outcome {
        self.stop.send_replace(Stop::Frameworks);
        if self.temporary.is_some() {
            leave_nothing(&self.client(CALL)).await;
        }
        self.stop.send_replace(Stop::All);
        let ending = async {
            let mut first = Ok(());
            while let Some(ended) = self.parts.join_next().await {
                if let (Ok(Err(error)), true) = (ended, first.is_ok()) {
                    first = Err(error);
                }
            }
            first
        };
        let ended = tokio::time::timeout(Duration::from_secs(10), ending).await;
        if let Some(home) = &self.temporary {
            // What is left of it is in temporary directories.
            let _ = home.remove();
        }
        ended.unwrap_or(Ok(()))
    }

    /// Waits until a part ends by itself: with an error, or not at all.
    pub async fn failed(&mut self) -> CliError {
        match self.parts.join_next().await {
            Some(Ok(Err(error))) => error,
            Some(Ok(Ok(())) | Err(_)) => {
                CliError::new(Code::Internal, "a part of the cluster ended by itself")
            }
            None => std::future::pending().await,
        }
    }

    /// Ends when the cluster has come so far in its stopping.
    fn stopped(&self, at: Stop) -> impl Future<Output = ()> + Send + use<> {
        let mut stop = self.stop.subscribe();
        async move {
            // A sender that is gone means the same.
            let _ = stop.wait_for(|stop| *stop >= at).await;
        }
    }

    fn spawn_master(&mut self, settings: &Settings, home: &Path, listener: TcpListener) {
        let storage = match &settings.state_directory {
            Some(_) => Storage::Directory {
                path: home.join("master"),
                found: true,
            },
            None => Storage::Memory,
        };
        let mut config = MasterConfig::single(storage);
        config.insecure = settings.insecure;
        let listeners = Listeners {
            grpc: vec![listener],
        };
        let stopped = self.stopped(Stop::All);
        self.parts.spawn(async move {
            mete_broker::server::run(config, listeners, stopped)
                .await
                .map_err(|error| super::master::from_run(&error))
        });
    }

    async fn spawn_agents(&mut self, settings: &Settings, home: &Path) -> Outcome {
        let parts = machine::divide(home, settings.nodes)?;
        // Of its own, so that several dev clusters on one machine do not count each other.
        let run_directory = runtime_directory_of(home).map_err(|error| {
            let run = home.join("run");
            let sentence = format!("the directory {} cannot be used: {error}", run.display());
            CliError::new(Code::StateDirectory, sentence)
        })?;
        for (number, part) in (1_u32..).zip(parts) {
            let name = format!("n{number}");
            let listener = bind("127.0.0.1:0", false).await?;
            let address = listener
                .local_addr()
                .map(|address| address.to_string())
                .unwrap_or_default();
            let mut config = mete_agent::config::Config::new(
                vec![self.address.clone()],
                Arc::new(TcpDial::default()),
                home.join(&name),
            );
            config.node_name = Some(name);
            config.part = part;
            config.node_address = address;
            config.run_directory = Some(run_directory.clone());
            let stopped = self.stopped(Stop::All);
            self.parts.spawn(async move {
                let changes = watch::Sender::new(AgentState::default());
                mete_agent::shell::run(config, Some(listener), changes, stopped)
                    .await
                    .map_err(|error| super::agent::from_start(&error))
            });
        }
        Ok(())
    }

    fn spawn_fakes(&mut self, count: u32, unsaid: FakeTask) {
        let dial = Arc::new(PooledDial::for_agents(Arc::new(TcpDial::default()), count));
        for number in 1..=count {
            let agent = FakeAgent {
                node_key: NodeKey(Uuid::new_v4()),
                node_name: format!("f{number:05}"),
                inventory: machine::imagined(number),
                masters: vec![self.address.clone()],
                dial: dial.clone(),
                start_delay: Duration::from_millis(5),
                beacon: Duration::from_secs(3),
                clock: wall_clock,
            };
            let stopped = self.stopped(Stop::All);
            self.parts.spawn(async move {
                let changes = watch::Sender::new(AgentState::default());
                agent.run_playing(unsaid, changes, stopped).await;
                Ok(())
            });
        }
    }

    async fn spawn_batch(&mut self, settings: &Settings) -> Outcome {
        let listener = bind("127.0.0.1:0", false).await?;
        let mut roles = vec!["batch".to_owned()];
        roles.extend(settings.roles.iter().cloned());
        let config = mete_batch::Config::new(vec![self.address.clone()], roles);
        let stopped = self.stopped(Stop::Frameworks);
        let leaving = self.stopped(Stop::Frameworks);
        self.parts.spawn(async move {
            let Err(error) = mete_batch::run(config, listener, stopped).await else {
                return Ok(());
            };
            if error.code() == Some(Code::StaleIncarnation) {
                // Somebody started another one for this cluster: that is no end of the cluster.
                note("another batch framework has taken over from the one of this cluster");
                leaving.await;
                return Ok(());
            }
            Err(super::batch::from_sdk(&error))
        });
        Ok(())
    }

    /// Asks for the status until it is as wanted; a part that fails meanwhile is the answer.
    async fn wait_for(
        &mut self,
        what: &str,
        asking: &Cluster,
        wanted: impl Fn(&GetStatusResponse) -> bool,
    ) -> Outcome<GetStatusResponse> {
        let deadline = tokio::time::Instant::now() + READY;
        loop {
            let began = Instant::now();
            let asked = asking.call(|channel| async move {
                admin(channel).get_status(GetStatusRequest::default()).await
            });
            tokio::select! {
                error = self.failed() => return Err(error),
                answer = asked => {
                    if let Ok(status) = answer
                        && wanted(&status)
                    {
                        return Ok(status);
                    }
                }
            }
            if tokio::time::Instant::now() >= deadline {
                let sentence = format!("waited {}s for {what}", READY.as_secs());
                return Err(CliError::new(Code::TimedOut, sentence)
                    .next("mete dev -v", "see what the parts say"));
            }
            // The master counts all its nodes for an answer: most of its time is for them.
            let pause = began.elapsed().saturating_mul(4).min(LONGEST_PAUSE);
            tokio::time::sleep(pause.max(SHORTEST_PAUSE)).await;
        }
    }
}

fn home(settings: &Settings) -> Outcome<(PathBuf, Option<Home>)> {
    match &settings.state_directory {
        Some(directory) => {
            make_directory(directory)?;
            Ok((directory.clone(), None))
        }
        None => {
            let home = Home::make()?;
            Ok((home.path.clone(), Some(home)))
        }
    }
}

async fn make_roles(cluster: &Cluster, more: &[String]) -> Outcome {
    let roles = ROLES
        .iter()
        .map(|role| (*role).to_owned())
        .chain(more.iter().cloned());
    let (_, known) = cluster.list(Kind::Role, Filter::default()).await?;
    use mete_proto::admin::v1::object::Object as Row;
    for path in roles {
        let there = known
            .iter()
            .any(|object| matches!(&object.object, Some(Row::Role(role)) if role.path == path));
        if there {
            continue;
        }
        let request = SetRoleRequest {
            path,
            weight_milli: None,
            dry_run: false,
        };
        cluster
            .call(|channel| {
                let request = request.clone();
                async move { admin(channel).set_role(request).await }
            })
            .await?;
    }
    Ok(())
}

/// Runs a dev cluster until Ctrl-C.
///
/// # Errors
/// Why a part could not start.
pub async fn run(settings: Settings, headless: bool, ready_json: bool) -> Outcome {
    if let Some(cleared) = leftovers::clear().await
        && !headless
    {
        note(&cleared);
    }
    let mut cluster = DevCluster::start(&settings).await?;
    if ready_json {
        let ready = serde_json::json!({
            "schema": "mete.cli/v1",
            "kind": "DevReady",
            "version": env!("CARGO_PKG_VERSION"),
            "masters": [cluster.address],
            "ready_ms": u64::try_from(cluster.ready_in.as_millis()).unwrap_or(u64::MAX),
            "pid": std::process::id(),
        });
        out(&format!("{ready}\n"))?;
    }
    if !headless {
        banner(&settings, &cluster).await?;
    }
    tokio::select! {
        error = cluster.failed() => return Err(error),
        () = stop_signal() => {}
    }
    cluster.stop().await
}

async fn banner(settings: &Settings, cluster: &DevCluster) -> Outcome {
    let state = match &settings.state_directory {
        Some(directory) => format!("in {}", directory.display()),
        None => "in memory - lost when this stops (keep it: --state-dir DIR)".to_owned(),
    };
    note(&format!(
        "mete {} dev cluster ready in {:.1}s",
        env!("CARGO_PKG_VERSION"),
        cluster.ready_in.as_secs_f64()
    ));
    note(&format!("  masters    1 ({})", cluster.address));
    note(&format!(
        "  agents     {} real (process runtime), {} simulated",
        settings.nodes, settings.fake
    ));
    if settings.fake > 0 {
        note(&format!(
            "             simulated ones run nothing: a task there ends after {} with exit code {}",
            settings.unsaid.run, settings.unsaid.exit_code
        ));
    }
    note(&format!(
        "  frameworks {}",
        if settings.batch { "batch" } else { "none" }
    ));
    note(&format!("  state      {state}"));
    note(&format!("  differs    {}", machine::differences()));
    let context = remember(&cluster.address)?;
    note(&format!("  context    {context}"));
    match tip(settings, cluster).await? {
        Some(tip) => note(&format!("try: {tip}")),
        None => note("no agent runs anything here: mete agent start adds one"),
    }
    Ok(())
}

/// A first command that fits a node: one CPU, or as much as a node has where that is less.
async fn tip(settings: &Settings, cluster: &DevCluster) -> Outcome<Option<String>> {
    use mete_proto::admin::v1::object::Object as Row;
    if settings.nodes == 0 || !settings.batch {
        return Ok(None);
    }
    // All real agents of one cluster have equal parts of the machine.
    let (_, object) = cluster.client(CALL).get(Kind::Node, "n1").await?;
    let total = match object.object {
        Some(Row::Node(node)) => node.total.unwrap_or_default(),
        _ => return Ok(None),
    };
    let cpus = MilliCpu(total.cpu_milli.min(1000));
    Ok(Some(format!("mete run --cpus {cpus} -- echo hello")))
}

/// Writes the context `dev`; it becomes the current one only when there is no other.
fn remember(address: &str) -> Outcome<String> {
    let path = config_path();
    let mut config = ClientConfig::load(&path)?;
    config.contexts.insert(
        "dev".to_owned(),
        Context {
            masters: vec![address.to_owned()],
        },
    );
    let others: Vec<&String> = config
        .contexts
        .keys()
        .filter(|name| *name != "dev")
        .collect();
    let text = match (&config.current, others.is_empty()) {
        (Some(current), _) if current != "dev" => {
            format!("'dev' written; current is '{current}', so say --context dev")
        }
        (Some(_), _) => "'dev' is current".to_owned(),
        (None, true) => {
            config.current = Some("dev".to_owned());
            "'dev' added; current, because no other context exists".to_owned()
        }
        (None, false) => "'dev' written; say --context dev".to_owned(),
    };
    match config.save(&path) {
        Ok(()) => Ok(text),
        // A home that cannot be written must not keep a cluster from standing.
        Err(error) => Ok(format!(
            "not written ({}); say --master {address}",
            error.sentence
        )),
    }
}
