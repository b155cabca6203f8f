//! A broker in the test process: virtual time, fault scripts, and the conformance suite.
//!
//! For us and for integrators, as a dev-dependency. [`TestBroker`] is the real master's loop with
//! the real allocator, on a disk in memory, with fake agents; connections are pipes in memory. In a
//! test with `start_paused = true` time passes only when nothing else is left to do, so ten seconds
//! of silence cost nothing. Faults happen at one place, a proxy that every framework call and event
//! passes ([`Faults`]); what it saw is what [`TestBroker::tasks`] tells.
//!
//! [`conformance()`] runs any framework through fault scripts. [`Cluster`] is the same broker
//! behind a real port with a directory, for tests of binaries.

#![forbid(unsafe_code)]

pub mod broker;
pub mod cluster;
pub mod conformance;
pub mod faults;
pub mod memory;
mod node;
mod proxy;
pub mod tasks;
pub mod wait;

pub use broker::{Builder, Running, TestBroker};
pub use cluster::Cluster;
pub use conformance::{Expect, conformance};
pub use faults::{Faults, Method};
pub use node::NodeBuilder;
pub use tasks::Tasks;
