//! One object of the state as a row. Resolved when read, never kept.

use std::collections::BTreeMap;

use mete_model::quota::{Charge, Kind as Counted};
use mete_model::{AgentId, ClaimId, FrameworkId, Resources, RolePath, RunId};
use mete_proto::admin::v1::{self as wire, object::Object as Row};
use mete_proto::convert::{
    write_claim, write_device, write_enforcement, write_exit, write_phase, write_resources,
    write_run, write_usage,
};
use mete_proto::types::v1 as types;
use mete_state::{Agent, AgentCondition, Change, ClaimRecord, Framework, Role, Run, State};

use super::Feed;

/// What roles add up to, gathered once for a page.
#[derive(Debug, Default)]
pub struct RoleSums<'a> {
    frameworks: BTreeMap<&'a RolePath, Vec<&'a str>>,
    waiting: BTreeMap<&'a RolePath, u64>,
}

impl<'a> RoleSums<'a> {
    /// Walks over all frameworks and their claims once.
    #[must_use]
    pub fn of(state: &'a State) -> Self {
        let mut sums = Self::default();
        for framework in state.frameworks() {
            for role in &framework.settings.roles {
                sums.frameworks
                    .entry(role)
                    .or_default()
                    .push(&framework.name);
            }
            for claim in state.claims(framework.id) {
                let sum = sums.waiting.entry(&claim.claim.role).or_default();
                *sum = sum.saturating_add(u64::from(claim.remaining()));
            }
        }
        sums
    }
}

/// An agent as a node's row, without what only the leader knows.
#[must_use]
pub fn node(state: &State, agent: &Agent) -> wire::Node {
    let inventory = &agent.inventory;
    let tasks = state.runs_on(agent.id).count();
    wire::Node {
        agent_id: agent.id.to_string(),
        name: agent.node_name.clone(),
        state: condition(agent.condition).to_owned(),
        state_since_ms: agent.since.0,
        total: Some(write_resources(&inventory.total)),
        granted: state.granted(agent.id).map(write_resources),
        offered: None,
        tasks: u32::try_from(tasks).unwrap_or(u32::MAX),
        labels: inventory.labels.clone(),
        topology_epoch: inventory.topology_epoch,
        boot_id: inventory.boot_id.clone(),
        version: inventory.version.clone(),
        node_address: inventory.node_address.clone(),
        fake: inventory.fake,
        admitted_ms: agent.admitted.0,
        enforcement: write_enforcement(&inventory.enforcement),
        devices: inventory.devices.iter().map(write_device).collect(),
    }
}

/// The word for a condition.
#[must_use]
pub fn condition(condition: AgentCondition) -> &'static str {
    match condition {
        AgentCondition::Ready => "ready",
        AgentCondition::Unreachable => "unreachable",
        AgentCondition::Gone => "gone",
    }
}

/// A framework's row.
#[must_use]
pub fn framework(state: &State, framework: &Framework) -> wire::Framework {
    let settings = &framework.settings;
    let (mut claims, mut waiting) = (0_u32, 0_u64);
    for claim in state.claims(framework.id) {
        claims = claims.saturating_add(1);
        waiting = waiting.saturating_add(u64::from(claim.remaining()));
    }
    let mut granted = Charge::default();
    for (_, charge) in state.used_by_framework(framework.id) {
        granted.add(charge);
    }
    wire::Framework {
        id: framework.id.to_string(),
        name: framework.name.clone(),
        principal: framework.principal.clone(),
        incarnation: framework.incarnation,
        state: connection(framework).to_owned(),
        state_since_ms: framework.away.unwrap_or(framework.subscribed).0,
        roles: texts(&settings.roles),
        suppressed_roles: texts(&settings.suppressed),
        plain_offers: settings.plain_offers,
        failover_timeout_ms: settings.failover_timeout.map_or(0, |span| span.0),
        labels: settings.labels.clone(),
        service_address: settings.service_address.clone(),
        tasks: u32::try_from(state.run_count(framework.id)).unwrap_or(u32::MAX),
        claims,
        waiting,
        offers: 0,
        store_bytes: state.store_bytes(framework.id),
        granted: Some(amounts(&granted)),
        demand_version: framework.demand_version,
    }
}

/// The word for a framework's connection.
#[must_use]
pub fn connection(framework: &Framework) -> &'static str {
    if framework.away.is_none() {
        "connected"
    } else {
        "disconnected"
    }
}

fn texts(roles: &[RolePath]) -> Vec<String> {
    roles.iter().map(|role| role.as_str().to_owned()).collect()
}

/// A role's row.
#[must_use]
pub fn role(state: &State, role: &Role, sums: &RoleSums<'_>) -> wire::Role {
    let names = sums.frameworks.get(&role.path);
    wire::Role {
        path: role.path.as_str().to_owned(),
        weight_milli: role.weight_milli,
        used: Some(amounts(&state.used_by_role(&role.path))),
        offered: None,
        frameworks: names
            .into_iter()
            .flatten()
            .map(|name| (*name).to_owned())
            .collect(),
        waiting: sums.waiting.get(&role.path).copied().unwrap_or(0),
    }
}

/// A claim's row, without what only the leader knows.
#[must_use]
pub fn claim(state: &State, record: &ClaimRecord) -> wire::ClaimRow {
    wire::ClaimRow {
        framework_id: record.framework.to_string(),
        framework: framework_name(state, record.framework),
        status: Some(types::ClaimStatus {
            claim: Some(write_claim(&record.claim)),
            launched: record.launched,
            submitted_ms: record.submitted.0,
        }),
        offered: 0,
        reason: String::new(),
        reason_detail: String::new(),
    }
}

/// A run's row.
#[must_use]
pub fn task(state: &State, run: &Run) -> wire::Task {
    let agent = state.agent(run.agent);
    let last = run.statuses.last();
    let reason = run.statuses.iter().rev().find_map(|status| status.reason);
    let away = agent.filter(|agent| agent.condition != AgentCondition::Ready);
    let mut labels = run.spec.labels.clone();
    labels.extend(run.labels.to_map());
    let (partition, places) = (run.spec.partition, run.replacement.places());
    wire::Task {
        framework_id: run.framework.to_string(),
        framework: framework_name(state, run.framework),
        run: Some(write_run(&run.id)),
        role: run.role.as_str().to_owned(),
        claim: run
            .claim
            .as_ref()
            .map(|claim| claim.as_str().to_owned())
            .unwrap_or_default(),
        agent_id: run.agent.to_string(),
        node: agent
            .map(|agent| agent.node_name.clone())
            .unwrap_or_default(),
        phase: write_phase(run.phase).into(),
        reason: reason.map(|code| code.to_string()).unwrap_or_default(),
        message: last
            .map(|status| status.message.clone())
            .unwrap_or_default(),
        resources: Some(write_resources(&run.resources)),
        labels,
        launched_ms: run.launched.0,
        running_ms: run.started.map_or(0, |at| at.0),
        ended_ms: run.ended.map_or(0, |at| at.0),
        exit: last.and_then(|status| status.exit).map(write_exit),
        last_sequence: run.sequence,
        acknowledged_sequence: run.acknowledged,
        kill_owed: run.kill.is_some() && !run.phase.is_terminal(),
        node_address: agent
            .map(|agent| agent.inventory.node_address.clone())
            .unwrap_or_default(),
        usage: last.and_then(|status| status.usage).map(write_usage),
        grant_id: run.grant.0,
        agent_state: away
            .map(|agent| condition(agent.condition).to_owned())
            .unwrap_or_default(),
        agent_state_since_ms: away.map_or(0, |agent| agent.since.0),
        command: run.spec.command.clone(),
        replace_after_ms: partition.replace_after.map_or(0, |after| after.0),
        keep: partition.keep.word().to_owned(),
        stop_if_silent_ms: partition.stop_if_silent.map_or(0, |silence| silence.0),
        replaceable_since_ms: places
            .replaceable
            .filter(|_| state.is_replaceable(run))
            .map_or(0, |since| since.0),
        replaces: places.replaces.as_ref().map(write_run),
        replaced_by: places.replaced_by.as_ref().map(write_run),
    }
}

/// What a framework is called; its id when it is torn down and forgotten.
#[must_use]
pub fn framework_name(state: &State, id: FrameworkId) -> String {
    if let Some(framework) = state.framework(id) {
        return framework.name.clone();
    }
    state
        .tombstone(id)
        .map_or_else(|| id.to_string(), |tombstone| tombstone.name.clone())
}

/// A charge as resources without names. A device counts in every ancestor of its class; here each
/// class shows only what is not shown below it, so that the sum is right.
#[must_use]
pub fn amounts(charge: &Charge) -> types::Resources {
    let mut resources = types::Resources::default();
    let mut classes: BTreeMap<&str, u64> = BTreeMap::new();
    for (kind, amount) in charge.iter() {
        match kind {
            Counted::Cpu => resources.cpu_milli = amount,
            Counted::Memory => resources.memory_bytes = amount,
            Counted::Disk => resources.disk_bytes = amount,
            Counted::Device(class) => {
                classes.insert(class.as_str(), amount);
            }
        }
    }
    let below = |class: &str| -> u64 {
        classes
            .iter()
            .filter(|(other, _)| {
                other
                    .rsplit_once('/')
                    .is_some_and(|(parent, _)| parent == class)
            })
            .map(|(_, amount)| *amount)
            .fold(0, u64::saturating_add)
    };
    for (class, amount) in &classes {
        let own = amount.saturating_sub(below(class));
        if own > 0 {
            resources.devices.push(types::DeviceShare {
                id: String::new(),
                class: (*class).to_owned(),
                milli: u32::try_from(own).unwrap_or(u32::MAX),
            });
        }
    }
    resources
}

/// Resources of many agents without their names: ids and cores of different agents are not one.
pub fn add_amounts(sum: &mut Charge, resources: &Resources) {
    sum.add(&Charge::of(resources));
}

/// An object by what a change names; `None` when it is gone. `sums` is for roles only.
#[must_use]
pub fn resolve(
    state: &State,
    feed: &Feed,
    change: &Change,
    sums: &RoleSums<'_>,
) -> Option<wire::Object> {
    let (revision, row) = match change {
        Change::Agent(id) => {
            let agent = state.agent(*id)?;
            (agent.revision, Row::Node(node(state, agent)))
        }
        Change::Framework(id) => {
            let known = state.framework(*id)?;
            (known.revision, Row::Framework(framework(state, known)))
        }
        Change::Role(path) => {
            let known = state.role(path)?;
            (known.revision, Row::Role(role(state, known, sums)))
        }
        Change::Claim(framework, id) => {
            let record = state.claim(*framework, id)?;
            (record.revision, Row::Claim(claim(state, record)))
        }
        Change::Run(framework, id) => {
            let run = state
                .run(*framework, id)
                .or_else(|| state.past_run(*framework, id))?;
            (run.revision, Row::Task(task(state, run)))
        }
        // Masters are listed with their standing, which is no row of the state.
        Change::Master(_) => return None,
    };
    Some(wire::Object {
        revision: revision.max(feed.last_change(change)),
        object: Some(row),
    })
}

/// The kind and key that an object is known by.
#[must_use]
pub fn key(state: &State, feed: &Feed, change: &Change) -> wire::ObjectKey {
    let (kind, key) = match change {
        Change::Agent(id) => (wire::Kind::Node, node_key(state, feed, *id)),
        Change::Framework(id) => (wire::Kind::Framework, id.to_string()),
        Change::Role(path) => (wire::Kind::Role, path.to_string()),
        Change::Claim(framework, id) => (wire::Kind::Claim, claim_key(*framework, id)),
        Change::Run(framework, id) => (wire::Kind::Task, task_key(*framework, id)),
        Change::Master(node) => (wire::Kind::Unspecified, node.to_string()),
    };
    wire::ObjectKey {
        kind: kind.into(),
        key,
    }
}

fn node_key(state: &State, feed: &Feed, id: AgentId) -> String {
    if let Some(agent) = state.agent(id) {
        return agent.node_name.clone();
    }
    feed.node_name(id)
        .map_or_else(|| id.to_string(), |name| name.to_string())
}

/// `framework-id/claim`.
#[must_use]
pub fn claim_key(framework: FrameworkId, claim: &ClaimId) -> String {
    format!("{framework}/{claim}")
}

/// `framework-id/task#attempt`.
#[must_use]
pub fn task_key(framework: FrameworkId, run: &RunId) -> String {
    format!("{framework}/{run}")
}

#[cfg(test)]
mod tests {
    use mete_model::device::WHOLE;
    use mete_model::{ClassPath, DeviceId, DeviceShare};

    use super::*;

    #[test]
    fn devices_are_shown_once_although_they_count_in_every_ancestor() {
        let share = |id: &str, class: &str| DeviceShare {
            id: DeviceId::new(id).expect("an id"),
            class: ClassPath::new(class).expect("a class"),
            milli: WHOLE,
        };
        let resources = Resources {
            devices: vec![
                share("a", "gpu/a100"),
                share("b", "gpu/t4"),
                share("c", "gpu"),
            ],
            ..Resources::default()
        };
        let shown = amounts(&Charge::of(&resources));
        let pairs: Vec<(&str, u32)> = shown
            .devices
            .iter()
            .map(|share| (share.class.as_str(), share.milli))
            .collect();
        assert_eq!(pairs, [("gpu", 1000), ("gpu/a100", 1000), ("gpu/t4", 1000)]);
    }
}
