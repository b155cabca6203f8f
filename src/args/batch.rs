//! Jobs.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use mete_model::{Bytes, MilliCpu, Span};

use super::daemon::BatchStart;
use super::values::{self, DeviceCount};
use crate::cli::support::names;

/// `batch …`.
#[derive(Clone, Debug, Subcommand)]
pub enum Batch {
    /// Run the batch framework until it is told to stop; its tasks go on
    Start(BatchStart),
    /// Submit a job and return at once
    Submit(Submit),
    /// Submit a job, stream its output, exit with its code
    Run(Run),
    /// Jobs and their states
    List(List),
    /// One job in full
    Show(Show),
    /// What a job writes
    Logs(Logs),
    /// Wait for jobs, and exit with their code
    Wait(Wait),
    /// End jobs or elements of them
    Cancel(Cancel),
}

/// What a job is.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "The job")]
pub struct JobFlags {
    /// A job file (TOML); flags go before what it says
    #[arg(short, long, value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    pub file: Option<PathBuf>,
    /// Name of the job; the command's by default
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,
    /// CPUs of each element, such as 2, 0.5 or 500m [default: 0.5]
    #[arg(
        long,
        value_name = "CPUS",
        conflicts_with = "cores",
        value_parser = values::some_cpus
    )]
    pub cpus: Option<MilliCpu>,
    /// Exclusive logical CPUs of each element, instead of --cpus
    #[arg(long, value_name = "N", value_parser = values::some)]
    pub cores: Option<u32>,
    /// Memory of each element, such as 512MiB
    #[arg(long, value_name = "SIZE", value_parser = values::bytes)]
    pub memory: Option<Bytes>,
    /// Disk of each element
    #[arg(long, value_name = "SIZE", value_parser = values::bytes)]
    pub disk: Option<Bytes>,
    /// GPUs of each element, such as 1, 0.5 or 2:a100
    #[arg(long, value_name = "N[:MODEL]", value_parser = values::gpus)]
    pub gpus: Option<DeviceCount>,
    /// Devices of each element; may be repeated
    #[arg(long = "device", value_name = "CLASS=N", value_parser = values::device_count)]
    pub devices: Vec<DeviceCount>,
    /// Many elements: 0-99, 0-99:2, 1,3,7; %8 behind it runs 8 at a time. Index in METE_INDEX
    #[arg(long, value_name = "SPEC")]
    pub array: Option<String>,
    /// How many elements of an array run at a time
    #[arg(long, value_name = "N", value_parser = values::some)]
    pub throttle: Option<u32>,
    /// Further attempts after a failure of the command itself
    #[arg(long, value_name = "N")]
    pub retries: Option<u32>,
    /// How long an element may run, such as 4h
    #[arg(long, value_name = "SPAN", value_parser = values::some_time)]
    pub time: Option<Span>,
    /// Order within the role: higher goes first
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    pub priority: Option<i32>,
    /// Who is charged
    #[arg(long, value_name = "NAME", add = names::roles())]
    pub role: Option<String>,
    /// A variable of the command's environment; may be repeated
    #[arg(long = "env", value_name = "NAME=VALUE", value_parser = values::key_value)]
    pub environment: Vec<(String, String)>,
    /// Working directory on the node; the present one by default
    #[arg(long, value_name = "DIR", value_hint = clap::ValueHint::DirPath)]
    pub chdir: Option<PathBuf>,
}

/// `submit`.
#[derive(Clone, Debug, Args)]
#[command(after_help = "The job's id alone goes to stdout, hints go to stderr.")]
pub struct Submit {
    /// A job file (TOML)
    #[arg(value_name = "FILE", value_hint = clap::ValueHint::FilePath, conflicts_with = "file")]
    pub path: Option<PathBuf>,
    /// The job.
    #[command(flatten)]
    pub job: JobFlags,
    /// Wait for the end, and exit with the job's code
    #[arg(long)]
    pub wait: bool,
    /// The command, after `--`, as it is
    #[arg(last = true, value_name = "CMD")]
    pub command: Vec<String>,
}

/// `run`.
#[derive(Clone, Debug, Args)]
#[command(after_help = "\
Exit code: the command's own; 128 + n if signal n ended it; 127 if it was not found, 126 if it could
not be executed, 125 if we failed before it began, 1 if we ended it (time limit, lost node).
Ctrl-C leaves the job running and says how to attach again; a second one cancels it.
With -o json the output of the command goes to stderr, and how it ended to stdout.")]
pub struct Run {
    /// The job.
    #[command(flatten)]
    pub job: JobFlags,
    /// The first Ctrl-C already cancels the job
    #[arg(long)]
    pub kill_on_interrupt: bool,
    /// The command, after `--`, as it is
    #[arg(last = true, value_name = "CMD")]
    pub command: Vec<String>,
}

/// `list`.
#[derive(Clone, Debug, Default, Args)]
pub struct List {
    /// Jobs of all users
    #[arg(short = 'A', long)]
    pub all: bool,
    /// Jobs of this user
    #[arg(long, value_name = "NAME", conflicts_with = "all")]
    pub user: Option<String>,
    /// Only these states, such as pending,running
    #[arg(long = "state", value_name = "STATE", value_delimiter = ',')]
    pub states: Vec<String>,
}

/// `show`.
#[derive(Clone, Debug, Args)]
pub struct Show {
    /// The job, by its id or a unique prefix; JOB/INDEX for one element
    #[arg(value_name = "JOB", add = names::jobs())]
    pub job: String,
}

/// `logs`.
#[derive(Clone, Debug, Args)]
pub struct Logs {
    /// The job, by its id or a unique prefix; JOB/INDEX for one element
    #[arg(value_name = "JOB[/INDEX]", add = names::jobs())]
    pub job: String,
    /// How to read.
    #[command(flatten)]
    pub reading: Reading,
    /// The attempt before the last one
    #[arg(long)]
    pub previous: bool,
    /// Exit with the job's code when it is over; with -f
    #[arg(long, requires = "follow")]
    pub exit_code: bool,
}

/// How a log is read.
#[derive(Clone, Debug, Default, Args)]
pub struct Reading {
    /// Go on with what is written later, until the end
    #[arg(short, long)]
    pub follow: bool,
    /// Only the last lines
    #[arg(long, value_name = "N")]
    pub tail: Option<u64>,
    /// Only lines not older than this
    #[arg(long, value_name = "SPAN")]
    pub since: Option<Span>,
    /// Only what was written to stderr
    #[arg(long)]
    pub stderr: bool,
    /// Begin each line with where it comes from
    #[arg(long)]
    pub prefix: bool,
}

/// What `wait` waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum WaitFor {
    /// It runs, or is over
    Running,
    /// It is over
    Ended,
}

/// `wait`.
#[derive(Clone, Debug, Args)]
#[command(
    after_help = "Exit code: the job's, the highest of several; 7 when --timeout has passed."
)]
pub struct Wait {
    /// The jobs
    #[arg(value_name = "JOB", required = true, add = names::jobs())]
    pub jobs: Vec<String>,
    /// What for
    #[arg(long = "for", value_name = "WHAT", value_enum, default_value_t = WaitFor::Ended)]
    pub until: WaitFor,
}

/// `cancel`.
#[derive(Clone, Debug, Args)]
pub struct Cancel {
    /// The jobs, or elements: train-41, train-41/7, train-41/1-3
    #[arg(value_name = "JOB", required = true, add = names::jobs())]
    pub jobs: Vec<String>,
}
