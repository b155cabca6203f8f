//! From settings to a running master: the only file that starts threads and tasks.
//!
//! One thread of its own drives the loop with real clocks ([`spawn_thread`]); tests drive the same
//! loop as a task, where tokio's paused clock is the only one ([`run_loop`]). Services are given
//! the [`Handle`] and nothing else.

use std::future::Future;
use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime};

use mete_model::{Code, Timestamp};
use mete_proto::dial::{SharedDial, TcpDial};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio::sync::{oneshot, watch};
use tokio::time::{Instant, MissedTickBehavior};
use tokio_stream::Stream;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::service::Routes;
use tonic::transport::Server;
use tonic::transport::server::Connected;
use uuid::Uuid;

use crate::admin::Feed;
use crate::config::{Config, Storage};
use crate::error::RunError;
use crate::event::{Event, Monotonic, PeerFacts, Turn};
use crate::handle::{Handle, Inlet, door};
use crate::master::Master;
use crate::mint::{Mint, Random};
use crate::output::Output;
use crate::rpc;
use crate::session::peers::{Links, Way};
use crate::store::{Fault, LogStore, MemoryDisk, MemoryStore, Settings, SledStore};

/// Events that one turn takes in: all of them share one flush.
const EVENTS_OF_A_TURN: usize = 4_096;

/// How long a connection to another master may take to open.
const PEER_CONNECT: Duration = Duration::from_millis(500);

/// How long open calls may take to end when the process ends.
const FAREWELL: Duration = Duration::from_secs(2);

/// The largest message that is taken or sent.
pub(crate) const MESSAGE_BYTES: usize = 4 << 20;

/// Where a master listens. All are bound already, so that port 0 works and tests know the port.
#[derive(Debug, Default)]
pub struct Listeners {
    /// For all gRPC: frameworks, agents, operators.
    pub grpc: Vec<TcpListener>,
}

/// The clocks of a loop.
#[derive(Clone, Copy, Debug)]
pub enum Clocks {
    /// The machine's.
    Real,
    /// The runtime's, counted from this point of the wall clock: for tests on virtual time.
    Virtual(Timestamp),
}

impl Clocks {
    fn now(self, since_start: Duration) -> Timestamp {
        match self {
            Self::Real => {
                let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
                Timestamp(milliseconds(since.unwrap_or_default()))
            }
            Self::Virtual(start) => start.after(mete_model::Span(milliseconds(since_start))),
        }
    }
}

fn milliseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// A master that is open and not yet running.
#[derive(Debug)]
pub struct Opened {
    master: Master,
    inlet: Inlet,
    handle: Handle,
    feed: Arc<Feed>,
}

impl Opened {
    /// The door to the loop; calls wait until it runs.
    #[must_use]
    pub fn handle(&self) -> Handle {
        self.handle.clone()
    }

    /// Opens ways to the other masters, whose tasks run on the present runtime.
    ///
    /// # Panics
    /// Outside of a runtime.
    pub fn connect(&mut self, dial: SharedDial) {
        let identity = self.master.replica().identity();
        let way = Way {
            handle: self.handle.clone(),
            dial,
            cluster: identity.cluster,
            own: PeerFacts {
                node: identity.node,
                address: self.master.advertised().to_owned(),
                version: env!("CARGO_PKG_VERSION").to_owned(),
                level: self.master.level(),
            },
        };
        let links = Links::new(way, tokio::runtime::Handle::current());
        self.master.connect(Box::new(links));
    }

    /// All services of a master, to be served on any number of listeners.
    #[must_use]
    pub fn routes(&self) -> Routes {
        rpc::routes(&self.handle, &self.feed)
    }
}

/// Opens the store and rebuilds the state. Blocks: not for a thread that serves.
///
/// # Errors
/// [`RunError`] with a code and what to do.
pub fn open(config: &Config, mint: Box<dyn Mint>) -> Result<Opened, RunError> {
    config.check()?;
    let store = open_store(config)?;
    open_on(config, store, mint)
}

/// The same on a store that is open already: for tests and simulators that keep the disk.
///
/// # Errors
/// [`RunError`] with a code and what to do.
pub fn open_on(
    config: &Config,
    store: Box<dyn LogStore>,
    mint: Box<dyn Mint>,
) -> Result<Opened, RunError> {
    config.check()?;
    let mut master = Master::open(config, store, mint, config.advertise.clone())?;
    let (feed, follower) = Feed::new();
    master.follow(Box::new(follower));
    let (handle, inlet) = door(config.queue, master.shared_state());
    handle.set_advertised(&config.advertise);
    Ok(Opened {
        master,
        inlet,
        handle,
        feed,
    })
}

/// Founds a cluster in the directory of `config`, or this founder's part of one that the others
/// found with the same settings and the same `cluster`. Gives the cluster's id.
///
/// # Errors
/// [`RunError`]: `STATE_DIRECTORY` when something is there already.
pub fn found(config: &Config, cluster: Option<Uuid>) -> Result<Uuid, RunError> {
    config.check()?;
    let cluster = cluster.unwrap_or_else(|| Random.uuid());
    if let Storage::Directory { path, .. } = &config.storage {
        let store = SledStore::found(Settings::new(path), cluster.into_bytes(), config.node)?;
        // The first snapshot is part of the founding: from here on the store says who is in it.
        let opened = open_on(config, Box::new(store), Box::new(Random))?;
        opened.master.close()?;
        drop(SledStore::open(Settings::new(path))?);
    }
    Ok(cluster)
}

/// Makes an empty store for a master that joins a running cluster as `node`: everything else comes
/// from the others.
///
/// # Errors
/// [`RunError`]: `STATE_DIRECTORY` when something is there already.
pub fn join(path: &Path, cluster: Uuid, node: u64) -> Result<(), RunError> {
    let settings = || Settings::new(path);
    drop(SledStore::found(settings(), cluster.into_bytes(), node)?);
    drop(SledStore::open(settings())?);
    Ok(())
}

fn open_store(config: &Config) -> Result<Box<dyn LogStore>, RunError> {
    let cluster = Random.uuid().into_bytes();
    match &config.storage {
        Storage::Memory => {
            let disk = MemoryDisk::new();
            Ok(Box::new(MemoryStore::found(&disk, cluster, config.node)?))
        }
        Storage::Directory { path, found } => {
            let settings = Settings::new(path);
            if *found && !SledStore::exists(path)? {
                return Ok(Box::new(SledStore::found(settings, cluster, config.node)?));
            }
            Ok(Box::new(SledStore::open(settings)?))
        }
    }
}

/// Runs a master until `shutdown` is ready: opens the store, drives the loop on a thread of its
/// own, serves every listener.
///
/// # Errors
/// [`RunError`] when it cannot start, or a listener fails. A fault of the disk while running ends
/// the process instead: memory and disk may disagree from then on.
pub async fn run(
    mut config: Config,
    listeners: Listeners,
    shutdown: impl Future<Output = ()> + Send,
) -> Result<(), RunError> {
    let addresses = check_listeners(&listeners, config.insecure)?;
    if config.advertise.is_empty()
        && let Some(first) = addresses.first()
    {
        config.advertise = first.to_string();
    }
    let opening = tokio::task::spawn_blocking(move || open(&config, Box::new(Random)));
    let mut opened = opening.await.map_err(|error| {
        RunError::new(
            Code::Internal,
            format!("open the store: {error}"),
            "please report this",
        )
    })??;
    // Between masters a dead address must not hold up the dialling of the right one.
    opened.connect(Arc::new(TcpDial {
        connect_timeout: PEER_CONNECT,
    }));
    let (handle, routes) = (opened.handle(), opened.routes());
    let (thread, loop_ended) = spawn_thread(opened)?;
    let (end, ended) = watch::channel(false);
    let mut servers = tokio::task::JoinSet::new();
    for listener in listeners.grpc {
        let incoming = TcpListenerStream::new(listener);
        servers.spawn(serve(
            routes.clone(),
            nodelay(incoming),
            wait_for(ended.clone()),
        ));
    }
    tracing::info!(?addresses, "master ready");
    let failed = tokio::select! {
        () = shutdown => None,
        // It ends by itself only when this master was removed.
        _ = loop_ended => None,
        Some(served) = servers.join_next() => Some(served),
    };
    handle.stop().await;
    // The loop ends every stream; then the servers have nothing to wait for.
    let joined = tokio::task::spawn_blocking(move || thread.join()).await;
    end.send_replace(true);
    let farewell = async { while servers.join_next().await.is_some() {} };
    if tokio::time::timeout(FAREWELL, farewell).await.is_err() {
        tracing::warn!("some calls did not end in time and were cut off");
    }
    how_it_ended(joined.ok().and_then(Result::ok), failed)
}

/// What a served listener gives when it ends.
type Served = Result<Result<(), tonic::transport::Error>, tokio::task::JoinError>;

/// What the end of the loop (`None` = its thread failed) and of a listener mean together.
fn how_it_ended(ended: Option<Ended>, failed: Option<Served>) -> Result<(), RunError> {
    let internal = |detail: String| {
        let advice = "see the master's log";
        Err(RunError::new(Code::Internal, detail, advice))
    };
    match ended {
        Some(Ended::Stopped) => {}
        Some(Ended::Removed { by }) => {
            let says = by.map_or_else(String::new, |by| format!(", says master {by}"));
            return Err(RunError::new(
                Code::MasterRemoved,
                format!("this master was removed from its cluster{says}"),
                "see mete help MASTER_REMOVED",
            ));
        }
        None => return internal("the loop's thread failed".to_owned()),
    }
    match failed {
        Some(Ok(Err(error))) => internal(format!("serve a listener: {error}")),
        Some(Ok(Ok(())) | Err(_)) => internal("a listener ended by itself".to_owned()),
        None => Ok(()),
    }
}

fn check_listeners(
    listeners: &Listeners,
    insecure: bool,
) -> Result<Vec<std::net::SocketAddr>, RunError> {
    let mut addresses = Vec::new();
    for listener in &listeners.grpc {
        let address = listener.local_addr().map_err(|error| RunError {
            code: Code::File,
            detail: "read the address of a listener".to_owned(),
            next: "bind it again".to_owned(),
            source: Some(Box::new(error)),
        })?;
        if !insecure && !address.ip().is_loopback() {
            return Err(RunError::new(
                Code::NotLoopback,
                format!("listen on {address}: it is not loopback, and nothing is encrypted yet"),
                "listen on 127.0.0.1 or ::1, or say --insecure",
            ));
        }
        addresses.push(address);
    }
    Ok(addresses)
}

fn nodelay(
    incoming: TcpListenerStream,
) -> impl Stream<Item = std::io::Result<tokio::net::TcpStream>> + Send {
    use tokio_stream::StreamExt as _;
    incoming.map(|accepted| {
        accepted.inspect(|stream| {
            // A connection that has gone meanwhile is found out by its first read.
            let _ = stream.set_nodelay(true);
        })
    })
}

async fn wait_for(mut ended: watch::Receiver<bool>) {
    // A sender that is gone means the same.
    let _ = ended.wait_for(|ended| *ended).await;
}

/// Serves one source of connections until `shutdown`: TCP, or memory in tests.
///
/// # Errors
/// What the transport says.
pub async fn serve<I, IO>(
    routes: Routes,
    incoming: I,
    shutdown: impl Future<Output = ()>,
) -> Result<(), tonic::transport::Error>
where
    I: Stream<Item = std::io::Result<IO>>,
    IO: AsyncRead + AsyncWrite + Connected + Unpin + Send + 'static,
{
    Server::builder()
        .http2_keepalive_interval(Some(Duration::from_secs(5)))
        .http2_keepalive_timeout(Some(Duration::from_secs(3)))
        .initial_stream_window_size(1 << 20)
        .initial_connection_window_size(4 << 20)
        .max_concurrent_streams(4_096)
        // Under load many a caller gives up before its call is looked at; that must not end the
        // connection for all others on it. Bounded all the same: a flood of resets costs time.
        .http2_max_pending_accept_reset_streams(Some(1_024))
        .add_routes(routes)
        .serve_with_incoming_shutdown(incoming, shutdown)
        .await
}

/// Drives the loop on a thread of its own with real clocks, until [`Handle::stop`].
///
/// A [`Fault`], or a panic, ends the process with the reason written first.
///
/// # Errors
/// [`RunError`] when no thread can be started.
pub fn spawn_thread(
    opened: Opened,
) -> Result<(JoinHandle<Ended>, oneshot::Receiver<()>), RunError> {
    let failed = |error: std::io::Error| RunError {
        code: Code::Internal,
        detail: "start the loop's thread".to_owned(),
        next: "see the limits of this user and machine".to_owned(),
        source: Some(Box::new(error)),
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .map_err(failed)?;
    let (ends, ended) = oneshot::channel();
    let body = move || {
        let _end_with_a_panic = AbortOnPanic;
        // Dropped at the end, which is all that is told.
        let _ends: oneshot::Sender<()> = ends;
        let Opened { master, inlet, .. } = opened;
        match runtime.block_on(run_loop(master, inlet, Clocks::Real)) {
            Ok(ended) => ended,
            Err(fault) => end_process(&fault),
        }
    };
    let thread = std::thread::Builder::new()
        .name("mete-loop".to_owned())
        .spawn(body)
        .map_err(failed)?;
    Ok((thread, ended))
}

/// Starts the loop as a task of the present runtime: for tests on virtual time.
///
/// The receiver gets the loop's end.
#[must_use]
pub fn spawn_task(opened: Opened, clocks: Clocks) -> oneshot::Receiver<Result<Ended, Fault>> {
    let (sender, ended) = oneshot::channel();
    let Opened { master, inlet, .. } = opened;
    tokio::spawn(async move {
        let result = run_loop(master, inlet, clocks).await;
        // Whoever started it may not care.
        drop(sender.send(result));
    });
    ended
}

/// The loop itself: dropped, it ends as by a power cut, and nothing is flushed.
///
/// # Errors
/// [`Fault`] when the disk fails. Final.
pub async fn drive(opened: Opened, clocks: Clocks) -> Result<Ended, Fault> {
    run_loop(opened.master, opened.inlet, clocks).await
}

/// A panic of the loop ends the process: what it has in memory may not be what is on disk.
struct AbortOnPanic;

impl Drop for AbortOnPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            tracing::error!("the loop has panicked; this master ends");
            std::process::abort();
        }
    }
}

fn end_process(fault: &Fault) -> ! {
    let mut text = fault.to_string();
    let mut cause = std::error::Error::source(fault);
    while let Some(below) = cause {
        text.push_str(": ");
        text.push_str(&below.to_string());
        cause = below.source();
    }
    tracing::error!(fault = %text, "this master cannot go on and ends");
    eprintln!("error: {text}");
    std::process::abort();
}

/// Drives the loop until [`Handle::stop`]: waits, gathers what came, does one turn, carries out
/// what follows.
///
/// # Errors
/// [`Fault`] when the disk fails. Final.
pub async fn run_loop(
    mut master: Master,
    mut inlet: Inlet,
    clocks: Clocks,
) -> Result<Ended, Fault> {
    let start = Instant::now();
    let mut ticks = tokio::time::interval(Duration::from(master.timing().tick));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
    loop {
        let mut events: Vec<Event> = Vec::new();
        let tick = tokio::select! {
            biased;
            _ = ticks.tick() => {
                inlet.take(&mut events, EVENTS_OF_A_TURN);
                true
            }
            _ = inlet.receive(&mut events, EVENTS_OF_A_TURN) => false,
        };
        inlet.take_notes(&mut events);
        let since_start = start.elapsed();
        let turn = Turn {
            now: clocks.now(since_start),
            monotonic: Monotonic(milliseconds(since_start)),
            tick,
            events,
        };
        let outputs = master.step(turn)?;
        if let Some(ended) = carry_out(outputs) {
            carry_out(master.close()?);
            return Ok(ended);
        }
        // On a runtime with one thread the others must get their turn.
        tokio::task::yield_now().await;
    }
}

/// How a loop has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// It was told to.
    Stopped,
    /// This master was taken out of its cluster.
    Removed {
        /// The member that says so; `None` = its own log does.
        by: Option<u64>,
    },
}

/// Carries outputs out; says so when the loop is to end.
fn carry_out(outputs: Vec<Output>) -> Option<Ended> {
    let mut ended = None;
    for output in outputs {
        // Whoever waited for an answer may have gone away: that is theirs to know.
        match output {
            Output::Reply { to, answer } => drop(to.send(answer)),
            Output::Subscribed { to, answer } => drop(to.send(answer)),
            Output::SnapshotTaken { to } => drop(to.send(())),
            Output::Removed { by } => ended = Some(Ended::Removed { by }),
            Output::Stopped => ended = ended.or(Some(Ended::Stopped)),
        }
    }
    ended
}
