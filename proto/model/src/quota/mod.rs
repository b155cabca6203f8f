//! Arithmetic of shares: what a grant is charged, per kind.

pub mod charge;

pub use charge::{Charge, Kind};
