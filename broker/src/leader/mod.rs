//! What exists only while leading; dropped on step-down, with every offer in it.
//!
//! The master's loop hands everything that happened to a [`LeaderTerm`], together with the state as
//! it is, and takes out what is to be logged ([`LeaderTerm::take_work`]), what is to be answered,
//! and what goes into the outboxes of streams. It promises: nothing is answered as done before it
//! was applied; every caller is answered once; whatever a stream did not take is found again in
//! `State::owed`. It does not know the replica, nor how anything is stored or sent.
//!
//! ```text
//! calls.rs accept.rs preflight.rs order.rs   from a call to a command, or to an answer
//! agents.rs presence.rs replacements.rs      agents' streams, and who is away for too long
//! streams.rs opening.rs                      frameworks' streams
//! applied.rs dispatch.rs                     from what was applied to answers and messages
//! view.rs round.rs offer_book.rs declines.rs reasons.rs   who is offered what, and why not
//! ```

pub mod accept;
mod agents;
mod applied;
mod calls;
pub mod declines;
pub mod dispatch;
pub mod offer_book;
pub mod opening;
pub mod order;
pub mod preflight;
pub mod presence;
pub mod reasons;
pub mod replacements;
mod round;
mod streams;
pub mod view;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use mete_model::{AgentId, FrameworkId, Timestamp};
use mete_state::{Command, Stamped, State};

use crate::config::Timing;
use crate::event::{Event, LinkId, Monotonic, StreamId};
use crate::mint::Mint;
use crate::output::Output;
use crate::request::{Leader, Refusal, Request};

use agents::Link;
use applied::Waiting;
use calls::Orders;
use declines::Declines;
use offer_book::OfferBook;
use presence::Presence;
use reasons::Reasons;
use replacements::Replacements;
use round::Rounds;
use streams::Streams;
use view::{Facts, Kept, Stale};

/// The caller's name for something on its way through the log.
pub type Token = u64;

/// What both clocks show.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Now {
    /// The wall clock, for stamps.
    pub at: Timestamp,
    /// The clock that never jumps, for deadlines.
    pub monotonic: Monotonic,
}

/// Counters since the term began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Tasks whose launch was committed.
    pub launches: u64,
    /// Tasks whose launch was refused, before or at the commit.
    pub launches_refused: u64,
    /// Statuses committed.
    pub statuses: u64,
    /// Acknowledgements committed.
    pub acknowledged: u64,
    /// Calls of frameworks and operators.
    pub calls: u64,
    /// Calls of which nothing was done.
    pub calls_refused: u64,
    /// Rounds of the allocator.
    pub rounds: u64,
    /// Of these, rounds that looked at everything.
    pub full_rounds: u64,
    /// Agents looked at in all rounds.
    pub agents_examined: u64,
    /// Inputs that made a check panic: refused, never logged.
    pub quarantined: u64,
    /// Messages that found no room in an outbox.
    pub outbox_overflows: u64,
}

/// What a term wants of the loop.
#[derive(Debug, Default)]
pub struct Work {
    /// To be logged, in this order.
    pub commands: Vec<(Token, Stamped)>,
    /// Reads that want a linearizable point.
    pub reads: Vec<Token>,
}

/// One term of leading.
#[derive(Debug)]
pub struct LeaderTerm {
    term: u64,
    began: Now,
    timing: Timing,
    mint: Box<dyn Mint>,
    book: OfferBook,
    presence: Presence,
    declines: Declines,
    reasons: Reasons,
    kept: Kept,
    stale: Stale,
    rounds: Rounds,
    links: BTreeMap<LinkId, Link>,
    /// When each admitted stream is due its next beacon: the time between two is the same for all,
    /// so the first in the row is the first that is due, and a turn looks at no other.
    beacons: VecDeque<(Monotonic, LinkId)>,
    /// Links whose statuses came in this turn, in order of arrival.
    status_links: Vec<(LinkId, Now)>,
    /// What clients are told to dial.
    advertised: String,
    /// Where all masters are dialled, this one included.
    masters: Vec<String>,
    streams: Streams,
    /// Agents that were awaited and came back, with the state's revision at that time.
    returned: BTreeMap<AgentId, u64>,
    orders: Orders,
    waiting: BTreeMap<Token, Waiting>,
    last_token: Token,
    work: Work,
    outputs: Vec<Output>,
    /// Commands of time's on their way: not asked for again until they have applied.
    due_on_the_way: usize,
    /// Commands of the loop's own on their way.
    own_on_the_way: usize,
    due_again: Monotonic,
    replacements: Replacements,
    slow_again: Monotonic,
    counters: Counters,
}

impl LeaderTerm {
    /// Takes over: everything known is awaited, nothing is offered yet.
    #[must_use]
    pub fn begin(
        term: u64,
        timing: Timing,
        mint: Box<dyn Mint>,
        advertised: String,
        state: &State,
        now: Now,
    ) -> Self {
        let book = OfferBook::new(term, timing.offer_lifetime);
        let declines = Declines::default();
        let known = state
            .agents()
            .filter(|agent| agent.condition == mete_state::AgentCondition::Ready)
            .map(|agent| agent.id);
        let presence = Presence::new(timing.presence(), now.monotonic, known);
        let kept = Kept::build(Facts {
            state,
            book: &book,
            declines: &declines,
            agent_is_here: &|_| false,
            framework_is_here: &|_| false,
        });
        Self {
            term,
            began: now,
            timing,
            mint,
            book,
            presence,
            declines,
            reasons: Reasons::default(),
            kept,
            stale: Stale::default(),
            rounds: Rounds::default(),
            links: BTreeMap::new(),
            beacons: VecDeque::new(),
            status_links: Vec::new(),
            advertised,
            masters: Vec::new(),
            streams: Streams::begin(state, timing, now),
            returned: BTreeMap::new(),
            orders: Orders::default(),
            waiting: BTreeMap::new(),
            // Tokens of an earlier term may still come back: never the same twice.
            last_token: term << 32,
            work: Work::default(),
            outputs: Vec::new(),
            due_on_the_way: 0,
            own_on_the_way: 0,
            due_again: now.monotonic,
            replacements: Replacements::begin(now, timing.silence.0),
            slow_again: now.monotonic,
            counters: Counters::default(),
        }
    }

    /// Where all masters are dialled: what agents and frameworks are told when they come.
    pub(crate) fn know_masters(&mut self, addresses: Vec<String>) {
        self.masters = addresses;
    }

    /// Takes one event in.
    pub fn take(&mut self, event: Event, state: &State, now: Now) {
        match event {
            Event::Call { request, reply } => self.call(request, reply, state, now),
            Event::AgentHello {
                link,
                hello,
                outbox,
            } => self.hello(link, *hello, outbox, state, now),
            Event::AgentStatuses { link, statuses } => self.statuses(link, statuses, now),
            Event::AgentBeacon { link, progress } => self.beacon(link, progress, now),
            Event::AgentInventory { link, inventory } => {
                self.inventory(link, *inventory, state, now);
            }
            Event::AgentDrained { link } => self.agent_drained(link, state),
            Event::AgentClosed { link } => self.agent_closed(link, now),
            Event::Subscribe {
                stream,
                request,
                outbox,
                reply,
            } => self.subscribe(stream, *request, outbox, reply, state, now),
            Event::StreamDrained { stream } => self.stream_drained(stream, state),
            Event::StreamClosed { stream } => self.stream_closed(stream, state, now),
            // The loop's own.
            Event::Peer(_) | Event::Look(_) | Event::Stop => {}
        }
    }

    /// Logs something that the loop itself wants, unless it changes nothing or one such thing is on
    /// its way.
    pub fn log_own(&mut self, command: Command, state: &State, now: Now) {
        if self.own_on_the_way > 0 {
            return;
        }
        match self.check(state, command, now) {
            (command, Ok(mete_state::Preview::Change)) => {
                self.own_on_the_way = self.own_on_the_way.saturating_add(1);
                self.log(command, now, Waiting::Own);
            }
            (_, Ok(_)) => {}
            (command, Err(refusal)) => tracing::debug!(?command, %refusal, "not logged"),
        }
    }

    /// Does what time alone makes necessary.
    pub fn on_time(&mut self, state: &State, now: Now) {
        self.expire_offers(state, now);
        self.declines.lapse(now.monotonic);
        self.refuse_gaps(state, now);
        self.send_heartbeats(state, now);
        if now.monotonic >= self.slow_again {
            self.slow_again = now.monotonic.after(self.timing.slow_turn.0);
            self.declare_unreachable(state, now);
            self.disconnect_awaited(state, now);
        }
        self.log_what_is_due(state, now);
        self.permit_replacements(state, now);
    }

    /// What is to be logged and read, in order.
    pub fn take_work(&mut self) -> Work {
        self.flush_statuses();
        std::mem::take(&mut self.work)
    }

    /// Says whether something is to be logged or read.
    #[must_use]
    pub fn has_work(&self) -> bool {
        !self.work.commands.is_empty()
            || !self.work.reads.is_empty()
            || !self.status_links.is_empty()
    }

    /// What is to be answered.
    pub fn take_outputs(&mut self) -> Vec<Output> {
        std::mem::take(&mut self.outputs)
    }

    /// Ends the term: every caller and every stream is told, nothing is left waiting.
    pub fn end(mut self, leader: Leader) -> Vec<Output> {
        let why = Refusal {
            leader: Some(leader.clone()),
            ..Refusal::new(
                mete_model::Code::NotLeader,
                "this master does not lead any more",
            )
        };
        for (_, waiting) in std::mem::take(&mut self.waiting) {
            self.answer_unknown(waiting, &why);
        }
        self.end_orders();
        for link in self.links.values() {
            link.end(&why);
        }
        self.streams.end_all(&why);
        self.outputs
    }

    /// Logs a command; what becomes of it is known by the token.
    fn log(&mut self, command: Command, now: Now, waiting: Waiting) -> Token {
        let token = self.next_token();
        self.waiting.insert(token, waiting);
        let stamped = Stamped {
            at: now.at,
            command,
        };
        self.work.commands.push((token, stamped));
        token
    }

    /// A token that no other thing of this process has.
    pub(crate) fn next_token(&mut self) -> Token {
        self.last_token = self.last_token.saturating_add(1);
        self.last_token
    }

    fn log_what_is_due(&mut self, state: &State, now: Now) {
        if self.due_on_the_way > 0 || now.monotonic < self.due_again {
            return;
        }
        self.due_again = now.monotonic.after(self.timing.due_turn.0);
        for command in state.due(now.at) {
            self.due_on_the_way = self.due_on_the_way.saturating_add(1);
            self.log(command, now, Waiting::Due);
        }
    }

    /// The term's number.
    #[must_use]
    pub fn term(&self) -> u64 {
        self.term
    }

    /// When it began.
    #[must_use]
    pub fn began(&self) -> Now {
        self.began
    }

    /// What is out.
    #[must_use]
    pub fn book(&self) -> &OfferBook {
        &self.book
    }

    /// What was declined.
    #[must_use]
    pub fn declines(&self) -> &Declines {
        &self.declines
    }

    /// Why claims wait.
    #[must_use]
    pub fn reasons(&self) -> &Reasons {
        &self.reasons
    }

    /// What the allocator sees.
    #[must_use]
    pub fn view(&self) -> &mete_allocator::View {
        self.kept.view()
    }

    /// Counters since the term began.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// The agent's stream is open.
    #[must_use]
    pub fn agent_is_here(&self, agent: AgentId) -> bool {
        self.presence.link(agent).is_some()
    }

    /// The agent is known as ready and not back since this leader took over.
    #[must_use]
    pub fn agent_is_recovering(&self, agent: AgentId) -> bool {
        self.presence.is_awaited(agent)
    }

    /// Agents known as ready and not back since this leader took over.
    pub fn recovering_agents(&self) -> impl Iterator<Item = AgentId> {
        self.presence.awaited()
    }

    /// The framework's stream is open.
    #[must_use]
    pub fn framework_is_here(&self, framework: FrameworkId) -> bool {
        self.streams.is_here(framework)
    }
}

/// Something that waits for a leader outside of any term.
pub(crate) fn refuse_event(event: Event, why: &Refusal) -> Option<Output> {
    match event {
        Event::Call { reply, request } => {
            // What was never looked at was never done.
            let _: Request = request;
            Some(Output::Reply {
                to: reply,
                answer: Err(why.clone()),
            })
        }
        Event::Subscribe { reply, .. } => Some(Output::Subscribed {
            to: reply,
            answer: Err(why.clone()),
        }),
        Event::AgentHello { outbox, .. } => {
            let outbox: Arc<crate::session::agent::AgentOutbox> = outbox;
            agents::end_outbox(&outbox, why);
            None
        }
        Event::AgentStatuses { .. }
        | Event::AgentBeacon { .. }
        | Event::AgentInventory { .. }
        | Event::AgentDrained { .. }
        | Event::AgentClosed { .. }
        | Event::StreamDrained { .. }
        | Event::StreamClosed { .. }
        | Event::Peer(_)
        | Event::Look(_)
        | Event::Stop => None,
    }
}

/// Says whether the event waits for an answer, so that it may be held until there is a leader.
#[must_use]
pub(crate) fn may_be_held(event: &Event) -> bool {
    match event {
        Event::Call { .. } | Event::Subscribe { .. } | Event::AgentHello { .. } => true,
        Event::AgentStatuses { .. }
        | Event::AgentBeacon { .. }
        | Event::AgentInventory { .. }
        | Event::AgentDrained { .. }
        | Event::AgentClosed { .. }
        | Event::StreamDrained { .. }
        | Event::StreamClosed { .. }
        | Event::Peer(_)
        | Event::Look(_)
        | Event::Stop => false,
    }
}

/// The stream's number, for logs.
impl std::fmt::Display for StreamId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "s-{}", self.0)
    }
}
