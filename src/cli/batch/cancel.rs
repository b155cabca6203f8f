//! `mete batch cancel`: ends jobs or elements of them.

use mete_proto::batch::v1::CancelRequest;

use crate::cli::support::client::Client;
use crate::cli::support::error::{CliError, Outcome};
use crate::cli::support::verdicts;

/// Cancels them.
///
/// # Errors
/// The first one that was refused; the others are cancelled.
pub async fn cancel(client: &Client, jobs: Vec<String>) -> Outcome {
    // Slurm's spelling of an element is understood: train-41_7 is train-41/7.
    let names: Vec<String> = jobs.iter().map(|job| element_name(job)).collect();
    let request = CancelRequest {
        jobs: names.clone(),
        dry_run: client.globals.dry_run,
    };
    let answer = client
        .cluster
        .ask_batch(|mut batch| async move { batch.cancel(request).await });
    let answer = answer.await?;
    let word = if client.globals.dry_run {
        "would be cancelled"
    } else {
        "is being cancelled"
    };
    verdicts::show(client, "CancelledJobs", &names, &answer.jobs, word, 0)
}

/// Cancels one job and prints nothing: for a Ctrl-C in `run`.
///
/// # Errors
/// The refusal.
pub async fn cancel_quietly(client: &Client, job: &str) -> Outcome {
    let request = CancelRequest {
        jobs: vec![job.to_owned()],
        dry_run: false,
    };
    let answer = client
        .cluster
        .ask_batch(|mut batch| async move { batch.cancel(request).await });
    match answer.await?.jobs.first() {
        // Over already: nothing is left to end.
        Some(verdict) if verdict.code != "OK" && verdict.code != "ALREADY_TERMINAL" => {
            Err(CliError::from_verdict(&verdict.code, &verdict.detail))
        }
        Some(_) | None => Ok(()),
    }
}

/// `train-41_7` to `train-41/7`; anything else as it is.
#[must_use]
pub fn element_name(job: &str) -> String {
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    match job.rsplit_once('_') {
        Some((name, index)) if digits(index) => match name.rsplit_once('-') {
            Some((_, number)) if digits(number) => format!("{name}/{index}"),
            Some(_) | None => job.to_owned(),
        },
        Some(_) | None => job.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_underscore_of_an_element_is_understood_and_that_of_a_name_left_alone() {
        assert_eq!(element_name("train-41_7"), "train-41/7");
        for same in ["train-41", "train-41/7", "my_job-3", "my_3", "train-41_x"] {
            assert_eq!(element_name(same), same);
        }
    }
}
