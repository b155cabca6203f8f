//! Every flag of every command, as types. It reads the command line; it decides nothing.
//!
//! One file for each family: [`daemon`] for what runs long, [`batch`] for jobs, [`objects`] for
//! what is listed and changed, [`mod@bench`] for measurements. [`globals`] holds the flags of all
//! of them.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

pub mod batch;
pub mod bench;
pub mod daemon;
pub mod globals;
pub mod objects;
pub mod simulate;
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

impl Cli {
    /// Reads a command line.
    ///
    /// # Errors
    /// What the parser says.
    pub fn read<I, T>(words: I) -> Result<Self, clap::Error>
    where
        I: IntoIterator<Item = T>,
        T: Into<OsString>,
    {
        Self::try_parse_from(with_numbers(words.into_iter().map(Into::into)))
    }
}

/// Joins `--memory -1GiB` to `--memory=-1GiB`. No flag of ours begins with a digit, so a negative
/// number behind a flag is its value: it is then refused as a number, with what is permitted, and
/// not as an unknown flag.
fn with_numbers(words: impl Iterator<Item = OsString>) -> Vec<OsString> {
    let mut joined: Vec<OsString> = Vec::new();
    let mut ours = true;
    for word in words {
        ours &= word != "--";
        let is_number = word
            .to_str()
            .and_then(|text| text.strip_prefix('-'))
            .is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit() || c == '.'));
        let flag = joined
            .last_mut()
            .filter(|flag| flag.to_str().is_some_and(is_long_flag));
        match flag {
            Some(flag) if ours && is_number => {
                flag.push("=");
                flag.push(word);
            }
            Some(_) | None => joined.push(word),
        }
    }
    joined
}

fn is_long_flag(word: &str) -> bool {
    word.len() > 2 && word.starts_with("--") && !word.contains('=')
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
    /// A live view: roles, nodes, and what waits
    Top(objects::Top),
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
    /// Simulated clusters with everything going wrong, out of a seed
    Simulate(simulate::Simulate),
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
    /// A reason code such as NO_CAPACITY, `codes` for all of them, a command such as `batch run`,
    /// or `schema` for the JSON Schema of all output
    #[arg(value_name = "CODE|TOPIC", add = crate::cli::support::names::codes())]
    pub topic: Vec<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_negative_number_belongs_to_the_flag_before_it_and_never_to_the_users_command() {
        let words = "mete run --memory -1GiB --yes -v --priority=-2 -3 -- head --lines -5";
        let read = with_numbers(words.split(' ').map(OsString::from));
        assert_eq!(
            read.join(std::ffi::OsStr::new(" ")),
            "mete run --memory=-1GiB --yes -v --priority=-2 -3 -- head --lines -5"
        );
    }
}
