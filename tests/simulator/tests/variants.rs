//! Deliberately broken clusters: each is caught within 200 seeds, or the checkers check nothing.
//! A few are tried in every run; all of them, which takes minutes, with `METE_ALL_VARIANTS=1` (and
//! the feature `broken` for the one that needs it).

#![expect(clippy::print_stdout, reason = "how much was tried, for people")]

use std::num::NonZeroUsize;
use std::sync::Mutex;

use mete_simulator::{Options, Variant, run};

/// The most seeds that a broken cluster may live.
const MOST: u64 = 200;

/// Caught by different checkers, each within a few seeds.
const ALWAYS: [Variant; 6] = [
    Variant::SendBeforePersist,
    Variant::DoubleApply,
    Variant::StartedTwice,
    Variant::CallsWithoutNumber,
    Variant::TickBurst,
    Variant::StreamReordered,
];

fn caught(variant: Variant) -> Option<(u64, String)> {
    let options = Options {
        variant: Some(variant),
        trace: false,
    };
    (1..=MOST).find_map(|seed| {
        let report = run(seed, &options);
        let first = report.violations.first()?;
        Some((seed, first.to_string().chars().take(160).collect()))
    })
}

/// Each world has a thread to itself; as many at once as there are processors.
fn all_caught(tried: Vec<Variant>) -> Vec<(Variant, Option<(u64, String)>)> {
    let threads = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
    let (tried, results) = (Mutex::new(tried), Mutex::new(Vec::new()));
    let next = || tried.lock().ok()?.pop();
    let work = || {
        while let Some(variant) = next() {
            let result = (variant, caught(variant));
            results.lock().expect("no thread has panicked").push(result);
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(work);
        }
    });
    let mut results = results.into_inner().expect("no thread has panicked");
    results.sort_by_key(|(variant, _)| *variant);
    results
}

#[test]
fn every_broken_cluster_is_caught() {
    let tried: Vec<Variant> = if std::env::var_os("METE_ALL_VARIANTS").is_some() {
        let possible = |variant: &Variant| cfg!(feature = "broken") || !variant.needs_feature();
        Variant::ALL.into_iter().filter(possible).collect()
    } else {
        ALWAYS.to_vec()
    };
    // Some are caught by the product's own checks: their panics are wanted.
    let usual = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    let results = all_caught(tried);
    std::panic::set_hook(usual);

    for (variant, result) in &results {
        match result {
            Some((seed, what)) => println!("{variant}: seed {seed}: {what}"),
            None => println!("{variant}: not caught in {MOST} seeds"),
        }
    }
    let missed = results.iter().filter(|(_, result)| result.is_none());
    let missed: Vec<String> = missed.map(|(variant, _)| variant.to_string()).collect();
    assert!(missed.is_empty(), "not caught in {MOST} seeds: {missed:?}");
}
