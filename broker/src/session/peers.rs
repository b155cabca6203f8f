//! The ways to the other masters: one connection for each, and transfers of snapshots.
//!
//! The loop puts messages into bounded boxes in the middle of its turn; a task for each other
//! master takes them out and sends them in batches. What finds no room, or nobody at the other end,
//! is dropped and the loop is told: the log's protocol sends again.

mod arriving;
mod link;
mod transfer;

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};

use mete_proto::dial::SharedDial;
use mete_proto::internal::v1 as wire;
use prost::bytes::Bytes;
use tokio::runtime::Handle as Runtime;
use tokio::sync::{Notify, watch};
use tokio::task::AbortHandle;

use crate::event::PeerFacts;
use crate::handle::Handle;
use crate::replica::{FRAME_LIMIT, Outgoing};
use crate::store::ClusterId;

pub use arriving::{Arrivals, Arriving, Offer};

/// The largest message between masters: a full frame and what is around it.
pub const MESSAGE_BYTES: usize = FRAME_LIMIT + (1 << 20);

/// The most bytes that wait for one other master.
const BOX_BYTES: usize = 32 << 20;

/// Bytes of a batch at which no more frames join it.
const BATCH_BYTES: usize = 1 << 20;

/// Where the loop puts what is for other masters. Called in the middle of a turn: must not block,
/// and may drop, since the protocol sends again.
pub trait Outlet: Send {
    /// One message or snapshot for another master.
    fn send(&mut self, outgoing: Outgoing);

    /// Where each master is dialled, by node id, this one included. Replaces what was known.
    fn directory(&mut self, addresses: &BTreeMap<u64, String>);
}

/// Nobody is there: a master that is alone.
#[derive(Debug, Default)]
pub struct Nobody;

impl Outlet for Nobody {
    fn send(&mut self, _outgoing: Outgoing) {}

    fn directory(&mut self, _addresses: &BTreeMap<u64, String>) {}
}

/// What every way out needs to know.
#[derive(Clone, Debug)]
pub struct Way {
    /// The door to our own loop, for what becomes of it.
    pub handle: Handle,
    /// How connections are opened.
    pub dial: SharedDial,
    /// The cluster.
    pub cluster: ClusterId,
    /// What this master says of itself.
    pub own: PeerFacts,
}

impl Way {
    fn hello(&self, to: u64) -> wire::PeerHello {
        wire::PeerHello {
            cluster: Bytes::copy_from_slice(&self.cluster),
            from: self.own.node,
            to,
            address: self.own.address.clone(),
            version: self.own.version.clone(),
            level: self.own.level,
        }
    }
}

/// All ways out of one master.
pub struct Links {
    way: Way,
    runtime: Runtime,
    links: BTreeMap<u64, Link>,
    /// The transfer of a snapshot to each other master.
    transfers: BTreeMap<u64, AbortHandle>,
}

struct Link {
    frames: Arc<Frames>,
    address: watch::Sender<String>,
    task: AbortHandle,
}

impl Drop for Link {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl std::fmt::Debug for Links {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Links")
            .field("way", &self.way)
            .field("to", &self.links.keys())
            .finish_non_exhaustive()
    }
}

impl Links {
    /// Ways out whose tasks run on `runtime`; they begin when addresses are known.
    #[must_use]
    pub fn new(way: Way, runtime: Runtime) -> Self {
        Self {
            way,
            runtime,
            links: BTreeMap::new(),
            transfers: BTreeMap::new(),
        }
    }
}

impl Outlet for Links {
    fn send(&mut self, outgoing: Outgoing) {
        match outgoing {
            Outgoing::Message { to, bytes } => {
                if let Some(link) = self.links.get(&to) {
                    link.frames.put(bytes);
                }
            }
            Outgoing::Snapshot {
                to,
                announcement,
                manifest,
            } => {
                let address = self
                    .links
                    .get(&to)
                    .map(|link| link.address.borrow().clone());
                let snapshot = transfer::Snapshot {
                    to,
                    address,
                    announcement,
                    manifest,
                };
                let sending = transfer::send(self.way.clone(), snapshot);
                let sending = self.runtime.spawn(sending).abort_handle();
                // An earlier one is of an earlier leadership: nobody waits for its end.
                if let Some(earlier) = self.transfers.insert(to, sending) {
                    earlier.abort();
                }
            }
        }
    }

    fn directory(&mut self, addresses: &BTreeMap<u64, String>) {
        let own = self.way.own.node;
        self.links.retain(|node, _| addresses.contains_key(node));
        for (node, address) in addresses.iter().filter(|(node, _)| **node != own) {
            if let Some(link) = self.links.get(node) {
                link.address.send_if_modified(|known| {
                    let changed = known != address;
                    known.clone_from(address);
                    changed
                });
                continue;
            }
            let frames = Arc::new(Frames::default());
            let (sender, known) = watch::channel(address.clone());
            let task = link::keep(self.way.clone(), *node, Arc::clone(&frames), known);
            let link = Link {
                frames,
                address: sender,
                task: self.runtime.spawn(task).abort_handle(),
            };
            self.links.insert(*node, link);
        }
    }
}

/// What waits for one other master.
#[derive(Debug, Default)]
struct Frames {
    inside: Mutex<Inside>,
    arrived: Notify,
}

#[derive(Debug, Default)]
struct Inside {
    frames: VecDeque<Vec<u8>>,
    bytes: usize,
    /// Something found no room: the connection is of no use any more.
    overflowed: bool,
}

impl Frames {
    fn put(&self, frame: Vec<u8>) {
        let mut inside = self.inside.lock().unwrap_or_else(PoisonError::into_inner);
        if inside.bytes + frame.len() > BOX_BYTES {
            inside.overflowed = true;
        } else {
            inside.bytes += frame.len();
            inside.frames.push_back(frame);
        }
        drop(inside);
        self.arrived.notify_one();
    }

    /// The frames that go next; `None` if some were dropped since the last call.
    async fn next(&self) -> Option<Vec<Bytes>> {
        loop {
            if let Some(taken) = self.take() {
                return taken;
            }
            self.arrived.notified().await;
        }
    }

    fn take(&self) -> Option<Option<Vec<Bytes>>> {
        let mut inside = self.inside.lock().unwrap_or_else(PoisonError::into_inner);
        if std::mem::take(&mut inside.overflowed) {
            return Some(None);
        }
        let (mut batch, mut bytes) = (Vec::new(), 0);
        while let Some(frame) = inside.frames.front()
            && (batch.is_empty() || bytes + frame.len() <= BATCH_BYTES)
            && let Some(frame) = inside.frames.pop_front()
        {
            bytes += frame.len();
            batch.push(Bytes::from(frame));
        }
        inside.bytes -= bytes;
        (!batch.is_empty()).then_some(Some(batch))
    }

    /// Drops everything: it was for a connection that is gone.
    fn clear(&self) {
        let mut inside = self.inside.lock().unwrap_or_else(PoisonError::into_inner);
        *inside = Inside::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn frames_leave_in_order_in_batches_and_an_overflow_is_told_once() {
        let frames = Frames::default();
        let big = vec![7_u8; BATCH_BYTES];
        frames.put(vec![1]);
        frames.put(big.clone());
        frames.put(vec![2]);

        assert_eq!(frames.next().await, Some(vec![Bytes::from(vec![1])]));
        assert_eq!(frames.next().await, Some(vec![Bytes::from(big.clone())]));
        for _ in 0..BOX_BYTES / BATCH_BYTES + 1 {
            frames.put(big.clone());
        }
        assert_eq!(frames.next().await, None);
        frames.clear();
        frames.put(vec![3]);
        assert_eq!(frames.next().await, Some(vec![Bytes::from(vec![3])]));
    }
}
