//! Jobs: a client of the batch framework, found through a master.
//!
//! [`job`] and [`mod@file`] make a job of flags and files, [`ending`] an exit code of how it ended;
//! the other rooms talk. What is submitted, cancelled or retried is decided by the framework.

pub mod cancel;
pub mod ending;
pub mod file;
pub mod following;
pub mod job;
pub mod list;
pub mod logs;
pub mod run;
pub mod show;
pub mod submit;
pub mod wait;

use super::support::client::Client;
use super::support::error::{CliError, Outcome, exit};
use crate::args::Globals;
use crate::args::batch::Batch;

/// Does what was asked. `batch start` is not here: it is no client.
///
/// # Errors
/// The refusal.
pub async fn run(globals: &Globals, command: Batch) -> Outcome<u8> {
    let done = |()| 0;
    match command {
        Batch::Start(flags) => {
            let masters =
                super::support::context::masters(&globals.masters, globals.context.as_deref())?;
            crate::daemon::start_log(globals.verbose);
            crate::daemon::commands::batch_start(flags, masters)
                .await
                .map(done)
        }
        Batch::Submit(flags) => submit::submit(&Client::new(globals)?, flags).await,
        Batch::Run(flags) => {
            // Nothing ran: that is ours, not the command's, unless the job was never well formed.
            let ours = |error: CliError| {
                if error.exit == exit::USAGE {
                    error
                } else {
                    error.exit(exit::OURS)
                }
            };
            let client = Client::new(globals).map_err(ours)?;
            run::run(&client, flags).await
        }
        Batch::List(flags) => list::list(&Client::new(globals)?, flags).await.map(done),
        Batch::Show(flags) => show::show(&Client::new(globals)?, &flags.job)
            .await
            .map(done),
        Batch::Logs(flags) => logs::logs(&Client::new(globals)?, flags).await,
        Batch::Wait(flags) => wait::wait(&Client::new(globals)?.patient(), flags).await,
        Batch::Cancel(flags) => cancel::cancel(&Client::new(globals)?, flags.jobs)
            .await
            .map(done),
    }
}
