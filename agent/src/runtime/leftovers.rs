//! What is left of a run whose shim is gone: found through its cgroup, its session and the mark in
//! its environment, and ended. Used only when nobody else looks after these processes any more.

use std::path::Path;

use mete_proto::internal::v1::RunRecord;
use rustix::process::{Signal, pidfd_send_signal};

use super::identity::{self, ProcessStat, describe};
use super::{RunName, StuckProcess};
use crate::isolate::{Isolation, Leaf};

/// The variable that marks every process of a run.
pub(crate) const MARK: &str = "METE_RUN";
/// At most this many are named.
const MOST_NAMED: usize = 32;

/// Where to look and for whom.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Search<'a> {
    pub(crate) procfs: &'a Path,
    pub(crate) isolation: &'a Isolation,
    pub(crate) run: &'a RunName,
    pub(crate) leaf: &'a Leaf,
    pub(crate) record: &'a RunRecord,
}

/// What one pass of SIGKILL has left over, which is usually what is just dying.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Left {
    pub(crate) processes: Vec<StuckProcess>,
    pub(crate) total: u32,
}

impl Search<'_> {
    /// Sends SIGKILL to everything of the run and says what was still there.
    pub(crate) fn kill(&self) -> Left {
        if self.leaf.tracks() {
            // Told by what is left, pass after pass.
            let _next_pass = self.isolation.kill(self.leaf);
        }
        let mut pids = self.find_and_kill();
        let inside = self
            .isolation
            .processes(self.leaf)
            .ok()
            .flatten()
            .unwrap_or_default();
        pids.extend(inside);
        pids.sort_unstable();
        pids.dedup();
        // A process that has ended and waits for its parent holds nothing any more.
        let alive: Vec<StuckProcess> = pids
            .into_iter()
            .filter_map(|pid| describe(self.procfs, pid))
            .filter(|found| found.state != "Z" && found.state != "X")
            .collect();
        let total = u32::try_from(alive.len()).unwrap_or(u32::MAX);
        Left {
            processes: alive.into_iter().take(MOST_NAMED).collect(),
            total,
        }
    }

    fn find_and_kill(&self) -> Vec<u32> {
        let own = std::process::id();
        let mut found = Vec::new();
        for pid in identity::all_pids(self.procfs)
            .into_iter()
            .filter(|pid| *pid != own)
        {
            // The handle first: what is compared afterwards is then what is signalled.
            let Ok(Some(handle)) = identity::open(pid) else {
                continue;
            };
            if self.is_of_run(pid) {
                let _gone = pidfd_send_signal(&handle, Signal::KILL);
                found.push(pid);
            }
        }
        found
    }

    fn is_of_run(&self, pid: u32) -> bool {
        let Some(stat) = ProcessStat::read(self.procfs, pid) else {
            return false;
        };
        // Older than the run: a session or a mark that looks alike is a stranger's.
        if stat.start_ticks < self.record.start_ticks || self.record.start_ticks == 0 {
            return false;
        }
        let main = pid == self.record.pid && stat.start_ticks == self.record.start_ticks;
        // The main process began the session, so its number is the session's.
        main || stat.session == self.record.pid || self.is_marked(pid)
    }

    fn is_marked(&self, pid: u32) -> bool {
        let Ok(environment) = std::fs::read(self.procfs.join(format!("{pid}/environ"))) else {
            return false;
        };
        let mark = format!("{MARK}={}", self.run);
        environment
            .split(|byte| *byte == 0)
            .any(|variable| variable == mark.as_bytes())
    }
}
