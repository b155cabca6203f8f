//! How long the loop stands still for a snapshot of a million running tasks: while the records are
//! taken, and at the first changes after it, which copy what the snapshot still holds.
//!
//! `cargo test --release -p mete-state --test snapshot_stall -- --ignored --nocapture`

#![expect(
    clippy::arithmetic_side_effects,
    clippy::disallowed_types,
    clippy::disallowed_methods,
    reason = "numbers in tests are small; a measurement needs a clock, the state has none"
)]

mod support;

use std::sync::Arc;
use std::time::{Duration, Instant};

use mete_model::{Bytes, TaskPhase, TaskSpec, Timestamp};
use mete_state::command::{Launch, Subscribe};
use mete_state::{Caller, Command, Stamped, State};
use support::{
    admit, agent_id, framework_id, machine, resources, role, run_id, settings, status, task,
};

const RUNS_OF_AN_AGENT: u64 = 20;

/// The longest that the taking, and any one command of 20 tasks after it, may take.
const MOST: Duration = Duration::from_millis(20);

struct Filled {
    state: State,
    agents: u64,
}

impl Filled {
    fn apply(&mut self, command: Command) -> Duration {
        let revision = self.state.revision() + 1;
        let stamped = Stamped {
            at: Timestamp(revision),
            command,
        };
        let began = Instant::now();
        self.state.apply(revision, &stamped).expect("it passes");
        began.elapsed()
    }

    fn of(agents: u64) -> Self {
        let mut filled = Self {
            state: State::new(),
            agents,
        };
        filled.apply(Command::SetRole {
            path: role("batch"),
            weight_milli: None,
            actor: String::new(),
        });
        filled.apply(Command::Subscribe(Subscribe {
            framework: framework_id(1),
            principal: "p".to_owned(),
            name: "batch".to_owned(),
            incarnation: 0,
            settings: settings(&["batch"]),
        }));
        let spec = Arc::new(TaskSpec {
            command: vec!["render".to_owned(), "x".repeat(200)],
            ..TaskSpec::default()
        });
        for agent in 0..agents {
            filled.apply(Command::AdmitAgent(admit(agent.into(), machine("b"))));
            filled.apply(launch(agent, &spec));
            filled.report(agent, 1, TaskPhase::Running);
            filled.acknowledge(agent, 1);
        }
        filled
    }

    fn report(&mut self, agent: u64, sequence: u64, phase: TaskPhase) -> Duration {
        let statuses = ids(agent).map(|run| (framework_id(1), status(run, sequence, phase, None)));
        self.apply(Command::RecordStatuses {
            agent: agent_id(agent.into()),
            statuses: statuses.collect(),
        })
    }

    fn acknowledge(&mut self, agent: u64, sequence: u64) -> Duration {
        self.apply(Command::Acknowledge {
            caller: caller(),
            items: ids(agent).map(|run| (run, sequence)).collect(),
        })
    }

    /// Ends the tasks of every `step`th agent; the longest of all commands.
    fn end_some(&mut self, step: usize) -> Duration {
        let mut longest = Duration::ZERO;
        for agent in (0..self.agents).step_by(step) {
            longest = longest.max(self.report(agent, 2, TaskPhase::Finished));
            longest = longest.max(self.acknowledge(agent, 2));
        }
        longest
    }
}

fn caller() -> Caller {
    Caller {
        framework: framework_id(1),
        incarnation: 1,
        call: 0,
        answered: 0,
    }
}

fn ids(agent: u64) -> impl Iterator<Item = mete_model::RunId> {
    let numbers = agent * RUNS_OF_AN_AGENT..(agent + 1) * RUNS_OF_AN_AGENT;
    numbers.map(|number| run_id(&format!("render-frames/{number:07}#1")))
}

fn launch(agent: u64, spec: &Arc<TaskSpec>) -> Command {
    let one = |run| {
        let mut one = task(run, None, resources(50, 10, "", Vec::new()));
        one.resources.disk = Bytes(0);
        one.spec = Arc::clone(spec);
        one
    };
    Command::Launch(Launch {
        caller: caller(),
        role: role("batch"),
        agent: agent_id(agent.into()),
        topology_epoch: 1,
        tasks: ids(agent).map(one).collect(),
        each_alone: false,
    })
}

#[test]
#[ignore = "fills a state with a million tasks and times it: only by itself, and optimised"]
fn a_snapshot_of_a_million_tasks_stops_nothing_for_long() {
    let mut filled = Filled::of(50_000);
    let runs = filled.state.all_runs().count();
    assert_eq!(runs, 1_000_000);
    let undisturbed = filled.end_some(100);
    let digest = filled.state.digest();

    let began = Instant::now();
    let records = filled.state.records();
    let taking = began.elapsed();
    let after = filled.end_some(7);

    let began = Instant::now();
    let held = records.digest();
    let digesting = began.elapsed();
    let began = Instant::now();
    let whole = filled.state.clone();
    let copying = began.elapsed();
    drop(whole);
    eprintln!(
        "{runs} tasks: records taken in {taking:?}; longest command of {RUNS_OF_AN_AGENT} tasks \
         {undisturbed:?} before, {after:?} after it; a copy with all that is derived takes \
         {copying:?}, a digest {digesting:?}"
    );
    assert_eq!(held, digest, "the records are of their moment");
    assert!(taking < MOST && after < MOST, "{taking:?}, {after:?}");
}
