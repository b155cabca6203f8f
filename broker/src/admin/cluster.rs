//! The cluster at a glance, and its masters.

use std::collections::{BTreeMap, BTreeSet};

use mete_model::quota::Charge;
use mete_proto::admin::v1 as wire;
use mete_state::{AgentCondition, Seat};

use super::rows::{add_amounts, amounts, condition};
use super::{Feed, Problem, soft, views};
use crate::handle::Handle;
use crate::master::Master;
use crate::replica::Role;

/// Nodes named in warnings.
const NAMED: usize = 5;

/// What the loop says of itself.
struct Loop {
    cluster: String,
    leader: u64,
    leads: bool,
    term: u64,
    voters: usize,
    since: u64,
    offers: usize,
    offered: Charge,
    waiting: usize,
    space_low: bool,
    counters: BTreeMap<String, u64>,
}

impl Loop {
    fn of(master: &Master) -> Self {
        let standing = master.replica().standing();
        let mut offered = Charge::default();
        let leader = master.leader();
        for booked in leader.iter().flat_map(|leader| leader.book().iter()) {
            add_amounts(&mut offered, &booked.offer.resources);
        }
        Self {
            cluster: uuid::Uuid::from_bytes(master.replica().identity().cluster).to_string(),
            leader: standing.leader.unwrap_or(0),
            leads: leader.is_some(),
            term: standing.term,
            voters: master.replica().members().voters.len(),
            since: leader.map_or(0, |leader| leader.began().at.0),
            offers: leader.map_or(0, |leader| leader.book().len()),
            offered,
            waiting: leader.map_or(0, |leader| leader.reasons().waiting()),
            space_low: master.replica().space_low(),
            counters: counters(master),
        }
    }
}

fn counters(master: &Master) -> BTreeMap<String, u64> {
    let own = master.counters();
    let mut list = vec![
        ("turns", own.turns),
        ("commits", own.commits),
        ("flushes", own.flushes),
        ("rejected", own.rejected),
        ("events", own.events),
    ];
    if let Some(leader) = master.leader() {
        let (term, offers) = (leader.counters(), leader.book().counts());
        list.extend([
            ("launches", term.launches),
            ("launches_refused", term.launches_refused),
            ("statuses", term.statuses),
            ("acknowledged", term.acknowledged),
            ("calls", term.calls),
            ("calls_refused", term.calls_refused),
            ("rounds", term.rounds),
            ("full_rounds", term.full_rounds),
            ("agents_examined", term.agents_examined),
            ("quarantined", term.quarantined),
            ("outbox_overflows", term.outbox_overflows),
            ("offers_made", offers.made),
            ("offers_accepted", offers.accepted),
            ("offers_declined", offers.declined),
            ("offers_rescinded", offers.rescinded),
            ("offers_expired", offers.expired),
        ]);
    }
    list.into_iter()
        .map(|(name, count)| (name.to_owned(), count))
        .collect()
}

/// The cluster at a glance.
///
/// # Errors
/// `NOT_LEADER` unless `local`; `BUSY` when the loop does not get to it.
pub async fn status(
    handle: &Handle,
    feed: &Feed,
    local: bool,
) -> Result<wire::GetStatusResponse, Problem> {
    if !local {
        views::at_present(handle).await?;
    }
    let now = handle.read(Loop::of).await?;
    let ready: Vec<_> = {
        let state = handle.state();
        state
            .agents()
            .filter(|agent| agent.condition == AgentCondition::Ready)
            .map(|agent| agent.id)
            .collect()
    };
    let recovering = soft::recovering(handle, ready).await?;
    let tasks = views::tasks_by_phase(handle).await;
    let state = handle.state();
    let mut nodes: BTreeMap<String, u32> = BTreeMap::new();
    let mut total = Charge::default();
    let mut unreachable: Vec<&str> = Vec::new();
    for agent in state.agents() {
        let word = if recovering.contains(&agent.id) {
            "recovering"
        } else {
            condition(agent.condition)
        };
        let count = nodes.entry(word.to_owned()).or_default();
        *count = count.saturating_add(1);
        match agent.condition {
            AgentCondition::Ready => add_amounts(&mut total, &agent.inventory.total),
            AgentCondition::Unreachable => unreachable.push(&agent.node_name),
            AgentCondition::Gone => {}
        }
    }
    let connected = state
        .frameworks()
        .filter(|framework| framework.away.is_none())
        .count();
    let number = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
    let lost = state.unreachable_agents();
    Ok(wire::GetStatusResponse {
        revision: state.revision().max(feed.revision()),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        cluster_id: now.cluster,
        leader_address: if now.leads {
            handle.advertised()
        } else {
            String::new()
        },
        term: now.term,
        masters: number(now.voters),
        leader_since_ms: now.since,
        nodes,
        total: Some(amounts(&total)),
        granted: Some(amounts(state.used_in_all())),
        offered: Some(amounts(&now.offered)),
        tasks,
        claims_waiting: u64::try_from(now.waiting).unwrap_or(u64::MAX),
        frameworks_connected: number(connected),
        frameworks: number(state.frameworks().count()),
        offers_open: number(now.offers),
        counters: now.counters,
        warnings: warnings(&unreachable, lost, now.space_low, now.leader),
    })
}

fn warnings(
    unreachable: &[&str],
    (lost, agents): (usize, usize),
    space_low: bool,
    leader: u64,
) -> Vec<String> {
    let mut list = Vec::new();
    if leader == 0 {
        list.push("no master leads: nothing can change".to_owned());
    }
    if space_low {
        list.push("the disk of this master is nearly full: nothing new is logged".to_owned());
    }
    if crate::leader::replacements::is_held(lost, agents) {
        list.push(format!(
            "{lost} of {agents} nodes are unreachable: no task is replaced until more are back, or \
             were removed for good"
        ));
    }
    for name in unreachable.iter().take(NAMED) {
        list.push(format!("node {name} is unreachable: mete why node {name}"));
    }
    if unreachable.len() > NAMED {
        let more = unreachable.len() - NAMED;
        list.push(format!("{more} more nodes are unreachable: mete node list"));
    }
    list
}

/// The masters, as this one sees them.
///
/// # Errors
/// `BUSY` when the loop does not get to it.
pub async fn raft(handle: &Handle) -> Result<wire::GetRaftResponse, Problem> {
    Ok(handle.read(masters).await?)
}

fn masters(master: &Master) -> wire::GetRaftResponse {
    let replica = master.replica();
    let (standing, identity) = (replica.standing(), replica.identity());
    let members = replica.members();
    let records: BTreeMap<u64, mete_state::Master> = master.read_state(|state| {
        let masters = state.masters();
        masters
            .map(|record| (record.node, record.clone()))
            .collect()
    });
    let seated = members.voters.iter().chain(&members.learners).copied();
    let all: BTreeSet<u64> = records.keys().copied().chain(seated).collect();
    let peers = replica.peers();
    let now = master.now().monotonic;
    let one = |id: u64| {
        let own = id == identity.node;
        let peer = peers.iter().find(|peer| peer.node == id);
        let record = records.get(&id);
        let matched = if own {
            Some(replica.last_index())
        } else {
            peer.map(|peer| peer.matched)
        };
        let told = master.told_by(id);
        let version = if own {
            Some(env!("CARGO_PKG_VERSION"))
        } else {
            told.map(|told| told.version.as_str())
        };
        let heard = master.heard_at(id).map(|at| now.since(at));
        wire::Master {
            id,
            address: address_of(id, master, record),
            role: role_of(id, master, record).to_owned(),
            term: standing.term,
            applied: matched.unwrap_or(0),
            lag: matched.map_or(0, |matched| replica.last_index().saturating_sub(matched)),
            version: version.unwrap_or_default().to_owned(),
            voter: members.voters.contains(&id),
            last_contact_ms: if own { Some(0) } else { heard },
            wish: record.map_or("", |record| wish(record.seat)).to_owned(),
            replaces: record.map_or(0, |record| record.replaces),
            receives_snapshot: peer.is_some_and(|peer| peer.in_snapshot),
        }
    };
    let snapshot = replica.live_snapshot();
    let quorum = master.read_seats(|facts| facts.present());
    let number = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
    wire::GetRaftResponse {
        masters: all.into_iter().map(one).collect(),
        first_index: replica.first_index(),
        last_index: replica.last_index(),
        snapshot_index: snapshot.map_or(0, |snapshot| snapshot.at.index),
        store_bytes: replica.disk_bytes(),
        flushes: master.counters().flushes,
        term: standing.term,
        leader: standing.leader.unwrap_or(0),
        answered_by: identity.node,
        applied_index: replica.applied_index(),
        voters: number(quorum.voters),
        answering: number(quorum.answering),
        needed: number(quorum.needed()),
        changing: members.changing,
        level: master.read_state(mete_state::State::level),
        cluster_id: uuid::Uuid::from_bytes(identity.cluster).to_string(),
    }
}

/// Where a master is dialled; one that has just been taken in stands in the state only.
fn address_of(id: u64, master: &Master, record: Option<&mete_state::Master>) -> String {
    let recorded = record.map(|record| record.address.as_str());
    let known = master.address_of(id).or(recorded);
    known.unwrap_or_default().to_owned()
}

fn role_of(id: u64, master: &Master, record: Option<&mete_state::Master>) -> &'static str {
    let (replica, members) = (master.replica(), master.replica().members());
    let standing = replica.standing();
    let leaving = record.is_some_and(|record| record.seat == Seat::Leaving);
    if standing.leader == Some(id) {
        "leader"
    } else if leaving {
        "leaving"
    } else if members.learners.contains(&id) {
        "learner"
    } else if !members.has(id) {
        "joining"
    } else if id == replica.identity().node && standing.role == Role::Candidate {
        "candidate"
    } else {
        "follower"
    }
}

fn wish(seat: Seat) -> &'static str {
    match seat {
        Seat::Learner => "learner",
        Seat::Voter => "voter",
        Seat::Leaving => "leaving",
    }
}
