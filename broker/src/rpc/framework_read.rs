//! Frameworks' requests from the wire: every wrong field is named, nothing is silently dropped.

use std::sync::Arc;

use mete_model::{RunId, Span};
use mete_proto::convert::{
    At, Faults, read_claim_id, read_claims, read_framework, read_labels, read_offer_id,
    read_resources, read_role, read_roles, read_run, read_spec, read_text, whole,
};
use mete_proto::framework::v1 as wire;
use mete_proto::types::v1 as types;
use mete_state::Caller;
use mete_state::command::{FrameworkSettings, StoreDelete, StorePut};
use mete_state::limits::{ITEMS_OF_A_CALL, TASKS_OF_A_LAUNCH};

use crate::event::SubscribeRequest;
use crate::leader::accept::OFFERS_OF_AN_ACCEPT;
use crate::request::{Accept, AcceptLaunch, FrameworkAction, Refuse};

/// How long a framework's tasks live without it when it does not say.
pub(super) const FAILOVER_TIMEOUT: Span = Span::days(7);

/// Longest text that says why.
const LONGEST_REASON: usize = 4096;

/// Distinct specs in one accept.
const SPECS_OF_AN_ACCEPT: usize = TASKS_OF_A_LAUNCH;

pub(super) fn header(header: Option<wire::CallHeader>, faults: &mut Faults) -> Option<Caller> {
    let at = At::root("header");
    let Some(header) = header else {
        faults.add(at, "must be given");
        return None;
    };
    let framework = read_framework(&header.framework_id, at.field("framework_id"), faults);
    if header.incarnation == 0 {
        faults.add(
            at.field("incarnation"),
            "0 is not one: take it from Subscribed",
        );
    }
    Some(Caller {
        framework: framework?,
        incarnation: header.incarnation,
        call: header.call,
        answered: header.answered,
    })
}

pub(super) fn subscribe(
    request: wire::SubscribeRequest,
    principal: String,
) -> Result<SubscribeRequest, Faults> {
    whole(|faults| {
        let failover_timeout = match (request.ephemeral, request.failover_timeout_ms) {
            (true, None | Some(0)) => Some(Span::ZERO),
            (true, Some(_)) => {
                let fault = "an ephemeral framework ends with its last stream; leave it out";
                faults.add(At::root("failover_timeout_ms"), fault);
                None
            }
            (false, None) => Some(FAILOVER_TIMEOUT),
            (false, Some(timeout)) => read_timeout(timeout, faults),
        };
        let settings = settings(
            Settings {
                roles: &request.roles,
                suppressed: &request.suppressed_roles,
                failover_timeout,
                plain_offers: request.plain_offers,
                labels: request.labels,
                service_address: request.service_address,
            },
            faults,
        );
        let characters = request.name.chars().count();
        if characters == 0 || characters > 128 {
            let fault = format_args!("{characters} characters are not within 1 to 128");
            faults.add(At::root("name"), fault);
        } else if request.name.chars().any(char::is_control) {
            faults.add(At::root("name"), "control characters are not permitted");
        }
        Some(SubscribeRequest {
            principal,
            name: request.name,
            incarnation: request.incarnation,
            resume_revision: request.resume_revision,
            settings: settings?,
        })
    })
}

/// 0 would tear a framework down at its first hiccup: it must be asked for by another name.
fn read_timeout(timeout: u64, faults: &mut Faults) -> Option<Span> {
    if timeout == 0 {
        let fault = "0 is refused: set ephemeral if tasks shall end with the last stream";
        faults.add(At::root("failover_timeout_ms"), fault);
        return None;
    }
    Some(Span(timeout))
}

struct Settings<'a> {
    roles: &'a [String],
    suppressed: &'a [String],
    failover_timeout: Option<Span>,
    plain_offers: bool,
    labels: std::collections::BTreeMap<String, String>,
    service_address: String,
}

fn settings(given: Settings<'_>, faults: &mut Faults) -> Option<FrameworkSettings> {
    let roles = read_roles(given.roles, At::root("roles"), faults);
    if given.roles.is_empty() {
        faults.add(At::root("roles"), "at least one role is needed");
    }
    let suppressed = read_roles(given.suppressed, At::root("suppressed_roles"), faults);
    let labels = read_labels(given.labels, At::root("labels"), faults);
    let address = read_text(
        given.service_address,
        512,
        At::root("service_address"),
        faults,
    );
    Some(FrameworkSettings {
        roles: roles?,
        suppressed: suppressed?,
        failover_timeout: given.failover_timeout,
        plain_offers: given.plain_offers,
        labels: labels?,
        service_address: address?,
    })
}

pub(super) fn update_framework(
    request: wire::UpdateFrameworkRequest,
    faults: &mut Faults,
) -> Option<FrameworkAction> {
    let failover_timeout = match request.failover_timeout_ms {
        None => Some(FAILOVER_TIMEOUT),
        Some(timeout) => read_timeout(timeout, faults),
    };
    let settings = settings(
        Settings {
            roles: &request.roles,
            suppressed: &request.suppressed_roles,
            failover_timeout,
            plain_offers: request.plain_offers,
            labels: request.labels,
            service_address: request.service_address,
        },
        faults,
    )?;
    Some(FrameworkAction::UpdateFramework { settings })
}

pub(super) fn update_demand(
    request: wire::UpdateDemandRequest,
    faults: &mut Faults,
) -> Option<FrameworkAction> {
    let upsert = read_claims(request.upsert, At::root("upsert"), faults);
    let list = At::root("remove");
    let mut remove = Vec::with_capacity(request.remove.len());
    for (index, id) in request.remove.iter().enumerate() {
        remove.extend(read_claim_id(id, list.index(index), faults));
    }
    Some(FrameworkAction::UpdateDemand {
        version: request.version,
        upsert: upsert?,
        remove,
    })
}

pub(super) fn accept(request: wire::AcceptRequest, faults: &mut Faults) -> Option<FrameworkAction> {
    let offers = offers(&request.offers, faults);
    let launches = launches(request.launches, request.specs, faults);
    let mode = wire::AcceptMode::try_from(request.mode).unwrap_or_else(|_| {
        faults.add(
            At::root("mode"),
            format_args!("{} is not a mode: 1 and 2 are", request.mode),
        );
        wire::AcceptMode::Unspecified
    });
    let reason = read_text(
        request.unused_reason,
        LONGEST_REASON,
        At::root("unused_reason"),
        faults,
    );
    Some(FrameworkAction::Accept(Accept {
        offers: offers?,
        launches: launches?,
        each_alone: mode == wire::AcceptMode::Each,
        unused_reason: reason?,
        unused_refuse: request
            .unused_refuse
            .map(|refuse| Refuse::from_milliseconds(refuse.duration_ms)),
    }))
}

fn launches(
    launches: Vec<wire::Launch>,
    specs: Vec<types::TaskSpec>,
    faults: &mut Faults,
) -> Option<Vec<AcceptLaunch>> {
    if launches.len() > TASKS_OF_A_LAUNCH {
        too_many("launches", launches.len(), TASKS_OF_A_LAUNCH, faults);
        return None;
    }
    if specs.len() > SPECS_OF_AN_ACCEPT {
        too_many("specs", specs.len(), SPECS_OF_AN_ACCEPT, faults);
        return None;
    }
    let list = At::root("specs");
    let specs: Vec<Option<Arc<mete_model::TaskSpec>>> = specs
        .into_iter()
        .enumerate()
        .map(|(index, spec)| read_spec(spec, list.index(index), faults).map(Arc::new))
        .collect();
    let list = At::root("launches");
    let mut read = Vec::with_capacity(launches.len());
    for (index, launch) in launches.into_iter().enumerate() {
        let at = list.index(index);
        let run = read_run(launch.run, at.field("run"), faults);
        let claim = if launch.claim.is_empty() {
            Some(None)
        } else {
            read_claim_id(&launch.claim, at.field("claim"), faults).map(Some)
        };
        let resources = read_resources(launch.resources, at.field("resources"), faults);
        let spec = usize::try_from(launch.spec)
            .ok()
            .and_then(|at| specs.get(at));
        if spec.is_none() {
            let fault = format_args!(
                "{} is no position in the {} specs",
                launch.spec,
                specs.len()
            );
            faults.add(at.field("spec"), fault);
        }
        let environment = read_labels(launch.environment, at.field("environment"), faults);
        let labels = read_labels(launch.labels, at.field("labels"), faults);
        let replaces = match launch.replaces {
            None => Some(None),
            old @ Some(_) => read_run(old, at.field("replaces"), faults).map(Some),
        };
        if let (
            Some(run),
            Some(claim),
            Some(resources),
            Some(Some(spec)),
            Some(environment),
            Some(labels),
            Some(replaces),
        ) = (run, claim, resources, spec, environment, labels, replaces)
        {
            read.push(AcceptLaunch {
                run,
                claim,
                resources,
                spec: Arc::clone(spec),
                environment,
                labels,
                replaces,
            });
        }
    }
    Some(read)
}

fn offers(offers: &[types::OfferId], faults: &mut Faults) -> Option<Vec<mete_model::OfferId>> {
    if offers.is_empty() || offers.len() > OFFERS_OF_AN_ACCEPT {
        let fault = format_args!("{} are not within 1 to {OFFERS_OF_AN_ACCEPT}", offers.len());
        faults.add(At::root("offers"), fault);
        return None;
    }
    let list = At::root("offers");
    let mut read = Vec::with_capacity(offers.len());
    for (index, id) in offers.iter().enumerate() {
        read.extend(read_offer_id(*id, list.index(index), faults));
    }
    Some(read)
}

pub(super) fn decline(
    request: wire::DeclineRequest,
    faults: &mut Faults,
) -> Option<FrameworkAction> {
    let offers = offers(&request.offers, faults);
    let reason = read_text(request.reason, LONGEST_REASON, At::root("reason"), faults);
    let refuse = request.refuse.map_or(Refuse::UntilDemandChanges, |refuse| {
        Refuse::from_milliseconds(refuse.duration_ms)
    });
    Some(FrameworkAction::Decline {
        offers: offers?,
        reason: reason?,
        refuse,
    })
}

pub(super) fn suppress(
    roles: &[String],
    suppressed: bool,
    faults: &mut Faults,
) -> Option<FrameworkAction> {
    let list = At::root("roles");
    if roles.len() > mete_state::limits::ROLES_OF_A_FRAMEWORK {
        too_many(
            "roles",
            roles.len(),
            mete_state::limits::ROLES_OF_A_FRAMEWORK,
            faults,
        );
        return None;
    }
    let mut read = Vec::with_capacity(roles.len());
    for (index, role) in roles.iter().enumerate() {
        read.extend(read_role(role, list.index(index), faults));
    }
    Some(FrameworkAction::Suppress {
        roles: read,
        suppressed,
    })
}

pub(super) fn kill(request: wire::KillRequest, faults: &mut Faults) -> Option<FrameworkAction> {
    let runs = runs(request.runs, faults);
    let reason = read_text(request.reason, LONGEST_REASON, At::root("reason"), faults);
    Some(FrameworkAction::Kill {
        runs: runs?,
        grace: request.grace_ms.map(Span),
        reason: reason?,
    })
}

pub(super) fn runs(runs: Vec<types::Run>, faults: &mut Faults) -> Option<Vec<RunId>> {
    if runs.len() > ITEMS_OF_A_CALL {
        too_many("runs", runs.len(), ITEMS_OF_A_CALL, faults);
        return None;
    }
    let list = At::root("runs");
    let mut read = Vec::with_capacity(runs.len());
    for (index, run) in runs.into_iter().enumerate() {
        read.extend(read_run(Some(run), list.index(index), faults));
    }
    Some(read)
}

pub(super) fn acknowledge(
    request: wire::AcknowledgeRequest,
    faults: &mut Faults,
) -> Option<FrameworkAction> {
    if request.items.len() > ITEMS_OF_A_CALL {
        too_many("items", request.items.len(), ITEMS_OF_A_CALL, faults);
        return None;
    }
    let list = At::root("items");
    let mut items = Vec::with_capacity(request.items.len());
    for (index, item) in request.items.into_iter().enumerate() {
        let at = list.index(index);
        let run = read_run(item.run, at.field("run"), faults);
        items.extend(run.map(|run| (run, item.sequence)));
    }
    Some(FrameworkAction::Acknowledge { items })
}

pub(super) fn store_write(request: wire::StoreWriteRequest) -> FrameworkAction {
    let puts = request.puts.into_iter().map(|put| StorePut {
        key: put.key.to_vec(),
        value: put.value.to_vec(),
        expected: put.expected,
    });
    let deletes = request.deletes.into_iter().map(|delete| StoreDelete {
        key: delete.key.to_vec(),
        expected: delete.expected,
    });
    FrameworkAction::WriteStore {
        puts: puts.collect(),
        deletes: deletes.collect(),
    }
}

fn too_many(field: &str, given: usize, most: usize, faults: &mut Faults) {
    faults.add(
        At::root(field),
        format_args!("{given} are more than the {most} permitted"),
    );
}
