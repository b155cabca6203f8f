//! One master process: the replicated core, the offers and the services around it.
//!
//! The story of one command. A call arrives in [`rpc`], is decoded, and goes through the
//! [`handle`] into a bounded queue. [`master`] takes everything that waits in one turn: the present
//! [`leader`] term judges each call against the state (`preflight`), mints ids, stamps time, and
//! gives commands; the [`replica`] logs them all with one flush of the [`store`] and applies what a
//! majority has; the term answers whoever waits, puts what is owed into the outboxes of
//! [`session`], patches the allocator's view and offers what has become free. Nothing is answered
//! as done before it is on disk and applied.
//!
//! Who starts a master: `mete master`, `mete dev` and tests call [`run`], or [`server::open`] and
//! [`server::spawn_task`] to drive the same loop on virtual time.
//!
//! What it deliberately does not do: run tasks, know frameworks' words, keep offers beyond a term.

pub mod admin;
pub mod config;
pub mod error;
pub mod event;
pub mod format;
pub mod handle;
pub mod leader;
pub mod machine;
pub mod master;
pub mod mint;
pub mod output;
pub mod replica;
pub mod request;
pub mod rpc;
pub mod seats;
pub mod security;
pub mod server;
pub mod session;
pub mod store;

pub use config::{Config, Storage, Timing};
pub use error::RunError;
pub use handle::Handle;
pub use server::{Listeners, run};
