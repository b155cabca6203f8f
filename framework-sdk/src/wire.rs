//! From wire messages to what frameworks see.
//!
//! Single things are read and written by [`mete_proto::convert`], as everywhere; here they are put
//! together. A client is lenient where a broker is strict: an enum value, a code or a limit of a
//! newer release must not cost the framework its stream.

use std::collections::BTreeMap;
use std::time::Duration;

use mete_model::{
    AgentId, ClaimId, Enforcement, Exit, OfferId, Resources, RolePath, RunId, Span, TaskPhase,
    Timestamp,
};
use mete_proto::convert::{
    At, Faults, read_agent, read_claim, read_enforcement, read_exit, read_offer_id, read_phase,
    read_resources, read_run, read_source, read_usage, whole,
};
use mete_proto::framework::v1 as fw;
use mete_proto::types::v1 as pb;

use crate::error::{Error, Reason, Result};
use crate::event::{AgentChanged, Replaceable};
use crate::task::{AgentCondition, ClaimInfo, RunInfo, TaskUpdate};

/// A length of time in whole milliseconds.
pub(crate) fn span(duration: Duration) -> Span {
    Span(u64::try_from(duration.as_millis()).unwrap_or(u64::MAX))
}

fn malformed(what: &str, why: impl std::fmt::Display) -> Error {
    Error::Protocol(format!("{what}: {why}"))
}

/// Reads what must be readable; all that is wrong with it is in the error.
fn read<T>(what: &str, read: impl FnOnce(At<'_>, &mut Faults) -> Option<T>) -> Result<T> {
    whole(|faults| read(At::root(what), faults)).map_err(|faults| malformed(what, faults))
}

/// Reads what only tells something: what cannot be read is not told.
fn told<T>(read: impl FnOnce(At<'_>, &mut Faults) -> Option<T>) -> Option<T> {
    whole(|faults| read(At::root(""), faults)).ok()
}

pub(crate) fn run_from(run: Option<pb::Run>) -> Result<RunId> {
    read("run", |at, faults| read_run(run, at, faults))
}

pub(crate) fn offer_id_from(id: Option<pb::OfferId>) -> Result<OfferId> {
    let id = id.unwrap_or_default();
    read("offer id", |at, faults| read_offer_id(id, at, faults))
}

pub(crate) fn resources_from(resources: Option<pb::Resources>) -> Result<Resources> {
    read("resources", |at, faults| {
        read_resources(resources, at, faults)
    })
}

pub(crate) fn claim_from(status: pb::ClaimStatus) -> Result<ClaimInfo> {
    let claim = status.claim.unwrap_or_default();
    Ok(ClaimInfo {
        claim: read("claim", |at, faults| read_claim(claim, at, faults))?,
        launched: status.launched,
    })
}

/// `None` for a phase that this release does not know.
pub(crate) fn phase_from(phase: i32) -> Option<TaskPhase> {
    told(|at, faults| read_phase(phase, at, faults))
}

/// How a process ended; `None` for numbers that no process can end with.
pub(crate) fn exit_from(exit: Option<pb::Exit>) -> Option<Exit> {
    told(|at, faults| read_exit(exit, at, faults)).flatten()
}

pub(crate) fn status_from(wire: pb::Status) -> Result<TaskUpdate> {
    let run = run_from(wire.run.and_then(|reference| reference.run))?;
    let phase = phase_from(wire.phase)
        .ok_or_else(|| malformed("status", format!("{run} is in an unknown phase")))?;
    Ok(TaskUpdate {
        task: run.task,
        attempt: run.attempt,
        sequence: wire.sequence,
        phase,
        reason: wire.reason.parse().ok(),
        message: wire.message,
        source: read_source(wire.source),
        at: Timestamp(wire.at_ms),
        exit: exit_from(wire.exit),
        usage: told(|at, faults| read_usage(wire.usage, at, faults)).flatten(),
        coalesced: wire.coalesced,
        agent: agent_from(&wire.agent_id),
        claim: None,
    })
}

pub(crate) fn agent_from(text: &str) -> Option<AgentId> {
    told(|at, faults| read_agent(text, at, faults))
}

pub(crate) fn condition_from(wire: i32) -> AgentCondition {
    match fw::AgentCondition::try_from(wire) {
        Ok(fw::AgentCondition::Recovering) => AgentCondition::Recovering,
        Ok(fw::AgentCondition::Unreachable) => AgentCondition::Unreachable,
        Ok(fw::AgentCondition::Gone) => AgentCondition::Gone,
        // A condition of a newer release is none that this one could act on.
        Ok(fw::AgentCondition::Ready | fw::AgentCondition::Unspecified) | Err(_) => {
            AgentCondition::Ready
        }
    }
}

/// A run of a snapshot, how far it is acknowledged, and what is not.
pub(crate) struct SnapshotRun {
    pub info: RunInfo,
    pub acknowledged: u64,
    pub unacknowledged: Vec<TaskUpdate>,
}

/// A run that has a name is there, whatever else of it cannot be read: left out, it would be taken
/// for lost.
pub(crate) fn run_status_from(wire: fw::RunStatus) -> Result<SnapshotRun> {
    let run = run_from(wire.run)?;
    let mut unacknowledged = Vec::with_capacity(wire.unacknowledged.len());
    for status in wire.unacknowledged {
        match status_from(status) {
            Ok(update) => unacknowledged.push(update),
            // Not acknowledged: a newer release of this framework may understand it.
            Err(error) => tracing::warn!(%run, %error, "status passed over"),
        }
    }
    let resources = resources_from(wire.resources).unwrap_or_else(|error| {
        tracing::warn!(%run, %error, "what a run holds is not known");
        Resources::default()
    });
    Ok(SnapshotRun {
        info: RunInfo {
            run,
            phase: phase_from(wire.phase).unwrap_or(TaskPhase::Staging),
            role: RolePath::new(&wire.role).ok(),
            claim: ClaimId::new(&wire.claim).ok(),
            agent: agent_from(&wire.agent_id),
            node: wire.node,
            node_address: wire.node_address,
            resources,
            labels: wire.labels,
            agent_condition: condition_from(wire.agent_condition),
            replaceable: (wire.replaceable_since_ms > 0)
                .then_some(Timestamp(wire.replaceable_since_ms)),
            replaces: wire.replaces.and_then(|old| run_from(Some(old)).ok()),
        },
        acknowledged: wire.acknowledged_sequence,
        unacknowledged,
    })
}

pub(crate) fn agent_changed_from(wire: fw::AgentChanged) -> Result<AgentChanged> {
    Ok(AgentChanged {
        agent: agent_from(&wire.agent_id)
            .ok_or_else(|| malformed("agent change", "has no agent id"))?,
        node: wire.node,
        condition: condition_from(wire.condition),
        since: Timestamp(wire.since_ms),
        topology_epoch: wire.topology_epoch,
    })
}

pub(crate) fn replaceable_from(wire: fw::RunsReplaceable) -> Result<Replaceable> {
    let runs = wire.runs.into_iter().map(|run| run_from(Some(run)));
    Ok(Replaceable {
        agent: agent_from(&wire.agent_id)
            .ok_or_else(|| malformed("replaceable runs", "have no agent id"))?,
        since: Timestamp(wire.since_ms),
        runs: runs.collect::<Result<_>>()?,
    })
}

/// What is enforced, by kind; nothing is promised that cannot be read.
pub(crate) fn enforcement_from(kinds: &BTreeMap<String, i32>) -> BTreeMap<String, Enforcement> {
    told(|at, faults| read_enforcement(kinds, at, faults)).unwrap_or_default()
}

/// `Ok` for a verdict that says OK, else why not.
pub(crate) fn verdict_from(wire: Option<pb::Verdict>) -> Result<(), Reason> {
    let Some(wire) = wire else {
        return Err(Reason::new(
            mete_model::Code::Internal,
            "the answer lacks a verdict",
        ));
    };
    if wire.code == mete_model::Code::Ok.as_str() {
        return Ok(());
    }
    Err(Reason {
        code: wire.code,
        detail: wire.detail,
        facts: wire.facts,
    })
}
