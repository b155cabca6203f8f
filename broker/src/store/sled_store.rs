//! The store of a real replica: the log in sled, snapshots beside it. The only file that names
//! sled.
//!
//! A turn is one value whenever it fits: inserted alone, flushed once, one sync of the disk.
//! Several values (a large turn, an overwrite after a conflict) go in one batch, which is atomic
//! and costs a second sync. Nothing is read from sled after the start except the one chunk that a
//! conflict cuts in the middle.
//!
//! sled panics on damage, so it is opened on a guarded thread; it is careless while it opens, so it
//! only ever opens a copy; it never gives disk space back, so the live records move to a new
//! generation when the file has grown too far.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::store::chunk::{self, Key};
use crate::store::layout::{self, Found, Reserve};
use crate::store::mark::{self, Mark};
use crate::store::plan::Plan;
use crate::store::record_log::{self, Contents, INCARNATION, Keys, RecordLog, Records};
use crate::store::snapshot_file::{FileWriter, SnapshotReader};
use crate::store::sync_file_range::sync_is_interposed;
use crate::store::{
    Applied, ClusterId, Entry, Fault, HardState, Identity, Loaded, LogStore, Manifest, OpenError,
    Origin, Said, SnapshotSource, SnapshotWriter, guard, start_copy,
};

/// How long an engine that was closed in this very process may take to let go of its file.
const LOCK_TRIES: u32 = 40;
const LOCK_PAUSE: Duration = Duration::from_millis(50);

/// Where a store is and how large it may grow.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The store's own directory; nothing else may be in it.
    pub dir: PathBuf,
    /// The engine's cache.
    pub cache_bytes: u64,
    /// A generation larger than this is replaced…
    pub rotate_above_bytes: u64,
    /// …if it is also larger than this many times its live bytes.
    pub rotate_above_live_factor: u64,
    /// Below this much free space no new command is taken; as much is preallocated.
    pub reserve_bytes: u64,
}

impl Settings {
    /// The shipped settings for a store in `dir`.
    #[must_use]
    pub fn new(dir: &Path) -> Self {
        Self {
            dir: dir.to_owned(),
            cache_bytes: 48 << 20,
            rotate_above_bytes: 256 << 20,
            rotate_above_live_factor: 8,
            reserve_bytes: 64 << 20,
        }
    }
}

/// One generation: a sled database with one tree.
#[derive(Debug)]
struct Generation {
    dir: PathBuf,
    tree: sled::Tree,
    /// Keeps the engine alive; dropped after the tree.
    _database: sled::Db,
}

impl Generation {
    /// Opens (or makes) the generation in `dir` and reads all its records. Panics on damage: call
    /// it through [`Generation::open`].
    fn open_unguarded(dir: &Path, cache_bytes: u64) -> Result<(Self, Records), sled::Error> {
        let config = sled::Config::new()
            .path(dir)
            .cache_capacity(cache_bytes)
            .flush_every_ms(None);
        let database = config.open()?;
        let tree = database.open_tree(b"log")?;
        let generation = Self {
            dir: dir.to_owned(),
            tree,
            _database: database,
        };
        let records = generation.records()?;
        Ok((generation, records))
    }

    fn open(dir: &Path, cache_bytes: u64) -> Result<(Self, Records), OpenError> {
        remove_unfinished(dir).map_err(OpenError::io("clean", dir))?;
        let damaged = |detail: String| {
            let name = dir.file_name().unwrap_or_default().to_string_lossy();
            OpenError::Damaged {
                dir: dir.parent().unwrap_or(dir).to_owned(),
                what: format!(
                    "the files of its log, in {name}, do not hold what was written there, or some \
                     of it is missing"
                ),
                last_good: None,
                detail: Some(Said(detail)),
            }
        };
        let mut tries = 0;
        loop {
            let path = dir.to_owned();
            let work = move || Self::open_unguarded(&path, cache_bytes);
            let opened = guard::run_guarded("mete-store-open", work).map_err(damaged)?;
            match opened {
                Ok(opened) => return Ok(opened),
                // This process may have closed the same generation a moment ago: its threads let go
                // of the file a little later. Other processes are kept out by the store's own lock.
                Err(error) if is_lock_error(&error) && tries < LOCK_TRIES => {
                    tries += 1;
                    std::thread::sleep(LOCK_PAUSE);
                }
                Err(error) if is_lock_error(&error) => {
                    let store = dir.parent().unwrap_or(dir);
                    return Err(OpenError::Locked {
                        dir: store.to_owned(),
                    });
                }
                Err(sled::Error::Io(source)) => return Err(OpenError::io("open", dir)(source)),
                Err(error) => return Err(damaged(error.to_string())),
            }
        }
    }

    fn records(&self) -> Result<Records, sled::Error> {
        let owned = |record: Result<(sled::IVec, sled::IVec), sled::Error>| {
            record.map(|(key, value)| (key.to_vec(), value.to_vec()))
        };
        self.tree.iter().map(owned).collect()
    }

    /// Makes a new generation's names and settings durable: the engine never syncs them itself.
    fn sync_names(&self) -> io::Result<()> {
        for file in ["conf", "db"] {
            File::open(self.dir.join(file))?.sync_all()?;
        }
        layout::sync_dir(&self.dir.join("blobs"))?;
        layout::sync_dir(&self.dir)?;
        self.dir.parent().map_or(Ok(()), layout::sync_dir)
    }

    fn file_bytes(&self) -> u64 {
        fs::metadata(self.dir.join("db")).map_or(0, |metadata| metadata.len())
    }
}

impl Keys for Generation {
    fn insert(&self, key: &[u8], value: Vec<u8>) -> Result<(), Fault> {
        debug_assert!(value.len() <= chunk::VALUE_LIMIT || key.first() != Some(&b'e'));
        self.tree
            .insert(key, value)
            .map(drop)
            .map_err(|error| self.fault(error.to_string()))
    }

    fn remove(&self, key: &[u8]) -> Result<(), Fault> {
        self.tree
            .remove(key)
            .map(drop)
            .map_err(|error| self.fault(error.to_string()))
    }

    fn carry_out(&self, plan: Plan) -> Result<(), Fault> {
        let mut batch = sled::Batch::default();
        for key in plan.removals {
            batch.remove(key);
        }
        for (key, value) in plan.writes {
            batch.insert(key, value);
        }
        self.tree
            .apply_batch(batch)
            .map_err(|error| self.fault(error.to_string()))
    }

    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, Fault> {
        let found = self
            .tree
            .get(key)
            .map_err(|error| self.fault(error.to_string()))?;
        Ok(found.map(|value| value.to_vec()))
    }

    fn flush(&self) -> Result<(), Fault> {
        self.tree
            .flush()
            .map(drop)
            .map_err(|error| self.fault(error.to_string()))
    }

    fn fault(&self, what: String) -> Fault {
        Fault::Log {
            dir: self.dir.clone(),
            what,
        }
    }
}

/// The engine writes a recovery snapshot while it opens, under an unfinished name that it takes for
/// a finished one at the next start: a crash in between would read as corruption. The name says
/// that nothing depends on it yet, so it goes.
fn remove_unfinished(dir: &Path) -> io::Result<()> {
    if !dir.is_dir() {
        return Ok(());
    }
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        if path
            .extension()
            .is_some_and(|extension| extension == "generating")
        {
            tracing::info!(path = %path.display(), "removing an unfinished recovery snapshot");
            fs::remove_file(&path)?;
        }
    }
    Ok(())
}

/// The engine reports its lock as an I/O error with a text of its own.
fn is_lock_error(error: &sled::Error) -> bool {
    matches!(error, sled::Error::Io(source) if source.to_string().contains("acquire lock"))
}

/// A replica's store on disk.
#[derive(Debug)]
pub struct SledStore {
    settings: Settings,
    number: u64,
    log: RecordLog<Generation>,
    mark: Mark,
    reserve: Reserve,
    loaded: Option<Loaded>,
    /// Held as long as the store lives; never read.
    _lock: File,
}

impl SledStore {
    /// True if `dir` holds a store.
    ///
    /// # Errors
    /// [`OpenError`] when it holds something else or cannot be read.
    pub fn exists(dir: &Path) -> Result<bool, OpenError> {
        Ok(layout::look(dir)? != Found::Nothing)
    }

    /// Makes a new store for node `node` of `cluster` and opens it.
    ///
    /// # Errors
    /// [`OpenError::Exists`] if one is there, [`OpenError::Foreign`], [`OpenError::Io`] and so on.
    pub fn found(settings: Settings, cluster: ClusterId, node: u64) -> Result<Self, OpenError> {
        let dir = settings.dir.clone();
        if layout::look(&dir)? != Found::Nothing {
            let Identity { cluster, node, .. } = Self::open(settings)?.identity();
            return Err(OpenError::Exists {
                dir,
                cluster: hex(&cluster),
                node,
            });
        }
        make_dir(&dir)?;
        let lock = layout::lock(&dir)?;
        layout::clear_unfinished(&dir)?;
        Reserve::new(&dir, settings.reserve_bytes).settle(&dir)?;
        layout::begin_founding(&dir)?;
        let path = layout::generation_path(&dir, 1);
        let (generation, _) = Generation::open(&path, settings.cache_bytes)?;
        let identity = Identity {
            cluster,
            node,
            incarnation: 0,
        };
        record_log::write_identity(&generation, &identity)
            .and_then(|()| generation.flush())
            .map_err(|fault| OpenError::io("write into", &dir)(io::Error::other(fault)))?;
        generation
            .sync_names()
            .map_err(OpenError::io("sync the new store in", &dir))?;
        Mark::create(&dir, 0)?;
        layout::end_founding(&dir, 1)?;
        drop(generation);
        Self::open_locked(settings, lock)
    }

    /// Opens the store that is in the directory.
    ///
    /// # Errors
    /// [`OpenError`]: every variant says what to do.
    pub fn open(settings: Settings) -> Result<Self, OpenError> {
        if layout::look(&settings.dir)? == Found::Nothing {
            return Err(OpenError::Missing { dir: settings.dir });
        }
        let lock = layout::lock(&settings.dir)?;
        Self::open_locked(settings, lock)
    }

    fn open_locked(settings: Settings, lock: File) -> Result<Self, OpenError> {
        let dir = settings.dir.clone();
        // Looked at again under the lock: what was seen before it may be history.
        let Found::Generation(live) = layout::look(&dir)? else {
            return Err(OpenError::Missing { dir });
        };
        let reserve = Reserve::new(&dir, settings.reserve_bytes);
        reserve.settle(&dir)?;
        let (number, opened) = match copy_for_start(&settings, live)? {
            Some(copy) => (copy, Opened::open(&settings, copy)),
            None => (live, Opened::open(&settings, live)),
        };
        let Opened { log, mark, loaded } = match opened {
            Ok(opened) => opened,
            Err(error) => {
                if number != live {
                    // The copy is of no use; the original stays as it was found. What cannot be
                    // removed now is removed by a later start.
                    let _ = fs::remove_dir_all(layout::generation_path(&dir, number));
                }
                return Err(error);
            }
        };
        // Only now, with everything checked and flushed, is the copy the live one.
        log.keys
            .sync_names()
            .map_err(OpenError::io("sync the store in", &dir))?;
        layout::set_current(&dir, number).map_err(OpenError::io("write CURRENT in", &dir))?;
        let file = log.manifest.as_ref().map(|manifest| manifest.file.as_str());
        layout::clean(&dir, number, file)?;
        Ok(Self {
            settings,
            number,
            log,
            mark,
            reserve,
            loaded: Some(loaded),
            _lock: lock,
        })
    }

    /// Who this replica is.
    #[must_use]
    pub fn identity(&self) -> Identity {
        self.log.identity
    }

    /// Bytes of the live generation's file. It grows, and shrinks only by rotation.
    #[must_use]
    pub fn file_bytes(&self) -> u64 {
        self.log.keys.file_bytes()
    }

    /// Number of the live generation.
    #[must_use]
    pub fn generation(&self) -> u64 {
        self.number
    }

    fn path(&self, file: &str) -> PathBuf {
        self.settings.dir.join(file)
    }

    fn delete_snapshot(&self, file: &str) -> Result<(), Fault> {
        let path = self.path(file);
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(Fault::io("delete the old snapshot", &path)(error))
            }
            Ok(()) | Err(_) => Ok(()),
        }
    }

    /// Notes what is flushed now, outside of the engine.
    fn note_flushed(&mut self) -> Result<(), Fault> {
        self.mark.note(self.log.newest())
    }

    /// Copies the live records into a new generation and makes it the live one. A crash at any step
    /// leaves one complete generation that CURRENT names.
    fn rotate(&mut self) -> Result<(), Fault> {
        self.log.flush()?;
        let dir = self.settings.dir.clone();
        let old = &self.log.keys;
        let engine = |error: sled::Error| old.fault(format!("copy it: {error}"));
        let unreadable = |error: OpenError| old.fault(format!("copy it: {error}"));
        let contents = Contents::read(&dir, &old.records().map_err(engine)?);
        let contents = contents.map_err(unreadable)?;
        let entries = contents.log.entries.clone();
        let number = self.number + 1;
        let path = layout::generation_path(&dir, number);
        let (generation, found) =
            Generation::open(&path, self.settings.cache_bytes).map_err(unreadable)?;
        if !found.is_empty() {
            return Err(old.fault(format!("copy it: generation {number} is not empty")));
        }
        let copy = self.log.copy_into(generation, contents)?;
        copy.keys
            .sync_names()
            .map_err(Fault::io("sync the new generation", &path))?;
        let copied = Contents::read(&dir, &copy.keys.records().map_err(engine)?);
        let copied = copied.map_err(unreadable)?;
        if copied.log.entries != entries || copied.manifest != self.log.manifest {
            return Err(old.fault("the copy differs from the original".to_owned()));
        }
        layout::set_current(&dir, number).map_err(Fault::io("write CURRENT in", &dir))?;
        let (from, to) = (old.file_bytes(), copy.keys.file_bytes());
        tracing::info!(
            generation = number,
            from,
            to,
            "log moved to a new generation"
        );
        self.log = copy;
        let replaced = std::mem::replace(&mut self.number, number);
        layout::remove_generation(&dir, replaced)?;
        // A start on a full disk gave the reserve up; now there may be room for it again.
        self.reserve.replenish(&dir);
        Ok(())
    }
}

/// A generation that was opened, checked and given its new incarnation.
struct Opened {
    log: RecordLog<Generation>,
    mark: Mark,
    loaded: Loaded,
}

impl Opened {
    fn open(settings: &Settings, number: u64) -> Result<Self, OpenError> {
        let dir = &settings.dir;
        let path = layout::generation_path(dir, number);
        let (generation, records) = Generation::open(&path, settings.cache_bytes)?;
        let contents = Contents::read(dir, &records)?;
        if let Some(manifest) = &contents.manifest {
            check_snapshot(dir, &contents.identity.cluster, manifest)?;
        }
        let mark = open_mark(dir, &contents)?;
        check_flushed(dir, &contents, mark.newest())?;
        let mut identity = contents.identity;
        identity.incarnation += 1;
        begin_incarnation(
            &generation,
            dir,
            identity.incarnation,
            &contents.log.cut_keys,
        )?;
        let (log, loaded) = RecordLog::new(generation, contents, identity);
        Ok(Self { log, mark, loaded })
    }
}

/// Copies the live generation for the engine to open; see [`start_copy`]. Gives the copy's number,
/// or nothing if there is no room for one: a full disk must be able to start and compact, so then
/// the live one itself is opened.
fn copy_for_start(settings: &Settings, live: u64) -> Result<Option<u64>, OpenError> {
    let dir = &settings.dir;
    let from = layout::generation_path(dir, live);
    if has_side_files(&from).map_err(OpenError::io("list", &from))? {
        return Err(OpenError::damaged(
            dir,
            "it has side files, which are never synced",
        ));
    }
    let bytes = start_copy::bytes(&from).map_err(OpenError::io("list", &from))?;
    let free = layout::free_bytes(dir).map_err(OpenError::io("ask for free space in", dir))?;
    if free < bytes.saturating_add(settings.reserve_bytes / 4) {
        tracing::warn!(
            bytes,
            free,
            "no room for a copy: opening the live generation itself"
        );
        return Ok(None);
    }
    let to = layout::generation_path(dir, live + 1);
    if let Err(error) = start_copy::copy(&from, &to) {
        // Half a copy would only take the room that was too little.
        let _ = fs::remove_dir_all(&to);
        return Err(OpenError::io("copy the generation to", &to)(error));
    }
    Ok(Some(live + 1))
}

/// Side files are never synced: a value that went there is not durable.
fn has_side_files(generation: &Path) -> io::Result<bool> {
    match fs::read_dir(generation.join("blobs")) {
        Ok(mut entries) => Ok(entries.next().is_some()),
        // A power cut may have lost an empty directory that holds nothing.
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// The note of what was flushed; without it the log is taken as it is only if a person says so.
fn open_mark(dir: &Path, contents: &Contents) -> Result<Mark, OpenError> {
    let what = match mark::look(dir)? {
        mark::Found::Noted(_) => return Mark::open(dir),
        mark::Found::Accepted => {
            let newest = contents.log.sequence.saturating_sub(1);
            tracing::warn!(
                dir = %dir.display(),
                newest,
                last_index = last_index(contents),
                "the end of the log is accepted as it is, by the word in FLUSHED"
            );
            return Mark::create(dir, newest);
        }
        mark::Found::Missing => "the file FLUSHED is missing, which says how far the log reaches",
        mark::Found::Damaged => {
            "the file FLUSHED cannot be read, which says how far the log reaches"
        }
    };
    Err(OpenError::NoMark {
        dir: dir.to_owned(),
        what,
        last: last_index(contents),
    })
}

fn last_index(contents: &Contents) -> u64 {
    let base = contents
        .manifest
        .as_ref()
        .map_or(0, |manifest| manifest.at.index);
    contents
        .log
        .entries
        .last()
        .map_or(base, |entry| entry.index)
}

/// Everything that was noted as flushed must be there: if not, the engine dropped it on finding
/// damage that looked like an unfinished write.
fn check_flushed(dir: &Path, contents: &Contents, noted: u64) -> Result<(), OpenError> {
    let newest = contents.log.sequence.saturating_sub(1);
    if newest >= noted {
        return Ok(());
    }
    let last_good = last_index(contents);
    Err(OpenError::Damaged {
        dir: dir.to_owned(),
        what: format!("{noted} writes reached the disk once, only {newest} can be read now"),
        last_good: (last_good > 0).then_some(last_good),
        detail: None,
    })
}

/// Makes the directory and syncs the names on the way to it.
fn make_dir(dir: &Path) -> Result<(), OpenError> {
    fs::create_dir_all(dir).map_err(OpenError::io("make the directory", dir))?;
    let parent = dir.parent().filter(|parent| !parent.as_os_str().is_empty());
    parent.map_or(Ok(()), |parent| {
        layout::sync_dir(parent).map_err(OpenError::io("sync", parent))
    })
}

/// Writes the new incarnation, cuts what was unfinished, and proves that a flush syncs the disk.
fn begin_incarnation(
    generation: &Generation,
    dir: &Path,
    incarnation: u64,
    cut_keys: &[Key],
) -> Result<(), OpenError> {
    let io = |error: Fault| OpenError::io("write into", dir)(io::Error::other(error));
    for key in cut_keys {
        generation.remove(key).map_err(io)?;
    }
    let value = chunk::encode_meta(INCARNATION, &incarnation.to_le_bytes());
    let synced = sync_is_interposed(|| {
        generation.insert(INCARNATION, value)?;
        generation.flush()
    });
    if synced.map_err(io)? {
        Ok(())
    } else {
        Err(OpenError::NotDurable {
            dir: dir.to_owned(),
        })
    }
}

/// The live snapshot's file must be there and be the one that the manifest means. Its pieces are
/// checked when it is read.
fn check_snapshot(dir: &Path, cluster: &ClusterId, manifest: &Manifest) -> Result<(), OpenError> {
    let damaged = |what: String| OpenError::damaged(dir, what);
    let file = &manifest.file;
    let reader = SnapshotReader::open(&dir.join(file))
        .map_err(|error| damaged(format!("the snapshot {file}: {error}")))?;
    if reader.cluster() != cluster || *reader.at() != manifest.at {
        return Err(damaged(format!(
            "the snapshot {file} is not the one the log means"
        )));
    }
    Ok(())
}

/// Bytes as hexadecimal digits, for people.
fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

impl LogStore for SledStore {
    fn take_loaded(&mut self) -> Option<Loaded> {
        self.loaded.take()
    }

    fn append(&mut self, entries: &[Entry], hard: &HardState) -> Result<(), Fault> {
        self.log.append(entries, hard)?;
        self.note_flushed()
    }

    fn save_applied(&mut self, hard: &HardState, applied: &Applied) -> Result<(), Fault> {
        self.log.save_applied(hard, applied)
    }

    fn trim(&mut self, first_kept: u64) -> Result<(), Fault> {
        self.log.trim(first_kept)
    }

    fn snapshot_writer(
        &self,
        at: &Applied,
        origin: Origin,
    ) -> Result<Box<dyn SnapshotWriter>, Fault> {
        let dir = &self.settings.dir;
        let writer = FileWriter::create(dir, &self.log.identity.cluster, at, origin);
        Ok(Box::new(
            writer.map_err(Fault::io("create a snapshot in", dir))?,
        ))
    }

    fn publish_snapshot(&mut self, manifest: &Manifest) -> Result<(), Fault> {
        let old = self.log.publish(manifest)?;
        self.note_flushed()?;
        old.map_or(Ok(()), |file| self.delete_snapshot(&file))
    }

    fn install_snapshot(&mut self, manifest: &Manifest, hard: &HardState) -> Result<(), Fault> {
        let old = self.log.install(manifest, hard)?;
        self.note_flushed()?;
        old.map_or(Ok(()), |file| self.delete_snapshot(&file))
    }

    fn discard_snapshot(&mut self, manifest: &Manifest) -> Result<(), Fault> {
        let live = self
            .log
            .manifest
            .as_ref()
            .is_some_and(|live| live.file == manifest.file);
        if live {
            Ok(())
        } else {
            self.delete_snapshot(&manifest.file)
        }
    }

    fn open_snapshot(&self, manifest: &Manifest) -> Result<Box<dyn SnapshotSource>, Fault> {
        let wrong = |what: String| Fault::Snapshot {
            file: manifest.file.clone(),
            what,
        };
        let reader = SnapshotReader::open(&self.path(&manifest.file))
            .map_err(|error| wrong(error.to_string()))?;
        if *reader.cluster() != self.log.identity.cluster || *reader.at() != manifest.at {
            return Err(wrong(
                "it is not the one that the manifest means".to_owned(),
            ));
        }
        Ok(Box::new(reader))
    }

    fn space_low(&self) -> bool {
        self.reserve.space_low()
    }

    fn disk_bytes(&self) -> u64 {
        layout::used_bytes(&self.settings.dir)
    }

    fn tidy(&mut self) -> Result<(), Fault> {
        let live = self.log.chunks.bytes();
        let limit = live.saturating_mul(self.settings.rotate_above_live_factor);
        if self.log.keys.file_bytes() > limit.max(self.settings.rotate_above_bytes) {
            self.rotate()?;
        }
        Ok(())
    }

    fn close(&mut self) -> Result<(), Fault> {
        self.log.close()?;
        self.note_flushed()
    }
}

#[cfg(test)]
mod tests;
