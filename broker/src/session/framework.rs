//! What waits to be sent to one framework.
//!
//! Two queues: what is persisted (the snapshot, statuses, agents) leaves in order of revision;
//! offers travel on their own, so that a backlog of statuses never makes them stale. When the bytes
//! run out, statuses that are no ends are merged per run, then offers are dropped (the loop takes
//! them back), and at last statuses and agents' changes: from the first that finds no room on none
//! is taken, until the reader has caught up and the loop tells again what is owed.

use std::collections::{BTreeMap, VecDeque};

use mete_model::{OfferId, RunId};
use mete_proto::framework::v1::{Event, Heartbeat, Moved, Offers, Rescinded, event};
use prost::Message as _;

use super::outbox::{Outbox, Popped, Queue};

/// The outbox of one framework's stream.
pub type FrameworkOutbox = Outbox<FrameworkQueue>;

/// Events for one framework.
#[derive(Debug)]
pub struct FrameworkQueue {
    /// Subscribed, the snapshot and its end. Bounded by what the framework holds, not by bytes: a
    /// snapshot is whole or worth nothing.
    opening: VecDeque<Event>,
    /// Offers, rescinds, heartbeats.
    soft: VecDeque<Soft>,
    /// Statuses and agents' changes, in order of revision.
    firm: VecDeque<Firm>,
    /// Bytes of `soft` and `firm`.
    bytes: usize,
    most_bytes: usize,
    /// A status or an agent's change found no room, and the loop has not told it again yet.
    lagging: bool,
    drained: bool,
    ended: bool,
}

#[derive(Debug)]
struct Soft {
    event: Event,
    bytes: usize,
    offers: Vec<OfferId>,
}

#[derive(Debug)]
struct Firm {
    event: Event,
    bytes: usize,
    /// The run of a status that is no end.
    mergeable: Option<RunId>,
}

/// What became of an event that was put in.
#[derive(Debug, PartialEq, Eq)]
pub struct Put {
    /// It waits for the reader; false = dropped.
    pub queued: bool,
    /// Offers that were dropped to make room, never seen by the framework: take them back.
    pub dropped_offers: Vec<OfferId>,
}

impl Put {
    fn queued() -> Self {
        Self {
            queued: true,
            dropped_offers: Vec::new(),
        }
    }

    fn dropped() -> Self {
        Self {
            queued: false,
            dropped_offers: Vec::new(),
        }
    }
}

impl FrameworkQueue {
    /// An empty queue for at most `most_bytes`.
    #[must_use]
    pub fn new(most_bytes: usize) -> Self {
        Self {
            opening: VecDeque::new(),
            soft: VecDeque::new(),
            firm: VecDeque::new(),
            bytes: 0,
            most_bytes,
            lagging: false,
            drained: false,
            ended: false,
        }
    }

    /// Queues the opening events of the stream. Called once, before anything else.
    pub fn open(&mut self, events: impl IntoIterator<Item = Event>) {
        self.opening.extend(events);
    }

    /// Queues offers; without room they are dropped and named.
    pub fn push_offers(&mut self, offers: Offers, ids: Vec<OfferId>) -> Put {
        let event = soft_event(event::Event::Offers(offers));
        let bytes = event.encoded_len();
        if self.ended || self.lagging || self.bytes.saturating_add(bytes) > self.most_bytes {
            return Put {
                queued: false,
                dropped_offers: ids,
            };
        }
        self.push_soft(event, bytes, ids);
        Put::queued()
    }

    /// Queues a rescind. Without room it is dropped: every offer lapses by itself.
    pub fn push_rescinded(&mut self, rescinded: Rescinded) {
        let event = soft_event(event::Event::Rescinded(rescinded));
        let bytes = event.encoded_len();
        if !self.ended && self.bytes.saturating_add(bytes) <= self.most_bytes {
            self.push_soft(event, bytes, Vec::new());
        }
    }

    /// Queues a heartbeat in the place of one that still waits.
    pub fn push_heartbeat(&mut self, heartbeat: Heartbeat) {
        if self.ended {
            return;
        }
        let is_heartbeat =
            |soft: &Soft| matches!(soft.event.event, Some(event::Event::Heartbeat(_)));
        if let Some(at) = self.soft.iter().position(is_heartbeat)
            && let Some(old) = self.soft.remove(at)
        {
            self.bytes = self.bytes.saturating_sub(old.bytes);
        }
        let event = soft_event(event::Event::Heartbeat(heartbeat));
        let bytes = event.encoded_len();
        self.push_soft(event, bytes, Vec::new());
    }

    /// Queues a status or an agent's change. `mergeable` names the run of a status that is no end.
    pub fn push_firm(&mut self, event: Event, mergeable: Option<RunId>) -> Put {
        if self.ended || self.lagging {
            return Put::dropped();
        }
        let bytes = event.encoded_len();
        let mut dropped_offers = Vec::new();
        if self.bytes.saturating_add(bytes) > self.most_bytes {
            self.merge();
        }
        if self.bytes.saturating_add(bytes) > self.most_bytes {
            dropped_offers = self.drop_offers();
        }
        let fits = self.bytes.saturating_add(bytes) <= self.most_bytes || self.firm.is_empty();
        if fits {
            self.bytes = self.bytes.saturating_add(bytes);
            self.firm.push_back(Firm {
                event,
                bytes,
                mergeable,
            });
        } else {
            self.lagging = true;
        }
        Put {
            queued: fits,
            dropped_offers,
        }
    }

    /// The loop tells again what was dropped: statuses and agents' changes are taken again. Not
    /// before, or a reader would see later revisions than those it has to be told again.
    pub fn caught_up(&mut self) {
        self.lagging = false;
    }

    /// Queues a last event and ends the stream after it. What waits is dropped: statuses are owed,
    /// offers are the loop's to take back.
    pub fn end(&mut self, last: Moved) {
        if self.ended {
            return;
        }
        self.opening.clear();
        self.soft.clear();
        self.firm.clear();
        self.bytes = 0;
        self.opening
            .push_back(soft_event(event::Event::Moved(last)));
        self.ended = true;
    }

    /// Ends the stream without a word.
    pub fn close(&mut self) {
        self.opening.clear();
        self.soft.clear();
        self.firm.clear();
        self.bytes = 0;
        self.ended = true;
    }

    /// Bytes that wait, the opening not counted.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    fn push_soft(&mut self, event: Event, bytes: usize, offers: Vec<OfferId>) {
        self.bytes = self.bytes.saturating_add(bytes);
        self.soft.push_back(Soft {
            event,
            bytes,
            offers,
        });
    }

    /// Keeps the last of each run's statuses that are no ends, marked as coalesced.
    fn merge(&mut self) {
        let mut last: BTreeMap<RunId, usize> = BTreeMap::new();
        let mut merged: BTreeMap<RunId, ()> = BTreeMap::new();
        for (at, firm) in self.firm.iter().enumerate() {
            if let Some(run) = &firm.mergeable
                && last.insert(run.clone(), at).is_some()
            {
                merged.insert(run.clone(), ());
            }
        }
        if merged.is_empty() {
            return;
        }
        let firm = std::mem::take(&mut self.firm);
        for (at, mut entry) in firm.into_iter().enumerate() {
            if let Some(run) = &entry.mergeable
                && merged.contains_key(run)
            {
                self.bytes = self.bytes.saturating_sub(entry.bytes);
                if last.get(run) != Some(&at) {
                    continue;
                }
                if let Some(event::Event::Status(status)) = &mut entry.event.event {
                    status.coalesced = true;
                }
                entry.bytes = entry.event.encoded_len();
                self.bytes = self.bytes.saturating_add(entry.bytes);
            }
            self.firm.push_back(entry);
        }
    }

    fn drop_offers(&mut self) -> Vec<OfferId> {
        let mut dropped = Vec::new();
        let soft = std::mem::take(&mut self.soft);
        for entry in soft {
            if entry.offers.is_empty() {
                self.soft.push_back(entry);
            } else {
                self.bytes = self.bytes.saturating_sub(entry.bytes);
                dropped.extend(entry.offers);
            }
        }
        dropped
    }
}

fn soft_event(event: event::Event) -> Event {
    Event {
        revision: 0,
        event: Some(event),
    }
}

impl Queue for FrameworkQueue {
    type Item = Result<Event, tonic::Status>;

    fn pop(&mut self) -> Popped<Self::Item> {
        if let Some(event) = self.opening.pop_front() {
            return Popped::Item(Ok(event));
        }
        if let Some(soft) = self.soft.pop_front() {
            self.bytes = self.bytes.saturating_sub(soft.bytes);
            return Popped::Item(Ok(soft.event));
        }
        if let Some(firm) = self.firm.pop_front() {
            self.bytes = self.bytes.saturating_sub(firm.bytes);
            if self.firm.is_empty() && self.lagging {
                self.drained = true;
            }
            return Popped::Item(Ok(firm.event));
        }
        if self.ended {
            Popped::End
        } else {
            Popped::Empty
        }
    }

    fn take_drained(&mut self) -> bool {
        std::mem::take(&mut self.drained)
    }
}

#[cfg(test)]
mod tests;
