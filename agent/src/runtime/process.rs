//! The built-in runtime: commands of this machine, each under a shim of its own.
//!
//! It needs no daemon and no root. Each run has one task on the agent's async runtime that talks to
//! the run's shim; a stuck one holds up nobody else. After a restart of the agent the directory of
//! records and the shims' locks say what is what.

use std::collections::{BTreeMap, HashMap};
use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::runtime::Handle;
use tokio::sync::{Semaphore, mpsc};

use super::contact::ContactFile;
use super::desk::Desk;
use super::launch::Site;
use super::records::RunDirectory;
use super::{Events, FoundRun, Launch, RunName, Runtime, RuntimeError, RuntimeEvent, Stop};
use super::{found, supervise};
use crate::discover::part::private_directory;
use crate::isolate::Isolation;

/// Events that wait for the shell. When it is behind, runs wait; nothing is dropped.
const EVENTS: usize = 1024;
/// Runs that block on the file system at one time.
const MOST_BLOCKED: usize = 64;

/// Where the runtime keeps what, and how it starts a shim.
#[derive(Debug, Clone)]
pub struct ProcessConfig {
    /// For the records of runs: on a tmpfs, of this agent alone. Made when absent.
    pub run_directory: PathBuf,
    /// `/proc`.
    pub procfs: PathBuf,
    /// This boot's id.
    pub boot_id: String,
    /// The program that is a shim when started with `shim_arguments` and a directory.
    pub shim_program: PathBuf,
    /// Before the directory.
    pub shim_arguments: Vec<OsString>,
}

impl ProcessConfig {
    /// With this very program as `mete __shim`, also after its file was replaced by an upgrade.
    #[must_use]
    pub fn new(run_directory: PathBuf, boot_id: String) -> Self {
        Self {
            run_directory,
            procfs: "/proc".into(),
            boot_id,
            shim_program: "/proc/self/exe".into(),
            shim_arguments: vec!["__shim".into()],
        }
    }
}

/// What all runs share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) site: Site,
    pub(crate) procfs: PathBuf,
    pub(crate) isolation: Arc<Isolation>,
    pub(crate) events: mpsc::Sender<RuntimeEvent>,
    pub(crate) blocking: Semaphore,
    desks: Mutex<HashMap<RunName, Arc<Desk>>>,
}

impl Shared {
    fn desks(&self) -> MutexGuard<'_, HashMap<RunName, Arc<Desk>>> {
        // A map of handles has no half states.
        self.desks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn directory(&self, run: &RunName) -> RunDirectory {
        RunDirectory::of(&self.site.run_directory, run)
    }

    /// The run is over and told; its verbs do nothing from now on.
    pub(crate) fn leave(&self, run: &RunName) {
        self.desks().remove(run);
    }

    fn desk(&self, run: &RunName) -> Option<Arc<Desk>> {
        self.desks().get(run).cloned()
    }

    /// A desk for a run that has none yet.
    fn enter(&self, run: &RunName) -> Option<Arc<Desk>> {
        let mut desks = self.desks();
        if desks.contains_key(run) {
            return None;
        }
        let desk = Arc::new(Desk::default());
        desks.insert(run.clone(), Arc::clone(&desk));
        Some(desk)
    }
}

/// The `process` runtime.
#[derive(Debug, Clone)]
pub struct ProcessRuntime {
    shared: Arc<Shared>,
    handle: Handle,
}

impl ProcessRuntime {
    /// Ready to work; runs of earlier agent processes are found by [`Runtime::list`]. Its tasks run
    /// on `handle`.
    ///
    /// # Errors
    /// The directory of records cannot be made, or others may write it.
    pub fn new(
        config: ProcessConfig,
        isolation: Arc<Isolation>,
        handle: Handle,
    ) -> Result<(Self, Events), RuntimeError> {
        private_directory(&config.run_directory).map_err(|source| {
            RuntimeError::new("make the run directory", &config.run_directory, source)
        })?;
        let (sender, events) = mpsc::channel(EVENTS);
        let contact = ContactFile::below(&config.run_directory, config.boot_id.clone());
        let shared = Arc::new(Shared {
            site: Site {
                run_directory: config.run_directory,
                boot_id: config.boot_id,
                shim_program: config.shim_program,
                shim_arguments: config.shim_arguments,
                contact_file: contact.path(),
            },
            procfs: config.procfs,
            isolation,
            events: sender,
            blocking: Semaphore::new(MOST_BLOCKED),
            desks: Mutex::default(),
        });
        Ok((Self { shared, handle }, events))
    }

    /// How many runs it watches now.
    #[must_use]
    pub fn watched(&self) -> usize {
        self.shared.desks().len()
    }
}

impl Runtime for ProcessRuntime {
    fn prepare(&self, launch: Launch) {
        if let Some(desk) = self.shared.enter(&launch.run) {
            self.handle
                .spawn(supervise::launched(Arc::clone(&self.shared), desk, launch));
        }
    }

    fn start(&self, run: &RunName, environment: BTreeMap<String, String>) {
        if let Some(desk) = self.shared.desk(run) {
            desk.go(environment);
        }
    }

    fn signal(&self, run: &RunName, signal: u32) {
        if let Some(desk) = self.shared.desk(run) {
            desk.signal(signal);
        }
    }

    fn stop(&self, run: &RunName, stop: Stop) {
        if let Some(desk) = self.shared.desk(run) {
            desk.stop(stop);
        }
    }

    fn list(&self) -> Result<Vec<FoundRun>, RuntimeError> {
        found::list(&self.shared.site.run_directory, &self.shared.site.boot_id)
    }

    fn adopt(&self, run: &RunName) {
        if let Some(desk) = self.shared.enter(run) {
            let shared = Arc::clone(&self.shared);
            self.handle
                .spawn(supervise::adopted(shared, desk, run.clone()));
        }
    }

    fn forget(&self, run: &RunName) {
        match self.shared.desk(run) {
            // Told a moment ago and not yet left: it tidies up when it does.
            Some(desk) => desk.forget(),
            None => {
                let shared = Arc::clone(&self.shared);
                self.handle.spawn(supervise::forgotten(shared, run.clone()));
            }
        }
    }
}
