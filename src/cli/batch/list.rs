//! `mete batch list`: jobs, newest first.

use mete_model::Code;
use mete_proto::batch::v1::{JobRow, JobState, ListRequest};
use serde_json::json;

use super::job;
use crate::args::batch::List;
use crate::cli::support::client::Client;
use crate::cli::support::error::{CliError, Outcome};
use crate::cli::support::print::{Listing, Row, nearest};
use crate::cli::support::words;

/// States by the words that flags take.
const STATES: [JobState; 10] = [
    JobState::Pending,
    JobState::Running,
    JobState::Completed,
    JobState::Failed,
    JobState::Timeout,
    JobState::Cancelled,
    JobState::NodeFail,
    JobState::OutOfMemory,
    JobState::Evicted,
    JobState::Deadline,
];

/// Lists them.
///
/// # Errors
/// `USAGE` for an unknown state, or the refusal.
pub async fn list(client: &Client, flags: List) -> Outcome {
    let states: Outcome<Vec<i32>> = flags.states.iter().map(|word| state(word)).collect();
    let states = states?;
    let user = if flags.all {
        String::new()
    } else {
        flags.user.unwrap_or_else(job::user)
    };
    let mut jobs = Vec::new();
    let mut page_token = String::new();
    loop {
        let request = ListRequest {
            user: user.clone(),
            states: states.clone(),
            page_token,
            page_size: 0,
        };
        let page = client
            .cluster
            .ask_batch(|mut batch| async move { batch.list(request).await });
        let page = page.await?;
        jobs.extend(page.jobs);
        page_token = page.next_page_token;
        if page_token.is_empty() {
            break;
        }
    }
    listing(&jobs).print(&client.style)
}

fn state(word: &str) -> Outcome<i32> {
    let names: Vec<String> = STATES
        .iter()
        .map(|state| shown(*state).to_lowercase())
        .collect();
    let wanted = word.to_lowercase().replace('-', "_");
    if let Some(at) = names.iter().position(|name| *name == wanted)
        && let Some(state) = STATES.get(at)
    {
        return Ok((*state).into());
    }
    let known: Vec<&str> = names.iter().map(String::as_str).collect();
    let near = nearest(&wanted, &known)
        .map_or_else(String::new, |near| format!("; did you mean '{near}'?"));
    Err(CliError::new(
        Code::Usage,
        format!("no state of a job is called '{word}'{near}"),
    )
    .fact(format!("states are {}", known.join(", "))))
}

/// A state as tables and programs have it.
#[must_use]
pub fn shown(state: JobState) -> String {
    words::bare(state.as_str_name(), "JOB_STATE_")
}

/// Jobs as a listing.
#[must_use]
pub fn listing(jobs: &[JobRow]) -> Listing {
    Listing {
        kind: "JobList",
        revision: None,
        columns: vec![
            "JOB",
            "STATE",
            "USER",
            "ROLE",
            "DONE",
            "AGE",
            "TIME",
            "EXIT",
            "REASON",
            "PENDING",
            "RUNNING",
            "COMPLETED",
            "FAILED",
            "COMMAND",
        ],
        narrow: 9,
        rows: jobs.iter().map(row).collect(),
        footer: String::new(),
        warnings: Vec::new(),
    }
}

/// Says whether a command gave a code: not while it runs, nor when it never began.
#[must_use]
pub fn has_exit(row: &JobRow) -> bool {
    let some = row.exit_code != 0 || row.exit_signal != 0;
    row.ended_ms != 0 && (some || row.state() == JobState::Completed)
}

/// `7`, `9:11`, or nothing where there is no code.
#[must_use]
pub fn exit(row: &JobRow) -> String {
    match (has_exit(row), row.exit_signal) {
        (false, _) => String::new(),
        (true, 0) => row.exit_code.to_string(),
        (true, signal) => format!("{}:{signal}", row.exit_code),
    }
}

/// How long it runs or ran.
#[must_use]
pub fn ran(row: &JobRow) -> String {
    match (row.started_ms, row.ended_ms) {
        (0, _) => String::new(),
        (started, 0) => words::ago(started),
        (started, ended) => words::span(ended.saturating_sub(started)),
    }
}

fn row(job: &JobRow) -> Row {
    let done = job
        .completed
        .saturating_add(job.failed)
        .saturating_add(job.cancelled);
    Row::new(
        job.job.clone(),
        vec![
            job.job.clone(),
            shown(job.state()),
            job.user.clone(),
            job.role.clone(),
            format!("{done}/{}", job.elements),
            words::ago(job.submitted_ms),
            ran(job),
            exit(job),
            job.reason.clone(),
            job.pending.to_string(),
            job.running.to_string(),
            job.completed.to_string(),
            job.failed.to_string(),
            job.command.join(" "),
        ],
        facts(job),
    )
    .amiss(amiss(job))
}

/// Wanted is that it runs or has completed, or that somebody cancelled it.
#[must_use]
pub fn amiss(job: &JobRow) -> String {
    use JobState::{Cancelled, Completed, Running};
    let state = job.state();
    if matches!(state, Running | Completed | Cancelled) {
        return String::new();
    }
    match job.reason.as_str() {
        "" => format!("is {}", shown(state)),
        reason => format!("is {} ({reason})", shown(state)),
    }
}

/// A job's facts.
#[must_use]
pub fn facts(job: &JobRow) -> serde_json::Value {
    json!({
        "job": job.job,
        "name": job.job,
        "state": shown(job.state()),
        "user": job.user,
        "role": job.role,
        "submitted": words::time(job.submitted_ms),
        "started": words::time(job.started_ms),
        "ended": words::time(job.ended_ms),
        "elements": job.elements,
        "pending": job.pending,
        "running": job.running,
        "completed": job.completed,
        "failed": job.failed,
        "cancelled": job.cancelled,
        "exit_code": has_exit(job).then_some(job.exit_code),
        "exit_signal": words::known_number(u64::from(job.exit_signal)),
        "reason": words::known(&job.reason),
        "command": job.command,
        "array": job.array,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::support::print::Style;

    #[test]
    fn a_list_shows_state_progress_and_exit() {
        let row = JobRow {
            job: "train-41".to_owned(),
            state: JobState::Failed.into(),
            user: "ada".to_owned(),
            role: "ml".to_owned(),
            elements: 4,
            completed: 3,
            failed: 1,
            started_ms: 1_000,
            ended_ms: 61_000,
            exit_code: 7,
            exit_signal: 9,
            reason: "EXIT_CODE".to_owned(),
            ..JobRow::default()
        };
        let text = listing(&[row]).text(&Style::default()).expect("a table");
        assert_eq!(
            text,
            "JOB       STATE   USER  ROLE  DONE  AGE  TIME  EXIT  REASON\n\
             train-41  FAILED  ada   ml    4/4   -    1m    7:9   EXIT_CODE\n"
        );
    }

    #[test]
    fn a_running_job_has_no_exit_code_yet() {
        let row = JobRow {
            state: JobState::Running.into(),
            ..JobRow::default()
        };
        assert_eq!(facts(&row)["exit_code"], serde_json::Value::Null);
        assert_eq!(facts(&row)["state"], "RUNNING");
        // A command that was never executed gave no code either.
        let row = JobRow {
            state: JobState::Failed.into(),
            ended_ms: 9,
            ..JobRow::default()
        };
        assert_eq!(exit(&row), "");
    }

    #[test]
    fn states_are_taken_in_lower_case_and_a_wrong_one_is_refused() {
        assert_eq!(
            state("out-of-memory").ok(),
            Some(JobState::OutOfMemory.into())
        );
        let error = state("runing").expect_err("unknown");
        assert!(error.sentence.contains("did you mean 'running'"), "{error}");
    }
}
