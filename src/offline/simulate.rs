//! `mete simulate`: clusters on virtual time, seed after seed.

use std::time::Instant;

use mete_model::Code;
use mete_simulator::{Options, Report, run};

use crate::args::simulate::Simulate;
use crate::bench::{Figures, decimal};
use crate::cli::support::error::{CliError, Outcome};
use crate::cli::support::print::{Format, Style, note, out};

/// Failures that are told in full.
const TOLD: usize = 5;

/// `mete simulate`.
///
/// # Errors
/// `INTERNAL` with the first violation when a seed went wrong.
pub fn simulate(flags: &Simulate, style: &Style) -> Outcome {
    let (from, count) = match flags.seed {
        Some(seed) => (seed, 1),
        None => (flags.from, flags.seeds),
    };
    let options = Options {
        trace: flags.trace,
        ..Options::default()
    };
    let began = Instant::now();
    let mut sums = Sums::default();
    // For programs it is a part of what is printed.
    let mut trace = Vec::new();
    for seed in from..from.saturating_add(count) {
        let mut report = run(seed, &options);
        let lines = std::mem::take(&mut report.trace);
        if matches!(style.format, Format::Table | Format::Wide) {
            for line in lines {
                out(&format!("{line}\n"))?;
            }
        } else {
            trace = lines;
        }
        // At once: the rest may take hours.
        if let Some(first) = report.violations.first() {
            note(&format!(
                "seed {seed} went wrong: {first}; {}",
                report.replay()
            ));
        }
        sums.add(report);
    }
    let seconds = began.elapsed().as_secs_f64();
    let failed = std::mem::take(&mut sums.failed);
    let mut figures = Figures::default();
    figures.put("seeds", count);
    figures.put("from", from);
    figures.put("failed", failed.len());
    figures.put("seconds", decimal(seconds));
    figures.put("seeds_per_s", decimal(per_second(count, seconds)));
    figures.put("virtual_s", sums.milliseconds / 1000);
    figures.put("happenings", sums.happenings);
    figures.put("commands", sums.commands);
    figures.put("terms", sums.terms);
    figures.put("runs", sums.runs);
    figures.put("operations", sums.operations);
    if let (Some(_), [digest]) = (flags.seed, sums.digests.as_slice()) {
        figures.put("digest", format!("{digest:016x}"));
    }
    if !trace.is_empty() {
        figures.put("trace", trace);
    }
    figures.print("Simulation", style)?;
    match failed.first() {
        None => Ok(()),
        Some(first) => Err(error(first, &failed)),
    }
}

#[expect(clippy::cast_precision_loss, reason = "a figure for people")]
fn per_second(count: u64, seconds: f64) -> f64 {
    count as f64 / seconds.max(0.001)
}

fn error(first: &Report, failed: &[Report]) -> CliError {
    let what = first.violations.first().map(ToString::to_string);
    let what = what.unwrap_or_default();
    let mut error = CliError::new(
        Code::Internal,
        format!("seed {} went wrong: {what}", first.seed),
    );
    for report in failed.iter().skip(1).take(TOLD) {
        let what = report.violations.first().map(ToString::to_string);
        error = error.fact(format!(
            "seed {}: {}",
            report.seed,
            what.unwrap_or_default()
        ));
    }
    error.next(first.replay(), "shows what happened")
}

#[derive(Debug, Default)]
struct Sums {
    milliseconds: u64,
    happenings: u64,
    commands: usize,
    terms: usize,
    runs: usize,
    operations: usize,
    /// Of the last seed.
    digests: Vec<u64>,
    failed: Vec<Report>,
}

impl Sums {
    fn add(&mut self, report: Report) {
        let facts = report.facts;
        self.milliseconds += facts.milliseconds;
        self.happenings += facts.happenings;
        self.commands += facts.commands;
        self.terms += facts.terms;
        self.runs += facts.runs;
        self.operations += facts.operations;
        self.digests = vec![report.digest];
        if !report.violations.is_empty() {
            self.failed.push(report);
        }
    }
}
