//! `mete agent check`: what this host lets an agent do, one row for each thing that matters.
//!
//! Each row is found by trying it, not by reading version numbers, and what was made for the trial
//! is removed again. It changes nothing and may run beside a working agent.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::Path;

use crate::discover::part::{
    is_in_memory, private_directory, run_directory_in_memory, runtime_directory,
};
use crate::discover::{Roots, discover};
use crate::isolate::{EnforcementLevel, Isolation, PartLimits};
use crate::runtime::spawn;

/// Whether a row is as it should be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// As it should be.
    Ok,
    /// The agent works, with less than it could promise.
    Warn,
    /// The agent does not start.
    Fail,
}

/// One thing that was tried.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Row {
    /// Short name: "cpu", "state directory".
    pub name: String,
    /// How it is.
    pub outcome: Outcome,
    /// What was found.
    pub fact: String,
    /// What to do; empty when nothing is to be done.
    pub fix: String,
}

impl Row {
    fn new(name: &str, outcome: Outcome, fact: impl Into<String>, fix: impl Into<String>) -> Self {
        Self {
            name: name.to_owned(),
            outcome,
            fact: fact.into(),
            fix: fix.into(),
        }
    }
}

/// What to look at.
#[derive(Debug, Clone)]
pub struct Check<'a> {
    /// The kernel's files.
    pub roots: &'a Roots,
    /// `--state-dir`; need not be there yet.
    pub state_directory: &'a Path,
    /// `--cgroup-root`.
    pub cgroup_root: Option<&'a str>,
}

/// Tries everything.
#[must_use]
pub fn run(what: &Check<'_>) -> Vec<Row> {
    let mut rows = vec![user()];
    rows.extend(machine(what));
    rows.push(state_directory(what.state_directory));
    rows.push(run_directory());
    rows.extend(kernel());
    rows.extend(cgroups(what));
    rows
}

fn user() -> Row {
    let uid = rustix::process::geteuid().as_raw();
    if uid == 0 {
        return Row::new(
            "user",
            Outcome::Ok,
            "root: tasks may run as other users",
            "",
        );
    }
    let fact = format!("user {uid}: every task runs as this user");
    Row::new(
        "user",
        Outcome::Warn,
        fact,
        "run the agent as root to give tasks their own users",
    )
}

fn machine(what: &Check<'_>) -> Vec<Row> {
    // Asked about the nearest directory that is there: the agent makes the rest.
    let there = what.state_directory.ancestors().find(|path| path.is_dir());
    let found = match discover(what.roots, there.unwrap_or(Path::new("/"))) {
        Ok(found) => found,
        Err(error) => {
            let fix = "an agent needs /sys and /proc mounted";
            return vec![Row::new("machine", Outcome::Fail, error.to_string(), fix)];
        }
    };
    let (usable, online) = (found.cores.len(), found.online_cpus);
    let memory = &found.memory;
    let mut rows = vec![Row::new(
        "machine",
        Outcome::Ok,
        format!(
            "{usable} of {online} CPUs online, {} MiB memory",
            memory.machine_bytes >> 20
        ),
        "",
    )];
    if memory.usable_bytes < memory.machine_bytes {
        let fact = format!(
            "a cgroup limits this process to {} MiB; only that is offered",
            memory.usable_bytes >> 20
        );
        let fix = "start the agent outside of a limited cgroup to offer all of it";
        rows.push(Row::new("memory limit", Outcome::Warn, fact, fix));
    }
    rows
}

fn state_directory(path: &Path) -> Row {
    let name = "state directory";
    let there = path
        .ancestors()
        .find(|path| path.is_dir())
        .unwrap_or(Path::new("/"));
    let trial = there.join(format!(".mete-check-{}", std::process::id()));
    let tried = OpenOptions::new()
        .write(true)
        .create_new(true)
        .open(&trial)
        .and_then(|mut file| {
            file.write_all(b"check")?;
            file.sync_all()?;
            File::open(there)?.sync_all()
        });
    let _gone = std::fs::remove_file(&trial);
    match tried {
        Ok(()) => {
            let fact = format!("{} can be written and synced", there.display());
            Row::new(name, Outcome::Ok, fact, "")
        }
        Err(error) => {
            let fact = format!("{}: {error}", there.display());
            Row::new(
                name,
                Outcome::Fail,
                fact,
                "name a writable directory with --state-dir",
            )
        }
    }
}

fn run_directory() -> Row {
    let (name, path) = ("run directory", runtime_directory());
    if let Err(error) = private_directory(&path) {
        let fact = format!("{}: {error}", path.display());
        return Row::new(
            name,
            Outcome::Fail,
            fact,
            "set XDG_RUNTIME_DIR to a private directory",
        );
    }
    let records = run_directory_in_memory(&path, "agent");
    let path = path.display();
    if is_in_memory(&records) {
        let place = records.parent().unwrap_or(&records).display();
        let fact = format!("records of runs are kept on a tmpfs, in {place}");
        return Row::new(name, Outcome::Ok, fact, "");
    }
    let fact = format!(
        "{path} is on a disk: a start takes longer, and a full disk could keep an end from being \
         recorded"
    );
    Row::new(
        name,
        Outcome::Warn,
        fact,
        "set XDG_RUNTIME_DIR to a directory on a tmpfs",
    )
}

fn kernel() -> Vec<Row> {
    let own = std::process::id();
    let stat = crate::runtime::identity::ProcessStat::read(Path::new("/proc"), own);
    let handle = stat.map_or_else(
        || Err(io::Error::from(io::ErrorKind::NotFound)),
        |stat| crate::runtime::identity::open_same(Path::new("/proc"), own, stat.start_ticks),
    );
    let mut rows = vec![match handle {
        Ok(Some(_)) => Row::new("process handles", Outcome::Ok, "pidfd_open works", ""),
        Ok(None) | Err(_) => Row::new(
            "process handles",
            Outcome::Fail,
            "pidfd_open does not work here",
            "a kernel of 5.3 or later is needed, and a sandbox must let the call pass",
        ),
    }];
    let score = "/proc/self/oom_score_adj";
    let before = std::fs::read_to_string(score).unwrap_or_else(|_| "0".to_owned());
    let lowered = std::fs::write(score, "-999");
    let _restored = std::fs::write(score, before.trim());
    rows.push(match lowered {
        Ok(()) => Row::new(
            "out of memory",
            Outcome::Ok,
            "shims are the last to be killed",
            "",
        ),
        Err(error) => Row::new(
            "out of memory",
            Outcome::Warn,
            format!("this host refuses negative OOM scores: {error}"),
            "run the agent as root, so that a task's memory never costs its supervisor's life",
        ),
    });
    rows
}

fn cgroups(what: &Check<'_>) -> Vec<Row> {
    let agent = format!("check-{}", std::process::id());
    let part = PartLimits::default();
    let isolation = Isolation::probe(&what.roots.procfs, what.cgroup_root, &agent, part);
    let mut rows: Vec<Row> = isolation
        .enforcement()
        .into_iter()
        .map(|row| {
            let outcome = match row.level {
                EnforcementLevel::Enforced => Outcome::Ok,
                EnforcementLevel::AffinityOnly | EnforcementLevel::AccountedOnly => Outcome::Warn,
            };
            // Disk space is accounted everywhere for now: nothing to warn about.
            let outcome = if row.fix.is_empty() {
                Outcome::Ok
            } else {
                outcome
            };
            Row::new(row.kind, outcome, row.fact, row.fix)
        })
        .collect();
    if let Some(shims) = isolation.shims() {
        rows.push(born_inside(&shims));
    }
    // What is left belongs to nobody and hurts nobody.
    let _gone = isolation.remove_top();
    rows
}

/// Whether a process can be born in a cgroup, which is what makes starts fast.
fn born_inside(directory: &Path) -> Row {
    let name = "start into cgroup";
    match File::open(directory).and_then(|directory| spawn::can_be_born_in(&directory)) {
        Ok(true) => Row::new(
            name,
            Outcome::Ok,
            "clone3 starts processes in their cgroup",
            "",
        ),
        Ok(false) => Row::new(
            name,
            Outcome::Warn,
            "processes have to be moved into their cgroup: starts are slower",
            "a kernel of 5.7 or later",
        ),
        Err(error) => Row::new(
            name,
            Outcome::Fail,
            format!("no process can be made: {error}"),
            "a kernel of 5.3 or later is needed, and a sandbox must let clone3 pass",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_that_is_not_fine_says_what_to_do() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let roots = Roots::default();
        let state = directory.path().join("not/there/yet");

        let rows = run(&Check {
            roots: &roots,
            state_directory: &state,
            cgroup_root: None,
        });

        for name in [
            "user",
            "machine",
            "state directory",
            "cpu",
            "memory",
            "cores",
            "tracking",
        ] {
            assert!(
                rows.iter().any(|row| row.name == name),
                "no row {name}: {rows:?}"
            );
        }
        for row in rows {
            assert!(row.outcome == Outcome::Ok || !row.fix.is_empty(), "{row:?}");
        }
        assert!(!state.exists(), "a check makes nothing");
    }

    #[test]
    fn a_state_directory_that_cannot_be_written_fails_with_the_flag_to_use() {
        let row = state_directory(Path::new("/proc/nothing/here"));

        assert_eq!(row.outcome, Outcome::Fail);
        assert!(row.fix.contains("--state-dir"), "{row:?}");
    }
}
