//! The loop: one turn takes everything that waits and gives everything that follows.
//!
//! A corridor between the replica and the term of leading: it passes values and decides nothing. It
//! has no clock (a [`Turn`] carries both), no thread and no task; whoever drives it carries out the
//! outputs after the turn, when the disk has what they promise. All commands of a turn share one
//! propose and one flush.

mod peers;

use std::collections::VecDeque;
use std::sync::{Arc, PoisonError};

use mete_model::{Code, Span, Timestamp};
use mete_state::Stamped;

use crate::config::{Config, Timing};
use crate::event::{Event, Monotonic, Turn};
use crate::format;
use crate::handle::SharedState;
use crate::leader::{self, LeaderTerm, Now, Token, Work};
use crate::machine::{Done, StateMachine};
use crate::mint::Mint;
use crate::output::Output;
use crate::replica::{self, Input, Progress, Proposal, Replica, Standing};
use crate::request::{Leader, Refusal};
use crate::session::peers::Nobody;
use crate::store::{Fault, LogStore};
use peers::{Peers, Stopping};

/// Turns within a turn: commands that follow from what has just applied.
const MOST_PASSES: usize = 16;

/// Calls and streams that wait for a leader at the most.
const MOST_HELD: usize = 16_384;

/// When to come again while the disk is full.
const DISK_FULL_AGAIN: Span = Span::seconds(5);

/// The wall clock is followed at most so much faster than time passes, so that a jump of it can
/// shorten no deadline unseen.
const CATCH_UP: u64 = 60;

/// Told of every applied command, on the loop's thread, in order of the log: the read model.
pub trait Follower: Send {
    /// `done` has applied; `state` is the state after the whole batch it belongs to.
    fn applied(&mut self, state: &mete_state::State, done: &Done);

    /// The batch is complete: all commands up to `revision` were told.
    fn complete(&mut self, state: &mete_state::State, revision: u64);

    /// The whole state was replaced by a snapshot: everything known before is void.
    fn restored(&mut self, state: &mete_state::State, revision: u64);
}

/// Counters since the process started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Turns of the loop.
    pub turns: u64,
    /// Commands applied.
    pub commits: u64,
    /// Turns that logged something: each is one flush.
    pub flushes: u64,
    /// Commands that were rejected when they applied.
    pub rejected: u64,
    /// Events taken in.
    pub events: u64,
    /// The most events of one turn.
    pub most_events: u64,
}

/// One master.
pub struct Master {
    replica: Replica<StateMachine>,
    state: SharedState,
    timing: Timing,
    mint: Box<dyn Mint>,
    advertised: String,
    peers: Peers,
    /// The highest level this release knows.
    level: u32,
    leader: Option<LeaderTerm>,
    /// Calls and streams that wait for a leader, each with the moment it is refused.
    held: VecDeque<(Monotonic, Event)>,
    clock: Clock,
    outputs: Vec<Output>,
    followers: Vec<Box<dyn Follower>>,
    counters: Counters,
    stopping: Stopping,
}

impl std::fmt::Debug for Master {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Master")
            .field("replica", &self.replica)
            .field("term", &self.leader.as_ref().map(LeaderTerm::term))
            .field("counters", &self.counters)
            .finish_non_exhaustive()
    }
}

/// The clock that stamps: goes on from the last stamp, follows the wall clock, never jumps back.
#[derive(Debug, Default)]
struct Clock {
    last: Option<(Timestamp, Monotonic)>,
}

impl Clock {
    fn now(&mut self, wall: Timestamp, monotonic: Monotonic, least: Timestamp) -> Now {
        let at = match self.last {
            None => wall.max(least),
            Some((last, when)) => {
                let passed = monotonic.since(when);
                let plain = last.0.saturating_add(passed);
                let ahead = wall.0.saturating_sub(plain);
                let catch_up = ahead.min(passed.saturating_mul(CATCH_UP));
                Timestamp(plain.saturating_add(catch_up)).max(least)
            }
        };
        self.last = Some((at, monotonic));
        Now { at, monotonic }
    }
}

impl Master {
    /// Starts on an open store: everything that was committed is applied when this returns, and a
    /// master that is alone leads.
    ///
    /// # Errors
    /// [`replica::OpenError`]; the process should end with it.
    pub fn open(
        config: &Config,
        store: Box<dyn LogStore>,
        mint: Box<dyn Mint>,
        advertised: String,
    ) -> Result<Self, replica::OpenError> {
        let machine = StateMachine::founding(&config.masters).knowing(config.level);
        let state = machine.shared();
        let mut settings = config.replica.clone();
        settings.founders.clone_from(&config.founders);
        let replica = Replica::open(settings, store, machine)?;
        Ok(Self {
            replica,
            state,
            timing: config.timing,
            mint,
            advertised,
            peers: Peers::new(Box::new(Nobody)),
            level: config.level,
            leader: None,
            held: VecDeque::new(),
            clock: Clock::default(),
            outputs: Vec::new(),
            followers: Vec::new(),
            counters: Counters::default(),
            stopping: Stopping::No,
        })
    }

    /// Adds someone to be told of every applied command, beginning with the state as it is.
    pub fn follow(&mut self, mut follower: Box<dyn Follower>) {
        self.read_state(|state| follower.restored(state, self.replica.applied_index()));
        self.followers.push(follower);
    }

    /// Does one turn.
    ///
    /// # Errors
    /// [`Fault`] when this machine's disk fails. Final: write it down and end the process.
    pub fn step(&mut self, turn: Turn) -> Result<Vec<Output>, Fault> {
        let Turn {
            now: wall,
            monotonic,
            mut tick,
            events,
        } = turn;
        self.count_turn(events.len());
        let least = self.read_state(mete_state::State::clock);
        let now = self.clock.now(wall, monotonic, least);
        self.look_at_standing(self.replica.standing(), now);
        self.take_events(events, now);
        self.on_time(now);
        self.tend_masters(now);
        for _ in 0..MOST_PASSES {
            let work = self
                .leader
                .as_mut()
                .map(LeaderTerm::take_work)
                .unwrap_or_default();
            let more = self.replicate(work, std::mem::take(&mut tick), now)?;
            let offers_more = self.round(now);
            let follows = self.leader.as_ref().is_some_and(LeaderTerm::has_work);
            if !more && !follows && !offers_more && !self.peers.has_work() {
                break;
            }
        }
        if let Some(leader) = &mut self.leader {
            self.outputs.append(&mut leader.take_outputs());
        }
        self.send_on(now);
        if self.may_stop(now) {
            self.outputs.push(Output::Stopped);
        }
        Ok(std::mem::take(&mut self.outputs))
    }

    /// Ends gracefully: everything is flushed. The last outputs are to be carried out.
    ///
    /// # Errors
    /// [`Fault`] when the disk refuses.
    pub fn close(mut self) -> Result<Vec<Output>, Fault> {
        let detail = "this master is ending";
        let refusal = Refusal::new(Code::NoLeader, detail);
        if let Some(leader) = self.leader.take() {
            self.outputs.extend(leader.end(Leader {
                address: String::new(),
                term: self.replica.standing().term,
            }));
        }
        for (_, event) in self.held.drain(..) {
            self.outputs.extend(leader::refuse_event(event, &refusal));
        }
        self.replica.close()?;
        Ok(self.outputs)
    }

    fn count_turn(&mut self, events: usize) {
        let events = u64::try_from(events).unwrap_or(u64::MAX);
        let counters = &mut self.counters;
        counters.turns = counters.turns.saturating_add(1);
        counters.events = counters.events.saturating_add(events);
        counters.most_events = counters.most_events.max(events);
    }

    fn take_events(&mut self, events: Vec<Event>, now: Now) {
        // Looks see the loop between two turns: before anything of this one.
        let mut rest = Vec::with_capacity(events.len());
        for event in events {
            match event {
                Event::Look(look) => (look.0)(self),
                Event::Stop => self.begin_to_stop(now),
                Event::Peer(peer) => self.take_peer(peer, now),
                Event::Call { .. } if self.leader.is_some() => {
                    rest.extend(self.judge_seats(event));
                }
                Event::Call { .. }
                | Event::AgentHello { .. }
                | Event::AgentStatuses { .. }
                | Event::AgentBeacon { .. }
                | Event::AgentInventory { .. }
                | Event::AgentDrained { .. }
                | Event::AgentClosed { .. }
                | Event::Subscribe { .. }
                | Event::StreamDrained { .. }
                | Event::StreamClosed { .. } => rest.push(event),
            }
        }
        let Some(leader) = &mut self.leader else {
            for event in rest {
                self.hold(event, now);
            }
            return;
        };
        let state = self.state.read().unwrap_or_else(PoisonError::into_inner);
        for event in rest {
            leader.take(event, &state, now);
        }
    }

    fn on_time(&mut self, now: Now) {
        if let Some(leader) = &mut self.leader {
            let state = self.state.read().unwrap_or_else(PoisonError::into_inner);
            leader.on_time(&state, now);
        }
        while let Some((until, _)) = self.held.front()
            && *until <= now.monotonic
            && let Some((_, event)) = self.held.pop_front()
        {
            let detail = format!(
                "no master leads; the call was held for {}",
                self.timing.hold
            );
            let refusal = Refusal::new(Code::NoLeader, detail);
            self.outputs.extend(leader::refuse_event(event, &refusal));
        }
    }

    /// Where to send whoever asks, while another master leads. One that is not heard may be gone:
    /// nobody is sent there, they wait for the election.
    fn led_elsewhere(&self, now: Now) -> Option<Refusal> {
        let standing = self.replica.standing();
        let node = standing.leader?;
        let is_other = node != self.replica.identity().node;
        let is_there = is_other && self.peers.is_heard(node, now.monotonic);
        is_there.then(|| self.not_leader(Some(node), standing.term))
    }

    /// Sends on what was held, as soon as another master leads.
    fn send_on(&mut self, now: Now) {
        if self.held.is_empty() || self.leader.is_some() {
            return;
        }
        if let Some(refusal) = self.led_elsewhere(now) {
            for (_, event) in self.held.drain(..) {
                self.outputs.extend(leader::refuse_event(event, &refusal));
            }
        }
    }

    /// Keeps what waits for an answer until there is a leader, or refuses it with who leads.
    fn hold(&mut self, event: Event, now: Now) {
        if let Some(refusal) = self.led_elsewhere(now) {
            self.outputs.extend(leader::refuse_event(event, &refusal));
        } else if self.held.len() >= MOST_HELD {
            let detail = format!("no master leads, and {MOST_HELD} calls wait for one already");
            let refusal = Refusal::new(Code::NoLeader, detail);
            self.outputs.extend(leader::refuse_event(event, &refusal));
        } else if leader::may_be_held(&event) {
            let until = now.monotonic.after(self.timing.hold.0);
            self.held.push_back((until, event));
        }
    }

    fn not_leader(&self, leader: Option<u64>, term: u64) -> Refusal {
        let address = leader.and_then(|node| self.peers.address(node));
        let address = address.unwrap_or_default().to_owned();
        let detail = match leader {
            Some(node) if address.is_empty() => {
                format!("this master does not lead; master {node} leads term {term}")
            }
            Some(_) => format!("this master does not lead; the leader of term {term} is {address}"),
            None => format!("this master does not lead, and no other is known in term {term}"),
        };
        Refusal {
            leader: Some(Leader { address, term }),
            ..Refusal::new(Code::NotLeader, detail)
        }
    }

    /// One turn of the replica: what is to be logged in, what was applied out.
    fn replicate(&mut self, work: Work, tick: bool, now: Now) -> Result<bool, Fault> {
        let proposals: Vec<Proposal> = work.commands.iter().map(proposal).collect();
        if !proposals.is_empty() {
            self.counters.flushes = self.counters.flushes.saturating_add(1);
        }
        let mut input = Input {
            tick,
            proposals,
            reads: work.reads,
            ..Input::default()
        };
        let wants_change = self.peers.wants_change();
        let token = wants_change.then(|| self.leader.as_mut().map(LeaderTerm::next_token));
        self.peers.fill(&mut input, token.flatten());
        let peers = &mut self.peers;
        let (progress, more) = self
            .replica
            .step(input, &mut |outgoing| peers.send(outgoing))?;
        self.digest(progress, now);
        Ok(more)
    }

    fn digest(&mut self, progress: Progress<Done>, now: Now) {
        for refused in &progress.frames_refused {
            tracing::debug!(%refused, "frame of a peer refused");
        }
        if let Some(revision) = progress.restored {
            let state = self.state.read().unwrap_or_else(PoisonError::into_inner);
            for follower in &mut self.followers {
                follower.restored(&state, revision);
            }
        }
        // A standing that changed changes who may speak: before anything is answered.
        if let Some(standing) = progress.standing {
            self.look_at_standing(standing, now);
        }
        if progress.members.is_some() {
            self.look_at_own_seat();
        }
        let mut done: Vec<(Option<Token>, Done)> = Vec::with_capacity(progress.applied.len());
        let term = self.leader.as_ref().map(LeaderTerm::term);
        for applied in progress.applied {
            // A token of an earlier term was answered when that term ended.
            let token = applied.token.filter(|_| term == Some(applied.term));
            if let Some(outcome) = applied.outcome {
                self.counters.commits = self.counters.commits.saturating_add(1);
                let rejected = u64::from(outcome.result.is_err());
                self.counters.rejected = self.counters.rejected.saturating_add(rejected);
                done.push((token, outcome));
            }
        }
        self.tell_followers(&done);
        let refusals: Vec<(Token, Refusal)> = progress
            .refused
            .iter()
            .map(|(token, refusal)| (*token, self.refusal(*refusal)))
            .chain(
                progress
                    .unknown
                    .iter()
                    .map(|token| (*token, Refusal::unknown())),
            )
            .chain(progress.reads_dropped.iter().map(|token| {
                let detail = "the leader changed while the read waited; ask again";
                (*token, Refusal::new(Code::NoLeader, detail))
            }))
            .collect();
        let Some(leader) = &mut self.leader else {
            return;
        };
        let state = self.state.read().unwrap_or_else(PoisonError::into_inner);
        if !done.is_empty() {
            leader.applied(done, &state, now);
        }
        for (token, refusal) in refusals {
            leader.refused(token, &refusal, &state, now);
        }
        for (token, revision) in progress.reads {
            leader.read_at(token, revision);
        }
    }

    fn tell_followers(&mut self, done: &[(Option<Token>, Done)]) {
        let Some((_, last)) = done.last() else {
            return;
        };
        let state = self.state.read().unwrap_or_else(PoisonError::into_inner);
        for follower in &mut self.followers {
            for (_, done) in done {
                follower.applied(&state, done);
            }
            follower.complete(&state, last.revision);
        }
    }

    fn refusal(&self, why: replica::NotLogged) -> Refusal {
        match why {
            replica::NotLogged::NotLeader { leader, term } => self.not_leader(leader, term),
            replica::NotLogged::Busy => {
                let detail = "more waits for the disks of the masters than is kept; come again";
                Refusal::busy(detail, Span::seconds(1))
            }
            replica::NotLogged::SpaceLow => {
                let detail = "DISK_FULL: the disk of this master's state directory is nearly \
                              full, so nothing new is logged; free space there";
                Refusal::busy(detail, DISK_FULL_AGAIN)
            }
            replica::NotLogged::TooLarge { bytes, limit } => {
                let fault = format!("{bytes} bytes when stored, at most {limit} are permitted");
                Refusal::field("", fault)
            }
            replica::NotLogged::ChangePending => {
                Refusal::busy("a change of the masters is on its way", Span::seconds(1))
            }
        }
    }

    /// Begins a term when this master leads and has applied everything before it; ends it when it
    /// leads no more.
    fn look_at_standing(&mut self, standing: Standing, now: Now) {
        let leads = standing.ready;
        let is_same = self
            .leader
            .as_ref()
            .is_some_and(|leader| leader.term() == standing.term);
        if leads && is_same {
            return;
        }
        if let Some(leader) = self.leader.take() {
            tracing::info!(term = leader.term(), "leads no more");
            let address = standing.leader.and_then(|node| self.peers.address(node));
            self.outputs.extend(leader.end(Leader {
                address: address.unwrap_or_default().to_owned(),
                term: standing.term,
            }));
        }
        if !leads {
            return;
        }
        tracing::info!(term = standing.term, "leads");
        let mut leader = {
            let state = self.state.read().unwrap_or_else(PoisonError::into_inner);
            let (mint, advertised) = (self.mint.fork(), self.advertised.clone());
            LeaderTerm::begin(standing.term, self.timing, mint, advertised, &state, now)
        };
        leader.know_masters(self.peers.addresses());
        self.leader = Some(leader);
        // Judged as those that come to a leader are. Whoever asked may have gone away, and may have
        // been told elsewhere that nothing was done.
        let held = std::mem::take(&mut self.held).into_iter();
        let held = held.map(|(_, event)| event);
        let is_left =
            |event: &Event| matches!(event, Event::Call { reply, .. } if reply.is_closed());
        let held = held.filter(|event| !is_left(event)).collect();
        self.take_events(held, now);
    }

    fn round(&mut self, now: Now) -> bool {
        let Some(leader) = &mut self.leader else {
            return false;
        };
        let state = self.state.read().unwrap_or_else(PoisonError::into_inner);
        leader.round(&state, now)
    }

    /// Looks at the applied state.
    pub fn read_state<T>(&self, look: impl FnOnce(&mete_state::State) -> T) -> T {
        look(&self.state.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// The applied state, shared with readers.
    #[must_use]
    pub fn shared_state(&self) -> SharedState {
        Arc::clone(&self.state)
    }

    /// The present term, if this master leads.
    #[must_use]
    pub fn leader(&self) -> Option<&LeaderTerm> {
        self.leader.as_ref()
    }

    /// The replica: standing, members, identity, snapshot.
    #[must_use]
    pub fn replica(&self) -> &Replica<StateMachine> {
        &self.replica
    }

    /// What clients are told to dial.
    #[must_use]
    pub fn advertised(&self) -> &str {
        &self.advertised
    }

    /// The highest level of commands that this master may agree to.
    #[must_use]
    pub fn level(&self) -> u32 {
        self.level
    }

    /// Counters since the process started.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// What both clocks showed at the last turn.
    #[must_use]
    pub fn now(&self) -> Now {
        let (at, monotonic) = self.clock.last.unwrap_or_default();
        Now { at, monotonic }
    }

    /// Times and rates.
    #[must_use]
    pub fn timing(&self) -> Timing {
        self.timing
    }
}

fn proposal((token, stamped): &(Token, Stamped)) -> Proposal {
    Proposal {
        token: *token,
        command: format::encode_command(stamped),
    }
}

#[cfg(test)]
mod tests;
