//! `mete bench commit`: small writes, durable on a majority before they are answered, through
//! three masters, beside etcd in the same run.
//!
//! Both are three processes on loopback with fsync; the same clients write 256 bytes to the leader
//! over the same number of connections, each waiting for its answer before the next. Rounds
//! alternate, and the ratio is that of rounds beside each other. etcd comes from the path; without
//! it only our own figures are measured, and the output says so.

mod etcd;

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use mete_model::Code;
use mete_proto::dial::{Dial, TcpDial};
use mete_proto::framework::v1 as wire;
use mete_proto::framework::v1::framework_service_client::FrameworkServiceClient;
use tonic::transport::Channel;

use super::masters::Masters;
use super::{Figures, Home, decimal, percentile, usage};
use crate::cli::support::error::{CliError, Outcome};
use etcd::Etcd;

/// Bytes of one write.
pub(super) const PAYLOAD: usize = 256;

/// Connections at the most.
const CONNECTIONS: usize = 16;

/// Masters, and members of etcd.
const MEMBERS: usize = 3;

/// How large the bench is.
#[derive(Clone, Copy, Debug)]
pub struct Size {
    /// Writes that are under way at once.
    pub clients: u32,
    /// How long one round writes.
    pub round: Duration,
    /// Rounds of each.
    pub rounds: u32,
}

/// What one round measured.
#[derive(Debug, Default)]
pub(super) struct Round {
    per_second: f64,
    /// Milliseconds of each write.
    latencies: Vec<f64>,
}

impl Round {
    /// How many were acknowledged.
    pub(super) fn writes(&self) -> u64 {
        u64::try_from(self.latencies.len()).unwrap_or(u64::MAX)
    }
}

/// Measures.
///
/// # Errors
/// Sizes that cannot be, or a part that failed.
pub async fn run(size: Size) -> Outcome<Figures> {
    if !(1..=4_096).contains(&size.clients) || size.rounds == 0 || size.round.is_zero() {
        return Err(usage(
            "--clients is within 1 to 4096, --rounds and --seconds start at 1",
        ));
    }
    let home = Home::make()?;
    measure(size, &home.0).await
}

async fn measure(size: Size, home: &Path) -> Outcome<Figures> {
    let masters = Masters::start(home, MEMBERS).await?;
    masters.make_role().await?;
    let ours = Ours::connect(&masters, size.clients).await?;
    let theirs = Theirs::start(home, size.clients).await?;
    let term = masters.settled().await?;
    let (mut own, mut other, mut ratios) = (Round::default(), Round::default(), Vec::new());
    for _ in 0..size.rounds {
        let mut round = ours.round(size).await?;
        let per_second = round.per_second;
        own.per_second += per_second;
        own.latencies.append(&mut round.latencies);
        if let Some(theirs) = &theirs {
            let mut round = theirs.round(size).await?;
            other.per_second += round.per_second;
            other.latencies.append(&mut round.latencies);
            ratios.push(per_second / round.per_second);
        }
    }
    let rounds = f64::from(size.rounds);
    let mut figures = Figures::default();
    figures.put("clients", size.clients);
    figures.put("ops_per_s", decimal(own.per_second / rounds));
    figures.put("p50_ms", decimal(percentile(&mut own.latencies, 50)));
    figures.put("p99_ms", decimal(percentile(&mut own.latencies, 99)));
    if theirs.is_some() {
        figures.put("etcd_ops_per_s", decimal(other.per_second / rounds));
        figures.put("etcd_p50_ms", decimal(percentile(&mut other.latencies, 50)));
        figures.put("etcd_p99_ms", decimal(percentile(&mut other.latencies, 99)));
        figures.put("ratio", decimal(percentile(&mut ratios, 50)));
        figures.put("ratio_least", decimal(percentile(&mut ratios, 0)));
        figures.put("ratio_most", decimal(percentile(&mut ratios, 100)));
    } else {
        figures.put("etcd", "not on the path: apt-get install etcd-server");
    }
    figures.put("payload_bytes", PAYLOAD);
    figures.put("rounds", size.rounds);
    figures.put("leader_kept", masters.leader().await == Some(term));
    Ok(figures)
}

/// Runs `clients` writers until the round is over. `write` gets the writer's number and a count.
async fn writers<W, F>(size: Size, write: W) -> Outcome<Round>
where
    W: Fn(usize, u64) -> F + Send + Sync + 'static,
    F: Future<Output = Outcome> + Send,
{
    let began = Instant::now();
    let ends = began + size.round;
    let mut running = tokio::task::JoinSet::new();
    let write = Arc::new(write);
    for client in 0..usize::try_from(size.clients).unwrap_or(usize::MAX) {
        let write = Arc::clone(&write);
        running.spawn(async move {
            let mut latencies = Vec::new();
            let mut count = 0;
            while Instant::now() < ends {
                let sent = Instant::now();
                write(client, count).await?;
                latencies.push(sent.elapsed().as_secs_f64() * 1000.0);
                count += 1;
            }
            Ok::<_, CliError>(latencies)
        });
    }
    let mut round = Round::default();
    while let Some(done) = running.join_next().await {
        let done = done.map_err(|error| CliError::new(Code::Internal, error.to_string()));
        round.latencies.append(&mut done??);
    }
    let writes = u32::try_from(round.latencies.len()).unwrap_or(u32::MAX);
    round.per_second = f64::from(writes) / began.elapsed().as_secs_f64();
    Ok(round)
}

fn connections(clients: u32) -> usize {
    usize::try_from(clients).map_or(CONNECTIONS, |clients| clients.min(CONNECTIONS))
}

async fn dial(address: &str) -> Outcome<Channel> {
    let channel = TcpDial::default().dial(address).await;
    channel.map_err(|error| CliError::new(Code::Unreachable, format!("dial {address}: {error}")))
}

fn failed(status: &tonic::Status) -> CliError {
    CliError::new(Code::Internal, format!("a write failed: {status}"))
}

/// Clients of our masters: each connection is a framework that writes into its own store.
#[derive(Debug)]
pub(super) struct Ours {
    frameworks: Vec<(FrameworkServiceClient<Channel>, wire::CallHeader)>,
    /// Streams that keep the frameworks connected.
    _streams: Vec<tonic::Streaming<wire::Event>>,
}

impl Ours {
    /// Connects as many as the clients need.
    ///
    /// # Errors
    /// The refusal.
    pub(super) async fn connect(masters: &Masters, clients: u32) -> Outcome<Self> {
        let leader = masters.settled().await?;
        let address = masters.addresses.get(leader).cloned().unwrap_or_default();
        let (mut frameworks, mut streams) = (Vec::new(), Vec::new());
        for number in 0..connections(clients) {
            let mut client = FrameworkServiceClient::new(dial(&address).await?);
            let request = wire::SubscribeRequest {
                name: format!("commit-{number}"),
                roles: vec!["dev".to_owned()],
                ..wire::SubscribeRequest::default()
            };
            let stream = client.subscribe(request).await;
            let mut stream = stream.map_err(|status| failed(&status))?.into_inner();
            let header = loop {
                let event = stream.message().await.map_err(|status| failed(&status))?;
                let event = event.and_then(|event| event.event);
                if let Some(wire::event::Event::Subscribed(subscribed)) = event {
                    break wire::CallHeader {
                        framework_id: subscribed.framework_id,
                        incarnation: subscribed.incarnation,
                        ..wire::CallHeader::default()
                    };
                }
            };
            frameworks.push((client, header));
            streams.push(stream);
        }
        Ok(Self {
            frameworks,
            _streams: streams,
        })
    }

    /// Writes for one round.
    ///
    /// # Errors
    /// A write that failed.
    pub(super) async fn round(&self, size: Size) -> Outcome<Round> {
        let frameworks = self.frameworks.clone();
        let count = frameworks.len().max(1);
        writers(size, move |client, number| {
            let chosen = frameworks.get(client % count).cloned();
            async move {
                let Some((mut framework, header)) = chosen else {
                    return Ok(());
                };
                let request = wire::StoreWriteRequest {
                    header: Some(header),
                    puts: vec![wire::StorePut {
                        key: key(client, number).into(),
                        value: vec![7; PAYLOAD].into(),
                        expected: None,
                    }],
                    deletes: Vec::new(),
                };
                let written = framework.store_write(request).await;
                written.map(drop).map_err(|status| failed(&status))
            }
        })
        .await
    }
}

/// A bounded set of keys, so that neither side's data grows with the speed.
fn key(client: usize, number: u64) -> Vec<u8> {
    format!("k{client}-{}", number % 100).into_bytes()
}

/// Clients of etcd.
struct Theirs {
    _members: Etcd,
    clients: Vec<Channel>,
}

impl Theirs {
    async fn start(home: &Path, clients: u32) -> Outcome<Option<Self>> {
        let Some(members) = Etcd::start(home, MEMBERS).await? else {
            return Ok(None);
        };
        let address = members.leader().await?;
        let mut channels = Vec::new();
        for _ in 0..connections(clients) {
            channels.push(dial(&address).await?);
        }
        Ok(Some(Self {
            _members: members,
            clients: channels,
        }))
    }

    async fn round(&self, size: Size) -> Outcome<Round> {
        let clients = self.clients.clone();
        let count = clients.len().max(1);
        writers(size, move |client, number| {
            let chosen = clients.get(client % count).cloned();
            async move {
                let Some(channel) = chosen else {
                    return Ok(());
                };
                let put = etcd::put(channel, key(client, number), vec![7; PAYLOAD]).await;
                put.map_err(|status| failed(&status))
            }
        })
        .await
    }
}
