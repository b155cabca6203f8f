//! The world: everything in it, and what happens next.
//!
//! One thread. Each [`Happening`] is handed to the room it belongs to (`masters`, `agents`,
//! `clients`, `operator`, `faults`), which may ask for more to happen. The checkers watch; they
//! never act.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use mete_broker::config::Timing;
use mete_broker::replica::Outgoing;
use mete_broker::request::{Refusal, Reply, Request};
use mete_model::{Span, Timestamp};

use crate::agenda::{Agenda, MILLISECOND, SECOND, Time};
use crate::agents::{AgentProcess, Heard, HostStep};
use crate::checker::Checkers;
use crate::clients::Client;
use crate::faults::Fault;
use crate::masters::MasterProcess;
use crate::network::{Network, Place, Stream};
use crate::operator::Operator;
use crate::peers::Sending;
use crate::plan::Plan;
use crate::random::{Dice, Digest};
use crate::streams::{Down, Up};
use crate::variant::Variant;
use crate::{Options, Violation};

/// What the wall clock shows when a world begins: 2026-01-01.
pub(crate) const START: Timestamp = Timestamp(1_767_225_600_000);

/// All of one simulated cluster.
pub(crate) const CLUSTER: [u8; 16] = *b"a simulated one!";

/// Shorter than the shipped ones, in the same proportions, so that a minute shows much.
pub(crate) fn timing() -> Timing {
    Timing {
        offer_lifetime: Span::seconds(3),
        heartbeat: Span::seconds(1),
        beacon: Span::seconds(1),
        silence: Span::seconds(5),
        full_round: Span(500),
        ..Timing::default()
    }
}

/// One thing that happens.
#[derive(Debug)]
pub(crate) enum Happening {
    /// A tick of a master's process is due.
    MasterTick { node: u64, life: u64 },
    /// A master that was busy or stopped may go on.
    MasterWakes { node: u64, life: u64 },
    /// A process starts on the disk that is there.
    MasterStarts { node: u64 },
    /// A message or snapshot leaves the process that made it.
    Leaves {
        from: u64,
        life: u64,
        outgoing: Outgoing,
    },
    /// A frame arrives.
    Frame { from: u64, to: u64, bytes: Vec<u8> },
    /// The content of a snapshot has arrived, or the connection broke.
    TransferEnds(Box<crate::peers::TransferOnTheWay>),
    /// The sender learns how the transfer ended.
    TransferReported { sending: Sending, finished: bool },
    /// A master says who it is to the others.
    Introduces { node: u64, life: u64 },
    /// Something arrives at a master on a stream.
    Up { stream: u64, what: Up },
    /// Something arrives at a client's end of a stream.
    Down { stream: u64, what: Down },
    /// The client's end finds out that a stream is broken.
    ClientNotices { stream: u64 },
    /// The master's end does.
    MasterNotices { stream: u64 },
    /// A call arrives.
    Call {
        from: Place,
        call: u64,
        to: u64,
        request: Box<Request>,
    },
    /// Its answer arrives.
    Answer {
        to: Place,
        call: u64,
        answer: Box<Result<Answer, Refusal>>,
    },
    /// The loop of an agent goes round.
    AgentTick { agent: usize, life: u64 },
    /// A stopped agent goes on.
    AgentWakes { agent: usize, life: u64 },
    /// An agent process starts.
    AgentStarts { agent: usize },
    /// Something of a run happens on a machine.
    Host {
        agent: usize,
        boot: u64,
        step: HostStep,
    },
    /// Something reaches an agent's loop at last.
    AgentHears {
        agent: usize,
        life: u64,
        heard: Heard,
    },
    /// A framework's process does what its script says.
    ClientTick { client: usize },
    /// The operator looks around.
    OperatorTick,
    /// Something goes wrong.
    Goes(Fault),
    /// The next thing to go wrong is chosen.
    ChooseFault,
    /// The checkers look at everything.
    Look,
}

/// What a call gave, as its caller sees it.
#[derive(Clone, Debug)]
pub(crate) struct Answer {
    pub(crate) reply: Reply,
    /// For a read: what the store's keys hold, in the order of [`crate::clients::KEYS`].
    pub(crate) values: Vec<Option<(u64, u64)>>,
}

/// Lines of what happened, when somebody wants them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Trace(Option<Arc<Mutex<Vec<String>>>>);

impl Trace {
    pub(crate) fn new(wanted: bool) -> Self {
        Self(wanted.then(Arc::default))
    }

    pub(crate) fn lines(&self) -> Vec<String> {
        let lines = self.0.as_ref();
        lines.map_or_else(Vec::new, |lines| {
            lines.lock().unwrap_or_else(PoisonError::into_inner).clone()
        })
    }

    pub(crate) fn say(&self, now: Time, line: impl FnOnce() -> String) {
        if let Some(lines) = &self.0 {
            let line = format!("{:>10} {}", millis(now), line());
            let mut lines = lines.lock().unwrap_or_else(PoisonError::into_inner);
            lines.push(line);
        }
    }
}

fn millis(time: Time) -> String {
    format!("{}.{:03}", time / MILLISECOND, time % MILLISECOND)
}

/// One simulated cluster with everybody around it.
pub(crate) struct World {
    pub(crate) agenda: Agenda<Happening>,
    pub(crate) dice: Dice,
    pub(crate) plan: Plan,
    pub(crate) variant: Option<Variant>,
    pub(crate) network: Network,
    pub(crate) masters: BTreeMap<u64, MasterProcess>,
    pub(crate) agents: Vec<AgentProcess>,
    pub(crate) clients: Vec<Client>,
    pub(crate) operator: Operator,
    pub(crate) streams: BTreeMap<u64, Stream>,
    pub(crate) last_stream: u64,
    pub(crate) last_call: u64,
    pub(crate) checkers: Checkers,
    pub(crate) trace: Trace,
    pub(crate) digest: Digest,
    /// Nothing goes wrong any more.
    pub(crate) quiet: bool,
    pub(crate) happened: u64,
}

impl World {
    pub(crate) fn new(seed: u64, options: &Options, trace: Trace) -> Self {
        let dice = Dice::new(seed);
        let plan = Plan::new(&mut dice.fork("plan"));
        let mut world = Self {
            agenda: Agenda::new(),
            network: Network::new(dice.fork("network")),
            operator: Operator::new(dice.fork("operator")),
            plan,
            variant: options.variant,
            masters: BTreeMap::new(),
            agents: Vec::new(),
            clients: Vec::new(),
            streams: BTreeMap::new(),
            last_stream: 0,
            last_call: 0,
            checkers: Checkers::default(),
            trace,
            digest: Digest::default(),
            quiet: false,
            happened: 0,
            dice,
        };
        world.furnish();
        world
    }

    fn furnish(&mut self) {
        let founders: Vec<u64> = (1..=self.plan.masters).collect();
        for node in &founders {
            self.found_master(*node, founders.clone());
        }
        for agent in 0..self.plan.agents {
            self.add_agent(agent);
        }
        for framework in 0..self.plan.frameworks {
            self.start_client(framework);
        }
        self.agenda.after(50 * MILLISECOND, Happening::OperatorTick);
        self.agenda.after(2 * SECOND, Happening::ChooseFault);
        self.agenda.after(300 * MILLISECOND, Happening::Look);
    }

    pub(crate) fn now(&self) -> Time {
        self.agenda.now()
    }

    /// The clock that agents and tasks see.
    pub(crate) fn wall(&self) -> Timestamp {
        START.after(Span(self.now() / MILLISECOND))
    }

    pub(crate) fn say(&self, line: impl FnOnce() -> String) {
        self.trace.say(self.now(), line);
    }

    pub(crate) fn violated(&mut self, checker: &'static str, detail: String) {
        self.say(|| format!("VIOLATION {checker}: {detail}"));
        self.checkers.found.push(Violation { checker, detail });
    }

    /// Lets things happen until this moment, or until a checker has found something.
    pub(crate) fn run_until(&mut self, end: Time) {
        while self.checkers.found.is_empty() {
            let Some(what) = self.agenda.pop() else {
                return;
            };
            if self.now() > end {
                // It still happens, a little late.
                self.agenda.at(self.now(), what);
                return;
            }
            self.happened += 1;
            self.digest.add(self.now());
            self.happen(what);
        }
    }

    fn happen(&mut self, what: Happening) {
        match what {
            Happening::MasterTick { node, life } => self.master_tick(node, life),
            Happening::MasterWakes { node, life } => self.master_wakes(node, life),
            Happening::MasterStarts { node } => self.start_master(node),
            Happening::Leaves {
                from,
                life,
                outgoing,
            } => self.leaves(from, life, outgoing),
            Happening::Frame { from, to, bytes } => self.frame(from, to, bytes),
            Happening::TransferEnds(transfer) => self.transfer_ends(*transfer),
            Happening::TransferReported { sending, finished } => {
                self.transfer_reported(sending, finished);
            }
            Happening::Introduces { node, life } => self.introduces(node, life),
            Happening::Up { stream, what } => self.up(stream, what),
            Happening::Down { stream, what } => self.down(stream, what),
            Happening::ClientNotices { stream } => self.client_notices(stream),
            Happening::MasterNotices { stream } => self.master_notices(stream),
            Happening::Call {
                from,
                call,
                to,
                request,
            } => self.call_arrives(from, call, to, *request),
            Happening::Answer { to, call, answer } => self.answer_arrives(to, call, *answer),
            Happening::AgentTick { agent, life } => self.agent_tick(agent, life),
            Happening::AgentWakes { agent, life } => self.agent_wakes(agent, life),
            Happening::AgentStarts { agent } => self.start_agent(agent),
            Happening::Host { agent, boot, step } => self.host_step(agent, boot, step),
            Happening::AgentHears { agent, life, heard } => self.agent_hears(agent, life, heard),
            Happening::ClientTick { client } => self.client_tick(client),
            Happening::OperatorTick => self.operator_tick(),
            Happening::Goes(fault) => self.goes(fault),
            Happening::ChooseFault => self.choose_fault(),
            Happening::Look => {
                self.look();
                self.agenda.after(300 * MILLISECOND, Happening::Look);
            }
        }
    }

    fn answer_arrives(&mut self, to: Place, call: u64, answer: Result<Answer, Refusal>) {
        match to {
            Place::Client(client) => self.client_answered(client, call, answer),
            Place::Operator => self.operator_answered(call, answer),
            Place::Master(_) | Place::Agent(_) => {}
        }
    }

    /// Sends a call; the answer comes as a happening, or never.
    pub(crate) fn send_call(&mut self, from: Place, to: u64, request: Request) -> u64 {
        self.last_call += 1;
        let call = self.last_call;
        let (place, now) = (Place::Master(to), self.now());
        for arrival in self.network.arrivals(from, place, now) {
            let request = Box::new(request.clone());
            let arrives = Happening::Call {
                from,
                call,
                to,
                request,
            };
            self.agenda.at(arrival, arrives);
        }
        call
    }

    /// Masters that a client may try: those that nobody has taken out.
    pub(crate) fn known_masters(&self) -> Vec<u64> {
        let known = self.masters.iter().filter(|(_, master)| !master.retired);
        known.map(|(node, _)| *node).collect()
    }

    /// The master that leads, by the highest term, as an outsider can see it.
    pub(crate) fn leader(&self) -> Option<u64> {
        let leading = self.masters.iter().filter_map(|(node, process)| {
            let standing = process.running.as_ref()?.master.replica().standing();
            standing.ready.then_some((standing.term, *node))
        });
        leading.max().map(|(_, node)| node)
    }

    /// The name that a framework subscribes under.
    pub(crate) fn framework_name(framework: usize) -> String {
        format!("framework-{framework}")
    }
}
