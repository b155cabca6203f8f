//! What an ended attempt means: final, again at the user's cost, or again at nobody's.

use std::time::Duration;

use mete_sdk::{Code, Exit, TaskPhase};

use crate::element::State;

/// Attempts lost to the machine, not to the command, before an element is given up.
pub const MOST_REQUEUES: u8 = 10;

/// What becomes of an element.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// It is over.
    Final(State),
    /// Another attempt, not before the delay; `free` ones do not count against the user's retries.
    Again {
        /// The machine's fault.
        free: bool,
    },
}

/// How an attempt ended.
#[derive(Clone, Copy, Debug)]
pub struct End {
    /// Its last phase.
    pub phase: TaskPhase,
    /// Its stable reason.
    pub reason: Option<Code>,
    /// How the process ended.
    pub exit: Option<Exit>,
}

/// Judges the end of an attempt.
///
/// `failures` are the attempts that failed by themselves so far, without this one; `requeues` those
/// lost to the machine; `retries` what the user granted.
#[must_use]
pub fn judge(end: End, cancelling: bool, failures: u8, requeues: u8, retries: u32) -> Next {
    if cancelling && end.phase != TaskPhase::Finished {
        return Next::Final(State::Cancelled);
    }
    let infrastructure = |given_up: State| {
        if requeues < MOST_REQUEUES {
            Next::Again { free: true }
        } else {
            Next::Final(given_up)
        }
    };
    match end.phase {
        TaskPhase::Finished => Next::Final(State::Completed),
        TaskPhase::Lost | TaskPhase::Refused => infrastructure(State::NodeFail),
        TaskPhase::Killed => Next::Final(State::Cancelled),
        TaskPhase::Failed => match end.reason {
            Some(Code::TimeLimit) => Next::Final(State::Timeout),
            Some(Code::PrepareFailed | Code::LaunchTimeout | Code::SupervisorLost) => {
                infrastructure(State::Failed)
            }
            reason => {
                if u32::from(failures) < retries {
                    Next::Again { free: false }
                } else if reason == Some(Code::OutOfMemory) {
                    Next::Final(State::OutOfMemory)
                } else {
                    Next::Final(State::Failed)
                }
            }
        },
        TaskPhase::Staging | TaskPhase::Starting | TaskPhase::Running | TaskPhase::Finishing => {
            Next::Again { free: true }
        }
    }
}

/// How long the next attempt waits: one second, doubled with each attempt, a minute at the most.
#[must_use]
pub fn delay(attempts: u8) -> Duration {
    let doublings = u32::from(attempts.saturating_sub(1)).min(6);
    Duration::from_secs(1_u64 << doublings).min(Duration::from_secs(60))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn end(phase: TaskPhase, reason: Option<Code>) -> End {
        End {
            phase,
            reason,
            exit: None,
        }
    }

    #[test]
    fn a_lost_node_costs_the_user_no_retry_but_not_for_ever() {
        let lost = end(TaskPhase::Lost, Some(Code::AgentGone));
        assert_eq!(judge(lost, false, 0, 0, 0), Next::Again { free: true });
        assert_eq!(
            judge(lost, false, 0, MOST_REQUEUES, 9),
            Next::Final(State::NodeFail)
        );
    }

    #[test]
    fn a_failing_command_is_tried_as_often_as_the_user_says() {
        let failed = end(TaskPhase::Failed, Some(Code::ExitCode));
        assert_eq!(judge(failed, false, 0, 0, 1), Next::Again { free: false });
        assert_eq!(judge(failed, false, 1, 0, 1), Next::Final(State::Failed));
    }

    #[test]
    fn a_cancelled_element_that_finished_first_is_completed() {
        let finished = end(TaskPhase::Finished, None);
        assert_eq!(
            judge(finished, true, 0, 0, 0),
            Next::Final(State::Completed)
        );
        let killed = end(TaskPhase::Killed, Some(Code::KilledByFramework));
        assert_eq!(judge(killed, true, 0, 0, 5), Next::Final(State::Cancelled));
    }

    #[test]
    fn time_limits_are_not_retried() {
        let late = end(TaskPhase::Failed, Some(Code::TimeLimit));
        assert_eq!(judge(late, false, 0, 0, 5), Next::Final(State::Timeout));
    }
}
