//! One node: what it has, what runs on it, and what the broker must hear.
//!
//! [`core`] is a pure value that decides; `driver` is the loop around it; `link` is the one stream
//! to the leader. A `Host` makes it real: the Linux rooms behind the feature `node`, or `fake`,
//! which needs no Linux. The crate knows no quota, no offers and no Raft.

#![deny(clippy::arithmetic_side_effects)]

pub mod core;
