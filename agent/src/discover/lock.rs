//! One agent for each state directory: a lock that the kernel drops when its holder dies.

use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

/// Held for as long as the agent lives.
#[derive(Debug)]
pub struct DirectoryLock {
    _file: File,
    path: PathBuf,
}

/// Why a directory could not be locked.
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    /// Another live process has it.
    #[error(
        "{directory} belongs to a running {holder}; stop that one first, or give this agent its \
         own --state-dir"
    )]
    Held {
        /// Which.
        directory: PathBuf,
        /// "mete agent (process 4711)" as far as known.
        holder: String,
    },
    /// The lock file cannot be used.
    #[error("lock {path}: {source}; it must be on a local file system that this user may write")]
    Io {
        /// Which file.
        path: PathBuf,
        /// What the kernel said.
        #[source]
        source: std::io::Error,
    },
}

impl DirectoryLock {
    /// Locks `directory`, which must exist. `who` is what another process is told about us.
    ///
    /// # Errors
    /// Another process holds it, or the lock file cannot be made.
    pub fn take(directory: &Path, who: &str) -> Result<Self, LockError> {
        let path = directory.join("lock");
        let failed = |source| LockError::Io {
            path: path.clone(),
            source,
        };
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o644)
            .open(&path)
            .map_err(failed)?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => {
                let mut holder = String::new();
                let _unknown = (&file).take(200).read_to_string(&mut holder);
                let holder = match holder.trim() {
                    "" => "process".to_owned(),
                    known => known.to_owned(),
                };
                return Err(LockError::Held {
                    directory: directory.to_owned(),
                    holder,
                });
            }
            Err(errno) => return Err(failed(errno.into())),
        }
        // Only for the message above: a full disk must not keep an agent from starting.
        let told = file
            .set_len(0)
            .and_then(|()| file.rewind())
            .and_then(|()| writeln!(file, "{who} (process {})", std::process::id()));
        if let Err(error) = told {
            tracing::warn!(path = %path.display(), %error, "lock holder not written down");
        }
        Ok(Self { _file: file, path })
    }

    /// The lock file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_agent_on_a_state_directory_is_told_who_has_it() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let first = DirectoryLock::take(directory.path(), "mete agent").expect("nobody has it");

        let second = DirectoryLock::take(directory.path(), "mete agent");

        let text = second.expect_err("held by the first").to_string();
        assert!(text.contains("mete agent (process "), "{text}");
        assert!(text.contains("--state-dir"), "{text}");
        drop(first);
        DirectoryLock::take(directory.path(), "mete agent").expect("free again");
    }

    #[test]
    fn a_directory_that_is_not_there_is_an_error_with_its_path() {
        let error = DirectoryLock::take(Path::new("/nonexistent/mete"), "mete agent");

        let text = error.expect_err("no such directory").to_string();
        assert!(text.contains("/nonexistent/mete/lock"), "{text}");
    }
}
