//! Whether a state directory is an agent's: nobody's else is written into.

use std::io;
use std::path::Path;

/// What an agent makes there, and what file systems put at their roots.
const OURS: [&str; 3] = ["lock", "tasks", "lost+found"];

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
