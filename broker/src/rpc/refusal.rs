//! The loop's refusals as gRPC statuses.

use std::time::Duration;

use mete_model::Code;
use tonic::Status;

use super::{redirect, status};
use crate::request::{Leader, Refusal};

/// The status of a refusal.
#[must_use]
pub fn to_status(refusal: &Refusal) -> Status {
    match (&refusal.leader, refusal.code()) {
        (Some(Leader { address, term }), Code::NotLeader) => redirect::not_leader(address, *term),
        (_, Code::Busy) => {
            let again_in = refusal
                .retry_after
                .map_or(Duration::from_secs(1), Duration::from);
            status::busy(&refusal.rejection.detail, again_in)
        }
        _ => status::from_rejection(&refusal.rejection),
    }
}
