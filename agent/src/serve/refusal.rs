//! Refusals of the node API as gRPC statuses: the stable code, and the fields at fault, travel with
//! them as they do from a master.

use std::collections::HashMap;
use std::time::Duration;

use mete_model::Code;
use mete_proto::convert::Faults;
use tonic::Status;
use tonic_types::{ErrorDetails, StatusExt};

/// The domain of every `ErrorInfo` of ours.
const DOMAIN: &str = "mete";

/// Fields that are named at the most: details travel in a header, and clients refuse large ones.
const MOST_FIELDS: usize = 20;

/// Characters of one text at the most, for the same reason.
const LONGEST: usize = 500;

/// When a call may come again that met an agent which is stopping.
const COME_AGAIN: Duration = Duration::from_secs(1);

/// A refusal with a code and a sentence.
pub(crate) fn refuse(code: Code, detail: &str) -> Status {
    status(code, detail, details(code))
}

/// `INVALID`: every wrong field of a request.
pub(crate) fn invalid(faults: &Faults) -> Status {
    let mut details = details(Code::Invalid);
    for fault in faults.list().iter().take(MOST_FIELDS) {
        details.add_bad_request_violation(cut(&fault.field), cut(&fault.fault));
    }
    let left = faults.list().len().saturating_sub(MOST_FIELDS) + faults.more();
    if left > 0 {
        details.add_bad_request_violation("", format!("and {left} more fields"));
    }
    status(Code::Invalid, &faults.to_string(), details)
}

/// `INVALID` of one field.
pub(crate) fn invalid_field(field: &str, fault: &str) -> Status {
    let mut details = details(Code::Invalid);
    details.add_bad_request_violation(field, cut(fault));
    status(Code::Invalid, &format!("{field}: {fault}"), details)
}

fn details(code: Code) -> ErrorDetails {
    let mut details = ErrorDetails::new();
    details.set_error_info(code.as_str(), DOMAIN, HashMap::new());
    if code == Code::Busy {
        details.set_retry_info(Some(COME_AGAIN));
    }
    details
}

fn status(code: Code, detail: &str, details: ErrorDetails) -> Status {
    const STATUSES: [(Code, tonic::Code); 4] = [
        (Code::Invalid, tonic::Code::InvalidArgument),
        (Code::NotFound, tonic::Code::NotFound),
        (Code::Busy, tonic::Code::Unavailable),
        (Code::Internal, tonic::Code::Internal),
    ];
    let known = STATUSES.iter().find(|(listed, _)| *listed == code);
    let grpc = known.map_or(tonic::Code::FailedPrecondition, |(_, grpc)| *grpc);
    Status::with_error_details(grpc, cut(detail), details)
}

fn cut(text: &str) -> String {
    text.chars().take(LONGEST).collect()
}

#[cfg(test)]
mod tests {
    use mete_proto::convert::At;

    use super::*;

    #[test]
    fn a_refusal_carries_its_code_and_the_fields_at_fault_and_never_grows_large() {
        let mut faults = Faults::new();
        for index in 0..5_000 {
            faults.add(At::root("run").index(index), "is wrong".repeat(90));
        }
        let status = invalid(&faults);
        assert_eq!(status.code(), tonic::Code::InvalidArgument);
        let info = status.get_details_error_info().expect("always there");
        assert_eq!(
            (info.reason.as_str(), info.domain.as_str()),
            ("INVALID", DOMAIN)
        );
        let fields = status.get_details_bad_request().expect("fields");
        assert_eq!(fields.field_violations.len(), MOST_FIELDS + 1);
        assert!(status.details().len() < 16 * 1024);

        let status = refuse(Code::NotFound, "no log");
        assert_eq!(status.code(), tonic::Code::NotFound);
        let info = status.get_details_error_info().expect("always there");
        assert_eq!(info.reason, "NOT_FOUND");
    }
}
