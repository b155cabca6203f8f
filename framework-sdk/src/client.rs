//! Layer 0: the generated clients, and what a gRPC status of the broker says.
//!
//! Called by the session only; other languages have the same in their own generated code. Nothing
//! here retries: a status is sorted into "go elsewhere", "come again", "this is over" or "no".

use std::time::Duration;

use mete_model::Code;
use tonic::transport::Channel;
use tonic_types::StatusExt;

pub use mete_proto::dial::{Dial, SharedDial, TcpDial};
pub use mete_proto::framework::v1 as proto;
pub use mete_proto::framework::v1::framework_service_client::FrameworkServiceClient;

use crate::error::{Error, FieldError, FieldErrors, Reason};

/// The largest message that is taken; the broker sends at most 4 MiB.
const LARGEST_MESSAGE: usize = 8 << 20;

/// A client of the framework service over an open channel.
#[must_use]
pub fn framework_client(channel: Channel) -> FrameworkServiceClient<Channel> {
    FrameworkServiceClient::new(channel)
        .max_decoding_message_size(LARGEST_MESSAGE)
        .max_encoding_message_size(LARGEST_MESSAGE)
}

/// What to do after a call that ended with a status.
#[derive(Clone, Debug)]
pub enum Advice {
    /// Ask the leader; its address if it was told.
    Elsewhere(Option<String>),
    /// Ask again later, here or at another master.
    Later {
        /// Not before this time has passed; zero when nothing was said.
        after: Duration,
        /// What was said.
        reason: Reason,
    },
    /// Nothing can be cured by asking again.
    No(Error),
}

/// Sorts a status by what the caller should do.
#[must_use]
pub fn advise(status: &tonic::Status) -> Advice {
    let reason = reason_of(status);
    let after = status
        .get_details_retry_info()
        .and_then(|info| info.retry_delay)
        .unwrap_or_default();
    let Some(code) = reason.known_code() else {
        return advise_by_transport(status, reason, after);
    };
    if code == Code::NotLeader {
        Advice::Elsewhere(leader_of(status, &reason))
    } else if code.is_retryable() {
        Advice::Later { after, reason }
    } else if code == Code::StaleIncarnation {
        Advice::No(Error::Superseded)
    } else if code == Code::TornDown {
        Advice::No(Error::TornDown)
    } else if code == Code::Denied {
        Advice::No(Error::Denied(reason))
    } else if code == Code::Invalid {
        Advice::No(Error::Invalid(fields_of(status)))
    } else {
        Advice::No(Error::Refused(reason))
    }
}

/// The reason that a status carries; the gRPC code's name where nothing of ours answered.
#[must_use]
pub fn reason_of(status: &tonic::Status) -> Reason {
    let info = status.get_details_error_info();
    let (code, facts) = match info {
        Some(info) => (info.reason, info.metadata.into_iter().collect()),
        None => (format!("GRPC_{:?}", status.code()), Default::default()),
    };
    Reason {
        code,
        detail: status.message().to_owned(),
        facts,
    }
}

/// Statuses without a code of ours come from the transport, from a proxy, or from a newer broker.
fn advise_by_transport(status: &tonic::Status, reason: Reason, after: Duration) -> Advice {
    match status.code() {
        tonic::Code::Unavailable
        | tonic::Code::Unknown
        | tonic::Code::Internal
        | tonic::Code::Cancelled
        | tonic::Code::Aborted
        | tonic::Code::DeadlineExceeded => Advice::Later { after, reason },
        tonic::Code::InvalidArgument => Advice::No(Error::Invalid(fields_of(status))),
        tonic::Code::PermissionDenied | tonic::Code::Unauthenticated => {
            Advice::No(Error::Denied(reason))
        }
        tonic::Code::Ok
        | tonic::Code::NotFound
        | tonic::Code::AlreadyExists
        | tonic::Code::ResourceExhausted
        | tonic::Code::FailedPrecondition
        | tonic::Code::OutOfRange
        | tonic::Code::Unimplemented
        | tonic::Code::DataLoss => Advice::No(Error::Refused(reason)),
    }
}

fn leader_of(status: &tonic::Status, reason: &Reason) -> Option<String> {
    let header = status.metadata().get("leader-addr");
    header
        .and_then(|value| value.to_str().ok())
        .map(str::to_owned)
        .or_else(|| reason.facts.get("leader_address").cloned())
        .filter(|address| !address.is_empty())
}

fn fields_of(status: &tonic::Status) -> FieldErrors {
    let violations = status
        .get_details_bad_request()
        .map(|request| request.field_violations)
        .unwrap_or_default();
    FieldErrors {
        detail: status.message().to_owned(),
        fields: violations
            .into_iter()
            .map(|violation| FieldError {
                field: violation.field,
                fault: violation.description,
            })
            .collect(),
    }
}

#[cfg(test)]
mod tests {
    use tonic::{Code as Grpc, Status};
    use tonic_types::ErrorDetails;

    use super::*;

    fn status(code: Code, grpc: Grpc) -> Status {
        let mut details = ErrorDetails::new();
        details.set_error_info(code.as_str(), "mete", std::collections::HashMap::new());
        Status::with_error_details(grpc, "said", details)
    }

    #[test]
    fn a_redirect_carries_the_leaders_address() {
        let mut redirect = status(Code::NotLeader, Grpc::Unavailable);
        let address = "m2:7443".parse().expect("ascii");
        redirect.metadata_mut().insert("leader-addr", address);
        let Advice::Elsewhere(Some(leader)) = advise(&redirect) else {
            panic!("not a redirect");
        };
        assert_eq!(leader, "m2:7443");
    }

    #[test]
    fn only_torn_down_ends_the_identity_and_only_stale_incarnation_supersedes() {
        for code in Code::ALL {
            let advice = advise(&status(*code, Grpc::FailedPrecondition));
            let torn_down = matches!(advice, Advice::No(Error::TornDown));
            let superseded = matches!(advice, Advice::No(Error::Superseded));
            assert_eq!(torn_down, *code == Code::TornDown, "{code}");
            assert_eq!(superseded, *code == Code::StaleIncarnation, "{code}");
        }
    }

    #[test]
    fn a_broken_connection_is_always_a_reason_to_come_again() {
        for grpc in [
            Grpc::Unavailable,
            Grpc::Unknown,
            Grpc::Internal,
            Grpc::Cancelled,
        ] {
            let advice = advise(&Status::new(grpc, "transport error"));
            assert!(matches!(advice, Advice::Later { .. }), "{grpc:?}");
        }
    }

    #[test]
    fn a_code_of_a_newer_broker_is_a_no_unless_the_grpc_status_says_otherwise() {
        let mut details = ErrorDetails::new();
        details.set_error_info("OF_TOMORROW", "mete", std::collections::HashMap::new());
        let refused = Status::with_error_details(Grpc::FailedPrecondition, "no", details.clone());
        assert!(matches!(advise(&refused), Advice::No(Error::Refused(_))));
        let later = Status::with_error_details(Grpc::Unavailable, "no", details);
        assert!(matches!(advise(&later), Advice::Later { .. }));
    }
}
