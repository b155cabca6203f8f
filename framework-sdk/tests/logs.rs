//! Logs from an agent that does what the test says: a stream that breaks goes on where it stopped.

use std::sync::Arc;
use std::sync::Mutex;

use mete_proto::node::v1 as pb;
use mete_proto::node::v1::node_service_server::{NodeService, NodeServiceServer};
use mete_sdk::client::TcpDial;
use mete_sdk::error::Error;
use mete_sdk::node::{LogChunk, LogOptions, NodeClient};
use tokio_stream::wrappers::TcpListenerStream;
use tonic::{Request, Response, Status};

type Answer = Vec<Result<pb::LogChunk, Status>>;

/// One answer for each request, in order.
#[derive(Clone, Default)]
struct Agent {
    answers: Arc<Mutex<Vec<Result<Answer, Status>>>>,
    requests: Arc<Mutex<Vec<pb::LogsRequest>>>,
}

#[tonic::async_trait]
impl NodeService for Agent {
    type LogsStream = tokio_stream::Iter<std::vec::IntoIter<Result<pb::LogChunk, Status>>>;

    async fn logs(
        &self,
        request: Request<pb::LogsRequest>,
    ) -> Result<Response<Self::LogsStream>, Status> {
        self.requests
            .lock()
            .expect("not poisoned")
            .push(request.into_inner());
        let answer = self.answers.lock().expect("not poisoned").remove(0)?;
        Ok(Response::new(tokio_stream::iter(answer)))
    }

    async fn ledger(
        &self,
        _: Request<pb::LedgerRequest>,
    ) -> Result<Response<pb::LedgerResponse>, Status> {
        Err(Status::unimplemented("not asked for"))
    }
}

fn lines(text: &str, position: &str) -> Result<pb::LogChunk, Status> {
    let line = pb::LogLine {
        text: text.to_owned().into(),
        ..pb::LogLine::default()
    };
    Ok(pb::LogChunk {
        chunk: Some(pb::log_chunk::Chunk::Lines(pb::LogLines {
            lines: vec![line],
        })),
        position: position.to_owned().into(),
    })
}

fn end(reason: &str) -> Result<pb::LogChunk, Status> {
    Ok(pb::LogChunk {
        chunk: Some(pb::log_chunk::Chunk::End(pb::LogEnd {
            reason: reason.to_owned(),
            ..pb::LogEnd::default()
        })),
        ..pb::LogChunk::default()
    })
}

async fn serve(answers: Vec<Result<Answer, Status>>) -> (Agent, NodeClient) {
    let agent = Agent {
        answers: Arc::new(Mutex::new(answers)),
        ..Agent::default()
    };
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0")
        .await
        .expect("a port");
    let address = listener.local_addr().expect("bound").to_string();
    tokio::spawn(
        tonic::transport::Server::builder()
            .add_service(NodeServiceServer::new(agent.clone()))
            .serve_with_incoming(TcpListenerStream::new(listener)),
    );
    let client = NodeClient::new(Arc::new(TcpDial::default()), &address);
    (agent, client)
}

#[tokio::test]
async fn a_broken_log_goes_on_where_it_stopped_and_ends_with_a_reason() {
    let (agent, client) = serve(vec![
        Ok(vec![
            lines("one", "p1"),
            Err(Status::unavailable("cable cut")),
        ]),
        Err(Status::unavailable("still cut")),
        // An end without a last word is a break as well.
        Ok(vec![lines("two", "p2")]),
        Ok(vec![end("finished, exit 0")]),
    ])
    .await;
    let options = LogOptions {
        follow: true,
        tail_lines: Some(10),
        ..LogOptions::default()
    };
    let mut logs = client.logs("f-1", &"t#1".parse().expect("a run"), options);
    let mut heard = Vec::new();
    while let Some(chunk) = logs.next().await.expect("it gets there") {
        heard.push(match chunk {
            LogChunk::Lines(lines) => String::from_utf8_lossy(&lines[0].text).into_owned(),
            LogChunk::End(end) => end.reason,
        });
    }
    assert_eq!(heard, ["one", "two", "finished, exit 0"]);

    let requests = agent.requests.lock().expect("not poisoned");
    let asked: Vec<(&[u8], Option<u64>)> = requests
        .iter()
        .map(|request| (request.resume.as_ref(), request.tail_lines))
        .collect();
    let expected: [(&[u8], Option<u64>); 4] =
        [(b"", Some(10)), (b"p1", None), (b"p1", None), (b"p2", None)];
    assert_eq!(asked, expected, "never from the start again");
}

#[tokio::test]
async fn a_run_that_the_agent_does_not_have_is_refused_at_once() {
    let (agent, client) = serve(vec![Err(Status::not_found("no such run"))]).await;
    let mut logs = client.logs("f-1", &"t#1".parse().expect("a run"), LogOptions::default());
    let refused = logs.next().await.expect_err("refused");
    assert!(matches!(refused, Error::Refused(_)), "{refused:?}");
    assert!(logs.next().await.expect("over").is_none());
    assert_eq!(agent.requests.lock().expect("not poisoned").len(), 1);
}
