//! The service framework: keeps N long-running tasks of each kind alive.
//!
//! It is the SDK's [`mete_sdk::TaskPool`] with a configuration in front. It keeps nothing: killed
//! and started again with the same configuration, it takes its tasks over by their labels and
//! starts none twice. It uses the public SDK only.

use std::future::Future;
use std::time::Duration;

use mete_sdk::model::Span;
use mete_sdk::{Claim, PoolHandle, Result, Runner, TaskPool, TaskSpec, Wanted};

/// How often the pool looks at pauses that are over.
const TICK: Duration = Duration::from_millis(500);

/// One kind of long-running task.
#[derive(Clone, Debug)]
pub struct Service {
    /// The kind's name; its tasks are named after it.
    pub name: String,
    /// How many run at the same time.
    pub count: u32,
    /// What each needs.
    pub claim: Claim,
    /// What each runs.
    pub task: TaskSpec,
}

/// What the framework needs to know.
#[derive(Clone, Debug)]
pub struct Config {
    /// Where masters may be, `host:port` each.
    pub masters: Vec<String>,
    /// The framework's name.
    pub name: String,
    /// The role that is charged.
    pub role: String,
    /// How long its tasks live without it.
    pub failover_timeout: Span,
    /// What to keep running.
    pub services: Vec<Service>,
}

/// A pool that keeps these running, and the handle that changes it while it does. It is a
/// [`mete_sdk::Framework`]: give it to a [`Runner`].
///
/// # Errors
/// A service whose name or claim is not permitted.
pub fn pool(services: impl IntoIterator<Item = Service>) -> Result<(PoolHandle, TaskPool)> {
    let pool = TaskPool::new();
    let handle = pool.handle();
    for service in services {
        let wanted = Wanted::new(service.count, service.claim, service.task);
        handle.set(&service.name, wanted)?;
    }
    Ok((handle, pool))
}

fn runner(config: &Config) -> Runner {
    Runner::new(config.masters.clone())
        .name(&config.name)
        .role(&config.role)
        .failover_timeout(config.failover_timeout.into())
        .tick(TICK)
}

/// A framework that is ready to run, and the handle that changes it while it does.
///
/// # Errors
/// A service whose name or claim is not permitted.
pub fn prepare(config: Config) -> Result<(PoolHandle, impl Future<Output = Result<()>>)> {
    let runner = runner(&config);
    let (handle, pool) = pool(config.services)?;
    Ok((handle, runner.run(pool)))
}

/// Runs the framework until `shutdown`: then it says what it has handled, and leaves its tasks
/// alone.
///
/// # Errors
/// As [`prepare`], or why the session is over.
pub async fn run(config: Config, shutdown: impl Future<Output = ()> + Send) -> Result<()> {
    let runner = runner(&config);
    let (_handle, pool) = pool(config.services)?;
    runner.run_until(pool, shutdown).await
}
