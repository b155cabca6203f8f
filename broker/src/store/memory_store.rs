//! A store whose disk is in memory and does to order what real disks do by accident.
//!
//! Tests and the simulator use it in place of the real one: the same records, the same rules at the
//! start. A [`MemoryDisk`] outlives the store on it, as a disk outlives a process;
//! [`MemoryDisk::crash`] decides which of the writes that were not flushed survive. A [`FaultPlan`]
//! names single writes and flushes that fail or lie.

use std::collections::BTreeMap;
use std::io::{self, Cursor, Write};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::store::chunk::Key;
use crate::store::layout;
use crate::store::plan::Plan;
use crate::store::record_log::{self, Contents, Keys, RecordLog, Records};
use crate::store::{
    Applied, ClusterId, Entry, Fault, HardState, Identity, Loaded, LogStore, Manifest, OpenError,
    Origin, SnapshotSource, SnapshotWriter,
};

/// What happens to single operations, by their number since the disk was made.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FaultPlan {
    /// These writes (counted from 1; a batch is one) fail and leave nothing.
    pub fail_writes: Vec<u64>,
    /// These flushes (counted from 1) fail; what was written may or may not be durable.
    pub fail_flushes: Vec<u64>,
    /// Every flush says yes without making anything durable: the bug that a power-cut test must
    /// see.
    pub flushes_lie: bool,
    /// The disk says that it is nearly full.
    pub space_low: bool,
}

/// One write that was not flushed yet: all of it or nothing.
type Unflushed = Vec<(Key, Option<Vec<u8>>)>;

#[derive(Debug, Default)]
struct Disk {
    durable: BTreeMap<Key, Vec<u8>>,
    unflushed: Vec<Unflushed>,
    snapshots: BTreeMap<String, Stored>,
    faults: FaultPlan,
    writes: u64,
    flushes: u64,
}

#[derive(Debug, Clone)]
struct Stored {
    at: Applied,
    content: Arc<Vec<u8>>,
}

/// A disk in memory. Clones are the same disk.
#[derive(Debug, Clone, Default)]
pub struct MemoryDisk(Arc<Mutex<Disk>>);

impl MemoryDisk {
    /// An empty disk.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    fn lock(&self) -> MutexGuard<'_, Disk> {
        // The disk is plain data: a panicked test thread leaves it as readable as before.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets what shall go wrong from now on.
    pub fn set_faults(&self, faults: FaultPlan) {
        self.lock().faults = faults;
    }

    /// Writes and flushes so far, for fault plans and for counting flushes.
    #[must_use]
    pub fn operations(&self) -> (u64, u64) {
        let disk = self.lock();
        (disk.writes, disk.flushes)
    }

    /// Writes that wait for a flush.
    #[must_use]
    pub fn unflushed(&self) -> usize {
        self.lock().unflushed.len()
    }

    /// The power goes: of the writes that wait for a flush, the first `kept` survive. (The engine
    /// on disk keeps its writes in order, so what survives is always a prefix.)
    pub fn crash(&self, kept: usize) {
        let mut disk = self.lock();
        let waiting = std::mem::take(&mut disk.unflushed);
        for write in waiting.into_iter().take(kept) {
            apply(&mut disk.durable, write);
        }
    }

    /// Changes one record under its key, as rot would. Gives false if there is none.
    pub fn damage(&self, key: &[u8], change: impl FnOnce(&mut Vec<u8>)) -> bool {
        let mut disk = self.lock();
        disk.durable.get_mut(key).map(change).is_some()
    }

    /// The keys of all durable records.
    #[must_use]
    pub fn keys(&self) -> Vec<Key> {
        self.lock().durable.keys().cloned().collect()
    }
}

fn apply(records: &mut BTreeMap<Key, Vec<u8>>, write: Unflushed) {
    for (key, value) in write {
        match value {
            Some(value) => drop(records.insert(key, value)),
            None => drop(records.remove(&key)),
        }
    }
}

impl Keys for MemoryDisk {
    fn insert(&self, key: &[u8], value: Vec<u8>) -> Result<(), Fault> {
        self.write(vec![(key.to_vec(), Some(value))])
    }

    fn remove(&self, key: &[u8]) -> Result<(), Fault> {
        self.write(vec![(key.to_vec(), None)])
    }

    fn carry_out(&self, plan: Plan) -> Result<(), Fault> {
        let removals = plan.removals.into_iter().map(|key| (key, None));
        let writes = plan
            .writes
            .into_iter()
            .map(|(key, value)| (key, Some(value)));
        self.write(removals.chain(writes).collect())
    }

    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, Fault> {
        let disk = self.lock();
        let mut waiting = disk
            .unflushed
            .iter()
            .rev()
            .flat_map(|write| write.iter().rev());
        let newest = waiting.find(|(candidate, _)| candidate == key);
        Ok(newest.map_or_else(
            || disk.durable.get(key).cloned(),
            |(_, value)| value.clone(),
        ))
    }

    fn flush(&self) -> Result<(), Fault> {
        let mut disk = self.lock();
        disk.flushes += 1;
        if disk.faults.fail_flushes.contains(&disk.flushes) {
            return Err(self.fault("planned failure of a flush".to_owned()));
        }
        if !disk.faults.flushes_lie {
            for write in std::mem::take(&mut disk.unflushed) {
                apply(&mut disk.durable, write);
            }
        }
        Ok(())
    }

    fn fault(&self, what: String) -> Fault {
        Fault::Log {
            dir: MEMORY.into(),
            what,
        }
    }
}

/// Stands for a path in messages.
const MEMORY: &str = "(memory)";

impl MemoryDisk {
    fn write(&self, write: Unflushed) -> Result<(), Fault> {
        let mut disk = self.lock();
        disk.writes += 1;
        if disk.faults.fail_writes.contains(&disk.writes) {
            return Err(self.fault("planned failure of a write".to_owned()));
        }
        disk.unflushed.push(write);
        Ok(())
    }

    fn records(&self) -> Records {
        self.lock()
            .durable
            .iter()
            .map(|(key, value)| (key.clone(), value.clone()))
            .collect()
    }
}

/// A replica's store on a [`MemoryDisk`].
#[derive(Debug)]
pub struct MemoryStore {
    log: RecordLog<MemoryDisk>,
    disk: MemoryDisk,
    loaded: Option<Loaded>,
}

impl MemoryStore {
    /// Makes a new store on an empty disk.
    ///
    /// # Errors
    /// As [`MemoryStore::open`]; [`OpenError::Exists`] if the disk has a store.
    pub fn found(disk: &MemoryDisk, cluster: ClusterId, node: u64) -> Result<Self, OpenError> {
        if !disk.records().is_empty() {
            let cluster = format!("{cluster:02x?}");
            return Err(OpenError::Exists {
                dir: MEMORY.into(),
                cluster,
                node,
            });
        }
        let identity = Identity {
            cluster,
            node,
            incarnation: 0,
        };
        record_log::write_identity(disk, &identity)
            .and_then(|()| disk.flush())
            .map_err(|fault| open_error("write into", fault))?;
        Self::open(disk)
    }

    /// Opens the store on a disk, as after a restart. Drop the store of the earlier life first.
    ///
    /// # Errors
    /// [`OpenError`], by the rules of the real store.
    pub fn open(disk: &MemoryDisk) -> Result<Self, OpenError> {
        let contents = Contents::read(Path::new(MEMORY), &disk.records())?;
        let live = contents
            .manifest
            .as_ref()
            .map(|manifest| manifest.file.clone());
        disk.lock()
            .snapshots
            .retain(|file, _| Some(file) == live.as_ref());
        if let Some(file) = live.filter(|file| !disk.lock().snapshots.contains_key(file)) {
            let what = format!("the snapshot {file} is missing");
            return Err(OpenError::damaged(Path::new(MEMORY), what));
        }
        let mut identity = contents.identity;
        identity.incarnation += 1;
        let removals = contents.log.cut_keys.clone();
        disk.carry_out(Plan {
            writes: Vec::new(),
            removals,
        })
        .and_then(|()| record_log::write_identity(disk, &identity))
        .and_then(|()| disk.flush())
        .map_err(|fault| open_error("write into", fault))?;
        let (log, loaded) = RecordLog::new(disk.clone(), contents, identity);
        Ok(Self {
            log,
            disk: disk.clone(),
            loaded: Some(loaded),
        })
    }

    fn forget(&self, file: Option<String>) {
        if let Some(file) = file {
            self.disk.lock().snapshots.remove(&file);
        }
    }
}

fn open_error(action: &'static str, fault: Fault) -> OpenError {
    OpenError::io(action, Path::new(MEMORY))(io::Error::other(fault))
}

impl LogStore for MemoryStore {
    fn take_loaded(&mut self) -> Option<Loaded> {
        self.loaded.take()
    }

    fn append(&mut self, entries: &[Entry], hard: &HardState) -> Result<(), Fault> {
        self.log.append(entries, hard)
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
        Ok(Box::new(MemoryWriter {
            disk: self.disk.clone(),
            at: at.clone(),
            origin,
            content: Vec::new(),
        }))
    }

    fn publish_snapshot(&mut self, manifest: &Manifest) -> Result<(), Fault> {
        let old = self.log.publish(manifest)?;
        self.forget(old);
        Ok(())
    }

    fn install_snapshot(&mut self, manifest: &Manifest, hard: &HardState) -> Result<(), Fault> {
        let old = self.log.install(manifest, hard)?;
        self.forget(old);
        Ok(())
    }

    fn discard_snapshot(&mut self, manifest: &Manifest) -> Result<(), Fault> {
        let live = self
            .log
            .manifest
            .as_ref()
            .is_some_and(|live| live.file == manifest.file);
        self.forget((!live).then(|| manifest.file.clone()));
        Ok(())
    }

    fn open_snapshot(&self, manifest: &Manifest) -> Result<Box<dyn SnapshotSource>, Fault> {
        let found = self.disk.lock().snapshots.get(&manifest.file).cloned();
        match found.filter(|stored| stored.at == manifest.at) {
            Some(stored) => Ok(Box::new(MemorySource(Cursor::new(stored.content)))),
            None => {
                let what = "it is not there".to_owned();
                Err(Fault::Snapshot {
                    file: manifest.file.clone(),
                    what,
                })
            }
        }
    }

    fn space_low(&self) -> bool {
        self.disk.lock().faults.space_low
    }

    fn disk_bytes(&self) -> u64 {
        let disk = self.disk.lock();
        let records = disk
            .durable
            .iter()
            .map(|(key, value)| key.len() + value.len());
        let snapshots = disk.snapshots.values().map(|stored| stored.content.len());
        records.chain(snapshots).map(|bytes| bytes as u64).sum()
    }

    fn tidy(&mut self) -> Result<(), Fault> {
        Ok(())
    }

    fn close(&mut self) -> Result<(), Fault> {
        self.log.close()
    }
}

#[derive(Debug)]
struct MemoryWriter {
    disk: MemoryDisk,
    at: Applied,
    origin: Origin,
    content: Vec<u8>,
}

impl Write for MemoryWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.content.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl SnapshotWriter for MemoryWriter {
    fn finish(self: Box<Self>, digest: u64) -> Result<Manifest, Fault> {
        let Self {
            disk,
            at,
            origin,
            content,
        } = *self;
        let file = layout::snapshot_name(at.index, origin);
        let bytes = content.len() as u64;
        let stored = Stored {
            at: at.clone(),
            content: Arc::new(content),
        };
        disk.lock().snapshots.insert(file.clone(), stored);
        Ok(Manifest {
            file,
            at,
            bytes,
            digest,
        })
    }
}

#[derive(Debug)]
struct MemorySource(Cursor<Arc<Vec<u8>>>);

impl io::Read for MemorySource {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let position = usize::try_from(self.0.position()).unwrap_or(usize::MAX);
        let rest = self.0.get_ref().get(position..).unwrap_or_default();
        let taken = rest.len().min(buffer.len());
        if let (Some(from), Some(to)) = (rest.get(..taken), buffer.get_mut(..taken)) {
            to.copy_from_slice(from);
        }
        self.0.set_position((position + taken) as u64);
        Ok(taken)
    }
}

impl SnapshotSource for MemorySource {}

#[cfg(test)]
mod tests;
