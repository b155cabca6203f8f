//! `mete bench allocator`: a full round, a round after one change, and a naive one beside them.

use std::time::Instant;

use mete_allocator::{Dirty, Limits, Round, View, allocate, reference};

use super::{Figures, decimal, percentile, resident_mib};
use crate::cli::support::error::Outcome;

/// Tasks that the naive allocator places; its time for all is worked out from these.
const SAMPLE: usize = 20;

/// The size of the cluster that is imagined.
#[derive(Clone, Copy, Debug)]
pub struct Size {
    /// Agents.
    pub agents: u32,
    /// Roles.
    pub roles: u32,
    /// Frameworks, spread over the roles.
    pub frameworks: u32,
    /// Rounds measured of each kind; the middle one counts.
    pub rounds: u32,
    /// Which cluster of this size.
    pub seed: u64,
}

/// Measures.
///
/// # Errors
/// A size that is zero.
pub fn run(size: Size) -> Outcome<Figures> {
    if size.agents == 0 || size.roles == 0 || size.frameworks == 0 || size.rounds == 0 {
        return Err(super::usage(
            "--agents, --roles, --frameworks and --rounds start at 1",
        ));
    }
    let all = Dirty {
        all: true,
        ..Dirty::default()
    };
    let mut view = reference::scenario(size.agents, size.roles, size.frameworks, size.seed);
    let (full, round) = middle(size.rounds, || timed(&view, &all));
    let tasks: u64 = round
        .placements
        .iter()
        .map(|placed| u64::from(placed.slots))
        .sum();

    let limits = Limits {
        placements: SAMPLE,
        agents: usize::MAX,
    };
    let began = Instant::now();
    let sampled = reference::naive(&view, limits).placements.len().max(1);
    let sample_ms = began.elapsed().as_secs_f64() * 1000.0;
    let naive = sample_ms / count(sampled) * count(usize::try_from(tasks).unwrap_or(usize::MAX));

    // Filled first: a round after one change is the usual one on a busy cluster.
    reference::book(&mut view, &round);
    reference::accept_all(&mut view);
    let settled = allocate(&view, &all, Limits::NONE);
    reference::book(&mut view, &settled);
    let mut seed = size.seed;
    let mut placed = 0;
    let (incremental, _) = middle(size.rounds.saturating_mul(20), || {
        seed = seed.wrapping_add(1);
        // As the leader does it: the change is patched into the view, and a round looks at it.
        let began = Instant::now();
        let dirty = reference::one_change(&mut view, seed);
        let patch = began.elapsed().as_secs_f64() * 1000.0;
        let (time, round) = timed(&view, &dirty);
        placed += round.placements.len();
        reference::book(&mut view, &round);
        (patch + time, round)
    });

    let mut figures = Figures::default();
    figures.put("agents", size.agents);
    figures.put("roles", size.roles);
    figures.put("frameworks", size.frameworks);
    figures.put("full_ms", decimal(full));
    figures.put(
        "incremental_ms",
        (incremental * 10_000.0).round() / 10_000.0,
    );
    figures.put("naive_ms", decimal(naive));
    figures.put("naive_sample_tasks", sampled);
    figures.put(
        "naive_over_full",
        decimal(naive / full.max(f64::MIN_POSITIVE)),
    );
    figures.put("tasks_placed", tasks);
    figures.put("placements", round.placements.len());
    figures.put("placed_after_changes", placed);
    figures.put("rss_mib", resident_mib());
    Ok(figures)
}

fn timed(view: &View, dirty: &Dirty) -> (f64, Round) {
    let began = Instant::now();
    let round = allocate(view, dirty, Limits::NONE);
    (began.elapsed().as_secs_f64() * 1000.0, round)
}

fn middle(times: u32, mut once: impl FnMut() -> (f64, Round)) -> (f64, Round) {
    let mut all = Vec::new();
    let mut last = Round::default();
    for _ in 0..times {
        let (time, round) = once();
        all.push(time);
        last = round;
    }
    (percentile(&mut all, 50), last)
}

#[expect(clippy::cast_precision_loss, reason = "a count of tasks, for a figure")]
fn count(number: usize) -> f64 {
    number as f64
}
