//! Task directories of runs that are long over: removed by age, and by number.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use mete_model::Span;

/// Directories kept whatever their age; beyond it the oldest go first.
const MOST_DIRECTORIES: usize = 20_000;

/// Removes what is old, except the runs that are still known. Returns how many are gone.
pub(super) fn sweep(state_directory: &Path, keep: Span, known: &BTreeSet<String>) -> usize {
    let Ok(entries) = std::fs::read_dir(state_directory.join("tasks")) else {
        return 0;
    };
    let mut ended: Vec<(SystemTime, PathBuf)> = entries
        .flatten()
        .filter(|entry| !known.contains(entry.file_name().to_string_lossy().as_ref()))
        .filter_map(|entry| {
            // Only what has its word of an end: anything else may still be somebody's.
            let end = entry.path().join(super::END_FILE);
            let when = std::fs::metadata(end)
                .and_then(|found| found.modified())
                .ok()?;
            Some((when, entry.path()))
        })
        .collect();
    ended.sort();
    let now = SystemTime::now();
    let age = |when: &SystemTime| now.duration_since(*when).unwrap_or(Duration::ZERO);
    let excess = ended.len().saturating_sub(MOST_DIRECTORIES);
    let mut removed = 0;
    for (index, (when, path)) in ended.iter().enumerate() {
        if index >= excess && age(when) < keep.into() {
            break;
        }
        match std::fs::remove_dir_all(path) {
            Ok(()) => removed += 1,
            Err(error) => tracing::debug!(path = %path.display(), %error, "removing a task"),
        }
    }
    removed
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_ended_unknown_and_old_directories_go() {
        let state = tempfile::tempdir().expect("a directory");
        for (name, over) in [("old", true), ("known", true), ("live", false)] {
            let task = state.path().join("tasks").join(name);
            std::fs::create_dir_all(&task).expect("a task directory");
            if over {
                std::fs::write(task.join(super::super::END_FILE), b"").expect("an end");
            }
        }
        let known = BTreeSet::from(["known".to_owned()]);
        assert_eq!(
            sweep(state.path(), Span::days(1), &known),
            0,
            "nothing is that old"
        );
        assert_eq!(sweep(state.path(), Span::ZERO, &known), 1);
        assert!(!state.path().join("tasks/old").exists());
        assert!(state.path().join("tasks/known").exists());
        assert!(state.path().join("tasks/live").exists());
    }
}
