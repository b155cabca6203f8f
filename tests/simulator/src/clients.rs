//! Frameworks: scripted processes that keep the rules of the SDK.
//!
//! Calls are numbered, several are open at once, each is sent again under its number until it is
//! answered; the stream begins with a snapshot; statuses are acknowledged when they were handled. A
//! process that is told of a newer one stops. Beside their tasks they use the framework's store, so
//! that there is a history to judge.

use std::collections::{BTreeMap, BTreeSet};

use mete_broker::event::SubscribeRequest;
use mete_broker::request::{FrameworkAction, Refusal, Reply, Request};
use mete_model::{ClaimId, Code, FrameworkId, RolePath, RunId, Shape, Span, TaskPhase};
use mete_state::command::{FrameworkSettings, StoreDelete, StorePut};
use mete_state::{Caller, StoreVerdict, Verdict};

use crate::agenda::{MILLISECOND, SECOND, Time};
use crate::checker::linear::{Kind, Outcome};
use crate::network::Place;
use crate::random::Dice;
use crate::streams::Up;
use crate::variant::Variant;
use crate::world::{Answer, Happening, World};

/// The keys that frameworks write and read.
pub(crate) const KEYS: [&str; 3] = ["x", "y", "z"];

/// Open calls at the most.
const WINDOW: usize = 8;
/// A call without an answer is sent again after a time between these, in milliseconds.
const ANSWER_WITHIN: (u64, u64) = (150, 1_500);
/// A stream on which nothing was heard for so long is dead.
const SILENCE: Time = 4 * SECOND;

/// One process of a framework.
#[derive(Debug)]
pub(crate) struct Client {
    pub(crate) framework: usize,
    pub(crate) id: Option<FrameworkId>,
    pub(crate) incarnation: u64,
    /// False once it was fenced or has crashed.
    pub(crate) alive: bool,
    pub(super) dice: Dice,
    pub(super) stream: Option<u64>,
    /// The snapshot is complete.
    pub(crate) ready: bool,
    pub(super) heard: Time,
    pub(super) try_again: Time,
    pub(super) target: Option<u64>,
    next: u64,
    last_key: u64,
    open: BTreeMap<u64, Open>,
    /// Highest revision of anything that came in.
    revision: u64,
    /// Everything up to this revision came in; 0 = not even the snapshot.
    complete: u64,
    /// Which open call an answer is for.
    by_call: BTreeMap<u64, u64>,
    pub(super) demand_version: u64,
    pub(super) claims: BTreeMap<ClaimId, (Shape, u32)>,
    pub(super) last_claim: u64,
    pub(super) last_task: u64,
    pub(crate) runs: BTreeMap<RunId, Seen>,
    /// Runs that are over: a verdict that comes late makes none of them live again.
    pub(super) ended: BTreeSet<RunId>,
    /// What was last read or written of each key.
    known: [u64; KEYS.len()],
    paused_until: Time,
    /// Asks for its last tasks only.
    pub(crate) closing: bool,
    /// Its last tasks have numbers above this.
    pub(crate) closing_from: u64,
}

/// A run as the process knows it.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    pub(crate) sequence: u64,
    pub(crate) phase: TaskPhase,
    pub(crate) kill_asked: bool,
}

/// A call that is not answered.
#[derive(Clone, Debug)]
struct Open {
    number: u64,
    action: FrameworkAction,
    /// The operation in the history of the store.
    operation: Option<usize>,
    began: Time,
    /// The highest revision that had come in when the call was made: it is committed later.
    since: u64,
    due: Time,
    tries: u32,
}

impl Client {
    /// An event of this revision came in; 0 = it belongs to none.
    pub(super) fn heard_of(&mut self, revision: u64) {
        self.revision = self.revision.max(revision);
        // There may be more of the same revision, but none of an earlier one.
        self.complete = self.complete.max(revision.saturating_sub(1));
    }

    /// The snapshot is here, complete at this revision.
    pub(super) fn knows_all(&mut self, revision: u64) {
        self.revision = self.revision.max(revision);
        self.complete = self.complete.max(revision);
    }

    /// A snapshot of everything begins: what was known does not count.
    pub(super) fn begins_anew(&mut self) {
        self.runs.clear();
        (self.revision, self.complete) = (0, 0);
    }

    /// From which revision on changes are enough: below launches that are not answered, since
    /// nobody knows whether they are in the log.
    fn resume_revision(&self) -> u64 {
        let launches = self.open.values();
        let launches = launches.filter(|open| matches!(open.action, FrameworkAction::Accept(_)));
        let since = launches.map(|open| open.since);
        since.fold(self.complete, u64::min)
    }

    /// The run is one of the last tasks of this process.
    pub(crate) fn is_last(&self, run: &RunId) -> bool {
        let number = run
            .task
            .as_str()
            .strip_prefix(&format!("t{}-", self.incarnation));
        let number = number.and_then(|number| number.parse::<u64>().ok());
        self.closing && number.is_some_and(|number| number > self.closing_from)
    }
}

pub(crate) fn role(framework: usize) -> RolePath {
    let name = if framework == 0 { "first" } else { "second" };
    RolePath::new(name).unwrap_or_else(|_| unreachable!("a permitted role"))
}

impl World {
    /// Another process of the framework begins; those before it may go on.
    pub(crate) fn start_client(&mut self, framework: usize) -> usize {
        let client = self.clients.len();
        let dice = self.dice.fork(&format!("client {client}"));
        let now = self.now();
        self.clients.push(Client {
            framework,
            id: None,
            incarnation: 0,
            alive: true,
            dice,
            stream: None,
            ready: false,
            heard: 0,
            try_again: now,
            target: None,
            next: 1,
            last_key: 0,
            open: BTreeMap::new(),
            revision: 0,
            complete: 0,
            by_call: BTreeMap::new(),
            demand_version: 0,
            claims: BTreeMap::new(),
            last_claim: 0,
            last_task: 0,
            runs: BTreeMap::new(),
            ended: BTreeSet::new(),
            known: [0; KEYS.len()],
            paused_until: 0,
            closing: false,
            closing_from: 0,
        });
        self.say(|| format!("client {client} of framework {framework} begins"));
        self.agenda
            .after(200 * MILLISECOND, Happening::ClientTick { client });
        client
    }

    /// The process dies, or is told that it is superseded.
    pub(crate) fn end_client(&mut self, client: usize) {
        let Some(process) = self.clients.get_mut(client) else {
            return;
        };
        process.alive = false;
        let stream = process.stream.take();
        if let Some(stream) = stream {
            self.hang_up(stream);
        }
        self.say(|| format!("client {client} ends"));
    }

    pub(crate) fn pause_client(&mut self, client: usize, until: Time) {
        if let Some(process) = self.clients.get_mut(client) {
            process.paused_until = process.paused_until.max(until);
        }
    }

    pub(crate) fn client_tick(&mut self, client: usize) {
        let now = self.now();
        let Some(process) = self.clients.get_mut(client).filter(|it| it.alive) else {
            return;
        };
        let wait = process.dice.between(10, 90) * MILLISECOND;
        self.agenda.after(wait, Happening::ClientTick { client });
        let Some(process) = self.clients.get_mut(client) else {
            return;
        };
        if now < process.paused_until {
            return;
        }
        match process.stream {
            None => self.subscribe(client),
            Some(stream) if now.saturating_sub(process.heard) > SILENCE => {
                self.hang_up(stream);
                self.client_lost_stream(client, stream);
            }
            Some(_) => {}
        }
        self.send_due(client);
        let Some(process) = self.clients.get(client) else {
            return;
        };
        if process.ready && process.open.len() < WINDOW {
            self.play(client);
        }
    }

    fn subscribe(&mut self, client: usize) {
        let (now, masters) = (self.now(), self.known_masters());
        let Some(process) = self.clients.get_mut(client) else {
            return;
        };
        if now < process.try_again {
            return;
        }
        let target = process.target.or_else(|| process.dice.pick(&masters));
        let Some(target) = target else { return };
        let request = SubscribeRequest {
            principal: "local".to_owned(),
            name: World::framework_name(process.framework),
            incarnation: process.incarnation,
            resume_revision: process.resume_revision(),
            settings: FrameworkSettings {
                roles: vec![role(process.framework)],
                failover_timeout: Some(Span::days(7)),
                ..FrameworkSettings::default()
            },
        };
        process.heard = now;
        process.ready = false;
        let first = Up::Subscribe(Box::new(request));
        let stream = self.open_stream(Place::Client(client), 0, target, first);
        if let Some(process) = self.clients.get_mut(client) {
            process.stream = Some(stream);
        }
    }

    pub(crate) fn client_lost_stream(&mut self, client: usize, stream: u64) {
        let now = self.now();
        let Some(process) = self.clients.get_mut(client) else {
            return;
        };
        if process.stream != Some(stream) {
            return;
        }
        process.stream = None;
        process.ready = false;
        process.target = None;
        process.try_again = now + process.dice.between(50, 800) * MILLISECOND;
    }

    /// Begins a call.
    pub(super) fn ask(&mut self, client: usize, action: FrameworkAction, operation: Option<usize>) {
        let now = self.now();
        let unnumbered = self.variant == Some(Variant::CallsWithoutNumber);
        let Some(process) = self.clients.get_mut(client) else {
            return;
        };
        let is_write = matches!(action, FrameworkAction::WriteStore { .. });
        let is_soft = matches!(
            action,
            FrameworkAction::Acknowledge { .. } | FrameworkAction::Read
        );
        let is_numbered = !(is_soft || unnumbered && is_write);
        let number = if is_numbered { process.next } else { 0 };
        process.next += u64::from(is_numbered);
        process.last_key += 1;
        let open = Open {
            number,
            action,
            operation,
            began: now,
            since: process.revision,
            due: now,
            tries: 0,
        };
        let key = process.last_key;
        self.trace.say(now, || {
            format!(
                "client {client} asks {key}, number {number}: {:?}",
                open.action
            )
        });
        process.open.insert(key, open);
        self.send_due(client);
    }

    /// Sends every call whose time has come.
    fn send_due(&mut self, client: usize) {
        let (now, masters) = (self.now(), self.known_masters());
        let Some(process) = self.clients.get_mut(client).filter(|it| it.alive) else {
            return;
        };
        let Some(id) = process.id else { return };
        let numbers = process.open.values().map(|open| open.number);
        let oldest = numbers.filter(|number| *number > 0).min();
        let answered = oldest.unwrap_or(process.next) - 1;
        let mut requests = Vec::new();
        for (key, open) in &mut process.open {
            if now < open.due {
                continue;
            }
            open.tries += 1;
            let (least, most) = ANSWER_WITHIN;
            open.due = now + process.dice.between(least, most) * MILLISECOND;
            if open.tries > 1 && process.dice.chance(500) {
                process.target = None;
            }
            // A read may be tried with anybody: whoever does not lead has to say so.
            let astray = matches!(open.action, FrameworkAction::Read) && process.dice.chance(200);
            let target = process.target.filter(|_| !astray);
            let target = target.or_else(|| process.dice.pick(&masters));
            let caller = Caller {
                framework: id,
                incarnation: process.incarnation,
                call: open.number,
                answered: if open.number == 0 { 0 } else { answered },
            };
            let action = open.action.clone();
            requests.extend(target.map(|to| (*key, to, Request::Framework { caller, action })));
        }
        for (key, to, request) in requests {
            let call = self.send_call(Place::Client(client), to, request);
            self.say(|| format!("client {client} sends {call} (its {key}) to master {to}"));
            if let Some(process) = self.clients.get_mut(client) {
                process.by_call.insert(call, key);
            }
        }
    }

    pub(crate) fn client_answered(
        &mut self,
        client: usize,
        call: u64,
        answer: Result<Answer, Refusal>,
    ) {
        let now = self.now();
        let Some(process) = self.clients.get_mut(client).filter(|it| it.alive) else {
            return;
        };
        let Some(key) = process.by_call.remove(&call) else {
            return;
        };
        let Some(open) = process.open.get(&key).cloned() else {
            return;
        };
        self.trace.say(now, || {
            format!("client {client} hears of {key}: {answer:?}")
        });
        match answer {
            Ok(answer) => {
                process.open.remove(&key);
                self.succeeded(client, open, answer);
            }
            Err(refusal) => {
                let code = refusal.code();
                if let Some(leader) = &refusal.leader {
                    process.target = crate::masters::node_of(&leader.address);
                }
                if code.is_retryable() {
                    let wait = process.dice.between(10, 400) * MILLISECOND;
                    if let Some(open) = process.open.get_mut(&key) {
                        open.due = open.due.min(now + wait);
                    }
                    return;
                }
                process.open.remove(&key);
                if let Some(operation) = open.operation {
                    self.checkers.linear.refused(operation, now);
                }
                self.say(|| format!("client {client} is refused: {refusal}"));
                if matches!(code, Code::StaleIncarnation | Code::TornDown) {
                    self.end_client(client);
                }
            }
        }
    }

    fn succeeded(&mut self, client: usize, open: Open, answer: Answer) {
        let now = self.now();
        let Some(process) = self.clients.get_mut(client) else {
            return;
        };
        let (framework, incarnation) = (process.framework, process.incarnation);
        let mut found = Vec::new();
        let fencing = &mut self.checkers.fencing;
        found.extend(fencing.succeeded(framework, incarnation, open.began, now));
        if let Reply::Applied { revision, verdict } = &answer.reply {
            let caller = (process.id, incarnation, open.number);
            let history = &mut self.checkers.history;
            // What is not there can be deleted again and again without a trace in the log.
            let writes = !matches!(
                &open.action,
                FrameworkAction::WriteStore { puts, .. } if puts.is_empty()
            );
            history.acknowledged(caller, *revision, writes.then_some(verdict));
        }
        match (&answer.reply, open.operation) {
            (Reply::ReadAt { .. }, Some(operation)) => {
                if let FrameworkAction::Read = open.action
                    && let Some(key) = self.checkers.linear.key(operation)
                {
                    let value = answer.values.get(key).copied().flatten();
                    process.known[key] = value.map_or(0, |(_, revision)| revision);
                    let outcome = Outcome::Read(value);
                    self.checkers.linear.completed(operation, outcome, now);
                }
            }
            (Reply::Applied { revision, verdict }, Some(operation)) => {
                let is_written = *verdict == Verdict::StoreWritten(StoreVerdict::Written);
                let outcome = if is_written {
                    Outcome::Written(*revision)
                } else {
                    Outcome::Conflict
                };
                if let (Some(key), Outcome::Written(revision)) =
                    (self.checkers.linear.key(operation), &outcome)
                {
                    process.known[key] = *revision;
                }
                self.checkers.linear.completed(operation, outcome, now);
            }
            (Reply::Applied { verdict, .. }, None) => {
                if let (Verdict::Launched(verdicts), FrameworkAction::Accept(accept)) =
                    (verdict, &open.action)
                {
                    self.launched(client, accept, verdicts);
                }
            }
            (Reply::ReadAt { .. } | Reply::Offers { .. } | Reply::HandedOver { .. }, _) => {}
        }
        for detail in found {
            self.violated("fencing", detail);
        }
    }

    /// One operation on the framework's store.
    pub(super) fn use_store(&mut self, client: usize) {
        let now = self.now();
        let Some(process) = self.clients.get_mut(client) else {
            return;
        };
        let at = process.dice.index(KEYS.len());
        let key = KEYS[at].as_bytes().to_vec();
        let framework = process.framework;
        let draw = process.dice.below(100);
        let known = process.known[at];
        let linear = &mut self.checkers.linear;
        let (kind, action) = if draw < 40 {
            (Kind::Read, FrameworkAction::Read)
        } else if draw < 48 {
            let expected = None;
            let deletes = vec![StoreDelete { key, expected }];
            let puts = Vec::new();
            (Kind::Delete, FrameworkAction::WriteStore { puts, deletes })
        } else {
            let expected = (draw < 65 && known > 0).then_some(known);
            let value = linear.next_value().to_be_bytes().to_vec();
            let puts = vec![StorePut {
                key,
                value,
                expected,
            }];
            let deletes = Vec::new();
            (
                Kind::Write { expected },
                FrameworkAction::WriteStore { puts, deletes },
            )
        };
        let operation = linear.invoked((framework, at), kind, now);
        self.ask(client, action, Some(operation));
    }
}
