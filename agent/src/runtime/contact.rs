//! The one file by which an agent tells all its shims when it last heard from a leader.
//!
//! One write for each word of a leader, however many runs there are; a shim reads it when its run's
//! time would be over, so about once in that time. It lies beside the runs, on a file system that
//! does not outlive the boot; where that is a disk after all, the boot's id says what it is worth.

use std::ffi::OsStr;
use std::io;
use std::path::{Path, PathBuf};

use mete_proto::internal::v1::ContactRecord;
use rustix::time::{ClockId, clock_gettime};

use super::records::RunDirectory;
use crate::contact::BootTime;

const NAME: &str = "contact";

/// The file of one agent.
#[derive(Debug, Clone)]
pub struct ContactFile {
    directory: RunDirectory,
    boot_id: String,
}

impl ContactFile {
    /// Below the directory of the agent's runs.
    #[must_use]
    pub fn below(run_directory: &Path, boot_id: String) -> Self {
        Self {
            directory: RunDirectory::at(run_directory),
            boot_id,
        }
    }

    /// The file at `path`, as a shim was told of it.
    #[must_use]
    pub fn at(path: &Path, boot_id: String) -> Option<Self> {
        let named = path.file_name() == Some(OsStr::new(NAME));
        let directory = path.parent().filter(|_| named)?;
        Some(Self::below(directory, boot_id))
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        self.directory.path().join(NAME)
    }

    /// A leader was heard.
    ///
    /// # Errors
    /// It cannot be written: runs go by what it said before.
    pub fn write(&self, at: BootTime) -> io::Result<()> {
        let record = ContactRecord {
            version: 1,
            boot_id: self.boot_id.clone(),
            heard_ms: at.0,
        };
        self.directory.write(NAME, &record)
    }

    /// When a leader was last heard in this boot; `None` = nobody has said so.
    #[must_use]
    pub fn read(&self) -> Option<BootTime> {
        let record: ContactRecord = self.directory.read(NAME).ok()?;
        let heard = BootTime(record.heard_ms);
        // One of another boot, or from the future, is no word.
        (record.boot_id == self.boot_id && heard <= now()).then_some(heard)
    }
}

/// The clock that goes on while the machine sleeps.
#[must_use]
pub fn now() -> BootTime {
    let time = clock_gettime(ClockId::Boottime);
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    let millis = u64::try_from(time.tv_nsec / 1_000_000).unwrap_or(0);
    BootTime(seconds.saturating_mul(1000).saturating_add(millis))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_written_in_this_boot_is_read_and_nothing_else() {
        let home = tempfile::tempdir().expect("a directory");
        let file = ContactFile::below(home.path(), "b1".to_owned());
        assert_eq!(file.read(), None, "nothing was written");

        let at = now();
        file.write(at).expect("room");
        let told = ContactFile::at(&file.path(), "b1".to_owned()).expect("its own path");
        assert_eq!(told.read(), Some(at));
        let booted = ContactFile::below(home.path(), "b2".to_owned());
        assert_eq!(booted.read(), None, "of an earlier boot");

        file.write(BootTime(at.0 + 3_600_000)).expect("room");
        assert_eq!(file.read(), None, "from the future");
        std::fs::write(file.path(), b"\xff\xff").expect("room");
        assert_eq!(file.read(), None, "damaged");
        assert!(ContactFile::at(Path::new("/tmp/other"), String::new()).is_none());
    }
}
