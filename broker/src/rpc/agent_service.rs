//! `mete.agent.v1`: one stream for each agent; what comes in goes to the loop, what waits in the
//! outbox goes out.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::task::{Context, Poll};

use mete_model::{AgentId, FrameworkId, NodeKey, Status as RunStatus};
use mete_proto::agent::v1 as wire;
use mete_proto::agent::v1::agent_service_server::AgentService;
use mete_proto::convert::{
    At, Faults, read_inventory, read_phase, read_run_ref, read_status, read_text, whole,
};
use mete_state::command::{AdmitAgent, HeldRun};
use tokio_stream::Stream;
use tonic::{Request, Response, Status, Streaming};
use uuid::Uuid;

use super::refusal::to_status;
use super::status;
use crate::event::{Event, LinkId};
use crate::handle::Handle;
use crate::session::OUTBOX_BYTES;
use crate::session::agent::AgentQueue;
use crate::session::outbox::{Outbox, Reader};

/// Statuses in one message.
const MOST_STATUSES: usize = 20_000;

/// Runs of one agent.
const MOST_RUNS: usize = 100_000;

/// The service.
#[derive(Clone, Debug)]
pub struct Agents {
    handle: Handle,
}

impl Agents {
    /// A service behind this door.
    #[must_use]
    pub fn new(handle: Handle) -> Self {
        Self { handle }
    }
}

type Messages = Pin<Box<dyn Stream<Item = Result<wire::MasterMessage, Status>> + Send>>;

#[tonic::async_trait]
impl AgentService for Agents {
    type LinkStream = Messages;

    async fn link(
        &self,
        request: Request<Streaming<wire::AgentMessage>>,
    ) -> Result<Response<Messages>, Status> {
        let mut incoming = request.into_inner();
        let hello = first_words(&mut incoming).await?;
        let hello = read_hello(hello).map_err(|faults| status::invalid(&faults))?;
        let outbox = Outbox::new(AgentQueue::new(OUTBOX_BYTES));
        let (link, listener) = self.handle.new_link();
        let reader = outbox.reader(listener);
        let attached = self.handle.attach_agent(link, hello, outbox).await;
        attached.map_err(|refusal| to_status(&refusal))?;
        let handle = self.handle.clone();
        Ok(Response::new(Box::pin(Both {
            incoming: Some(Box::pin(take_in(incoming, link, handle))),
            outgoing: reader,
        })))
    }
}

/// The hello, with the runs of all pages that came before it.
async fn first_words(incoming: &mut Streaming<wire::AgentMessage>) -> Result<wire::Hello, Status> {
    use wire::agent_message::Message;
    let mut runs: Vec<wire::HeldRun> = Vec::new();
    loop {
        let Some(message) = incoming.message().await? else {
            let fault = "the stream ended without one";
            return Err(status::invalid_field("hello", fault));
        };
        match message.message {
            Some(Message::Hello(mut hello)) => {
                runs.append(&mut hello.runs);
                return Ok(wire::Hello { runs, ..hello });
            }
            Some(Message::HeldRuns(mut page)) => {
                runs.append(&mut page.runs);
                if runs.len() > MOST_RUNS {
                    let fault = format!("there are more than the {MOST_RUNS} permitted");
                    return Err(status::invalid_field("held_runs", fault));
                }
            }
            Some(Message::Statuses(_) | Message::Beacon(_) | Message::Inventory(_)) | None => {
                let fault = "the first message of the stream must be a hello, after pages of \
                             held runs if there are any";
                return Err(status::invalid_field("hello", fault));
            }
        }
    }
}

/// Takes in what the agent sends until its side ends; gives the fault that ended it.
async fn take_in(
    mut incoming: Streaming<wire::AgentMessage>,
    link: LinkId,
    handle: Handle,
) -> Result<(), Status> {
    while let Some(message) = incoming.message().await? {
        let Some(message) = message.message else {
            // A message of a newer agent that this release does not know.
            continue;
        };
        let event = read_message(link, message)?;
        handle
            .send_patiently(event)
            .await
            .map_err(|refusal| to_status(&refusal))?;
    }
    Ok(())
}

fn read_message(link: LinkId, message: wire::agent_message::Message) -> Result<Event, Status> {
    use wire::agent_message::Message;
    let invalid = |faults: Faults| status::invalid(&faults);
    Ok(match message {
        Message::Hello(_) => {
            return Err(status::invalid_field(
                "hello",
                "a second one; open a new stream instead",
            ));
        }
        Message::HeldRuns(_) => {
            return Err(status::invalid_field(
                "held_runs",
                "a page after the hello; open a new stream instead",
            ));
        }
        Message::Statuses(statuses) => Event::AgentStatuses {
            link,
            statuses: read_statuses(statuses).map_err(invalid)?,
        },
        Message::Beacon(beacon) => Event::AgentBeacon {
            link,
            progress: beacon.progress,
        },
        Message::Inventory(inventory) => {
            let at = At::root("inventory");
            let read = whole(|faults| read_inventory(Some(inventory), at, faults));
            Event::AgentInventory {
                link,
                inventory: Box::new(read.map_err(invalid)?),
            }
        }
    })
}

fn read_statuses(statuses: wire::Statuses) -> Result<Vec<(FrameworkId, RunStatus)>, Faults> {
    whole(|faults| {
        let list = At::root("statuses");
        let count = statuses.statuses.len();
        if count > MOST_STATUSES {
            let fault = format_args!("{count} are more than the {MOST_STATUSES} permitted");
            faults.add(list, fault);
            return None;
        }
        let mut read = Vec::with_capacity(count);
        for (index, status) in statuses.statuses.into_iter().enumerate() {
            read.extend(read_status(status, list.index(index), faults));
        }
        Some(read)
    })
}

fn read_hello(hello: wire::Hello) -> Result<AdmitAgent, Faults> {
    whole(|faults| {
        let node_key: Option<NodeKey> = hello
            .node_key
            .parse()
            .map_err(|error| faults.add(At::root("node_key"), error))
            .ok();
        let node_name = read_text(hello.node_name, 253, At::root("node_name"), faults);
        let inventory = read_inventory(hello.inventory, At::root("inventory"), faults);
        let held = read_held(hello.runs, faults);
        Some(AdmitAgent {
            // The loop knows the id, or mints it.
            agent: AgentId(Uuid::nil()),
            node_key: node_key?,
            node_name: node_name?,
            inventory: inventory?,
            held: held?,
        })
    })
}

fn read_held(runs: Vec<wire::HeldRun>, faults: &mut Faults) -> Option<Vec<HeldRun>> {
    let list = At::root("runs");
    if runs.len() > MOST_RUNS {
        let fault = format_args!("{} are more than the {MOST_RUNS} permitted", runs.len());
        faults.add(list, fault);
        return None;
    }
    let mut held: BTreeMap<(FrameworkId, mete_model::RunId), HeldRun> = BTreeMap::new();
    for (index, run) in runs.into_iter().enumerate() {
        let at = list.index(index);
        let name = read_run_ref(run.run, at.field("run"), faults);
        let phase = read_phase(run.phase, at.field("phase"), faults);
        if let (Some((framework, id)), Some(phase)) = (name, phase) {
            let last_sequence = run.last_sequence;
            let run = HeldRun {
                framework,
                run: id.clone(),
                phase,
                last_sequence,
            };
            if held.insert((framework, id), run).is_some() {
                faults.add(at.field("run"), "stands twice");
            }
        }
    }
    Some(held.into_values().collect())
}

type TakeIn = Pin<Box<dyn Future<Output = Result<(), Status>> + Send>>;

/// Both directions of one stream as one: it ends when either does, and needs no task of its own.
struct Both {
    incoming: Option<TakeIn>,
    outgoing: Reader<AgentQueue>,
}

impl Stream for Both {
    type Item = Result<wire::MasterMessage, Status>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if let Some(incoming) = &mut self.incoming
            && let Poll::Ready(ended) = incoming.as_mut().poll(context)
        {
            self.incoming = None;
            return Poll::Ready(match ended {
                Ok(()) => None,
                Err(status) => Some(Err(status)),
            });
        }
        if self.incoming.is_none() {
            return Poll::Ready(None);
        }
        Pin::new(&mut self.outgoing).poll_next(context)
    }
}
