//! A whole master on a real directory and a real port, with a scripted agent and framework.
#![expect(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

use std::path::Path;
use std::time::Duration;

use mete_broker::config::{Config, Storage};
use mete_broker::error::RunError;
use mete_broker::server::{Listeners, run};
use mete_model::Code;
use mete_proto::admin::v1 as admin;
use mete_proto::admin::v1::admin_service_client::AdminServiceClient;
use mete_proto::agent::v1 as agent;
use mete_proto::agent::v1::agent_message::Message as Says;
use mete_proto::agent::v1::agent_service_client::AgentServiceClient;
use mete_proto::agent::v1::master_message::Message as Hears;
use mete_proto::framework::v1 as wire;
use mete_proto::framework::v1::event::Event as What;
use mete_proto::framework::v1::framework_service_client::FrameworkServiceClient;
use mete_proto::types::v1 as types;
use tokio::net::TcpListener;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio_stream::StreamExt;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Channel;
use tonic::{Status, Streaming};
use tonic_types::StatusExt;

/// Longest time that anything here may take.
const DEADLINE: Duration = Duration::from_secs(30);

struct Running {
    channel: Channel,
    end: oneshot::Sender<()>,
    ended: JoinHandle<Result<(), RunError>>,
}

fn config(path: &Path) -> Config {
    Config::single(Storage::Directory {
        path: path.to_owned(),
        found: true,
    })
}

async fn start(path: &Path) -> Running {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (end, stop) = oneshot::channel::<()>();
    let listeners = Listeners {
        grpc: vec![listener],
    };
    let ended = tokio::spawn(run(config(path), listeners, async {
        let _ = stop.await;
    }));
    let endpoint = tonic::transport::Endpoint::from_shared(format!("http://{address}"));
    let channel = endpoint.unwrap().connect().await.unwrap();
    Running {
        channel,
        end,
        ended,
    }
}

impl Running {
    async fn stop(self) {
        self.end.send(()).unwrap();
        let ended = tokio::time::timeout(DEADLINE, self.ended).await;
        ended.unwrap().unwrap().unwrap();
    }

    fn frameworks(&self) -> FrameworkServiceClient<Channel> {
        FrameworkServiceClient::new(self.channel.clone())
    }

    async fn set_role(&self, path: &str) {
        let request = admin::SetRoleRequest {
            path: path.to_owned(),
            ..admin::SetRoleRequest::default()
        };
        AdminServiceClient::new(self.channel.clone())
            .set_role(request)
            .await
            .unwrap();
    }

    async fn join(
        &self,
        key: &str,
        runs: Vec<agent::HeldRun>,
    ) -> (
        mpsc::Sender<agent::AgentMessage>,
        Streaming<agent::MasterMessage>,
    ) {
        self.join_in_pages(key, vec![runs]).await
    }

    /// The last page goes with the hello.
    async fn join_in_pages(
        &self,
        key: &str,
        mut pages: Vec<Vec<agent::HeldRun>>,
    ) -> (
        mpsc::Sender<agent::AgentMessage>,
        Streaming<agent::MasterMessage>,
    ) {
        let (sender, receiver) = mpsc::channel(64);
        let runs = pages.pop().unwrap_or_default();
        for runs in pages {
            let page = Says::HeldRuns(agent::HeldRuns { runs });
            sender.send(says(page)).await.unwrap();
        }
        let total = types::Resources {
            cpu_milli: 4000,
            memory_bytes: 8 << 30,
            ..types::Resources::default()
        };
        let hello = Says::Hello(agent::Hello {
            node_key: key.to_owned(),
            node_name: "n1".to_owned(),
            inventory: Some(types::Inventory {
                total: Some(total),
                boot_id: "boot".to_owned(),
                ..types::Inventory::default()
            }),
            runs,
        });
        sender.send(says(hello)).await.unwrap();
        let mut client = AgentServiceClient::new(self.channel.clone());
        let stream = client.link(ReceiverStream::new(receiver)).await.unwrap();
        (sender, stream.into_inner())
    }

    async fn subscribe(&self, incarnation: u64) -> Result<Streaming<wire::Event>, Status> {
        let request = wire::SubscribeRequest {
            name: "f".to_owned(),
            roles: vec!["a".to_owned()],
            incarnation,
            ..wire::SubscribeRequest::default()
        };
        Ok(self.frameworks().subscribe(request).await?.into_inner())
    }
}

fn says(message: Says) -> agent::AgentMessage {
    agent::AgentMessage {
        message: Some(message),
    }
}

/// Reads a stream until `wanted` finds what it looks for.
async fn until<T, F>(
    stream: &mut Streaming<T>,
    what: &str,
    mut wanted: impl FnMut(T) -> Option<F>,
) -> F {
    let found = async {
        while let Some(item) = stream.next().await {
            if let Some(found) = wanted(item.unwrap()) {
                return found;
            }
        }
        panic!("the stream ended before {what}");
    };
    tokio::time::timeout(DEADLINE, found)
        .await
        .unwrap_or_else(|_| panic!("waited in vain for {what}"))
}

fn header(id: &str, incarnation: u64, call: u64) -> Option<wire::CallHeader> {
    Some(wire::CallHeader {
        framework_id: id.to_owned(),
        incarnation,
        call,
        answered: call.saturating_sub(1),
    })
}

fn demand(header: Option<wire::CallHeader>, version: u64) -> wire::UpdateDemandRequest {
    wire::UpdateDemandRequest {
        header,
        version,
        upsert: vec![types::Claim {
            id: "c".to_owned(),
            role: "a".to_owned(),
            shape: Some(types::Shape {
                cpu_milli: 1000,
                memory_bytes: 1 << 20,
                ..types::Shape::default()
            }),
            count: 1,
            ..types::Claim::default()
        }],
        remove: Vec::new(),
    }
}

fn reason(status: &Status) -> String {
    status.get_details_error_info().unwrap().reason
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_task_runs_and_a_restart_on_the_same_directory_forgets_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let master = start(folder.path()).await;
    master.set_role("a").await;
    let key = uuid::Uuid::new_v4().to_string();
    let (_agent, mut hears) = master.join(&key, Vec::new()).await;
    let mut events = master.subscribe(0).await.unwrap();
    let (id, incarnation) = until(&mut events, "Subscribed", |event| match event.event {
        Some(What::Subscribed(subscribed)) => {
            Some((subscribed.framework_id, subscribed.incarnation))
        }
        _ => None,
    })
    .await;
    let request = demand(header(&id, incarnation, 1), 1);
    master.frameworks().update_demand(request).await.unwrap();
    let offer = until(&mut events, "an offer", |event| match event.event {
        Some(What::Offers(offers)) => offers.offers.into_iter().next(),
        _ => None,
    })
    .await;
    let run = types::Run {
        task: "t".to_owned(),
        attempt: 1,
    };
    let accept = wire::AcceptRequest {
        header: header(&id, incarnation, 2),
        offers: vec![offer.id.unwrap()],
        launches: vec![wire::Launch {
            run: Some(run.clone()),
            claim: "c".to_owned(),
            resources: offer.resources,
            ..wire::Launch::default()
        }],
        specs: vec![types::TaskSpec {
            command: vec!["true".to_owned()],
            ..types::TaskSpec::default()
        }],
        ..wire::AcceptRequest::default()
    };
    let first = master
        .frameworks()
        .accept(accept.clone())
        .await
        .unwrap()
        .into_inner();
    assert_eq!(first.launches[0].verdict.as_ref().unwrap().code, "OK");
    until(&mut hears, "the start", |message| match message.message {
        Some(Hears::StartTasks(start)) => Some(start),
        _ => None,
    })
    .await;

    master.stop().await;
    let master = start(folder.path()).await;

    let again = master
        .frameworks()
        .accept(accept)
        .await
        .unwrap()
        .into_inner();
    assert_eq!(
        again, first,
        "the same call is answered the same by another life"
    );
    let (agent, mut hears) = master.join(&key, Vec::new()).await;
    let start = until(&mut hears, "the start again", |message| {
        match message.message {
            Some(Hears::StartTasks(start)) => Some(start),
            _ => None,
        }
    })
    .await;
    assert_eq!(
        start.tasks.len(),
        1,
        "what the agent never reported is owed to it"
    );
    let status = types::Status {
        run: Some(types::RunRef {
            framework_id: id.clone(),
            run: Some(run.clone()),
        }),
        sequence: 1,
        phase: types::TaskPhase::Running.into(),
        ..types::Status::default()
    };
    let statuses = agent::Statuses {
        statuses: vec![status],
    };
    agent.send(says(Says::Statuses(statuses))).await.unwrap();
    until(&mut hears, "the forget", |message| match message.message {
        Some(Hears::ForgetStatuses(forget)) => Some(forget),
        _ => None,
    })
    .await;
    let mut events = master.subscribe(incarnation).await.unwrap();
    let page = until(&mut events, "the snapshot", |event| match event.event {
        Some(What::Snapshot(page)) => Some(page),
        _ => None,
    })
    .await;
    assert_eq!(page.runs[0].unacknowledged.len(), 1);
    let acknowledge = wire::AcknowledgeRequest {
        header: header(&id, incarnation, 3),
        items: vec![wire::RunSequence {
            run: Some(run),
            sequence: 1,
        }],
    };
    let answer = master
        .frameworks()
        .acknowledge(acknowledge)
        .await
        .unwrap()
        .into_inner();
    assert_eq!(answer.items[0].code, "OK");
    master.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bad_calls_name_code_and_field_and_the_master_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let master = start(folder.path()).await;
    let mut client = master.frameworks();

    let refused = client.update_demand(demand(None, 1)).await.unwrap_err();
    assert_eq!(
        (refused.code(), reason(&refused).as_str()),
        (tonic::Code::InvalidArgument, "INVALID")
    );
    let fields = refused.get_details_bad_request().unwrap().field_violations;
    assert_eq!(fields[0].field, "header");

    let unknown = uuid::Uuid::new_v4().to_string();
    let refused = client
        .update_demand(demand(header(&unknown, 1, 1), 1))
        .await
        .unwrap_err();
    assert_eq!(reason(&refused), "NOT_FOUND");

    let refused = master.subscribe(0).await.unwrap_err();
    assert_eq!(
        (refused.code(), reason(&refused).as_str()),
        (tonic::Code::PermissionDenied, "DENIED")
    );

    let zero = wire::SubscribeRequest {
        name: "f".to_owned(),
        roles: vec!["a".to_owned()],
        failover_timeout_ms: Some(0),
        ..wire::SubscribeRequest::default()
    };
    let refused = client.subscribe(zero).await.unwrap_err();
    let fields = refused.get_details_bad_request().unwrap().field_violations;
    assert_eq!(fields[0].field, "failover_timeout_ms");

    let large = wire::StoreWriteRequest {
        header: header(&unknown, 1, 1),
        puts: vec![wire::StorePut {
            key: vec![1].into(),
            value: vec![0; 5 << 20].into(),
            expected: None,
        }],
        deletes: Vec::new(),
    };
    let refused = client.store_write(large).await.unwrap_err();
    assert_eq!(
        refused.code(),
        tonic::Code::OutOfRange,
        "larger than a message may be"
    );

    master.set_role("a").await;
    assert!(master.subscribe(0).await.is_ok());
    master.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_master_cannot_start_with_is_said_with_a_code() {
    let folder = tempfile::tempdir().unwrap();
    let master = start(folder.path()).await;
    master.set_role("a").await;

    let listener = || async { TcpListener::bind("127.0.0.1:0").await.unwrap() };
    let listeners = Listeners {
        grpc: vec![listener().await],
    };
    let second = run(config(folder.path()), listeners, std::future::pending()).await;
    let error = second.unwrap_err();
    assert_eq!(error.code, Code::StateLocked, "{error}");
    assert!(!error.next.is_empty());
    master.stop().await;

    let missing = Config::single(Storage::Directory {
        path: folder.path().join("nothing-here"),
        found: false,
    });
    let error = run(missing, Listeners::default(), std::future::pending())
        .await
        .unwrap_err();
    assert_eq!(error.code, Code::StateDirectory, "{error}");

    let open = TcpListener::bind("0.0.0.0:0").await.unwrap();
    let listeners = Listeners { grpc: vec![open] };
    let other = folder.path().join("other");
    let error = run(config(&other), listeners, std::future::pending())
        .await
        .unwrap_err();
    assert_eq!(error.code, Code::NotLoopback, "{error}");
}

#[tokio::test]
async fn an_agent_with_more_runs_than_a_message_holds_tells_and_hears_of_them_in_pages() {
    const RUNS: usize = 70_000;
    let directory = tempfile::tempdir().unwrap();
    let master = start(directory.path()).await;
    let held = |number: usize| agent::HeldRun {
        run: Some(types::RunRef {
            framework_id: "7b1c1f9a-0000-4000-8000-000000000001".to_owned(),
            run: Some(types::Run {
                task: format!("task-{number:06}"),
                attempt: 1,
            }),
        }),
        phase: types::TaskPhase::Running.into(),
        last_sequence: 1,
    };
    let all: Vec<agent::HeldRun> = (0..RUNS).map(held).collect();
    let pages: Vec<_> = all.chunks(7_000).map(<[_]>::to_vec).collect();
    assert!(pages.len() > 1);

    let key = uuid::Uuid::new_v4().to_string();
    let (_says, mut hears) = master.join_in_pages(&key, pages).await;

    let mut discarded = std::collections::BTreeSet::new();
    until(&mut hears, "every run to be discarded", |message| {
        assert!(prost::Message::encoded_len(&message) < 1 << 20);
        let runs = match message.message? {
            Hears::Welcome(welcome) => welcome.discard,
            Hears::DiscardRuns(discard) => discard.runs,
            Hears::StartTasks(_)
            | Hears::KillTasks(_)
            | Hears::ForgetStatuses(_)
            | Hears::Redirect(_)
            | Hears::Beacon(_) => Vec::new(),
        };
        discarded.extend(runs.into_iter().map(|run| run.run.unwrap().task));
        (discarded.len() == RUNS).then_some(())
    })
    .await;
    master.stop().await;
}
