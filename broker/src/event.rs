//! Everything that may enter the loop.
//!
//! Time is part of the input: a [`Turn`] says what both clocks show, so that a thread with real
//! clocks, a task on virtual time and a simulator drive the same loop.

use std::fmt;
use std::sync::Arc;

use mete_model::{FrameworkId, Inventory, Status, Timestamp};
use mete_state::command::{AdmitAgent, FrameworkSettings};
use tokio::sync::oneshot;

use crate::master::Master;
use crate::replica::Received;
use crate::request::{Refusal, Reply, Request};
use crate::session::agent::AgentOutbox;
use crate::session::framework::FrameworkOutbox;

/// One stream of an agent, for as long as it is open.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LinkId(pub u64);

/// One stream of a framework, for as long as it is open.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StreamId(pub u64);

/// Milliseconds of a clock that never jumps, from an arbitrary start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Monotonic(pub u64);

impl Monotonic {
    /// So many milliseconds later.
    #[must_use]
    pub fn after(self, milliseconds: u64) -> Self {
        Self(self.0.saturating_add(milliseconds))
    }

    /// Milliseconds since `earlier`.
    #[must_use]
    pub fn since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

/// What enters one turn of the loop.
#[derive(Debug, Default)]
pub struct Turn {
    /// The wall clock.
    pub now: Timestamp,
    /// The clock that never jumps.
    pub monotonic: Monotonic,
    /// A tick of the replica is due.
    pub tick: bool,
    /// In order of arrival.
    pub events: Vec<Event>,
}

/// Where the answer to a call goes.
pub type ReplyTo = oneshot::Sender<Result<Reply, Refusal>>;

/// Where the answer to a subscription goes: the stream may begin, or why not.
pub type SubscribeTo = oneshot::Sender<Result<FrameworkId, Refusal>>;

/// One thing that happened outside.
pub enum Event {
    /// A call.
    Call {
        /// What is asked.
        request: Request,
        /// Where the answer goes.
        reply: ReplyTo,
    },
    /// An agent's stream is open and has said hello.
    AgentHello {
        /// The stream.
        link: LinkId,
        /// Its hello; the id in it is ignored.
        hello: Box<AdmitAgent>,
        /// Where messages to it go.
        outbox: Arc<AgentOutbox>,
    },
    /// Statuses from an agent, checked, in order.
    AgentStatuses {
        /// The stream.
        link: LinkId,
        /// In order per run.
        statuses: Vec<(FrameworkId, Status)>,
    },
    /// The agent's work loop is alive.
    AgentBeacon {
        /// The stream.
        link: LinkId,
        /// Rises with each turn of the agent's loop.
        progress: u64,
    },
    /// The agent's hardware has changed.
    AgentInventory {
        /// The stream.
        link: LinkId,
        /// What it has now.
        inventory: Box<Inventory>,
    },
    /// The agent's outbox was full and is empty again: what is owed may be sent.
    AgentDrained {
        /// The stream.
        link: LinkId,
    },
    /// The agent's stream is over.
    AgentClosed {
        /// The stream.
        link: LinkId,
    },
    /// A framework asks for its stream.
    Subscribe {
        /// The stream.
        stream: StreamId,
        /// Who and what.
        request: Box<SubscribeRequest>,
        /// Where events to it go.
        outbox: Arc<FrameworkOutbox>,
        /// Where the answer goes.
        reply: SubscribeTo,
    },
    /// The framework's outbox was full and is empty again: what is owed may be sent.
    StreamDrained {
        /// The stream.
        stream: StreamId,
    },
    /// The framework's stream is over.
    StreamClosed {
        /// The stream.
        stream: StreamId,
    },
    /// Something of another master.
    Peer(PeerEvent),
    /// A look at the loop between two turns.
    Look(Look),
    /// The process is about to end: flush, say goodbye, take no new calls.
    Stop,
}

/// What happened between this master and another one.
pub enum PeerEvent {
    /// Another master has connected here and said who it is.
    Hello(PeerFacts),
    /// Frames of another master, in order; their length is checked.
    Frames {
        /// Who sent them.
        from: u64,
        /// Each for the replica.
        frames: Vec<Vec<u8>>,
    },
    /// Nothing reaches that master at the moment.
    Unreachable {
        /// Its node id.
        node: u64,
    },
    /// The sending of a snapshot has ended.
    SnapshotSent {
        /// The receiving master.
        to: u64,
        /// The snapshot's index.
        index: u64,
        /// It has it whole.
        finished: bool,
    },
    /// A snapshot has arrived whole from the leader.
    SnapshotReceived {
        /// The file and its announcement.
        received: Box<Received>,
        /// Told after the turn that took it in.
        taken: oneshot::Sender<()>,
    },
    /// A member says that this master was taken out of the cluster.
    Removed {
        /// Who says so.
        by: u64,
    },
}

/// What a master says of itself to another one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerFacts {
    /// Its node id.
    pub node: u64,
    /// Where it is dialled, `host:port`.
    pub address: String,
    /// Its release.
    pub version: String,
    /// The highest level its release knows.
    pub level: u32,
}

/// A look at the loop; runs on the loop's thread, so it must be short.
pub struct Look(pub Box<dyn FnOnce(&Master) + Send>);

/// Who subscribes, with what.
#[derive(Clone, Debug)]
pub struct SubscribeRequest {
    /// As authenticated.
    pub principal: String,
    /// 1 to 128 characters.
    pub name: String,
    /// 0 = a new process.
    pub incarnation: u64,
    /// The last revision this process has seen; 0 = it has seen nothing.
    pub resume_revision: u64,
    /// Roles and the rest.
    pub settings: FrameworkSettings,
}

impl fmt::Debug for Look {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Look")
    }
}

impl fmt::Debug for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Call { request, .. } => f.debug_tuple("Call").field(request).finish(),
            Self::AgentHello { link, hello, .. } => {
                write!(f, "AgentHello({link:?}, {})", hello.node_name)
            }
            Self::AgentStatuses { link, statuses } => {
                write!(f, "AgentStatuses({link:?}, {})", statuses.len())
            }
            Self::AgentBeacon { link, progress } => write!(f, "AgentBeacon({link:?}, {progress})"),
            Self::AgentInventory { link, .. } => write!(f, "AgentInventory({link:?})"),
            Self::AgentDrained { link } => write!(f, "AgentDrained({link:?})"),
            Self::AgentClosed { link } => write!(f, "AgentClosed({link:?})"),
            Self::Subscribe {
                stream, request, ..
            } => write!(f, "Subscribe({stream:?}, {})", request.name),
            Self::StreamDrained { stream } => write!(f, "StreamDrained({stream:?})"),
            Self::StreamClosed { stream } => write!(f, "StreamClosed({stream:?})"),
            Self::Peer(peer) => peer.fmt(f),
            Self::Look(_) => f.write_str("Look"),
            Self::Stop => f.write_str("Stop"),
        }
    }
}

impl fmt::Debug for PeerEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Hello(facts) => write!(f, "PeerHello({})", facts.node),
            Self::Frames { from, frames } => {
                write!(f, "PeerFrames({from}, {})", frames.len())
            }
            Self::Unreachable { node } => write!(f, "PeerUnreachable({node})"),
            Self::SnapshotSent { to, finished, .. } => {
                write!(f, "SnapshotSent({to}, {finished})")
            }
            Self::SnapshotReceived { received, .. } => {
                write!(f, "SnapshotReceived({})", received.manifest.file)
            }
            Self::Removed { by } => write!(f, "RemovedByPeer({by})"),
        }
    }
}
