//! Everything that leaves the loop, beside what went into the outboxes of streams.
//!
//! Outputs are carried out by the loop's driver after the turn, so that no answer is given before
//! the disk has it.

use mete_model::FrameworkId;
use tokio::sync::oneshot;

use crate::event::{ReplyTo, SubscribeTo};
use crate::request::{Refusal, Reply};

/// One thing for the driver to carry out.
#[derive(Debug)]
pub enum Output {
    /// The answer to a call.
    Reply {
        /// Who waits for it.
        to: ReplyTo,
        /// The answer.
        answer: Result<Reply, Refusal>,
    },
    /// The answer to a subscription.
    Subscribed {
        /// Who waits for it.
        to: SubscribeTo,
        /// The framework's id, or why not.
        answer: Result<FrameworkId, Refusal>,
    },
    /// A received snapshot was taken in, or found out of date.
    SnapshotTaken {
        /// Who waits for it.
        to: oneshot::Sender<()>,
    },
    /// This master was taken out of its cluster: the process ends.
    Removed {
        /// The member that says so; `None` = its own log does.
        by: Option<u64>,
    },
    /// The loop has flushed and ends.
    Stopped,
}
