//! The parent of one run: outlives the agent, so that an exit code is never lost with it.
//!
//! The binary calls [`main`] when it was started as `mete __shim <run directory>`. One thread, no
//! async runtime, no framework's protocol: it reads the spec, makes the child, waits at the gate,
//! keeps the log, ends the run when told or when its time is over, and leaves an exit record once
//! nothing of the run is left. An agent may come and go on the control socket meanwhile.
//!
//! The child dies with the shim (parent-death signal); everything below it comes to the shim
//! (subreaper). The shim decides nothing about why a run is, and touches no process outside of it.

use std::ffi::OsString;
use std::io::{self, Write};
use std::path::PathBuf;

use super::records::RunDirectory;

mod child;
mod control;
mod ending;
mod log;
mod processes;
mod silence;
mod supervisor;
mod system;

/// Runs the shim of the run directory that `arguments` name (what follows `__shim`). Returns the
/// exit code of this process, which nobody needs: what happened is in the records.
#[must_use]
pub fn main(arguments: impl IntoIterator<Item = OsString>) -> i32 {
    let mut arguments = arguments.into_iter();
    let (Some(directory), None) = (arguments.next(), arguments.next()) else {
        complain("expected one argument, the directory of a run; only an agent starts this");
        return 2;
    };
    match run(PathBuf::from(directory)) {
        Ok(()) => 0,
        Err(error) => {
            complain(&error.to_string());
            1
        }
    }
}

fn run(path: PathBuf) -> io::Result<()> {
    let directory = RunDirectory::at(path);
    let spec = directory.spec()?;
    supervisor::Supervisor::new(directory, spec)?.run()
}

/// Descriptor 2 is the run's file of errors, which the agent quotes.
fn complain(text: &str) {
    let _nobody_listens = writeln!(io::stderr(), "{text}");
}

/// A log writer for the tests of the reader: takes pieces, and `None` at the end.
#[cfg(test)]
pub(crate) fn log_for_tests(
    directory: &std::path::Path,
    most_bytes: u64,
    files: u32,
) -> impl FnMut(Option<(super::logs::Stream, &[u8], u64)>) + use<> {
    let mut log = log::LogWriter::open(directory, most_bytes, files).expect("a writable directory");
    move |piece| match piece {
        Some((stream, bytes, at_ns)) => log.write(stream, bytes, at_ns),
        None => log.finish(2),
    }
}

#[cfg(test)]
mod tests;
