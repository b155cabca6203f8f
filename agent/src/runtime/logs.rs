//! Reads what a task wrote: the last lines, what came since a time, and what still comes.
//!
//! One [`LogReader`] walks the files `log.4 … log.1 log` of one run from old to new. It knows its
//! place by (device, inode, offset), so a rotation in between loses nothing and repeats nothing,
//! also when the reader is made anew from a [`Position`]. It never blocks: at the end
//! [`LogReader::read`] gives an empty batch, and whoever follows asks again a little later.

use std::fs::{File, Metadata};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

pub mod line;

pub use self::line::{LogLine, Stream};

/// Name of the file that is written to; older ones have a number behind it.
pub const CURRENT: &str = "log";
/// No task keeps more files.
pub const MOST_FILES: u32 = 100;
/// Read at a time.
const PIECE: usize = 64 << 10;
/// No line is longer: 16 KiB of content and a head.
const LONGEST_LINE: usize = 20 << 10;

/// The `number`th oldest file of a log: 0 is the one written to.
#[must_use]
pub fn file_path(directory: &Path, number: u32) -> PathBuf {
    if number == 0 {
        directory.join(CURRENT)
    } else {
        directory.join(format!("{CURRENT}.{number}"))
    }
}

/// A place in a log that survives rotation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Position {
    /// Of the file.
    pub device: u64,
    /// Of the file.
    pub inode: u64,
    /// Bytes from its beginning.
    pub offset: u64,
}

/// Where to begin.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Begin {
    /// Only the last lines, this many; none: from the oldest kept.
    pub tail: Option<usize>,
    /// Only lines written at or after this time, Unix nanoseconds.
    pub since_ns: Option<u64>,
}

/// Reads one run's log.
#[derive(Debug)]
pub struct LogReader {
    directory: PathBuf,
    at: Option<Open>,
    since_ns: Option<u64>,
    /// Lines to pass over before the first one is given.
    skip: usize,
}

#[derive(Debug)]
struct Open {
    file: File,
    device: u64,
    inode: u64,
    offset: u64,
}

impl Open {
    fn new(path: &Path, offset: u64) -> io::Result<Self> {
        let file = File::open(path)?;
        let found = file.metadata()?;
        Ok(Self {
            file,
            device: found.dev(),
            inode: found.ino(),
            offset,
        })
    }

    fn is(&self, found: &Metadata) -> bool {
        self.device == found.dev() && self.inode == found.ino()
    }
}

impl LogReader {
    /// Begins in `directory`, which may still be empty.
    ///
    /// # Errors
    /// A file is there and cannot be read.
    pub fn open(directory: &Path, begin: Begin) -> io::Result<Self> {
        let mut reader = Self {
            directory: directory.to_owned(),
            at: None,
            since_ns: begin.since_ns,
            skip: 0,
        };
        if let Some(wanted) = begin.tail {
            // Counted first, then passed over: the files are bounded and this needs no memory.
            let mut lines = 0_usize;
            loop {
                let batch = reader.read()?;
                if batch.is_empty() {
                    break;
                }
                // A line split into parts counts once, at its last part.
                lines += batch.iter().filter(|line| line.whole).count();
            }
            reader.at = None;
            reader.skip = lines.saturating_sub(wanted);
            if wanted == 0 {
                reader.skip = lines;
            }
        }
        Ok(reader)
    }

    /// Goes on where another reader was; from the oldest kept file if that place is gone.
    ///
    /// # Errors
    /// A file is there and cannot be read.
    pub fn resume(directory: &Path, from: Position) -> io::Result<Self> {
        let mut reader = Self {
            directory: directory.to_owned(),
            at: None,
            since_ns: None,
            skip: 0,
        };
        for number in 0..=MOST_FILES {
            let path = file_path(directory, number);
            match Open::new(&path, from.offset) {
                Ok(mut open) if open.device == from.device && open.inode == from.inode => {
                    if open.file.metadata()?.len() < from.offset {
                        // Another file that got the number of one that is gone.
                        open.offset = 0;
                    }
                    reader.at = Some(open);
                    break;
                }
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::NotFound && number > 0 => break,
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
        Ok(reader)
    }

    /// Behind the last line given.
    #[must_use]
    pub fn position(&self) -> Option<Position> {
        let at = self.at.as_ref()?;
        Some(Position {
            device: at.device,
            inode: at.inode,
            offset: at.offset,
        })
    }

    /// The next lines, some 64 KiB of them; empty when there are none now.
    ///
    /// # Errors
    /// The file system refuses.
    pub fn read(&mut self) -> io::Result<Vec<LogLine>> {
        loop {
            let lines = self.read_piece()?;
            let Some(lines) = lines else {
                return Ok(Vec::new());
            };
            let wanted: Vec<LogLine> = lines.into_iter().filter(|line| self.wants(line)).collect();
            if !wanted.is_empty() {
                return Ok(wanted);
            }
        }
    }

    fn wants(&mut self, line: &LogLine) -> bool {
        if self.since_ns.is_some_and(|since| line.at_ns < since) {
            return false;
        }
        if self.skip > 0 {
            if line.whole {
                self.skip -= 1;
            }
            return false;
        }
        true
    }

    /// Whole lines from the present file, or from the next; `None` at the end of all.
    fn read_piece(&mut self) -> io::Result<Option<Vec<LogLine>>> {
        if self.at.is_none() {
            self.at = self.oldest()?;
        }
        // Bounded: each turn either reads or moves one file on.
        for _ in 0..=MOST_FILES {
            // Asked before reading: what is written between the two is then read, not skipped.
            let newer = self.newer()?;
            let Some(at) = &mut self.at else {
                return Ok(None);
            };
            let mut bytes = vec![0; PIECE];
            let read = at.file.read_at(&mut bytes, at.offset)?;
            bytes.truncate(read);
            let (lines, used) = line::parse_lines(&bytes);
            if used > 0 {
                at.offset += u64::try_from(used).map_err(io::Error::other)?;
                return Ok(Some(lines));
            }
            if bytes.len() >= LONGEST_LINE {
                // Not a log line of ours: pass over what can never become one.
                at.offset += u64::try_from(bytes.len()).map_err(io::Error::other)?;
                return Ok(Some(Vec::new()));
            }
            match newer {
                // A file that is not written to any more ends here; a torn rest stays unread.
                Some(next) => self.at = Some(next),
                None => return Ok(None),
            }
        }
        Ok(None)
    }

    fn oldest(&self) -> io::Result<Option<Open>> {
        let mut found = None;
        for number in 0..=MOST_FILES {
            match Open::new(&file_path(&self.directory, number), 0) {
                Ok(open) => found = Some(open),
                // Between two renames of a rotation `log` is missing for a moment.
                Err(error) if error.kind() == io::ErrorKind::NotFound && number == 0 => {}
                Err(error) if error.kind() == io::ErrorKind::NotFound => break,
                Err(error) => return Err(error),
            }
        }
        Ok(found)
    }

    /// The file after the present one, if the present one is not the newest.
    fn newer(&self) -> io::Result<Option<Open>> {
        let Some(at) = &self.at else { return Ok(None) };
        let mut before: Option<u32> = None;
        for number in 0..=MOST_FILES {
            match std::fs::metadata(file_path(&self.directory, number)) {
                Ok(found) if at.is(&found) => {
                    return match before {
                        Some(newer) => self.open_if_there(newer),
                        None => Ok(None),
                    };
                }
                Ok(_) => before = Some(number),
                Err(error) if error.kind() == io::ErrorKind::NotFound && number == 0 => {}
                Err(error) if error.kind() == io::ErrorKind::NotFound => break,
                Err(error) => return Err(error),
            }
        }
        // Rotated out of existence: what follows is the oldest that is left.
        self.oldest()
    }

    fn open_if_there(&self, number: u32) -> io::Result<Option<Open>> {
        match Open::new(&file_path(&self.directory, number), 0) {
            Ok(open) => Ok(Some(open)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }
}

#[cfg(test)]
mod tests;
