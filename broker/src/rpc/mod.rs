//! The gRPC services: decode, ask, encode.
//!
//! Called by `tonic`, once for each call. A service checks every field ([`mete_proto::convert`]),
//! asks the loop through its handle, and writes the answer down. It decides nothing and keeps
//! nothing. Refusals are made in [`status`] and [`redirect`] only.

pub mod admin_service;
pub mod agent_service;
pub mod events_service;
pub mod explain_service;
pub mod feed_stream;
mod framework_pages;
mod framework_read;
pub mod framework_service;
pub mod peer_service;
pub mod problem;
pub mod redirect;
pub mod refusal;
pub mod status;

use std::sync::Arc;

use mete_proto::admin::v1::admin_service_server::AdminServiceServer;
use mete_proto::agent::v1::agent_service_server::AgentServiceServer;
use mete_proto::events::v1::event_service_server::EventServiceServer;
use mete_proto::explain::v1::explain_service_server::ExplainServiceServer;
use mete_proto::framework::v1::framework_service_server::FrameworkServiceServer;
use mete_proto::internal::v1::peer_service_server::PeerServiceServer;
use tonic::service::Routes;

use crate::admin::Feed;
use crate::handle::Handle;
use crate::server::MESSAGE_BYTES;
use crate::session::peers;

/// What a master serves, as reflection lists it.
const SERVICES: &[&str] = &[
    "mete.framework.v1.FrameworkService",
    "mete.agent.v1.AgentService",
    "mete.admin.v1.AdminService",
    "mete.explain.v1.ExplainService",
    "mete.events.v1.EventService",
    "mete.internal.v1.PeerService",
];

/// All services of a master: frameworks, agents, operators, health, and reflection in the two forms
/// that clients ask for.
#[must_use]
pub fn routes(handle: &Handle, feed: &Arc<Feed>) -> Routes {
    let frameworks = framework_service::Frameworks::new(handle.clone());
    let frameworks = FrameworkServiceServer::new(frameworks)
        .max_decoding_message_size(MESSAGE_BYTES)
        .max_encoding_message_size(MESSAGE_BYTES);
    let agents = AgentServiceServer::new(agent_service::Agents::new(handle.clone()))
        .max_decoding_message_size(MESSAGE_BYTES)
        .max_encoding_message_size(MESSAGE_BYTES);
    let behind = || (handle.clone(), Arc::clone(feed));
    let (door, news) = behind();
    let admin = AdminServiceServer::new(admin_service::Admin::new(door, news))
        .max_decoding_message_size(MESSAGE_BYTES)
        .max_encoding_message_size(MESSAGE_BYTES);
    let (door, news) = behind();
    let explain = ExplainServiceServer::new(explain_service::Explain::new(door, news));
    let (door, news) = behind();
    let events = EventServiceServer::new(events_service::Events::new(door, news));
    let masters = PeerServiceServer::new(peer_service::Peers::new(handle.clone()))
        .max_decoding_message_size(peers::MESSAGE_BYTES)
        .max_encoding_message_size(peers::MESSAGE_BYTES);
    let mut routes = Routes::builder();
    routes
        .add_service(frameworks)
        .add_service(agents)
        .add_service(masters)
        .add_service(admin)
        .add_service(explain)
        .add_service(events);
    // Built with the program: tests see to it that the descriptors can be read.
    if let Err(error) = mete_proto::standard::add(&mut routes, SERVICES) {
        tracing::error!(%error, "no reflection: the descriptors cannot be read");
    }
    routes.routes()
}
