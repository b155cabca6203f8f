//! `mete completion` and `mete man`: made from the definition that parses.

use std::path::Path;

use clap::CommandFactory;
use clap_complete::env::Shells;
use mete_model::Code;

use super::support::error::{CliError, Outcome};
use super::support::print::{note, out_bytes};
use crate::args::Cli;

/// Prints the script that makes a shell complete commands, flags and names.
///
/// # Errors
/// `USAGE` for an unknown shell.
pub fn completion(shell: &str) -> Outcome {
    let shells = Shells::builtins();
    let completer = shells.completer(shell).ok_or_else(|| {
        let known: Vec<&str> = shells.names().collect();
        CliError::new(Code::Usage, format!("no completion for '{shell}'"))
            .fact(format!("shells are {}", known.join(", ")))
    })?;
    // The program asks itself for names, so that they are always those of the cluster.
    let program = std::env::current_exe().ok();
    let program = program.and_then(|path| path.into_os_string().into_string().ok());
    let program = program.unwrap_or_else(|| "mete".to_owned());
    let mut script = Vec::new();
    completer
        .write_registration("COMPLETE", "mete", "mete", &program, &mut script)
        .map_err(|error| CliError::file("write", Path::new("stdout"), &error))?;
    out_bytes(&script)
}

/// Writes a manual page for each command.
///
/// # Errors
/// `FILE` when the directory cannot be written.
pub fn man(directory: &Path) -> Outcome {
    std::fs::create_dir_all(directory)
        .and_then(|()| clap_mangen::generate_to(Cli::command(), directory))
        .map_err(|error| CliError::file("write manual pages into", directory, &error))?;
    note(&format!(
        "manual pages are in {}; read one: man {}/mete.1",
        directory.display(),
        directory.display()
    ));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_command_gets_a_manual_page() {
        let folder = tempfile::tempdir().expect("a folder");
        let directory = folder.path().join("man");
        man(&directory).expect("written");
        for page in [
            "mete.1",
            "mete-node-list.1",
            "mete-batch-run.1",
            "mete-why.1",
        ] {
            let text = std::fs::read_to_string(directory.join(page)).expect(page);
            assert!(text.contains(".TH"), "{page}");
        }
    }

    #[test]
    fn every_shell_that_may_be_named_has_a_script() {
        let shells = Shells::builtins();
        for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
            assert!(shells.completer(shell).is_some(), "{shell}");
        }
    }
}
