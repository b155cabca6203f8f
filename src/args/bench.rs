//! Measurements.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};

/// `bench …`.
#[derive(Clone, Debug, Subcommand)]
pub enum Bench {
    /// Committed launches per second through a master, with fake agents
    Launches(Launches),
    /// Rounds of the allocator alone, full and after one change
    Allocator(Allocator),
    /// Small durable writes through three masters, beside etcd
    Commit(Commit),
    /// The leading master killed under load: how long until tasks start again, and what is lost
    Failover(Failover),
    /// The leading master killed with many agents and tasks: how long until all have been heard of
    Recover(Recover),
    /// Records written over and over, tasks that come and go: whether disk and memory stay bounded
    Churn(Churn),
    /// Starts of real tasks on this machine, beside a bare fork and exec
    Node(Node),
    /// A real cluster's nodes and tasks through master, allocator and SDK in virtual time
    Replay(Replay),
    /// How long a snapshot of a large state stops the loop, beside a whole copy
    Snapshot(Snapshot),
}

/// `bench launches`.
#[derive(Clone, Debug, Args)]
pub struct Launches {
    /// Fake agents
    #[arg(long, value_name = "N", default_value_t = 1_000)]
    pub agents: u32,
    /// Tasks to launch
    #[arg(long, value_name = "N", default_value_t = 10_000)]
    pub tasks: u64,
    /// Masters
    #[arg(long = "masters", value_name = "N", default_value_t = 1)]
    pub master_count: u32,
}

/// `bench allocator`.
#[derive(Clone, Debug, Args)]
pub struct Allocator {
    /// Agents
    #[arg(long, value_name = "N", default_value_t = 10_000)]
    pub agents: u32,
    /// Roles
    #[arg(long, value_name = "N", default_value_t = 100)]
    pub roles: u32,
    /// Frameworks
    #[arg(long, value_name = "N", default_value_t = 100)]
    pub frameworks: u32,
    /// Rounds that are timed
    #[arg(long, value_name = "N", default_value_t = 10)]
    pub rounds: u32,
}

/// `bench snapshot`.
#[derive(Clone, Debug, Args)]
pub struct Snapshot {
    /// Running tasks in the state
    #[arg(long, value_name = "N", default_value_t = 1_000_000)]
    pub tasks: u32,
}

/// `bench commit`.
#[derive(Clone, Debug, Args)]
pub struct Commit {
    /// Writes under way at once
    #[arg(long, value_name = "N", default_value_t = 64)]
    pub clients: u32,
    /// How long one round writes
    #[arg(long, value_name = "N", default_value_t = 3)]
    pub seconds: u64,
    /// Rounds of each, alternating
    #[arg(long, value_name = "N", default_value_t = 5)]
    pub rounds: u32,
}

/// `bench failover`.
#[derive(Clone, Debug, Args)]
pub struct Failover {
    /// Leaders killed, one after another
    #[arg(long, value_name = "N", default_value_t = 20)]
    pub rounds: u32,
    /// Masters
    #[arg(long = "masters", value_name = "N", default_value_t = 3)]
    pub master_count: u32,
    /// Simulated agents
    #[arg(long, value_name = "N", default_value_t = 100)]
    pub agents: u32,
}

/// `bench recover`.
#[derive(Clone, Debug, Args)]
pub struct Recover {
    /// Simulated agents
    #[arg(long, value_name = "N", default_value_t = 1_000)]
    pub agents: u32,
    /// Tasks that run on them
    #[arg(long, value_name = "N", default_value_t = 10_000)]
    pub tasks: u32,
    /// Masters
    #[arg(long = "masters", value_name = "N", default_value_t = 3)]
    pub master_count: u32,
}

/// `bench churn`.
#[derive(Clone, Debug, Args)]
pub struct Churn {
    /// Records written, at least
    #[arg(long, value_name = "N", default_value_t = 100_000)]
    pub writes: u64,
    /// Writes under way at once
    #[arg(long, value_name = "N", default_value_t = 256)]
    pub clients: u32,
    /// Masters
    #[arg(long = "masters", value_name = "N", default_value_t = 1)]
    pub master_count: u32,
}

/// `bench node`.
#[derive(Clone, Debug, Args)]
pub struct Node {
    /// Starts one after another
    #[arg(long, value_name = "N", default_value_t = 200)]
    pub starts: u32,
    /// Starts at once
    #[arg(long = "at-once", value_name = "N", default_value_t = 100)]
    pub at_once: u32,
}

/// How tasks come and go in a replay.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ReplayMode {
    /// All of them in the order of the file; none ends
    Fill,
    /// Arrivals and departures, on a sample of the nodes
    Live,
}

/// `bench replay`.
#[derive(Clone, Debug, Args)]
pub struct Replay {
    /// Table of nodes
    #[arg(long, value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    pub nodes: PathBuf,
    /// Table of tasks
    #[arg(long, value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    pub pods: PathBuf,
    /// How tasks come and go
    #[arg(long, value_name = "MODE", value_enum, default_value_t = ReplayMode::Fill)]
    pub mode: ReplayMode,
    /// GPUs of the sample in mode live
    #[arg(long, value_name = "N")]
    pub sample: Option<u32>,
    /// Chooses the sample
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
}
