//! What only a leader knows, added to rows: presence, offers, reasons of waiting.
//!
//! Asked of the loop for the rows of one page at a time. On a master that does not lead nothing is
//! added: rows then show what is replicated.

use std::collections::{BTreeMap, BTreeSet};

use mete_model::quota::Charge;
use mete_model::{AgentId, ClaimId, FrameworkId, OfferId, RolePath, Timestamp};
use mete_proto::admin::v1::{self as wire, object::Object as Row};
use mete_proto::convert::write_resources;
use mete_state::{Change, State};

use super::rows::{amounts, framework_name};
use crate::handle::Handle;
use crate::leader::LeaderTerm;
use crate::leader::offer_book::Booked;
use crate::leader::reasons::Record;
use crate::request::Refusal;

/// What the leader adds to one row.
#[derive(Clone, Debug)]
enum Fact {
    Node {
        /// Since when it is awaited, if it is.
        recovering: Option<Timestamp>,
        offered: Option<mete_model::Resources>,
    },
    Framework {
        offers: usize,
    },
    Role {
        offered: Charge,
    },
    Claim {
        offered: u32,
        reason: Option<Box<Record>>,
    },
    Nothing,
}

/// Adds to `rows` what the leader knows of `changes`, one for one.
///
/// # Errors
/// `BUSY` when the loop does not get to it.
pub async fn add(
    handle: &Handle,
    changes: Vec<Change>,
    rows: &mut [wire::Object],
) -> Result<(), Refusal> {
    if !changes.iter().any(has_facts) {
        return Ok(());
    }
    let facts = handle
        .read(move |master| {
            let leader = master.leader()?;
            let roles = offered_by_role(leader, &changes);
            let fact = |change| fact(leader, &roles, change);
            Some(changes.iter().map(fact).collect::<Vec<Fact>>())
        })
        .await?;
    for (row, fact) in rows.iter_mut().zip(facts.unwrap_or_default()) {
        if let Some(row) = &mut row.object {
            apply(row, fact);
        }
    }
    Ok(())
}

fn has_facts(change: &Change) -> bool {
    match change {
        Change::Agent(_) | Change::Framework(_) | Change::Role(_) | Change::Claim(..) => true,
        Change::Run(..) | Change::Master(_) => false,
    }
}

/// One walk over the offers, and only when roles are asked for.
fn offered_by_role(leader: &LeaderTerm, changes: &[Change]) -> BTreeMap<RolePath, Charge> {
    let mut sums: BTreeMap<RolePath, Charge> = BTreeMap::new();
    let mut wanted: BTreeSet<&str> = BTreeSet::new();
    for change in changes {
        if let Change::Role(path) = change {
            wanted.insert(path.as_str());
        }
    }
    if wanted.is_empty() {
        return sums;
    }
    for booked in leader.book().iter() {
        let charge = Charge::of(&booked.offer.resources);
        for path in booked.offer.role.with_ancestors() {
            if wanted.contains(path)
                && let Ok(path) = RolePath::new(path)
            {
                sums.entry(path).or_default().add(&charge);
            }
        }
    }
    sums
}

fn fact(leader: &LeaderTerm, roles: &BTreeMap<RolePath, Charge>, change: &Change) -> Fact {
    match change {
        Change::Agent(id) => Fact::Node {
            recovering: leader.agent_is_recovering(*id).then(|| leader.began().at),
            offered: leader.book().offered_of_agent(*id).cloned(),
        },
        Change::Framework(id) => Fact::Framework {
            offers: leader.book().open_of_framework(*id, |_| true).len(),
        },
        Change::Role(path) => Fact::Role {
            offered: roles.get(path).cloned().unwrap_or_default(),
        },
        Change::Claim(framework, claim) => Fact::Claim {
            offered: leader.book().slots_of(*framework, claim),
            reason: leader
                .reasons()
                .get(*framework, claim)
                .cloned()
                .map(Box::new),
        },
        Change::Run(..) | Change::Master(_) => Fact::Nothing,
    }
}

fn apply(row: &mut Row, fact: Fact) {
    match (row, fact) {
        (
            Row::Node(node),
            Fact::Node {
                recovering,
                offered,
            },
        ) => {
            if let Some(since) = recovering.filter(|_| node.state == "ready") {
                "recovering".clone_into(&mut node.state);
                node.state_since_ms = since.0;
            }
            node.offered = offered.as_ref().map(write_resources);
        }
        (Row::Framework(framework), Fact::Framework { offers }) => {
            framework.offers = u32::try_from(offers).unwrap_or(u32::MAX);
        }
        (Row::Role(role), Fact::Role { offered }) => role.offered = Some(amounts(&offered)),
        (Row::Claim(claim), Fact::Claim { offered, reason }) => {
            claim.offered = offered;
            if let Some(record) = reason {
                claim.reason = record.reason.to_string();
                claim.reason_detail = super::why::detail_of(&record);
            }
        }
        // A row and the fact of another kind: the lists are made together, so there is none.
        (
            Row::Node(_)
            | Row::Framework(_)
            | Row::Role(_)
            | Row::Claim(_)
            | Row::Task(_)
            | Row::Offer(_),
            _,
        ) => {}
    }
}

/// Offers that are out, in order, after the number `after`, at most `most`; with the term, and how
/// long each is out and has left, in milliseconds.
///
/// # Errors
/// `BUSY` when the loop does not get to it.
pub async fn offers(
    handle: &Handle,
    after: u64,
    most: usize,
) -> Result<Vec<(Booked, u64, u64)>, Refusal> {
    let taken = handle
        .read(move |master| {
            let now = master.now();
            let leader = master.leader()?;
            let open = leader.book().iter();
            let list = open
                .filter(|booked| booked.offer.id.number > after)
                .take(most)
                .map(|booked| {
                    let age = now.at.since(booked.offer.made).0;
                    let left = booked.expires.0.saturating_sub(now.monotonic.0);
                    (booked.clone(), age, left)
                });
            Some(list.collect())
        })
        .await?;
    Ok(taken.unwrap_or_default())
}

/// An offer's row.
#[must_use]
pub fn offer_row(state: &State, (booked, age, left): &(Booked, u64, u64)) -> wire::Object {
    let offer = &booked.offer;
    let row = wire::OfferRow {
        id: offer.id.to_string(),
        framework_id: offer.framework.to_string(),
        framework: framework_name(state, offer.framework),
        role: offer.role.as_str().to_owned(),
        claim: offer
            .claim
            .as_ref()
            .map(|claim| claim.as_str().to_owned())
            .unwrap_or_default(),
        agent_id: offer.agent.to_string(),
        node: state
            .agent(offer.agent)
            .map(|agent| agent.node_name.clone())
            .unwrap_or_default(),
        resources: Some(write_resources(&offer.resources)),
        slots: offer.slots,
        age_ms: *age,
        expires_in_ms: *left,
        state: if booked.accepted { "accepted" } else { "open" }.to_owned(),
    };
    wire::Object {
        revision: state.revision(),
        object: Some(Row::Offer(row)),
    }
}

/// One offer that is out.
///
/// # Errors
/// `BUSY` when the loop does not get to it.
pub async fn offer(handle: &Handle, id: OfferId) -> Result<Option<(Booked, u64, u64)>, Refusal> {
    let before = id.number.saturating_sub(1);
    let list = offers(handle, before, 1).await?;
    Ok(list
        .into_iter()
        .find(|(booked, _, _)| booked.offer.id == id))
}

/// Presence of the agents named, `true` = not back since this leader took over.
///
/// # Errors
/// `BUSY` when the loop does not get to it.
pub async fn recovering(
    handle: &Handle,
    agents: Vec<AgentId>,
) -> Result<BTreeSet<AgentId>, Refusal> {
    let found = handle
        .read(move |master| {
            let leader = master.leader()?;
            Some(
                agents
                    .into_iter()
                    .filter(|agent| leader.agent_is_recovering(*agent))
                    .collect(),
            )
        })
        .await?;
    Ok(found.unwrap_or_default())
}

/// Why claims wait, as the leader last decided.
///
/// # Errors
/// `BUSY` when the loop does not get to it.
pub async fn reasons(
    handle: &Handle,
    claims: Vec<(FrameworkId, ClaimId)>,
) -> Result<Vec<Option<Record>>, Refusal> {
    handle
        .read(move |master| {
            claims
                .iter()
                .map(|(framework, claim)| {
                    let leader = master.leader()?;
                    leader.reasons().get(*framework, claim).cloned()
                })
                .collect()
        })
        .await
}
