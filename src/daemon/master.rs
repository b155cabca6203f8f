//! `mete master`: one master process, and how its directory comes to be.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::Duration;

use mete_broker::config::{Config, Storage};
use mete_broker::error::RunError;
use mete_broker::server::Listeners;
use mete_model::Code;
use mete_proto::admin::v1::AddMasterRequest;
use uuid::Uuid;

use super::{announced, bind, stop_signal};
use crate::cli::support::client::{Cluster, admin};
use crate::cli::support::error::{CliError, Outcome};
use crate::cli::support::print::{Style, note, print_one};

/// How long a cluster is asked to take a master in.
const JOIN_TIMEOUT: Duration = Duration::from_secs(10);

/// What a master is told.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Where its log and snapshots live.
    pub state_directory: PathBuf,
    /// `host:port`.
    pub listen: String,
    /// What clients are told to dial; empty = the listener's address.
    pub advertise: String,
    /// Permits addresses that are not loopback.
    pub insecure: bool,
    /// Streams of agents admitted per second.
    pub admissions_per_second: u64,
}

/// How a master's directory comes to be.
#[derive(Clone, Debug)]
pub enum Beginning {
    /// A cluster of one.
    Alone,
    /// One of several that found a cluster together.
    Founder {
        /// Where all of them will listen, in the order of their numbers.
        masters: Vec<String>,
        /// Which of them this one is, counted from 1.
        node: u64,
        /// The cluster's id, if another one has made it already.
        cluster: Option<Uuid>,
    },
    /// One that was taken in before.
    TakenIn {
        /// The number it was given.
        node: u64,
        /// The cluster's id.
        cluster: Uuid,
    },
    /// One that asks to be taken in.
    Joins {
        /// A master of the cluster.
        at: String,
        /// Where the others will dial this one.
        advertise: String,
        /// Without a vote.
        learner: bool,
        /// A master whose place it takes.
        replaces: Option<u64>,
    },
}

/// Founds a cluster in an empty directory, or prepares the directory of a master that joins one.
///
/// # Errors
/// `STATE_DIRECTORY` when something is there already; what the cluster says to one that joins.
pub async fn init(directory: &Path, beginning: Beginning, style: &Style) -> Outcome {
    super::make_directory(directory)?;
    let shown = directory.display().to_string();
    let begun = match beginning {
        Beginning::Alone => {
            let mut config = config_of(directory);
            config.founders = vec![1];
            let cluster = found(&config, None)?;
            let text = format!("a cluster of one master is founded in {shown}");
            (1, cluster, text, Vec::new())
        }
        Beginning::Founder {
            masters,
            node,
            cluster,
        } => found_together(directory, &masters, node, cluster)?,
        Beginning::TakenIn { node, cluster } => {
            prepare(directory, cluster, node)?;
            let text = format!("{shown} is ready for master m{node}");
            (node, cluster, text, Vec::new())
        }
        Beginning::Joins {
            at,
            advertise,
            learner,
            replaces,
        } => {
            let request = AddMasterRequest {
                address: advertise.clone(),
                learner,
                replaces: replaces.unwrap_or(0),
                dry_run: false,
            };
            let (node, cluster) = take_in(&at, request).await?;
            prepare(directory, cluster, node)?;
            let text = format!("{shown} is ready for master m{node} at {advertise}");
            (node, cluster, text, Vec::new())
        }
    };
    let (node, cluster, text, notes) = begun;
    let item = serde_json::json!({
        "name": shown,
        "id": node,
        "cluster_id": cluster.to_string(),
    });
    print_one(style, "MasterFounded", None, item, &text)?;
    for line in notes {
        note(&line);
    }
    note(&format!("next: mete master start --state-dir {shown}"));
    Ok(())
}

type Begun = (u64, Uuid, String, Vec<String>);

fn found_together(
    directory: &Path,
    masters: &[String],
    node: u64,
    cluster: Option<Uuid>,
) -> Outcome<Begun> {
    let addresses: BTreeMap<u64, String> = (1..).zip(masters.iter().cloned()).collect();
    let distinct: BTreeSet<&String> = masters.iter().collect();
    if distinct.len() != masters.len() {
        let sentence = "--masters names an address twice; each master listens at its own";
        return Err(CliError::new(Code::Usage, sentence));
    }
    if !addresses.contains_key(&node) {
        let count = masters.len();
        let sentence = format!("--node is {node}, but --masters names {count}: 1 to {count}");
        return Err(CliError::new(Code::Usage, sentence));
    }
    let mut config = config_of(directory);
    config.node = node;
    config.founders = addresses.keys().copied().collect();
    config.masters = addresses;
    let is_first = cluster.is_none();
    let cluster = found(&config, cluster)?;
    let count = masters.len();
    let text = format!("master m{node} of {count} of cluster {cluster} is founded");
    let mut notes = Vec::new();
    if is_first {
        let all = masters.join(",");
        for other in config.founders.iter().filter(|other| **other != node) {
            notes.push(format!(
                "on the machine of m{other}: mete master init --state-dir DIR --masters {all} \
                 --node {other} --cluster {cluster}"
            ));
        }
    }
    Ok((node, cluster, text, notes))
}

fn found(config: &Config, cluster: Option<Uuid>) -> Outcome<Uuid> {
    mete_broker::server::found(config, cluster).map_err(|error| from_run(&error))
}

fn prepare(directory: &Path, cluster: Uuid, node: u64) -> Outcome {
    mete_broker::server::join(directory, cluster, node).map_err(|error| from_run(&error))
}

/// Asks a running cluster to take this master in; gives its number and the cluster's id.
async fn take_in(at: &str, request: AddMasterRequest) -> Outcome<(u64, Uuid)> {
    let cluster = Cluster::new(vec![at.to_owned()], JOIN_TIMEOUT);
    let call = |channel| {
        let request = request.clone();
        async move { admin(channel).add_master(request).await }
    };
    let answer = cluster.call(call).await?;
    let id = answer.cluster_id.parse().map_err(|_| {
        let sentence = format!("'{}' is no id of a cluster", answer.cluster_id);
        CliError::new(Code::Internal, sentence)
    })?;
    Ok((answer.id, id))
}

/// Runs a master until it is told to stop.
///
/// # Errors
/// Why it cannot start: code, facts, what to do.
pub async fn start(settings: Settings) -> Outcome {
    let listener = bind(&settings.listen, settings.insecure).await?;
    let address = listener
        .local_addr()
        .map(|address| address.to_string())
        .unwrap_or_default();
    let listeners = Listeners {
        grpc: vec![listener],
    };
    let running = Box::pin(async {
        mete_broker::server::run(config(&settings), listeners, stop_signal())
            .await
            .map_err(|error| from_run(&error))
    });
    announced(&address, format!("master listens on {address}"), running).await
}

fn config(settings: &Settings) -> Config {
    let mut config = config_of(&settings.state_directory);
    config.advertise.clone_from(&settings.advertise);
    config.insecure = settings.insecure;
    config.timing.admissions_per_second = settings.admissions_per_second;
    config
}

/// A master that was founded before, or joins: its store says who it is.
fn config_of(directory: &Path) -> Config {
    let mut config = Config::single(Storage::Directory {
        path: directory.to_owned(),
        found: false,
    });
    config.founders = Vec::new();
    config
}

/// A broker's refusal to start, in the command line's shape.
#[must_use]
pub fn from_run(error: &RunError) -> CliError {
    let mut shown = CliError::new(error.code, error.detail.clone());
    let mut cause = std::error::Error::source(error);
    while let Some(below) = cause {
        shown.cause = below.to_string();
        cause = below.source();
    }
    shown.fact(error.next.clone())
}
