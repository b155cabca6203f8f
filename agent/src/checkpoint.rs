//! The agent's only durable file: plain records, no database.
//!
//! The shell opens it before anything else, folds what it [`Recovered`], and appends one batch for
//! each turn of its loop: before anything is done for a grant, before a status is sent, and before
//! an end is told. A batch is one write and one fsync and is there whole or not at all. Space is
//! allocated ahead, for the file and for its next compaction, so that a full disk stops nothing
//! that already runs.
//!
//! It promises that an agent always starts: a torn tail is dropped and never the prefix, a file
//! that cannot be read gives way to the one before it, and what was damaged is told and kept. It
//! does not know what a record means; [`Entry`] is only their spelling. Process ids are never in
//! it.
//!
//! ```text
//! checkpoint            header, records, zeros up to the allocated end
//! checkpoint.previous   the file before the last compaction
//! checkpoint.next       space for the next compaction; never read
//! ```

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use uuid::Uuid;

mod entry;
mod format;
#[cfg(test)]
mod tests;

pub use self::entry::Entry;
pub use self::format::Record;

use self::format::{Header, RECORD_HEAD};

const CURRENT: &str = "checkpoint";
const PREVIOUS: &str = "checkpoint.previous";
const NEXT: &str = "checkpoint.next";
/// What could not be read, kept for people.
const DAMAGED: &str = "checkpoint.damaged";

/// Allocated at a time.
const CHUNK: u64 = 1 << 20;
/// A file smaller than this is not worth compacting.
const SMALL: u64 = 256 << 10;
/// No checkpoint is larger: bounds what a damaged length can make us read.
const MOST_BYTES: u64 = 4 << 30;

/// What a checkpoint held when it was opened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Recovered {
    /// The agent's identity: the recovered one, or the fresh one given to [`Checkpoint::open`].
    pub agent_id: Uuid,
    /// The epoch of the last compaction; 0 for a new file.
    pub topology_epoch: u64,
    /// All records, oldest first.
    pub records: Vec<Record>,
    /// The machine was booted since: every run is over and no process id means anything.
    pub rebooted: bool,
    /// There was a readable file. When there was none and `damage` is not empty, what ran must be
    /// found by adoption.
    pub found: bool,
    /// What was wrong, one sentence each; for the log.
    pub damage: Vec<String>,
}

/// The open file.
#[derive(Debug)]
pub struct Checkpoint {
    directory: PathBuf,
    file: File,
    header: Header,
    /// Where the next record goes.
    end: u64,
    /// Checksum of everything before it.
    chain: u32,
    /// How far space is allocated.
    allocated: u64,
    /// Size right after the last compaction.
    live: u64,
}

struct Loaded {
    file: File,
    header: Header,
    records: Vec<Record>,
    end: u64,
    chain: u32,
    torn: bool,
}

impl Checkpoint {
    /// Opens the checkpoint in `directory`, or begins one with `fresh_agent_id`.
    ///
    /// `boot_id` is this boot's; when the file was written in another one, [`Recovered::rebooted`]
    /// says so.
    ///
    /// # Errors
    /// The directory cannot be written. Damaged content is not an error.
    pub fn open(
        directory: &Path,
        boot_id: Uuid,
        fresh_agent_id: Uuid,
    ) -> io::Result<(Self, Recovered)> {
        let (best, damage) = Self::newest(directory);
        let mut recovered = Recovered {
            agent_id: fresh_agent_id,
            topology_epoch: 0,
            records: Vec::new(),
            rebooted: false,
            found: best.is_some(),
            damage,
        };
        let Some(best) = best else {
            let header = Header {
                counter: 0,
                agent_id: fresh_agent_id,
                boot_id,
                epoch: 0,
            };
            return Ok((Self::begin(directory, header, &[])?, recovered));
        };
        if best.torn {
            recovered
                .damage
                .push("the last write was cut off and is dropped".to_owned());
        }
        recovered.agent_id = best.header.agent_id;
        recovered.topology_epoch = best.header.epoch;
        recovered.rebooted = best.header.boot_id != boot_id;
        recovered.records = best.records;
        let header = Header {
            boot_id,
            ..best.header
        };
        match Self::begin(directory, header, &recovered.records) {
            Ok(checkpoint) => Ok((checkpoint, recovered)),
            // No room to rewrite it: go on in the old file, whose space is allocated, unless its
            // header belongs to another boot.
            Err(error) if !recovered.rebooted && directory.join(CURRENT).exists() => {
                recovered
                    .damage
                    .push(format!("not compacted at start: {error}"));
                let allocated = best.file.metadata()?.len();
                let checkpoint = Self {
                    directory: directory.to_owned(),
                    file: best.file,
                    header,
                    end: best.end,
                    chain: best.chain,
                    allocated,
                    live: best.end,
                };
                Ok((checkpoint, recovered))
            }
            Err(error) => Err(error),
        }
    }

    /// The identity of the agent whose state is in `directory`, if a file there can be read.
    #[must_use]
    pub fn identity(directory: &Path) -> Option<Uuid> {
        let files = [CURRENT, PREVIOUS].map(|name| load(&directory.join(name)));
        let found = files.into_iter().filter_map(|file| file.ok().flatten());
        found.map(|file| file.header.agent_id).next()
    }

    /// The newer of the readable files, and what was wrong with the others.
    fn newest(directory: &Path) -> (Option<Loaded>, Vec<String>) {
        let mut damage = Vec::new();
        let mut best: Option<Loaded> = None;
        for name in [CURRENT, PREVIOUS] {
            match load(&directory.join(name)) {
                Ok(Some(found)) => {
                    let newer = best
                        .as_ref()
                        .is_none_or(|best| best.header.counter < found.header.counter);
                    if newer {
                        best = Some(found);
                    }
                }
                Ok(None) => {}
                Err(what) => {
                    damage.push(format!("{name}: {what}"));
                    if name == CURRENT {
                        // Kept for people; the next compaction would replace it.
                        let kept = directory.join(DAMAGED);
                        let _best_effort = std::fs::rename(directory.join(name), kept);
                    }
                }
            }
        }
        (best, damage)
    }

    fn begin(directory: &Path, header: Header, records: &[Record]) -> io::Result<Self> {
        let mut checkpoint = Self {
            directory: directory.to_owned(),
            // Replaced at once by the compaction below.
            file: File::open(directory)?,
            header,
            end: 0,
            chain: 0,
            allocated: 0,
            live: 0,
        };
        checkpoint.compact(records)?;
        Ok(checkpoint)
    }

    /// Appends `records` as one batch: one write, one fsync.
    ///
    /// # Errors
    /// Nothing of the batch counts. With `StorageFull` nothing was written and the file is as
    /// before; after any other error the same batch may be tried again.
    pub fn append(&mut self, records: &[Record]) -> io::Result<()> {
        if records.is_empty() {
            return Ok(());
        }
        let (mut bytes, chain) = format::encode_batch(records, self.chain)?;
        let used = length(&bytes);
        // Zeros after the batch end the reading even if an earlier, failed batch left bytes there.
        bytes.resize(bytes.len() + RECORD_HEAD, 0);
        self.reserve(self.end + length(&bytes))?;
        self.file.write_all_at(&bytes, self.end)?;
        self.file.sync_data()?;
        self.end += used;
        self.chain = chain;
        Ok(())
    }

    /// Whether the file has grown to twice what a compaction would leave.
    #[must_use]
    pub fn wants_compaction(&self) -> bool {
        self.end > SMALL && self.end / 2 > self.live
    }

    /// Replaces the whole content by `live`.
    ///
    /// # Errors
    /// The content is as before, whatever step failed.
    pub fn compact(&mut self, live: &[Record]) -> io::Result<()> {
        let header = Header {
            counter: self.header.counter + 1,
            ..self.header
        };
        let (file, end, chain, allocated) = write_next(&self.directory, &header, live)?;
        swap(&self.directory)?;
        self.file = file;
        self.header = header;
        self.end = end;
        self.chain = chain;
        self.allocated = allocated;
        self.live = end;
        // Space for the next time, taken now, while the file before the previous one is just gone.
        if let Err(error) = spare(&self.directory, allocated) {
            tracing::warn!(%error, "no space kept for the next compaction of the checkpoint");
        }
        Ok(())
    }

    /// The epoch that the next compaction writes into the header.
    pub fn set_topology_epoch(&mut self, epoch: u64) {
        self.header.epoch = epoch;
    }

    /// Bytes in use.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.end
    }

    fn reserve(&mut self, needed: u64) -> io::Result<()> {
        if needed > MOST_BYTES {
            let text = "the checkpoint would pass 4 GiB; compact it";
            return Err(io::Error::new(io::ErrorKind::StorageFull, text));
        }
        if needed <= self.allocated {
            return Ok(());
        }
        let wanted = needed.next_multiple_of(CHUNK);
        allocate(&self.file, self.allocated, wanted)?;
        self.file.sync_all()?;
        self.allocated = wanted;
        Ok(())
    }
}

/// Writes the new file, complete and durable, beside the others.
fn write_next(
    directory: &Path,
    header: &Header,
    live: &[Record],
) -> io::Result<(File, u64, u32, u64)> {
    let path = directory.join(NEXT);
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .open(&path)?;
    let mut bytes = header.encode();
    let mut chain = format::header_chain(&bytes);
    if !live.is_empty() {
        let (batch, end) = format::encode_batch(live, chain)?;
        bytes.extend(batch);
        chain = end;
    }
    let end = length(&bytes);
    let allocated = (end + CHUNK / 2).next_multiple_of(CHUNK);
    let present = file.metadata()?.len();
    if present < allocated {
        allocate(&file, present, allocated)?;
    }
    // Zeros to the end of what an older use of this file may hold; allocated space reads as zeros.
    let stale = file_end_of_data(&file, present)?;
    if stale > end {
        bytes.resize(usize::try_from(stale).map_err(io::Error::other)?, 0);
    }
    file.write_all_at(&bytes, 0)?;
    file.sync_all()?;
    Ok((file, end, chain, allocated.max(present)))
}

/// Where the last byte that is not zero can be. A spare file is all zeros and costs nothing here.
fn file_end_of_data(file: &File, size: u64) -> io::Result<u64> {
    let mut head = [0_u8; 64];
    let read = file.read_at(&mut head, 0)?;
    if head.iter().take(read).all(|byte| *byte == 0) {
        Ok(0)
    } else {
        Ok(size)
    }
}

/// Puts the new file in the place of the present one, which becomes the previous one.
fn swap(directory: &Path) -> io::Result<()> {
    let (current, previous) = (directory.join(CURRENT), directory.join(PREVIOUS));
    match std::fs::rename(&current, &previous) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    if let Err(error) = std::fs::rename(directory.join(NEXT), &current) {
        // Back, so that the open file keeps its name; if this fails too, reading finds `previous`.
        let _best_effort = std::fs::rename(&previous, &current);
        return Err(error);
    }
    File::open(directory)?.sync_all()
}

/// Makes the file that the next compaction will be written into.
fn spare(directory: &Path, size: u64) -> io::Result<()> {
    let path = directory.join(NEXT);
    let file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .open(&path)?;
    let made = allocate(&file, 0, size);
    if made.is_err() {
        // Half a reserve would only take the space from somebody else.
        std::fs::remove_file(&path)?;
    }
    made
}

/// Takes space for real; on a file system that cannot, by writing zeros.
fn allocate(file: &File, from: u64, to: u64) -> io::Result<()> {
    use rustix::fs::{FallocateFlags, fallocate};
    use rustix::io::Errno;

    match fallocate(file, FallocateFlags::empty(), from, to.saturating_sub(from)) {
        Ok(()) => Ok(()),
        Err(Errno::OPNOTSUPP | Errno::NOSYS) => {
            let zeros = vec![0_u8; usize::try_from(CHUNK).map_err(io::Error::other)?];
            let mut at = from;
            while at < to {
                let step = (to - at).min(CHUNK);
                let part = usize::try_from(step).map_err(io::Error::other)?;
                file.write_all_at(zeros.get(..part).unwrap_or(&zeros), at)?;
                at += step;
            }
            Ok(())
        }
        Err(errno) => Err(errno.into()),
    }
}

fn length(bytes: &[u8]) -> u64 {
    u64::try_from(bytes.len()).unwrap_or(u64::MAX)
}

/// Reads one file: `None` when it is not there, an error text when it has no valid header.
fn load(path: &Path) -> Result<Option<Loaded>, String> {
    let file = match OpenOptions::new().read(true).write(true).open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(format!("cannot be opened: {error}")),
    };
    let size = file.metadata().map_err(|error| error.to_string())?.len();
    if size > MOST_BYTES {
        return Err(format!("is {size} bytes long, more than any checkpoint"));
    }
    let mut bytes = vec![0; usize::try_from(size).map_err(|error| error.to_string())?];
    file.read_exact_at(&mut bytes, 0)
        .map_err(|error| format!("cannot be read: {error}"))?;
    let (header, start) = Header::decode(&bytes)?;
    let read = format::decode_records(&bytes, start);
    Ok(Some(Loaded {
        file,
        header,
        records: read.records,
        end: length(bytes.get(..read.end).unwrap_or(&bytes)),
        chain: read.chain,
        torn: read.torn,
    }))
}
