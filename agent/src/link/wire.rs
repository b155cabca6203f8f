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
use crate::core::{Event, HeldRun, KillTask, RunKey, StartTask};
use crate::driver::Hello;

/// Held runs of one message: with the longest names they take less than half of what one may.
pub(super) const RUNS_OF_A_MESSAGE: usize = 5_000;

/// What opens a stream: pages of held runs if they are many, then the hello with the last of them.
pub(super) fn opening(identity: &Identity, hello: &Hello) -> Vec<wire::AgentMessage> {
    let mut pages: Vec<Vec<wire::HeldRun>> = hello
        .held
        .chunks(RUNS_OF_A_MESSAGE)
        .map(|page| page.iter().map(write_held).collect())
        .collect();
    let last = wire::Hello {
        node_key: identity.node_key.to_string(),
        node_name: identity.node_name.clone(),
        inventory: Some(write_inventory(&hello.inventory)),
        runs: pages.pop().unwrap_or_default(),
    };
    let pages = pages.into_iter().map(|runs| wire::HeldRuns { runs });
    pages
        .map(agent_message::Message::HeldRuns)
        .chain([agent_message::Message::Hello(last)])
        .map(|message| wire::AgentMessage {
            message: Some(message),
        })
        .collect()
}

fn write_held(held: &HeldRun) -> wire::HeldRun {
    wire::HeldRun {
        run: Some(write_run_ref(held.key.framework, &held.key.run)),
        phase: write_phase(held.phase).into(),
        last_sequence: held.last_sequence,
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
pub fn incoming(message: master_message::Message) -> Vec<Event> {
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
        master_message::Message::DiscardRuns(discard) => discard
            .runs
            .into_iter()
            .flat_map(|run| {
                let event = read_key(Some(run), "runs").map(Event::Discard);
                one(event, "a run that the master discards cannot be read")
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
    // How a master says it that does not know `DiscardRuns`.
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

#[cfg(test)]
mod tests {
    use mete_model::{FrameworkId, Inventory, NodeKey, RunId, TaskId, TaskPhase};
    use prost::Message as _;
    use uuid::Uuid;

    use super::*;

    fn opened_with(count: usize) -> Vec<wire::AgentMessage> {
        let identity = Identity {
            node_key: NodeKey(Uuid::nil()),
            node_name: "n1".to_owned(),
            registered: false,
        };
        let long = "x".repeat(240);
        let held = |number: usize| HeldRun {
            key: RunKey {
                framework: FrameworkId(Uuid::nil()),
                run: RunId::new(TaskId::new(&format!("{long}-{number}")).expect("an id"), 1),
            },
            phase: TaskPhase::Running,
            last_sequence: u64::MAX,
        };
        let hello = Hello {
            inventory: Inventory::default(),
            held: (0..count).map(held).collect(),
        };
        opening(&identity, &hello)
    }

    #[test]
    fn held_runs_go_in_pages_and_the_hello_comes_last_with_the_rest() {
        for (count, messages) in [(0, 1), (1, 1), (5_000, 1), (5_001, 2), (12_345, 3)] {
            let opened = opened_with(count);
            assert_eq!(opened.len(), messages, "{count} runs");
            let mut runs = Vec::new();
            for (at, message) in opened.into_iter().enumerate() {
                // Half of what a message may be, with names as long as they may be.
                assert!(message.encoded_len() < 2 << 20);
                match message.message {
                    Some(agent_message::Message::HeldRuns(page)) => runs.extend(page.runs),
                    Some(agent_message::Message::Hello(hello)) => {
                        assert_eq!(at + 1, messages, "the hello ends the opening");
                        runs.extend(hello.runs);
                    }
                    other => panic!("{other:?} does not belong to an opening"),
                }
            }
            let names: std::collections::BTreeSet<String> = runs
                .iter()
                .filter_map(|held| Some(held.run.clone()?.run?.task))
                .collect();
            assert_eq!((runs.len(), names.len()), (count, count));
        }
    }

    #[test]
    fn a_discard_is_understood_in_its_own_message_and_as_older_masters_say_it() {
        let run = write_run_ref(
            FrameworkId(Uuid::nil()),
            &RunId::new(TaskId::new("t").expect("an id"), 1),
        );
        let now = master_message::Message::DiscardRuns(wire::DiscardRuns {
            runs: vec![run.clone()],
        });
        let before = master_message::Message::KillTasks(wire::KillTasks {
            tasks: vec![wire::KillTask {
                run: Some(run),
                grace_ms: None,
                reason: "NOT_FOUND".to_owned(),
            }],
        });
        for message in [now, before] {
            let events = incoming(message);
            assert!(
                matches!(events.as_slice(), [Event::Discard(_)]),
                "{events:?}"
            );
        }
    }
}
