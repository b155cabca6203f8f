//! How far the log was flushed, kept outside of it.
//!
//! The engine takes damage inside its newest segment for an unfinished write and quietly drops
//! everything behind it: inside the log nothing tells the two apart. So the write sequence of the
//! newest flushed record is noted here after every flush. The note itself is not synced and need
//! not be: it is written only after a flush returned, so whatever of it survives is true, and a log
//! that ends before it has lost something.
//!
//! That the note is *there* is certain: it is made with both slots written, and synced, while the
//! store is founded, and from then on one slot at a time is written in place. A power cut may take
//! a slot back or tear it, never both. A note that is missing or has no slot left was lost to
//! something else, and whatever took it may have taken the end of the log: the start is refused
//! until a person says, by [`ACCEPT`] in the file, that the log is to be taken as it is.
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
/// What a person writes into the file to have the log accepted as it is. No damage makes it.
pub(super) const ACCEPT: &str = "accept the log as it is";
/// Slots in sectors of their own, also where a sector has 4 KiB: a torn write of one leaves the
/// other alone.
const SLOT_STRIDE: u64 = 4096;
/// Where the second slot was before; read as long as the file is too short for the other place.
const FORMER_STRIDE: usize = 512;

/// What is in place of the note.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// The newest sequence that was noted as flushed.
    Noted(u64),
    /// A person's word instead of it.
    Accepted,
    /// No file.
    Missing,
    /// A file without a slot that holds.
    Damaged,
}

/// The open note.
#[derive(Debug)]
pub(super) struct Mark {
    file: File,
    path: PathBuf,
    newest: u64,
    slot: u64,
}

impl Mark {
    /// Makes the note, both slots written, and syncs it. Its name is durable once the directory is
    /// synced.
    pub(super) fn create(dir: &Path, sequence: u64) -> Result<Self, OpenError> {
        let path = dir.join(NAME);
        let file = File::create(&path).map_err(OpenError::io("create", &path))?;
        let sealed = seal(sequence);
        let written = [0, 1]
            .into_iter()
            .try_for_each(|slot| file.write_all_at(&sealed, slot * SLOT_STRIDE))
            .and_then(|()| file.sync_all());
        written.map_err(OpenError::io("write", &path))?;
        Ok(Self {
            file,
            path,
            newest: sequence,
            slot: 0,
        })
    }

    /// Opens the note. `newest` says what it holds; 0 if nothing, see [`look`].
    pub(super) fn open(dir: &Path) -> Result<Self, OpenError> {
        let path = dir.join(NAME);
        let bytes = fs::read(&path).map_err(OpenError::io("read", &path))?;
        let slots = slots(&bytes);
        let newest = slots.iter().flatten().max().copied().unwrap_or(0);
        // Never over the only slot that holds.
        let slot = u64::from(slots.first().copied().flatten() == Some(newest));
        let opened = OpenOptions::new().write(true).open(&path);
        let file = opened.map_err(OpenError::io("open", &path))?;
        Ok(Self {
            file,
            path,
            newest,
            slot,
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

/// Says what is in place of the note.
pub(super) fn look(dir: &Path) -> Result<Found, OpenError> {
    let path = dir.join(NAME);
    let bytes = match fs::read(&path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Found::Missing),
        Err(error) => return Err(OpenError::io("read", &path)(error)),
    };
    if bytes.trim_ascii() == ACCEPT.as_bytes() {
        return Ok(Found::Accepted);
    }
    let newest = slots(&bytes).into_iter().flatten().max();
    Ok(newest.map_or(Found::Damaged, Found::Noted))
}

/// What each slot holds; a damaged one holds nothing.
fn slots(bytes: &[u8]) -> Vec<Option<u64>> {
    let sequence = |slot: &[u8]| {
        let slot = slot.get(..SLOT_BYTES)?;
        let sequence = u64::from_le_bytes(*slot.first_chunk()?);
        (seal(sequence) == slot).then_some(sequence)
    };
    let second = usize::try_from(SLOT_STRIDE).unwrap_or(usize::MAX);
    let second = if bytes.len() > second {
        second
    } else {
        FORMER_STRIDE
    };
    let slots = [bytes, bytes.get(second..).unwrap_or_default()];
    slots.map(sequence).to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_note_is_read_again_and_a_torn_one_falls_back_to_the_one_before() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let mut mark = Mark::create(dir.path(), 0).expect("room");
        assert_eq!(look(dir.path()).expect("it is there"), Found::Noted(0));
        for sequence in [7, 8, 9] {
            mark.note(sequence).expect("room");
        }
        assert_eq!(Mark::open(dir.path()).expect("it is there").newest(), 9);

        // The third note went into the first slot again.
        mark.file.write_all_at(b"torn", 0).expect("room");
        assert_eq!(Mark::open(dir.path()).expect("it is there").newest(), 8);
    }

    #[test]
    fn the_slot_that_holds_is_never_the_one_that_is_written() {
        for torn in [0, SLOT_STRIDE] {
            let dir = tempfile::tempdir().expect("a temporary directory");
            let mut mark = Mark::create(dir.path(), 7).expect("room");
            mark.note(8).expect("room");
            // All of a sector of 4 KiB.
            mark.file.write_all_at(&[0xff; 4096], torn).expect("room");
            let mut mark = Mark::open(dir.path()).expect("it is there");
            let before = mark.newest();
            mark.note(9).expect("room");
            // As if that write had been torn too.
            let slots = slots(&fs::read(dir.path().join(NAME)).expect("it is there"));
            assert_eq!(slots.iter().flatten().min(), Some(&before), "{slots:?}");
        }
    }

    #[test]
    fn a_note_with_its_slots_where_they_were_before_is_read_and_goes_on() {
        for (first, second) in [(7, 8), (9, 8)] {
            let dir = tempfile::tempdir().expect("a temporary directory");
            let mut former = seal(first);
            former.resize(FORMER_STRIDE, 0);
            former.extend(seal(second));
            fs::write(dir.path().join(NAME), former).expect("room");
            let newest = first.max(second);
            assert_eq!(look(dir.path()).expect("it is there"), Found::Noted(newest));
            let mut mark = Mark::open(dir.path()).expect("it is there");
            for sequence in 10..14 {
                mark.note(sequence).expect("room");
                let noted = Found::Noted(sequence);
                assert_eq!(look(dir.path()).expect("it is there"), noted);
            }
        }
    }

    #[test]
    fn a_note_that_is_gone_or_holds_nothing_is_told_apart_from_one_of_zero() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let look = || look(dir.path()).expect("readable");
        assert_eq!(look(), Found::Missing);
        for damaged in [[].as_slice(), &[0; 600], b"accept", &[0xff; 12]] {
            fs::write(dir.path().join(NAME), damaged).expect("room");
            assert_eq!(look(), Found::Damaged, "{damaged:?}");
        }
        fs::write(dir.path().join(NAME), format!("{ACCEPT}\n")).expect("room");
        assert_eq!(look(), Found::Accepted);
        Mark::create(dir.path(), 12).expect("room");
        assert_eq!(look(), Found::Noted(12));
    }
}
