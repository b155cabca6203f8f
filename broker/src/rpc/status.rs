//! Refusals as gRPC statuses: the only place that makes one.
//!
//! Every status carries `ErrorInfo` whose reason is the stable code; fields at fault and the time
//! to come again where there are any. Details travel in one header of the answer, and clients
//! refuse large headers: what does not fit is counted, not sent.

use std::collections::HashMap;
use std::time::Duration;

use mete_model::Code;
use mete_proto::convert::Faults;
use mete_state::{FieldFault, Rejection};
use tonic::Status;
use tonic_types::{ErrorDetails, StatusExt};

/// The domain of every `ErrorInfo` of ours.
pub const DOMAIN: &str = "mete";

/// Longest text of a status in bytes.
const LONGEST_TEXT: usize = 1500;

/// Bytes that all field violations or facts together may take.
const LONGEST_DETAILS: usize = 3000;

/// The gRPC status of each code that a call may end with; all others are `FAILED_PRECONDITION`.
const STATUSES: &[(Code, tonic::Code)] = &[
    (Code::NotLeader, tonic::Code::Unavailable),
    (Code::NoLeader, tonic::Code::Unavailable),
    (Code::StaleIncarnation, tonic::Code::FailedPrecondition),
    (Code::TornDown, tonic::Code::FailedPrecondition),
    (Code::Denied, tonic::Code::PermissionDenied),
    (Code::Invalid, tonic::Code::InvalidArgument),
    (Code::Ambiguous, tonic::Code::InvalidArgument),
    (Code::Busy, tonic::Code::ResourceExhausted),
    (Code::CallGap, tonic::Code::Aborted),
    (Code::StaleDemand, tonic::Code::Aborted),
    (Code::Conflict, tonic::Code::Aborted),
    (Code::Compacted, tonic::Code::OutOfRange),
    (Code::NotFound, tonic::Code::NotFound),
    (Code::AlreadyExists, tonic::Code::AlreadyExists),
    (Code::Unknown, tonic::Code::Unknown),
    (Code::Unsupported, tonic::Code::Unimplemented),
    (Code::DiskFull, tonic::Code::ResourceExhausted),
    (Code::TimedOut, tonic::Code::DeadlineExceeded),
    (Code::Internal, tonic::Code::Internal),
];

/// The gRPC status that stands for a code.
#[must_use]
pub fn grpc_code(code: Code) -> tonic::Code {
    STATUSES
        .iter()
        .find(|(listed, _)| *listed == code)
        .map_or(tonic::Code::FailedPrecondition, |(_, status)| *status)
}

/// When a call refused with `code` may come again; `None` where waiting does not help.
#[must_use]
pub fn retry_after(code: Code) -> Option<Duration> {
    if !code.is_retryable() {
        return None;
    }
    // A redirect is followed at once; an election and a full queue take a moment.
    let milliseconds = if code == Code::Busy {
        1000
    } else if code == Code::NoLeader {
        250
    } else {
        0
    };
    Some(Duration::from_millis(milliseconds))
}

/// A refusal with a code and a sentence.
#[must_use]
pub fn refuse(code: Code, detail: impl AsRef<str>) -> Status {
    with_facts(code, detail, &[])
}

/// A refusal with facts for programs beside the sentence.
#[must_use]
pub fn with_facts(code: Code, detail: impl AsRef<str>, facts: &[(&str, String)]) -> Status {
    build(code, detail.as_ref(), facts, &[], 0, retry_after(code))
}

/// `BUSY` with the time to come again.
#[must_use]
pub fn busy(detail: impl AsRef<str>, again_in: Duration) -> Status {
    build(Code::Busy, detail.as_ref(), &[], &[], 0, Some(again_in))
}

/// A deterministic no of the state machine, or of a preflight that speaks like it.
#[must_use]
pub fn from_rejection(rejection: &Rejection) -> Status {
    build(
        rejection.code,
        &rejection.detail,
        &[],
        &rejection.fields,
        0,
        retry_after(rejection.code),
    )
}

/// `INVALID`: every wrong field of a request.
#[must_use]
pub fn invalid(faults: &Faults) -> Status {
    let fields: Vec<FieldFault> = faults
        .list()
        .iter()
        .map(|fault| FieldFault {
            field: fault.field.clone(),
            fault: fault.fault.clone(),
        })
        .collect();
    let detail = faults.to_string();
    build(Code::Invalid, &detail, &[], &fields, faults.more(), None)
}

/// `INVALID` of one field.
#[must_use]
pub fn invalid_field(field: &str, fault: impl Into<String>) -> Status {
    from_rejection(&Rejection::field(field, fault))
}

fn build(
    code: Code,
    detail: &str,
    facts: &[(&str, String)],
    fields: &[FieldFault],
    more_fields: usize,
    again_in: Option<Duration>,
) -> Status {
    let mut details = ErrorDetails::new();
    let mut room = LONGEST_DETAILS;
    let mut metadata = HashMap::new();
    for (name, value) in facts {
        let value = cut(value, room.min(LONGEST_TEXT));
        room = room.saturating_sub(name.len() + value.len());
        metadata.insert((*name).to_owned(), value);
    }
    details.set_error_info(code.as_str(), DOMAIN, metadata);
    if let Some(again_in) = again_in {
        details.set_retry_info(Some(again_in));
    }
    add_fields(&mut details, fields, more_fields, room);
    Status::with_error_details(grpc_code(code), cut(detail, LONGEST_TEXT), details)
}

fn add_fields(
    details: &mut ErrorDetails,
    fields: &[FieldFault],
    more_fields: usize,
    mut room: usize,
) {
    let mut left = fields.len();
    for field in fields {
        let size = field.field.len() + field.fault.len() + 8;
        if size > room {
            break;
        }
        room -= size;
        left -= 1;
        details.add_bad_request_violation(&field.field, &field.fault);
    }
    let left = left.saturating_add(more_fields);
    if left > 0 {
        details.add_bad_request_violation("", format!("and {left} more fields"));
    }
}

/// `text` cut at a character's border to at most `longest` bytes, and marked as cut.
fn cut(text: &str, longest: usize) -> String {
    if text.len() <= longest {
        return text.to_owned();
    }
    let end = text.floor_char_boundary(longest.saturating_sub('…'.len_utf8()));
    format!("{}…", &text[..end])
}

#[cfg(test)]
mod tests {
    use mete_model::reason::Part;
    use mete_proto::convert::At;

    use super::*;

    #[test]
    fn every_code_travels_as_the_reason_of_the_status() {
        for code in Code::ALL.iter().filter(|code| **code != Code::Ok) {
            let status = refuse(*code, "why");
            let info = status.get_details_error_info().expect("always there");
            assert_eq!(
                (info.reason.as_str(), info.domain.as_str()),
                (code.as_str(), DOMAIN)
            );
            assert_ne!(status.code(), tonic::Code::Ok, "{code}");
        }
    }

    #[test]
    fn waiting_is_advised_exactly_where_the_code_is_retryable() {
        for code in Code::ALL.iter().filter(|code| code.part() == Part::Answer) {
            assert_eq!(retry_after(*code).is_some(), code.is_retryable(), "{code}");
        }
    }

    #[test]
    fn all_wrong_fields_are_named_and_a_flood_is_counted() {
        let mut faults = Faults::new();
        faults.add(At::root("role"), "must not be empty");
        faults.add(At::root("count"), "0 is not within 1 to 100000");
        let status = invalid(&faults);
        assert_eq!(status.code(), tonic::Code::InvalidArgument);
        let fields = status
            .get_details_bad_request()
            .expect("fields")
            .field_violations;
        let names: Vec<&str> = fields.iter().map(|field| field.field.as_str()).collect();
        assert_eq!(names, ["role", "count"]);

        let list = At::root("launches");
        for index in 0..100_000 {
            faults.add(list.index(index), "is wrong".repeat(20));
        }
        let status = invalid(&faults);
        assert!(
            status.details().len() < 8 * 1024,
            "{}",
            status.details().len()
        );
        let fields = status
            .get_details_bad_request()
            .expect("fields")
            .field_violations;
        let last = fields.last().expect("a last one");
        let kept = fields.len() - 1;
        assert_eq!(
            last.description,
            format!("and {} more fields", 100_002 - kept)
        );
    }

    #[test]
    fn text_is_cut_between_characters() {
        assert_eq!(cut("äöü", 6), "äöü");
        assert_eq!(cut("äöüäöü", 8), "äö…");
        assert!(refuse(Code::Denied, "ä".repeat(10_000)).message().len() <= LONGEST_TEXT);
    }
}
