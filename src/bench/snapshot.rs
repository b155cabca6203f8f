//! `mete bench snapshot`: how long the loop stands still for a snapshot of a large state: while its
//! records are taken, and at the changes after it, which copy what the snapshot still holds. Beside
//! it, in the same run, what a whole copy of the state would take.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use mete_model::{
    AgentId, Bytes, Code, FrameworkId, MilliCpu, NodeKey, Resources, RolePath, RunId, Status,
    StatusSource, TaskId, TaskPhase, TaskSpec, Timestamp,
};
use mete_state::command::{AdmitAgent, FrameworkSettings, Launch, LaunchTask, Subscribe};
use mete_state::{Caller, Command, Stamped, State};
use uuid::Uuid;

use super::{Figures, decimal, usage};
use crate::cli::support::error::{CliError, Outcome};
use crate::daemon::machine;

/// Tasks of one agent; one command launches, ends or acknowledges all of them.
const TASKS_OF_AN_AGENT: u32 = 20;

/// Every how many-th agent's tasks end before the snapshot, and while it is held.
const ENDED: (usize, usize) = (100, 7);

/// Measures.
///
/// # Errors
/// Sizes that cannot be.
pub fn run(tasks: u32) -> Outcome<Figures> {
    let agents = tasks / TASKS_OF_AN_AGENT;
    if agents == 0 || tasks > 5_000_000 {
        return Err(usage(format!(
            "--tasks is within {TASKS_OF_AN_AGENT} to 5000000"
        )));
    }
    let mut filled = Filled::of(agents)?;
    let undisturbed = filled.end_some(ENDED.0)?;
    let digest = filled.state.digest();

    let began = Instant::now();
    let records = filled.state.records();
    let taken = began.elapsed();
    let held = filled.end_some(ENDED.1)?;
    if records.digest() != digest {
        return Err(defect("the records changed with the state"));
    }
    let began = Instant::now();
    let copy = filled.state.clone();
    let copied = began.elapsed();
    drop(copy);

    let mut figures = Figures::default();
    figures.put("tasks", agents * TASKS_OF_AN_AGENT);
    figures.put("taken_ms", decimal(ms(taken)));
    figures.put("copy_ms", decimal(ms(copied)));
    figures.put("copy_over_taken", decimal(ms(copied) / ms(taken)));
    figures.put("longest_command_before_ms", decimal(ms(undisturbed)));
    figures.put("longest_command_held_ms", decimal(ms(held)));
    figures.put("tasks_of_a_command", TASKS_OF_AN_AGENT);
    Ok(figures)
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1000.0
}

fn defect(what: impl std::fmt::Display) -> CliError {
    CliError::new(Code::Internal, format!("{what}: a defect of mete"))
}

/// A state full of running tasks.
struct Filled {
    state: State,
    agents: u32,
    caller: Caller,
}

impl Filled {
    fn of(agents: u32) -> Outcome<Self> {
        let framework = FrameworkId(Uuid::from_u128(1));
        let mut filled = Self {
            state: State::new(),
            agents,
            caller: Caller {
                framework,
                incarnation: 1,
                call: 0,
                answered: 0,
            },
        };
        let role = RolePath::new("batch").map_err(defect)?;
        filled.apply(Command::SetRole {
            path: role.clone(),
            weight_milli: None,
            actor: "bench".to_owned(),
        })?;
        filled.apply(Command::Subscribe(Subscribe {
            framework,
            principal: "bench".to_owned(),
            name: "batch".to_owned(),
            incarnation: 0,
            settings: FrameworkSettings {
                roles: vec![role.clone()],
                ..FrameworkSettings::default()
            },
        }))?;
        let spec = Arc::new(TaskSpec {
            command: vec!["render".to_owned(), "x".repeat(200)],
            ..TaskSpec::default()
        });
        for agent in 0..agents {
            filled.apply(Command::AdmitAgent(AdmitAgent {
                agent: agent_id(agent),
                node_key: NodeKey(Uuid::from_u128(u128::from(agent) + 1)),
                node_name: format!("f{agent:06}"),
                inventory: machine::imagined(1),
                held: Vec::new(),
            }))?;
            filled.launch(agent, &role, &spec)?;
            filled.report(agent, 1, TaskPhase::Running)?;
            filled.acknowledge(agent, 1)?;
        }
        Ok(filled)
    }

    fn apply(&mut self, command: Command) -> Outcome<Duration> {
        let revision = self.state.revision() + 1;
        let stamped = Stamped {
            at: Timestamp(revision),
            command,
        };
        let began = Instant::now();
        self.state.apply(revision, &stamped).map_err(defect)?;
        Ok(began.elapsed())
    }

    fn launch(&mut self, agent: u32, role: &RolePath, spec: &Arc<TaskSpec>) -> Outcome {
        let resources = Resources {
            cpu: MilliCpu(50),
            memory: Bytes(10 << 20),
            ..Resources::default()
        };
        let task = |run| LaunchTask {
            run,
            claim: None,
            resources: resources.clone(),
            spec: Arc::clone(spec),
            environment: BTreeMap::new(),
            labels: BTreeMap::new(),
            replaces: None,
        };
        let launch = Launch {
            caller: self.caller,
            role: role.clone(),
            agent: agent_id(agent),
            topology_epoch: machine::imagined(1).topology_epoch,
            tasks: runs(agent)?.into_iter().map(task).collect(),
            each_alone: false,
        };
        self.apply(Command::Launch(launch)).map(drop)
    }

    fn report(&mut self, agent: u32, sequence: u64, phase: TaskPhase) -> Outcome<Duration> {
        let framework = self.caller.framework;
        let status = |run| Status {
            run,
            sequence,
            phase,
            reason: None,
            message: String::new(),
            source: StatusSource::Agent,
            at: Timestamp(1),
            exit: None,
            usage: None,
            coalesced: false,
        };
        let statuses = runs(agent)?.into_iter().map(|run| (framework, status(run)));
        self.apply(Command::RecordStatuses {
            agent: agent_id(agent),
            statuses: statuses.collect(),
        })
    }

    fn acknowledge(&mut self, agent: u32, sequence: u64) -> Outcome<Duration> {
        let items = runs(agent)?.into_iter().map(|run| (run, sequence));
        self.apply(Command::Acknowledge {
            caller: self.caller,
            items: items.collect(),
        })
    }

    /// Ends the tasks of every `step`th agent; gives the longest of all commands.
    fn end_some(&mut self, step: usize) -> Outcome<Duration> {
        let mut longest = Duration::ZERO;
        for agent in (0..self.agents).step_by(step) {
            longest = longest.max(self.report(agent, 2, TaskPhase::Finished)?);
            longest = longest.max(self.acknowledge(agent, 2)?);
        }
        Ok(longest)
    }
}

fn agent_id(number: u32) -> AgentId {
    AgentId(Uuid::from_u128(u128::from(number) + 1))
}

fn runs(agent: u32) -> Outcome<Vec<RunId>> {
    (0..TASKS_OF_AN_AGENT)
        .map(|number| {
            let task = TaskId::new(&format!("render-{agent:06}-{number:02}"));
            Ok(RunId::new(task.map_err(defect)?, 1))
        })
        .collect()
}
