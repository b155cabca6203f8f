//! What an ended attempt means: final, again at the user's cost, or again at nobody's.

use std::time::Duration;

use mete_sdk::{Code, Exit, TaskPhase};

use crate::element::State;

/// Attempts lost to the machine, not to the command, before an element is given up.
pub const MOST_REQUEUES: u8 = 10;

/// Of these, attempts in a row in which a node could not even set the process up. Beyond it what
/// was asked for, such as a memory limit in which no process fits, is the likelier cause.
pub const MOST_UNPREPARED: u8 = 6;

/// Different nodes in a row that could not set it up: then it is not the node.
pub const MOST_UNPREPARED_NODES: u8 = 3;

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

/// The attempts of an element before the one that is judged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tries {
    /// Failed by themselves.
    pub failures: u8,
    /// Lost to the machine.
    pub requeues: u8,
    /// In a row, with this one, that could not be set up.
    pub unprepared: u8,
    /// On so many different nodes.
    pub unprepared_nodes: u8,
    /// What the user granted.
    pub retries: u32,
}

/// The node could not set the process up: no code of the command ran.
#[must_use]
pub fn is_unprepared(end: End) -> bool {
    end.phase == TaskPhase::Failed && end.reason == Some(Code::PrepareFailed)
}

/// Judges the end of an attempt.
#[must_use]
pub fn judge(end: End, cancelling: bool, tries: Tries) -> Next {
    if cancelling && end.phase != TaskPhase::Finished {
        return Next::Final(State::Cancelled);
    }
    let infrastructure = |given_up: State| {
        if tries.requeues < MOST_REQUEUES {
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
            Some(Code::PrepareFailed)
                if tries.unprepared >= MOST_UNPREPARED
                    || tries.unprepared_nodes >= MOST_UNPREPARED_NODES =>
            {
                Next::Final(State::Failed)
            }
            Some(Code::PrepareFailed | Code::LaunchTimeout | Code::SupervisorLost) => {
                infrastructure(State::Failed)
            }
            reason => {
                if u32::from(tries.failures) < tries.retries {
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

    fn tries(failures: u8, requeues: u8, retries: u32) -> Tries {
        Tries {
            failures,
            requeues,
            retries,
            ..Tries::default()
        }
    }

    #[test]
    fn a_lost_node_costs_the_user_no_retry_but_not_for_ever() {
        let lost = end(TaskPhase::Lost, Some(Code::AgentGone));
        let again = Next::Again { free: true };
        assert_eq!(judge(lost, false, tries(0, 0, 0)), again);
        assert_eq!(
            judge(lost, false, tries(0, MOST_REQUEUES, 9)),
            Next::Final(State::NodeFail)
        );
    }

    #[test]
    fn what_cannot_be_set_up_is_given_up_sooner_than_a_node_and_costs_no_retry() {
        let failed = end(TaskPhase::Failed, Some(Code::PrepareFailed));
        let judged = |unprepared, unprepared_nodes| {
            let tries = Tries {
                unprepared,
                unprepared_nodes,
                ..tries(0, unprepared - 1, 5)
            };
            judge(failed, false, tries)
        };
        let given_up = Next::Final(State::Failed);
        assert_eq!(judged(1, 1), Next::Again { free: true });
        assert_eq!(judged(MOST_UNPREPARED - 1, 1), Next::Again { free: true });
        assert_eq!(judged(MOST_UNPREPARED, 1), given_up);
        assert_eq!(judged(3, MOST_UNPREPARED_NODES), given_up);
        // Another process does not know how many were in a row, but how many there were.
        let forgotten = tries(0, MOST_REQUEUES, 5);
        assert_eq!(judge(failed, false, forgotten), given_up);
    }

    #[test]
    fn a_failing_command_is_tried_as_often_as_the_user_says() {
        let failed = end(TaskPhase::Failed, Some(Code::ExitCode));
        let again = Next::Again { free: false };
        assert_eq!(judge(failed, false, tries(0, 0, 1)), again);
        assert_eq!(
            judge(failed, false, tries(1, 0, 1)),
            Next::Final(State::Failed)
        );
    }

    #[test]
    fn a_cancelled_element_that_finished_first_is_completed() {
        let finished = end(TaskPhase::Finished, None);
        assert_eq!(
            judge(finished, true, tries(0, 0, 0)),
            Next::Final(State::Completed)
        );
        let killed = end(TaskPhase::Killed, Some(Code::KilledByFramework));
        assert_eq!(
            judge(killed, true, tries(0, 0, 5)),
            Next::Final(State::Cancelled)
        );
    }

    #[test]
    fn time_limits_are_not_retried() {
        let late = end(TaskPhase::Failed, Some(Code::TimeLimit));
        assert_eq!(
            judge(late, false, tries(0, 0, 5)),
            Next::Final(State::Timeout)
        );
    }
}
