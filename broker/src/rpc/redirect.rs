//! "Not the leader, try …": where a client should go instead.
//!
//! The address stands in the error details and, for clients that do not read those, in the metadata
//! entries `leader-addr` and `leader-term`.

use std::time::Duration;

use mete_model::Code;
use tonic::Status;
use tonic::metadata::{MetadataMap, MetadataValue};

use super::status;

/// Metadata entry with the leader's `host:port`.
pub const LEADER_ADDRESS: &str = "leader-addr";

/// Metadata entry with the leader's term.
pub const LEADER_TERM: &str = "leader-term";

/// `NOT_LEADER`: the leader of `term` listens at `leader_address`.
#[must_use]
pub fn not_leader(leader_address: &str, term: u64) -> Status {
    let mut status = status::with_facts(
        Code::NotLeader,
        format!("this master does not lead; the leader of term {term} is {leader_address}"),
        &[
            ("leader_address", leader_address.to_owned()),
            ("leader_term", term.to_string()),
        ],
    );
    note(status.metadata_mut(), leader_address, term);
    status
}

/// `NO_LEADER`: nobody led during the time the call was held.
#[must_use]
pub fn no_leader(held: Duration, term: u64) -> Status {
    status::with_facts(
        Code::NoLeader,
        format!(
            "no master leads (term {term}), the call was held for {} ms; try again",
            held.as_millis()
        ),
        &[("leader_term", term.to_string())],
    )
}

fn note(metadata: &mut MetadataMap, leader_address: &str, term: u64) {
    // An address that cannot be a header value still stands in the details.
    if let Ok(address) = MetadataValue::try_from(leader_address) {
        metadata.insert(LEADER_ADDRESS, address);
    }
    metadata.insert(LEADER_TERM, MetadataValue::from(term));
}

#[cfg(test)]
mod tests {
    use tonic_types::StatusExt;

    use super::*;

    #[test]
    fn a_redirect_says_where_to_go_in_details_and_in_metadata() {
        let status = not_leader("m2:7443", 41);
        let info = status.get_details_error_info().expect("an error info");
        assert_eq!(info.reason, "NOT_LEADER");
        assert_eq!(info.metadata["leader_address"], "m2:7443");
        let entry = |name| status.metadata().get(name).expect("an entry");
        assert_eq!(entry(LEADER_ADDRESS), "m2:7443");
        assert_eq!(entry(LEADER_TERM), "41");
        assert_eq!(status.code(), tonic::Code::Unavailable);
    }

    #[test]
    fn an_odd_address_does_not_break_the_answer() {
        let status = not_leader("m2\n7443", 1);
        assert!(status.metadata().get(LEADER_ADDRESS).is_none());
        let status = no_leader(Duration::from_secs(2), 7);
        assert!(status.message().contains("2000 ms"), "{}", status.message());
    }
}
