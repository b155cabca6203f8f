//! The ways to the other masters.

use std::collections::BTreeMap;

use crate::replica::Outgoing;

/// Where the loop puts what is for other masters. Called in the middle of a turn: must not block,
/// and may drop, since the protocol sends again.
pub trait Outlet: Send {
    /// One message or snapshot for another master.
    fn send(&mut self, outgoing: Outgoing);

    /// Where each master is dialled, by node id, this one included. Replaces what was known.
    fn directory(&mut self, addresses: &BTreeMap<u64, String>);
}

/// Nobody is there: a master that is alone.
#[derive(Debug, Default)]
pub struct Nobody;

impl Outlet for Nobody {
    fn send(&mut self, _outgoing: Outgoing) {}

    fn directory(&mut self, _addresses: &BTreeMap<u64, String>) {}
}
