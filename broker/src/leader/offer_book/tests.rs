use mete_model::{Bytes, MilliCpu};
use proptest::prelude::*;

use super::*;

fn agent(number: u128) -> AgentId {
    AgentId(uuid::Uuid::from_u128(number))
}

fn framework(number: u128) -> FrameworkId {
    FrameworkId(uuid::Uuid::from_u128(1000 + number))
}

fn wanted(framework_number: u128, agent_number: u128) -> Wanted {
    Wanted {
        framework: framework(framework_number),
        role: RolePath::new("batch").expect("a role"),
        claim: Some(ClaimId::new("c").expect("a claim")),
        slots: 2,
        agent: agent(agent_number),
        topology_epoch: 1,
        resources: Resources {
            cpu: MilliCpu(500),
            memory: Bytes(1 << 20),
            ..Resources::default()
        },
    }
}

fn book() -> OfferBook {
    OfferBook::new(4, Span::seconds(10))
}

#[test]
fn an_offer_lapses_at_its_time_and_not_before() {
    let mut book = book();
    let id = book.make(wanted(1, 1), Timestamp(5), Monotonic(1000));

    assert!(book.expire(Timestamp(6), Monotonic(10_999)).is_empty());
    assert_eq!(book.next_expiry(), Some(Monotonic(11_000)));
    let lapsed = book.expire(Timestamp(7), Monotonic(11_000));

    assert_eq!(lapsed.len(), 1);
    assert!(book.get(id).is_none());
    assert_eq!(book.ended(id).map(|ended| &ended.how), Some(&How::Expired));
    assert!(book.offered_of_agent(agent(1)).is_none());
    let claim = ClaimId::new("c").expect("a claim");
    assert_eq!(book.slots_of(framework(1), &claim), 0);
}

#[test]
fn an_accepted_offer_neither_lapses_nor_is_taken_back_until_its_command_applied() {
    let mut book = book();
    let id = book.make(wanted(1, 1), Timestamp(5), Monotonic(0));

    assert!(book.accept(id));
    assert!(!book.accept(id), "only once");
    assert!(book.expire(Timestamp(9), Monotonic(60_000)).is_empty());
    assert!(book.rescind(&[id], Why::Agent, Timestamp(9)).is_empty());
    assert!(book.offered_of_agent(agent(1)).is_some(), "still booked");

    book.settle(id, true, Timestamp(9));
    assert!(book.offered_of_agent(agent(1)).is_none());
    assert_eq!(book.ended(id).map(|ended| &ended.how), Some(&How::Accepted));
}

#[test]
fn an_accept_that_was_never_logged_leaves_the_offer_open_with_its_old_deadline() {
    let mut book = book();
    let id = book.make(wanted(1, 1), Timestamp(5), Monotonic(0));
    book.accept(id);
    book.reopen(id);

    assert_eq!(book.next_expiry(), Some(Monotonic(10_000)));
    assert!(book.decline(id, "too small", Timestamp(6)).is_some());
    assert_eq!(
        book.ended(id).map(|ended| ended.how.clone()),
        Some(How::Declined("too small".to_owned()))
    );
}

#[test]
fn three_silences_in_a_row_halve_the_cap_and_an_accept_doubles_it_back() {
    let mut book = book();
    let mut monotonic = Monotonic(0);
    for round in 1..=6_u32 {
        for agent_number in 0..5 {
            book.make(wanted(1, agent_number), Timestamp(0), monotonic);
        }
        monotonic = monotonic.after(10_000);
        assert_eq!(book.expire(Timestamp(0), monotonic).len(), 5);
        assert_eq!(book.halvings(framework(1)), round / 3, "round {round}");
    }

    let id = book.make(wanted(1, 1), Timestamp(0), monotonic);
    book.accept(id);
    book.settle(id, true, Timestamp(0));
    assert_eq!(book.halvings(framework(1)), 1);
}

#[test]
fn ids_of_another_term_mean_nothing() {
    let mut book = book();
    let id = book.make(wanted(1, 1), Timestamp(0), Monotonic(0));
    let other = OfferId { term: 3, ..id };

    assert!(book.get(other).is_none());
    assert!(!book.accept(other));
    assert!(!book.was_made(other));
    assert!(book.was_made(id));
    assert!(
        book.rescind(&[other], Why::Operator, Timestamp(0))
            .is_empty()
    );
}

#[test]
fn history_is_bounded_and_still_finds_the_newest() {
    let mut book = book();
    let mut last = None;
    for _ in 0..HISTORY + 10 {
        let id = book.make(wanted(1, 1), Timestamp(0), Monotonic(0));
        book.decline(id, "", Timestamp(0));
        last = Some(id);
    }
    let last = last.expect("one was made");
    assert_eq!(book.history().count(), HISTORY);
    assert!(book.ended(last).is_some());
    let first = OfferId { number: 1, ..last };
    assert!(book.ended(first).is_none());
    assert!(book.was_made(first));
}

#[derive(Clone, Debug)]
enum Step {
    Make(u128, u128),
    Accept(usize),
    Settle(usize),
    Decline(usize),
    RescindAgent(u128),
    Expire(u64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        (0..3_u128, 0..4_u128).prop_map(|(f, a)| Step::Make(f, a)),
        (0..40_usize).prop_map(Step::Accept),
        (0..40_usize).prop_map(Step::Settle),
        (0..40_usize).prop_map(Step::Decline),
        (0..4_u128).prop_map(Step::RescindAgent),
        (0..9000_u64).prop_map(Step::Expire),
    ];
    prop::collection::vec(step, 0..120)
}

proptest! {
    /// Whatever happens, the sums are those of the offers that are out, and each offer ends once.
    #[test]
    fn sums_always_equal_the_offers_that_are_out(steps in steps()) {
        let mut book = book();
        let mut ids = Vec::new();
        let mut monotonic = Monotonic(0);
        for step in steps {
            let pick = |at: usize| ids.get(at).copied().unwrap_or(OfferId { term: 4, number: 0 });
            match step {
                Step::Make(f, a) => ids.push(book.make(wanted(f, a), Timestamp(0), monotonic)),
                Step::Accept(at) => { book.accept(pick(at)); }
                Step::Settle(at) => {
                    let id = pick(at);
                    if book.get(id).is_some_and(|booked| booked.accepted) {
                        book.settle(id, true, Timestamp(0));
                    }
                }
                Step::Decline(at) => { book.decline(pick(at), "", Timestamp(0)); }
                Step::RescindAgent(a) => {
                    let open = book.open_of_agent(agent(a));
                    book.rescind(&open, Why::Agent, Timestamp(0));
                }
                Step::Expire(by) => {
                    monotonic = monotonic.after(by);
                    book.expire(Timestamp(0), monotonic);
                }
            }
            for number in 0..4 {
                let mut sum = Resources::default();
                for booked in book.iter().filter(|booked| booked.offer.agent == agent(number)) {
                    sum.add(&booked.offer.resources);
                }
                let kept = book.offered_of_agent(agent(number)).cloned().unwrap_or_default();
                prop_assert_eq!(kept, sum);
            }
            for booked in book.iter() {
                prop_assert!(booked.accepted || booked.expires > monotonic);
            }
        }
        let counts = book.counts();
        let over = counts.accepted + counts.declined + counts.rescinded + counts.expired;
        prop_assert_eq!(counts.made, over + book.len() as u64);
    }
}
