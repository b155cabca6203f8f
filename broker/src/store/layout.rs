//! The directory around the generations: names, the CURRENT file, syncs, cleaning, free space.
//!
//! Every rename here is followed by a sync of the directory, and every new directory by a sync of
//! its parent: a name is only there after a power cut if the directory that holds it was synced.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use crate::store::{Fault, OpenError, Origin, mark};

const CURRENT: &str = "CURRENT";
/// There while a store is being made: without CURRENT it says that nothing was promised yet.
const FOUNDING: &str = "FOUNDING";
const RESERVE: &str = "RESERVE";
const LOCK: &str = "LOCK";
const GENERATION: &str = "gen-";
const SNAPSHOT: &str = "snap-";
const QUARANTINE: &str = "quarantine-";

/// What was found where a store should be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Found {
    /// Nothing, or a founding that did not finish (cleaned away).
    Nothing,
    /// A store; the number of its live generation.
    Generation(u64),
}

/// The path of a generation.
#[must_use]
pub fn generation_path(dir: &Path, number: u64) -> PathBuf {
    dir.join(format!("{GENERATION}{number:06}"))
}

/// The name of the snapshot file for the machine at `index`.
#[must_use]
pub fn snapshot_name(index: u64, origin: Origin) -> String {
    let origin = match origin {
        Origin::Made => "",
        Origin::Received => "-received",
    };
    format!("{SNAPSHOT}{index:010}{origin}")
}

/// Looks what is in `dir` without opening the log, and changes nothing.
///
/// # Errors
/// [`OpenError::Foreign`] for anything that no store has, [`OpenError::Damaged`] if generations are
/// there but CURRENT is not, [`OpenError::Io`].
pub fn look(dir: &Path) -> Result<Found, OpenError> {
    let listing = match fs::read_dir(dir) {
        Ok(listing) => listing,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Found::Nothing),
        Err(error) if error.kind() == io::ErrorKind::NotADirectory => {
            return Err(foreign(dir, "a file of that name"));
        }
        Err(error) => return Err(OpenError::io("list", dir)(error)),
    };
    let mut generations = 0_u32;
    for entry in listing {
        let name = entry.map_err(OpenError::io("list", dir))?.file_name();
        let name = name.to_string_lossy();
        if !is_ours(&name) {
            return Err(foreign(dir, &name));
        }
        generations += u32::from(name.starts_with(GENERATION));
    }
    let current = dir.join(CURRENT);
    match fs::read(&current) {
        Ok(text) => {
            let number = parse_current(dir, &String::from_utf8_lossy(&text))?;
            if !generation_path(dir, number).is_dir() {
                let what = format!("CURRENT names generation {number}, which is not there");
                return Err(OpenError::damaged(dir, what));
            }
            Ok(Found::Generation(number))
        }
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(OpenError::io("read", &current)(error))
        }
        Err(_) if generations == 0 || dir.join(FOUNDING).exists() => Ok(Found::Nothing),
        Err(_) => {
            let what = "CURRENT is missing though generations are there";
            Err(OpenError::damaged(dir, what))
        }
    }
}

/// Takes the store's lock for as long as the file lives: one process at a time.
///
/// # Errors
/// [`OpenError::Locked`] if another one has it, [`OpenError::Io`].
pub fn lock(dir: &Path) -> Result<File, OpenError> {
    let path = dir.join(LOCK);
    let opened = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .open(&path);
    let file = opened.map_err(OpenError::io("open", &path))?;
    match rustix::fs::flock(&file, rustix::fs::FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(file),
        Err(error) if error == rustix::io::Errno::WOULDBLOCK => Err(OpenError::Locked {
            dir: dir.to_owned(),
        }),
        Err(error) => Err(OpenError::io("lock", &path)(error.into())),
    }
}

fn foreign(dir: &Path, found: &str) -> OpenError {
    OpenError::Foreign {
        dir: dir.to_owned(),
        found: found.to_owned(),
    }
}

fn is_ours(name: &str) -> bool {
    let exact = [CURRENT, "CURRENT.new", FOUNDING, RESERVE, LOCK, mark::NAME];
    let prefixes = [GENERATION, SNAPSHOT, QUARANTINE];
    exact.contains(&name) || prefixes.iter().any(|prefix| name.starts_with(prefix))
}

fn parse_current(dir: &Path, text: &str) -> Result<u64, OpenError> {
    let number = text
        .trim_end()
        .strip_prefix(GENERATION)
        .and_then(|digits| digits.parse().ok());
    number.ok_or_else(|| {
        let what = format!("CURRENT says {text:?}, which is no generation");
        OpenError::damaged(dir, what)
    })
}

/// Takes away what a founding that did not finish left behind: it promised nothing.
///
/// Call it under the lock only, and only when [`look`] found nothing.
///
/// # Errors
/// [`OpenError::Io`].
pub fn clear_unfinished(dir: &Path) -> Result<(), OpenError> {
    for (name, path) in entries(dir).map_err(OpenError::io("list", dir))? {
        if name.starts_with(GENERATION) {
            fs::remove_dir_all(&path).map_err(OpenError::io("remove the unfinished", &path))?;
        } else if name.starts_with(SNAPSHOT) || name == mark::NAME {
            fs::remove_file(&path).map_err(OpenError::io("remove the unfinished", &path))?;
        }
    }
    Ok(())
}

/// Marks the directory as a store that is being made.
///
/// # Errors
/// [`OpenError::Io`].
pub fn begin_founding(dir: &Path) -> Result<(), OpenError> {
    let mark = dir.join(FOUNDING);
    File::create(&mark).map_err(OpenError::io("create", &mark))?;
    sync_dir(dir).map_err(OpenError::io("sync", dir))
}

/// Ends a founding: from here on the store is there.
///
/// # Errors
/// [`OpenError::Io`].
pub fn end_founding(dir: &Path, generation: u64) -> Result<(), OpenError> {
    set_current(dir, generation).map_err(OpenError::io("write CURRENT in", dir))?;
    let mark = dir.join(FOUNDING);
    fs::remove_file(&mark).map_err(OpenError::io("remove", &mark))
}

/// Names `generation` as the live one, atomically and durably.
///
/// # Errors
/// Whatever the file system says.
pub fn set_current(dir: &Path, generation: u64) -> io::Result<()> {
    let new = dir.join("CURRENT.new");
    let mut file = File::create(&new)?;
    writeln!(file, "{GENERATION}{generation:06}")?;
    file.sync_all()?;
    fs::rename(&new, dir.join(CURRENT))?;
    sync_dir(dir)
}

/// Takes away what a crash may have left: generations that are not live, snapshots without a
/// manifest, unfinished files. Quarantined things stay.
///
/// # Errors
/// [`OpenError::Io`].
pub fn clean(dir: &Path, live: u64, snapshot: Option<&str>) -> Result<(), OpenError> {
    let live = generation_path(dir, live);
    for (name, path) in entries(dir).map_err(OpenError::io("list", dir))? {
        let stale_generation = name.starts_with(GENERATION) && path != live;
        let stale_snapshot = name.starts_with(SNAPSHOT) && Some(name.as_str()) != snapshot;
        if stale_generation {
            tracing::info!(path = %path.display(), "removing a generation that is not live");
            fs::remove_dir_all(&path).map_err(OpenError::io("remove the old", &path))?;
        } else if stale_snapshot || name == "CURRENT.new" || name == FOUNDING {
            fs::remove_file(&path).map_err(OpenError::io("remove the old", &path))?;
        }
    }
    Ok(())
}

/// Bytes that everything in `dir` but the reserve takes on the disk. What goes away meanwhile, or
/// cannot be asked, counts for nothing.
pub fn used_bytes(dir: &Path) -> u64 {
    let mut sum: u64 = 0;
    for (name, path) in entries(dir).unwrap_or_default() {
        let Ok(metadata) = fs::symlink_metadata(&path) else {
            continue;
        };
        // Blocks, not the length: a file may have been given room that it does not fill, or less.
        let own = metadata.blocks().saturating_mul(512);
        let bytes = match (metadata.is_dir(), name.as_str()) {
            (true, _) => used_bytes(&path),
            (false, RESERVE) => 0,
            (false, _) => own,
        };
        sum = sum.saturating_add(bytes);
    }
    sum
}

fn entries(dir: &Path) -> io::Result<Vec<(String, PathBuf)>> {
    let named = |entry: fs::DirEntry| {
        (
            entry.file_name().to_string_lossy().into_owned(),
            entry.path(),
        )
    };
    fs::read_dir(dir)?.map(|entry| entry.map(named)).collect()
}

/// Moves a damaged store out of the way without touching its content. Gives the new place.
///
/// # Errors
/// [`OpenError::Io`].
pub fn quarantine(dir: &Path, label: &str) -> Result<PathBuf, OpenError> {
    let base = dir
        .file_name()
        .map(|name| name.to_string_lossy().into_owned())
        .unwrap_or_default();
    let to = dir.with_file_name(format!("{QUARANTINE}{base}-{label}"));
    fs::rename(dir, &to).map_err(OpenError::io("move away", dir))?;
    if let Some(parent) = to.parent() {
        sync_dir(parent).map_err(OpenError::io("sync", parent))?;
    }
    Ok(to)
}

/// Syncs a directory's names.
///
/// # Errors
/// Whatever the file system says.
pub fn sync_dir(dir: &Path) -> io::Result<()> {
    File::open(dir)?.sync_all()
}

/// Free bytes that an ordinary user may still write below `path`.
///
/// # Errors
/// Whatever the file system says.
pub fn free_bytes(path: &Path) -> io::Result<u64> {
    let stats = rustix::fs::statvfs(path)?;
    Ok(stats.f_bavail.saturating_mul(stats.f_frsize))
}

/// The room that lets a full disk start and compact once more.
#[derive(Debug, Clone)]
pub struct Reserve {
    path: PathBuf,
    bytes: u64,
}

impl Reserve {
    /// The reserve of the store in `dir`. Nothing is allocated yet.
    #[must_use]
    pub fn new(dir: &Path, bytes: u64) -> Self {
        Self {
            path: dir.join(RESERVE),
            bytes,
        }
    }

    /// At start: if the disk has less than the reserve left, gives the reserve up; if there is
    /// plenty, (re)makes it.
    ///
    /// # Errors
    /// [`OpenError::DiskFull`] if even then there is not a quarter of it, [`OpenError::Io`].
    pub fn settle(&self, dir: &Path) -> Result<(), OpenError> {
        let free = free_bytes(dir).map_err(OpenError::io("ask for free space in", dir))?;
        if free >= self.bytes.saturating_mul(2) {
            self.replenish(dir);
            return Ok(());
        }
        if free < self.bytes && self.path.exists() {
            tracing::warn!(path = %self.path.display(), free, "disk nearly full: reserve given up");
            fs::remove_file(&self.path).map_err(OpenError::io("give up", &self.path))?;
        }
        let free_bytes = free_bytes(dir).map_err(OpenError::io("ask for free space in", dir))?;
        let wanted_bytes = self.bytes / 4;
        if free_bytes < wanted_bytes {
            return Err(OpenError::DiskFull {
                dir: dir.to_owned(),
                free_bytes,
                wanted_bytes,
            });
        }
        Ok(())
    }

    /// Makes the reserve (again) if the disk has twice as much free. A reserve that cannot be had
    /// is not worth a failure: the limit on free space still holds.
    pub fn replenish(&self, dir: &Path) {
        let plenty = free_bytes(dir).is_ok_and(|free| free >= self.bytes.saturating_mul(2));
        if !plenty || self.bytes == 0 || self.path.exists() {
            return;
        }
        let made = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .open(&self.path);
        let allocated = made.and_then(|file| {
            let flags = rustix::fs::FallocateFlags::empty();
            rustix::fs::fallocate(&file, flags, 0, self.bytes).map_err(io::Error::from)
        });
        if let Err(error) = allocated {
            tracing::info!(%error, "no disk reserve: this file system cannot preallocate");
            let _ = fs::remove_file(&self.path);
        }
    }

    /// True when new commands should wait for room: less free than the reserve.
    #[must_use]
    pub fn space_low(&self) -> bool {
        let Some(dir) = self.path.parent() else {
            return false;
        };
        free_bytes(dir).is_ok_and(|free| free < self.bytes)
    }

    /// The file, for errors.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// Removes a generation that is not live any more.
///
/// # Errors
/// [`Fault::Io`].
pub fn remove_generation(dir: &Path, number: u64) -> Result<(), Fault> {
    let path = generation_path(dir, number);
    fs::remove_dir_all(&path).map_err(Fault::io("remove the old generation", &path))
}
