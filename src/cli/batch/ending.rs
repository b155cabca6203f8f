//! How a job ended, as an exit code, and who says so.
//!
//! A command's own code passes through; ends that we or the machine made never look like one of
//! them, except for `128 + n`, which is the shells' word for a signal.

use mete_proto::batch::v1::{Element, JobRow, JobState};
use mete_proto::types::v1::exit::How;
use serde_json::{Value, json};

use crate::cli::support::error::exit;
use crate::cli::support::words;

/// Who produced an exit code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum By {
    /// The command itself.
    Command,
    /// mete, about the command.
    Mete,
}

/// An exit code, and where it comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ending {
    /// For the shell.
    pub code: u8,
    /// Who produced it.
    pub by: By,
}

/// What is known of an end.
#[derive(Clone, Debug, Default)]
pub struct End<'a> {
    /// The job's or element's state.
    pub state: JobState,
    /// Code of the command, if it gave one.
    pub code: Option<u32>,
    /// Signal that ended it, if one did.
    pub signal: Option<u32>,
    /// Stable reason.
    pub reason: &'a str,
    /// What the agent said.
    pub message: &'a str,
}

/// The exit code of an end.
#[must_use]
pub fn of(end: &End<'_>) -> Ending {
    let mete = |code| Ending { code, by: By::Mete };
    let small = |number: u32| u8::try_from(number).unwrap_or(u8::MAX);
    match end.state {
        JobState::Completed => Ending {
            code: 0,
            by: By::Command,
        },
        JobState::Failed | JobState::OutOfMemory | JobState::Cancelled | JobState::Evicted => {
            match (end.code, end.signal) {
                (_, Some(signal)) => mete(exit::SIGNAL_BASE.saturating_add(small(signal.min(127)))),
                (Some(code), None) if code != 0 && end.state == JobState::Failed => Ending {
                    code: small(code),
                    by: By::Command,
                },
                _ if end.reason == "EXEC_FAILED" => mete(not_executed(end.message)),
                _ if NEVER_RAN.contains(&end.reason) => mete(exit::OURS),
                _ => mete(exit::FAILED),
            }
        }
        JobState::Timeout | JobState::NodeFail | JobState::Deadline => mete(exit::FAILED),
        JobState::Unspecified | JobState::Pending | JobState::Running => mete(exit::FAILED),
    }
}

/// Reasons of ends before the command ran.
const NEVER_RAN: [&str; 5] = [
    "PREPARE_FAILED",
    "LAUNCH_TIMEOUT",
    "NEVER_STARTED",
    "DISK_PRESSURE",
    "DEVICE_GONE",
];

/// 127 for a command that was not found, 126 for one that could not be executed, as shells say it.
fn not_executed(message: &str) -> u8 {
    if message.starts_with("change directory") {
        return exit::OURS;
    }
    let missing = ["os error 2)", "No such file", "not found"];
    if missing.iter().any(|word| message.contains(word)) {
        exit::COMMAND_NOT_FOUND
    } else {
        exit::NOT_EXECUTABLE
    }
}

/// The ending of one element.
#[must_use]
pub fn of_element(element: &Element) -> Ending {
    let how = element.exit.as_ref().and_then(|exit| exit.how.as_ref());
    of(&End {
        state: element.state(),
        code: match how {
            Some(How::Code(code)) => Some(*code),
            Some(How::Signal(_)) | None => None,
        },
        signal: match how {
            Some(How::Signal(signal)) => Some(*signal),
            Some(How::Code(_)) | None => None,
        },
        reason: &element.reason,
        message: &element.message,
    })
}

/// The ending of a whole job: its highest code; a signal counts before a code of the command.
#[must_use]
pub fn of_row(row: &JobRow) -> Ending {
    of(&End {
        state: row.state(),
        code: (row.exit_code != 0).then_some(row.exit_code),
        signal: (row.exit_signal != 0).then_some(row.exit_signal),
        reason: &row.reason,
        message: "",
    })
}

/// As facts.
#[must_use]
pub fn facts(row: &JobRow, ending: Ending) -> Value {
    let by = match ending.by {
        By::Command => "COMMAND",
        By::Mete => "METE",
    };
    json!({
        "job": row.job,
        "name": row.job,
        "state": words::bare(row.state().as_str_name(), "JOB_STATE_"),
        "reason": words::known(&row.reason),
        "exit_code": ending.code,
        "exit_by": by,
        "exit_signal": words::known_number(u64::from(row.exit_signal)),
        "elements": row.elements,
        "completed": row.completed,
        "failed": row.failed,
        "cancelled": row.cancelled,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exit_codes_pass_through_and_ours_are_reserved() {
        let end = |state, code, signal, reason, message| End {
            state,
            code,
            signal,
            reason,
            message,
        };
        let table = [
            (
                end(JobState::Completed, Some(0), None, "", ""),
                0,
                By::Command,
            ),
            (
                end(JobState::Failed, Some(7), None, "EXIT_CODE", ""),
                7,
                By::Command,
            ),
            (
                end(JobState::Failed, Some(125), None, "EXIT_CODE", ""),
                125,
                By::Command,
            ),
            (
                end(JobState::Failed, Some(255), None, "EXIT_CODE", ""),
                255,
                By::Command,
            ),
            (
                end(JobState::Failed, None, Some(11), "SIGNAL", ""),
                139,
                By::Mete,
            ),
            (
                end(
                    JobState::Cancelled,
                    None,
                    Some(15),
                    "KILLED_BY_FRAMEWORK",
                    "",
                ),
                143,
                By::Mete,
            ),
            (
                end(JobState::OutOfMemory, None, Some(9), "OUT_OF_MEMORY", ""),
                137,
                By::Mete,
            ),
            (
                end(
                    JobState::Failed,
                    None,
                    None,
                    "EXEC_FAILED",
                    "execve: No such file or directory (os error 2)",
                ),
                127,
                By::Mete,
            ),
            (
                end(
                    JobState::Failed,
                    None,
                    None,
                    "EXEC_FAILED",
                    "execve: Permission denied (os error 13)",
                ),
                126,
                By::Mete,
            ),
            (
                end(
                    JobState::Failed,
                    None,
                    None,
                    "EXEC_FAILED",
                    "change directory: No such file or directory (os error 2)",
                ),
                125,
                By::Mete,
            ),
            (
                end(
                    JobState::Failed,
                    None,
                    None,
                    "PREPARE_FAILED",
                    "cgroup: busy",
                ),
                125,
                By::Mete,
            ),
            (
                end(JobState::Timeout, None, Some(15), "TIME_LIMIT", ""),
                1,
                By::Mete,
            ),
            (
                end(JobState::NodeFail, None, None, "AGENT_GONE", ""),
                1,
                By::Mete,
            ),
            (end(JobState::Cancelled, None, None, "", ""), 1, By::Mete),
            (end(JobState::Cancelled, Some(0), None, "", ""), 1, By::Mete),
        ];
        for (end, code, by) in table {
            assert_eq!(of(&end), Ending { code, by }, "{end:?}");
        }
    }
}
