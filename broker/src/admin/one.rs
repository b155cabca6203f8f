//! One object: its row, and what a call that names it needs to know of it.

use mete_model::{AgentId, FrameworkId, OfferId, RunId};
use mete_proto::admin::v1 as wire;
use mete_state::Change;

use super::rows::{self, RoleSums};
use super::{Feed, Problem, find, soft, views};
use crate::handle::Handle;

/// Runs named as still being killed at the most.
const KILLING: usize = 10_000;

/// The row of the object of `kind` that `name` means.
///
/// # Errors
/// `NOT_FOUND`, `AMBIGUOUS` with candidates, `INVALID` for what cannot be a name, or why the leader
/// cannot be asked.
pub async fn get(
    handle: &Handle,
    feed: &Feed,
    kind: wire::Kind,
    name: &str,
) -> Result<wire::GetResponse, Problem> {
    views::at_present(handle).await?;
    if kind == wire::Kind::Offer {
        return offer(handle, name).await;
    }
    let (change, object, revision) = {
        let state = handle.state();
        let change = find::find(&state, kind, name)?;
        let sums = if kind == wire::Kind::Role {
            RoleSums::of(&state)
        } else {
            RoleSums::default()
        };
        let object = rows::resolve(&state, feed, &change, &sums)
            .ok_or_else(|| Problem::not_found(find::word(kind), name))?;
        (change, object, state.revision())
    };
    let mut objects = [object];
    soft::add(handle, vec![change], &mut objects).await?;
    let [object] = objects;
    Ok(wire::GetResponse {
        revision,
        object: Some(object),
    })
}

async fn offer(handle: &Handle, name: &str) -> Result<wire::GetResponse, Problem> {
    let id: OfferId = name
        .parse()
        .map_err(|error: mete_model::text::BadText| Problem::field("name", error.to_string()))?;
    let Some(offer) = soft::offer(handle, id).await? else {
        return Err(Problem::not_found("open offer", name));
    };
    let state = handle.state();
    Ok(wire::GetResponse {
        revision: state.revision(),
        object: Some(soft::offer_row(&state, &offer)),
    })
}

/// The framework that the field's text means.
///
/// # Errors
/// `NOT_FOUND`, `AMBIGUOUS`, or `INVALID` when nothing is given.
pub fn framework(handle: &Handle, field: &str, name: &str) -> Result<FrameworkId, Problem> {
    let word = find::word(wire::Kind::Framework);
    match named(handle, wire::Kind::Framework, field, name)? {
        Change::Framework(framework) => Ok(framework),
        Change::Agent(_)
        | Change::Role(_)
        | Change::Claim(..)
        | Change::Run(..)
        | Change::Master(_) => Err(Problem::not_found(word, name)),
    }
}

/// The node that the field's text means.
///
/// # Errors
/// As [`framework`].
pub fn node(handle: &Handle, field: &str, name: &str) -> Result<AgentId, Problem> {
    match named(handle, wire::Kind::Node, field, name)? {
        Change::Agent(agent) => Ok(agent),
        Change::Framework(_)
        | Change::Role(_)
        | Change::Claim(..)
        | Change::Run(..)
        | Change::Master(_) => Err(Problem::not_found(find::word(wire::Kind::Node), name)),
    }
}

fn named(handle: &Handle, kind: wire::Kind, field: &str, name: &str) -> Result<Change, Problem> {
    if name.is_empty() {
        return Err(Problem::field(field, "must be given"));
    }
    find::find(&handle.state(), kind, name)
}

/// Runs of a framework that have not ended, as many as an answer names.
#[must_use]
pub fn still_ending(handle: &Handle, framework: FrameworkId) -> Vec<RunId> {
    let state = handle.state();
    let live = state.runs(framework).filter(|run| !run.phase.is_terminal());
    live.map(|run| run.id.clone()).take(KILLING).collect()
}

/// How many runs on a node have not ended.
#[must_use]
pub fn runs_on(handle: &Handle, agent: AgentId) -> usize {
    handle.state().runs_on(agent).count()
}
