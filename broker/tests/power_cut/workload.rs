//! The life of a store that gets recorded, and what is known about it at each mark.

use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};
use std::path::Path;

use mete_broker::store::{
    Applied, ClusterId, Entry, EntryKind, HardState, Loaded, LogStore as _, Manifest, Origin,
    Settings, SledStore,
};

use crate::image::Dice;
use crate::recorder;

pub(crate) const CLUSTER: ClusterId = *b"a power cut test";

/// Small enough that a short life sees several generations.
pub(crate) fn settings(root: &Path) -> Settings {
    Settings {
        cache_bytes: 16 << 20,
        rotate_above_bytes: 1 << 20,
        rotate_above_live_factor: 2,
        // The reserve is made by a system call that no recorder sees; its absence is always legal.
        reserve_bytes: 0,
        ..Settings::new(&root.join("store"))
    }
}

/// What was promised when an operation returned.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Known {
    hard: HardState,
    entries: BTreeMap<u64, (u64, u64)>,
    first_kept: u64,
    manifest: Option<Manifest>,
    /// The applied index that is certainly on disk, and the newest written.
    applied: (u64, u64),
}

fn hash(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

struct Life {
    store: SledStore,
    known: Known,
    history: Vec<Known>,
    dice: Dice,
}

/// How a store lives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pace {
    /// With restarts and new generations, as over months.
    Restless,
    /// One start and one generation, so that hardly anything but the log's own flush syncs.
    Steady,
}

/// Lives about 220 operations below `root`. Gives what was known after each.
pub(crate) fn run(root: &Path, seed: u64, pace: Pace) -> Vec<Known> {
    let found = SledStore::found(settings(root), CLUSTER, 1).expect("an empty directory");
    let (known, history) = (Known::default(), Vec::new());
    let mut life = Life {
        store: found,
        known,
        history,
        dice: Dice::new(seed),
    };
    life.done();
    for _ in 0..220 {
        match life.dice.below(20) {
            0..=10 => life.append(0),
            11 | 12 => {
                let back = life.dice.below(30) as u64 + 1;
                life.append(back);
            }
            13 => life.vote(),
            14 => life.save_applied(),
            15..=17 => life.snapshot(pace),
            18 => life.install(),
            _ if pace == Pace::Steady => life.append(0),
            _ => life = life.restart(root),
        }
    }
    life.store.close().expect("room on the disk");
    life.done();
    life.history
}

impl Life {
    fn done(&mut self) {
        recorder::mark(self.history.len());
        self.history.push(self.known.clone());
    }

    fn base(&self) -> u64 {
        self.known
            .manifest
            .as_ref()
            .map_or(0, |manifest| manifest.at.index)
    }

    fn last(&self) -> u64 {
        self.known
            .entries
            .last_key_value()
            .map_or(self.base(), |(index, _)| *index)
    }

    fn append(&mut self, back: u64) {
        let first = self
            .last()
            .saturating_sub(back)
            .max(self.base().max(self.known.applied.1))
            + 1;
        self.known.hard.term += u64::from(back > 0 || self.known.hard.term == 0);
        let term = self.known.hard.term;
        let count = [1, 1, 3, 10, 60][self.dice.below(5)];
        let mut entries = Vec::new();
        for index in first..first + count {
            let size = match self.dice.below(40) {
                0 => 7_000 + self.dice.below(30_000),
                _ => self.dice.below(500),
            };
            let fill = self.dice.below(256);
            let data = (0..size)
                .map(|at| (at * 7 + fill).to_le_bytes()[0])
                .collect();
            entries.push(Entry {
                index,
                term,
                kind: EntryKind::Command,
                data,
            });
        }
        self.store
            .append(&entries, &self.known.hard)
            .expect("room on the disk");
        self.known.entries.split_off(&first);
        let stored = entries
            .iter()
            .map(|entry| (entry.index, (entry.term, hash(&entry.data))));
        self.known.entries.extend(stored);
        self.flushed();
    }

    fn flushed(&mut self) {
        self.known.applied.0 = self.known.applied.1;
        self.done();
    }

    fn vote(&mut self) {
        self.known.hard.term += 1;
        self.known.hard.vote = self.dice.below(3) as u64 + 1;
        self.store
            .append(&[], &self.known.hard)
            .expect("room on the disk");
        self.flushed();
    }

    fn at(&self, index: u64) -> Applied {
        let term = self
            .known
            .entries
            .get(&index)
            .map_or(self.known.hard.term, |(term, _)| *term);
        Applied {
            index,
            term,
            membership: b"one voter".to_vec(),
        }
    }

    fn save_applied(&mut self) {
        let at = self.at(self.last());
        self.known.hard.commit = self.known.hard.commit.max(at.index);
        self.store
            .save_applied(&self.known.hard, &at)
            .expect("room on the disk");
        self.known.applied.1 = at.index;
        self.done();
    }

    fn write(&mut self, index: u64) -> Manifest {
        let mut writer = self
            .store
            .snapshot_writer(&self.at(index), Origin::Made)
            .expect("room on the disk");
        let bytes = [0, 3_000, 90_000, 1_200_000][self.dice.below(4)];
        let content: Vec<u8> = (0..bytes)
            .map(|at: usize| (at * 31).to_le_bytes()[1])
            .collect();
        writer.write_all(&content).expect("room on the disk");
        writer.finish(hash(&content)).expect("room on the disk")
    }

    fn snapshot(&mut self, pace: Pace) {
        let index = self.last().saturating_sub(self.dice.below(40) as u64);
        if index <= self.base() {
            return;
        }
        let manifest = self.write(index);
        self.store
            .publish_snapshot(&manifest)
            .expect("room on the disk");
        self.known.manifest = Some(manifest);
        self.known.hard.commit = self.known.hard.commit.max(index);
        self.flushed();
        let first_kept = self.base().saturating_sub(self.dice.below(30) as u64) + 1;
        self.store.trim(first_kept).expect("room on the disk");
        self.known.first_kept = self.known.first_kept.max(first_kept);
        self.done();
        if pace == Pace::Restless {
            self.store.tidy().expect("room on the disk");
            self.done();
        }
    }

    fn install(&mut self) {
        let index = self.last() + self.dice.below(20) as u64 + 1;
        let manifest = self.write(index);
        self.known.hard.commit = index;
        self.store
            .install_snapshot(&manifest, &self.known.hard)
            .expect("room on the disk");
        self.known.entries.clear();
        self.known.manifest = Some(manifest);
        self.known.applied.1 = index;
        self.flushed();
    }

    fn restart(self, root: &Path) -> Self {
        let Self {
            mut store,
            known,
            history,
            dice,
        } = self;
        store.close().expect("room on the disk");
        drop(store);
        let store = SledStore::open(settings(root)).expect("a sound store");
        let mut life = Self {
            store,
            known,
            history,
            dice,
        };
        life.flushed();
        life
    }
}

/// Opens the image and holds it against what was known before the cut, and what would have been
/// known after the operation that was cut.
pub(crate) fn check_image(
    root: &Path,
    before: Option<&Known>,
    after: Option<&Known>,
) -> Result<(), String> {
    let settings = settings(root);
    let exists = SledStore::exists(&settings.dir).map_err(|error| error.to_string())?;
    let Some(before) = before else {
        // Nothing was promised: a store that is not there yet can be founded again.
        let opened = if exists {
            SledStore::open(settings)
        } else {
            SledStore::found(settings, CLUSTER, 1)
        };
        return opened
            .map(drop)
            .map_err(|error| format!("a founding cut short: {error}"));
    };
    let mut store = SledStore::open(settings.clone()).map_err(|error| error.to_string())?;
    let loaded = store
        .take_loaded()
        .ok_or("a fresh store was asked already")?;
    let after = after.unwrap_or(before);
    check_hard(&loaded, before, after)?;
    check_entries(&loaded, before, after)?;
    check_manifest(&store, &loaded, before, after)?;
    check_usable(store, settings, &loaded)
}

fn check_hard(loaded: &Loaded, before: &Known, after: &Known) -> Result<(), String> {
    let vote = |hard: &HardState| (hard.term, hard.vote);
    if ![vote(&before.hard), vote(&after.hard)].contains(&vote(&loaded.hard)) {
        return Err(format!(
            "{:?} instead of {:?} or {:?}",
            loaded.hard, before.hard, after.hard
        ));
    }
    if loaded.hard.commit > after.hard.commit.max(before.hard.commit) {
        return Err(format!(
            "committed up to {}, which nobody said",
            loaded.hard.commit
        ));
    }
    let applied = loaded.applied.as_ref().map_or(0, |applied| applied.index);
    if applied < before.applied.0 || applied > after.applied.1 {
        return Err(format!(
            "applied {applied}, not {:?}..{:?}",
            before.applied, after.applied
        ));
    }
    Ok(())
}

fn check_entries(loaded: &Loaded, before: &Known, after: &Known) -> Result<(), String> {
    let base = loaded
        .manifest
        .as_ref()
        .map_or(0, |manifest| manifest.at.index);
    let kept = before.first_kept.max(after.first_kept);
    let of = |known: &Known| -> Vec<(u64, (u64, u64))> {
        known
            .entries
            .range(kept..)
            .map(|(index, entry)| (*index, *entry))
            .collect()
    };
    let above = loaded.entries.iter().filter(|entry| entry.index >= kept);
    let found: Vec<(u64, (u64, u64))> = above
        .map(|entry| (entry.index, (entry.term, hash(&entry.data))))
        .collect();
    let (old, new) = (of(before), of(after));
    let between = found.starts_with(&old) && new.starts_with(&found);
    if found != old && found != new && !between {
        let ends = |entries: &[(u64, (u64, u64))]| {
            (
                entries.first().map(|entry| entry.0),
                entries.last().map(|entry| entry.0),
            )
        };
        let (found, old, new) = (ends(&found), ends(&old), ends(&new));
        return Err(format!("entries {found:?} instead of {old:?} or {new:?}"));
    }
    for entry in loaded.entries.iter().filter(|entry| entry.index < kept) {
        let stored = (entry.term, hash(&entry.data));
        if before
            .entries
            .get(&entry.index)
            .is_some_and(|known| *known != stored)
        {
            return Err(format!("the entry at {} changed", entry.index));
        }
    }
    match loaded.entries.first() {
        Some(first) if first.index > base + 1 => Err(format!("a gap above {base}")),
        Some(_) | None => Ok(()),
    }
}

fn check_manifest(
    store: &SledStore,
    loaded: &Loaded,
    before: &Known,
    after: &Known,
) -> Result<(), String> {
    if loaded.manifest != before.manifest && loaded.manifest != after.manifest {
        return Err(format!("an unknown snapshot {:?} is live", loaded.manifest));
    }
    let Some(manifest) = &loaded.manifest else {
        return Ok(());
    };
    let mut content = Vec::new();
    let mut source = store
        .open_snapshot(manifest)
        .map_err(|fault| fault.to_string())?;
    source
        .read_to_end(&mut content)
        .map_err(|error| format!("the snapshot: {error}"))?;
    if hash(&content) == manifest.digest {
        Ok(())
    } else {
        Err("the snapshot changed".to_owned())
    }
}

/// The store must also go on from here, and remember that.
fn check_usable(mut store: SledStore, settings: Settings, loaded: &Loaded) -> Result<(), String> {
    let base = loaded
        .manifest
        .as_ref()
        .map_or(0, |manifest| manifest.at.index);
    let index = loaded.entries.last().map_or(base, |entry| entry.index) + 1;
    let hard = HardState {
        term: loaded.hard.term + 1,
        ..loaded.hard
    };
    let kind = EntryKind::Command;
    let entry = Entry {
        index,
        term: hard.term,
        kind,
        data: b"goes on".to_vec(),
    };
    store
        .append(std::slice::from_ref(&entry), &hard)
        .map_err(|fault| fault.to_string())?;
    drop(store);
    let mut store = SledStore::open(settings).map_err(|error| format!("second start: {error}"))?;
    let again = store
        .take_loaded()
        .ok_or("a fresh store was asked already")?;
    if again.entries.last() != Some(&entry) || again.hard != hard {
        return Err("what was written after the cut is not there".to_owned());
    }
    Ok(())
}
