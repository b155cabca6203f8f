//! Roles: made, weighted, removed. A role that somebody holds or uses stays.

use mete_model::{Code, RolePath};

use super::validate::Faults;
use super::{Plan, Turn, preview_of};
use crate::effect::{Change, Verdict};
use crate::limits::{LARGEST_WEIGHT_MILLI, ROLES};
use crate::record::Role;
use crate::rejection::Rejection;
use crate::state::{Preview, State};

/// Weight of a role that was made without one.
const USUAL_WEIGHT_MILLI: u32 = 1_000;

/// A role to be made or changed.
#[derive(Debug)]
pub(crate) struct Set<'a> {
    path: &'a RolePath,
    weight_milli: u32,
    created: bool,
    changes: bool,
}

/// Frameworks named in a refusal.
const NAMED: usize = 3;

pub(crate) fn set<'a>(
    state: &State,
    path: &'a RolePath,
    weight_milli: Option<u32>,
    actor: &str,
) -> Result<Set<'a>, Rejection> {
    let mut faults = Faults::default();
    faults.words("actor", actor);
    if let Some(weight) = weight_milli
        && weight > LARGEST_WEIGHT_MILLI
    {
        faults.add(
            "weight_milli",
            format!("is {weight}, 0 to {LARGEST_WEIGHT_MILLI} is permitted"),
        );
    }
    faults.result()?;
    let present = state.roles.get(path);
    if present.is_none() && state.roles.len() >= ROLES {
        return Err(Rejection::new(
            Code::Busy,
            format!("there are {ROLES} roles, no more are permitted; remove some first"),
        ));
    }
    let before = present.map(|role| role.weight_milli);
    let weight_milli = weight_milli.or(before).unwrap_or(USUAL_WEIGHT_MILLI);
    Ok(Set {
        path,
        weight_milli,
        created: before.is_none(),
        changes: before != Some(weight_milli),
    })
}

impl Plan for Set<'_> {
    fn preview(&self) -> Preview {
        let created = self.created;
        preview_of(self.changes, &Verdict::RoleSet { created })
    }

    fn write(self, state: &mut State, turn: &mut Turn) -> Verdict {
        if self.changes {
            let created = state
                .roles
                .get(self.path)
                .map_or(turn.at, |role| role.created);
            let role = Role {
                path: self.path.clone(),
                weight_milli: self.weight_milli,
                created,
                revision: turn.revision,
            };
            state.roles.insert(self.path.clone(), role);
            turn.changed(Change::Role(self.path.clone()));
        }
        Verdict::RoleSet {
            created: self.created,
        }
    }
}

/// A role to be removed.
#[derive(Debug)]
pub(crate) struct Remove<'a> {
    path: &'a RolePath,
}

pub(crate) fn remove<'a>(
    state: &State,
    path: &'a RolePath,
    actor: &str,
) -> Result<Remove<'a>, Rejection> {
    let mut faults = Faults::default();
    faults.words("actor", actor);
    faults.result()?;
    if !state.roles.contains_key(path) {
        return Err(Rejection::new(
            Code::NotFound,
            format!("no role '{path}' is known"),
        ));
    }
    let mut holders = state
        .frameworks
        .values()
        .filter(|framework| framework.settings.roles.contains(path))
        .map(|framework| framework.name.as_str());
    let named: Vec<&str> = holders.by_ref().take(NAMED).collect();
    if !named.is_empty() {
        let more = holders.count();
        let more = if more > 0 {
            format!(" and {more} more")
        } else {
            String::new()
        };
        let named = named.join("', '");
        return Err(Rejection::new(
            Code::InUse,
            format!("role '{path}' is held by framework '{named}'{more}; let them leave it first"),
        ));
    }
    // A framework that left the role, or was torn down, may still have runs in it.
    if state.ledger.is_charged(path) {
        return Err(Rejection::new(
            Code::InUse,
            format!("role '{path}' is charged for runs that have not ended; wait for their end"),
        ));
    }
    Ok(Remove { path })
}

impl Plan for Remove<'_> {
    fn preview(&self) -> Preview {
        Preview::Change
    }

    fn write(self, state: &mut State, turn: &mut Turn) -> Verdict {
        state.roles.remove(self.path);
        turn.changed(Change::Role(self.path.clone()));
        Verdict::Done
    }
}
