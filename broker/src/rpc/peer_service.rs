//! `mete.internal.v1.PeerService`: what other masters send comes in here.
//!
//! Every call begins with who is meant. Messages go to the loop as they are: the replica checks
//! each. A master that was taken out of the cluster is told so, and nothing else.

use mete_model::Code;
use mete_proto::internal::v1 as wire;
use mete_proto::internal::v1::peer_service_server::PeerService;
use tonic::{Request, Response, Status, Streaming};

use super::refusal::to_status;
use super::status;
use crate::event::{Event, PeerEvent, PeerFacts};
use crate::handle::Handle;
use crate::session::peers::{Arrivals, Arriving, Offer};

/// The service.
#[derive(Clone, Debug)]
pub struct Peers {
    handle: Handle,
    arrivals: Arrivals,
}

impl Peers {
    /// A service behind this door.
    #[must_use]
    pub fn new(handle: Handle) -> Self {
        Self {
            arrivals: Arrivals::new(handle.clone()),
            handle,
        }
    }

    /// Checks who calls and whom it means.
    async fn admit(&self, hello: Option<wire::PeerHello>) -> Result<PeerFacts, Status> {
        let hello = hello.ok_or_else(|| status::invalid_field("hello", "is missing"))?;
        let from = hello.from;
        let look = self.handle.read(|master| master.replica().identity());
        let own = look.await.map_err(|refusal| to_status(&refusal))?;
        let node = own.node;
        if hello.cluster[..] != own.cluster {
            let (own, other) = (uuid(&own.cluster), uuid(&hello.cluster));
            return Err(status::refuse(
                Code::Denied,
                format!(
                    "master {from} is of cluster {other}, this one is of cluster {own}; check \
                     the addresses of the masters"
                ),
            ));
        }
        if hello.to != node || from == node || from == 0 {
            let to = hello.to;
            return Err(status::refuse(
                Code::Denied,
                format!(
                    "master {from} means master {to}, but this is master {node}; check the \
                     addresses of the masters"
                ),
            ));
        }
        self.check_left(from)?;
        Ok(PeerFacts {
            node: from,
            address: hello.address,
            version: hello.version,
            level: hello.level,
        })
    }

    /// Tells a master that was taken out: it hears nothing of the log any more.
    fn check_left(&self, from: u64) -> Result<(), Status> {
        if self.handle.has_left(from) {
            return Err(status::refuse(
                Code::MasterRemoved,
                format!("master {from} was removed from this cluster; it must not go on"),
            ));
        }
        Ok(())
    }

    async fn tell(&self, event: Event) -> Result<(), Status> {
        let told = self.handle.send_patiently(event).await;
        told.map_err(|refusal| to_status(&refusal))
    }

    /// Takes pieces in until the snapshot is whole; what is here is kept when the stream breaks.
    async fn receive(
        &self,
        mut arriving: Arriving,
        incoming: &mut Streaming<wire::SnapshotMessage>,
    ) -> Result<Arriving, Status> {
        while !arriving.is_whole() {
            let message = match incoming.message().await {
                Ok(Some(message)) => message.message,
                broken => {
                    self.arrivals.keep(Some(arriving));
                    broken?;
                    let detail = "the stream ended before the snapshot was whole; send the rest";
                    return Err(status::refuse(Code::Busy, detail));
                }
            };
            let Some(wire::snapshot_message::Message::Bytes(piece)) = message else {
                return Err(status::invalid_field("message", "only pieces may follow"));
            };
            let content = piece.content.to_vec();
            let written = self.arrivals.write(arriving, content, piece.checksum).await;
            arriving = written.map_err(|refusal| to_status(&refusal))?;
        }
        Ok(arriving)
    }
}

fn uuid(bytes: &[u8]) -> String {
    uuid::Uuid::from_slice(bytes).map_or_else(|_| "unknown".to_owned(), |id| id.to_string())
}

fn read_offer(offer: wire::SnapshotOffer) -> Offer {
    Offer {
        announcement: offer.announcement.to_vec(),
        bytes: offer.bytes,
        digest: offer.digest,
        offset: offer.offset,
    }
}

#[tonic::async_trait]
impl PeerService for Peers {
    async fn exchange(
        &self,
        request: Request<Streaming<wire::PeerMessage>>,
    ) -> Result<Response<wire::PeerEnd>, Status> {
        use wire::peer_message::Message;
        let mut incoming = request.into_inner();
        let first = incoming.message().await?.and_then(|first| first.message);
        let Some(Message::Hello(hello)) = first else {
            let fault = "the first message of the stream must be a hello";
            return Err(status::invalid_field("hello", fault));
        };
        let facts = self.admit(Some(hello)).await?;
        let from = facts.node;
        self.tell(Event::Peer(PeerEvent::Hello(facts))).await?;
        while let Some(message) = incoming.message().await? {
            match message.message {
                Some(Message::Frames(frames)) => {
                    self.check_left(from)?;
                    let frames = frames.frames.iter().map(|frame| frame.to_vec()).collect();
                    self.tell(Event::Peer(PeerEvent::Frames { from, frames }))
                        .await?;
                }
                Some(Message::Hello(_)) => {
                    return Err(status::invalid_field("hello", "a second one"));
                }
                // Of a newer master; this release does not know it.
                None => {}
            }
        }
        Ok(Response::new(wire::PeerEnd {}))
    }

    async fn offer_snapshot(
        &self,
        request: Request<wire::SnapshotOffer>,
    ) -> Result<Response<wire::SnapshotWanted>, Status> {
        let offer = request.into_inner();
        self.admit(offer.hello.clone()).await?;
        let offset = self.arrivals.here(&read_offer(offer));
        let offset = offset.map_err(|refusal| to_status(&refusal))?;
        Ok(Response::new(wire::SnapshotWanted { offset }))
    }

    async fn send_snapshot(
        &self,
        request: Request<Streaming<wire::SnapshotMessage>>,
    ) -> Result<Response<wire::SnapshotTaken>, Status> {
        let refused = |refusal| to_status(&refusal);
        let mut incoming = request.into_inner();
        let first = incoming.message().await?.and_then(|first| first.message);
        let Some(wire::snapshot_message::Message::Offer(offer)) = first else {
            return Err(status::invalid_field("offer", "must be the first message"));
        };
        self.admit(offer.hello.clone()).await?;
        let arriving = self.arrivals.begin(read_offer(offer)).await;
        let arriving = arriving.map_err(refused)?;
        let arriving = self.receive(arriving, &mut incoming).await?;
        self.arrivals.finish(arriving).await.map_err(refused)?;
        Ok(Response::new(wire::SnapshotTaken {}))
    }
}
