//! What is listed, explained and changed.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use mete_model::Span;

use super::batch::Reading;
use super::values::{self, Since};
use crate::cli::support::names;

/// What a `why` is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Subject {
    /// A job of the batch framework
    Job,
    /// A task
    Task,
    /// A framework
    Framework,
    /// A node
    Node,
    /// A role
    Role,
    /// A claim, as FRAMEWORK/CLAIM
    Claim,
}

/// `why`.
#[derive(Clone, Debug, Args)]
pub struct Why {
    /// What kind of thing
    #[arg(value_name = "KIND", value_enum)]
    pub subject: Subject,
    /// Its name, or a unique prefix
    #[arg(value_name = "NAME", add = names::anything())]
    pub name: String,
    /// Of a job, task or claim: all nodes, grouped by why they do not serve
    #[arg(long)]
    pub nodes: bool,
}

/// `top`.
#[derive(Clone, Debug, Default, Args)]
#[command(after_help = "\
Keys: n nodes, q roles, j what waits, arrows choose, w why, / filter, ? help, x leaves.")]
pub struct Top {
    /// One plain frame, as in a pipe
    #[arg(long)]
    pub once: bool,
}

/// `events`.
#[derive(Clone, Debug, Args)]
pub struct Events {
    /// Go on with what happens from now on
    #[arg(short, long)]
    pub follow: bool,
    /// After this revision, or not older than this, such as 5m; without it 1h, with -f from now
    #[arg(long, value_name = "REV|SPAN", value_parser = values::since)]
    pub since: Option<Since>,
}

/// `node …`.
#[derive(Clone, Debug, Subcommand)]
pub enum Node {
    /// All nodes
    List(NodeList),
    /// One node, and what runs on it
    Show {
        /// Its name, or a unique prefix
        #[arg(value_name = "NODE", add = names::nodes())]
        node: String,
    },
    /// Say that a node never comes back: what ran on it is lost. Cannot be undone
    Rm {
        /// Its name, or a unique prefix
        #[arg(value_name = "NODE", add = names::nodes())]
        node: String,
    },
}

/// `node list`.
#[derive(Clone, Debug, Default, Args)]
pub struct NodeList {
    /// Only these states: ready, recovering, unreachable, gone
    #[arg(long = "state", value_name = "STATE", value_delimiter = ',')]
    pub states: Vec<String>,
    /// Only nodes with this label; may be repeated
    #[arg(long = "label", value_name = "NAME=VALUE", value_parser = values::key_value)]
    pub labels: Vec<(String, String)>,
}

/// `framework …`.
#[derive(Clone, Debug, Subcommand)]
pub enum Framework {
    /// All frameworks
    List,
    /// One framework, its claims and why they wait
    Show {
        /// Its name, id, or a unique prefix
        #[arg(value_name = "FRAMEWORK", add = names::frameworks())]
        framework: String,
    },
    /// Suppress or revive roles of a framework
    Set(FrameworkSet),
    /// Tear a framework down: all its tasks end. Cannot be undone
    Rm {
        /// Its name, id, or a unique prefix
        #[arg(value_name = "FRAMEWORK", add = names::frameworks())]
        framework: String,
    },
}

/// `framework set`.
#[derive(Clone, Debug, Args)]
pub struct FrameworkSet {
    /// Its name, id, or a unique prefix
    #[arg(value_name = "FRAMEWORK", add = names::frameworks())]
    pub framework: String,
    /// Make no offers in this role, or in all its roles when none is named; may be repeated
    #[arg(
        long, value_name = "ROLE", num_args = 0..=1, require_equals = true,
        default_missing_value = "", add = names::roles()
    )]
    pub suppress: Vec<String>,
    /// Make offers again and forget what was declined, as for --suppress
    #[arg(
        long, value_name = "ROLE", num_args = 0..=1, require_equals = true,
        default_missing_value = "", add = names::roles()
    )]
    pub revive: Vec<String>,
}

/// `offer …`.
#[derive(Clone, Debug, Subcommand)]
pub enum Offer {
    /// Offers that are open
    List(OfferList),
    /// One offer in full
    Show {
        /// The offer, such as o-3-17
        #[arg(value_name = "OFFER")]
        offer: String,
    },
    /// Take open offers back
    Rescind {
        /// The offers, such as o-3-17
        #[arg(value_name = "OFFER", required = true)]
        offers: Vec<String>,
    },
}

/// `offer list`.
#[derive(Clone, Debug, Default, Args)]
pub struct OfferList {
    /// Only offers to this framework
    #[arg(long, value_name = "NAME", add = names::frameworks())]
    pub framework: Option<String>,
    /// Only offers of this node
    #[arg(long, value_name = "NODE", add = names::nodes())]
    pub node: Option<String>,
}

/// `task …`.
#[derive(Clone, Debug, Subcommand)]
pub enum Task {
    /// Tasks of all frameworks
    List(TaskList),
    /// One task in full
    Show {
        /// TASK, TASK#ATTEMPT, FRAMEWORK/TASK#ATTEMPT, or a unique prefix
        #[arg(value_name = "TASK")]
        task: String,
    },
    /// End tasks; their frameworks may start others
    Kill(TaskKill),
    /// What a task writes
    Logs(TaskLogs),
}

/// `task list`.
#[derive(Clone, Debug, Default, Args)]
pub struct TaskList {
    /// Only these phases: staging, starting, running, finishing, finished, failed, killed, lost
    #[arg(long = "state", value_name = "PHASE", value_delimiter = ',')]
    pub states: Vec<String>,
    /// Only tasks of this framework
    #[arg(long, value_name = "NAME", add = names::frameworks())]
    pub framework: Option<String>,
    /// Only tasks on this node
    #[arg(long, value_name = "NODE", add = names::nodes())]
    pub node: Option<String>,
    /// Only tasks of this role
    #[arg(long, value_name = "ROLE", add = names::roles())]
    pub role: Option<String>,
    /// Only tasks with this label; may be repeated
    #[arg(long = "label", value_name = "NAME=VALUE", value_parser = values::key_value)]
    pub labels: Vec<(String, String)>,
}

/// `task kill`.
#[derive(Clone, Debug, Args)]
pub struct TaskKill {
    /// The tasks: TASK, TASK#ATTEMPT, FRAMEWORK/TASK#ATTEMPT, or a unique prefix
    #[arg(value_name = "TASK", required = true)]
    pub tasks: Vec<String>,
    /// From SIGTERM to SIGKILL; the task's own by default
    #[arg(long, value_name = "SPAN")]
    pub grace: Option<Span>,
    /// Kept with the end, for whoever asks later
    #[arg(long, value_name = "TEXT", default_value = "")]
    pub reason: String,
}

/// `task logs`.
#[derive(Clone, Debug, Args)]
pub struct TaskLogs {
    /// TASK, TASK#ATTEMPT, FRAMEWORK/TASK#ATTEMPT, or a unique prefix
    #[arg(value_name = "TASK")]
    pub task: String,
    /// How to read.
    #[command(flatten)]
    pub reading: Reading,
}

/// `quota …`.
#[derive(Clone, Debug, Subcommand)]
pub enum Quota {
    /// Roles, what they use and wait for
    Tree,
    /// Make a role, or change it
    Set {
        /// The role, such as ml/vision
        #[arg(value_name = "ROLE", add = names::roles())]
        role: String,
        /// Its part when several roles want the same: twice the weight, twice the share
        #[arg(long, value_name = "NUMBER", value_parser = values::weight)]
        weight: Option<u32>,
    },
    /// Remove a role that no framework holds
    Rm {
        /// The role
        #[arg(value_name = "ROLE", add = names::roles())]
        role: String,
    },
}

/// `admin …`.
#[derive(Clone, Debug, Subcommand)]
pub enum Admin {
    /// The log that the masters share
    #[command(subcommand)]
    Raft(Raft),
    /// Who the masters are
    #[command(subcommand)]
    Member(Member),
}

/// `admin raft …`.
#[derive(Clone, Debug, Subcommand)]
pub enum Raft {
    /// Who leads, who follows, how far
    Status,
    /// Give the leadership to another voter
    Transfer {
        /// To whom, such as m2; without it any voter that has everything
        #[arg(long, value_name = "MASTER", value_parser = values::master)]
        to: Option<u64>,
    },
}

/// `admin member …`.
#[derive(Clone, Debug, Subcommand)]
pub enum Member {
    /// Who the masters are
    List,
    /// Take a master in; it gets its vote by itself once it has caught up
    Add(MemberAdd),
    /// Give a learner its vote, once it has caught up
    Promote {
        /// Which, such as m4
        #[arg(value_name = "MASTER", value_parser = values::master)]
        master: u64,
    },
    /// Take a master out, for ever; refused where the others would be no majority
    Rm {
        /// Which, such as m2
        #[arg(value_name = "MASTER", value_parser = values::master)]
        master: u64,
    },
}

/// `admin member add`.
#[derive(Clone, Debug, Args)]
pub struct MemberAdd {
    /// Where the new master will listen
    #[arg(value_name = "HOST:PORT", value_parser = values::host_port)]
    pub address: String,
    /// Let it receive the log without a vote
    #[arg(long)]
    pub learner: bool,
    /// The master that leaves in the step in which the new one gets its vote
    #[arg(long, value_name = "MASTER", value_parser = values::master)]
    pub replaces: Option<u64>,
}

/// `context …`.
#[derive(Clone, Debug, Subcommand)]
pub enum Context {
    /// Clusters this user knows
    List,
    /// Choose the cluster that is meant when none is named
    Use {
        /// Its name
        #[arg(value_name = "NAME", add = names::contexts())]
        name: String,
    },
    /// Add or change a cluster; its masters are given with --master
    Set {
        /// Its name
        #[arg(value_name = "NAME", add = names::contexts())]
        name: String,
    },
    /// One cluster
    Show {
        /// Its name; without it the current one
        #[arg(value_name = "NAME", add = names::contexts())]
        name: Option<String>,
    },
    /// Forget a cluster
    Rm {
        /// Its name
        #[arg(value_name = "NAME", add = names::contexts())]
        name: String,
    },
}

/// `config …`.
#[derive(Clone, Debug, Subcommand)]
pub enum Config {
    /// Print a configuration file with every key explained
    Default,
    /// What is set, and where that was said
    Show {
        /// Say where each value comes from
        #[arg(long)]
        origin: bool,
    },
    /// Read a configuration file and name every mistake
    Validate {
        /// The file; the user's own by default
        #[arg(value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
        file: Option<PathBuf>,
    },
}
