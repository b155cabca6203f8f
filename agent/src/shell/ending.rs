//! What the runtime saw, in the core's words.

use mete_model::{Bytes, Timestamp, Usage};

use crate::core;
use crate::runtime::{Ended, Ending, OutOfMemory, StuckProcess};

pub(super) fn run_end(ended: &Ended) -> core::RunEnd {
    let ending = match &ended.ending {
        Ending::Code(code) => core::Ending::Code(*code),
        Ending::Signal(signal) => core::Ending::Signal(u8::try_from(*signal).unwrap_or(u8::MAX)),
        Ending::ExecFailed { stage, text, .. } => {
            core::Ending::ExecFailed(format!("{stage}: {text}"))
        }
        Ending::MemoryTooSmall { text } => core::Ending::MemoryTooSmall(text.clone()),
        Ending::PrepareFailed { stage, text } => {
            core::Ending::PrepareFailed(format!("{stage}: {text}"))
        }
        Ending::PrepareTimeout { stage } => core::Ending::LaunchTimeout(stage.clone()),
        Ending::NeverStarted => core::Ending::NeverStarted,
        Ending::SupervisorLost => core::Ending::SupervisorLost,
        Ending::Unknown => core::Ending::Unknown,
        Ending::Rebooted => core::Ending::Rebooted,
    };
    let known = |ms: u64| (ms != 0).then_some(Timestamp(ms));
    // Only an end by a signal is an end for want of memory, at any stage; a child that was killed
    // is a note.
    let killed = match ended.ending {
        Ending::Signal(signal) => signal == 9,
        // Before it was the command, its own process is the only one there is.
        Ending::PrepareFailed { .. } => true,
        Ending::Code(_)
        | Ending::ExecFailed { .. }
        | Ending::MemoryTooSmall { .. }
        | Ending::PrepareTimeout { .. }
        | Ending::NeverStarted
        | Ending::SupervisorLost
        | Ending::Unknown
        | Ending::Rebooted => false,
    } && !ended.stop_asked;
    let out_of_memory = ended.facts.out_of_memory().filter(|_| killed);
    core::RunEnd {
        ending,
        at: known(ended.ended_ms),
        usage: known(ended.started_ms).map(|started| Usage {
            cpu_ms: ended.facts.cpu_ns / 1_000_000,
            memory_peak: Bytes(ended.facts.memory_peak_bytes),
            wall_ms: Timestamp(ended.ended_ms).since(started).0,
        }),
        stop_asked: ended.stop_asked,
        time_limit: ended.time_limit,
        out_of_contact: ended.out_of_contact,
        out_of_memory: out_of_memory.map(|whose| !matches!(whose, OutOfMemory::Node)),
        note: note(ended),
    }
}

fn note(ended: &Ended) -> String {
    let mut notes = Vec::new();
    if ended.log_bytes_dropped > 0 {
        notes.push(format!(
            "{} bytes of output were lost: disk full",
            ended.log_bytes_dropped
        ));
    }
    if let Some(left) = &ended.cgroup_left {
        notes.push(format!("its cgroup would not go: {left}"));
    }
    notes.join("; ")
}

pub(super) fn stuck(processes: &[StuckProcess], total: u32) -> String {
    let named: Vec<String> = processes
        .iter()
        .take(3)
        .map(|process| {
            let StuckProcess {
                pid,
                state,
                wait_channel,
                command,
            } = process;
            format!("{command} (pid {pid}, state {state}, waits in {wait_channel})")
        })
        .collect();
    format!("{total} processes do not end: {}", named.join(", "))
}
