//! One node: what it has, what runs on it, and what the broker must hear.
//!
//! [`core`] is a pure value that decides; [`driver`] is the loop around it; [`link`] is the one
//! stream to the leader. A [`driver::Host`] makes it real: the Linux rooms behind the feature
//! `node` ([`shell`]), or [`fake`], which needs no Linux. The crate knows no quota, no offers and
//! no Raft.

pub mod contact;
pub mod core;
pub mod driver;
pub mod fake;
pub mod link;

#[cfg(feature = "node")]
pub mod check;
#[cfg(feature = "node")]
pub mod checkpoint;
#[cfg(feature = "node")]
pub mod config;
#[cfg(feature = "node")]
pub mod discover;
#[cfg(feature = "node")]
pub mod isolate;
#[cfg(feature = "node")]
pub mod records;
#[cfg(feature = "node")]
pub mod runtime;
#[cfg(feature = "node")]
pub mod serve;
#[cfg(feature = "node")]
pub mod shell;
