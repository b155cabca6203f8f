//! Virtual time: what happens next, in order of time and, at one moment, of asking.

use std::collections::BTreeMap;

/// Microseconds since the world began.
pub(crate) type Time = u64;

/// A millisecond.
pub(crate) const MILLISECOND: Time = 1_000;
/// A second.
pub(crate) const SECOND: Time = 1_000_000;

/// Everything that will happen.
#[derive(Debug)]
pub(crate) struct Agenda<T> {
    now: Time,
    asked: u64,
    waiting: BTreeMap<(Time, u64), T>,
}

impl<T> Agenda<T> {
    pub(crate) fn new() -> Self {
        Self {
            now: 0,
            asked: 0,
            waiting: BTreeMap::new(),
        }
    }

    pub(crate) fn now(&self) -> Time {
        self.now
    }

    /// Lets something happen at this moment, or at once when that is over.
    pub(crate) fn at(&mut self, time: Time, what: T) {
        self.asked += 1;
        self.waiting.insert((time.max(self.now), self.asked), what);
    }

    pub(crate) fn after(&mut self, delay: Time, what: T) {
        self.at(self.now.saturating_add(delay), what);
    }

    /// The next thing; time goes on to its moment.
    pub(crate) fn pop(&mut self) -> Option<T> {
        let ((time, _), what) = self.waiting.pop_first()?;
        self.now = time;
        Some(what)
    }
}
