//! Declares claims: one update at a time, and whatever was asked for meanwhile goes into the next.
//!
//! Declaring what is already declared sends nothing. When a merged update is refused, each part is
//! sent alone, so that everybody hears about their own claim only.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use mete_model::{ClaimId, Code};
use mete_proto::convert::write_claim;
use mete_proto::framework::v1 as fw;
use prost::Message as _;
use tokio::sync::oneshot;

use crate::calls::ask;
use crate::core::{Core, locked};
use crate::error::{Error, Result};

/// Parts merged into one update stay below this, far from the largest message.
const MERGED_BYTES: usize = 512 << 10;

/// Times that a version may turn out to be too low before the caller hears of it.
const VERSION_TRIES: u32 = 5;

/// Claims to put and claims to withdraw, in one step.
#[derive(Clone, Debug, Default)]
pub(crate) struct Change {
    pub(crate) upsert: Vec<mete_model::Claim>,
    pub(crate) remove: Vec<ClaimId>,
}

#[derive(Debug)]
struct Part {
    change: Change,
    done: oneshot::Sender<Result<()>>,
}

#[derive(Debug, Default)]
pub(crate) struct DemandQueue {
    parts: VecDeque<Part>,
    sending: bool,
}

/// Returns once the broker has the change.
pub(crate) async fn declare(core: &Arc<Core>, change: Change) -> Result<()> {
    let (done, heard) = oneshot::channel();
    {
        let mut queue = locked(&core.demand);
        queue.parts.push_back(Part { change, done });
        if !queue.sending {
            queue.sending = true;
            tokio::spawn(send_all(Arc::clone(core)));
        }
    }
    heard.await.unwrap_or(Err(Error::Closed))
}

async fn send_all(core: Arc<Core>) {
    while let Some(parts) = next_parts(&core) {
        let merged = merge(parts.iter().map(|part| &part.change));
        match send(&core, merged).await {
            Err(error) if parts.len() > 1 && !error.is_final() => {
                for part in parts {
                    let alone = merge(std::iter::once(&part.change));
                    let _ = part.done.send(send(&core, alone).await);
                }
            }
            answer => {
                for part in parts {
                    let _ = part.done.send(answer.clone());
                }
            }
        }
    }
}

/// The parts of the next update; `None` ends the sending.
fn next_parts(core: &Core) -> Option<Vec<Part>> {
    let mut queue = locked(&core.demand);
    let mut parts = Vec::new();
    let mut bytes = 0;
    // Whoever gave up before their change was sent has taken it back: none pile up meanwhile.
    queue.parts.retain(|part| !part.done.is_closed());
    while let Some(part) = queue.parts.front() {
        bytes += size(&part.change);
        if !parts.is_empty() && bytes > MERGED_BYTES {
            break;
        }
        parts.extend(queue.parts.pop_front());
    }
    queue.sending = !parts.is_empty();
    queue.sending.then_some(parts)
}

fn size(change: &Change) -> usize {
    let put: usize = change
        .upsert
        .iter()
        .map(|claim| write_claim(claim).encoded_len())
        .sum();
    let removed: usize = change.remove.iter().map(|id| id.as_str().len()).sum();
    put + removed
}

/// Later parts win over earlier ones about the same claim.
fn merge<'a>(
    changes: impl Iterator<Item = &'a Change>,
) -> BTreeMap<ClaimId, Option<mete_model::Claim>> {
    let mut merged = BTreeMap::new();
    for change in changes {
        for claim in &change.upsert {
            merged.insert(claim.id.clone(), Some(claim.clone()));
        }
        for id in &change.remove {
            merged.insert(id.clone(), None);
        }
    }
    merged
}

async fn send(
    core: &Arc<Core>,
    mut merged: BTreeMap<ClaimId, Option<mete_model::Claim>>,
) -> Result<()> {
    // Only after the first snapshot is it known what is declared already, and at which version.
    core.link_after(0).await?;
    {
        let view = core.view();
        merged.retain(|id, claim| view.claim(id).map(|info| &info.claim) != claim.as_ref());
    }
    if merged.is_empty() {
        return Ok(());
    }
    let mut upsert = Vec::new();
    let mut remove = Vec::new();
    for (id, claim) in merged {
        match claim {
            Some(claim) => upsert.push(claim),
            None => remove.push(id),
        }
    }
    let mut raise = 1;
    for attempt in 1.. {
        let version = core.view().demand_version.saturating_add(raise);
        let request = fw::UpdateDemandRequest {
            header: None,
            version,
            upsert: upsert.iter().map(write_claim).collect(),
            remove: remove.iter().map(ToString::to_string).collect(),
        };
        match ask(core, request).await {
            Ok(answer) => {
                let mut view = core.view();
                view.demand_version = view.demand_version.max(answer.version);
                view.declared(&upsert, &remove);
                return Ok(());
            }
            Err(Error::Refused(reason))
                if reason.is(Code::StaleDemand) && attempt < VERSION_TRIES =>
            {
                // The next heartbeat tells the version; until then, well past it.
                raise = raise.saturating_mul(16);
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
