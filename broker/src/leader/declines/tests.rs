//! Declines: how long each stands, what lifts it, and that none takes another's place.

use mete_model::{MilliCpu, Span};
use proptest::prelude::*;

use super::*;

fn key(framework: u128, role: &str, agent: u128) -> Key {
    (
        FrameworkId(uuid::Uuid::from_u128(framework)),
        RolePath::new(role).expect("a role"),
        AgentId(uuid::Uuid::from_u128(agent)),
    )
}

fn cpu(milli: u64) -> Resources {
    Resources {
        cpu: MilliCpu(milli),
        ..Resources::default()
    }
}

/// So much given back out of so much, of offers made at that time.
fn given(resources: u64, free: u64, made: u64) -> GivenBack {
    GivenBack {
        resources: cpu(resources),
        free: cpu(free),
        made: Monotonic(made),
    }
}

const SHORT: Refuse = Refuse::For(Span::seconds(5));
const LONG: Refuse = Refuse::For(Span::minutes(60));

fn noted(keys: &[Key]) -> Declines {
    let mut declines = Declines::default();
    for key in keys {
        let refuse = Refuse::UntilDemandChanges;
        declines.note(key.clone(), GivenBack::default(), refuse, "", Monotonic(0));
    }
    declines.take_touched();
    declines
}

fn reasons(declines: &Declines, key: &Key) -> Vec<String> {
    let standing = declines.get(key).iter();
    standing.map(|decline| decline.reason.clone()).collect()
}

#[test]
fn reviving_one_role_lifts_the_declines_of_that_role_only() {
    let (a, b, other) = (key(1, "a", 1), key(1, "b", 1), key(2, "a", 1));
    let mut declines = noted(&[a.clone(), b.clone(), other.clone()]);

    declines.revived(a.0, &a.1);

    assert!(declines.get(&a).is_empty());
    assert!(!declines.get(&b).is_empty() && !declines.get(&other).is_empty());
    assert_eq!(declines.take_touched(), BTreeSet::from([a]));
}

#[test]
fn a_decline_for_a_time_outlives_a_change_of_demand_and_then_lapses() {
    let a = key(1, "a", 1);
    let mut declines = noted(&[key(1, "a", 2)]);
    declines.note(a.clone(), given(0, 0, 0), SHORT, "busy", Monotonic(100));

    declines.demand_changed(a.0, &a.1);
    declines.lapse(Monotonic(5099));
    assert_eq!(reasons(&declines, &a), ["busy"]);
    assert!(declines.get(&key(1, "a", 2)).is_empty());
    declines.lapse(Monotonic(5100));
    assert!(declines.get(&a).is_empty());
    assert_eq!(declines.iter().count(), 0);
}

#[test]
fn a_short_decline_beside_a_long_one_takes_nothing_from_it() {
    let a = key(1, "a", 1);
    let mut declines = Declines::default();
    declines.note(a.clone(), given(2, 2, 0), LONG, "long", Monotonic(100));
    let forever = Refuse::UntilDemandChanges;
    declines.note(a.clone(), given(1, 3, 150), forever, "asks", Monotonic(200));
    declines.note(a.clone(), given(4, 6, 250), SHORT, "short", Monotonic(300));
    assert_eq!(reasons(&declines, &a), ["long", "asks", "short"]);
    declines.take_touched();

    declines.lapse(Monotonic(5_300));
    assert_eq!(reasons(&declines, &a), ["long", "asks"]);
    assert_eq!(declines.take_touched(), BTreeSet::from([a.clone()]));
    declines.demand_changed(a.0, &a.1);
    assert_eq!(reasons(&declines, &a), ["long"]);
    declines.lapse(Monotonic(100 + Span::minutes(60).0));
    assert!(declines.get(&a).is_empty());
}

#[test]
fn what_was_in_hand_at_a_decline_is_no_news_when_it_comes_back() {
    let a = key(1, "a", 1);
    let mut declines = Declines::default();
    declines.note(a.clone(), given(2, 2, 50), LONG, "first", Monotonic(100));
    // Was out when the first was declined.
    declines.note(a.clone(), given(4, 6, 100), SHORT, "second", Monotonic(120));
    assert_eq!(
        declines.get(&a).first().map(|first| &first.free),
        Some(&cpu(6))
    );
    // Was freed and offered afterwards: more than what the first was out of.
    declines.note(a.clone(), given(8, 14, 110), SHORT, "third", Monotonic(130));
    assert_eq!(
        declines.get(&a).first().map(|first| &first.free),
        Some(&cpu(6))
    );
}

#[test]
fn declines_of_one_key_are_bounded_and_none_stands_that_another_covers() {
    let a = key(1, "a", 1);
    let mut declines = Declines::default();
    for number in 0..100 {
        declines.note(
            a.clone(),
            given(2, 2, number),
            SHORT,
            "again",
            Monotonic(number),
        );
    }
    assert_eq!(declines.get(&a).len(), 1, "each covers the one before");
    declines.note(a.clone(), given(1, 1, 100), LONG, "long", Monotonic(100));
    for number in 1..=50 {
        // Each smaller than the one before, so none covers it.
        let given = given(100 - number, 100 - number, 200 + number);
        declines.note(a.clone(), given, SHORT, "small", Monotonic(200 + number));
    }
    assert_eq!(declines.get(&a).len(), MOST);
    assert!(
        reasons(&declines, &a).contains(&"long".to_owned()),
        "the longest stays"
    );
    declines.lapse(Monotonic(100_000));
    assert_eq!(reasons(&declines, &a), ["long"]);
}

#[test]
fn a_decline_longer_than_a_week_means_until_demand_changes() {
    assert_eq!(
        Refuse::from_milliseconds(u64::MAX),
        Refuse::UntilDemandChanges
    );
    assert_eq!(Refuse::from_milliseconds(0), Refuse::UntilDemandChanges);
    assert_eq!(
        Refuse::from_milliseconds(3_600_000),
        Refuse::For(Span(3_600_000))
    );
}

/// What ends, read off the declines that stand.
fn standing_ends(declines: &Declines) -> BTreeSet<(Monotonic, Key)> {
    let ends = declines
        .iter()
        .filter_map(|(key, decline)| Some((decline.until?, key.clone())));
    ends.collect()
}

/// One thing that happens: which, to which key, and a number for it.
type Step = (u8, u128, u64);

fn take(declines: &mut Declines, (what, which, number): Step, now: Monotonic) {
    let key = key(
        which % 2 + 1,
        if which % 3 == 0 { "a" } else { "b" },
        which % 4,
    );
    match what {
        0..=5 => {
            let refuse = match number % 3 {
                0 => Refuse::UntilDemandChanges,
                // Few different ones, so that declines of one key share an end.
                _ => Refuse::For(Span(1 + number % 5 * 10)),
            };
            let given = given(1 + number % 12, 1 + number % 7, now.0);
            declines.note(key, given, refuse, "", now);
        }
        6 => declines.demand_changed(key.0, &key.1),
        7 => declines.revived(key.0, &key.1),
        8 => declines.forget_agent(key.2),
        9 => declines.forget_framework(key.0),
        _ => declines.lapse(now),
    }
}

proptest! {
    /// An end without its decline would stay for up to a week, one for each decline of a framework
    /// that declines, revives and declines again.
    #[test]
    fn the_ends_are_those_of_the_declines_that_stand(
        steps in proptest::collection::vec((0..12_u8, 0..12_u128, 0..60_u64), 1..200),
    ) {
        let mut declines = Declines::default();
        let mut now = Monotonic(0);
        for step in steps {
            now = Monotonic(now.0 + step.2 % 4);
            take(&mut declines, step, now);
            prop_assert_eq!(&declines.by_end, &standing_ends(&declines), "after {:?}", step);
            prop_assert!(declines.by_key.values().all(|standing| !standing.is_empty()));
        }
    }
}
