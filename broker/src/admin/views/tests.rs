use std::sync::Arc;

use mete_model::{AgentId, GrantId, Inventory, NodeKey, Resources, RolePath, TaskPhase, Timestamp};
use mete_state::command::FrameworkSettings;
use mete_state::{Agent, AgentCondition, Framework, Meta, Part, Role, Texts};
use uuid::Uuid;

use super::*;

const FRAMEWORKS: [u128; 2] = [7, 3];

fn framework(number: u128) -> FrameworkId {
    FrameworkId(Uuid::from_u128(number))
}

fn role() -> RolePath {
    RolePath::new("ml").expect("a path")
}

fn run(of: u128, name: &str, phase: TaskPhase) -> Box<Run> {
    Box::new(Run {
        framework: framework(of),
        id: name.parse().expect("a run"),
        agent: AgentId(Uuid::from_u128(1)),
        role: role(),
        claim: None,
        grant: GrantId(1),
        resources: Resources::default(),
        spec: Arc::default(),
        environment: Texts::default(),
        labels: Texts::default(),
        phase,
        launched: Timestamp(5),
        launched_at: 1,
        started: None,
        ended: phase.is_terminal().then_some(Timestamp(9)),
        sequence: 1,
        acknowledged: 1,
        statuses: Vec::new(),
        kill: None,
        replacement: mete_state::Replacement::default(),
        revision: 1,
    })
}

/// Two frameworks, each with 25 live runs and 10 in history.
fn state() -> State {
    let mut parts = vec![
        Part::Meta(Meta {
            revision: 10,
            ..Meta::default()
        }),
        Part::Role(Role {
            path: role(),
            weight_milli: 1000,
            created: Timestamp(0),
            revision: 1,
        }),
        Part::Agent(Agent {
            id: AgentId(Uuid::from_u128(1)),
            node_key: NodeKey(Uuid::from_u128(2)),
            node_name: "n1".to_owned(),
            inventory: Arc::new(Inventory::default()),
            condition: AgentCondition::Ready,
            since: Timestamp(0),
            admitted: Timestamp(0),
            revision: 1,
        }),
    ];
    parts.extend(FRAMEWORKS.map(|number| {
        Part::Framework(Framework {
            id: framework(number),
            principal: "local".to_owned(),
            name: format!("f{number}"),
            incarnation: 1,
            settings: FrameworkSettings {
                roles: vec![role()],
                ..FrameworkSettings::default()
            },
            subscribed: Timestamp(0),
            away: None,
            demand_version: 0,
            answered: 0,
            revision: 1,
        })
    }));
    for of in FRAMEWORKS {
        let live = (0..25).map(|at| Part::Run(run(of, &format!("t{at}#1"), TaskPhase::Running)));
        parts.extend(live);
    }
    for of in FRAMEWORKS {
        let past = (0..10).map(|at| run(of, &format!("t{at}#9"), TaskPhase::Finished));
        parts.extend(past.map(Part::History));
    }
    State::from_parts(parts).expect("the parts fit together")
}

fn all(state: &State, filter: &Filter, room: usize) -> Vec<String> {
    let (feed, _follower) = Feed::new();
    let mut after = After::default();
    let mut found = Vec::new();
    loop {
        let taken = take(state, &feed, wire::Kind::Task, filter, &after, room);
        assert!(taken.rows.len() <= room);
        found.extend(taken.afters.iter().map(|after| after.key.clone()));
        match taken.next {
            Some(next) => after = next,
            None => return found,
        }
    }
}

#[test]
fn pages_of_tasks_hold_each_run_once_live_ones_first() {
    let state = state();
    for room in [1, 7, 25, 1000] {
        let found = all(&state, &Filter::default(), room);
        assert_eq!(found.len(), 70, "with pages of {room}");
        let distinct: std::collections::BTreeSet<&String> = found.iter().collect();
        assert_eq!(distinct.len(), 70, "with pages of {room}");
        assert!(found[..50].iter().all(|key| key.ends_with("#1")));
        assert!(found[50..].iter().all(|key| key.ends_with("#9")));
    }
}

#[test]
fn a_filter_leaves_out_before_rows_are_made_and_pages_still_go_on() {
    let state = state();
    let filter = Filter {
        wire: wire::Filter {
            framework: "f3".to_owned(),
            states: vec!["finished".to_owned()],
            ..wire::Filter::default()
        },
    };
    for room in [1, 3, 1000] {
        assert_eq!(all(&state, &filter, room).len(), 10, "with pages of {room}");
    }
}
