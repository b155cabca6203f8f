//! How a task runs.

use std::collections::BTreeMap;

use mete_model::task::FakeTask;
use mete_model::{Bytes, Keep, Partition, Span, TaskSpec};
use prost::Message;

use super::faults::{At, Faults};
use super::quantity::{read_amount, read_count, read_span, write_span};
use super::text::read_labels;
use crate::types::v1 as wire;

/// One task spec, encoded, in bytes.
pub const LONGEST_SPEC: usize = 1 << 20;

/// Log files that may be kept of one task.
pub const MOST_LOG_FILES: u32 = 1000;

/// Reads a spec of at most [`LONGEST_SPEC`] bytes. The command may be empty only for pretended
/// tasks; commands, variables and paths may not hold NUL bytes, which no kernel takes.
pub fn read_spec(spec: wire::TaskSpec, at: At<'_>, faults: &mut Faults) -> Option<TaskSpec> {
    let size = spec.encoded_len();
    if size > LONGEST_SPEC {
        faults.add(
            at,
            format_args!("{size} bytes of spec are more than the {LONGEST_SPEC} permitted"),
        );
        return None;
    }
    let command = read_command(
        spec.command,
        spec.fake.is_some(),
        at.field("command"),
        faults,
    );
    let environment = read_environment(spec.environment, at.field("environment"), faults);
    let directory = at.field("working_directory");
    let working_directory = read_directory(spec.working_directory, directory, faults);
    let user = read_user(spec.user, at.field("user"), faults);
    let kill_grace = read_span(spec.kill_grace_ms, at.field("kill_grace_ms"), faults);
    let timeout = at.field("launch_timeout_ms");
    let launch_timeout = read_span(spec.launch_timeout_ms, timeout, faults);
    let time_limit = read_span(spec.time_limit_ms, at.field("time_limit_ms"), faults);
    let labels = read_labels(spec.labels, at.field("labels"), faults);
    let log_file = read_amount(spec.log_file_bytes, at.field("log_file_bytes"), faults);
    let log_files = read_count(
        spec.log_files,
        0,
        MOST_LOG_FILES,
        at.field("log_files"),
        faults,
    );
    let fake = read_fake(spec.fake.unwrap_or_default(), at.field("fake"), faults);
    let partition = read_partition(spec.on_unreachable, spec.stop_if_silent_ms, at, faults);
    Some(TaskSpec {
        command: command?,
        environment: environment?,
        working_directory: working_directory?,
        user: user?,
        kill_grace: kill_grace?,
        launch_timeout: launch_timeout?,
        time_limit: time_limit?,
        labels: labels?,
        log_file: log_file.map(|bytes| (bytes > 0).then_some(Bytes(bytes)))?,
        log_files: log_files.map(|files| (files > 0).then_some(files))?,
        fake: fake?,
        partition: partition?,
    })
}

fn read_command(
    command: Vec<String>,
    pretended: bool,
    at: At<'_>,
    faults: &mut Faults,
) -> Option<Vec<String>> {
    if command.first().is_none_or(String::is_empty) && !(pretended && command.is_empty()) {
        faults.add(
            at,
            "must name a program: the first word is empty or missing",
        );
        return None;
    }
    let mut good = true;
    for (index, word) in command.iter().enumerate() {
        good &= has_no_nul(word, at.index(index), faults);
    }
    good.then_some(command)
}

/// Checks variables of a process: names without `=`, nothing with NUL bytes.
pub fn read_environment(
    environment: BTreeMap<String, String>,
    at: At<'_>,
    faults: &mut Faults,
) -> Option<BTreeMap<String, String>> {
    let mut good = true;
    for (name, value) in &environment {
        if name.is_empty() || name.contains('=') || name.contains('\0') {
            faults.add(
                at.key(name),
                "a name must not be empty and not contain '=' or NUL",
            );
            good = false;
        }
        good &= has_no_nul(value, at.key(name), faults);
    }
    good.then_some(environment)
}

fn read_directory(path: String, at: At<'_>, faults: &mut Faults) -> Option<String> {
    if !path.is_empty() && !path.starts_with('/') {
        faults.add(at, "must be empty or an absolute path");
        return None;
    }
    has_no_nul(&path, at, faults).then_some(path)
}

fn read_user(user: String, at: At<'_>, faults: &mut Faults) -> Option<String> {
    if user.is_empty() || mete_model::text::is_printable(&user, 128) {
        return Some(user);
    }
    faults.add(at, "must be empty or 1 to 128 bytes without white space");
    None
}

fn has_no_nul(text: &str, at: At<'_>, faults: &mut Faults) -> bool {
    let good = !text.contains('\0');
    if !good {
        faults.add(at, "must not contain NUL bytes");
    }
    good
}

fn read_fake(fake: wire::FakeTask, at: At<'_>, faults: &mut Faults) -> Option<FakeTask> {
    let run = read_amount(fake.run_ms, at.field("run_ms"), faults);
    let exit_code = u8::try_from(fake.exit_code)
        .map_err(|_| {
            let code = fake.exit_code;
            faults.add(
                at.field("exit_code"),
                format_args!("{code} is not within 0 to 255"),
            );
        })
        .ok();
    Some(FakeTask {
        run: Span(run?),
        exit_code: exit_code?,
    })
}

fn read_partition(
    on_unreachable: Option<wire::OnUnreachable>,
    silent_ms: u64,
    at: At<'_>,
    faults: &mut Faults,
) -> Option<Partition> {
    let unreachable = on_unreachable.unwrap_or_default();
    let there = at.field("on_unreachable");
    let keep = match unreachable.keep() {
        wire::KeepRun::Oldest => Some(Keep::Oldest),
        wire::KeepRun::Newest => Some(Keep::Newest),
        // One of a newer release must not be read as the default.
        wire::KeepRun::Unspecified if unreachable.keep == 0 => Some(Keep::Newest),
        wire::KeepRun::Unspecified => {
            let fault = format_args!("{} is not known to this release", unreachable.keep);
            faults.add(there.field("keep"), fault);
            None
        }
    };
    let replace = there.field("replace_after_ms");
    let replace_after = read_span(unreachable.replace_after_ms, replace, faults);
    let stop_if_silent = read_span(silent_ms, at.field("stop_if_silent_ms"), faults);
    Some(Partition {
        replace_after: replace_after?,
        keep: keep?,
        stop_if_silent: stop_if_silent?,
    })
}

fn write_unreachable(partition: &Partition) -> Option<wire::OnUnreachable> {
    let keep = match partition.keep {
        Keep::Newest => wire::KeepRun::Unspecified,
        Keep::Oldest => wire::KeepRun::Oldest,
    };
    let written = wire::OnUnreachable {
        replace_after_ms: write_span(partition.replace_after),
        keep: keep.into(),
    };
    (written != wire::OnUnreachable::default()).then_some(written)
}

/// Writes a spec.
#[must_use]
pub fn write_spec(spec: &TaskSpec) -> wire::TaskSpec {
    let pretended = spec.fake != FakeTask::default() || spec.command.is_empty();
    wire::TaskSpec {
        command: spec.command.clone(),
        environment: spec.environment.clone(),
        working_directory: spec.working_directory.clone(),
        user: spec.user.clone(),
        kill_grace_ms: write_span(spec.kill_grace),
        launch_timeout_ms: write_span(spec.launch_timeout),
        time_limit_ms: write_span(spec.time_limit),
        labels: spec.labels.clone(),
        log_file_bytes: spec.log_file.map_or(0, |bytes| bytes.0),
        log_files: spec.log_files.unwrap_or(0),
        fake: pretended.then(|| wire::FakeTask {
            run_ms: spec.fake.run.0,
            exit_code: i32::from(spec.fake.exit_code),
        }),
        on_unreachable: write_unreachable(&spec.partition),
        stop_if_silent_ms: write_span(spec.partition.stop_if_silent),
    }
}
