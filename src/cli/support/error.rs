//! What a user sees when something is refused or fails: a code, one sentence, facts, what to do.

use std::collections::BTreeMap;
use std::fmt;

use mete_model::Code;
use serde_json::{Value, json};
use tonic_types::StatusExt;

/// Exit codes of the command line.
pub mod exit {
    /// Refused by the master or a framework, or the operation failed.
    pub const FAILED: u8 = 1;
    /// Wrong usage or invalid file; nothing was sent.
    pub const USAGE: u8 = 2;
    /// The named thing does not exist.
    pub const NOT_FOUND: u8 = 3;
    /// No master reachable, or no leader.
    pub const UNREACHABLE: u8 = 4;
    /// Not authenticated or not allowed.
    pub const DENIED: u8 = 5;
    /// Conflict: something moved meanwhile.
    pub const CONFLICT: u8 = 6;
    /// Timed out waiting; the work goes on.
    pub const TIMED_OUT: u8 = 7;
    /// Can never be satisfied on this cluster.
    pub const INFEASIBLE: u8 = 8;
    /// `--check`: not in the wanted state.
    pub const CHECK: u8 = 9;
    /// `run`: failure on our side before the remote command ran.
    pub const OURS: u8 = 125;
    /// `run`: the remote command cannot be executed.
    pub const NOT_EXECUTABLE: u8 = 126;
    /// `run`: the remote command was not found.
    pub const COMMAND_NOT_FOUND: u8 = 127;
    /// `run`: 128 + the signal that ended the remote command.
    pub const SIGNAL_BASE: u8 = 128;
}

/// An error as it is shown.
#[derive(Clone, Debug)]
pub struct CliError {
    /// Stable code; boxed so that the error stays small.
    pub code: Box<str>,
    /// One sentence with the thing and the numbers.
    pub sentence: String,
    /// Further facts, in order.
    pub facts: Vec<String>,
    /// Command lines that can be pasted, with what they do.
    pub next: Vec<(String, String)>,
    /// Exit code of the process.
    pub exit: u8,
    /// The chain of causes, for `-v` only.
    pub cause: String,
}

/// What a command gives back.
pub type Outcome<T = ()> = Result<T, CliError>;

impl CliError {
    /// An error with a code and a sentence; the exit code follows from the code.
    #[must_use]
    pub fn new(code: Code, sentence: impl Into<String>) -> Self {
        Self {
            code: code.as_str().into(),
            sentence: sentence.into(),
            facts: Vec::new(),
            next: Vec::new(),
            exit: exit_of(code),
            cause: String::new(),
        }
    }

    /// Adds a fact.
    #[must_use]
    pub fn fact(mut self, fact: impl Into<String>) -> Self {
        self.facts.push(fact.into());
        self
    }

    /// Adds something to do next.
    #[must_use]
    pub fn next(mut self, command: impl Into<String>, what: impl Into<String>) -> Self {
        self.next.push((command.into(), what.into()));
        self
    }

    /// With another exit code.
    #[must_use]
    pub fn exit(mut self, exit: u8) -> Self {
        self.exit = exit;
        self
    }

    /// A file that cannot be read or written.
    #[must_use]
    pub fn file(what: &str, path: &std::path::Path, error: &std::io::Error) -> Self {
        Self::new(Code::File, format!("{what} {}: {error}", path.display()))
    }

    /// A refusal that came over the wire.
    #[must_use]
    pub fn from_status(status: &tonic::Status) -> Self {
        let info = status.get_details_error_info();
        let reason = info.as_ref().map_or("", |info| info.reason.as_str());
        let is_broken = reason.is_empty() && is_broken(status);
        let code = if is_broken {
            Code::Unreachable.as_str().to_owned()
        } else if reason.is_empty() {
            guess(status.code())
        } else {
            reason.to_owned()
        };
        let mut sentence = first_line(status.message());
        let mut code = code;
        if is_broken {
            sentence = "the connection broke before the answer was complete".to_owned();
        }
        // Programs are told how to go on (come again), people why: a code before the sentence.
        if let Some((exact, rest)) = sentence.split_once(": ")
            && exact.parse::<Code>().is_ok()
        {
            code = exact.to_owned();
            sentence = rest.to_owned();
        }
        let known: Option<Code> = code.parse().ok();
        let mut error = Self {
            exit: known.map_or(exit::FAILED, exit_of),
            code: code.into(),
            sentence,
            facts: Vec::new(),
            next: Vec::new(),
            cause: format!("gRPC status {:?}: {}", status.code(), status.message()),
        };
        if let Some(bad) = status.get_details_bad_request() {
            for violation in bad.field_violations.iter().take(5) {
                let fact = format!("{}: {}", violation.field, violation.description);
                if !error.sentence.contains(&violation.description) {
                    error.facts.push(fact);
                }
            }
        }
        if known == Some(Code::NoLeader) {
            error = error.next("mete status --timeout 60s", "ask again");
        }
        error
    }

    /// Says whether it has this code.
    #[must_use]
    pub fn is(&self, code: Code) -> bool {
        &*self.code == code.as_str()
    }

    /// Says whether asking again later may help: nobody was there, or there was no time.
    #[must_use]
    pub fn is_passing(&self) -> bool {
        let code: Option<Code> = self.code.parse().ok();
        code.is_some_and(|code| {
            code.is_retryable() || matches!(code, Code::Unreachable | Code::FrameworkAway)
        })
    }

    /// A refusal that came as a verdict.
    #[must_use]
    pub fn from_verdict(code: &str, detail: &str) -> Self {
        let known: Option<Code> = code.parse().ok();
        Self {
            code: code.into(),
            sentence: first_line(detail),
            facts: Vec::new(),
            next: Vec::new(),
            exit: known.map_or(exit::FAILED, exit_of),
            cause: String::new(),
        }
    }

    /// As JSON, in the same structure.
    #[must_use]
    pub fn to_json(&self) -> Value {
        let next: Vec<Value> = self
            .next
            .iter()
            .map(|(command, what)| json!({ "command": command, "what": what }))
            .collect();
        json!({
            "schema": "mete.cli/v1",
            "kind": "Error",
            "error": {
                "code": self.code,
                "message": self.sentence,
                "facts": self.facts,
                "next": next,
                "exit": self.exit,
            },
        })
    }
}

fn first_line(text: &str) -> String {
    text.lines().next().unwrap_or_default().to_owned()
}

/// A status without our details: from a proxy, or from the library below us.
/// Nobody has answered so: the connection ended in the middle, whatever the transport calls it.
fn is_broken(status: &tonic::Status) -> bool {
    let is_vague = matches!(status.code(), tonic::Code::Internal | tonic::Code::Unknown);
    is_vague && std::error::Error::source(status).is_some()
}

fn guess(code: tonic::Code) -> String {
    let known = BTreeMap::from([
        (tonic::Code::Unavailable as i32, Code::Unreachable),
        (tonic::Code::DeadlineExceeded as i32, Code::TimedOut),
        (tonic::Code::NotFound as i32, Code::NotFound),
        (tonic::Code::InvalidArgument as i32, Code::Invalid),
        (tonic::Code::PermissionDenied as i32, Code::Denied),
        (tonic::Code::Unimplemented as i32, Code::Unsupported),
        (tonic::Code::ResourceExhausted as i32, Code::Busy),
    ]);
    known
        .get(&(code as i32))
        .copied()
        .unwrap_or(Code::Internal)
        .as_str()
        .to_owned()
}

/// The exit code that belongs to a code.
#[must_use]
pub fn exit_of(code: Code) -> u8 {
    const EXITS: [(Code, u8); 15] = [
        (Code::CheckFailed, exit::CHECK),
        (Code::FrameworkAway, exit::UNREACHABLE),
        (Code::Usage, exit::USAGE),
        (Code::Invalid, exit::USAGE),
        (Code::NoContext, exit::UNREACHABLE),
        (Code::NotFound, exit::NOT_FOUND),
        (Code::Ambiguous, exit::USAGE),
        (Code::Unreachable, exit::UNREACHABLE),
        (Code::NoLeader, exit::UNREACHABLE),
        (Code::NotLeader, exit::UNREACHABLE),
        (Code::Denied, exit::DENIED),
        (Code::Conflict, exit::CONFLICT),
        (Code::InUse, exit::CONFLICT),
        (Code::TimedOut, exit::TIMED_OUT),
        (Code::Infeasible, exit::INFEASIBLE),
    ];
    EXITS
        .iter()
        .find(|(known, _)| *known == code)
        .map_or(exit::FAILED, |(_, exit)| *exit)
}

impl fmt::Display for CliError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "error[{}]: {}", self.code, self.sentence)?;
        for fact in self.facts.iter().take(3) {
            write!(f, "\n  {fact}")?;
        }
        let widest = self
            .next
            .iter()
            .map(|(command, _)| command.len())
            .max()
            .unwrap_or(0);
        for (index, (command, what)) in self.next.iter().take(3).enumerate() {
            let label = if index == 0 { "next:" } else { "" };
            write!(f, "\n  {label:<9} {command:<widest$}  {what}")?;
        }
        write!(f, "\n  {:<9} mete help {}", "more:", self.code)
    }
}

impl std::error::Error for CliError {}

impl From<tonic::Status> for CliError {
    fn from(status: tonic::Status) -> Self {
        Self::from_status(&status)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_says_its_code_the_facts_and_what_to_paste_next() {
        let error = CliError::new(Code::NoContext, "no cluster configured")
            .fact("looked at --master (unset)")
            .next("mete dev", "local cluster");
        let text = error.to_string();
        assert_eq!(
            text,
            "error[NO_CONTEXT]: no cluster configured\n  looked at --master (unset)\n  \
             next:     mete dev  local cluster\n  more:     mete help NO_CONTEXT"
        );
        assert_eq!(error.exit, exit::UNREACHABLE);
        assert_eq!(error.to_json()["error"]["code"], "NO_CONTEXT");
    }

    #[test]
    fn a_connection_that_broke_is_out_of_reach_and_no_defect() {
        let reset = std::io::Error::from(std::io::ErrorKind::ConnectionReset);
        let broken = CliError::from_status(&tonic::Status::from_error(Box::new(reset)));
        let said = CliError::from_status(&tonic::Status::internal("a defect"));

        assert!(
            broken.is(Code::Unreachable) && broken.is_passing(),
            "{broken}"
        );
        assert!(said.is(Code::Internal) && !said.is_passing(), "{said}");
    }
}
