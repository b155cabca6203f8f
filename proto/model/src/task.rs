//! Tasks: their phases and legal moves, what they run, how they end.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::ids::RunId;
use crate::partition::Partition;
use crate::quantity::Bytes;
use crate::reason::Code;
use crate::time::{Span, Timestamp};

/// Where a run is in its life. Only forward; a step may be skipped, never repeated or reversed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum TaskPhase {
    /// Committed, not yet at work on the agent.
    Staging,
    /// Being prepared.
    Starting,
    /// The command runs.
    Running,
    /// Stop asked for, grace running.
    Finishing,
    /// Ended by itself with exit code 0.
    Finished,
    /// Ended by itself otherwise, or could not be started.
    Failed,
    /// Ended because somebody asked for it.
    Killed,
    /// Its agent is gone, or forgot it.
    Lost,
    /// The agent said no before any of it ran.
    Refused,
}

impl TaskPhase {
    /// Every phase, in order.
    pub const ALL: [Self; 9] = [
        Self::Staging,
        Self::Starting,
        Self::Running,
        Self::Finishing,
        Self::Finished,
        Self::Failed,
        Self::Killed,
        Self::Lost,
        Self::Refused,
    ];

    /// Says whether nothing comes after it.
    #[must_use]
    pub fn is_terminal(self) -> bool {
        match self {
            Self::Staging | Self::Starting | Self::Running | Self::Finishing => false,
            Self::Finished | Self::Failed | Self::Killed | Self::Lost | Self::Refused => true,
        }
    }

    /// Says whether a run in this phase may move to `next`.
    #[must_use]
    pub fn may_become(self, next: Self) -> bool {
        !self.is_terminal() && (next.is_terminal() || next > self)
    }

    /// The lower-case word that tables print.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Staging => "staging",
            Self::Starting => "starting",
            Self::Running => "running",
            Self::Finishing => "finishing",
            Self::Finished => "finished",
            Self::Failed => "failed",
            Self::Killed => "killed",
            Self::Lost => "lost",
            Self::Refused => "refused",
        }
    }
}

impl fmt::Display for TaskPhase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.word())
    }
}

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Exit {
    /// By itself, with this code.
    Code(u8),
    /// By this signal.
    Signal(u8),
}

/// What a run used, as far as the agent could see it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Usage {
    /// CPU time in milliseconds.
    pub cpu_ms: u64,
    /// Peak memory; zero = unknown.
    pub memory_peak: Bytes,
    /// From start to end in milliseconds.
    pub wall_ms: u64,
}

/// Who made a status.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum StatusSource {
    /// The agent that runs it.
    Agent,
    /// The master, for what no agent can say.
    Master,
    /// The framework's own word.
    Framework,
    /// An operator's word.
    Operator,
}

/// One numbered status of one run.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Status {
    /// The run.
    pub run: RunId,
    /// 1, 2, 3 … for each run.
    pub sequence: u64,
    /// Where the run is now.
    pub phase: TaskPhase,
    /// Stable reason of an end.
    pub reason: Option<Code>,
    /// For people.
    pub message: String,
    /// Who says so.
    pub source: StatusSource,
    /// When, on the source's clock.
    pub at: Timestamp,
    /// How the process ended, if one did.
    pub exit: Option<Exit>,
    /// What it used.
    pub usage: Option<Usage>,
    /// Statuses that were not ends were merged into this one.
    pub coalesced: bool,
}

/// How a simulated agent plays a task.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct FakeTask {
    /// How long it pretends to run; zero = until killed.
    pub run: Span,
    /// The code it pretends to end with.
    pub exit_code: u8,
}

/// How a task runs; shared by all tasks that were launched with it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct TaskSpec {
    /// argv; never passed through a shell.
    pub command: Vec<String>,
    /// Set for the command; nothing else is inherited but PATH, HOME, LANG and TMPDIR.
    pub environment: BTreeMap<String, String>,
    /// Empty = the task's own directory.
    pub working_directory: String,
    /// Empty = the agent's user.
    pub user: String,
    /// SIGTERM to SIGKILL; `None` = 10 s.
    pub kill_grace: Option<Span>,
    /// All stages before Running together; `None` = 10 min.
    pub launch_timeout: Option<Span>,
    /// Hard limit of the run.
    pub time_limit: Option<Span>,
    /// Shown and searched, never interpreted.
    pub labels: BTreeMap<String, String>,
    /// Largest size of one log file; `None` = 10 MiB.
    pub log_file: Option<Bytes>,
    /// Log files kept; `None` = 5.
    pub log_files: Option<u32>,
    /// For simulated agents only.
    pub fake: FakeTask,
    /// What happens while nobody hears of its node.
    #[serde(default)]
    pub partition: Partition,
}

/// SIGTERM to SIGKILL, when neither spec nor kill says otherwise.
pub const KILL_GRACE: Span = Span::seconds(10);

/// All stages before Running together, when the spec does not say otherwise.
pub const LAUNCH_TIMEOUT: Span = Span::minutes(10);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn phases_only_move_forward_and_stop_at_an_end() {
        for from in TaskPhase::ALL {
            for to in TaskPhase::ALL {
                let legal = from.may_become(to);
                assert!(!(legal && from.is_terminal()), "{from} -> {to}");
                assert!(!(legal && to <= from), "{from} -> {to}");
            }
        }
        assert!(TaskPhase::Staging.may_become(TaskPhase::Running));
        assert!(!TaskPhase::Finishing.may_become(TaskPhase::Running));
    }
}
