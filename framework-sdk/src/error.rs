//! What can go wrong, sorted by what the caller can do about it.
//!
//! Made by the session from gRPC statuses and verdicts. "May I retry" is a property of the code,
//! never of a text; the session has already retried whatever waiting or another master can cure.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use mete_model::Code;
use serde::Serialize;

/// What every call of the SDK gives.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why something was refused, as the broker put it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Reason {
    /// The stable code as it came, for example `NAMES_TAKEN`; a newer broker may send new ones.
    pub code: String,
    /// For people: facts and what to do next.
    pub detail: String,
    /// Facts by name, for programs.
    pub facts: BTreeMap<String, String>,
}

impl Reason {
    /// A reason of our own.
    #[must_use]
    pub fn new(code: Code, detail: impl Into<String>) -> Self {
        Self {
            code: code.as_str().to_owned(),
            detail: detail.into(),
            facts: BTreeMap::new(),
        }
    }

    /// The code, if this release knows it.
    #[must_use]
    pub fn known_code(&self) -> Option<Code> {
        self.code.parse().ok()
    }

    /// The code that a person should be told. A refusal that programs are to take for `BUSY` may
    /// begin its sentence with the exact one, as in `DISK_FULL: the disk of …`.
    #[must_use]
    pub fn exact_code(&self) -> Option<Code> {
        let named = self.detail.split_once(": ").map(|(first, _)| first);
        let named = named.and_then(|name| name.parse().ok());
        named.or_else(|| self.known_code())
    }

    /// Says whether it is this code.
    #[must_use]
    pub fn is(&self, code: Code) -> bool {
        self.code == code.as_str()
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.detail.is_empty() {
            f.write_str(&self.code)
        } else {
            write!(f, "{} (code {})", self.detail, self.code)
        }
    }
}

/// One field of a call that is wrong.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FieldError {
    /// Its path, for example `upsert[0].shape.cores`.
    pub field: String,
    /// What is wrong, and the permitted range.
    pub fault: String,
}

/// Every field of a call that is wrong.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct FieldErrors {
    /// The sentence that came with them.
    pub detail: String,
    /// The fields; empty when the broker named none.
    pub fields: Vec<FieldError>,
}

impl fmt::Display for FieldErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.fields.is_empty() {
            return f.write_str(&self.detail);
        }
        for (index, error) in self.fields.iter().enumerate() {
            let comma = if index == 0 { "" } else { "; " };
            write!(f, "{comma}{}: {}", error.field, error.fault)?;
        }
        Ok(())
    }
}

/// A key of the store that has another revision than the write expected.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct KeyConflict {
    /// The key.
    pub key: Vec<u8>,
    /// Its present revision; 0 = it does not exist.
    pub revision: u64,
}

/// An error of the SDK.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The master that was asked does not lead. The session follows it by itself.
    #[error("the master that was asked does not lead; {}", leader_hint(.leader))]
    NotLeader {
        /// Where the leader is, if known.
        leader: Option<String>,
    },
    /// Nobody could serve the call at the moment.
    #[error("no master could serve the call: {0}")]
    Unavailable(Reason),
    /// Not permitted.
    #[error("not permitted: {0}")]
    Denied(Reason),
    /// Fields at fault; sending it again unchanged cannot help.
    #[error("the call has wrong fields: {0}")]
    Invalid(FieldErrors),
    /// A store write expected other revisions; nothing of it was done.
    #[error("{} key(s) changed since they were read; read them again", .keys.len())]
    Conflict {
        /// The revision at which the write was refused.
        revision: u64,
        /// Each key that differs, with its present revision.
        keys: Vec<KeyConflict>,
    },
    /// The broker said no for a reason that has no variant of its own.
    #[error("refused: {0}")]
    Refused(Reason),
    /// A newer process of this framework has taken over: stop.
    #[error("a newer process of this framework has taken over; this one stops")]
    Superseded,
    /// The framework was ended on purpose.
    #[error("the framework was torn down")]
    TornDown,
    /// This session was disconnected by its own process.
    #[error("the session is closed")]
    Closed,
    /// An answer that makes no sense: a defect, or releases too far apart.
    #[error("unexpected answer from the master: {0}")]
    Protocol(String),
    /// An error of the framework's own code.
    #[error("{0}")]
    Handler(Arc<dyn std::error::Error + Send + Sync>),
}

impl Error {
    /// Wraps an error of the framework's own code, so that `?` works in a handler.
    #[must_use]
    pub fn handler(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        Self::Handler(Arc::from(error.into()))
    }

    /// `INVALID` of one field, found before anything was sent.
    pub(crate) fn field(field: impl Into<String>, fault: impl fmt::Display) -> Self {
        Self::Invalid(FieldErrors {
            detail: String::new(),
            fields: vec![FieldError {
                field: field.into(),
                fault: fault.to_string(),
            }],
        })
    }

    /// The stable code, if there is one.
    #[must_use]
    pub fn code(&self) -> Option<Code> {
        match self {
            Self::NotLeader { .. } => Some(Code::NotLeader),
            Self::Unavailable(reason) | Self::Denied(reason) | Self::Refused(reason) => {
                reason.known_code()
            }
            Self::Invalid(_) => Some(Code::Invalid),
            Self::Conflict { .. } => Some(Code::Conflict),
            Self::Superseded => Some(Code::StaleIncarnation),
            Self::TornDown => Some(Code::TornDown),
            Self::Protocol(_) => Some(Code::Internal),
            Self::Closed | Self::Handler(_) => None,
        }
    }

    /// Says whether the same call may be made again later, unchanged.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::NotLeader { .. } | Self::Unavailable(_) => true,
            Self::Refused(reason) => reason.known_code().is_some_and(Code::is_retryable),
            Self::Denied(_)
            | Self::Invalid(_)
            | Self::Conflict { .. }
            | Self::Superseded
            | Self::TornDown
            | Self::Closed
            | Self::Protocol(_)
            | Self::Handler(_) => false,
        }
    }

    /// Says whether the session is over and no call can succeed any more.
    #[must_use]
    pub fn is_final(&self) -> bool {
        matches!(self, Self::Superseded | Self::TornDown | Self::Closed)
    }
}

fn leader_hint(leader: &Option<String>) -> String {
    match leader {
        Some(address) => format!("the leader is at {address}"),
        None => "the leader is not known".to_owned(),
    }
}

impl From<mete_model::text::BadText> for Error {
    fn from(bad: mete_model::text::BadText) -> Self {
        Self::field(bad.what, &bad)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retrying_is_decided_by_the_code_and_never_by_the_text() {
        let refused = |code| Error::Refused(Reason::new(code, "retry later, please"));
        assert!(refused(Code::Busy).is_retryable());
        assert!(!refused(Code::StoreFull).is_retryable());
        assert!(!Error::Superseded.is_retryable());
        let newer = Reason {
            code: "A_CODE_OF_TOMORROW".to_owned(),
            ..Reason::default()
        };
        assert_eq!(newer.known_code(), None);
        let full = Reason::new(Code::Busy, "DISK_FULL: the disk is full");
        assert_eq!(full.exact_code(), Some(Code::DiskFull));
        assert_eq!(
            Reason::new(Code::Busy, "later: much").exact_code(),
            Some(Code::Busy)
        );
        assert!(!Error::Refused(newer).is_retryable());
    }
}
