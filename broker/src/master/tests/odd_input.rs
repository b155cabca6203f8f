//! Whatever comes in, the loop goes on, every call is answered, and no invariant breaks.

use mete_model::{Code, FrameworkId, OfferId, Resources, Span, TaskPhase};
use mete_state::Caller;
use mete_state::command::{FrameworkSettings, StoreDelete, StorePut};
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRng;
use tokio::sync::oneshot;

use super::world::*;
use crate::event::{Event, LinkId, StreamId};
use crate::request::{Accept, FrameworkAction, OperatorAction, Refuse, Request};

fn number() -> impl Strategy<Value = u64> {
    prop_oneof![0..5_u64, Just(u64::MAX), Just(u64::MAX - 1), any::<u64>()]
}

fn framework_id() -> impl Strategy<Value = FrameworkId> {
    any::<u128>().prop_map(|bits| FrameworkId(uuid::Uuid::from_u128(bits)))
}

fn odd_offer() -> impl Strategy<Value = OfferId> {
    (number(), number()).prop_map(|(term, number)| OfferId { term, number })
}

fn odd_resources() -> impl Strategy<Value = Resources> {
    (number(), number()).prop_map(|(cpu_milli, memory)| Resources {
        cpu: mete_model::MilliCpu(cpu_milli),
        memory: mete_model::Bytes(memory),
        ..Resources::default()
    })
}

fn action() -> impl Strategy<Value = FrameworkAction> {
    let run_name = prop_oneof![Just("t1"), Just("t2"), Just("never")];
    let runs = prop::collection::vec(run_name, 0..3)
        .prop_map(|names| names.into_iter().map(run).collect::<Vec<_>>());
    let offers = || prop::collection::vec(odd_offer(), 0..4);
    prop_oneof![
        (number(), 0..3_u32, number()).prop_map(|(version, count, milli)| {
            FrameworkAction::UpdateDemand {
                version,
                upsert: vec![claim("c", "a", milli.min(1 << 52), count)],
                remove: Vec::new(),
            }
        }),
        (offers(), odd_resources(), any::<bool>()).prop_map(|(offers, resources, each)| {
            let mut one = launch("t1", "c", 1);
            one.resources = resources;
            FrameworkAction::Accept(Accept {
                offers,
                launches: vec![one],
                each_alone: each,
                unused_reason: "odd".to_owned(),
                unused_refuse: Some(Refuse::UntilDemandChanges),
            })
        }),
        (offers(), number()).prop_map(|(offers, milliseconds)| FrameworkAction::Decline {
            offers,
            reason: String::new(),
            refuse: Refuse::from_milliseconds(milliseconds),
        }),
        any::<bool>().prop_map(|suppressed| FrameworkAction::Suppress {
            roles: vec![role("nowhere")],
            suppressed,
        }),
        Just(FrameworkAction::UpdateFramework {
            settings: FrameworkSettings::default(),
        }),
        (runs, number()).prop_map(|(runs, grace)| FrameworkAction::Kill {
            runs,
            grace: Some(Span(grace)),
            reason: String::new(),
        }),
        number().prop_map(|sequence| FrameworkAction::Acknowledge {
            items: vec![(run("t1"), sequence)],
        }),
        (number(), 0..3_usize).prop_map(|(expected, size)| FrameworkAction::WriteStore {
            puts: vec![StorePut {
                key: vec![1; size],
                value: Vec::new(),
                expected: Some(expected),
            }],
            deletes: vec![StoreDelete {
                key: vec![2],
                expected: None,
            }],
        }),
        Just(FrameworkAction::Read),
    ]
}

fn operator_action() -> impl Strategy<Value = OperatorAction> {
    prop_oneof![
        Just(OperatorAction::RemoveRole { path: role("a") }),
        Just(OperatorAction::RemoveRole { path: role("none") }),
        any::<u32>().prop_map(|weight| OperatorAction::SetRole {
            path: role("a"),
            weight_milli: Some(weight),
        }),
        framework_id().prop_map(|framework| OperatorAction::RemoveFramework { framework }),
        (framework_id(), number()).prop_map(|(framework, grace)| OperatorAction::KillTasks {
            runs: vec![(framework, run("t1"))],
            grace: Some(Span(grace)),
            reason: String::new(),
        }),
        odd_offer().prop_map(|offer| OperatorAction::RescindOffers {
            offers: vec![offer],
        }),
        any::<u128>().prop_map(|bits| OperatorAction::RemoveNode {
            agent: mete_model::AgentId(uuid::Uuid::from_u128(bits)),
        }),
    ]
}

fn assert_sound_and_working(world: &mut World) {
    let broken = world.master.read_state(mete_state::invariants::check);
    assert!(broken.is_empty(), "{broken:?}");
    assert_eq!(world.master.leader().unwrap().counters().quarantined, 0);
    world.set_role("after");
    let after = world
        .try_subscribe("after", &["after"], 0)
        .map(|framework| framework.id);
    assert!(after.is_ok(), "{after:?}");
}

#[test]
fn a_flood_of_odd_calls_is_answered_and_breaks_nothing() {
    let mut world = World::new();
    let agent = world.agent("n1", 4000);
    let mut framework = world.framework("f", &["a"]);
    world.demand(&mut framework, vec![claim("c", "a", 1000, 2)]);
    let offers = framework.offers();
    world.accept(
        &mut framework,
        &[offers[0].0],
        vec![launch("t1", "c", 1000)],
    );
    let config = ProptestConfig::default();
    let rng = TestRng::deterministic_rng(config.rng_algorithm);
    let mut runner = proptest::test_runner::TestRunner::new_with_rng(config, rng);
    let calls = (
        action(),
        operator_action(),
        prop_oneof![Just(framework.id), framework_id()],
        number(),
        number(),
        number(),
    );
    let mut pending = Vec::new();
    for at in 0..4000_u64 {
        let drawn = calls.new_tree(&mut runner).unwrap().current();
        let (action, operator, id, incarnation, call, answered) = drawn;
        let (reply, answer) = oneshot::channel();
        let request = if at % 5 == 0 {
            Request::Operator {
                actor: "odd".to_owned(),
                action: operator,
                dry_run: at % 10 == 0,
            }
        } else {
            let caller = Caller {
                framework: id,
                incarnation: if at % 2 == 0 { 1 } else { incarnation },
                call,
                answered,
            };
            Request::Framework { caller, action }
        };
        let odd_status = status("t1", call, TaskPhase::Running);
        world.step(vec![
            Event::Call { request, reply },
            Event::AgentStatuses {
                link: LinkId(incarnation),
                statuses: vec![(id, odd_status.clone())],
            },
            Event::AgentStatuses {
                link: agent.link,
                statuses: vec![(id, odd_status)],
            },
            Event::AgentClosed {
                link: LinkId(1000 + at),
            },
            Event::StreamDrained {
                stream: StreamId(answered),
            },
        ]);
        pending.push(answer);
    }
    world.pass(3000);

    let silent = pending
        .iter_mut()
        .filter_map(|answer| answer.try_recv().err());
    assert_eq!(silent.count(), 0, "calls without an answer");
    assert_sound_and_working(&mut world);
}

#[test]
fn a_role_that_does_not_exist_is_denied_not_ignored() {
    let mut world = World::new();
    let refused = world.try_subscribe("f", &["nowhere"], 0).err().unwrap();
    assert_eq!(refused.code(), Code::Denied);
    assert!(refused.to_string().contains("nowhere"), "{refused}");
}

#[test]
fn an_incarnation_that_was_never_given_out_is_invalid() {
    let mut world = World::new();
    assert!(
        world.master.replica().standing().ready,
        "a master that is alone leads at once"
    );
    let framework = world.framework("f", &["a"]);
    let request = Request::Framework {
        caller: Caller {
            framework: framework.id,
            incarnation: 7,
            call: 1,
            answered: 0,
        },
        action: FrameworkAction::Read,
    };
    let refused = world.ask(request).unwrap_err();
    assert_eq!(refused.code(), Code::Invalid);
}
