//! Who is offered what, when offers end, and what a refusal hides.

use mete_model::{Code, Span};
use proptest::prelude::*;

use super::world::*;
use crate::leader::view::{Facts, Kept};
use crate::request::{FrameworkAction, Refuse, Request};

#[test]
fn no_demand_no_offers() {
    let mut world = World::new();
    let _agent = world.agent("n1", 4000);
    let idle: Vec<Framework> = (0..20)
        .map(|number| world.framework(&format!("idle-{number}"), &["a"]))
        .collect();
    let mut busy = world.framework("busy", &["b"]);
    world.demand(&mut busy, vec![claim("c", "b", 500, 1)]);
    world.pass(2000);

    assert_eq!(busy.offers().len(), 1);
    for framework in idle {
        assert!(
            framework.offers().is_empty(),
            "{} wants nothing",
            framework.name
        );
    }
}

#[test]
fn an_offer_that_nobody_answers_expires_and_goes_to_another() {
    let mut world = World::new();
    let mut agent = world.agent("n1", 1000);
    let mut silent = world.framework("silent", &["a"]);
    world.demand(&mut silent, vec![claim("c", "a", 1000, 1)]);
    assert_eq!(silent.offers().len(), 1);
    let mut waiting = world.framework("waiting", &["b"]);
    world.demand(&mut waiting, vec![claim("c", "b", 1000, 1)]);
    assert!(waiting.offers().is_empty(), "all of the cluster is out");

    let mut served = false;
    for _ in 0..24 {
        world.pass_alive(1000, &mut [&mut agent]);
        served |= !waiting.offers().is_empty();
    }

    assert!(served, "an offer that expired is made to the other");
    let counts = world.master.leader().unwrap().book().counts();
    assert!(counts.expired >= 1, "{counts:?}");
    assert!(rescinds_in(&silent.hears()).contains(&(1, "EXPIRED".to_owned())));
}

#[test]
fn a_late_accept_is_told_that_the_offer_expired_and_leaves_no_task() {
    let mut world = World::new();
    let mut agent = world.agent("n1", 1000);
    let mut framework = world.framework("f", &["a"]);
    world.demand(&mut framework, vec![claim("c", "a", 1000, 1)]);
    let offers = framework.offers();
    world.pass_alive(11_000, &mut [&mut agent]);

    let verdicts = world.accept(&mut framework, &[offers[0].0], vec![launch("t", "c", 1000)]);

    assert_eq!(verdicts[0].code, Code::OfferExpired);
    assert!(
        world
            .master
            .read_state(|state| state.run(framework.id, &run("t")).is_none())
    );
}

#[test]
fn suppressing_is_by_role_and_takes_offers_back() {
    let mut world = World::new();
    let mut agent = world.agent("n1", 8000);
    let mut framework = world.framework("f", &["a", "b"]);
    world.demand(
        &mut framework,
        vec![claim("ca", "a", 100, 1), claim("cb", "b", 100, 1)],
    );
    let roles = |offers: &[(mete_model::OfferId, mete_proto::framework::v1::Offer)]| {
        let mut roles: Vec<String> = offers.iter().map(|(_, offer)| offer.role.clone()).collect();
        roles.sort();
        roles
    };
    assert_eq!(roles(&framework.offers()), ["a", "b"]);

    world.suppress(&mut framework, &["a"], true);
    assert_eq!(
        rescinds_in(&framework.hears()),
        [(1, "SUPPRESSED".to_owned())]
    );
    world.pass_alive(12_000, &mut [&mut agent]);
    assert!(
        framework
            .offers()
            .iter()
            .all(|(_, offer)| offer.role == "b")
    );

    world.suppress(&mut framework, &["b"], true);
    world.suppress(&mut framework, &["a"], false);
    framework.hears();
    world.pass_alive(12_000, &mut [&mut agent]);
    let later = roles(&framework.offers());
    assert!(later.iter().all(|role| role == "a"), "{later:?}");
}

#[test]
fn a_refusal_hides_no_more_than_was_refused_until_demand_changes() {
    let mut world = World::new();
    let mut agent = world.agent("n1", 1000);
    let mut framework = world.framework("f", &["a"]);
    world.demand(&mut framework, vec![claim("c", "a", 1000, 1)]);
    let offers = framework.offers();
    assert_eq!(world.decline(&mut framework, &[offers[0].0]), [Code::Ok]);
    assert_eq!(
        world.decline(&mut framework, &[offers[0].0]),
        [Code::Ok],
        "a repeat"
    );
    world.pass_alive(5000, &mut [&mut agent]);
    assert!(
        framework.offers().is_empty(),
        "refused until demand changes"
    );

    // The order of the calls decides: a decline, then new demand, is an offer.
    world.demand(&mut framework, vec![claim("c2", "a", 500, 1)]);
    world.pass(100);
    assert!(!framework.offers().is_empty());
}

#[test]
fn a_short_decline_does_not_end_a_long_one_of_the_same_agent() {
    let mut world = World::new();
    let mut agent = world.agent("n1", 8000);
    let mut framework = world.framework("f", &["a"]);
    world.demand(
        &mut framework,
        vec![claim("large", "a", 1000, 1), claim("small", "a", 500, 1)],
    );
    world.pass(1100);
    let offers = framework.offers();
    let of = |wanted: &str| {
        let found = offers.iter().find(|(_, offer)| offer.claim == wanted);
        found.map(|(id, _)| *id).expect("an offer for each claim")
    };
    let (large, small) = (of("large"), of("small"));
    let mut decline = |world: &mut World, id, milliseconds| {
        let action = FrameworkAction::Decline {
            offers: vec![id],
            reason: "not now".to_owned(),
            refuse: Refuse::For(mete_model::Span(milliseconds)),
        };
        world.call(&mut framework, action).unwrap();
    };
    decline(&mut world, large, 3_600_000);
    decline(&mut world, small, 2_000);

    world.pass_alive(5_000, &mut [&mut agent]);
    assert_eq!(
        framework.offers(),
        [],
        "both are no more than what was declined for an hour"
    );
    world.pass_alive(3_600_000, &mut [&mut agent]);
    assert!(!framework.offers().is_empty(), "the hour is over");
}

#[test]
fn a_small_offer_declined_on_a_large_agent_is_not_made_again() {
    let mut world = World::new();
    let mut agent = world.agent("n1", 8000);
    let mut framework = world.framework("f", &["a"]);
    world.demand(&mut framework, vec![claim("small", "a", 1000, 1)]);
    let offers = framework.offers();
    assert_eq!(offers.len(), 1);

    assert_eq!(world.decline(&mut framework, &[offers[0].0]), [Code::Ok]);
    world.pass_alive(5000, &mut [&mut agent]);
    assert!(
        framework.offers().is_empty(),
        "seven more were free all the time: nothing has changed"
    );
}

#[test]
fn what_an_accept_does_not_use_is_free_at_once_or_refused_as_it_says() {
    let mut world = World::new();
    let _agent = world.agent("n1", 2000);
    // Too small for the claim, but part of the cluster: a quarter of it may be out.
    let _small: Vec<Agent> = (0..12)
        .map(|number| world.agent(&format!("small-{number}"), 500))
        .collect();
    let mut framework = world.framework("f", &["a"]);
    world.demand(&mut framework, vec![claim("c", "a", 1000, 2)]);
    let offers = framework.offers();
    assert_eq!(offers[0].1.slots, 2);

    let mut accept = accept_of(&[offers[0].0], vec![launch("t1", "c", 1000)]);
    accept.unused_refuse = Some(Refuse::For(Span::seconds(5)));
    launched(world.call(&mut framework, FrameworkAction::Accept(accept)));
    world.pass(3000);
    assert!(
        framework.offers().is_empty(),
        "what was not used is refused for 5 s"
    );
    world.pass(3000);
    assert_eq!(framework.offers().len(), 1);
}

#[test]
fn an_operator_takes_offers_back() {
    let mut world = World::new();
    let _agent = world.agent("n1", 1000);
    let mut framework = world.framework("f", &["a"]);
    world.demand(&mut framework, vec![claim("c", "a", 1000, 1)]);
    let offers = framework.offers();
    let request = Request::Operator {
        actor: "ops".to_owned(),
        action: crate::request::OperatorAction::RescindOffers {
            offers: vec![offers[0].0],
        },
        dry_run: false,
    };
    world.ask(request).unwrap();

    assert!(rescinds_in(&framework.hears()).contains(&(1, "OPERATOR".to_owned())));
    let verdicts = world.accept(&mut framework, &[offers[0].0], vec![launch("t", "c", 1000)]);
    assert_eq!(verdicts[0].code, Code::OfferRescinded);
}

#[derive(Clone, Debug)]
enum Move {
    Demand(usize, u8, u64, u32),
    Accept(usize, u64),
    Decline(usize),
    Suppress(usize, bool),
    Pass(u64),
    Lose,
    Back,
    Finish(usize),
}

fn moves() -> impl Strategy<Value = Vec<Move>> {
    let one = prop_oneof![
        (0..2_usize, 0..3_u8, 1..9_u64, 0..4_u32).prop_map(|(f, c, m, n)| Move::Demand(f, c, m, n)),
        (0..2_usize, 1..9_u64).prop_map(|(f, m)| Move::Accept(f, m)),
        (0..2_usize).prop_map(Move::Decline),
        (0..2_usize, any::<bool>()).prop_map(|(f, s)| Move::Suppress(f, s)),
        (0..6000_u64).prop_map(Move::Pass),
        Just(Move::Lose),
        Just(Move::Back),
        (0..2_usize).prop_map(Move::Finish),
    ];
    prop::collection::vec(one, 1..25)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, ..ProptestConfig::default() })]

    /// Whatever happens, the view that was patched all along is the one that would be built now,
    /// and the ledger's invariants hold.
    #[test]
    fn a_patched_view_equals_a_rebuilt_one(moves in moves()) {
        let mut world = World::new();
        let mut agents = vec![world.agent("n1", 4000), world.agent("n2", 3000)];
        let mut frameworks =
            [world.framework("f1", &["a", "b"]), world.framework("f2", &["a"])];
        let mut launches = 0_u64;
        let mut out: Vec<Vec<(mete_model::OfferId, mete_proto::framework::v1::Offer)>> =
            vec![Vec::new(); 2];
        for one in moves {
            match one {
                Move::Demand(f, c, milli, count) => {
                    let wanted = claim(&format!("c{c}"), "a", milli * 100, count.max(1) * 2);
                    world.demand(&mut frameworks[f], vec![wanted]);
                }
                Move::Accept(f, milli) => {
                    if let Some((id, offer)) = out[f].pop() {
                        launches += 1;
                        let name = format!("t{launches}");
                        let one = launch(&name, &offer.claim, milli * 100);
                        world.accept(&mut frameworks[f], &[id], vec![one]);
                    }
                }
                Move::Decline(f) => {
                    if let Some((id, _)) = out[f].pop() {
                        world.decline(&mut frameworks[f], &[id]);
                    }
                }
                Move::Suppress(f, suppressed) => {
                    world.suppress(&mut frameworks[f], &["a"], suppressed);
                }
                Move::Pass(milliseconds) => world.pass(milliseconds),
                Move::Lose => {
                    let link = agents[0].link;
                    world.step(vec![crate::event::Event::AgentClosed { link }]);
                }
                Move::Back => {
                    let old = agents.remove(0);
                    let back = world.agent_back(old, 4000, Vec::new());
                    agents.insert(0, back);
                }
                Move::Finish(f) => {
                    let id = frameworks[f].id;
                    let live = world.master.read_state(|state| {
                        state.runs(id).map(|run| (run.id.clone(), run.sequence)).next()
                    });
                    if let Some((run, sequence)) = live {
                        let phase = mete_model::TaskPhase::Finished;
                        let mut ended = status("x", sequence + 1, phase);
                        ended.run = run;
                        world.status(&agents[0], id, ended);
                    }
                }
            }
            for (f, framework) in frameworks.iter().enumerate() {
                out[f].extend(framework.offers());
            }
            world.pass(20);
            let (patched, rebuilt) = audits(&world);
            prop_assert_eq!(patched, rebuilt);
            let broken = world.master.read_state(mete_state::invariants::check);
            prop_assert!(broken.is_empty(), "{:?}", broken);
        }
    }
}

fn audits(world: &World) -> (String, String) {
    let leader = world.master.leader().unwrap();
    world.master.read_state(|state| {
        let facts = Facts {
            state,
            book: leader.book(),
            declines: leader.declines(),
            agent_is_here: &|agent| leader.agent_is_here(agent),
            framework_is_here: &|framework| leader.framework_is_here(framework),
        };
        (leader.view().audit(), Kept::build(facts).view().audit())
    })
}
