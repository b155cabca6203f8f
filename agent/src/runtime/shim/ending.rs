//! How a run ended, from the pieces that the shim saw.

use mete_proto::internal::v1::{ExitRecord, LaunchFailure, ShimSpec, exit_record};

use super::system;
use crate::isolate::Facts;
use crate::runtime::records::{facts_to_wire, now_ms};

/// How the main process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum MainEnd {
    Code(u32),
    Signal(u32),
}

impl std::fmt::Display for MainEnd {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Code(code) => write!(f, "exit code {code}"),
            Self::Signal(signal) => write!(f, "signal {signal}"),
        }
    }
}

/// What the shim knows at the end.
#[derive(Debug, Default)]
pub(super) struct Ending {
    pub(super) main: Option<MainEnd>,
    pub(super) failure: Option<LaunchFailure>,
    pub(super) started_ms: u64,
    pub(super) ended_ms: u64,
    pub(super) stop_asked: bool,
    pub(super) time_limit: bool,
    pub(super) out_of_contact: bool,
    pub(super) forced: bool,
}

impl Ending {
    /// The record, once nothing is left.
    pub(super) fn record(self, spec: &ShimSpec, mut facts: Facts, dropped: u64) -> ExitRecord {
        // Where no cgroup counts, the children that were waited for are what is known.
        let (cpu_ns, memory_bytes) = system::children_usage();
        if facts.cpu_ns == 0 {
            facts.cpu_ns = cpu_ns;
        }
        if facts.memory_peak_bytes == 0 {
            facts.memory_peak_bytes = memory_bytes;
        }
        let how = match (self.failure, self.main, self.started_ms) {
            (Some(failure), _, _) => Some(exit_record::How::Failure(failure)),
            (None, _, 0) => Some(exit_record::How::NeverStarted(true)),
            (None, Some(MainEnd::Code(code)), _) => Some(exit_record::How::Code(code)),
            (None, Some(MainEnd::Signal(signal)), _) => Some(exit_record::How::Signal(signal)),
            (None, None, _) => None,
        };
        ExitRecord {
            version: 1,
            run: spec.run.clone(),
            reference: spec.reference.clone(),
            how,
            started_ms: self.started_ms,
            ended_ms: if self.ended_ms == 0 {
                now_ms()
            } else {
                self.ended_ms
            },
            facts: Some(facts_to_wire(&facts)),
            stop_asked: self.stop_asked,
            time_limit: self.time_limit,
            forced: self.forced,
            log_bytes_dropped: dropped,
            boot_id: spec.boot_id.clone(),
            out_of_contact: self.out_of_contact,
        }
    }
}
