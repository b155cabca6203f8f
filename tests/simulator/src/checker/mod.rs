//! The checkers: they watch what happens and say what must not have.
//!
//! Each is a room of its own and knows nothing of the others, nor how the world is made.

pub(crate) mod fencing;
pub(crate) mod history;
pub(crate) mod ledger;
pub(crate) mod linear;
pub(crate) mod liveness;
pub(crate) mod status;

use crate::Violation;
use crate::random::Digest;

/// All of them, and what they found.
#[derive(Debug, Default)]
pub(crate) struct Checkers {
    pub(crate) found: Vec<Violation>,
    pub(crate) history: history::History,
    pub(crate) ledger: ledger::Ledger,
    pub(crate) status: status::Statuses,
    pub(crate) fencing: fencing::Fencing,
    pub(crate) linear: linear::Linear,
}

impl Checkers {
    /// A hash of everything they saw.
    pub(crate) fn digest(&self, digest: &mut Digest) {
        self.history.digest(digest);
        self.status.digest(digest);
        self.linear.digest(digest);
        for violation in &self.found {
            digest.add_bytes(violation.detail.as_bytes());
        }
    }
}
