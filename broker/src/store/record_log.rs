//! The log as records under keys: what is common to every store that keeps records.
//!
//! [`RecordLog`] knows which record to write for an append, a trim, a snapshot; a [`Keys`] knows
//! how to put records somewhere. The engine on disk and the disk in memory are two of them, so that
//! the simulator's store differs from the real one only below this line.

use std::path::Path;

use crate::store::chunk::{self, Bad, Key, Record, Stamp};
use crate::store::load::{self, Damage};
use crate::store::plan::{ChunkMap, Plan};
use crate::store::{
    Applied, ClusterId, Entry, Fault, HardState, Identity, Loaded, Manifest, OpenError,
};

pub(super) const CLUSTER: &[u8] = b"mcluster";
pub(super) const NODE: &[u8] = b"mnode";
pub(super) const INCARNATION: &[u8] = b"mincarnation";
pub(super) const MANIFEST: &[u8] = b"mmanifest";

/// All records of a store, in key order.
pub(super) type Records = Vec<(Key, Vec<u8>)>;

/// Somewhere to keep records. What was written before a flush that returned is durable.
pub(super) trait Keys {
    /// Writes one record.
    fn insert(&self, key: &[u8], value: Vec<u8>) -> Result<(), Fault>;

    /// Removes one record.
    fn remove(&self, key: &[u8]) -> Result<(), Fault>;

    /// Carries a plan out, all of it or nothing.
    fn carry_out(&self, plan: Plan) -> Result<(), Fault>;

    /// Reads one record.
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, Fault>;

    /// Makes everything written so far durable.
    fn flush(&self) -> Result<(), Fault>;

    /// A fault of this place, in words.
    fn fault(&self, what: String) -> Fault;
}

/// The records of one replica and what is known about them.
#[derive(Debug)]
pub(super) struct RecordLog<K> {
    pub(super) keys: K,
    pub(super) identity: Identity,
    pub(super) chunks: ChunkMap,
    pub(super) sequence: u64,
    /// The last index of the log; the snapshot's when the log is empty.
    pub(super) last: u64,
    /// The highest index whose flush has returned.
    pub(super) flushed: u64,
    pub(super) hard: HardState,
    pub(super) applied: Applied,
    pub(super) manifest: Option<Manifest>,
}

impl<K: Keys> RecordLog<K> {
    /// Takes over what was found in `keys`. Everything found must have been flushed again.
    pub(super) fn new(keys: K, contents: Contents, identity: Identity) -> (Self, Loaded) {
        let Contents { manifest, log, .. } = contents;
        let base = manifest.as_ref().map_or(0, |manifest| manifest.at.index);
        let last = log.entries.last().map_or(base, |entry| entry.index);
        let loaded = Loaded {
            identity,
            hard: log.hard,
            applied: log.applied.clone(),
            manifest: manifest.clone(),
            entries: log.entries,
            cut_from: log.cut_from,
        };
        let this = Self {
            keys,
            identity,
            chunks: log.chunks,
            sequence: log.sequence,
            last,
            flushed: last,
            hard: log.hard,
            applied: log.applied.unwrap_or_default(),
            manifest,
        };
        (this, loaded)
    }

    fn base(&self) -> u64 {
        self.manifest
            .as_ref()
            .map_or(0, |manifest| manifest.at.index)
    }

    pub(super) fn stamp(&self, flushed: u64) -> Stamp {
        Stamp {
            cluster: self.identity.cluster,
            sequence: self.sequence,
            hard: self.hard,
            flushed,
        }
    }

    fn insert_head(&mut self, flushed: u64) -> Result<(), Fault> {
        let value = chunk::encode_head(&self.stamp(flushed), &self.applied);
        self.sequence += 1;
        self.keys.insert(chunk::HEAD_KEY, value)
    }

    pub(super) fn flush(&mut self) -> Result<(), Fault> {
        self.keys.flush()?;
        self.flushed = self.last;
        Ok(())
    }

    /// The sequence of the newest record written.
    pub(super) fn newest(&self) -> u64 {
        self.sequence.saturating_sub(1)
    }

    /// See [`crate::store::LogStore::append`].
    pub(super) fn append(&mut self, entries: &[Entry], hard: &HardState) -> Result<(), Fault> {
        self.hard = *hard;
        let Some((first, last)) = entries.first().zip(entries.last()) else {
            self.insert_head(self.flushed)?;
            return self.flush();
        };
        let (first, last) = (first.index, last.index);
        assert!(
            first > self.base() && first <= self.last + 1,
            "append at {first} does not fit a log of {}..={}",
            self.base(),
            self.last
        );
        // What is about to be overwritten is no longer promised, before the new is.
        let mut stamp = self.stamp(self.flushed.min(first - 1));
        let (keys, cluster) = (&self.keys, &self.identity.cluster);
        let plan = self
            .chunks
            .append(&mut stamp, entries, |key| read_chunk(keys, cluster, key))?;
        self.sequence = stamp.sequence;
        match plan.single() {
            Some((key, value)) => self.keys.insert(key, value.clone())?,
            None => self.keys.carry_out(plan)?,
        }
        self.last = last;
        self.flush()
    }

    /// See [`crate::store::LogStore::save_applied`].
    pub(super) fn save_applied(
        &mut self,
        hard: &HardState,
        applied: &Applied,
    ) -> Result<(), Fault> {
        self.hard = *hard;
        self.hard.commit = self.hard.commit.max(applied.index);
        self.applied = applied.clone();
        self.insert_head(self.flushed)
    }

    /// See [`crate::store::LogStore::trim`].
    pub(super) fn trim(&mut self, first_kept: u64) -> Result<(), Fault> {
        assert!(
            first_kept <= self.base() + 1,
            "trim below {first_kept} would cut what the snapshot at {} does not hold",
            self.base()
        );
        // The last chunk stays in any case: it may hold the newest hard state.
        let removals = self.chunks.trim(first_kept.min(self.last));
        let in_pieces = |key: &Key| chunk::parse_entry_key(key).is_some_and(|(_, piece)| piece > 0);
        if removals.iter().any(in_pieces) {
            return self.keys.carry_out(Plan {
                writes: Vec::new(),
                removals,
            });
        }
        // No batch needed: a trim that is half on disk is still a log without gaps, since the lower
        // keys go first. Only an entry in pieces must go whole.
        removals.iter().try_for_each(|key| self.keys.remove(key))
    }

    /// Makes `manifest` the live snapshot; gives the file that is not needed any more.
    pub(super) fn publish(&mut self, manifest: &Manifest) -> Result<Option<String>, Fault> {
        self.keys.insert(MANIFEST, manifest_record(manifest))?;
        self.flush()?;
        Ok(self.replace_manifest(manifest))
    }

    /// Empties the log and makes `manifest` the live snapshot; gives the file not needed any more.
    pub(super) fn install(
        &mut self,
        manifest: &Manifest,
        hard: &HardState,
    ) -> Result<Option<String>, Fault> {
        let index = manifest.at.index;
        self.hard = *hard;
        self.hard.commit = self.hard.commit.max(index);
        self.applied = manifest.at.clone();
        let head = chunk::encode_head(&self.stamp(index), &self.applied);
        self.sequence += 1;
        let writes = vec![
            (chunk::HEAD_KEY.to_vec(), head),
            (MANIFEST.to_vec(), manifest_record(manifest)),
        ];
        self.keys.carry_out(Plan {
            writes,
            removals: self.chunks.clear(),
        })?;
        self.last = index;
        self.flush()?;
        Ok(self.replace_manifest(manifest))
    }

    fn replace_manifest(&mut self, manifest: &Manifest) -> Option<String> {
        let old = self.manifest.replace(manifest.clone());
        old.map(|old| old.file)
            .filter(|file| *file != manifest.file)
    }

    /// See [`crate::store::LogStore::close`].
    pub(super) fn close(&mut self) -> Result<(), Fault> {
        self.flush()?;
        // A record written after the flush can say that everything before it is flushed, so any
        // later damage of the log's end is seen as damage and not taken for an unfinished write.
        self.insert_head(self.flushed)?;
        self.flush()
    }

    /// Writes everything that is live into empty `target`, small chunks packed again.
    pub(super) fn copy_into<T: Keys>(
        &self,
        target: T,
        contents: Contents,
    ) -> Result<RecordLog<T>, Fault> {
        let identity = self.identity;
        write_identity(&target, &identity)?;
        let mut stamp = self.stamp(self.flushed);
        let mut chunks = ChunkMap::default();
        // Bounded batches of whole entries; the target counts only once it is named the live one.
        for entries in contents.log.entries.chunks(1_000) {
            let overlap = |_: &Key| Err(target.fault("a copied chunk overlaps".to_owned()));
            let plan = chunks.append(&mut stamp, entries, overlap)?;
            target.carry_out(plan)?;
        }
        if let Some(manifest) = &contents.manifest {
            target.insert(MANIFEST, manifest_record(manifest))?;
        }
        let (mut copy, _) = RecordLog::new(target, contents, identity);
        copy.chunks = chunks;
        copy.sequence = stamp.sequence;
        copy.hard = self.hard;
        copy.applied = self.applied.clone();
        copy.insert_head(self.flushed)?;
        copy.flush()?;
        Ok(copy)
    }
}

/// Writes who the replica is.
pub(super) fn write_identity(keys: &impl Keys, identity: &Identity) -> Result<(), Fault> {
    let Identity {
        cluster,
        node,
        incarnation,
    } = identity;
    keys.insert(CLUSTER, chunk::encode_meta(CLUSTER, cluster))?;
    keys.insert(NODE, chunk::encode_meta(NODE, &node.to_le_bytes()))?;
    keys.insert(
        INCARNATION,
        chunk::encode_meta(INCARNATION, &incarnation.to_le_bytes()),
    )
}

fn manifest_record(manifest: &Manifest) -> Vec<u8> {
    chunk::encode_meta(MANIFEST, &chunk::encode_manifest(manifest))
}

fn read_chunk(keys: &impl Keys, cluster: &ClusterId, key: &Key) -> Result<Record, Fault> {
    let value = keys.get(key)?.unwrap_or_default();
    let damaged = |bad: Bad| keys.fault(format!("a chunk written before reads back wrong: {bad}"));
    chunk::decode(key, &value, cluster).map_err(damaged)
}

/// What a store's records say.
#[derive(Debug)]
pub(super) struct Contents {
    pub(super) identity: Identity,
    pub(super) manifest: Option<Manifest>,
    pub(super) log: load::Log,
}

impl Contents {
    /// Reads them; `dir` is for the errors.
    pub(super) fn read(dir: &Path, records: &[(Key, Vec<u8>)]) -> Result<Self, OpenError> {
        let damaged = |what: String| OpenError::damaged(dir, what);
        let meta = |name: &[u8]| -> Result<Option<&[u8]>, OpenError> {
            let found = records.iter().find(|(key, _)| key == name);
            found.map_or(Ok(None), |(key, value)| {
                match chunk::decode_meta(key, value) {
                    Ok(body) => Ok(Some(body)),
                    Err(Bad::Format(found)) => Err(newer(dir, found)),
                    Err(bad) => Err(damaged(format!("{}: {bad}", String::from_utf8_lossy(name)))),
                }
            })
        };
        let number = |name: &[u8]| -> Result<Option<u64>, OpenError> {
            let body = meta(name)?;
            let wrong = |_| damaged(format!("{} is no number", String::from_utf8_lossy(name)));
            body.map(<[u8; 8]>::try_from)
                .transpose()
                .map_err(wrong)
                .map(|bytes| bytes.map(u64::from_le_bytes))
        };
        let cluster = meta(CLUSTER)?.and_then(|body| ClusterId::try_from(body).ok());
        let (Some(cluster), Some(node)) = (cluster, number(NODE)?) else {
            return Err(damaged("its cluster and node id are missing".to_owned()));
        };
        let incarnation = number(INCARNATION)?.unwrap_or(0);
        let manifest = meta(MANIFEST)?.map(chunk::decode_manifest).transpose();
        let manifest = manifest.map_err(|bad| damaged(format!("its manifest: {bad}")))?;
        let meta_begins = records.partition_point(|(key, _)| key.first() < Some(&b'm'));
        let of_log = records.get(..meta_begins).unwrap_or_default();
        let log = load::read(of_log, &cluster, manifest.as_ref());
        let log = log.map_err(|damage| damage_error(dir, damage))?;
        let identity = Identity {
            cluster,
            node,
            incarnation,
        };
        Ok(Self {
            identity,
            manifest,
            log,
        })
    }
}

fn newer(dir: &Path, found: u8) -> OpenError {
    OpenError::Format {
        dir: dir.to_owned(),
        found,
        known: chunk::FORMAT,
    }
}

fn damage_error(dir: &Path, damage: Damage) -> OpenError {
    match damage.newer_format {
        Some(found) => newer(dir, found),
        None => {
            let Damage {
                what, last_good, ..
            } = damage;
            OpenError::Damaged {
                dir: dir.to_owned(),
                what,
                last_good: (last_good > 0).then_some(last_good),
                detail: None,
            }
        }
    }
}
