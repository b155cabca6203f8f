//! A start of the core as a launch of the runtime: directories, environment, limits.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use mete_model::task::{KILL_GRACE, LAUNCH_TIMEOUT};
use prost::Message;

use crate::core::{RunKey, StartTask};
use crate::isolate::Limits;
use crate::records;
use crate::runtime::{Gate, Launch, RunName, user};

/// Size of a log file, and how many are kept, when the spec does not say.
const LOG_FILE_BYTES: u64 = 10 << 20;
const LOG_FILES: u32 = 5;

/// The name of a run in the file system.
#[must_use]
pub fn run_name(key: &RunKey) -> RunName {
    let framework = key.framework.to_string();
    RunName::for_run(&framework, key.run.task.as_str(), key.run.attempt)
}

/// Where a run's own files are.
#[must_use]
pub fn task_directory(state_directory: &Path, run: &RunName) -> PathBuf {
    state_directory.join("tasks").join(run.as_str())
}

/// Where a run's logs are.
#[must_use]
pub fn log_directory(state_directory: &Path, run: &RunName) -> PathBuf {
    task_directory(state_directory, run).join("log")
}

/// Everything the runtime needs.
///
/// # Errors
/// What cannot be used, as a sentence: the user is unknown or may not be taken on.
pub(super) fn launch(
    state_directory: &Path,
    start: &StartTask,
    limit_cpu_to_cores: bool,
) -> Result<Launch, String> {
    let run = run_name(&start.key);
    let spec = &start.spec;
    let user = if spec.user.is_empty() {
        None
    } else {
        user::lookup(Path::new("/etc"), &spec.user)
            .map_err(|error| format!("find the user: {error}"))?
    };
    let own = task_directory(state_directory, &run);
    let working_directory = if spec.working_directory.is_empty() {
        own.join("work")
    } else {
        PathBuf::from(&spec.working_directory)
    };
    let cores: Vec<u32> = start.resources.cores.iter().collect();
    let memory = start.resources.memory;
    Ok(Launch {
        reference: records::describe(start).encode_to_vec(),
        command: spec.command.clone(),
        environment: environment(start),
        working_directory,
        make_working_directory: spec.working_directory.is_empty(),
        user,
        log_directory: own.join("log"),
        log_file_bytes: spec.log_file.map_or(LOG_FILE_BYTES, |bytes| bytes.0),
        log_files: spec.log_files.unwrap_or(LOG_FILES).max(1),
        limits: Limits {
            cpu_milli: start.resources.cpu.0,
            cpu_limit_milli: None,
            memory_bytes: (!memory.is_zero()).then_some(memory.0),
            pids: None,
            cores: if limit_cpu_to_cores {
                cores.clone()
            } else {
                Vec::new()
            },
        },
        cores,
        resource_limits: Vec::new(),
        kill_grace_ms: spec.kill_grace.unwrap_or(KILL_GRACE).0,
        prepare_timeout_ms: spec.launch_timeout.unwrap_or(LAUNCH_TIMEOUT).0,
        time_limit_ms: spec.time_limit.map_or(0, |limit| limit.0),
        stop_if_silent_ms: spec.partition.stop_if_silent.map_or(0, |limit| limit.0),
        gate: Gate::Open,
        run,
    })
}

/// The spec's variables, the task's own over them, and what every task may know of itself.
fn environment(start: &StartTask) -> BTreeMap<String, String> {
    let mut all = start.spec.environment.clone();
    all.extend(start.environment.clone());
    let mut about = |name: &str, value: String| {
        if !value.is_empty() {
            all.entry(name.to_owned()).or_insert(value);
        }
    };
    about("METE_TASK", start.key.run.task.to_string());
    about("METE_ATTEMPT", start.key.run.attempt.to_string());
    about("METE_FRAMEWORK", start.framework_name.clone());
    about(
        "METE_ROLE",
        start
            .role
            .as_ref()
            .map(ToString::to_string)
            .unwrap_or_default(),
    );
    about("METE_CPU_MILLI", start.resources.cpu.0.to_string());
    about("METE_MEMORY_BYTES", start.resources.memory.0.to_string());
    about("METE_CORES", start.resources.cores.to_string());
    let devices: Vec<&str> = start
        .resources
        .devices
        .iter()
        .map(|share| share.id.as_str())
        .collect();
    about("METE_DEVICES", devices.join(","));
    all
}
