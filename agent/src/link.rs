//! One stream to the leader: opened, kept, and opened again.
//!
//! It tries the masters in turn, follows a redirect at once, and waits with full jitter between
//! failures. It owns no truth: everything it loses is sent again by the core at the next welcome,
//! or by the leader. While there is no stream it throws away what the loop wants to send, so the
//! loop never waits for a network.

mod refusals;
pub mod wire;

pub use self::refusals::TurnedAway;

#[cfg(feature = "node")]
pub(crate) use self::wire::read_key;

use std::time::Duration;

use mete_model::{FrameworkId, Inventory, NodeKey, Status};
use mete_proto::agent::v1::agent_service_client::AgentServiceClient;
use mete_proto::agent::v1::{AgentMessage, MasterMessage, master_message};
use mete_proto::dial::SharedDial;
use rand::RngExt;
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;

use self::refusals::Refusals;
use crate::core::Event;
use crate::driver::Hello;

/// Messages on their way to the master at the most.
const MOST_UNSENT: usize = 64;

/// Shortest and longest wait between attempts.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(60));

/// Silence after which a stream is dead. The master's beacon comes every 3 s.
const SILENCE: Duration = Duration::from_secs(10);

/// Longest wait for the answer to the first message: a master holds it up to 2 s.
const WELCOME: Duration = Duration::from_secs(10);

/// Masters that are kept of those that a leader names.
const MOST_MASTERS: usize = 64;

/// Largest message in either direction.
const MOST_BYTES: usize = 4 << 20;

/// Who this agent is.
#[derive(Clone, Debug)]
pub struct Identity {
    /// Made at the first start and kept.
    pub node_key: NodeKey,
    /// Unique among the nodes of a cluster.
    pub node_name: String,
    /// A master has welcomed it in an earlier life.
    pub registered: bool,
}

/// Where masters are and how to reach them.
#[derive(Clone, Debug)]
pub struct LinkSettings {
    masters: Vec<String>,
    dial: SharedDial,
}

impl LinkSettings {
    /// Masters as `host:port`, tried in this order at first.
    #[must_use]
    pub fn new(masters: Vec<String>, dial: SharedDial) -> Self {
        Self { masters, dial }
    }
}

/// Masters in the order in which they are tried: those that a leader has named, and behind them the
/// given ones that it did not name.
#[derive(Debug)]
struct Masters {
    given: Vec<String>,
    known: Vec<String>,
    turn: usize,
}

impl Masters {
    fn new(given: Vec<String>) -> Self {
        Self {
            known: given.clone(),
            given,
            turn: 0,
        }
    }

    fn next(&mut self) -> Option<String> {
        let at = self.turn.checked_rem(self.known.len())?;
        self.turn = self.turn.wrapping_add(1);
        self.known.get(at).cloned()
    }

    /// What the leader has named; a master of an older release names none.
    fn learn(&mut self, named: Vec<String>) {
        let named = named.into_iter().take(MOST_MASTERS);
        let mut known: Vec<String> = named.filter(|address| !address.is_empty()).collect();
        if known.is_empty() {
            return;
        }
        for given in &self.given {
            if !known.contains(given) {
                known.push(given.clone());
            }
        }
        if known != self.known {
            tracing::info!(masters = ?known, "the leader has named the masters");
            self.known = known;
        }
    }
}

/// What the link brings to the loop.
#[derive(Debug)]
pub enum FromLink {
    /// A stream is being opened: what is the first message?
    HelloWanted(oneshot::Sender<Hello>),
    /// Things that happened, in order.
    Events(Vec<Event>),
    /// The leader's beacon: which beacon of ours it has heard, if it says so.
    Heard(Option<u64>),
}

/// What the loop gives to the link.
#[derive(Debug)]
pub enum ToLink {
    /// Statuses, in order per run.
    Statuses(Vec<(FrameworkId, Status)>),
    /// The machine has changed.
    Inventory(Box<Inventory>),
    /// The loop turns.
    Beacon(u64),
}

/// How a stream ended.
enum End {
    /// Go there at once.
    Redirect(String),
    /// Try again, not before this.
    Later(Option<Duration>),
    /// The master's last word.
    Refused(TurnedAway),
    /// The loop is gone.
    Closed,
}

/// Keeps a stream open until the loop drops its ends.
///
/// # Errors
/// [`TurnedAway`] when an agent that was never registered cannot be.
pub async fn link(
    identity: Identity,
    settings: LinkSettings,
    to_driver: mpsc::Sender<FromLink>,
    mut from_driver: mpsc::Receiver<ToLink>,
) -> Result<(), TurnedAway> {
    let mut failures: u32 = 0;
    let mut refusals = Refusals::new(identity.registered);
    let mut masters = Masters::new(settings.masters.clone());
    let mut redirect: Option<String> = None;
    let mut redirects: u32 = 0;
    loop {
        let address = redirect.take().or_else(|| masters.next());
        let Some(address) = address else {
            return Ok(());
        };
        let mut welcomed = false;
        let place = Place {
            settings: &settings,
            address: &address,
            masters: &mut masters,
        };
        let stream = stream(&identity, place, &to_driver, &mut from_driver);
        let end = stream.await.unwrap_or_else(|(end, was_welcomed)| {
            welcomed = was_welcomed;
            end
        });
        if welcomed {
            failures = 0;
            redirects = 0;
            refusals.welcomed();
            if to_driver
                .send(FromLink::Events(vec![Event::LinkLost]))
                .await
                .is_err()
            {
                return Ok(());
            }
        }
        let wait = match end {
            End::Closed => return Ok(()),
            End::Refused(refused) if refusals.heard(&refused, Instant::now()) => {
                return Err(refused);
            }
            End::Refused(_) => None,
            // Two masters that point at each other must not make a busy loop.
            End::Redirect(to) if redirects < 3 => {
                redirects = redirects.saturating_add(1);
                redirect = Some(to);
                continue;
            }
            End::Redirect(_) => {
                redirects = 0;
                None
            }
            End::Later(wait) => wait,
        };
        failures = failures.saturating_add(1);
        let wait = wait.unwrap_or_default().max(jittered(failures));
        if !discarding(&mut from_driver, tokio::time::sleep(wait))
            .await
            .1
        {
            return Ok(());
        }
    }
}

/// Full jitter: anywhere between the shortest wait and a cap that doubles with each failure.
fn jittered(failures: u32) -> Duration {
    let cap = BACKOFF
        .0
        .saturating_mul(1_u32 << failures.min(10))
        .min(BACKOFF.1);
    rand::rng().random_range(BACKOFF.0..=cap.max(BACKOFF.0))
}

/// Waits for `future` while throwing away what the loop sends. False when the loop is gone.
async fn discarding<T>(
    from_driver: &mut mpsc::Receiver<ToLink>,
    future: impl Future<Output = T>,
) -> (Option<T>, bool) {
    let mut future = std::pin::pin!(future);
    loop {
        tokio::select! {
            value = &mut future => return (Some(value), true),
            message = from_driver.recv() => if message.is_none() { return (None, false) },
        }
    }
}

type Ended = (End, bool);

/// Where a stream is opened, and the masters that it may name.
struct Place<'a> {
    settings: &'a LinkSettings,
    address: &'a str,
    masters: &'a mut Masters,
}

/// One stream, from dialling to its end; whether it was welcomed comes with the end.
async fn stream(
    identity: &Identity,
    place: Place<'_>,
    to_driver: &mpsc::Sender<FromLink>,
    from_driver: &mut mpsc::Receiver<ToLink>,
) -> Result<End, Ended> {
    let Place {
        settings,
        address,
        masters,
    } = place;
    let failed = |what: &str, error: &dyn std::fmt::Display| {
        tracing::debug!(address, %error, "{what}");
        (End::Later(None), false)
    };
    let opening = open(identity, settings, address, to_driver);
    let (opened, alive) = discarding(from_driver, tokio::time::timeout(WELCOME, opening)).await;
    if !alive {
        return Ok(End::Closed);
    }
    let (sender, mut incoming) = match opened {
        Some(Ok(Ok(opened))) => opened,
        Some(Ok(Err(OpenError::DriverGone))) => return Ok(End::Closed),
        Some(Ok(Err(OpenError::Status(status)))) => {
            return Err((end_of(&status, identity, address), false));
        }
        Some(Ok(Err(OpenError::Dial(error)))) => return Err(failed("no master there", &error)),
        Some(Err(late)) => return Err(failed("the master does not answer", &late)),
        None => return Ok(End::Closed),
    };
    let mut welcomed = false;
    loop {
        let wait = if welcomed { SILENCE } else { WELCOME };
        tokio::select! {
            message = tokio::time::timeout(wait, incoming.message()) => {
                let message = match message {
                    Ok(Ok(Some(message))) => message,
                    Ok(Ok(None)) => return Err((End::Later(None), welcomed)),
                    Ok(Err(status)) => {
                        return Err((end_of(&status, identity, address), welcomed));
                    }
                    Err(_silence) => return Err((End::Later(None), welcomed)),
                };
                match receive(message, identity, address, masters) {
                    Received::Batch(batch) => {
                        welcomed = welcomed || is_welcome(&batch);
                        match forward(batch, to_driver, from_driver, &sender).await {
                            Forwarded::Done => {}
                            Forwarded::Stalled => return Err((End::Later(None), welcomed)),
                            Forwarded::Closed => return Ok(End::Closed),
                        }
                    }
                    Received::End(end) => return Err((end, welcomed)),
                }
            }
            message = from_driver.recv() => {
                let Some(message) = message else { return Ok(End::Closed) };
                if sender.send(wire::outgoing(message)).await.is_err() {
                    return Err((End::Later(None), welcomed));
                }
            }
        }
    }
}

/// What a call's refusal means for the stream.
fn end_of(status: &tonic::Status, identity: &Identity, address: &str) -> End {
    if let Some(leader) = wire::leader_of(status) {
        return End::Redirect(leader);
    }
    match refusals::of_status(&identity.node_name, address, status) {
        Some(refused) => End::Refused(refused),
        None => End::Later(wire::retry_after(status)),
    }
}

fn is_welcome(batch: &FromLink) -> bool {
    match batch {
        FromLink::Events(events) => {
            let mut events = events.iter();
            events.any(|event| matches!(event, Event::Welcome { .. }))
        }
        FromLink::HelloWanted(_) | FromLink::Heard(_) => false,
    }
}

/// How handing over ended.
enum Forwarded {
    Done,
    /// The master takes nothing: the stream is given up, the next welcome repeats what is lost.
    Stalled,
    Closed,
}

/// Hands events to the loop without ever stopping to take what the loop sends: both queues are
/// bounded, and each waiting for the other would be the end of both.
async fn forward(
    batch: FromLink,
    to_driver: &mpsc::Sender<FromLink>,
    from_driver: &mut mpsc::Receiver<ToLink>,
    sender: &mpsc::Sender<AgentMessage>,
) -> Forwarded {
    let mut stalled = false;
    let mut handing = std::pin::pin!(to_driver.send(batch));
    loop {
        tokio::select! {
            result = &mut handing => return match (result, stalled) {
                (Err(_), _) => Forwarded::Closed,
                (Ok(()), true) => Forwarded::Stalled,
                (Ok(()), false) => Forwarded::Done,
            },
            message = from_driver.recv() => {
                let Some(message) = message else { return Forwarded::Closed };
                // After one gap nothing more goes out: a later number would pass over it.
                stalled = stalled || sender.try_send(wire::outgoing(message)).is_err();
            }
        }
    }
}

enum OpenError {
    DriverGone,
    Dial(tonic::transport::Error),
    Status(tonic::Status),
}

type Opened = (mpsc::Sender<AgentMessage>, Streaming<MasterMessage>);

async fn open(
    identity: &Identity,
    settings: &LinkSettings,
    address: &str,
    to_driver: &mpsc::Sender<FromLink>,
) -> Result<Opened, OpenError> {
    let channel = settings.dial.dial(address).await.map_err(OpenError::Dial)?;
    let (answer, hello) = oneshot::channel();
    to_driver
        .send(FromLink::HelloWanted(answer))
        .await
        .map_err(|_closed| OpenError::DriverGone)?;
    let hello = hello.await.map_err(|_closed| OpenError::DriverGone)?;
    let opening = wire::opening(identity, &hello);
    let (sender, outgoing) = mpsc::channel(MOST_UNSENT.saturating_add(opening.len()));
    for message in opening {
        // The channel is new and empty: it has room.
        let _ = sender.try_send(message);
    }
    let mut client = AgentServiceClient::new(channel)
        .max_decoding_message_size(MOST_BYTES)
        .max_encoding_message_size(MOST_BYTES);
    let response = client
        .link(ReceiverStream::new(outgoing))
        .await
        .map_err(OpenError::Status)?;
    Ok((sender, response.into_inner()))
}

enum Received {
    Batch(FromLink),
    End(End),
}

fn receive(
    message: MasterMessage,
    identity: &Identity,
    address: &str,
    masters: &mut Masters,
) -> Received {
    match message.message {
        Some(master_message::Message::Welcome(mut welcome)) => {
            masters.learn(std::mem::take(&mut welcome.masters));
            let welcome = master_message::Message::Welcome(welcome);
            Received::Batch(FromLink::Events(wire::incoming(welcome)))
        }
        Some(master_message::Message::Redirect(redirect)) => {
            // Sent elsewhere, or told to come later, is how things go; anything else is for people.
            let final_word = redirect.leader_address.is_empty() && redirect.retry_after_ms == 0;
            let (node, code, detail) = (&identity.node_name, &redirect.code, &redirect.detail);
            let refused = refusals::read(node, address, code, detail);
            if let Some(refused) = refused.filter(|_| final_word) {
                return Received::End(End::Refused(refused));
            }
            if final_word {
                tracing::warn!(
                    address,
                    code = %redirect.code,
                    detail = %redirect.detail,
                    to = %redirect.leader_address,
                    "the master turns this agent away"
                );
            } else {
                tracing::info!(
                    address,
                    code = %redirect.code,
                    detail = %redirect.detail,
                    to = %redirect.leader_address,
                    "the master ends the stream"
                );
            }
            Received::End(if redirect.leader_address.is_empty() {
                let wait = Duration::from_millis(redirect.retry_after_ms);
                End::Later((!wait.is_zero()).then_some(wait))
            } else {
                End::Redirect(redirect.leader_address)
            })
        }
        Some(master_message::Message::Beacon(beacon)) => {
            Received::Batch(FromLink::Heard(beacon.heard))
        }
        None => Received::Batch(FromLink::Events(Vec::new())),
        Some(other) => Received::Batch(FromLink::Events(wire::incoming(other))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn masters_that_a_leader_names_go_before_those_that_were_given() {
        let mut masters = Masters::new(vec!["old".to_owned(), "a".to_owned()]);
        assert_eq!(masters.next().as_deref(), Some("old"));
        masters.learn(["a", "", "b", "c"].map(str::to_owned).to_vec());
        let mut tried: Vec<String> = (0..4).filter_map(|_| masters.next()).collect();
        tried.sort();
        assert_eq!(tried, ["a", "b", "c", "old"], "each of them in turn");

        masters.learn(Vec::new());
        assert_eq!(masters.known, ["a", "b", "c", "old"], "nothing is no news");

        masters.learn((0..1_000).map(|n| format!("m{n}")).collect());
        assert_eq!(masters.known.len(), MOST_MASTERS + 2, "bounded");
        assert_eq!(Masters::new(Vec::new()).next(), None);
    }
}
