//! Who is left of a run, and the signals that reach them: through the cgroup where there is one,
//! and by descent always. A number is never signalled before a handle on it was taken and compared.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use rustix::process::{Signal, WaitId, WaitIdOptions, pidfd_send_signal, waitid};

use crate::isolate::{Isolation, Leaf};
use crate::runtime::identity::{self, ProcessStat};

/// A bound on one walk: more processes than any pids limit lets a task have.
const MOST: usize = 100_000;

/// The processes of one run, as its shim sees them.
#[derive(Debug)]
pub(super) struct Processes {
    isolation: Isolation,
    leaf: Leaf,
}

impl Processes {
    pub(super) fn new(leaf: Leaf) -> Self {
        Self {
            isolation: Isolation::detached(),
            leaf,
        }
    }

    /// What the kernel counted.
    pub(super) fn facts(&self) -> crate::isolate::Facts {
        self.isolation.facts(&self.leaf)
    }

    /// Whether anything is left, once the main process has been waited for.
    pub(super) fn any_left(&self) -> bool {
        has_children() || self.populated()
    }

    /// An unreadable cgroup counts as populated: better stuck and told than gone too early.
    fn populated(&self) -> bool {
        self.leaf.tracks()
            && !matches!(self.isolation.populated(&self.leaf), Ok(Some(false) | None))
    }

    /// Their ids; one that ends meanwhile may still be among them.
    pub(super) fn ids(&self) -> BTreeSet<u32> {
        let mut found: BTreeSet<u32> = descendants().into_keys().collect();
        found.extend(
            self.isolation
                .processes(&self.leaf)
                .ok()
                .flatten()
                .unwrap_or_default(),
        );
        found.remove(&std::process::id());
        found
    }

    /// Sends `signal` to all of them, once.
    pub(super) fn signal(&self, signal: Signal) {
        self.signal_leaf(signal);
        signal_descendants(signal);
    }

    /// One pass of SIGKILL to all of them.
    pub(super) fn kill(&self) {
        if self.leaf.tracks() {
            // What it could not reach is still there at the next pass, and named when it stays.
            let _next_pass = self.isolation.kill(&self.leaf);
        }
        signal_descendants(Signal::KILL);
    }

    fn signal_leaf(&self, signal: Signal) {
        let ids = || {
            self.isolation
                .processes(&self.leaf)
                .ok()
                .flatten()
                .unwrap_or_default()
        };
        let handles: Vec<_> = ids()
            .into_iter()
            .filter(|pid| *pid != std::process::id())
            .filter_map(|pid| Some((pid, identity::open(pid).ok()??)))
            .collect();
        // Read again with the handles in hand: who is on both lists is the one in the cgroup.
        let again: BTreeSet<u32> = ids().into_iter().collect();
        for (pid, handle) in handles {
            if again.contains(&pid) {
                let _gone = pidfd_send_signal(&handle, signal);
            }
        }
    }
}

/// Whether this process has children, ended or not. Takes none: that is done where SIGCHLD is read.
fn has_children() -> bool {
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    !matches!(waitid(WaitId::All, options), Err(rustix::io::Errno::CHILD))
}

fn signal_descendants(signal: Signal) {
    let procfs = Path::new("/proc");
    for (pid, parent) in descendants() {
        let Ok(Some(handle)) = identity::open(pid) else {
            continue;
        };
        // Compared with the handle in hand: a reused number has another parent.
        if ProcessStat::read(procfs, pid).is_some_and(|stat| stat.parent == parent) {
            let _gone = pidfd_send_signal(&handle, signal);
        }
    }
}

/// All processes below this one, each with its parent.
fn descendants() -> BTreeMap<u32, u32> {
    let own = std::process::id();
    let Some(first) = children(own) else {
        return descendants_by_scan(own);
    };
    let mut found = BTreeMap::new();
    let mut todo: Vec<(u32, u32)> = first.into_iter().map(|child| (child, own)).collect();
    while let Some((pid, parent)) = todo.pop() {
        if found.len() >= MOST || found.insert(pid, parent).is_some() {
            continue;
        }
        todo.extend(
            children(pid)
                .unwrap_or_default()
                .into_iter()
                .map(|child| (child, pid)),
        );
    }
    found
}

/// The children of all threads of a process; `None` where the kernel does not list them.
fn children(pid: u32) -> Option<Vec<u32>> {
    let mut found = Vec::new();
    for thread in std::fs::read_dir(format!("/proc/{pid}/task"))
        .ok()?
        .flatten()
    {
        let text = std::fs::read_to_string(thread.path().join("children")).ok()?;
        found.extend(
            text.split_whitespace()
                .filter_map(|pid| pid.parse::<u32>().ok()),
        );
    }
    Some(found)
}

fn descendants_by_scan(own: u32) -> BTreeMap<u32, u32> {
    let procfs = Path::new("/proc");
    let parents: Vec<(u32, u32)> = identity::all_pids(procfs)
        .into_iter()
        .filter_map(|pid| Some((pid, ProcessStat::read(procfs, pid)?.parent)))
        .collect();
    let mut found: BTreeMap<u32, u32> = BTreeMap::new();
    // A pass for each generation; every pass but the last finds somebody.
    loop {
        let before = found.len();
        for (pid, parent) in &parents {
            if *parent == own || found.contains_key(parent) {
                found.insert(*pid, *parent);
            }
        }
        if found.len() == before || found.len() >= MOST {
            return found;
        }
    }
}
