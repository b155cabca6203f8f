//! [`Cluster`]: the same broker behind a real port, with a directory and real clocks.
//!
//! For tests of binaries and of what only sockets and disks can show. Nodes are fake agents here
//! too; real ones are started by tests as processes.

use std::path::{Path, PathBuf};
use std::time::Duration;

use mete_agent::driver::AgentState;
use mete_agent::fake::{FakeAgent, wall_clock};
use mete_broker::config::{Config, Storage};
use mete_broker::server::{self, Listeners};
use mete_broker::{RunError, Timing};
use mete_model::NodeKey;
use mete_proto::admin::v1::SetRoleRequest;
use mete_proto::admin::v1::admin_service_client::AdminServiceClient;
use mete_proto::dial::{Dial as _, TcpDial};
use mete_sdk::Runner;
use tokio::net::TcpListener;
use tokio::sync::{oneshot, watch};
use tokio::task::JoinHandle;

use crate::node::NodeBuilder;
use crate::wait;

/// How long anything may take here: real disks and a loaded machine.
const WITHIN: Duration = Duration::from_secs(60);

/// How to end a master, and its end.
type Master = (oneshot::Sender<()>, JoinHandle<Result<(), RunError>>);

/// A master at a real port, and fake nodes.
#[derive(Debug)]
pub struct Cluster {
    address: String,
    directory: PathBuf,
    timing: Timing,
    master: Option<Master>,
    nodes: Vec<JoinHandle<()>>,
}

impl Cluster {
    /// Starts a master at a free port of the loopback. Its state is kept in `directory`, which is
    /// founded when it is empty.
    ///
    /// # Errors
    /// What keeps the master from starting.
    pub async fn start(directory: &Path) -> Result<Self, RunError> {
        let mut cluster = Self {
            address: "127.0.0.1:0".to_owned(),
            directory: directory.to_owned(),
            timing: Timing::default(),
            master: None,
            nodes: Vec::new(),
        };
        cluster.start_master().await?;
        Ok(cluster)
    }

    /// Where the master listens, `host:port`; the same over restarts.
    #[must_use]
    pub fn address(&self) -> &str {
        &self.address
    }

    /// A runner for a framework of this name, in role `dev`.
    #[must_use]
    pub fn runner(&self, name: &str) -> Runner {
        Runner::new(vec![self.address.clone()])
            .name(name)
            .role("dev")
    }

    /// Starts the master again at its address, on its directory. Nothing to do if it runs.
    ///
    /// # Errors
    /// What keeps the master from starting.
    pub async fn start_master(&mut self) -> Result<(), RunError> {
        if self.master.is_some() {
            return Ok(());
        }
        let bound = TcpListener::bind(&self.address).await;
        let listener = bound.map_err(|error| cannot_listen(&self.address, &error))?;
        if let Ok(address) = listener.local_addr() {
            self.address = address.to_string();
        }
        let config = Config {
            timing: self.timing,
            ..Config::single(Storage::Directory {
                path: self.directory.clone(),
                found: true,
            })
        };
        let (stop, stopped) = oneshot::channel::<()>();
        let listeners = Listeners {
            grpc: vec![listener],
        };
        let running = tokio::spawn(server::run(config, listeners, async move {
            // Dropping the cluster ends the master too.
            let _ = stopped.await;
        }));
        self.master = Some((stop, running));
        Ok(())
    }

    /// Ends the master gracefully.
    ///
    /// # Errors
    /// What the master ended with.
    ///
    /// # Panics
    /// When the master itself panicked.
    pub async fn stop_master(&mut self) -> Result<(), RunError> {
        match self.master.take() {
            Some((stop, running)) => {
                // It may have ended meanwhile.
                let _ = stop.send(());
                running.await.expect("the master does not panic")
            }
            None => Ok(()),
        }
    }

    /// Adds a role.
    ///
    /// # Errors
    /// What the transport or the master says.
    pub async fn add_role(&self, role: &str) -> Result<(), Box<dyn std::error::Error>> {
        let channel = TcpDial::default().dial(&self.address).await?;
        let request = SetRoleRequest {
            path: role.to_owned(),
            ..SetRoleRequest::default()
        };
        AdminServiceClient::new(channel).set_role(request).await?;
        Ok(())
    }

    /// Adds a fake node and waits until it is linked.
    ///
    /// # Panics
    /// When it is not linked in time.
    pub async fn add_node(
        &mut self,
        name: &str,
        describe: impl FnOnce(NodeBuilder) -> NodeBuilder,
    ) {
        let described = describe(NodeBuilder::new());
        let agent = FakeAgent {
            node_key: NodeKey(uuid::Uuid::new_v4()),
            node_name: name.to_owned(),
            inventory: described.inventory(),
            masters: vec![self.address.clone()],
            dial: std::sync::Arc::new(TcpDial::default()),
            start_delay: described.start_delay,
            beacon: Duration::from_secs(3),
            clock: wall_clock,
        };
        let (state, seen) = watch::channel(AgentState::default());
        let unsaid = described.unsaid;
        self.nodes.push(tokio::spawn(async move {
            let forever = std::future::pending::<()>();
            agent.run_playing(unsaid, state, forever).await;
        }));
        let what = format!("node {name} to be linked");
        wait::until(&what, WITHIN, || seen.borrow().linked).await;
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        for node in &self.nodes {
            node.abort();
        }
    }
}

fn cannot_listen(address: &str, error: &std::io::Error) -> RunError {
    RunError::new(
        mete_model::Code::AddressInUse,
        format!("listen on {address}: {error}"),
        "end what listens there",
    )
}
