//! Asking before what cannot be undone.

use std::io::{BufRead, IsTerminal};

use mete_model::Code;

use super::client::Client;
use super::error::{CliError, Outcome};
use super::print::note;

/// Says what will be done to which cluster, and goes on only with a yes.
///
/// # Errors
/// `USAGE` when nobody can be asked, or when the answer is no.
pub fn confirm(client: &Client, what: &[String]) -> Outcome {
    let context = client
        .globals
        .context
        .as_deref()
        .unwrap_or("current context");
    note(&format!(
        "cluster {} ({context})",
        client.cluster.masters().join(", ")
    ));
    for line in what {
        note(&format!("  {line}"));
    }
    if client.globals.yes || client.globals.dry_run {
        return Ok(());
    }
    let stdin = std::io::stdin();
    if !stdin.is_terminal() {
        let sentence = "this cannot be undone, and there is no terminal to ask at";
        return Err(CliError::new(Code::Usage, sentence)
            .next("--dry-run", "see what would be done")
            .next("--yes", "do it without asking"));
    }
    note("type 'yes' to go on:");
    let mut answer = String::new();
    stdin
        .lock()
        .read_line(&mut answer)
        .map_err(|error| CliError::file("read", std::path::Path::new("stdin"), &error))?;
    if matches!(answer.trim(), "yes" | "y") {
        return Ok(());
    }
    Err(CliError::new(
        Code::Usage,
        "nothing was done: the answer was not 'yes'",
    ))
}
