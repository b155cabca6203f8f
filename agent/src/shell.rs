//! The real machine as the loop's host: checkpoint, runtime, disk.
//!
//! It carries out what the core decided and turns what the runtime tells into the core's words. It
//! decides nothing about runs; the one thing it watches by itself is room on the disk.

mod ending;
mod groups;
mod home;
mod inventory;
mod launch;
mod start;
mod sweep;

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use mete_model::{Span, Timestamp};
use mete_proto::node::v1::LogEnd;
use prost::Message;
use tokio::time::{Interval, MissedTickBehavior};

use crate::checkpoint::Checkpoint;
use crate::contact::BootTime;
use crate::core::{Event, Record, RunEnd, RunKey, StartTask};
use crate::driver::Host;
use crate::fake::wall_clock;
use crate::records::{Folded, to_entry};
use crate::runtime::contact::{self, ContactFile};
use crate::runtime::{Events, RunName, Runtime, RuntimeEvent, Stop};

pub use self::groups::remove_groups;
pub use self::launch::{log_directory, run_name, task_directory};
pub use self::start::{StartError, run};

/// Below this, and below a hundredth of the disk, new launches are refused.
const LEAST_FREE: u64 = 64 << 20;

/// How often the disk is looked at.
const DISK_CHECK: Duration = Duration::from_secs(2);

/// Name of the file in a task's directory that says how its run ended.
pub(crate) const END_FILE: &str = "end";

/// A machine.
#[derive(Debug)]
struct NodeHost {
    /// Absent only while a write is under way.
    checkpoint: Option<Checkpoint>,
    /// What the checkpoint says, for compactions.
    folded: Folded,
    runtime: Arc<dyn Runtime>,
    events: Events,
    /// Events that did not come from the runtime.
    own_events: VecDeque<Event>,
    keys: BTreeMap<RunName, RunKey>,
    state_directory: PathBuf,
    disk_checks: Interval,
    pressed: bool,
    /// Exclusive cores are held by cpusets here.
    cpusets: bool,
    /// By which the shims know when a leader was heard.
    contact: ContactFile,
}

impl NodeHost {
    fn new(
        checkpoint: Checkpoint,
        folded: Folded,
        runtime: Arc<dyn Runtime>,
        events: Events,
        state_directory: PathBuf,
        cpusets: bool,
        contact: ContactFile,
    ) -> Self {
        let mut disk_checks = tokio::time::interval(DISK_CHECK);
        disk_checks.set_missed_tick_behavior(MissedTickBehavior::Skip);
        Self {
            checkpoint: Some(checkpoint),
            folded,
            runtime,
            events,
            own_events: VecDeque::new(),
            keys: BTreeMap::new(),
            state_directory,
            disk_checks,
            pressed: false,
            cpusets,
            contact,
        }
    }

    fn know(&mut self, key: &RunKey) -> RunName {
        let name = run_name(key);
        self.keys.insert(name.clone(), key.clone());
        name
    }

    fn read_event(&mut self, event: &RuntimeEvent) -> Option<Event> {
        let key = self.keys.get(event.run())?.clone();
        match event {
            RuntimeEvent::Prepared { .. } | RuntimeEvent::Stopping { .. } => None,
            RuntimeEvent::Started { at_ms, .. } => Some(Event::Started {
                key,
                at: Timestamp(*at_ms),
            }),
            RuntimeEvent::Stuck {
                processes, total, ..
            } => Some(Event::Stuck {
                key,
                message: ending::stuck(processes, *total),
            }),
            RuntimeEvent::Ended { run, ended } => {
                let end = ending::run_end(ended);
                self.write_end(run, &end);
                Some(Event::Ended { key, end })
            }
        }
    }

    /// Leaves the way a run ended beside its logs, for readers that come when it is forgotten.
    fn write_end(&self, run: &RunName, end: &RunEnd) {
        let (reason, exit) = match &end.ending {
            crate::core::Ending::Code(code) => {
                (format!("exit {code}"), Some(mete_model::Exit::Code(*code)))
            }
            crate::core::Ending::Signal(signal) => {
                let exit = mete_model::Exit::Signal(*signal);
                (format!("signal {signal}"), Some(exit))
            }
            other @ (crate::core::Ending::ExecFailed(_)
            | crate::core::Ending::MemoryTooSmall(_)
            | crate::core::Ending::PrepareFailed(_)
            | crate::core::Ending::LaunchTimeout(_)
            | crate::core::Ending::NeverStarted
            | crate::core::Ending::SupervisorLost
            | crate::core::Ending::Unknown
            | crate::core::Ending::Rebooted) => (other.to_string(), None),
        };
        let record = LogEnd {
            reason,
            phase: 0,
            exit: exit.map(mete_proto::convert::write_exit),
        };
        let path = task_directory(&self.state_directory, run).join(END_FILE);
        if let Err(error) = std::fs::write(&path, record.encode_to_vec()) {
            tracing::debug!(path = %path.display(), %error, "leaving no word of the end");
        }
    }

    fn look_at_disk(&mut self) -> Option<Event> {
        let disk = match crate::discover::disk::read(&self.state_directory) {
            Ok(disk) => disk,
            Err(error) => {
                tracing::warn!(%error, "reading the size of the disk");
                return None;
            }
        };
        let least = LEAST_FREE.min(disk.total_bytes / 10);
        let pressed = disk.available_bytes < least;
        if pressed == self.pressed {
            return None;
        }
        self.pressed = pressed;
        let why = format!(
            "{} left on the disk of {}, {} needed; free some space",
            mete_model::Bytes(disk.available_bytes),
            self.state_directory.display(),
            mete_model::Bytes(least)
        );
        Some(Event::DiskPressure(pressed.then_some(why)))
    }
}

impl Host for NodeHost {
    async fn record(&mut self, records: Vec<Record>) -> io::Result<()> {
        let Some(mut checkpoint) = self.checkpoint.take() else {
            return Err(io::Error::other(
                "the checkpoint is lost with an earlier write",
            ));
        };
        let stored: Vec<_> = records
            .iter()
            .map(|record| to_entry(record).to_record())
            .collect();
        for record in &stored {
            self.folded.add(record);
        }
        let live = checkpoint
            .wants_compaction()
            .then(|| self.folded.live_records());
        let written = tokio::task::spawn_blocking(move || {
            let result = checkpoint.append(&stored).and_then(|()| match live {
                Some(live) => checkpoint.compact(&live),
                None => Ok(()),
            });
            (checkpoint, result)
        });
        let (checkpoint, result) = written.await.map_err(io::Error::other)?;
        self.checkpoint = Some(checkpoint);
        result
    }

    fn prepare(&mut self, start: StartTask) {
        self.know(&start.key);
        match launch::launch(&self.state_directory, &start, self.cpusets) {
            Ok(launch) => self.runtime.prepare(launch),
            Err(why) => {
                let end = RunEnd::bare(crate::core::Ending::ExecFailed(why));
                self.own_events.push_back(Event::Ended {
                    key: start.key,
                    end,
                });
            }
        }
    }

    fn stop(&mut self, key: &RunKey, grace: Span) {
        let run = self.know(key);
        self.runtime.stop(
            &run,
            Stop {
                grace_ms: grace.0,
                signal: 0,
            },
        );
    }

    fn adopt(&mut self, key: &RunKey) {
        let run = self.know(key);
        self.runtime.adopt(&run);
    }

    fn release(&mut self, key: &RunKey) {
        let run = run_name(key);
        self.keys.remove(&run);
        self.runtime.forget(&run);
    }

    async fn next(&mut self) -> Event {
        loop {
            if let Some(event) = self.own_events.pop_front() {
                return event;
            }
            tokio::select! {
                event = self.events.recv() => {
                    let Some(event) = event else {
                        // The runtime lives as long as this host; without it only time passes.
                        return std::future::pending().await;
                    };
                    if let Some(event) = self.read_event(&event) {
                        return event;
                    }
                }
                _ = self.disk_checks.tick() => {
                    if let Some(event) = self.look_at_disk() {
                        return event;
                    }
                }
            }
        }
    }

    fn ready(&mut self) -> Option<Event> {
        if let Some(event) = self.own_events.pop_front() {
            return Some(event);
        }
        while let Ok(event) = self.events.try_recv() {
            if let Some(event) = self.read_event(&event) {
                return Some(event);
            }
        }
        None
    }

    fn now(&self) -> Timestamp {
        wall_clock()
    }

    fn boot_time(&self) -> BootTime {
        contact::now()
    }

    fn last_word(&self) -> Option<BootTime> {
        self.contact.read()
    }

    fn word(&mut self, at: BootTime) {
        if let Err(error) = self.contact.write(at) {
            let path = self.contact.path();
            tracing::warn!(
                path = %path.display(),
                %error,
                "telling the tasks that a leader was heard; those with stop_if_silent will end"
            );
        }
    }
}
