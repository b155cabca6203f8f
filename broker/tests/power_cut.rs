//! Power cuts on the real store, replayed from recorded I/O.
//!
//! A workload runs once on the real engine and the real snapshot files while every write, sync and
//! rename is recorded, with a mark after each operation that returned. Then the power is cut at
//! hundreds of places: an image of what a disk may hold there is built, opened by the product, and
//! held against what had been promised at the last mark.
//!
//! `METE_LONG=1` cuts 1 000 times instead of 200, over more recordings; `METE_SEED=n` repeats a
//! run.

#[path = "power_cut/image.rs"]
mod image;
#[path = "power_cut/recorder.rs"]
mod recorder;
#[path = "power_cut/workload.rs"]
mod workload;

use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError, mpsc};
use std::time::Duration;

use image::{Dice, Durable};
use mete_broker::store::{Entry, EntryKind, HardState, LogStore as _, SledStore};
use recorder::Event;
use workload::{Known, Pace, check_image, settings};

/// One recording at a time: the recorder sees the whole process.
static ALONE: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

struct Recording {
    events: Vec<Event>,
    /// What was promised at each mark.
    known: Vec<Known>,
    root: tempfile::TempDir,
}

fn record(seed: u64, pace: Pace) -> Recording {
    let root = tempfile::tempdir().expect("a temporary directory");
    recorder::start(root.path());
    let known = workload::run(root.path(), seed, pace);
    let events = recorder::stop();
    Recording {
        events,
        known,
        root,
    }
}

impl Recording {
    /// Cuts the power at a place chosen by `seed`, and says what is wrong with the image, if
    /// anything is.
    fn cut(&self, seed: u64, durable: Durable) -> Result<(), String> {
        let mut dice = Dice::new(seed);
        let cut = dice.below(self.events.len()) + 1;
        let mut marks = self.events[..cut].iter().rev();
        let last = marks.find_map(|event| {
            let Event::Mark(number) = event else {
                return None;
            };
            Some(*number)
        });
        let target = tempfile::tempdir().map_err(|error| error.to_string())?;
        image::build(
            &self.events,
            cut,
            durable,
            &mut dice,
            self.root.path(),
            target.path(),
        );
        let before = last.map(|number| self.known[number].clone());
        let after = self.known.get(last.map_or(0, |number| number + 1)).cloned();
        let path = target.path().to_owned();
        let checked = with_deadline(move || check_image(&path, before.as_ref(), after.as_ref()));
        checked.map_err(|what| format!("image {seed}, cut at event {cut}: {what}"))
    }
}

/// A damaged engine may wait for itself for ever; that too is an answer.
fn with_deadline(work: impl FnOnce() -> Result<(), String> + Send + 'static) -> Result<(), String> {
    let (done, result) = mpsc::sync_channel(1);
    let thread = std::thread::Builder::new().name("image".to_owned());
    thread
        .spawn(move || drop(done.send(work())))
        .map_err(|error| error.to_string())?;
    match result.recv_timeout(Duration::from_secs(60)) {
        Ok(answer) => answer,
        Err(mpsc::RecvTimeoutError::Timeout) => Err("the store hangs while opening".to_owned()),
        Err(mpsc::RecvTimeoutError::Disconnected) => Err("the check panicked".to_owned()),
    }
}

fn base_seed() -> u64 {
    std::env::var("METE_SEED")
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(1)
}

#[test]
fn every_image_after_a_power_cut_holds_all_that_was_promised() {
    let _alone = alone();
    let long = std::env::var("METE_LONG").is_ok_and(|value| value != "0");
    let (recordings, images) = if long { (10, 100) } else { (2, 100) };
    let mut wrong = Vec::new();
    for recording in 0..recordings {
        let seed = base_seed() * 1_000 + recording;
        let recorded = record(seed, Pace::Restless);
        assert!(
            recorded.known.len() > 150,
            "the workload is too small to mean anything"
        );
        for number in 0..images {
            let cut = recorded.cut(seed * 10_000 + number, Durable::AsIs);
            wrong.extend(cut.err().map(|what| format!("recording {seed}, {what}")));
        }
    }
    let first: Vec<&String> = wrong.iter().take(5).collect();
    assert!(
        wrong.is_empty(),
        "{} of {} images are wrong: {first:#?}",
        wrong.len(),
        recordings * images
    );
}

/// The negative control: without the own symbol a flush syncs nothing, and the same check on the
/// same images must see it. If it did not, the test above would prove nothing.
#[test]
fn without_the_own_sync_the_same_check_fails() {
    let _alone = alone();
    std::panic::set_hook(Box::new(|info| {
        // The engine panics on most of these images; that is their point, not news.
        let thread = std::thread::current();
        if !matches!(thread.name(), Some("image" | "mete-store-open") | None) {
            eprintln!("{info}");
        }
    }));
    let seed = base_seed() * 1_000 + 77;
    let recorded = record(seed, Pace::Steady);
    let images = 30_u64;
    let wrong: Vec<String> = (0..images)
        .filter_map(|number| {
            recorded
                .cut(seed * 10_000 + number, Durable::OnlyFsync)
                .err()
        })
        .collect();
    drop(std::panic::take_hook());

    assert!(
        wrong.len() as u64 >= images / 2,
        "only {} of {images} fail: {wrong:#?}",
        wrong.len()
    );
}

/// Counts what reaches the disk, per kind of turn.
#[test]
fn a_turn_that_fits_one_value_costs_one_sync() {
    let _alone = alone();
    let root = tempfile::tempdir().expect("a temporary directory");
    recorder::start(root.path());
    let found = SledStore::found(settings(root.path()), workload::CLUSTER, 1);
    let mut store = found.expect("an empty directory");
    let hard = HardState {
        term: 1,
        vote: 1,
        commit: 0,
    };
    let mut next = 1;
    let mut append = |store: &mut SledStore, count: u64, size: usize| {
        let kind = EntryKind::Command;
        let entry = |index| Entry {
            index,
            term: 1,
            kind,
            data: vec![9; size],
        };
        let entries: Vec<Entry> = (next..next + count).map(entry).collect();
        next += count;
        store.append(&entries, &hard).expect("room on the disk");
    };

    for number in 0..100 {
        append(&mut store, 24, 250);
        recorder::mark(number);
    }
    append(&mut store, 100, 300);
    recorder::mark(100);
    store.append(&[], &hard).expect("room on the disk");
    recorder::mark(101);
    drop(store);

    let events = recorder::stop();
    let turns: Vec<&[Event]> = events
        .split(|event| matches!(event, Event::Mark(_)))
        .collect();
    let syncs = |turn: &[Event]| {
        turn.iter()
            .filter(|event| matches!(event, Event::Sync { .. }))
            .count()
    };
    let one_value: usize = turns[1..100].iter().map(|turn| syncs(turn)).sum();
    // Now and then the engine changes its segment and syncs twice.
    assert!(
        (99..=106).contains(&one_value),
        "{one_value} syncs in 99 turns of one value"
    );
    assert!(
        (1..=3).contains(&syncs(turns[100])),
        "{} for a batch",
        syncs(turns[100])
    );
    assert_eq!(syncs(turns[101]), 1, "for a hard state alone");
    let data_only = events.iter().any(|event| {
        matches!(
            event,
            Event::Sync {
                data_only: true,
                ..
            }
        )
    });
    assert!(
        data_only,
        "no fdatasync at all: the own symbol is not in this program"
    );
}

/// The check itself: it must refuse an image from which one promised file is gone.
#[test]
fn the_check_refuses_an_image_without_its_log() {
    let _alone = alone();
    let recorded = record(5, Pace::Restless);
    let target = tempfile::tempdir().expect("a temporary directory");
    let mut dice = Dice::new(5);
    let root = recorded.root.path();
    let whole = recorded.events.len();
    image::build(
        &recorded.events,
        whole,
        Durable::AsIs,
        &mut dice,
        root,
        target.path(),
    );
    let known = recorded.known.last().expect("a long workload");
    assert_eq!(check_image(target.path(), Some(known), None), Ok(()));

    let store = target.path().join("store");
    for entry in std::fs::read_dir(&store).expect("it is there") {
        let path = entry.expect("it is there").path();
        if path
            .file_name()
            .is_some_and(|name| name.to_string_lossy().starts_with("gen-"))
        {
            zero_the_end(&path.join("db"));
        }
    }
    assert!(check_image(target.path(), Some(known), None).is_err());
}

fn zero_the_end(path: &Path) {
    let mut bytes = std::fs::read(path).expect("the engine's file");
    let written = bytes.iter().rposition(|byte| *byte != 0).unwrap_or(0);
    let from = written.saturating_sub(20_000);
    bytes[from..].fill(0);
    std::fs::write(path, bytes).expect("room on the disk");
}
