//! `mete batch logs`: what a job writes, from the agents that ran it.

use std::collections::VecDeque;

use mete_model::Code;
use mete_proto::batch::v1::{Element, JobRow};
use tokio::task::JoinSet;

use super::cancel::element_name;
use super::{ending, show};
use crate::args::batch::Logs;
use crate::cli::support::client::{Client, Cluster};
use crate::cli::support::error::{CliError, Outcome};
use crate::cli::support::logs::{Copying, Source, Target, copy, say_end};
use crate::cli::support::print::note;

/// Logs that are read at a time; those of further elements wait for their turn.
pub const MOST_READ: usize = 128;

/// Shows them.
///
/// # Errors
/// The refusal; `NOT_FOUND` when nothing of the job has run.
pub async fn logs(client: &Client, mut flags: Logs) -> Outcome<u8> {
    flags.job = element_name(&flags.job);
    let (row, _, elements) = show::get(client, &flags.job).await?;
    if let Some(dropped) = show::dropped(&elements) {
        note(&format!(
            "-- no log can be found of some elements: {dropped} --"
        ));
    }
    let mut sources = Vec::new();
    for element in &elements {
        if let Some(said) = launch_failure(&label(&row, element), element) {
            note(&said);
        }
        if element.run.is_some() && !element.node_address.is_empty() {
            sources.push(source(&row, element, flags.previous)?);
        }
    }
    if flags.reading.follow && row.ended_ms == 0 && (row.array || sources.is_empty()) {
        // Elements that begin later are followed too.
        let only = flags
            .job
            .split_once('/')
            .and_then(|(_, index)| index.parse().ok());
        flags.reading.prefix |= row.array && only.is_none();
        return super::run::attach(client, &row.job, only, flags).await;
    }
    if sources.is_empty() {
        return Err(nothing(client, &row).await);
    }
    let mut reading = flags.reading;
    reading.prefix |= sources.len() > 1;
    let target = if client.style.format.is_machine() {
        Target::Json
    } else {
        Target::Own
    };
    let follow = reading.follow;
    let mut copies = Copies::new(client.cluster.clone(), Copying { reading, target }, follow);
    for source in sources {
        copies.add(source);
    }
    while copies.step().await? {}
    if flags.exit_code {
        let (row, _, _) = show::get(client, &flags.job).await?;
        return Ok(ending::of_row(&row).code);
    }
    Ok(0)
}

/// What people call an element: the job alone if it is no array.
#[must_use]
pub fn label(row: &JobRow, element: &Element) -> String {
    if row.array {
        format!("{}/{}", row.job, element.index)
    } else {
        row.job.clone()
    }
}

/// The log of an element's present or last attempt, or of the one before.
///
/// # Errors
/// `NOT_FOUND` when there is no attempt before; as [`Source::new`].
pub fn source(row: &JobRow, element: &Element, previous: bool) -> Outcome<Source> {
    let mut reference = element.run.clone();
    let label = label(row, element);
    if previous
        && let Some(run) = reference
            .as_mut()
            .and_then(|reference| reference.run.as_mut())
    {
        if run.attempt <= 1 {
            let sentence = format!("{label} has no attempt before its first");
            return Err(CliError::new(Code::NotFound, sentence));
        }
        run.attempt = run.attempt.saturating_sub(1);
    }
    Source::new(&label, reference.as_ref(), &element.node_address)
}

/// Why an element never wrote anything, if that is so: it belongs into its log.
#[must_use]
pub fn launch_failure(label: &str, element: &Element) -> Option<String> {
    let failed = ["EXEC_FAILED", "PREPARE_FAILED", "LAUNCH_TIMEOUT"];
    failed
        .contains(&element.reason.as_str())
        .then(|| format!("-- {label} could not be started: {} --", element.message))
}

async fn nothing(client: &Client, row: &JobRow) -> CliError {
    let state = super::list::shown(row.state());
    let mut error = CliError::new(
        Code::NotFound,
        format!("{} is {state}; it has no log", row.job),
    );
    if let Some(reason) = show::waiting_reason(client, row).await {
        error = error.fact(reason);
    }
    error
        .next(format!("mete logs -f {}", row.job), "wait for it")
        .next(format!("mete why job {}", row.job), "see why it waits")
}

/// Logs that are copied side by side, so many at a time.
#[derive(Debug)]
pub struct Copies {
    cluster: Cluster,
    how: Copying,
    say_end: bool,
    waiting: VecDeque<Source>,
    running: JoinSet<Outcome>,
}

impl Copies {
    /// None yet. With `say_end` each ends with a line on stderr that says why.
    #[must_use]
    pub fn new(cluster: Cluster, how: Copying, say_end: bool) -> Self {
        Self {
            cluster,
            how,
            say_end,
            waiting: VecDeque::new(),
            running: JoinSet::new(),
        }
    }

    /// One more; it begins when there is room.
    pub fn add(&mut self, source: Source) {
        self.waiting.push_back(source);
        self.fill();
    }

    /// Says whether all have ended.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty() && self.running.is_empty()
    }

    fn fill(&mut self) {
        while self.running.len() < MOST_READ {
            let Some(source) = self.waiting.pop_front() else {
                return;
            };
            let (cluster, how, say) = (self.cluster.clone(), self.how.clone(), self.say_end);
            self.running.spawn(async move {
                let label = source.label.clone();
                let end = copy(&cluster, source, how).await?;
                if say {
                    say_end(&label, &end);
                }
                Ok(())
            });
        }
    }

    /// Waits for one to end; `false` when there is none. May be dropped while it waits.
    ///
    /// # Errors
    /// The first one that could not be read; the others go on.
    pub async fn step(&mut self) -> Outcome<bool> {
        self.fill();
        match self.running.join_next().await {
            None => Ok(false),
            Some(Ok(Ok(()))) => Ok(true),
            Some(Ok(Err(error))) => Err(error),
            Some(Err(broken)) => Err(CliError::new(
                Code::Internal,
                format!("reading a log failed: {broken}"),
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use mete_proto::types::v1::{Run, RunRef};

    use super::*;

    fn element(attempt: u32) -> Element {
        Element {
            index: 3,
            node_address: "127.0.0.1:1".to_owned(),
            run: Some(RunRef {
                framework_id: "f".to_owned(),
                run: Some(Run {
                    task: "t".to_owned(),
                    attempt,
                }),
            }),
            ..Element::default()
        }
    }

    #[test]
    fn only_elements_of_arrays_are_called_by_their_index() {
        let job = JobRow {
            job: "a-1".to_owned(),
            ..JobRow::default()
        };
        assert_eq!(label(&job, &element(1)), "a-1");
        assert_eq!(label(&JobRow { array: true, ..job }, &element(1)), "a-1/3");
    }

    #[test]
    fn the_attempt_before_the_first_does_not_exist() {
        let job = JobRow {
            job: "a-1".to_owned(),
            ..JobRow::default()
        };
        assert_eq!(
            &*source(&job, &element(1), true).expect_err("none").code,
            "NOT_FOUND"
        );
        assert_eq!(
            source(&job, &element(2), true)
                .expect("a source")
                .run
                .attempt,
            1
        );
    }

    #[test]
    fn a_node_without_logs_is_said() {
        let job = JobRow {
            job: "a-1".to_owned(),
            ..JobRow::default()
        };
        let element = Element {
            node_address: String::new(),
            ..element(1)
        };
        assert_eq!(
            &*source(&job, &element, false).expect_err("none").code,
            "UNSUPPORTED"
        );
    }

    #[test]
    fn a_failed_start_stands_in_the_log() {
        let element = Element {
            reason: "EXEC_FAILED".to_owned(),
            message: "execve: No such file or directory".to_owned(),
            ..element(1)
        };
        let said = launch_failure("a-1", &element).expect("said");
        assert!(said.contains("execve: No such file"), "{said}");
        assert_eq!(launch_failure("a-1", &Element::default()), None);
    }
}
