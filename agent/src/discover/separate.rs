//! A runtime directory of its own: for agents that are not to meet the others of this machine, such
//! as those of one dev cluster.
//!
//! It is `<home>/run`, or, where that would be on a disk, a place in memory that `<home>/run` links
//! to. The link is made first and names a place that nobody else can have: what is there is always
//! found again from `home`, and never by another.

use std::io::{self, ErrorKind};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use uuid::Uuid;

use super::part::{is_in_memory, private_directory, private_memory};

/// Beginning of the name of every such place in memory.
const NAME: &str = "separate-";

/// The runtime directory of the agents whose states are in `home`: found, or chosen and made.
///
/// # Errors
/// It cannot be made or is not this user's alone.
pub fn runtime_directory_of(home: &Path) -> io::Result<PathBuf> {
    let usual = home.join("run");
    match std::fs::symlink_metadata(&usual) {
        Ok(found) if found.is_symlink() => {
            let place = linked(&usual).ok_or_else(|| {
                let text = "links to a place that is not one of this user's for it";
                io::Error::new(ErrorKind::PermissionDenied, text)
            })?;
            // Empty after a boot.
            private_directory(&place)?;
            return Ok(place);
        }
        // What is there already from an earlier process is never left for another place.
        Ok(_) => return Ok(usual),
        Err(error) if error.kind() == ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    let Some(memory) = private_memory().filter(|_| !is_in_memory(home)) else {
        return Ok(usual);
    };
    let place = memory.join(format!("{NAME}{}", Uuid::new_v4().simple()));
    if symlink(&place, &usual).is_err() {
        // Not every file system has links.
        return Ok(usual);
    }
    private_directory(&place)?;
    Ok(place)
}

/// Removes the place in memory that belongs to `home`, if there is one. What is in `home` itself
/// stays.
///
/// # Errors
/// Something in it cannot be removed.
pub fn remove_runtime_directory_of(home: &Path) -> io::Result<()> {
    let Some(place) = linked(&home.join("run")) else {
        return Ok(());
    };
    match std::fs::remove_dir_all(&place) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
        Ok(()) | Err(_) => Ok(()),
    }
}

/// Where a link leads, if that is a place of the kind that is made here.
fn linked(link: &Path) -> Option<PathBuf> {
    let place = std::fs::read_link(link).ok()?;
    let named = place.file_name()?.to_str()?.starts_with(NAME);
    let ours = place.parent() == Some(private_memory()?.as_path());
    (named && ours).then_some(place)
}
