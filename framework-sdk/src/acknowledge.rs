//! Acknowledges statuses: one call for many, and whatever is handled meanwhile goes into the next.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use mete_model::RunId;
use mete_proto::framework::v1 as fw;

use crate::calls::ask;
use crate::core::{Core, locked};
use crate::wire;

/// Items in one call; with the longest task ids about 1 MiB.
const MOST_ITEMS: usize = 4_096;

#[derive(Debug, Default)]
pub(crate) struct AcknowledgeQueue {
    /// Highest sequence for each run; cumulative, so the highest is enough.
    items: BTreeMap<RunId, u64>,
    sending: bool,
}

/// Notes that `run` was handled up to `sequence` and sends it soon.
pub(crate) fn acknowledge(core: &Arc<Core>, items: impl IntoIterator<Item = (RunId, u64)>) {
    let mut queue = locked(&core.acknowledge);
    for (run, sequence) in items {
        let highest = queue.items.entry(run).or_default();
        *highest = (*highest).max(sequence);
    }
    if !queue.sending && !queue.items.is_empty() {
        queue.sending = true;
        drop(queue);
        tokio::spawn(send_all(Arc::clone(core)));
    }
}

/// Waits until everything handled so far is acknowledged, or the time is over.
pub(crate) async fn flush(core: &Arc<Core>, longest: Duration) {
    let all = async {
        loop {
            let rung = core.acknowledged_all.notified();
            if !locked(&core.acknowledge).sending {
                return;
            }
            rung.await;
        }
    };
    if tokio::time::timeout(longest, all).await.is_err() {
        tracing::warn!("some handled statuses could not be acknowledged; they will come again");
    }
}

async fn send_all(core: Arc<Core>) {
    while let Some(items) = next_items(&core) {
        let request = fw::AcknowledgeRequest {
            header: None,
            items: items
                .iter()
                .map(|(run, sequence)| fw::RunSequence {
                    run: Some(wire::run_to(run)),
                    sequence: *sequence,
                })
                .collect(),
        };
        match ask(&core, request).await {
            // Runs that the broker does not know any more need no acknowledgement either.
            Ok(_) => {
                let mut view = core.view();
                for (run, sequence) in &items {
                    view.acknowledged(run, *sequence);
                }
            }
            Err(error) if error.is_final() => {}
            Err(error) => {
                tracing::warn!(%error, count = items.len(), "statuses not acknowledged");
            }
        }
    }
    core.acknowledged_all.notify_waiters();
}

fn next_items(core: &Core) -> Option<Vec<(RunId, u64)>> {
    let mut queue = locked(&core.acknowledge);
    let mut items = Vec::new();
    while items.len() < MOST_ITEMS {
        match queue.items.pop_first() {
            Some(item) => items.push(item),
            None => break,
        }
    }
    queue.sending = !items.is_empty();
    queue.sending.then_some(items)
}
