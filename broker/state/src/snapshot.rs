//! The state taken apart into records and put together again.
//!
//! The broker's format room encodes the parts one by one, so that a snapshot is written and read
//! in slices. What is derived (free resources, sums, indexes) is not written but worked out.

use std::fmt;

use mete_model::FrameworkId;

use crate::record::{
    Agent, ClaimRecord, EndedRun, Framework, Meta, Role, Run, StoreRecord, StoredVerdict, Tombstone,
};

/// One record of a snapshot. They come in the order of the variants; within one, in key order
/// (history: oldest first).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Part {
    /// Always the first, once.
    Meta(Meta),
    /// A role.
    Role(Role),
    /// An agent.
    Agent(Agent),
    /// A framework.
    Framework(Framework),
    /// A framework that was torn down.
    Tombstone(Tombstone),
    /// A claim.
    Claim(ClaimRecord),
    /// A run that is live, or over and not acknowledged.
    Run(Box<Run>),
    /// A run that is over and acknowledged, oldest first.
    History(Box<Run>),
    /// What is left of a run that history dropped, oldest first.
    Ended(EndedRun),
    /// A record of a framework's store.
    Store(StoreRecord),
    /// An answer that may be asked for again.
    Verdict(StoredVerdict),
}

/// Why parts do not make a state: the snapshot is damaged or not ours.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BadParts {
    /// There is no [`Part::Meta`] at the front.
    NoMeta,
    /// There is a second one.
    SecondMeta,
    /// A record speaks of a framework that no record describes.
    NoFramework(FrameworkId),
    /// Two records have one key; says which.
    Twice(String),
}

impl fmt::Display for BadParts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoMeta => f.write_str("snapshot does not begin with its meta record"),
            Self::SecondMeta => f.write_str("snapshot has two meta records"),
            Self::NoFramework(id) => {
                write!(f, "snapshot speaks of framework {id} and does not have it")
            }
            Self::Twice(key) => write!(f, "snapshot has two records of {key}"),
        }
    }
}

impl std::error::Error for BadParts {}
