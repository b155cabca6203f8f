//! Is an accept right, as far as offers go: do they stand, are they the caller's, of one agent, and
//! do the launches fit into them. Pure. What the ledger says of it is decided at the commit.

use std::collections::BTreeSet;

use mete_model::{AgentId, Code, FrameworkId, OfferId, Resources, RolePath};
use mete_state::LaunchVerdict;
use mete_state::command::LaunchTask;

use super::offer_book::{How, OfferBook, Why};
use crate::request::{Accept, AcceptLaunch};

/// Offers in one accept.
pub const OFFERS_OF_AN_ACCEPT: usize = 1_000;

/// What an accept comes to.
#[derive(Clone, Debug, PartialEq)]
pub enum Judged {
    /// Nothing of it is evaluated: one verdict for each launch; the offers stay as they are.
    Refused(Vec<LaunchVerdict>),
    /// To be logged.
    Passed(Passed),
}

/// An accept whose offers stand.
#[derive(Clone, Debug, PartialEq)]
pub struct Passed {
    /// Who is charged.
    pub role: RolePath,
    /// Where.
    pub agent: AgentId,
    /// Of the oldest of the offers.
    pub topology_epoch: u64,
    /// What is to be launched.
    pub tasks: Vec<LaunchTask>,
    /// For each launch of the accept: a refusal that stands already, `None` for those in `tasks`.
    pub refused: Vec<Option<LaunchVerdict>>,
    /// The offers together.
    pub offered: Resources,
}

/// Judges an accept of `framework`.
#[must_use]
pub fn judge(
    book: &OfferBook,
    framework: FrameworkId,
    accept: &Accept,
    agent_is_here: &dyn Fn(AgentId) -> bool,
) -> Judged {
    match judge_offers(book, framework, &accept.offers, agent_is_here) {
        Err((code, detail)) => {
            let refused = accept
                .launches
                .iter()
                .map(|_| refusal(code, detail.clone()));
            Judged::Refused(refused.collect())
        }
        Ok(offers) => judge_launches(accept, offers),
    }
}

struct Offers {
    role: RolePath,
    agent: AgentId,
    topology_epoch: u64,
    together: Resources,
    claims: BTreeSet<Option<mete_model::ClaimId>>,
}

type No = (Code, String);

fn judge_offers(
    book: &OfferBook,
    framework: FrameworkId,
    ids: &[OfferId],
    agent_is_here: &dyn Fn(AgentId) -> bool,
) -> Result<Offers, No> {
    let mut seen = BTreeSet::new();
    let mut offers: Option<Offers> = None;
    for id in ids {
        if !seen.insert(*id) {
            return Err((
                Code::Invalid,
                format!("offer {id} stands twice in the accept"),
            ));
        }
        let booked = match book.get(*id) {
            Some(booked) if booked.offer.framework != framework => {
                return Err((
                    Code::NotFound,
                    format!("offer {id} was made to another framework"),
                ));
            }
            Some(booked) if booked.accepted => {
                let detail = format!("offer {id} is used by an accept before this one");
                return Err((Code::OfferRescinded, detail));
            }
            Some(booked) => &booked.offer,
            None => return Err(why_gone(book, *id, framework, agent_is_here)),
        };
        match &mut offers {
            None => {
                offers = Some(Offers {
                    role: booked.role.clone(),
                    agent: booked.agent,
                    topology_epoch: booked.topology_epoch,
                    together: booked.resources.clone(),
                    claims: BTreeSet::from([booked.claim.clone()]),
                });
            }
            Some(offers) if offers.agent != booked.agent => {
                let detail = format!(
                    "offers of agents {} and {} in one accept; accept those of each agent alone",
                    offers.agent, booked.agent
                );
                return Err((Code::BundleSplit, detail));
            }
            Some(offers) if offers.role != booked.role => {
                let detail = format!(
                    "offers for roles {} and {} in one accept; accept those of each role alone",
                    offers.role, booked.role
                );
                return Err((Code::BundleSplit, detail));
            }
            Some(offers) => {
                offers.topology_epoch = offers.topology_epoch.min(booked.topology_epoch);
                offers.together.add(&booked.resources);
                offers.claims.insert(booked.claim.clone());
            }
        }
    }
    offers.ok_or_else(|| (Code::Invalid, "an accept without offers".to_owned()))
}

/// Why an offer does not stand any more.
#[must_use]
pub fn why_gone(
    book: &OfferBook,
    id: OfferId,
    framework: FrameworkId,
    agent_is_here: &dyn Fn(AgentId) -> bool,
) -> No {
    if id.term != book.term() {
        let detail = format!(
            "offer {id} was made in term {}, this is term {}: offers end with their leader",
            id.term,
            book.term()
        );
        return (Code::OfferRescinded, detail);
    }
    let Some(ended) = book.ended(id) else {
        return if book.was_made(id) {
            (Code::OfferExpired, format!("offer {id} is over"))
        } else {
            (Code::NotFound, format!("offer {id} was never made"))
        };
    };
    if ended.offer.framework != framework {
        return (
            Code::NotFound,
            format!("offer {id} was made to another framework"),
        );
    }
    let agent = ended.offer.agent;
    match &ended.how {
        How::Expired => {
            let detail = format!("offer {id} expired at {} ms", ended.at.0);
            (Code::OfferExpired, detail)
        }
        How::Rescinded(Why::Agent) if !agent_is_here(agent) => {
            let detail = format!("agent {agent} of offer {id} is not connected");
            (Code::AgentUnavailable, detail)
        }
        How::Rescinded(why) => {
            let detail = format!("offer {id} was taken back: {}", why.as_str());
            (Code::OfferRescinded, detail)
        }
        How::Accepted => (
            Code::OfferRescinded,
            format!("offer {id} was used by another accept"),
        ),
        How::Declined(_) => (Code::OfferRescinded, format!("offer {id} was declined")),
    }
}

fn judge_launches(accept: &Accept, offers: Offers) -> Judged {
    let mut left = offers.together.clone();
    let mut first_no = None;
    let mut refused: Vec<Option<LaunchVerdict>> = Vec::with_capacity(accept.launches.len());
    for (at, launch) in accept.launches.iter().enumerate() {
        let no = judge_launch(launch, &offers, &mut left);
        if no.is_some() && first_no.is_none() {
            first_no = Some(at);
        }
        refused.push(no.map(|detail| refusal(Code::NotOffered, detail)));
    }
    if let Some(at) = first_no
        && !accept.each_alone
    {
        let run = accept.launches.get(at).map(|launch| launch.run.to_string());
        let detail = format!(
            "launch {} of the same accept was refused",
            run.unwrap_or_default()
        );
        let verdicts = refused
            .into_iter()
            .map(|no| no.unwrap_or_else(|| refusal(Code::NotAlone, detail.clone())));
        return Judged::Refused(verdicts.collect());
    }
    let passed = accept
        .launches
        .iter()
        .zip(&refused)
        .filter(|(_, no)| no.is_none());
    Judged::Passed(Passed {
        role: offers.role,
        agent: offers.agent,
        topology_epoch: offers.topology_epoch,
        tasks: passed.map(|(launch, _)| task_of(launch)).collect(),
        refused,
        offered: offers.together,
    })
}

/// Takes the launch out of what is left of the offers, or says why it is not in there.
fn judge_launch(launch: &AcceptLaunch, offers: &Offers, left: &mut Resources) -> Option<String> {
    if !offers.claims.contains(&launch.claim) {
        let named = match &launch.claim {
            Some(claim) => format!("claim {claim}"),
            None => "no claim".to_owned(),
        };
        return Some(format!(
            "the launch names {named}, for which none of the offers was made"
        ));
    }
    match left.subtract(&launch.resources) {
        Ok(()) => None,
        Err(shortage) => Some(format!("not in what is left of the offers: {shortage}")),
    }
}

fn task_of(launch: &AcceptLaunch) -> LaunchTask {
    LaunchTask {
        run: launch.run.clone(),
        claim: launch.claim.clone(),
        resources: launch.resources.clone(),
        spec: std::sync::Arc::clone(&launch.spec),
        environment: launch.environment.clone(),
        labels: launch.labels.clone(),
        replaces: launch.replaces.clone(),
    }
}

fn refusal(code: Code, detail: String) -> LaunchVerdict {
    LaunchVerdict {
        code,
        detail,
        grant: None,
    }
}

/// One verdict for each launch: refusals that stood before the commit, and those of the commit.
#[must_use]
pub fn merge(
    refused: Vec<Option<LaunchVerdict>>,
    committed: Vec<LaunchVerdict>,
) -> Vec<LaunchVerdict> {
    let mut committed = committed.into_iter();
    let merged = refused.into_iter().map(|no| {
        no.or_else(|| committed.next())
            .unwrap_or_else(|| refusal(Code::Internal, "the commit gave no verdict".to_owned()))
    });
    merged.collect()
}

/// The verdicts of a repeated accept, whose first answer the state remembers for the launches that
/// were logged only: a run that exists was granted, the others were refused.
#[must_use]
pub fn recall(
    launches: &[AcceptLaunch],
    first: Vec<LaunchVerdict>,
    grant_of: &dyn Fn(&mete_model::RunId) -> Option<mete_model::GrantId>,
) -> Vec<LaunchVerdict> {
    if first.len() == launches.len() {
        return first;
    }
    let mut granted = first
        .iter()
        .filter(|verdict| verdict.code == Code::Ok)
        .filter_map(|verdict| verdict.grant)
        .collect::<BTreeSet<_>>();
    let mut others = first.into_iter().filter(|verdict| verdict.code != Code::Ok);
    let recalled = launches.iter().map(|launch| match grant_of(&launch.run) {
        Some(grant) if granted.remove(&grant) => LaunchVerdict {
            code: Code::Ok,
            detail: String::new(),
            grant: Some(grant),
        },
        Some(_) | None => others.next().unwrap_or_else(|| {
            refusal(
                Code::NotOffered,
                "refused before the commit, as answered before".to_owned(),
            )
        }),
    });
    recalled.collect()
}

#[cfg(test)]
mod tests;
