//! Flags as sizes of benches.

use std::time::Duration;

use super::{allocator, churn, commit, failover, launches, node, recover, replay, snapshot};
use crate::args::bench::Bench;
use crate::cli::support::error::Outcome;
use crate::cli::support::print::Style;

/// `mete bench …`.
///
/// # Errors
/// Sizes that cannot be, or a part that failed.
pub async fn bench(bench: Bench, style: &Style) -> Outcome {
    match bench {
        Bench::Launches(flags) => {
            let tasks = u32::try_from(flags.tasks).unwrap_or(u32::MAX);
            let size = launches::Size {
                agents: flags.agents,
                tasks,
                masters: flags.master_count,
            };
            launches::run(size).await?.print("BenchLaunches", style)
        }
        Bench::Allocator(flags) => {
            let size = allocator::Size {
                agents: flags.agents,
                roles: flags.roles,
                frameworks: flags.frameworks,
                rounds: flags.rounds,
                seed: 1,
            };
            allocator::run(size)?.print("BenchAllocator", style)
        }
        Bench::Commit(flags) => {
            let size = commit::Size {
                clients: flags.clients,
                round: Duration::from_secs(flags.seconds),
                rounds: flags.rounds,
            };
            commit::run(size).await?.print("BenchCommit", style)
        }
        Bench::Failover(flags) => {
            let size = failover::Size {
                rounds: flags.rounds,
                masters: flags.master_count,
                agents: flags.agents,
            };
            failover::run(size).await?.print("BenchFailover", style)
        }
        Bench::Recover(flags) => {
            let size = recover::Size {
                agents: flags.agents,
                tasks: flags.tasks,
                masters: flags.master_count,
            };
            recover::run(size).await?.print("BenchRecover", style)
        }
        Bench::Churn(flags) => {
            let size = churn::Size {
                writes: flags.writes,
                clients: flags.clients,
                masters: flags.master_count,
            };
            churn::run(size).await?.print("BenchChurn", style)
        }
        Bench::Node(flags) => {
            let size = node::Size {
                starts: flags.starts,
                at_once: flags.at_once,
            };
            node::run(size).await?.print("BenchNode", style)
        }
        Bench::Snapshot(flags) => snapshot::run(flags.tasks)?.print("BenchSnapshot", style),
        Bench::Replay(flags) => replay::run(&flags)?.print("BenchReplay", style),
    }
}
