//! The command line as a user and a program meet it.

use std::fmt;
use std::fs::File;
use std::process::Stdio;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use serde_json::Value;

use super::daemon::program;
use super::{METE, Site};

/// A command that takes longer hangs.
const LONGEST: Duration = Duration::from_secs(120);

static RUNS: AtomicU32 = AtomicU32::new(0);

/// How a command ended and what it wrote.
#[derive(Clone, Debug)]
pub(crate) struct Answer {
    /// What was asked.
    pub(crate) args: Vec<String>,
    /// Exit code; -1 for a signal.
    pub(crate) code: i32,
    /// Everything on stdout.
    pub(crate) stdout: String,
    /// Everything on stderr.
    pub(crate) stderr: String,
}

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "mete {} exited {}\n--- stdout\n{}--- stderr\n{}---",
            self.args.join(" "),
            self.code,
            self.stdout,
            self.stderr
        )
    }
}

impl Answer {
    /// It must have worked; gives its stdout without the last newline.
    pub(crate) fn done(&self) -> String {
        assert_eq!(self.code, 0, "{self}");
        self.stdout.trim_end().to_owned()
    }

    /// It must have been refused with this exit code and this stable code, in the one shape that
    /// errors have, on stderr alone, and without a panic.
    pub(crate) fn refused(&self, code: i32, reason: &str) -> &Self {
        assert_eq!(self.code, code, "{self}");
        assert!(!self.stderr.contains("panicked"), "{self}");
        assert!(
            self.stderr.contains(&format!("error[{reason}]: ")),
            "no {reason} in {self}"
        );
        assert!(
            self.stderr.contains(&format!("mete help {reason}")),
            "no way to help in {self}"
        );
        let shown = self
            .stderr
            .lines()
            .skip_while(|line| !line.starts_with("error["))
            .count();
        assert!(shown <= 8, "an error is eight lines at the most: {self}");
        self
    }

    /// stderr must hold this.
    pub(crate) fn says(&self, text: &str) -> &Self {
        assert!(self.stderr.contains(text), "'{text}' is missing in {self}");
        self
    }
}

/// Runs `mete` to its end, with more environment.
pub(crate) fn run(site: &Site, args: &[&str], environment: &[(&str, &str)]) -> Answer {
    run_to(site, args, environment, None)
}

/// The same with what is printed going somewhere else.
pub(crate) fn run_to(
    site: &Site,
    args: &[&str],
    environment: &[(&str, &str)],
    elsewhere: Option<File>,
) -> Answer {
    let number = RUNS.fetch_add(1, Ordering::Relaxed);
    let paths = [".out", ".err"].map(|end| site.path("tmp").join(format!("run-{number}{end}")));
    let [out, err] = paths
        .each_ref()
        .map(|path| File::create(path).expect("a file"));
    let mut command = program(site, METE);
    command.args(args).envs(environment.iter().copied());
    let mut child = command
        .stdin(Stdio::null())
        .stdout(elsewhere.unwrap_or(out))
        .stderr(err)
        .spawn()
        .expect("starts");
    let began = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait().expect("the child can be waited for") {
            break Some(status);
        }
        if began.elapsed() > LONGEST {
            // Reported below.
            let _ended = child.kill();
            let _reaped = child.wait();
            break None;
        }
        std::thread::sleep(Duration::from_millis(3));
    };
    let [stdout, stderr] = paths.map(|path| {
        let bytes = std::fs::read(&path).unwrap_or_default();
        let _gone_with_the_site = std::fs::remove_file(&path);
        String::from_utf8_lossy(&bytes).into_owned()
    });
    let args = args.iter().map(|arg| (*arg).to_owned()).collect();
    let code = status.and_then(|status| status.code()).unwrap_or(-1);
    let answer = Answer {
        args,
        code,
        stdout,
        stderr,
    };
    assert!(status.is_some(), "did not end within {LONGEST:?}: {answer}");
    answer
}

/// What every `-o json` prints.
#[derive(Clone, Debug)]
pub(crate) struct Envelope(pub(crate) Value);

impl Envelope {
    /// Reads and checks it.
    pub(crate) fn read(answer: &Answer) -> Self {
        let value: Value = serde_json::from_str(&answer.stdout)
            .unwrap_or_else(|error| panic!("no JSON ({error}): {answer}"));
        assert_eq!(value["schema"], "mete.cli/v1", "{answer}");
        assert!(
            value["kind"].as_str().is_some_and(|kind| !kind.is_empty()),
            "{answer}"
        );
        assert!(value["items"].is_array(), "{answer}");
        assert!(value["warnings"].is_array(), "{answer}");
        let revision = value.get("revision");
        let fine = revision.is_some_and(|revision| revision.is_null() || revision.is_u64());
        assert!(fine, "revision is a number or null: {answer}");
        Self(value)
    }

    /// Its kind.
    pub(crate) fn kind(&self) -> &str {
        self.0["kind"].as_str().unwrap_or_default()
    }

    /// Its items.
    pub(crate) fn items(&self) -> &[Value] {
        self.0["items"].as_array().map_or(&[], Vec::as_slice)
    }

    /// The only item.
    pub(crate) fn one(&self) -> &Value {
        assert_eq!(self.items().len(), 1, "one item in {}", self.0);
        &self.items()[0]
    }

    /// The item with this text in this field.
    pub(crate) fn find(&self, field: &str, text: &str) -> Result<&Value, String> {
        let found = self
            .items()
            .iter()
            .find(|item| item[field].as_str() == Some(text));
        found.ok_or_else(|| format!("no {field} {text} in {}", self.0))
    }

    /// The texts of one field, in order.
    pub(crate) fn texts(&self, field: &str) -> Vec<&str> {
        self.items()
            .iter()
            .filter_map(|item| item[field].as_str())
            .collect()
    }
}
