//! The state machine as the replica drives it: bytes in, outcomes out.
//!
//! The only writer of the shared state. Readers hold it for one page only, so a command waits for
//! microseconds at the most. An entry that cannot be decoded ends the process: a replica that skips
//! a committed command is no replica any more. A level of commands that this release does not know
//! is an error, with nothing applied.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::sync::{Arc, PoisonError, RwLock};

use mete_model::Timestamp;
use mete_state::{Command, LEVEL, Outcome, Part, Records, Rejection, State};

use crate::format;
use crate::handle::SharedState;
use crate::replica::{Image, Machine, RestoreError};
use crate::store::TooNew;

/// One applied command and what came of it.
#[derive(Clone, Debug)]
pub struct Done {
    /// Its place in the log.
    pub revision: u64,
    /// When it counts as done.
    pub at: Timestamp,
    /// What it was.
    pub command: Command,
    /// What came of it.
    pub result: Result<Outcome, Rejection>,
}

/// The state behind its lock.
#[derive(Debug)]
pub struct StateMachine {
    state: SharedState,
    /// The highest level of commands that it applies.
    knows: u32,
}

impl StateMachine {
    /// A machine with an empty state.
    #[must_use]
    pub fn new() -> Self {
        Self {
            state: Arc::new(RwLock::new(State::new())),
            knows: LEVEL,
        }
    }

    /// The machine of a new cluster whose founders are known by address: the same on all of them.
    /// On a store that is not new it is replaced by what is there.
    #[must_use]
    pub fn founding(founders: &BTreeMap<u64, String>) -> Self {
        Self {
            state: Arc::new(RwLock::new(State::founded(founders))),
            knows: LEVEL,
        }
    }

    /// The same for a release that knows commands up to `level`.
    #[must_use]
    pub fn knowing(self, level: u32) -> Self {
        Self {
            knows: level,
            ..self
        }
    }

    /// The state, for readers.
    #[must_use]
    pub fn shared(&self) -> SharedState {
        Arc::clone(&self.state)
    }
}

impl Default for StateMachine {
    fn default() -> Self {
        Self::new()
    }
}

impl Machine for StateMachine {
    type Outcome = Done;
    type Image = StateImage;

    fn apply(&mut self, index: u64, _term: u64, command: &[u8]) -> Result<Done, TooNew> {
        let stamped = match format::decode_command(command) {
            Ok(stamped) => stamped,
            Err(error) => panic!("entry {index} of the log cannot be applied: {error}"),
        };
        if let Command::RaiseLevel { level } = stamped.command {
            known(level, self.knows)?;
        }
        let mut state = self.state.write().unwrap_or_else(PoisonError::into_inner);
        let result = state.apply(index, &stamped);
        Ok(Done {
            revision: index,
            at: state.clock(),
            command: stamped.command,
            result,
        })
    }

    fn image(&self) -> StateImage {
        let state = self.state.read().unwrap_or_else(PoisonError::into_inner);
        StateImage {
            records: state.records(),
        }
    }

    fn restore(&mut self, source: &mut dyn Read) -> Result<(), RestoreError> {
        let restored = restore(source, self.knows)?;
        let mut state = self.state.write().unwrap_or_else(PoisonError::into_inner);
        *state = restored;
        Ok(())
    }

    fn digest(&self) -> u64 {
        let state = self.state.read().unwrap_or_else(PoisonError::into_inner);
        state.digest()
    }
}

/// The state's records as they were, to be written out on another thread.
#[derive(Debug)]
pub struct StateImage {
    records: Records,
}

impl Image for StateImage {
    fn digest(&self) -> u64 {
        self.records.digest()
    }

    fn write_to(&self, out: &mut dyn Write) -> io::Result<()> {
        format::write_parts(self.records.to_parts(), out)
    }
}

fn known(level: u32, known: u32) -> Result<(), TooNew> {
    if level > known {
        return Err(TooNew { level, known });
    }
    Ok(())
}

fn restore(source: &mut dyn Read, knows: u32) -> Result<State, RestoreError> {
    let mut failed: Option<RestoreError> = None;
    let parts = format::PartsReader::new(source).map_while(|part| {
        let read = part.map_err(|error| RestoreError::Content(error.to_string()));
        // The first of all: nothing that a later release wrote is judged by this one's rules.
        let judged = read.and_then(|part| {
            if let Part::Meta(meta) = &part {
                known(meta.level, knows)?;
            }
            Ok(part)
        });
        judged.map_err(|error| failed = Some(error)).ok()
    });
    let restored = State::from_parts(parts);
    if let Some(failed) = failed {
        return Err(failed);
    }
    restored.map_err(|error| RestoreError::Content(error.to_string()))
}

#[cfg(test)]
mod tests;
