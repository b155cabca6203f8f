//! Stands between frameworks and the broker, passes everything on, and does what [`Faults`] says.

use std::future::Future;

use mete_broker::rpc::status;
use mete_proto::framework::v1::framework_service_client::FrameworkServiceClient;
use mete_proto::framework::v1::framework_service_server::FrameworkService;
use mete_proto::framework::v1::{self as fw, event::Event};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Channel;
use tonic::{Request, Response, Status, Streaming};

use crate::faults::{Faults, Method, Opening};

/// Events on their way to one framework.
const EVENTS_ON_THE_WAY: usize = 1_024;

#[derive(Debug)]
pub(crate) struct Proxy {
    pub(crate) broker: FrameworkServiceClient<Channel>,
    pub(crate) faults: Faults,
}

impl Proxy {
    async fn pass<T, F>(&self, method: Method, send: impl Fn() -> F) -> Result<Response<T>, Status>
    where
        F: Future<Output = Result<Response<T>, Status>>,
    {
        self.faults.while_silent().await;
        let fate = self.faults.fate(method);
        if !fate.delay.is_zero() {
            tokio::time::sleep(fate.delay).await;
        }
        if let Some(code) = fate.refuse {
            return Err(status::refuse(code, "the test refuses this call"));
        }
        if fate.lose_request {
            return Err(Status::unavailable("the test loses this request"));
        }
        let mut answer = send().await;
        if fate.twice {
            answer = send().await;
        }
        self.faults.while_silent().await;
        if fate.lose_reply {
            return Err(Status::unavailable("the test loses this reply"));
        }
        answer
    }
}

macro_rules! proxied {
    ($($method:ident $name:ident $request:ident $answer:ident $note:ident;)*) => {
        #[tonic::async_trait]
        impl FrameworkService for Proxy {
            type SubscribeStream = ReceiverStream<Result<fw::Event, Status>>;

            async fn subscribe(
                &self,
                request: Request<fw::SubscribeRequest>,
            ) -> Result<Response<Self::SubscribeStream>, Status> {
                self.faults.while_silent().await;
                let mut broker = self.broker.clone();
                let mut request = request.into_inner();
                let resume = request.resume_revision;
                request.resume_revision = self.faults.resume_revision(resume);
                let stream = broker.subscribe(request).await?.into_inner();
                let (sender, receiver) = mpsc::channel(EVENTS_ON_THE_WAY);
                let faults = self.faults.clone();
                tokio::spawn(forward(stream, sender, faults, resume));
                Ok(Response::new(ReceiverStream::new(receiver)))
            }

            $(async fn $method(
                &self,
                request: Request<fw::$request>,
            ) -> Result<Response<fw::$answer>, Status> {
                let request = request.into_inner();
                let answer = self
                    .pass(Method::$name, || {
                        let mut broker = self.broker.clone();
                        let request = request.clone();
                        async move { broker.$method(request).await }
                    })
                    .await;
                if let Ok(answer) = &answer {
                    $note(&request, answer.get_ref(), &self.faults);
                }
                answer
            })*
        }
    };
}

proxied! {
    update_demand UpdateDemand UpdateDemandRequest UpdateDemandResponse nothing;
    accept Accept AcceptRequest AcceptResponse granted;
    decline Decline DeclineRequest DeclineResponse nothing;
    suppress Suppress SuppressRequest SuppressResponse nothing;
    revive Revive ReviveRequest ReviveResponse nothing;
    update_framework UpdateFramework UpdateFrameworkRequest UpdateFrameworkResponse nothing;
    kill Kill KillRequest KillResponse nothing;
    acknowledge Acknowledge AcknowledgeRequest AcknowledgeResponse acknowledged;
    reconcile Reconcile ReconcileRequest ReconcileResponse nothing;
    store_get StoreGet StoreGetRequest StoreGetResponse nothing;
    store_list StoreList StoreListRequest StoreListResponse nothing;
    store_write StoreWrite StoreWriteRequest StoreWriteResponse nothing;
    teardown Teardown TeardownRequest TeardownResponse nothing;
}

/// What went through and tells nothing of tasks.
fn nothing<R, A>(_: &R, _: &A, _: &Faults) {}

fn granted(request: &fw::AcceptRequest, answer: &fw::AcceptResponse, faults: &Faults) {
    let header = request.header.clone().unwrap_or_default();
    for (launch, verdict) in request.launches.iter().zip(&answer.launches) {
        let verdict = verdict.verdict.as_ref();
        if verdict.is_some_and(|verdict| verdict.code == "OK") {
            faults.saw_granted(&header.framework_id, launch.run.as_ref());
        }
    }
}

fn acknowledged(request: &fw::AcknowledgeRequest, _: &fw::AcknowledgeResponse, faults: &Faults) {
    let header = request.header.clone().unwrap_or_default();
    faults.saw_acknowledged(&header.framework_id, &request.items);
}

async fn forward(
    mut stream: Streaming<fw::Event>,
    sender: mpsc::Sender<Result<fw::Event, Status>>,
    faults: Faults,
    resume: u64,
) {
    let mut drops = faults.drops();
    let mut replays = faults.replays();
    let mut framework = String::new();
    let mut opening = Opening::default();
    loop {
        let message = tokio::select! {
            message = stream.message() => message,
            dropped = drops.changed() => {
                if dropped.is_ok() {
                    let _ = sender.send(Err(Status::unavailable("the test drops it"))).await;
                }
                return;
            }
            Ok(()) = replays.changed() => {
                for event in faults.kept_statuses(&framework) {
                    if sender.send(Ok(event)).await.is_err() {
                        return;
                    }
                }
                continue;
            }
            () = sender.closed() => return,
        };
        faults.while_silent().await;
        let mut event = match message {
            Ok(Some(event)) => event,
            Ok(None) => return,
            Err(status) => {
                let _ = sender.send(Err(status)).await;
                return;
            }
        };
        if let Some(Event::Subscribed(hello)) = &event.event {
            framework.clone_from(&hello.framework_id);
        }
        // All of it, before anything is left out.
        faults.saw_event(&framework, &event);
        let is_status = matches!(event.event, Some(Event::Status(_)));
        opening.pass(&faults, &framework, &mut event, resume);
        if is_status {
            faults.keep_status(&framework, &event);
            let delay = faults.update_delay();
            if !delay.is_zero() {
                tokio::time::sleep(delay).await;
            }
        }
        if is_status && faults.duplicates() && sender.send(Ok(event.clone())).await.is_err() {
            return;
        }
        if sender.send(Ok(event)).await.is_err() {
            return;
        }
    }
}

impl Opening {
    /// Takes in what belongs to the opening of a stream, and leaves of it what is passed on.
    fn pass(&mut self, faults: &Faults, framework: &str, event: &mut fw::Event, asked: u64) {
        match &mut event.event {
            Some(Event::Subscribed(hello)) => {
                *self = faults.begin_opening(hello, asked);
            }
            Some(Event::Snapshot(page)) => self.filter_page(page),
            Some(Event::SnapshotEnd(end)) => {
                faults.end_opening(framework, std::mem::take(self), end.revision);
            }
            Some(
                Event::Status(_)
                | Event::Offers(_)
                | Event::Rescinded(_)
                | Event::AgentChanged(_)
                | Event::RunsReplaceable(_)
                | Event::Heartbeat(_)
                | Event::Moved(_),
            )
            | None => {}
        }
    }
}
