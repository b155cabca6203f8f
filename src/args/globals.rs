//! Flags that every command takes.

use clap::{ArgAction, Args, ValueEnum};
use mete_model::Span;

use super::values;
use crate::cli::support::names;
use crate::cli::support::print::Format;

/// When to colour.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Color {
    /// On a terminal, unless `NO_COLOR` is set
    #[default]
    Auto,
    /// Always
    Always,
    /// Never
    Never,
}

/// How to say what is waited for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Progress {
    /// One line that is redrawn on a terminal, else a line for each change
    #[default]
    Auto,
    /// A line for each change
    Plain,
    /// The same as JSON
    Json,
    /// Nothing
    None,
}

/// The flags.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Global options")]
pub struct Globals {
    /// The cluster, by its name in the configuration
    #[arg(
        long, global = true, value_name = "NAME", env = "METE_CONTEXT", hide_env_values = true,
        add = names::contexts()
    )]
    pub context: Option<String>,
    /// A master to ask; may be repeated, or several with commas
    #[arg(
        long = "master", global = true, value_name = "HOST:PORT", env = "METE_MASTER",
        hide_env_values = true, value_delimiter = ',', value_parser = values::host_port
    )]
    pub masters: Vec<String>,
    /// How to print
    #[arg(short, long, global = true, value_name = "FORMAT", value_enum)]
    pub output: Option<Format>,
    /// Bare names: the same as -o name
    #[arg(short, long, global = true, conflicts_with = "output")]
    pub quiet: bool,
    /// Say more on stderr; repeat for still more
    #[arg(short, long, global = true, action = ArgAction::Count)]
    pub verbose: u8,
    /// How long to wait for an answer (30s); for `wait`, how long to wait at all
    #[arg(long, global = true, value_name = "SPAN", value_parser = values::some_time)]
    pub timeout: Option<Span>,
    /// Keep it up to date until Ctrl-C: a list at every change, all else (or with SECS) from time
    /// to time
    #[arg(
        long, global = true, value_name = "SECS", num_args = 0..=1, require_equals = true,
        default_missing_value = "0", value_parser = values::pause
    )]
    pub watch: Option<Span>,
    /// Exit with 9 when what is shown is not as one wants it: not ready, not connected, waiting
    #[arg(long, global = true)]
    pub check: bool,
    /// How to say on stderr what is waited for
    #[arg(long, global = true, value_name = "HOW", value_enum, default_value_t)]
    pub progress: Progress,
    /// Do not ask before doing what cannot be undone
    #[arg(short = 'y', long, global = true)]
    pub yes: bool,
    /// Say what would be done, and do nothing
    #[arg(long, global = true)]
    pub dry_run: bool,
    /// When to use colour
    #[arg(long, global = true, value_name = "WHEN", value_enum, default_value_t)]
    pub color: Color,
    /// Only these fields, in this order; a dot goes deeper: total.cpu_milli, labels.rack
    #[arg(long, global = true, value_name = "A,B", value_delimiter = ',')]
    pub fields: Vec<String>,
    /// Only rows whose field has this value; may be repeated
    #[arg(long, global = true, value_name = "FIELD=VALUE", value_parser = values::key_value)]
    pub filter: Vec<(String, String)>,
    /// Order of the rows
    #[arg(long, global = true, value_name = "FIELD")]
    pub sort: Option<String>,
}
