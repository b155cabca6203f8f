//! How a cluster leaves that nobody can find again: no process of a task stays behind.
//!
//! Called when `dev` or `demo` stops without a state directory. A cluster that keeps its state
//! leaves its tasks alone: the next start finds them.

use std::collections::BTreeSet;
use std::time::Duration;

use mete_proto::admin::v1::object::Object as Row;
use mete_proto::admin::v1::{Filter, KillTasksRequest, Kind, RemoveFrameworkRequest};
use mete_proto::types::v1::RunRef;

use crate::cli::support::client::{Cluster, admin};
use crate::cli::support::error::Outcome;

/// Longest time for all of it.
const LONGEST: Duration = Duration::from_secs(8);

/// From SIGTERM to SIGKILL.
const GRACE_MS: u64 = 500;

/// Between two looks.
const PAUSE: Duration = Duration::from_millis(50);

/// Tears every framework down and waits until no real task is left, not for ever.
pub async fn leave_nothing(cluster: &Cluster) {
    match tokio::time::timeout(LONGEST, leave(cluster)).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::warn!(error = %error.sentence, "tasks may be left behind"),
        Err(_late) => tracing::warn!("tasks are left behind: they did not end in time"),
    }
}

async fn leave(cluster: &Cluster) -> Outcome {
    let (_, frameworks) = cluster.list(Kind::Framework, Filter::default()).await?;
    for object in frameworks {
        let Some(Row::Framework(row)) = object.object else {
            continue;
        };
        if row.state == "torn_down" {
            continue;
        }
        let request = RemoveFrameworkRequest {
            framework: row.id,
            dry_run: false,
        };
        cluster
            .call(|channel| {
                let request = request.clone();
                async move { admin(channel).remove_framework(request).await }
            })
            .await?;
    }
    let (_, nodes) = cluster.list(Kind::Node, Filter::default()).await?;
    let real: BTreeSet<String> = nodes
        .into_iter()
        .filter_map(|object| match object.object {
            Some(Row::Node(node)) if !node.fake => Some(node.name),
            _ => None,
        })
        .collect();
    loop {
        let runs = live(cluster, &real).await?;
        if runs.is_empty() {
            return Ok(());
        }
        let request = KillTasksRequest {
            runs,
            grace_ms: Some(GRACE_MS),
            reason: "the cluster stops and keeps no state".to_owned(),
            dry_run: false,
        };
        cluster
            .call(|channel| {
                let request = request.clone();
                async move { admin(channel).kill_tasks(request).await }
            })
            .await?;
        tokio::time::sleep(PAUSE).await;
    }
}

async fn live(cluster: &Cluster, real: &BTreeSet<String>) -> Outcome<Vec<RunRef>> {
    let states = ["staging", "starting", "running", "finishing"]
        .map(str::to_owned)
        .to_vec();
    let filter = Filter {
        states,
        ..Filter::default()
    };
    let (_, tasks) = cluster.list(Kind::Task, filter).await?;
    let runs = tasks.into_iter().filter_map(|object| match object.object {
        Some(Row::Task(task)) if real.contains(&task.node) => Some(RunRef {
            framework_id: task.framework_id,
            run: task.run,
        }),
        _ => None,
    });
    Ok(runs.collect())
}
