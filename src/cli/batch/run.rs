//! `mete run`: submit, stream what the command writes, exit with its code.
//!
//! The client is a spectator: it may leave at any time (Ctrl-C) and the job goes on. Also the
//! following half of `mete logs -f`, which may come back.

use std::collections::BTreeSet;
use std::time::Duration;

use mete_proto::batch::v1::{Element, JobRow, WatchResponse};
use tokio::time::{Instant, MissedTickBehavior, interval};

use super::ending::{self, By, Ending};
use super::following::Following;
use super::logs::{Copies, label, launch_failure, source};
use super::{cancel, job, show, submit};
use crate::args::batch::{Logs, Reading, Run};
use crate::cli::support::client::Client;
use crate::cli::support::error::{CliError, Outcome, exit};
use crate::cli::support::logs::{Copying, Target};
use crate::cli::support::print::{note, print_one};
use crate::cli::support::progress::Progress;

/// How long a job may wait before its reason is said, and between two of them.
const SAY_WHY: Duration = Duration::from_secs(3);

/// How often a line that says what is waited for is drawn again.
const TICK: Duration = Duration::from_millis(500);

/// How long after the end logs may still come.
const LAST_LOGS: Duration = Duration::from_secs(30);

/// How long after the first Ctrl-C a second one still cancels.
const SECOND_CHANCE: Duration = Duration::from_secs(2);

/// Submits and follows.
///
/// # Errors
/// Exit 125 when the command did not run for our reasons, 2 for a job that was not well formed.
pub async fn run(client: &Client, flags: Run) -> Outcome<u8> {
    let spec = job::spec(&flags.job, None, flags.command)?;
    let ours = |error: CliError| error.exit(exit::OURS);
    let dry_run = client.globals.dry_run;
    let answer = submit::send(client, spec, dry_run).await.map_err(ours)?;
    if dry_run {
        return submit::say_dry_run(client, &answer).map(|()| 0);
    }
    if client.globals.verbose > 0 {
        note(&format!("-- job {} --", answer.job));
    }
    let machine = client.style.format.is_machine();
    let how = Copying {
        reading: Reading {
            follow: true,
            prefix: answer.elements > 1,
            ..Reading::default()
        },
        target: if machine { Target::Stderr } else { Target::Own },
    };
    let client = client.clone().patient();
    let spectator = Spectator::new(&client, &answer.job, how, false);
    let (row, ending) = match spectator.watch(flags.kill_on_interrupt).await? {
        Watched::Over(row, ending) => (row, ending),
        Watched::Left => return Ok(exit::SIGNAL_BASE.saturating_add(2)),
    };
    say_ending(&row, ending);
    if machine {
        print_one(
            &client.style,
            "JobEnd",
            None,
            ending::facts(&row, ending),
            "",
        )?;
    }
    Ok(ending.code)
}

/// Ends that the command did not choose are said.
fn say_ending(row: &JobRow, ending: Ending) {
    if ending.by == By::Mete {
        let reason = if row.reason.is_empty() {
            String::new()
        } else {
            format!(" ({})", row.reason)
        };
        note(&format!(
            "-- {} {}{reason} --",
            row.job,
            super::list::shown(row.state())
        ));
    }
}

/// `mete logs -f` of a job that is not over: also elements that begin later.
///
/// # Errors
/// The refusal.
pub async fn attach(client: &Client, job: &str, only: Option<u32>, flags: Logs) -> Outcome<u8> {
    let target = if client.style.format.is_machine() {
        Target::Json
    } else {
        Target::Own
    };
    let how = Copying {
        reading: flags.reading,
        target,
    };
    let client = client.clone().patient();
    let mut spectator = Spectator::new(&client, job, how, true);
    spectator.only_leaves = true;
    spectator.only = only;
    match spectator.watch(false).await? {
        Watched::Over(_, ending) if flags.exit_code => Ok(ending.code),
        Watched::Over(..) => Ok(0),
        Watched::Left => Ok(exit::SIGNAL_BASE.saturating_add(2)),
    }
}

/// How watching ended.
enum Watched {
    /// The job is over.
    Over(JobRow, Ending),
    /// The user has left, the job goes on.
    Left,
}

struct Spectator<'a> {
    client: &'a Client,
    job: String,
    copies: Copies,
    how: Copying,
    /// Elements and attempts whose log is read or was.
    seen: BTreeSet<(u32, u32)>,
    row: Option<JobRow>,
    /// The last element that was heard of; the only one if the job is no array.
    element: Option<Element>,
    progress: Progress,
    /// Why output that came was not written.
    unwritten: Option<CliError>,
    /// A Ctrl-C only ends the watching: the job is not this call's.
    only_leaves: bool,
    /// Only this element of the array.
    only: Option<u32>,
}

impl<'a> Spectator<'a> {
    fn new(client: &'a Client, job: &str, how: Copying, say_end: bool) -> Self {
        Self {
            client,
            job: job.to_owned(),
            copies: Copies::new(client.cluster.clone(), how.clone(), say_end),
            how,
            seen: BTreeSet::new(),
            row: None,
            element: None,
            progress: Progress::new(client.globals.progress, job, "Ctrl-C leaves it"),
            unwritten: None,
            only_leaves: false,
            only: None,
        }
    }

    async fn watch(mut self, kill_on_interrupt: bool) -> Outcome<Watched> {
        let mut following = Following::new(self.client, &self.job, true);
        let mut ticks = interval(TICK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut why = interval(SAY_WHY);
        why.set_missed_tick_behavior(MissedTickBehavior::Delay);
        why.reset();
        loop {
            tokio::select! {
                change = following.next() => match change? {
                    Some(change) => self.take(change)?,
                    None => break,
                },
                step = self.copies.step(), if !self.copies.is_empty() => {
                    if let Err(error) = step {
                        self.miss(error);
                    }
                }
                _ = why.tick() => self.say_why().await,
                _ = ticks.tick() => {
                    if self.row.as_ref().is_none_or(|row| row.started_ms == 0) {
                        self.progress.tick();
                    }
                }
                _ = tokio::signal::ctrl_c() => {
                    if kill_on_interrupt {
                        self.cancel().await;
                    } else if self.leave().await {
                        return Ok(Watched::Left);
                    }
                }
            }
        }
        self.last_logs().await;
        let row = self.row.clone().ok_or_else(|| {
            CliError::new(mete_model::Code::NotFound, format!("no job '{}'", self.job))
        })?;
        let ending = match &self.element {
            Some(element) if !row.array => ending::of_element(element),
            Some(_) | None => ending::of_row(&row),
        };
        match self.unwritten {
            // Success would say that the output is there.
            Some(error) if ending.code == 0 => {
                Err(error.fact(format!("the job {} has ended well", self.job)))
            }
            _ => Ok(Watched::Over(row, ending)),
        }
    }

    /// A log that cannot be read must not hide how the job ends.
    fn miss(&mut self, error: CliError) {
        note(&format!("-- {} --", error.sentence));
        if error.is(mete_model::Code::File) {
            self.unwritten.get_or_insert(error);
        }
    }

    fn take(&mut self, change: WatchResponse) -> Outcome {
        let Some(row) = change.row else { return Ok(()) };
        let wanted = |element: &Element| self.only.is_none_or(|only| only == element.index);
        if row.started_ms != 0 {
            self.progress.clear();
        }
        let elements: Vec<Element> = change.elements.into_iter().filter(wanted).collect();
        for element in elements {
            let begun = element.started_ms != 0 || element.ended_ms != 0;
            let key = (element.index, element.attempt);
            if begun && self.seen.insert(key) {
                let label = label(&row, &element);
                if let Some(said) = launch_failure(&label, &element) {
                    note(&said);
                } else if !element.node_address.is_empty() {
                    self.copies.add(source(&row, &element, false)?);
                } else {
                    note(&format!(
                        "-- {label} runs on a simulated node and writes nothing --"
                    ));
                }
            }
            self.element = Some(element);
        }
        self.row = Some(row);
        Ok(())
    }

    /// Says why nothing runs yet, when the reason is new.
    async fn say_why(&mut self) {
        let Some(row) = self.row.clone().filter(|row| row.started_ms == 0) else {
            return;
        };
        let asked = show::waiting_reason(self.client, &row);
        if let Ok(Some(reason)) = tokio::time::timeout(SAY_WHY, asked).await {
            self.progress.say(&format!("waits: {reason}"));
        }
    }

    /// The first Ctrl-C: says how to come back; `true` unless a second one cancels the job.
    async fn leave(&mut self) -> bool {
        self.progress.clear();
        let job = &self.job;
        note(&format!("-- left; {job} goes on --"));
        note(&format!("  again:   mete logs -f {job}"));
        note(&format!("  cancel:  mete batch cancel {job}"));
        if self.only_leaves {
            return true;
        }
        note("  (Ctrl-C once more within 2s cancels it)");
        match tokio::time::timeout(SECOND_CHANCE, tokio::signal::ctrl_c()).await {
            Err(_nothing_came) => true,
            Ok(_) => {
                self.cancel().await;
                false
            }
        }
    }

    async fn cancel(&self) {
        note(&format!("-- cancelling {} --", self.job));
        if let Err(error) = cancel::cancel_quietly(self.client, &self.job).await {
            note(&error.to_string());
        }
    }

    /// The job is over: what it wrote last is still on its way.
    async fn last_logs(&mut self) {
        let deadline = Instant::now() + LAST_LOGS;
        loop {
            match tokio::time::timeout_at(deadline, self.copies.step()).await {
                Ok(Ok(true)) => {}
                Ok(Ok(false)) => return,
                Ok(Err(error)) => self.miss(error),
                Err(_late) => {
                    return note(&format!(
                        "-- logs are still coming after {}s; all of them: mete logs {} --",
                        LAST_LOGS.as_secs(),
                        self.job
                    ));
                }
            }
        }
    }
}

impl std::fmt::Debug for Spectator<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Spectator")
            .field("job", &self.job)
            .field("how", &self.how)
            .finish()
    }
}
