//! Whether a state directory is an agent's: nobody's else is written into.

use std::io;
use std::path::{Path, PathBuf};

use tokio::sync::watch;

use crate::driver::AgentState;

/// What an agent makes there, and what file systems put at their roots.
const OURS: [&str; 4] = ["lock", "tasks", REGISTERED, "lost+found"];

/// There once a master has welcomed the agent; it holds the agent's id, for people.
const REGISTERED: &str = "registered";

/// What every name of the checkpoint begins with.
const CHECKPOINT: &str = "checkpoint";

/// Says whether an agent may keep its state in `directory`: it holds a checkpoint, or nothing that
/// an agent would not have made.
///
/// # Errors
/// The directory cannot be read, or the first thing found in it that is somebody else's.
pub(super) fn check(directory: &Path) -> io::Result<()> {
    let mut strange = None;
    for entry in std::fs::read_dir(directory)? {
        let name = entry?.file_name();
        let name = name.to_string_lossy();
        if name.starts_with(CHECKPOINT) {
            return Ok(());
        }
        if !OURS.contains(&name.as_ref()) {
            strange = Some(name.into_owned());
        }
    }
    match strange {
        None => Ok(()),
        Some(name) => Err(io::Error::other(format!(
            "it holds '{name}' and no checkpoint, so it is not an agent's"
        ))),
    }
}

/// Says whether a master has welcomed this agent in an earlier life.
pub(super) fn was_registered(directory: &Path) -> bool {
    directory.join(REGISTERED).exists()
}

/// Notes that a master has welcomed the agent, once one has; never ends.
pub(super) async fn note_registered(directory: PathBuf, mut state: watch::Receiver<AgentState>) {
    if let Ok(state) = state
        .wait_for(|state| state.linked)
        .await
        .map(|it| it.clone())
        && !was_registered(&directory)
    {
        let id = state.agent.map(|id| id.to_string()).unwrap_or_default();
        // Without it the agent only gives up where it might keep on: no reason to stop here.
        if let Err(error) = tokio::fs::write(directory.join(REGISTERED), id + "\n").await {
            tracing::warn!(%error, "that this agent is registered could not be noted");
        }
    }
    std::future::pending().await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_of_somebody_else_is_refused_by_what_is_in_it() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let make = |name: &str| std::fs::write(directory.path().join(name), "").expect("a file");
        assert!(check(directory.path()).is_ok(), "empty");
        make("lock");
        assert!(
            check(directory.path()).is_ok(),
            "an agent died before its first checkpoint"
        );
        make("CURRENT");
        let error = check(directory.path()).expect_err("somebody else's");
        assert!(error.to_string().contains("'CURRENT'"), "{error}");
        make("checkpoint");
        assert!(
            check(directory.path()).is_ok(),
            "an agent's, whatever else lies there"
        );
    }
}
