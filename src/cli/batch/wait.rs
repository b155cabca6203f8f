//! `mete batch wait`: until jobs run or end; the exit code is theirs.

use std::time::Duration;

use mete_model::Code;
use mete_proto::batch::v1::JobRow;
use tokio::time::{Instant, MissedTickBehavior, interval};

use super::ending::{self, Ending};
use super::following::Following;
use crate::args::batch::{Wait, WaitFor};
use crate::cli::support::client::Client;
use crate::cli::support::error::{CliError, Outcome, exit};
use crate::cli::support::print::{Listing, Row, note};
use crate::cli::support::progress::Progress;

/// Waits for all of them, and gives the highest code.
///
/// # Errors
/// The refusal; `TIMED_OUT` when `--timeout` has passed: the jobs go on.
pub async fn wait(client: &Client, flags: Wait) -> Outcome<u8> {
    let deadline = client
        .globals
        .timeout
        .map(|timeout| Instant::now() + timeout.into());
    let mut rows = Vec::new();
    for job in &flags.jobs {
        rows.push(one(client, job, flags.until, deadline).await?);
    }
    let endings: Vec<(JobRow, Ending)> = rows
        .into_iter()
        .map(|row| {
            let ending = ending::of_row(&row);
            (row, ending)
        })
        .collect();
    listing(&endings).print(&client.style)?;
    let code = |(row, ending): &(JobRow, Ending)| if row.ended_ms == 0 { 0 } else { ending.code };
    Ok(endings.iter().map(code).max().unwrap_or(0))
}

/// Waits for the end of one job, and gives its code; for `submit --wait`.
///
/// # Errors
/// The refusal, or `TIMED_OUT`.
pub async fn ended(client: &Client, job: &str, deadline: Option<Instant>) -> Outcome<u8> {
    let row = one(client, job, WaitFor::Ended, deadline).await?;
    let ending = ending::of_row(&row);
    note(&format!("-- {job} {} --", super::list::shown(row.state())));
    Ok(ending.code)
}

/// How often a line of progress is drawn again.
const TICK: Duration = Duration::from_millis(500);

/// Between two questions why a job waits.
const ASK_WHY: Duration = Duration::from_secs(2);

/// A Ctrl-C ends the waiting and nothing else.
fn left(job: &str) -> CliError {
    CliError::new(Code::TimedOut, format!("left; {job} goes on"))
        .next(format!("mete batch wait {job}"), "wait again")
        .exit(exit::SIGNAL_BASE.saturating_add(2))
}

/// How far a job is.
fn state(row: &JobRow) -> String {
    if row.array {
        let done = row
            .completed
            .saturating_add(row.failed)
            .saturating_add(row.cancelled);
        format!(
            "{done} of {} elements over, {} run",
            row.elements, row.running
        )
    } else {
        "runs".to_owned()
    }
}

async fn one(
    client: &Client,
    job: &str,
    until: WaitFor,
    deadline: Option<Instant>,
) -> Outcome<JobRow> {
    let waiting = async {
        let mut following = Following::new(client, job, false);
        let mut progress = Progress::new(
            client.globals.progress,
            job,
            "Ctrl-C stops waiting, the job goes on",
        );
        let mut ticks = interval(TICK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut last: Option<JobRow> = None;
        let mut said = Instant::now();
        loop {
            tokio::select! {
                change = following.next() => match change? {
                    None => break,
                    Some(change) => {
                        let Some(row) = change.row else { continue };
                        let running = until == WaitFor::Running && row.running > 0;
                        let enough = row.ended_ms != 0 || running;
                        if !enough && row.running > 0 {
                            progress.say(&state(&row));
                        }
                        last = Some(row);
                        if enough {
                            break;
                        }
                    }
                },
                _ = tokio::signal::ctrl_c() => {
                    progress.clear();
                    return Err(left(job));
                }
                _ = ticks.tick() => {
                    progress.tick();
                    // Why it waits is asked for now and then, and never waited for long.
                    if let Some(row) = last.as_ref().filter(|row| row.running == 0)
                        && said.elapsed() >= ASK_WHY
                    {
                        let asked = super::show::waiting_reason(client, row);
                        if let Ok(Some(reason)) = tokio::time::timeout(ASK_WHY, asked).await {
                            progress.say(&format!("waits: {reason}"));
                        }
                        said = Instant::now();
                    }
                }
            }
        }
        last.ok_or_else(|| CliError::new(Code::NotFound, format!("no job '{job}'")))
    };
    let Some(deadline) = deadline else {
        return waiting.await;
    };
    tokio::time::timeout_at(deadline, waiting)
        .await
        .unwrap_or_else(|_late| {
            Err(
                CliError::new(Code::TimedOut, format!("{job} is not over yet; it goes on"))
                    .next(format!("mete batch wait {job}"), "wait again")
                    .next(format!("mete why job {job}"), "see why it takes so long"),
            )
        })
}

fn listing(endings: &[(JobRow, Ending)]) -> Listing {
    let rows = endings.iter().map(|(row, ending)| {
        let exit = if row.ended_ms == 0 {
            String::new()
        } else {
            ending.code.to_string()
        };
        let cells = vec![
            row.job.clone(),
            super::list::shown(row.state()),
            exit,
            row.reason.clone(),
        ];
        Row::new(row.job.clone(), cells, ending::facts(row, *ending))
    });
    Listing {
        kind: "JobEndList",
        revision: None,
        columns: vec!["JOB", "STATE", "EXIT", "REASON"],
        narrow: 4,
        rows: rows.collect(),
        footer: String::new(),
        warnings: Vec::new(),
    }
}
