//! What earlier agent processes left behind, by the rules of adoption.
//!
//! The lock says whether a shim lives, the exit record how a run ended, the boot id whether a
//! process id means anything at all. Nothing is signalled here.

use std::path::Path;

use super::records::{RunDirectory, ended_from_wire};
use super::{Ending, FoundRun, FoundState, RunName, RuntimeError};

/// Every run below `directory`.
///
/// # Errors
/// The directory is there and cannot be read.
pub(crate) fn list(directory: &Path, boot_id: &str) -> Result<Vec<FoundRun>, RuntimeError> {
    let failed = |source| RuntimeError::new("read the run directory", directory, source);
    let entries = match std::fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(failed(error)),
    };
    let mut found = Vec::new();
    for entry in entries {
        let entry = entry.map_err(failed)?;
        let is_directory = entry.file_type().is_ok_and(|kind| kind.is_dir());
        let name = entry.file_name().to_str().and_then(RunName::parse);
        if let (true, Some(run)) = (is_directory, name) {
            found.push(inspect(&RunDirectory::at(entry.path()), run, boot_id));
        }
    }
    found.sort_by(|one, other| one.run.cmp(&other.run));
    Ok(found)
}

/// One run.
pub(crate) fn inspect(directory: &RunDirectory, run: RunName, boot_id: &str) -> FoundRun {
    let spec = directory.spec();
    let reference = spec
        .as_ref()
        .map(|spec| spec.reference.to_vec())
        .unwrap_or_default();
    let state = match state(directory, spec.ok().map(|spec| spec.boot_id), boot_id) {
        Ok(state) => state,
        // Unreadable: nobody can say what became of it.
        Err(_damaged) => FoundState::Lost(Ending::Unknown),
    };
    FoundRun {
        run,
        reference,
        state,
    }
}

fn state(
    directory: &RunDirectory,
    written_in: Option<String>,
    boot_id: &str,
) -> std::io::Result<FoundState> {
    if directory.shim_lives()? {
        return Ok(FoundState::Alive);
    }
    // Read after the lock: a shim that was just leaving has written it by now.
    if let Some(record) = directory.exit_record()? {
        return Ok(FoundState::Ended(ended_from_wire(&record)));
    }
    let record = directory.run_record()?;
    let boot = record
        .as_ref()
        .map(|record| record.boot_id.clone())
        .or(written_in);
    if boot.is_some_and(|boot| boot != boot_id) {
        return Ok(FoundState::Lost(Ending::Rebooted));
    }
    match record {
        Some(_) => Ok(FoundState::Lost(Ending::SupervisorLost)),
        // The record comes before the gate opens: without it no instruction has run.
        None => Ok(FoundState::NeverStarted),
    }
}
