//! The few file operations that control groups need, so that a test can record, refuse or lose
//! them.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use super::IsolateError;

/// What is done to the kernel's cgroup files.
pub trait CgroupFiles: std::fmt::Debug + Send + Sync {
    /// The whole content.
    ///
    /// # Errors
    /// As the kernel says.
    fn read(&self, path: &Path) -> io::Result<String>;

    /// Writes `value` in one call; the file is never made.
    ///
    /// # Errors
    /// As the kernel says.
    fn write(&self, path: &Path, value: &str) -> io::Result<()>;

    /// Makes one directory.
    ///
    /// # Errors
    /// As the kernel says; `AlreadyExists` included.
    fn make_directory(&self, path: &Path) -> io::Result<()>;

    /// Removes one empty directory.
    ///
    /// # Errors
    /// As the kernel says.
    fn remove_directory(&self, path: &Path) -> io::Result<()>;
}

/// The kernel's own.
#[derive(Debug, Clone, Copy, Default)]
pub struct KernelFiles;

impl CgroupFiles for KernelFiles {
    fn read(&self, path: &Path) -> io::Result<String> {
        std::fs::read_to_string(path)
    }

    fn write(&self, path: &Path, value: &str) -> io::Result<()> {
        // One write call: the kernel parses each on its own.
        std::fs::OpenOptions::new()
            .write(true)
            .open(path)?
            .write_all(value.as_bytes())
    }

    fn make_directory(&self, path: &Path) -> io::Result<()> {
        std::fs::create_dir(path)
    }

    fn remove_directory(&self, path: &Path) -> io::Result<()> {
        std::fs::remove_dir(path)
    }
}

fn error(what: impl Into<String>, path: &Path, source: io::Error) -> IsolateError {
    IsolateError::Io {
        what: what.into(),
        path: path.to_owned(),
        source,
    }
}

/// Reads with the path in the error.
pub(super) fn read(files: &dyn CgroupFiles, path: &Path) -> Result<String, IsolateError> {
    files
        .read(path)
        .map_err(|source| error("read", path, source))
}

/// Writes with the path and value in the error.
pub(super) fn write(files: &dyn CgroupFiles, path: &Path, value: &str) -> Result<(), IsolateError> {
    files
        .write(path, value)
        .map_err(|source| error(format!("write {value:?} to"), path, source))
}

/// Makes a directory unless it is there; says whether it was made.
pub(super) fn make(files: &dyn CgroupFiles, path: &Path) -> Result<bool, IsolateError> {
    match files.make_directory(path) {
        Ok(()) => Ok(true),
        Err(found) if found.kind() == io::ErrorKind::AlreadyExists => Ok(false),
        Err(source) => Err(error("make", path, source)),
    }
}

/// Removes a directory unless it is gone already.
pub(super) fn remove(files: &dyn CgroupFiles, path: &Path) -> Result<(), IsolateError> {
    match files.remove_directory(path) {
        Ok(()) => Ok(()),
        Err(found) if found.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(source) => Err(error("remove", path, source)),
    }
}

/// Proves that this user may make groups in `directory`: that it is there says nothing, since
/// another user may have made it.
pub(super) fn prove(files: &dyn CgroupFiles, directory: &Path) -> Result<(), IsolateError> {
    let child = directory.join(format!("probe-{}", std::process::id()));
    make(files, &child)?;
    remove(files, &child)
}

/// Removes the group directory above a leaf when no other leaf is in it.
pub(super) fn remove_group(files: &dyn CgroupFiles, leaf: &Path) {
    if let Some(group) = leaf.parent() {
        // Another leaf in it makes this fail, and then it must.
        let _kept = files.remove_directory(group);
    }
}

/// The number behind `key` in a file of "key number" lines.
pub(super) fn keyed(content: &str, key: &str) -> Option<u64> {
    content.lines().find_map(|line| {
        let (name, value) = line.split_once(' ')?;
        (name == key).then(|| value.trim().parse().ok())?
    })
}

/// The process ids in a `cgroup.procs` file.
pub(super) fn pids(content: &str) -> Vec<u32> {
    content
        .lines()
        .filter_map(|line| line.trim().parse().ok())
        .collect()
}

/// The directories from `base` down to `base/first/second/…`, `base` not included.
pub(super) fn path_down(base: &Path, names: &[&str]) -> Vec<PathBuf> {
    let mut at = base.to_owned();
    names
        .iter()
        .map(|name| {
            at.push(name);
            at.clone()
        })
        .collect()
}
