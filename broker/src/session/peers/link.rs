//! One way out: connects, says hello, sends batches; again and again.

use std::sync::Arc;
use std::time::Duration;

use mete_model::Code;
use mete_proto::internal::v1 as wire;
use mete_proto::internal::v1::peer_service_client::PeerServiceClient;
use rand::RngExt as _;
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Status;
use tonic_types::StatusExt as _;

use super::{Frames, MESSAGE_BYTES, Way};
use crate::event::{Event, PeerEvent};

/// Between two attempts at first, and at most.
const PAUSES: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));

/// A connection that lasted so long was good: the next attempt comes soon again.
const GOOD: Duration = Duration::from_secs(5);

/// Batches on their way into the connection.
const BATCHES: usize = 4;

/// Why a connection is over.
enum Ended {
    /// The other one says that this master was taken out.
    Removed,
    /// The other one does not take this master for what it is; somebody has to look.
    Refused(String),
    /// Anything else; it is tried again.
    Lost(String),
}

impl From<Status> for Ended {
    fn from(status: Status) -> Self {
        let reason = status.get_details_error_info().map(|info| info.reason);
        let is = |code: Code| reason.as_deref() == Some(code.as_str());
        if is(Code::MasterRemoved) {
            Self::Removed
        } else if is(Code::Denied) {
            Self::Refused(status.message().to_owned())
        } else {
            Self::Lost(status.message().to_owned())
        }
    }
}

/// Keeps the way to one other master open for as long as the task lives.
pub(super) async fn keep(
    way: Way,
    to: u64,
    frames: Arc<Frames>,
    mut address: watch::Receiver<String>,
) {
    let mut pause = PAUSES.0;
    let mut refused: Option<String> = None;
    loop {
        let begun = Instant::now();
        let dialled = address.borrow_and_update().clone();
        let ended = tokio::select! {
            ended = exchange(&way, to, &frames, &dialled) => ended,
            changed = address.changed() => match changed {
                Ok(()) => Ended::Lost("the address has changed".to_owned()),
                Err(_) => return,
            },
        };
        frames.clear();
        let event = match ended {
            Ended::Removed => PeerEvent::Removed { by: to },
            Ended::Refused(why) => {
                // Said once for each reason: it is tried again and again.
                if refused.as_deref() != Some(&*why) {
                    tracing::warn!(to, address = %dialled, why, "a master refuses this one");
                    refused = Some(why);
                }
                PeerEvent::Unreachable { node: to }
            }
            Ended::Lost(why) => {
                tracing::debug!(to, address = %dialled, why, "connection to a master ended");
                PeerEvent::Unreachable { node: to }
            }
        };
        if way.handle.send_patiently(Event::Peer(event)).await.is_err() {
            return;
        }
        if begun.elapsed() >= GOOD {
            pause = PAUSES.0;
        }
        // Full jitter: the others try at other moments.
        let least = pause / 2;
        let jittered = rand::rng().random_range(least..=pause);
        tokio::time::sleep(jittered).await;
        pause = (pause * 2).min(PAUSES.1);
    }
}

/// One connection until its end; gives the reason.
async fn exchange(way: &Way, to: u64, frames: &Frames, address: &str) -> Ended {
    let channel = match way.dial.dial(address).await {
        Ok(channel) => channel,
        Err(error) => return Ended::Lost(error.to_string()),
    };
    let mut client = PeerServiceClient::new(channel)
        .max_encoding_message_size(MESSAGE_BYTES)
        .max_decoding_message_size(MESSAGE_BYTES);
    let (batches, stream) = mpsc::channel(BATCHES);
    let hello = wire::peer_message::Message::Hello(way.hello(to));
    let first = batches.send(message(hello)).await;
    if first.is_err() {
        return Ended::Lost("a new channel takes nothing".to_owned());
    }
    // Whatever was put before is as good as new: the protocol sends its state, not its history.
    let pump = async {
        while let Some(batch) = frames.next().await {
            let batch = wire::peer_message::Message::Frames(wire::PeerFrames { frames: batch });
            if batches.send(message(batch)).await.is_err() {
                return Ended::Lost("the stream has ended".to_owned());
            }
        }
        Ended::Lost("more waited for this master than is kept".to_owned())
    };
    let answered = client.exchange(ReceiverStream::new(stream));
    tokio::select! {
        answer = answered => match answer {
            Ok(_) => Ended::Lost("the master has ended the stream".to_owned()),
            Err(status) => status.into(),
        },
        ended = pump => ended,
    }
}

fn message(message: wire::peer_message::Message) -> wire::PeerMessage {
    wire::PeerMessage {
        message: Some(message),
    }
}
