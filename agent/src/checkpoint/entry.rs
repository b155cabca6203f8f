//! The spelling of records: which kind is which message.

use mete_proto::internal::v1::{
    CheckpointAcknowledged, CheckpointAgent, CheckpointForget, CheckpointKill, CheckpointRun,
    CheckpointUpdate,
};
use prost::Message;

use super::Record;

/// A record as the message it holds.
#[derive(Debug, Clone, PartialEq)]
pub enum Entry {
    /// Kind 1: a run and its phase; replaces an earlier one of the same run.
    Run(Box<CheckpointRun>),
    /// Kind 2: a status the broker does not have yet.
    Update(Box<CheckpointUpdate>),
    /// Kind 3: all statuses up to a number are the broker's.
    Acknowledged(CheckpointAcknowledged),
    /// Kind 4: a kill asked for and not yet done.
    Kill(CheckpointKill),
    /// Kind 5: nothing of a run is kept any more.
    Forget(CheckpointForget),
    /// Kind 6: facts of the agent itself.
    Agent(CheckpointAgent),
    /// Of a kind or form this version does not know: carried along as it is.
    Unknown(Record),
}

impl Entry {
    /// As it is stored.
    #[must_use]
    pub fn to_record(&self) -> Record {
        let (kind, payload) = match self {
            Self::Run(message) => (1, message.encode_to_vec()),
            Self::Update(message) => (2, message.encode_to_vec()),
            Self::Acknowledged(message) => (3, message.encode_to_vec()),
            Self::Kill(message) => (4, message.encode_to_vec()),
            Self::Forget(message) => (5, message.encode_to_vec()),
            Self::Agent(message) => (6, message.encode_to_vec()),
            Self::Unknown(record) => return record.clone(),
        };
        Record { kind, payload }
    }

    /// What a stored record says. Never fails: what is not understood is [`Entry::Unknown`].
    #[must_use]
    pub fn from_record(record: &Record) -> Self {
        let bytes = record.payload.as_slice();
        let entry = match record.kind {
            1 => CheckpointRun::decode(bytes).map(|message| Self::Run(Box::new(message))),
            2 => CheckpointUpdate::decode(bytes).map(|message| Self::Update(Box::new(message))),
            3 => CheckpointAcknowledged::decode(bytes).map(Self::Acknowledged),
            4 => CheckpointKill::decode(bytes).map(Self::Kill),
            5 => CheckpointForget::decode(bytes).map(Self::Forget),
            6 => CheckpointAgent::decode(bytes).map(Self::Agent),
            _ => return Self::Unknown(record.clone()),
        };
        entry.unwrap_or_else(|_| Self::Unknown(record.clone()))
    }
}
