//! Each check can fail: a state that is right is made wrong by hand, and the check that should see
//! it does.

use std::collections::BTreeMap;
use std::sync::Arc;

use mete_model::{
    AgentId, Claim, ClaimId, Code, FrameworkId, GrantId, Inventory, MilliCpu, NodeKey, Resources,
    RolePath, RunId, Shape, Status, StatusSource, TaskPhase, TaskSpec, Timestamp,
};
use uuid::Uuid;

use super::check;
use crate::command::{AdmitAgent, FrameworkSettings, Launch, LaunchTask, Subscribe};
use crate::record::Run;
use crate::{Caller, Command, Stamped, State};

const AGENT: AgentId = AgentId(Uuid::from_u128(1));
const FRAMEWORK: FrameworkId = FrameworkId(Uuid::from_u128(2));

fn role() -> RolePath {
    RolePath::new("batch").expect("a role")
}

fn run_id(text: &str) -> RunId {
    text.parse().expect("a run")
}

fn cores(set: &str) -> Resources {
    let cores: mete_model::CpuSet = set.parse().expect("cores");
    Resources {
        cpu: MilliCpu(u64::from(cores.len()).saturating_mul(1000)),
        cores,
        ..Resources::default()
    }
}

fn apply(state: &mut State, command: Command) {
    let revision = state.revision().saturating_add(1);
    let stamped = Stamped {
        at: Timestamp(revision),
        command,
    };
    state.apply(revision, &stamped).expect("a good command");
}

fn caller() -> Caller {
    Caller {
        framework: FRAMEWORK,
        incarnation: 1,
        call: 0,
        answered: 0,
    }
}

fn launch(run: &str, set: &str) -> Command {
    Command::Launch(Launch {
        caller: caller(),
        role: role(),
        agent: AGENT,
        topology_epoch: 0,
        tasks: vec![LaunchTask {
            run: run_id(run),
            claim: Some(ClaimId::new("c").expect("a claim id")),
            resources: cores(set),
            spec: Arc::new(TaskSpec::default()),
            environment: BTreeMap::new(),
            labels: BTreeMap::new(),
            replaces: None,
        }],
        each_alone: false,
    })
}

fn claim() -> Claim {
    Claim {
        id: ClaimId::new("c").expect("a claim id"),
        role: role(),
        shape: Shape {
            cores: 1,
            ..Shape::default()
        },
        count: 9,
        priority: 0,
        labels: BTreeMap::new(),
        expected_runtime: None,
    }
}

fn failed(run: &str) -> Status {
    Status {
        run: run_id(run),
        sequence: 1,
        phase: TaskPhase::Failed,
        reason: Some(Code::ExitCode),
        message: String::new(),
        source: StatusSource::Agent,
        at: Timestamp(0),
        exit: None,
        usage: None,
        coalesced: false,
    }
}

/// An agent of four cores with two live runs and one in history.
fn right() -> State {
    let mut state = State::new();
    let inventory = Inventory {
        total: cores("0-3"),
        ..Inventory::default()
    };
    let commands = [
        Command::SetRole {
            path: role(),
            weight_milli: None,
            actor: String::new(),
        },
        Command::AdmitAgent(AdmitAgent {
            agent: AGENT,
            node_key: NodeKey(Uuid::from_u128(3)),
            node_name: "n".to_owned(),
            inventory,
            held: Vec::new(),
        }),
        Command::Subscribe(Subscribe {
            framework: FRAMEWORK,
            principal: "p".to_owned(),
            name: "f".to_owned(),
            incarnation: 0,
            settings: FrameworkSettings {
                roles: vec![role()],
                ..FrameworkSettings::default()
            },
        }),
        Command::UpdateDemand {
            caller: caller(),
            version: 1,
            upsert: vec![claim()],
            remove: Vec::new(),
        },
        launch("t1#1", "0"),
        launch("t2#1", "1"),
        launch("t3#1", "2"),
        Command::RecordStatuses {
            agent: AGENT,
            statuses: vec![(FRAMEWORK, failed("t3#1"))],
        },
        Command::Acknowledge {
            caller: caller(),
            items: vec![(run_id("t3#1"), 1)],
        },
    ];
    for command in commands {
        apply(&mut state, command);
    }
    state
}

fn first_run(state: &mut State) -> &mut Run {
    let runs = state.runs.get_mut(&FRAMEWORK).expect("its runs");
    std::sync::Arc::make_mut(runs.get_mut(&run_id("t1#1")).expect("a live run"))
}

/// Which invariants a wrong state breaks.
fn broken(wrong: impl FnOnce(&mut State)) -> Vec<&'static str> {
    let mut state = right();
    wrong(&mut state);
    let mut ids: Vec<_> = check(&state).iter().map(|found| found.invariant).collect();
    ids.dedup();
    ids
}

#[test]
fn a_right_state_breaks_nothing() {
    assert_eq!(check(&right()), []);
}

#[test]
fn a_core_granted_twice_is_seen_even_if_the_ledger_agrees() {
    let ids = broken(|state| {
        let run = first_run(state).clone();
        state.ledger.release(&run);
        first_run(state).resources = cores("1");
        let run = first_run(state).clone();
        state.ledger.book(&run);
    });
    assert!(ids.contains(&"I1"), "{ids:?}");
}

#[test]
fn more_granted_than_there_is_is_seen() {
    let ids = broken(|state| {
        let run = first_run(state).clone();
        state.ledger.release(&run);
        first_run(state).resources.cpu = MilliCpu(9000);
        let run = first_run(state).clone();
        state.ledger.book(&run);
    });
    assert_eq!(ids, ["I1"]);
}

#[test]
fn a_run_released_twice_is_seen() {
    let ids = broken(|state| {
        let run = first_run(state).clone();
        state.ledger.release(&run);
    });
    assert_eq!(ids, ["I2"]);
}

#[test]
fn a_run_that_ended_without_being_released_is_seen() {
    let ids = broken(|state| first_run(state).phase = TaskPhase::Finished);
    assert!(ids.contains(&"I2") && ids.contains(&"I3"), "{ids:?}");
}

#[test]
fn an_acknowledgement_beyond_the_last_status_is_seen() {
    assert_eq!(broken(|state| first_run(state).acknowledged = 5), ["I3"]);
}

#[test]
fn a_run_whose_framework_vanished_is_seen() {
    let ids = broken(|state| {
        state.frameworks.remove(&FRAMEWORK);
    });
    assert!(ids.contains(&"I4"), "{ids:?}");
}

#[test]
fn a_claim_that_counts_too_few_launches_is_seen() {
    let ids = broken(|state| {
        let claims = state.claims.get_mut(&FRAMEWORK).expect("its claims");
        let claim = claims.first().map(|(id, _)| id.clone());
        let claim = claims.get_mut(&claim.expect("a claim"));
        claim.expect("it is there").launched = 2;
    });
    assert_eq!(ids, ["I5"]);
}

#[test]
fn an_index_that_forgot_something_is_seen() {
    assert_eq!(broken(|state| state.by_node.clear()), ["I6"]);
    assert_eq!(broken(|state| state.store_bytes = 1), ["I6"]);
}

#[test]
fn a_grant_of_two_runs_is_seen() {
    assert_eq!(broken(|state| first_run(state).grant = GrantId(3)), ["I7"]);
}

#[test]
fn a_deadline_that_was_lost_is_seen() {
    let ids = broken(|state| {
        let framework = state.frameworks.get_mut(&FRAMEWORK).expect("it subscribed");
        framework.away = Some(Timestamp(1));
        framework.settings.failover_timeout = Some(mete_model::Span::minutes(1));
    });
    assert_eq!(ids, ["I6"]);
}
