//! The replicated truth of a cluster.
//!
//! A [`Command`] goes in, the [`State`] changes, effects come out. Every replica applies the same
//! commands in the same order and stays equal to the letter. There is no clock here, no randomness,
//! no I/O, no logging, no floating point; offers are not known, nor streams, nor how anything is
//! stored.
//!
//! The leader asks [`State::check`] before it logs a command, every replica calls [`State::apply`]
//! with what was committed. Effects may be lost: [`State::owed`] finds them again. What time alone
//! makes necessary is in [`State::due`]. Snapshots go through [`State::records`] and
//! [`State::from_parts`]; replicas compare [`State::digest`]. What must always hold is listed and
//! checked in [`invariants`].

#![deny(clippy::arithmetic_side_effects, clippy::float_arithmetic)]
#![forbid(unsafe_code)]

mod apply;
#[cfg(feature = "broken")]
pub mod broken;
pub mod command;
mod cow_map;
mod digest;
pub mod due;
pub mod effect;
mod history;
pub mod invariants;
mod ledger;
pub mod limits;
mod owed;
pub mod record;
pub mod rejection;
pub mod snapshot;
mod specs;
mod state;
pub mod texts;

/// The highest level that this release knows. A behaviour that differs from an earlier release's is
/// keyed to a level above that release's, so that two releases never apply one command differently.
pub const LEVEL: u32 = 0;

pub use command::{AgentCondition, Caller, Command, Stamped};
pub use effect::{Change, Effect, ItemVerdict, LaunchVerdict, Outcome, StoreVerdict, Verdict};
pub use invariants::Violation;
pub use record::{
    Agent, ClaimRecord, EndedRun, Framework, Kill, Master, Meta, Places, Replacement, Role, Run,
    Seat, StoreRecord, StoredVerdict, Tombstone,
};
pub use rejection::{FieldFault, Rejection};
pub use snapshot::{BadParts, Part, Records};
pub use state::{Preview, State};
pub use texts::Texts;
