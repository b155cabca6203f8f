//! Records of the state as stored messages.

use std::sync::Arc;

use mete_model::TaskSpec;
use mete_proto::convert::{
    write_claim, write_inventory, write_phase, write_resources, write_run, write_spec,
};
use mete_proto::internal::v1 as stored;
use mete_proto::internal::v1::snapshot_part::Part as Stored;
use mete_proto::types::v1 as wire;
use mete_state::{
    Agent, ClaimRecord, EndedRun, Framework, Kill, Part, Replacement, Run, StoreRecord, Tombstone,
};
use prost::bytes::Bytes;

use super::read::{Positions, put_condition, put_seat, put_span, put_uuid};
use super::settings::put_settings;
use super::status::put_status;
use super::verdict::put_verdict;

/// Stores a record; a spec that is new goes to the end of `list`.
pub(super) fn put_part(
    part: &Part,
    specs: &mut Positions<Arc<TaskSpec>>,
    list: &mut Vec<wire::TaskSpec>,
) -> stored::SnapshotPart {
    let part = match part {
        Part::Meta(meta) => Stored::Meta(stored::SnapshotMeta {
            revision: meta.revision,
            clock_ms: meta.clock.0,
            last_grant: meta.last_grant.0,
            last_master: meta.last_master,
            level: meta.level,
        }),
        Part::Master(master) => Stored::Master(stored::SnapshotMaster {
            node: master.node,
            address: master.address.clone(),
            seat: put_seat(master.seat),
            replaces: master.replaces,
            added_ms: master.added.0,
            revision: master.revision,
        }),
        Part::Role(role) => Stored::Role(stored::SnapshotRole {
            path: role.path.as_str().to_owned(),
            weight_milli: role.weight_milli,
            created_ms: role.created.0,
            revision: role.revision,
        }),
        Part::Agent(agent) => Stored::Agent(put_agent(agent)),
        Part::Framework(framework) => Stored::Framework(put_framework(framework)),
        Part::Tombstone(tombstone) => Stored::Tombstone(put_tombstone(tombstone)),
        Part::Claim(claim) => Stored::Claim(put_claim(claim)),
        Part::Run(run) => Stored::Run(put_run(run, specs, list)),
        Part::History(run) => Stored::History(put_run(run, specs, list)),
        Part::Ended(ended) => Stored::Ended(put_ended(ended)),
        Part::Store(record) => Stored::Store(put_store(record)),
        Part::Verdict(verdict) => Stored::Verdict(put_verdict(verdict)),
    };
    stored::SnapshotPart { part: Some(part) }
}

fn put_agent(agent: &Agent) -> stored::SnapshotAgent {
    stored::SnapshotAgent {
        id: put_uuid(agent.id.0),
        node_key: put_uuid(agent.node_key.0),
        node_name: agent.node_name.clone(),
        inventory: Some(write_inventory(&agent.inventory)),
        condition: put_condition(agent.condition),
        since_ms: agent.since.0,
        admitted_ms: agent.admitted.0,
        revision: agent.revision,
    }
}

fn put_framework(framework: &Framework) -> stored::SnapshotFramework {
    stored::SnapshotFramework {
        id: put_uuid(framework.id.0),
        principal: framework.principal.clone(),
        name: framework.name.clone(),
        incarnation: framework.incarnation,
        settings: put_settings(&framework.settings),
        subscribed_ms: framework.subscribed.0,
        away_ms: framework.away.map(|since| since.0),
        demand_version: framework.demand_version,
        answered: framework.answered,
        revision: framework.revision,
    }
}

fn put_tombstone(tombstone: &Tombstone) -> stored::SnapshotTombstone {
    stored::SnapshotTombstone {
        framework: put_uuid(tombstone.framework.0),
        principal: tombstone.principal.clone(),
        name: tombstone.name.clone(),
        incarnation: tombstone.incarnation,
        call: tombstone.call,
        actor: tombstone.actor.clone(),
        torn_down_ms: tombstone.torn_down.0,
        settled_ms: tombstone.settled.map(|at| at.0),
        revision: tombstone.revision,
    }
}

fn put_claim(record: &ClaimRecord) -> stored::SnapshotClaim {
    stored::SnapshotClaim {
        framework: put_uuid(record.framework.0),
        claim: Some(write_claim(&record.claim)),
        launched: record.launched,
        submitted_ms: record.submitted.0,
        declared: record.declared,
        revision: record.revision,
    }
}

fn put_run(
    run: &Run,
    specs: &mut Positions<Arc<TaskSpec>>,
    list: &mut Vec<wire::TaskSpec>,
) -> stored::SnapshotRun {
    let (spec, new) = specs.of(Arc::clone(&run.spec));
    if new {
        list.push(write_spec(&run.spec));
    }
    stored::SnapshotRun {
        framework: put_uuid(run.framework.0),
        task: run.id.task.as_str().to_owned(),
        attempt: run.id.attempt,
        agent: put_uuid(run.agent.0),
        role: run.role.as_str().to_owned(),
        claim: run
            .claim
            .as_ref()
            .map(|claim| claim.as_str().to_owned())
            .unwrap_or_default(),
        grant: run.grant.0,
        resources: Some(write_resources(&run.resources)),
        spec,
        environment: run.environment.to_map(),
        labels: run.labels.to_map(),
        phase: write_phase(run.phase).into(),
        launched_ms: run.launched.0,
        launched_at: run.launched_at,
        started_ms: run.started.map(|at| at.0),
        ended_ms: run.ended.map(|at| at.0),
        sequence: run.sequence,
        acknowledged: run.acknowledged,
        statuses: run
            .statuses
            .iter()
            .map(|status| put_status(status, 0, false))
            .collect(),
        kill: run.kill.as_deref().map(put_kill),
        revision: run.revision,
        replacement: put_replacement(&run.replacement),
    }
}

fn put_replacement(replacement: &Replacement) -> Option<stored::SnapshotReplacement> {
    let places = replacement.places();
    (*replacement != Replacement::default()).then(|| stored::SnapshotReplacement {
        replaceable_ms: places.replaceable.map(|at| at.0),
        replaces: places.replaces.as_ref().map(write_run),
        replaced_by: places.replaced_by.as_ref().map(write_run),
    })
}

fn put_kill(kill: &Kill) -> stored::SnapshotKill {
    stored::SnapshotKill {
        since_ms: kill.since.0,
        grace_ms: put_span(kill.grace),
        by: kill.by.to_string(),
        actor: kill.actor.clone(),
        reason: kill.reason.clone(),
    }
}

fn put_ended(ended: &EndedRun) -> stored::SnapshotEnded {
    stored::SnapshotEnded {
        framework: put_uuid(ended.framework.0),
        run: Some(write_run(&ended.run)),
        agent: put_uuid(ended.agent.0),
        grant: ended.grant.0,
        phase: write_phase(ended.phase).into(),
        ended_ms: ended.ended.0,
    }
}

fn put_store(record: &StoreRecord) -> stored::SnapshotStore {
    stored::SnapshotStore {
        framework: put_uuid(record.framework.0),
        key: Bytes::copy_from_slice(&record.key),
        value: Bytes::copy_from_slice(&record.value),
        revision: record.revision,
    }
}
