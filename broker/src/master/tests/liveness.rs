//! Agents and frameworks that go away, come back, or are replaced.

use mete_model::{Code, TaskPhase};
use mete_proto::agent::v1::master_message::Message;
use mete_proto::framework::v1::{self as wire, event};
use mete_state::AgentCondition;
use tokio::sync::oneshot;

use super::world::*;
use crate::event::Event;
use crate::request::{FrameworkAction, Reply, Request};

#[test]
fn offers_of_a_lost_agent_are_taken_back_at_once_and_a_racing_accept_hears_why() {
    let mut world = World::new();
    let agent = world.agent("n1", 4000);
    let mut framework = world.framework("f", &["a"]);
    world.demand(&mut framework, vec![claim("c", "a", 1000, 1)]);
    let offers = framework.offers();

    world.step(vec![Event::AgentClosed { link: agent.link }]);

    assert_eq!(rescinds_in(&framework.hears()), [(1, "AGENT".to_owned())]);
    let verdicts = world.accept(&mut framework, &[offers[0].0], vec![launch("t", "c", 1000)]);
    assert_eq!(verdicts[0].code, Code::AgentUnavailable);
}

#[test]
fn a_frozen_work_loop_is_unreachable_though_its_network_thread_still_beats() {
    let mut world = World::new();
    let mut agent = world.agent("n1", 4000);
    let key = agent.key;
    let condition = |world: &World| {
        world
            .master
            .read_state(|state| state.agent_of_key(key).unwrap().condition)
    };
    world.pass_alive(20_000, &mut [&mut agent]);
    assert_eq!(condition(&world), AgentCondition::Ready);

    // Beacons go on, but their progress stands still.
    for _ in 0..16 {
        world.pass(1000);
        world.step(vec![Event::AgentBeacon {
            link: agent.link,
            progress: 20,
        }]);
    }
    assert_eq!(condition(&world), AgentCondition::Unreachable);
    let last = agent.hears().pop();
    assert!(
        matches!(last, Some(Message::Redirect(_))),
        "its stream is ended: {last:?}"
    );

    let _back = world.agent_back(agent, 4000, Vec::new());
    assert_eq!(condition(&world), AgentCondition::Ready);
}

#[test]
fn an_agent_of_the_leader_before_is_awaited_and_then_unreachable() {
    let mut world = World::new();
    let agent = world.agent("n1", 4000);
    let mut world = world.restart();
    let id = world
        .master
        .read_state(|state| state.agent_of_key(agent.key).unwrap().id);
    world.pass(14_900);
    assert!(world.master.leader().unwrap().agent_is_recovering(id));
    let condition = |world: &World| {
        world
            .master
            .read_state(|state| state.agent(id).unwrap().condition)
    };
    assert_eq!(condition(&world), AgentCondition::Ready);
    world.pass(600);
    assert_eq!(condition(&world), AgentCondition::Unreachable);
}

#[test]
fn a_new_process_fences_the_old_one_and_its_offers_are_gone() {
    let mut world = World::new();
    let _agent = world.agent("n1", 4000);
    let mut old = world.framework("f", &["a"]);
    world.demand(&mut old, vec![claim("c", "a", 1000, 1)]);
    let offers = old.offers();

    let new = world.framework("f", &["a"]);

    assert_eq!((new.id, new.incarnation), (old.id, old.incarnation + 1));
    assert_eq!(moved_in(&old.hears()), Some("STALE_INCARNATION".to_owned()));
    let accept = accept_of(&[offers[0].0], vec![launch("t", "c", 1000)]);
    let refused = world
        .call(&mut old, FrameworkAction::Accept(accept))
        .unwrap_err();
    assert_eq!(refused.code(), Code::StaleIncarnation);
    let refused = world.call(&mut old, FrameworkAction::Read).unwrap_err();
    assert_eq!(refused.code(), Code::StaleIncarnation);
    assert_eq!(
        new.offers().len(),
        1,
        "the claim is offered to the new process"
    );
}

#[test]
fn the_last_stream_closed_is_a_committed_disconnect_and_a_resume_keeps_everything() {
    let mut world = World::new();
    let _agent = world.agent("n1", 4000);
    let mut framework = world.framework("f", &["a"]);
    world.demand(&mut framework, vec![claim("c", "a", 1000, 1)]);
    let id = framework.id;
    world.step(vec![Event::StreamClosed {
        stream: framework.stream,
    }]);
    let away = |world: &World| {
        world
            .master
            .read_state(|state| state.framework(id).unwrap().away.is_some())
    };
    assert!(away(&world));
    assert!(
        world.master.leader().unwrap().book().is_empty(),
        "its offers are taken back"
    );

    let back = world
        .try_subscribe("f", &["a"], framework.incarnation)
        .unwrap();
    assert_eq!(back.incarnation, framework.incarnation);
    assert!(!away(&world));
    assert_eq!(back.offers().len(), 1);
}

#[test]
fn after_a_teardown_the_name_is_free_and_the_id_is_not() {
    let mut world = World::new();
    let mut old = world.framework("f", &["a"]);
    let torn = world.call(&mut old, FrameworkAction::Teardown).unwrap();
    assert!(matches!(torn, Reply::Applied { .. }));
    assert_eq!(moved_in(&old.hears()), Some("TORN_DOWN".to_owned()));
    let refused = world.call(&mut old, FrameworkAction::Read).unwrap_err();
    assert_eq!(refused.code(), Code::TornDown);

    let new = world.framework("f", &["a"]);
    assert_ne!(new.id, old.id);
}

#[test]
fn a_framework_without_a_stream_is_ended_after_its_failover_timeout_once() {
    let mut world = World::new();
    let framework = world.framework("f", &["a"]);
    let id = framework.id;
    world.step(vec![Event::StreamClosed {
        stream: framework.stream,
    }]);
    let present = |world: &World| {
        world
            .master
            .read_state(|state| state.framework(id).is_some())
    };
    world.pass(10_000);
    assert!(present(&world));
    // 7 days later, in steps: time passes, nothing else.
    for _ in 0..7 * 24 {
        world.jump(3_600_000);
    }
    assert!(!present(&world));
    assert!(
        world
            .master
            .read_state(|state| state.tombstone(id).is_some())
    );
}

#[test]
fn calls_are_done_in_the_order_of_their_numbers_and_a_gap_is_refused() {
    let mut world = World::new();
    let mut framework = world.framework("f", &["a"]);
    let first = framework.next_caller();
    let second = framework.next_caller();
    let second = mete_state::Caller {
        answered: 0,
        ..second
    };
    let demand = |version: u64| FrameworkAction::UpdateDemand {
        version,
        upsert: vec![claim("c", "a", 100, 1)],
        remove: Vec::new(),
    };
    let send = |world: &mut World, caller, action| {
        let (reply, answer) = oneshot::channel();
        let request = Request::Framework { caller, action };
        world.step(vec![Event::Call { request, reply }]);
        answer
    };

    let mut late = send(&mut world, second, demand(2));
    assert!(late.try_recv().is_err(), "waits for call 1");
    let mut early = send(&mut world, first, demand(1));
    assert!(early.try_recv().unwrap().is_ok());
    assert!(
        late.try_recv().unwrap().is_ok(),
        "version 2 after version 1"
    );

    framework.calls = 3;
    let fourth = mete_state::Caller {
        answered: 2,
        ..framework.next_caller()
    };
    let mut alone = send(&mut world, fourth, demand(3));
    world.pass(1900);
    assert!(alone.try_recv().is_err());
    world.pass(200);
    assert_eq!(alone.try_recv().unwrap().unwrap_err().code(), Code::CallGap);
}

#[test]
fn heartbeats_tell_the_version_and_the_hash_of_the_demand() {
    let mut world = World::new();
    let mut framework = world.framework("f", &["a"]);
    framework.hears();
    world.demand(&mut framework, vec![claim("c", "a", 100, 1)]);
    world.pass(3100);
    let heard = framework.hears();
    let heartbeat = heard.iter().find_map(|event| match &event.event {
        Some(event::Event::Heartbeat(heartbeat)) => Some(heartbeat.clone()),
        _ => None,
    });
    let heartbeat = heartbeat.expect("one every 3 s");
    let hash = mete_model::demand::hash_of(std::iter::once(&claim("c", "a", 100, 1)));
    assert_eq!((heartbeat.demand_version, heartbeat.demand_hash), (1, hash));
}

#[test]
fn a_herd_of_agents_is_admitted_at_the_rate_and_the_rest_is_told_when_to_come() {
    let mut world = World::new();
    let mut turned_away = 0;
    for number in 0..6000 {
        let agent = world.agent(&format!("n{number}"), 1000);
        let last = agent.hears().pop();
        match last {
            Some(Message::Redirect(redirect)) => {
                assert_eq!(redirect.code, "BUSY");
                assert!(redirect.retry_after_ms > 0);
                turned_away += 1;
            }
            Some(_) => {}
            None => panic!("an agent always hears something"),
        }
    }
    assert_eq!(
        turned_away, 1000,
        "a burst of a quarter of a second's worth is admitted"
    );
}

/// Runs in a stream's opening, and whether it says that it holds changes only.
fn opened(framework: &Framework) -> (Vec<String>, bool) {
    let (mut names, mut changes_only) = (Vec::new(), false);
    for heard in framework.hears() {
        match heard.event {
            Some(event::Event::Subscribed(subscribed)) => changes_only = subscribed.changes_only,
            Some(event::Event::Snapshot(page)) => {
                let tasks = page.runs.into_iter().filter_map(|run| Some(run.run?.task));
                names.extend(tasks);
            }
            _ => {}
        }
    }
    (names, changes_only)
}

#[test]
fn a_process_that_comes_back_is_told_only_what_it_may_not_know() {
    let mut world = World::new();
    let agent = world.agent("n1", 8000);
    let mut framework = world.framework("f", &["a"]);
    world.demand(&mut framework, vec![claim("c", "a", 500, 3)]);
    let offers = framework.offers();
    let launches = ["still", "moves", "open"].map(|name| launch(name, "c", 500));
    world.accept(&mut framework, &[offers[0].0], launches.into());
    for name in ["still", "open"] {
        world.status(&agent, framework.id, status(name, 1, TaskPhase::Running));
    }
    let items = vec![(run("still"), 1)];
    world
        .call(&mut framework, FrameworkAction::Acknowledge { items })
        .unwrap();
    world.suppress(&mut framework, &["a"], true);
    let seen = world.master.read_state(mete_state::State::revision);
    // What the process does not see: its stream is gone.
    world.status(&agent, framework.id, status("moves", 1, TaskPhase::Running));

    let incarnation = framework.incarnation;
    let mut resume = |incarnation, revision| {
        let resumed = world.try_resume("f", &["a"], incarnation, revision);
        opened(&resumed.unwrap())
    };
    let all: Vec<String> = ["moves", "open", "still"].map(str::to_owned).into();
    let (names, changes_only) = resume(incarnation, seen);
    assert_eq!(
        names,
        ["moves", "open"],
        "the changed one and the unacknowledged one"
    );
    assert!(changes_only);
    assert_eq!(resume(incarnation, 0), (all.clone(), false), "saw nothing");
    assert_eq!(
        resume(incarnation, u64::MAX),
        (all.clone(), false),
        "saw what never was here"
    );
    assert_eq!(resume(0, seen), (all, false), "a new process knows nothing");
}

#[test]
fn an_agent_that_is_awaited_and_comes_back_is_told_to_the_frameworks_on_it() {
    let mut world = World::new();
    let (agent, framework) = world.running();

    let mut world = world.restart();
    let (incarnation, seen) = (
        framework.incarnation,
        world.master.read_state(mete_state::State::revision),
    );
    let early = world.try_resume("f", &["a"], incarnation, seen).unwrap();
    assert_eq!(
        opened(&early),
        (vec!["t".to_owned()], true),
        "it is awaited now"
    );
    let held = vec![mete_state::command::HeldRun {
        framework: framework.id,
        run: run("t"),
        phase: TaskPhase::Running,
        last_sequence: 1,
    }];
    let _agent = world.agent_back(agent, 8000, held);
    let ready = early.hears().into_iter().any(|heard| {
        matches!(heard.event, Some(event::Event::AgentChanged(changed))
            if changed.condition == i32::from(wire::AgentCondition::Ready))
    });
    assert!(ready, "the framework hears that the agent is back");
    // A stream that was lost at that moment learns it from the next one.
    let late = world.try_resume("f", &["a"], incarnation, seen).unwrap();
    assert_eq!(opened(&late).0, ["t"]);
}
