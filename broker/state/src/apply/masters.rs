//! The masters themselves: named, changed, removed, and the level their releases share.
//!
//! The state says where each master is and what its seat shall be. Who has which seat at the
//! moment, the replicated log's own membership says; the leader brings it here step by step.

use mete_model::Code;

use super::validate::Faults;
use super::{Plan, Turn, preview_of};
use crate::command::{AddMaster, SetMaster};
use crate::effect::{Change, Verdict};
use crate::limits::{LONGEST_ADDRESS, MASTERS};
use crate::record::{Master, Seat};
use crate::rejection::Rejection;
use crate::state::{Preview, State};

/// A master that is to join.
#[derive(Debug)]
pub(crate) struct Add<'a> {
    add: &'a AddMaster,
    node: u64,
}

pub(crate) fn add<'a>(state: &State, add: &'a AddMaster) -> Result<Add<'a>, Rejection> {
    let mut faults = Faults::default();
    faults.words("actor", &add.actor);
    address(&add.address, &mut faults);
    replaces(state, add.replaces, &mut faults);
    faults.result()?;
    if state.masters.len() >= MASTERS {
        return Err(Rejection::new(
            Code::Busy,
            format!("there are {MASTERS} masters, no more are permitted; remove one first"),
        ));
    }
    // Whoever is replaced may be the same machine with an empty disk.
    free_address(state, &add.address, &[add.replaces])?;
    let node = state.meta.last_master.max(add.above).saturating_add(1);
    Ok(Add { add, node })
}

impl Plan for Add<'_> {
    fn preview(&self) -> Preview {
        Preview::Change
    }

    fn write(self, state: &mut State, turn: &mut Turn) -> Verdict {
        let Self { add, node } = self;
        state.masters.insert(
            node,
            Master {
                node,
                address: add.address.clone(),
                seat: add.seat,
                replaces: add.replaces,
                added: turn.at,
                revision: turn.revision,
            },
        );
        state.meta.last_master = node;
        turn.changed(Change::Master(node));
        Verdict::MasterAdded { node }
    }
}

/// A master to be changed, or one that names itself.
#[derive(Debug)]
pub(crate) struct Set {
    master: Master,
    changes: bool,
}

pub(crate) fn set(state: &State, set: &SetMaster) -> Result<Set, Rejection> {
    let mut faults = Faults::default();
    faults.words("actor", &set.actor);
    if set.node == 0 {
        faults.add("node", "0 is nobody; node ids begin with 1");
    }
    if let Some(given) = &set.address {
        address(given, &mut faults);
    }
    let other = set.replaces.unwrap_or(0);
    if other != 0 && other == set.node {
        faults.add("replaces", "a master cannot replace itself");
    } else {
        replaces(state, other, &mut faults);
    }
    let present = state.masters.get(&set.node);
    if present.is_none() && set.address.is_none() {
        faults.add("address", "must be given for a master that is not known");
    }
    faults.result()?;
    let node = set.node;
    if present.is_none() && node <= state.meta.last_master {
        let last = state.meta.last_master;
        return Err(Rejection::new(
            Code::InUse,
            format!(
                "node id {node} was a master's before and is never used again; the next one is {}",
                last.saturating_add(1)
            ),
        ));
    }
    let before = present.cloned();
    let mut master = before.clone().unwrap_or(Master {
        node,
        address: String::new(),
        seat: Seat::Voter,
        replaces: 0,
        added: state.meta.clock,
        revision: state.meta.revision,
    });
    if let Some(address) = &set.address {
        master.address.clone_from(address);
    }
    master.seat = set.seat.unwrap_or(master.seat);
    master.replaces = set.replaces.unwrap_or(master.replaces);
    if before
        .as_ref()
        .is_none_or(|before| before.address != master.address)
    {
        free_address(state, &master.address, &[node, master.replaces])?;
    }
    Ok(Set {
        changes: before.as_ref() != Some(&master),
        master,
    })
}

fn replaces(state: &State, other: u64, faults: &mut Faults) {
    if other != 0 && !state.masters.contains_key(&other) {
        faults.add("replaces", format!("no master {other} is known"));
    }
}

/// No master but those `except` may have the address.
fn free_address(state: &State, address: &str, except: &[u64]) -> Result<(), Rejection> {
    let mut masters = state.masters.values();
    let taken = masters.find(|other| other.address == address && !except.contains(&other.node));
    match taken {
        None => Ok(()),
        Some(other) => Err(Rejection::new(
            Code::InUse,
            format!(
                "{address} is the address of master {}; remove that one first, add its successor \
                 as one that replaces it, or give another address",
                other.node
            ),
        )),
    }
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

impl Plan for Set {
    fn preview(&self) -> Preview {
        preview_of(self.changes, &Verdict::Done)
    }

    fn write(self, state: &mut State, turn: &mut Turn) -> Verdict {
        let Self {
            mut master,
            changes,
        } = self;
        if changes {
            let node = master.node;
            master.revision = turn.revision;
            if !state.masters.contains_key(&node) {
                master.added = turn.at;
            }
            state.masters.insert(node, master);
            state.meta.last_master = state.meta.last_master.max(node);
            turn.changed(Change::Master(node));
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
