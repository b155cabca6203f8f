//! What the child does between its birth and the command: everything that must hold before the
//! first instruction. Runs in a copy of the single-threaded shim.

use std::collections::BTreeMap;
use std::ffi::{CString, NulError};
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::path::Path;

use mete_proto::internal::v1::{ShimGo, ShimSpec};
use prost::Message;
use rustix::process::{Gid, Resource, Rlimit, Signal, Uid};

use super::system;
use crate::isolate::{Isolation, Leaf};
use crate::runtime::spawn;

/// First byte of the child's report: ready, waits at the gate.
pub(super) const READY: u8 = b'R';
/// First byte of the child's report: errno (little-endian) and the stage follow.
pub(super) const FAILED: u8 = b'F';

/// The child's ends of the pipes.
#[derive(Debug)]
pub(super) struct Ends {
    pub(super) stdout: OwnedFd,
    pub(super) stderr: OwnedFd,
    pub(super) gate: OwnedFd,
    pub(super) report: OwnedFd,
}

/// A stage and what went wrong in it.
type Failed = (String, io::Error);

fn at(stage: impl Into<String>) -> impl FnOnce(io::Error) -> Failed {
    let stage = stage.into();
    move |error| (stage, error)
}

/// Becomes the command, or reports why not. Never returns.
pub(super) fn become_command(
    spec: &ShimSpec,
    leaf: &Leaf,
    born_inside: bool,
    shim_pid: u32,
    ends: Ends,
) -> ! {
    let mut report = File::from(ends.report);
    let outcome = prepare(
        spec,
        leaf,
        born_inside,
        shim_pid,
        (ends.stdout, ends.stderr),
    )
    .and_then(|()| report.write_all(&[READY]).map_err(at("report")))
    .and_then(|()| wait_for_go(File::from(ends.gate)).map_err(at("wait at the gate")))
    .and_then(|go| match go {
        Some(go) => execute(spec, &go.environment),
        // The gate was closed: stopped before it started.
        None => spawn::leave(0),
    });
    if let Err((stage, error)) = outcome {
        let mut bytes = vec![FAILED];
        bytes.extend(error.raw_os_error().unwrap_or(0).to_le_bytes());
        bytes.extend(stage.as_bytes());
        bytes.push(0);
        bytes.extend(error.to_string().as_bytes());
        // If the shim is gone, so is this process in a moment.
        let _shim_gone = report.write_all(&bytes);
    }
    spawn::leave(127)
}

fn prepare(
    spec: &ShimSpec,
    leaf: &Leaf,
    born_inside: bool,
    shim_pid: u32,
    output: (OwnedFd, OwnedFd),
) -> Result<(), Failed> {
    rustix::process::setsid()
        .map_err(io::Error::from)
        .map_err(at("begin a session"))?;
    system::reset_signals().map_err(at("reset signals"))?;
    rustix::stdio::dup2_stdout(&output.0)
        .and_then(|()| rustix::stdio::dup2_stderr(&output.1))
        .map_err(io::Error::from)
        .map_err(at("connect the output"))?;
    system::normal_scheduling().map_err(at("set the scheduling policy"))?;
    enter(leaf, born_inside)?;
    limits(spec)?;
    // Only root may lower it; what could not be lowered is not worth a failed launch.
    let _refused = std::fs::write(
        "/proc/self/oom_score_adj",
        spec.oom_score_adjust.to_string(),
    );
    affinity(&spec.cores)?;
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o022));
    let _refused = rustix::process::setpriority_process(None, 0);
    identity(spec)?;
    rustix::thread::set_no_new_privs(true)
        .map_err(io::Error::from)
        .map_err(at("give up new privileges"))?;
    std::env::set_current_dir(&spec.working_directory).map_err(at("change directory"))?;
    // After the change of user, which would clear it.
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))
        .map_err(io::Error::from)
        .map_err(at("bind to the shim"))?;
    let parent = rustix::process::getppid().map(|pid| pid.as_raw_nonzero().get());
    if parent.and_then(|pid| u32::try_from(pid).ok()) != Some(shim_pid) {
        // It died before the line above.
        spawn::leave(127);
    }
    spawn::close_on_exec_from(3);
    Ok(())
}

fn enter(leaf: &Leaf, born_inside: bool) -> Result<(), Failed> {
    let isolation = Isolation::detached();
    let failed = |error: crate::isolate::IsolateError| {
        (
            "enter cgroup".to_owned(),
            io::Error::other(error.to_string()),
        )
    };
    isolation.enter_v1(leaf).map_err(failed)?;
    if born_inside {
        Ok(())
    } else {
        isolation.enter_v2(leaf).map_err(failed)
    }
}

fn limits(spec: &ShimSpec) -> Result<(), Failed> {
    for limit in &spec.limits {
        let stage = format!("set limit {}", limit.name);
        let Some(resource) = resource(&limit.name) else {
            let error = io::Error::new(io::ErrorKind::InvalidInput, "no such limit");
            return Err((stage, error));
        };
        let unlimited = |value: u64| (value != u64::MAX).then_some(value);
        let mut wanted = Rlimit {
            current: unlimited(limit.soft),
            maximum: unlimited(limit.hard),
        };
        if rustix::process::setrlimit(resource, wanted).is_err() {
            // Without root a hard limit cannot be raised: as near as this user may come.
            let own = rustix::process::getrlimit(resource);
            let least = |one: Option<u64>, other: Option<u64>| match (one, other) {
                (Some(one), Some(other)) => Some(one.min(other)),
                (one, other) => one.or(other),
            };
            wanted.maximum = least(wanted.maximum, own.maximum);
            wanted.current = least(wanted.current, wanted.maximum);
            rustix::process::setrlimit(resource, wanted)
                .map_err(io::Error::from)
                .map_err(at(stage))?;
        }
    }
    Ok(())
}

fn resource(name: &str) -> Option<Resource> {
    Some(match name {
        "cpu" => Resource::Cpu,
        "fsize" => Resource::Fsize,
        "data" => Resource::Data,
        "stack" => Resource::Stack,
        "core" => Resource::Core,
        "nproc" => Resource::Nproc,
        "nofile" => Resource::Nofile,
        "memlock" => Resource::Memlock,
        "as" => Resource::As,
        "locks" => Resource::Locks,
        "sigpending" => Resource::Sigpending,
        "msgqueue" => Resource::Msgqueue,
        "nice" => Resource::Nice,
        "rtprio" => Resource::Rtprio,
        "rttime" => Resource::Rttime,
        _ => return None,
    })
}

fn affinity(cores: &[u32]) -> Result<(), Failed> {
    if cores.is_empty() {
        return Ok(());
    }
    let mut set = rustix::thread::CpuSet::new();
    for core in cores {
        let core = usize::try_from(*core).unwrap_or(usize::MAX);
        if core >= rustix::thread::CpuSet::MAX_CPU {
            let error = io::Error::new(io::ErrorKind::InvalidInput, "no such CPU");
            return Err(("bind to cores".to_owned(), error));
        }
        set.set(core);
    }
    rustix::thread::sched_setaffinity(None, &set)
        .map_err(io::Error::from)
        .map_err(at("bind to cores"))
}

fn identity(spec: &ShimSpec) -> Result<(), Failed> {
    let Some(user) = &spec.user else {
        return Ok(());
    };
    let groups: Vec<Gid> = user
        .groups
        .iter()
        .map(|group| Gid::from_raw(*group))
        .collect();
    let gid = Gid::from_raw(user.gid);
    let uid = Uid::from_raw(user.uid);
    // One thread, so the thread's ids are the process's.
    rustix::thread::set_thread_groups(&groups)
        .and_then(|()| rustix::thread::set_thread_res_gid(gid, gid, gid))
        .and_then(|()| rustix::thread::set_thread_res_uid(uid, uid, uid))
        .map_err(io::Error::from)
        .map_err(at("become the task's user"))
}

/// Blocks until the gate opens. `None`: it was closed instead.
fn wait_for_go(mut gate: File) -> io::Result<Option<ShimGo>> {
    let mut bytes = Vec::new();
    gate.read_to_end(&mut bytes)?;
    // The first byte tells "open with nothing to say" from "closed".
    match bytes.split_first() {
        Some((_, message)) => ShimGo::decode(message)
            .map(Some)
            .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error)),
        None => Ok(None),
    }
}

#[expect(
    unsafe_code,
    reason = "std's exec would search with this process's own PATH"
)]
fn execute<'a>(spec: &'a ShimSpec, added: &'a BTreeMap<String, String>) -> Result<(), Failed> {
    let mut environment: BTreeMap<&str, &str> = BTreeMap::new();
    for (name, value) in spec.environment.iter().chain(added) {
        environment.insert(name, value);
    }
    let invalid = |_: NulError| {
        let error = io::Error::new(
            io::ErrorKind::InvalidInput,
            "a NUL byte in an argument or name",
        );
        ("execve".to_owned(), error)
    };
    let arguments: Vec<CString> = spec
        .command
        .iter()
        .map(|argument| CString::new(argument.as_str()))
        .collect::<Result<_, _>>()
        .map_err(invalid)?;
    let variables: Vec<CString> = environment
        .iter()
        .map(|(name, value)| CString::new(format!("{name}={value}")))
        .collect::<Result<_, _>>()
        .map_err(invalid)?;
    let pointers = |strings: &[CString]| {
        let mut pointers: Vec<*const libc::c_char> =
            strings.iter().map(|string| string.as_ptr()).collect();
        pointers.push(std::ptr::null());
        pointers
    };
    let (argv, envp) = (pointers(&arguments), pointers(&variables));
    let name = spec.command.first().map(String::as_str).unwrap_or_default();
    let path = environment.get("PATH").copied().unwrap_or_default();
    let mut told: Option<io::Error> = None;
    for candidate in candidates(name, path) {
        let program = CString::new(candidate).map_err(invalid)?;
        // SAFETY: NUL-terminated strings in NULL-terminated arrays that outlive the call.
        unsafe { libc::execve(program.as_ptr(), argv.as_ptr(), envp.as_ptr()) };
        let error = io::Error::last_os_error();
        match error.raw_os_error() {
            Some(libc::ENOENT | libc::ENOTDIR) if told.is_some() => {}
            // A file that is there and may not be executed says more than one that is not.
            Some(libc::ENOENT | libc::ENOTDIR | libc::EACCES) => told = Some(error),
            _ => return Err(("execve".to_owned(), error)),
        }
    }
    let error = told.unwrap_or_else(|| io::Error::from_raw_os_error(libc::ENOENT));
    Err(("execve".to_owned(), error))
}

/// Where a command may be: itself if it names a place, else in each directory of the path.
fn candidates(name: &str, path: &str) -> Vec<String> {
    if name.contains('/') {
        return vec![name.to_owned()];
    }
    path.split(':')
        .filter(|folder| !folder.is_empty() && !name.is_empty())
        .map(|folder| Path::new(folder).join(name).to_string_lossy().into_owned())
        .collect()
}
