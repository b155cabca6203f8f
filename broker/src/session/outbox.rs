//! A bounded queue between the loop and one stream: synchronous on one side, a stream on the other.
//!
//! What a full queue does is the business of the [`Queue`] inside; this file only moves items and
//! wakes the reader. A closed outbox takes nothing more, so that a stream that has gone costs
//! nothing until the loop hears of it.

use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use tokio_stream::Stream;

/// What waits inside an outbox, and in which order it leaves.
pub trait Queue: Send {
    /// What leaves.
    type Item: Send;

    /// The next item, or why there is none.
    fn pop(&mut self) -> Popped<Self::Item>;

    /// True once when the queue has been full and is empty again.
    fn take_drained(&mut self) -> bool;
}

/// The answer of [`Queue::pop`].
#[derive(Debug, PartialEq, Eq)]
pub enum Popped<T> {
    /// Send this.
    Item(T),
    /// Nothing at the moment.
    Empty,
    /// Nothing ever again: the stream ends.
    End,
}

/// The loop's side of a stream.
#[derive(Debug)]
pub struct Outbox<Q> {
    inside: Mutex<Inside<Q>>,
}

#[derive(Debug)]
struct Inside<Q> {
    queue: Q,
    reader: Option<Waker>,
    closed: bool,
}

/// Told by the reader's side, from whatever thread it runs on: must not wait.
pub trait Listener: Send + Sync {
    /// The queue has been full and is empty again.
    fn drained(&self);
    /// The reader is gone.
    fn closed(&self);
}

impl<Q: Queue> Outbox<Q> {
    /// An outbox around an empty queue.
    #[must_use]
    pub fn new(queue: Q) -> Arc<Self> {
        Arc::new(Self {
            inside: Mutex::new(Inside {
                queue,
                reader: None,
                closed: false,
            }),
        })
    }

    /// Puts something in (or looks at the queue) and wakes the reader.
    pub fn put<T>(&self, put: impl FnOnce(&mut Q) -> T) -> T {
        let mut inside = self.lock();
        let given = put(&mut inside.queue);
        let reader = inside.reader.take();
        drop(inside);
        if let Some(reader) = reader {
            reader.wake();
        }
        given
    }

    /// True when the reader has gone.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.lock().closed
    }

    /// The reader's side. At most one per outbox.
    #[must_use]
    pub fn reader(self: &Arc<Self>, listener: Arc<dyn Listener>) -> Reader<Q> {
        Reader {
            outbox: Arc::clone(self),
            listener,
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inside<Q>> {
        // A queue's operations leave it usable at every step.
        self.inside.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The transport's side of a stream. Dropping it closes the outbox.
pub struct Reader<Q: Queue> {
    outbox: Arc<Outbox<Q>>,
    listener: Arc<dyn Listener>,
}

impl<Q: Queue> std::fmt::Debug for Reader<Q> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Reader")
    }
}

impl<Q: Queue> Stream for Reader<Q> {
    type Item = Q::Item;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let mut inside = self.outbox.lock();
        let popped = inside.queue.pop();
        let drained = inside.queue.take_drained();
        if matches!(popped, Popped::Empty) {
            inside.reader = Some(context.waker().clone());
        }
        drop(inside);
        if drained {
            self.listener.drained();
        }
        match popped {
            Popped::Item(item) => Poll::Ready(Some(item)),
            Popped::Empty => Poll::Pending,
            Popped::End => Poll::Ready(None),
        }
    }
}

impl<Q: Queue> Drop for Reader<Q> {
    fn drop(&mut self) {
        self.outbox.lock().closed = true;
        self.listener.closed();
    }
}
