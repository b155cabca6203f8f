//! A master in this process, and those who call it.

use std::collections::BTreeMap;
use std::time::Duration;

use mete_broker::config::{Config, Storage};
use mete_broker::server::{Listeners, run};
use mete_proto::admin::v1 as admin;
use mete_proto::admin::v1::admin_service_client::AdminServiceClient;
use mete_proto::admin::v1::object::Object as Row;
use mete_proto::agent::v1 as agent;
use mete_proto::agent::v1::agent_service_client::AgentServiceClient;
use mete_proto::events::v1 as events;
use mete_proto::events::v1::event_service_client::EventServiceClient;
use mete_proto::explain::v1 as explain;
use mete_proto::explain::v1::explain_service_client::ExplainServiceClient;
use mete_proto::framework::v1 as framework;
use mete_proto::framework::v1::framework_service_client::FrameworkServiceClient;
use mete_proto::types::v1 as types;
use tokio::net::TcpListener;
use tokio::sync::{mpsc, oneshot};
use tokio_stream::StreamExt;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Status;
use tonic::transport::Channel;
use tonic_types::StatusExt;

/// Longest time that anything here may take.
pub(crate) const DEADLINE: Duration = Duration::from_secs(20);

/// A master in this process, in memory; ends with the test.
pub(crate) struct Master {
    pub(crate) channel: Channel,
    _end: oneshot::Sender<()>,
}

impl Master {
    pub(crate) async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (end, ended) = oneshot::channel::<()>();
        let listeners = Listeners {
            grpc: vec![listener],
        };
        tokio::spawn(run(Config::single(Storage::Memory), listeners, async {
            let _ = ended.await;
        }));
        let endpoint = tonic::transport::Endpoint::from_shared(format!("http://{address}"));
        let channel = endpoint.unwrap().connect().await.unwrap();
        Self { channel, _end: end }
    }

    pub(crate) fn admin(&self) -> AdminServiceClient<Channel> {
        AdminServiceClient::new(self.channel.clone())
    }

    pub(crate) async fn set_role(&self, path: &str) -> u64 {
        let request = admin::SetRoleRequest {
            path: path.to_owned(),
            ..admin::SetRoleRequest::default()
        };
        self.admin()
            .set_role(request)
            .await
            .unwrap()
            .into_inner()
            .revision
    }

    pub(crate) async fn list(
        &self,
        kind: admin::Kind,
        filter: admin::Filter,
    ) -> Vec<admin::Object> {
        let request = admin::ListRequest {
            kind: kind.into(),
            filter: Some(filter),
            ..admin::ListRequest::default()
        };
        self.admin()
            .list(request)
            .await
            .unwrap()
            .into_inner()
            .objects
    }

    pub(crate) async fn why(
        &self,
        subject: explain::Subject,
        name: &str,
        nodes: bool,
    ) -> Result<explain::ExplainResponse, Status> {
        let request = explain::ExplainRequest {
            subject: subject.into(),
            name: name.to_owned(),
            nodes,
        };
        let mut client = ExplainServiceClient::new(self.channel.clone());
        client
            .explain(request)
            .await
            .map(tonic::Response::into_inner)
    }

    pub(crate) async fn events(&self, from: u64) -> Vec<events::Event> {
        let request = events::WatchRequest {
            from_revision: Some(from),
            ..events::WatchRequest::default()
        };
        let mut client = EventServiceClient::new(self.channel.clone());
        let stream = client.watch(request).await.unwrap().into_inner();
        let taken: Vec<_> = tokio::time::timeout(DEADLINE, stream.collect())
            .await
            .unwrap();
        taken.into_iter().map(Result::unwrap).collect()
    }
}

pub(crate) fn reason(status: &Status) -> String {
    status.get_details_error_info().unwrap().reason
}

pub(crate) fn fields(status: &Status) -> Vec<String> {
    let details = status.get_details_bad_request().unwrap();
    details
        .field_violations
        .into_iter()
        .map(|violation| violation.field)
        .collect()
}

pub(crate) fn role_of(object: &admin::Object) -> String {
    let Row::Role(role) = object.object.as_ref().unwrap() else {
        panic!("not a role: {object:?}");
    };
    role.path.clone()
}

/// Asks again until the answer is what is waited for.
pub(crate) async fn eventually<T, F: Future<Output = Option<T>>>(
    what: &str,
    ask: impl Fn() -> F,
) -> T {
    let waited = async {
        loop {
            if let Some(found) = ask().await {
                return found;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(DEADLINE, waited)
        .await
        .unwrap_or_else(|_| panic!("waited in vain for {what}"))
}

/// An agent that starts nothing: it says hello and keeps its stream open.
pub(crate) async fn join(
    master: &Master,
    name: &str,
    cpu_milli: u64,
) -> mpsc::Sender<agent::AgentMessage> {
    let (sender, receiver) = mpsc::channel(8);
    let hello = agent::Hello {
        node_key: uuid::Uuid::new_v4().to_string(),
        node_name: name.to_owned(),
        inventory: Some(types::Inventory {
            total: Some(types::Resources {
                cpu_milli,
                memory_bytes: 8 << 30,
                disk_bytes: 8 << 30,
                ..types::Resources::default()
            }),
            labels: BTreeMap::from([("rack".to_owned(), "r1".to_owned())]),
            fake: true,
            ..types::Inventory::default()
        }),
        runs: Vec::new(),
    };
    let message = agent::agent_message::Message::Hello(hello);
    let first = agent::AgentMessage {
        message: Some(message),
    };
    sender.send(first).await.unwrap();
    let mut client = AgentServiceClient::new(master.channel.clone());
    let answers = client.link(ReceiverStream::new(receiver)).await.unwrap();
    let mut answers = answers.into_inner();
    tokio::spawn(async move { while answers.next().await.is_some() {} });
    sender
}

/// A framework that only listens; gives its id and incarnation.
pub(crate) async fn subscribe(master: &Master, name: &str, role: &str) -> framework::CallHeader {
    let request = framework::SubscribeRequest {
        name: name.to_owned(),
        roles: vec![role.to_owned()],
        ..framework::SubscribeRequest::default()
    };
    let mut client = FrameworkServiceClient::new(master.channel.clone());
    let mut stream = client.subscribe(request).await.unwrap().into_inner();
    let first = tokio::time::timeout(DEADLINE, stream.next())
        .await
        .unwrap()
        .unwrap()
        .unwrap();
    let Some(framework::event::Event::Subscribed(subscribed)) = first.event else {
        panic!("the first event is {first:?}");
    };
    tokio::spawn(async move { while stream.next().await.is_some() {} });
    framework::CallHeader {
        framework_id: subscribed.framework_id,
        incarnation: subscribed.incarnation,
        ..framework::CallHeader::default()
    }
}

pub(crate) async fn claim(
    master: &Master,
    header: &framework::CallHeader,
    id: &str,
    cpu_milli: u64,
) {
    let request = framework::UpdateDemandRequest {
        header: Some(header.clone()),
        version: 1,
        upsert: vec![types::Claim {
            id: id.to_owned(),
            role: "ml".to_owned(),
            shape: Some(types::Shape {
                cpu_milli,
                ..types::Shape::default()
            }),
            count: 3,
            labels: BTreeMap::from([("job".to_owned(), "train-41".to_owned())]),
            ..types::Claim::default()
        }],
        ..framework::UpdateDemandRequest::default()
    };
    let mut client = FrameworkServiceClient::new(master.channel.clone());
    client.update_demand(request).await.unwrap();
}
