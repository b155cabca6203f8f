//! `mete.explain.v1`: decode, ask, encode.

use std::sync::Arc;

use mete_proto::explain::v1 as wire;
use mete_proto::explain::v1::explain_service_server::ExplainService;
use tonic::{Request, Response, Status};

use super::problem::from_problem;
use crate::admin::{Feed, why};
use crate::handle::Handle;

/// The service.
#[derive(Clone, Debug)]
pub struct Explain {
    handle: Handle,
    feed: Arc<Feed>,
}

impl Explain {
    /// A service behind this door.
    #[must_use]
    pub fn new(handle: Handle, feed: Arc<Feed>) -> Self {
        Self { handle, feed }
    }
}

#[tonic::async_trait]
impl ExplainService for Explain {
    async fn explain(
        &self,
        request: Request<wire::ExplainRequest>,
    ) -> Result<Response<wire::ExplainResponse>, Status> {
        let answer = why::explain(&self.handle, &self.feed, request.into_inner()).await;
        answer
            .map(Response::new)
            .map_err(|problem| from_problem(&problem))
    }
}
