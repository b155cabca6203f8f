//! Where a replica's log, votes, meta and snapshots live.
//!
//! The replica calls this room and nobody else does. It promises that what [`LogStore::append`]
//! returned for survives a power cut, and that what cannot be trusted any more is refused at the
//! start with a sentence instead of being served. It does not know what an entry means, and it does
//! not know a protocol: entries and hard state are plain records here.
//!
//! One replica's store on disk:
//!
//! ```text
//! CURRENT          name of the live generation; replaced by rename
//! gen-000007/      the log and everything about this replica
//! snap-...         one snapshot of the machine, checksummed
//! FLUSHED          how far the log was flushed
//! RESERVE          preallocated room, given up when the disk is full
//! LOCK             held by the process that uses it
//! ```
//!
//! [`chunk`], [`plan`] and [`load`] are pure: the form of a record, which records one append
//! writes and removes, and what a set of records means when it is read again. [`SledStore`],
//! [`MemoryStore`] and [`SegmentStore`] share the trait; the first two share the records too.
//!
//! What it deliberately does not do: it has no background thread of its own, it never retries a
//! failed sync, and it never reads the disk for an entry after the start.

pub mod chunk;
#[cfg(test)]
mod contract;
mod error;
pub mod guard;
pub mod layout;
pub mod load;
mod mark;
mod memory_store;
pub mod plan;
mod record_log;
mod segment_store;
mod sled_store;
mod snapshot_file;
mod start_copy;
mod sync_file_range;

pub use error::{Fault, OpenError, Said, TooNew};
pub use memory_store::{FaultPlan, MemoryDisk, MemoryStore};
pub use segment_store::SegmentStore;
pub use sled_store::{Settings, SledStore};
pub use snapshot_file::{FileWriter, SnapshotReader, inspect};
pub use sync_file_range::{sync_is_interposed, syncs};

/// Sixteen bytes that all replicas of one cluster share and no two clusters do.
pub type ClusterId = [u8; 16];

/// One place in the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Position, counted from 1 without gaps.
    pub index: u64,
    /// Term of the leader that proposed it.
    pub term: u64,
    /// What its bytes are for.
    pub kind: EntryKind,
    /// The content; may be empty.
    pub data: Vec<u8>,
}

/// What an entry's bytes are for. The store only keeps it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EntryKind {
    /// A command of the machine, or nothing.
    Command,
    /// A change of the membership in the older, single form.
    Change,
    /// A change of the membership.
    ChangeV2,
}

/// What a replica must never forget about elections, plus how far it knows the log to be committed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct HardState {
    /// The newest term it has seen.
    pub term: u64,
    /// Whom it voted for in that term; 0 = nobody.
    pub vote: u64,
    /// The highest index known to be committed. May lag behind after a restart.
    pub commit: u64,
}

/// An applied index with the membership that holds there. The two belong to one index, always.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Applied {
    /// The index.
    pub index: u64,
    /// The term of the entry at that index.
    pub term: u64,
    /// The membership at that index, encoded by the replica.
    pub membership: Vec<u8>,
}

/// Who this replica is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Identity {
    /// The cluster it belongs to.
    pub cluster: ClusterId,
    /// Its node id; never used again after a lost disk.
    pub node: u64,
    /// How often this store was opened: a second life of the same store is told apart by it.
    pub incarnation: u64,
}

/// The live snapshot, as the log's own records name it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Manifest {
    /// The file's name inside the store's directory.
    pub file: String,
    /// Index, term and membership that the snapshot holds.
    pub at: Applied,
    /// Length of the content in bytes, frames not counted.
    pub bytes: u64,
    /// Digest of the machine, as the machine computed it.
    pub digest: u64,
}

/// Where a snapshot comes from. The two never share a file, though they may share an index.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// This replica's own machine.
    Made,
    /// The leader.
    Received,
}

/// Everything a store knows at the start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Loaded {
    /// Who this replica is; the incarnation is the one of this start.
    pub identity: Identity,
    /// The newest hard state.
    pub hard: HardState,
    /// The newest applied index saved with its membership, if any.
    pub applied: Option<Applied>,
    /// The live snapshot; `None` only in a store that was never founded.
    pub manifest: Option<Manifest>,
    /// The log without gaps. Its first entry lies at or below the snapshot's index + 1.
    pub entries: Vec<Entry>,
    /// Set when an unfinished write was found at the end and cut off: the first index cut.
    pub cut_from: Option<u64>,
}

/// Log, hard state, meta and snapshot of one replica.
///
/// Any [`Fault`] is about this machine and final: the caller ends the process, since memory and
/// disk may disagree from then on. Contract errors (a gap in the log, an overwrite of what is
/// inside the snapshot) are bugs of the caller and panic.
pub trait LogStore: Send + std::fmt::Debug {
    /// Hands over what was found at the start. Called once.
    fn take_loaded(&mut self) -> Option<Loaded>;

    /// Writes `entries` and the present hard state; both are durable on return, with everything
    /// that was written lazily before.
    ///
    /// Entries from the first one's index on replace what was there. `entries` may be empty.
    ///
    /// # Errors
    /// [`Fault`] when the disk refuses. Nothing may be assumed then.
    fn append(&mut self, entries: &[Entry], hard: &HardState) -> Result<(), Fault>;

    /// Writes hard state and applied index in one record, durable with the next append.
    ///
    /// # Errors
    /// [`Fault`] when the disk refuses.
    fn save_applied(&mut self, hard: &HardState, applied: &Applied) -> Result<(), Fault>;

    /// Forgets entries below `first_kept`, as far as whole records allow; carried by the next
    /// append. The caller trims only below the live snapshot.
    ///
    /// # Errors
    /// [`Fault`] when the disk refuses.
    fn trim(&mut self, first_kept: u64) -> Result<(), Fault>;

    /// Begins a new snapshot. The writer may move to another thread.
    ///
    /// # Errors
    /// [`Fault`] when the file cannot be made.
    fn snapshot_writer(
        &self,
        at: &Applied,
        origin: Origin,
    ) -> Result<Box<dyn SnapshotWriter>, Fault>;

    /// Makes a finished snapshot of our own the live one and deletes the older file. Durable on
    /// return. The log stays.
    ///
    /// # Errors
    /// [`Fault`] when the disk refuses.
    fn publish_snapshot(&mut self, manifest: &Manifest) -> Result<(), Fault>;

    /// Makes a received snapshot the live one: the log is emptied, hard state and applied index
    /// move with it in one atomic write. Durable on return.
    ///
    /// # Errors
    /// [`Fault`] when the disk refuses.
    fn install_snapshot(&mut self, manifest: &Manifest, hard: &HardState) -> Result<(), Fault>;

    /// Deletes a finished snapshot that will not be used.
    ///
    /// # Errors
    /// [`Fault`] when the disk refuses.
    fn discard_snapshot(&mut self, manifest: &Manifest) -> Result<(), Fault>;

    /// Opens a snapshot for reading, piece by piece. May be read on another thread.
    ///
    /// # Errors
    /// [`Fault`] when the file is gone or its header does not fit the manifest.
    fn open_snapshot(&self, manifest: &Manifest) -> Result<Box<dyn SnapshotSource>, Fault>;

    /// True when the disk is so full that no new command should be taken. Cheap.
    fn space_low(&self) -> bool;

    /// Bytes that the log and the snapshot take on the disk now, without the reserve. Cheap: a
    /// handful of files is asked for its size.
    fn disk_bytes(&self) -> u64;

    /// Housekeeping after trims: gives space back when it is worth it. May take tens of
    /// milliseconds, rarely.
    ///
    /// # Errors
    /// [`Fault`] when the disk refuses.
    fn tidy(&mut self) -> Result<(), Fault>;

    /// Flushes what was written lazily and marks the log's end as flushed, before a graceful end.
    ///
    /// # Errors
    /// [`Fault`] when the disk refuses.
    fn close(&mut self) -> Result<(), Fault>;
}

/// Takes a snapshot's content slice by slice.
pub trait SnapshotWriter: Send + std::fmt::Debug + std::io::Write {
    /// Completes the file so that it survives a power cut under its final name.
    ///
    /// `digest` is the machine's digest; it goes into the footer.
    ///
    /// # Errors
    /// [`Fault`] when the disk refuses.
    fn finish(self: Box<Self>, digest: u64) -> Result<Manifest, Fault>;
}

/// Gives a snapshot's content back. `read` checks every checksum on its way and fails with
/// `InvalidData` at the first piece that does not hold; the end is reached only if the footer
/// holds.
pub trait SnapshotSource: Send + std::fmt::Debug + std::io::Read {}
