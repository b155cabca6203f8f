//! What a replica drives: the replicated machine, seen as bytes in and outcomes out.
//!
//! The master's loop implements [`Machine`] over the real state; tests implement it over a map. The
//! replica never learns what a command means, so a change of commands never touches this room.

use std::io::{self, Read, Write};

use thiserror::Error;

use crate::store::TooNew;

/// The replicated machine behind a [`crate::replica::Replica`].
///
/// `apply` must give the same result on every replica from the same commands in the same order. A
/// deterministic no is an outcome, and a bug in it must end the process, since a replica that skips
/// a committed command is no replica any more. So must a command of a level that this release does
/// not know: that is the one way to fail.
pub trait Machine {
    /// What one applied command gives back; handed to whoever proposed it.
    type Outcome;
    /// A consistent copy of the machine, cheap to take and encoded on another thread.
    type Image: Image;

    /// Applies the command that was committed at `index` in `term`.
    ///
    /// # Errors
    /// [`TooNew`]: nothing was applied, and nothing after it may be.
    fn apply(&mut self, index: u64, term: u64, command: &[u8]) -> Result<Self::Outcome, TooNew>;

    /// Takes a consistent copy for a snapshot. Called on the loop's thread: keep it cheap.
    fn image(&self) -> Self::Image;

    /// Replaces the whole machine by what a snapshot holds. `source` ends where the snapshot ends.
    ///
    /// # Errors
    /// [`RestoreError`] if the bytes cannot be read as a snapshot; the machine may then be half
    /// changed and the caller must not go on with it.
    fn restore(&mut self, source: &mut dyn Read) -> Result<(), RestoreError>;

    /// A stable hash of the content: equal on all replicas that applied the same commands.
    fn digest(&self) -> u64;
}

/// A copy of the machine that can be written out somewhere else than on the loop's thread.
pub trait Image: Send + 'static {
    /// The machine's digest at the moment of the copy.
    fn digest(&self) -> u64;

    /// Writes the copy in the form that [`Machine::restore`] reads.
    ///
    /// # Errors
    /// Whatever `out` gives; an image has no errors of its own.
    fn write_to(&self, out: &mut dyn Write) -> io::Result<()>;
}

/// A snapshot's content cannot become a machine.
#[derive(Debug, Error)]
pub enum RestoreError {
    /// Reading the snapshot failed, or its checksums do not hold.
    #[error("read the snapshot's content")]
    Read(#[from] io::Error),
    /// It holds what only a newer release knows.
    #[error(transparent)]
    TooNew(#[from] TooNew),
    /// The bytes are whole but are not a machine of a version that this release knows.
    #[error("decode the snapshot's content: {0}")]
    Content(String),
    /// The machine that came out differs from the one that was written.
    #[error(
        "the restored machine has digest {found:016x} but the snapshot was written with \
         {written:016x}; the release that wrote it and this one disagree on its meaning"
    )]
    Digest {
        /// Digest in the snapshot's footer.
        written: u64,
        /// Digest of what was restored.
        found: u64,
    },
}
