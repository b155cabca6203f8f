//! The command line: parses, asks, prints. It decides nothing that a broker or framework decides.
//!
//! [`start`] is the whole life of a command. Client commands speak gRPC as any other client does
//! ([`support`] connects, prints and fails for all of them, one room for each noun beside it);
//! daemons and benches are started in their own rooms. Data goes to stdout, all else to stderr; the
//! exit code says who failed.

use std::ffi::OsString;
use std::pin::Pin;
use std::process::ExitCode;
use std::time::Duration;

use clap::CommandFactory;
use mete_model::Code;

use crate::args::batch::Batch;
use crate::args::daemon::{Agent, Master, Service};
use crate::args::globals::Color;
use crate::args::{Cli, Command, Globals};

pub mod admin;
pub mod agent;
pub mod batch;
pub mod config;
pub mod context;
pub mod events;
pub mod framework;
pub mod help;
pub mod node;
pub mod offer;
pub mod quota;
#[cfg(test)]
mod reach;
pub mod shell;
pub mod status;
pub mod support;
pub mod task;
pub mod top;
pub mod why;

use support::client::Client;
use support::error::{CliError, Outcome, exit};
use support::guard::{guard, is_repeated};
use support::print::{
    Format, Style, close_frame, note, open_frame, print_one, reader_is_gone, show_error,
};
use support::usage;

/// Between two looks of a command that `--watch` repeats, when nothing is said.
const USUAL_PAUSE: Duration = Duration::from_secs(2);

/// Runs one command and gives its exit code.
#[must_use]
pub fn start() -> ExitCode {
    clap_complete::CompleteEnv::with_factory(Cli::command).complete();
    report_panics();
    let arguments: Vec<OsString> = std::env::args_os().collect();
    let parsed = Cli::read(&arguments);
    let (outcome, format, color, verbose) = match parsed {
        Ok(cli) => {
            let format = Style::of(&cli.globals).format;
            let (color, verbose) = (cli.globals.color, cli.globals.verbose);
            (in_runtime(cli), format, color, verbose)
        }
        Err(error) => {
            let outcome = usage::from_clap(&error, &arguments).map(|()| 0);
            (outcome, spoken_format(&arguments), Color::Auto, 0)
        }
    };
    ExitCode::from(outcome.unwrap_or_else(|error| {
        show_error(&error, format, color, verbose);
        error.exit
    }))
}

/// The format of a command line that could not be parsed: even then programs get JSON.
fn spoken_format(arguments: &[OsString]) -> Format {
    let words: Vec<&str> = arguments.iter().filter_map(|word| word.to_str()).collect();
    let own = words
        .iter()
        .position(|word| *word == "--")
        .unwrap_or(words.len());
    let own = words.get(..own).unwrap_or_default();
    let joined = [
        "-ojson",
        "-o=json",
        "--output=json",
        "-ojsonl",
        "--output=jsonl",
    ];
    let apart = own
        .windows(2)
        .any(|pair| matches!(pair, ["-o" | "--output", "json" | "jsonl"]));
    if apart || own.iter().any(|word| joined.contains(word)) {
        Format::Json
    } else {
        Format::Table
    }
}

fn in_runtime(cli: Cli) -> Outcome<u8> {
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(workers(&cli.command, cores))
        .enable_all()
        .build();
    let runtime = runtime.map_err(|error| {
        CliError::new(
            Code::Internal,
            format!("the runtime does not start: {error}"),
        )
    })?;
    let outcome = guard(&cli).and_then(|()| runtime.block_on(Box::pin(repeated(cli))));
    // A thread that still waits for something (a name, a disk) must not keep a command from ending.
    runtime.shutdown_timeout(std::time::Duration::from_millis(500));
    outcome
}

/// Threads that serve streams and calls. A master keeps one core for its loop: threads that take
/// it away from the loop, and wake each other for single messages, cost more than they bring.
fn workers(command: &Command, cores: usize) -> usize {
    if matches!(command, Command::Master(Master::Start(_))) {
        cores.saturating_sub(1).max(1)
    } else {
        cores
    }
}

/// Does it once, or with `--watch` again and again until Ctrl-C.
async fn repeated(cli: Cli) -> Outcome<u8> {
    if !is_repeated(&cli) {
        return Box::pin(run(cli)).await;
    }
    let pause = cli.globals.watch.filter(|pause| pause.0 > 0);
    let pause = pause.map_or(USUAL_PAUSE, Duration::from);
    loop {
        open_frame();
        let done = Box::pin(run(cli.clone())).await;
        close_frame()?;
        match done {
            Ok(_) if reader_is_gone() => return Ok(0),
            Ok(_) => {}
            Err(error) if error.is_passing() || error.is(Code::CheckFailed) => {
                note(&format!("-- {}; looking again --", error.sentence));
            }
            Err(error) => return Err(error),
        }
        tokio::time::sleep(pause).await;
    }
}

async fn run(cli: Cli) -> Outcome<u8> {
    let globals = &cli.globals;
    let client = || Client::new(globals);
    let done = |()| 0;
    match cli.command {
        Command::Status => status::run(&client()?).await.map(done),
        Command::Top(flags) => top::run(&client()?, &flags).await.map(done),
        Command::Why(flags) => why::run(&client()?, flags).await.map(done),
        Command::Events(flags) => events::run(&client()?, flags).await.map(done),
        Command::Node(command) => node::run(&client()?, command).await.map(done),
        Command::Framework(command) => framework::run(&client()?, command).await.map(done),
        Command::Offer(command) => offer::run(&client()?, command).await.map(done),
        Command::Task(command) => task::run(&client()?, command).await.map(done),
        Command::Quota(command) => quota::run(&client()?, command).await.map(done),
        Command::Admin(command) => admin::run(&client()?, command).await.map(done),
        Command::Batch(command) => jobs(globals, command).await,
        Command::Run(flags) => jobs(globals, Batch::Run(flags)).await,
        Command::Submit(flags) => jobs(globals, Batch::Submit(flags)).await,
        Command::Ps(flags) => jobs(globals, Batch::List(flags)).await,
        Command::Logs(flags) => jobs(globals, Batch::Logs(flags)).await,
        Command::Context(command) => context::run(globals, command).map(done),
        Command::Config(command) => config::run(globals, command).map(done),
        Command::Completion(flags) => shell::completion(&flags.shell).map(done),
        Command::Man(flags) => shell::man(&flags.directory).map(done),
        Command::Help(flags) => help::help(&flags.topic, &Style::of(globals)).map(done),
        Command::Version => version(&Style::of(globals)).map(done),
        Command::Simulate(flags) => {
            crate::offline::simulate::simulate(&flags, &Style::of(globals)).map(done)
        }
        Command::Agent(Agent::Show(flags)) => agent::show(globals, flags).await.map(done),
        Command::Dev(_)
        | Command::Demo(_)
        | Command::Master(_)
        | Command::Agent(_)
        | Command::Service(_)
        | Command::Bench(_) => Box::pin(daemon(globals, cli.command)).await,
    }
}

/// Boxed: following a job with all its logs takes much room.
fn jobs(
    globals: &Globals,
    command: Batch,
) -> Pin<Box<dyn Future<Output = Outcome<u8>> + Send + '_>> {
    Box::pin(batch::run(globals, command))
}

fn version(style: &Style) -> Outcome {
    let version = env!("CARGO_PKG_VERSION");
    let item = serde_json::json!({ "name": "mete", "version": version });
    print_one(style, "Version", None, item, &format!("mete {version}"))
}

/// What runs long or measures.
async fn daemon(globals: &Globals, command: Command) -> Outcome<u8> {
    use crate::daemon::{commands, start_log};
    let masters = || support::context::masters(&globals.masters, globals.context.as_deref());
    let style = Style::of(globals);
    start_log(globals.verbose);
    let done = |()| 0;
    match command {
        Command::Dev(flags) => commands::dev(flags).await.map(done),
        Command::Demo(flags) => Box::pin(commands::demo(flags)).await.map(done),
        Command::Master(flags) => commands::master(flags, &style).await.map(done),
        Command::Agent(Agent::Start(flags)) => {
            commands::agent_start(flags, masters()?).await.map(done)
        }
        Command::Agent(Agent::Check(flags)) => commands::agent_check(&flags, &style),
        Command::Service(Service::Start(flags)) => {
            commands::service_start(flags, masters()?).await.map(done)
        }
        Command::Bench(bench) => crate::bench::commands::bench(bench, &style).await.map(done),
        Command::Agent(Agent::Show(_))
        | Command::Batch(_)
        | Command::Run(_)
        | Command::Submit(_)
        | Command::Ps(_)
        | Command::Logs(_)
        | Command::Status
        | Command::Top(_)
        | Command::Why(_)
        | Command::Events(_)
        | Command::Node(_)
        | Command::Framework(_)
        | Command::Offer(_)
        | Command::Task(_)
        | Command::Quota(_)
        | Command::Admin(_)
        | Command::Context(_)
        | Command::Config(_)
        | Command::Completion(_)
        | Command::Man(_)
        | Command::Help(_)
        | Command::Simulate(_)
        | Command::Version => Err(CliError::new(
            Code::Internal,
            "a client command was sent to the daemons",
        )),
    }
}

/// A panic is a defect of ours: said in the shape of every error, with how to report it.
fn report_panics() {
    let usual = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        if crate::daemon::answers_panics() {
            return;
        }
        let place = panic
            .location()
            .map(ToString::to_string)
            .unwrap_or_default();
        let payload = panic.payload();
        let text = payload
            .downcast_ref::<&str>()
            .map(|text| (*text).to_owned())
            .or_else(|| payload.downcast_ref::<String>().cloned())
            .unwrap_or_default();
        let error = CliError::new(
            Code::Internal,
            format!("a defect of mete at {place}: {text}"),
        )
        .fact(format!(
            "mete {}, {}",
            env!("CARGO_PKG_VERSION"),
            std::env::consts::ARCH
        ))
        .fact("please report it, with these lines and the command line")
        .next(
            "RUST_BACKTRACE=1 mete …",
            "the same again, with a backtrace",
        )
        .exit(exit::FAILED);
        show_error(&error, Format::Table, Color::Auto, 0);
        if std::env::var_os("RUST_BACKTRACE").is_some() {
            usual(panic);
        }
    }));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_definition_of_all_commands_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn a_program_gets_json_even_for_a_command_line_that_cannot_be_parsed() {
        let words = |line: &str| {
            line.split_whitespace()
                .map(OsString::from)
                .collect::<Vec<_>>()
        };
        assert_eq!(
            spoken_format(&words("mete node lsit -o json")),
            Format::Json
        );
        assert_eq!(
            spoken_format(&words("mete node lsit --output=json")),
            Format::Json
        );
        assert_eq!(
            spoken_format(&words("mete run -- x -o json")),
            Format::Table
        );
    }

    /// The commands of the tree, by family, that this release has.
    const TREE: &str = "\
        dev demo master:init,start agent:start,check,show service:start \
        batch:start,submit,run,list,show,logs,wait,cancel run submit ps logs status top why \
        events node:list,show,rm framework:list,show,set,rm offer:list,show,rescind \
        task:list,show,kill,logs quota:tree,set,rm admin:raft,member \
        bench:launches,allocator,commit,failover,node,replay,snapshot \
        context:list,use,set,show,rm config:default,show,validate completion man help version";

    #[test]
    fn every_command_of_the_tree_is_there_and_says_what_it_is_for() {
        let cli = Cli::command();
        for family in TREE.split_whitespace() {
            let (name, verbs) = family.split_once(':').unwrap_or((family, ""));
            let command = cli
                .find_subcommand(name)
                .unwrap_or_else(|| panic!("no {name}"));
            assert!(command.get_about().is_some(), "{name} says nothing");
            for verb in verbs.split(',').filter(|verb| !verb.is_empty()) {
                let found = command.find_subcommand(verb);
                let found = found.unwrap_or_else(|| panic!("no {name} {verb}"));
                assert!(found.get_about().is_some(), "{name} {verb} says nothing");
            }
        }
    }
}
