//! A whole master without threads, sockets or clocks: events in, outputs and outboxes out.
#![expect(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

mod deposed;
mod lagging;
mod level;
mod liveness;
mod odd_input;
mod offers;
mod readmitted;
mod replacements;
mod story;
mod world;
