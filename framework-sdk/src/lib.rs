//! Write a framework: connect, declare demand, take offers, launch, hear what happened.
//!
//! A framework is whatever decides what runs: a queue of jobs, a keeper of services, a workflow.
//! The broker says what may run where, and remembers everything that matters; the framework says
//! what it needs, and what each offer is used for. It needs no disk, and may crash at any moment:
//! its tasks run on, and the next process of the same name goes on with them.
//!
//! # The smallest complete one
//!
//! Three tasks that say hi; then it ends itself. It is `examples/hello.rs`; with `mete dev`
//! running, `cargo run -p mete-sdk --example hello` runs it.
//!
//! ```no_run
//! use mete_sdk::{
//!     Claim, Connected, Framework, Offers, Result, Runner, Session, TaskSpec, TaskUpdate,
//! };
//!
//! struct Hello;
//!
//! impl Framework for Hello {
//!     // Where things stand. What is declared already costs nothing to declare again.
//!     async fn connected(&mut self, s: &Session, _: Connected) -> Result<()> {
//!         s.want("greetings", Claim::cpus(1).memory_mib(128).count(3)).await
//!     }
//!
//!     // Room that was made for the claim. What is not used goes back.
//!     async fn offers(&mut self, _: &Session, offers: &mut Offers) -> Result<()> {
//!         while let Some(slot) = offers.take("greetings") {
//!             offers.launch(slot, TaskSpec::command("hello", ["echo", "hi"]));
//!         }
//!         Ok(())
//!     }
//!
//!     // What became of a task. `Ok` acknowledges it; after an error it comes again.
//!     async fn update(&mut self, s: &Session, u: TaskUpdate) -> Result<()> {
//!         if u.is_terminal() && s.live_tasks() == 0 && s.wanted() == 0 {
//!             s.teardown().await?;
//!         }
//!         Ok(())
//!     }
//! }
//!
//! #[tokio::main]
//! async fn main() -> Result<()> {
//!     Runner::from_env()?.name("hello").role("dev").run(Hello).await
//! }
//! ```
//!
//! The master's address comes from `METE_MASTER`, or [`Runner::new`] is given it. The role must be
//! there: `mete quota set dev` makes one.
//!
//! # Four layers
//!
//! Take the highest that does. Our own frameworks use nothing else.
//!
//! | layer | for | begin with |
//! |---|---|---|
//! | 0 generated clients | any language | [`client`] |
//! | 1 session and events | full control | [`Session::open`] |
//! | 2 trait and runner | most frameworks | [`Framework`], [`Runner`] |
//! | 3 task pool | "keep these tasks running" | [`TaskPool`] |
//!
//! Beside them [`store`] (the framework's own records, kept by the broker) and [`node`] (what a
//! task writes, from its agent).
//!
//! # What is promised
//!
//! - **Statuses** come at least once, in order for each run, and nothing comes after an end. What
//!   was handled is acknowledged until the broker has it, also over reconnects.
//! - **Calls** are done once and in the order in which they were made, whatever is lost or refused
//!   for now on the way. Most wait as long as no master can answer; bound them with a timeout of
//!   your own, or, for the store, with [`store::Store::write_within`].
//! - **Launches** are granted or refused, each with a reason. One that was refused is counted
//!   against nothing: what is still wanted is offered again.
//! - **Errors and panics** of a handler end no task. Only [`Session::teardown`] does.
//! - **A newer process** of the same name takes over; the older one ends with
//!   [`Error::Superseded`].
//!
//! What a framework has to do itself: know its tasks again after a restart, by their labels or by
//! its own records in the [`store`]; write such a record before it acknowledges what made it true;
//! and never launch one piece of work under two run ids while the first may still run.
//!
//! # Test it
//!
//! The crate `mete-testing`, as a dev-dependency, has the real broker in the test's own process,
//! with a clock that costs nothing. `TestBroker` runs a framework in it and lets things go wrong;
//! `conformance` runs it through every fault script there is: leaders that die, calls whose answers
//! are lost, statuses that come twice and late, a full disk, a process that restarts in the middle
//! of everything. Its front page has both as a test to copy.
//!
//! # How it works
//!
//! The session owns the connection's life: it finds the leader, resumes, numbers calls so that a
//! retry cannot act twice, acknowledges what was handled and filters duplicates. It forgets who it
//! is only when the framework is torn down, and it never ends a task by itself. It knows nothing of
//! Raft or of leaders' terms, and it decides nothing that the broker decides: an offer is a hint,
//! the verdict of a launch is the law.

#![forbid(unsafe_code)]

mod accept;
mod acknowledge;
mod calls;
mod claims;
pub mod client;
mod core;
mod demand;
mod driver;
pub mod error;
mod event;
mod event_queue;
mod framework;
pub mod node;
mod offer_queue;
mod offers;
mod runner;
mod session;
pub mod store;
mod task;
mod task_pool;
mod view;
mod wire;

pub use accept::{Accept, Accepting, LaunchVerdict, Mode, Place, Placed, Refuse};
pub use claims::Claim;
pub use error::{Error, Reason, Result};
pub use event::{AgentChanged, Connected, Event, Events, Replaceable, Rescinded, Snapshot};
pub use framework::Framework;
pub use offers::{Miss, Offer, Offers, Slot, Strategy, Submitted};
pub use runner::Runner;
pub use session::{Connection, Session, SessionConfig};
pub use task::{AgentCondition, ClaimInfo, Launch, RunInfo, TaskSpec, TaskUpdate};
pub use task_pool::{GroupStatus, PoolHandle, TaskPool, Wanted};

pub use mete_model as model;
pub use mete_model::{Bytes, Code, Exit, MilliCpu, Resources, RunId, Shape, TaskId, TaskPhase};
