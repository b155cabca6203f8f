//! Months of work in a short time: whether a master's disk and memory stay bounded.
//!
//! Records are written over and over and short tasks come and go, so that the log is trimmed,
//! snapshots replace each other and the store begins new generations again and again.

use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

use mete_model::task::FakeTask;

use super::commit::{Ours, PAYLOAD, Size as Writes};
use super::failover::load;
use super::masters::{Fakes, Masters};
use super::{Figures, Home, usage};
use crate::cli::support::error::Outcome;

/// How large the bench is.
#[derive(Clone, Copy, Debug)]
pub struct Size {
    /// Records written, at least.
    pub writes: u64,
    /// Writes that are under way at once.
    pub clients: u32,
    /// Masters.
    pub masters: u32,
}

/// Between two looks at disk and memory.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Simulated agents that the short tasks run on.
const AGENTS: u32 = 100;

/// Blocks of which `st_blocks` counts.
const BLOCK: u64 = 512;

/// Measures.
///
/// # Errors
/// Sizes that cannot be, or a part that failed.
pub async fn run(size: Size) -> Outcome<Figures> {
    let odd = size.masters % 2 == 1 && (1..=7).contains(&size.masters);
    if size.writes == 0 || !(1..=4_096).contains(&size.clients) || !odd {
        return Err(usage(
            "--writes starts at 1, --clients is within 1 to 4096, --masters is 1, 3, 5 or 7",
        ));
    }
    let home = Home::make()?;
    measure(size, &home.0).await
}

async fn measure(size: Size, home: &Path) -> Outcome<Figures> {
    let count = usize::try_from(size.masters).unwrap_or(usize::MAX);
    let masters = Masters::start(home, count).await?;
    masters.make_role().await?;
    let _fakes = Fakes::start(&masters, AGENTS, FakeTask::default()).await?;
    let writers = Ours::connect(&masters, size.clients).await?;
    let load = load(masters.addresses.clone()).await?;
    let round = Writes {
        clients: size.clients,
        round: LOOK_EVERY,
        rounds: 1,
    };
    let (mut written, mut looks) = (0_u64, Vec::new());
    while written < size.writes {
        let done = writers.round(round).await?.writes();
        written = written.saturating_add(done);
        looks.push((mebibytes(taken(home)), masters.resident_mib()));
    }
    let launched = load.stop().await?;
    // The beginning has nothing to trim yet: the first half against the second one shows growth.
    let (first, second) = looks.split_at(looks.len() / 2);
    let most_disk = |looks: &[(u64, u64)]| looks.iter().map(|look| look.0).max().unwrap_or(0);
    let most_memory = |looks: &[(u64, u64)]| looks.iter().map(|look| look.1).max().unwrap_or(0);

    let mut figures = Figures::default();
    figures.put("writes", written);
    figures.put("launches", launched);
    let bytes = written.saturating_mul(u64::try_from(PAYLOAD).unwrap_or(u64::MAX));
    figures.put("payload_mib", mebibytes(bytes));
    figures.put("disk_most_first_half_mib", most_disk(first));
    figures.put("disk_most_second_half_mib", most_disk(second));
    figures.put("disk_last_mib", looks.last().map_or(0, |look| look.0));
    figures.put("rss_most_first_half_mib", most_memory(first));
    figures.put("rss_most_second_half_mib", most_memory(second));
    figures.put("rss_last_mib", looks.last().map_or(0, |look| look.1));
    figures.put("masters", size.masters);
    figures.put("looks", looks.len());
    Ok(figures)
}

fn mebibytes(bytes: u64) -> u64 {
    bytes >> 20
}

/// Bytes that all files below a directory take on the disk. What goes away meanwhile takes none.
fn taken(directory: &Path) -> u64 {
    let Ok(entries) = std::fs::read_dir(directory) else {
        return 0;
    };
    let sizes = entries.flatten().map(|entry| match entry.metadata() {
        Ok(data) if data.is_dir() => taken(&entry.path()),
        Ok(data) => data.blocks().saturating_mul(BLOCK),
        Err(_) => 0,
    });
    sizes.sum()
}
