use std::collections::BTreeMap;
use std::sync::Arc;

use mete_model::{Bytes, ClaimId, MilliCpu, RunId, Span, TaskId, TaskSpec, Timestamp};

use super::super::offer_book::Wanted;
use super::*;
use crate::event::Monotonic;

fn agent(number: u128) -> AgentId {
    AgentId(uuid::Uuid::from_u128(number))
}

fn framework(number: u128) -> FrameworkId {
    FrameworkId(uuid::Uuid::from_u128(number))
}

fn cpu(milli: u64) -> Resources {
    Resources {
        cpu: MilliCpu(milli),
        memory: Bytes(milli),
        ..Resources::default()
    }
}

fn make(book: &mut OfferBook, owner: u128, on: u128, role: &str) -> OfferId {
    let wanted = Wanted {
        framework: framework(owner),
        role: RolePath::new(role).expect("a role"),
        claim: Some(ClaimId::new("c").expect("a claim")),
        slots: 2,
        agent: agent(on),
        topology_epoch: 1,
        resources: cpu(1000),
    };
    book.make(wanted, Timestamp(1), Monotonic(0))
}

fn launch(name: &str, milli: u64) -> AcceptLaunch {
    AcceptLaunch {
        run: RunId::new(TaskId::new(name).expect("a task"), 1),
        claim: Some(ClaimId::new("c").expect("a claim")),
        resources: cpu(milli),
        spec: Arc::new(TaskSpec::default()),
        environment: BTreeMap::new(),
        labels: BTreeMap::new(),
        replaces: None,
    }
}

fn accept(offers: &[OfferId], launches: Vec<AcceptLaunch>) -> Accept {
    Accept {
        offers: offers.to_vec(),
        launches,
        each_alone: false,
        unused_reason: String::new(),
        unused_refuse: None,
    }
}

fn codes(judged: Judged) -> Vec<Code> {
    match judged {
        Judged::Refused(verdicts) => verdicts.into_iter().map(|verdict| verdict.code).collect(),
        Judged::Passed(passed) => panic!("passed: {passed:?}"),
    }
}

fn judged(book: &OfferBook, accept: &Accept) -> Judged {
    judge(book, framework(1), accept, &|_| true)
}

#[test]
fn launches_that_fit_the_offers_together_pass() {
    let mut book = OfferBook::new(1, Span::seconds(10));
    let ids = [make(&mut book, 1, 1, "a"), make(&mut book, 1, 1, "a")];

    let Judged::Passed(passed) = judged(&book, &accept(&ids, vec![launch("t", 1500)])) else {
        panic!("it fits both together");
    };

    assert_eq!(passed.offered, cpu(2000));
    assert_eq!(passed.tasks.len(), 1);
    assert_eq!(passed.refused, [None]);
}

#[test]
fn more_than_offered_refuses_all_or_that_one_alone() {
    let mut book = OfferBook::new(1, Span::seconds(10));
    let ids = [make(&mut book, 1, 1, "a")];
    let launches = vec![launch("a", 600), launch("b", 600), launch("c", 400)];
    let mut wanted = accept(&ids, launches);

    let all = codes(judged(&book, &wanted));
    assert_eq!(all, [Code::NotAlone, Code::NotOffered, Code::NotAlone]);

    wanted.each_alone = true;
    let Judged::Passed(passed) = judged(&book, &wanted) else {
        panic!("two of three pass");
    };
    assert_eq!(passed.tasks.len(), 2);
    let merged = merge(passed.refused, vec![ok(1), ok(2)]);
    let codes: Vec<Code> = merged.iter().map(|verdict| verdict.code).collect();
    assert_eq!(codes, [Code::Ok, Code::NotOffered, Code::Ok]);
}

fn ok(grant: u64) -> LaunchVerdict {
    LaunchVerdict {
        code: Code::Ok,
        detail: String::new(),
        grant: Some(mete_model::GrantId(grant)),
    }
}

#[test]
fn offers_of_two_agents_or_two_roles_are_split_before_any_effect() {
    let mut book = OfferBook::new(1, Span::seconds(10));
    let agents = [make(&mut book, 1, 1, "a"), make(&mut book, 1, 2, "a")];
    let roles = [make(&mut book, 1, 3, "a"), make(&mut book, 1, 3, "b")];
    for ids in [agents, roles] {
        let split = codes(judged(&book, &accept(&ids, vec![launch("t", 1)])));
        assert_eq!(split, [Code::BundleSplit]);
    }
}

#[test]
fn each_way_for_an_offer_to_be_gone_has_its_answer() {
    let mut book = OfferBook::new(4, Span::seconds(10));
    let ids: Vec<OfferId> = (1..=7).map(|on| make(&mut book, 1, on, "a")).collect();
    let others = make(&mut book, 2, 9, "a");
    book.accept(ids[0]);
    book.accept(ids[1]);
    book.settle(ids[1], true, Timestamp(2));
    book.decline(ids[2], "no", Timestamp(2));
    book.rescind(&ids[3..4], Why::Suppressed, Timestamp(2));
    book.rescind(&ids[4..5], Why::Agent, Timestamp(2));
    book.expire(Timestamp(2), Monotonic(60_000));

    let code = |id: OfferId| {
        let wanted = accept(&[id], vec![launch("t", 1)]);
        codes(judge(&book, framework(1), &wanted, &|agent_id| {
            agent_id != agent(5)
        }))[0]
    };

    assert_eq!(code(ids[0]), Code::OfferRescinded, "accepted, on its way");
    assert_eq!(code(ids[1]), Code::OfferRescinded, "accepted and applied");
    assert_eq!(code(ids[2]), Code::OfferRescinded, "declined");
    assert_eq!(code(ids[3]), Code::OfferRescinded, "taken back");
    assert_eq!(code(ids[4]), Code::AgentUnavailable, "its agent is away");
    assert_eq!(code(ids[5]), Code::OfferExpired);
    assert_eq!(
        code(others),
        Code::NotFound,
        "not even expired ones of others are known"
    );
    assert_eq!(code(OfferId { term: 3, number: 1 }), Code::OfferRescinded);
    assert_eq!(
        code(OfferId {
            term: 4,
            number: 99
        }),
        Code::NotFound
    );
}

#[test]
fn a_repeated_accept_of_each_alone_recalls_the_first_answer() {
    let launches = [launch("a", 1), launch("b", 1), launch("c", 1)];
    let taken = refusal(Code::NamesTaken, "core 1".to_owned());
    let first = vec![ok(7), taken.clone()];
    let grant_of = |run: &RunId| (run.task.as_str() == "a").then_some(mete_model::GrantId(7));

    let recalled = recall(&launches, first, &grant_of);

    assert_eq!(recalled[0], ok(7));
    assert_eq!(recalled[1], taken);
    assert_eq!(recalled[2].code, Code::NotOffered);
}
