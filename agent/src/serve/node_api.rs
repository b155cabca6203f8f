//! The node API: log bytes and the ledger, from the agent itself; nothing passes a master.
//!
//! A log stream goes on over rotations, can be taken up again where it stopped, and always ends
//! with a word of why.

use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::time::Duration;

use mete_model::Code;
use mete_proto::convert::{write_inventory, write_phase, write_resources, write_run_ref};
use mete_proto::node::v1::node_service_server::{NodeService, NodeServiceServer};
use mete_proto::node::v1::{
    LedgerRequest, LedgerResponse, LedgerRun, LogChunk, LogEnd, LogLine, LogLines, LogStream,
    LogsRequest, log_chunk,
};
use prost::Message;
use tokio::sync::{mpsc, oneshot};
use tokio_stream::Stream;
use tokio_stream::wrappers::ReceiverStream;
use tonic::service::Routes;
use tonic::{Request, Response, Status};

use super::refusal::{invalid, invalid_field, refuse};
use crate::core::RunKey;
use crate::driver::{Answer, Question};
use crate::link::read_key;
use crate::runtime::RunName;
use crate::runtime::logs::{self, Begin, LogReader, Position};
use crate::shell::{END_FILE, log_directory, run_name, task_directory};

/// How often a follower looks for more.
const FOLLOW: Duration = Duration::from_millis(50);

/// Chunks on their way to one reader at the most.
const MOST_CHUNKS: usize = 8;

/// The service of one agent.
#[derive(Clone, Debug)]
pub struct NodeApi {
    state_directory: PathBuf,
    node_name: String,
    questions: mpsc::Sender<Question>,
}

impl NodeApi {
    /// Serves what is below `state_directory`; the loop answers `questions`.
    #[must_use]
    pub fn new(
        state_directory: PathBuf,
        node_name: String,
        questions: mpsc::Sender<Question>,
    ) -> NodeServiceServer<Self> {
        NodeServiceServer::new(Self {
            state_directory,
            node_name,
            questions,
        })
    }

    async fn ask(&self) -> Result<Answer, Status> {
        let (reply, answer) = oneshot::channel();
        self.questions
            .send(Question::Ledger(reply))
            .await
            .map_err(|_closed| stopping())?;
        answer.await.map_err(|_gone| stopping())
    }
}

fn stopping() -> Status {
    refuse(Code::Busy, "the agent is stopping; ask again later")
}

fn unreadable(error: &std::io::Error) -> Status {
    refuse(Code::Internal, &format!("reading the log: {error}"))
}

/// All services of an agent: the node API, health, reflection.
#[must_use]
pub fn routes(api: NodeServiceServer<NodeApi>) -> Routes {
    let mut routes = Routes::builder();
    routes.add_service(api);
    if let Err(error) = mete_proto::standard::add(&mut routes, &["mete.node.v1.NodeService"]) {
        tracing::error!(%error, "no reflection: the descriptors cannot be read");
    }
    routes.routes()
}

type LogsStream = Pin<Box<dyn Stream<Item = Result<LogChunk, Status>> + Send>>;

#[tonic::async_trait]
impl NodeService for NodeApi {
    type LogsStream = LogsStream;

    async fn logs(
        &self,
        request: Request<LogsRequest>,
    ) -> Result<Response<Self::LogsStream>, Status> {
        let request = request.into_inner();
        let key = read_key(request.run.clone(), "run").map_err(|faults| invalid(&faults))?;
        if LogStream::try_from(request.stream).is_err() {
            let fault = format!("{} is none: 0 for both, 1 stdout, 2 stderr", request.stream);
            return Err(invalid_field("stream", &fault));
        }
        if !request.resume.is_empty() && read_position(&request.resume).is_none() {
            let fault = "is no position of an earlier stream; leave it empty to begin anew";
            return Err(invalid_field("resume", fault));
        }
        let run = run_name(&key);
        let known = self.ask().await?.rows.iter().any(|row| row.key == key);
        if !known && !task_directory(&self.state_directory, &run).exists() {
            let detail = format!(
                "no log of run {} on node {}: it never ran here, or its log was removed by \
                 retention",
                key.run, self.node_name
            );
            return Err(refuse(Code::NotFound, &detail));
        }
        let directory = log_directory(&self.state_directory, &run);
        let reader = open(&directory, &request).map_err(|error| unreadable(&error))?;
        let (sender, receiver) = mpsc::channel(MOST_CHUNKS);
        let follower = Follower {
            api: self.clone(),
            key,
            run,
            reader,
            request,
            sender,
        };
        tokio::spawn(follower.run());
        Ok(Response::new(Box::pin(ReceiverStream::new(receiver))))
    }

    async fn ledger(
        &self,
        _request: Request<LedgerRequest>,
    ) -> Result<Response<LedgerResponse>, Status> {
        let answer = self.ask().await?;
        Ok(Response::new(LedgerResponse {
            inventory: Some(write_inventory(&answer.inventory)),
            free: Some(write_resources(&answer.free)),
            runs: answer
                .rows
                .into_iter()
                .map(|row| LedgerRun {
                    run: Some(write_run_ref(row.key.framework, &row.key.run)),
                    phase: write_phase(row.phase).into(),
                    resources: Some(write_resources(&row.resources)),
                    pid: 0,
                    quarantined: row.quarantined.unwrap_or_default(),
                    unconfirmed_statuses: u32::try_from(row.unconfirmed).unwrap_or(u32::MAX),
                })
                .collect(),
            agent_id: answer
                .agent
                .map(|agent| agent.to_string())
                .unwrap_or_default(),
            node: self.node_name.clone(),
        }))
    }
}

fn open(directory: &Path, request: &LogsRequest) -> std::io::Result<LogReader> {
    if let Some(position) = read_position(&request.resume) {
        return LogReader::resume(directory, position);
    }
    let begin = Begin {
        tail: request
            .tail_lines
            .map(|lines| usize::try_from(lines).unwrap_or(usize::MAX)),
        since_ns: request.since_ms.map(|ms| ms.saturating_mul(1_000_000)),
    };
    LogReader::open(directory, begin)
}

fn read_position(bytes: &[u8]) -> Option<Position> {
    let number = |at: usize| {
        let part = bytes.get(at..at.checked_add(8)?)?;
        Some(u64::from_le_bytes(part.try_into().ok()?))
    };
    (bytes.len() == 24).then_some(())?;
    Some(Position {
        device: number(0)?,
        inode: number(8)?,
        offset: number(16)?,
    })
}

fn write_position(position: Option<Position>) -> Vec<u8> {
    position
        .map(|at| {
            [at.device, at.inode, at.offset]
                .iter()
                .flat_map(|n| n.to_le_bytes())
                .collect()
        })
        .unwrap_or_default()
}

/// One reader of one log.
struct Follower {
    api: NodeApi,
    key: RunKey,
    run: RunName,
    reader: LogReader,
    request: LogsRequest,
    sender: mpsc::Sender<Result<LogChunk, Status>>,
}

impl Follower {
    async fn run(mut self) {
        loop {
            // Asked before reading, so that what the run wrote last is never missed.
            let over = self.is_over().await;
            match self.send_all().await {
                Ok(true) => {}
                Ok(false) => return,
                Err(error) => {
                    let _reader_gone = self.sender.send(Err(unreadable(&error))).await;
                    return;
                }
            }
            if over || !self.request.follow {
                let end = self.end(over);
                let chunk = self.chunk(log_chunk::Chunk::End(end));
                let _reader_gone = self.sender.send(Ok(chunk)).await;
                return;
            }
            tokio::time::sleep(FOLLOW).await;
        }
    }

    async fn is_over(&self) -> bool {
        if self.end_file().is_some() {
            return true;
        }
        match self.api.ask().await {
            Ok(answer) => !answer
                .rows
                .iter()
                .any(|row| row.key == self.key && !row.phase.is_terminal()),
            // The agent stops: the stream ends and can be taken up again.
            Err(_stopping) => true,
        }
    }

    fn end_file(&self) -> Option<LogEnd> {
        let path = task_directory(&self.api.state_directory, &self.run).join(END_FILE);
        LogEnd::decode(std::fs::read(path).ok()?.as_slice()).ok()
    }

    fn end(&self, over: bool) -> LogEnd {
        match (over, self.end_file()) {
            (true, Some(end)) => end,
            (true, None) => LogEnd {
                reason: "ended".to_owned(),
                ..LogEnd::default()
            },
            (false, _) => LogEnd {
                reason: "end of log so far".to_owned(),
                ..LogEnd::default()
            },
        }
    }

    /// Sends everything there is now. False when the reader is gone.
    async fn send_all(&mut self) -> std::io::Result<bool> {
        loop {
            let lines = self.reader.read()?;
            if lines.is_empty() {
                return Ok(true);
            }
            let wanted = LogStream::try_from(self.request.stream).unwrap_or_default();
            let lines: Vec<LogLine> = lines
                .into_iter()
                .map(write_line)
                .filter(|line| wanted == LogStream::Unspecified || line.stream == wanted as i32)
                .collect();
            let chunk = self.chunk(log_chunk::Chunk::Lines(LogLines { lines }));
            if self.sender.send(Ok(chunk)).await.is_err() {
                return Ok(false);
            }
        }
    }

    fn chunk(&self, chunk: log_chunk::Chunk) -> LogChunk {
        LogChunk {
            chunk: Some(chunk),
            position: write_position(self.reader.position()).into(),
        }
    }
}

fn write_line(line: logs::LogLine) -> LogLine {
    let stream = match line.stream {
        logs::Stream::Stdout => LogStream::Stdout,
        logs::Stream::Stderr => LogStream::Stderr,
    };
    LogLine {
        at_ns: line.at_ns,
        stream: stream.into(),
        text: line.content.into(),
        partial: !line.whole,
    }
}
