//! Why a master did not start or did not go on: a code, the facts, what to do next.

use mete_model::Code;
use thiserror::Error;

use crate::request::Refusal;
use crate::{replica, store};

/// Why [`crate::run`] ended with an error.
#[derive(Debug, Error)]
#[error("{detail}")]
pub struct RunError {
    /// Stable code, for the exit code and `mete help`.
    pub code: Code,
    /// What was tried and the facts.
    pub detail: String,
    /// What to do.
    pub next: String,
    /// The cause below it.
    #[source]
    pub source: Option<Box<dyn std::error::Error + Send + Sync>>,
}

impl RunError {
    /// An error without a cause below it.
    #[must_use]
    pub fn new(code: Code, detail: impl Into<String>, next: impl Into<String>) -> Self {
        Self {
            code,
            detail: detail.into(),
            next: next.into(),
            source: None,
        }
    }
}

impl RunError {
    /// Takes the sentence of `error` over; `error` itself stays only if there is a cause below it.
    fn with_cause_below(code: Code, error: impl std::error::Error + Send + Sync + 'static) -> Self {
        let (detail, next) = split(&error.to_string());
        let has_cause = error.source().is_some();
        Self {
            code,
            detail,
            next,
            source: has_cause.then(|| Box::new(error) as Box<dyn std::error::Error + Send + Sync>),
        }
    }
}

impl From<Refusal> for RunError {
    fn from(refusal: Refusal) -> Self {
        let next = "change the setting and start again";
        Self::new(refusal.code(), refusal.rejection.detail, next)
    }
}

/// The sentences of the store hold facts and advice, parted by a semicolon.
fn split(sentence: &str) -> (String, String) {
    match sentence.split_once("; ") {
        Some((facts, advice)) => (facts.to_owned(), advice.to_owned()),
        None => (sentence.to_owned(), "see the master's log".to_owned()),
    }
}

impl From<store::OpenError> for RunError {
    fn from(error: store::OpenError) -> Self {
        use store::OpenError as Open;
        let code = match &error {
            Open::Missing { .. }
            | Open::Foreign { .. }
            | Open::Exists { .. }
            | Open::Identity { .. }
            | Open::Format { .. } => Code::StateDirectory,
            Open::Locked { .. } => Code::StateLocked,
            Open::Damaged { .. } | Open::NoMark { .. } => Code::StoreDamaged,
            Open::NotDurable { .. } => Code::Internal,
            Open::DiskFull { .. } => Code::DiskFull,
            Open::Io { source, .. } if is_full(source) => Code::DiskFull,
            Open::Io { .. } => Code::File,
        };
        Self::with_cause_below(code, error)
    }
}

fn is_full(error: &std::io::Error) -> bool {
    matches!(
        error.kind(),
        std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded
    )
}

impl From<store::Fault> for RunError {
    fn from(error: store::Fault) -> Self {
        let code = match &error {
            store::Fault::Io { source, .. } if is_full(source) => Code::DiskFull,
            store::Fault::Io { .. } | store::Fault::Log { .. } => Code::File,
            store::Fault::Snapshot { .. } => Code::StoreDamaged,
            store::Fault::TooNew(_) => Code::StateDirectory,
        };
        Self::with_cause_below(code, error)
    }
}

impl From<replica::OpenError> for RunError {
    fn from(error: replica::OpenError) -> Self {
        use replica::OpenError as Open;
        let code = match &error {
            Open::Restore { .. } | Open::Membership(_) => Code::StoreDamaged,
            Open::NotAFounder { .. } | Open::Settings(_) => Code::Usage,
            Open::StoreTaken => Code::Internal,
            Open::TooNew(_) => Code::StateDirectory,
            Open::Fault(_) => Code::File,
        };
        Self::with_cause_below(code, error)
    }
}
