//! Commands and the state as stored bytes.
//!
//! Called by the loop: a command becomes an entry of the log, a committed entry becomes a command
//! again, the state becomes a snapshot and back. What is written here by one release is read by
//! every later one (`tests/corpus`): messages are additive, and a `format` number rises where an
//! older release could misread what is new. Damaged bytes are a typed error, never a panic.
//!
//! Checksums, files and the order of records are not known here.

pub mod command;
mod launch;
mod read;
mod settings;
pub mod snapshot;
mod snapshot_read;
mod snapshot_write;
mod status;
mod verdict;

use mete_proto::convert::Faults;

pub use command::{decode_command, encode_command};
pub use snapshot::{PartsReader, SnapshotError, write_parts};

/// The format of commands that this release writes, and the highest it reads.
pub const COMMAND_FORMAT: u32 = 1;

/// The format of snapshots that this release writes, and the highest it reads.
pub const SNAPSHOT_FORMAT: u32 = 1;

/// Why stored bytes cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum FormatError {
    /// Not a message of ours: damaged or foreign.
    #[error("stored {what} of {size} bytes is damaged: {source}")]
    Damaged {
        /// What was read.
        what: &'static str,
        /// How long it is.
        size: usize,
        /// Where reading stopped.
        source: prost::DecodeError,
    },
    /// Written by a newer release.
    #[error(
        "stored {what} has format {found}, this release reads formats 1 to {known}; \
         start the release that wrote it, or a later one"
    )]
    Newer {
        /// What was read.
        what: &'static str,
        /// The format of the bytes.
        found: u32,
        /// The highest that this release reads.
        known: u32,
    },
    /// A message of ours whose content makes no sense.
    #[error("stored {what} makes no sense: {faults}")]
    Meaningless {
        /// What was read.
        what: &'static str,
        /// Every field that is wrong.
        faults: Faults,
    },
}

fn check_format(what: &'static str, found: u32, known: u32) -> Result<(), FormatError> {
    if found == 0 || found > known {
        return Err(FormatError::Newer { what, found, known });
    }
    Ok(())
}
