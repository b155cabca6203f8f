//! cgroup v2: one tree. Controllers are switched on from the base down to the groups; a node holds
//! either children or processes, never both.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use super::files::{self, CgroupFiles, path_down};
use super::limits::{self, Setting};
use super::{
    Cgroups, Controller, Difference, Facts, Home, IsolateError, Leaf, LeafName, Limits, PartLimits,
    check_name,
};

/// Those of this tree that mete uses.
const WANTED: [Controller; 4] = [
    Controller::Cpu,
    Controller::Cpuset,
    Controller::Memory,
    Controller::Pids,
];
/// How long a freeze may take before the processes are signalled anyway.
const FREEZE: Duration = Duration::from_millis(50);

/// The v2 tree of a host.
#[derive(Debug, Clone)]
pub struct V2 {
    files: Arc<dyn CgroupFiles>,
    home: Home,
    agent: String,
    controllers: Vec<Controller>,
}

impl V2 {
    /// Works in `home`, below `mete/<agent>`: makes the top and finds which controllers reach it.
    ///
    /// # Errors
    /// The tree cannot be written at all.
    pub fn open(
        files: Arc<dyn CgroupFiles>,
        home: Home,
        agent: &str,
    ) -> Result<Self, IsolateError> {
        check_name(agent)?;
        let mut tree = Self {
            files,
            home,
            agent: agent.to_owned(),
            controllers: Vec::new(),
        };
        tree.make_top()?;
        let available = files::read(&*tree.files, &tree.top().join("cgroup.controllers"))?;
        let mut controllers: Vec<_> = available
            .split_whitespace()
            .filter_map(Controller::named)
            .collect();
        controllers.retain(|controller| WANTED.contains(controller));
        tree.controllers = controllers;
        tree.enable(&tree.top())?;
        files::prove(&*tree.files, &tree.top())?;
        Ok(tree)
    }

    /// For a shim: knows no place, only works on leaves that exist.
    #[must_use]
    pub fn detached(files: Arc<dyn CgroupFiles>) -> Self {
        let home = Home {
            mount: PathBuf::new(),
            base: PathBuf::new(),
        };
        Self {
            files,
            home,
            agent: String::new(),
            controllers: Vec::new(),
        }
    }

    fn top(&self) -> PathBuf {
        self.home.base.join("mete").join(&self.agent)
    }

    /// Where the shims live: outside of every leaf, so that no task's end takes one with it.
    #[must_use]
    pub fn shims(&self) -> PathBuf {
        self.top().join("shims")
    }

    fn make_top(&self) -> Result<(), IsolateError> {
        let inside = self
            .home
            .base
            .strip_prefix(&self.home.mount)
            .unwrap_or(Path::new(""));
        let names: Vec<&str> = inside.iter().filter_map(|name| name.to_str()).collect();
        let mut above = self.home.mount.clone();
        for directory in path_down(&self.home.mount, &names) {
            // Refused where an inner node holds processes; what then reaches us is read below.
            let _not_ours = self.enable(&above);
            files::make(&*self.files, &directory)?;
            above = directory;
        }
        self.leave_inner_node()?;
        let _read_below = self.enable(&self.home.base);
        for directory in path_down(&self.home.base, &["mete", &self.agent]) {
            files::make(&*self.files, &directory)?;
            let _read_below = self.enable(&directory);
        }
        files::make(&*self.files, &self.shims())?;
        Ok(())
    }

    /// A non-root node that holds processes cannot pass controllers on. If this agent is the only
    /// one there, it moves into a leaf; others are not ours to move.
    fn leave_inner_node(&self) -> Result<(), IsolateError> {
        let base = &self.home.base;
        // The root of all has no type, and is the one inner node that may hold processes.
        if self.files.read(&base.join("cgroup.type")).is_err() {
            return Ok(());
        }
        let here = files::pids(&files::read(&*self.files, &base.join("cgroup.procs"))?);
        if here == [std::process::id()] {
            let leaf = base.join("mete-agent");
            files::make(&*self.files, &leaf)?;
            files::write(&*self.files, &leaf.join("cgroup.procs"), "0")?;
        }
        Ok(())
    }

    /// Passes every wanted controller that is available in `directory` on to its children.
    fn enable(&self, directory: &Path) -> Result<(), IsolateError> {
        let available = files::read(&*self.files, &directory.join("cgroup.controllers"))?;
        let control = directory.join("cgroup.subtree_control");
        let enabled = files::read(&*self.files, &control)?;
        let missing: Vec<String> = WANTED
            .into_iter()
            .filter(|wanted| {
                available
                    .split_whitespace()
                    .any(|name| name == wanted.name())
            })
            .filter(|wanted| !enabled.split_whitespace().any(|name| name == wanted.name()))
            .map(|wanted| format!("+{}", wanted.name()))
            .collect();
        if missing.is_empty() {
            return Ok(());
        }
        files::write(&*self.files, &control, &missing.join(" "))
    }

    fn apply(&self, at: &Path, settings: &[Setting]) -> Result<(), IsolateError> {
        settings
            .iter()
            .filter(|setting| self.controllers.contains(&setting.controller))
            .try_for_each(|setting| limits::apply(&*self.files, at, setting))
    }

    /// Removes the agent's own directories if nothing is left in them; says whether they are gone.
    pub(super) fn remove_top(&self) -> bool {
        let _kept = self.files.remove_directory(&self.shims());
        let gone = files::remove(&*self.files, &self.top()).is_ok();
        // Another agent's directory in it makes this fail, and then it must.
        let _kept = self.files.remove_directory(&self.home.base.join("mete"));
        gone
    }

    fn read(&self, leaf: &Leaf, file: &str) -> Option<String> {
        self.files.read(&leaf.v2.as_ref()?.join(file)).ok()
    }

    /// For kernels before 5.14, which lack `cgroup.kill`.
    fn freeze_and_signal(&self, directory: &Path) -> Result<(), IsolateError> {
        let freeze = directory.join("cgroup.freeze");
        let events = directory.join("cgroup.events");
        let frozen = files::write(&*self.files, &freeze, "1");
        let until = Instant::now() + FREEZE;
        while frozen.is_ok()
            && self
                .files
                .read(&events)
                .is_ok_and(|text| files::keyed(&text, "frozen") != Some(1))
            && Instant::now() < until
        {
            std::thread::sleep(Duration::from_millis(1));
        }
        let own = std::process::id();
        let content = files::read(&*self.files, &directory.join("cgroup.procs"));
        for pid in content
            .iter()
            .flat_map(|text| files::pids(text))
            .filter(|pid| *pid != own)
        {
            if let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) {
                // Gone meanwhile is what was wanted.
                let _gone = kill_process(pid, Signal::KILL);
            }
        }
        if frozen.is_ok() {
            files::write(&*self.files, &freeze, "0")?;
        }
        content.map(|_| ())
    }
}

impl Cgroups for V2 {
    fn controllers(&self) -> Vec<Controller> {
        self.controllers.clone()
    }

    fn prepare_top(&self, part: &PartLimits) -> Result<(), IsolateError> {
        self.make_top()?;
        self.apply(&self.top(), &limits::top_v2(part))
    }

    fn create(
        &self,
        name: LeafName<'_>,
        limits: &Limits,
        leaf: &mut Leaf,
    ) -> Result<(), IsolateError> {
        check_name(name.group)?;
        check_name(name.run)?;
        let group = self.top().join(name.group);
        let directory = group.join(name.run);
        if files::make(&*self.files, &group)? && !self.controllers.is_empty() {
            self.enable(&group)?;
        }
        // Recorded before it is filled: what fails half way must still be removed.
        leaf.v2 = Some(directory.clone());
        files::make(&*self.files, &directory)?;
        self.apply(&group, &limits::group_v2(limits))?;
        self.apply(&directory, &limits::leaf_v2(limits))
    }

    fn differences(&self, leaf: &Leaf, limits: &Limits) -> Result<Vec<Difference>, IsolateError> {
        let Some(directory) = &leaf.v2 else {
            return Ok(Vec::new());
        };
        let mut found = Vec::new();
        for setting in limits::leaf_v2(limits) {
            if !self.controllers.contains(&setting.controller) {
                continue;
            }
            match limits::difference(&*self.files, directory, &setting) {
                Ok(difference) => found.extend(difference),
                Err(error) if setting.optional && error.is_missing() => {}
                Err(error) => return Err(error),
            }
        }
        Ok(found)
    }

    fn enter(&self, leaf: &Leaf) -> Result<(), IsolateError> {
        // The way for kernels before 5.7; newer ones are born inside.
        let Some(directory) = &leaf.v2 else {
            return Ok(());
        };
        files::write(&*self.files, &directory.join("cgroup.procs"), "0")
    }

    fn kill(&self, leaf: &Leaf) -> Result<(), IsolateError> {
        let Some(directory) = &leaf.v2 else {
            return Ok(());
        };
        match files::write(&*self.files, &directory.join("cgroup.kill"), "1") {
            Ok(()) => Ok(()),
            Err(error) if error.is_missing() => {
                if self.files.read(&directory.join("cgroup.procs")).is_err() {
                    // The whole leaf is gone: so is everything that was in it.
                    return Ok(());
                }
                self.freeze_and_signal(directory)
            }
            Err(error) => Err(error),
        }
    }

    fn populated(&self, leaf: &Leaf) -> Result<Option<bool>, IsolateError> {
        let Some(directory) = &leaf.v2 else {
            return Ok(None);
        };
        match files::read(&*self.files, &directory.join("cgroup.events")) {
            Ok(events) => Ok(Some(files::keyed(&events, "populated") == Some(1))),
            Err(error) if error.is_missing() => Ok(Some(false)),
            Err(error) => Err(error),
        }
    }

    fn processes(&self, leaf: &Leaf) -> Result<Option<Vec<u32>>, IsolateError> {
        let Some(directory) = &leaf.v2 else {
            return Ok(None);
        };
        match files::read(&*self.files, &directory.join("cgroup.procs")) {
            Ok(content) => Ok(Some(files::pids(&content))),
            Err(error) if error.is_missing() => Ok(Some(Vec::new())),
            Err(error) => Err(error),
        }
    }

    fn read_facts(&self, leaf: &Leaf, facts: &mut Facts) {
        let stat = self.read(leaf, "cpu.stat").unwrap_or_default();
        let microseconds = |key| files::keyed(&stat, key).map(|us| us.saturating_mul(1000));
        // On a hybrid host without this controller the file still counts time, only in
        // microseconds: the v1 account, read first, is finer.
        if let Some(used) = microseconds("usage_usec").filter(|_| facts.cpu_ns == 0) {
            facts.cpu_ns = used;
        }
        if let Some(throttled) = microseconds("throttled_usec").filter(|_| facts.throttled_ns == 0)
        {
            facts.throttled_ns = throttled;
        }
        let peak = self.read(leaf, "memory.peak");
        if let Some(peak) = peak.and_then(|text| text.trim().parse().ok()) {
            facts.memory_peak_bytes = peak;
        }
        if let Some(events) = self.read(leaf, "memory.events") {
            facts.oom_kills = files::keyed(&events, "oom_kill").unwrap_or(facts.oom_kills);
            facts.memory_limit_hits =
                files::keyed(&events, "oom").unwrap_or(facts.memory_limit_hits);
        }
        let group = leaf.v2.as_deref().and_then(Path::parent);
        let events = group.and_then(|at| self.files.read(&at.join("memory.events.local")).ok());
        if let Some(hits) = events.and_then(|text| files::keyed(&text, "oom")) {
            facts.group_limit_hits = hits;
        }
        if let Some(events) = self.read(leaf, "pids.events") {
            facts.pids_limit_hits = files::keyed(&events, "max").unwrap_or(facts.pids_limit_hits);
        }
    }

    fn remove(&self, leaf: &Leaf) -> Result<(), IsolateError> {
        if let Some(directory) = &leaf.v2 {
            files::remove(&*self.files, directory)?;
            files::remove_group(&*self.files, directory);
        }
        Ok(())
    }
}
