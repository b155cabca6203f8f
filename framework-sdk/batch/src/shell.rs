//! The loop: events of the broker and calls of users in, writes, acknowledgements, launches out.
//!
//! One turn: take what is waiting, change the queue, store what changed, and only then answer,
//! acknowledge, kill and ask for more. Accepts travel while the loop goes on.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use mete_proto::convert::{At, read_spec, whole, write_spec};
use mete_sdk::model::{TaskSpec as RawTaskSpec, Timestamp};
use mete_sdk::{
    Claim, Code, Connected, Error, Event, Events, Launch, LaunchVerdict, Offer, Offers, Reason,
    Refuse, Result, RunId, Session, TaskSpec, TaskUpdate,
};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use crate::demand;
use crate::element::Present;
use crate::job::Job;
use crate::queue::{Queue, Start};
use crate::records::{self, Writes};
use crate::service::{Command, Shared};

/// Statuses dealt with in one turn at the most.
const MOST_UPDATES: usize = 4096;

/// Bytes of one write to the store; it takes 512 KiB.
const MOST_WRITE: usize = 400 << 10;

/// How long one write to the store may take. A user waits for it.
const STORE_WITHIN: Duration = Duration::from_secs(5);

/// How long a turn waits for any other answer of the broker; what takes longer goes on meanwhile.
const ANSWER_WITHIN: Duration = Duration::from_secs(3);

/// How long to wait before the broker is asked again for what it refused or did not answer.
const AGAIN: Duration = Duration::from_secs(1);

/// The same for demand that it called wrong: only something else that changes can help.
const WRONG_DEMAND_AGAIN: Duration = Duration::from_secs(30);

/// A claim's count is cumulative; beyond this it is made anew.
const MOST_COUNT: u32 = 90_000;

/// The largest count of one claim; what is beyond it waits until the claim is made anew.
const MOST_CLAIMED: u32 = 100_000;

/// Launches whose verdicts came.
type Verdicts = Vec<LaunchVerdict>;

pub(crate) struct Shell {
    session: Session,
    shared: Arc<Shared>,
    /// Launches without a verdict yet, by job.
    in_flight: HashMap<String, u32>,
    verdicts: (mpsc::Sender<Verdicts>, mpsc::Receiver<Verdicts>),
    specs: HashMap<String, Arc<RawTaskSpec>>,
    loaded: bool,
    /// What the store has refused so far.
    unwritten: Writes,
    /// Statuses whose changes are not stored yet.
    unacknowledged: Vec<(RunId, u64)>,
    /// Jobs whose record was never stored as far as is known. None of them is launched.
    unstored: BTreeSet<u64>,
    /// Of these, jobs of which nobody can tell: they are kept.
    doubtful: BTreeSet<u64>,
    /// Runs to be killed of which the broker does not know yet.
    kills: BTreeSet<RunId>,
    killing: Option<Killing>,
    /// When demand that was not taken is to be asked for again.
    demand_again: Option<Timestamp>,
    now: fn() -> Timestamp,
}

/// How long what no element takes is not to be offered again. A launch without a verdict may be
/// refused (a leader that is gone takes its offers with it): its element waits again then, and the
/// demand is what it was, so that nothing would end a refusal until demand changes.
fn refusal(in_flight: &HashMap<String, u32>) -> Refuse {
    if in_flight.values().any(|count| *count > 0) {
        Refuse::For(AGAIN)
    } else {
        Refuse::UntilDemandChanges
    }
}

/// Kills on their way.
struct Killing {
    runs: Vec<RunId>,
    verdicts: JoinHandle<Result<Vec<std::result::Result<(), Reason>>>>,
}

/// Tells a user what came of a change; an error is why it was not stored.
type Tell = Box<dyn FnOnce(Option<&Error>) + Send>;

/// An answer to a user, given once it is known whether the store took the change.
struct Reply {
    /// The job whose record decides; without one, all that was to be stored.
    job: Option<u64>,
    tell: Tell,
}

/// What one turn owes once its changes are stored.
#[derive(Default)]
struct Turn {
    updates: Vec<(RunId, u64)>,
    kills: Vec<RunId>,
    replies: Vec<Reply>,
}

impl Shell {
    pub(crate) fn new(session: Session, shared: Arc<Shared>, now: fn() -> Timestamp) -> Self {
        Self {
            session,
            shared,
            in_flight: HashMap::new(),
            verdicts: mpsc::channel(1024),
            specs: HashMap::new(),
            loaded: false,
            unwritten: Writes::default(),
            unacknowledged: Vec::new(),
            unstored: BTreeSet::new(),
            doubtful: BTreeSet::new(),
            kills: BTreeSet::new(),
            killing: None,
            demand_again: None,
            now,
        }
    }

    /// How long the loop may sleep when nothing comes.
    fn longest_sleep(&self, due: Option<Timestamp>) -> Duration {
        let owes = !self.unwritten.is_empty() || !self.kills.is_empty() || self.killing.is_some();
        let longest = if owes { AGAIN } else { Duration::from_secs(60) };
        let due = due.into_iter().chain(self.demand_again).min();
        due.map_or(longest, |at| {
            Duration::from_millis(at.since((self.now)()).0.max(1)).min(longest)
        })
    }

    pub(crate) async fn run(
        mut self,
        mut events: Events,
        mut commands: mpsc::Receiver<Command>,
    ) -> Result<()> {
        loop {
            let mut turn = Turn::default();
            let now = (self.now)();
            let next = self.shared.change(|queue| queue.release_delayed(now));
            let wait = self.longest_sleep(next);
            tokio::select! {
                event = events.next() => {
                    let Some(event) = event else { return Err(Error::Closed) };
                    self.event(event, &mut events, &mut turn).await?;
                }
                Some(verdicts) = self.verdicts.1.recv() => self.settle(&verdicts),
                Some(command) = commands.recv(), if self.loaded => {
                    self.command(command, &mut turn);
                    while let Ok(command) = commands.try_recv() {
                        self.command(command, &mut turn);
                    }
                }
                () = tokio::time::sleep(wait) => {}
            }
            self.finish(turn).await?;
        }
    }

    async fn event(&mut self, event: Event, events: &mut Events, turn: &mut Turn) -> Result<()> {
        match event {
            Event::Connected(connected) => self.connected(connected, turn).await?,
            Event::Offers(offers) => self.offers(offers).await?,
            Event::Update(update) => {
                let mut updates = vec![update];
                updates.extend(events.ready_updates(MOST_UPDATES));
                self.updates(&updates, turn);
            }
            Event::Closed(error) => return Err(error),
            Event::Disconnected(why) => tracing::info!(why, "batch lost its stream"),
            Event::Rescinded(_) | Event::AgentChanged(_) | Event::Replaceable(_) => {}
            // The enum may grow: an event of a newer SDK means nothing to this queue.
            _ => {}
        }
        Ok(())
    }

    /// The first time: the queue is rebuilt from the store and compared with what runs.
    async fn connected(&mut self, connected: Connected, turn: &mut Turn) -> Result<()> {
        if self.loaded {
            return Ok(());
        }
        let stored = self.stored("job/").await?;
        let mut jobs = records::read(&stored).map_err(Error::handler)?;
        for (key, why) in records::read_ended(&mut jobs, &self.stored("ended/").await?) {
            let name = String::from_utf8_lossy(&key);
            tracing::warn!(%name, why, "details of ended elements are lost, their record goes");
            self.unwritten.deletes.push(key);
        }
        let count = jobs.len();
        let runs = connected.snapshot.runs;
        let framework = self.session.framework_id().unwrap_or_default();
        let now = (self.now)();
        turn.kills = self.shared.change(|queue| {
            let mut fresh = Queue::new();
            for job in jobs {
                fresh.insert(job);
            }
            *queue = fresh;
            queue.recover(&runs, now)
        });
        self.shared.ready(framework);
        self.loaded = true;
        tracing::info!(
            jobs = count,
            runs = runs.len(),
            "batch took its queue up again"
        );
        Ok(())
    }

    async fn stored(&self, prefix: &str) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
        let records = self.session.store().list(prefix).await?.into_iter();
        Ok(records.map(|record| (record.key, record.value)).collect())
    }

    fn updates(&mut self, updates: &[TaskUpdate], turn: &mut Turn) {
        let now = (self.now)();
        self.shared.change(|queue| {
            for update in updates {
                queue.update(update, now);
            }
        });
        turn.updates
            .extend(updates.iter().map(|update| (update.run(), update.sequence)));
    }

    async fn offers(&mut self, offers: Vec<Offer>) -> Result<()> {
        let mut offers = Offers::new(&self.session, offers);
        for claim in offers.claims() {
            self.fill(&mut offers, claim.as_str());
        }
        offers.decline("nothing of the job waits", refusal(&self.in_flight));
        let submitted = offers.submit().await?;
        self.settle(&submitted.unsent);
        for accepting in submitted.accepting {
            let verdicts = self.verdicts.0.clone();
            tokio::spawn(async move {
                let list = accepting.verdicts().await;
                // The loop ends before its receiver does.
                drop(verdicts.send(list).await);
            });
        }
        Ok(())
    }

    fn fill(&mut self, offers: &mut Offers, name: &str) {
        let Some(spec) = self.spec(name) else { return };
        let mut launched: u32 = 0;
        while let Some(slot) = offers.take(name) {
            let place = Present {
                node: slot.node.clone(),
                agent: slot.agent.to_string(),
                node_address: slot.node_address.clone(),
                ..Present::default()
            };
            let Some(start) = self.shared.change(|queue| queue.start_next(name, place)) else {
                offers.put_back(slot);
                break;
            };
            launched = launched.saturating_add(1);
            offers.launch_as(slot, launch(name, &start, &spec));
        }
        let in_flight = self.in_flight.entry(name.to_owned()).or_default();
        *in_flight = in_flight.saturating_add(launched);
    }

    /// One spec for all elements of a job; what differs travels with each launch.
    fn spec(&mut self, name: &str) -> Option<Arc<RawTaskSpec>> {
        if let Some(spec) = self.specs.get(name) {
            return Some(Arc::clone(spec));
        }
        let spec = self
            .shared
            .read(|queue| queue.find(name).ok().map(task_spec))?;
        let spec = Arc::new(spec);
        self.specs.insert(name.to_owned(), Arc::clone(&spec));
        Some(spec)
    }

    fn settle(&mut self, verdicts: &[LaunchVerdict]) {
        let now = (self.now)();
        for verdict in verdicts {
            let name = verdict.run.task.as_str();
            let name = name.split_once('/').map_or(name, |(name, _)| name);
            if let Some(in_flight) = self.in_flight.get_mut(name) {
                *in_flight = in_flight.saturating_sub(1);
            }
            self.shared.change(|queue| match &verdict.outcome {
                Ok(_) => queue.launched(&verdict.run, now),
                // Our own run of an earlier try: its statuses come.
                Err(reason) if reason.is(Code::AlreadyExists) => {
                    queue.launched(&verdict.run, now);
                }
                Err(reason) => {
                    tracing::debug!(run = %verdict.run, %reason, "a launch was refused");
                    queue.refused(&verdict.run, now);
                }
            });
            self.shared.change(|queue| queue.touch_demand(name));
        }
        self.in_flight.retain(|_, count| *count > 0);
    }

    fn command(&mut self, command: Command, turn: &mut Turn) {
        let now = (self.now)();
        match command {
            Command::Submit { spec, key, reply } => {
                match self.shared.change(|queue| queue.submit(*spec, key, now)) {
                    Ok(submitted) => {
                        if submitted.fresh {
                            self.unstored.insert(submitted.number);
                        }
                        let job = Some(submitted.number);
                        let tell = Box::new(move |failed: Option<&Error>| {
                            let answer = match failed {
                                None => Ok((submitted.name, submitted.elements)),
                                Some(error) => Err(crate::service::not_stored(error)),
                            };
                            let _caller_gone = reply.send(answer);
                        });
                        turn.replies.push(Reply { job, tell });
                    }
                    Err(refused) => drop(reply.send(Err(refused))),
                }
            }
            Command::Cancel {
                jobs,
                dry_run,
                reply,
            } => {
                let mut kills = Vec::new();
                let answers = self.shared.change(|queue| {
                    let one = |job: &String| {
                        queue
                            .cancel(job, dry_run, now)
                            .map(|runs| kills.extend(runs))
                    };
                    jobs.iter().map(one).collect::<Vec<_>>()
                });
                turn.kills.extend(kills);
                let tell = Box::new(move |failed: Option<&Error>| {
                    let answer = match failed {
                        None => answers,
                        Some(error) => answers
                            .iter()
                            .map(|_| Err(crate::service::not_stored(error)))
                            .collect(),
                    };
                    let _caller_gone = reply.send(answer);
                });
                turn.replies.push(Reply { job: None, tell });
            }
        }
    }

    /// Stores, then answers, acknowledges, kills and asks for more. Whatever the broker does, it
    /// takes a bounded time: what is not answered by then is kept, and goes on in a later turn.
    async fn finish(&mut self, turn: Turn) -> Result<()> {
        if !self.loaded {
            return Ok(());
        }
        // Here, not only before waiting: what became due while this turn waited asks now.
        let now = (self.now)();
        self.shared.change(|queue| queue.release_delayed(now));
        self.kills.extend(turn.kills);
        // A status is acknowledged once what it changed is stored, in this turn or in a later one.
        self.unacknowledged.extend(turn.updates);
        let newer = self.shared.change(Queue::take_writes);
        self.unwritten.merge(newer);
        let failed = match self.store().await {
            Ok(()) => None,
            Err(error) if error.is_final() => return Err(error),
            Err(error) => Some(error),
        };
        if let Some(error) = &failed {
            tracing::warn!(%error, "the store refused the queue's records; they are kept");
        }
        let unwritten = &self.unwritten;
        self.unstored.retain(|number| unwritten.has_job(*number));
        self.answer(turn.replies, failed.as_ref());
        self.shared.tell();
        match failed {
            None => {
                self.doubtful.clear();
                let updates = std::mem::take(&mut self.unacknowledged);
                self.session.acknowledge_all(updates);
            }
            // The master takes nothing at the moment, whatever it is.
            Some(Error::Unavailable(_)) => return Ok(()),
            Some(error) if error.code() == Some(Code::StoreFull) => {
                self.shared.change(Queue::forget_oldest);
            }
            Some(_) => {}
        }
        self.kill().await?;
        let asked = tokio::time::timeout(ANSWER_WITHIN, self.ask_for_more()).await;
        asked.unwrap_or_else(|_late| {
            self.shared.change(Queue::touch_all_demand);
            self.ask_again_in(AGAIN);
            Ok(())
        })
    }

    /// Answers users. A job whose record is not stored and surely never will be is taken out: it
    /// was promised to nobody. One of which nobody can tell is kept, and the same key finds it
    /// again.
    fn answer(&mut self, replies: Vec<Reply>, failed: Option<&Error>) {
        let is_unknown = failed.is_some_and(|error| error.code() == Some(Code::Unknown));
        let unknown = Error::Unavailable(Reason::new(Code::Unknown, "no answer yet"));
        let mut gone = BTreeSet::new();
        for reply in replies {
            let unstored = reply.job.filter(|number| self.unstored.contains(number));
            let failed = match (reply.job, unstored) {
                (Some(_), None) => None,
                (Some(_), Some(_)) | (None, _) => failed,
            };
            let Some(number) = unstored.filter(|_| failed.is_some()) else {
                (reply.tell)(failed);
                continue;
            };
            if is_unknown {
                self.doubtful.insert(number);
            }
            if self.doubtful.contains(&number) {
                (reply.tell)(failed.filter(|_| is_unknown).or(Some(&unknown)));
            } else {
                gone.insert(number);
                (reply.tell)(failed);
            }
        }
        for number in gone {
            self.unstored.remove(&number);
            self.unwritten.withdraw(number);
            self.shared.change(|queue| queue.withdraw(number));
        }
    }

    /// Writes what is unwritten, and takes out what is written.
    async fn store(&mut self) -> Result<()> {
        let store = self.session.store();
        while !self.unwritten.is_empty() {
            let (part, write) = self.unwritten.part(MOST_WRITE);
            store.write_within(write, STORE_WITHIN).await?;
            self.unwritten.written(part);
        }
        Ok(())
    }

    /// Has the runs killed that are to be, and hears what became of those before.
    async fn kill(&mut self) -> Result<()> {
        if self.killing.is_none() && !self.kills.is_empty() {
            let runs: Vec<RunId> = self.kills.iter().cloned().collect();
            let (session, these) = (self.session.clone(), runs.clone());
            let verdicts =
                tokio::spawn(async move { session.kill(&these, None, "cancelled").await });
            self.killing = Some(Killing { runs, verdicts });
        }
        let Some(killing) = &mut self.killing else {
            return Ok(());
        };
        let answered = tokio::time::timeout(ANSWER_WITHIN, &mut killing.verdicts).await;
        let Ok(answered) = answered else {
            return Ok(());
        };
        let runs = self.killing.take().map(|killing| killing.runs);
        match answered.map_err(Error::handler)? {
            Ok(verdicts) => {
                for (run, verdict) in runs.into_iter().flatten().zip(verdicts) {
                    let code = verdict.as_ref().err().and_then(Reason::known_code);
                    if !code.is_some_and(Code::is_retryable) {
                        self.kills.remove(&run);
                    }
                }
            }
            Err(error) if error.is_final() => return Err(error),
            Err(error) => tracing::warn!(%error, "kills not taken; they are kept"),
        }
        Ok(())
    }

    fn ask_again_in(&mut self, time: Duration) {
        let millis = u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        let at = Timestamp((self.now)().0.saturating_add(millis));
        self.demand_again = Some(self.demand_again.map_or(at, |earlier| earlier.min(at)));
    }

    /// Brings the claims in line with what the jobs want now.
    async fn ask_for_more(&mut self) -> Result<()> {
        if self.demand_again.is_some_and(|at| at <= (self.now)()) {
            self.demand_again = None;
        }
        let wanted = self.shared.change(Queue::take_demand);
        let mut upsert: BTreeMap<String, Claim> = BTreeMap::new();
        let mut remove = Vec::new();
        for (name, wanted) in wanted {
            let number = self
                .shared
                .read(|queue| queue.find(&name).map(|job| job.number));
            if number.is_ok_and(|number| self.unstored.contains(&number)) {
                self.shared.change(|queue| queue.touch_demand(&name));
                self.ask_again_in(AGAIN);
                continue;
            }
            let flying = self.in_flight.get(&name).copied().unwrap_or(0);
            let known = self.session.claim(&name);
            let launched = known.as_ref().map_or(0, |info| info.launched);
            let over = self
                .shared
                .read(|queue| queue.find(&name).map_or(true, Job::is_over));
            if over || (launched > MOST_COUNT && flying == 0) {
                self.specs.remove(&name);
                if known.is_some() {
                    remove.push(name.clone());
                }
                if over {
                    continue;
                }
            }
            let base = if remove.last() == Some(&name) {
                0
            } else {
                launched
            };
            let count = base
                .saturating_add(flying)
                .saturating_add(wanted)
                .min(MOST_CLAIMED);
            if count == 0 {
                // Nothing to ask for now: what was asked would be offered again and again.
                if known.is_some() && remove.last() != Some(&name) {
                    remove.push(name);
                }
                continue;
            }
            let same = known.is_some_and(|info| info.claim.count == count);
            if same && base == launched {
                continue;
            }
            let claim = self
                .shared
                .read(|queue| demand::claim(queue.find(&name).ok()?, count).ok());
            if let Some(claim) = claim {
                upsert.insert(name, claim);
            }
        }
        self.change_demand(remove, upsert).await
    }

    async fn change_demand(
        &mut self,
        remove: Vec<String>,
        upsert: BTreeMap<String, Claim>,
    ) -> Result<()> {
        if !remove.is_empty() {
            let withdrawn = self
                .session
                .withdraw(remove.iter().map(String::as_str))
                .await;
            if !self.passed(withdrawn)? {
                self.not_taken(&remove);
            }
        }
        if upsert.is_empty() {
            return Ok(());
        }
        let claims = upsert
            .iter()
            .map(|(name, claim)| (name.as_str(), claim.clone()));
        let all = self.session.want_all(claims).await;
        if self.passed(all)? {
            return Ok(());
        }
        // One job that cannot be asked for, such as one of a role that is served no more, must not
        // keep the others waiting.
        for (name, claim) in upsert {
            let asked = self.session.want(&name, claim).await;
            if !self.passed(asked)? {
                self.not_taken(&[name]);
            }
        }
        Ok(())
    }

    /// Demand of these jobs has to be asked for again, some time.
    fn not_taken(&mut self, names: &[String]) {
        self.shared.change(|queue| {
            for name in names {
                queue.touch_demand(name);
            }
        });
        self.ask_again_in(WRONG_DEMAND_AGAIN);
    }

    /// Says whether the broker took a change of demand; only the end of the session is an error.
    fn passed(&self, result: Result<()>) -> Result<bool> {
        match result {
            Ok(()) => Ok(true),
            Err(error) if error.is_final() => Err(error),
            Err(error) => {
                tracing::warn!(%error, "demand not taken");
                Ok(false)
            }
        }
    }
}

fn launch(name: &str, start: &Start, spec: &Arc<RawTaskSpec>) -> Launch {
    let mut launch = Launch::new(start.run.clone(), Arc::clone(spec));
    launch.labels.insert("job".to_owned(), name.to_owned());
    launch
        .labels
        .insert("element".to_owned(), start.index.to_string());
    if start.array {
        launch
            .environment
            .insert("METE_INDEX".to_owned(), start.index.to_string());
    }
    launch
}

/// Says what is wrong with the task of a job, by the rules that hold for a launch.
pub(crate) fn check_task(job: &Job) -> std::result::Result<(), String> {
    const LONGEST: Duration = Duration::from_secs(10 * 365 * 86_400);
    for (name, ms) in [
        ("time_limit_ms", job.spec.time_limit_ms),
        ("kill_grace_ms", job.spec.kill_grace_ms),
    ] {
        if Duration::from_millis(ms) > LONGEST {
            return Err(format!("{name}: {ms} is more than 10 years"));
        }
    }
    let wire = write_spec(&task_spec(job));
    whole(|faults| read_spec(wire, At::root("spec"), faults))
        .map(drop)
        .map_err(|faults| faults.to_string())
}

fn task_spec(job: &Job) -> RawTaskSpec {
    let mut spec = TaskSpec::command(&job.spec.name, &job.spec.command)
        .working_directory(&job.spec.working_directory)
        .env("METE_JOB", &job.name);
    for (name, value) in &job.spec.environment {
        spec = spec.env(name, value);
    }
    if job.spec.kill_grace_ms > 0 {
        spec = spec.kill_grace(Duration::from_millis(job.spec.kill_grace_ms));
    }
    if job.spec.time_limit_ms > 0 {
        spec = spec.time_limit(Duration::from_millis(job.spec.time_limit_ms));
    }
    if let Some(fake) = &job.spec.fake {
        let code = u8::try_from(fake.exit_code).unwrap_or(u8::MAX);
        spec = spec.fake(Duration::from_millis(fake.run_ms), code);
    }
    spec.run
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn while_a_launch_may_still_be_refused_nothing_is_hidden_for_good() {
        let mut in_flight = HashMap::from([("a-1".to_owned(), 0)]);
        assert_eq!(refusal(&in_flight), Refuse::UntilDemandChanges);
        in_flight.insert("b-2".to_owned(), 1);
        assert_eq!(refusal(&in_flight), Refuse::For(AGAIN));
    }
}
