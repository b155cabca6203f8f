//! The numbered statuses of one run, kept until the broker has them.

use std::collections::VecDeque;

use mete_model::Status;

/// Statuses of one run that the broker has not confirmed, and the next number.
#[derive(Debug)]
pub(super) struct Updates {
    next_sequence: u64,
    unconfirmed: VecDeque<Status>,
}

impl Default for Updates {
    fn default() -> Self {
        Self {
            next_sequence: 1,
            unconfirmed: VecDeque::new(),
        }
    }
}

impl Updates {
    /// What a checkpoint says of them.
    pub(super) fn restored(next_sequence: u64, unconfirmed: Vec<Status>) -> Self {
        let last = unconfirmed.last().map_or(0, |status| status.sequence);
        Self {
            next_sequence: next_sequence.max(last.saturating_add(1)).max(1),
            unconfirmed: unconfirmed.into(),
        }
    }

    /// The highest number given so far; 0 = none.
    pub(super) fn last_sequence(&self) -> u64 {
        self.next_sequence.saturating_sub(1)
    }

    /// Numbers a status and keeps it.
    pub(super) fn number(&mut self, mut status: Status) -> Status {
        status.sequence = self.next_sequence;
        self.next_sequence = self.next_sequence.saturating_add(1);
        self.unconfirmed.push_back(status.clone());
        status
    }

    /// In order.
    pub(super) fn unconfirmed(&self) -> impl Iterator<Item = &Status> {
        self.unconfirmed.iter()
    }

    /// Everything is with the broker.
    pub(super) fn is_settled(&self) -> bool {
        self.unconfirmed.is_empty()
    }

    /// Drops what the broker has.
    ///
    /// A number above all of ours means that this agent has lost its memory of the run and the
    /// broker has heard more than we know: the last of what is unconfirmed, which says where the
    /// run is now, gets a number above it and is returned to be sent again.
    pub(super) fn confirm(&mut self, sequence: u64) -> Option<Status> {
        if sequence <= self.last_sequence() {
            while self
                .unconfirmed
                .front()
                .is_some_and(|status| status.sequence <= sequence)
            {
                self.unconfirmed.pop_front();
            }
            return None;
        }
        self.next_sequence = sequence.saturating_add(1);
        let mut last = self.unconfirmed.pop_back()?;
        last.coalesced = last.coalesced || !self.unconfirmed.is_empty();
        self.unconfirmed.clear();
        Some(self.number(last))
    }
}
