//! Every flag of every command, as types. It reads the command line; it decides nothing.
//!
//! One file for each family: [`daemon`] for what runs long, [`batch`] for jobs, [`objects`] for
//! what is listed and changed, [`mod@bench`] for measurements. [`globals`] holds the flags of all
//! of them.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

pub mod batch;
pub mod bench;
pub mod daemon;
pub mod globals;
pub mod objects;
pub mod values;

pub use globals::Globals;

/// A two-level resource broker: frameworks share a cluster through offers.
#[derive(Clone, Debug, Parser)]
#[command(
    name = "mete",
    bin_name = "mete",
    version,
    disable_help_subcommand = true,
    subcommand_required = true,
    arg_required_else_help = true,
    infer_long_args = false,
    max_term_width = 100,
    after_help = "First steps: mete dev, then in another terminal: mete run -- echo hello"
)]
pub struct Cli {
    /// Flags that every command takes.
    #[command(flatten)]
    pub globals: Globals,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// Commands of the first level.
#[derive(Clone, Debug, Subcommand)]
pub enum Command {
    /// Run a whole cluster in one process, for trying and for tests
    Dev(daemon::Dev),
    /// Show two frameworks sharing a cluster; ends by itself
    Demo(daemon::Demo),
    /// The process that holds the cluster's truth
    #[command(subcommand)]
    Master(daemon::Master),
    /// The process on each node
    #[command(subcommand)]
    Agent(daemon::Agent),
    /// The service framework: keeps tasks running
    #[command(subcommand)]
    Service(daemon::Service),
    /// Jobs, and the framework that runs them
    #[command(subcommand)]
    Batch(batch::Batch),
    /// Submit a job, stream its output, exit with its code: batch run
    Run(batch::Run),
    /// Submit a job and return at once: batch submit
    Submit(batch::Submit),
    /// Jobs and their states: batch list
    Ps(batch::List),
    /// What a job writes: batch logs
    Logs(batch::Logs),
    /// The cluster on one screen
    Status,
    /// Why something waits, runs, or gets nothing
    Why(objects::Why),
    /// What happened, in order
    Events(objects::Events),
    /// Nodes
    #[command(subcommand)]
    Node(objects::Node),
    /// Frameworks
    #[command(subcommand)]
    Framework(objects::Framework),
    /// Open offers
    #[command(subcommand)]
    Offer(objects::Offer),
    /// Tasks of all frameworks
    #[command(subcommand)]
    Task(objects::Task),
    /// Roles: who shares the cluster, and how
    #[command(subcommand)]
    Quota(objects::Quota),
    /// Operating the masters
    #[command(subcommand)]
    Admin(objects::Admin),
    /// Measurements
    #[command(subcommand)]
    Bench(bench::Bench),
    /// Clusters this user knows
    #[command(subcommand)]
    Context(objects::Context),
    /// The configuration of the command line
    #[command(subcommand)]
    Config(objects::Config),
    /// Print a script that makes the shell complete commands, flags and names
    Completion(Completion),
    /// Write the manual pages into a directory
    Man(Man),
    /// Explain a command or a reason code
    Help(Help),
    /// The version of this program
    Version,
}

/// `completion`.
#[derive(Clone, Debug, Args)]
#[command(after_help = "For bash: source <(mete completion bash)")]
pub struct Completion {
    /// The shell
    #[arg(value_name = "SHELL", value_parser = ["bash", "zsh", "fish", "elvish", "powershell"])]
    pub shell: String,
}

/// `man`.
#[derive(Clone, Debug, Args)]
pub struct Man {
    /// Where to; made when it is missing
    #[arg(value_name = "DIR", value_hint = clap::ValueHint::DirPath)]
    pub directory: PathBuf,
}

/// `help`.
#[derive(Clone, Debug, Args)]
pub struct Help {
    /// A reason code such as NO_CAPACITY, `codes` for all of them, or a command such as `batch run`
    #[arg(value_name = "CODE|TOPIC", add = crate::cli::support::names::codes())]
    pub topic: Vec<String>,
}
