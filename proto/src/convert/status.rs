//! Phases, ends and statuses of runs.

use mete_model::{
    Bytes, Code, Exit, FrameworkId, Status, StatusSource, TaskPhase, Timestamp, Usage,
};

use super::faults::{At, Faults};
use super::ids::{read_run_ref, write_run_ref};
use super::quantity::read_amount;
use super::text::read_text;
use crate::types::v1 as wire;

/// Text that a status may carry, in bytes.
pub const LONGEST_MESSAGE: usize = 64 * 1024;

/// Reads a phase. It decides, so a value this release does not know is a fault.
pub fn read_phase(phase: i32, at: At<'_>, faults: &mut Faults) -> Option<TaskPhase> {
    let known = wire::TaskPhase::try_from(phase).unwrap_or(wire::TaskPhase::Unspecified);
    let read = match known {
        wire::TaskPhase::Unspecified => {
            faults.add(at, format_args!("{phase} is not a phase: 1 to 9 are"));
            return None;
        }
        wire::TaskPhase::Staging => TaskPhase::Staging,
        wire::TaskPhase::Starting => TaskPhase::Starting,
        wire::TaskPhase::Running => TaskPhase::Running,
        wire::TaskPhase::Finishing => TaskPhase::Finishing,
        wire::TaskPhase::Finished => TaskPhase::Finished,
        wire::TaskPhase::Failed => TaskPhase::Failed,
        wire::TaskPhase::Killed => TaskPhase::Killed,
        wire::TaskPhase::Lost => TaskPhase::Lost,
        wire::TaskPhase::Refused => TaskPhase::Refused,
    };
    Some(read)
}

/// Writes a phase.
#[must_use]
pub fn write_phase(phase: TaskPhase) -> wire::TaskPhase {
    match phase {
        TaskPhase::Staging => wire::TaskPhase::Staging,
        TaskPhase::Starting => wire::TaskPhase::Starting,
        TaskPhase::Running => wire::TaskPhase::Running,
        TaskPhase::Finishing => wire::TaskPhase::Finishing,
        TaskPhase::Finished => wire::TaskPhase::Finished,
        TaskPhase::Failed => wire::TaskPhase::Failed,
        TaskPhase::Killed => wire::TaskPhase::Killed,
        TaskPhase::Lost => wire::TaskPhase::Lost,
        TaskPhase::Refused => wire::TaskPhase::Refused,
    }
}

/// Reads how a process ended: a code of 0 to 255 or a signal of 1 to 127. A way to end that this
/// release does not know is tolerated: the phase decides, this only tells.
pub fn read_exit(
    exit: Option<wire::Exit>,
    at: At<'_>,
    faults: &mut Faults,
) -> Option<Option<Exit>> {
    use wire::exit::How;
    match exit.and_then(|exit| exit.how) {
        None => Some(None),
        Some(How::Code(code)) => match u8::try_from(code) {
            Ok(code) => Some(Some(Exit::Code(code))),
            Err(_) => {
                faults.add(
                    at.field("code"),
                    format_args!("{code} is not within 0 to 255"),
                );
                None
            }
        },
        Some(How::Signal(signal)) => match u8::try_from(signal) {
            Ok(signal @ 1..=127) => Some(Some(Exit::Signal(signal))),
            Ok(_) | Err(_) => {
                faults.add(
                    at.field("signal"),
                    format_args!("{signal} is not within 1 to 127"),
                );
                None
            }
        },
    }
}

/// Writes how a process ended.
#[must_use]
pub fn write_exit(exit: Exit) -> wire::Exit {
    use wire::exit::How;
    wire::Exit {
        how: Some(match exit {
            Exit::Code(code) => How::Code(u32::from(code)),
            Exit::Signal(signal) => How::Signal(u32::from(signal)),
        }),
    }
}

/// Reads what a run used.
pub fn read_usage(
    usage: Option<wire::Usage>,
    at: At<'_>,
    faults: &mut Faults,
) -> Option<Option<Usage>> {
    let Some(usage) = usage else {
        return Some(None);
    };
    let cpu_ms = read_amount(usage.cpu_ms, at.field("cpu_ms"), faults);
    let peak = at.field("memory_peak_bytes");
    let memory_peak = read_amount(usage.memory_peak_bytes, peak, faults);
    let wall_ms = read_amount(usage.wall_ms, at.field("wall_ms"), faults);
    Some(Some(Usage {
        cpu_ms: cpu_ms?,
        memory_peak: Bytes(memory_peak?),
        wall_ms: wall_ms?,
    }))
}

/// Writes what a run used.
#[must_use]
pub fn write_usage(usage: Usage) -> wire::Usage {
    wire::Usage {
        cpu_ms: usage.cpu_ms,
        memory_peak_bytes: usage.memory_peak.0,
        wall_ms: usage.wall_ms,
    }
}

/// Reads one numbered status and whose it is. The sequence counts from 1. A reason that this
/// release does not know decides nothing here: it is kept in front of the message.
pub fn read_status(
    status: wire::Status,
    at: At<'_>,
    faults: &mut Faults,
) -> Option<(FrameworkId, Status)> {
    let run = read_run_ref(status.run, at.field("run"), faults);
    if status.sequence == 0 {
        faults.add(
            at.field("sequence"),
            "0 is not permitted: statuses count from 1",
        );
    }
    let phase = read_phase(status.phase, at.field("phase"), faults);
    let message = read_text(status.message, LONGEST_MESSAGE, at.field("message"), faults);
    let reason = read_text(status.reason, 64, at.field("reason"), faults);
    let exit = read_exit(status.exit, at.field("exit"), faults);
    let usage = read_usage(status.usage, at.field("usage"), faults);
    let at_ms = read_amount(status.at_ms, at.field("at_ms"), faults);
    let (reason, message) = keep_reason(&reason?, message?);
    let (framework, run) = run?;
    let read = Status {
        run,
        sequence: status.sequence,
        phase: phase?,
        reason,
        message,
        source: read_source(status.source),
        at: Timestamp(at_ms?),
        exit: exit?,
        usage: usage?,
        coalesced: status.coalesced,
    };
    (read.sequence > 0).then_some((framework, read))
}

fn keep_reason(reason: &str, message: String) -> (Option<Code>, String) {
    if reason.is_empty() {
        return (None, message);
    }
    match reason.parse() {
        Ok(code) => (Some(code), message),
        Err(_) if message.is_empty() => (None, format!("[{reason}]")),
        Err(_) => (None, format!("[{reason}] {message}")),
    }
}

/// Reads who said it. It decides nothing: one that is not known reads as the agent, which sends
/// them.
#[must_use]
pub fn read_source(source: i32) -> StatusSource {
    match wire::StatusSource::try_from(source).unwrap_or(wire::StatusSource::Unspecified) {
        wire::StatusSource::Unspecified | wire::StatusSource::Agent => StatusSource::Agent,
        wire::StatusSource::Master => StatusSource::Master,
        wire::StatusSource::Framework => StatusSource::Framework,
        wire::StatusSource::Operator => StatusSource::Operator,
    }
}

/// Writes one status; `agent` is where the run is or was, as text, empty when nowhere.
#[must_use]
pub fn write_status(framework: FrameworkId, status: &Status, agent: String) -> wire::Status {
    let source = match status.source {
        StatusSource::Agent => wire::StatusSource::Agent,
        StatusSource::Master => wire::StatusSource::Master,
        StatusSource::Framework => wire::StatusSource::Framework,
        StatusSource::Operator => wire::StatusSource::Operator,
    };
    wire::Status {
        run: Some(write_run_ref(framework, &status.run)),
        sequence: status.sequence,
        phase: write_phase(status.phase).into(),
        reason: status
            .reason
            .map(|code| code.to_string())
            .unwrap_or_default(),
        message: status.message.clone(),
        source: source.into(),
        at_ms: status.at.0,
        exit: status.exit.map(write_exit),
        usage: status.usage.map(write_usage),
        coalesced: status.coalesced,
        agent_id: agent,
    }
}
