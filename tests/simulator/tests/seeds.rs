//! Sound clusters, seed after seed: nothing may be found. Some seeds are always the same, some are
//! new in every run; how long is bounded, and `METE_SIMULATE_SECONDS` says how long instead.

#![expect(clippy::print_stdout, reason = "how much was tried, for people")]

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use mete_simulator::{Options, Report, run};

/// Seeds whose worlds once went wrong, for a fault of the product or of the simulator.
const ONCE_WRONG: [u64; 9] = [26, 35, 85, 10_349, 40_043, 50_042, 60_213, 61_082, 61_685];

/// So many seeds are looked at however slow the machine is.
const LEAST: u64 = 3;

fn share() -> Duration {
    let asked = std::env::var("METE_SIMULATE_SECONDS").ok();
    let seconds = asked.and_then(|text| text.parse().ok()).unwrap_or(14_u64);
    Duration::from_secs(seconds) / 2
}

fn expect_sound(report: &Report) {
    if report.violations.is_empty() {
        return;
    }
    let found: Vec<String> = report.violations.iter().map(ToString::to_string).collect();
    panic!(
        "seed {} went wrong:\n  {}\nit is shown again by: {}",
        report.seed,
        found.join("\n  "),
        report.replay()
    );
}

/// Runs seeds from `first` on until the time is over.
fn run_from(first: u64) -> u64 {
    let began = Instant::now();
    let mut seed = first;
    while seed < first + LEAST || began.elapsed() < share() {
        expect_sound(&run(seed, &Options::default()));
        seed += 1;
    }
    seed - first
}

#[test]
fn the_same_seeds_as_ever_go_well() {
    for seed in ONCE_WRONG {
        expect_sound(&run(seed, &Options::default()));
    }
    let count = run_from(1);
    println!("seeds 1 to {count} went well");
}

#[test]
fn seeds_that_were_never_tried_go_well() {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    let first = since.expect("a clock after 1970").as_secs() << 16;
    let count = run_from(first);
    println!("{count} seeds from {first} on went well");
}

#[test]
fn a_seed_gives_the_same_history_every_time() {
    let options = Options {
        trace: true,
        ..Options::default()
    };
    let mut digests = std::collections::BTreeSet::new();
    for seed in [7, 8, 9] {
        let (first, second) = (run(seed, &options), run(seed, &options));

        assert!(!first.trace.is_empty(), "seed {seed} has no trace");
        assert_eq!(first.trace, second.trace, "seed {seed} went two ways");
        assert_eq!(first.digest, second.digest, "seed {seed} has two digests");
        digests.insert(first.digest);
    }
    assert_eq!(digests.len(), 3, "two seeds gave one history");
}

#[test]
fn worlds_are_worth_looking_at() {
    let reports: Vec<Report> = (1..=12)
        .map(|seed| run(seed, &Options::default()))
        .collect();
    let sum = |fact: fn(&Report) -> usize| reports.iter().map(fact).sum::<usize>();

    assert!(sum(|report| report.facts.commands) > 1_000);
    assert!(
        sum(|report| report.facts.terms) > 24,
        "leaders hardly change"
    );
    assert!(
        sum(|report| report.facts.runs) > 60,
        "hardly anything is launched"
    );
    assert!(sum(|report| report.facts.operations) > 300);
}
