//! `cargo xtask`: one command for set-up, checks and documentation of the project.
//!
//! Developers and `.ci/run` call the same thing. It knows the repository's files and cargo's
//! own output, and nothing of mete: a broken workspace must not keep its checks from building.
//! For the same reason it has one dependency, `serde_json`, to read `cargo metadata`.
#![expect(
    clippy::print_stdout,
    reason = "a developer's tool: its product is what it prints"
)]

mod args;
mod audit;
mod cargo;
mod ci;
mod docs;
mod setup;
mod shell;
mod tidy;
mod toml_subset;
mod tree;

use args::Command;
use std::process::ExitCode;
use tree::Tree;

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    match args::parse(&words) {
        Ok(command) => match run(&command) {
            Ok(true) => ExitCode::SUCCESS,
            Ok(false) => ExitCode::from(1),
            Err(error) => complain(&error),
        },
        Err(error) => complain(&format!("{error}\n\n{}", args::USAGE)),
    }
}

/// Runs one command; `false` means that it ran and found something wrong.
fn run(command: &Command) -> Result<bool, String> {
    let root = tree::find_root()?;
    match command {
        Command::Help => {
            println!("{}", args::USAGE);
            Ok(true)
        }
        Command::Setup => setup::run(&root),
        Command::Ci(options) => ci::run(&root, options),
        Command::Tidy => Ok(report("tidy", &tidy::run(&Tree::read(&root)?)?)),
        Command::Docs => Ok(report("docs", &docs::check(&Tree::read(&root)?))),
        Command::Audit => {
            let audit = audit::run(&root)?;
            println!("{}", audit.note);
            Ok(report("audit", &audit.findings))
        }
    }
}

/// Prints what a check found, and says in its last line how many there are.
fn report(check: &str, findings: &[tidy::Finding]) -> bool {
    for finding in findings {
        println!("{finding}");
    }
    println!("{check}: {}", tidy::sum(findings));
    findings.is_empty()
}

fn complain(error: &str) -> ExitCode {
    eprintln!("xtask: {error}");
    ExitCode::from(2)
}
