//! Live streams: what waits to be sent on each, and what happens when one ends.
//!
//! The loop puts messages into an [`outbox`]; the transport takes them out at the reader's pace.
//! Nothing here is the only copy of anything: whatever is dropped, or dies with its stream, is owed
//! by the state and sent again. Sessions own no truth and decide nothing.

pub mod agent;
pub mod framework;
pub mod outbox;
pub mod peers;

/// Bytes that may wait for the reader of one stream.
pub const OUTBOX_BYTES: usize = 8 << 20;
