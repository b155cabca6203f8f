//! `mete.framework.v1`: decode, ask, encode.

use std::pin::Pin;

use mete_model::{Code, RunId};
use mete_proto::convert::{At, Faults, whole, write_run};
use mete_proto::framework::v1 as wire;
use mete_proto::framework::v1::framework_service_server::FrameworkService;
use mete_proto::types::v1::Verdict as WireVerdict;
use mete_state::{Caller, ItemVerdict, StoreVerdict, Verdict};
use tokio_stream::Stream;
use tonic::{Request, Response, Status};

use super::framework_pages as pages;
use super::framework_read as read;
use super::refusal::to_status;
use super::status;
use crate::handle::Handle;
use crate::request::{FrameworkAction, Refusal, Reply};
use crate::security::identity;
use crate::session::OUTBOX_BYTES;
use crate::session::framework::FrameworkQueue;
use crate::session::outbox::Outbox;

/// Keys of one read of the store.
const KEYS_OF_A_GET: usize = 8;

/// The service.
#[derive(Clone, Debug)]
pub struct Frameworks {
    handle: Handle,
}

impl Frameworks {
    /// A service behind this door.
    #[must_use]
    pub fn new(handle: Handle) -> Self {
        Self { handle }
    }

    /// Reads the whole request, asks, and gives what applied.
    async fn change<T>(
        &self,
        header: Option<wire::CallHeader>,
        request: T,
        read: impl FnOnce(T, &mut Faults) -> Option<FrameworkAction>,
    ) -> Result<(u64, Verdict), Status> {
        let asked = whole(|faults| {
            let caller = read::header(header, faults);
            let action = read(request, faults);
            Some((caller?, action?))
        });
        let (caller, action) = asked.map_err(|faults| status::invalid(&faults))?;
        match self.ask(caller, action).await? {
            Reply::Applied { revision, verdict } => Ok((revision, verdict)),
            Reply::Offers { .. } | Reply::ReadAt { .. } | Reply::HandedOver { .. } => Err(odd()),
        }
    }

    async fn ask(&self, caller: Caller, action: FrameworkAction) -> Result<Reply, Status> {
        let request = crate::request::Request::Framework { caller, action };
        self.handle
            .call(request)
            .await
            .map_err(|refusal| to_status(&refusal))
    }

    /// Compares the fence and finds the point from which the state may be read.
    async fn fence(&self, caller: Caller) -> Result<(), Status> {
        match self.ask(caller, FrameworkAction::Read).await? {
            Reply::ReadAt { .. } => Ok(()),
            Reply::Applied { .. } | Reply::Offers { .. } | Reply::HandedOver { .. } => Err(odd()),
        }
    }
}

/// The loop answered something that does not belong to the question.
fn odd() -> Status {
    status::refuse(
        Code::Internal,
        "the answer does not fit the call; please report this",
    )
}

fn verdicts(items: Vec<ItemVerdict>) -> Vec<WireVerdict> {
    let write = |item: ItemVerdict| verdict(item.code, item.detail);
    items.into_iter().map(write).collect()
}

fn verdict(code: Code, detail: String) -> WireVerdict {
    WireVerdict {
        code: code.as_str().to_owned(),
        detail,
        ..WireVerdict::default()
    }
}

type Events = Pin<Box<dyn Stream<Item = Result<wire::Event, Status>> + Send>>;

#[tonic::async_trait]
impl FrameworkService for Frameworks {
    type SubscribeStream = Events;

    async fn subscribe(
        &self,
        request: Request<wire::SubscribeRequest>,
    ) -> Result<Response<Events>, Status> {
        let principal = identity::principal(request.metadata());
        let asked = read::subscribe(request.into_inner(), principal);
        let asked = asked.map_err(|faults| status::invalid(&faults))?;
        let outbox = Outbox::new(FrameworkQueue::new(OUTBOX_BYTES));
        let (stream, listener) = self.handle.new_stream();
        // Before the question: if the caller goes away meanwhile, the loop hears of it.
        let reader = outbox.reader(listener);
        let subscribed = self.handle.subscribe(stream, asked, outbox).await;
        subscribed.map_err(|refusal| to_status(&refusal))?;
        Ok(Response::new(Box::pin(reader)))
    }

    async fn update_demand(
        &self,
        request: Request<wire::UpdateDemandRequest>,
    ) -> Result<Response<wire::UpdateDemandResponse>, Status> {
        let request = request.into_inner();
        let (header, version) = (request.header.clone(), request.version);
        let (revision, _) = self.change(header, request, read::update_demand).await?;
        Ok(Response::new(wire::UpdateDemandResponse {
            revision,
            version,
        }))
    }

    async fn accept(
        &self,
        request: Request<wire::AcceptRequest>,
    ) -> Result<Response<wire::AcceptResponse>, Status> {
        let mut request = request.into_inner();
        let header = request.header.take();
        let (revision, applied) = self.change(header, request, read::accept).await?;
        let Verdict::Launched(launches) = applied else {
            return Err(odd());
        };
        let launches = launches.into_iter().map(|launch| wire::LaunchVerdict {
            grant_id: launch.grant.map_or(0, |grant| grant.0),
            verdict: Some(verdict(launch.code, launch.detail)),
        });
        Ok(Response::new(wire::AcceptResponse {
            revision,
            launches: launches.collect(),
        }))
    }

    async fn decline(
        &self,
        request: Request<wire::DeclineRequest>,
    ) -> Result<Response<wire::DeclineResponse>, Status> {
        let mut request = request.into_inner();
        let header = request.header.take();
        let asked = whole(|faults| {
            let caller = read::header(header, faults);
            let action = read::decline(request, faults);
            Some((caller?, action?))
        });
        let (caller, action) = asked.map_err(|faults| status::invalid(&faults))?;
        match self.ask(caller, action).await? {
            Reply::Offers { verdicts: items } => Ok(Response::new(wire::DeclineResponse {
                offers: verdicts(items),
            })),
            Reply::Applied { .. } | Reply::ReadAt { .. } | Reply::HandedOver { .. } => Err(odd()),
        }
    }

    async fn suppress(
        &self,
        request: Request<wire::SuppressRequest>,
    ) -> Result<Response<wire::SuppressResponse>, Status> {
        let request = request.into_inner();
        let read = |roles: Vec<String>, faults: &mut Faults| read::suppress(&roles, true, faults);
        let (revision, _) = self.change(request.header, request.roles, read).await?;
        Ok(Response::new(wire::SuppressResponse { revision }))
    }

    async fn revive(
        &self,
        request: Request<wire::ReviveRequest>,
    ) -> Result<Response<wire::ReviveResponse>, Status> {
        let request = request.into_inner();
        let read = |roles: Vec<String>, faults: &mut Faults| read::suppress(&roles, false, faults);
        let (revision, _) = self.change(request.header, request.roles, read).await?;
        Ok(Response::new(wire::ReviveResponse { revision }))
    }

    async fn update_framework(
        &self,
        request: Request<wire::UpdateFrameworkRequest>,
    ) -> Result<Response<wire::UpdateFrameworkResponse>, Status> {
        let mut request = request.into_inner();
        let header = request.header.take();
        let (revision, _) = self.change(header, request, read::update_framework).await?;
        Ok(Response::new(wire::UpdateFrameworkResponse { revision }))
    }

    async fn kill(
        &self,
        request: Request<wire::KillRequest>,
    ) -> Result<Response<wire::KillResponse>, Status> {
        let mut request = request.into_inner();
        let header = request.header.take();
        let (revision, applied) = self.change(header, request, read::kill).await?;
        let Verdict::Killed(items) = applied else {
            return Err(odd());
        };
        Ok(Response::new(wire::KillResponse {
            revision,
            runs: verdicts(items),
        }))
    }

    async fn acknowledge(
        &self,
        request: Request<wire::AcknowledgeRequest>,
    ) -> Result<Response<wire::AcknowledgeResponse>, Status> {
        let mut request = request.into_inner();
        let header = request.header.take();
        let (revision, applied) = self.change(header, request, read::acknowledge).await?;
        let Verdict::Acknowledged(items) = applied else {
            return Err(odd());
        };
        Ok(Response::new(wire::AcknowledgeResponse {
            revision,
            items: verdicts(items),
        }))
    }

    async fn reconcile(
        &self,
        request: Request<wire::ReconcileRequest>,
    ) -> Result<Response<wire::ReconcileResponse>, Status> {
        let request = request.into_inner();
        let token = request.page_token;
        let asked = whole(|faults| {
            let caller = read::header(request.header, faults);
            let runs = read::runs(request.runs, faults);
            Some((caller?, runs?))
        });
        let (caller, runs) = asked.map_err(|faults| status::invalid(&faults))?;
        let bad_token = || status::invalid_field("page_token", "is not one that was given out");
        let after: Option<RunId> = match token.as_str() {
            "" => None,
            token if runs.is_empty() => Some(token.parse().map_err(|_| bad_token())?),
            _ => None,
        };
        let from: usize = match token.as_str() {
            token if !token.is_empty() && !runs.is_empty() => {
                token.parse().map_err(|_| bad_token())?
            }
            _ => 0,
        };
        self.fence(caller).await?;
        let recovering = self.recovering().await?;
        let is_recovering = |agent| recovering.contains(&agent);
        let size = pages::page_size(request.page_size);
        let state = self.handle.state();
        let framework = caller.framework;
        let page = if runs.is_empty() {
            pages::all_runs(&state, framework, after.as_ref(), size, &is_recovering)
        } else {
            pages::named_runs(&state, framework, &runs, from, size, &is_recovering)
        };
        Ok(Response::new(page))
    }

    async fn store_get(
        &self,
        request: Request<wire::StoreGetRequest>,
    ) -> Result<Response<wire::StoreGetResponse>, Status> {
        let request = request.into_inner();
        let asked = whole(|faults| {
            let count = request.keys.len();
            if count == 0 || count > KEYS_OF_A_GET {
                let fault = format_args!("{count} are not within 1 to {KEYS_OF_A_GET}");
                faults.add(At::root("keys"), fault);
            }
            read::header(request.header, faults)
        });
        let caller = asked.map_err(|faults| status::invalid(&faults))?;
        self.fence(caller).await?;
        let state = self.handle.state();
        Ok(Response::new(pages::records(
            &state,
            caller.framework,
            &request.keys,
        )))
    }

    async fn store_list(
        &self,
        request: Request<wire::StoreListRequest>,
    ) -> Result<Response<wire::StoreListResponse>, Status> {
        let request = request.into_inner();
        let asked = whole(|faults| {
            let after = match request.page_token.as_str() {
                "" => Some(None),
                token => {
                    let key = pages::key_of(token);
                    if key.is_none() {
                        faults.add(At::root("page_token"), "is not one that was given out");
                    }
                    key.map(Some)
                }
            };
            Some((read::header(request.header, faults)?, after?))
        });
        let (caller, after) = asked.map_err(|faults| status::invalid(&faults))?;
        self.fence(caller).await?;
        let values = if request.keys_only {
            pages::Values::LeftOut
        } else {
            pages::Values::Sent
        };
        let size = pages::page_size(request.page_size);
        let state = self.handle.state();
        let after = after.as_deref();
        let framework = caller.framework;
        let page = pages::record_list(&state, framework, &request.prefix, after, size, values);
        Ok(Response::new(page))
    }

    async fn store_write(
        &self,
        request: Request<wire::StoreWriteRequest>,
    ) -> Result<Response<wire::StoreWriteResponse>, Status> {
        let mut request = request.into_inner();
        let header = request.header.take();
        let read = |request, _: &mut Faults| Some(read::store_write(request));
        let (revision, applied) = self.change(header, request, read).await?;
        let Verdict::StoreWritten(written) = applied else {
            return Err(odd());
        };
        Ok(Response::new(store_response(revision, written)))
    }

    async fn teardown(
        &self,
        request: Request<wire::TeardownRequest>,
    ) -> Result<Response<wire::TeardownResponse>, Status> {
        let header = request.into_inner().header;
        let read = |(), _: &mut Faults| Some(FrameworkAction::Teardown);
        let (revision, applied) = self.change(header, (), read).await?;
        let Verdict::TornDown(killing) = applied else {
            return Err(odd());
        };
        Ok(Response::new(wire::TeardownResponse {
            revision,
            killing: killing.iter().map(write_run).collect(),
        }))
    }
}

impl Frameworks {
    /// Agents that are known and not back since this leader took over.
    async fn recovering(&self) -> Result<std::collections::BTreeSet<mete_model::AgentId>, Status> {
        let look = |master: &crate::master::Master| {
            let leader = master.leader()?;
            Some(leader.recovering_agents().collect())
        };
        let recovering = self
            .handle
            .read(look)
            .await
            .map_err(|refusal| to_status(&refusal))?;
        recovering.ok_or_else(|| {
            let detail = "this master stopped leading meanwhile; ask the leader";
            to_status(&Refusal::new(Code::NoLeader, detail))
        })
    }
}

fn store_response(revision: u64, written: StoreVerdict) -> wire::StoreWriteResponse {
    match written {
        StoreVerdict::Written => wire::StoreWriteResponse {
            revision,
            verdict: Some(verdict(Code::Ok, String::new())),
            conflicts: Vec::new(),
        },
        StoreVerdict::Conflict(keys) => wire::StoreWriteResponse {
            revision,
            verdict: Some(verdict(
                Code::Conflict,
                format!(
                    "{} keys have another revision than expected; read them again",
                    keys.len()
                ),
            )),
            conflicts: keys
                .into_iter()
                .map(|(key, present)| wire::StoreItem {
                    key: key.into(),
                    found: present > 0,
                    revision: present,
                    ..wire::StoreItem::default()
                })
                .collect(),
        },
        StoreVerdict::Full {
            used,
            wanted,
            limit,
        } => wire::StoreWriteResponse {
            revision,
            verdict: Some(verdict(
                Code::StoreFull,
                format!(
                    "{used} bytes are in use, {wanted} would be, {limit} are permitted; \
                     delete records first"
                ),
            )),
            conflicts: Vec::new(),
        },
    }
}
