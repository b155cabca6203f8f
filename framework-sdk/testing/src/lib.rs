//! A broker in the test process: virtual time, fault scripts, and the conformance suite.
//!
//! For us and for integrators, as a dev-dependency. [`TestBroker`] is the real master's loop with
//! the real allocator, on a disk in memory, with fake agents; connections are pipes in memory. In a
//! test with `start_paused = true` time passes only when nothing else is left to do, so ten seconds
//! of silence cost nothing. Faults happen at one place, a proxy that every framework call and event
//! passes ([`Faults`]); what it saw is what [`TestBroker::tasks`] tells.
//!
//! ```
//! use std::time::Duration;
//!
//! use mete_sdk::{Claim, Connected, Framework, Offers, Result, Session, TaskSpec, TaskUpdate};
//! use mete_testing::{Expect, TestBroker, conformance};
//!
//! struct Hello;
//!
//! impl Framework for Hello {
//!     async fn connected(&mut self, s: &Session, _: Connected) -> Result<()> {
//!         s.want("greetings", Claim::cpus(1).count(3)).await
//!     }
//!
//!     async fn offers(&mut self, _: &Session, offers: &mut Offers) -> Result<()> {
//!         while let Some(slot) = offers.take("greetings") {
//!             offers.launch(slot, TaskSpec::command("hello", ["echo", "hi"]));
//!         }
//!         Ok(())
//!     }
//!
//!     async fn update(&mut self, s: &Session, u: TaskUpdate) -> Result<()> {
//!         if u.is_terminal() && s.live_tasks() == 0 && s.wanted() == 0 {
//!             s.teardown().await?;
//!         }
//!         Ok(())
//!     }
//! }
//!
//! // In a test: #[tokio::test(start_paused = true)]
//! # #[tokio::main(flavor = "current_thread", start_paused = true)]
//! # async fn main() {
//! let broker = TestBroker::builder().nodes("n", 2, |node| node.cpus(8)).start().await;
//! let mut run = broker.run(Hello);
//! broker.until("a task to run", || broker.tasks().running() > 0).await;
//! broker.kill_leader().await;
//! run.ended(Duration::from_secs(60)).await.expect("it ends itself");
//! assert_eq!((broker.tasks().launched(), broker.tasks().finished()), (3, 3));
//!
//! // Everything that can go wrong, one after the other.
//! conformance(|| Hello, Expect::once(3).and_ends()).await;
//! # }
//! ```
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

pub use broker::{Builder, Running, TestBroker, virtual_clock};
pub use cluster::Cluster;
pub use conformance::{Expect, conformance, conformance_of};
pub use faults::{Faults, Method, Resumes};
pub use node::NodeBuilder;
pub use tasks::Tasks;
