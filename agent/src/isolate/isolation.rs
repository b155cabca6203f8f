//! Both versions joined: the one door to control groups that the runtime and the shim use.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::{
    CgroupFiles, Cgroups, Controller, Difference, Facts, Hierarchies, IsolateError, KernelFiles,
    Leaf, LeafName, Limits, PartLimits, V1, V2, check_name,
};

/// How far a limit is held on this host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EnforcementLevel {
    /// The kernel holds it.
    Enforced,
    /// Bound to the named cores, but others may run there and the task may change it.
    AffinityOnly,
    /// Counted in the ledger only.
    AccountedOnly,
}

/// One kind of resource and how far it is held.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Enforcement {
    /// "cpu", "memory", "cores", "pids", "disk" or "tracking".
    pub kind: &'static str,
    /// How far.
    pub level: EnforcementLevel,
    /// Why, for people.
    pub fact: String,
    /// What would make it better; empty when nothing would.
    pub fix: String,
}

/// Tries, of which the last one's error counts.
const TRIES: usize = 5;

/// Again while something is missing: another agent that leaves removes the directory above both
/// when it is empty, which it is between our making that one and our own.
fn while_missing<T>(mut step: impl FnMut() -> Result<T, IsolateError>) -> Result<T, IsolateError> {
    for _ in 1..TRIES {
        match step() {
            Err(error) if error.is_missing() => {}
            other => return other,
        }
    }
    step()
}

/// The control groups of one agent.
#[derive(Debug)]
pub struct Isolation {
    v1: Option<V1>,
    v2: Option<V2>,
    part: PartLimits,
    /// What was tried and refused, for people.
    refused: Vec<String>,
}

impl Isolation {
    /// Finds and prepares what the host has.
    ///
    /// Never fails: what cannot be used is named in [`Isolation::enforcement`]. `chosen` is
    /// `--cgroup-root`, a path inside every hierarchy.
    #[must_use]
    pub fn probe(procfs: &Path, chosen: Option<&str>, agent: &str, part: PartLimits) -> Self {
        match Hierarchies::read(procfs, chosen) {
            Ok(found) => Self::open(Arc::new(KernelFiles), found, agent, part),
            Err(error) => {
                let self_files = procfs.join("self").display().to_string();
                Self::none(
                    part,
                    format!("read {self_files}/mountinfo and cgroup: {error}"),
                )
            }
        }
    }

    /// The same with given hierarchies and file operations.
    #[must_use]
    pub fn open(
        files: Arc<dyn CgroupFiles>,
        found: Hierarchies,
        agent: &str,
        part: PartLimits,
    ) -> Self {
        let mut isolation = Self::none(part, String::new());
        isolation.refused.clear();
        if let Err(error) = check_name(agent) {
            isolation.refused.push(error.to_string());
            return isolation;
        }
        if let Some(home) = found.v2 {
            let opened = while_missing(|| {
                let v2 = V2::open(Arc::clone(&files), home.clone(), agent)?;
                v2.prepare_top(&isolation.part).map(|()| v2)
            });
            match opened {
                Ok(v2) => isolation.v2 = Some(v2),
                Err(error) => isolation.refused.push(error.to_string()),
            }
        }
        let mut homes = found.v1;
        if isolation.v2.is_some() {
            // The v2 tree kills and tracks better; a freezer directory would only cost time.
            homes.remove(&Controller::Freezer);
        }
        let mut v1 = V1::new(files, homes, agent);
        for controller in v1.controllers() {
            let prepared = while_missing(|| v1.prepare_controller(controller, &isolation.part));
            if let Err(error) = prepared {
                isolation.refused.push(error.to_string());
                v1.drop_controller(controller);
            }
        }
        isolation.v1 = (!v1.controllers().is_empty()).then_some(v1);
        isolation
    }

    /// Without control groups: everything is accounted only.
    #[must_use]
    pub fn none(part: PartLimits, why: String) -> Self {
        Self {
            v1: None,
            v2: None,
            part,
            refused: vec![why],
        }
    }

    /// For a shim: works on leaves that exist and knows no place of its own.
    #[must_use]
    pub fn detached() -> Self {
        let files: Arc<dyn CgroupFiles> = Arc::new(KernelFiles);
        Self {
            v1: Some(V1::detached(Arc::clone(&files))),
            v2: Some(V2::detached(files)),
            part: PartLimits::default(),
            refused: Vec::new(),
        }
    }

    /// Whether any control group can be used.
    #[must_use]
    pub fn is_some(&self) -> bool {
        self.v1.is_some() || self.v2.is_some()
    }

    /// The v2 directory where shims are born, if there is one.
    #[must_use]
    pub fn shims(&self) -> Option<PathBuf> {
        self.v2.as_ref().map(V2::shims)
    }

    /// What was tried and refused, for people.
    #[must_use]
    pub fn refused(&self) -> &[String] {
        &self.refused
    }

    fn versions(&self) -> impl Iterator<Item = &dyn Cgroups> {
        let v1 = self.v1.as_ref().map(|version| version as &dyn Cgroups);
        v1.into_iter()
            .chain(self.v2.as_ref().map(|version| version as &dyn Cgroups))
    }

    /// Where a controller was found: "v1", "v2" or nowhere.
    #[must_use]
    pub fn serves(&self, controller: Controller) -> Option<&'static str> {
        let has = |version: Option<&dyn Cgroups>| {
            version.is_some_and(|version| version.controllers().contains(&controller))
        };
        if has(self.v1.as_ref().map(|version| version as &dyn Cgroups)) {
            Some("v1")
        } else if has(self.v2.as_ref().map(|version| version as &dyn Cgroups)) {
            Some("v2")
        } else {
            None
        }
    }

    /// How far each kind of limit is held here.
    #[must_use]
    pub fn enforcement(&self) -> Vec<Enforcement> {
        let mut rows = vec![
            self.row(
                "cpu",
                Controller::Cpu,
                EnforcementLevel::AccountedOnly,
                "weight and quota",
            ),
            self.row(
                "memory",
                Controller::Memory,
                EnforcementLevel::AccountedOnly,
                "limit",
            ),
            self.row(
                "cores",
                Controller::Cpuset,
                EnforcementLevel::AffinityOnly,
                "named cores",
            ),
            self.row(
                "pids",
                Controller::Pids,
                EnforcementLevel::AccountedOnly,
                "limit",
            ),
        ];
        rows.push(Enforcement {
            kind: "disk",
            level: EnforcementLevel::AccountedOnly,
            fact: "disk space is counted when granted, not limited".to_owned(),
            fix: String::new(),
        });
        rows.push(self.tracking());
        rows
    }

    fn row(
        &self,
        kind: &'static str,
        controller: Controller,
        otherwise: EnforcementLevel,
        what: &str,
    ) -> Enforcement {
        let name = controller.name();
        if let Some(version) = self.serves(controller) {
            let fact = format!("{what}: controller {name} in cgroup {version}");
            return Enforcement {
                kind,
                level: EnforcementLevel::Enforced,
                fact,
                fix: String::new(),
            };
        }
        let refused = self.refused.iter().find(|why| !why.is_empty());
        let why = refused.map_or_else(
            || format!("no cgroup hierarchy with controller {name} is usable"),
            |why| format!("controller {name} is not usable: {why}"),
        );
        let fix = "run the agent as root, or in a cgroup delegated to its user \
                   (systemd: Delegate=yes)";
        Enforcement {
            kind,
            level: otherwise,
            fact: why,
            fix: fix.to_owned(),
        }
    }

    fn tracking(&self) -> Enforcement {
        let (level, fact, fix) = if self.v2.is_some() {
            (
                EnforcementLevel::Enforced,
                "every process of a task is found in its v2 cgroup",
                "",
            )
        } else if self.v1.is_some() {
            (
                EnforcementLevel::Enforced,
                "every process of a task is found in its v1 cgroups",
                "",
            )
        } else {
            (
                EnforcementLevel::AccountedOnly,
                "processes of a task are found by descent, session and environment",
                "run the agent as root: a process that hides from all three outlives its task",
            )
        };
        Enforcement {
            kind: "tracking",
            level,
            fact: fact.to_owned(),
            fix: fix.to_owned(),
        }
    }

    /// Makes a leaf with its limits, in every hierarchy used. Rebuilds the top once if somebody
    /// removed it. On failure what was made is removed again.
    ///
    /// # Errors
    /// The first thing that the kernel refused.
    pub fn create(&self, name: LeafName<'_>, limits: &Limits) -> Result<Leaf, IsolateError> {
        let limits = self.within_part(limits);
        match self.create_once(name, &limits) {
            Err(error) if error.is_missing() => {
                self.versions()
                    .try_for_each(|version| version.prepare_top(&self.part))?;
                self.create_once(name, &limits)
            }
            other => other,
        }
    }

    fn create_once(&self, name: LeafName<'_>, limits: &Limits) -> Result<Leaf, IsolateError> {
        let mut leaf = Leaf::default();
        for version in self.versions() {
            if let Err(error) = version.create(name, limits, &mut leaf) {
                // The first error is the one to tell; an empty leaf always goes.
                let _told = self.remove(&leaf);
                return Err(error);
            }
        }
        Ok(leaf)
    }

    /// v1 refuses a child whose quota is above its parent's.
    fn within_part(&self, limits: &Limits) -> Limits {
        let mut limits = limits.clone();
        if let (Some(own), Some(part)) = (limits.cpu_limit_milli, self.part.cpu_milli) {
            limits.cpu_limit_milli = Some(own.min(part));
        }
        limits
    }

    /// What the kernel holds that is not what `limits` say.
    ///
    /// # Errors
    /// A file that should be there cannot be read.
    pub fn differences(
        &self,
        leaf: &Leaf,
        limits: &Limits,
    ) -> Result<Vec<Difference>, IsolateError> {
        let limits = self.within_part(limits);
        let mut found = Vec::new();
        for version in self.versions() {
            found.extend(version.differences(leaf, &limits)?);
        }
        Ok(found)
    }

    /// Moves the calling, single-threaded process into the v1 part of a leaf.
    ///
    /// # Errors
    /// The hierarchy that refused.
    pub fn enter_v1(&self, leaf: &Leaf) -> Result<(), IsolateError> {
        self.v1
            .as_ref()
            .map_or(Ok(()), |version| version.enter(leaf))
    }

    /// Moves the calling process into the v2 leaf: only where it could not be born there.
    ///
    /// # Errors
    /// The kernel refused.
    pub fn enter_v2(&self, leaf: &Leaf) -> Result<(), IsolateError> {
        self.v2
            .as_ref()
            .map_or(Ok(()), |version| version.enter(leaf))
    }

    /// The version that tracks the processes of `leaf`: v2 wherever it is there.
    fn tracker(&self, leaf: &Leaf) -> Option<&dyn Cgroups> {
        if leaf.v2.is_some() {
            self.v2.as_ref().map(|version| version as &dyn Cgroups)
        } else {
            self.v1.as_ref().map(|version| version as &dyn Cgroups)
        }
    }

    /// One pass of SIGKILL to everything in the leaf.
    ///
    /// # Errors
    /// A control file that should be there cannot be used.
    pub fn kill(&self, leaf: &Leaf) -> Result<(), IsolateError> {
        self.tracker(leaf)
            .map_or(Ok(()), |version| version.kill(leaf))
    }

    /// Whether any process is in the leaf; `None` when cgroups do not track it.
    ///
    /// # Errors
    /// A control file that should be there cannot be read.
    pub fn populated(&self, leaf: &Leaf) -> Result<Option<bool>, IsolateError> {
        self.tracker(leaf)
            .map_or(Ok(None), |version| version.populated(leaf))
    }

    /// The processes in the leaf; `None` when cgroups do not track it.
    ///
    /// # Errors
    /// A control file that should be there cannot be read.
    pub fn processes(&self, leaf: &Leaf) -> Result<Option<Vec<u32>>, IsolateError> {
        self.tracker(leaf)
            .map_or(Ok(None), |version| version.processes(leaf))
    }

    /// What the kernel counted for the leaf.
    #[must_use]
    pub fn facts(&self, leaf: &Leaf) -> Facts {
        let mut facts = Facts::default();
        self.versions()
            .for_each(|version| version.read_facts(leaf, &mut facts));
        facts
    }

    /// Removes an empty leaf from every hierarchy.
    ///
    /// # Errors
    /// Busy: some process is still in it, or the kernel is not done with it. Try again.
    pub fn remove(&self, leaf: &Leaf) -> Result<(), IsolateError> {
        // Try all before telling the first error: one busy hierarchy must not keep the others.
        let results: Vec<_> = self
            .versions()
            .map(|version| version.remove(leaf))
            .collect();
        results.into_iter().collect()
    }

    /// Removes the agent's own directories where nothing is left in them; says whether all are
    /// gone.
    pub fn remove_top(&self) -> bool {
        // Both, whatever becomes of the first.
        let v1 = self.v1.as_ref().is_none_or(V1::remove_top);
        let v2 = self.v2.as_ref().is_none_or(V2::remove_top);
        v1 && v2
    }
}
