//! All jobs. Pure: changes go in, what is to be stored, wanted, launched and killed comes out.
//!
//! The shell does the talking. Its order is the promise: what [`Queue::take_writes`] gives is in
//! the store before a submit is answered or a status is acknowledged. A crash between the two
//! delivers the status again, and applying it again changes nothing.

mod keep;
mod select;

use std::collections::{BTreeMap, BTreeSet};

use mete_proto::batch::v1 as wire;
use mete_sdk::model::Timestamp;
use mete_sdk::{Code, RunId, RunInfo, TaskId, TaskPhase, TaskUpdate};

use crate::details::PageId;
use crate::element::{Present, State, Unprepared};
use crate::job::Job;
use crate::records;
use crate::retry::{End, Next, Tries, delay, is_unprepared, judge};

/// Jobs in the queue at the most, ended ones included.
pub const MOST_JOBS: usize = 10_000;

/// How long an ended job is kept, in milliseconds.
const KEEP_ENDED: u64 = 7 * 24 * 3_600_000;
const MOST_NAME_BYTES: usize = 64;
/// With the attempts lost to machines it still fits in an element's count of attempts.
const MOST_RETRIES: u32 = 100;

/// Why something asked of the queue was refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    /// Stable code.
    pub code: Code,
    /// Lower-case sentence.
    pub detail: String,
    /// The field at fault, for `INVALID`.
    pub field: &'static str,
}

impl Refused {
    fn new(code: Code, detail: impl Into<String>) -> Self {
        Self {
            code,
            detail: detail.into(),
            field: "",
        }
    }

    pub(crate) fn field(field: &'static str, detail: impl Into<String>) -> Self {
        Self {
            code: Code::Invalid,
            detail: detail.into(),
            field,
        }
    }
}

/// A job that was taken in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Submitted {
    /// Its number.
    pub number: u64,
    /// Its name.
    pub name: String,
    /// How many elements it has.
    pub elements: usize,
    /// It was not there before.
    pub fresh: bool,
}

impl Submitted {
    fn of(job: &Job, fresh: bool) -> Self {
        Self {
            number: job.number,
            name: job.name.clone(),
            elements: job.elements.len(),
            fresh,
        }
    }
}

/// A launch to be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Start {
    /// The run.
    pub run: RunId,
    /// The element's index.
    pub index: u32,
    /// Its job is an array.
    pub array: bool,
}

/// The queue.
#[derive(Debug, Default)]
pub struct Queue {
    jobs: BTreeMap<u64, Job>,
    by_name: BTreeMap<String, u64>,
    by_key: BTreeMap<String, u64>,
    next_number: u64,
    /// Pending elements that may be launched, by job.
    ready: BTreeMap<u64, BTreeSet<usize>>,
    /// Pending elements that wait for a moment.
    delayed: BTreeSet<(Timestamp, u64, usize)>,
    dirty_jobs: BTreeSet<u64>,
    dirty_pieces: BTreeSet<(u64, usize)>,
    /// Pages of details that differ from what is stored.
    dirty_details: BTreeSet<(u64, PageId)>,
    /// Keys that are to go from the store.
    deleted: Vec<Vec<u8>>,
    /// Jobs of which details are kept.
    detailed: BTreeSet<u64>,
    /// What all details count for.
    detail_bytes: usize,
    /// Jobs whose demand may differ from what the broker has.
    dirty_demand: BTreeSet<u64>,
    /// Rises with each change, for those who watch.
    revision: u64,
}

impl Queue {
    /// An empty queue.
    #[must_use]
    pub fn new() -> Self {
        Self {
            next_number: 1,
            ..Self::default()
        }
    }

    /// Rises with each change.
    #[must_use]
    pub fn revision(&self) -> u64 {
        self.revision
    }

    /// All jobs, oldest first.
    pub fn jobs(&self) -> impl DoubleEndedIterator<Item = &Job> {
        self.jobs.values()
    }

    /// Puts a job in. The same key gives the same job again.
    ///
    /// # Errors
    /// `INVALID` with the field, or `BUSY` when the queue is full.
    pub fn submit(
        &mut self,
        spec: wire::JobSpec,
        key: String,
        now: Timestamp,
    ) -> Result<Submitted, Refused> {
        if !key.is_empty()
            && let Some(number) = self.by_key.get(&key)
            && let Some(job) = self.jobs.get(number)
        {
            return Ok(Submitted::of(job, false));
        }
        self.prune(now);
        if self.jobs.len() >= MOST_JOBS {
            return Err(Refused::new(
                Code::Busy,
                format!("the queue holds {MOST_JOBS} jobs; wait until some have ended"),
            ));
        }
        let job = Self::check(spec, key, self.next_number, now)?;
        let number = job.number;
        self.next_number = self.next_number.saturating_add(1);
        // Its record alone, in one step: elements that are not stored wait.
        self.dirty_jobs.insert(number);
        let submitted = Submitted::of(&job, true);
        self.insert(job);
        Ok(submitted)
    }

    /// Checks a spec without keeping anything.
    ///
    /// # Errors
    /// `INVALID` with the field.
    pub fn check(
        spec: wire::JobSpec,
        key: String,
        number: u64,
        now: Timestamp,
    ) -> Result<Job, Refused> {
        let name = &spec.name;
        let word = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.');
        let fits = (1..=MOST_NAME_BYTES).contains(&name.len()) && name.bytes().all(word);
        if !fits || name.starts_with(['-', '.']) {
            // Shortened: an answer that repeats a name of any length may not fit its own message.
            let shown: String = name.chars().take(MOST_NAME_BYTES).collect();
            let detail = format!(
                "'{shown}' is no job name: 1 to {MOST_NAME_BYTES} of letters, digits, '-', '_' and \
                 '.', not '-' or '.' first"
            );
            return Err(Refused::field("spec.name", detail));
        }
        if spec.retries > MOST_RETRIES {
            let detail = format!("{} retries; at most {MOST_RETRIES}", spec.retries);
            return Err(Refused::field("spec.retries", detail));
        }
        if spec.command.is_empty() {
            return Err(Refused::field("spec.command", "a command is needed"));
        }
        if key.len() > 128 {
            return Err(Refused::field("key", "at most 128 bytes"));
        }
        let job = Job::new(number, spec, key, now)
            .map_err(|error| Refused::field("spec.array", error.to_string()))?;
        let bytes = records::job_bytes(&job);
        if bytes > records::MOST_JOB_BYTES {
            let most = records::MOST_JOB_BYTES;
            let detail = format!("the job takes {bytes} bytes, {most} are permitted");
            return Err(Refused::field("spec", detail));
        }
        Ok(job)
    }

    /// Takes a job in that was stored or just made.
    pub(crate) fn insert(&mut self, job: Job) {
        let number = job.number;
        let ready = job
            .elements
            .iter()
            .enumerate()
            .filter(|(_, element)| element.state == State::Pending)
            .map(|(at, _)| at)
            .collect();
        self.next_number = self.next_number.max(number.saturating_add(1));
        self.ready.insert(number, ready);
        self.by_name.insert(job.name.clone(), number);
        if !job.key.is_empty() {
            self.by_key.insert(job.key.clone(), number);
        }
        self.dirty_demand.insert(number);
        self.detail_bytes = self.detail_bytes.saturating_add(job.details.bytes());
        if !job.details.is_empty() {
            self.detailed.insert(number);
        }
        self.jobs.insert(number, job);
        self.revision = self.revision.saturating_add(1);
    }

    /// Forgets jobs that ended long ago, and the oldest ended ones when there are too many.
    fn prune(&mut self, now: Timestamp) {
        let full = self.jobs.len() >= MOST_JOBS;
        let old: Vec<u64> = self
            .jobs
            .values()
            .filter_map(|job| Some((job.ended?, job.number)))
            .filter(|(ended, _)| full || now.since(*ended).0 > KEEP_ENDED)
            .map(|(_, number)| number)
            .take(MOST_JOBS / 10)
            .collect();
        self.forget(old);
    }

    /// Forgets the quarter of the ended jobs that ended first: the store has no room for more.
    pub fn forget_oldest(&mut self) {
        let mut ended: Vec<(Timestamp, u64)> = self
            .jobs
            .values()
            .filter_map(|job| Some((job.ended?, job.number)))
            .collect();
        ended.sort_unstable();
        let most = ended.len().div_ceil(4);
        let old = ended.into_iter().take(most).map(|(_, number)| number);
        self.forget(old.collect());
    }

    fn forget(&mut self, numbers: Vec<u64>) {
        for number in numbers {
            let Some(job) = self.jobs.remove(&number) else {
                continue;
            };
            self.by_name.remove(&job.name);
            self.by_key.remove(&job.key);
            self.ready.remove(&number);
            self.dirty_jobs.remove(&number);
            self.dirty_pieces.retain(|(job, _)| *job != number);
            let pieces = records::pieces(job.elements.len());
            self.deleted.extend(records::keys(number, pieces));
            let pages = job.details.ids();
            self.deleted
                .extend(pages.map(|page| records::ended_key(number, page)));
            self.detail_bytes = self.detail_bytes.saturating_sub(job.details.bytes());
            self.detailed.remove(&number);
            self.dirty_details.retain(|(job, _)| *job != number);
        }
    }

    /// How many tasks a job wants launched now, delays and throttle heeded.
    fn wanted(&self, job: &Job) -> u32 {
        let ready = self.ready.get(&job.number).map_or(0, BTreeSet::len);
        job.wanted().min(u32::try_from(ready).unwrap_or(u32::MAX))
    }

    /// Jobs whose demand may have changed, each with what it wants now.
    pub fn take_demand(&mut self) -> Vec<(String, u32)> {
        let dirty = std::mem::take(&mut self.dirty_demand);
        dirty
            .iter()
            .filter_map(|number| self.jobs.get(number))
            .map(|job| (job.name.clone(), self.wanted(job)))
            .collect()
    }

    /// Says that a job's demand has to be looked at again.
    pub fn touch_demand(&mut self, name: &str) {
        if let Some(number) = self.by_name.get(name) {
            self.dirty_demand.insert(*number);
        }
    }

    /// Takes the next element of a job for a launch. It counts as running from here on.
    pub fn start_next(&mut self, name: &str, place: Present) -> Option<Start> {
        let number = *self.by_name.get(name)?;
        let wanted = self.wanted(self.jobs.get(&number)?);
        if wanted == 0 {
            return None;
        }
        let at = self.ready.get_mut(&number)?.pop_first()?;
        let job = self.jobs.get_mut(&number)?;
        job.set(at, State::Running);
        let task = job.task(at);
        let index = job.indices.get(at).copied().unwrap_or(0);
        let array = job.is_array();
        let element = job.elements.get_mut(at)?;
        let attempt = element.attempt();
        element.present = Some(Box::new(Present { attempt, ..place }));
        self.revision = self.revision.saturating_add(1);
        Some(Start {
            run: RunId::new(TaskId::new(&task).ok()?, attempt),
            index,
            array,
        })
    }

    /// A launch was committed: the job has begun.
    pub fn launched(&mut self, run: &RunId, now: Timestamp) {
        if let Some((number, _)) = self.locate(run)
            && let Some(job) = self.jobs.get_mut(&number)
            && job.started.is_none()
        {
            job.started = Some(now);
            self.dirty_jobs.insert(number);
        }
    }

    /// A launch was refused: nothing ran, the element waits again.
    pub fn refused(&mut self, run: &RunId, now: Timestamp) {
        let Some((number, at)) = self.locate(run) else {
            return;
        };
        let Some(job) = self.jobs.get_mut(&number) else {
            return;
        };
        let Some(element) = job.elements.get_mut(at) else {
            return;
        };
        if element.attempt() != run.attempt || element.present.as_ref().is_some_and(|p| p.running) {
            return;
        }
        match element.state {
            State::Running => {
                element.present = None;
                job.set(at, State::Pending);
                // Not at once: whatever made the commit refuse may still be so.
                self.delayed
                    .insert((Timestamp(now.0.saturating_add(100)), number, at));
            }
            State::Cancelling => self.end(number, at, State::Cancelled, now),
            State::Pending
            | State::Completed
            | State::Failed
            | State::Timeout
            | State::Cancelled
            | State::NodeFail
            | State::OutOfMemory => {}
        }
        self.dirty_demand.insert(number);
        self.revision = self.revision.saturating_add(1);
    }

    /// Which element a run belongs to.
    fn locate(&self, run: &RunId) -> Option<(u64, usize)> {
        let task = run.task.as_str();
        let (name, index) = match task.split_once('/') {
            Some((name, index)) => (name, index.parse().ok()?),
            None => (task, 0),
        };
        let number = *self.by_name.get(name)?;
        let job = self.jobs.get(&number)?;
        Some((number, job.position(index)?))
    }

    /// Takes in a status. Statuses of older attempts, or of jobs that are gone, mean nothing.
    pub fn update(&mut self, update: &TaskUpdate, now: Timestamp) {
        let run = update.run();
        let Some((number, at)) = self.locate(&run) else {
            return;
        };
        let Some(job) = self.jobs.get_mut(&number) else {
            return;
        };
        let Some(element) = job.elements.get_mut(at) else {
            return;
        };
        if element.state.is_final() || element.attempt() != run.attempt {
            return;
        }
        let present = element.present.get_or_insert_default();
        present.attempt = run.attempt;
        if update.phase >= TaskPhase::Running && !present.running {
            present.running = true;
            // The first that is heard of it may be its end: it began as long before as it ran.
            let ran = update.usage.filter(|_| update.phase.is_terminal());
            let ran = ran.map_or(0, |usage| usage.wall_ms);
            present.started = Timestamp(update.at.0.saturating_sub(ran));
        }
        if !update.phase.is_terminal() {
            if element.state == State::Pending {
                self.unqueue(number, at);
                if let Some(job) = self.jobs.get_mut(&number) {
                    job.set(at, State::Running);
                }
            }
            self.revision = self.revision.saturating_add(1);
            return;
        }
        present.ended = update.at;
        present.reason = update
            .reason
            .map(|code| code.as_str().to_owned())
            .unwrap_or_default();
        present.message.clone_from(&update.message);
        present.usage = update.usage;
        element.exit = update.exit;
        let cancelling = element.state == State::Cancelling;
        let end = End {
            phase: update.phase,
            reason: update.reason,
            exit: update.exit,
        };
        let node = present.node.clone();
        let (unprepared, unprepared_nodes) = note_unprepared(&mut element.unprepared, end, node);
        let tries = Tries {
            failures: element.attempts.saturating_sub(element.requeues),
            requeues: element.requeues,
            unprepared,
            unprepared_nodes,
            retries: job.spec.retries,
        };
        let next = judge(end, cancelling, tries);
        if matches!(next, Next::Final(_))
            && let Some(unprepared) = element.unprepared.take()
        {
            present.message = given_up(&unprepared, &present.message);
        }
        match next {
            Next::Final(state) => self.end(number, at, state, now),
            Next::Again { free } => self.requeue(number, at, free, now),
        }
    }

    fn unqueue(&mut self, number: u64, at: usize) {
        if let Some(ready) = self.ready.get_mut(&number) {
            ready.remove(&at);
        }
        self.delayed
            .retain(|(_, job, element)| (*job, *element) != (number, at));
    }

    fn end(&mut self, number: u64, at: usize, state: State, now: Timestamp) {
        self.unqueue(number, at);
        let Some(job) = self.jobs.get_mut(&number) else {
            return;
        };
        if let Some(element) = job.elements.get_mut(at)
            && let Some(present) = &element.present
            // One that waits for its next attempt still shows the one before.
            && present.attempt == element.attempt()
        {
            element.attempts = element.attempts.saturating_add(1);
        }
        job.set(at, state);
        if job.started.is_none() {
            job.started = Some(now);
        }
        if job.is_over() {
            job.ended = Some(now);
        }
        self.changed(number, at);
        self.keep_details(number, at);
    }

    fn requeue(&mut self, number: u64, at: usize, free: bool, now: Timestamp) {
        self.unqueue(number, at);
        let Some(job) = self.jobs.get_mut(&number) else {
            return;
        };
        job.set(at, State::Pending);
        let Some(element) = job.elements.get_mut(at) else {
            return;
        };
        element.attempts = element.attempts.saturating_add(1);
        if free {
            element.requeues = element.requeues.saturating_add(1);
        }
        let wait = u64::try_from(delay(element.attempts).as_millis()).unwrap_or(u64::MAX);
        self.delayed
            .insert((Timestamp(now.0.saturating_add(wait)), number, at));
        self.changed(number, at);
    }

    fn changed(&mut self, number: u64, at: usize) {
        self.dirty_jobs.insert(number);
        self.dirty_pieces.insert((number, records::piece_of(at)));
        self.dirty_demand.insert(number);
        self.revision = self.revision.saturating_add(1);
    }

    /// Lets elements go whose moment has come; gives the next moment.
    pub fn release_delayed(&mut self, now: Timestamp) -> Option<Timestamp> {
        while let Some((when, number, at)) = self.delayed.first().copied() {
            if when > now {
                return Some(when);
            }
            self.delayed.pop_first();
            self.ready.entry(number).or_default().insert(at);
            self.dirty_demand.insert(number);
        }
        None
    }

    /// Brings the queue together with what the broker says runs. Gives the runs to be killed:
    /// cancelled ones, and those of jobs that are not known any more.
    pub fn recover(&mut self, runs: &[RunInfo], now: Timestamp) -> Vec<RunId> {
        let mut kills = Vec::new();
        let mut alive: BTreeSet<(u64, usize)> = BTreeSet::new();
        for info in runs {
            let Some((number, at)) = self.locate(&info.run) else {
                if !info.phase.is_terminal() {
                    kills.push(info.run.clone());
                }
                continue;
            };
            let Some(job) = self.jobs.get_mut(&number) else {
                continue;
            };
            let Some(element) = job.elements.get_mut(at) else {
                continue;
            };
            if element.state.is_final() || element.attempt() != info.run.attempt {
                if !info.phase.is_terminal() {
                    kills.push(info.run.clone());
                }
                continue;
            }
            alive.insert((number, at));
            let present = element.present.get_or_insert_default();
            present.attempt = info.run.attempt;
            present.node.clone_from(&info.node);
            present.node_address.clone_from(&info.node_address);
            present.agent = info
                .agent
                .map(|agent| agent.to_string())
                .unwrap_or_default();
            match element.state {
                State::Cancelling => kills.push(info.run.clone()),
                State::Pending => {
                    job.set(at, State::Running);
                    self.unqueue(number, at);
                }
                State::Running
                | State::Completed
                | State::Failed
                | State::Timeout
                | State::Cancelled
                | State::NodeFail
                | State::OutOfMemory => {}
            }
        }
        self.settle_absent(&alive, now);
        self.dirty_demand.extend(self.jobs.keys().copied());
        self.revision = self.revision.saturating_add(1);
        kills
    }

    /// Elements thought to run that the broker does not have never started, or their end was
    /// stored already: they wait again, or are cancelled as was asked.
    fn settle_absent(&mut self, alive: &BTreeSet<(u64, usize)>, now: Timestamp) {
        let mut absent = Vec::new();
        for job in self.jobs.values() {
            for (at, element) in job.elements.iter().enumerate() {
                let open = matches!(element.state, State::Running | State::Cancelling);
                if open && !alive.contains(&(job.number, at)) {
                    absent.push((job.number, at, element.state));
                }
            }
        }
        for (number, at, state) in absent {
            if state == State::Cancelling {
                self.end(number, at, State::Cancelled, now);
            } else if let Some(job) = self.jobs.get_mut(&number) {
                job.set(at, State::Pending);
                if let Some(element) = job.elements.get_mut(at) {
                    element.present = None;
                }
                self.ready.entry(number).or_default().insert(at);
            }
        }
    }

    /// Says that every job's demand has to be looked at again.
    pub fn touch_all_demand(&mut self) {
        self.dirty_demand.extend(self.jobs.keys().copied());
    }

    /// Takes a job out that could not be stored: it was never promised to anybody.
    pub fn withdraw(&mut self, number: u64) {
        if let Some(job) = self.jobs.remove(&number) {
            self.by_name.remove(&job.name);
            self.by_key.remove(&job.key);
            self.ready.remove(&number);
            self.dirty_demand.remove(&number);
            self.dirty_jobs.remove(&number);
            self.dirty_pieces.retain(|(job, _)| *job != number);
            self.dirty_details.retain(|(job, _)| *job != number);
            self.detail_bytes = self.detail_bytes.saturating_sub(job.details.bytes());
            self.detailed.remove(&number);
            self.delayed.retain(|(_, job, _)| *job != number);
        }
    }

    /// Everything that has changed since it was last stored, as records to write and to delete.
    ///
    /// Details of ended elements come first: once an element is stored as ended, its last status is
    /// not heard again.
    pub fn take_writes(&mut self) -> records::Writes {
        let mut writes = records::Writes::default();
        for (number, page) in std::mem::take(&mut self.dirty_details) {
            let job = self.jobs.get(&number);
            writes
                .puts
                .extend(job.and_then(|job| records::ended(job, page)));
        }
        for number in std::mem::take(&mut self.dirty_jobs) {
            if let Some(job) = self.jobs.get(&number) {
                writes.puts.push(records::job(job));
            }
        }
        for (number, piece) in std::mem::take(&mut self.dirty_pieces) {
            if let Some(job) = self.jobs.get(&number) {
                writes.puts.push(records::piece(job, piece));
            }
        }
        writes.deletes = std::mem::take(&mut self.deleted);
        writes
    }
}

/// Counts attempts in a row that could not be set up, with this one, and their nodes.
fn note_unprepared(known: &mut Option<Box<Unprepared>>, end: End, node: String) -> (u8, u8) {
    if !is_unprepared(end) {
        *known = None;
        return (0, 0);
    }
    let unprepared = known.get_or_insert_default();
    unprepared.attempts = unprepared.attempts.saturating_add(1);
    unprepared.nodes.insert(node);
    let nodes = u8::try_from(unprepared.nodes.len()).unwrap_or(u8::MAX);
    (unprepared.attempts, nodes)
}

/// What the user is told of an element that could never be set up.
fn given_up(unprepared: &Unprepared, message: &str) -> String {
    let nodes: Vec<&str> = unprepared.nodes.iter().map(String::as_str).collect();
    format!(
        "given up: {} attempts in a row could not be set up (on {}); check what the job asks for, \
         such as its memory; the last one said: {message}",
        unprepared.attempts,
        nodes.join(", ")
    )
}
