//! `mete batch start`: the batch framework.

use super::{announced, bind, stop_signal};
use crate::cli::support::error::{CliError, Outcome};

/// What the batch framework is told.
#[derive(Clone, Debug)]
pub struct Settings {
    /// `host:port` of the masters.
    pub masters: Vec<String>,
    /// Its name.
    pub name: String,
    /// The roles it serves; the first is the default of a job.
    pub roles: Vec<String>,
    /// Where it serves its own API.
    pub listen: String,
    /// Permits addresses that are not loopback.
    pub insecure: bool,
}

/// Runs the batch framework until it is told to stop; its tasks go on.
///
/// # Errors
/// Why its session is over.
pub async fn start(settings: Settings) -> Outcome {
    let listener = bind(&settings.listen, settings.insecure).await?;
    let address = listener
        .local_addr()
        .map(|address| address.to_string())
        .unwrap_or_default();
    let mut config = mete_batch::Config::new(settings.masters, settings.roles);
    config.session.name = settings.name;
    let running = Box::pin(async {
        mete_batch::run(config, listener, stop_signal())
            .await
            .map_err(|error| from_sdk(&error))
    });
    announced(&address, format!("batch listens on {address}"), running).await
}

/// An error of the SDK, in the command line's shape.
#[must_use]
pub fn from_sdk(error: &mete_sdk::Error) -> CliError {
    let code = error.code().unwrap_or(mete_model::Code::Internal);
    CliError::new(code, error.to_string())
}
