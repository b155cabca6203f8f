//! Who gets what next: a pure function from a view to a round.
//!
//! Called by the leader after every change and once a second, by `mete quota plan` on a copy, and
//! by the benches. It knows no offers, no ids of the leader's term, no clock and no state machine.

#![deny(clippy::arithmetic_side_effects, clippy::float_arithmetic)]
#![forbid(unsafe_code)]

pub mod round;
pub mod view;

pub use round::{Dirty, Limits, Placement, Round, Short, Waiting};
pub use view::{AgentView, Change, ClaimView, FrameworkView, RefusalView, RoleView};
