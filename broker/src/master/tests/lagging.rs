//! A framework whose reader stands still while its agents go and come back.

use mete_model::TaskPhase;
use mete_proto::framework::v1::{self as wire, event};
use mete_state::command::HeldRun;

use super::world::*;
use crate::event::Event;
use crate::session::OUTBOX_BYTES;

/// As much as an outbox holds: nothing that is persisted finds room behind it.
fn filler() -> wire::Event {
    wire::Event {
        revision: 1,
        event: Some(event::Event::AgentChanged(wire::AgentChanged {
            node: "x".repeat(OUTBOX_BYTES),
            ..wire::AgentChanged::default()
        })),
    }
}

/// The conditions of agents that are told, each with its event's revision.
fn conditions(heard: &[wire::Event]) -> Vec<(u64, wire::AgentCondition)> {
    let told = heard.iter().filter_map(|heard| match &heard.event {
        Some(event::Event::AgentChanged(changed)) if changed.node.len() < 100 => {
            Some((heard.revision, changed.condition()))
        }
        _ => None,
    });
    told.collect()
}

/// The agent is lost and comes back while nothing finds room.
fn goes_and_comes_back(world: &mut World, agent: Agent, framework: &Framework) -> Agent {
    let put = |queue: &mut crate::session::framework::FrameworkQueue| {
        queue.push_firm(filler(), None).queued
    };
    assert!(framework.outbox.put(put));
    world.pass(16_000);
    let held = HeldRun {
        framework: framework.id,
        run: run("t"),
        phase: TaskPhase::Running,
        last_sequence: 1,
    };
    world.agent_back(agent, 8000, vec![held])
}

fn drained(world: &mut World, framework: &Framework) -> Vec<wire::Event> {
    world.step(vec![Event::StreamDrained {
        stream: framework.stream,
    }]);
    framework.hears()
}

#[test]
fn an_agent_that_is_ready_again_is_told_when_the_reader_has_caught_up() {
    let mut world = World::new();
    let (agent, mut framework) = world.running();
    let before = world.master.read_state(mete_state::State::revision);
    let _agent = goes_and_comes_back(&mut world, agent, &framework);
    assert_eq!(conditions(&framework.hears()), [], "there was no room");
    world.demand(&mut framework, vec![claim("d", "a", 99_000, 1)]);

    let told = conditions(&drained(&mut world, &framework));

    let [(revision, wire::AgentCondition::Ready)] = told[..] else {
        panic!("the agent is ready: {told:?}");
    };
    let now = world.master.read_state(mete_state::State::revision);
    assert!(
        before < revision && revision < now,
        "{before} {revision} {now}"
    );
    // Once: nothing is owed any more.
    assert_eq!(conditions(&drained(&mut world, &framework)), []);

    // A process that was told in part resumes below what it heard.
    let incarnation = framework.incarnation;
    let resumed = world.try_resume("f", &["a"], incarnation, revision - 1);
    let opening = resumed.unwrap().hears();
    let runs: usize = opening
        .iter()
        .map(|heard| match &heard.event {
            Some(event::Event::Snapshot(page)) => page.runs.len(),
            _ => 0,
        })
        .sum();
    assert_eq!(runs, 1, "with the condition of its agent");
}

#[test]
fn nothing_overtakes_what_is_to_be_told_again() {
    let mut world = World::new();
    let (agent, framework) = world.running();
    let agent = goes_and_comes_back(&mut world, agent, &framework);
    framework.hears();
    // The reader has caught up; the loop has not heard of it.
    world.status(&agent, framework.id, status("t", 2, TaskPhase::Running));
    assert_eq!(phases_in(&framework.hears()), []);

    let told = drained(&mut world, &framework);

    assert_eq!(phases_in(&told), [("t".to_owned(), 2)]);
    assert_eq!(conditions(&told).len(), 1);
    world.status(&agent, framework.id, status("t", 3, TaskPhase::Running));
    assert_eq!(phases_in(&framework.hears()), [("t".to_owned(), 3)]);
}

#[test]
fn what_finds_no_room_a_second_time_is_told_later() {
    let mut world = World::new();
    let (agent, framework) = world.running();
    let _agent = goes_and_comes_back(&mut world, agent, &framework);
    framework.hears();
    // Full again at the very moment at which it is to be told.
    framework.outbox.put(|queue| {
        queue.caught_up();
        queue.push_firm(filler(), None)
    });
    assert_eq!(conditions(&drained(&mut world, &framework)), []);

    let told = conditions(&drained(&mut world, &framework));

    assert!(
        matches!(told[..], [(_, wire::AgentCondition::Ready)]),
        "{told:?}"
    );
}
