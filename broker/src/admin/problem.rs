//! Why a read is refused; the services make a status of it.

use mete_model::Code;
use mete_proto::convert::Faults;
use mete_state::{FieldFault, Rejection};

use super::feed::Compacted;
use crate::request::Refusal;

/// A refused read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Problem {
    /// A refusal with its code.
    Refused(Refusal),
    /// Changes after the revision asked for are no longer held.
    Compacted {
        /// Asked for.
        asked: u64,
        /// The oldest one that a watch may begin after.
        oldest: u64,
    },
    /// The reader does not keep up.
    Slow {
        /// Where to go on: everything up to here was sent.
        resume: u64,
    },
    /// A name that means several things.
    Ambiguous {
        /// What was asked for.
        name: String,
        /// Some of what it may mean.
        candidates: Vec<String>,
    },
}

impl Problem {
    /// `NOT_FOUND`.
    #[must_use]
    pub fn not_found(kind: &str, name: &str) -> Self {
        let detail = format!("no {kind} is called '{name}'; list them to see their names");
        Self::refused(Code::NotFound, detail)
    }

    /// A refusal with a code and a sentence.
    #[must_use]
    pub fn refused(code: Code, detail: impl Into<String>) -> Self {
        Self::Refused(Refusal::new(code, detail))
    }

    /// `INVALID` of one field.
    #[must_use]
    pub fn field(field: &str, fault: impl Into<String>) -> Self {
        Self::Refused(Refusal::field(field, fault))
    }

    /// A watch from `asked`, answered with what is still held.
    #[must_use]
    pub fn compacted(asked: u64, compacted: Compacted) -> Self {
        let Compacted(oldest) = compacted;
        Self::Compacted { asked, oldest }
    }
}

impl From<Refusal> for Problem {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

impl From<Faults> for Problem {
    fn from(faults: Faults) -> Self {
        let detail = faults.to_string();
        let fields = faults
            .list()
            .iter()
            .map(|fault| FieldFault {
                field: fault.field.clone(),
                fault: fault.fault.clone(),
            })
            .collect();
        Self::Refused(Refusal::from(Rejection {
            fields,
            ..Rejection::new(Code::Invalid, detail)
        }))
    }
}
