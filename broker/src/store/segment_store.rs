//! The same trait over plain files: one segment, appended to, copied to the next when it is long.
//!
//! It is the reference in the benches (what does a bare file with one sync cost?), a second opinion
//! in tests, and the way out if the engine fails us. It keeps the whole log in memory as well, so
//! it is meant for logs that are trimmed.
//!
//! ```text
//! segment-000003   frames: length u32, CRC32C u32, body; a body is one operation
//! ```
//!
//! A bad frame at the very end is an unfinished write and is cut off; one with anything good behind
//! it is damage.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use crate::store::chunk::{self, Bad, Reader, put_applied};
use crate::store::layout;
use crate::store::snapshot_file::{FileWriter, SnapshotReader};
use crate::store::{
    Applied, ClusterId, Entry, EntryKind, Fault, HardState, Identity, Loaded, LogStore, Manifest,
    OpenError, Origin, SnapshotSource, SnapshotWriter,
};

const PREFIX: &str = "segment-";
/// A frame longer than this is not one: the longest command is a few MiB.
const FRAME_LIMIT: u32 = 256 << 20;

/// A store of plain files.
#[derive(Debug)]
pub struct SegmentStore {
    dir: PathBuf,
    number: u64,
    file: File,
    written: u64,
    rotate_above_bytes: u64,
    state: Loaded,
    handed_over: bool,
    /// Operations that wait for the next sync.
    waiting: Vec<u8>,
}

impl SegmentStore {
    /// Makes a new store in `dir`, or opens the one that is there.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn open(
        dir: &Path,
        cluster: ClusterId,
        node: u64,
        rotate_above_bytes: u64,
    ) -> Result<Self, OpenError> {
        fs::create_dir_all(dir).map_err(OpenError::io("make the directory", dir))?;
        let newest = newest_segment(dir).map_err(OpenError::io("list", dir))?;
        let mut state = empty(Identity {
            cluster,
            node,
            incarnation: 0,
        });
        if let Some(number) = newest {
            replay(&segment_path(dir, number), &mut state)?;
        }
        let found = state.identity;
        if (found.cluster, found.node) != (cluster, node) {
            return Err(OpenError::Identity {
                dir: dir.to_owned(),
                found: format!("{found:?}"),
                expected: format!("cluster {cluster:02x?}, node {node}"),
            });
        }
        state.identity.incarnation += 1;
        // Every start begins a fresh segment: whatever was unfinished in the old one is gone with
        // it.
        let number = newest.unwrap_or(0) + 1;
        let made = write_segment(dir, number, &state).map_err(OpenError::io("write into", dir))?;
        let (file, written) = made;
        if let Some(old) = newest {
            let path = segment_path(dir, old);
            fs::remove_file(&path).map_err(OpenError::io("remove the old", &path))?;
        }
        let dir = dir.to_owned();
        let (handed_over, waiting) = (false, Vec::new());
        Ok(Self {
            dir,
            number,
            file,
            written,
            rotate_above_bytes,
            state,
            handed_over,
            waiting,
        })
    }

    fn sync(&mut self) -> Result<(), Fault> {
        let path = segment_path(&self.dir, self.number);
        self.file
            .write_all(&self.waiting)
            .map_err(Fault::io("write", &path))?;
        self.file.sync_data().map_err(Fault::io("sync", &path))?;
        self.written += self.waiting.len() as u64;
        self.waiting.clear();
        Ok(())
    }

    fn put(&mut self, operation: &Operation) {
        operation.apply(&mut self.state);
        put_frame(&mut self.waiting, operation);
    }

    fn delete_snapshot(&self, file: &str) -> Result<(), Fault> {
        let path = self.dir.join(file);
        fs::remove_file(&path).map_err(Fault::io("delete the old snapshot", &path))
    }

    fn switch_manifest(&mut self, operation: &Operation) -> Result<(), Fault> {
        let old = self
            .state
            .manifest
            .as_ref()
            .map(|manifest| manifest.file.clone());
        self.put(operation);
        self.sync()?;
        let new = self
            .state
            .manifest
            .as_ref()
            .map(|manifest| manifest.file.clone());
        old.filter(|file| new.as_ref() != Some(file))
            .map_or(Ok(()), |file| self.delete_snapshot(&file))
    }
}

fn empty(identity: Identity) -> Loaded {
    let hard = HardState::default();
    Loaded {
        identity,
        hard,
        applied: None,
        manifest: None,
        entries: Vec::new(),
        cut_from: None,
    }
}

fn segment_path(dir: &Path, number: u64) -> PathBuf {
    dir.join(format!("{PREFIX}{number:06}"))
}

fn newest_segment(dir: &Path) -> io::Result<Option<u64>> {
    let mut newest = None;
    for entry in fs::read_dir(dir)? {
        let name = entry?.file_name();
        let name = name.to_string_lossy();
        let number = name
            .strip_prefix(PREFIX)
            .and_then(|digits| digits.parse().ok());
        newest = newest.max(number);
    }
    Ok(newest)
}

/// Writes the whole state as the first frames of a new segment, durable under its name.
fn write_segment(dir: &Path, number: u64, state: &Loaded) -> io::Result<(File, u64)> {
    let mut bytes = Vec::new();
    put_frame(&mut bytes, &Operation::Identity(state.identity));
    if let Some(manifest) = &state.manifest {
        put_frame(&mut bytes, &Operation::Publish(manifest.clone()));
    }
    if let Some(applied) = &state.applied {
        put_frame(&mut bytes, &Operation::Applied(state.hard, applied.clone()));
    }
    put_frame(
        &mut bytes,
        &Operation::Append(state.hard, state.entries.clone()),
    );
    let path = segment_path(dir, number);
    let new = path.with_extension("new");
    let mut file = OpenOptions::new()
        .create(true)
        .truncate(true)
        .write(true)
        .open(&new)?;
    file.write_all(&bytes)?;
    file.sync_all()?;
    fs::rename(&new, &path)?;
    layout::sync_dir(dir)?;
    Ok((file, bytes.len() as u64))
}

fn replay(path: &Path, state: &mut Loaded) -> Result<(), OpenError> {
    let bytes = fs::read(path).map_err(OpenError::io("read", path))?;
    let mut rest = bytes.as_slice();
    while !rest.is_empty() {
        let Some((operation, behind)) = take_frame(rest) else {
            break;
        };
        operation.apply(state);
        rest = behind;
    }
    // Anything good behind a bad frame means that the bad one was once complete.
    let damaged = (1..rest.len()).any(|at| {
        rest.get(at..)
            .is_some_and(|tail| take_frame(tail).is_some())
    });
    let last_good = state.entries.last().map_or(0, |entry| entry.index);
    if damaged {
        return Err(OpenError::Damaged {
            dir: path.to_owned(),
            what: format!("what was written behind index {last_good} does not hold"),
            last_good: (last_good > 0).then_some(last_good),
            detail: None,
        });
    }
    state.cut_from = (!rest.is_empty()).then_some(last_good + 1);
    // The saved commit index may be behind what was applied.
    let base = state
        .manifest
        .as_ref()
        .map_or(0, |manifest| manifest.at.index);
    let applied = state.applied.as_ref().map_or(0, |applied| applied.index);
    state.hard.commit = state.hard.commit.max(base).max(applied);
    Ok(())
}

fn take_frame(bytes: &[u8]) -> Option<(Operation, &[u8])> {
    let mut read = Reader { left: bytes };
    let length = read
        .u32()
        .ok()
        .filter(|length| *length > 0 && *length <= FRAME_LIMIT)?;
    let crc = read.u32().ok()?;
    let (body, behind) = read.left.split_at_checked(usize::try_from(length).ok()?)?;
    (crc32c::crc32c(body) == crc).then_some(())?;
    Some((Operation::decode(body).ok()?, behind))
}

fn put_frame(out: &mut Vec<u8>, operation: &Operation) {
    let body = operation.encode();
    let length = u32::try_from(body.len()).unwrap_or(u32::MAX);
    out.extend_from_slice(&length.to_le_bytes());
    out.extend_from_slice(&crc32c::crc32c(&body).to_le_bytes());
    out.extend_from_slice(&body);
}

#[derive(Debug)]
enum Operation {
    Identity(Identity),
    Append(HardState, Vec<Entry>),
    Applied(HardState, Applied),
    Trim(u64),
    Publish(Manifest),
    Install(HardState, Manifest),
}

impl Operation {
    fn apply(&self, state: &mut Loaded) {
        match self {
            Self::Identity(identity) => state.identity = *identity,
            Self::Append(hard, entries) => {
                state.hard = *hard;
                if let Some(first) = entries.first() {
                    state.entries.retain(|entry| entry.index < first.index);
                }
                state.entries.extend_from_slice(entries);
            }
            Self::Applied(hard, applied) => {
                state.hard = *hard;
                state.hard.commit = hard.commit.max(applied.index);
                state.applied = Some(applied.clone());
            }
            Self::Trim(first_kept) => state.entries.retain(|entry| entry.index >= *first_kept),
            Self::Publish(manifest) => state.manifest = Some(manifest.clone()),
            Self::Install(hard, manifest) => {
                state.hard = *hard;
                state.hard.commit = hard.commit.max(manifest.at.index);
                state.entries.clear();
                state.applied = Some(manifest.at.clone());
                state.manifest = Some(manifest.clone());
            }
        }
    }

    fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        match self {
            Self::Identity(Identity {
                cluster,
                node,
                incarnation,
            }) => {
                out.push(1);
                out.extend_from_slice(cluster);
                put_numbers(&mut out, &[*node, *incarnation]);
            }
            Self::Append(hard, entries) => {
                out.push(2);
                put_hard(&mut out, hard);
                for entry in entries {
                    put_numbers(&mut out, &[entry.index, entry.term]);
                    out.push(kind_byte(entry.kind));
                    let length = u32::try_from(entry.data.len()).unwrap_or(u32::MAX);
                    out.extend_from_slice(&length.to_le_bytes());
                    out.extend_from_slice(&entry.data);
                }
            }
            Self::Applied(hard, applied) => {
                out.push(3);
                put_hard(&mut out, hard);
                put_applied(&mut out, applied);
            }
            Self::Trim(first_kept) => {
                out.push(4);
                put_numbers(&mut out, &[*first_kept]);
            }
            Self::Publish(manifest) => {
                out.push(5);
                out.extend_from_slice(&chunk::encode_manifest(manifest));
            }
            Self::Install(hard, manifest) => {
                out.push(6);
                put_hard(&mut out, hard);
                out.extend_from_slice(&chunk::encode_manifest(manifest));
            }
        }
        out
    }

    fn decode(body: &[u8]) -> Result<Self, Bad> {
        let mut read = Reader { left: body };
        match read.u8()? {
            1 => Ok(Self::Identity(Identity {
                cluster: read.array()?,
                node: read.u64()?,
                incarnation: read.u64()?,
            })),
            2 => {
                let hard = read_hard(&mut read)?;
                let mut entries = Vec::new();
                while !read.left.is_empty() {
                    entries.push(Entry {
                        index: read.u64()?,
                        term: read.u64()?,
                        kind: kind_of(read.u8()?)?,
                        data: read.bytes()?.to_vec(),
                    });
                }
                Ok(Self::Append(hard, entries))
            }
            3 => Ok(Self::Applied(read_hard(&mut read)?, read.applied()?)),
            4 => Ok(Self::Trim(read.u64()?)),
            5 => Ok(Self::Publish(chunk::decode_manifest(read.rest())?)),
            6 => {
                let hard = read_hard(&mut read)?;
                Ok(Self::Install(hard, chunk::decode_manifest(read.rest())?))
            }
            _ => Err(Bad::Form),
        }
    }
}

fn put_numbers(out: &mut Vec<u8>, numbers: &[u64]) {
    for number in numbers {
        out.extend_from_slice(&number.to_le_bytes());
    }
}

fn put_hard(out: &mut Vec<u8>, hard: &HardState) {
    put_numbers(out, &[hard.term, hard.vote, hard.commit]);
}

fn read_hard(read: &mut Reader<'_>) -> Result<HardState, Bad> {
    Ok(HardState {
        term: read.u64()?,
        vote: read.u64()?,
        commit: read.u64()?,
    })
}

fn kind_byte(kind: EntryKind) -> u8 {
    match kind {
        EntryKind::Command => 0,
        EntryKind::Change => 1,
        EntryKind::ChangeV2 => 2,
    }
}

fn kind_of(byte: u8) -> Result<EntryKind, Bad> {
    match byte {
        0 => Ok(EntryKind::Command),
        1 => Ok(EntryKind::Change),
        2 => Ok(EntryKind::ChangeV2),
        _ => Err(Bad::Form),
    }
}

impl LogStore for SegmentStore {
    fn take_loaded(&mut self) -> Option<Loaded> {
        let first = !std::mem::replace(&mut self.handed_over, true);
        first.then(|| self.state.clone())
    }

    fn append(&mut self, entries: &[Entry], hard: &HardState) -> Result<(), Fault> {
        self.put(&Operation::Append(*hard, entries.to_vec()));
        self.sync()
    }

    fn save_applied(&mut self, hard: &HardState, applied: &Applied) -> Result<(), Fault> {
        self.put(&Operation::Applied(*hard, applied.clone()));
        Ok(())
    }

    fn trim(&mut self, first_kept: u64) -> Result<(), Fault> {
        self.put(&Operation::Trim(first_kept));
        Ok(())
    }

    fn snapshot_writer(
        &self,
        at: &Applied,
        origin: Origin,
    ) -> Result<Box<dyn SnapshotWriter>, Fault> {
        let writer = FileWriter::create(&self.dir, &self.state.identity.cluster, at, origin);
        Ok(Box::new(
            writer.map_err(Fault::io("create a snapshot in", &self.dir))?,
        ))
    }

    fn publish_snapshot(&mut self, manifest: &Manifest) -> Result<(), Fault> {
        self.switch_manifest(&Operation::Publish(manifest.clone()))
    }

    fn install_snapshot(&mut self, manifest: &Manifest, hard: &HardState) -> Result<(), Fault> {
        self.switch_manifest(&Operation::Install(*hard, manifest.clone()))
    }

    fn discard_snapshot(&mut self, manifest: &Manifest) -> Result<(), Fault> {
        let live = self
            .state
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
        let path = self.dir.join(&manifest.file);
        let reader = SnapshotReader::open(&path);
        Ok(Box::new(reader.map_err(|error| Fault::Snapshot {
            file: manifest.file.clone(),
            what: error.to_string(),
        })?))
    }

    fn space_low(&self) -> bool {
        false
    }

    fn disk_bytes(&self) -> u64 {
        crate::store::layout::used_bytes(&self.dir)
    }

    fn tidy(&mut self) -> Result<(), Fault> {
        if self.written <= self.rotate_above_bytes {
            return Ok(());
        }
        self.sync()?;
        let number = self.number + 1;
        let made = write_segment(&self.dir, number, &self.state);
        let (file, written) = made.map_err(Fault::io("write a segment in", &self.dir))?;
        let old = segment_path(&self.dir, self.number);
        (self.file, self.number, self.written) = (file, number, written);
        fs::remove_file(&old).map_err(Fault::io("remove the old", &old))
    }

    fn close(&mut self) -> Result<(), Fault> {
        self.sync()
    }
}

#[cfg(test)]
mod tests;
