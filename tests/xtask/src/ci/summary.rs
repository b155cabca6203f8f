//! The last lines of `ci`: what failed first, the table, the sums. Pure.

use super::{Line, Outcome};
use crate::shell::TestCount;
use std::fmt::Write;
use std::time::Duration;

/// `clippy: passed in 12.3 s`
pub(super) fn one_line(line: &Line, skips_fail: bool) -> String {
    let word = verdict(&line.outcome, skips_fail);
    let note = note(&line.outcome);
    let dash = if note.is_empty() { "" } else { ": " };
    format!(
        "{} {word} in {:.1} s{dash}{note}",
        line.name,
        line.took.as_secs_f64()
    )
}

/// Everything after the last step; ends with the closing line.
pub(super) fn text(lines: &[Line], skips_fail: bool, took: Duration) -> String {
    let mut out = String::new();
    first_failure(lines, &mut out);
    let mut tests = TestCount::default();
    let (mut passed, mut failed, mut skipped) = (0, 0, 0);
    out.push_str("\n==== summary\n");
    for line in lines {
        let word = verdict(&line.outcome, skips_fail);
        let seconds = line.took.as_secs_f64();
        let _ = writeln!(
            out,
            "{:<8} {word:<8} {seconds:>8.1} s  {}",
            line.name,
            note(&line.outcome)
        );
        match &line.outcome {
            Outcome::Skipped { .. } if !line.outcome.is_failure(skips_fail) => skipped += 1,
            Outcome::Skipped { .. } => failed += 1,
            Outcome::Passed { tests: count, .. } => {
                passed += 1;
                add(&mut tests, *count);
            }
            Outcome::Failed { tests: count, .. } => {
                failed += 1;
                add(&mut tests, *count);
            }
        }
    }
    if tests != TestCount::default() {
        let TestCount {
            passed,
            failed,
            ignored,
        } = tests;
        let _ = writeln!(
            out,
            "tests: {passed} passed, {failed} failed, {ignored} ignored"
        );
    }
    let _ = writeln!(out, "ci took {:.0} s; steps:", took.as_secs_f64());
    let _ = write!(out, "{passed} passed, {failed} failed, {skipped} skipped");
    out
}

/// Shows again what the first failed step said last; it may have scrolled away.
fn first_failure(lines: &[Line], out: &mut String) {
    let failure = lines.iter().find_map(|line| match &line.outcome {
        Outcome::Failed { note, tail, .. } => Some((line.name, note, tail)),
        Outcome::Passed { .. } | Outcome::Skipped { .. } => None,
    });
    if let Some((name, note, tail)) = failure {
        let _ = writeln!(out, "\n==== first failure: {name}: {note}");
        for line in tail {
            let _ = writeln!(out, "  | {line}");
        }
    }
}

fn verdict(outcome: &Outcome, skips_fail: bool) -> &'static str {
    match outcome {
        Outcome::Passed { .. } => "passed",
        Outcome::Skipped { .. } if !outcome.is_failure(skips_fail) => "SKIPPED",
        Outcome::Skipped { .. } => "MISSING",
        Outcome::Failed { .. } => "FAILED",
    }
}

fn note(outcome: &Outcome) -> &str {
    match outcome {
        Outcome::Passed { note, .. } | Outcome::Failed { note, .. } => note,
        Outcome::Skipped { why, .. } => why,
    }
}

fn add(sum: &mut TestCount, more: TestCount) {
    sum.passed += more.passed;
    sum.failed += more.failed;
    sum.ignored += more.ignored;
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(name: &'static str, outcome: Outcome) -> Line {
        Line {
            name,
            outcome,
            took: Duration::from_millis(1500),
        }
    }

    fn run_with_a_skip() -> Vec<Line> {
        let tests = TestCount {
            passed: 40,
            failed: 1,
            ignored: 2,
        };
        let tail = vec!["thread 'x' panicked".to_owned()];
        vec![
            line("fmt", Outcome::missing("rustfmt is missing")),
            line("tidy", Outcome::passed("")),
            line(
                "tests",
                Outcome::Failed {
                    note: "cargo test failed".into(),
                    tail,
                    tests,
                },
            ),
        ]
    }

    #[test]
    fn the_last_line_counts_the_steps() {
        let text = text(&run_with_a_skip(), false, Duration::from_secs(9));

        assert_eq!(text.lines().last(), Some("1 passed, 1 failed, 1 skipped"));
        assert!(
            text.contains("tests: 40 passed, 1 failed, 2 ignored"),
            "{text}"
        );
    }

    #[test]
    fn with_all_a_skip_counts_as_failed_and_names_what_is_missing() {
        let lines = run_with_a_skip();
        let text = text(&lines, true, Duration::from_secs(9));

        assert_eq!(text.lines().last(), Some("1 passed, 2 failed, 0 skipped"));
        assert!(
            text.contains("MISSING") && text.contains("rustfmt is missing"),
            "{text}"
        );
        assert!(lines[0].outcome.is_failure(true) && !lines[0].outcome.is_failure(false));
    }

    #[test]
    fn what_the_first_failed_step_said_last_is_shown_again() {
        let text = text(&run_with_a_skip(), false, Duration::from_secs(9));

        assert!(text.contains("first failure: tests"), "{text}");
        assert!(text.contains("| thread 'x' panicked"), "{text}");
    }

    #[test]
    fn a_step_left_out_on_purpose_is_never_a_failure() {
        let skipped = Outcome::Skipped {
            why: "left out by --skip".into(),
            asked_for: true,
        };

        assert!(!skipped.is_failure(true));
    }
}
