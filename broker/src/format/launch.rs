//! Launches as stored: 10 000 tasks that share one spec stay far below one message.

use std::sync::Arc;

use mete_model::{Resources, RunId, TaskId};
use mete_proto::convert::{
    At, Faults, read_resources, read_role, read_spec, write_resources, write_run, write_spec,
};
use mete_proto::internal::v1 as stored;
use mete_state::command::{Launch, LaunchTask};

use super::read::{
    Positions, agent, at_position, caller, claims, each, maybe_run, put_caller, put_uuid,
};

pub(super) fn put_launch(launch: &Launch) -> stored::StoredLaunch {
    let mut message = stored::StoredLaunch {
        caller: put_caller(&launch.caller),
        role: launch.role.as_str().to_owned(),
        agent: put_uuid(launch.agent.0),
        topology_epoch: launch.topology_epoch,
        each_alone: launch.each_alone,
        tasks: Vec::with_capacity(launch.tasks.len()),
        ..stored::StoredLaunch::default()
    };
    // Specs are large and shared: told apart by address first, compared by content only when new.
    let mut addresses = Positions::default();
    let mut places: Vec<u32> = Vec::new();
    let mut specs = Positions::default();
    let mut claims = Positions::default();
    let mut resources: Positions<&Resources> = Positions::default();
    for task in &launch.tasks {
        let (address, unseen) = addresses.of(Arc::as_ptr(&task.spec));
        if unseen {
            let (place, new) = specs.of(&*task.spec);
            if new {
                message.specs.push(write_spec(&task.spec));
            }
            places.push(place);
        }
        let spec = usize::try_from(address)
            .ok()
            .and_then(|address| places.get(address))
            .copied()
            .unwrap_or(0);
        let claim = task.claim.as_ref().map_or(0, |claim| {
            let (place, new) = claims.of(claim);
            if new {
                message.claims.push(claim.as_str().to_owned());
            }
            place.saturating_add(1)
        });
        let (held, new) = resources.of(&task.resources);
        if new {
            message.resources.push(write_resources(&task.resources));
        }
        message.tasks.push(stored::StoredLaunchTask {
            task: task.run.task.as_str().to_owned(),
            attempt: task.run.attempt,
            claim,
            resources: held,
            spec,
            environment: task.environment.clone(),
            labels: task.labels.clone(),
            replaces: task.replaces.as_ref().map(write_run),
        });
    }
    message
}

pub(super) fn read_launch(launch: stored::StoredLaunch, faults: &mut Faults) -> Option<Launch> {
    let specs = each(
        launch.specs,
        At::root("specs"),
        faults,
        |spec, at, faults| read_spec(spec, at, faults).map(Arc::new),
    )?;
    let claims = claims(launch.claims, At::root("claims"), faults)?;
    let list = At::root("resources");
    let resources = each(launch.resources, list, faults, |held, at, faults| {
        read_resources(Some(held), at, faults)
    })?;
    let tasks = each(
        launch.tasks,
        At::root("tasks"),
        faults,
        |task, at, faults| {
            let claim = match task.claim.checked_sub(1) {
                None => None,
                Some(place) => {
                    Some(at_position(&claims, place, at.field("claim"), faults)?.clone())
                }
            };
            let task_id = TaskId::new(&task.task)
                .map_err(|error| faults.add(at.field("task"), error))
                .ok()?;
            Some(LaunchTask {
                run: RunId::new(task_id, task.attempt),
                claim,
                resources: at_position(&resources, task.resources, at.field("resources"), faults)?
                    .clone(),
                spec: Arc::clone(at_position(&specs, task.spec, at.field("spec"), faults)?),
                environment: task.environment,
                labels: task.labels,
                replaces: maybe_run(task.replaces, at.field("replaces"), faults)?,
            })
        },
    )?;
    Some(Launch {
        caller: caller(launch.caller, faults)?,
        role: read_role(&launch.role, At::root("role"), faults)?,
        agent: agent(&launch.agent, At::root("agent"), faults)?,
        topology_epoch: launch.topology_epoch,
        tasks,
        each_alone: launch.each_alone,
    })
}
