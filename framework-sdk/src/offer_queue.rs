//! Offers that came in and were not handed over yet. Beside the other events, so that a backlog of
//! statuses never makes them stale; bounded; what lapses while it waits is dropped.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

use mete_model::OfferId;
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::offers::Offer;

/// Offers that may wait; beyond it the oldest is dropped: it would lapse first.
const MOST_WAITING: usize = 100_000;

#[derive(Debug)]
pub(crate) struct OfferQueue {
    waiting: Mutex<VecDeque<Offer>>,
    bell: mpsc::Sender<()>,
}

impl OfferQueue {
    /// An empty queue that pulls this bell when something is put in.
    pub(crate) fn new(bell: mpsc::Sender<()>) -> Self {
        Self {
            waiting: Mutex::default(),
            bell,
        }
    }

    fn waiting(&self) -> std::sync::MutexGuard<'_, VecDeque<Offer>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn push(&self, offers: Vec<Offer>) {
        let mut waiting = self.waiting();
        waiting.extend(offers);
        let excess = waiting.len().saturating_sub(MOST_WAITING);
        waiting.drain(..excess);
        drop(waiting);
        // A bell that is already ringing needs no second pull.
        let _ = self.bell.try_send(());
    }

    pub(crate) fn rescind(&self, ids: &[OfferId]) {
        let ids: std::collections::HashSet<OfferId> = ids.iter().copied().collect();
        self.waiting().retain(|offer| !ids.contains(&offer.id));
    }

    pub(crate) fn clear(&self) {
        self.waiting().clear();
    }

    /// All that still stand.
    pub(crate) fn take(&self) -> Vec<Offer> {
        let now = Instant::now();
        self.waiting()
            .drain(..)
            .filter(|offer| offer.deadline > now)
            .collect()
    }
}
