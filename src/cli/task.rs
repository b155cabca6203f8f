//! `mete task`: list, show, kill, logs.

use mete_model::Code;
use mete_proto::admin::v1::object::Object as Content;
use mete_proto::admin::v1::{Filter, KillTasksRequest, Kind, Object, Task};
use mete_proto::types::v1 as types;
use serde_json::{Value, json};

use super::support::client::{Client, admin};
use super::support::error::{CliError, Outcome};
use super::support::logs::{self, Copying, Source, Target};
use super::support::print::{Listing, Row, note, print_checked};
use super::support::{watch, words};
use crate::args::objects::{Task as Command, TaskKill, TaskList, TaskLogs};

/// Does what was asked.
///
/// # Errors
/// The refusal.
pub async fn run(client: &Client, command: Command) -> Outcome {
    match command {
        Command::List(flags) => list(client, flags).await,
        Command::Show { task } => show(client, &task).await,
        Command::Kill(flags) => kill(client, flags).await,
        Command::Logs(flags) => follow(client, flags).await,
    }
}

async fn list(client: &Client, flags: TaskList) -> Outcome {
    let filter = Filter {
        states: flags.states,
        role: flags.role.unwrap_or_default(),
        framework: flags.framework.unwrap_or_default(),
        node: flags.node.unwrap_or_default(),
        labels: flags.labels.into_iter().collect(),
        ..Filter::default()
    };
    watch::show(client, Kind::Task, filter, listing).await
}

fn of(object: Object) -> Option<Task> {
    let Content::Task(task) = object.object? else {
        return None;
    };
    Some(task)
}

/// Tasks as a listing.
pub fn listing(revision: u64, objects: Vec<Object>) -> Listing {
    Listing {
        kind: "TaskList",
        revision: Some(revision),
        columns: vec![
            "TASK",
            "FRAMEWORK",
            "ROLE",
            "NODE",
            "PHASE",
            "CPU",
            "MEMORY",
            "DEVICES",
            "AGE",
            "EXIT",
            "REASON",
            "MESSAGE",
            "CORES",
            "COMMAND",
        ],
        narrow: 11,
        rows: objects
            .into_iter()
            .filter_map(of)
            .map(|task| row(&task))
            .collect(),
        footer: String::new(),
        warnings: Vec::new(),
    }
}

/// `task#attempt`.
fn run_name(task: &Task) -> String {
    let run = task.run.clone().unwrap_or_default();
    format!("{}#{}", run.task, run.attempt)
}

fn run_text(run: Option<&types::Run>) -> String {
    run.map_or_else(String::new, |run| format!("{}#{}", run.task, run.attempt))
}

/// Null for "not asked for".
fn given(milliseconds: u64) -> Option<u64> {
    (milliseconds > 0).then_some(milliseconds)
}

/// What happens to it while its node is not heard from.
fn policy(task: &Task) -> String {
    let mut parts = vec![match task.replace_after_ms {
        0 => "waits for its node".to_owned(),
        after => format!(
            "replaced after {}, keeps the {}",
            words::span(after),
            task.keep
        ),
    }];
    if task.stop_if_silent_ms > 0 {
        let silence = words::span(task.stop_if_silent_ms);
        parts.push(format!("ends itself after {silence} of silence"));
    }
    parts.join("; ")
}

/// Whether another run may take its place, or has, and whose it took.
fn replacement(task: &Task) -> String {
    let mut parts = Vec::new();
    if task.replaceable_since_ms > 0 {
        let ago = words::ago(task.replaceable_since_ms);
        parts.push(format!("replaceable for {ago}"));
    }
    if task.replaced_by.is_some() {
        parts.push(format!(
            "replaced by {}",
            run_text(task.replaced_by.as_ref())
        ));
    }
    if task.replaces.is_some() {
        parts.push(format!("replaces {}", run_text(task.replaces.as_ref())));
    }
    parts.join(", ")
}

fn row(task: &Task) -> Row {
    let resources = task.resources.clone().unwrap_or_default();
    let mut phase = words::phase(task.phase());
    if task.kill_owed {
        phase += ", to be killed";
    }
    if !task.agent_state.is_empty() {
        phase = format!("{phase}, node {}", task.agent_state);
    }
    Row::new(
        run_name(task),
        vec![
            run_name(task),
            task.framework.clone(),
            task.role.clone(),
            task.node.clone(),
            phase,
            mete_model::MilliCpu(resources.cpu_milli).to_string(),
            mete_model::Bytes(resources.memory_bytes).to_string(),
            words::devices(&task.resources),
            words::ago(task.launched_ms),
            words::exit(&task.exit),
            task.reason.clone(),
            task.message.clone(),
            resources.cores,
            task.command.join(" "),
        ],
        facts(task),
    )
    .amiss(amiss(task))
}

/// Wanted is that it runs, or has ended well or because somebody wanted it.
fn amiss(task: &Task) -> String {
    use types::TaskPhase as Phase;
    let phase = words::phase(task.phase());
    match task.phase() {
        Phase::Running | Phase::Finished | Phase::Killed if task.agent_state.is_empty() => {
            String::new()
        }
        Phase::Finished | Phase::Killed => String::new(),
        Phase::Running => format!("runs on node {}, {}", task.node, task.agent_state),
        Phase::Failed | Phase::Lost | Phase::Refused => format!("is {phase} ({})", task.reason),
        Phase::Unspecified | Phase::Staging | Phase::Starting | Phase::Finishing => {
            format!("is {phase}")
        }
    }
}

fn facts(task: &Task) -> Value {
    let run = task.run.clone().unwrap_or_default();
    let (exit_code, exit_signal) = words::exit_facts(&task.exit);
    json!({
        "name": run_name(task),
        "task": run.task,
        "attempt": run.attempt,
        "framework": task.framework,
        "framework_id": task.framework_id,
        "role": task.role,
        "claim": words::known(&task.claim),
        "node": task.node,
        "agent_id": task.agent_id,
        "node_address": words::known(&task.node_address),
        "agent_state": words::known(&task.agent_state),
        "agent_state_since": words::time(task.agent_state_since_ms),
        "phase": words::bare(task.phase().as_str_name(), "TASK_PHASE_"),
        "reason": words::known(&task.reason),
        "message": words::known(&task.message),
        "exit_code": exit_code,
        "exit_signal": exit_signal,
        "resources": words::resources(&task.resources),
        "grant_id": task.grant_id,
        "labels": task.labels,
        "command": task.command,
        "launched": words::time(task.launched_ms),
        "running": words::time(task.running_ms),
        "ended": words::time(task.ended_ms),
        "last_sequence": task.last_sequence,
        "acknowledged_sequence": task.acknowledged_sequence,
        "kill_owed": task.kill_owed,
        "replace_after_ms": given(task.replace_after_ms),
        "keep": words::known(&task.keep),
        "stop_if_silent_ms": given(task.stop_if_silent_ms),
        "replaceable_since": words::time(task.replaceable_since_ms),
        "replaces": words::known(&run_text(task.replaces.as_ref())),
        "replaced_by": words::known(&run_text(task.replaced_by.as_ref())),
        "usage": words::usage(&task.usage),
    })
}

async fn find(client: &Client, name: &str) -> Outcome<(u64, Task)> {
    let (revision, object) = client.cluster.get(Kind::Task, name).await?;
    let missing = || CliError::new(Code::NotFound, format!("no task '{name}'"));
    Ok((revision, of(object).ok_or_else(missing)?))
}

async fn show(client: &Client, name: &str) -> Outcome {
    let (revision, task) = find(client, name).await?;
    let text = sheet(&task);
    let amiss = amiss(&task);
    print_checked(
        &client.style,
        "Task",
        Some(revision),
        facts(&task),
        &text,
        &amiss,
    )
}

fn sheet(task: &Task) -> String {
    let stage = |from: u64, to: u64| match (from, to) {
        (0, _) => String::new(),
        (from, 0) => words::ago(from),
        (from, to) => words::span(to.saturating_sub(from)),
    };
    let usage = task.usage.unwrap_or_default();
    let mut used = Vec::new();
    if usage.cpu_ms > 0 {
        used.push(format!("cpu time {}", words::span(usage.cpu_ms)));
    }
    if usage.memory_peak_bytes > 0 {
        used.push(format!(
            "memory peak {}",
            mete_model::Bytes(usage.memory_peak_bytes)
        ));
    }
    let node = match task.agent_state.as_str() {
        "" => task.node.clone(),
        state => format!(
            "{} (agent {state} since {}, for {})",
            task.node,
            words::time(task.agent_state_since_ms)
                .as_str()
                .unwrap_or_default(),
            words::ago(task.agent_state_since_ms)
        ),
    };
    words::sheet(&[
        ("task", run_name(task)),
        (
            "framework",
            format!("{} ({})", task.framework, task.framework_id),
        ),
        ("role", task.role.clone()),
        ("claim", task.claim.clone()),
        ("node", node),
        ("phase", words::phase(task.phase())),
        ("replacement", replacement(task)),
        ("exit", words::exit(&task.exit)),
        ("reason", task.reason.clone()),
        ("message", task.message.clone()),
        ("granted", words::amounts(&task.resources)),
        ("used", used.join(", ")),
        ("to start", stage(task.launched_ms, task.running_ms)),
        ("ran", stage(task.running_ms, task.ended_ms)),
        ("if unreachable", policy(task)),
        ("labels", words::labels(&task.labels)),
        ("command", task.command.join(" ")),
    ])
}

async fn kill(client: &Client, flags: TaskKill) -> Outcome {
    let mut runs = Vec::new();
    for name in &flags.tasks {
        let (_, task) = find(client, name).await?;
        runs.push(types::RunRef {
            framework_id: task.framework_id,
            run: task.run,
        });
    }
    let request = KillTasksRequest {
        runs: runs.clone(),
        grace_ms: flags.grace.map(|grace| grace.0),
        reason: flags.reason,
        dry_run: client.globals.dry_run,
    };
    let answer = client
        .cluster
        .call(|channel| {
            let request = request.clone();
            async move { admin(channel).kill_tasks(request).await }
        })
        .await?;
    let word = if client.globals.dry_run {
        "would be ended"
    } else {
        "is being ended"
    };
    let names: Vec<String> = runs
        .iter()
        .filter_map(|run| run.run.as_ref())
        .map(|run| format!("{}#{}", run.task, run.attempt))
        .collect();
    super::support::verdicts::show(
        client,
        "KilledTasks",
        &names,
        &answer.runs,
        word,
        answer.revision,
    )
}

async fn follow(client: &Client, flags: TaskLogs) -> Outcome {
    let (_, task) = find(client, &flags.task).await?;
    let label = run_name(&task);
    let run = types::RunRef {
        framework_id: task.framework_id.clone(),
        run: task.run.clone(),
    };
    let source = Source::new(&label, Some(&run), &task.node_address)?;
    if !task.message.is_empty() && task.ended_ms != 0 {
        note(&format!("-- {label} {}: {} --", task.reason, task.message));
    }
    let follow = flags.reading.follow;
    let target = if client.style.format.is_machine() {
        Target::Json
    } else {
        Target::Own
    };
    let end = logs::copy(
        &client.cluster,
        source,
        Copying {
            reading: flags.reading,
            target,
        },
    )
    .await?;
    if follow {
        logs::say_end(&label, &end);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::support::print::Style;

    fn task() -> Task {
        Task {
            framework: "batch".to_owned(),
            run: Some(types::Run {
                task: "hello-1/0".to_owned(),
                attempt: 2,
            }),
            role: "batch".to_owned(),
            node: "n1".to_owned(),
            phase: types::TaskPhase::Failed.into(),
            reason: "EXIT_CODE".to_owned(),
            exit: Some(types::Exit {
                how: Some(types::exit::How::Code(7)),
            }),
            resources: Some(types::Resources {
                cpu_milli: 1000,
                memory_bytes: 64 << 20,
                ..types::Resources::default()
            }),
            ..Task::default()
        }
    }

    #[test]
    fn a_task_row_says_where_it_is_and_how_it_ended() {
        let object = Object {
            revision: 1,
            object: Some(Content::Task(task())),
        };
        let text = listing(1, vec![object])
            .text(&Style::default())
            .expect("a table");
        let expected = "\
TASK         FRAMEWORK  ROLE   NODE  PHASE   CPU  MEMORY  DEVICES  AGE  EXIT  REASON
hello-1/0#2  batch      batch  n1    failed  1    64 MiB  -        -    7     EXIT_CODE
";
        assert_eq!(text, expected);
    }

    #[test]
    fn enum_values_are_upper_case_and_unknown_times_null() {
        let facts = facts(&task());
        assert_eq!(facts["phase"], "FAILED");
        assert_eq!(facts["exit_code"], 7);
        assert_eq!(facts["exit_signal"], Value::Null);
        assert_eq!(facts["ended"], Value::Null);
        assert_eq!(facts["usage"]["cpu_ms"], Value::Null);
    }
}
