//! Write a framework: connect, declare demand, take offers, launch, hear what happened.
//!
//! Four layers; take the highest that does. Our own frameworks use nothing else.
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
pub use event::{AgentChanged, Connected, Event, Events, Rescinded, Snapshot};
pub use framework::Framework;
pub use offers::{Miss, Offer, Offers, Slot, Strategy, Submitted};
pub use runner::Runner;
pub use session::{Connection, Session, SessionConfig};
pub use task::{AgentCondition, ClaimInfo, Launch, RunInfo, TaskSpec, TaskUpdate};
pub use task_pool::{GroupStatus, PoolHandle, TaskPool, Wanted};

pub use mete_model as model;
pub use mete_model::{Bytes, Code, Exit, MilliCpu, Resources, RunId, Shape, TaskId, TaskPhase};
