//! Acknowledges statuses: one call for many, and whatever is handled meanwhile goes into the next.
//!
//! Whatever the broker says short of the session's end, what was handled is kept and sent again,
//! with pauses of 5 s at the most and at once on a new stream: one item for each run, so that there
//! are never more than the framework has runs. Only an item that the broker calls wrong is dropped.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use mete_model::{Code, RunId};
use mete_proto::convert::write_run;
use mete_proto::framework::v1 as fw;
use mete_proto::types::v1::Verdict;

use crate::calls::ask;
use crate::core::{Backoff, Core, LinkState, locked};
use crate::error::{Error, Reason};
use crate::wire;

/// A run, and up to which of its statuses it was handled.
type Item = (RunId, u64);

/// Items in one call; with the longest task ids about 1 MiB.
const MOST_ITEMS: usize = 4_096;

#[derive(Debug, Default)]
pub(crate) struct AcknowledgeQueue {
    /// Highest sequence for each run; cumulative, so the highest is enough.
    items: BTreeMap<RunId, u64>,
    sending: bool,
}

impl AcknowledgeQueue {
    fn note(&mut self, run: RunId, sequence: u64) {
        let highest = self.items.entry(run).or_default();
        *highest = (*highest).max(sequence);
    }
}

/// Notes that `run` was handled up to `sequence` and sends it soon.
pub(crate) fn acknowledge(core: &Arc<Core>, items: impl IntoIterator<Item = (RunId, u64)>) {
    let mut queue = locked(&core.acknowledge);
    for (run, sequence) in items {
        queue.note(run, sequence);
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
    let mut backoff = Backoff::default();
    while let Some(items) = next_items(&core) {
        if let Err((error, kept)) = send(&core, items).await {
            let count = kept.len();
            tracing::warn!(%error, count, "statuses not acknowledged yet; they will be again");
            put_back(&core, kept);
            pause(&core, backoff.next()).await;
        } else {
            backoff.reset();
        }
    }
    core.acknowledged_all.notify_waiters();
}

/// Sends these. What the broker has not taken for now comes back with the reason.
async fn send(core: &Arc<Core>, items: Vec<Item>) -> Result<(), (Error, Vec<Item>)> {
    let mut parts = vec![items];
    while let Some(mut part) = parts.pop() {
        match ask(core, request(&part)).await {
            Ok(answer) => {
                let later = settle(core, part, answer.items);
                if !later.is_empty() {
                    let detail = "some items were refused for now";
                    let error = Error::Unavailable(Reason::new(Code::Busy, detail));
                    return Err((error, later.into_iter().chain(parts.concat()).collect()));
                }
            }
            // Nothing is owed to anybody any more.
            Err(error) if error.is_final() => return Ok(()),
            // One that is wrong must not hold up the others; alone it will not get better.
            Err(error @ Error::Invalid(_)) => {
                if let [(run, sequence)] = part.as_slice() {
                    tracing::error!(%run, sequence, %error, "a status cannot be acknowledged");
                    continue;
                }
                let half = part.split_off(part.len() / 2);
                parts.extend([half, part]);
            }
            Err(error) => {
                part.extend(parts.concat());
                return Err((error, part));
            }
        }
    }
    Ok(())
}

fn request(items: &[Item]) -> fw::AcknowledgeRequest {
    let items = items.iter().map(|(run, sequence)| fw::RunSequence {
        run: Some(write_run(run)),
        sequence: *sequence,
    });
    fw::AcknowledgeRequest {
        header: None,
        items: items.collect(),
    }
}

/// Notes what was acknowledged; gives what is to come again.
fn settle(core: &Core, items: Vec<Item>, verdicts: Vec<Verdict>) -> Vec<Item> {
    let mut later = Vec::new();
    let mut verdicts = verdicts.into_iter();
    let mut view = core.view();
    for (run, sequence) in items {
        // An answer without verdicts means all of it.
        let refused = verdicts
            .next()
            .and_then(|verdict| wire::verdict_from(Some(verdict)).err());
        let code = refused.as_ref().and_then(Reason::known_code);
        match refused {
            Some(_) if code.is_some_and(Code::is_retryable) => later.push((run, sequence)),
            // Runs that the broker does not know any more need no acknowledgement either.
            Some(reason) if code != Some(Code::NotFound) => {
                tracing::error!(%run, sequence, %reason, "a status cannot be acknowledged");
            }
            Some(_) | None => view.acknowledged(&run, sequence),
        }
    }
    later
}

/// Waits for so long, or until the stream is open anew.
async fn pause(core: &Core, pause: Duration) {
    let present = match &*core.link.borrow() {
        LinkState::Up(link) => link.generation,
        LinkState::Down | LinkState::Closed(_) => 0,
    };
    // Either way it is time.
    drop(tokio::time::timeout(pause, core.link_after(present)).await);
}

fn put_back(core: &Core, items: Vec<Item>) {
    let mut queue = locked(&core.acknowledge);
    for (run, sequence) in items {
        queue.note(run, sequence);
    }
}

fn next_items(core: &Core) -> Option<Vec<Item>> {
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
