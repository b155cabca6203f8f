//! For the tests of the runtime: the shim as `mete __shim` runs it, and a small agent that can be
//! killed for real.

use std::path::PathBuf;
use std::sync::Arc;

use mete_agent::isolate::{Isolation, PartLimits};
use mete_agent::runtime::process::{ProcessConfig, ProcessRuntime};
use mete_agent::runtime::{Gate, Launch, RunName, Runtime};

fn main() {
    let mut arguments = std::env::args_os().skip(1);
    let verb = arguments.next().unwrap_or_default();
    if verb == "__shim" {
        std::process::exit(mete_agent::runtime::shim::main(arguments));
    }
    let texts: Vec<String> = arguments
        .map(|text| text.to_string_lossy().into_owned())
        .collect();
    let [directory, cgroup_agent, boot_id, scripts @ ..] = texts.as_slice() else {
        std::process::exit(2)
    };
    agent(directory.into(), cgroup_agent, boot_id, scripts);
}

/// Starts one run for each script and then does nothing until it is killed.
fn agent(directory: PathBuf, cgroup_agent: &str, boot_id: &str, scripts: &[String]) {
    let tokio = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("threads can be made");
    let part = PartLimits::default();
    let isolation = if cgroup_agent.is_empty() {
        Isolation::none(part, "off in this test".to_owned())
    } else {
        Isolation::probe("/proc".as_ref(), None, cgroup_agent, part)
    };
    let config = ProcessConfig::new(directory.join("runs"), boot_id.to_owned());
    let (runtime, mut events) =
        ProcessRuntime::new(config, Arc::new(isolation), tokio.handle().clone())
            .expect("a directory for runs");
    for (number, script) in scripts.iter().enumerate() {
        runtime.prepare(launch(&directory, number, script));
    }
    tokio.block_on(async { while events.recv().await.is_some() {} });
}

fn launch(directory: &std::path::Path, number: usize, script: &str) -> Launch {
    let attempt = 1;
    Launch {
        run: RunName::for_run(
            &directory.to_string_lossy(),
            &format!("task-{number}"),
            attempt,
        ),
        reference: number.to_string().into_bytes(),
        command: ["sh", "-c", script].map(str::to_owned).to_vec(),
        environment: std::collections::BTreeMap::new(),
        working_directory: directory.join("work"),
        make_working_directory: true,
        user: None,
        log_directory: directory.join("logs").join(number.to_string()),
        log_file_bytes: 10 << 20,
        log_files: 5,
        limits: mete_agent::isolate::Limits::default(),
        cores: Vec::new(),
        resource_limits: Vec::new(),
        kill_grace_ms: 10_000,
        prepare_timeout_ms: 60_000,
        time_limit_ms: 0,
        stop_if_silent_ms: 0,
        gate: Gate::Open,
    }
}
