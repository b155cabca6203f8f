//! Wire to model and back.
//!
//! Called by everything that speaks gRPC, in both directions. To the wire nothing can fail. From
//! the wire a conversion either succeeds or has noted **every** wrong field in [`Faults`], with its
//! path and what is permitted: nothing is silently dropped, rounded or cut. What an unknown enum
//! value would decide is a fault; where it decides nothing it is tolerated.
//!
//! Readers have the shape `fn claim(wire, at, faults) -> Option<Claim>`; [`whole`] turns one into a
//! `Result`. Readers do not ask whether a thing exists or is permitted: others decide that.

pub mod faults;

pub use faults::{At, Fault, Faults, MOST_FAULTS, whole};
