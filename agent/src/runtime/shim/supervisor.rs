//! The shim's loop: one poll over signals, pipes and connections, and the few timers of a run.
//!
//! ```text
//! Setup -ready-> Gated -go-> Opening -execve-> Running -main ends-> Clearing -all gone-> end
//! ```
//!
//! A stop at the first two stages closes the gate: the command then never runs. `Clearing` ends
//! what the main process left behind; only when nothing is left is the exit record written.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use mete_model::partition::SILENT_GRACE;
use mete_proto::internal::v1::{
    ExitRecord, LaunchFailure, RunRecord, ShimEvent, ShimGo, ShimRequest, ShimSpec, ShimStarted,
    ShimStop, ShimStopping, ShimStuck, StuckProcess, shim_event, shim_request,
};
use prost::Message;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Pid, Signal, WaitOptions, kill_process, wait};

use super::child::{self, Ends};
use super::control::Control;
use super::ending::{Ending, MainEnd};
use super::log::LogWriter;
use super::processes::Processes;
use super::silence::Silence;
use super::system::Signals;
use crate::runtime::identity::{ProcessStat, describe};
use crate::runtime::logs::Stream;
use crate::runtime::records::{RunDirectory, leaf_from_wire, now_ms};
use crate::runtime::spawn::{Forked, fork_into};

/// What the main process left behind gets this long between SIGTERM and SIGKILL.
const REST_GRACE: Duration = Duration::from_secs(2);
/// After this long under SIGKILL a process counts as stuck.
const STUCK_AFTER: Duration = Duration::from_secs(10);
/// How often a kill is repeated and the rest looked at.
const TICK: Duration = Duration::from_millis(20);
/// The same once something is stuck.
const SLOW_TICK: Duration = Duration::from_secs(1);
/// At most this many stuck processes are named.
const MOST_NAMED: usize = 32;
/// A child that was not started yet gets this long to see that its gate is closed.
const GATE_GRACE: Duration = Duration::from_secs(1);
/// No deadline is further away: a year. Keeps arithmetic on clocks from overflowing.
const FAR: Duration = Duration::from_secs(366 * 86_400);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Setup,
    Gated,
    Opening,
    Running,
    Clearing,
}

/// One run and everything the shim holds for it.
#[derive(Debug)]
pub(super) struct Supervisor {
    spec: ShimSpec,
    directory: RunDirectory,
    processes: Processes,
    signals: Signals,
    control: Control,
    log: Option<LogWriter>,
    stdout: Option<File>,
    stderr: Option<File>,
    gate: Option<File>,
    report: Option<File>,
    reported: Vec<u8>,
    main: Option<Pid>,
    stage: Stage,
    go: Option<ShimGo>,
    ending: Ending,
    /// When force is used on everything.
    force_at: Option<Instant>,
    forced_since: Option<Instant>,
    time_limit_at: Option<Instant>,
    silence: Option<Silence>,
    tick_at: Option<Instant>,
    stuck: Vec<u32>,
    /// What an agent that connects now is told.
    so_far: Vec<ShimEvent>,
}

fn event(what: shim_event::What) -> ShimEvent {
    ShimEvent { what: Some(what) }
}

fn after(milliseconds: u64) -> Instant {
    Instant::now() + Duration::from_millis(milliseconds).min(FAR)
}

impl Supervisor {
    /// Becomes the parent of whatever comes, and listens.
    pub(super) fn new(directory: RunDirectory, spec: ShimSpec) -> io::Result<Self> {
        let control = Control::open(&directory)?;
        let silence = Silence::of(&spec)?;
        rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?;
        let signals = Signals::open()?;
        // The shim should be the last to go. Refused without root, and then it shares the risk.
        let _refused = std::fs::write("/proc/self/oom_score_adj", "-999");
        let leaf = spec
            .cgroups
            .as_ref()
            .map(leaf_from_wire)
            .unwrap_or_default();
        Ok(Self {
            spec,
            directory,
            processes: Processes::new(leaf),
            signals,
            control,
            log: None,
            stdout: None,
            stderr: None,
            gate: None,
            report: None,
            reported: Vec::new(),
            main: None,
            stage: Stage::Setup,
            go: None,
            ending: Ending::default(),
            force_at: None,
            forced_since: None,
            time_limit_at: None,
            silence,
            tick_at: None,
            stuck: Vec::new(),
            so_far: Vec::new(),
        })
    }

    /// From the making of the child to the end of the run.
    pub(super) fn run(mut self) -> io::Result<()> {
        if self.spec.go_at_once {
            self.go = Some(ShimGo::default());
        }
        if let Err((stage, error)) = self.make_child() {
            self.fail(&stage, &error);
            self.stage = Stage::Clearing;
        }
        loop {
            self.step();
            if self.stage == Stage::Clearing && self.is_over() {
                break;
            }
            self.wait()?;
        }
        self.finish()
    }

    fn make_child(&mut self) -> Result<(), (String, io::Error)> {
        let at = |stage: &'static str| move |error: io::Error| (stage.to_owned(), error);
        let files = self.spec.log_files;
        let log = LogWriter::open(
            self.spec.log_directory.as_ref(),
            self.spec.log_file_bytes,
            files,
        );
        self.log = Some(log.map_err(at("open the log"))?);
        let (stdout, child_stdout) = pipe().map_err(at("make a pipe"))?;
        let (stderr, child_stderr) = pipe().map_err(at("make a pipe"))?;
        let (report, child_report) = pipe().map_err(at("make a pipe"))?;
        let (child_gate, gate) = pipe().map_err(at("make a pipe"))?;
        for reading in [&stdout, &stderr, &report] {
            rustix::io::ioctl_fionbio(reading, true)
                .map_err(io::Error::from)
                .map_err(at("make a pipe"))?;
        }
        if rustix::process::geteuid().is_root() {
            for pipe in [&stdout, &stderr] {
                // For bursts. Other users have a small allowance of pipe space between them all.
                let _smaller = rustix::pipe::fcntl_setpipe_size(pipe, 1 << 20);
            }
        }
        let leaf = self
            .spec
            .cgroups
            .as_ref()
            .map(leaf_from_wire)
            .unwrap_or_default();
        let birthplace = match &leaf.v2 {
            Some(path) => Some(File::open(path).map_err(at("open cgroup"))?),
            None => None,
        };
        let shim_pid = std::process::id();
        let forked = self
            .fork(birthplace.as_ref())
            .map_err(at("make a process"))?;
        match forked {
            Forked::Child { born_inside } => {
                let ends = Ends {
                    stdout: child_stdout,
                    stderr: child_stderr,
                    gate: child_gate,
                    report: child_report,
                };
                // The parent's end of the gate must not keep it open in here.
                drop(gate);
                let inside = born_inside || leaf.v2.is_none();
                child::become_command(&self.spec, &leaf, inside, shim_pid, ends)
            }
            Forked::Parent { pid, .. } => {
                self.main = i32::try_from(pid).ok().and_then(Pid::from_raw);
                self.stdout = Some(File::from(stdout));
                self.stderr = Some(File::from(stderr));
                self.gate = Some(File::from(gate));
                self.report = Some(File::from(report));
                Ok(())
            }
        }
    }

    #[expect(unsafe_code, reason = "clone3 has no safe wrapper")]
    fn fork(&self, birthplace: Option<&File>) -> io::Result<Forked> {
        // SAFETY: this process has one thread, so its copy may do anything.
        unsafe { fork_into(birthplace.map(AsFd::as_fd)) }
    }

    fn fail(&mut self, stage: &str, error: &io::Error) {
        let errno = error.raw_os_error().unwrap_or(0);
        let failure = LaunchFailure {
            stage: stage.to_owned(),
            errno,
            text: error.to_string(),
        };
        self.ending.failure.get_or_insert(failure);
    }

    fn tell(&mut self, what: shim_event::What) {
        let event = event(what);
        self.control.tell(&event);
        self.so_far.push(event);
    }

    /// One look at everything; nothing in it blocks except a slow disk under the log.
    fn step(&mut self) {
        self.control.accept(&self.so_far);
        let requests = self.control.turn();
        for request in requests {
            self.obey(request);
        }
        if self.signals.take() {
            let grace_ms = self.spec.kill_grace_ms;
            self.stop(&ShimStop {
                grace_ms,
                signal: 0,
            });
        }
        // Before the gate: what is too late never begins.
        self.heed_silence();
        self.read_report();
        self.open_gate();
        self.read_output(16);
        self.reap();
        self.timers();
    }

    fn obey(&mut self, request: ShimRequest) {
        let gated = matches!(self.stage, Stage::Setup | Stage::Gated) && !self.ending.stop_asked;
        match request.what {
            Some(shim_request::What::Go(go)) if gated => {
                self.go.get_or_insert(go);
            }
            // Open already, or closed for good.
            Some(shim_request::What::Go(_)) => {}
            Some(shim_request::What::Stop(stop)) => self.stop(&stop),
            Some(shim_request::What::Signal(signal)) => self.signal_main(signal.signal),
            // Of a newer agent: what this shim cannot do it leaves.
            None => {}
        }
    }

    fn signal_main(&self, number: u32) {
        let running = matches!(self.stage, Stage::Opening | Stage::Running);
        let signal = i32::try_from(number).ok().and_then(Signal::from_named_raw);
        if let (true, Some(main), Some(signal)) = (running, self.main, signal) {
            // Not waited for yet, so the number is still its own.
            let _gone = kill_process(main, signal);
        }
    }

    fn stop(&mut self, stop: &ShimStop) {
        let grace = match self.stage {
            Stage::Setup | Stage::Gated => {
                self.gate = None;
                self.go = None;
                Duration::from_millis(stop.grace_ms).min(GATE_GRACE)
            }
            Stage::Opening | Stage::Running => Duration::from_millis(stop.grace_ms).min(FAR),
            // What is left is being ended already; a shorter grace still counts.
            Stage::Clearing => Duration::from_millis(stop.grace_ms).min(REST_GRACE),
        };
        let force_at = Instant::now() + grace;
        // A later stop may shorten the grace, never lengthen it.
        if self.force_at.is_some_and(|earlier| earlier <= force_at) {
            return;
        }
        self.force_at = Some(force_at);
        if self.stage == Stage::Clearing {
            return;
        }
        let first = !self.ending.stop_asked;
        self.ending.stop_asked = true;
        if first {
            let term = Signal::TERM.as_raw().unsigned_abs();
            self.signal_main(if stop.signal == 0 { term } else { stop.signal });
        }
        let grace_ms = u64::try_from(grace.as_millis()).unwrap_or(u64::MAX);
        let force_at_ms = now_ms().saturating_add(grace_ms);
        self.tell(shim_event::What::Stopping(ShimStopping { force_at_ms }));
    }

    /// What the child says of itself, and the silence that means "executed".
    fn read_report(&mut self) {
        let Some(report) = &mut self.report else {
            return;
        };
        let mut bytes = [0_u8; 512];
        let ended = loop {
            match report.read(&mut bytes) {
                Ok(0) => break true,
                Ok(read) => self.reported.extend(bytes.get(..read).unwrap_or_default()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_would_block) => break false,
            }
        };
        if self.stage == Stage::Setup && self.reported.first() == Some(&child::READY) {
            self.reported.remove(0);
            self.stage = Stage::Gated;
            self.record_run();
        }
        if !ended {
            return;
        }
        self.report = None;
        if self.reported.first() == Some(&child::FAILED) {
            let number = self
                .reported
                .get(1..5)
                .and_then(|bytes| bytes.try_into().ok());
            let text = self.reported.get(5..).unwrap_or_default();
            let mut parts = text
                .splitn(2, |byte| *byte == 0)
                .map(String::from_utf8_lossy);
            let stage = parts.next().unwrap_or_default().into_owned();
            let text = parts.next().unwrap_or_default().into_owned();
            let errno = number.map_or(0, i32::from_le_bytes);
            self.ending
                .failure
                .get_or_insert(LaunchFailure { stage, errno, text });
        } else if self.stage == Stage::Opening {
            self.started();
        }
    }

    fn started(&mut self) {
        self.stage = Stage::Running;
        self.ending.started_ms = now_ms();
        if self.spec.time_limit_ms > 0 {
            self.time_limit_at = Some(after(self.spec.time_limit_ms));
        }
        self.tell(shim_event::What::Started(ShimStarted {
            at_ms: self.ending.started_ms,
        }));
    }

    /// The run record: written before the gate may open, so that whatever runs can be found.
    fn record_run(&mut self) {
        let Some(main) = self.main else { return };
        let pid = main.as_raw_nonzero().get().unsigned_abs();
        let procfs = std::path::Path::new("/proc");
        let start = |pid| ProcessStat::read(procfs, pid).map_or(0, |stat| stat.start_ticks);
        let namespace = std::fs::metadata("/proc/self/ns/pid");
        let record = RunRecord {
            version: 1,
            run: self.spec.run.clone(),
            reference: self.spec.reference.clone(),
            pid,
            start_ticks: start(pid),
            boot_id: self.spec.boot_id.clone(),
            pid_namespace: namespace.map_or(0, |found| std::os::unix::fs::MetadataExt::ino(&found)),
            cgroups: self.spec.cgroups.clone(),
            shim_pid: std::process::id(),
            shim_start_ticks: start(std::process::id()),
            prepared_ms: now_ms(),
        };
        match self.directory.write("run", &record) {
            // Without the reference, which the agent gave and which may be larger than a frame.
            Ok(()) => self.tell(shim_event::What::Prepared(RunRecord {
                reference: prost::bytes::Bytes::new(),
                ..record
            })),
            Err(error) => {
                // Without the record a command could run that nobody would find.
                self.fail("write the run record", &error);
                self.gate = None;
                self.go = None;
            }
        }
    }

    fn open_gate(&mut self) {
        if self.stage != Stage::Gated {
            return;
        }
        let Some(go) = self.go.take() else { return };
        let Some(mut gate) = self.gate.take() else {
            return;
        };
        let mut bytes = vec![1];
        bytes.extend(go.encode_to_vec());
        // At most one frame, which is less than a pipe holds.
        match gate.write_all(&bytes) {
            Ok(()) => self.stage = Stage::Opening,
            Err(error) => self.fail("open the gate", &error),
        }
    }

    /// So many pieces of each stream: a flood in one must not keep the other waiting.
    fn read_output(&mut self, turns: u32) {
        let Some(log) = &mut self.log else { return };
        let streams = [
            (&mut self.stdout, Stream::Stdout),
            (&mut self.stderr, Stream::Stderr),
        ];
        for (pipe, stream) in streams {
            let mut bytes = [0_u8; 16 << 10];
            let mut left = turns;
            while let (Some(file), true) = (pipe.as_mut(), left > 0) {
                left -= 1;
                match file.read(&mut bytes) {
                    Ok(0) => *pipe = None,
                    Ok(read) => {
                        log.write(stream, bytes.get(..read).unwrap_or_default(), now_ns());
                    }
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    Err(_would_block) => break,
                }
            }
        }
    }

    fn reap(&mut self) {
        while let Ok(Some((pid, status))) = wait(WaitOptions::NOHANG) {
            if Some(pid) != self.main {
                continue;
            }
            // Its last words may still be in the pipe: did it execute, or fail to?
            self.read_report();
            self.main = None;
            self.ending.ended_ms = now_ms();
            let number = |number: Option<i32>| number.and_then(|number| u32::try_from(number).ok());
            self.ending.main = match (
                number(status.exit_status()),
                number(status.terminating_signal()),
            ) {
                (Some(code), _) => Some(MainEnd::Code(code)),
                (None, Some(signal)) => Some(MainEnd::Signal(signal)),
                (None, None) => None,
            };
            if self.stage == Stage::Opening && self.ending.failure.is_none() {
                // Killed between the gate and the report: whether it executed cannot be told apart.
                self.started();
            }
            let before = matches!(self.stage, Stage::Setup | Stage::Gated);
            if before && !self.ending.stop_asked {
                // Its own report came first if it had one; the counters of its cgroup say whether
                // it was for want of memory.
                let how = self
                    .ending
                    .main
                    .map_or_else(String::new, |end| format!(": {end}"));
                let text = format!("it ended before it could become the command{how}");
                self.fail("set up the process", &io::Error::other(text));
            }
            self.begin_clearing();
        }
    }

    fn begin_clearing(&mut self) {
        self.stage = Stage::Clearing;
        self.gate = None;
        self.time_limit_at = None;
        self.silence = None;
        if self.processes.any_left() {
            self.processes.signal(Signal::TERM);
            let rest = Instant::now() + REST_GRACE;
            self.force_at = Some(self.force_at.map_or(rest, |at| at.min(rest)));
            self.tick_at = Some(Instant::now() + TICK);
        }
    }

    /// Ends a run of which the node has not heard from a leader for too long.
    fn heed_silence(&mut self) {
        if self.silence.as_mut().is_some_and(Silence::is_over) {
            self.silence = None;
            self.ending.out_of_contact = !self.ending.stop_asked;
            // Whatever its own grace: it has to be over before another takes its place.
            let grace_ms = self.spec.kill_grace_ms.min(SILENT_GRACE.0);
            self.stop(&ShimStop {
                grace_ms,
                signal: 0,
            });
        }
    }

    fn timers(&mut self) {
        let now = Instant::now();
        if self.time_limit_at.is_some_and(|at| at <= now) {
            self.time_limit_at = None;
            if !self.ending.stop_asked {
                self.ending.time_limit = true;
                let grace_ms = self.spec.kill_grace_ms;
                self.stop(&ShimStop {
                    grace_ms,
                    signal: 0,
                });
            }
        }
        if self.force_at.is_some_and(|at| at <= now) && self.tick_at.is_none_or(|at| at <= now) {
            self.force(now);
        } else if self.tick_at.is_some_and(|at| at <= now) {
            self.tick_at = Some(now + TICK);
        }
    }

    /// One pass of SIGKILL; who outlives ten seconds of them is named.
    fn force(&mut self, now: Instant) {
        // Also what is over needs no force: the last child may just have been waited for.
        if self.main.is_none() && !self.processes.any_left() {
            return;
        }
        if self.main.is_some() {
            self.ending.forced = true;
        }
        self.processes.kill();
        let since = *self.forced_since.get_or_insert(now);
        let stuck = now.duration_since(since) >= STUCK_AFTER;
        self.tick_at = Some(now + if stuck { SLOW_TICK } else { TICK });
        if !stuck {
            return;
        }
        let left: Vec<u32> = self.processes.ids().into_iter().collect();
        if left == self.stuck || left.is_empty() {
            return;
        }
        let procfs = std::path::Path::new("/proc");
        let processes = left
            .iter()
            .take(MOST_NAMED)
            .filter_map(|pid| describe(procfs, *pid));
        let processes = processes
            .map(|found| StuckProcess {
                pid: found.pid,
                state: found.state,
                wait_channel: found.wait_channel,
                command: found.command,
            })
            .collect();
        let total = u32::try_from(left.len()).unwrap_or(u32::MAX);
        self.stuck = left;
        self.so_far
            .retain(|event| !matches!(event.what, Some(shim_event::What::Stuck(_))));
        self.tell(shim_event::What::Stuck(ShimStuck { processes, total }));
    }

    fn is_over(&self) -> bool {
        self.main.is_none() && !self.processes.any_left()
    }

    /// Sleeps until something happens.
    fn wait(&mut self) -> io::Result<()> {
        let timers = [
            self.time_limit_at,
            self.tick_at,
            self.force_at.filter(|_| self.tick_at.is_none()),
        ];
        let next = timers.into_iter().flatten().min();
        let timeout = next.map(|at| at.saturating_duration_since(Instant::now()));
        let timeout = timeout.map(|wait| Timespec {
            tv_sec: i64::try_from(wait.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: wait.subsec_nanos().into(),
        });
        let mut fds = vec![
            PollFd::new(&self.signals.file, PollFlags::IN),
            PollFd::new(&self.control.listener, PollFlags::IN),
        ];
        if let Some(silence) = &self.silence {
            fds.push(PollFd::new(&silence.timer, PollFlags::IN));
        }
        for pipe in [&self.stdout, &self.stderr, &self.report]
            .into_iter()
            .flatten()
        {
            fds.push(PollFd::new(pipe, PollFlags::IN));
        }
        for connection in &self.control.connections {
            let wanted = if connection.has_unsent() {
                PollFlags::IN | PollFlags::OUT
            } else {
                PollFlags::IN
            };
            fds.push(PollFd::new(&connection.stream, wanted));
        }
        match poll(&mut fds, timeout.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Nothing is left: the record, then the event, then the end of this process.
    fn finish(mut self) -> io::Result<()> {
        // Nobody holds the pipes any more, so this ends; a bound all the same.
        self.read_output(1 << 20);
        let mut dropped = 0;
        if let Some(log) = &mut self.log {
            log.finish(now_ns());
            dropped = log.dropped_total();
        }
        let facts = self.processes.facts();
        let record = std::mem::take(&mut self.ending).record(&self.spec, facts, dropped);
        let mut written = self.directory.write("exit", &record);
        // As with the run record: the reference is in the file only.
        self.tell(shim_event::What::Ended(ExitRecord {
            reference: prost::bytes::Bytes::new(),
            ..record.clone()
        }));
        self.flush(Instant::now() + Duration::from_secs(1))?;
        while let Err(error) = written {
            // Leaving now would lose the end of the run; an agent that comes can still be told.
            super::complain(&format!("write the exit record: {error}"));
            written = self.try_again(&record)?;
        }
        Ok(())
    }

    fn try_again(&mut self, record: &ExitRecord) -> io::Result<io::Result<()>> {
        self.tick_at = Some(Instant::now() + SLOW_TICK);
        self.wait()?;
        self.control.accept(&self.so_far);
        // Whatever is asked of a run that is over is done.
        drop(self.control.turn());
        Ok(self.directory.write("exit", record))
    }

    fn flush(&mut self, until: Instant) -> io::Result<()> {
        while self
            .control
            .connections
            .iter()
            .any(super::control::Connection::has_unsent)
            && Instant::now() < until
        {
            self.tick_at = Some(Instant::now() + TICK);
            self.wait()?;
            drop(self.control.turn());
        }
        Ok(())
    }
}

fn pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(pipe_with(PipeFlags::CLOEXEC)?)
}

fn now_ns() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.map_or(0, |since| {
        u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
    })
}
