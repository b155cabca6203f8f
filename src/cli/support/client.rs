//! Reaching the cluster: every master in turn, the leader's hint at once.

use std::future::Future;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use mete_model::Code;
use mete_proto::admin::v1::admin_service_client::AdminServiceClient;
use mete_proto::admin::v1::{Filter, GetRequest, Kind, ListRequest, Object};
use mete_proto::batch::v1::batch_service_client::BatchServiceClient;
use mete_proto::dial::{Dial, TcpDial};
use mete_proto::events::v1::event_service_client::EventServiceClient;
use mete_proto::explain::v1::explain_service_client::ExplainServiceClient;
use mete_proto::node::v1::node_service_client::NodeServiceClient;
use tonic::transport::Channel;
use tonic::{Response, Status};

use super::context;
use super::error::{CliError, Outcome};
use super::print::Style;
use super::reaching::{Nature, Reaching};
use crate::args::Globals;

/// Largest message.
const MOST_BYTES: usize = 4 << 20;

/// How long a framework that has just been started is waited for.
const SETTLE: Duration = Duration::from_secs(5);

/// A cluster that can be asked.
#[derive(Clone, Debug)]
pub struct Cluster {
    masters: Vec<String>,
    timeout: Duration,
    /// The connection that answered last.
    kept: Arc<Mutex<Option<Channel>>>,
    /// The master that is asked first, as a place in `masters`: not one that was of no use lately.
    first: Arc<AtomicUsize>,
}

impl Cluster {
    /// The cluster whose masters these are.
    #[must_use]
    pub fn new(masters: Vec<String>, timeout: Duration) -> Self {
        Self {
            masters,
            timeout,
            kept: Arc::default(),
            first: Arc::default(),
        }
    }

    /// How long an answer may take.
    #[must_use]
    pub fn timeout(&self) -> Duration {
        self.timeout
    }

    /// The same cluster, asked no longer than this.
    #[must_use]
    pub fn within(&self, longest: Duration) -> Self {
        Self {
            timeout: self.timeout.min(longest),
            ..self.clone()
        }
    }

    /// Keeps the connection that answered, or forgets it.
    pub(super) fn keep(&self, channel: Option<Channel>) {
        *self.kept.lock().unwrap_or_else(PoisonError::into_inner) = channel;
    }

    /// The connection that answered last.
    pub(super) fn kept(&self) -> Option<Channel> {
        let kept = self.kept.lock();
        kept.unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The place of the master that is asked next.
    pub(super) fn first(&self) -> usize {
        self.first.load(Ordering::Relaxed)
    }

    /// The master at this place was of no use.
    pub(super) fn pass_over(&self, place: usize) {
        let next = place.wrapping_add(1);
        self.first.store(next, Ordering::Relaxed);
    }

    /// The masters, for daemons that are given the same flags.
    #[must_use]
    pub fn masters(&self) -> &[String] {
        &self.masters
    }

    /// Makes a call that changes something, at the leader. It is sent again only where it surely
    /// had no effect.
    ///
    /// # Errors
    /// The refusal, or `UNREACHABLE`, or `TIMED_OUT`.
    pub async fn call<T, F>(&self, call: impl Fn(Channel) -> F) -> Outcome<T>
    where
        F: Future<Output = Result<Response<T>, Status>>,
    {
        self.reach(Nature::Change, call).await
    }

    /// Makes a call that changes nothing: it is asked again, at any master, while masters come and
    /// go. A stream is opened in this way, and then has no time limit.
    ///
    /// # Errors
    /// As [`Cluster::call`].
    pub async fn read<T, F>(&self, call: impl Fn(Channel) -> F) -> Outcome<T>
    where
        F: Future<Output = Result<Response<T>, Status>>,
    {
        self.reach(Nature::Read, call).await
    }

    async fn reach<T, F>(&self, nature: Nature, call: impl Fn(Channel) -> F) -> Outcome<T>
    where
        F: Future<Output = Result<Response<T>, Status>>,
    {
        let mut reaching = Reaching::new(self, nature);
        let answered = tokio::time::timeout(self.timeout, reaching.run(call)).await;
        answered.unwrap_or_else(|_late| {
            let sentence = format!("no answer within {:?}", self.timeout);
            let mut error = CliError::new(Code::TimedOut, sentence);
            let is_open = nature == Nature::Change && reaching.is_sent;
            match reaching.last {
                // It was refused for now until the end: nothing was done.
                Some(last) if last.is(Code::NoLeader) && !is_open => return Err(last),
                Some(last) => error = error.fact(last.sentence),
                None => {}
            }
            if is_open {
                error = error.fact("the call may still take effect; ask again to see");
            }
            Err(error.next("mete status --timeout 60s", "wait longer"))
        })
    }

    /// Rows of a kind, all pages.
    ///
    /// # Errors
    /// As [`Cluster::call`].
    pub async fn list(&self, kind: Kind, filter: Filter) -> Outcome<(u64, Vec<Object>)> {
        let mut objects = Vec::new();
        let mut page_token = String::new();
        loop {
            let request = ListRequest {
                kind: kind.into(),
                filter: Some(filter.clone()),
                page_token,
                page_size: 0,
                min_revision: 0,
                local: false,
            };
            let page = self
                .read(|channel| {
                    let request = request.clone();
                    async move { admin(channel).list(request).await }
                })
                .await?;
            objects.extend(page.objects);
            if page.next_page_token.is_empty() {
                return Ok((page.revision, objects));
            }
            page_token = page.next_page_token;
        }
    }

    /// One object by name or unique prefix.
    ///
    /// # Errors
    /// `NOT_FOUND`, `AMBIGUOUS`, or as [`Cluster::call`].
    pub async fn get(&self, kind: Kind, name: &str) -> Outcome<(u64, Object)> {
        let request = GetRequest {
            kind: kind.into(),
            name: name.to_owned(),
        };
        let response = self
            .read(|channel| {
                let request = request.clone();
                async move { admin(channel).get(request).await }
            })
            .await?;
        let missing = || CliError::new(Code::NotFound, format!("no '{name}'"));
        Ok((response.revision, response.object.ok_or_else(missing)?))
    }

    /// The batch framework, found by the service address it gave to the master. One that has just
    /// been started, or has just lost its master, is waited for.
    ///
    /// # Errors
    /// `FRAMEWORK_AWAY` when no batch framework is connected.
    pub async fn batch(&self) -> Outcome<BatchServiceClient<Channel>> {
        let until = tokio::time::Instant::now() + SETTLE.min(self.timeout);
        let address = loop {
            let found = self.batch_address().await;
            match found {
                Err(error)
                    if error.is(Code::FrameworkAway) && tokio::time::Instant::now() < until =>
                {
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
                found => break found?,
            }
        };
        let channel = TcpDial::default().dial(&address).await.map_err(|error| {
            let sentence = format!("the batch framework at {address} cannot be reached");
            CliError::new(Code::Unreachable, sentence).fact(root_cause(&error))
        })?;
        Ok(BatchServiceClient::new(channel)
            .max_decoding_message_size(MOST_BYTES)
            .max_encoding_message_size(MOST_BYTES))
    }

    async fn batch_address(&self) -> Outcome<String> {
        use mete_proto::admin::v1::object::Object as Row;
        let (_, objects) = self.list(Kind::Framework, Filter::default()).await?;
        let mut serving: Vec<(String, String)> = objects
            .into_iter()
            .filter_map(|object| match object.object {
                Some(Row::Framework(row)) if row.state == "connected" => Some(row),
                _ => None,
            })
            .filter(|row| !row.service_address.is_empty())
            .map(|row| (row.name, row.service_address))
            .collect();
        // One that is named as usual goes before others that serve something of their own.
        serving.sort_by_key(|(name, _)| name != "batch");
        serving
            .into_iter()
            .next()
            .map(|(_, address)| address)
            .ok_or_else(|| {
                CliError::new(Code::FrameworkAway, "no batch framework is connected")
                    .next("mete batch start", "start one for this cluster")
                    .next("mete framework list", "see which frameworks there are")
            })
    }

    /// A call to the batch framework, within the time an answer may take.
    ///
    /// # Errors
    /// The refusal, `FRAMEWORK_AWAY` when there is no batch framework, `TIMED_OUT`.
    pub async fn ask_batch<T, F>(
        &self,
        call: impl FnOnce(BatchServiceClient<Channel>) -> F,
    ) -> Outcome<T>
    where
        F: Future<Output = Result<Response<T>, Status>>,
    {
        let asked = async { Ok(call(self.batch().await?).await?.into_inner()) };
        tokio::time::timeout(self.timeout, asked)
            .await
            .unwrap_or_else(|_late| {
                let sentence =
                    format!("no answer of the batch framework within {:?}", self.timeout);
                Err(CliError::new(Code::TimedOut, sentence)
                    .fact("the call may still take effect; ask again to see"))
            })
    }
}

/// What a client command works with.
#[derive(Clone, Debug)]
pub struct Client {
    /// The cluster that is meant.
    pub cluster: Cluster,
    /// How to print.
    pub style: Style,
    /// The flags of every command.
    pub globals: Globals,
}

/// How long an answer may take when nothing is said.
const USUAL_TIMEOUT: Duration = Duration::from_secs(30);

impl Client {
    /// A client of the cluster that flags, environment and contexts mean.
    ///
    /// # Errors
    /// `NO_CONTEXT` when none is known.
    pub fn new(globals: &Globals) -> Outcome<Self> {
        let masters = context::masters(&globals.masters, globals.context.as_deref())?;
        let timeout = globals.timeout.map_or(USUAL_TIMEOUT, Duration::from);
        Ok(Self {
            cluster: Cluster::new(masters, timeout),
            style: Style::of(globals),
            globals: globals.clone(),
        })
    }

    /// For commands that wait: `--timeout` limits the waiting, not each answer.
    #[must_use]
    pub fn patient(mut self) -> Self {
        self.cluster.timeout = USUAL_TIMEOUT;
        self
    }
}

/// The node API of an agent.
///
/// # Errors
/// `UNREACHABLE`.
pub async fn node(address: &str) -> Outcome<NodeServiceClient<Channel>> {
    if address.is_empty() {
        return Err(CliError::new(
            Code::Unsupported,
            "its node serves no node API (simulated?)",
        ));
    }
    let channel = TcpDial::default().dial(address).await.map_err(|error| {
        CliError::new(
            Code::Unreachable,
            format!("the agent at {address} cannot be reached"),
        )
        .fact(root_cause(&error))
    })?;
    Ok(NodeServiceClient::new(channel).max_decoding_message_size(MOST_BYTES))
}

/// The admin service on a channel.
#[must_use]
pub fn admin(channel: Channel) -> AdminServiceClient<Channel> {
    AdminServiceClient::new(channel).max_decoding_message_size(MOST_BYTES)
}

/// The explain service on a channel.
#[must_use]
pub fn explain(channel: Channel) -> ExplainServiceClient<Channel> {
    ExplainServiceClient::new(channel).max_decoding_message_size(MOST_BYTES)
}

/// The event service on a channel.
#[must_use]
pub fn events(channel: Channel) -> EventServiceClient<Channel> {
    EventServiceClient::new(channel).max_decoding_message_size(MOST_BYTES)
}

/// The innermost cause: "connection refused" says more than "transport error".
pub(super) fn root_cause(error: &dyn std::error::Error) -> String {
    let mut last: &dyn std::error::Error = error;
    while let Some(source) = last.source() {
        last = source;
    }
    last.to_string()
}
