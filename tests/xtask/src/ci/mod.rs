//! `cargo xtask ci`: every check, one after the other, the quick ones first.
//!
//! All steps run even when one fails, so that one run tells everything. The last lines are a
//! table of the steps, the sum of the tests, and `N passed, N failed, N skipped` (steps). A step
//! that this machine cannot run is skipped with the missing thing named; `--all` makes that a
//! failure, and tells the tests so by `METE_ALL=1`: a test that then lacks something must fail
//! instead of skipping.

mod steps;
mod summary;

use crate::args::CiOptions;
use crate::shell::TestCount;
use std::path::Path;
use std::time::{Duration, Instant};
use steps::STEPS;

/// What became of one step.
#[derive(Debug, Clone)]
pub(crate) enum Outcome {
    /// It ran and found nothing; the note says what is worth knowing, often nothing.
    Passed { note: String, tests: TestCount },
    /// It ran and found something; `tail` is what it said last.
    Failed {
        note: String,
        tail: Vec<String>,
        tests: TestCount,
    },
    /// It did not run: what is missing, or who asked for that.
    Skipped { why: String, asked_for: bool },
}

/// One line of the summary.
#[derive(Debug)]
struct Line {
    name: &'static str,
    outcome: Outcome,
    took: Duration,
}

/// What every step is given.
#[derive(Debug)]
pub(crate) struct Context<'a> {
    pub(crate) root: &'a Path,
    pub(crate) skips_fail: bool,
}

/// The names that `--only` and `--skip` take, in the order in which the steps run.
pub(crate) fn step_names() -> Vec<&'static str> {
    STEPS.iter().map(|step| step.name).collect()
}

/// Runs the chosen steps; `true` when none failed.
///
/// # Errors
/// Only what keeps `ci` itself from running; a failing step is not an error.
pub(crate) fn run(root: &Path, options: &CiOptions) -> Result<bool, String> {
    let context = Context {
        root,
        skips_fail: options.skips_fail,
    };
    let started = Instant::now();
    let mut lines = Vec::new();
    for step in STEPS {
        if !options.only.is_empty() && !options.only.iter().any(|name| name == step.name) {
            continue;
        }
        println!("\n==== {}: {}", step.name, step.what);
        let begun = Instant::now();
        let outcome = if options.skip.iter().any(|name| name == step.name) {
            Outcome::Skipped {
                why: "left out by --skip".to_owned(),
                asked_for: true,
            }
        } else {
            (step.run)(&context).unwrap_or_else(Outcome::could_not_run)
        };
        let line = Line {
            name: step.name,
            outcome,
            took: begun.elapsed(),
        };
        println!("---- {}", summary::one_line(&line, options.skips_fail));
        lines.push(line);
    }
    println!(
        "{}",
        summary::text(&lines, options.skips_fail, started.elapsed())
    );
    Ok(!lines
        .iter()
        .any(|line| line.outcome.is_failure(options.skips_fail)))
}

impl Outcome {
    fn passed(note: impl Into<String>) -> Self {
        Self::Passed {
            note: note.into(),
            tests: TestCount::default(),
        }
    }

    fn missing(why: impl Into<String>) -> Self {
        Self::Skipped {
            why: why.into(),
            asked_for: false,
        }
    }

    fn could_not_run(error: String) -> Self {
        Self::Failed {
            note: error,
            tail: Vec::new(),
            tests: TestCount::default(),
        }
    }

    fn is_failure(&self, skips_fail: bool) -> bool {
        match self {
            Self::Passed { .. } => false,
            Self::Failed { .. } => true,
            Self::Skipped { asked_for, .. } => skips_fail && !asked_for,
        }
    }
}
