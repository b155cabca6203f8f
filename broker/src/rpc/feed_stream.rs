//! One task that fills one bounded stream from the feed; the last word always gets through.

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio_stream::Stream;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Status;

/// Messages that wait for a reader.
const WAITING: usize = 4;

/// How long a reader may leave a full stream alone.
pub const SLOW: Duration = Duration::from_secs(10);

/// A stream of answers.
pub type Answers<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

/// Where a feeding task puts its messages.
#[derive(Debug)]
pub struct Sink<T> {
    sender: mpsc::Sender<Result<T, Status>>,
    patience: Duration,
}

/// Why a message was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotTaken {
    /// The reader has gone away.
    Gone,
    /// The reader left a full stream alone for [`SLOW`].
    Slow,
}

impl<T> Sink<T> {
    /// Puts a message in; waits for room, but not for ever.
    ///
    /// # Errors
    /// [`NotTaken`].
    pub async fn send(&self, message: T) -> Result<(), NotTaken> {
        match self.sender.send_timeout(Ok(message), self.patience).await {
            Ok(()) => Ok(()),
            Err(mpsc::error::SendTimeoutError::Closed(_)) => Err(NotTaken::Gone),
            Err(mpsc::error::SendTimeoutError::Timeout(_)) => Err(NotTaken::Slow),
        }
    }

    /// Completes when the reader has gone away.
    pub async fn closed(&self) {
        self.sender.closed().await;
    }
}

/// Runs `feed` as a task of its own until it ends or the reader goes away; what it ends with is the
/// last word of the stream.
pub fn stream<T, F>(feed: impl FnOnce(Sink<T>) -> F) -> Answers<T>
where
    T: Send + 'static,
    F: Future<Output = Result<(), Status>> + Send + 'static,
{
    patient_stream(SLOW, feed)
}

fn patient_stream<T, F>(patience: Duration, feed: impl FnOnce(Sink<T>) -> F) -> Answers<T>
where
    T: Send + 'static,
    F: Future<Output = Result<(), Status>> + Send + 'static,
{
    let (sender, receiver) = mpsc::channel(WAITING + 1);
    // One place is kept free for the last word: a slow reader hears why it was closed.
    let kept = sender.clone().try_reserve_owned();
    let feeding = feed(Sink { sender, patience });
    tokio::spawn(async move {
        let end = feeding.await;
        if let (Err(status), Ok(kept)) = (end, kept) {
            kept.send(Err(status));
        }
    });
    Box::pin(ReceiverStream::new(receiver))
}

#[cfg(test)]
mod tests {
    use tokio_stream::StreamExt;

    use super::super::status;
    use super::*;

    #[tokio::test]
    async fn a_slow_reader_gets_what_was_sent_and_then_hears_why_it_was_closed() {
        let (slow, was_slow) = tokio::sync::oneshot::channel();
        let feed = |sink: Sink<u32>| async move {
            let mut number = 0;
            loop {
                match sink.send(number).await {
                    Ok(()) => number += 1,
                    Err(NotTaken::Gone) => return Ok(()),
                    Err(NotTaken::Slow) => {
                        slow.send(()).expect("the test waits for it");
                        return Err(status::busy("slow", Duration::ZERO));
                    }
                }
            }
        };
        let mut stream = patient_stream(Duration::from_millis(20), feed);
        was_slow.await.expect("a stream that nobody reads is slow");
        let mut taken = Vec::new();
        let mut last = None;
        while let Some(item) = stream.next().await {
            match item {
                Ok(number) => taken.push(number),
                Err(status) => last = Some(status.code()),
            }
        }
        assert_eq!(taken, [0, 1, 2, 3]);
        assert_eq!(last, Some(tonic::Code::ResourceExhausted));
    }
}
