//! cgroup v1: one tree for each controller, each with its own place for us.
//!
//! Cpuset has no inheritance here, so all shared tasks use one directory and only named cores get
//! their own. There is no group kill: the freezer holds everything still while it is signalled, and
//! is always thawed again, whatever fails in between.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use super::files::{self, CgroupFiles, path_down};
use super::limits::{self, Setting};
use super::{
    Cgroups, Controller, Difference, Facts, Home, IsolateError, Leaf, LeafName, LeafV1, Limits,
    PartLimits, check_name,
};

/// How long a freeze may take before the processes are signalled anyway.
const FREEZE: Duration = Duration::from_millis(50);

/// The v1 hierarchies of a host.
#[derive(Debug, Clone)]
pub struct V1 {
    files: Arc<dyn CgroupFiles>,
    homes: BTreeMap<Controller, Home>,
    agent: String,
}

impl V1 {
    /// Works in `homes`, below `mete/<agent>` of each. Nothing is touched yet.
    #[must_use]
    pub fn new(
        files: Arc<dyn CgroupFiles>,
        homes: BTreeMap<Controller, Home>,
        agent: &str,
    ) -> Self {
        Self {
            files,
            homes,
            agent: agent.to_owned(),
        }
    }

    /// For a shim: knows no place, only works on leaves that exist.
    #[must_use]
    pub fn detached(files: Arc<dyn CgroupFiles>) -> Self {
        Self::new(files, BTreeMap::new(), "")
    }

    /// Gives up a controller, after the kernel refused it.
    pub(super) fn drop_controller(&mut self, controller: Controller) {
        self.homes.remove(&controller);
    }

    fn top(&self, home: &Home) -> PathBuf {
        home.base.join("mete").join(&self.agent)
    }

    fn controllers_of(&self, directory: &Path) -> Vec<Controller> {
        self.homes
            .iter()
            .filter(|(_, home)| self.top(home) == directory)
            .map(|(controller, _)| *controller)
            .collect()
    }

    /// The top directory of each distinct mount.
    fn tops(&self) -> Vec<PathBuf> {
        let mut tops: Vec<_> = self.homes.values().map(|home| self.top(home)).collect();
        tops.sort_unstable();
        tops.dedup();
        tops
    }

    fn apply(
        &self,
        at: &Path,
        settings: &[Setting],
        of: &[Controller],
    ) -> Result<(), IsolateError> {
        settings
            .iter()
            .filter(|setting| of.contains(&setting.controller))
            .try_for_each(|setting| limits::apply(&*self.files, at, setting))
    }

    /// A v1 cpuset takes no process before it has CPUs and memory nodes: copy the parent's.
    fn fill_cpuset(&self, directory: &Path, cpus: Option<&str>) -> Result<(), IsolateError> {
        let Some(parent) = directory.parent() else {
            return Ok(());
        };
        for file in ["cpuset.mems", "cpuset.cpus"] {
            let value = match cpus {
                Some(cpus) if file == "cpuset.cpus" => cpus.to_owned(),
                Some(_) | None => {
                    if !files::read(&*self.files, &directory.join(file))?
                        .trim()
                        .is_empty()
                    {
                        continue;
                    }
                    files::read(&*self.files, &parent.join(file))?
                        .trim()
                        .to_owned()
                }
            };
            let setting = Setting {
                controller: Controller::Cpuset,
                file,
                value,
                optional: false,
            };
            limits::apply(&*self.files, directory, &setting)?;
        }
        Ok(())
    }

    /// Makes the top of one controller's hierarchy.
    pub(super) fn prepare_controller(
        &self,
        controller: Controller,
        part: &PartLimits,
    ) -> Result<(), IsolateError> {
        let Some(home) = self.homes.get(&controller) else {
            return Ok(());
        };
        let inside = home.base.strip_prefix(&home.mount).unwrap_or(Path::new(""));
        let mut names: Vec<&str> = inside.iter().filter_map(|name| name.to_str()).collect();
        names.extend(["mete", &self.agent]);
        for directory in path_down(&home.mount, &names) {
            files::make(&*self.files, &directory)?;
            if controller == Controller::Cpuset {
                self.fill_cpuset(&directory, None)?;
            }
        }
        let top = self.top(home);
        if controller == Controller::Cpuset {
            let cpus = (!part.cores.is_empty()).then(|| limits::ranges(&part.cores));
            if let Some(cpus) = &cpus {
                self.fill_cpuset(&top, Some(cpus))?;
            }
            let shared = top.join("shared");
            files::make(&*self.files, &shared)?;
            self.fill_cpuset(&shared, cpus.as_deref())?;
        }
        files::prove(&*self.files, &top)?;
        self.apply(&top, &limits::top_v1(part), &[controller])
    }

    /// Removes the agent's own directories if nothing is left in them; says whether they are gone.
    pub(super) fn remove_top(&self) -> bool {
        let mut gone = true;
        for top in self.tops() {
            let _kept = self.files.remove_directory(&top.join("shared"));
            gone &= files::remove(&*self.files, &top).is_ok();
            if let Some(mete) = top.parent() {
                // Another agent's directory in it makes this fail, and then it must.
                let _kept = self.files.remove_directory(mete);
            }
        }
        gone
    }

    fn make_leaf(
        &self,
        top: &Path,
        name: LeafName<'_>,
        limits: &Limits,
        leaf: &mut Leaf,
    ) -> Result<(), IsolateError> {
        let controllers = self.controllers_of(top);
        let cpuset = controllers.contains(&Controller::Cpuset);
        if limits.cores.is_empty() && controllers == [Controller::Cpuset] {
            let shared = LeafV1 {
                directory: top.join("shared"),
                owned: false,
            };
            // Removed from outside, it is made again by the caller before anything is launched.
            files::read(&*self.files, &shared.directory.join("cpuset.cpus"))?;
            leaf.v1.insert(Controller::Cpuset, shared);
            return Ok(());
        }
        let group = top.join(name.group);
        let directory = group.join(name.run);
        let made = files::make(&*self.files, &group)?;
        if cpuset && made {
            self.fill_cpuset(&group, None)?;
        }
        // Recorded before it is filled: what fails half way must still be removed.
        for controller in &controllers {
            let own = LeafV1 {
                directory: directory.clone(),
                owned: true,
            };
            leaf.v1.insert(*controller, own);
        }
        files::make(&*self.files, &directory)?;
        if cpuset {
            self.fill_cpuset(&directory, None)?;
        }
        self.apply(&group, &limits::group_v1(limits), &controllers)?;
        self.apply(&directory, &limits::leaf_v1(limits), &controllers)
    }

    fn owned(leaf: &Leaf, controller: Controller) -> Option<&Path> {
        leaf.v1
            .get(&controller)
            .filter(|leaf| leaf.owned)
            .map(|leaf| leaf.directory.as_path())
    }

    /// The directory through which processes are found: the freezer's, else any of its own.
    fn tracker(leaf: &Leaf) -> Option<&Path> {
        Self::owned(leaf, Controller::Freezer).or_else(|| leaf.owned_v1().into_iter().next())
    }

    fn number(&self, leaf: &Leaf, controller: Controller, file: &str) -> Option<u64> {
        let path = Self::owned(leaf, controller)?.join(file);
        self.files.read(&path).ok()?.trim().parse().ok()
    }

    /// How often a limit of this directory was reached, as far as the kernel tells.
    ///
    /// With both limits equal it is the one with swap that is reached first. Some kernels have
    /// stopped counting (measured on 6.18): there a peak at the limit is what is left to see.
    fn limit_hits(&self, directory: &Path) -> u64 {
        /// The kernel charges up to so many pages at once, and so may stop that far below.
        const BATCH: u64 = 64 * 4096;
        let number = |file: &str| -> Option<u64> {
            self.files
                .read(&directory.join(file))
                .ok()?
                .trim()
                .parse()
                .ok()
        };
        let counted = ["memory.failcnt", "memory.memsw.failcnt"]
            .into_iter()
            .filter_map(number)
            .fold(0, u64::saturating_add);
        let peak = number("memory.max_usage_in_bytes").unwrap_or(0);
        let limit = number("memory.limit_in_bytes").unwrap_or(u64::MAX);
        counted.max(u64::from(peak.saturating_add(BATCH) >= limit))
    }

    fn signal_all(&self, directory: &Path) -> Result<(), IsolateError> {
        let own = std::process::id();
        let content = files::read(&*self.files, &directory.join("cgroup.procs"))?;
        for pid in files::pids(&content).into_iter().filter(|pid| *pid != own) {
            let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
            if let Some(pid) = pid {
                // Gone meanwhile is what was wanted; not permitted shows in the next pass.
                let _gone = kill_process(pid, Signal::KILL);
            }
        }
        Ok(())
    }
}

impl Cgroups for V1 {
    fn controllers(&self) -> Vec<Controller> {
        self.homes.keys().copied().collect()
    }

    fn prepare_top(&self, part: &PartLimits) -> Result<(), IsolateError> {
        self.controllers()
            .into_iter()
            .try_for_each(|controller| self.prepare_controller(controller, part))
    }

    fn create(
        &self,
        name: LeafName<'_>,
        limits: &Limits,
        leaf: &mut Leaf,
    ) -> Result<(), IsolateError> {
        check_name(name.group)?;
        check_name(name.run)?;
        self.tops()
            .iter()
            .try_for_each(|top| self.make_leaf(top, name, limits, leaf))
    }

    fn differences(&self, leaf: &Leaf, limits: &Limits) -> Result<Vec<Difference>, IsolateError> {
        let mut found = Vec::new();
        for setting in limits::leaf_v1(limits) {
            let Some(directory) = Self::owned(leaf, setting.controller) else {
                continue;
            };
            match limits::difference(&*self.files, directory, &setting) {
                Ok(difference) => found.extend(difference),
                Err(error) if setting.optional && error.is_missing() => {}
                Err(error) => return Err(error),
            }
        }
        Ok(found)
    }

    fn enter(&self, leaf: &Leaf) -> Result<(), IsolateError> {
        // `tasks`, not `cgroup.procs`: a single thread moves without the wait for a grace period.
        leaf.entered_v1()
            .into_iter()
            .try_for_each(|directory| files::write(&*self.files, &directory.join("tasks"), "0"))
    }

    fn kill(&self, leaf: &Leaf) -> Result<(), IsolateError> {
        let Some(directory) = Self::tracker(leaf) else {
            return Ok(());
        };
        let state = directory.join("freezer.state");
        if Self::owned(leaf, Controller::Freezer).is_none() {
            return self.signal_all(directory);
        }
        let frozen = files::write(&*self.files, &state, "FROZEN");
        let until = Instant::now() + FREEZE;
        while frozen.is_ok()
            && self
                .files
                .read(&state)
                .is_ok_and(|state| state.trim() != "FROZEN")
            && Instant::now() < until
        {
            std::thread::sleep(Duration::from_millis(1));
        }
        let signalled = self.signal_all(directory);
        // Whatever went wrong above: a frozen process would never take its signal.
        files::write(&*self.files, &state, "THAWED")?;
        frozen.and(signalled)
    }

    fn populated(&self, leaf: &Leaf) -> Result<Option<bool>, IsolateError> {
        Ok(self.processes(leaf)?.map(|pids| !pids.is_empty()))
    }

    fn processes(&self, leaf: &Leaf) -> Result<Option<Vec<u32>>, IsolateError> {
        let Some(directory) = Self::tracker(leaf) else {
            return Ok(None);
        };
        match files::read(&*self.files, &directory.join("cgroup.procs")) {
            Ok(content) => Ok(Some(files::pids(&content))),
            Err(error) if error.is_missing() => Ok(Some(Vec::new())),
            Err(error) => Err(error),
        }
    }

    fn read_facts(&self, leaf: &Leaf, facts: &mut Facts) {
        let number = |controller, file| self.number(leaf, controller, file);
        if let Some(used) = number(Controller::Cpuacct, "cpuacct.usage") {
            facts.cpu_ns = used;
        }
        if let Some(peak) = number(Controller::Memory, "memory.max_usage_in_bytes") {
            facts.memory_peak_bytes = peak;
        }
        let keyed = |controller, file: &str, key| {
            let path = Self::owned(leaf, controller)?.join(file);
            files::keyed(&self.files.read(&path).ok()?, key)
        };
        if let Some(kills) = keyed(Controller::Memory, "memory.oom_control", "oom_kill") {
            facts.oom_kills = kills;
        }
        if let Some(memory) = Self::owned(leaf, Controller::Memory) {
            facts.memory_limit_hits = self.limit_hits(memory);
            facts.group_limit_hits = memory.parent().map_or(0, |group| self.limit_hits(group));
        }
        if let Some(throttled) = keyed(Controller::Cpu, "cpu.stat", "throttled_time") {
            facts.throttled_ns = throttled;
        }
        if let Some(hits) = keyed(Controller::Pids, "pids.events", "max") {
            facts.pids_limit_hits = hits;
        }
    }

    fn remove(&self, leaf: &Leaf) -> Result<(), IsolateError> {
        let mut first = Ok(());
        for directory in leaf.owned_v1() {
            match files::remove(&*self.files, directory) {
                Ok(()) => files::remove_group(&*self.files, directory),
                Err(error) => first = first.and(Err(error)),
            }
        }
        first
    }
}
