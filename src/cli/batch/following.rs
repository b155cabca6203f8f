//! A job's states as they change, over broken streams.

use std::time::Duration;

use mete_model::Code;
use mete_proto::batch::v1::{WatchRequest, WatchResponse};
use tokio::time::Instant;
use tonic::Streaming;

use crate::cli::support::client::Client;
use crate::cli::support::error::{CliError, Outcome};
use crate::cli::support::print::note;

/// How long a framework that was there may be away before the watch gives up.
const PATIENCE: Duration = Duration::from_secs(120);

/// Pause before a broken stream is opened again.
const PAUSE: Duration = Duration::from_millis(300);

/// A job that is watched.
#[derive(Debug)]
pub struct Following<'a> {
    client: &'a Client,
    request: WatchRequest,
    stream: Option<Streaming<WatchResponse>>,
    over: bool,
    /// Since when nothing came, once something had come.
    broken: Option<Instant>,
    /// Something has come already.
    begun: bool,
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
            let request = self.request.clone();
            let ask =
                |mut batch: mete_proto::batch::v1::batch_service_client::BatchServiceClient<
                    tonic::transport::Channel,
                >| async move { batch.watch(request).await };
            self.stream = Some(self.client.cluster.ask_batch(ask).await?);
        }
        match &mut self.stream {
            Some(stream) => Ok(stream.message().await?),
            None => Ok(None),
        }
    }
}
