//! The door to the loop: cheap to clone, all that services hold.
//!
//! A call goes through one bounded queue and comes back through a channel of its own. Lists and
//! pages are read from the shared state directly: the loop is its only writer, and a reader holds
//! it for one page only. A full queue is waited for briefly and then answered with `BUSY`; it never
//! blocks the thread that asks.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard};
use std::time::Duration;

use mete_model::{Code, FrameworkId, Span};
use mete_state::State;
use tokio::sync::{mpsc, oneshot};

use crate::event::{Event, LinkId, Look, StreamId, SubscribeRequest};
use crate::master::Master;
use crate::request::{FrameworkAction, Refusal, Reply, Request};
use crate::session::agent::AgentOutbox;
use crate::session::framework::FrameworkOutbox;
use crate::session::outbox::Listener;

/// How long a full queue is waited for.
const FULL_QUEUE_WAIT: Duration = Duration::from_millis(500);

/// When to come again after `BUSY`.
const BUSY_AGAIN: Span = Span(500);

/// The state, shared between the loop and readers.
pub type SharedState = Arc<RwLock<State>>;

/// The door to the loop.
#[derive(Clone, Debug)]
pub struct Handle {
    inside: Arc<Inside>,
}

#[derive(Debug)]
struct Inside {
    events: mpsc::Sender<Event>,
    /// Ends and drains of streams: noted by readers that must not wait, at most two for each
    /// stream, and taken by the loop at every turn. They wake nobody: a turn comes with every tick.
    notes: Mutex<Vec<Event>>,
    state: SharedState,
    last_stream: AtomicU64,
    stopped: AtomicBool,
    advertised: Mutex<String>,
}

/// The loop's end of the door.
#[derive(Debug)]
pub struct Inlet {
    events: mpsc::Receiver<Event>,
    handle: Handle,
}

/// Makes a door whose queue holds `size` events.
#[must_use]
pub fn door(size: usize, state: SharedState) -> (Handle, Inlet) {
    let (sender, receiver) = mpsc::channel(size);
    let handle = Handle {
        inside: Arc::new(Inside {
            events: sender,
            notes: Mutex::new(Vec::new()),
            state,
            last_stream: AtomicU64::new(0),
            stopped: AtomicBool::new(false),
            advertised: Mutex::new(String::new()),
        }),
    };
    let inlet = Inlet {
        events: receiver,
        handle: handle.clone(),
    };
    (handle, inlet)
}

impl Handle {
    /// Asks the loop and waits for its answer.
    ///
    /// # Errors
    /// The [`Refusal`]: nothing was done, except for `UNKNOWN`, which says that nobody can tell.
    pub async fn call(&self, request: Request) -> Result<Reply, Refusal> {
        // Acknowledgements are never told to come again: they are what makes room.
        let patient = matches!(
            request,
            Request::Framework {
                action: FrameworkAction::Acknowledge { .. },
                ..
            }
        );
        let (reply, answer) = oneshot::channel();
        let event = Event::Call { request, reply };
        if patient {
            self.send_patiently(event).await?;
        } else {
            self.send(event).await?;
        }
        answer.await.unwrap_or_else(|_| Err(Refusal::unknown()))
    }

    /// Looks at the loop between two turns; keep it short, everything waits meanwhile.
    ///
    /// # Errors
    /// `BUSY`, or `UNKNOWN` when the loop ended.
    pub async fn read<T: Send + 'static>(
        &self,
        look: impl FnOnce(&Master) -> T + Send + 'static,
    ) -> Result<T, Refusal> {
        let (sender, answer) = oneshot::channel();
        let look = move |master: &Master| {
            // Whoever asked may have gone away meanwhile.
            drop(sender.send(look(master)));
        };
        self.send(Event::Look(Look(Box::new(look)))).await?;
        answer.await.map_err(|_| Refusal::unknown())
    }

    /// The applied state. Hold it for one page only: the loop waits for it.
    pub fn state(&self) -> RwLockReadGuard<'_, State> {
        self.inside
            .state
            .read()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// The state itself, for rooms that keep it.
    #[must_use]
    pub fn shared_state(&self) -> SharedState {
        Arc::clone(&self.inside.state)
    }

    /// That master was taken out of the cluster, as far as is known here.
    #[must_use]
    pub fn has_left(&self, master: u64) -> bool {
        self.state().has_left(master)
    }

    /// What clients are told to dial.
    #[must_use]
    pub fn advertised(&self) -> String {
        let advertised = self.inside.advertised.lock();
        advertised.unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Sets what clients are told to dial, once it is known.
    pub fn set_advertised(&self, address: &str) {
        let advertised = self.inside.advertised.lock();
        address.clone_into(&mut advertised.unwrap_or_else(PoisonError::into_inner));
    }

    /// A number for a new stream of an agent, and who is told of its end.
    #[must_use]
    pub fn new_link(&self) -> (LinkId, Arc<dyn Listener>) {
        let link = LinkId(self.next_stream());
        let listener = Notes {
            inside: Arc::clone(&self.inside),
            drained: move || Event::AgentDrained { link },
            closed: move || Event::AgentClosed { link },
        };
        (link, Arc::new(listener))
    }

    /// A number for a new stream of a framework, and who is told of its end.
    #[must_use]
    pub fn new_stream(&self) -> (StreamId, Arc<dyn Listener>) {
        let stream = StreamId(self.next_stream());
        let listener = Notes {
            inside: Arc::clone(&self.inside),
            drained: move || Event::StreamDrained { stream },
            closed: move || Event::StreamClosed { stream },
        };
        (stream, Arc::new(listener))
    }

    /// Attaches a framework's stream.
    ///
    /// # Errors
    /// The [`Refusal`]: the stream does not begin.
    pub async fn subscribe(
        &self,
        stream: StreamId,
        request: SubscribeRequest,
        outbox: Arc<FrameworkOutbox>,
    ) -> Result<FrameworkId, Refusal> {
        let (reply, answer) = oneshot::channel();
        self.send(Event::Subscribe {
            stream,
            request: Box::new(request),
            outbox,
            reply,
        })
        .await?;
        answer.await.unwrap_or_else(|_| Err(Refusal::unknown()))
    }

    /// Attaches an agent's stream; how it goes on stands in the outbox.
    ///
    /// # Errors
    /// `BUSY`, or `NO_LEADER` when the loop ended.
    pub async fn attach_agent(
        &self,
        link: LinkId,
        hello: mete_state::command::AdmitAgent,
        outbox: Arc<AgentOutbox>,
    ) -> Result<(), Refusal> {
        self.send(Event::AgentHello {
            link,
            hello: Box::new(hello),
            outbox,
        })
        .await
    }

    /// Hands over what came on a stream. Waits for room: the stream's own flow control then holds
    /// its sender back.
    ///
    /// # Errors
    /// `NO_LEADER` when the loop ended.
    pub async fn send_patiently(&self, event: Event) -> Result<(), Refusal> {
        self.inside.events.send(event).await.map_err(|_| ended())
    }

    /// Tells the loop that the process is about to end.
    pub async fn stop(&self) {
        self.inside.stopped.store(true, Ordering::Release);
        // An ended loop needs no telling.
        drop(self.inside.events.send(Event::Stop).await);
    }

    /// True once the process is about to end.
    #[must_use]
    pub fn is_stopped(&self) -> bool {
        self.inside.stopped.load(Ordering::Acquire) || self.inside.events.is_closed()
    }

    async fn send(&self, event: Event) -> Result<(), Refusal> {
        let event = match self.inside.events.try_send(event) {
            Ok(()) => return Ok(()),
            Err(mpsc::error::TrySendError::Closed(_)) => return Err(ended()),
            Err(mpsc::error::TrySendError::Full(event)) => event,
        };
        match self
            .inside
            .events
            .send_timeout(event, FULL_QUEUE_WAIT)
            .await
        {
            Ok(()) => Ok(()),
            Err(mpsc::error::SendTimeoutError::Closed(_)) => Err(ended()),
            Err(mpsc::error::SendTimeoutError::Timeout(_)) => {
                let detail = "more calls wait for this master than it holds; come again";
                Err(Refusal::busy(detail, BUSY_AGAIN))
            }
        }
    }

    fn next_stream(&self) -> u64 {
        self.inside.last_stream.fetch_add(1, Ordering::Relaxed) + 1
    }
}

fn ended() -> Refusal {
    Refusal::new(
        Code::NoLeader,
        "this master is ending; try again, or another master",
    )
}

impl Inlet {
    /// Waits until something is there, then takes what waits, at most `most` events.
    pub async fn receive(&mut self, into: &mut Vec<Event>, most: usize) -> usize {
        self.events.recv_many(into, most).await
    }

    /// Takes what waits without waiting.
    pub fn take(&mut self, into: &mut Vec<Event>, most: usize) {
        while into.len() < most
            && let Ok(event) = self.events.try_recv()
        {
            into.push(event);
        }
    }

    /// Ends and drains of streams since the last call. To be taken after the events, so that what
    /// a stream brought before its end comes before it in the same turn.
    ///
    /// With more waiting than a turn takes, an end may still overtake what its stream brought.
    /// That loses nothing: a beginning looks whether its outbox is closed, when it enters and when
    /// it has applied; statuses and inventories of a stream that is over are passed over, and the
    /// agent, which keeps them until they are confirmed, brings them again on its next stream. A
    /// drain only makes the loop look at what is owed, so it may come at any time, and twice.
    pub fn take_notes(&mut self, into: &mut Vec<Event>) {
        let notes = self.handle.inside.notes.lock();
        into.append(&mut notes.unwrap_or_else(PoisonError::into_inner));
    }

    /// The door.
    #[must_use]
    pub fn handle(&self) -> &Handle {
        &self.handle
    }
}

struct Notes<D, C> {
    inside: Arc<Inside>,
    drained: D,
    closed: C,
}

impl<D, C> Notes<D, C> {
    fn note(&self, event: Event) {
        let notes = self.inside.notes.lock();
        notes.unwrap_or_else(PoisonError::into_inner).push(event);
    }
}

impl<D, C> Listener for Notes<D, C>
where
    D: Fn() -> Event + Send + Sync,
    C: Fn() -> Event + Send + Sync,
{
    fn drained(&self) {
        self.note((self.drained)());
    }

    fn closed(&self) {
        self.note((self.closed)());
    }
}
