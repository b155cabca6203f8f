//! `mete batch show`: one job, its elements, and why it waits.

use mete_model::Code;
use mete_proto::batch::v1::{Element, GetRequest, GetResponse, JobRow, JobSpec};
use mete_proto::explain::v1::Subject;
use serde_json::{Value, json};

use super::cancel::element_name;
use super::{job, list};
use crate::cli::support::client::Client;
use crate::cli::support::error::{CliError, Outcome};
use crate::cli::support::print::{Listing, Row, print_checked};
use crate::cli::support::words;
use crate::cli::why;

/// Elements in the table for people; programs get all.
const MOST_SHOWN: usize = 20;

/// Shows it.
///
/// # Errors
/// The refusal.
pub async fn show(client: &Client, name: &str) -> Outcome {
    let (row, spec, elements) = get(client, &element_name(name)).await?;
    let reason = waiting_reason(client, &row).await;
    let mut item = list::facts(&row);
    item["elements_list"] = elements.iter().map(element_facts).collect();
    item["spec"] = spec_facts(&spec);
    item["waits"] = json!(reason);
    let text = text(client, &row, &spec, &elements, reason.as_deref())?;
    print_checked(&client.style, "Job", None, item, &text, &list::amiss(&row))
}

/// A job and all its elements.
///
/// # Errors
/// The refusal.
pub async fn get(client: &Client, name: &str) -> Outcome<(JobRow, JobSpec, Vec<Element>)> {
    let mut elements = Vec::new();
    let mut page_token = String::new();
    loop {
        let request = GetRequest {
            job: name.to_owned(),
            page_token,
            page_size: 0,
        };
        let page = client
            .cluster
            .ask_batch(|mut batch| async move { batch.get(request).await });
        let GetResponse {
            row,
            spec,
            elements: more,
            next_page_token,
        } = page.await?;
        elements.extend(more);
        page_token = next_page_token;
        if page_token.is_empty() {
            let missing = || CliError::new(Code::NotFound, format!("no job '{name}'"));
            return Ok((row.ok_or_else(missing)?, spec.unwrap_or_default(), elements));
        }
    }
}

/// The dominant reason of a job that waits, as the leader tells it; `None` when it does not wait or
/// nobody can say.
pub async fn waiting_reason(client: &Client, row: &JobRow) -> Option<String> {
    if row.pending == 0 || row.ended_ms != 0 {
        return None;
    }
    let answer = why::ask(client, Subject::Job, &row.job, false).await.ok()?;
    let first = answer.reasons.first()?;
    Some(format!("{}: {}", first.code, first.detail))
}

fn text(
    client: &Client,
    row: &JobRow,
    spec: &JobSpec,
    elements: &[Element],
    reason: Option<&str>,
) -> Outcome<String> {
    let waited = match (row.started_ms, row.submitted_ms) {
        (0, submitted) => words::ago(submitted),
        (started, submitted) => words::span(started.saturating_sub(submitted)),
    };
    let counts = format!(
        "{} pending, {} running, {} completed, {} failed, {} cancelled",
        row.pending, row.running, row.completed, row.failed, row.cancelled
    );
    let limit = if spec.time_limit_ms == 0 {
        String::new()
    } else {
        words::span(spec.time_limit_ms)
    };
    let sheet = words::sheet(&[
        ("job", row.job.clone()),
        ("state", list::shown(row.state())),
        ("reason", row.reason.clone()),
        ("exit", list::exit(row)),
        ("user", row.user.clone()),
        ("role", row.role.clone()),
        ("command", row.command.join(" ")),
        ("directory", spec.working_directory.clone()),
        ("each asks", job::shape_text(&spec.shape)),
        ("array", spec.array.clone()),
        ("elements", if row.array { counts } else { String::new() }),
        ("waited", waited),
        ("ran", list::ran(row)),
        ("limit", limit),
        ("waits", reason.map(str::to_owned).unwrap_or_default()),
    ]);
    let shown: Vec<Element> = interesting(elements);
    let more = elements.len().saturating_sub(shown.len());
    let mut table = element_listing(&shown);
    let mut footers = Vec::new();
    if more > 0 {
        footers.push(format!(
            "{more} more; all of them: mete batch show {} -o json",
            row.job
        ));
    }
    footers.extend(dropped(elements));
    table.footer = footers.join("\n");
    Ok(format!(
        "{sheet}\n{}",
        table.text(&client.style.as_table())?
    ))
}

/// Says of how many ended elements only state, attempt and exit are left, if of any.
#[must_use]
pub fn dropped(elements: &[Element]) -> Option<String> {
    let dropped = elements.iter().filter(|it| it.details_dropped).count();
    (dropped > 0).then(|| {
        format!(
            "{dropped} ended too long ago: of these only state, attempt and exit are kept; node, \
             times, reason and message are kept for the last 16384 elements of a job that failed \
             and the last 16384 others"
        )
    })
}

/// Those that failed or run, before those that wait or are done.
fn interesting(elements: &[Element]) -> Vec<Element> {
    use mete_proto::batch::v1::JobState;
    let rank = |element: &Element| match element.state() {
        JobState::Failed
        | JobState::Timeout
        | JobState::NodeFail
        | JobState::OutOfMemory
        | JobState::Evicted
        | JobState::Deadline => 0,
        JobState::Running => 1,
        JobState::Pending | JobState::Unspecified => 2,
        JobState::Cancelled | JobState::Completed => 3,
    };
    let mut sorted = elements.to_vec();
    sorted.sort_by_key(|element| (rank(element), element.index));
    sorted.truncate(MOST_SHOWN);
    sorted
}

fn element_listing(elements: &[Element]) -> Listing {
    Listing {
        kind: "ElementList",
        revision: None,
        columns: vec![
            "INDEX",
            "STATE",
            "ATTEMPT",
            "NODE",
            "TIME",
            "EXIT",
            "REASON",
            "MESSAGE",
            "MEMORY PEAK",
            "CPU TIME",
        ],
        narrow: 8,
        rows: elements.iter().map(element_row).collect(),
        footer: String::new(),
        warnings: Vec::new(),
    }
}

fn element_row(element: &Element) -> Row {
    let time = match (element.started_ms, element.ended_ms) {
        (0, _) => String::new(),
        (started, 0) => words::ago(started),
        (started, ended) => words::span(ended.saturating_sub(started)),
    };
    let usage = element.usage.unwrap_or_default();
    let known = |amount: u64, text: String| if amount == 0 { String::new() } else { text };
    Row::new(
        element.index.to_string(),
        vec![
            element.index.to_string(),
            list::shown(element.state()),
            element.attempt.to_string(),
            element.node.clone(),
            time,
            words::exit(&element.exit),
            element.reason.clone(),
            if element.details_dropped {
                "details kept no longer".to_owned()
            } else {
                element.message.clone()
            },
            known(
                usage.memory_peak_bytes,
                mete_model::Bytes(usage.memory_peak_bytes).to_string(),
            ),
            known(usage.cpu_ms, words::span(usage.cpu_ms)),
        ],
        element_facts(element),
    )
}

fn element_facts(element: &Element) -> Value {
    let (exit_code, exit_signal) = words::exit_facts(&element.exit);
    json!({
        "index": element.index,
        "state": list::shown(element.state()),
        "attempt": element.attempt,
        "node": words::known(&element.node),
        "agent_id": words::known(&element.agent_id),
        "node_address": words::known(&element.node_address),
        "exit_code": exit_code,
        "exit_signal": exit_signal,
        "reason": words::known(&element.reason),
        "message": words::known(&element.message),
        "started": words::time(element.started_ms),
        "ended": words::time(element.ended_ms),
        "task": element.run.as_ref().and_then(|run| run.run.as_ref()).map(|run| run.task.clone()),
        "usage": words::usage(&element.usage),
        "details_dropped": element.details_dropped,
    })
}

fn spec_facts(spec: &JobSpec) -> Value {
    let shape = spec.shape.clone().unwrap_or_default();
    let devices: Vec<Value> = shape
        .devices
        .iter()
        .map(|want| json!({ "class": want.class, "count": want.count, "milli": want.milli }))
        .collect();
    json!({
        "command": spec.command,
        "environment": spec.environment,
        "working_directory": words::known(&spec.working_directory),
        "shape": {
            "cpu_milli": shape.cpu_milli,
            "memory_bytes": shape.memory_bytes,
            "disk_bytes": shape.disk_bytes,
            "cores": shape.cores,
            "devices": devices,
        },
        "array": words::known(&spec.array),
        "throttle": spec.throttle,
        "retries": spec.retries,
        "time_limit_ms": words::known_number(spec.time_limit_ms),
        "priority": spec.priority,
    })
}

#[cfg(test)]
mod tests {
    use mete_proto::batch::v1::JobState;

    use super::*;

    #[test]
    fn failed_elements_are_shown_before_those_that_are_done() {
        let element = |index, state: JobState| Element {
            index,
            state: state.into(),
            ..Element::default()
        };
        let elements = vec![
            element(0, JobState::Completed),
            element(1, JobState::Pending),
            element(2, JobState::Failed),
            element(3, JobState::Running),
        ];
        let shown = interesting(&elements);
        let order: Vec<u32> = shown.iter().map(|element| element.index).collect();
        assert_eq!(order, [2, 3, 1, 0]);
    }

    #[test]
    fn an_element_whose_details_are_gone_says_so_to_people_and_programs() {
        let mut element = Element {
            state: JobState::Failed.into(),
            attempt: 2,
            ..Element::default()
        };
        assert_eq!(dropped(&[element.clone()]), None);
        element.details_dropped = true;
        assert_eq!(element_facts(&element)["details_dropped"], true);
        let style = crate::cli::support::print::Style::default();
        let table = element_listing(&[element.clone()]).text(&style);
        let table = table.expect("a table");
        assert!(table.contains("details kept no longer"), "{table}");
        let said = dropped(&[element]).expect("said");
        assert!(said.starts_with("1 ended too long ago"), "{said}");
    }
}
