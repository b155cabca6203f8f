//! Layer 1: the events of a session as a stream.
//!
//! Offers travel on a queue of their own and come first, so that a backlog of statuses never makes
//! them stale; those that lapsed while they waited are dropped here. Everything else comes in the
//! order in which the broker sent it. A status is acknowledged by whoever handled it, with
//! [`crate::Session::acknowledge`].

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use mete_model::{AgentId, OfferId, Timestamp};
use tokio::sync::mpsc;
use tokio_stream::Stream;

use crate::core::Core;
use crate::error::Error;
use crate::offers::Offer;
use crate::task::{AgentCondition, ClaimInfo, RunInfo, TaskUpdate};

/// What the broker knows of this framework.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// Runs that are not over, or whose end was not acknowledged.
    pub runs: Vec<RunInfo>,
    /// Claims with what has been launched for them.
    pub claims: Vec<ClaimInfo>,
    /// Roles without offers.
    pub suppressed_roles: Vec<String>,
    /// The point in the broker's log that this is the state of.
    pub revision: u64,
}

/// The stream is open, and this is where things stand.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Connected {
    /// The broker knew this framework before: its tasks may be running.
    pub resumed: bool,
    /// Everything there is. What is not acknowledged follows as updates.
    pub snapshot: Snapshot,
}

/// Offers that no longer stand.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rescinded {
    /// Which.
    pub offers: Vec<OfferId>,
    /// Why: `AGENT`, `ROLE_LEFT`, `SUPPRESSED`, `CLAIM_WITHDRAWN`, `LEADER_CHANGE` …
    pub reason: String,
}

/// An agent that holds runs of this framework is in another condition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AgentChanged {
    /// Which.
    pub agent: AgentId,
    /// Its node's name.
    pub node: String,
    /// How it is now.
    pub condition: AgentCondition,
    /// Since when.
    pub since: Timestamp,
    /// Its topology.
    pub topology_epoch: u64,
}

/// One event of a session.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Event {
    /// The stream is open, first or again.
    Connected(Connected),
    /// Offers that stand at this moment.
    Offers(Vec<Offer>),
    /// Offers that no longer stand.
    Rescinded(Rescinded),
    /// A status of a run; acknowledge it once it is dealt with.
    Update(TaskUpdate),
    /// An agent is in another condition.
    AgentChanged(AgentChanged),
    /// The stream is lost; the session is opening another one.
    Disconnected(String),
    /// The session is over; nothing comes after it.
    Closed(Error),
}

/// The events of one session. Dropping it does not close the session.
#[derive(Debug)]
pub struct Events {
    core: Arc<Core>,
    items: mpsc::Receiver<Event>,
    offer_bell: mpsc::Receiver<()>,
    /// Taken from `items` while looking for more updates, and still to be handed over.
    put_back: VecDeque<Event>,
}

impl Events {
    pub(crate) fn new(
        core: Arc<Core>,
        items: mpsc::Receiver<Event>,
        offer_bell: mpsc::Receiver<()>,
    ) -> Self {
        Self {
            core,
            items,
            offer_bell,
            put_back: VecDeque::new(),
        }
    }

    /// The next event; `None` after [`Event::Closed`].
    pub async fn next(&mut self) -> Option<Event> {
        std::future::poll_fn(|cx| self.poll_event(cx)).await
    }

    /// Updates that are there already, so that they can be dealt with together.
    pub fn ready_updates(&mut self, most: usize) -> Vec<TaskUpdate> {
        let mut updates = Vec::new();
        while updates.len() < most {
            let event = match self.put_back.pop_front() {
                Some(event) => event,
                None => match self.items.try_recv() {
                    Ok(event) => event,
                    Err(_) => break,
                },
            };
            if let Event::Update(update) = event {
                self.core.view().hand_over(&update);
                updates.push(update);
            } else {
                self.put_back.push_front(event);
                break;
            }
        }
        updates
    }

    fn poll_event(&mut self, cx: &mut Context<'_>) -> Poll<Option<Event>> {
        // The bell first: it registers the waker before the queue is looked at.
        while let Poll::Ready(Some(())) = self.offer_bell.poll_recv(cx) {}
        let offers = self.core.offers.take();
        if !offers.is_empty() {
            return Poll::Ready(Some(Event::Offers(offers)));
        }
        if let Some(event) = self.put_back.pop_front() {
            return Poll::Ready(Some(self.hand_over(event)));
        }
        match self.items.poll_recv(cx) {
            Poll::Ready(Some(event)) => Poll::Ready(Some(self.hand_over(event))),
            Poll::Ready(None) => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        }
    }

    fn hand_over(&self, event: Event) -> Event {
        if let Event::Update(update) = &event {
            self.core.view().hand_over(update);
        }
        event
    }
}

impl Stream for Events {
    type Item = Event;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Event>> {
        self.get_mut().poll_event(cx)
    }
}
