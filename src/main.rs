//! mete: the one binary. [`cli`] is a client, [`daemon`] what runs long, [`mod@bench`] what
//! measures, [`offline`] what needs no cluster.

use std::process::ExitCode;

pub mod args;
pub mod bench;
pub mod cli;
pub mod daemon;
pub mod offline;

fn main() -> ExitCode {
    // Before anything else: the parent of a run has one thread and needs nothing of the rest.
    let mut arguments = std::env::args_os();
    if arguments.nth(1).is_some_and(|word| word == "__shim") {
        let code = mete_agent::runtime::shim::main(arguments);
        return ExitCode::from(u8::try_from(code).unwrap_or(cli::support::error::exit::FAILED));
    }
    cli::start()
}
