//! Events that came in and were not handed over yet, in the order in which the broker sent them.
//!
//! Putting one in never waits, so that a framework whose handler waits for an answer cannot keep
//! its own session from finding a new leader. The bound is kept by the driver, which does not read
//! on while there is no room: what stands here is at the most the bound, one snapshot's statuses,
//! and one word about the stream.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::{Notify, mpsc};

use crate::event::Event;
use crate::task::TaskUpdate;

/// Events that wait for the handler; beyond it reading stops, and the broker merges statuses.
const MOST_WAITING: usize = 65_536;

#[derive(Debug, Default)]
struct Waiting {
    events: VecDeque<Event>,
    /// How many of them say that a stream was opened.
    openings: usize,
    /// Nobody will ever take anything out.
    deaf: bool,
}

#[derive(Debug)]
pub(crate) struct EventQueue {
    waiting: Mutex<Waiting>,
    bell: mpsc::Sender<()>,
    /// Rings when there is room again.
    room: Notify,
}

impl EventQueue {
    /// An empty queue that pulls this bell when something is put in.
    pub(crate) fn new(bell: mpsc::Sender<()>) -> Self {
        Self {
            waiting: Mutex::default(),
            bell,
            room: Notify::new(),
        }
    }

    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn push(&self, event: Event) {
        let mut waiting = self.waiting();
        if waiting.deaf {
            return;
        }
        if matches!(event, Event::Disconnected(_)) {
            // Of streams that came and went unheard only the last word counts.
            let events = &mut waiting.events;
            events.retain(|event| !matches!(event, Event::Connected(_) | Event::Disconnected(_)));
            waiting.openings = 0;
        }
        waiting.openings += usize::from(matches!(event, Event::Connected(_)));
        waiting.events.push_back(event);
        drop(waiting);
        // A bell that is already ringing needs no second pull.
        let _ = self.bell.try_send(());
    }

    pub(crate) fn pop(&self) -> Option<Event> {
        let mut waiting = self.waiting();
        let event = waiting.events.pop_front();
        let opened = matches!(event, Some(Event::Connected(_)));
        waiting.openings -= usize::from(opened);
        self.tell_room(waiting);
        event
    }

    /// The updates at its head, `most` at the most.
    pub(crate) fn pop_updates(&self, most: usize) -> Vec<TaskUpdate> {
        let mut updates = Vec::new();
        let mut waiting = self.waiting();
        while updates.len() < most && matches!(waiting.events.front(), Some(Event::Update(_))) {
            if let Some(Event::Update(update)) = waiting.events.pop_front() {
                updates.push(update);
            }
        }
        self.tell_room(waiting);
        updates
    }

    /// Says whether it is still to be told where things stand. Offers wait for that: whoever filled
    /// them before would start what may be running.
    pub(crate) fn has_opening(&self) -> bool {
        self.waiting().openings > 0
    }

    fn tell_room(&self, waiting: MutexGuard<'_, Waiting>) {
        let has_room = waiting.events.len() < MOST_WAITING;
        drop(waiting);
        if has_room {
            self.room.notify_one();
        }
    }

    pub(crate) fn has_room(&self) -> bool {
        self.waiting().events.len() < MOST_WAITING
    }

    /// Waits until there is room. Nothing is lost when it is dropped.
    pub(crate) async fn until_room(&self) {
        while !self.has_room() {
            self.room.notified().await;
        }
    }

    /// Drops everything, now and later: nobody listens any more.
    pub(crate) fn close(&self) {
        let mut waiting = self.waiting();
        waiting.deaf = true;
        waiting.events.clear();
        waiting.openings = 0;
        self.tell_room(waiting);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::Connected;

    fn queue() -> EventQueue {
        EventQueue::new(mpsc::channel(1).0)
    }

    #[test]
    fn streams_that_came_and_went_unheard_leave_one_word() {
        let queue = queue();
        for number in 0..100 {
            queue.push(Event::Connected(Connected::default()));
            queue.push(Event::Disconnected(number.to_string()));
        }
        assert!(!queue.has_opening());
        assert!(matches!(queue.pop(), Some(Event::Disconnected(why)) if why == "99"));
        assert!(queue.pop().is_none());
        queue.push(Event::Connected(Connected::default()));
        assert!(queue.has_opening());
        assert!(queue.pop().is_some());
        assert!(!queue.has_opening());
    }

    #[tokio::test]
    async fn a_full_queue_takes_more_and_says_when_there_is_room() {
        let queue = queue();
        for _ in 0..=MOST_WAITING {
            queue.push(Event::Rescinded(crate::event::Rescinded::default()));
        }
        assert!(!queue.has_room());
        for _ in 0..2 {
            assert!(queue.pop().is_some());
        }
        queue.until_room().await;
        queue.close();
        queue.push(Event::Disconnected(String::new()));
        assert!(queue.pop().is_none(), "nobody listens");
    }
}
