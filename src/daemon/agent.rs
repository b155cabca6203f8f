//! `mete agent`: one node.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use mete_agent::config::Config;
use mete_agent::discover::part::Part;
use mete_agent::driver::AgentState;
use mete_agent::shell::StartError;
use mete_model::Device;
use mete_proto::dial::TcpDial;
use tokio::sync::watch;

use super::{announced, bind, stop_signal};
use crate::cli::support::error::{CliError, Outcome};
use crate::cli::support::print::note;

/// What an agent is told.
#[derive(Clone, Debug)]
pub struct Settings {
    /// `host:port` of the masters.
    pub masters: Vec<String>,
    /// Checkpoint, task directories, logs.
    pub state_directory: PathBuf,
    /// Unique in the cluster; `None` = the host's name.
    pub name: Option<String>,
    /// Where the node API listens.
    pub listen: String,
    /// What of the machine is this agent's.
    pub part: Part,
    /// Labels of the node.
    pub labels: BTreeMap<String, String>,
    /// Devices that are simply there.
    pub devices: Vec<Device>,
    /// A path inside every cgroup hierarchy.
    pub cgroup_root: Option<String>,
    /// Records of runs.
    pub run_directory: Option<PathBuf>,
    /// Permits addresses that are not loopback.
    pub insecure: bool,
}

/// Runs an agent until it is told to stop; its tasks go on.
///
/// # Errors
/// Why it cannot start: code, facts, what to do.
pub async fn start(settings: Settings) -> Outcome {
    let listener = bind(&settings.listen, settings.insecure).await?;
    let address = listener
        .local_addr()
        .map(|address| address.to_string())
        .unwrap_or_default();
    let dial = Arc::new(TcpDial::default());
    let mut config = Config::new(settings.masters, dial, settings.state_directory);
    config.node_name = settings.name;
    config.part = settings.part;
    config.labels = settings.labels;
    config.devices = settings.devices;
    config.cgroup_root = settings.cgroup_root;
    config.run_directory = settings.run_directory;
    config.node_address.clone_from(&address);
    let changes = watch::Sender::new(AgentState::default());
    let mut linked = changes.subscribe();
    let telling = async move {
        if let Ok(state) = linked.wait_for(|state| state.linked).await {
            let id = state
                .agent
                .map(|agent| agent.to_string())
                .unwrap_or_default();
            note(&format!("agent {id} is registered"));
        }
        std::future::pending::<()>().await;
    };
    let running = Box::pin(async {
        tokio::select! {
            result = mete_agent::shell::run(config, Some(listener), changes, stop_signal()) => {
                result.map_err(|error| from_start(&error))
            }
            () = telling => Ok(()),
        }
    });
    let text = format!("agent serves its node API on {address}");
    announced(&address, text, running).await
}

/// An agent's refusal to start, in the command line's shape.
#[must_use]
pub fn from_start(error: &StartError) -> CliError {
    let text = error.to_string();
    match text.split_once("; ") {
        Some((facts, advice)) => CliError::new(error.code(), facts).fact(advice),
        None => CliError::new(error.code(), text),
    }
}
