//! Messages of the stream, to and from the core's words.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use mete_model::{AgentId, Code, GrantId, RolePath, Span, TaskSpec};
use mete_proto::agent::v1 as wire;
use mete_proto::agent::v1::{agent_message, master_message};
use mete_proto::convert::{
    At, Faults, read_resources, read_run_ref, read_spec, whole, write_inventory, write_phase,
    write_run_ref, write_status,
};

use super::{Identity, ToLink};
use crate::core::{Event, KillTask, RunKey, StartTask};
use crate::driver::Hello;

pub(super) fn hello(identity: &Identity, hello: &Hello) -> wire::Hello {
    wire::Hello {
        node_key: identity.node_key.to_string(),
        node_name: identity.node_name.clone(),
        inventory: Some(write_inventory(&hello.inventory)),
        runs: hello
            .held
            .iter()
            .map(|held| wire::HeldRun {
                run: Some(write_run_ref(held.key.framework, &held.key.run)),
                phase: write_phase(held.phase).into(),
                last_sequence: held.last_sequence,
            })
            .collect(),
    }
}

pub(super) fn outgoing(message: ToLink) -> wire::AgentMessage {
    let message = match message {
        ToLink::Statuses(list) => agent_message::Message::Statuses(wire::Statuses {
            statuses: list
                .iter()
                .map(|(framework, status)| write_status(*framework, status, String::new()))
                .collect(),
        }),
        ToLink::Inventory(inventory) => {
            agent_message::Message::Inventory(write_inventory(&inventory))
        }
        ToLink::Beacon(progress) => agent_message::Message::Beacon(wire::Beacon { progress }),
    };
    wire::AgentMessage {
        message: Some(message),
    }
}

/// The leader that a refusal names.
pub(super) fn leader_of(status: &tonic::Status) -> Option<String> {
    let address = status.metadata().get("leader-addr")?.to_str().ok()?;
    (!address.is_empty()).then(|| address.to_owned())
}

/// When a refusal says to come again.
pub(super) fn retry_after(status: &tonic::Status) -> Option<Duration> {
    let millis = status.metadata().get("retry-after-ms")?.to_str().ok()?;
    millis.parse().ok().map(Duration::from_millis)
}

/// What a message of the master means. What cannot be read is said in the log and left out: the
/// leader owes it still, and a newer agent may understand it.
pub(super) fn incoming(message: master_message::Message) -> Vec<Event> {
    match message {
        master_message::Message::Welcome(welcome) => one(
            read_welcome(welcome),
            "a welcome of the master cannot be read",
        ),
        master_message::Message::StartTasks(start) => read_starts(start),
        master_message::Message::KillTasks(kill) => kill
            .tasks
            .into_iter()
            .flat_map(|task| one(read_kill(task), "a kill of the master cannot be read"))
            .collect(),
        master_message::Message::ForgetStatuses(forget) => forget
            .items
            .into_iter()
            .flat_map(|item| {
                let sequence = item.sequence;
                let key = read_key(item.run, "run");
                let event = key.map(|key| Event::Forget { key, sequence });
                one(event, "a confirmation of the master cannot be read")
            })
            .collect(),
        master_message::Message::Redirect(_) | master_message::Message::Beacon(_) => Vec::new(),
    }
}

fn one(event: Result<Event, Faults>, what: &'static str) -> Vec<Event> {
    match event {
        Ok(event) => vec![event],
        Err(faults) => {
            tracing::warn!(%faults, "{what}");
            Vec::new()
        }
    }
}

pub(crate) fn read_key(
    run: Option<mete_proto::types::v1::RunRef>,
    field: &str,
) -> Result<RunKey, Faults> {
    whole(|faults| {
        let (framework, run) = read_run_ref(run, At::root(field), faults)?;
        Some(RunKey { framework, run })
    })
}

fn read_welcome(welcome: wire::Welcome) -> Result<Event, Faults> {
    let agent = whole(|faults| {
        let read: Result<AgentId, _> = welcome.agent_id.parse();
        read.map_err(|error| faults.add(At::root("agent_id"), error))
            .ok()
    })?;
    let discard = welcome
        .discard
        .into_iter()
        .map(|run| read_key(Some(run), "discard"))
        .collect::<Result<Vec<_>, _>>()?;
    Ok(Event::Welcome { agent, discard })
}

fn read_kill(kill: wire::KillTask) -> Result<Event, Faults> {
    let key = read_key(kill.run, "run")?;
    // A reason of a newer master is kept as the general one: the kill itself must not fail.
    let reason: Code = kill.reason.parse().unwrap_or(Code::KilledByFramework);
    if reason == Code::NotFound {
        return Ok(Event::Discard(key));
    }
    Ok(Event::Kill(KillTask {
        key,
        grace: kill.grace_ms.map(Span),
        reason,
    }))
}

fn read_starts(start: wire::StartTasks) -> Vec<Event> {
    let specs: Vec<Result<Arc<TaskSpec>, Faults>> = start
        .specs
        .into_iter()
        .map(|spec| whole(|faults| read_spec(spec, At::root("spec"), faults)).map(Arc::new))
        .collect();
    start
        .tasks
        .into_iter()
        .flat_map(|task| {
            let spec = usize::try_from(task.spec).ok().and_then(|at| specs.get(at));
            let spec = match spec {
                Some(Ok(spec)) => Arc::clone(spec),
                Some(Err(faults)) => {
                    tracing::warn!(%faults, "a task of the master has a spec that cannot be read");
                    return Vec::new();
                }
                None => {
                    tracing::warn!(position = task.spec, "a task of the master has no spec");
                    return Vec::new();
                }
            };
            let read = read_start(task, spec).map(|start| Event::Start(Box::new(start)));
            one(read, "a start of the master cannot be read")
        })
        .collect()
}

fn read_start(task: wire::StartTask, spec: Arc<TaskSpec>) -> Result<StartTask, Faults> {
    let key = read_key(task.run, "run")?;
    let resources = whole(|faults| read_resources(task.resources, At::root("resources"), faults))?;
    Ok(StartTask {
        key,
        grant: GrantId(task.grant_id),
        resources,
        spec,
        environment: sorted(task.environment),
        labels: sorted(task.labels),
        role: RolePath::new(&task.role).ok(),
        framework_name: task.framework_name,
    })
}

fn sorted(map: impl IntoIterator<Item = (String, String)>) -> BTreeMap<String, String> {
    map.into_iter().collect()
}
