//! Runs whose agents are away for too long: marked, told, replaced, and ended when they are back.

use std::sync::Arc;

use mete_model::{Code, Partition, Span, TaskPhase};
use mete_proto::agent::v1::master_message::Message;
use mete_proto::framework::v1::{self as wire, event};
use mete_state::command::HeldRun;

use super::world::*;
use crate::event::Event;
use crate::request::{AcceptLaunch, FrameworkAction};

/// One that may be replaced when its agent has been unreachable for a minute.
fn patient(name: &str) -> AcceptLaunch {
    with_policy(
        name,
        Partition {
            replace_after: Some(Span::minutes(1)),
            ..Partition::default()
        },
    )
}

fn with_policy(name: &str, partition: Partition) -> AcceptLaunch {
    let mut launch = launch(name, "c", 1000);
    Arc::make_mut(&mut launch.spec).partition = partition;
    launch
}

/// A run "t" on "n1", running and acknowledged, that may be replaced.
fn running(world: &mut World) -> (Agent, Framework) {
    running_as(world, patient("t"))
}

fn running_as(world: &mut World, task: AcceptLaunch) -> (Agent, Framework) {
    let agent = world.agent("n1", 8000);
    let mut framework = world.framework("f", &["a"]);
    world.demand(&mut framework, vec![claim("c", "a", 1000, 1)]);
    let offers = framework.offers();
    world.accept(&mut framework, &[offers[0].0], vec![task]);
    world.status(&agent, framework.id, status("t", 1, TaskPhase::Running));
    let items = vec![(run("t"), 1)];
    world
        .call(&mut framework, FrameworkAction::Acknowledge { items })
        .unwrap();
    framework.hears();
    (agent, framework)
}

/// Tasks that are told to be replaceable.
fn told(events: &[wire::Event]) -> Vec<String> {
    let runs = events.iter().filter_map(|event| match &event.event {
        Some(event::Event::RunsReplaceable(told)) => Some(&told.runs),
        _ => None,
    });
    runs.flatten().map(|run| run.task.clone()).collect()
}

/// Tasks that a snapshot shows as replaceable.
fn shown(events: &[wire::Event]) -> Vec<String> {
    let runs = events.iter().filter_map(|event| match &event.event {
        Some(event::Event::Snapshot(page)) => Some(&page.runs),
        _ => None,
    });
    let runs = runs.flatten().filter(|run| run.replaceable_since_ms > 0);
    runs.filter_map(|run| Some(run.run.clone()?.task)).collect()
}

fn kills(messages: &[Message]) -> Vec<(String, String)> {
    let mut kills = Vec::new();
    for message in messages {
        if let Message::KillTasks(kill) = message {
            kills.extend(kill.tasks.iter().filter_map(|kill| {
                let run = kill.run.clone()?.run?;
                Some((run.task, kill.reason.clone()))
            }));
        }
    }
    kills
}

fn held(framework: &Framework, name: &str) -> HeldRun {
    HeldRun {
        framework: framework.id,
        run: run(name),
        phase: TaskPhase::Running,
        last_sequence: 1,
    }
}

#[test]
fn a_run_is_marked_in_its_time_told_replaced_and_ended_when_its_agent_is_back() {
    let mut world = World::new();
    let (first, mut framework) = running(&mut world);
    let mut second = world.agent("n2", 8000);

    world.pass_alive(74_000, &mut [&mut second]);
    assert_eq!(told(&framework.hears()), Vec::<String>::new(), "too early");
    world.pass_alive(4000, &mut [&mut second]);
    assert_eq!(told(&framework.hears()), ["t"]);

    world.demand(&mut framework, vec![claim("c", "a", 1000, 2)]);
    let offers = framework.offers();
    let mut launch = patient("u");
    launch.replaces = Some(run("t"));
    let verdicts = world.accept(&mut framework, &[offers[0].0], vec![launch]);
    assert_eq!(verdicts[0].code, Code::Ok, "{verdicts:?}");

    let back = world.agent_back(first, 8000, vec![held(&framework, "t")]);
    let kills = kills(&back.hears());
    assert!(!kills.is_empty());
    for kill in kills {
        assert_eq!(kill, ("t".to_owned(), "REPLACED".to_owned()));
    }
    assert_eq!(second.starts(), ["u"]);
}

#[test]
fn nothing_is_replaced_while_more_than_a_fifth_of_the_agents_are_unreachable() {
    let mut world = World::new();
    let (_first, framework) = running(&mut world);
    let second = world.agent("n2", 8000);
    let mut others: Vec<Agent> = (3..=6)
        .map(|number| world.agent(&format!("n{number}"), 8000))
        .collect();
    let mut alive: Vec<&mut Agent> = others.iter_mut().collect();

    world.pass_alive(120_000, &mut alive);
    assert_eq!(told(&framework.hears()), Vec::<String>::new());

    let mut second = world.agent_back(second, 8000, Vec::new());
    alive.push(&mut second);
    world.pass_alive(3000, &mut alive);
    assert_eq!(told(&framework.hears()), ["t"]);
}

#[test]
fn a_new_leader_waits_for_returning_agents_and_shows_what_was_marked() {
    let mut world = World::new();
    let (_first, framework) = running(&mut world);
    let incarnation = framework.incarnation;
    // Unreachable, and nearly due.
    world.pass(74_000);

    let mut world = world.restart();
    let framework = world.try_subscribe("f", &["a"], incarnation).unwrap();
    world.pass(14_000);
    let events = framework.hears();
    assert_eq!(shown(&events), Vec::<String>::new());
    assert_eq!(told(&events), Vec::<String>::new(), "it has just begun");
    world.pass(5000);
    assert_eq!(told(&framework.hears()), ["t"]);

    // What is marked is owed to every new stream, also by the next leader.
    world.step(vec![Event::StreamClosed {
        stream: framework.stream,
    }]);
    let again = world.try_subscribe("f", &["a"], incarnation).unwrap();
    assert_eq!(shown(&again.hears()), ["t"]);
    let mut world = world.restart();
    let again = world.try_subscribe("f", &["a"], incarnation).unwrap();
    assert_eq!(shown(&again.hears()), ["t"]);
}

/// A run "t" on "n1" that ends itself after a minute out of reach, and may be replaced then.
fn running_alone(world: &mut World) -> (Agent, Framework) {
    let minute = Some(Span::minutes(1));
    let policy = Partition {
        replace_after: minute,
        stop_if_silent: minute,
        ..Partition::default()
    };
    running_as(world, with_policy("t", policy))
}

#[test]
fn a_run_that_ends_itself_has_its_time_by_a_clock_that_does_not_jump() {
    let mut world = World::new();
    let (_first, framework) = running_alone(&mut world);
    let mut second = world.agent("n2", 8000);
    // Unreachable, and then the leader's clock is set an hour ahead.
    world.pass_alive(16_000, &mut [&mut second]);
    world.ahead += 3_600_000;

    world.pass_alive(53_000, &mut [&mut second]);
    assert_eq!(told(&framework.hears()), Vec::<String>::new(), "too early");
    world.pass_alive(8000, &mut [&mut second]);
    assert_eq!(told(&framework.hears()), ["t"]);
}

#[test]
fn a_new_leader_with_another_clock_gives_a_run_that_ends_itself_its_whole_time() {
    let mut world = World::new();
    let (_first, framework) = running_alone(&mut world);
    let incarnation = framework.incarnation;
    world.pass(16_000);

    world.ahead += 3_600_000;
    let mut world = world.restart();
    let framework = world.try_subscribe("f", &["a"], incarnation).unwrap();
    // A minute and the grace, from when it began to lead: its agent may have had a word until then.
    world.pass(69_000);
    assert_eq!(told(&framework.hears()), Vec::<String>::new(), "too early");
    world.pass(3000);
    assert_eq!(told(&framework.hears()), ["t"]);
}
