//! One agent's runtime on a temporary directory, and what the stories ask of it.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use mete_agent::isolate::{Hierarchies, Isolation, KernelFiles, Limits, PartLimits};
use mete_agent::runtime::logs::{Begin, LogReader};
use mete_agent::runtime::process::{ProcessConfig, ProcessRuntime};
use mete_agent::runtime::records::RunDirectory;
use mete_agent::runtime::{Ended, Events, Gate, Launch, RunName, Runtime, RuntimeEvent};

pub(crate) const SHIM: &str = env!("CARGO_BIN_EXE_mete-agent-test-shim");
pub(crate) const BOOT: &str = "11111111-2222-3333-4444-555555555555";
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Groups {
    /// Whatever the host has.
    With,
    /// As if the host had no v2 tree: freezer and `tasks` instead.
    OnlyV1,
    Without,
}

/// One agent's runtime on a directory that outlives it.
pub(crate) struct Node {
    pub(crate) directory: PathBuf,
    pub(crate) isolation: Arc<Isolation>,
    pub(crate) runtime: ProcessRuntime,
    pub(crate) events: Events,
    pub(crate) ended: HashMap<RunName, Ended>,
}

pub(crate) fn isolation(groups: Groups, agent: &str) -> Isolation {
    let part = PartLimits::default();
    match groups {
        Groups::With => Isolation::probe("/proc".as_ref(), None, agent, part),
        Groups::OnlyV1 => {
            let found = Hierarchies::read("/proc".as_ref(), None).expect("procfs");
            let found = Hierarchies { v2: None, ..found };
            Isolation::open(Arc::new(KernelFiles), found, agent, part)
        }
        Groups::Without => Isolation::none(part, "off in this test".to_owned()),
    }
}

/// Unlike any other test's, so that processes of the run can be told by its name.
pub(crate) fn named(directory: &Path, task: &str) -> RunName {
    RunName::for_run(&directory.to_string_lossy(), task, 1)
}

pub(crate) fn agent_name(directory: &Path) -> String {
    let name = directory.file_name().expect("a name").to_string_lossy();
    format!("test-{}", name.trim_start_matches('.'))
}

impl Node {
    pub(crate) fn open(directory: &Path, groups: Groups) -> Self {
        Self::open_in_boot(directory, groups, BOOT)
    }

    pub(crate) fn open_in_boot(directory: &Path, groups: Groups, boot: &str) -> Self {
        let isolation = Arc::new(isolation(groups, &agent_name(directory)));
        let mut config = ProcessConfig::new(directory.join("runs"), boot.to_owned());
        config.shim_program = SHIM.into();
        let handle = tokio::runtime::Handle::current();
        let (runtime, events) =
            ProcessRuntime::new(config, Arc::clone(&isolation), handle).expect("a directory");
        let directory = directory.to_owned();
        Self {
            directory,
            isolation,
            runtime,
            events,
            ended: HashMap::new(),
        }
    }

    pub(crate) fn launch(&self, task: &str, script: &str) -> Launch {
        Launch {
            run: named(&self.directory, task),
            reference: task.as_bytes().to_vec(),
            command: ["sh", "-c", script].map(str::to_owned).to_vec(),
            environment: BTreeMap::new(),
            working_directory: self.directory.join("work"),
            make_working_directory: true,
            user: None,
            log_directory: self.directory.join("logs").join(task),
            log_file_bytes: 10 << 20,
            log_files: 5,
            limits: Limits {
                cpu_milli: 100,
                ..Limits::default()
            },
            cores: Vec::new(),
            resource_limits: Vec::new(),
            kill_grace_ms: 10_000,
            prepare_timeout_ms: 60_000,
            time_limit_ms: 0,
            stop_if_silent_ms: 0,
            gate: Gate::Open,
        }
    }

    pub(crate) async fn event(&mut self) -> RuntimeEvent {
        let event = tokio::time::timeout(PATIENCE, self.events.recv()).await;
        let event = event.expect("an event in time").expect("the runtime lives");
        if let RuntimeEvent::Ended { run, ended } = &event {
            let before = self.ended.insert(run.clone(), ended.clone());
            assert_eq!(before, None, "{run} ended twice");
            assert_eq!(ended.cgroup_left, None, "the cgroup of {run} is gone");
        }
        event
    }

    pub(crate) async fn until(&mut self, wanted: impl Fn(&RuntimeEvent) -> bool) -> RuntimeEvent {
        loop {
            let event = self.event().await;
            if wanted(&event) {
                return event;
            }
        }
    }

    pub(crate) async fn end_of(&mut self, run: &RunName) -> Ended {
        while !self.ended.contains_key(run) {
            self.event().await;
        }
        self.ended[run].clone()
    }

    pub(crate) async fn started(&mut self, wanted: &RunName) {
        self.until(|event| matches!(event, RuntimeEvent::Started { run, .. } if run == wanted))
            .await;
    }

    pub(crate) async fn run(&mut self, task: &str, script: &str) -> Ended {
        let launch = self.launch(task, script);
        let run = launch.run.clone();
        self.runtime.prepare(launch);
        self.end_of(&run).await
    }

    pub(crate) fn output(&self, task: &str) -> String {
        read_log(&self.directory, task)
    }
}

pub(crate) fn read_log(directory: &Path, task: &str) -> String {
    let mut reader =
        LogReader::open(&directory.join("logs").join(task), Begin::default()).expect("readable");
    let mut bytes = Vec::new();
    loop {
        let lines = reader.read().expect("readable");
        if lines.is_empty() {
            return String::from_utf8_lossy(&bytes).into_owned();
        }
        lines.iter().for_each(|line| bytes.extend(line.bytes()));
    }
}

/// Waits for a condition; never longer than the test's patience.
pub(crate) async fn wait_for(what: &str, condition: impl Fn() -> bool) {
    let until = Instant::now() + PATIENCE;
    while !condition() {
        assert!(Instant::now() < until, "waited in vain: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Processes whose environment or command line holds `text`.
pub(crate) fn processes_with(text: &str) -> Vec<u32> {
    let has = |pid: u32, file: &str| {
        let content = std::fs::read(format!("/proc/{pid}/{file}")).unwrap_or_default();
        content
            .windows(text.len())
            .any(|window| window == text.as_bytes())
    };
    std::fs::read_dir("/proc")
        .expect("procfs")
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .filter(|pid| has(*pid, "environ") || has(*pid, "cmdline"))
        .collect()
}

/// What an ended run has left running: a line for each process.
///
/// Its shim is not of the run and may still be leaving: it tells the end first, and is waited for
/// by the runtime afterwards.
pub(crate) fn left_of(directory: &Path, run: &RunName) -> Vec<String> {
    let records = RunDirectory::of(&directory.join("runs"), run);
    let record = records.run_record().expect("readable").expect("written");
    let command = |pid: u32| {
        let bytes = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&bytes).replace('\0', " ")
    };
    processes_with(run.as_str())
        .into_iter()
        .filter(|pid| *pid != record.shim_pid)
        .map(|pid| format!("{pid}: {}", command(pid)))
        .collect()
}

pub(crate) fn kill(pid: u32) {
    let pid = i32::try_from(pid)
        .ok()
        .and_then(rustix::process::Pid::from_raw);
    let _gone = rustix::process::kill_process(pid.expect("a pid"), rustix::process::Signal::KILL);
}

/// Runs a story with and without control groups.
pub(crate) fn both(story: impl AsyncFn(Groups, PathBuf)) {
    for groups in [Groups::With, Groups::OnlyV1, Groups::Without] {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let trial = isolation(groups, &agent_name(directory.path()));
        if groups != Groups::Without && !trial.is_some() {
            eprintln!("NOT TESTED {groups:?}: no such control groups can be written here");
            continue;
        }
        tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .expect("threads")
            .block_on(story(groups, directory.path().to_owned()));
        // The last shims are leaving.
        let until = Instant::now() + Duration::from_secs(5);
        while !trial.remove_top() && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}
