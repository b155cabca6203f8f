//! `mete batch submit`: a job into the queue; its id alone on stdout.

use std::time::Duration;

use mete_proto::batch::v1::{JobSpec, SubmitRequest, SubmitResponse};
use serde_json::json;

use super::{job, wait};
use crate::args::batch::Submit;
use crate::cli::support::client::Client;
use crate::cli::support::error::Outcome;
use crate::cli::support::print::{Format, note, out, print_one};

/// How often a submit is sent when its answer is lost: the key makes it one job.
const TRIES: u32 = 3;

/// Between two of them.
const PAUSE: Duration = Duration::from_millis(300);

fn noun(elements: u32) -> &'static str {
    if elements == 1 { "element" } else { "elements" }
}

fn facts(answer: &SubmitResponse, dry_run: bool) -> serde_json::Value {
    json!({
        "name": answer.job,
        "job": if dry_run { serde_json::Value::Null } else { json!(answer.job) },
        "elements": answer.elements,
        "dry_run": dry_run,
    })
}

/// What a submit that was only tried would have made.
///
/// # Errors
/// stdout cannot be written.
pub fn say_dry_run(client: &Client, answer: &SubmitResponse) -> Outcome {
    let elements = answer.elements;
    let text = format!("would be accepted: a job of {elements} {}", noun(elements));
    print_one(&client.style, "Submitted", None, facts(answer, true), &text)
}

/// Submits, and waits if that was asked.
///
/// # Errors
/// Wrong flags or file, or the framework's refusal.
pub async fn submit(client: &Client, flags: Submit) -> Outcome<u8> {
    let spec = job::spec(&flags.job, flags.path.as_ref(), flags.command)?;
    let dry_run = client.globals.dry_run;
    let answer = send(client, spec, dry_run).await?;
    if dry_run {
        return say_dry_run(client, &answer).map(|()| 0);
    }
    let elements = answer.elements;
    let item = facts(&answer, false);
    let said = match client.style.format {
        Format::Table | Format::Wide => out(&format!("{}\n", answer.job)),
        Format::Json | Format::Jsonl | Format::Yaml | Format::Name => {
            print_one(&client.style, "Submitted", None, item, "")
        }
    };
    // Who does not hear of it would submit it again.
    said.map_err(|error| error.fact(format!("the job {} was submitted all the same", answer.job)))?;
    if flags.wait {
        return wait::ended(&client.clone().patient(), &answer.job, None).await;
    }
    note(&format!("{elements} {} submitted; next:", noun(elements)));
    note(&format!("  mete logs -f {}", answer.job));
    note(&format!("  mete why job {}", answer.job));
    note(&format!("  mete batch cancel {}", answer.job));
    Ok(0)
}

/// Sends a job; an answer that is lost is asked for again under the same key.
///
/// # Errors
/// The framework's refusal.
pub async fn send(client: &Client, spec: JobSpec, dry_run: bool) -> Outcome<SubmitResponse> {
    let request = SubmitRequest {
        spec: Some(spec),
        key: uuid::Uuid::new_v4().to_string(),
        dry_run,
    };
    let mut tries = 0;
    loop {
        tries += 1;
        // Who is not there at all need not be asked again; a lost answer must be.
        let mut batch = client.cluster.batch().await?;
        let sent = tokio::time::timeout(client.cluster.timeout(), batch.submit(request.clone()));
        let error = match sent.await {
            Ok(Ok(answer)) => return Ok(answer.into_inner()),
            Ok(Err(status)) => crate::cli::support::error::CliError::from_status(&status),
            Err(_late) => crate::cli::support::error::CliError::new(
                mete_model::Code::TimedOut,
                format!(
                    "the batch framework has not answered within {:?}",
                    client.cluster.timeout()
                ),
            )
            .fact("the job may have been accepted all the same")
            .next("mete ps", "see whether it was"),
        };
        if tries >= TRIES || !error.is_passing() {
            return Err(error);
        }
        tokio::time::sleep(PAUSE).await;
    }
}
