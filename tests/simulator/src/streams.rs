//! Streams of agents and frameworks to masters, and single calls: what the services around the loop
//! do with them, without a server.

use std::sync::Arc;

use mete_broker::event::{Event, LinkId, StreamId, SubscribeRequest};
use mete_broker::request::{FrameworkAction, Refusal, Reply, Request};
use mete_broker::session::OUTBOX_BYTES;
use mete_broker::session::agent::AgentQueue;
use mete_broker::session::framework::FrameworkQueue;
use mete_broker::session::outbox::{Listener, Outbox as Queued, Popped, Queue};
use mete_model::{FrameworkId, Inventory, Status};
use mete_proto::agent::v1::master_message;
use mete_proto::framework::v1 as wire;
use mete_state::command::AdmitAgent;
use tokio::sync::oneshot;

use crate::agenda::MILLISECOND;
use crate::clients::KEYS;
use crate::network::{Outbox, Place, Stream};
use crate::variant::Variant;
use crate::world::{Answer, Happening, World};

/// From a client's end to a master.
#[derive(Clone, Debug)]
pub(crate) enum Up {
    Hello(Box<AdmitAgent>),
    Statuses(Vec<(FrameworkId, Status)>),
    Inventory(Box<Inventory>),
    Beacon(u64),
    Subscribe(Box<SubscribeRequest>),
}

/// From a master to a client's end.
#[derive(Clone, Debug)]
pub(crate) enum Down {
    Agent(Box<master_message::Message>),
    Framework(Box<wire::Event>),
    Subscribed(Result<FrameworkId, Box<Refusal>>),
    End,
}

struct Nobody;

impl Listener for Nobody {
    fn drained(&self) {}
    fn closed(&self) {}
}

impl World {
    /// Opens a stream; its first message is on its way.
    pub(crate) fn open_stream(&mut self, client: Place, life: u64, master: u64, first: Up) -> u64 {
        self.last_stream += 1;
        let id = self.last_stream;
        let outbox = if matches!(first, Up::Hello(_)) {
            Outbox::Agent(Queued::new(AgentQueue::new(OUTBOX_BYTES)))
        } else {
            Outbox::Framework(Queued::new(FrameworkQueue::new(OUTBOX_BYTES)))
        };
        let master_life = self.masters.get(&master).map_or(0, |process| process.life);
        let stream = Stream {
            client,
            client_life: life,
            master,
            master_life,
            outbox,
            broken: false,
            known: false,
            last_up: 0,
            last_down: 0,
        };
        self.streams.insert(id, stream);
        if self.is_life(master, master_life) {
            self.send_up(id, first);
        } else {
            self.break_stream(id);
        }
        id
    }

    /// Sends from the client's end.
    pub(crate) fn send_up(&mut self, id: u64, what: Up) {
        let now = self.now();
        let delay = self.network.delay();
        let Some(stream) = self.streams.get_mut(&id).filter(|stream| !stream.broken) else {
            return;
        };
        let ways = (stream.client, Place::Master(stream.master));
        if !self.network.reaches(ways.0, ways.1) {
            self.break_stream(id);
            return;
        }
        let at = (now + delay).max(stream.last_up + 1);
        stream.last_up = at;
        self.agenda.at(at, Happening::Up { stream: id, what });
    }

    fn send_down(&mut self, id: u64, what: Down) {
        let now = self.now();
        let delay = self.network.delay();
        let reordered = self.variant == Some(Variant::StreamReordered)
            && is_status(&what)
            && self.dice.chance(300);
        let Some(stream) = self.streams.get_mut(&id).filter(|stream| !stream.broken) else {
            return;
        };
        let ways = (Place::Master(stream.master), stream.client);
        if !self.network.reaches(ways.0, ways.1) {
            self.break_stream(id);
            return;
        }
        let mut at = (now + delay).max(stream.last_down + 1);
        if reordered {
            at += 300 * MILLISECOND;
        } else {
            stream.last_down = at;
        }
        self.agenda.at(at, Happening::Down { stream: id, what });
    }

    /// The stream carries nothing any more; both ends find out in time.
    pub(crate) fn break_stream(&mut self, id: u64) {
        let (client, master) = (self.network.notice(), self.network.notice());
        let Some(stream) = self.streams.get_mut(&id).filter(|stream| !stream.broken) else {
            return;
        };
        stream.broken = true;
        self.agenda
            .after(client, Happening::ClientNotices { stream: id });
        self.agenda
            .after(master, Happening::MasterNotices { stream: id });
    }

    /// The client's end hangs up.
    pub(crate) fn hang_up(&mut self, id: u64) {
        let delay = self.network.delay();
        if let Some(stream) = self.streams.get_mut(&id).filter(|stream| !stream.broken) {
            stream.broken = true;
            self.agenda
                .after(delay, Happening::MasterNotices { stream: id });
        }
    }

    pub(crate) fn client_notices(&mut self, id: u64) {
        let Some(stream) = self.streams.get(&id) else {
            return;
        };
        match (stream.client, stream.client_life) {
            (Place::Agent(agent), life) => self.agent_lost_stream(agent, life, id),
            (Place::Client(client), _) => self.client_lost_stream(client, id),
            (Place::Master(_) | Place::Operator, _) => {}
        }
    }

    pub(crate) fn master_notices(&mut self, id: u64) {
        let Some(stream) = self.streams.get(&id) else {
            return;
        };
        // Whoever reads an outbox is gone with its stream.
        match &stream.outbox {
            Outbox::Agent(outbox) => drop(outbox.reader(Arc::new(Nobody))),
            Outbox::Framework(outbox) => drop(outbox.reader(Arc::new(Nobody))),
        }
        let (node, life, known) = (stream.master, stream.master_life, stream.known);
        if !known || !self.is_life(node, life) {
            return;
        }
        let event = match &stream.outbox {
            Outbox::Agent(_) => Event::AgentClosed { link: LinkId(id) },
            Outbox::Framework(_) => Event::StreamClosed {
                stream: StreamId(id),
            },
        };
        self.give(node, event);
    }

    pub(crate) fn up(&mut self, id: u64, what: Up) {
        let Some(stream) = self.streams.get_mut(&id).filter(|stream| !stream.broken) else {
            return;
        };
        let (node, life) = (stream.master, stream.master_life);
        let link = LinkId(id);
        let event = match (what, &stream.outbox) {
            (Up::Hello(hello), Outbox::Agent(outbox)) => Event::AgentHello {
                link,
                hello,
                outbox: Arc::clone(outbox),
            },
            (Up::Statuses(statuses), _) => Event::AgentStatuses { link, statuses },
            (Up::Inventory(inventory), _) => Event::AgentInventory { link, inventory },
            (Up::Beacon(progress), _) => Event::AgentBeacon { link, progress },
            (Up::Subscribe(request), Outbox::Framework(outbox)) => {
                let outbox = Arc::clone(outbox);
                let (reply, answer) = oneshot::channel();
                if let Some(running) = self.running(node) {
                    running.subscribing.insert(id, answer);
                }
                Event::Subscribe {
                    stream: StreamId(id),
                    request,
                    outbox,
                    reply,
                }
            }
            (Up::Hello(_), Outbox::Framework(_)) | (Up::Subscribe(_), Outbox::Agent(_)) => return,
        };
        if let Some(stream) = self.streams.get_mut(&id) {
            stream.known = true;
        }
        if self.is_life(node, life) {
            self.give(node, event);
        } else {
            self.break_stream(id);
        }
    }

    /// Sends what the loop has put into the outboxes of this master's streams.
    pub(crate) fn empty_outboxes(&mut self, node: u64) {
        self.send_subscribed(node);
        let Some(life) = self.masters.get(&node).map(|process| process.life) else {
            return;
        };
        let here = |stream: &Stream| {
            stream.master == node && stream.master_life == life && stream.known && !stream.broken
        };
        let streams = self.streams.iter().filter(|(_, stream)| here(stream));
        let streams: Vec<(u64, Outbox)> = streams
            .map(|(id, stream)| (*id, stream.outbox.clone()))
            .collect();
        for (id, outbox) in streams {
            let (messages, drained) = match outbox {
                Outbox::Agent(outbox) => {
                    let (items, drained) = empty(&outbox);
                    (self.agent_messages(items), drained)
                }
                Outbox::Framework(outbox) => {
                    let (items, drained) = empty(&outbox);
                    (self.framework_messages(items), drained)
                }
            };
            let is_agent = matches!(
                self.streams.get(&id).map(|stream| &stream.outbox),
                Some(Outbox::Agent(_))
            );
            for message in messages {
                self.send_down(id, message);
            }
            if drained {
                let event = if is_agent {
                    Event::AgentDrained { link: LinkId(id) }
                } else {
                    Event::StreamDrained {
                        stream: StreamId(id),
                    }
                };
                self.give(node, event);
            }
        }
    }

    fn agent_messages(&self, items: Vec<Option<<AgentQueue as Queue>::Item>>) -> Vec<Down> {
        let forgets = self.variant == Some(Variant::OwedForgotten);
        let mut is_opening = false;
        let mut messages = Vec::new();
        for item in items {
            let message = match item {
                Some(Ok(message)) => message.message,
                Some(Err(_)) | None => {
                    messages.push(Down::End);
                    continue;
                }
            };
            let Some(message) = message else { continue };
            is_opening |= matches!(message, master_message::Message::Welcome(_));
            let is_owed = matches!(
                message,
                master_message::Message::StartTasks(_)
                    | master_message::Message::KillTasks(_)
                    | master_message::Message::ForgetStatuses(_)
            );
            if !(forgets && is_opening && is_owed) {
                messages.push(Down::Agent(Box::new(message)));
            }
        }
        messages
    }

    fn framework_messages(&self, items: Vec<Option<<FrameworkQueue as Queue>::Item>>) -> Vec<Down> {
        let events = items.into_iter().map(|item| match item {
            Some(Ok(event)) => Down::Framework(Box::new(event)),
            Some(Err(_)) | None => Down::End,
        });
        events.collect()
    }

    fn send_subscribed(&mut self, node: u64) {
        let Some(running) = self.running(node) else {
            return;
        };
        let mut answered = Vec::new();
        running.subscribing.retain(|stream, answer| {
            let Ok(answer) = answer.try_recv() else {
                return true;
            };
            answered.push((*stream, answer));
            false
        });
        for (stream, answer) in answered {
            self.send_down(stream, Down::Subscribed(answer.map_err(Box::new)));
        }
    }

    pub(crate) fn down(&mut self, id: u64, what: Down) {
        let Some(stream) = self.streams.get(&id).filter(|stream| !stream.broken) else {
            return;
        };
        let (client, life) = (stream.client, stream.client_life);
        let ends = matches!(what, Down::End);
        match client {
            Place::Agent(agent) => self.agent_receives(agent, life, id, what),
            Place::Client(client) => self.client_receives(client, id, what),
            Place::Master(_) | Place::Operator => {}
        }
        if ends {
            self.hang_up(id);
        }
    }

    /// A call has arrived at a master.
    pub(crate) fn call_arrives(&mut self, from: Place, call: u64, to: u64, request: Request) {
        let mut request = request;
        if self.variant == Some(Variant::FenceSkipped) {
            self.mask_incarnation(to, &mut request);
        }
        let is_read = matches!(
            &request,
            Request::Framework {
                action: FrameworkAction::Read,
                ..
            }
        );
        let stale = self.variant == Some(Variant::StaleReads);
        let Some(running) = self.running(to) else {
            return;
        };
        let leads = running.master.leader().is_some();
        if stale && is_read && leads {
            let revision = running.master.read_state(mete_state::State::revision);
            let answer = self.fill(to, from, Reply::ReadAt { revision });
            self.send_answer(to, from, call, Ok(answer));
            return;
        }
        let (reply, answer) = oneshot::channel();
        self.wait_for_answer(to, call, from, answer);
        self.give(to, Event::Call { request, reply });
    }

    fn mask_incarnation(&mut self, node: u64, request: &mut Request) {
        let Some(running) = self.running(node) else {
            return;
        };
        if let Request::Framework { caller, .. } = request {
            let present = running
                .master
                .read_state(|state| state.framework(caller.framework).map(|it| it.incarnation));
            caller.incarnation = present.unwrap_or(caller.incarnation);
        }
    }

    /// Completes an answer with what the services read from the state.
    pub(crate) fn fill(&mut self, node: u64, to: Place, reply: Reply) -> Answer {
        let framework = match to {
            Place::Client(client) => self.clients.get(client).and_then(|client| client.id),
            Place::Master(_) | Place::Agent(_) | Place::Operator => None,
        };
        let mut values = Vec::new();
        if let (Reply::ReadAt { .. }, Some(framework), Some(running)) =
            (&reply, framework, self.running(node))
        {
            values = running.master.read_state(|state| {
                let keys = KEYS.iter();
                keys.map(|key| {
                    let record = state.store_get(framework, key.as_bytes())?;
                    let value = <[u8; 8]>::try_from(record.value.as_ref()).ok()?;
                    Some((u64::from_be_bytes(value), record.revision))
                })
                .collect()
            });
        }
        Answer { reply, values }
    }
}

fn is_status(what: &Down) -> bool {
    match what {
        Down::Framework(event) => matches!(event.event, Some(wire::event::Event::Status(_))),
        Down::Agent(_) | Down::Subscribed(_) | Down::End => false,
    }
}

/// Everything that waits; `None` at the end stands for the end of the stream.
fn empty<Q: Queue>(outbox: &Queued<Q>) -> (Vec<Option<Q::Item>>, bool) {
    outbox.put(|queue| {
        let mut items = Vec::new();
        loop {
            match queue.pop() {
                Popped::Item(item) => items.push(Some(item)),
                Popped::Empty => break,
                Popped::End => {
                    items.push(None);
                    break;
                }
            }
        }
        (items, queue.take_drained())
    })
}
