//! The batch framework: jobs and arrays, on the public SDK only.
//!
//! [`queue`] is pure and holds every rule; this shell talks. Its queue lives in the broker's store
//! for frameworks, so it keeps no disk and may be killed at any moment: started again anywhere, it
//! reads the store, compares with the snapshot of its runs, and goes on. It holds no offers beyond
//! the moment it takes to fill them.

pub mod array;
pub mod details;
pub mod element;
pub mod job;
pub mod queue;
pub mod records;
pub mod retry;

mod demand;
mod service;
mod shell;
#[cfg(test)]
mod tests;

use std::future::Future;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use mete_proto::batch::v1::batch_service_server::BatchServiceServer;
use mete_sdk::model::Timestamp;
use mete_sdk::{Error, Session, SessionConfig};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio_stream::Stream;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::transport::server::Connected;

use crate::service::{Api, Shared};
use crate::shell::Shell;

/// What the framework needs to know.
#[derive(Clone, Debug)]
pub struct Config {
    /// How it presents itself; its service address is set from the listener when empty.
    pub session: SessionConfig,
    /// The clock of pauses and of what users are told.
    pub clock: fn() -> Timestamp,
}

impl Config {
    /// The usual settings: name `batch`, these masters and roles, the machine's clock.
    #[must_use]
    pub fn new(masters: Vec<String>, roles: Vec<String>) -> Self {
        let first = roles.first().cloned().unwrap_or_else(|| "batch".to_owned());
        let mut session = SessionConfig::new(masters, "batch", &first);
        if !roles.is_empty() {
            session.roles = roles;
        }
        Self {
            session,
            clock: wall_clock,
        }
    }
}

fn wall_clock() -> Timestamp {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or(Duration::ZERO);
    Timestamp(u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
}

/// Runs the framework until `shutdown`; its tasks are left alone.
///
/// # Errors
/// Why the session is over, or why the store cannot be read.
pub async fn run(
    mut config: Config,
    listener: TcpListener,
    shutdown: impl Future<Output = ()>,
) -> Result<(), Error> {
    if config.session.service_address.is_empty() {
        let address = listener.local_addr().map_err(Error::handler)?;
        config.session.service_address = address.to_string();
    }
    let (session, running) = open(config, TcpListenerStream::new(listener))?;
    tokio::select! {
        result = running => result,
        () = shutdown => {
            session.disconnect().await;
            Ok(())
        }
    }
}

/// The session of a framework that runs as long as the future beside it is awaited; users come from
/// `incoming`. Must be called within a tokio runtime.
///
/// # Errors
/// [`Error::Invalid`] as [`Session::open`]; the future gives why the session is over, or why the
/// store cannot be read.
pub fn open<I, C, E>(
    config: Config,
    incoming: I,
) -> Result<(Session, impl Future<Output = Result<(), Error>>), Error>
where
    I: Stream<Item = Result<C, E>>,
    C: AsyncRead + AsyncWrite + Connected + Unpin + Send + 'static,
    C::ConnectInfo: Clone + Send + Sync + 'static,
    E: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let roles = config.session.roles.clone();
    let (session, events) = Session::open(config.session)?;
    let (shared, commands) = Shared::new(session.clone(), roles);
    let api = BatchServiceServer::new(Api::new(shared.clone()))
        .max_decoding_message_size(service::MOST_BYTES)
        .max_encoding_message_size(service::MOST_BYTES);
    let mut routes = tonic::service::Routes::builder();
    routes.add_service(api);
    if let Err(error) = mete_proto::standard::add(&mut routes, &["mete.batch.v1.BatchService"]) {
        tracing::error!(%error, "no reflection: the descriptors cannot be read");
    }
    let serving = tonic::transport::Server::builder()
        .add_routes(routes.routes())
        .serve_with_incoming(incoming);
    let shell = Shell::new(session.clone(), shared, config.clock);
    let opened = session.clone();
    let running = async move {
        let ended = tokio::select! {
            result = shell.run(events, commands) => result,
            result = serving => result.map_err(Error::handler),
        };
        // A framework that has ended by itself leaves no stream behind on which nobody listens.
        session.sever();
        ended
    };
    Ok((opened, running))
}
