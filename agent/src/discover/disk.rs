//! The disk that holds the agent's state directory, and with it the work of its tasks.

use std::path::Path;

use super::{DiscoverError, Disk};

/// Size and free space of the file system that holds `directory`.
///
/// # Errors
/// The directory is not there or cannot be asked.
pub fn read(directory: &Path) -> Result<Disk, DiscoverError> {
    let found = rustix::fs::statvfs(directory).map_err(|errno| DiscoverError::Read {
        path: directory.to_owned(),
        kind: "state directory",
        source: errno.into(),
    })?;
    Ok(Disk {
        total_bytes: found.f_blocks.saturating_mul(found.f_frsize),
        available_bytes: found.f_bavail.saturating_mul(found.f_frsize),
    })
}
