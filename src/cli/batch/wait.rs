//! `mete batch wait`: until jobs run or end; the exit code is theirs.

use mete_model::Code;
use mete_proto::batch::v1::JobRow;
use tokio::time::Instant;

use super::ending::{self, Ending};
use super::following::Following;
use crate::args::batch::{Wait, WaitFor};
use crate::cli::support::client::Client;
use crate::cli::support::error::{CliError, Outcome};
use crate::cli::support::print::{Listing, Row, note};

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

async fn one(
    client: &Client,
    job: &str,
    until: WaitFor,
    deadline: Option<Instant>,
) -> Outcome<JobRow> {
    let waiting = async {
        let mut following = Following::new(client, job, false);
        let mut last = None;
        while let Some(change) = following.next().await? {
            let Some(row) = change.row else { continue };
            let enough = row.ended_ms != 0 || (until == WaitFor::Running && row.running > 0);
            last = Some(row);
            if enough {
                break;
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
