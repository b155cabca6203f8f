//! `mete master`: one master process.

use std::path::PathBuf;

use mete_broker::config::{Config, Storage};
use mete_broker::error::RunError;
use mete_broker::server::Listeners;

use super::{announced, bind, stop_signal};
use crate::cli::support::error::{CliError, Outcome};
use crate::cli::support::print::{Style, note, print_one};

/// What a master is told.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Where its log and snapshots live.
    pub state_directory: PathBuf,
    /// `host:port`.
    pub listen: String,
    /// What clients are told to dial; empty = the listener's address.
    pub advertise: String,
    /// Permits addresses that are not loopback.
    pub insecure: bool,
}

/// Founds a cluster of one master in an empty directory, and ends.
///
/// # Errors
/// `STATE_DIRECTORY` when something is there already.
pub fn init(settings: &Settings, style: &Style) -> Outcome {
    super::make_directory(&settings.state_directory)?;
    mete_broker::server::found(&config(settings)).map_err(|error| from_run(&error))?;
    let directory = settings.state_directory.display().to_string();
    let text = format!("a cluster of one master is founded in {directory}");
    let item = serde_json::json!({ "name": directory });
    print_one(style, "MasterFounded", None, item, &text)?;
    note(&format!("next: mete master start --state-dir {directory}"));
    Ok(())
}

/// Runs a master until it is told to stop.
///
/// # Errors
/// Why it cannot start: code, facts, what to do.
pub async fn start(settings: Settings) -> Outcome {
    let listener = bind(&settings.listen, settings.insecure).await?;
    let address = listener
        .local_addr()
        .map(|address| address.to_string())
        .unwrap_or_default();
    let listeners = Listeners {
        grpc: vec![listener],
    };
    let running = Box::pin(async {
        mete_broker::server::run(config(&settings), listeners, stop_signal())
            .await
            .map_err(|error| from_run(&error))
    });
    announced(&address, format!("master listens on {address}"), running).await
}

fn config(settings: &Settings) -> Config {
    let mut config = Config::single(Storage::Directory {
        path: settings.state_directory.clone(),
        found: false,
    });
    config.advertise.clone_from(&settings.advertise);
    config.insecure = settings.insecure;
    config
}

/// A broker's refusal to start, in the command line's shape.
#[must_use]
pub fn from_run(error: &RunError) -> CliError {
    let mut shown = CliError::new(error.code, error.detail.clone());
    let mut cause = std::error::Error::source(error);
    while let Some(below) = cause {
        shown.cause = below.to_string();
        cause = below.source();
    }
    shown.fact(error.next.clone())
}
