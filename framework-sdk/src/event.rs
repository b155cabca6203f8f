//! Layer 1: the events of a session as a stream.
//!
//! Offers travel on a queue of their own and come first, so that a backlog of statuses never makes
//! them stale; they never overtake [`Event::Connected`], and those that lapsed while they waited
//! are dropped here. Everything else comes in the order in which the broker sent it. A status is
//! acknowledged by whoever handled it, with [`crate::Session::acknowledge`].

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use mete_model::{AgentId, OfferId, RunId, Timestamp};
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
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Connected {
    /// The broker knew this framework before: its tasks may be running.
    pub resumed: bool,
    /// Everything there is. What is not acknowledged follows as updates.
    pub snapshot: Snapshot,
}

/// Offers that no longer stand.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
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

/// Runs whose agent has been unreachable for as long as their specs say: a launch may take the
/// place of each. Told again by every snapshot, until it was replaced, is over, or its agent is
/// back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Replaceable {
    /// Their agent.
    pub agent: AgentId,
    /// Since when.
    pub since: Timestamp,
    /// Which.
    pub runs: Vec<RunId>,
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
    /// Runs may be replaced.
    Replaceable(Replaceable),
    /// The stream is lost; the session is opening another one.
    Disconnected(String),
    /// The session is over; nothing comes after it.
    Closed(Error),
}

/// The events of one session. Dropping it does not close the session: its calls still work, and
/// whatever is not handled stays owed.
#[derive(Debug)]
pub struct Events {
    core: Arc<Core>,
    /// Rings when an offer or another event was put in.
    bell: mpsc::Receiver<()>,
    over: bool,
}

impl Events {
    pub(crate) fn new(core: Arc<Core>, bell: mpsc::Receiver<()>) -> Self {
        Self {
            core,
            bell,
            over: false,
        }
    }

    /// The next event; `None` after [`Event::Closed`].
    pub async fn next(&mut self) -> Option<Event> {
        std::future::poll_fn(|cx| self.poll_event(cx)).await
    }

    /// Updates that are there already, so that they can be dealt with together; `most` at the most,
    /// and none behind an event of another kind.
    pub fn ready_updates(&mut self, most: usize) -> Vec<TaskUpdate> {
        let updates = self.core.events.pop_updates(most);
        let mut view = self.core.view();
        for update in &updates {
            view.hand_over(update);
        }
        updates
    }

    fn poll_event(&mut self, cx: &mut Context<'_>) -> Poll<Option<Event>> {
        if self.over {
            return Poll::Ready(None);
        }
        // The bell first: it registers the waker before the queues are looked at.
        while let Poll::Ready(Some(())) = self.bell.poll_recv(cx) {}
        if !self.core.events.has_opening() {
            let offers = self.core.offers.take();
            if !offers.is_empty() {
                return Poll::Ready(Some(Event::Offers(offers)));
            }
        }
        let Some(event) = self.core.events.pop() else {
            return Poll::Pending;
        };
        if let Event::Update(update) = &event {
            self.core.view().hand_over(update);
        }
        self.over = matches!(event, Event::Closed(_));
        Poll::Ready(Some(event))
    }
}

impl Drop for Events {
    fn drop(&mut self) {
        self.core.events.close();
    }
}

impl Stream for Events {
    type Item = Event;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Event>> {
        self.get_mut().poll_event(cx)
    }
}
