//! Statuses as stored: without what stands beside them.

use mete_model::{RunId, Status, StatusSource, Timestamp};
use mete_proto::convert::{
    At, Faults, read_exit, read_run, read_usage, write_exit, write_phase, write_run, write_usage,
};
use mete_proto::internal::v1 as stored;
use mete_proto::types::v1 as wire;

use super::read::{code, phase};

/// Stores a status; `framework` is a position in the list beside it.
pub(super) fn put_status(status: &Status, framework: u32, with_run: bool) -> stored::StoredStatus {
    stored::StoredStatus {
        framework,
        run: with_run.then(|| write_run(&status.run)),
        sequence: status.sequence,
        phase: write_phase(status.phase).into(),
        reason: status
            .reason
            .map(|reason| reason.to_string())
            .unwrap_or_default(),
        message: status.message.clone(),
        source: put_source(status.source),
        at_ms: status.at.0,
        exit: status.exit.map(write_exit),
        usage: status.usage.map(write_usage),
        coalesced: status.coalesced,
    }
}

/// Reads a status; `beside` is the run it belongs to where it does not say so itself.
pub(super) fn read_status(
    status: stored::StoredStatus,
    beside: Option<&RunId>,
    at: At<'_>,
    faults: &mut Faults,
) -> Option<Status> {
    let run = match beside {
        Some(run) => run.clone(),
        None => read_run(status.run, at.field("run"), faults)?,
    };
    let reason = if status.reason.is_empty() {
        None
    } else {
        Some(code(&status.reason, at.field("reason"), faults)?)
    };
    Some(Status {
        run,
        sequence: status.sequence,
        phase: phase(status.phase, at.field("phase"), faults)?,
        reason,
        message: status.message,
        source: read_source(status.source, at.field("source"), faults)?,
        at: Timestamp(status.at_ms),
        exit: read_exit(status.exit, at.field("exit"), faults)?,
        usage: read_usage(status.usage, at.field("usage"), faults)?,
        coalesced: status.coalesced,
    })
}

fn put_source(source: StatusSource) -> i32 {
    let source = match source {
        StatusSource::Agent => wire::StatusSource::Agent,
        StatusSource::Master => wire::StatusSource::Master,
        StatusSource::Framework => wire::StatusSource::Framework,
        StatusSource::Operator => wire::StatusSource::Operator,
    };
    source.into()
}

fn read_source(source: i32, at: At<'_>, faults: &mut Faults) -> Option<StatusSource> {
    match wire::StatusSource::try_from(source).unwrap_or(wire::StatusSource::Unspecified) {
        wire::StatusSource::Agent => Some(StatusSource::Agent),
        wire::StatusSource::Master => Some(StatusSource::Master),
        wire::StatusSource::Framework => Some(StatusSource::Framework),
        wire::StatusSource::Operator => Some(StatusSource::Operator),
        wire::StatusSource::Unspecified => {
            faults.add(at, format_args!("{source} is not a source of statuses"));
            None
        }
    }
}
