//! Ids and names.

use std::fmt::Display;

use mete_model::{AgentId, ClaimId, FrameworkId, OfferId, RolePath, RunId, TaskId};

use super::faults::{At, Faults};
use crate::types::v1 as wire;

/// Roles that one framework may name.
pub const MOST_ROLES: usize = 1000;

fn noted<T, E: Display>(result: Result<T, E>, at: At<'_>, faults: &mut Faults) -> Option<T> {
    result.map_err(|error| faults.add(at, error)).ok()
}

/// Reads an agent's id.
pub fn read_agent(text: &str, at: At<'_>, faults: &mut Faults) -> Option<AgentId> {
    noted(text.parse(), at, faults)
}

/// Reads a framework's id.
pub fn read_framework(text: &str, at: At<'_>, faults: &mut Faults) -> Option<FrameworkId> {
    noted(text.parse(), at, faults)
}

/// Reads a role's path.
pub fn read_role(text: &str, at: At<'_>, faults: &mut Faults) -> Option<RolePath> {
    noted(RolePath::new(text), at, faults)
}

/// Reads a set of roles: each at most once, at most [`MOST_ROLES`]; gives them sorted.
pub fn read_roles(list: &[String], at: At<'_>, faults: &mut Faults) -> Option<Vec<RolePath>> {
    if list.len() > MOST_ROLES {
        faults.add(
            at,
            format_args!(
                "{} roles are more than the {MOST_ROLES} permitted",
                list.len()
            ),
        );
        return None;
    }
    let mut roles: Vec<RolePath> = Vec::with_capacity(list.len());
    for (index, text) in list.iter().enumerate() {
        let Some(role) = read_role(text, at.index(index), faults) else {
            continue;
        };
        match roles.binary_search(&role) {
            Ok(_) => faults.add(at.index(index), format_args!("role {role} is named twice")),
            Err(place) => roles.insert(place, role),
        }
    }
    (roles.len() == list.len()).then_some(roles)
}

/// Reads a claim's id.
pub fn read_claim_id(text: &str, at: At<'_>, faults: &mut Faults) -> Option<ClaimId> {
    noted(ClaimId::new(text), at, faults)
}

/// Reads a run.
pub fn read_run(run: Option<wire::Run>, at: At<'_>, faults: &mut Faults) -> Option<RunId> {
    let Some(run) = run else {
        faults.add(at, "must be given");
        return None;
    };
    let task = noted(TaskId::new(&run.task), at.field("task"), faults);
    if run.attempt == 0 {
        faults.add(
            at.field("attempt"),
            "0 is not permitted: attempts count from 1",
        );
        return None;
    }
    Some(RunId::new(task?, run.attempt))
}

/// Writes a run.
#[must_use]
pub fn write_run(run: &RunId) -> wire::Run {
    wire::Run {
        task: run.task.as_str().to_owned(),
        attempt: run.attempt,
    }
}

/// Reads a run together with its framework.
pub fn read_run_ref(
    run: Option<wire::RunRef>,
    at: At<'_>,
    faults: &mut Faults,
) -> Option<(FrameworkId, RunId)> {
    let Some(run) = run else {
        faults.add(at, "must be given");
        return None;
    };
    let framework = read_framework(&run.framework_id, at.field("framework_id"), faults);
    let run = read_run(run.run, at.field("run"), faults);
    Some((framework?, run?))
}

/// Writes a run together with its framework.
#[must_use]
pub fn write_run_ref(framework: FrameworkId, run: &RunId) -> wire::RunRef {
    wire::RunRef {
        framework_id: framework.to_string(),
        run: Some(write_run(run)),
    }
}

/// Reads an offer's id; its term and number count from 1.
pub fn read_offer_id(id: wire::OfferId, at: At<'_>, faults: &mut Faults) -> Option<OfferId> {
    let mut good = true;
    for (name, number) in [("term", id.term), ("number", id.number)] {
        if number == 0 {
            faults.add(at.field(name), "0 is not permitted: it counts from 1");
            good = false;
        }
    }
    good.then_some(OfferId {
        term: id.term,
        number: id.number,
    })
}

/// Writes an offer's id.
#[must_use]
pub fn write_offer_id(id: OfferId) -> wire::OfferId {
    wire::OfferId {
        term: id.term,
        number: id.number,
    }
}
