//! `mete bench node`: what it costs to start a task through the `process` runtime, beside a bare
//! fork and exec of the same command in the same run.
//!
//! Everything is real: checkpoint with fsync, control groups as far as this user may make them,
//! shim, log files. A start is the time from the order to the word that the command runs; the bare
//! one is the time until exec has succeeded. First one after another by turns, then all at once.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use mete_agent::checkpoint::{Checkpoint, Entry};
use mete_agent::discover::part;
use mete_agent::isolate::{Controller, Isolation, Limits, PartLimits};
use mete_agent::runtime::process::{ProcessConfig, ProcessRuntime};
use mete_agent::runtime::{Ending, Events, Gate, Launch, RunName, Runtime, RuntimeEvent};
use mete_model::Code;
use mete_proto::internal::v1::CheckpointRun;
use uuid::Uuid;

use super::{Figures, Home, decimal, percentile};
use crate::cli::support::error::{CliError, Outcome};

/// What is started: it ends at once.
const COMMAND: &str = "true";

/// Longest wait for anything.
const PATIENCE: Duration = Duration::from_secs(60);

/// How large the bench is.
#[derive(Clone, Copy, Debug)]
pub struct Size {
    /// Starts one after another.
    pub starts: u32,
    /// Starts at once.
    pub at_once: u32,
}

/// Measures.
///
/// # Errors
/// Sizes that cannot be, or a part that failed.
pub async fn run(size: Size) -> Outcome<Figures> {
    let fits = |count| (1..=10_000).contains(&count);
    if !fits(size.starts) || !fits(size.at_once) {
        return Err(super::usage("--starts and --at-once are within 1 to 10000"));
    }
    let name = format!("bench-{}", Uuid::new_v4().simple());
    let home = Home::make()?;
    let records = part::run_directory_in_memory(&part::runtime_directory(), &name);
    let part = PartLimits::default();
    let isolation = Arc::new(Isolation::probe("/proc".as_ref(), None, &name, part));
    let measured = match Bench::open(&home.0, &records, Arc::clone(&isolation)) {
        Ok(mut bench) => bench.measure(size).await,
        Err(error) => Err(error),
    };
    // Temporary all of it; the last shims may still be leaving their cgroup.
    let _ = std::fs::remove_dir_all(&records);
    let until = Instant::now() + Duration::from_secs(5);
    while !isolation.remove_top() && Instant::now() < until {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let mut figures = measured?;
    let serves = isolation.serves(Controller::Memory).unwrap_or("none");
    figures.put("cgroups", serves);
    figures.put("records_in_memory", part::is_in_memory(&records));
    Ok(figures)
}

fn failed(what: &str, path: &Path, error: &std::io::Error) -> CliError {
    let code = Code::StateDirectory;
    CliError::new(code, format!("{what} {}: {error}", path.display()))
}

/// An agent's node side, without a master.
struct Bench {
    home: PathBuf,
    runtime: ProcessRuntime,
    events: Events,
    /// Absent only while a write is under way.
    checkpoint: Option<Checkpoint>,
}

/// Milliseconds, each kind in the order of measuring.
#[derive(Default)]
struct Times {
    bare: Vec<f64>,
    record: Vec<f64>,
    start: Vec<f64>,
    durable: Vec<f64>,
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1000.0
}

impl Bench {
    fn open(home: &Path, records: &Path, isolation: Arc<Isolation>) -> Outcome<Self> {
        let (checkpoint, _fresh) = Checkpoint::open(home, Uuid::nil(), Uuid::new_v4())
            .map_err(|error| failed("open a checkpoint in", home, &error))?;
        let config = ProcessConfig::new(records.to_owned(), Uuid::nil().to_string());
        let handle = tokio::runtime::Handle::current();
        let (runtime, events) = ProcessRuntime::new(config, isolation, handle)
            .map_err(|error| CliError::new(Code::File, error.to_string()))?;
        Ok(Self {
            home: home.to_owned(),
            runtime,
            events,
            checkpoint: Some(checkpoint),
        })
    }

    async fn measure(&mut self, size: Size) -> Outcome<Figures> {
        let mut times = Times::default();
        for number in 0..size.starts {
            times.bare.push(bare(1).await?);
            let launch = self.launch(&format!("one-{number}"));
            let record = self.record(std::slice::from_ref(&launch)).await?;
            let start = self.start(vec![launch]).await?;
            times.record.push(record);
            times.start.push(start);
            times.durable.push(record + start);
        }
        let bare_at_once = bare(size.at_once).await?;
        let launches: Vec<Launch> = (0..size.at_once)
            .map(|number| self.launch(&format!("all-{number}")))
            .collect();
        let record_at_once = self.record(&launches).await?;
        let at_once = self.start(launches).await?;

        let mut figures = Figures::default();
        figures.put("starts", size.starts);
        // What the machine can do, whatever else runs on it.
        let best = percentile(&mut times.start, 0) - percentile(&mut times.bare, 0);
        figures.put("over_best_ms", decimal(best));
        let mut at = |percent| {
            (
                percentile(&mut times.bare, percent),
                percentile(&mut times.start, percent),
                percentile(&mut times.record, percent),
                percentile(&mut times.durable, percent),
            )
        };
        for (percent, (bare, start, record, durable)) in [(50, at(50)), (99, at(99))] {
            figures.put(&format!("bare_p{percent}_ms"), decimal(bare));
            figures.put(&format!("start_p{percent}_ms"), decimal(start));
            figures.put(&format!("over_p{percent}_ms"), decimal(start - bare));
            figures.put(&format!("ratio_p{percent}"), decimal(start / bare));
            figures.put(&format!("checkpoint_p{percent}_ms"), decimal(record));
            figures.put(&format!("durable_start_p{percent}_ms"), decimal(durable));
        }
        let each = |total: f64| decimal(total / f64::from(size.at_once));
        figures.put("at_once", size.at_once);
        figures.put("at_once_bare_ms", decimal(bare_at_once));
        figures.put("at_once_start_ms", decimal(at_once));
        figures.put("at_once_checkpoint_ms", decimal(record_at_once));
        figures.put("at_once_bare_each_ms", each(bare_at_once));
        figures.put("at_once_start_each_ms", each(at_once));
        figures.put("at_once_ratio", decimal(at_once / bare_at_once));
        Ok(figures)
    }

    fn launch(&self, name: &str) -> Launch {
        let own = self.home.join("tasks").join(name);
        Launch {
            run: RunName::for_run(&self.home.to_string_lossy(), name, 1),
            reference: name.as_bytes().to_vec(),
            command: vec![COMMAND.to_owned()],
            environment: BTreeMap::new(),
            working_directory: own.join("work"),
            make_working_directory: true,
            user: None,
            log_directory: own.join("log"),
            log_file_bytes: 10 << 20,
            log_files: 5,
            limits: Limits {
                // As much weight as the bare start beside it has.
                cpu_milli: 10_000,
                memory_bytes: Some(64 << 20),
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

    /// Milliseconds of one durable write for these launches.
    async fn record(&mut self, launches: &[Launch]) -> Outcome<f64> {
        let records: Vec<_> = launches
            .iter()
            .map(|launch| {
                let run = CheckpointRun {
                    framework_name: launch.run.as_str().to_owned(),
                    ..CheckpointRun::default()
                };
                Entry::Run(Box::new(run)).to_record()
            })
            .collect();
        let Some(mut checkpoint) = self.checkpoint.take() else {
            return Err(CliError::new(
                Code::Internal,
                "the checkpoint is lost with an earlier write",
            ));
        };
        let written = tokio::task::spawn_blocking(move || {
            let begun = Instant::now();
            let result = checkpoint.append(&records);
            (ms(begun.elapsed()), checkpoint, result)
        });
        let (took, checkpoint, result) = written
            .await
            .map_err(|error| CliError::new(Code::Internal, error.to_string()))?;
        self.checkpoint = Some(checkpoint);
        result.map_err(|error| failed("write a checkpoint in", &self.home, &error))?;
        Ok(took)
    }

    /// Milliseconds from the order to the last `Started`; returns when all have ended.
    async fn start(&mut self, launches: Vec<Launch>) -> Outcome<f64> {
        let (mut to_start, mut to_end) = (launches.len(), launches.len());
        let begun = Instant::now();
        let mut took = 0.0;
        for launch in launches {
            self.runtime.prepare(launch);
        }
        while to_end > 0 {
            match self.event().await? {
                RuntimeEvent::Started { .. } => {
                    to_start = to_start.saturating_sub(1);
                    took = ms(begun.elapsed());
                }
                RuntimeEvent::Ended { run, ended } => {
                    if ended.ending != Ending::Code(0) {
                        let sentence = format!("a start of {COMMAND:?} ended as {ended:?}");
                        return Err(CliError::new(Code::Internal, sentence));
                    }
                    self.runtime.forget(&run);
                    to_end -= 1;
                }
                RuntimeEvent::Prepared { .. }
                | RuntimeEvent::Stopping { .. }
                | RuntimeEvent::Stuck { .. } => {}
            }
        }
        if to_start > 0 {
            let sentence = format!("{to_start} starts were never told");
            return Err(CliError::new(Code::Internal, sentence));
        }
        Ok(took)
    }

    async fn event(&mut self) -> Outcome<RuntimeEvent> {
        let late = || {
            let sentence = format!("waited {}s for a task of this node", PATIENCE.as_secs());
            CliError::new(Code::TimedOut, sentence)
        };
        let event = tokio::time::timeout(PATIENCE, self.events.recv()).await;
        event.ok().flatten().ok_or_else(late)
    }
}

/// Milliseconds until so many bare processes execute, one after another without waiting for their
/// ends.
async fn bare(count: u32) -> Outcome<f64> {
    let done = tokio::task::spawn_blocking(move || {
        let begun = Instant::now();
        let children: Result<Vec<_>, _> =
            (0..count).map(|_| Command::new(COMMAND).spawn()).collect();
        let took = ms(begun.elapsed());
        for mut child in children? {
            child.wait()?;
        }
        Ok::<f64, std::io::Error>(took)
    });
    let done = done
        .await
        .map_err(|error| CliError::new(Code::Internal, error.to_string()))?;
    done.map_err(|error| CliError::new(Code::ExecFailed, format!("{COMMAND}: {error}")))
}
