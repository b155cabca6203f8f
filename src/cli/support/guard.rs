//! Flags that every command takes and that not every command can keep: never ignored in silence.

use mete_model::Code;

use super::error::{CliError, Outcome};
use crate::args::daemon::{Agent, Master};
use crate::args::objects::{
    Admin, Config, Context, Framework, Member, Node, Offer, Quota, Raft, Task,
};
use crate::args::{Cli, Command, batch};

/// What a command is, as far as the flags of every command go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Nature {
    /// Shows something of the cluster that changes, and that can be as one wants it or not.
    Judged,
    /// Shows something of the cluster that changes.
    Shown,
    /// Changes something; can be tried without doing it.
    Change,
    /// Reads or writes what is here, or follows something until it ends.
    Other,
    /// Runs long or takes time, and cannot be tried without doing it.
    Work,
}

/// Refuses a flag that would have been ignored.
///
/// # Errors
/// `USAGE`.
pub fn guard(cli: &Cli) -> Outcome {
    let nature = nature(&cli.command);
    let refuse = |flag: &str, what: &str| {
        let sentence = format!("{flag} does nothing here: {what}");
        Err(CliError::new(Code::Usage, sentence))
    };
    let globals = &cli.globals;
    if globals.check && nature != Nature::Judged {
        return refuse("--check", "this command has no state to judge");
    }
    if globals.watch.is_some() && !matches!(nature, Nature::Judged | Nature::Shown) {
        return refuse("--watch", "this command has nothing to keep up to date");
    }
    if globals.dry_run && nature == Nature::Work {
        return refuse("--dry-run", "this command cannot be tried without doing it");
    }
    Ok(())
}

/// Whether `--watch` does the whole command again and again, instead of following a stream.
#[must_use]
pub fn is_repeated(cli: &Cli) -> bool {
    let Some(pause) = cli.globals.watch else {
        return false;
    };
    // These keep themselves up to date, the lists as long as nobody names a pause.
    let always = matches!(cli.command, Command::Events(_) | Command::Top(_));
    let streamed = matches!(
        cli.command,
        Command::Node(Node::List(_))
            | Command::Framework(Framework::List)
            | Command::Task(Task::List(_))
            | Command::Quota(Quota::Tree)
    );
    let itself = always || (streamed && pause.0 == 0);
    !itself
}

fn nature(command: &Command) -> Nature {
    match command {
        Command::Status | Command::Why(_) | Command::Ps(_) => Nature::Judged,
        Command::Events(_) | Command::Top(_) => Nature::Shown,
        Command::Node(Node::List(_) | Node::Show { .. })
        | Command::Framework(Framework::List | Framework::Show { .. })
        | Command::Task(Task::List(_) | Task::Show { .. })
        | Command::Quota(Quota::Tree)
        | Command::Agent(Agent::Show(_)) => Nature::Judged,
        Command::Offer(Offer::List(_) | Offer::Show { .. })
        | Command::Admin(Admin::Raft(Raft::Status) | Admin::Member(Member::List)) => Nature::Shown,
        Command::Node(Node::Rm { .. })
        | Command::Framework(Framework::Set(_) | Framework::Rm { .. })
        | Command::Offer(Offer::Rescind { .. })
        | Command::Task(Task::Kill(_))
        | Command::Quota(Quota::Set { .. } | Quota::Rm { .. })
        | Command::Admin(
            Admin::Raft(Raft::Transfer { .. })
            | Admin::Member(Member::Add(_) | Member::Promote { .. } | Member::Rm { .. }),
        )
        | Command::Run(_)
        | Command::Submit(_) => Nature::Change,
        Command::Batch(verb) => match verb {
            batch::Batch::List(_) | batch::Batch::Show(_) => Nature::Judged,
            batch::Batch::Submit(_) | batch::Batch::Run(_) | batch::Batch::Cancel(_) => {
                Nature::Change
            }
            batch::Batch::Logs(_) | batch::Batch::Wait(_) => Nature::Other,
            batch::Batch::Start(_) => Nature::Work,
        },
        Command::Context(Context::Set { .. } | Context::Use { .. } | Context::Rm { .. }) => {
            Nature::Change
        }
        Command::Context(Context::List | Context::Show { .. })
        | Command::Config(Config::Default | Config::Show { .. } | Config::Validate { .. })
        | Command::Task(Task::Logs(_))
        | Command::Logs(_)
        | Command::Agent(Agent::Check(_))
        | Command::Completion(_)
        | Command::Help(_)
        | Command::Version => Nature::Other,
        Command::Dev(_)
        | Command::Demo(_)
        | Command::Master(Master::Init(_) | Master::Start(_))
        | Command::Agent(Agent::Start(_))
        | Command::Service(_)
        | Command::Bench(_)
        | Command::Simulate(_)
        | Command::Man(_) => Nature::Work,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn guarded(line: &str) -> Result<(), String> {
        let cli = Cli::read(line.split_whitespace()).expect("a command line");
        guard(&cli).map_err(|error| error.sentence)
    }

    #[test]
    fn a_flag_that_would_be_ignored_is_refused() {
        for line in [
            "mete node list --check --watch",
            "mete ps --check",
            "mete node rm n1 --dry-run",
            "mete node list --dry-run",
            "mete events --watch",
        ] {
            assert_eq!(guarded(line), Ok(()), "{line}");
        }
        for (line, flag) in [
            ("mete quota set ml --check", "--check"),
            ("mete events --check", "--check"),
            ("mete context list --watch", "--watch"),
            ("mete dev --dry-run", "--dry-run"),
            ("mete master init --state-dir x --dry-run", "--dry-run"),
        ] {
            let refused = guarded(line).expect_err(line);
            assert!(refused.starts_with(flag), "{line}: {refused}");
        }
    }

    #[test]
    fn a_list_follows_its_stream_unless_seconds_are_named() {
        let repeated = |line: &str| {
            let cli = Cli::read(line.split_whitespace()).expect("a command line");
            is_repeated(&cli)
        };
        assert!(!repeated("mete node list"));
        assert!(!repeated("mete node list --watch"));
        assert!(repeated("mete node list --watch=5"));
        assert!(repeated("mete status --watch"));
        assert!(repeated("mete offer list --watch"));
        assert!(!repeated("mete events --watch"));
    }
}
