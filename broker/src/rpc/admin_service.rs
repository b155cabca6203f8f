//! `mete.admin.v1`: decode, ask, encode.

use std::collections::BTreeSet;
use std::sync::Arc;

use mete_model::{Code, OfferId, Span};
use mete_proto::admin::v1 as wire;
use mete_proto::admin::v1::admin_service_server::AdminService;
use mete_proto::convert::{
    At, Faults, read_amount, read_role, read_roles, read_run_ref, read_text, whole, write_run,
};
use mete_proto::types::v1::Verdict as WireVerdict;
use mete_state::{ItemVerdict, Verdict};
use tonic::metadata::MetadataMap;
use tonic::{Request, Response, Status};

use super::feed_stream::{Answers, NotTaken, Sink, stream};
use super::problem::from_problem;
use super::status;
use crate::admin::filter::Filter;
use crate::admin::watch::{Watch, cut};
use crate::admin::{Feed, Problem, cluster, one, views};
use crate::handle::Handle;
use crate::request::{OperatorAction, Reply};
use crate::security::identity;

/// Items of one call.
const ITEMS: usize = 10_000;

/// Largest weight of a role, in thousandths.
const LARGEST_WEIGHT: u32 = 1_000_000_000;

/// The service.
#[derive(Clone, Debug)]
pub struct Admin {
    handle: Handle,
    feed: Arc<Feed>,
}

impl Admin {
    /// A service behind this door.
    #[must_use]
    pub fn new(handle: Handle, feed: Arc<Feed>) -> Self {
        Self { handle, feed }
    }

    /// Asks the loop for a change, in the name of the caller.
    async fn change(
        &self,
        metadata: &MetadataMap,
        action: OperatorAction,
        dry_run: bool,
    ) -> Result<Reply, Status> {
        let request = crate::request::Request::Operator {
            actor: identity::actor(metadata),
            action,
            dry_run,
        };
        let reply = self.handle.call(request).await;
        reply.map_err(|refusal| super::refusal::to_status(&refusal))
    }

    async fn applied(
        &self,
        metadata: &MetadataMap,
        action: OperatorAction,
        dry_run: bool,
    ) -> Result<(u64, Verdict), Status> {
        match self.change(metadata, action, dry_run).await? {
            Reply::Applied { revision, verdict } => Ok((revision, verdict)),
            Reply::Offers { .. } | Reply::ReadAt { .. } | Reply::HandedOver { .. } => Err(odd()),
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

fn invalid(faults: Faults) -> Status {
    status::invalid(&faults)
}

fn verdict(item: ItemVerdict) -> WireVerdict {
    WireVerdict {
        code: item.code.as_str().to_owned(),
        detail: item.detail,
        ..WireVerdict::default()
    }
}

fn verdicts(items: Vec<ItemVerdict>) -> Vec<WireVerdict> {
    items.into_iter().map(verdict).collect()
}

fn too_many(count: usize, field: &str, faults: &mut Faults) -> bool {
    if count == 0 || count > ITEMS {
        faults.add(
            At::root(field),
            format_args!("{count} items are not within 1 to {ITEMS}"),
        );
        return true;
    }
    false
}

#[tonic::async_trait]
impl AdminService for Admin {
    type WatchStream = Answers<wire::WatchResponse>;

    async fn get_status(
        &self,
        request: Request<wire::GetStatusRequest>,
    ) -> Result<Response<wire::GetStatusResponse>, Status> {
        let local = request.into_inner().local;
        let answer = cluster::status(&self.handle, &self.feed, local).await;
        answer
            .map(Response::new)
            .map_err(|problem| from_problem(&problem))
    }

    async fn list(
        &self,
        request: Request<wire::ListRequest>,
    ) -> Result<Response<wire::ListResponse>, Status> {
        let answer = views::list(&self.handle, &self.feed, request.into_inner()).await;
        answer
            .map(Response::new)
            .map_err(|problem| from_problem(&problem))
    }

    async fn get(
        &self,
        request: Request<wire::GetRequest>,
    ) -> Result<Response<wire::GetResponse>, Status> {
        let request = request.into_inner();
        let kind = whole(|faults| {
            let kind = wire::Kind::try_from(request.kind).unwrap_or(wire::Kind::Unspecified);
            if kind == wire::Kind::Unspecified {
                let fault = format_args!("{} is not a kind of objects: 1 to 6 are", request.kind);
                faults.add(At::root("kind"), fault);
            }
            if request.name.is_empty() {
                faults.add(At::root("name"), "must be given");
            }
            read_text(request.name.clone(), 1024, At::root("name"), faults)?;
            Some(kind)
        });
        let kind = kind.map_err(invalid)?;
        let answer = one::get(&self.handle, &self.feed, kind, &request.name).await;
        answer
            .map(Response::new)
            .map_err(|problem| from_problem(&problem))
    }

    async fn watch(
        &self,
        request: Request<wire::WatchRequest>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        let request = request.into_inner();
        let read = whole(|faults| {
            let mut kinds = BTreeSet::new();
            for (index, kind) in request.kinds.iter().enumerate() {
                match wire::Kind::try_from(*kind) {
                    Ok(wire::Kind::Unspecified) | Err(_) => {
                        let fault = format_args!("{kind} is not a kind of objects: 1 to 5 are");
                        faults.add(At::root("kinds").index(index), fault);
                    }
                    Ok(wire::Kind::Offer) => {
                        let fault = "offers are not in the log and cannot be watched; list them";
                        faults.add(At::root("kinds").index(index), fault);
                    }
                    Ok(_) => {
                        kinds.insert(*kind);
                    }
                }
            }
            Some((kinds, Filter::read(request.filter, faults)?))
        });
        let (kinds, filter) = read.map_err(invalid)?;
        let (handle, feed) = (self.handle.clone(), Arc::clone(&self.feed));
        let watch = Watch::begin(&handle, &feed, kinds, filter, request.from_revision)
            .map_err(|problem| from_problem(&problem))?;
        let answers = stream(move |sink| feed_watch(handle, feed, watch, sink));
        Ok(Response::new(answers))
    }

    async fn set_role(
        &self,
        request: Request<wire::SetRoleRequest>,
    ) -> Result<Response<wire::SetRoleResponse>, Status> {
        let (metadata, _, request) = request.into_parts();
        let path = whole(|faults| {
            if request
                .weight_milli
                .is_some_and(|weight| weight > LARGEST_WEIGHT)
            {
                let fault = format_args!("is not within 0 to {LARGEST_WEIGHT}");
                faults.add(At::root("weight_milli"), fault);
            }
            read_role(&request.path, At::root("path"), faults)
        });
        let action = OperatorAction::SetRole {
            path: path.map_err(invalid)?,
            weight_milli: request.weight_milli,
        };
        let (revision, verdict) = self.applied(&metadata, action, request.dry_run).await?;
        let created = matches!(verdict, Verdict::RoleSet { created: true });
        Ok(Response::new(wire::SetRoleResponse { revision, created }))
    }

    async fn remove_role(
        &self,
        request: Request<wire::RemoveRoleRequest>,
    ) -> Result<Response<wire::RemoveRoleResponse>, Status> {
        let (metadata, _, request) = request.into_parts();
        let path = whole(|faults| read_role(&request.path, At::root("path"), faults));
        let action = OperatorAction::RemoveRole {
            path: path.map_err(invalid)?,
        };
        let (revision, _) = self.applied(&metadata, action, request.dry_run).await?;
        Ok(Response::new(wire::RemoveRoleResponse { revision }))
    }

    async fn kill_tasks(
        &self,
        request: Request<wire::KillTasksRequest>,
    ) -> Result<Response<wire::KillTasksResponse>, Status> {
        let (metadata, _, request) = request.into_parts();
        let dry_run = request.dry_run;
        let count = request.runs.len();
        let action = whole(|faults| {
            if too_many(request.runs.len(), "runs", faults) {
                return None;
            }
            let list = At::root("runs");
            let mut runs = Vec::with_capacity(request.runs.len());
            for (index, run) in request.runs.into_iter().enumerate() {
                runs.extend(read_run_ref(Some(run), list.index(index), faults));
            }
            let reason = read_text(request.reason, 4096, At::root("reason"), faults)?;
            let grace = match request.grace_ms {
                None => None,
                Some(grace) => Some(Span(read_amount(grace, At::root("grace_ms"), faults)?)),
            };
            Some(OperatorAction::KillTasks {
                runs,
                grace,
                reason,
            })
        });
        let action = action.map_err(invalid)?;
        let (revision, verdict) = self.applied(&metadata, action, dry_run).await?;
        let runs = match verdict {
            Verdict::Killed(items) => verdicts(items),
            // A dry run that would change something says so for all together.
            Verdict::Done if dry_run => (0..count).map(|_| ok()).collect(),
            Verdict::Done
            | Verdict::Admitted { .. }
            | Verdict::Subscribed { .. }
            | Verdict::Launched(_)
            | Verdict::Acknowledged(_)
            | Verdict::StoreWritten(_)
            | Verdict::TornDown(_)
            | Verdict::MasterAdded { .. }
            | Verdict::RoleSet { .. } => return Err(odd()),
        };
        Ok(Response::new(wire::KillTasksResponse { revision, runs }))
    }

    async fn set_framework(
        &self,
        request: Request<wire::SetFrameworkRequest>,
    ) -> Result<Response<wire::SetFrameworkResponse>, Status> {
        let (metadata, _, request) = request.into_parts();
        let lists = whole(|faults| {
            let suppress = read_roles(&request.suppress, At::root("suppress"), faults);
            let revive = read_roles(&request.revive, At::root("revive"), faults);
            if request.suppress.is_empty() && request.revive.is_empty() {
                faults.add(
                    At::root("suppress"),
                    "nothing to do: name roles to suppress or revive",
                );
            }
            Some((suppress?, revive?))
        });
        let (suppress, revive) = lists.map_err(invalid)?;
        let framework = one::framework(&self.handle, "framework", &request.framework)
            .map_err(|problem| from_problem(&problem))?;
        let action = OperatorAction::SuppressFramework {
            framework,
            suppress,
            revive,
        };
        let (revision, _) = self.applied(&metadata, action, request.dry_run).await?;
        Ok(Response::new(wire::SetFrameworkResponse { revision }))
    }

    async fn remove_framework(
        &self,
        request: Request<wire::RemoveFrameworkRequest>,
    ) -> Result<Response<wire::RemoveFrameworkResponse>, Status> {
        let (metadata, _, request) = request.into_parts();
        let framework = one::framework(&self.handle, "framework", &request.framework)
            .map_err(|problem| from_problem(&problem))?;
        let action = OperatorAction::RemoveFramework { framework };
        let (revision, verdict) = self.applied(&metadata, action, request.dry_run).await?;
        let killing = if let Verdict::TornDown(killing) = verdict {
            killing
        } else {
            one::still_ending(&self.handle, framework)
        };
        Ok(Response::new(wire::RemoveFrameworkResponse {
            revision,
            killing: killing.iter().map(write_run).collect(),
        }))
    }

    async fn rescind_offers(
        &self,
        request: Request<wire::RescindOffersRequest>,
    ) -> Result<Response<wire::RescindOffersResponse>, Status> {
        let (metadata, _, request) = request.into_parts();
        let offers = whole(|faults| {
            if too_many(request.offers.len(), "offers", faults) {
                return None;
            }
            let list = At::root("offers");
            let mut offers: Vec<OfferId> = Vec::with_capacity(request.offers.len());
            for (index, offer) in request.offers.iter().enumerate() {
                match offer.parse() {
                    Ok(offer) => offers.push(offer),
                    Err(error) => {
                        let error: mete_model::text::BadText = error;
                        faults.add(list.index(index), error);
                    }
                }
            }
            Some(offers)
        });
        let action = OperatorAction::RescindOffers {
            offers: offers.map_err(invalid)?,
        };
        match self.change(&metadata, action, request.dry_run).await? {
            Reply::Offers { verdicts: items } => Ok(Response::new(wire::RescindOffersResponse {
                offers: verdicts(items),
            })),
            Reply::Applied { .. } | Reply::ReadAt { .. } | Reply::HandedOver { .. } => Err(odd()),
        }
    }

    async fn get_raft(
        &self,
        _request: Request<wire::GetRaftRequest>,
    ) -> Result<Response<wire::GetRaftResponse>, Status> {
        let answer = cluster::raft(&self.handle).await;
        answer
            .map(Response::new)
            .map_err(|problem| from_problem(&problem))
    }

    async fn remove_node(
        &self,
        request: Request<wire::RemoveNodeRequest>,
    ) -> Result<Response<wire::RemoveNodeResponse>, Status> {
        let (metadata, _, request) = request.into_parts();
        let agent = one::node(&self.handle, "node", &request.node)
            .map_err(|problem| from_problem(&problem))?;
        let runs = one::runs_on(&self.handle, agent);
        let action = OperatorAction::RemoveNode { agent };
        let (revision, _) = self.applied(&metadata, action, request.dry_run).await?;
        Ok(Response::new(wire::RemoveNodeResponse {
            revision,
            runs_lost: u32::try_from(runs).unwrap_or(u32::MAX),
        }))
    }

    async fn add_master(
        &self,
        request: Request<wire::AddMasterRequest>,
    ) -> Result<Response<wire::AddMasterResponse>, Status> {
        let (metadata, _, request) = request.into_parts();
        let action = OperatorAction::AddMaster {
            address: request.address,
            learner: request.learner,
            replaces: Some(request.replaces).filter(|node| *node != 0),
            above: 0,
        };
        let (revision, verdict) = self.applied(&metadata, action, request.dry_run).await?;
        let raft = cluster::raft(&self.handle).await;
        let raft = raft.map_err(|problem| from_problem(&problem))?;
        let id = if let Verdict::MasterAdded { node } = verdict {
            node
        } else {
            // Of a dry run.
            0
        };
        Ok(Response::new(wire::AddMasterResponse {
            revision,
            id,
            cluster_id: raft.cluster_id,
        }))
    }

    async fn promote_master(
        &self,
        request: Request<wire::PromoteMasterRequest>,
    ) -> Result<Response<wire::PromoteMasterResponse>, Status> {
        let (metadata, _, request) = request.into_parts();
        let action = OperatorAction::PromoteMaster { node: request.id };
        let (revision, _) = self.applied(&metadata, action, request.dry_run).await?;
        Ok(Response::new(wire::PromoteMasterResponse { revision }))
    }

    async fn remove_master(
        &self,
        request: Request<wire::RemoveMasterRequest>,
    ) -> Result<Response<wire::RemoveMasterResponse>, Status> {
        let (metadata, _, request) = request.into_parts();
        let action = OperatorAction::RemoveMaster { node: request.id };
        let (revision, _) = self.applied(&metadata, action, request.dry_run).await?;
        Ok(Response::new(wire::RemoveMasterResponse { revision }))
    }

    async fn transfer_leadership(
        &self,
        request: Request<wire::TransferLeadershipRequest>,
    ) -> Result<Response<wire::TransferLeadershipResponse>, Status> {
        let (metadata, _, request) = request.into_parts();
        let to = Some(request.to).filter(|node| *node != 0);
        let action = OperatorAction::HandOver { to };
        // The answer goes out before the office does: whether this master has it is asked first.
        let present = views::at_present(&self.handle).await;
        present.map_err(|problem| from_problem(&problem))?;
        match self.change(&metadata, action, request.dry_run).await? {
            Reply::HandedOver { to } => Ok(Response::new(wire::TransferLeadershipResponse { to })),
            Reply::Applied { .. } | Reply::Offers { .. } | Reply::ReadAt { .. } => Err(odd()),
        }
    }
}

fn ok() -> WireVerdict {
    WireVerdict {
        code: Code::Ok.as_str().to_owned(),
        ..WireVerdict::default()
    }
}

/// Sends what a watch finds until its reader goes away or does not keep up.
async fn feed_watch(
    handle: Handle,
    feed: Arc<Feed>,
    mut watch: Watch,
    sink: Sink<wire::WatchResponse>,
) -> Result<(), Status> {
    loop {
        let sent = watch.sent();
        let found = tokio::select! {
            found = watch.next(&handle, &feed) => found,
            () = sink.closed() => return Ok(()),
        };
        let message = found.map_err(|problem| from_problem(&problem))?;
        for part in cut(message, sent) {
            match sink.send(part).await {
                Ok(()) => {}
                Err(NotTaken::Gone) => return Ok(()),
                Err(NotTaken::Slow) => {
                    return Err(from_problem(&Problem::Slow { resume: sent }));
                }
            }
        }
    }
}
