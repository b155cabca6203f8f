//! etcd as the reference: three members as processes, and the two calls that are needed of its API.

use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use mete_model::Code;
use tokio::process::{Child, Command};
use tonic::client::Grpc;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::Channel;
use tonic::{Request, Status};
use tonic_prost::ProstCodec;

use super::dial;
use crate::cli::support::error::{CliError, Outcome};

/// Longest time until the members have a leader.
const READY: Duration = Duration::from_secs(60);

/// Between two looks.
const LOOK_AGAIN: Duration = Duration::from_millis(50);

/// The part of its messages that is used. Tags as published with its API.
#[derive(Clone, PartialEq, prost::Message)]
struct PutRequest {
    #[prost(bytes = "vec", tag = "1")]
    key: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    value: Vec<u8>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct PutResponse {}

#[derive(Clone, PartialEq, prost::Message)]
struct StatusRequest {}

#[derive(Clone, PartialEq, prost::Message)]
struct StatusResponse {
    #[prost(message, optional, tag = "1")]
    header: Option<ResponseHeader>,
    #[prost(uint64, tag = "4")]
    leader: u64,
}

#[derive(Clone, PartialEq, prost::Message)]
struct ResponseHeader {
    #[prost(uint64, tag = "2")]
    member_id: u64,
}

async fn call<Q, A>(channel: Channel, path: &'static str, request: Q) -> Result<A, Status>
where
    Q: prost::Message + Send + Sync + 'static,
    A: prost::Message + Default + Send + Sync + 'static,
{
    let mut client = Grpc::new(channel);
    let ready = client.ready().await;
    ready.map_err(|error| Status::unavailable(error.to_string()))?;
    let path = PathAndQuery::from_static(path);
    let answer = client.unary(Request::new(request), path, ProstCodec::default());
    answer.await.map(tonic::Response::into_inner)
}

/// Writes one key; answered when it is on the disks of a majority.
///
/// # Errors
/// What etcd says.
pub(super) async fn put(channel: Channel, key: Vec<u8>, value: Vec<u8>) -> Result<(), Status> {
    let request = PutRequest { key, value };
    let answered: PutResponse = call(channel, "/etcdserverpb.KV/Put", request).await?;
    let PutResponse {} = answered;
    Ok(())
}

/// Members that end when this is dropped.
#[derive(Debug)]
pub(super) struct Etcd {
    addresses: Vec<String>,
    _members: Vec<Child>,
}

impl Etcd {
    /// Starts a cluster below `home`; nothing if there is no etcd on the path.
    ///
    /// # Errors
    /// It is there and does not start.
    pub(super) async fn start(home: &Path, count: usize) -> Outcome<Option<Self>> {
        let known = Command::new("etcd")
            .arg("--version")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()
            .await;
        if !known.is_ok_and(|status| status.success()) {
            return Ok(None);
        }
        let mut ports = Vec::new();
        for _ in 0..2 * count {
            let listener = crate::daemon::bind("127.0.0.1:0", false).await?;
            let port = listener.local_addr().map(|address| address.port());
            ports.push((port.unwrap_or(0), listener));
        }
        let ports: Vec<u16> = ports.into_iter().map(|(port, _)| port).collect();
        let (for_clients, for_peers) = ports.split_at(count);
        let all: Vec<String> = (1..)
            .zip(for_peers)
            .map(|(number, port)| format!("e{number}=http://127.0.0.1:{port}"))
            .collect();
        let mut members = Vec::new();
        for (number, (client, peer)) in (1..).zip(for_clients.iter().zip(for_peers)) {
            let (client, peer) = (
                format!("http://127.0.0.1:{client}"),
                format!("http://127.0.0.1:{peer}"),
            );
            let member = Command::new("etcd")
                .args(["--name", &format!("e{number}"), "--pre-vote"])
                .arg("--data-dir")
                .arg(home.join(format!("etcd{number}")))
                .args(["--listen-client-urls", &client])
                .args(["--advertise-client-urls", &client])
                .args(["--listen-peer-urls", &peer])
                .args(["--initial-advertise-peer-urls", &peer])
                .args(["--initial-cluster", &all.join(",")])
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .kill_on_drop(true)
                .spawn();
            let failed = |error| CliError::new(Code::File, format!("start etcd: {error}"));
            members.push(member.map_err(failed)?);
        }
        let addresses = for_clients.iter().map(|port| format!("127.0.0.1:{port}"));
        Ok(Some(Self {
            addresses: addresses.collect(),
            _members: members,
        }))
    }

    /// Where its leader listens.
    ///
    /// # Errors
    /// `TIMED_OUT`.
    pub(super) async fn leader(&self) -> Outcome<String> {
        let begun = Instant::now();
        while begun.elapsed() < READY {
            for address in &self.addresses {
                let Ok(channel) = dial(address).await else {
                    continue;
                };
                let path = "/etcdserverpb.Maintenance/Status";
                let status: Result<StatusResponse, _> = call(channel, path, StatusRequest {}).await;
                if let Ok(StatusResponse { header, leader }) = status
                    && leader != 0
                    && header.is_some_and(|header| header.member_id == leader)
                {
                    return Ok(address.clone());
                }
            }
            tokio::time::sleep(LOOK_AGAIN).await;
        }
        Err(CliError::new(Code::TimedOut, "etcd does not find a leader"))
    }
}
