//! Runs another program, shows its output as it comes, and keeps the end of it.
//!
//! The end is shown again when a step failed: on a long run it has scrolled away by then.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;

/// How many of the last lines are kept for the end of the run.
const KEPT_LINES: usize = 60;

/// How a program ended and what it said last.
#[derive(Debug)]
pub(crate) struct Ran {
    pub(crate) success: bool,
    pub(crate) tail: Vec<String>,
    pub(crate) tests: TestCount,
}

/// Sum over the closing lines of all test binaries that ran.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TestCount {
    pub(crate) passed: u64,
    pub(crate) failed: u64,
    pub(crate) ignored: u64,
}

/// Runs `command` without input and passes its output on, line by line.
///
/// # Errors
/// The program could not be started or waited for.
pub(crate) fn stream(mut command: Command) -> Result<Ran, String> {
    let name = command.get_program().to_string_lossy().into_owned();
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = command.spawn().map_err(|e| format!("start {name}: {e}"))?;
    let kept = Arc::new(Mutex::new(Kept::default()));
    let out = child
        .stdout
        .take()
        .map(|pipe| pass_on(pipe, std::io::stdout(), &kept));
    let err = child
        .stderr
        .take()
        .map(|pipe| pass_on(pipe, std::io::stderr(), &kept));
    for reader in [out, err].into_iter().flatten() {
        reader
            .join()
            .map_err(|_| format!("reading the output of {name} failed"))?;
    }
    let status = child.wait().map_err(|e| format!("wait for {name}: {e}"))?;
    let kept = kept.lock().expect("no reader panicked: both were joined");
    Ok(Ran {
        success: status.success(),
        tail: kept.lines.iter().cloned().collect(),
        tests: kept.tests,
    })
}

#[derive(Debug, Default)]
struct Kept {
    lines: VecDeque<String>,
    tests: TestCount,
}

impl Kept {
    fn keep(&mut self, line: &str) {
        self.tests.add(line);
        if self.lines.len() == KEPT_LINES {
            self.lines.pop_front();
        }
        self.lines.push_back(line.to_owned());
    }
}

fn pass_on<R, W>(pipe: R, mut to: W, kept: &Arc<Mutex<Kept>>) -> thread::JoinHandle<()>
where
    R: Read + Send + 'static,
    W: Write + Send + 'static,
{
    let kept = Arc::clone(kept);
    thread::spawn(move || {
        for line in BufReader::new(pipe).split(b'\n') {
            let Ok(line) = line else { return };
            let line = String::from_utf8_lossy(&line);
            kept.lock()
                .expect("the other reader does not panic")
                .keep(&line);
            // Nobody reads any more: keep draining, so that the program can end.
            let _ = writeln!(to, "{line}");
        }
    })
}

impl TestCount {
    /// Adds the numbers of one `test result:` line; any other line changes nothing.
    fn add(&mut self, line: &str) {
        let Some((_, counts)) = line.split_once("test result: ") else {
            return;
        };
        for part in counts.split([';', '.']) {
            let mut words = part.split_whitespace();
            let (Some(number), Some(what)) = (words.next(), words.next()) else {
                continue;
            };
            let Ok(number) = number.parse::<u64>() else {
                continue;
            };
            match what {
                "passed" => self.passed += number,
                "failed" => self.failed += number,
                "ignored" => self.ignored += number,
                _ => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sh(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn a_failing_program_is_reported_with_its_last_words() {
        let ran = stream(sh("echo first; echo last >&2; exit 3")).expect("sh starts");

        assert!(!ran.success);
        assert!(ran.tail.contains(&"first".to_owned()), "{:?}", ran.tail);
        assert!(ran.tail.contains(&"last".to_owned()), "{:?}", ran.tail);
    }

    #[test]
    fn only_the_last_lines_are_kept() {
        let mut kept = Kept::default();

        for number in 1..=500 {
            kept.keep(&number.to_string());
        }

        assert_eq!(kept.lines.len(), KEPT_LINES);
        assert_eq!(kept.lines.back().map(String::as_str), Some("500"));
    }

    #[test]
    fn a_program_that_does_not_exist_is_an_error_with_its_name() {
        let error = stream(Command::new("no-such-program-here")).expect_err("cannot start");

        assert!(error.contains("no-such-program-here"), "{error}");
    }

    #[test]
    fn closing_lines_of_several_test_binaries_are_added_up() {
        let mut count = TestCount::default();

        count.add("test result: ok. 12 passed; 0 failed; 1 ignored; 0 measured; finished in 1.02s");
        count.add("test result: FAILED. 3 passed; 2 failed; 0 ignored; 0 measured");
        count.add("running 14 tests");

        assert_eq!(
            count,
            TestCount {
                passed: 15,
                failed: 2,
                ignored: 1
            }
        );
    }
}
