//! Changes after a revision: misses nothing, repeats nothing.
//!
//! A watch walks along the [`Feed`] at its own pace and resolves each changed object from the state
//! as it is then. A change whose object has changed again since is passed: the later entry carries
//! it. What a slow reader costs is one message in flight; when it does not take that in time it is
//! told where to go on, and when the feed has forgotten that place, that it must list again.

use std::collections::BTreeSet;
use std::time::Duration;

use mete_proto::admin::v1 as wire;
use mete_state::{Change, State};
use prost::Message;

use super::feed::{Batch, Place};
use super::filter::{Filter, Match};
use super::rows::{self, RoleSums};
use super::{Feed, Problem};
use crate::handle::Handle;

/// Changes resolved under one lock.
const CHANGES: usize = 500;

/// Bytes after which a message is sent although more is there.
const MESSAGE_BYTES: usize = 1 << 20;

/// How often a watch waits for the feed to have what the state has.
const PATIENCE: usize = 20;

/// Without changes, progress is sent so often: a reader learns that its revision is still good.
pub const PROGRESS: Duration = Duration::from_secs(10);

/// One watch.
#[derive(Debug)]
pub struct Watch {
    kinds: BTreeSet<i32>,
    filter: Filter,
    /// Nothing up to here is sent.
    from: u64,
    place: Place,
    /// Everything up to here has been sent.
    sent: u64,
}

impl Watch {
    /// Begins a watch of `kinds` (empty = all) after `from`, or from now.
    ///
    /// # Errors
    /// [`Problem::Compacted`].
    pub fn begin(
        handle: &Handle,
        feed: &Feed,
        kinds: BTreeSet<i32>,
        filter: Filter,
        from: Option<u64>,
    ) -> Result<Self, Problem> {
        let from = match from {
            Some(revision) => revision,
            None => handle.state().revision(),
        };
        let place = feed
            .place_after(from)
            .map_err(|compacted| Problem::compacted(from, compacted))?;
        Ok(Self {
            kinds,
            filter,
            from,
            place,
            sent: from,
        })
    }

    /// Everything up to here has been given.
    #[must_use]
    pub fn sent(&self) -> u64 {
        self.sent
    }

    /// Waits for the next message.
    ///
    /// # Errors
    /// [`Problem::Compacted`] when the reader was too slow for the feed.
    pub async fn next(
        &mut self,
        handle: &Handle,
        feed: &Feed,
    ) -> Result<wire::WatchResponse, Problem> {
        let mut latest = feed.latest();
        loop {
            latest.mark_unchanged();
            let (message, at_end) = self.step(handle, feed, &mut latest).await?;
            let progressed = message.revision > self.sent;
            self.sent = self.sent.max(message.revision);
            if !message.put.is_empty() || !message.removed.is_empty() {
                return Ok(message);
            }
            if !at_end {
                tokio::task::yield_now().await;
                continue;
            }
            let waited = tokio::time::timeout(PROGRESS, latest.changed()).await;
            if progressed && waited.is_err() {
                return Ok(message);
            }
            if matches!(waited, Ok(Err(_))) {
                let detail = "this master is ending; watch another one from the last revision";
                return Err(Problem::refused(mete_model::Code::NoLeader, detail));
            }
            if waited.is_err() {
                return Ok(wire::WatchResponse {
                    revision: self.sent,
                    ..wire::WatchResponse::default()
                });
            }
        }
    }

    /// One batch of changes as a message, and whether the feed ends there.
    async fn step(
        &mut self,
        handle: &Handle,
        feed: &Feed,
        latest: &mut tokio::sync::watch::Receiver<u64>,
    ) -> Result<(wire::WatchResponse, bool), Problem> {
        for _ in 0..PATIENCE {
            {
                let state = handle.state();
                // Else a batch is applied and not told yet: its objects would be sent twice.
                if feed.revision() >= state.revision() {
                    return self.resolve(&state, feed);
                }
            }
            // It is told within the same turn of the loop; the timeout is for one that ended.
            let soon = Duration::from_millis(100);
            drop(tokio::time::timeout(soon, latest.changed()).await);
        }
        self.resolve(&handle.state(), feed)
    }

    fn resolve(
        &mut self,
        state: &State,
        feed: &Feed,
    ) -> Result<(wire::WatchResponse, bool), Problem> {
        let Batch {
            entries,
            next,
            complete,
            at_end,
        } = feed
            .changes(self.place, CHANGES)
            .map_err(|compacted| Problem::compacted(self.sent, compacted))?;
        let mut message = wire::WatchResponse {
            revision: complete.max(self.from),
            ..wire::WatchResponse::default()
        };
        let sums = if entries
            .iter()
            .any(|(_, change)| matches!(change, Change::Role(_)))
        {
            RoleSums::of(state)
        } else {
            RoleSums::default()
        };
        for (revision, change) in &entries {
            if *revision > self.from && self.is_wanted(change) {
                self.add(state, feed, (*revision, change), &sums, &mut message);
            }
        }
        self.place = next;
        Ok((message, at_end))
    }

    fn is_wanted(&self, change: &Change) -> bool {
        let kind = match change {
            Change::Agent(_) => wire::Kind::Node,
            Change::Framework(_) => wire::Kind::Framework,
            Change::Role(_) => wire::Kind::Role,
            Change::Claim(..) => wire::Kind::Claim,
            Change::Run(..) => wire::Kind::Task,
            Change::Master(_) => return false,
        };
        self.kinds.is_empty() || self.kinds.contains(&kind.into())
    }

    fn add(
        &self,
        state: &State,
        feed: &Feed,
        (revision, change): (u64, &Change),
        sums: &RoleSums<'_>,
        message: &mut wire::WatchResponse,
    ) {
        if let Change::Run(framework, run) = change {
            let live = state.run(*framework, run);
            let known = live.or_else(|| state.past_run(*framework, run));
            if known.is_some_and(|run| {
                run.revision > revision || self.filter.rules_out(state, run) && !self.may_vanish()
            }) {
                return;
            }
        }
        match rows::resolve(state, feed, change, sums) {
            None => message.removed.push(rows::key(state, feed, change)),
            Some(row) => match self.filter.on(&row) {
                Match::Yes => message.put.push(row),
                // It may have been among the rows of this reader.
                Match::NotNow => message.removed.push(rows::key(state, feed, change)),
                Match::Never => {}
            },
        }
    }

    /// The filter goes by something that changes.
    fn may_vanish(&self) -> bool {
        !self.filter.wire.states.is_empty() || !self.filter.wire.labels.is_empty()
    }
}

/// Parts of a message small enough to be sent; only the last carries the revision as complete.
#[must_use]
pub fn cut(message: wire::WatchResponse, sent: u64) -> Vec<wire::WatchResponse> {
    if message.encoded_len() <= MESSAGE_BYTES {
        return vec![message];
    }
    let mut parts = vec![wire::WatchResponse {
        revision: sent,
        ..wire::WatchResponse::default()
    }];
    let mut bytes = 0;
    for row in message.put {
        let size = row.encoded_len();
        if bytes + size > MESSAGE_BYTES && bytes > 0 {
            bytes = 0;
            parts.push(wire::WatchResponse {
                revision: sent,
                ..wire::WatchResponse::default()
            });
        }
        bytes += size;
        if let Some(part) = parts.last_mut() {
            part.put.push(row);
        }
    }
    if let Some(last) = parts.last_mut() {
        last.revision = message.revision;
        last.removed = message.removed;
    }
    parts
}
