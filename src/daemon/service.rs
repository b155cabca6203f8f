//! `mete service start`: the service framework.

use mete_model::{Partition, Span};
use mete_sdk::{Claim, TaskSpec};
use mete_service::{Config, Service};

use super::batch::from_sdk;
use super::stop_signal;
use crate::cli::support::error::Outcome;

/// What the service framework is told.
#[derive(Clone, Debug)]
pub struct Settings {
    /// `host:port` of the masters.
    pub masters: Vec<String>,
    /// The framework's name, and that of its tasks.
    pub name: String,
    /// The role that is charged.
    pub role: String,
    /// How many tasks.
    pub count: u32,
    /// What each needs.
    pub claim: Claim,
    /// argv of each.
    pub command: Vec<String>,
    /// What happens to each while its node is not heard from.
    pub partition: Partition,
}

/// Runs the service framework until it is told to stop; its tasks go on.
///
/// # Errors
/// Why its session is over.
pub async fn start(settings: Settings) -> Outcome {
    let mut task = TaskSpec::command(&settings.name, &settings.command);
    task.run.partition = settings.partition;
    let config = Config {
        masters: settings.masters,
        name: settings.name.clone(),
        role: settings.role,
        failover_timeout: Span::days(7),
        services: vec![Service {
            task,
            name: settings.name,
            count: settings.count,
            claim: settings.claim,
        }],
    };
    mete_service::run(config, stop_signal())
        .await
        .map_err(|error| from_sdk(&error))
}
