//! A broker that does exactly what a test says: every call is handed to the test, which answers it.

#![expect(dead_code, reason = "each test file uses its own part of it")]

use std::time::Duration;

use mete_proto::framework::v1::framework_service_server::{
    FrameworkService, FrameworkServiceServer,
};
use mete_proto::framework::v1::{self as fw, event::Event as Wire};
use mete_proto::types::v1 as pb;
use mete_sdk::{Event, Events, Session, SessionConfig};
use tokio::sync::{mpsc, oneshot};
use tokio_stream::wrappers::{ReceiverStream, TcpListenerStream};
use tonic::{Request, Response, Status};
use tonic_types::{ErrorDetails, StatusExt};

/// Longest wait for anything in these tests.
pub(crate) const DEADLINE: Duration = Duration::from_secs(20);

pub(crate) async fn soon<T>(what: &str, future: impl Future<Output = T>) -> T {
    match tokio::time::timeout(DEADLINE, future).await {
        Ok(value) => value,
        Err(_) => panic!("waited too long for {what}"),
    }
}

macro_rules! scripted {
    ($($method:ident $variant:ident $request:ident $answer:ident;)*) => {
        /// A call that waits for its answer.
        #[derive(Debug)]
        pub(crate) enum Call {$(
            $variant(fw::$request, oneshot::Sender<Result<fw::$answer, Status>>),
        )*}

        impl Call {
            pub(crate) fn name(&self) -> &'static str {
                match self {$(Self::$variant(..) => stringify!($variant),)*}
            }

            pub(crate) fn header(&self) -> fw::CallHeader {
                match self {$(
                    Self::$variant(request, _) => request.header.clone().expect("a header"),
                )*}
            }

            /// Ends the call with a status.
            pub(crate) fn fail(self, status: Status) {
                match self {$(
                    Self::$variant(_, reply) => drop(reply.send(Err(status))),
                )*}
            }

            /// Answers with what an empty answer of its kind is.
            pub(crate) fn pass(self) {
                match self {$(
                    Self::$variant(_, reply) => drop(reply.send(Ok(fw::$answer::default()))),
                )*}
            }
        }

        #[tonic::async_trait]
        impl FrameworkService for Service {
            type SubscribeStream = ReceiverStream<Result<fw::Event, Status>>;

            async fn subscribe(
                &self,
                request: Request<fw::SubscribeRequest>,
            ) -> Result<Response<Self::SubscribeStream>, Status> {
                let (reply, answer) = oneshot::channel();
                let attempt = Attempt { request: request.into_inner(), reply };
                self.attempts.send(attempt).await.expect("the test goes on");
                let stream = answer.await.unwrap_or(Err(Status::unavailable("dropped")))?;
                Ok(Response::new(ReceiverStream::new(stream)))
            }

            $(async fn $method(
                &self,
                request: Request<fw::$request>,
            ) -> Result<Response<fw::$answer>, Status> {
                let (reply, answer) = oneshot::channel();
                let call = Call::$variant(request.into_inner(), reply);
                self.calls.send(call).await.expect("the test goes on");
                answer
                    .await
                    .unwrap_or(Err(Status::unavailable("dropped")))
                    .map(Response::new)
            })*
        }
    };
}

scripted! {
    update_demand UpdateDemand UpdateDemandRequest UpdateDemandResponse;
    accept Accept AcceptRequest AcceptResponse;
    decline Decline DeclineRequest DeclineResponse;
    suppress Suppress SuppressRequest SuppressResponse;
    revive Revive ReviveRequest ReviveResponse;
    update_framework UpdateFramework UpdateFrameworkRequest UpdateFrameworkResponse;
    kill Kill KillRequest KillResponse;
    acknowledge Acknowledge AcknowledgeRequest AcknowledgeResponse;
    reconcile Reconcile ReconcileRequest ReconcileResponse;
    store_get StoreGet StoreGetRequest StoreGetResponse;
    store_list StoreList StoreListRequest StoreListResponse;
    store_write StoreWrite StoreWriteRequest StoreWriteResponse;
    teardown Teardown TeardownRequest TeardownResponse;
}

type EventSender = mpsc::Sender<Result<fw::Event, Status>>;

/// A subscription that waits for its answer.
#[derive(Debug)]
pub(crate) struct Attempt {
    pub(crate) request: fw::SubscribeRequest,
    reply: oneshot::Sender<Result<mpsc::Receiver<Result<fw::Event, Status>>, Status>>,
}

impl Attempt {
    pub(crate) fn refuse(self, status: Status) {
        let _ = self.reply.send(Err(status));
    }

    /// Opens the stream and says nothing on it.
    pub(crate) fn open(self) -> Stream {
        let (sender, receiver) = mpsc::channel(16_384);
        let _ = self.reply.send(Ok(receiver));
        Stream { sender }
    }

    /// Opens the stream, empty snapshot included.
    pub(crate) async fn serve(self, incarnation: u64) -> Stream {
        self.serve_with(incarnation, fw::Snapshot::default(), 1)
            .await
    }

    pub(crate) async fn serve_with(
        self,
        incarnation: u64,
        snapshot: fw::Snapshot,
        revision: u64,
    ) -> Stream {
        let stream = self.open();
        stream.send(Wire::Subscribed(subscribed(incarnation))).await;
        stream.send(Wire::Snapshot(snapshot)).await;
        stream
            .send(Wire::SnapshotEnd(fw::SnapshotEnd { revision }))
            .await;
        stream
    }
}

impl Attempt {
    /// Opens the stream with what has changed only.
    pub(crate) async fn serve_changes(
        self,
        incarnation: u64,
        changes: fw::Snapshot,
        revision: u64,
    ) -> Stream {
        let stream = self.open();
        let hello = fw::Subscribed {
            changes_only: true,
            ..subscribed(incarnation)
        };
        stream.send(Wire::Subscribed(hello)).await;
        stream.send(Wire::Snapshot(changes)).await;
        stream
            .send(Wire::SnapshotEnd(fw::SnapshotEnd { revision }))
            .await;
        stream
    }
}

pub(crate) fn subscribed(incarnation: u64) -> fw::Subscribed {
    fw::Subscribed {
        framework_id: "f-1".to_owned(),
        incarnation,
        term: 1,
        heartbeat_ms: 3_000,
        known: incarnation > 1,
        max_message_bytes: 4 << 20,
        changes_only: false,
        masters: Vec::new(),
    }
}

/// The broker's end of an event stream; dropping it ends the stream.
#[derive(Debug)]
pub(crate) struct Stream {
    sender: EventSender,
}

impl Stream {
    pub(crate) async fn send(&self, event: Wire) {
        self.send_at(0, event).await;
    }

    pub(crate) async fn send_at(&self, revision: u64, event: Wire) {
        let event = fw::Event {
            revision,
            event: Some(event),
        };
        // A client that has hung up is the test's to find out.
        let _ = self.sender.send(Ok(event)).await;
    }

    pub(crate) async fn status(&self, run: &str, sequence: u64, phase: pb::TaskPhase) {
        self.send(Wire::Status(status(run, sequence, phase))).await;
    }

    pub(crate) async fn end_with(self, status: Status) {
        let _ = self.sender.send(Err(status)).await;
    }

    /// Waits until the client has hung up.
    pub(crate) async fn hung_up(&self) {
        soon("the client to hang up", self.sender.closed()).await;
    }
}

pub(crate) fn run(text: &str) -> pb::Run {
    let (task, attempt) = text.split_once('#').expect("task#attempt");
    pb::Run {
        task: task.to_owned(),
        attempt: attempt.parse().expect("a number"),
    }
}

pub(crate) fn status(id: &str, sequence: u64, phase: pb::TaskPhase) -> pb::Status {
    pb::Status {
        run: Some(pb::RunRef {
            framework_id: "f-1".to_owned(),
            run: Some(run(id)),
        }),
        sequence,
        phase: phase.into(),
        ..pb::Status::default()
    }
}

pub(crate) fn claim(id: &str, count: u32, launched: u32) -> pb::ClaimStatus {
    pb::ClaimStatus {
        claim: Some(pb::Claim {
            id: id.to_owned(),
            role: "dev".to_owned(),
            shape: Some(pb::Shape {
                cpu_milli: 1_000,
                ..pb::Shape::default()
            }),
            count,
            ..pb::Claim::default()
        }),
        launched,
        submitted_ms: 0,
    }
}

pub(crate) fn offer(
    number: u64,
    agent: u8,
    claim: &str,
    slots: u32,
    expires_in_ms: u64,
) -> fw::Offer {
    fw::Offer {
        id: Some(pb::OfferId { term: 1, number }),
        role: "dev".to_owned(),
        claim: claim.to_owned(),
        slots,
        agent_id: format!("00000000-0000-0000-0000-0000000000{agent:02x}"),
        node: format!("n{agent}"),
        resources: Some(pb::Resources {
            cpu_milli: 1_000 * u64::from(slots.max(1)),
            ..pb::Resources::default()
        }),
        expires_in_ms,
        ..fw::Offer::default()
    }
}

pub(crate) fn ok_verdicts(count: usize) -> Vec<fw::LaunchVerdict> {
    (1..)
        .take(count)
        .map(|grant_id| fw::LaunchVerdict {
            verdict: Some(pb::Verdict {
                code: "OK".to_owned(),
                ..pb::Verdict::default()
            }),
            grant_id,
        })
        .collect()
}

/// A refusal as the broker makes it.
pub(crate) fn refusal(grpc: tonic::Code, code: &str) -> Status {
    let mut details = ErrorDetails::new();
    details.set_error_info(code, "mete", std::collections::HashMap::new());
    Status::with_error_details(grpc, "said so", details)
}

pub(crate) fn not_leader(leader: &str) -> Status {
    let mut status = refusal(tonic::Code::Unavailable, "NOT_LEADER");
    let address = leader.parse().expect("ascii");
    status.metadata_mut().insert("leader-addr", address);
    status
}

struct Service {
    attempts: mpsc::Sender<Attempt>,
    calls: mpsc::Sender<Call>,
}

/// A listening broker, seen from the test.
#[derive(Debug)]
pub(crate) struct Broker {
    pub(crate) address: String,
    attempts: mpsc::Receiver<Attempt>,
    calls: mpsc::Receiver<Call>,
}

impl Broker {
    pub(crate) async fn start() -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0")
            .await
            .expect("a port");
        let address = listener.local_addr().expect("bound").to_string();
        let (attempts, attempted) = mpsc::channel(64);
        let (calls, called) = mpsc::channel(64);
        let service = FrameworkServiceServer::new(Service { attempts, calls })
            .max_decoding_message_size(8 << 20);
        tokio::spawn(
            tonic::transport::Server::builder()
                .add_service(service)
                .serve_with_incoming(TcpListenerStream::new(listener)),
        );
        Self {
            address,
            attempts: attempted,
            calls: called,
        }
    }

    pub(crate) async fn attempt(&mut self) -> Attempt {
        soon("a subscription", self.attempts.recv())
            .await
            .expect("the server runs")
    }

    pub(crate) async fn call(&mut self) -> Call {
        soon("a call", self.calls.recv())
            .await
            .expect("the server runs")
    }

    /// The next call of this kind; acknowledgements before it are answered.
    pub(crate) async fn call_past_acknowledgements(&mut self) -> Call {
        loop {
            match self.call().await {
                Call::Acknowledge(_, reply) => {
                    let _ = reply.send(Ok(fw::AcknowledgeResponse::default()));
                }
                call => return call,
            }
        }
    }

    /// Takes no call for as long as it takes another one to come through.
    pub(crate) fn no_call(&mut self) {
        if let Ok(call) = self.calls.try_recv() {
            panic!("unexpected call {}", call.name());
        }
    }

    /// Waits so long for a call, and refuses it for now.
    pub(crate) async fn refuse_for(&mut self, time: Duration) {
        if let Ok(Some(call)) = tokio::time::timeout(time, self.calls.recv()).await {
            call.fail(refusal(tonic::Code::ResourceExhausted, "BUSY"));
        }
    }

    pub(crate) fn config(&self) -> SessionConfig {
        SessionConfig::new(vec![self.address.clone()], "hello", "dev")
    }

    /// A session that stands.
    pub(crate) async fn connected(&mut self) -> (Session, Events, Stream) {
        self.connected_with(fw::Snapshot::default()).await
    }

    pub(crate) async fn connected_with(
        &mut self,
        snapshot: fw::Snapshot,
    ) -> (Session, Events, Stream) {
        let (session, mut events) = Session::open(self.config()).expect("a good configuration");
        let stream = self.attempt().await.serve_with(1, snapshot, 1).await;
        let event = next(&mut events).await;
        assert!(matches!(event, Event::Connected(_)), "{event:?}");
        (session, events, stream)
    }
}

pub(crate) async fn next(events: &mut Events) -> Event {
    soon("an event", events.next())
        .await
        .expect("the session stands")
}
