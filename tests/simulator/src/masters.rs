//! Masters: the real loop on the real store over a disk in memory, one process after another.
//!
//! A turn takes no time by itself, its flushes do: what left before a flush leaves at once, what
//! waited for it leaves when it is over, and until then the process takes nothing in. A process
//! that crashes in between loses what had not left.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use mete_broker::config::{Config, Storage};
use mete_broker::event::{Event, Monotonic, Turn};
use mete_broker::machine::Done;
use mete_broker::master::{Follower, Master};
use mete_broker::mint::Counted;
use mete_broker::output::Output;
use mete_broker::replica::{self, Encoding, Outgoing, Role, Timers};
use mete_broker::request::{Refusal, Reply};
use mete_broker::session::peers::Outlet;
use mete_broker::store::{Fault, FaultPlan, MemoryDisk, MemoryStore};
use mete_model::{FrameworkId, Timestamp};
use mete_state::State;
use tokio::sync::oneshot;

use crate::agenda::{MILLISECOND, Time};
use crate::disk;
use crate::network::Place;
use crate::peers::Sending;
use crate::variant::Variant;
use crate::world::{Answer, CLUSTER, Happening, START, World, timing};

/// Between two ticks of a process.
const TICK: Time = 20 * MILLISECOND;

/// One seat's disk, and the processes that run on it one after the other.
#[derive(Debug)]
pub(crate) struct MasterProcess {
    pub(crate) disk: MemoryDisk,
    pub(crate) faults: FaultPlan,
    pub(crate) founders: Vec<u64>,
    /// How many processes there were.
    pub(crate) life: u64,
    pub(crate) running: Option<Running>,
    /// Never starts again: taken out of the cluster, or its disk is lost.
    pub(crate) retired: bool,
    /// How wrong its wall clock is, in milliseconds.
    pub(crate) clock_error: i64,
    /// How long one flush takes.
    pub(crate) flush: Time,
    /// The highest level of its release.
    pub(crate) level: u32,
}

impl MasterProcess {
    /// Lets the disk's flushes lie from now on, or keep their word.
    fn lying(mut self, lies: bool) -> Self {
        self.faults.flushes_lie = lies;
        self.disk.set_faults(self.faults.clone());
        self
    }
}

/// A process.
#[derive(Debug)]
pub(crate) struct Running {
    pub(crate) master: Master,
    started: Time,
    inbox: Vec<Event>,
    ticks: u64,
    pub(super) sent: Arc<Mutex<Sent>>,
    told: Arc<Mutex<Vec<Told>>>,
    /// Waits until what it promises is on the disk.
    unsent: Vec<Output>,
    has_unsent: bool,
    blocked_until: Time,
    wake_asked: Option<Time>,
    /// Role and term as they were said last.
    said: (Role, u64),
    /// Its role once was that of a candidate since this was last cleared.
    pub(crate) stood: bool,
    calls: BTreeMap<u64, (Place, oneshot::Receiver<Result<Reply, Refusal>>)>,
    pub(crate) subscribing: BTreeMap<u64, oneshot::Receiver<Result<FrameworkId, Refusal>>>,
    pub(super) taken: Vec<(oneshot::Receiver<()>, Sending, bool)>,
}

/// What the loop gave for others in a turn.
#[derive(Debug)]
pub(super) struct Sent {
    disk: MemoryDisk,
    outgoing: Vec<(Outgoing, u64)>,
    pub(super) directory: BTreeMap<u64, String>,
}

#[derive(Debug)]
struct Way(Arc<Mutex<Sent>>);

impl Outlet for Way {
    fn send(&mut self, outgoing: Outgoing) {
        let mut sent = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let flushes = sent.disk.operations().1;
        sent.outgoing.push((outgoing, flushes));
    }

    fn directory(&mut self, addresses: &BTreeMap<u64, String>) {
        let mut sent = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        sent.directory.clone_from(addresses);
    }
}

/// What a replica tells of its machine.
#[derive(Debug)]
pub(crate) enum Told {
    Applied(Box<Done>),
    Digest { revision: u64, digest: u64 },
}

#[derive(Debug)]
struct Listener(Arc<Mutex<Vec<Told>>>);

impl Listener {
    fn push(&self, told: Told) {
        let mut list = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        list.push(told);
    }
}

impl Follower for Listener {
    fn applied(&mut self, _state: &State, done: &Done) {
        self.push(Told::Applied(Box::new(done.clone())));
    }

    fn complete(&mut self, state: &State, revision: u64) {
        // A digest walks over the whole state: every eighth index is enough.
        if revision.is_multiple_of(8) {
            let digest = state.digest();
            self.push(Told::Digest { revision, digest });
        }
    }

    fn restored(&mut self, state: &State, _revision: u64) {
        // A master that joins begins with nothing at all, founders with the founders.
        if state.revision() > 0 {
            let (revision, digest) = (state.revision(), state.digest());
            self.push(Told::Digest { revision, digest });
        }
    }
}

pub(crate) fn address(node: u64) -> String {
    format!("master-{node}:7443")
}

pub(crate) fn node_of(address: &str) -> Option<u64> {
    address
        .strip_prefix("master-")?
        .strip_suffix(":7443")?
        .parse()
        .ok()
}

impl World {
    /// A new seat on an empty disk; founders know each other, others join.
    pub(crate) fn found_master(&mut self, node: u64, founders: Vec<u64>) {
        let mut dice = self.dice.fork(&format!("master {node}"));
        let level = if dice.chance(self.plan.old_release) {
            0
        } else {
            1
        };
        let process = MasterProcess {
            disk: MemoryDisk::new(),
            faults: FaultPlan::default(),
            founders,
            life: 0,
            running: None,
            retired: false,
            clock_error: 0,
            flush: dice.between(100, 900),
            level,
        };
        if let Err(error) = MemoryStore::found(&process.disk, CLUSTER, node) {
            self.violated("store", format!("found master {node}: {error}"));
            return;
        }
        let lies = self.variant == Some(Variant::AcknowledgeBeforeDurable);
        let process = process.lying(lies);
        self.masters.insert(node, process);
        self.agenda.after(1, Happening::MasterStarts { node });
    }

    pub(crate) fn start_master(&mut self, node: u64) {
        let now = self.now();
        let variant = self.variant;
        let Some(process) = self.masters.get_mut(&node) else {
            return;
        };
        if process.running.is_some() || process.retired {
            return;
        }
        process.life += 1;
        let life = process.life;
        let mut dice = self.dice.fork(&format!("life {life} of master {node}"));
        let stand = (dice.between(0, 1), self.plan.stand_step);
        let config = settings(node, process, stand);
        let opened = MemoryStore::open(&process.disk)
            .map_err(|error| (None, error.to_string()))
            .and_then(|store| {
                let store = disk::store(store, variant);
                let mint = Box::new(Counted::new(dice.next()));
                let opened = Master::open(&config, store, mint, address(node));
                opened.map_err(|error| (too_new(&error), error.to_string()))
            });
        let mut master = match opened {
            Ok(master) => master,
            Err((Some(level), _)) => {
                self.renew(node, level);
                self.agenda
                    .after(100 * MILLISECOND, Happening::MasterStarts { node });
                return;
            }
            Err((None, error)) => {
                let detail = format!("master {node} cannot start on its own disk: {error}");
                self.violated("store", detail);
                return;
            }
        };
        let sent = Arc::new(Mutex::new(Sent {
            disk: process.disk.clone(),
            outgoing: Vec::new(),
            directory: BTreeMap::new(),
        }));
        let told = Arc::new(Mutex::new(Vec::new()));
        master.connect(Box::new(Way(Arc::clone(&sent))));
        master.follow(Box::new(Listener(Arc::clone(&told))));
        process.running = Some(Running {
            master,
            started: now,
            inbox: Vec::new(),
            ticks: 0,
            sent,
            told,
            unsent: Vec::new(),
            has_unsent: false,
            blocked_until: now,
            wake_asked: None,
            said: (Role::Follower, 0),
            stood: false,
            calls: BTreeMap::new(),
            subscribing: BTreeMap::new(),
            taken: Vec::new(),
        });
        self.say(|| format!("master {node} starts, life {life}"));
        self.hear(node);
        let phase = dice.between(1, TICK);
        self.agenda
            .after(phase, Happening::MasterTick { node, life });
        self.agenda.after(1, Happening::Introduces { node, life });
    }

    /// The process dies; of what it wrote lazily some may survive.
    pub(crate) fn crash_master(&mut self, node: u64) {
        let Some(process) = self.masters.get_mut(&node) else {
            return;
        };
        process.faults.fail_writes.clear();
        process.faults.fail_flushes.clear();
        process.disk.set_faults(process.faults.clone());
        let Some(dead) = process.running.take() else {
            return;
        };
        let life = process.life;
        let waiting = process.disk.unflushed();
        let kept = self.dice.index(waiting + 1);
        process.disk.crash(kept);
        self.say(|| format!("master {node} dies; {kept} of {waiting} unflushed writes survive"));
        // Whoever was sending a snapshot to it sees the connection break.
        for (_, sending, _) in dead.taken {
            self.report(sending, false);
        }
        let of_it = |stream: &crate::network::Stream| {
            stream.master == node && stream.master_life == life && !stream.broken
        };
        let streams = self.streams.iter().filter(|(_, stream)| of_it(stream));
        let streams: Vec<u64> = streams.map(|(id, _)| *id).collect();
        for stream in streams {
            self.break_stream(stream);
        }
    }

    pub(crate) fn pause_master(&mut self, node: u64, until: Time) {
        if let Some(running) = self.running(node) {
            running.blocked_until = running.blocked_until.max(until);
            self.say(|| format!("master {node} stands still"));
        }
    }

    pub(crate) fn running(&mut self, node: u64) -> Option<&mut Running> {
        self.masters.get_mut(&node)?.running.as_mut()
    }

    pub(super) fn life(&self, node: u64) -> Option<u64> {
        let process = self.masters.get(&node)?;
        process.running.as_ref().map(|_| process.life)
    }

    pub(crate) fn is_life(&self, node: u64, life: u64) -> bool {
        self.life(node) == Some(life)
    }

    pub(crate) fn master_tick(&mut self, node: u64, life: u64) {
        if !self.is_life(node, life) {
            return;
        }
        if let Some(running) = self.running(node) {
            running.ticks += 1;
        }
        self.agenda
            .after(TICK, Happening::MasterTick { node, life });
        self.turn(node);
    }

    pub(crate) fn master_wakes(&mut self, node: u64, life: u64) {
        if !self.is_life(node, life) {
            return;
        }
        if let Some(running) = self.running(node) {
            running.wake_asked = None;
        }
        self.turn(node);
    }

    /// Something for the loop.
    pub(crate) fn give(&mut self, node: u64, event: Event) {
        if let Some(running) = self.running(node) {
            running.inbox.push(event);
            self.turn(node);
        }
    }

    /// One turn, if the process is neither busy nor stopped and has anything to do.
    fn turn(&mut self, node: u64) {
        let now = self.now();
        let Some(running) = self.running(node) else {
            return;
        };
        if now < running.blocked_until {
            let at = running.blocked_until;
            if running.wake_asked.is_none_or(|asked| asked > at) {
                running.wake_asked = Some(at);
                self.ask_to_wake(node, at);
            }
            return;
        }
        if std::mem::take(&mut running.has_unsent) {
            let outputs = std::mem::take(&mut running.unsent);
            self.carry_out(node, outputs);
        }
        let variant = self.variant;
        let Some(running) = self.running(node) else {
            return;
        };
        if running.inbox.is_empty() && running.ticks == 0 {
            return;
        }
        let ticks = std::mem::take(&mut running.ticks);
        let mut events = std::mem::take(&mut running.inbox);
        let turns = match variant {
            Some(Variant::TickBurst) => ticks.max(1),
            // Several waiting ticks count as one.
            Some(_) | None => 1,
        };
        for _ in 0..turns {
            let events = std::mem::take(&mut events);
            if !self.step(node, ticks > 0, events) {
                return;
            }
        }
    }

    fn ask_to_wake(&mut self, node: u64, at: Time) {
        if let Some(life) = self.life(node) {
            self.agenda.at(at, Happening::MasterWakes { node, life });
        }
    }

    /// One call of the loop. False when the process has died of it.
    fn step(&mut self, node: u64, tick: bool, events: Vec<Event>) -> bool {
        let now = self.now();
        let Some(process) = self.masters.get_mut(&node) else {
            return false;
        };
        let (flush, life) = (process.flush, process.life);
        let wall = START.0 + now / MILLISECOND;
        let wall = wall.saturating_add_signed(process.clock_error);
        let before = process.disk.operations().1;
        let Some(running) = &mut process.running else {
            return false;
        };
        let turn = Turn {
            now: Timestamp(wall),
            monotonic: Monotonic((now - running.started) / MILLISECOND),
            tick,
            events,
        };
        let result = running.master.step(turn);
        let flushes = process.disk.operations().1 - before;
        let busy = flush * flushes;
        let mut sent = running.sent.lock().unwrap_or_else(PoisonError::into_inner);
        let outgoing = std::mem::take(&mut sent.outgoing);
        drop(sent);
        running.blocked_until = running.blocked_until.max(now + busy);
        running.stood |= running.master.replica().standing().role == Role::Candidate;
        for (outgoing, flushed) in outgoing {
            let at = now + flush * flushed.saturating_sub(before);
            let leaves = Happening::Leaves {
                from: node,
                life,
                outgoing,
            };
            self.agenda.at(at, leaves);
        }
        self.hear(node);
        match result {
            Ok(outputs) => self.outputs(node, outputs, now + busy),
            Err(fault) => {
                self.say(|| format!("master {node} ends: {fault}"));
                self.crash_master(node);
                if let Fault::TooNew(found) = &fault {
                    self.renew(node, found.level);
                }
                let delay = self.dice.between(20, 2_000) * MILLISECOND;
                self.agenda.after(delay, Happening::MasterStarts { node });
                return false;
            }
        }
        true
    }

    fn outputs(&mut self, node: u64, outputs: Vec<Output>, at: Time) {
        if at <= self.now() {
            self.carry_out(node, outputs);
            return;
        }
        if let Some(running) = self.running(node) {
            running.unsent.extend(outputs);
            running.has_unsent = true;
            running.wake_asked = Some(at);
            self.ask_to_wake(node, at);
        }
    }

    /// The driver's part of a turn: answers go out, and what is in the outboxes of streams.
    fn carry_out(&mut self, node: u64, outputs: Vec<Output>) {
        let mut answered = false;
        let mut removed = None;
        for output in outputs {
            match output {
                Output::Reply { to, answer } => {
                    answered = true;
                    let _gone = to.send(answer);
                }
                Output::Subscribed { to, answer } => {
                    answered = true;
                    let _gone = to.send(answer);
                }
                Output::SnapshotTaken { to } => {
                    let _gone = to.send(());
                }
                Output::Removed { by } => removed = Some(by),
                Output::Stopped => {}
            }
        }
        if answered {
            self.send_answers(node);
        }
        self.report_taken(node);
        self.empty_outboxes(node);
        if let Some(by) = removed {
            self.say(|| format!("master {node} ends: removed, says {by:?}"));
            self.crash_master(node);
            self.retire(node);
        }
    }

    /// The operator does what a master asks for that is too old for its cluster: it gets a release
    /// that knows this level.
    fn renew(&mut self, node: u64, level: u32) {
        if let Some(process) = self.masters.get_mut(&node) {
            process.level = process.level.max(level);
            self.say(|| format!("master {node} gets a release of level {level}"));
        }
    }

    pub(crate) fn retire(&mut self, node: u64) {
        if let Some(process) = self.masters.get_mut(&node) {
            process.retired = true;
        }
    }

    fn send_answers(&mut self, node: u64) {
        let variant = self.variant;
        let Some(running) = self.running(node) else {
            return;
        };
        let mut done = Vec::new();
        running.calls.retain(|call, (from, answer)| {
            let Ok(answer) = answer.try_recv() else {
                return true;
            };
            done.push((*call, *from, answer));
            false
        });
        for (call, from, answer) in done {
            if variant == Some(Variant::StaleReads) && is_read(&answer) {
                continue;
            }
            let answer = answer.map(|reply| self.fill(node, from, reply));
            self.send_answer(node, from, call, answer);
        }
    }

    pub(crate) fn send_answer(
        &mut self,
        node: u64,
        to: Place,
        call: u64,
        answer: Result<Answer, Refusal>,
    ) {
        let now = self.now();
        for arrival in self.network.arrivals(Place::Master(node), to, now) {
            let answer = Box::new(answer.clone());
            let arrives = Happening::Answer { to, call, answer };
            self.agenda.at(arrival, arrives);
        }
    }

    /// Passes on what a replica said of its machine.
    fn hear(&mut self, node: u64) {
        let Some(running) = self.running(node) else {
            return;
        };
        let told =
            std::mem::take(&mut *running.told.lock().unwrap_or_else(PoisonError::into_inner));
        let standing = running.master.replica().standing();
        let (role, term) = (standing.role, standing.term);
        let is_news = std::mem::replace(&mut running.said, (role, term)) != (role, term);
        if is_news {
            self.say(|| format!("master {node} is {role:?} in term {term}"));
        }
        let mut found = Vec::new();
        for told in told {
            found.extend(self.checkers.history.told(node, told));
        }
        if standing.role == Role::Leader {
            found.extend(self.checkers.history.leads(node, standing.term));
        }
        for detail in found {
            self.violated("history", detail);
        }
    }

    pub(crate) fn wait_for_answer(
        &mut self,
        node: u64,
        call: u64,
        from: Place,
        answer: oneshot::Receiver<Result<Reply, Refusal>>,
    ) {
        if let Some(running) = self.running(node) {
            running.calls.insert(call, (from, answer));
        }
    }
}

fn is_read(answer: &Result<Reply, Refusal>) -> bool {
    matches!(answer, Ok(Reply::ReadAt { .. }))
}

/// The level of a cluster that has left this release behind.
fn too_new(error: &replica::OpenError) -> Option<u32> {
    if let replica::OpenError::TooNew(found) = error {
        return Some(found.level);
    }
    None
}

/// Makes everything durable that was said to be: for the variant whose flushes lie.
pub(crate) fn sync(disk: &MemoryDisk, faults: &FaultPlan) {
    let waiting = disk.unflushed();
    // A crash that keeps everything is a flush.
    disk.crash(waiting);
    disk.set_faults(faults.clone());
}

fn settings(node: u64, process: &MasterProcess, (later, step): (u64, usize)) -> Config {
    let timers = Timers {
        // The protocol's library draws from a source that no seed decides.
        first_stand_ticks: 27 + usize::try_from(later).unwrap_or(0),
        stand_step_ticks: step,
        stand_draws: 1,
        ..Timers::shipped()
    };
    let known = process.founders.iter();
    Config {
        node,
        founders: process.founders.clone(),
        masters: known.map(|node| (*node, address(*node))).collect(),
        level: process.level,
        timing: timing(),
        replica: replica::Config {
            timers,
            snapshot_entries: 60,
            tail_entries: 20,
            trim_entries: 8,
            encoding: Encoding::Inline,
            ..replica::Config::shipped(process.founders.clone())
        },
        ..Config::single(Storage::Memory)
    }
}
