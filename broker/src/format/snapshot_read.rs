//! Stored messages as records of the state.

use std::collections::HashSet;
use std::sync::Arc;

use mete_model::{GrantId, RunId, TaskId, TaskSpec, Timestamp};
use mete_proto::convert::{
    At, Faults, read_claim, read_claim_id, read_inventory, read_resources, read_role, read_run,
    read_spec,
};
use mete_proto::internal::v1 as stored;
use mete_proto::internal::v1::snapshot_part::Part as Stored;
use mete_state::{
    Agent, ClaimRecord, EndedRun, Framework, Kill, Master, Meta, Part, Places, Replacement, Role,
    Run, StoreRecord, Texts, Tombstone,
};

use super::read::{
    agent, at_position, code, condition, each, framework, given, maybe_run, node_key, phase, seat,
    span,
};
use super::settings::read_settings;
use super::status::read_status;
use super::verdict::read_verdict;

/// Reads all records of a piece; specs equal to one that is `known` become that one.
pub(super) fn read_piece(
    piece: stored::SnapshotPiece,
    known: &mut HashSet<Arc<TaskSpec>>,
    faults: &mut Faults,
) -> Option<Vec<Part>> {
    let specs = each(
        piece.specs,
        At::root("specs"),
        faults,
        |spec, at, faults| Some(shared(read_spec(spec, at, faults)?, known)),
    )?;
    each(
        piece.parts,
        At::root("parts"),
        faults,
        |part, at, faults| read_part(part, &specs, at, faults),
    )
}

fn shared(spec: TaskSpec, known: &mut HashSet<Arc<TaskSpec>>) -> Arc<TaskSpec> {
    if let Some(same) = known.get(&spec) {
        return Arc::clone(same);
    }
    let spec = Arc::new(spec);
    known.insert(Arc::clone(&spec));
    spec
}

fn read_part(
    part: stored::SnapshotPart,
    specs: &[Arc<TaskSpec>],
    at: At<'_>,
    faults: &mut Faults,
) -> Option<Part> {
    Some(match given(part.part, at, faults)? {
        Stored::Meta(meta) => Part::Meta(Meta {
            revision: meta.revision,
            clock: Timestamp(meta.clock_ms),
            last_grant: GrantId(meta.last_grant),
            last_master: meta.last_master,
            level: meta.level,
        }),
        Stored::Master(master) => Part::Master(Master {
            node: master.node,
            address: master.address,
            seat: seat(master.seat, at.field("seat"), faults)?,
            replaces: master.replaces,
            added: Timestamp(master.added_ms),
            revision: master.revision,
        }),
        Stored::Role(role) => Part::Role(Role {
            path: read_role(&role.path, at.field("path"), faults)?,
            weight_milli: role.weight_milli,
            created: Timestamp(role.created_ms),
            revision: role.revision,
        }),
        Stored::Agent(agent) => Part::Agent(read_agent(agent, at, faults)?),
        Stored::Framework(framework) => Part::Framework(read_framework(framework, at, faults)?),
        Stored::Tombstone(tombstone) => Part::Tombstone(read_tombstone(tombstone, at, faults)?),
        Stored::Claim(claim) => Part::Claim(read_claim_record(claim, at, faults)?),
        Stored::Run(run) => Part::Run(Box::new(read_one_run(run, specs, at, faults)?)),
        Stored::History(run) => Part::History(Box::new(read_one_run(run, specs, at, faults)?)),
        Stored::Ended(ended) => Part::Ended(read_ended(ended, at, faults)?),
        Stored::Store(record) => Part::Store(StoreRecord {
            framework: framework(&record.framework, at.field("framework"), faults)?,
            key: record.key.to_vec(),
            value: Arc::from(&record.value[..]),
            revision: record.revision,
        }),
        Stored::Verdict(verdict) => Part::Verdict(read_verdict(verdict, at, faults)?),
    })
}

fn read_agent(record: stored::SnapshotAgent, at: At<'_>, faults: &mut Faults) -> Option<Agent> {
    let inventory = read_inventory(record.inventory, at.field("inventory"), faults)?;
    Some(Agent {
        id: agent(&record.id, at.field("id"), faults)?,
        node_key: node_key(&record.node_key, at.field("node_key"), faults)?,
        node_name: record.node_name,
        inventory: Arc::new(inventory),
        condition: condition(record.condition, at.field("condition"), faults)?,
        since: Timestamp(record.since_ms),
        admitted: Timestamp(record.admitted_ms),
        revision: record.revision,
    })
}

fn read_framework(
    record: stored::SnapshotFramework,
    at: At<'_>,
    faults: &mut Faults,
) -> Option<Framework> {
    Some(Framework {
        id: framework(&record.id, at.field("id"), faults)?,
        principal: record.principal,
        name: record.name,
        incarnation: record.incarnation,
        settings: read_settings(record.settings, at.field("settings"), faults)?,
        subscribed: Timestamp(record.subscribed_ms),
        away: record.away_ms.map(Timestamp),
        demand_version: record.demand_version,
        answered: record.answered,
        revision: record.revision,
    })
}

fn read_tombstone(
    record: stored::SnapshotTombstone,
    at: At<'_>,
    faults: &mut Faults,
) -> Option<Tombstone> {
    Some(Tombstone {
        framework: framework(&record.framework, at.field("framework"), faults)?,
        principal: record.principal,
        name: record.name,
        incarnation: record.incarnation,
        call: record.call,
        actor: record.actor,
        torn_down: Timestamp(record.torn_down_ms),
        settled: record.settled_ms.map(Timestamp),
        revision: record.revision,
    })
}

fn read_claim_record(
    record: stored::SnapshotClaim,
    at: At<'_>,
    faults: &mut Faults,
) -> Option<ClaimRecord> {
    let claim = given(record.claim, at.field("claim"), faults)?;
    Some(ClaimRecord {
        framework: framework(&record.framework, at.field("framework"), faults)?,
        claim: read_claim(claim, at.field("claim"), faults)?,
        launched: record.launched,
        submitted: Timestamp(record.submitted_ms),
        declared: record.declared,
        revision: record.revision,
    })
}

fn read_one_run(
    record: stored::SnapshotRun,
    specs: &[Arc<TaskSpec>],
    at: At<'_>,
    faults: &mut Faults,
) -> Option<Run> {
    let task = TaskId::new(&record.task)
        .map_err(|error| faults.add(at.field("task"), error))
        .ok()?;
    let id = RunId::new(task, record.attempt);
    let claim = if record.claim.is_empty() {
        None
    } else {
        Some(read_claim_id(&record.claim, at.field("claim"), faults)?)
    };
    let list = at.field("statuses");
    let statuses = each(record.statuses, list, faults, |status, at, faults| {
        read_status(status, Some(&id), at, faults)
    })?;
    let kill = match record.kill {
        None => None,
        Some(kill) => Some(Box::new(read_kill(kill, at.field("kill"), faults)?)),
    };
    Some(Run {
        framework: framework(&record.framework, at.field("framework"), faults)?,
        agent: agent(&record.agent, at.field("agent"), faults)?,
        role: read_role(&record.role, at.field("role"), faults)?,
        claim,
        grant: GrantId(record.grant),
        resources: read_resources(record.resources, at.field("resources"), faults)?,
        spec: Arc::clone(at_position(specs, record.spec, at.field("spec"), faults)?),
        environment: Texts::from(&record.environment),
        labels: Texts::from(&record.labels),
        phase: phase(record.phase, at.field("phase"), faults)?,
        launched: Timestamp(record.launched_ms),
        launched_at: record.launched_at,
        started: record.started_ms.map(Timestamp),
        ended: record.ended_ms.map(Timestamp),
        sequence: record.sequence,
        acknowledged: record.acknowledged,
        statuses,
        kill,
        replacement: read_replacement(record.replacement, at.field("replacement"), faults)?,
        revision: record.revision,
        id,
    })
}

fn read_replacement(
    stored: Option<stored::SnapshotReplacement>,
    at: At<'_>,
    faults: &mut Faults,
) -> Option<Replacement> {
    let stored = stored.unwrap_or_default();
    Some(Replacement::from(Places {
        replaceable: stored.replaceable_ms.map(Timestamp),
        replaces: maybe_run(stored.replaces, at.field("replaces"), faults)?,
        replaced_by: maybe_run(stored.replaced_by, at.field("replaced_by"), faults)?,
    }))
}

fn read_kill(kill: stored::SnapshotKill, at: At<'_>, faults: &mut Faults) -> Option<Kill> {
    Some(Kill {
        since: Timestamp(kill.since_ms),
        grace: span(kill.grace_ms),
        by: code(&kill.by, at.field("by"), faults)?,
        actor: kill.actor,
        reason: kill.reason,
    })
}

fn read_ended(record: stored::SnapshotEnded, at: At<'_>, faults: &mut Faults) -> Option<EndedRun> {
    Some(EndedRun {
        framework: framework(&record.framework, at.field("framework"), faults)?,
        run: read_run(record.run, at.field("run"), faults)?,
        agent: agent(&record.agent, at.field("agent"), faults)?,
        grant: GrantId(record.grant),
        phase: phase(record.phase, at.field("phase"), faults)?,
        ended: Timestamp(record.ended_ms),
    })
}
