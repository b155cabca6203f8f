//! Who gets what next: a pure function from a view to a round.
//!
//! Called by the leader after every change and once a second, by `mete quota plan` on a copy, and
//! by the benches. It knows no offers, no ids of the leader's term, no clock and no state machine.
//! The caller keeps one [`View`], patches it with every change, and asks [`allocate`] for a
//! [`Round`]; [`explain()`] answers a person who asks why.
//!
//! A round serves claims by weighted dominant share (the spill pass; guarantees will be a pass
//! before it, over the same contenders): the role with the smallest share ÷ weight first, in it
//! the framework with the smallest share, in that the claim with the highest priority, then the
//! oldest. A share includes one task of the claim that would be served. What remains goes, as
//! plain offers, to frameworks that opted in.
//!
//! What it promises; `tests/properties` tests each by its number:
//!
//! - **P1** A patched view is the same as one built anew from what it holds ([`View::audit`]).
//! - **P2** A round never places more on an agent than is free there, by amount and by name; each
//!   placement of a claim holds exactly as many tasks of its shape as it says, and no claim gets
//!   more tasks than remain.
//! - **P3** Nothing is left lying: after a whole round no looked-at claim waits that fits on an
//!   agent which is not hidden from it, unless the framework's cap is reached.
//! - **P4** Every claim that a whole round leaves waiting has exactly one reason, and the reason is
//!   true by a search over all agents.
//! - **P5** What goes out to a framework, with what is out already, is at most a quarter of the
//!   cluster, halved as often as the view says, or one task of a claim where that is more.
//! - **P6** A framework that is away or suppressed in a role, and an agent that is not schedulable
//!   or hidden, get nothing.
//! - **P7** Fair: where roles compete for the same room, the share ÷ weight of one that was served
//!   is at most that of any other that still waits, with the other's next task added, and one step
//!   of the grid; crumbs too small for the other's task do not count. With tasks larger than a
//!   step, on one agent, a round gives each claim what the allocator written the plain way gives it
//!   ([`reference::naive`]).
//! - **P8** An incremental round places the same as a whole one, if the view was settled before the
//!   change (a whole round would have placed nothing) and [`Dirty`] names all that changed for the
//!   better: claims put, agents with more free, frameworks that came back or have less out.
//! - **P9** The same view and the same dirty set give the same round, whatever patches led there.
//!
//! The view keeps who contends with what it holds, and agents in order, and is patched with each
//! change. A round points into it and copies only what it changes; after one change its cost is a
//! glance at each queue, not at each agent.
//!
//! Shares are compared exactly. A turn gives tasks until the share passes the next of
//! max(4096, 16 × waiting queues) steps, so that small tasks do not need a turn each.

#![deny(clippy::arithmetic_side_effects, clippy::float_arithmetic)]
#![forbid(unsafe_code)]

mod allocate;
mod contend;
pub mod explain;
mod fill;
mod order;
mod plain;
mod reasons;
pub mod reference;
pub mod round;
mod scratch;
mod share;
pub mod view;

pub use allocate::allocate;
pub use explain::{Explanation, NodeGroup, explain};
pub use round::{Dirty, Limits, Placement, Round, Short, Waiting};
pub use view::{AgentView, Change, ClaimView, FrameworkView, RefusalView, RoleView, View};
