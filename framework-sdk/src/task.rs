//! Tasks as a framework sees them: what to run, what became of it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use mete_model::task::FakeTask;
use mete_model::{
    AgentId, Bytes, ClaimId, Code, Exit, Resources, RolePath, RunId, StatusSource, TaskId,
    TaskPhase, Timestamp, Usage,
};

/// How a task runs, and what its task ids begin with.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TaskSpec {
    /// Task ids made by the SDK are `name-incarnation-number`: unique for ever.
    pub name: String,
    /// What the agent gets.
    pub run: mete_model::TaskSpec,
}

impl TaskSpec {
    /// A command, argv by argv; never passed through a shell.
    #[must_use]
    pub fn command<I, S>(name: &str, argv: I) -> Self
    where
        I: IntoIterator<Item = S>,
        S: Into<String>,
    {
        Self {
            name: name.to_owned(),
            run: mete_model::TaskSpec {
                command: argv.into_iter().map(Into::into).collect(),
                ..mete_model::TaskSpec::default()
            },
        }
    }

    /// A variable of the command's environment.
    #[must_use]
    pub fn env(mut self, name: &str, value: &str) -> Self {
        self.run
            .environment
            .insert(name.to_owned(), value.to_owned());
        self
    }

    /// Where it runs; otherwise in a directory of its own, made by the agent.
    #[must_use]
    pub fn working_directory(mut self, path: &str) -> Self {
        path.clone_into(&mut self.run.working_directory);
        self
    }

    /// Whose user it runs as; another one than the agent's needs an agent that runs as root.
    #[must_use]
    pub fn user(mut self, user: &str) -> Self {
        user.clone_into(&mut self.run.user);
        self
    }

    /// From SIGTERM to SIGKILL; 10 s if not said.
    #[must_use]
    pub fn kill_grace(mut self, grace: Duration) -> Self {
        self.run.kill_grace = Some(crate::wire::span(grace));
        self
    }

    /// The longest it may run.
    #[must_use]
    pub fn time_limit(mut self, limit: Duration) -> Self {
        self.run.time_limit = Some(crate::wire::span(limit));
        self
    }

    /// When its agent has been unreachable for so long, another run may take its place; otherwise
    /// nothing does until the agent is back or gone. See [`crate::Launch::replaces`].
    #[must_use]
    pub fn replace_after(mut self, patience: Duration) -> Self {
        self.run.partition.replace_after = Some(crate::wire::span(patience));
        self
    }

    /// Which of the two runs stays when a replaced one comes back; the newest if not said.
    #[must_use]
    pub fn keep(mut self, keep: mete_model::Keep) -> Self {
        self.run.partition.keep = keep;
        self
    }

    /// It ends by itself when its node has not heard from a leader for so long, also while the
    /// agent is down: for work that must never run twice. Not longer than `replace_after`.
    #[must_use]
    pub fn stop_if_silent(mut self, silence: Duration) -> Self {
        self.run.partition.stop_if_silent = Some(crate::wire::span(silence));
        self
    }

    /// A label that is shown and searched, and comes back in snapshots.
    #[must_use]
    pub fn label(mut self, name: &str, value: &str) -> Self {
        self.run.labels.insert(name.to_owned(), value.to_owned());
        self
    }

    /// How many log files of which size are kept.
    #[must_use]
    pub fn logs(mut self, file: Bytes, files: u32) -> Self {
        self.run.log_file = Some(file);
        self.run.log_files = Some(files);
        self
    }

    /// How a simulated agent plays it: for how long (zero = until killed), and the exit code.
    #[must_use]
    pub fn fake(mut self, runs_for: Duration, exit_code: u8) -> Self {
        self.run.fake = FakeTask {
            run: crate::wire::span(runs_for),
            exit_code,
        };
        self
    }
}

/// A launch with a run id of the framework's own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Launch {
    /// Unique for ever within the framework; a second launch of it is `ALREADY_EXISTS`.
    pub run: RunId,
    /// Shared by all launches that have it; sent once for each accept.
    pub spec: Arc<mete_model::TaskSpec>,
    /// Added to the spec's environment, over it: what differs from task to task.
    pub environment: BTreeMap<String, String>,
    /// Added to the spec's labels.
    pub labels: BTreeMap<String, String>,
    /// A run that may be replaced ([`crate::Event::Replaceable`]) and whose place this one takes:
    /// when its agent is back, one of the two is ended with `REPLACED`, as the old one's spec says.
    pub replaces: Option<RunId>,
}

impl Launch {
    /// A launch that adds nothing to its spec.
    #[must_use]
    pub fn new(run: RunId, spec: Arc<mete_model::TaskSpec>) -> Self {
        Self {
            run,
            spec,
            environment: BTreeMap::new(),
            labels: BTreeMap::new(),
            replaces: None,
        }
    }

    /// Takes the place of a run that may be replaced.
    #[must_use]
    pub fn replacing(mut self, old: RunId) -> Self {
        self.replaces = Some(old);
        self
    }
}

/// One numbered status of one run. Comes at least once, in order per run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaskUpdate {
    /// The task.
    pub task: TaskId,
    /// Which launch of it, from 1.
    pub attempt: u32,
    /// 1, 2, 3 … for each run; 0 for what the SDK found out by itself.
    pub sequence: u64,
    /// Where the run is now.
    pub phase: TaskPhase,
    /// Stable reason of an end; `None` also for one that this release does not know.
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
    /// Where it runs, as far as it is known.
    pub agent: Option<AgentId>,
    /// The claim it was launched for, as far as it is known.
    pub claim: Option<ClaimId>,
}

impl TaskUpdate {
    /// The run.
    #[must_use]
    pub fn run(&self) -> RunId {
        RunId::new(self.task.clone(), self.attempt)
    }

    /// Says whether nothing of this run comes after it.
    #[must_use]
    pub fn is_terminal(&self) -> bool {
        self.phase.is_terminal()
    }
}

/// What the broker knows of an agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum AgentCondition {
    /// Connected.
    Ready,
    /// Known, not back yet since this leader took over.
    Recovering,
    /// Not heard of for a while; its tasks go on as far as anybody knows.
    Unreachable,
    /// Never comes back.
    Gone,
}

/// A run that is not over, or whose end has not been acknowledged yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunInfo {
    /// The run.
    pub run: RunId,
    /// Where it is in its life, as far as this process has been told.
    pub phase: TaskPhase,
    /// Who is charged.
    pub role: Option<RolePath>,
    /// What it was launched for.
    pub claim: Option<ClaimId>,
    /// Where.
    pub agent: Option<AgentId>,
    /// The node's name; empty if not known.
    pub node: String,
    /// The node API of its agent, `host:port`; empty if not known.
    pub node_address: String,
    /// What it holds.
    pub resources: Resources,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
    /// How its agent is.
    pub agent_condition: AgentCondition,
    /// Since when another run may take its place; `None` = none may.
    pub replaceable: Option<Timestamp>,
    /// The run whose place it took.
    pub replaces: Option<RunId>,
}

impl RunInfo {
    /// Nothing known but the name.
    pub(crate) fn unknown(run: RunId) -> Self {
        Self {
            run,
            phase: TaskPhase::Staging,
            role: None,
            claim: None,
            agent: None,
            node: String::new(),
            node_address: String::new(),
            resources: Resources::default(),
            labels: BTreeMap::new(),
            agent_condition: AgentCondition::Ready,
            replaceable: None,
            replaces: None,
        }
    }
}

/// A claim as the broker has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClaimInfo {
    /// The claim.
    pub claim: mete_model::Claim,
    /// Launched so far.
    pub launched: u32,
}

impl ClaimInfo {
    /// How many tasks are still wanted.
    #[must_use]
    pub fn remaining(&self) -> u32 {
        self.claim.count.saturating_sub(self.launched)
    }
}
