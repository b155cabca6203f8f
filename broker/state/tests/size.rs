//! How much memory a live run takes in the state: a million of them, with 50 000 agents, have to
//! fit well below 4 GiB together with everything else a master holds.

#![cfg(target_os = "linux")]
#![expect(clippy::arithmetic_side_effects, reason = "numbers in tests are small")]

mod support;

use std::sync::Arc;

use mete_model::{Bytes, TaskPhase, TaskSpec, Timestamp};
use mete_state::command::{Launch, Subscribe};
use mete_state::{Caller, Command, Stamped, State, Verdict};
use support::{
    admit, agent_id, framework_id, machine, resources, role, run_id, settings, status, task,
};

const AGENTS: u64 = 2_500;
const RUNS_OF_AN_AGENT: u64 = 20;
/// Per live run, its share of the agents included.
const MOST_BYTES: u64 = 1_024;

/// Resident memory of this process.
fn resident() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").expect("procfs");
    let pages: u64 = statm
        .split(' ')
        .nth(1)
        .and_then(|n| n.parse().ok())
        .expect("a number");
    pages * 4096
}

fn apply(state: &mut State, command: Command) -> Verdict {
    let revision = state.revision() + 1;
    let stamped = Stamped {
        at: Timestamp(revision),
        command,
    };
    state
        .apply(revision, &stamped)
        .expect("a good command")
        .verdict
}

fn caller() -> Caller {
    Caller {
        framework: framework_id(1),
        incarnation: 1,
        call: 0,
        answered: 0,
    }
}

/// As an array job would: ids with a number, its index in the environment, a spec that was
/// decoded anew from each message.
fn launch(agent: u64) -> Command {
    let one = |at: u64| {
        let number = agent * RUNS_OF_AN_AGENT + at;
        let mut one = task(
            run_id(&format!("render-frames/{number:07}#1")),
            None,
            resources(50, 10, "", Vec::new()),
        );
        one.environment
            .insert("INDEX".to_owned(), number.to_string());
        one.resources.disk = Bytes(0);
        one
    };
    let mut tasks: Vec<_> = (0..RUNS_OF_AN_AGENT).map(one).collect();
    let spec = Arc::new(TaskSpec {
        command: vec!["render".to_owned(), "x".repeat(200)],
        ..TaskSpec::default()
    });
    for task in &mut tasks {
        task.spec = Arc::clone(&spec);
    }
    Command::Launch(Launch {
        caller: caller(),
        role: role("batch"),
        agent: agent_id(agent.into()),
        topology_epoch: 1,
        tasks,
        each_alone: false,
    })
}

fn run_all(state: &mut State, agent: u64) {
    let runs: Vec<_> = state
        .runs_on(agent_id(agent.into()))
        .map(|run| run.id.clone())
        .collect();
    let running = |run: &mete_model::RunId| {
        (
            framework_id(1),
            status(run.clone(), 1, TaskPhase::Running, None),
        )
    };
    let record = Command::RecordStatuses {
        agent: agent_id(agent.into()),
        statuses: runs.iter().map(running).collect(),
    };
    apply(state, record);
    let acknowledge = Command::Acknowledge {
        caller: caller(),
        items: runs.into_iter().map(|run| (run, 1)).collect(),
    };
    apply(state, acknowledge);
}

#[test]
fn a_running_task_takes_less_than_a_kibibyte() {
    let mut state = State::new();
    let before = resident();
    let set = Command::SetRole {
        path: role("batch"),
        weight_milli: None,
        actor: String::new(),
    };
    apply(&mut state, set);
    let subscribe = Subscribe {
        framework: framework_id(1),
        principal: "p".to_owned(),
        name: "batch".to_owned(),
        incarnation: 0,
        settings: settings(&["batch"]),
    };
    apply(&mut state, Command::Subscribe(subscribe));
    for agent in 0..AGENTS {
        apply(
            &mut state,
            Command::AdmitAgent(admit(agent.into(), machine("b"))),
        );
        let Verdict::Launched(tasks) = apply(&mut state, launch(agent)) else {
            panic!("a launch is answered as one");
        };
        assert!(
            tasks.iter().all(|task| task.grant.is_some()),
            "{:?}",
            tasks.first()
        );
        run_all(&mut state, agent);
    }

    let taken = resident() - before;

    let runs = state.all_runs().count() as u64;
    assert_eq!(runs, AGENTS * RUNS_OF_AN_AGENT);
    let each = taken / runs;
    eprintln!("{runs} running tasks on {AGENTS} agents take {each} bytes each");
    assert!(each > 100, "{each} bytes: that cannot have been measured");
    assert!(
        each < MOST_BYTES,
        "{each} bytes for each of {runs} running tasks"
    );
}
