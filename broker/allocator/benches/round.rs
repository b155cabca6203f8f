//! Times rounds: `cargo bench -p mete-allocator -- AGENTS ROLES FRAMEWORKS SEED TIMES`. Prints one
//! line of JSON; the naive allocator places a sample of tasks, and its time for all is worked out.

#![expect(
    clippy::print_stdout,
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "a bench measures time and prints it"
)]

use std::time::{Duration, Instant};

use mete_allocator::{Dirty, Limits, Round, View, allocate, reference};

const ALL: fn() -> Dirty = || Dirty {
    all: true,
    ..Dirty::default()
};
/// Rounds measured unless said otherwise; the middle one counts.
const TIMES: u32 = 7;
/// Tasks that the naive allocator places.
const SAMPLE: usize = 20;

fn main() {
    let numbers: Vec<u32> = std::env::args()
        .skip(1)
        .filter_map(|text| text.parse().ok())
        .collect();
    let number = |at: usize, usual: u32| numbers.get(at).copied().unwrap_or(usual);
    let (agents, roles) = (number(0, 50_000), number(1, 1_000));
    let (frameworks, seed) = (number(2, 1_000), number(3, 1));
    let runs = number(4, TIMES).max(1);
    let mut view = reference::scenario(agents, roles, frameworks, u64::from(seed));

    let (full, round) = middle(TIMES, || timed(&view, &ALL()));
    let placements = round.placements.len();
    let slots: u32 = round
        .placements
        .iter()
        .map(|placement| placement.slots)
        .sum();
    let waiting = round.waiting.len();

    let started = Instant::now();
    let limits = Limits {
        placements: SAMPLE,
        agents: usize::MAX,
    };
    let naive = reference::naive(&view, limits).placements.len().max(1);
    let tasks = usize::try_from(slots).unwrap_or(usize::MAX);
    let naive = started.elapsed().as_secs_f64() * 1000.0 / naive as f64 * tasks as f64;

    reference::book(&mut view, &round);
    reference::accept_all(&mut view);
    let settled = allocate(&view, &ALL(), Limits::NONE);
    reference::book(&mut view, &settled);
    let mut seed = u64::from(seed);
    let mut found = 0;
    let (incremental, _) = middle(runs, || {
        seed += 1;
        let started = Instant::now();
        let dirty = reference::one_change(&mut view, seed);
        let patch = started.elapsed();
        let (took, round) = timed(&view, &dirty);
        found += round.placements.len();
        reference::book(&mut view, &round);
        (patch + took, round)
    });
    let ms = |time: Duration| time.as_secs_f64() * 1000.0;
    println!(
        "{{\"agents\":{agents},\"roles\":{roles},\"frameworks\":{frameworks},\
         \"full_ms\":{:.3},\"full_best_ms\":{:.3},\"incremental_ms\":{:.3},\
         \"incremental_best_ms\":{:.3},\"naive_ms\":{naive:.0},\
         \"placements\":{placements},\"tasks\":{slots},\"waiting\":{waiting},\
         \"incremental_placements\":{found}}}",
        ms(full[0]),
        ms(full[1]),
        ms(incremental[0]),
        ms(incremental[1]),
    );
}

/// The middle and the best time of several runs (others may be busy on the machine), and the last
/// result.
fn middle<T>(runs: u32, mut run: impl FnMut() -> (Duration, T)) -> ([Duration; 2], T) {
    let mut times = Vec::new();
    let mut last = None;
    for _ in 0..runs {
        let (time, result) = run();
        times.push(time);
        last = Some(result);
    }
    times.sort_unstable();
    (
        [times[times.len() / 2], times[0]],
        last.expect("at least one run"),
    )
}

/// A round with the time it took.
fn timed(view: &View, dirty: &Dirty) -> (Duration, Round) {
    let started = Instant::now();
    let round = allocate(view, dirty, Limits::NONE);
    (started.elapsed(), round)
}
