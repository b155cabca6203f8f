//! A snapshot that comes from the leader: written while it arrives. What arrived of one that broke
//! off is kept for the next attempt, in this process.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use mete_model::{Code, Span};
use tokio::sync::oneshot;

use super::transfer::PIECE;
use crate::event::{Event, PeerEvent};
use crate::handle::Handle;
use crate::replica::Received;
use crate::request::Refusal;
use crate::store::SnapshotWriter;

/// What is offered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Offer {
    /// The message of the log's protocol that announces it.
    pub announcement: Vec<u8>,
    /// Bytes of the whole content.
    pub bytes: u64,
    /// The machine's digest.
    pub digest: u64,
    /// Where the content begins that follows.
    pub offset: u64,
}

/// The place where one snapshot at a time arrives: a second one would write into the same file.
#[derive(Clone, Debug)]
pub struct Arrivals {
    handle: Handle,
    kept: Arc<Mutex<Option<Arriving>>>,
    taken: Arc<AtomicBool>,
}

/// Somebody writes. Given back when it is dropped, whatever becomes of the call.
#[derive(Debug)]
struct Taken(Arc<AtomicBool>);

impl Drop for Taken {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

/// A snapshot that has not arrived whole.
#[derive(Debug)]
pub struct Arriving {
    offer: Offer,
    writer: Box<dyn SnapshotWriter>,
    bytes: u64,
    /// As long as a call writes it.
    taken: Option<Taken>,
}

impl Arriving {
    /// All of its content is here.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.bytes == self.offer.bytes
    }

    fn is(&self, offer: &Offer) -> bool {
        let own = &self.offer;
        (&own.announcement, own.digest, own.bytes)
            == (&offer.announcement, offer.digest, offer.bytes)
    }
}

impl Arrivals {
    /// A place behind this door.
    #[must_use]
    pub fn new(handle: Handle) -> Self {
        Self {
            handle,
            kept: Arc::default(),
            taken: Arc::default(),
        }
    }

    fn hold(&self) -> Result<Taken, Refusal> {
        let before = self.taken.swap(true, Ordering::Acquire);
        if before {
            let detail = "another snapshot is arriving here";
            return Err(Refusal::busy(detail, Span::seconds(1)));
        }
        Ok(Taken(Arc::clone(&self.taken)))
    }

    /// Bytes of the offered snapshot that are here; what is here of any other is dropped.
    ///
    /// # Errors
    /// `BUSY` while one arrives.
    pub fn here(&self, offer: &Offer) -> Result<u64, Refusal> {
        let _taken = self.hold()?;
        let arriving = self.take(offer);
        let bytes = arriving.as_ref().map_or(0, |arriving| arriving.bytes);
        self.keep(arriving);
        Ok(bytes)
    }

    /// Goes on with what is here, or begins.
    ///
    /// # Errors
    /// `BUSY` while one arrives, `INVALID` for an offset where nothing ends or a false
    /// announcement, `DISK_FULL`.
    pub async fn begin(&self, offer: Offer) -> Result<Arriving, Refusal> {
        let taken = self.hold()?;
        let mut arriving = match self.take(&offer) {
            Some(arriving) => arriving,
            None => Arriving {
                writer: self.writer(&offer).await?,
                offer: offer.clone(),
                bytes: 0,
                taken: None,
            },
        };
        if arriving.bytes != offer.offset {
            let fault = format!("is {}, but {} bytes are here", offer.offset, arriving.bytes);
            self.keep(Some(arriving));
            return Err(Refusal::field("offset", fault));
        }
        arriving.taken = Some(taken);
        Ok(arriving)
    }

    async fn writer(&self, offer: &Offer) -> Result<Box<dyn SnapshotWriter>, Refusal> {
        let announcement = offer.announcement.clone();
        let begun = self
            .handle
            .read(move |master| master.replica().receive_snapshot(&announcement));
        begun
            .await?
            .map_err(|fault| Refusal::new(Code::DiskFull, fault.to_string()))?
            .map_err(|error| Refusal::field("announcement", error.to_string()))
    }

    /// Writes one piece behind what is here. What arrived before a damaged piece is kept.
    ///
    /// # Errors
    /// `INVALID` for a damaged piece, `DISK_FULL`, `INTERNAL`.
    pub async fn write(
        &self,
        arriving: Arriving,
        content: Vec<u8>,
        checksum: u32,
    ) -> Result<Arriving, Refusal> {
        let length = content.len() as u64;
        let fits = content.len() <= PIECE && arriving.bytes + length <= arriving.offer.bytes;
        if !fits || crc32c::crc32c(&content) != checksum {
            self.keep(Some(arriving));
            return Err(Refusal::field("bytes", "a piece arrived damaged"));
        }
        let written = tokio::task::spawn_blocking(move || {
            let mut arriving = arriving;
            let written = arriving.writer.write_all(&content);
            arriving.bytes += length;
            // What a failed write left is of no use: the next attempt begins anew.
            written.map(|()| arriving)
        });
        written
            .await
            .map_err(|_| Refusal::new(Code::Internal, "writing the snapshot has panicked"))?
            .map_err(|error| Refusal::new(Code::DiskFull, error.to_string()))
    }

    /// Keeps what has arrived for the next attempt.
    pub fn keep(&self, mut arriving: Option<Arriving>) {
        // Given back only when it stands in its place.
        let _taken = arriving.as_mut().and_then(|arriving| arriving.taken.take());
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        *kept = arriving;
    }

    fn take(&self, offer: &Offer) -> Option<Arriving> {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.take().filter(|arriving| arriving.is(offer))
    }

    /// Completes the file and waits until the loop has taken it in.
    ///
    /// # Errors
    /// `DISK_FULL`, `NO_LEADER` when the loop ends, `INTERNAL`.
    pub async fn finish(&self, arriving: Arriving) -> Result<(), Refusal> {
        let Arriving {
            offer,
            writer,
            taken: _taken,
            ..
        } = arriving;
        let finished = tokio::task::spawn_blocking(move || writer.finish(offer.digest));
        let manifest = finished
            .await
            .map_err(|_| Refusal::new(Code::Internal, "completing the snapshot has panicked"))?
            .map_err(|fault| Refusal::new(Code::DiskFull, fault.to_string()))?;
        let (taken, done) = oneshot::channel();
        let received = Box::new(Received {
            manifest,
            message: offer.announcement,
        });
        let event = Event::Peer(PeerEvent::SnapshotReceived { received, taken });
        self.handle.send_patiently(event).await?;
        let ending = |_| Refusal::new(Code::NoLeader, "this master is ending");
        done.await.map_err(ending)
    }
}
