//! The replicated truth of a cluster.
//!
//! A [`Command`] goes in, the [`State`] changes, effects come out. Every replica applies the same
//! commands in the same order and stays equal to the letter. There is no clock here, no randomness,
//! no I/O, no logging, no floating point; offers are not known, nor streams, nor how anything is
//! stored.

#![deny(clippy::arithmetic_side_effects, clippy::float_arithmetic)]
#![forbid(unsafe_code)]

pub mod command;
pub mod effect;
pub mod record;
pub mod rejection;
pub mod snapshot;
pub mod texts;

pub use command::{AgentCondition, Caller, Command, Stamped};
pub use effect::{Change, Effect, ItemVerdict, LaunchVerdict, Outcome, StoreVerdict, Verdict};
pub use record::{
    Agent, ClaimRecord, EndedRun, Framework, Kill, Meta, Role, Run, StoreRecord, StoredVerdict,
    Tombstone,
};
pub use rejection::{FieldFault, Rejection};
pub use snapshot::{BadParts, Part};
pub use texts::Texts;
