//! What runs long: `dev`, `demo`, `master`, `agent`, `service start`, `batch start`.

use std::path::PathBuf;

use clap::ValueHint::DirPath;
use clap::{Args, Subcommand};
use mete_model::{Bytes, Keep, MilliCpu, Span};

use super::values::{self, Share};

/// `dev`.
#[derive(Clone, Debug, Args)]
pub struct Dev {
    /// Agents that run real processes; the machine is divided among them
    #[arg(
        long,
        value_name = "N",
        default_value_t = 1,
        value_parser = clap::value_parser!(u32).range(0..=64)
    )]
    pub nodes: u32,
    /// Agents that only pretend, for trying large clusters
    #[arg(
        long,
        value_name = "N",
        default_value_t = 0,
        value_parser = clap::value_parser!(u32).range(0..=100_000)
    )]
    pub fake: u32,
    /// Keep all state here; without it everything is gone when this stops
    #[arg(long, value_name = "DIR", value_parser = values::directory, value_hint = DirPath)]
    pub state_dir: Option<PathBuf>,
    /// Where the master listens; port 0 takes any free one
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:7443")]
    pub listen: String,
    /// Permit addresses that are not loopback, although nothing is encrypted yet
    #[arg(long)]
    pub insecure: bool,
    /// Print nothing for people and leave the contexts alone
    #[arg(long)]
    pub headless: bool,
    /// Print one line of JSON on stdout once the cluster is ready
    #[arg(long)]
    pub ready_json: bool,
    /// A role that the batch framework serves; may be repeated, the first is the default
    #[arg(long = "role", value_name = "NAME")]
    pub roles: Vec<String>,
}

/// `demo`.
#[derive(Clone, Debug, Args)]
pub struct Demo {
    /// How long the frameworks share and compete
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub seconds: Option<u64>,
    /// Agents that run real processes; the machine is divided among them
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=64))]
    pub nodes: Option<u32>,
    /// Keep all state here
    #[arg(long, value_name = "DIR", value_parser = values::directory, value_hint = DirPath)]
    pub state_dir: Option<PathBuf>,
}

/// `master …`.
#[derive(Clone, Debug, Subcommand)]
pub enum Master {
    /// Found a cluster in an empty directory, or join one
    Init(MasterInit),
    /// Run a master until it is told to stop
    Start(MasterFlags),
}

/// `master init`.
#[derive(Clone, Debug, Args)]
#[command(after_help = "\
One master:
  mete master init --state-dir DIR
Three masters, each on its machine; the first prints the cluster's ID:
  mete master init --state-dir DIR --masters A,B,C --node 1
  mete master init --state-dir DIR --masters A,B,C --node 2 --cluster ID
  mete master init --state-dir DIR --masters A,B,C --node 3 --cluster ID
One more master for a running cluster:
  mete master init --state-dir DIR --join A --advertise D")]
pub struct MasterInit {
    /// Where its log and snapshots shall live
    #[arg(long, value_name = "DIR", value_parser = values::directory, value_hint = DirPath)]
    pub state_dir: PathBuf,
    /// Where all founders will listen, in the order of their numbers
    #[arg(
        long = "masters",
        value_name = "HOST:PORT,…",
        value_delimiter = ',',
        value_parser = values::host_port,
        conflicts_with = "join"
    )]
    pub founders: Vec<String>,
    /// The number of this master
    #[arg(long, value_name = "N", value_parser = values::master, conflicts_with = "join")]
    pub node: Option<u64>,
    /// The id of the cluster, as the first founder or `admin member add` has printed it
    #[arg(long, value_name = "ID", conflicts_with = "join", value_parser = values::cluster)]
    pub cluster: Option<uuid::Uuid>,
    /// A master of the cluster to join; it is asked to take this one in
    #[arg(long, value_name = "HOST:PORT", value_parser = values::host_port, requires = "advertise")]
    pub join: Option<String>,
    /// Where this master will be dialled by the others
    #[arg(long, value_name = "HOST:PORT", value_parser = values::host_port)]
    pub advertise: Option<String>,
    /// Join without a vote
    #[arg(long, requires = "join")]
    pub learner: bool,
    /// The master whose place this one takes
    #[arg(long, value_name = "MASTER", value_parser = values::master, requires = "join")]
    pub replaces: Option<u64>,
}

/// Flags of a master.
#[derive(Clone, Debug, Args)]
pub struct MasterFlags {
    /// Where its log and snapshots live
    #[arg(long, value_name = "DIR", value_parser = values::directory, value_hint = DirPath)]
    pub state_dir: PathBuf,
    /// Where it listens; port 0 takes any free one
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:7443")]
    pub listen: String,
    /// What clients are told to dial, if that is another address
    #[arg(long, value_name = "HOST:PORT", value_parser = values::host_port)]
    pub advertise: Option<String>,
    /// Streams of agents admitted per second; the others are told when to come again
    #[arg(long, value_name = "N", default_value_t = 20_000,
          value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    pub admissions_per_second: u64,
    /// Permit addresses that are not loopback, although nothing is encrypted yet
    #[arg(long)]
    pub insecure: bool,
}

/// `agent …`.
#[derive(Clone, Debug, Subcommand)]
pub enum Agent {
    /// Run an agent until it is told to stop; its tasks go on
    Start(AgentStart),
    /// Try everything an agent needs on this host
    Check(AgentFlags),
    /// What an agent holds: grants and runs
    Show(AgentShow),
}

/// `agent start`.
#[derive(Clone, Debug, Args)]
pub struct AgentStart {
    /// The node.
    #[command(flatten)]
    pub agent: AgentFlags,
    /// Where the node API listens; port 0 takes any free one
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:7444")]
    pub listen: String,
}

/// Flags of `agent start` and `agent check`.
#[derive(Clone, Debug, Args)]
pub struct AgentFlags {
    /// Checkpoint, task directories and logs; made when it is missing
    #[arg(long, value_name = "DIR", value_parser = values::directory, value_hint = DirPath)]
    pub state_dir: PathBuf,
    /// Name of the node, unique in the cluster; without it the host's name
    #[arg(long, value_name = "NAME", value_parser = values::node_name)]
    pub name: Option<String>,
    /// Only this part of the machine, so that several agents divide it
    #[arg(
        long,
        value_name = "CPUS,MEMORY",
        value_parser = values::share,
        conflicts_with_all = ["cpus", "memory"]
    )]
    pub share: Option<Share>,
    /// Only these logical CPUs of the machine, such as 2-3
    #[arg(long, value_name = "SET", requires = "memory")]
    pub cpus: Option<String>,
    /// Memory that goes with --cpus
    #[arg(long, value_name = "SIZE", requires = "cpus", value_parser = values::bytes)]
    pub memory: Option<Bytes>,
    /// A label of the node; may be repeated
    #[arg(long = "label", value_name = "NAME=VALUE", value_parser = values::key_value)]
    pub labels: Vec<(String, String)>,
    /// A device that the node has; may be repeated
    #[arg(long = "device", value_name = "CLASS=ID", value_parser = values::device_id)]
    pub devices: Vec<(String, String)>,
    /// A path inside every cgroup hierarchy, below which tasks run
    #[arg(long, value_name = "PATH")]
    pub cgroup_root: Option<String>,
    /// Records of runs; must not outlive a boot
    #[arg(long, value_name = "DIR", value_parser = values::directory, value_hint = DirPath)]
    pub run_dir: Option<PathBuf>,
    /// Permit addresses that are not loopback, although nothing is encrypted yet
    #[arg(long)]
    pub insecure: bool,
}

/// `agent show`.
#[derive(Clone, Debug, Args)]
pub struct AgentShow {
    /// The node; without it the agent at --address
    #[arg(
        value_name = "NODE",
        conflicts_with = "address",
        add = crate::cli::support::names::nodes()
    )]
    pub node: Option<String>,
    /// The node API of the agent
    #[arg(
        long,
        value_name = "HOST:PORT",
        default_value = "127.0.0.1:7444",
        value_parser = values::host_port
    )]
    pub address: String,
}

/// `service …`.
#[derive(Clone, Debug, Subcommand)]
pub enum Service {
    /// Keep N tasks of a command running until this is told to stop; the tasks go on
    Start(ServiceStart),
}

/// `service start`.
#[derive(Clone, Debug, Args)]
pub struct ServiceStart {
    /// Name of the framework and of its tasks
    #[arg(long, value_name = "NAME", default_value = "service")]
    pub name: String,
    /// Who is charged
    #[arg(long, value_name = "NAME", default_value = "service")]
    pub role: String,
    /// How many tasks
    #[arg(long, value_name = "N", default_value_t = 1,
          value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub count: u32,
    /// CPUs of each task, such as 2, 0.5 or 500m
    #[arg(long, value_name = "CPUS", default_value = "0.5")]
    pub cpus: MilliCpu,
    /// Memory of each task
    #[arg(long, value_name = "SIZE", default_value = "64MiB", value_parser = values::bytes)]
    pub memory: Bytes,
    /// Start a task anew elsewhere when its node has been unreachable for so long; otherwise not
    /// before the node is back or gone
    #[arg(long, value_name = "TIME")]
    pub replace_after: Option<Span>,
    /// Which task stays when a replaced one comes back: newest or oldest
    #[arg(long, value_name = "WHICH", default_value = "newest")]
    pub keep: Keep,
    /// End a task when its node has not heard from a master for so long, also while the agent is
    /// down; at most --replace-after
    #[arg(long, value_name = "TIME")]
    pub stop_if_silent: Option<Span>,
    /// The command, after `--`
    #[arg(last = true, required = true, value_name = "CMD")]
    pub command: Vec<String>,
}

/// `batch start`.
#[derive(Clone, Debug, Args)]
pub struct BatchStart {
    /// A role that is served; may be repeated, the first is the default of a job
    #[arg(long = "role", value_name = "NAME", default_value = "batch")]
    pub roles: Vec<String>,
    /// Where its API listens; port 0 takes any free one
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:0")]
    pub listen: String,
    /// Name of the framework
    #[arg(long, value_name = "NAME", default_value = "batch")]
    pub name: String,
    /// Permit addresses that are not loopback, although nothing is encrypted yet
    #[arg(long)]
    pub insecure: bool,
}
