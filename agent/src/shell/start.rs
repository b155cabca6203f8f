//! From a configuration to a running agent: lock, machine, checkpoint, adoption, loop.

use std::collections::BTreeSet;
use std::future::Future;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use mete_model::text::BadText;
use mete_model::{Code, NodeKey};
use mete_proto::internal::v1::CheckpointRun;
use mete_proto::node::v1::node_service_server::NodeServiceServer;
use prost::Message;
use tokio::net::TcpListener;
use tokio::runtime::Handle;
use tokio::sync::{mpsc, watch};
use tokio_stream::wrappers::TcpListenerStream;
use uuid::Uuid;

use super::{NodeHost, groups, home, inventory, sweep};
use crate::checkpoint::{Checkpoint, Recovered};
use crate::config::{Config, check_node_name};
use crate::core::{AgentCore, Found, FoundState, RunKey};
use crate::discover::lock::{DirectoryLock, LockError};
use crate::discover::part::{self, Part, PartClaim, PartError};
use crate::discover::{self, DiscoverError};
use crate::driver::{AgentState, Host, Wiring, drive};
use crate::isolate::{Controller, Isolation, PartLimits};
use crate::link::{Identity, LinkSettings, TurnedAway, link};
use crate::records::{Folded, read_description};
use crate::runtime::contact::ContactFile;
use crate::runtime::process::{ProcessConfig, ProcessRuntime};
use crate::runtime::{self, Runtime, RuntimeError};
use crate::serve::node_api::{NodeApi, routes};

/// Old task directories are looked for this often.
const SWEEP: Duration = Duration::from_secs(600);

/// Messages between loop and link at the most.
const QUEUE: usize = 256;

/// Why an agent could not start, or had to stop.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// No node can have this name.
    #[error("{0}; give this node a name with --name")]
    Name(#[from] BadText),
    /// Another agent uses the state directory.
    #[error(transparent)]
    Locked(#[from] LockError),
    /// The machine's other agents have what this one was given.
    #[error(transparent)]
    Part(#[from] PartError),
    /// The machine cannot be described.
    #[error(transparent)]
    Discover(#[from] DiscoverError),
    /// The runtime cannot work.
    #[error(transparent)]
    Runtime(#[from] RuntimeError),
    /// A file or directory of the agent's own state.
    #[error("{what} {path}: {source}; check that the directory exists and may be written")]
    State {
        /// What was tried.
        what: &'static str,
        /// Where.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: std::io::Error,
    },
    /// The cluster does not take it in.
    #[error(transparent)]
    TurnedAway(#[from] TurnedAway),
    /// The node API.
    #[error("serve the node API: {0}")]
    Serve(#[from] tonic::transport::Error),
}

impl StartError {
    /// The stable code.
    #[must_use]
    pub fn code(&self) -> Code {
        match self {
            Self::Name(_) => Code::Usage,
            Self::TurnedAway(refused) => refused.code,
            Self::Locked(LockError::Held { .. }) => Code::StateLocked,
            Self::Locked(LockError::Io { .. }) | Self::State { .. } => Code::StateDirectory,
            Self::Part(_) => Code::PartTaken,
            Self::Discover(_) | Self::Runtime(_) => Code::File,
            Self::Serve(_) => Code::AddressInUse,
        }
    }
}

fn state(what: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> StartError {
    let path = path.to_owned();
    move |source| StartError::State { what, path, source }
}

/// What one agent has to itself for as long as it runs.
struct Place {
    /// The state directory.
    home: PathBuf,
    /// The node's name.
    name: String,
    machine: discover::Inventory,
    /// Where this agent keeps the records of its runs.
    runs: PathBuf,
    // Given back in this order: the part, then the directory.
    _part: PartClaim,
    _lock: DirectoryLock,
}

impl Place {
    fn take(config: &Config) -> Result<Self, StartError> {
        let home = config.state_directory.clone();
        if let Some(name) = &config.node_name {
            check_node_name(name)?;
        }
        std::fs::create_dir_all(&home).map_err(state("make the state directory", &home))?;
        home::check(&home).map_err(state("use the state directory", &home))?;
        let lock = DirectoryLock::take(&home, "mete agent")?;
        let machine = discover::discover(&config.roots, &home)?;
        let name = config.node_name.clone();
        let name = name.unwrap_or_else(|| machine.hostname.clone());
        check_node_name(&name)?;
        let shared = config.run_directory.clone();
        let shared = shared.unwrap_or_else(part::runtime_directory);
        let part = part::claim(&shared, &name, &config.part, &machine)?;
        // After the claim, which has made sure that the name is one of a directory. A place that
        // was chosen is kept to.
        let runs = if config.run_directory.is_some() {
            part::run_directory(&shared, &name)
        } else {
            part::run_directory_in_memory(&shared, &name)
        };
        Ok(Self {
            home,
            name,
            machine,
            runs,
            _part: part,
            _lock: lock,
        })
    }

    /// The checkpoint, and what an earlier life of this agent wrote into it.
    fn remembered(&self) -> Result<(Checkpoint, Recovered, Folded), StartError> {
        // The file's identity is the node's: made at the first start, kept for ever.
        let boot = Uuid::try_parse(&self.machine.boot_id).unwrap_or_default();
        let (checkpoint, recovered) = Checkpoint::open(&self.home, boot, Uuid::new_v4())
            .map_err(state("open the checkpoint in", &self.home))?;
        let folded = Folded::of(&recovered.records);
        for damage in recovered.damage.iter().chain(&folded.damage) {
            tracing::warn!(
                %damage,
                "the checkpoint is not whole; what it lacks is found by adoption"
            );
        }
        Ok((checkpoint, recovered, folded))
    }
}

/// Longest time for what never started to leave no trace.
const TRACES_GONE: Duration = Duration::from_secs(5);

/// The runs that the runtime knows to be here, in the core's words.
///
/// What was made ready and never started is removed first: a run that is recorded is then made
/// ready anew, and must not meet its own old directory.
async fn found_here(runtime: Arc<dyn Runtime>, home: &Path) -> Result<Vec<Found>, StartError> {
    let mut found = list(&runtime, home).await?;
    for run in found.iter().filter(|run| never_started(run)) {
        runtime.forget(&run.run);
    }
    let deadline = tokio::time::Instant::now() + TRACES_GONE;
    while found.iter().any(never_started) && tokio::time::Instant::now() < deadline {
        tokio::time::sleep(Duration::from_millis(5)).await;
        found = list(&runtime, home).await?;
    }
    Ok(found.into_iter().filter_map(read_found).collect())
}

fn never_started(run: &runtime::FoundRun) -> bool {
    matches!(run.state, runtime::FoundState::NeverStarted)
}

async fn list(
    runtime: &Arc<dyn Runtime>,
    home: &Path,
) -> Result<Vec<runtime::FoundRun>, StartError> {
    let runtime = Arc::clone(runtime);
    let listed = tokio::task::spawn_blocking(move || runtime.list()).await;
    Ok(listed.map_err(|error| state("list runs in", home)(std::io::Error::other(error)))??)
}

async fn serve(
    listener: Option<TcpListener>,
    api: NodeServiceServer<NodeApi>,
) -> Result<(), tonic::transport::Error> {
    match listener {
        Some(listener) => {
            tonic::transport::Server::builder()
                .add_routes(routes(api))
                .serve_with_incoming(TcpListenerStream::new(listener))
                .await
        }
        None => {
            // Kept, so that the loop's queue of questions stays open.
            let _api = api;
            std::future::pending().await
        }
    }
}

/// Runs a real agent until `shutdown`. Tasks are left alone.
///
/// `listener` is where the node API is served; `changes` is told of every change of state.
///
/// # Errors
/// [`StartError`]: what was tried, the facts, what to do. After the start only a lost checkpoint
/// ends it.
pub async fn run(
    config: Config,
    listener: Option<TcpListener>,
    changes: watch::Sender<AgentState>,
    shutdown: impl Future<Output = ()> + Send,
) -> Result<(), StartError> {
    let place = Place::take(&config)?;
    let (checkpoint, recovered, folded) = place.remembered()?;
    let isolation = Arc::new(isolation(&config, &place.name, recovered.agent_id));
    let inventory = inventory::describe(&config, &place.machine, &isolation.enforcement());

    let cpusets = isolation.serves(Controller::Cpuset).is_some();
    let (processes, events) = process_runtime(&config, &place, Arc::clone(&isolation))?;
    let runtime: Arc<dyn Runtime> = Arc::new(processes.clone());
    let found = found_here(Arc::clone(&runtime), &place.home).await?;

    let mut core = AgentCore::new(inventory);
    let recorded = folded.runs();
    let known = names(recorded.iter().map(|run| &run.start.key));
    let (runs, traces, rebooted) = (recorded.len(), found.len(), recovered.rebooted);
    tracing::info!(node = %place.name, recorded = runs, found = traces, rebooted, "agent starting");
    let home = place.home.clone();
    let host = NodeHost::new(
        checkpoint,
        folded,
        runtime,
        events,
        home.clone(),
        cpusets,
        ContactFile::below(&place.runs, place.machine.boot_id.clone()),
    );
    let first = core.restore(recorded, found, recovered.rebooted, host.now());

    let registered = changes.subscribe();
    let (to_link, from_driver) = mpsc::channel(QUEUE);
    let (to_driver, from_link) = mpsc::channel(QUEUE);
    let (asker, questions) = mpsc::channel(QUEUE);
    let wiring = Wiring {
        from_link,
        to_link,
        state: changes,
        questions,
    };
    let linking = link(
        identity(recovered.agent_id, &place, !known.is_empty()),
        LinkSettings::new(config.masters.clone(), Arc::clone(&config.dial)),
        to_driver,
        from_driver,
    );
    let api = NodeApi::new(home.clone(), place.name.clone(), asker);
    let sweeping = sweep_for_ever(home.clone(), config.keep_tasks, known);
    let result = tokio::select! {
        result = drive(core, host, first, wiring, config.beacon, shutdown) => {
            result.map_err(state("write the checkpoint in", &home))
        }
        result = serve(listener, api) => result.map_err(StartError::from),
        linked = linking => linked.map_err(StartError::from),
        () = home::note_registered(home.clone(), registered) => Ok(()),
        () = sweeping => Ok(()),
    };
    // Tasks are left alone, and with them the groups that they are in.
    if processes.watched() == 0 {
        groups::leave(&isolation).await;
    }
    result
}

/// Who the agent is; one that has runs was registered, whatever else it remembers.
fn identity(agent: Uuid, place: &Place, has_runs: bool) -> Identity {
    Identity {
        node_key: NodeKey(agent),
        node_name: place.name.clone(),
        registered: has_runs || home::was_registered(&place.home),
    }
}

/// The names that runs have in the state directory.
fn names<'a>(keys: impl Iterator<Item = &'a RunKey>) -> BTreeSet<String> {
    keys.map(|key| super::run_name(key).as_str().to_owned())
        .collect()
}

fn isolation(config: &Config, node: &str, agent: Uuid) -> Isolation {
    let (chosen, name) = (config.cgroup_root.as_deref(), groups::name(node, agent));
    Isolation::probe(&config.roots.procfs, chosen, &name, limits(&config.part))
}

/// A part of the machine as limits of the agent's own cgroup.
fn limits(part: &Part) -> PartLimits {
    match part {
        Part::Whole => PartLimits::default(),
        Part::Share {
            cpu_milli,
            memory_bytes,
        } => PartLimits {
            cpu_milli: Some(*cpu_milli),
            cores: Vec::new(),
            memory_bytes: Some(*memory_bytes),
        },
        Part::Set { cpus, memory_bytes } => PartLimits {
            cpu_milli: None,
            cores: cpus.iter().copied().collect(),
            memory_bytes: Some(*memory_bytes),
        },
    }
}

fn process_runtime(
    config: &Config,
    place: &Place,
    isolation: Arc<Isolation>,
) -> Result<(ProcessRuntime, runtime::Events), RuntimeError> {
    let mut settings = ProcessConfig::new(place.runs.clone(), place.machine.boot_id.clone());
    settings.procfs.clone_from(&config.roots.procfs);
    if let Some((program, arguments)) = &config.shim {
        settings.shim_program.clone_from(program);
        settings.shim_arguments.clone_from(arguments);
    }
    ProcessRuntime::new(settings, isolation, Handle::current())
}

/// A found run in the core's words; one that does not say what it is stays where it is.
fn read_found(found: runtime::FoundRun) -> Option<Found> {
    let described = CheckpointRun::decode(found.reference.as_slice())
        .map_err(|error| error.to_string())
        .and_then(|run| read_description(run).map_err(|faults| faults.to_string()));
    let start = match described {
        Ok(start) => start,
        Err(why) => {
            tracing::warn!(
                run = found.run.as_str(),
                why,
                "a run here does not say whose it is"
            );
            return None;
        }
    };
    let state = match found.state {
        runtime::FoundState::NeverStarted => FoundState::NeverStarted,
        runtime::FoundState::Alive
        | runtime::FoundState::Ended(_)
        | runtime::FoundState::Lost(_) => FoundState::Adoptable,
    };
    Some(Found {
        key: start.key.clone(),
        start: Some(start),
        state,
    })
}

async fn sweep_for_ever(home: PathBuf, keep: mete_model::Span, known: BTreeSet<String>) {
    let mut ticks = tokio::time::interval(SWEEP);
    loop {
        ticks.tick().await;
        let (home, known) = (home.clone(), known.clone());
        let swept = tokio::task::spawn_blocking(move || sweep::sweep(&home, keep, &known)).await;
        if let Ok(removed @ 1..) = swept {
            tracing::info!(removed, "removed old task directories");
        }
    }
}
