//! A snapshot on its way to another master: offered, resumed where it broke, checked piece by
//! piece.

use std::io::Read as _;
use std::time::Duration;

use mete_proto::internal::v1 as wire;
use mete_proto::internal::v1::peer_service_client::PeerServiceClient;
use prost::bytes::Bytes;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;

use super::{MESSAGE_BYTES, Way};
use crate::event::{Event, PeerEvent};
use crate::store::{Manifest, SnapshotSource};

/// The most content of one message.
pub(crate) const PIECE: usize = 1 << 20;

/// Pieces on their way into the connection.
const PIECES: usize = 4;

/// A receiver that takes no piece for so long is given up.
const STALLED: Duration = Duration::from_secs(30);

/// A snapshot, and where it goes.
#[derive(Debug)]
pub(super) struct Snapshot {
    pub(super) to: u64,
    pub(super) address: Option<String>,
    pub(super) announcement: Vec<u8>,
    pub(super) manifest: Manifest,
}

/// Sends it and tells the loop how that ended: always, else the receiver stays without messages.
pub(super) async fn send(way: Way, snapshot: Snapshot) {
    let (to, index) = (snapshot.to, snapshot.manifest.at.index);
    let file = snapshot.manifest.file.clone();
    let handle = way.handle.clone();
    let sent = attempt(way, snapshot).await;
    match &sent {
        Ok(()) => tracing::info!(to, %file, "snapshot sent"),
        Err(why) => tracing::warn!(to, %file, why, "snapshot not sent"),
    }
    let finished = sent.is_ok();
    // An ended loop needs no telling.
    drop(
        handle
            .send_patiently(Event::Peer(PeerEvent::SnapshotSent {
                to,
                index,
                finished,
            }))
            .await,
    );
}

async fn attempt(way: Way, snapshot: Snapshot) -> Result<(), String> {
    let address = snapshot.address.ok_or("its address is not known")?;
    let manifest = snapshot.manifest.clone();
    let opened = way
        .handle
        .read(move |master| master.replica().snapshot(&manifest));
    let source = opened
        .await
        .map_err(|refusal| refusal.to_string())?
        .map_err(|fault| fault.to_string())?;
    let channel = way.dial.dial(&address).await;
    let channel = channel.map_err(|error| error.to_string())?;
    let mut client = PeerServiceClient::new(channel).max_encoding_message_size(MESSAGE_BYTES);
    let offer = wire::SnapshotOffer {
        hello: Some(way.hello(snapshot.to)),
        announcement: snapshot.announcement.into(),
        bytes: snapshot.manifest.bytes,
        digest: snapshot.manifest.digest,
        offset: 0,
    };
    let wanted = client.offer_snapshot(offer.clone()).await;
    let wanted = wanted.map_err(|status| status.message().to_owned())?;
    let offer = wire::SnapshotOffer {
        offset: wanted.into_inner().offset,
        ..offer
    };
    let (pieces, stream) = mpsc::channel(PIECES);
    let read = tokio::spawn(read_pieces(source, offer, pieces));
    let taken = client.send_snapshot(ReceiverStream::new(stream)).await;
    read.abort();
    taken
        .map(|_| ())
        .map_err(|status| status.message().to_owned())
}

/// Reads the content from the offset on. A source that fails ends the stream early, which the
/// receiver notices by the missing bytes.
async fn read_pieces(
    mut source: Box<dyn SnapshotSource>,
    offer: wire::SnapshotOffer,
    pieces: mpsc::Sender<wire::SnapshotMessage>,
) {
    let mut to_skip = offer.offset;
    let first = wire::snapshot_message::Message::Offer(offer);
    if pieces.send(message(first)).await.is_err() {
        return;
    }
    loop {
        let read = tokio::task::spawn_blocking(move || {
            let mut piece = Vec::with_capacity(PIECE);
            let most = PIECE as u64;
            let read = source.by_ref().take(most).read_to_end(&mut piece);
            (source, read.map(|_| piece))
        });
        let Ok((back, Ok(mut piece))) = read.await else {
            return;
        };
        source = back;
        if piece.is_empty() {
            return;
        }
        let skipped = usize::try_from(to_skip).map_or(piece.len(), |skip| skip.min(piece.len()));
        to_skip -= skipped as u64;
        piece.drain(..skipped);
        if piece.is_empty() {
            continue;
        }
        let checksum = crc32c::crc32c(&piece);
        let content = Bytes::from(piece);
        let bytes =
            wire::snapshot_message::Message::Bytes(wire::SnapshotBytes { content, checksum });
        let sent = tokio::time::timeout(STALLED, pieces.send(message(bytes)));
        if !matches!(sent.await, Ok(Ok(()))) {
            return;
        }
    }
}

fn message(message: wire::snapshot_message::Message) -> wire::SnapshotMessage {
    wire::SnapshotMessage {
        message: Some(message),
    }
}
