//! The order of one framework's calls: by number, whatever order they arrived in.
//!
//! Pure: time is given. A call that comes too early waits for the ones before it, but no longer
//! than two seconds; one that comes again joins the one that is on its way. Numbers begin where the
//! client says that everything before is answered, so a new leader needs no memory of the old one.

use std::collections::{BTreeMap, btree_map::Entry};

use crate::event::{Monotonic, ReplyTo};
use crate::request::FrameworkAction;

/// Calls that may be unanswered at once.
pub const WINDOW: u64 = 1024;

/// How long a gap is waited for, in milliseconds.
pub const GAP: u64 = 2000;

/// A call that waits for those before it.
#[derive(Debug)]
pub struct Held {
    /// What it wants.
    pub action: FrameworkAction,
    /// Its header's `answered`.
    pub answered: u64,
    /// Everyone who sent it.
    pub replies: Vec<ReplyTo>,
    /// When it is refused.
    pub until: Monotonic,
}

/// What to do with a call that has arrived.
#[derive(Debug)]
pub enum Arrived {
    /// Do it now (in order, or a repeat of an older one that is not on its way).
    Now(FrameworkAction, ReplyTo),
    /// It waits; or it is on its way already and its answer goes to both.
    Waits,
    /// More calls are unanswered than the window holds.
    WindowFull(ReplyTo),
}

/// The calls of one incarnation.
#[derive(Debug, Default)]
pub struct Order {
    /// The number of the next call in order.
    next: u64,
    held: BTreeMap<u64, Held>,
    /// Logged and not applied yet; with those who sent the same call again meanwhile.
    on_the_way: BTreeMap<u64, Vec<ReplyTo>>,
}

impl Order {
    /// An order whose first call is number 1.
    #[must_use]
    pub fn new() -> Self {
        Self {
            next: 1,
            ..Self::default()
        }
    }

    /// Takes a call in. `call` is not 0.
    pub fn arrive(
        &mut self,
        call: u64,
        answered: u64,
        action: FrameworkAction,
        reply: ReplyTo,
        now: Monotonic,
    ) -> Arrived {
        self.next = self.next.max(answered.saturating_add(1));
        if let Some(others) = self.on_the_way.get_mut(&call) {
            others.push(reply);
            return Arrived::Waits;
        }
        if call < self.next || (call == self.next && self.held.is_empty()) {
            self.next = self.next.max(call.saturating_add(1));
            return Arrived::Now(action, reply);
        }
        if call.saturating_sub(answered) > WINDOW {
            return Arrived::WindowFull(reply);
        }
        match self.held.entry(call) {
            Entry::Occupied(mut held) => held.get_mut().replies.push(reply),
            Entry::Vacant(place) => {
                place.insert(Held {
                    action,
                    answered,
                    replies: vec![reply],
                    until: now.after(GAP),
                });
            }
        }
        Arrived::Waits
    }

    /// Puts a call back that could not be judged yet: it is the next again.
    pub fn put_back(&mut self, call: u64, held: Held) {
        self.next = self.next.min(call);
        self.held.insert(call, held);
    }

    /// The next call, if it is here.
    pub fn take_next(&mut self) -> Option<(u64, Held)> {
        // Numbers that the client has since declared answered are passed.
        let entry = self.held.first_entry()?;
        if *entry.key() > self.next {
            return None;
        }
        let (call, held) = entry.remove_entry();
        self.next = self.next.max(call.saturating_add(1));
        Some((call, held))
    }

    /// The call is logged and on its way.
    pub fn sent(&mut self, call: u64) {
        self.on_the_way.insert(call, Vec::new());
    }

    /// The call is applied, or will never be: gives everyone who sent it again meanwhile.
    pub fn done(&mut self, call: u64) -> Vec<ReplyTo> {
        self.on_the_way.remove(&call).unwrap_or_default()
    }

    /// The call was refused before it was logged, and comes again: until then none after it may
    /// pass. Does nothing for a call without a number.
    pub fn comes_again(&mut self, call: u64) {
        if call != 0 {
            self.next = self.next.min(call);
        }
    }

    /// Says whether a call waits for those before it.
    #[must_use]
    pub fn is_holding(&self) -> bool {
        !self.held.is_empty()
    }

    /// Says whether a call is on its way through the log.
    #[must_use]
    pub fn is_busy(&self) -> bool {
        !self.on_the_way.is_empty()
    }

    /// Calls whose gap was waited for long enough: to be refused with `CALL_GAP`.
    pub fn take_overdue(&mut self, now: Monotonic) -> Vec<(u64, Held)> {
        if self.held.values().all(|held| held.until > now) || self.is_busy() {
            return Vec::new();
        }
        let overdue: Vec<u64> = self
            .held
            .iter()
            .filter(|(_, held)| held.until <= now)
            .map(|(call, _)| *call)
            .collect();
        overdue
            .into_iter()
            .filter_map(|call| self.held.remove(&call).map(|held| (call, held)))
            .collect()
    }

    /// The number that is missing.
    #[must_use]
    pub fn next(&self) -> u64 {
        self.next
    }

    /// Everyone who waits for an answer, when the incarnation or the term is over.
    pub fn into_replies(self) -> impl Iterator<Item = ReplyTo> {
        let held = self.held.into_values().flat_map(|held| held.replies);
        held.chain(self.on_the_way.into_values().flatten())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::sync::oneshot;

    fn reply() -> ReplyTo {
        oneshot::channel().0
    }

    #[test]
    fn a_call_that_was_refused_for_now_is_not_passed_by_later_ones() {
        let mut order = Order::new();
        assert!(matches!(arrive(&mut order, 1, 0, 0), Arrived::Now(..)));
        order.sent(1);
        order.done(1);
        order.comes_again(1);

        assert!(matches!(arrive(&mut order, 2, 0, 1), Arrived::Waits));
        assert!(order.take_next().is_none(), "call 2 waits for call 1");
        assert!(matches!(arrive(&mut order, 1, 0, 2), Arrived::Waits));
        let order_of_calls = [order.take_next(), order.take_next()];
        let order_of_calls = order_of_calls.map(|call| call.map(|(call, _)| call));
        assert_eq!(order_of_calls, [Some(1), Some(2)]);
    }

    fn arrive(order: &mut Order, call: u64, answered: u64, now: u64) -> Arrived {
        order.arrive(
            call,
            answered,
            FrameworkAction::Read,
            reply(),
            Monotonic(now),
        )
    }

    #[test]
    fn calls_are_done_in_the_order_of_their_numbers() {
        let mut order = Order::new();
        assert!(matches!(arrive(&mut order, 3, 0, 0), Arrived::Waits));
        assert!(matches!(arrive(&mut order, 2, 0, 0), Arrived::Waits));
        assert!(order.take_next().is_none(), "1 is missing");

        assert!(matches!(arrive(&mut order, 1, 0, 0), Arrived::Waits));

        let mut done = Vec::new();
        while let Some((call, _)) = order.take_next() {
            done.push(call);
        }
        assert_eq!(done, [1, 2, 3]);
        assert!(matches!(arrive(&mut order, 4, 0, 0), Arrived::Now(..)));
    }

    #[test]
    fn a_gap_is_waited_for_two_seconds_and_then_refused_alone() {
        let mut order = Order::new();
        arrive(&mut order, 2, 0, 100);
        arrive(&mut order, 3, 0, 1500);

        assert!(order.take_overdue(Monotonic(2099)).is_empty());
        let overdue: Vec<u64> = order
            .take_overdue(Monotonic(2100))
            .into_iter()
            .map(|(call, _)| call)
            .collect();
        assert_eq!(overdue, [2]);
        // Sent again in order, all three are done.
        assert!(matches!(arrive(&mut order, 1, 0, 2200), Arrived::Waits));
        assert!(matches!(order.take_next(), Some((1, _))));
        assert!(matches!(arrive(&mut order, 2, 0, 2200), Arrived::Waits));
        assert!(matches!(order.take_next(), Some((2, _))));
        assert!(matches!(order.take_next(), Some((3, _))));
    }

    #[test]
    fn a_new_leader_begins_where_the_client_says_that_all_is_answered() {
        let mut order = Order::new();
        assert!(matches!(arrive(&mut order, 501, 500, 0), Arrived::Now(..)));
        // A repeat of a call that another leader has answered is done again, by its key.
        assert!(matches!(arrive(&mut order, 7, 6, 0), Arrived::Now(..)));
    }

    #[test]
    fn a_repeat_joins_the_call_that_is_on_its_way() {
        let mut order = Order::new();
        assert!(matches!(arrive(&mut order, 1, 0, 0), Arrived::Now(..)));
        order.sent(1);
        assert!(matches!(arrive(&mut order, 1, 0, 0), Arrived::Waits));
        assert_eq!(order.done(1).len(), 1);
        assert!(!order.is_busy());
    }

    #[test]
    fn the_window_bounds_what_waits() {
        let mut order = Order::new();
        assert!(matches!(arrive(&mut order, 1024, 0, 0), Arrived::Waits));
        assert!(matches!(
            arrive(&mut order, 1025, 0, 0),
            Arrived::WindowFull(_)
        ));
    }
}
