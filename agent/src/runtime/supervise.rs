//! One run from the agent's side: from launch or adoption to its end, as one async task.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use mete_proto::internal::v1::{
    ShimEvent, ShimGo, ShimRequest, ShimSignal, ShimStop, shim_event, shim_request,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt, Interest, unix::AsyncFd};
use tokio::net::UnixStream;
use tokio::time::{Instant, sleep, sleep_until};

use super::desk::Desk;
use super::frame::{self, Incoming};
use super::identity::open_same;
use super::launch::{self, Born, NotBorn};
use super::leftovers::{Left, Search};
use super::process::Shared;
use super::records::{RunDirectory, ended_from_wire, leaf_from_wire};
use super::{Ended, Ending, FoundState, Launch, RunName, RuntimeEvent, Stop, StuckProcess, found};
use crate::isolate::Leaf;

/// An empty cgroup that will not go is given up after this long.
const REMOVE: Duration = Duration::from_secs(60);
/// A shim that does not obey is ended itself after this long.
const DEAF: Duration = Duration::from_secs(20);
/// What is left of a lost run is told as stuck after this long.
const STUCK_AFTER: Duration = Duration::from_secs(10);
/// A year: no deadline.
const NEVER: Duration = Duration::from_secs(366 * 86_400);

/// One run's task.
struct Run {
    shared: Arc<Shared>,
    desk: Arc<Desk>,
    name: RunName,
    directory: RunDirectory,
    /// Handle on a shim that is our child.
    shim: Option<OwnedFd>,
    /// When it must be ready.
    ready_by: Option<Instant>,
    /// When a shim that was told to stop at once counts as deaf.
    deaf_at: Option<Instant>,
    timed_out: bool,
    /// Told already; a reconnect repeats what is so far.
    told: [bool; 3],
    /// Why the shim could not even begin.
    broken: Option<String>,
    /// Whether directory and cgroup are this run's: not after a launch that was refused.
    own: bool,
}

/// How a conversation with a shim ended.
enum Talk {
    Ended(Ended),
    Closed,
}

/// A launch from the beginning.
pub(crate) async fn launched(shared: Arc<Shared>, desk: Arc<Desk>, launch: Launch) {
    let mut run = Run::new(shared, desk, launch.run.clone());
    let timeout = Duration::from_millis(launch.prepare_timeout_ms).min(NEVER);
    run.ready_by = Some(Instant::now() + timeout);
    let ended = match run.begin(launch).await {
        Ok(born) => {
            run.shim = Some(born.handle);
            match UnixStream::from_std(born.connection) {
                Ok(stream) => run.follow(Some(stream)).await,
                Err(_) => run.follow(None).await,
            }
        }
        Err(mut ended) => {
            // What was made is removed by who made it; a directory that was there is another's.
            run.own = false;
            ended.stop_asked = run.desk.is_stopped();
            ended
        }
    };
    run.end(ended).await;
}

/// A run of an earlier agent process.
pub(crate) async fn adopted(shared: Arc<Shared>, desk: Arc<Desk>, name: RunName) {
    let mut run = Run::new(shared, desk, name);
    let (directory, name) = (run.directory.clone(), run.name.clone());
    let boot_id = run.shared.site.boot_id.clone();
    let state = run
        .blocking(move || found::inspect(&directory, name, &boot_id).state)
        .await;
    let ended = match state {
        Some(FoundState::Alive) => {
            run.shim = run.open_shim().await;
            run.follow(None).await
        }
        Some(FoundState::Ended(ended)) => ended,
        Some(FoundState::NeverStarted) => Ended::bare(Ending::NeverStarted),
        Some(FoundState::Lost(Ending::Rebooted)) => Ended::bare(Ending::Rebooted),
        Some(FoundState::Lost(ending)) => run.end_leftovers(ending).await,
        None => Ended::bare(Ending::Unknown),
    };
    run.end(ended).await;
}

/// Removes what is left on disk of a run that is over.
pub(crate) async fn forgotten(shared: Arc<Shared>, name: RunName) {
    let mut run = Run::new(shared, Arc::new(Desk::default()), name);
    run.tidy().await;
}

impl Run {
    fn new(shared: Arc<Shared>, desk: Arc<Desk>, name: RunName) -> Self {
        Self {
            directory: shared.directory(&name),
            shared,
            desk,
            name,
            shim: None,
            ready_by: None,
            deaf_at: None,
            timed_out: false,
            told: [false; 3],
            broken: None,
            own: true,
        }
    }

    /// Carries something out that may wait for the file system. `None` only when the async runtime
    /// is going down.
    async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Option<T> {
        let _turn = self.shared.blocking.acquire().await.ok()?;
        tokio::task::spawn_blocking(work).await.ok()
    }

    /// A handle on the living shim of an earlier agent process, if it is the one in the record.
    async fn open_shim(&self) -> Option<OwnedFd> {
        let (directory, shared) = (self.directory.clone(), Arc::clone(&self.shared));
        self.blocking(move || {
            let record = directory.run_record().ok()??;
            open_same(&shared.procfs, record.shim_pid, record.shim_start_ticks).ok()?
        })
        .await?
    }

    async fn tell(&self, event: RuntimeEvent) {
        // Nobody listens any more: the agent is going down, and the shim is not.
        let _going_down = self.shared.events.send(event).await;
    }

    /// The blocking part, given up when a stop or the deadline comes first and nothing was born.
    async fn begin(&mut self, launch: Launch) -> Result<Born, Ended> {
        let (shared, desk) = (Arc::clone(&self.shared), Arc::clone(&self.desk));
        let work = tokio::spawn({
            let shared = Arc::clone(&shared);
            async move {
                let _turn = shared.blocking.acquire().await.ok()?;
                let inside = Arc::clone(&shared);
                tokio::task::spawn_blocking(move || {
                    launch::begin(&inside.site, &inside.isolation, &launch, &desk)
                })
                .await
                .ok()
            }
        });
        tokio::pin!(work);
        let ready_by = self.ready_by.unwrap_or_else(|| Instant::now() + NEVER);
        let outcome = loop {
            tokio::select! {
                outcome = &mut work => break outcome.ok().flatten(),
                () = sleep_until(ready_by), if !self.timed_out => {
                    self.timed_out = true;
                    if !self.desk.close() {
                        return Err(self.timeout("make cgroup and directories"));
                    }
                }
                () = self.desk.changed() => {
                    if self.desk.is_stopped() && !self.desk.close() {
                        return Err(Ended::bare(Ending::NeverStarted));
                    }
                }
            }
        };
        // What was asked meanwhile is not lost with the wake-up it came with.
        self.desk.repeat();
        match outcome {
            Some(Ok(born)) => Ok(born),
            Some(Err(NotBorn::Stopped)) | None => Err(Ended::bare(Ending::NeverStarted)),
            Some(Err(NotBorn::Failed(stage, text))) => Err(Ended::bare(Ending::PrepareFailed {
                stage: stage.to_owned(),
                text,
            })),
            Some(Err(NotBorn::NotACommand(text))) => Err(Ended::bare(Ending::ExecFailed {
                stage: "check the command".to_owned(),
                errno: 0,
                text,
            })),
            Some(Err(NotBorn::MemoryTooSmall(text))) => {
                Err(Ended::bare(Ending::MemoryTooSmall { text }))
            }
        }
    }

    fn timeout(&self, stage: &str) -> Ended {
        Ended::bare(Ending::PrepareTimeout {
            stage: stage.to_owned(),
        })
    }

    /// Talks to the shim until the run is over, over as many connections as it takes.
    async fn follow(&mut self, mut stream: Option<UnixStream>) -> Ended {
        let mut pause = Duration::from_millis(1);
        loop {
            if let Some(stream) = stream.take()
                && let Talk::Ended(ended) = self.talk(stream).await
            {
                return self.judged(ended);
            }
            let directory = self.directory.clone();
            // The lock before the record: a shim that is leaving has written it by then.
            let looked = self
                .blocking(move || {
                    let lives = directory.shim_lives();
                    let connected = match lives {
                        Ok(true) => directory.connect().ok(),
                        Ok(false) | Err(_) => None,
                    };
                    (lives, connected, directory.exit_record())
                })
                .await;
            let Some((lives, connected, record)) = looked else {
                return Ended::bare(Ending::Unknown);
            };
            if let Ok(Some(record)) = record {
                return self.judged(ended_from_wire(&record));
            }
            if matches!(lives, Ok(false)) {
                return self.lost().await;
            }
            stream = connected.and_then(|stream| {
                stream.set_nonblocking(true).ok()?;
                UnixStream::from_std(stream).ok()
            });
            if stream.is_none() {
                // It lives and does not listen yet, or its lock cannot be read: again, more slowly.
                self.deadlines().await;
                sleep(pause).await;
                // By a quarter: most shims listen within some tens of milliseconds, and a run is
                // told as running that much later than it runs.
                pause = (pause + pause / 4).min(Duration::from_millis(500));
            }
            self.desk.repeat();
        }
    }

    /// A run that was stopped because it was not ready in time did not end, it timed out.
    fn judged(&self, ended: Ended) -> Ended {
        if self.timed_out && ended.started_ms == 0 && ended.ending == Ending::NeverStarted {
            return self.timeout("set up the process");
        }
        ended
    }

    /// One conversation.
    async fn talk(&mut self, mut stream: UnixStream) -> Talk {
        let mut incoming = Incoming::default();
        let mut bytes = vec![0_u8; 4096];
        loop {
            let next = self.next_deadline();
            tokio::select! {
                read = stream.read(&mut bytes) => {
                    let Ok(read @ 1..) = read else { return Talk::Closed };
                    incoming.push(bytes.get(..read).unwrap_or_default());
                    loop {
                        match incoming.take::<ShimEvent>() {
                            Ok(Some(event)) => {
                                if let Some(ended) = self.heard(event).await {
                                    return Talk::Ended(ended);
                                }
                            }
                            Ok(None) => break,
                            Err(error) => {
                                let program = self.shared.site.shim_program.display();
                                self.broken = Some(format!("{program}: {error}"));
                                return Talk::Closed;
                            }
                        }
                    }
                }
                () = self.desk.changed() => {
                    if self.pass_on(&mut stream).await.is_err() {
                        return Talk::Closed;
                    }
                }
                () = sleep_until(next) => self.deadlines().await,
            }
        }
    }

    fn next_deadline(&self) -> Instant {
        let far = Instant::now() + NEVER;
        let ready_by = self.ready_by.filter(|_| !self.told[0] && !self.timed_out);
        [ready_by, self.deaf_at]
            .into_iter()
            .flatten()
            .min()
            .unwrap_or(far)
    }

    /// What has become due: not ready in time, or told to stop at once and still there.
    async fn deadlines(&mut self) {
        let now = Instant::now();
        let late = !self.told[0] && self.ready_by.is_some_and(|at| at <= now);
        if late && !self.timed_out {
            self.timed_out = true;
            self.deaf_at = Some(now + DEAF);
            self.desk.stop(Stop {
                grace_ms: 0,
                signal: 0,
            });
        }
        if self.deaf_at.is_some_and(|at| at <= now) {
            self.deaf_at = None;
            if let Some(shim) = &self.shim {
                // Its child dies with it, and what is left is found by the rules for lost runs.
                let _gone = rustix::process::pidfd_send_signal(shim, rustix::process::Signal::KILL);
            }
        }
    }

    async fn pass_on(&mut self, stream: &mut UnixStream) -> io::Result<()> {
        let orders = self.desk.take();
        let mut requests = Vec::new();
        if let Some(environment) = orders.go {
            let environment = environment.into_iter().collect();
            requests.push(shim_request::What::Go(ShimGo { environment }));
        }
        for signal in orders.signals {
            requests.push(shim_request::What::Signal(ShimSignal { signal }));
        }
        if let Some(Stop { grace_ms, signal }) = orders.stop {
            let deaf = Duration::from_millis(grace_ms).min(NEVER) + DEAF;
            self.deaf_at = Some(Instant::now() + deaf);
            requests.push(shim_request::What::Stop(ShimStop { grace_ms, signal }));
        }
        for what in requests {
            match frame::encode(&ShimRequest { what: Some(what) }) {
                Ok(bytes) => stream.write_all(&bytes).await?,
                Err(error) => {
                    // Too large an environment came with the start: it cannot start as asked.
                    self.broken = Some(error.to_string());
                    self.desk.stop(Stop {
                        grace_ms: 0,
                        signal: 0,
                    });
                }
            }
        }
        Ok(())
    }

    /// Passes an event on; the end is kept back until cgroup and directories are in order.
    async fn heard(&mut self, event: ShimEvent) -> Option<Ended> {
        let run = self.name.clone();
        match event.what? {
            shim_event::What::Prepared(record) => {
                if !std::mem::replace(&mut self.told[0], true) {
                    self.tell(RuntimeEvent::Prepared {
                        run,
                        pid: record.pid,
                    })
                    .await;
                }
            }
            shim_event::What::Started(started) => {
                if !std::mem::replace(&mut self.told[1], true) {
                    self.tell(RuntimeEvent::Started {
                        run,
                        at_ms: started.at_ms,
                    })
                    .await;
                }
            }
            shim_event::What::Stopping(stopping) => {
                if !std::mem::replace(&mut self.told[2], true) {
                    let force_at_ms = stopping.force_at_ms;
                    self.tell(RuntimeEvent::Stopping { run, force_at_ms }).await;
                }
            }
            shim_event::What::Stuck(stuck) => {
                // It hears well enough; the kernel does not let go.
                self.deaf_at = None;
                let processes = stuck
                    .processes
                    .into_iter()
                    .map(|found| StuckProcess {
                        pid: found.pid,
                        state: found.state,
                        wait_channel: found.wait_channel,
                        command: found.command,
                    })
                    .collect();
                self.tell(RuntimeEvent::Stuck {
                    run,
                    processes,
                    total: stuck.total,
                })
                .await;
            }
            shim_event::What::Ended(record) => return Some(ended_from_wire(&record)),
        }
        None
    }

    /// The shim is gone and left no exit record.
    async fn lost(&mut self) -> Ended {
        let directory = self.directory.clone();
        let looked = self
            .blocking(move || (directory.run_record(), directory.errors()))
            .await;
        match looked {
            Some((Ok(None), errors)) => {
                if self.timed_out {
                    return self.timeout("start the shim");
                }
                let text = match (self.broken.take(), errors) {
                    (Some(broken), errors) if errors.is_empty() => broken,
                    (Some(broken), errors) => format!("{broken}: {errors}"),
                    (None, errors) if errors.is_empty() => {
                        "it ended without a word; see the kernel's log".to_owned()
                    }
                    (None, errors) => errors,
                };
                Ended::bare(Ending::PrepareFailed {
                    stage: "run the shim".to_owned(),
                    text,
                })
            }
            Some(_) => self.end_leftovers(Ending::SupervisorLost).await,
            None => Ended::bare(Ending::Unknown),
        }
    }

    fn leaf(directory: &RunDirectory) -> Leaf {
        let spec = directory.spec().ok();
        spec.and_then(|spec| spec.cgroups)
            .map(|wire| leaf_from_wire(&wire))
            .unwrap_or_default()
    }

    /// Ends what a lost shim left running: until nothing is left, however long it takes.
    async fn end_leftovers(&mut self, ending: Ending) -> Ended {
        let begun = Instant::now();
        let mut shown: Option<Left> = None;
        loop {
            let (directory, shared) = (self.directory.clone(), Arc::clone(&self.shared));
            let name = self.name.clone();
            let left = self
                .blocking(move || {
                    let record = directory.run_record().ok().flatten().unwrap_or_default();
                    let search = Search {
                        procfs: &shared.procfs,
                        isolation: &shared.isolation,
                        run: &name,
                        leaf: &Self::leaf(&directory),
                        record: &record,
                    };
                    search.kill()
                })
                .await
                .unwrap_or_default();
            if left.total == 0 {
                let mut ended = Ended::bare(ending);
                ended.ended_ms = super::records::now_ms();
                ended.stop_asked = self.desk.is_stopped();
                return ended;
            }
            let stuck = begun.elapsed() >= STUCK_AFTER;
            if stuck && shown.as_ref() != Some(&left) {
                let (run, processes) = (self.name.clone(), left.processes.clone());
                self.tell(RuntimeEvent::Stuck {
                    run,
                    processes,
                    total: left.total,
                })
                .await;
                shown = Some(left);
            }
            sleep(Duration::from_millis(if stuck { 1000 } else { 20 })).await;
        }
    }

    /// Removes the empty cgroup, tells the end, and takes the shim from the table of processes.
    async fn end(mut self, mut ended: Ended) {
        if self.own {
            ended.cgroup_left = self.remove_cgroup().await;
        }
        // Before the end is told: whoever hears it may adopt or forget the run at once.
        self.shared.leave(&self.name);
        let run = self.name.clone();
        self.tell(RuntimeEvent::Ended { run, ended }).await;
        if let Some(shim) = self.shim.take() {
            reap(shim).await;
        }
        if self.own && self.desk.is_forgotten() {
            self.tidy().await;
        }
    }

    /// What could not be removed, if anything.
    async fn remove_cgroup(&self) -> Option<String> {
        let until = Instant::now() + REMOVE;
        let mut pause = Duration::from_millis(2);
        loop {
            let (directory, shared) = (self.directory.clone(), Arc::clone(&self.shared));
            let removed = self
                .blocking(move || shared.isolation.remove(&Self::leaf(&directory)))
                .await;
            match removed {
                Some(Ok(())) | None => return None,
                // Just emptied: the kernel may still be at it.
                Some(Err(error)) if error.is_busy() && Instant::now() < until => {
                    sleep(pause).await;
                    pause = (pause * 2).min(Duration::from_millis(500));
                }
                Some(Err(error)) => return Some(error.to_string()),
            }
        }
    }

    /// Removes the records, once the shim is gone.
    async fn tidy(&mut self) {
        for _ in 0..200 {
            let (directory, shared) = (self.directory.clone(), Arc::clone(&self.shared));
            let done = self
                .blocking(move || {
                    let over = !directory.shim_lives().unwrap_or(true);
                    if over {
                        // An empty one that was left earlier; a populated one refuses.
                        let _left = shared.isolation.remove(&Self::leaf(&directory));
                        if let Err(error) = directory.remove() {
                            let path = directory.path().display();
                            tracing::warn!(%path, %error, "records of a run not removed");
                        }
                    }
                    // While it lives without an exit record, this is not ours to forget.
                    over || !matches!(directory.exit_record(), Ok(Some(_)))
                })
                .await;
            if done != Some(false) {
                return;
            }
            sleep(Duration::from_millis(25)).await;
        }
    }
}

/// Waits for a child through its handle.
#[expect(unsafe_code, reason = "tokio asks for a promise about the descriptor")]
async fn reap(shim: OwnedFd) {
    use rustix::process::{WaitId, WaitIdOptions, waitid};
    use std::os::fd::AsFd;

    // SAFETY: an `OwnedFd` names the same open descriptor for as long as it lives.
    let registered = unsafe { AsyncFd::register_with_interest(shim, Interest::READABLE) };
    let Ok(shim) = registered else { return };
    let Ok(_ended) = shim.readable().await else {
        return;
    };
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG;
    // Somebody else's child after a restart: then init waits for it.
    let _not_ours = waitid(WaitId::PidFd(shim.get_ref().as_fd()), options);
}
