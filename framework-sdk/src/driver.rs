//! Keeps one event stream open: finds the leader, subscribes, reads, and starts again.
//!
//! A task of its own for each session. It tries all masters, follows redirects at once, backs off
//! with full jitter otherwise, and takes silence for a dead stream. It gives up only when it hears
//! that this process is superseded, the framework torn down, or the request itself is wrong.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use mete_proto::framework::v1::{self as fw, event::Event as Wire};
use tokio::time::Instant;
use tonic::Streaming;

use crate::acknowledge::acknowledge;
use crate::client::{Advice, advise, framework_client};
use crate::core::{Backoff, Core, Identity, Link, LinkState};
use crate::error::{Error, Result};
use crate::event::{Connected, Event, Rescinded, Snapshot};
use crate::offers::Offer;
use crate::session::Connection;
use crate::task::TaskUpdate;
use crate::view::{Arrived, Receipt};
use crate::wire;

/// Redirects followed in a row before backing off: two masters may point at each other.
const REDIRECTS_AT_ONCE: u32 = 3;

/// Masters that are kept of those that a leader names.
const MOST_MASTERS: usize = 64;

/// Longest time to connect to one master.
const CONNECT_WITHIN: Duration = Duration::from_secs(5);

/// Why a stream ended, and so what comes next.
enum End {
    /// Go to the leader, if it is known.
    Elsewhere(Option<String>),
    /// Try again, not before this time has passed.
    Lost { why: String, after: Duration },
    /// The session is over.
    Over(Error),
}

impl From<Advice> for End {
    fn from(advice: Advice) -> Self {
        match advice {
            Advice::Elsewhere(leader) => Self::Elsewhere(leader),
            Advice::Later { after, reason } => Self::Lost {
                why: reason.to_string(),
                after,
            },
            Advice::No(error) => Self::Over(error),
        }
    }
}

pub(crate) struct Driver {
    core: Arc<Core>,
    masters: Masters,
    identity: Option<Identity>,
    generation: u64,
    backoff: Backoff,
    redirects: u32,
}

impl Driver {
    pub(crate) fn new(core: Arc<Core>) -> Self {
        let masters = Masters::new(core.config.masters.clone());
        Self {
            core,
            masters,
            identity: None,
            generation: 0,
            backoff: Backoff::default(),
            redirects: 0,
        }
    }

    pub(crate) async fn run(mut self) {
        let core = Arc::clone(&self.core);
        let why = tokio::select! {
            why = self.run_until_over() => why,
            why = core.until_closed() => why,
        };
        self.core.close(why);
        // The first reason stays: a teardown of our own is not "closed by the master".
        let why = self.core.closed().unwrap_or(Error::Closed);
        self.core.events.push(Event::Closed(why));
    }

    async fn run_until_over(&mut self) -> Error {
        loop {
            let address = self.masters.next();
            tracing::debug!(%address, "opening the event stream");
            let served = self.generation;
            let end = self.attach(&address).await;
            if self.generation != served {
                self.core.link.send_if_modified(down);
                self.core.connection.send_replace(Connection::Connecting);
                // The broker takes them back when the stream ends.
                self.core.offers.clear();
                self.core.events.push(Event::Disconnected(end.to_string()));
            }
            match end {
                End::Elsewhere(Some(leader)) => {
                    self.masters.prefer(leader);
                    self.redirects += 1;
                    if self.redirects > REDIRECTS_AT_ONCE {
                        tokio::time::sleep(self.backoff.next()).await;
                    }
                }
                End::Elsewhere(None) => tokio::time::sleep(self.backoff.next()).await,
                End::Lost { why, after } => {
                    tracing::debug!(%address, why, "event stream lost");
                    tokio::time::sleep(self.backoff.next().max(after)).await;
                }
                End::Over(error) => return error,
            }
        }
    }

    /// One stream, from connecting to its end.
    async fn attach(&mut self, address: &str) -> End {
        match self.read(address).await {
            Ok(never) => match never {},
            Err(end) => end,
        }
    }

    async fn read(&mut self, address: &str) -> Result<std::convert::Infallible, End> {
        let channel = tokio::time::timeout(CONNECT_WITHIN, self.core.dial().dial(address))
            .await
            .map_err(|_| lost("no connection in time"))?
            .map_err(|error| lost(format!("cannot connect: {error}")))?;
        let mut client = framework_client(channel);
        let silence = self.core.config.silence;
        let request = self.subscribe_request();
        let mut stream = tokio::time::timeout(silence, client.subscribe(request))
            .await
            .map_err(|_| lost("no answer to the subscription"))?
            .map_err(|status| End::from(advise(&status)))?
            .into_inner();

        let (identity, connected) = self.snapshot(&mut stream).await?;
        self.identity = Some(identity.clone());
        *crate::core::locked(&self.core.identity) = Some(identity.clone());
        self.generation += 1;
        self.backoff.reset();
        self.redirects = 0;
        self.masters.prefer(address.to_owned());
        self.core.link.send_if_modified(|state| {
            if matches!(state, LinkState::Closed(_)) {
                return false;
            }
            *state = LinkState::Up(Link {
                generation: self.generation,
                client,
                identity,
            });
            true
        });
        self.core.connection.send_replace(Connection::Connected {
            address: address.to_owned(),
        });
        for event in connected {
            self.core.events.push(event);
        }
        self.deltas(&mut stream).await
    }

    fn subscribe_request(&self) -> fw::SubscribeRequest {
        let config = &self.core.config;
        let roles = crate::core::locked(&self.core.roles).clone();
        let (suppressed_roles, resume_revision) = {
            let view = self.core.view();
            (view.suppressed.clone(), view.resume_revision())
        };
        fw::SubscribeRequest {
            name: config.name.clone(),
            roles: roles.iter().map(ToString::to_string).collect(),
            suppressed_roles,
            incarnation: self.identity.as_ref().map_or(0, |id| id.incarnation),
            failover_timeout_ms: config.failover_timeout.map(|span| wire::span(span).0),
            ephemeral: config.ephemeral,
            plain_offers: config.plain_offers,
            labels: config.labels.clone(),
            service_address: config.service_address.clone(),
            resume_revision,
        }
    }

    /// Reads up to the end of the snapshot: who we are, and what to tell.
    async fn snapshot(
        &mut self,
        stream: &mut Streaming<fw::Event>,
    ) -> Result<(Identity, Vec<Event>), End> {
        let mut subscribed = None;
        let mut arrived = Arrived::default();
        loop {
            // Its revision is that of the whole snapshot, of which this is a part.
            let (_, message) = self.message(stream).await?;
            match message {
                Wire::Subscribed(hello) => {
                    arrived.changes_only = hello.changes_only;
                    self.masters.learn(&hello.masters);
                    subscribed = Some((self.identity_of(&hello)?, hello.known));
                }
                Wire::Snapshot(page) => add_page(&mut arrived, page).map_err(End::Over)?,
                Wire::SnapshotEnd(end) => {
                    let (identity, known) =
                        subscribed.ok_or_else(|| lost("the stream did not say who we are"))?;
                    arrived.revision = end.revision;
                    return Ok((identity, self.restore(arrived, known)));
                }
                Wire::Moved(moved) => return Err(moved_end(moved)),
                Wire::Heartbeat(_) => {}
                Wire::Offers(_)
                | Wire::Rescinded(_)
                | Wire::Status(_)
                | Wire::AgentChanged(_)
                | Wire::RunsReplaceable(_) => {
                    return Err(lost("the stream went on before its snapshot was complete"));
                }
            }
        }
    }

    fn identity_of(&self, hello: &fw::Subscribed) -> Result<Identity, End> {
        let identity = Identity {
            framework_id: hello.framework_id.clone(),
            incarnation: hello.incarnation,
        };
        match &self.identity {
            // Calls are numbered within an incarnation: another one cannot continue them.
            Some(known) if *known != identity => Err(End::Over(Error::Protocol(format!(
                "this process is {} incarnation {} but the broker now calls it {} incarnation {}; \
                 restart it",
                known.framework_id, known.incarnation, identity.framework_id, identity.incarnation
            )))),
            Some(_) | None => Ok(identity),
        }
    }

    fn restore(&self, arrived: Arrived, known: bool) -> Vec<Event> {
        let revision = arrived.revision;
        let (open, snapshot) = {
            let mut view = self.core.view();
            let open = view.restore(arrived);
            (open, view.snapshot())
        };
        let connected = Connected {
            resumed: known,
            snapshot: Snapshot {
                revision,
                ..snapshot
            },
        };
        std::iter::once(Event::Connected(connected))
            .chain(open.into_iter().map(Event::Update))
            .collect()
    }

    async fn deltas(
        &mut self,
        stream: &mut Streaming<fw::Event>,
    ) -> Result<std::convert::Infallible, End> {
        let core = Arc::clone(&self.core);
        loop {
            let (revision, message) = tokio::select! {
                message = self.read_on(stream) => message?,
                () = core.redirect_bell.notified() => {
                    match core.take_redirect(self.generation) {
                        Some(leader) => return Err(End::Elsewhere(leader)),
                        None => continue,
                    }
                }
            };
            match message {
                Wire::Offers(offers) => self.offers(offers),
                Wire::Rescinded(rescinded) => self.rescinded(rescinded),
                Wire::Status(status) => match wire::status_from(status) {
                    Ok(update) => self.status(update),
                    // Not acknowledged: a newer release of this framework may understand it.
                    Err(error) => tracing::warn!(%error, "status passed over"),
                },
                Wire::AgentChanged(change) => match wire::agent_changed_from(change) {
                    Ok(change) => {
                        self.core.view().agent_changed(&change);
                        core.events.push(Event::AgentChanged(change));
                    }
                    Err(error) => tracing::warn!(%error, "agent change passed over"),
                },
                Wire::RunsReplaceable(runs) => match wire::replaceable_from(runs) {
                    Ok(runs) => {
                        self.core.view().replaceable(&runs);
                        core.events.push(Event::Replaceable(runs));
                    }
                    Err(error) => tracing::warn!(%error, "replaceable runs passed over"),
                },
                Wire::Heartbeat(beat) => {
                    let mut view = self.core.view();
                    view.demand_version = view.demand_version.max(beat.demand_version);
                    view.suppressed = beat.suppressed_roles;
                }
                Wire::Moved(moved) => return Err(moved_end(moved)),
                Wire::Subscribed(_) | Wire::Snapshot(_) | Wire::SnapshotEnd(_) => {
                    return Err(lost("the stream began a second time"));
                }
            }
            core.view().heard(revision);
        }
    }

    /// The next message. Waits first while too many events wait for the framework: the broker then
    /// merges statuses and takes offers back.
    async fn read_on(&self, stream: &mut Streaming<fw::Event>) -> Result<(u64, Wire), End> {
        if !self.core.events.has_room() {
            self.core.stalled.store(true, Ordering::SeqCst);
            self.core.events.until_room().await;
        }
        self.core.stalled.store(false, Ordering::SeqCst);
        self.message(stream).await
    }

    /// The next message that this release understands, and its revision; silence is a dead stream.
    async fn message(&self, stream: &mut Streaming<fw::Event>) -> Result<(u64, Wire), End> {
        loop {
            let event = tokio::time::timeout(self.core.config.silence, stream.message())
                .await
                .map_err(|_| lost("silence: not even a heartbeat"))?
                .map_err(|status| End::from(advise(&status)))?
                .ok_or_else(|| lost("the master ended the stream"))?;
            // An empty event is one of a newer release.
            if let Some(message) = event.event {
                return Ok((event.revision, message));
            }
        }
    }

    fn offers(&self, wire_offers: fw::Offers) {
        let now = Instant::now();
        let mut offers = Vec::with_capacity(wire_offers.offers.len());
        for offer in wire_offers.offers {
            match Offer::from_wire(offer, now) {
                Ok(offer) => offers.push(offer),
                Err(error) => tracing::warn!(%error, "offer passed over; it will expire"),
            }
        }
        self.core.offers.push(offers);
    }

    fn rescinded(&self, rescinded: fw::Rescinded) {
        let ids = rescinded.offers.into_iter();
        let offers: Vec<_> = ids
            .filter_map(|id| wire::offer_id_from(Some(id)).ok())
            .collect();
        self.core.offers.rescind(&offers);
        let reason = rescinded.reason;
        let rescinded = Rescinded { offers, reason };
        self.core.events.push(Event::Rescinded(rescinded));
    }

    fn status(&self, mut update: TaskUpdate) {
        let receipt = self.core.view().receive(&mut update);
        match receipt {
            Receipt::New => self.core.events.push(Event::Update(update)),
            Receipt::Duplicate => {}
            Receipt::Handled => {
                acknowledge(&self.core, [(update.run(), update.sequence)]);
            }
        }
    }
}

fn lost(why: impl Into<String>) -> End {
    End::Lost {
        why: why.into(),
        after: Duration::ZERO,
    }
}

fn down(state: &mut LinkState) -> bool {
    let up = matches!(state, LinkState::Up(_));
    if up {
        *state = LinkState::Down;
    }
    up
}

fn add_page(arrived: &mut Arrived, page: fw::Snapshot) -> Result<()> {
    for run in page.runs {
        arrived.runs.push(wire::run_status_from(run)?);
    }
    for claim in page.claims {
        match wire::claim_from(claim) {
            Ok(claim) => arrived.claims.push(claim),
            Err(error) => tracing::warn!(%error, "claim passed over"),
        }
    }
    arrived.demand_version = arrived.demand_version.max(page.demand_version);
    for role in page.suppressed_roles {
        if !arrived.suppressed.contains(&role) {
            arrived.suppressed.push(role);
        }
    }
    Ok(())
}

fn moved_end(moved: fw::Moved) -> End {
    use mete_model::Code;
    let code: Option<Code> = moved.code.parse().ok();
    let leader = Some(moved.leader_address).filter(|address| !address.is_empty());
    if code == Some(Code::StaleIncarnation) {
        End::Over(Error::Superseded)
    } else if code == Some(Code::TornDown) {
        End::Over(Error::TornDown)
    } else if code == Some(Code::NotLeader) {
        End::Elsewhere(leader)
    } else {
        End::Lost {
            why: format!("{} (code {})", moved.detail, moved.code),
            after: Duration::from_millis(moved.retry_after_ms),
        }
    }
}

impl std::fmt::Display for End {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Elsewhere(Some(leader)) => write!(f, "the leader is at {leader}"),
            Self::Elsewhere(None) => f.write_str("the master no longer leads"),
            Self::Lost { why, .. } => f.write_str(why),
            Self::Over(error) => error.fmt(f),
        }
    }
}

/// The masters in turn; one that was named by a redirect, or that served last, goes first.
/// Those that a leader has named are tried before the given ones that it did not name.
#[derive(Debug)]
struct Masters {
    given: Vec<String>,
    known: Vec<String>,
    turn: usize,
    preferred: Option<String>,
}

impl Masters {
    fn new(given: Vec<String>) -> Self {
        Self {
            known: given.clone(),
            given,
            turn: 0,
            preferred: None,
        }
    }

    fn prefer(&mut self, address: String) {
        self.preferred = Some(address);
    }

    /// What the leader has named; a master of an older release names none.
    fn learn(&mut self, named: &[String]) {
        let named = named.iter().filter(|address| !address.is_empty());
        let mut known: Vec<String> = named.take(MOST_MASTERS).cloned().collect();
        if known.is_empty() {
            return;
        }
        for given in &self.given {
            if !known.contains(given) {
                known.push(given.clone());
            }
        }
        self.known = known;
    }

    fn next(&mut self) -> String {
        if let Some(address) = self.preferred.take() {
            return address;
        }
        let at = self.turn % self.known.len().max(1);
        self.turn = self.turn.wrapping_add(1);
        self.known.get(at).cloned().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_masters_are_tried_in_turn_and_a_hint_goes_first() {
        let mut masters = Masters::new(vec!["a".to_owned(), "b".to_owned()]);
        assert_eq!(masters.next(), "a");
        masters.prefer("c".to_owned());
        let tried: Vec<String> = (0..3).map(|_| masters.next()).collect();
        assert_eq!(tried, ["c", "b", "a"]);
    }

    #[test]
    fn masters_that_a_leader_names_are_tried_beside_those_that_were_given() {
        let mut masters = Masters::new(vec!["old".to_owned(), "a".to_owned()]);
        masters.learn(&["a", "", "b"].map(str::to_owned));
        let mut tried: Vec<String> = (0..3).map(|_| masters.next()).collect();
        tried.sort();
        assert_eq!(tried, ["a", "b", "old"]);

        masters.learn(&[]);
        assert_eq!(masters.known, ["a", "b", "old"], "nothing is no news");
        masters.learn(&(0..1_000).map(|n| format!("m{n}")).collect::<Vec<_>>());
        assert_eq!(masters.known.len(), MOST_MASTERS + 2, "bounded");
    }
}
