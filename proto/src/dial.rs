//! How a client reaches an address: over TCP in the product, through memory in tests.
//!
//! Agents and frameworks both dial masters. What differs between a real cluster and a broker inside
//! a test process is only this trait.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use tonic::transport::{Channel, Endpoint};

/// A future that gives a channel.
pub type Dialing = Pin<Box<dyn Future<Output = Result<Channel, tonic::transport::Error>> + Send>>;

/// Opens channels to addresses of the form `host:port`.
pub trait Dial: Send + Sync + std::fmt::Debug {
    /// Connects; fails when nobody listens there within the connect timeout.
    fn dial(&self, address: &str) -> Dialing;
}

/// A [`Dial`] that can be cloned and kept.
pub type SharedDial = Arc<dyn Dial>;

/// Plain TCP with the keepalive settings of every mete connection.
#[derive(Clone, Copy, Debug)]
pub struct TcpDial {
    /// Longest time to establish a connection.
    pub connect_timeout: Duration,
}

impl Default for TcpDial {
    fn default() -> Self {
        Self {
            connect_timeout: Duration::from_secs(2),
        }
    }
}

impl Dial for TcpDial {
    fn dial(&self, address: &str) -> Dialing {
        let endpoint = Endpoint::from_shared(format!("http://{address}"));
        let connect_timeout = self.connect_timeout;
        Box::pin(async move {
            endpoint?
                .connect_timeout(connect_timeout)
                .tcp_nodelay(true)
                .http2_keep_alive_interval(Duration::from_secs(5))
                .keep_alive_timeout(Duration::from_secs(3))
                .keep_alive_while_idle(true)
                .initial_stream_window_size(1 << 20)
                .initial_connection_window_size(4 << 20)
                .connect()
                .await
        })
    }
}
