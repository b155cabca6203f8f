//! [`TestBroker`]: the real master and fake agents in the test's own runtime.
//!
//! Frameworks dial [`ADDRESS`], where the proxy listens; the proxy and the agents dial the master.
//! Killing the master keeps its disk, as a power cut does, and opens another one on it.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use mete_agent::driver::AgentState;
use mete_agent::fake::FakeAgent;
use mete_broker::config::{Config, Storage};
use mete_broker::mint::Counted;
use mete_broker::server::{self, Clocks};
use mete_broker::store::{FaultPlan, MemoryDisk, MemoryStore};
use mete_model::{NodeKey, Timestamp};
use mete_proto::admin::v1::admin_service_client::AdminServiceClient;
use mete_proto::admin::v1::{RescindOffersRequest, SetRoleRequest};
use mete_proto::dial::{Dial as _, SharedDial};
use mete_proto::framework::v1::framework_service_client::FrameworkServiceClient;
use mete_proto::framework::v1::framework_service_server::FrameworkServiceServer;
use mete_sdk::{Framework, Result, Runner, Session};
use tokio::sync::{Mutex, oneshot, watch};
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tonic::transport::{Channel, Endpoint};

use crate::faults::Faults;
use crate::memory::{Connector, MemoryNet};
use crate::node::NodeBuilder;
use crate::proxy::Proxy;
use crate::tasks::Tasks;
use crate::wait;

/// Where frameworks find the broker, through its [`TestBroker::dial`].
pub const ADDRESS: &str = "broker:7443";

/// Where the master really listens.
const MASTER: &str = "master:7443";

/// What the wall clock of a test shows when it begins: 2026-01-01.
const START: Timestamp = Timestamp(1_767_225_600_000);

/// How long a cluster may take to stand, on its own clock.
const STANDS_WITHIN: Duration = Duration::from_secs(60);

/// Describes a broker before it starts.
#[derive(Clone, Debug)]
pub struct Builder {
    nodes: Vec<(String, NodeBuilder)>,
    roles: Vec<String>,
    seed: u64,
}

impl Builder {
    /// Adds a node.
    #[must_use]
    pub fn node(mut self, name: &str, describe: impl FnOnce(NodeBuilder) -> NodeBuilder) -> Self {
        self.nodes
            .push((name.to_owned(), describe(NodeBuilder::new())));
        self
    }

    /// Adds `count` equal nodes, named `prefix1`, `prefix2` and so on.
    #[must_use]
    pub fn nodes(
        mut self,
        prefix: &str,
        count: u32,
        describe: impl Fn(NodeBuilder) -> NodeBuilder,
    ) -> Self {
        for number in 1..=count {
            self = self.node(&format!("{prefix}{number}"), &describe);
        }
        self
    }

    /// Adds a role beside `dev`.
    #[must_use]
    pub fn role(mut self, role: &str) -> Self {
        self.roles.push(role.to_owned());
        self
    }

    /// What ids are made from; the same seed gives the same ids.
    #[must_use]
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }

    /// Starts the broker and waits until every node is linked.
    ///
    /// # Panics
    /// When it does not stand in time: the test cannot go on.
    pub async fn start(self) -> TestBroker {
        let net = MemoryNet::new();
        let disk = MemoryDisk::new();
        let config = Config {
            advertise: ADDRESS.to_owned(),
            ..Config::single(Storage::Memory)
        };
        let cluster = [7; 16];
        let store = MemoryStore::found(&disk, cluster, config.node).expect("an empty disk");
        let mint = Counted::new(self.seed);
        let opened =
            server::open_on(&config, Box::new(store), Box::new(mint)).expect("a good disk");
        let faults = Faults::default();
        let broker = TestBroker {
            master: Mutex::new(Some(Master::start(opened, &net))),
            nodes: Mutex::default(),
            proxy: start_proxy(&net, &faults),
            net,
            disk,
            config,
            faults,
            seed: self.seed,
            started: std::sync::atomic::AtomicU64::new(0),
        };
        for role in self.roles {
            broker.add_role(&role).await;
        }
        for (name, node) in self.nodes {
            broker.add_node(&name, node).await;
        }
        broker
    }
}

/// The master process of a test.
#[derive(Debug)]
struct Master {
    handle: mete_broker::handle::Handle,
    serving: JoinHandle<()>,
    /// Dropping it ends the loop at once: what is not on the disk is gone.
    crash: oneshot::Sender<()>,
    ended: oneshot::Receiver<()>,
}

impl Master {
    fn start(opened: server::Opened, net: &MemoryNet) -> Self {
        let handle = opened.handle();
        let routes = opened.routes();
        let incoming = net.listen(MASTER);
        let serving = tokio::spawn(async move {
            let forever = std::future::pending::<()>();
            if let Err(error) = server::serve(routes, incoming, forever).await {
                tracing::warn!(%error, "the test's master no longer serves");
            }
        });
        let (crash, crashed) = oneshot::channel::<()>();
        let (end, ended) = oneshot::channel();
        let running = server::drive(opened, Clocks::Virtual(START));
        tokio::spawn(async move {
            tokio::select! {
                _ = crashed => {}
                result = running => {
                    if let Err(fault) = result {
                        tracing::error!(%fault, "the test's master ended");
                    }
                }
            }
            // The loop is dropped: only now may another one open its disk.
            let _ = end.send(());
        });
        Self {
            handle,
            serving,
            crash,
            ended,
        }
    }
}

#[derive(Debug)]
struct Node {
    key: NodeKey,
    described: NodeBuilder,
    running: Option<JoinHandle<()>>,
    state: watch::Receiver<AgentState>,
}

/// A broker in the test process. See the module.
#[derive(Debug)]
pub struct TestBroker {
    net: MemoryNet,
    disk: MemoryDisk,
    config: Config,
    seed: u64,
    master: Mutex<Option<Master>>,
    nodes: Mutex<BTreeMap<String, Node>>,
    proxy: JoinHandle<()>,
    faults: Faults,
    started: std::sync::atomic::AtomicU64,
}

impl TestBroker {
    /// A broker without nodes, to be described.
    #[must_use]
    pub fn builder() -> Builder {
        Builder {
            nodes: Vec::new(),
            roles: vec!["dev".to_owned()],
            seed: 1,
        }
    }

    /// How clients reach this broker, at [`ADDRESS`].
    #[must_use]
    pub fn dial(&self) -> SharedDial {
        Arc::new(self.net.clone())
    }

    /// A runner whose framework is called `name`, in role `dev`.
    #[must_use]
    pub fn runner(&self, name: &str) -> Runner {
        Runner::new(vec![ADDRESS.to_owned()])
            .name(name)
            .role("dev")
            .tick(Duration::from_secs(1))
            .dial(self.dial())
    }

    /// Runs a framework under a name of its own, in role `dev`.
    pub fn run<F: Framework>(&self, framework: F) -> Running {
        let number = self
            .started
            .fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        self.run_as(&format!("framework-{}", number + 1), framework)
    }

    /// Runs a framework under this name; a second process of a name takes over from the first.
    ///
    /// # Panics
    /// For a name that is not permitted.
    pub fn run_as<F: Framework>(&self, name: &str, framework: F) -> Running {
        let (stop, stopped) = oneshot::channel::<()>();
        let stopping = async move {
            // Only an order stops it; a test that drops its end does not.
            if stopped.await.is_err() {
                std::future::pending::<()>().await;
            }
        };
        let (session, end) = self
            .runner(name)
            .spawn(framework, stopping)
            .expect("the test names its framework in a permitted way");
        Running { session, end, stop }
    }

    /// What shall go wrong between frameworks and the broker.
    #[must_use]
    pub fn faults(&self) -> &Faults {
        &self.faults
    }

    /// What frameworks were told of their tasks.
    #[must_use]
    pub fn tasks(&self) -> Tasks {
        self.faults.tasks()
    }

    /// Lets time pass. On a paused clock everything that happens meanwhile happens in its order.
    pub async fn advance(&self, time: Duration) {
        tokio::time::sleep(time).await;
    }

    /// Waits until `condition` holds, a minute of the broker's time at the most.
    ///
    /// # Panics
    /// When it waited in vain.
    pub async fn until(&self, what: &str, condition: impl FnMut() -> bool) {
        wait::until(what, STANDS_WITHIN, condition).await;
    }

    /// The power of the master goes: what was not flushed is lost, every connection breaks. Another
    /// process opens the same disk.
    pub async fn kill_leader(&self) {
        self.stop_leader().await;
        self.start_leader().await;
    }

    /// The power of the master goes and stays away.
    pub async fn stop_leader(&self) {
        let Some(master) = self.master.lock().await.take() else {
            return;
        };
        self.net.close(MASTER);
        master.serving.abort();
        drop(master.crash);
        // It ends at its next await; a sender that is gone means the same.
        let _ = master.ended.await;
        self.disk.crash(0);
    }

    /// The master's power is back.
    ///
    /// # Panics
    /// When the disk cannot be opened: that is what the test was to find out.
    pub async fn start_leader(&self) {
        let store = MemoryStore::open(&self.disk).expect("the disk opens after a power cut");
        let mint = Counted::new(self.seed.wrapping_add(self.disk.operations().0));
        let opened = server::open_on(&self.config, Box::new(store), Box::new(mint))
            .expect("the state is rebuilt after a power cut");
        *self.master.lock().await = Some(Master::start(opened, &self.net));
    }

    /// The disk of the master says that it is nearly full: nothing new is logged.
    pub fn fill_disk(&self) {
        self.disk.set_faults(FaultPlan {
            space_low: true,
            ..FaultPlan::default()
        });
    }

    /// There is room on the disk of the master again.
    pub fn empty_disk(&self) {
        self.disk.set_faults(FaultPlan::default());
    }

    /// Everything works again; what was lost stays lost.
    pub fn heal(&self) {
        self.faults.heal();
        self.empty_disk();
    }

    /// Listens at `host:port` in this broker's network; whoever listened there does so no longer.
    pub fn listen(
        &self,
        address: &str,
    ) -> impl tokio_stream::Stream<Item = std::io::Result<tokio::io::DuplexStream>> + Send + use<>
    {
        self.net.listen(address)
    }

    /// Adds a role.
    ///
    /// # Panics
    /// For a role path that is not permitted.
    pub async fn add_role(&self, role: &str) {
        let channel = self.channel().await.expect("the master listens");
        let request = SetRoleRequest {
            path: role.to_owned(),
            ..SetRoleRequest::default()
        };
        let made = AdminServiceClient::new(channel).set_role(request).await;
        made.expect("the test names a permitted role");
    }

    /// Adds a node and waits until it is linked.
    ///
    /// # Panics
    /// When it is not linked in time.
    pub async fn add_node(&self, name: &str, described: NodeBuilder) {
        let key = NodeKey(uuid::Uuid::from_u128(
            u128::from(self.seed) << 64 | u128::from(hash(name)),
        ));
        self.start_node(name, key, described).await;
    }

    async fn start_node(&self, name: &str, key: NodeKey, described: NodeBuilder) {
        let agent = FakeAgent {
            node_key: key,
            node_name: name.to_owned(),
            inventory: described.inventory(),
            masters: vec![MASTER.to_owned()],
            dial: self.dial(),
            start_delay: described.start_delay,
            beacon: Duration::from_secs(3),
            clock: virtual_clock,
        };
        let (state, seen) = watch::channel(AgentState::default());
        let unsaid = described.unsaid;
        let running = tokio::spawn(async move {
            let forever = std::future::pending::<()>();
            agent.run_playing(unsaid, state, forever).await;
        });
        let linked = seen.clone();
        wait::until(&format!("node {name} to be linked"), STANDS_WITHIN, || {
            linked.borrow().linked
        })
        .await;
        let node = Node {
            key,
            described,
            running: Some(running),
            state: seen,
        };
        self.nodes.lock().await.insert(name.to_owned(), node);
    }

    /// A node loses its power, and with it everything that ran there. `false` if there is none.
    pub async fn lose_node(&self, name: &str) -> bool {
        let mut nodes = self.nodes.lock().await;
        let running = nodes.get_mut(name).and_then(|node| node.running.take());
        match running {
            Some(running) => {
                running.abort();
                true
            }
            None => false,
        }
    }

    /// A lost node comes back with the same identity and nothing on it. `false` if it is not lost.
    pub async fn return_node(&self, name: &str) -> bool {
        let lost = {
            let mut nodes = self.nodes.lock().await;
            match nodes.get(name) {
                Some(node) if node.running.is_none() => nodes.remove(name),
                Some(_) | None => None,
            }
        };
        match lost {
            Some(node) => {
                self.start_node(name, node.key, node.described).await;
                true
            }
            None => false,
        }
    }

    /// Tasks that the fake agents hold at this moment.
    pub async fn running_on_nodes(&self) -> usize {
        let nodes = self.nodes.lock().await;
        let here = nodes.values().filter(|node| node.running.is_some());
        here.map(|node| node.state.borrow().live_runs).sum()
    }

    /// Takes back every offer that any framework has.
    pub async fn rescind_all(&self) {
        let offers: Vec<String> = self
            .faults
            .offers_seen()
            .iter()
            .map(ToString::to_string)
            .collect();
        if offers.is_empty() {
            return;
        }
        let Ok(channel) = self.net.dial(MASTER).await else {
            return;
        };
        let request = RescindOffersRequest {
            offers,
            dry_run: false,
        };
        // Those that no longer stand are told one by one, and that is no fault.
        if let Err(error) = AdminServiceClient::new(channel)
            .rescind_offers(request)
            .await
        {
            tracing::debug!(%error, "offers not taken back");
        }
    }

    /// Ends every event stream once.
    pub fn drop_stream(&self) {
        self.faults.drop_streams();
    }

    /// Acknowledgements take so much longer from now on.
    pub fn delay_acks(&self, delay: Duration) {
        self.faults.delay(crate::faults::Method::Acknowledge, delay);
    }

    /// Every status comes twice from now on.
    pub fn duplicate_updates(&self) {
        self.faults.duplicate_updates();
    }

    /// The master's own door, for looks at its state. `None` while its power is away.
    pub async fn master(&self) -> Option<mete_broker::handle::Handle> {
        let master = self.master.lock().await;
        master.as_ref().map(|master| master.handle.clone())
    }

    /// An open channel to the master, past the proxy: for the admin API.
    ///
    /// # Errors
    /// What the transport says while the master's power is away.
    pub async fn channel(&self) -> Result<Channel, tonic::transport::Error> {
        self.net.dial(MASTER).await
    }
}

impl Drop for TestBroker {
    fn drop(&mut self) {
        self.proxy.abort();
        if let Some(master) = self.master.get_mut().take() {
            master.serving.abort();
        }
        for node in self.nodes.get_mut().values_mut() {
            if let Some(running) = node.running.take() {
                running.abort();
            }
        }
    }
}

/// A framework that runs in a test.
#[derive(Debug)]
pub struct Running {
    /// Its session.
    pub session: Session,
    end: JoinHandle<Result<()>>,
    stop: oneshot::Sender<()>,
}

impl Running {
    /// Runs a framework that has a loop of its own, given its session and its loop. The loop ends
    /// when the session is over; asked to stop, the session is disconnected.
    pub fn of(
        session: Session,
        running: impl Future<Output = Result<()>> + Send + 'static,
    ) -> Self {
        let (stop, stopped) = oneshot::channel::<()>();
        let polite = session.clone();
        let end = tokio::spawn(async move {
            let stopping = async move {
                // Only an order stops it; a test that drops its end does not.
                if stopped.await.is_err() {
                    std::future::pending::<()>().await;
                }
            };
            tokio::select! {
                end = running => end,
                () = stopping => {
                    polite.disconnect().await;
                    Ok(())
                }
            }
        });
        Self { session, end, stop }
    }

    /// The process dies on the spot: nothing is sent, nothing is said.
    pub fn crash(self) {
        self.end.abort();
        self.session.sever();
    }

    /// Asks it to stop politely and waits for its end.
    ///
    /// # Errors
    /// What [`Runner::run`] gives.
    ///
    /// # Panics
    /// When the runner itself panicked.
    pub async fn stop(self) -> Result<()> {
        // It may have ended meanwhile.
        let _ = self.stop.send(());
        self.end.await.expect("the runner does not panic")
    }

    /// Waits for its end.
    ///
    /// # Errors
    /// What [`Runner::run`] gives.
    ///
    /// # Panics
    /// When it has not ended after `longest`, or the runner itself panicked.
    pub async fn ended(&mut self, longest: Duration) -> Result<()> {
        match tokio::time::timeout(longest, &mut self.end).await {
            Ok(end) => end.expect("the runner does not panic"),
            Err(_) => panic!("the framework has not ended after {longest:?}"),
        }
    }

    /// Says whether it has ended.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.end.is_finished()
    }
}

fn start_proxy(net: &MemoryNet, faults: &Faults) -> JoinHandle<()> {
    let connector = Connector {
        net: net.clone(),
        address: MASTER.to_owned(),
    };
    let channel =
        Endpoint::from_static("http://master:7443").connect_with_connector_lazy(connector);
    let proxy = Proxy {
        broker: FrameworkServiceClient::new(channel)
            .max_decoding_message_size(8 << 20)
            .max_encoding_message_size(8 << 20),
        faults: faults.clone(),
    };
    let service = FrameworkServiceServer::new(proxy)
        .max_decoding_message_size(8 << 20)
        .max_encoding_message_size(8 << 20);
    let incoming = net.listen(ADDRESS);
    tokio::spawn(async move {
        let served = tonic::transport::Server::builder()
            .add_service(service)
            .serve_with_incoming(incoming)
            .await;
        if let Err(error) = served {
            tracing::warn!(%error, "the test's proxy no longer serves");
        }
    })
}

/// A wall clock that goes with the runtime's, which a test may have paused. Fake agents have it.
#[must_use]
pub fn virtual_clock() -> Timestamp {
    static BASE: OnceLock<Instant> = OnceLock::new();
    let passed = BASE.get_or_init(Instant::now).elapsed();
    START.after(mete_model::Span(
        u64::try_from(passed.as_millis()).unwrap_or(u64::MAX),
    ))
}

/// FNV-1a: node keys must be the same in every run of a test.
fn hash(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}
