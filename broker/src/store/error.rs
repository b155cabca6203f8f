//! The two families of errors of this room: why a store was not opened, and why it failed later.
//!
//! Both are for people: each says what was tried, the facts, and what to do.

use std::io;
use std::path::{Path, PathBuf};

use thiserror::Error;

use crate::store::mark;

/// Why a store was not opened. The process ends with this sentence; nothing was changed on disk.
#[derive(Debug, Error)]
pub enum OpenError {
    /// The directory does not exist and was not to be made.
    #[error(
        "open the store in {dir}: there is none; found a cluster there first, or name the \
         directory that holds it"
    )]
    Missing {
        /// The store's directory.
        dir: PathBuf,
    },
    /// The directory holds something else.
    #[error(
        "open the store in {dir}: it is not a mete store (found {found:?}); name another \
         directory, or move that file away if it does not belong there"
    )]
    Foreign {
        /// The store's directory.
        dir: PathBuf,
        /// The first thing in it that a store does not have.
        found: String,
    },
    /// A store is there already, but the caller wanted a new one.
    #[error(
        "found a new cluster in {dir}: a store of cluster {cluster}, node {node} is there already; \
         start it without founding, or name an empty directory"
    )]
    Exists {
        /// The store's directory.
        dir: PathBuf,
        /// The cluster it belongs to.
        cluster: String,
        /// Its node id.
        node: u64,
    },
    /// Another process has it open.
    #[error(
        "open the store in {dir}: another master holds it; stop that one first, or give this \
         master a directory of its own"
    )]
    Locked {
        /// The store's directory.
        dir: PathBuf,
    },
    /// The store belongs to another cluster or node than expected.
    #[error(
        "open the store in {dir}: it belongs to {found} but {expected} was expected; check the \
         directory and the configuration of this master"
    )]
    Identity {
        /// The store's directory.
        dir: PathBuf,
        /// What it is.
        found: String,
        /// What it should be.
        expected: String,
    },
    /// A release after this one wrote it.
    #[error(
        "open the store in {dir}: its format is version {found}, this release knows up to {known}; \
         start the release that wrote it, or a later one"
    )]
    Format {
        /// The store's directory.
        dir: PathBuf,
        /// Version found.
        found: u8,
        /// Newest version known here.
        known: u8,
    },
    /// What was flushed once cannot be read any more.
    #[error(
        "open the store in {dir}: it is damaged: {what} ({}); keep the directory as it is, nothing \
         in it was changed. One of several masters: with an empty directory, mete master init \
         --state-dir DIR --join ANOTHER --advertise OWN --replaces mN. A master that is alone: \
         start on a copy of the directory that was taken while the master was stopped",
        reach(*last_good)
    )]
    Damaged {
        /// The store's directory.
        dir: PathBuf,
        /// What does not hold, in words for those who run masters.
        what: String,
        /// The last index that could be read without a doubt, if that is known.
        last_good: Option<u64>,
        /// What the storage engine says of it, if it was the one that found it.
        #[source]
        detail: Option<Said>,
    },
    /// The note of how far the log was flushed is gone or cannot be read.
    #[error(
        "open the store in {dir}: {what}, so nobody can tell whether the end of the log is still \
         there (it can be read up to index {last}); put the file back, or decide: one of several \
         masters is replaced by a new one, with mete master init --replaces; of the only one, and \
         only if the disk is sound and nobody has lost anything else there, accept the log as it \
         is with: echo '{accept}' > {dir}/FLUSHED",
        accept = mark::ACCEPT
    )]
    NoMark {
        /// The store's directory.
        dir: PathBuf,
        /// What is the matter with the note.
        what: &'static str,
        /// The last index of the log; 0 if it is empty.
        last: u64,
    },
    /// Writes do not reach the disk on this build or system.
    #[error(
        "open the store in {dir}: a flushed write did not call for a sync of the disk, so nothing \
         stored here would survive a power cut; this build is broken, use an official one"
    )]
    NotDurable {
        /// The store's directory.
        dir: PathBuf,
    },
    /// The file system is full, even after the reserve was given up.
    #[error(
        "open the store in {dir}: the disk has {free_bytes} bytes free, {wanted_bytes} are needed \
         to start and compact; free some space there"
    )]
    DiskFull {
        /// The store's directory.
        dir: PathBuf,
        /// Free bytes.
        free_bytes: u64,
        /// Bytes wanted.
        wanted_bytes: u64,
    },
    /// The file system said no.
    #[error("{action} {path}; check that this user may read and write there")]
    Io {
        /// What was tried.
        action: &'static str,
        /// On which file.
        path: PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
}

/// What is stored speaks of a level of commands that this release does not know. It cannot tell
/// how to apply them, and applying them in its own way would part it from the other masters.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[error(
    "apply the cluster's log: its commands behave by level {level}, this release knows up to level \
     {known}, and nothing from there on was applied; start the release that this master or the \
     others ran before, or a later one"
)]
pub struct TooNew {
    /// The level found.
    pub level: u32,
    /// The highest level known here.
    pub known: u32,
}

/// The words of a part that this room did not write, kept for those who look further.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("the storage engine said: {0}")]
pub struct Said(pub String);

fn reach(last_good: Option<u64>) -> String {
    match last_good {
        Some(index) => format!("the log is good up to index {index}"),
        None => "how far the log is good is not known".to_owned(),
    }
}

impl OpenError {
    /// Damage of which nothing more is known.
    pub(super) fn damaged(dir: &Path, what: impl Into<String>) -> Self {
        Self::Damaged {
            dir: dir.to_owned(),
            what: what.into(),
            last_good: None,
            detail: None,
        }
    }

    /// Shortens the mapping of an I/O error.
    pub(super) fn io(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Io {
            action,
            path,
            source,
        }
    }
}

/// This machine's disk failed while running, or the log went beyond this release. Final: the caller
/// writes it down and aborts, since memory may disagree with the disk; the next start decides what
/// can be trusted.
#[derive(Debug, Error)]
pub enum Fault {
    /// Writing or reading failed.
    #[error("{action} {path}; this master ends now and checks its store at the next start")]
    Io {
        /// What was tried.
        action: &'static str,
        /// On which file.
        path: PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// The log's storage failed.
    #[error(
        "write the log in {dir}: {what}; this master ends now and checks its store at the next \
         start (free space there if the disk is full)"
    )]
    Log {
        /// The generation's directory.
        dir: PathBuf,
        /// What the storage said.
        what: String,
    },
    /// A snapshot does not hold what its manifest says.
    #[error(
        "read the snapshot {file}: {what}; this replica's disk cannot be trusted, restore it from \
         a saved snapshot or rejoin under a new node id"
    )]
    Snapshot {
        /// The file's name.
        file: String,
        /// What does not hold.
        what: String,
    },
    /// The cluster has gone on to what only a newer release knows.
    #[error(transparent)]
    TooNew(#[from] TooNew),
}

impl Fault {
    /// Shortens the mapping of an I/O error.
    pub(super) fn io(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Io {
            action,
            path,
            source,
        }
    }
}
