//! A job's states as they change, over broken streams.

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use mete_model::Code;
use mete_proto::batch::v1::batch_service_client::BatchServiceClient;
use mete_proto::batch::v1::{WatchRequest, WatchResponse};
use tokio::time::Instant;
use tonic::Streaming;
use tonic::transport::Channel;

use crate::cli::support::client::{Client, Cluster};
use crate::cli::support::error::{CliError, Outcome};
use crate::cli::support::print::note;

/// How long a framework that was there may be away before the watch gives up.
const PATIENCE: Duration = Duration::from_secs(120);

/// Pause before a broken stream is opened again.
const PAUSE: Duration = Duration::from_millis(300);

/// A stream that is being opened.
type Opening = Pin<Box<dyn Future<Output = Outcome<Streaming<WatchResponse>>> + Send>>;

/// A job that is watched.
pub struct Following<'a> {
    client: &'a Client,
    request: WatchRequest,
    stream: Option<Streaming<WatchResponse>>,
    opening: Option<Opening>,
    over: bool,
    /// Since when nothing came, once something had come.
    broken: Option<Instant>,
    /// Something has come already.
    begun: bool,
}

impl std::fmt::Debug for Following<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Following")
            .field("request", &self.request)
            .field("over", &self.over)
            .finish_non_exhaustive()
    }
}

impl<'a> Following<'a> {
    /// Watches a job; with `elements` also those that changed.
    #[must_use]
    pub fn new(client: &'a Client, job: &str, elements: bool) -> Self {
        Self {
            client,
            request: WatchRequest {
                job: job.to_owned(),
                elements,
            },
            stream: None,
            opening: None,
            over: false,
            broken: None,
            begun: false,
        }
    }

    /// The next change; `None` once the job is over.
    ///
    /// May be dropped while it waits: nothing is lost, since a stream begins with the present
    /// state.
    ///
    /// # Errors
    /// The refusal, or what kept the framework out of reach for too long.
    pub async fn next(&mut self) -> Outcome<Option<WatchResponse>> {
        loop {
            if self.over {
                return Ok(None);
            }
            match self.read().await {
                Ok(Some(change)) => {
                    self.broken = None;
                    self.begun = true;
                    self.over = change.row.as_ref().is_some_and(|row| row.ended_ms != 0);
                    return Ok(Some(change));
                }
                Ok(None) => self.stream = None,
                Err(error) => {
                    self.stream = None;
                    self.bear(error)?;
                }
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// An error that may pass is borne for a while, if the job was seen before.
    fn bear(&mut self, error: CliError) -> Outcome {
        let passing = error.is_passing() || error.is(Code::TimedOut);
        if !self.begun || !passing {
            return Err(error);
        }
        let since = *self.broken.get_or_insert_with(|| {
            note(&format!("-- {}; asking again --", error.sentence));
            Instant::now()
        });
        if since.elapsed() > PATIENCE {
            return Err(error.fact(format!("the job {} goes on", self.request.job)));
        }
        Ok(())
    }

    async fn read(&mut self) -> Outcome<Option<WatchResponse>> {
        if self.stream.is_none() {
            // Kept while nobody waits for it: whoever looks at a clock in between would otherwise
            // never get through to a master that takes its time.
            let opening = self.opening.get_or_insert_with(|| {
                Box::pin(open(self.client.cluster.clone(), self.request.clone()))
            });
            let opened = opening.await;
            self.opening = None;
            self.stream = Some(opened?);
        }
        match &mut self.stream {
            Some(stream) => Ok(stream.message().await?),
            None => Ok(None),
        }
    }
}

async fn open(cluster: Cluster, request: WatchRequest) -> Outcome<Streaming<WatchResponse>> {
    let ask = |mut batch: BatchServiceClient<Channel>| async move { batch.watch(request).await };
    cluster.ask_batch(ask).await
}
