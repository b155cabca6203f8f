//! What waits to be sent to one agent.
//!
//! Everything in here is owed by the state (starts, kills) or harmless to lose (forgets, beacons;
//! discards, if the stream ends with them): a message that finds no room is dropped and the queue
//! remembers it, so that the loop sends what is owed again once the reader has caught up.

use std::collections::VecDeque;

use mete_proto::agent::v1::{MasterMessage, Redirect, master_message::Message};

use super::outbox::{Outbox, Popped, Queue};

/// The outbox of one agent's stream.
pub type AgentOutbox = Outbox<AgentQueue>;

/// Messages for one agent, in order, bounded by bytes.
#[derive(Debug)]
pub struct AgentQueue {
    waiting: VecDeque<(Message, usize)>,
    bytes: usize,
    most_bytes: usize,
    lagging: bool,
    drained: bool,
    ended: bool,
}

impl AgentQueue {
    /// An empty queue for at most `most_bytes`.
    #[must_use]
    pub fn new(most_bytes: usize) -> Self {
        Self {
            waiting: VecDeque::new(),
            bytes: 0,
            most_bytes,
            lagging: false,
            drained: false,
            ended: false,
        }
    }

    /// Queues the first messages of the stream. Bounded by what the agent has said it holds, not by
    /// bytes: the state does not owe them, so none may be dropped.
    pub fn open(&mut self, messages: impl IntoIterator<Item = Message>) {
        if self.ended {
            return;
        }
        for message in messages {
            let bytes = message.encoded_len();
            self.bytes = self.bytes.saturating_add(bytes);
            self.waiting.push_back((message, bytes));
        }
    }

    /// Queues a message; false if there was no room and it was dropped.
    pub fn push(&mut self, message: Message) -> bool {
        if self.ended {
            return false;
        }
        let bytes = message.encoded_len();
        // A message larger than the whole limit still goes into an empty queue.
        if !self.waiting.is_empty() && self.bytes.saturating_add(bytes) > self.most_bytes {
            self.lagging = true;
            return false;
        }
        self.bytes = self.bytes.saturating_add(bytes);
        self.waiting.push_back((message, bytes));
        true
    }

    /// Queues a last message and ends the stream after it. What waits is dropped: it is owed.
    pub fn end(&mut self, last: Redirect) {
        if self.ended {
            return;
        }
        self.waiting.clear();
        self.waiting.push_back((Message::Redirect(last), 0));
        self.bytes = 0;
        self.ended = true;
    }

    /// Bytes that wait.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Queue for AgentQueue {
    type Item = Result<MasterMessage, tonic::Status>;

    fn pop(&mut self) -> Popped<Self::Item> {
        match self.waiting.pop_front() {
            Some((message, bytes)) => {
                self.bytes = self.bytes.saturating_sub(bytes);
                if self.waiting.is_empty() && self.lagging {
                    self.lagging = false;
                    self.drained = true;
                }
                Popped::Item(Ok(MasterMessage {
                    message: Some(message),
                }))
            }
            None if self.ended => Popped::End,
            None => Popped::Empty,
        }
    }

    fn take_drained(&mut self) -> bool {
        std::mem::take(&mut self.drained)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mete_proto::agent::v1::{KillTask, KillTasks, MasterBeacon};

    fn kills(count: usize) -> Message {
        let tasks = vec![
            KillTask {
                reason: "x".repeat(100),
                ..KillTask::default()
            };
            count
        ];
        Message::KillTasks(KillTasks { tasks })
    }

    #[test]
    fn a_full_queue_drops_what_is_owed_and_says_once_when_it_is_empty_again() {
        let mut queue = AgentQueue::new(1000);
        assert!(queue.push(kills(5)));
        assert!(!queue.push(kills(5)), "no room for the second");
        assert!(!queue.take_drained());

        assert!(matches!(queue.pop(), Popped::Item(_)));

        assert!(queue.take_drained());
        assert!(!queue.take_drained(), "only once");
        assert_eq!(queue.bytes(), 0);
        assert!(matches!(queue.pop(), Popped::Empty));
    }

    #[test]
    fn a_message_above_the_limit_goes_alone() {
        let mut queue = AgentQueue::new(100);
        assert!(queue.push(kills(50)));
        assert!(!queue.push(Message::Beacon(MasterBeacon {
            term: 3,
            heard: None
        })));
    }

    #[test]
    fn an_end_is_the_last_thing_the_agent_hears() {
        let mut queue = AgentQueue::new(1000);
        queue.push(kills(1));
        queue.end(Redirect {
            code: "NOT_LEADER".to_owned(),
            ..Redirect::default()
        });
        assert!(!queue.push(kills(1)));

        let Popped::Item(Ok(last)) = queue.pop() else {
            panic!("the redirect leaves");
        };
        assert!(matches!(last.message, Some(Message::Redirect(_))));
        assert!(matches!(queue.pop(), Popped::End));
    }
}
