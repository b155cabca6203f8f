//! What a dev cluster has left behind that was killed: found by the next one, ended and removed.
//!
//! A dev cluster without a state directory lives in a temporary directory of its own and holds the
//! lock in it for as long as it lives. A directory of this user whose lock is free is therefore
//! proven to be dead. Its tasks are ended by their shims, as their agent would have done it.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use mete_agent::discover::lock::DirectoryLock;
use mete_agent::discover::part::run_directories;
use mete_agent::discover::separate::{remove_runtime_directory_of, runtime_directory_of};
use mete_agent::discover::{Roots, discover};
use mete_agent::isolate::Isolation;
use mete_agent::runtime::process::{ProcessConfig, ProcessRuntime};
use mete_agent::runtime::{FoundRun, FoundState, Runtime, RuntimeEvent, Stop};
use mete_agent::shell::remove_groups;
use mete_model::Code;
use uuid::Uuid;

use crate::cli::support::error::{CliError, Outcome};

/// Beginning of the name of every such directory.
const NAME: &str = "mete-dev-";

/// What holds the lock is called.
const HOLDER: &str = "mete dev";

/// Longest time that the tasks of one directory are waited for.
const LONGEST: Duration = Duration::from_secs(10);

/// From SIGTERM to SIGKILL, in ms.
const GRACE_MS: u64 = 500;

/// A temporary directory that says by its lock that its cluster lives.
#[derive(Debug)]
pub struct Home {
    /// Where it is.
    pub path: PathBuf,
    _lock: DirectoryLock,
}

impl Home {
    /// Makes one. It gets its name once the lock is held: nobody ever finds it without an owner.
    ///
    /// # Errors
    /// `STATE_DIRECTORY`.
    pub fn make() -> Outcome<Self> {
        let id = Uuid::new_v4().simple();
        let folder = std::env::temp_dir();
        let (fresh, path) = (
            folder.join(format!(".{NAME}{id}")),
            folder.join(format!("{NAME}{id}")),
        );
        super::make_directory(&fresh)?;
        let failed = |error: &dyn std::fmt::Display| {
            let sentence = format!("the directory {} cannot be used: {error}", path.display());
            CliError::new(Code::StateDirectory, sentence)
        };
        let lock = DirectoryLock::take(&fresh, HOLDER).map_err(|error| failed(&error))?;
        std::fs::rename(&fresh, &path).map_err(|error| failed(&error))?;
        Ok(Self { path, _lock: lock })
    }

    /// Removes it, and what belongs to it elsewhere.
    ///
    /// # Errors
    /// Something in it cannot be removed.
    pub fn remove(&self) -> std::io::Result<()> {
        // First what is found from it alone.
        remove_runtime_directory_of(&self.path)?;
        std::fs::remove_dir_all(&self.path)
    }
}

/// Ends and removes what dead dev clusters of this user have left; says what was done, if anything.
pub async fn clear() -> Option<String> {
    let mut cleared = Vec::new();
    let mut ended: usize = 0;
    for home in dead(&std::env::temp_dir()) {
        match clear_one(&home).await {
            Ok(tasks) => {
                ended = ended.saturating_add(tasks);
                cleared.push(home.path.display().to_string());
            }
            Err(error) => {
                let path = home.path.display();
                tracing::warn!(%path, %error, "a dead dev cluster could not be cleared");
            }
        }
    }
    if cleared.is_empty() {
        return None;
    }
    let tasks = if ended == 1 { "task" } else { "tasks" };
    Some(format!(
        "cleared up after a dev cluster that was killed: {ended} {tasks} ended, {} removed",
        cleared.join(", ")
    ))
}

/// Directories of this user whose lock is there and free. The lock is held from now on.
fn dead(folder: &Path) -> Vec<Home> {
    let user = rustix::process::geteuid().as_raw();
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let ours = entries.filter(|entry| {
        let named = entry
            .file_name()
            .to_str()
            .is_some_and(|name| name.starts_with(NAME));
        // Of the entry itself: a link of somebody else's leads anywhere.
        let own = entry
            .metadata()
            .is_ok_and(|found| found.is_dir() && found.uid() == user);
        named && own && entry.path().join("lock").is_file()
    });
    ours.filter_map(|entry| {
        let path = entry.path();
        // One that cannot be taken has a living owner.
        let lock = DirectoryLock::take(&path, HOLDER).ok()?;
        Some(Home { path, _lock: lock })
    })
    .collect()
}

async fn clear_one(home: &Home) -> Result<usize, String> {
    let told = |error: std::io::Error| error.to_string();
    let mut ended: usize = 0;
    let shared = runtime_directory_of(&home.path).map_err(told)?;
    for runs in run_directories(&shared).map_err(told)? {
        let tasks = end_tasks(&home.path, &runs).await?;
        ended = ended.saturating_add(tasks);
    }
    let entries = std::fs::read_dir(&home.path).map_err(told)?;
    for agent in entries.flatten() {
        if let Ok(name) = agent.file_name().into_string() {
            remove_groups(&Roots::default().procfs, &agent.path(), &name).await;
        }
    }
    home.remove().map_err(told)?;
    Ok(ended)
}

/// Ends all tasks that one agent had; gives how many there were.
async fn end_tasks(home: &Path, runs: &Path) -> Result<usize, String> {
    let machine = discover(&Roots::default(), home).map_err(|error| error.to_string())?;
    // It works on the groups of these runs alone.
    let isolation = Isolation::detached();
    let config = ProcessConfig::new(runs.to_owned(), machine.boot_id);
    let handle = tokio::runtime::Handle::current();
    let (runtime, mut events) = ProcessRuntime::new(config, Arc::new(isolation), handle)
        .map_err(|error| error.to_string())?;
    let found = runtime.list().map_err(|error| error.to_string())?;
    let lived = |found: &FoundRun| matches!(found.state, FoundState::Alive | FoundState::Lost(_));
    let count = found.iter().filter(|found| lived(found)).count();
    for found in &found {
        runtime.adopt(&found.run);
        runtime.stop(
            &found.run,
            Stop {
                grace_ms: GRACE_MS,
                signal: 0,
            },
        );
    }
    let mut left = found.len();
    let ending = async {
        while left > 0 {
            match events.recv().await {
                Some(RuntimeEvent::Ended { .. }) => left = left.saturating_sub(1),
                Some(_) => {}
                None => return,
            }
        }
    };
    // What does not end in time keeps its directory, and is tried again by the next one.
    let in_time = tokio::time::timeout(LONGEST, ending).await.is_ok();
    if !in_time {
        return Err(format!("{left} tasks did not end in time"));
    }
    Ok(count)
}
