//! Builds what a disk may hold after the power went in the middle of a recording.
//!
//! Durable is what a real sync covered before the cut. Every later write may be there, missing, or
//! torn at 512 bytes, in any combination. Names appear, move and vanish in order, as a journalling
//! file system keeps them; how far that order got is open beyond the last sync of a directory.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use crate::recorder::{Event, FileId};

const SECTOR: usize = 512;

/// What counts as a sync of the disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Durable {
    /// fsync and fdatasync, as it is.
    AsIs,
    /// Only fsync: the world without the own symbol, where the engine's flush syncs nothing.
    OnlyFsync,
}

/// A small generator, so that an image is named by its seed.
pub(crate) struct Dice(u64);

impl Dice {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// A number below `limit` (which must not be 0).
    pub(crate) fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from((self.0 >> 11) % limit as u64).expect("below a usize")
    }
}

/// Writes the image after `events[..cut]` into `target`. Paths are moved from `root`.
pub(crate) fn build(
    events: &[Event],
    cut: usize,
    durable: Durable,
    dice: &mut Dice,
    root: &Path,
    target: &Path,
) {
    let seen = &events[..cut];
    let names = names_after(seen, names_kept(seen, dice), root);
    let mut contents: BTreeMap<FileId, Vec<u8>> = BTreeMap::new();
    let wanted: BTreeSet<FileId> = names.values().map(|(file, _)| *file).collect();
    let synced = last_syncs(seen, durable);
    // Runs of luck: a cut may lose nearly all that is unsynced, or nearly nothing.
    let luck = [1, 5, 9][dice.below(3)];
    for (position, event) in seen.iter().enumerate() {
        let is_synced = |file: &FileId| synced.get(file).is_some_and(|last| position < *last);
        match event {
            Event::Create { file, .. } => drop(contents.insert(*file, Vec::new())),
            Event::Truncate { file, length } if wanted.contains(file) => {
                if is_synced(file) || dice.below(10) < luck {
                    let content = contents.entry(*file).or_default();
                    content.resize(usize::try_from(*length).expect("a small file"), 0);
                }
            }
            Event::Write {
                file,
                offset,
                bytes,
            } if wanted.contains(file) => {
                let content = contents.entry(*file).or_default();
                let offset = usize::try_from(*offset).expect("a small file");
                if is_synced(file) {
                    put(content, offset, bytes);
                } else {
                    tear(content, offset, bytes, luck, dice);
                }
            }
            Event::Truncate { .. }
            | Event::Write { .. }
            | Event::Sync { .. }
            | Event::Rename { .. }
            | Event::Unlink { .. }
            | Event::Mark(_) => {}
        }
    }
    for (name, (file, is_dir)) in names {
        let path = target.join(name);
        if is_dir {
            fs::create_dir_all(&path).expect("room for an image");
        } else {
            let content = contents.get(&file).map(Vec::as_slice).unwrap_or_default();
            fs::write(&path, content).expect("room for an image");
        }
    }
}

fn put(content: &mut Vec<u8>, offset: usize, bytes: &[u8]) {
    let end = offset + bytes.len();
    if content.len() < end {
        content.resize(end, 0);
    }
    content[offset..end].copy_from_slice(bytes);
}

/// A write that no sync covers: whole, missing, or some of its sectors.
fn tear(content: &mut Vec<u8>, offset: usize, bytes: &[u8], luck: usize, dice: &mut Dice) {
    let whole = dice.below(10) < luck;
    if whole {
        put(content, offset, bytes);
    } else if dice.below(2) == 0 {
        let mut at = 0;
        while at < bytes.len() {
            // Sectors lie on the disk's grid, not on the write's.
            let next = (SECTOR - (offset + at) % SECTOR + at).min(bytes.len());
            if dice.below(2) == 0 {
                put(content, offset + at, &bytes[at..next]);
            }
            at = next;
        }
    }
}

/// For each file, the position of its last sync.
fn last_syncs(seen: &[Event], durable: Durable) -> BTreeMap<FileId, usize> {
    let mut last = BTreeMap::new();
    for (position, event) in seen.iter().enumerate() {
        if let Event::Sync { file, data_only } = event
            && (durable == Durable::AsIs || !data_only)
        {
            last.insert(*file, position);
        }
    }
    last
}

fn is_about_names(event: &Event) -> bool {
    matches!(
        event,
        Event::Create { .. } | Event::Rename { .. } | Event::Unlink { .. }
    )
}

/// Up to which event the names survive: all before the last sync of a directory, and by chance
/// more.
fn names_kept(seen: &[Event], dice: &mut Dice) -> usize {
    let dirs: BTreeSet<FileId> = seen
        .iter()
        .filter_map(|event| {
            let Event::Create {
                file, is_dir: true, ..
            } = event
            else {
                return None;
            };
            Some(*file)
        })
        .collect();
    let is_dir_sync =
        |event: &Event| matches!(event, Event::Sync { file, .. } if dirs.contains(file));
    let safe = seen
        .iter()
        .rposition(is_dir_sync)
        .map_or(0, |position| position + 1);
    let open: Vec<usize> = (safe..seen.len())
        .filter(|at| is_about_names(&seen[*at]))
        .collect();
    match dice.below(open.len() + 1) {
        0 => safe,
        kept => open[kept - 1] + 1,
    }
}

type Names = BTreeMap<PathBuf, (FileId, bool)>;

fn names_after(seen: &[Event], kept: usize, root: &Path) -> Names {
    let relative = |path: &Path| path.strip_prefix(root).expect("below the root").to_owned();
    let mut names = Names::new();
    for event in &seen[..kept] {
        match event {
            Event::Create { path, file, is_dir } => {
                names.insert(relative(path), (*file, *is_dir));
            }
            Event::Rename { from, to } => {
                if let Some(file) = names.remove(&relative(from)) {
                    names.insert(relative(to), file);
                }
            }
            Event::Unlink { path } => drop(names.remove(&relative(path))),
            Event::Truncate { .. } | Event::Write { .. } | Event::Sync { .. } | Event::Mark(_) => {}
        }
    }
    names
}
