//! One element of a job: its state in four bytes, and what is only in memory.

use std::collections::BTreeSet;

use mete_sdk::Exit;
use mete_sdk::model::{Timestamp, Usage};

/// Where an element is. Only final states end it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum State {
    /// Not launched, or to be launched again.
    Pending,
    /// Launched and not over.
    Running,
    /// To be ended, by the user's word; it may still run.
    Cancelling,
    /// Exit code 0.
    Completed,
    /// Another code, a signal, or it could not be started.
    Failed,
    /// Passed its time limit.
    Timeout,
    /// By the user's or an operator's word.
    Cancelled,
    /// Its node was lost too often.
    NodeFail,
    /// Passed its memory limit.
    OutOfMemory,
}

impl State {
    const ALL: [Self; 9] = [
        Self::Pending,
        Self::Running,
        Self::Cancelling,
        Self::Completed,
        Self::Failed,
        Self::Timeout,
        Self::Cancelled,
        Self::NodeFail,
        Self::OutOfMemory,
    ];

    /// Nothing comes after it.
    #[must_use]
    pub fn is_final(self) -> bool {
        self >= Self::Completed
    }

    fn to_byte(self) -> u8 {
        let at = Self::ALL.iter().position(|state| *state == self);
        at.and_then(|at| u8::try_from(at).ok()).unwrap_or(0)
    }

    fn from_byte(byte: u8) -> Option<Self> {
        Self::ALL.get(usize::from(byte)).copied()
    }
}

/// Bytes of one element in the store.
pub const STORED_BYTES: usize = 4;

/// One element.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Element {
    /// Where it is.
    pub state: State,
    /// Attempts that are over; the present one, if any, is the next number.
    pub attempts: u8,
    /// Of these, how many ended for reasons that are not the command's own.
    pub requeues: u8,
    /// How the last attempt ended.
    pub exit: Option<Exit>,
    /// Of an ended element it is kept within the bounds of [`crate::details`].
    pub present: Option<Box<Present>>,
    /// Attempts in a row that could not be set up, in this process's life.
    pub unprepared: Option<Box<Unprepared>>,
}

/// Attempts in a row that could not be set up; not stored.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Unprepared {
    /// How many.
    pub attempts: u8,
    /// On which nodes.
    pub nodes: BTreeSet<String>,
}

/// What is known of an element's present or last attempt; stored once the element has ended.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Present {
    /// The attempt, from 1.
    pub attempt: u32,
    /// Node's name.
    pub node: String,
    /// Its agent.
    pub agent: String,
    /// Its node API.
    pub node_address: String,
    /// When the command began.
    pub started: Timestamp,
    /// When it ended.
    pub ended: Timestamp,
    /// Stable reason of the end.
    pub reason: String,
    /// For people.
    pub message: String,
    /// What it used.
    pub usage: Option<Usage>,
    /// The command runs: `Running` was heard.
    pub running: bool,
}

impl Default for Element {
    fn default() -> Self {
        Self {
            state: State::Pending,
            attempts: 0,
            requeues: 0,
            exit: None,
            present: None,
            unprepared: None,
        }
    }
}

impl Element {
    /// The number of the present or next attempt.
    #[must_use]
    pub fn attempt(&self) -> u32 {
        u32::from(self.attempts).saturating_add(1)
    }

    /// What is kept of it: state, attempts, requeues and signal flag, exit.
    ///
    /// `Running` is not stored: what runs is in the broker's own snapshot.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; STORED_BYTES] {
        let state = if self.state == State::Running {
            State::Pending
        } else {
            self.state
        };
        let (signal, exit) = match self.exit {
            None => (0, 0),
            Some(Exit::Code(code)) => (1, code),
            Some(Exit::Signal(signal)) => (2, signal),
        };
        [
            state.to_byte(),
            self.attempts,
            (self.requeues.min(63) << 2) | signal,
            exit,
        ]
    }

    /// What was kept.
    #[must_use]
    pub fn from_bytes(bytes: [u8; STORED_BYTES]) -> Option<Self> {
        let [state, attempts, requeues, exit] = bytes;
        Some(Self {
            state: State::from_byte(state)?,
            attempts,
            requeues: requeues >> 2,
            exit: match requeues & 3 {
                1 => Some(Exit::Code(exit)),
                2 => Some(Exit::Signal(exit)),
                _ => None,
            },
            present: None,
            unprepared: None,
        })
    }
}
