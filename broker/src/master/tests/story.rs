//! The story of one offer, and what survives a restart in the middle of it.

use mete_model::{Code, TaskPhase};
use mete_proto::agent::v1::master_message::Message;
use mete_proto::framework::v1::event;

use super::world::*;
use crate::request::{FrameworkAction, Reply, Request};

#[test]
fn an_offer_becomes_a_running_task_whose_status_is_acknowledged() {
    let mut world = World::new();
    let agent = world.agent("n1", 8000);
    let mut framework = world.framework("f", &["a"]);
    world.demand(&mut framework, vec![claim("c", "a", 1000, 2)]);

    let heard = framework.hears();
    assert!(matches!(heard[0].event, Some(event::Event::Subscribed(_))));
    let offers = offers_in(&heard);
    assert_eq!(offers.len(), 1, "both tasks fit one offer of the one agent");
    assert_eq!((offers[0].1.node.as_str(), offers[0].1.slots), ("n1", 2));

    let launches = vec![launch("t1", "c", 1000), launch("t2", "c", 1000)];
    let verdicts = world.accept(&mut framework, &[offers[0].0], launches);
    assert!(
        verdicts.iter().all(|verdict| verdict.code == Code::Ok),
        "{verdicts:?}"
    );

    let heard = agent.hears();
    assert!(matches!(heard[0], Message::Welcome(_)));
    let Some(Message::StartTasks(start)) = heard.last() else {
        panic!("the agent is told to start: {heard:?}");
    };
    assert_eq!(
        (start.tasks.len(), start.specs.len()),
        (2, 1),
        "one spec for both"
    );

    world.status(&agent, framework.id, status("t1", 1, TaskPhase::Running));
    assert_eq!(phases_in(&framework.hears()), [("t1".to_owned(), 1)]);
    assert!(matches!(
        agent.hears().last(),
        Some(Message::ForgetStatuses(_))
    ));

    let items = vec![(run("t1"), 1)];
    let acknowledged = world.call(&mut framework, FrameworkAction::Acknowledge { items });
    assert!(
        matches!(acknowledged, Ok(Reply::Applied { .. })),
        "{acknowledged:?}"
    );
    let sequence = world
        .master
        .read_state(|state| state.run(framework.id, &run("t1")).unwrap().acknowledged);
    assert_eq!(sequence, 1);
    assert_eq!(world.master.leader().unwrap().counters().launches, 2);
}

#[test]
fn the_same_accept_twice_is_answered_the_same_and_starts_one_run() {
    let mut world = World::new();
    let agent = world.agent("n1", 8000);
    let mut framework = world.framework("f", &["a"]);
    world.demand(&mut framework, vec![claim("c", "a", 1000, 1)]);
    let offers = framework.offers();
    let caller = framework.next_caller();
    let accept = accept_of(&[offers[0].0], vec![launch("t", "c", 1000)]);
    let request = Request::Framework {
        caller,
        action: FrameworkAction::Accept(accept),
    };

    let first = world.ask(request.clone());
    let again = world.ask(request);

    assert!(matches!(first, Ok(Reply::Applied { .. })));
    assert_eq!(first, again);
    assert_eq!(agent.starts(), ["t"]);
}

#[test]
fn a_claim_that_has_what_it_wants_gives_its_other_offers_back() {
    let mut world = World::new();
    // A quarter of the cluster may be out: two of eight.
    let _agents: Vec<Agent> = (1..=8)
        .map(|number| world.agent(&format!("n{number}"), 1000))
        .collect();
    let mut framework = world.framework("f", &["a"]);
    world.demand(&mut framework, vec![claim("c", "a", 1000, 2)]);
    world.pass(1100);
    let offers = framework.offers();
    assert_eq!(offers.len(), 2, "one of each agent");
    // The claim is lowered while both are out.
    world.demand(&mut framework, vec![claim("c", "a", 1000, 1)]);
    assert_eq!(
        rescinds_in(&framework.hears()),
        [(1, "CLAIM_WITHDRAWN".to_owned())]
    );
}

#[test]
fn a_restart_starts_what_was_never_seen_and_tells_what_was_not_acknowledged() {
    let mut world = World::new();
    let agent = world.agent("n1", 8000);
    let mut framework = world.framework("f", &["a"]);
    world.demand(&mut framework, vec![claim("c", "a", 1000, 2)]);
    let offers = framework.offers();
    let launches = vec![launch("seen", "c", 1000), launch("unseen", "c", 1000)];
    world.accept(&mut framework, &[offers[0].0], launches);
    world.status(&agent, framework.id, status("seen", 1, TaskPhase::Running));

    let mut world = world.restart();

    let old = framework.offers();
    let held = vec![mete_state::command::HeldRun {
        framework: framework.id,
        run: run("seen"),
        phase: TaskPhase::Running,
        last_sequence: 1,
    }];
    let commits = world.master.counters().commits;
    let agent = world.agent_back(agent, 8000, held);
    assert_eq!(agent.starts(), ["unseen"], "owed to the agent");
    assert_eq!(
        world.master.counters().commits,
        commits,
        "nothing new: nothing is logged"
    );

    let again = world
        .try_subscribe("f", &["a"], framework.incarnation)
        .unwrap();
    assert_eq!(again.id, framework.id);
    let heard = again.hears();
    let Some(event::Event::Snapshot(page)) = &heard[1].event else {
        panic!("the snapshot comes second: {heard:?}");
    };
    let seen = page
        .runs
        .iter()
        .find(|run| run.unacknowledged.len() == 1)
        .unwrap();
    assert_eq!(seen.run.as_ref().unwrap().task, "seen");
    assert_eq!(page.runs.len(), 2);
    assert!(old.is_empty());
}

#[test]
fn an_accept_of_the_leader_before_is_told_that_its_offers_are_gone() {
    let mut world = World::new();
    let agent = world.agent("n1", 8000);
    let mut framework = world.framework("f", &["a"]);
    world.demand(&mut framework, vec![claim("c", "a", 1000, 1)]);
    let old = framework.offers();

    let mut world = world.restart();
    let _agent = world.agent_back(agent, 8000, Vec::new());
    let calls = framework.calls;
    let mut framework = world
        .try_subscribe("f", &["a"], framework.incarnation)
        .unwrap();
    framework.calls = calls;
    let verdicts = world.accept(&mut framework, &[old[0].0], vec![launch("t", "c", 1000)]);
    assert_eq!(verdicts[0].code, Code::OfferRescinded);

    // Demand is replicated: a fresh offer is there already.
    let fresh = framework.offers();
    assert_eq!(fresh.len(), 1);
    let verdicts = world.accept(&mut framework, &[fresh[0].0], vec![launch("t", "c", 1000)]);
    assert_eq!(verdicts[0].code, Code::Ok);
}

#[test]
fn every_kill_gets_an_answer() {
    let mut world = World::new();
    let agent = world.agent("n1", 8000);
    let mut framework = world.framework("f", &["a"]);
    world.demand(&mut framework, vec![claim("c", "a", 1000, 2)]);
    let offers = framework.offers();
    let launches = vec![launch("lives", "c", 1000), launch("over", "c", 1000)];
    world.accept(&mut framework, &[offers[0].0], launches);
    world.status(&agent, framework.id, status("over", 1, TaskPhase::Finished));
    agent.hears();

    let runs = vec![run("lives"), run("over"), run("never")];
    let action = FrameworkAction::Kill {
        runs,
        grace: None,
        reason: String::new(),
    };
    let Ok(Reply::Applied {
        verdict: mete_state::Verdict::Killed(items),
        ..
    }) = world.call(&mut framework, action)
    else {
        panic!("a kill has verdicts");
    };

    let codes: Vec<Code> = items.iter().map(|item| item.code).collect();
    assert_eq!(codes, [Code::Ok, Code::AlreadyTerminal, Code::NotFound]);
    assert!(
        matches!(agent.hears().last(), Some(Message::KillTasks(kills)) if kills.tasks.len() == 1)
    );
}
