//! SIGKILL of a process that appends: what it was told to be safe is there afterwards.
//!
//! The test starts itself again as the child. (A kill leaves the page cache alone, so this test can
//! never show a missing sync; the power-cut replay does that.)

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use mete_broker::store::{Entry, EntryKind, HardState, LogStore as _, Settings, SledStore};

const DIRECTORY: &str = "METE_TEST_KILLED_STORE";

fn settings(dir: &Path) -> Settings {
    Settings {
        cache_bytes: 16 << 20,
        reserve_bytes: 0,
        ..Settings::new(&dir.join("store"))
    }
}

fn content(index: u64) -> Vec<u8> {
    let size = usize::try_from(index * 37 % 900).expect("small");
    index
        .to_le_bytes()
        .iter()
        .copied()
        .cycle()
        .take(size)
        .collect()
}

/// Not a test of its own: the child that the test below starts and kills.
#[test]
fn child_that_appends_until_it_is_killed() {
    let Ok(dir) = std::env::var(DIRECTORY) else {
        return;
    };
    let mut store = SledStore::open(settings(Path::new(&dir))).expect("the store is sound");
    let loaded = store.take_loaded().expect("a fresh store");
    let mut next = loaded.entries.last().map_or(0, |entry| entry.index) + 1;
    let hard = HardState {
        term: 1,
        vote: 1,
        commit: 0,
    };
    let mut out = std::io::stdout();
    loop {
        let kind = EntryKind::Command;
        let entry = |index| Entry {
            index,
            term: 1,
            kind,
            data: content(index),
        };
        let entries: Vec<Entry> = (next..=next + next % 13).map(entry).collect();
        store.append(&entries, &hard).expect("room on the disk");
        next += entries.len() as u64;
        writeln!(out, "acknowledged {}", next - 1).expect("the parent reads");
        out.flush().expect("the parent reads");
    }
}

#[test]
fn a_killed_process_loses_nothing_it_acknowledged() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    drop(SledStore::found(settings(dir.path()), [9; 16], 1).expect("an empty directory"));
    let rounds = if std::env::var("METE_LONG").is_ok_and(|value| value != "0") {
        100
    } else {
        12
    };
    let mut floor = 0;
    for round in 0..rounds {
        let acknowledged = kill_one(dir.path(), 3 + round * 7 % 90);
        assert!(acknowledged > floor, "round {round} acknowledged nothing");
        let mut store = SledStore::open(settings(dir.path())).expect("a killed store opens");
        let loaded = store.take_loaded().expect("a fresh store");

        assert_eq!(loaded.hard.term, 1);
        let last = loaded.entries.last().map_or(0, |entry| entry.index);
        assert!(
            last >= acknowledged,
            "{acknowledged} was acknowledged, the log ends at {last}"
        );
        for (expected, entry) in (1..).zip(&loaded.entries) {
            assert_eq!((entry.index, &entry.data), (expected, &content(expected)));
        }
        floor = acknowledged;
    }
}

/// Lets a child append for a while after its first acknowledgement, kills it, and gives the last
/// index it acknowledged.
fn kill_one(dir: &Path, milliseconds: u64) -> u64 {
    let mut child = Command::new(std::env::current_exe().expect("a test has a binary"))
        .args([
            "--exact",
            "child_that_appends_until_it_is_killed",
            "--nocapture",
        ])
        .env(DIRECTORY, dir)
        .stdout(Stdio::piped())
        .spawn()
        .expect("a test can start itself");
    let mut lines = BufReader::new(child.stdout.take().expect("it is piped")).lines();
    let number = |line: &str| {
        line.split_once("acknowledged ")
            .and_then(|(_, number)| number.trim().parse::<u64>().ok())
    };
    let first = lines
        .by_ref()
        .map_while(Result::ok)
        .find_map(|line| number(&line));
    let first = first.expect("the child acknowledges something");
    // The moment of the kill is the variable of this test, not a wait for something.
    std::thread::sleep(Duration::from_millis(milliseconds));
    child.kill().expect("it runs");
    let rest = lines
        .map_while(Result::ok)
        .filter_map(|line| number(&line))
        .last();
    child.wait().expect("it was started here");
    rest.unwrap_or(first)
}
