//! What the parts of one session share. Each part has its own small lock; none is held across an
//! await, and no two are held together.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use mete_model::RolePath;
use rand::RngExt as _;
use tokio::sync::{Notify, Semaphore, mpsc, watch};
use tonic::transport::Channel;

use crate::acknowledge::AcknowledgeQueue;
use crate::client::{FrameworkServiceClient, SharedDial};
use crate::demand::DemandQueue;
use crate::error::{Error, Reason, Result};
use crate::event_queue::EventQueue;
use crate::offer_queue::OfferQueue;
use crate::session::{Connection, SessionConfig};
use crate::view::View;

/// Unanswered calls at most; the broker refuses from 1 024 on.
const WINDOW: usize = 512;

/// Where calls go at the moment.
#[derive(Clone, Debug)]
pub(crate) enum LinkState {
    Down,
    Up(Link),
    Closed(Error),
}

/// An open stream's channel and the identity it was opened with.
#[derive(Clone, Debug)]
pub(crate) struct Link {
    /// Rises with each stream.
    pub(crate) generation: u64,
    pub(crate) client: FrameworkServiceClient<Channel>,
    pub(crate) identity: Identity,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    pub(crate) framework_id: String,
    pub(crate) incarnation: u64,
}

/// Call numbers: which come next, which are still open, which were refused for now.
#[derive(Debug)]
pub(crate) struct Numbers {
    next: u64,
    open: BTreeSet<u64>,
    /// Open ones that were refused for now, and why: none above the lowest is sent before it is
    /// answered.
    refused: BTreeMap<u64, Reason>,
}

impl Numbers {
    fn new() -> Self {
        Self {
            next: 1,
            open: BTreeSet::new(),
            refused: BTreeMap::new(),
        }
    }

    /// The next number; it stays open until [`Core::close_number`].
    pub(crate) fn take(&mut self) -> u64 {
        let number = self.next;
        self.next += 1;
        self.open.insert(number);
        number
    }

    fn close(&mut self, number: u64) {
        self.open.remove(&number);
        self.refused.remove(&number);
    }

    /// Up to which number calls may be sent.
    fn gate(&self) -> u64 {
        self.refused.keys().next().copied().unwrap_or(u64::MAX)
    }

    /// All calls up to here have been answered.
    pub(crate) fn answered(&self) -> u64 {
        self.open.first().copied().unwrap_or(self.next) - 1
    }
}

#[derive(Debug)]
pub(crate) struct Core {
    pub(crate) config: SessionConfig,
    pub(crate) roles: Mutex<Vec<RolePath>>,
    /// Who the broker says we are; kept while the stream is down.
    pub(crate) identity: Mutex<Option<Identity>>,
    view: Mutex<View>,
    numbers: Mutex<Numbers>,
    /// [`Numbers::gate`], as something to wait on.
    gate: watch::Sender<u64>,
    pub(crate) offers: OfferQueue,
    pub(crate) events: EventQueue,
    /// The driver reads nothing, because too many events wait for the framework.
    pub(crate) stalled: AtomicBool,
    pub(crate) demand: Mutex<DemandQueue>,
    pub(crate) acknowledge: Mutex<AcknowledgeQueue>,
    /// Rings when an acknowledgement was sent and none is left.
    pub(crate) acknowledged_all: Notify,
    pub(crate) window: Arc<Semaphore>,
    pub(crate) link: watch::Sender<LinkState>,
    pub(crate) connection: watch::Sender<Connection>,
    /// A call was told to go elsewhere: the link's generation, and where to.
    redirect: Mutex<Option<(u64, Option<String>)>>,
    pub(crate) redirect_bell: Notify,
    /// Somebody wants the runner's `tick` soon.
    pub(crate) wake: Notify,
    run_number: AtomicU64,
    teardown_asked: AtomicBool,
}

pub(crate) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // No holder of these locks can panic half-way through a change that others would misread.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Core {
    /// `bell` is pulled when there is something for the framework.
    pub(crate) fn new(
        config: SessionConfig,
        roles: Vec<RolePath>,
        bell: mpsc::Sender<()>,
    ) -> Arc<Self> {
        Arc::new(Self {
            config,
            roles: Mutex::new(roles),
            identity: Mutex::default(),
            view: Mutex::default(),
            numbers: Mutex::new(Numbers::new()),
            gate: watch::Sender::new(u64::MAX),
            offers: OfferQueue::new(bell.clone()),
            events: EventQueue::new(bell),
            stalled: AtomicBool::new(false),
            demand: Mutex::default(),
            acknowledge: Mutex::default(),
            acknowledged_all: Notify::new(),
            window: Arc::new(Semaphore::new(WINDOW)),
            link: watch::Sender::new(LinkState::Down),
            connection: watch::Sender::new(Connection::Connecting),
            redirect: Mutex::default(),
            redirect_bell: Notify::new(),
            wake: Notify::new(),
            run_number: AtomicU64::new(0),
            teardown_asked: AtomicBool::new(false),
        })
    }

    pub(crate) fn view(&self) -> MutexGuard<'_, View> {
        locked(&self.view)
    }

    pub(crate) fn numbers(&self) -> MutexGuard<'_, Numbers> {
        locked(&self.numbers)
    }

    /// The call has its answer, or will never be sent again.
    pub(crate) fn close_number(&self, number: u64) {
        let mut numbers = self.numbers();
        numbers.close(number);
        self.gate.send_replace(numbers.gate());
    }

    /// The call was refused for now: those after it wait until it is answered. A master may have
    /// passed its number already, and would do them first.
    pub(crate) fn refuse_number(&self, number: u64, reason: &Reason) {
        if number == 0 {
            return;
        }
        let mut numbers = self.numbers();
        if numbers.open.contains(&number) {
            numbers.refused.insert(number, reason.clone());
        }
        self.gate.send_replace(numbers.gate());
    }

    /// Why the call that others wait for was refused.
    pub(crate) fn why_refused(&self) -> Option<Reason> {
        self.numbers().refused.values().next().cloned()
    }

    /// Waits until no call before this one is refused for now.
    pub(crate) async fn turn_of(&self, number: u64) {
        let mut gate = self.gate.subscribe();
        // The sender lives as long as this does.
        drop(gate.wait_for(|gate| number <= *gate).await);
    }

    pub(crate) fn next_run_number(&self) -> u64 {
        self.run_number.fetch_add(1, Ordering::Relaxed) + 1
    }

    pub(crate) fn ask_teardown(&self) {
        self.teardown_asked.store(true, Ordering::SeqCst);
    }

    pub(crate) fn teardown_asked(&self) -> bool {
        self.teardown_asked.load(Ordering::SeqCst)
    }

    /// Ends the session: every call, waiting or later, gets `why`. The first reason stays.
    pub(crate) fn close(&self, why: Error) {
        self.link.send_if_modified(|state| {
            if matches!(state, LinkState::Closed(_)) {
                return false;
            }
            *state = LinkState::Closed(why.clone());
            true
        });
        self.offers.clear();
        self.connection.send_replace(Connection::Closed);
    }

    /// Why the session is over, if it is.
    pub(crate) fn closed(&self) -> Option<Error> {
        match &*self.link.borrow() {
            LinkState::Closed(why) => Some(why.clone()),
            LinkState::Down | LinkState::Up(_) => None,
        }
    }

    /// Waits until the session is over.
    pub(crate) async fn until_closed(&self) -> Error {
        let mut states = self.link.subscribe();
        let state = states
            .wait_for(|state| matches!(state, LinkState::Closed(_)))
            .await;
        match state.as_deref() {
            Ok(LinkState::Closed(why)) => why.clone(),
            Ok(LinkState::Down | LinkState::Up(_)) | Err(_) => Error::Closed,
        }
    }

    /// Waits for a link newer than `generation`; 0 takes any.
    pub(crate) async fn link_after(&self, generation: u64) -> Result<Link> {
        let mut states = self.link.subscribe();
        let state = states
            .wait_for(|state| match state {
                LinkState::Down => false,
                LinkState::Up(link) => link.generation > generation,
                LinkState::Closed(_) => true,
            })
            .await;
        match state.as_deref() {
            Ok(LinkState::Up(link)) => Ok(link.clone()),
            Ok(LinkState::Closed(why)) => Err(why.clone()),
            Ok(LinkState::Down) | Err(_) => Err(Error::Closed),
        }
    }

    /// Returns once the link of this generation is no longer the present one.
    pub(crate) async fn link_lost(&self, generation: u64) {
        let mut states = self.link.subscribe();
        let lost = states.wait_for(|state| match state {
            LinkState::Up(link) => link.generation != generation,
            LinkState::Down | LinkState::Closed(_) => true,
        });
        drop(lost.await);
    }

    /// A call over this link was told to go elsewhere.
    pub(crate) fn redirect(&self, generation: u64, leader: Option<String>) {
        *locked(&self.redirect) = Some((generation, leader));
        self.redirect_bell.notify_one();
    }

    /// A call over this link failed. While the driver reads, it notices by itself when the link is
    /// dead; while it does not, a connection that fails is reason enough for another one.
    pub(crate) fn doubt(&self, generation: u64, reason: &Reason) {
        if reason.known_code().is_none() && self.stalled.load(Ordering::SeqCst) {
            self.redirect(generation, None);
        }
    }

    pub(crate) fn take_redirect(&self, generation: u64) -> Option<Option<String>> {
        let mut slot = locked(&self.redirect);
        match slot.take() {
            Some((of, leader)) if of == generation => Some(leader),
            Some(_) | None => None,
        }
    }

    pub(crate) fn dial(&self) -> &SharedDial {
        &self.config.dial
    }
}

/// Full jitter between nothing and a bound that doubles from 50 ms to 5 s.
#[derive(Debug, Default)]
pub(crate) struct Backoff {
    failures: u32,
}

impl Backoff {
    const FIRST_MS: u64 = 50;
    const LAST_MS: u64 = 5_000;

    pub(crate) fn next(&mut self) -> Duration {
        let bound = Self::FIRST_MS
            .saturating_mul(1 << self.failures.min(10))
            .min(Self::LAST_MS);
        self.failures = self.failures.saturating_add(1);
        Duration::from_millis(rand::rng().random_range(0..=bound))
    }

    pub(crate) fn reset(&mut self) {
        self.failures = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answered_stops_below_the_oldest_open_call() {
        let mut numbers = Numbers::new();
        assert_eq!(numbers.answered(), 0);
        let (first, second) = (numbers.take(), numbers.take());
        numbers.close(second);
        assert_eq!(numbers.answered(), 0);
        numbers.close(first);
        assert_eq!(numbers.answered(), 2);
    }

    #[test]
    fn backing_off_never_waits_longer_than_five_seconds() {
        let mut backoff = Backoff::default();
        assert!(backoff.next() <= Duration::from_millis(50));
        for _ in 0..100 {
            assert!(backoff.next() <= Duration::from_secs(5));
        }
    }
}
