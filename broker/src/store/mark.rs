//! How far the log was flushed, kept outside of it.
//!
//! The engine takes damage inside its newest segment for an unfinished write and quietly drops
//! everything behind it: inside the log nothing tells the two apart. So the write sequence of the
//! newest flushed record is noted here after every flush. The note itself is not synced and need
//! not be: it is written only after a flush returned, so whatever of it survives is true, and a log
//! that ends before it has lost something.
//!
//! ```text
//! FLUSHED  two slots, written in turn: sequence u64, CRC32C
//! ```

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use crate::store::{Fault, OpenError};

/// The file's name in the store's directory.
pub(super) const NAME: &str = "FLUSHED";
const SLOT_BYTES: usize = 12;
/// Slots in sectors of their own: a torn write of one leaves the other alone.
const SLOT_STRIDE: u64 = 512;

/// The open note.
#[derive(Debug)]
pub(super) struct Mark {
    file: File,
    path: PathBuf,
    newest: u64,
    slot: u64,
}

impl Mark {
    /// Opens the note, or makes an empty one. `newest` says what it holds.
    pub(super) fn open(dir: &Path) -> Result<Self, OpenError> {
        let path = dir.join(NAME);
        let newest = read(&path).map_err(OpenError::io("read", &path))?;
        let opened = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .open(&path);
        let file = opened.map_err(OpenError::io("open", &path))?;
        Ok(Self {
            file,
            path,
            newest,
            slot: 0,
        })
    }

    /// The newest sequence that was noted as flushed; 0 if none.
    pub(super) fn newest(&self) -> u64 {
        self.newest
    }

    /// Notes that the record with this sequence, and all before it, are flushed.
    pub(super) fn note(&mut self, sequence: u64) -> Result<(), Fault> {
        if sequence == self.newest {
            return Ok(());
        }
        let sealed = seal(sequence);
        let written = self.file.write_all_at(&sealed, self.slot * SLOT_STRIDE);
        written.map_err(Fault::io("write", &self.path))?;
        self.newest = sequence;
        self.slot = 1 - self.slot;
        Ok(())
    }
}

fn seal(sequence: u64) -> Vec<u8> {
    let bytes = sequence.to_le_bytes();
    [bytes.as_slice(), &crc32c::crc32c(&bytes).to_le_bytes()].concat()
}

fn read(path: &Path) -> io::Result<u64> {
    let bytes = match fs::read(path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(0),
        Err(error) => return Err(error),
    };
    // Slots begin at multiples of the stride; a damaged one counts for nothing.
    let slots = bytes.chunks(512).filter_map(|slot| slot.get(..SLOT_BYTES));
    let sequence = |slot: &[u8]| {
        let sequence = u64::from_le_bytes(*slot.first_chunk()?);
        (seal(sequence) == slot).then_some(sequence)
    };
    Ok(slots.filter_map(sequence).max().unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_note_is_read_again_and_a_torn_one_falls_back_to_the_one_before() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let mut mark = Mark::open(dir.path()).expect("a fresh one");
        assert_eq!(mark.newest(), 0);
        for sequence in [7, 8, 9] {
            mark.note(sequence).expect("room");
        }
        assert_eq!(Mark::open(dir.path()).expect("it is there").newest(), 9);

        // The third note went into the first slot again.
        mark.file.write_all_at(b"torn", 0).expect("room");
        assert_eq!(Mark::open(dir.path()).expect("it is there").newest(), 8);
    }
}
