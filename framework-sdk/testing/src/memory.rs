//! Connections through memory: addresses are names, a connection is a pipe.

use std::collections::HashMap;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use hyper_util::rt::TokioIo;
use mete_proto::dial::{Dial, Dialing};
use tokio::io::DuplexStream;
use tokio::sync::mpsc;
use tokio_stream::StreamExt as _;
use tokio_stream::wrappers::ReceiverStream;
use tonic::codegen::Service;
use tonic::codegen::http::Uri;
use tonic::transport::Endpoint;

/// Bytes that a pipe holds before its writer waits.
const PIPE_BYTES: usize = 1 << 20;

/// Connections that wait to be taken.
const BACKLOG: usize = 1_024;

type Listeners = HashMap<String, mpsc::Sender<DuplexStream>>;

/// A network in memory. Clones are the same network.
#[derive(Clone, Debug, Default)]
pub struct MemoryNet {
    listeners: Arc<Mutex<Listeners>>,
}

impl MemoryNet {
    /// An empty network.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    fn listeners(&self) -> MutexGuard<'_, Listeners> {
        self.listeners
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Listens at `host:port`; whoever listened there before does so no longer.
    pub fn listen(
        &self,
        address: &str,
    ) -> impl tokio_stream::Stream<Item = io::Result<DuplexStream>> + Send + use<> {
        let (sender, receiver) = mpsc::channel(BACKLOG);
        self.listeners().insert(address.to_owned(), sender);
        ReceiverStream::new(receiver).map(Ok)
    }

    /// Nobody listens at this address any more.
    pub fn close(&self, address: &str) {
        self.listeners().remove(address);
    }

    fn connect(&self, address: &str) -> io::Result<DuplexStream> {
        let listener = self.listeners().get(address).cloned();
        let refused = || {
            let text = format!("nobody listens at {address} in this test's network");
            io::Error::new(io::ErrorKind::ConnectionRefused, text)
        };
        let (ours, theirs) = tokio::io::duplex(PIPE_BYTES);
        listener
            .ok_or_else(refused)?
            .try_send(theirs)
            .map_err(|_| refused())?;
        Ok(ours)
    }
}

impl Dial for MemoryNet {
    fn dial(&self, address: &str) -> Dialing {
        let endpoint = Endpoint::from_shared(format!("http://{address}"));
        let connector = Connector {
            net: self.clone(),
            address: address.to_owned(),
        };
        Box::pin(async move { endpoint?.connect_with_connector(connector).await })
    }
}

/// What the transport asks for a connection, first and again.
#[derive(Clone, Debug)]
pub(crate) struct Connector {
    pub(crate) net: MemoryNet,
    pub(crate) address: String,
}

impl Service<Uri> for Connector {
    type Response = TokioIo<DuplexStream>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Self::Response>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Uri) -> Self::Future {
        let connected = self.net.connect(&self.address).map(TokioIo::new);
        Box::pin(std::future::ready(connected))
    }
}
