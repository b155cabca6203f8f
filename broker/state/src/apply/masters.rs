//! The masters themselves: named, changed, removed, and the level their releases share.
//!
//! The state says where each master is and what its seat shall be. Who has which seat at the
//! moment, the replicated log's own membership says; the leader brings it here step by step.

use mete_model::Code;

use super::validate::Faults;
use super::{Plan, Turn, preview_of};
use crate::command::SetMaster;
use crate::effect::{Change, Verdict};
use crate::limits::{LONGEST_ADDRESS, MASTERS};
use crate::record::{Master, Seat};
use crate::rejection::Rejection;
use crate::state::{Preview, State};

/// A master to be named or changed.
#[derive(Debug)]
pub(crate) struct Set<'a> {
    set: &'a SetMaster,
    changes: bool,
}

pub(crate) fn set<'a>(state: &State, set: &'a SetMaster) -> Result<Set<'a>, Rejection> {
    let mut faults = Faults::default();
    faults.words("actor", &set.actor);
    if set.node == 0 {
        faults.add("node", "0 is nobody; node ids begin with 1");
    }
    address(&set.address, &mut faults);
    if set.replaces != 0 && set.replaces == set.node {
        faults.add("replaces", "a master cannot replace itself");
    } else if set.replaces != 0 && !state.masters.contains_key(&set.replaces) {
        faults.add("replaces", format!("no master {} is known", set.replaces));
    }
    faults.result()?;
    let SetMaster { node, address, .. } = set;
    let present = state.masters.get(node);
    if present.is_none() && *node <= state.meta.last_master {
        let last = state.meta.last_master;
        return Err(Rejection::new(
            Code::InUse,
            format!(
                "node id {node} was a master's before and is never used again; the next one is {}",
                last.saturating_add(1)
            ),
        ));
    }
    if present.is_none() && state.masters.len() >= MASTERS {
        return Err(Rejection::new(
            Code::Busy,
            format!("there are {MASTERS} masters, no more are permitted; remove one first"),
        ));
    }
    let mut others = state.masters.values();
    if let Some(other) = others.find(|other| other.node != *node && other.address == *address) {
        return Err(Rejection::new(
            Code::InUse,
            format!(
                "{address} is the address of master {}; remove that one first, or give another \
                 address",
                other.node
            ),
        ));
    }
    let changes = present.is_none_or(|present| {
        (present.address.as_str(), present.seat, present.replaces)
            != (address.as_str(), set.seat, set.replaces)
    });
    Ok(Set { set, changes })
}

/// Anything that could be dialled: a host and a port.
fn address(address: &str, faults: &mut Faults) {
    let (host, port) = address.rsplit_once(':').unwrap_or((address, ""));
    let printable = address.chars().all(|each| each.is_ascii_graphic());
    let port: Option<u16> = port.parse().ok().filter(|port| *port > 0);
    if address.len() > LONGEST_ADDRESS || host.is_empty() || !printable || port.is_none() {
        faults.add(
            "address",
            format!(
                "is not host:port with a port from 1 to 65535, at most {LONGEST_ADDRESS} bytes \
                 together"
            ),
        );
    }
}

impl Plan for Set<'_> {
    fn preview(&self) -> Preview {
        preview_of(self.changes, &Verdict::Done)
    }

    fn write(self, state: &mut State, turn: &mut Turn) -> Verdict {
        if self.changes {
            let set = self.set;
            let master = state.masters.entry(set.node).or_insert(Master {
                node: set.node,
                address: String::new(),
                seat: Seat::Learner,
                replaces: 0,
                added: turn.at,
                revision: turn.revision,
            });
            master.address.clone_from(&set.address);
            master.seat = set.seat;
            master.replaces = set.replaces;
            master.revision = turn.revision;
            state.meta.last_master = state.meta.last_master.max(set.node);
            turn.changed(Change::Master(set.node));
        }
        Verdict::Done
    }
}

/// A master whose record goes.
#[derive(Debug)]
pub(crate) struct Remove {
    node: u64,
}

pub(crate) fn remove(state: &State, node: u64, actor: &str) -> Result<Remove, Rejection> {
    let mut faults = Faults::default();
    faults.words("actor", actor);
    faults.result()?;
    if !state.masters.contains_key(&node) {
        return Err(Rejection::new(
            Code::NotFound,
            format!("no master {node} is known"),
        ));
    }
    Ok(Remove { node })
}

impl Plan for Remove {
    fn preview(&self) -> Preview {
        Preview::Change
    }

    fn write(self, state: &mut State, turn: &mut Turn) -> Verdict {
        state.masters.remove(&self.node);
        turn.changed(Change::Master(self.node));
        for master in state.masters.values_mut() {
            if master.replaces == self.node {
                master.replaces = 0;
                master.revision = turn.revision;
                turn.changed(Change::Master(master.node));
            }
        }
        Verdict::Done
    }
}

/// A level to be raised.
#[derive(Debug)]
pub(crate) struct RaiseLevel {
    level: u32,
    changes: bool,
}

pub(crate) fn raise_level(state: &State, level: u32) -> RaiseLevel {
    RaiseLevel {
        level,
        changes: level > state.meta.level,
    }
}

impl Plan for RaiseLevel {
    fn preview(&self) -> Preview {
        preview_of(self.changes, &Verdict::Done)
    }

    fn write(self, state: &mut State, _turn: &mut Turn) -> Verdict {
        if self.changes {
            state.meta.level = self.level;
        }
        Verdict::Done
    }
}
