//! The deterministic no: a command of which nothing was done, on every replica alike.

use std::fmt;

use mete_model::Code;

/// Why a command was refused whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rejection {
    /// Stable code.
    pub code: Code,
    /// Lower-case sentence: what was tried, the facts, what to do.
    pub detail: String,
    /// For `INVALID`: each field at fault with the permitted range.
    pub fields: Vec<FieldFault>,
}

/// One field that is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FieldFault {
    /// Its path as on the wire, for example `upsert[2].shape.cpu_milli`.
    pub field: String,
    /// What is wrong with it and what is permitted.
    pub fault: String,
}

impl Rejection {
    /// A refusal without fields.
    #[must_use]
    pub fn new(code: Code, detail: impl Into<String>) -> Self {
        Self {
            code,
            detail: detail.into(),
            fields: Vec::new(),
        }
    }

    /// An `INVALID` that names one field.
    #[must_use]
    pub fn field(field: impl Into<String>, fault: impl Into<String>) -> Self {
        let (field, fault) = (field.into(), fault.into());
        Self {
            code: Code::Invalid,
            detail: format!("{field}: {fault}"),
            fields: vec![FieldFault { field, fault }],
        }
    }
}

impl fmt::Display for Rejection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (code {})", self.detail, self.code)
    }
}

impl std::error::Error for Rejection {}
