//! What a task writes, from its agent's node API; the bytes never pass a master.
//!
//! A stream that breaks is opened again where it stopped: nothing is lost, nothing comes twice. It
//! always ends with a reason, unless the node stays out of reach.

use std::time::Duration;

use mete_model::{Code, Exit, RunId, TaskPhase};
use mete_proto::convert::write_run;
use mete_proto::node::v1 as pb;
use mete_proto::node::v1::node_service_client::NodeServiceClient;
use mete_proto::types::v1::RunRef;

use crate::client::{Advice, SharedDial, advise};
use crate::core::Backoff;
use crate::error::{Error, Reason, Result};
use crate::wire;

/// Failures in a row before a follower hears that the node is out of reach.
const TRIES: u32 = 8;

/// Which of a task's streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogStream {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
}

/// Which lines are wanted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogOptions {
    /// Only this stream; both if not said.
    pub stream: Option<LogStream>,
    /// Goes on with lines that are written later, until the task is over.
    pub follow: bool,
    /// Only so many lines at the end.
    pub tail_lines: Option<u64>,
    /// Only lines from this time on, in milliseconds since the Unix epoch.
    pub since_ms: Option<u64>,
    /// Where an earlier stream stopped ([`Logs::position`]).
    pub resume: Vec<u8>,
}

/// One line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogLine {
    /// When it was written, in nanoseconds since the Unix epoch.
    pub at_ns: u64,
    /// Where to.
    pub stream: LogStream,
    /// As it came, without its newline.
    pub text: Vec<u8>,
    /// The line goes on in the next one.
    pub partial: bool,
}

/// The last word of a log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogEnd {
    /// Why nothing follows.
    pub reason: String,
    /// Where the task is in its life; `None` if the agent does not say.
    pub phase: Option<TaskPhase>,
    /// How its process ended, if it did.
    pub exit: Option<Exit>,
}

/// A piece of a log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LogChunk {
    /// Lines in the order in which they were written.
    Lines(Vec<LogLine>),
    /// Always the last.
    End(LogEnd),
}

/// The node API of one agent.
#[derive(Clone, Debug)]
pub struct NodeClient {
    dial: SharedDial,
    address: String,
}

impl NodeClient {
    /// The agent's node API at `host:port`. Connects when it is used.
    #[must_use]
    pub fn new(dial: SharedDial, address: &str) -> Self {
        Self {
            dial,
            address: address.to_owned(),
        }
    }

    /// What a run writes.
    #[must_use]
    pub fn logs(&self, framework_id: &str, run: &RunId, options: LogOptions) -> Logs {
        Logs {
            node: self.clone(),
            run: RunRef {
                framework_id: framework_id.to_owned(),
                run: Some(write_run(run)),
            },
            position: options.resume.clone(),
            options,
            stream: None,
            backoff: Backoff::default(),
            failures: 0,
            ended: false,
        }
    }
}

/// A log that is being read.
#[derive(Debug)]
pub struct Logs {
    node: NodeClient,
    run: RunRef,
    options: LogOptions,
    position: Vec<u8>,
    stream: Option<tonic::Streaming<pb::LogChunk>>,
    backoff: Backoff,
    failures: u32,
    ended: bool,
}

impl Logs {
    /// Where to go on after what was read, for [`LogOptions::resume`].
    #[must_use]
    pub fn position(&self) -> &[u8] {
        &self.position
    }

    /// The next piece; `None` after [`LogChunk::End`].
    ///
    /// # Errors
    /// [`Error::Unavailable`] when the node stays out of reach: reading may go on later from
    /// [`Logs::position`]. [`Error::Refused`] when the agent does not have the run.
    pub async fn next(&mut self) -> Result<Option<LogChunk>> {
        while !self.ended {
            match self.read().await {
                Ok(Some(chunk)) => {
                    self.failures = 0;
                    self.backoff.reset();
                    self.ended = matches!(chunk, LogChunk::End(_));
                    return Ok(Some(chunk));
                }
                Ok(None) => {}
                Err(Advice::No(error)) => {
                    self.ended = true;
                    return Err(error);
                }
                Err(Advice::Elsewhere(_)) => {
                    return Err(Error::Protocol("an agent names no leader".to_owned()));
                }
                Err(Advice::Later { after, reason }) => {
                    self.stream = None;
                    self.failures += 1;
                    if self.failures >= TRIES {
                        self.failures = 0;
                        return Err(Error::Unavailable(reason));
                    }
                    tokio::time::sleep(self.backoff.next().max(after)).await;
                }
            }
        }
        Ok(None)
    }

    /// `None` for a chunk that carries nothing this release understands.
    async fn read(&mut self) -> Result<Option<LogChunk>, Advice> {
        let stream = match &mut self.stream {
            Some(stream) => stream,
            None => {
                let opened = self.open().await?;
                self.stream.insert(opened)
            }
        };
        let message = stream.message().await.map_err(|status| advise(&status))?;
        let Some(message) = message else {
            return Err(later("the agent ended the log without a last word"));
        };
        if !message.position.is_empty() {
            self.position = message.position.into();
        }
        Ok(message.chunk.and_then(chunk_from))
    }

    async fn open(&self) -> Result<tonic::Streaming<pb::LogChunk>, Advice> {
        let channel = self
            .node
            .dial
            .dial(&self.node.address)
            .await
            .map_err(|error| later(format!("connect to {}: {error}", self.node.address)))?;
        let resumed = !self.position.is_empty();
        let stream = match self.options.stream {
            None => pb::LogStream::Unspecified,
            Some(LogStream::Stdout) => pb::LogStream::Stdout,
            Some(LogStream::Stderr) => pb::LogStream::Stderr,
        };
        let request = pb::LogsRequest {
            run: Some(self.run.clone()),
            stream: stream.into(),
            follow: self.options.follow,
            // The end of the log was chosen when it was first opened.
            tail_lines: self.options.tail_lines.filter(|_| !resumed),
            since_ms: self.options.since_ms,
            resume: self.position.clone().into(),
        };
        let answer = NodeServiceClient::new(channel).logs(request).await;
        answer
            .map(tonic::Response::into_inner)
            .map_err(|status| advise(&status))
    }
}

fn later(why: impl Into<String>) -> Advice {
    Advice::Later {
        after: Duration::ZERO,
        reason: Reason::new(Code::Unreachable, why),
    }
}

fn chunk_from(chunk: pb::log_chunk::Chunk) -> Option<LogChunk> {
    match chunk {
        pb::log_chunk::Chunk::Lines(lines) => {
            let lines: Vec<LogLine> = lines.lines.into_iter().map(line_from).collect();
            (!lines.is_empty()).then_some(LogChunk::Lines(lines))
        }
        pb::log_chunk::Chunk::End(end) => Some(LogChunk::End(LogEnd {
            reason: end.reason,
            phase: wire::phase_from(end.phase),
            exit: wire::exit_from(end.exit),
        })),
    }
}

fn line_from(line: pb::LogLine) -> LogLine {
    LogLine {
        at_ns: line.at_ns,
        stream: if line.stream == i32::from(pb::LogStream::Stderr) {
            LogStream::Stderr
        } else {
            LogStream::Stdout
        },
        text: line.text.into(),
        partial: line.partial,
    }
}
