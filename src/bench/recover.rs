//! A leader lost with many agents and running tasks: until the next one has heard of them all, and
//! until somebody new gets an offer.

use std::path::Path;
use std::time::{Duration, Instant};

use mete_model::task::FakeTask;
use mete_sdk::Claim;

use super::failover::{may_lose_one, standing};
use super::masters::{Fakes, Masters};
use super::subject::Subject;
use super::{Figures, Home, decimal, usage};
use crate::cli::support::error::Outcome;

/// How large the bench is.
#[derive(Clone, Copy, Debug)]
pub struct Size {
    /// Simulated agents.
    pub agents: u32,
    /// Tasks that run on them.
    pub tasks: u32,
    /// Masters.
    pub masters: u32,
}

/// Measures.
///
/// # Errors
/// Sizes that cannot be, or a part that failed.
pub async fn run(size: Size) -> Outcome<Figures> {
    if size.agents == 0 || size.tasks == 0 || !may_lose_one(size.masters) {
        return Err(usage(
            "--agents and --tasks start at 1, --masters is 3, 5 or 7",
        ));
    }
    let home = Home::make()?;
    measure(size, &home.0).await
}

async fn measure(size: Size, home: &Path) -> Outcome<Figures> {
    let count = usize::try_from(size.masters).unwrap_or(usize::MAX);
    let mut masters = Masters::start(home, count).await?;
    masters.make_role().await?;
    let fakes = Fakes::start(&masters, size.agents, FakeTask::default()).await?;
    let all = masters.addresses.clone();
    let standing = standing(all.clone(), size.tasks).await?;
    let mut asking = Subject::connect(all, "asking").await?;

    let leader = masters.settled().await?;
    let began = Instant::now();
    masters.kill(leader).await?;
    let masters = &masters;
    let ask = async {
        let wanted = Claim::cpu_milli(10).memory_mib(16).count(1);
        asking.want("asked", wanted).await?;
        asking.first_offer("asked").await?;
        Ok(began.elapsed())
    };
    let confirm = async {
        fakes.ready(masters, size.agents).await?;
        Ok(began.elapsed())
    };
    let (offered, confirmed): (Outcome<Duration>, Outcome<Duration>) = tokio::join!(ask, confirm);
    let (offered, confirmed) = (offered?, confirmed?);
    let tasks = usize::try_from(size.tasks).unwrap_or(usize::MAX);
    let touched = tasks.saturating_sub(standing.running());

    let mut figures = Figures::default();
    figures.put("agents", size.agents);
    figures.put("tasks", size.tasks);
    figures.put("all_confirmed_s", decimal(confirmed.as_secs_f64()));
    figures.put("first_offer_ms", decimal(offered.as_secs_f64() * 1000.0));
    figures.put("tasks_touched", touched);
    figures.put("masters", size.masters);
    figures.put("rss_mib", masters.resident_mib());
    Ok(figures)
}
