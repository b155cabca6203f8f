//! The blocking part of a launch: cgroup, directories, spec, and the birth of the shim.

use std::collections::BTreeMap;
use std::ffi::{CString, OsString};
use std::fs::{DirBuilder, File};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use mete_proto::internal::v1::{ShimLimit, ShimSpec, ShimUser};

use super::desk::Desk;
use super::leftovers::MARK;
use super::records::{MOST_BYTES, RunDirectory, leaf_to_wire};
use super::spawn::{self, Detached};
use super::{Gate, Launch};
use crate::isolate::{Controller, Isolation, LEAST_MEMORY, Leaf, LeafName};

/// Where a task's command is looked up unless it says otherwise.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// The name of a leaf in its group: a single task is a group of one.
const LEAF: &str = "main";
/// For everything in a spec that is small: names, limits, cgroups, lengths.
const ROOM: u64 = 256 << 10;

/// What a launch needs to know of this agent.
#[derive(Debug, Clone)]
pub(crate) struct Site {
    pub(crate) run_directory: PathBuf,
    pub(crate) boot_id: String,
    pub(crate) shim_program: PathBuf,
    pub(crate) shim_arguments: Vec<OsString>,
    pub(crate) contact_file: PathBuf,
}

/// A living shim.
#[derive(Debug)]
pub(crate) struct Born {
    pub(crate) handle: OwnedFd,
    pub(crate) connection: UnixStream,
}

/// Why there is none.
#[derive(Debug)]
pub(crate) enum NotBorn {
    /// Stopped or given up before.
    Stopped,
    /// This node could not: a stage and what went wrong in it.
    Failed(&'static str, String),
    /// No node could: what is wrong with the command.
    NotACommand(String),
    /// No node could: why no process fits into the memory limit.
    MemoryTooSmall(String),
}

fn at<E: std::fmt::Display>(stage: &'static str) -> impl FnOnce(E) -> NotBorn {
    move |error| NotBorn::Failed(stage, error.to_string())
}

/// Does everything up to the birth of the shim. What fails half way is removed again.
pub(crate) fn begin(
    site: &Site,
    isolation: &Isolation,
    launch: &Launch,
    desk: &Desk,
) -> Result<Born, NotBorn> {
    check(launch).map_err(NotBorn::NotACommand)?;
    check_memory(isolation, launch)?;
    let directory = RunDirectory::of(&site.run_directory, &launch.run);
    directory.create().map_err(|error| {
        let path = directory.path().display();
        let text = if error.kind() == io::ErrorKind::AlreadyExists {
            format!("{path} is there already: this run was prepared before and is not done twice")
        } else {
            format!("{path}: {error}")
        };
        NotBorn::Failed("make the run directory", text)
    })?;
    let mut leaf = Leaf::default();
    let outcome = in_directory(site, isolation, launch, desk, &directory, &mut leaf);
    if outcome.is_err() {
        // Nobody was born: these are empty. What will not go is shown by adoption later.
        let _best_effort = isolation.remove(&leaf);
        let _best_effort = directory.remove();
    }
    outcome
}

/// What can never work, wherever it is tried.
fn check(launch: &Launch) -> Result<(), String> {
    if launch.command.first().is_none_or(String::is_empty) {
        return Err("the command is empty; name a program".to_owned());
    }
    if launch
        .command
        .iter()
        .any(|argument| argument.contains('\0'))
    {
        return Err("an argument holds a NUL byte, which no program can be given".to_owned());
    }
    // All that has no bound of its own in what the shim is told.
    let size = launch.reference.len()
        + launch.command.iter().map(String::len).sum::<usize>()
        + launch
            .environment
            .iter()
            .map(|(name, value)| name.len() + value.len())
            .sum::<usize>();
    if u64::try_from(size).is_ok_and(|size| size > MOST_BYTES - ROOM) {
        return Err(format!(
            "command and environment come to {size} bytes with their description; at most \
             {MOST_BYTES} can be kept for a run"
        ));
    }
    for (name, value) in &launch.environment {
        if name.is_empty() || name.contains(['=', '\0']) {
            return Err(format!(
                "{name:?} cannot be the name of an environment variable"
            ));
        }
        if value.contains('\0') {
            return Err(format!(
                "the value of {name:?} holds a NUL byte, which no program can be given"
            ));
        }
    }
    Ok(())
}

/// A limit that the kernel would hold against the process before it is the command.
fn check_memory(isolation: &Isolation, launch: &Launch) -> Result<(), NotBorn> {
    let limit = launch.limits.memory_bytes;
    match limit.filter(|limit| *limit < LEAST_MEMORY) {
        Some(limit) if isolation.serves(Controller::Memory).is_some() => {
            Err(NotBorn::MemoryTooSmall(format!(
                "no process fits into {limit} bytes of memory; the least is {LEAST_MEMORY} bytes, \
                 and most programs need several MiB"
            )))
        }
        Some(_) | None => Ok(()),
    }
}

fn in_directory(
    site: &Site,
    isolation: &Isolation,
    launch: &Launch,
    desk: &Desk,
    directory: &RunDirectory,
    leaf: &mut Leaf,
) -> Result<Born, NotBorn> {
    if isolation.is_some() {
        let name = LeafName {
            group: launch.run.as_str(),
            run: LEAF,
        };
        *leaf = isolation
            .create(name, &launch.limits)
            .map_err(at("make the cgroup"))?;
    }
    make_work(launch).map_err(at("make the working directory"))?;
    directory
        .write("spec", &spec(site, launch, leaf))
        .map_err(at("write the spec"))?;
    let lock = directory.lock_alive().map_err(at("lock the run"))?;
    let errors = directory
        .errors_file()
        .map_err(at("open the shim's errors"))?;
    let (connection, theirs) = UnixStream::pair().map_err(at("make a socket"))?;
    connection
        .set_nonblocking(true)
        .map_err(at("make a socket"))?;
    let birthplace = match isolation.shims() {
        Some(path) => Some(File::open(path).map_err(at("open the cgroup of shims"))?),
        None => None,
    };
    let mut arguments = vec![c"mete-shim".to_owned()];
    let own = site.shim_arguments.iter().map(OsString::as_os_str);
    for argument in own.chain([directory.path().as_os_str()]) {
        arguments.push(CString::new(argument.as_bytes()).map_err(at("name the shim"))?);
    }
    let start = Detached {
        program: &site.shim_program,
        arguments: &arguments,
        errors: &errors,
        connection: theirs.as_fd(),
        lock: lock.as_fd(),
        cgroup: birthplace.as_ref().map(AsFd::as_fd),
    };
    match desk.be_born(|| spawn::detached(&start)) {
        Some(Ok((_, handle))) => Ok(Born { handle, connection }),
        Some(Err(error)) => Err(NotBorn::Failed("start the shim", error.to_string())),
        None => Err(NotBorn::Stopped),
    }
}

/// A directory that is not there is made for the task; one that is there stays as it is.
fn make_work(launch: &Launch) -> io::Result<()> {
    let path: &Path = &launch.working_directory;
    // One that the user named and that is not there is the user's mistake; the child says so
    // when it cannot enter it.
    if path.is_dir() || !launch.make_working_directory {
        return Ok(());
    }
    let named =
        |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", path.display()));
    DirBuilder::new()
        .recursive(true)
        .mode(0o755)
        .create(path)
        .map_err(named)?;
    if let Some(user) = &launch.user {
        std::os::unix::fs::chown(path, Some(user.uid), Some(user.gid)).map_err(named)?;
    }
    Ok(())
}

fn spec(site: &Site, launch: &Launch, leaf: &Leaf) -> ShimSpec {
    let text = |path: &Path| path.to_string_lossy().into_owned();
    let mut environment: BTreeMap<String, String> = launch.environment.clone();
    environment
        .entry("PATH".to_owned())
        .or_insert_with(|| PATH.to_owned());
    let home = launch
        .user
        .as_ref()
        .map_or(&launch.working_directory, |user| &user.home);
    environment
        .entry("HOME".to_owned())
        .or_insert_with(|| text(home));
    // By this mark processes are found that left session and cgroup; a task may not choose it.
    environment.insert(MARK.to_owned(), launch.run.as_str().to_owned());
    ShimSpec {
        version: 1,
        run: launch.run.as_str().to_owned(),
        reference: launch.reference.clone().into(),
        command: launch.command.clone(),
        environment: environment.into_iter().collect(),
        working_directory: text(&launch.working_directory),
        user: launch.user.as_ref().map(|user| ShimUser {
            uid: user.uid,
            gid: user.gid,
            groups: user.groups.clone(),
        }),
        limits: limits(launch),
        cores: launch.cores.clone(),
        cgroups: Some(leaf_to_wire(leaf)),
        log_directory: text(&launch.log_directory),
        log_file_bytes: launch.log_file_bytes,
        log_files: launch.log_files,
        kill_grace_ms: launch.kill_grace_ms,
        go_at_once: launch.gate == Gate::Open,
        boot_id: site.boot_id.clone(),
        shim_cgroups: Vec::new(),
        time_limit_ms: launch.time_limit_ms,
        oom_score_adjust: own_oom_score(),
        stop_if_silent_ms: launch.stop_if_silent_ms,
        contact_file: text(&site.contact_file),
    }
}

/// What a task starts with whatever the agent itself was started with.
fn limits(launch: &Launch) -> Vec<ShimLimit> {
    const DEFAULTS: [(&str, u64, u64); 6] = [
        ("nofile", 1024, 1_048_576),
        ("core", 0, 0),
        ("nproc", u64::MAX, u64::MAX),
        ("stack", 8 << 20, u64::MAX),
        ("memlock", 8 << 20, 8 << 20),
        ("rtprio", 0, 0),
    ];
    let mut limits: BTreeMap<&str, (u64, u64)> = DEFAULTS
        .into_iter()
        .map(|(name, soft, hard)| (name, (soft, hard)))
        .collect();
    for limit in &launch.resource_limits {
        limits.insert(&limit.name, (limit.soft, limit.hard));
    }
    limits
        .into_iter()
        .map(|(name, (soft, hard))| ShimLimit {
            name: name.to_owned(),
            soft,
            hard,
        })
        .collect()
}

/// The shim lowers its own score; its task gets the agent's back.
fn own_oom_score() -> i32 {
    let text = std::fs::read_to_string("/proc/self/oom_score_adj");
    text.ok()
        .and_then(|text| text.trim().parse().ok())
        .unwrap_or(0)
}
