//! Why a framework or a role gets nothing, and why nothing lands on a node.

use std::collections::BTreeMap;

use mete_model::{AgentId, ClaimId, Code, FrameworkId, Resources, RolePath, Timestamp};
use mete_proto::explain::v1 as wire;
use mete_state::{Agent, AgentCondition, State};

use super::{detail_of, help, helps, layer, reason, response};
use crate::admin::rows::{condition, framework_name};
use crate::admin::{Feed, Problem, soft};
use crate::handle::Handle;
use crate::leader::offer_book::How;
use crate::leader::reasons::Record;

/// Claims that are looked at.
const CLAIMS: usize = 10_000;

/// Reasons by how many tasks wait for them, the heaviest first, with the oldest record of each.
fn weighed(records: Vec<Option<Record>>) -> Vec<(u64, Record)> {
    let mut by_code: BTreeMap<Code, (u64, Record)> = BTreeMap::new();
    for record in records.into_iter().flatten() {
        let weight = u64::from(record.remaining);
        let entry = by_code
            .entry(record.reason)
            .or_insert_with(|| (0, record.clone()));
        entry.0 = entry.0.saturating_add(weight);
        if record.since < entry.1.since {
            entry.1 = record;
        }
    }
    let mut list: Vec<(u64, Record)> = by_code.into_values().collect();
    list.sort_by_key(|(weight, _)| std::cmp::Reverse(*weight));
    list
}

fn reasons_of(weighed: &[(u64, Record)], state: &State) -> Vec<wire::Reason> {
    weighed
        .iter()
        .map(|(weight, record)| {
            let text = format!(
                "{weight} tasks wait, for example of {}/{}: {}",
                framework_name(state, record.framework),
                record.claim,
                detail_of(record)
            );
            let mut told = reason(record.reason.as_str(), layer(record.reason), text);
            told.amounts = record
                .short
                .as_ref()
                .map(super::amounts)
                .unwrap_or_default();
            told.since_ms = record.since.0;
            told
        })
        .collect()
}

fn waiting_claims(state: &State, framework: FrameworkId) -> Vec<(FrameworkId, ClaimId)> {
    state
        .claims(framework)
        .filter(|record| record.remaining() > 0)
        .take(CLAIMS)
        .map(|record| (framework, record.claim.id.clone()))
        .collect()
}

/// What the leader knows of a framework.
struct Offers {
    here: bool,
    open: usize,
    hidden: Vec<(AgentId, String)>,
    last: Option<(String, u64)>,
}

async fn offers(handle: &Handle, id: FrameworkId) -> Result<Option<Offers>, Problem> {
    let known = handle.read(move |master| {
        let leader = master.leader()?;
        let now = master.now().at;
        let hidden = leader
            .declines()
            .of_framework(id)
            .map(|((_, _, agent), decline)| (*agent, decline.reason.clone()));
        let ended = leader.book().history();
        let last = ended
            .filter(|ended| ended.offer.framework == id)
            .last()
            .map(|ended| {
                let how = match &ended.how {
                    How::Accepted => "accepted".to_owned(),
                    How::Declined(why) => format!("declined ({why})"),
                    How::Rescinded(why) => format!("rescinded ({})", why.as_str()),
                    How::Expired => "expired unanswered".to_owned(),
                };
                (format!("{} {how}", ended.offer.id), now.since(ended.at).0)
            });
        Some(Offers {
            here: leader.framework_is_here(id),
            open: leader.book().open_of_framework(id, |_| true).len(),
            hidden: hidden.collect(),
            last,
        })
    });
    Ok(known.await?)
}

/// Explains why a framework gets nothing, or what it gets.
pub(super) async fn framework(
    handle: &Handle,
    id: FrameworkId,
) -> Result<wire::ExplainResponse, Problem> {
    let claims = waiting_claims(&handle.state(), id);
    let records = soft::reasons(handle, claims.clone()).await?;
    let offers = offers(handle, id).await?;
    let state = handle.state();
    let Some(known) = state.framework(id) else {
        return Err(Problem::not_found("framework", &id.to_string()));
    };
    let (name, settings) = (&known.name, &known.settings);
    let here = offers.as_ref().is_some_and(|offers| offers.here);
    let mut reasons = Vec::new();
    if !here {
        let text = format!("{name} has no open stream; offers go only to frameworks that listen");
        let mut told = reason(Code::FrameworkAway.as_str(), "framework", text);
        told.since_ms = known.away.map_or(0, |at| at.0);
        reasons.push(told);
    }
    for role in &settings.suppressed {
        let text = format!("role {role} is suppressed");
        reasons.push(reason(Code::FrameworkAway.as_str(), "framework", text));
    }
    let weighed = weighed(records);
    reasons.extend(reasons_of(&weighed, &state));
    if claims.is_empty() && !settings.plain_offers {
        let text =
            "no claim of it waits, and it does not ask for plain offers: no demand, no offers";
        reasons.push(reason(Code::NothingWaits.as_str(), "framework", text));
    } else if weighed.is_empty() && reasons.is_empty() {
        let text = format!("{} claims wait and were not looked at yet", claims.len());
        reasons.push(reason(Code::NotDecided.as_str(), "offer", text));
    }
    let open = offers.as_ref().map_or(0, |offers| offers.open);
    if let Some(offers) = &offers {
        reasons.extend(offer_reasons(offers, &state));
    }
    let word = if open > 0 { "offered" } else { "no_offers" };
    let roles: Vec<&str> = settings.roles.iter().map(RolePath::as_str).collect();
    let title = format!("{name}  {open} offers  roles {}", roles.join(" "));
    let mut answer = response(state.revision(), title, word, reasons);
    let role = roles.first().copied().unwrap_or_default();
    let code = if here {
        weighed.first().map(|(_, record)| record)
    } else {
        None
    };
    answer.helps = match code {
        Some(record) => helps(record.reason, record.short.as_ref(), name, role),
        None if !here => helps(Code::FrameworkAway, None, name, role),
        None => vec![help(
            "change",
            "declare claims",
            format!("mete framework show {name}"),
        )],
    };
    Ok(answer)
}

fn offer_reasons(offers: &Offers, state: &State) -> Vec<wire::Reason> {
    let mut list = Vec::new();
    if offers.open > 0 {
        let text = format!("{} offers are out to it", offers.open);
        list.push(reason(Code::Offered.as_str(), "offer", text));
    }
    if let Some((agent, why)) = offers.hidden.first() {
        let node = state
            .agent(*agent)
            .map_or_else(|| agent.to_string(), |agent| agent.node_name.clone());
        let text = format!(
            "{} refusals hide what is free, for example on {node}: \"{why}\"",
            offers.hidden.len()
        );
        list.push(reason(Code::Declined.as_str(), "framework", text));
    }
    if let Some((what, ago)) = &offers.last {
        let text = format!("last: {what} {} ago", mete_model::Span(*ago).rough());
        list.push(reason("OK", "offer", text));
    }
    list
}

/// Explains what a role holds and what of it waits.
pub(super) async fn role(
    handle: &Handle,
    path: RolePath,
) -> Result<wire::ExplainResponse, Problem> {
    let (frameworks, claims) = {
        let state = handle.state();
        let frameworks: Vec<FrameworkId> = state
            .frameworks()
            .filter(|framework| framework.settings.roles.contains(&path))
            .map(|framework| framework.id)
            .collect();
        let claims: Vec<(FrameworkId, ClaimId)> = frameworks
            .iter()
            .flat_map(|framework| state.claims(*framework))
            .filter(|record| record.claim.role == path && record.remaining() > 0)
            .take(CLAIMS)
            .map(|record| (record.framework, record.claim.id.clone()))
            .collect();
        (frameworks, claims)
    };
    let records = soft::reasons(handle, claims.clone()).await?;
    let state = handle.state();
    let Some(known) = state.role(&path) else {
        return Err(Problem::not_found("role", path.as_str()));
    };
    let weighed = weighed(records);
    let mut reasons = reasons_of(&weighed, &state);
    if claims.is_empty() {
        let text = "no claim of the role waits";
        reasons.push(reason(Code::NothingWaits.as_str(), "role", text));
    } else if weighed.is_empty() {
        let text = format!("{} claims wait and were not looked at yet", claims.len());
        reasons.push(reason(Code::NotDecided.as_str(), "offer", text));
    }
    reasons.push(reason("OK", "role", holdings(&state, &path)));
    let weight = mete_model::MilliCpu(u64::from(known.weight_milli));
    let names: Vec<String> = frameworks
        .iter()
        .map(|id| framework_name(&state, *id))
        .collect();
    let text = format!("weight {weight}; frameworks: {}", names.join(" "));
    reasons.push(reason("OK", "framework", text));
    let word = if claims.is_empty() {
        "served"
    } else {
        "waiting"
    };
    let title = format!(
        "{path}  {} claims waiting  {} frameworks",
        claims.len(),
        names.len()
    );
    let mut answer = response(state.revision(), title, word, reasons);
    answer.helps = weighed.first().map_or_else(Vec::new, |(_, record)| {
        let name = framework_name(&state, record.framework);
        helps(record.reason, record.short.as_ref(), &name, path.as_str())
    });
    Ok(answer)
}

/// What a role and those below it hold, in words.
fn holdings(state: &State, path: &RolePath) -> String {
    let used: Vec<String> = state
        .used_by_role(path)
        .iter()
        .map(|(kind, amount)| super::amount(&kind.to_string(), charged(kind, amount)))
        .collect();
    if used.is_empty() {
        format!("{path} and roles below it hold nothing")
    } else {
        format!("{path} and roles below it hold {}", used.join(", "))
    }
}

/// Devices are charged in thousandths and shown whole.
fn charged(kind: &mete_model::quota::Kind, amount: u64) -> u64 {
    match kind {
        mete_model::quota::Kind::Device(_) => amount.div_ceil(1000),
        mete_model::quota::Kind::Cpu
        | mete_model::quota::Kind::Memory
        | mete_model::quota::Kind::Disk => amount,
    }
}

/// Explains why nothing lands on a node, or what does.
pub(super) async fn node(
    handle: &Handle,
    feed: &Feed,
    id: AgentId,
) -> Result<wire::ExplainResponse, Problem> {
    let (offered, waiting, recovering) = handle
        .read(move |master| {
            let leader = master.leader();
            let offered = leader.and_then(|leader| leader.book().offered_of_agent(id).cloned());
            let waiting = leader.map_or(0, |leader| leader.reasons().waiting());
            let recovering = leader.is_some_and(|leader| leader.agent_is_recovering(id));
            (offered.unwrap_or_default(), waiting, recovering)
        })
        .await?;
    let state = handle.state();
    let Some(agent) = state.agent(id) else {
        let name = feed
            .node_name(id)
            .map_or_else(|| id.to_string(), |name| name.to_string());
        return Err(Problem::not_found("node", &name));
    };
    let name = &agent.node_name;
    let away = state.clock().since(agent.since).rough();
    let mut reasons = Vec::new();
    let word = if recovering {
        "recovering"
    } else {
        condition(agent.condition)
    };
    reasons.extend(not_ready(agent, recovering, state.clock()));
    let free = state.free(id).cloned().unwrap_or_default();
    if reasons.is_empty() {
        reasons.push(placement(&free, &offered, waiting));
    }
    let total = &agent.inventory.total;
    let holds = state.granted(id).cloned().unwrap_or_default();
    let text = format!(
        "{} tasks hold {} of {} cpu and {} of {} memory",
        state.runs_on(id).count(),
        holds.cpu,
        total.cpu,
        holds.memory,
        total.memory
    );
    reasons.push(reason("OK", "launch", text));
    let devices = agent.inventory.devices.iter();
    let sick = devices.filter(|device| !device.healthy).count();
    if sick > 0 {
        let text = format!("{sick} devices are unhealthy and never offered");
        reasons.push(reason(Code::DeviceShort.as_str(), "node", text));
    }
    let title = format!("{name}  {word}  {away}");
    let mut answer = response(state.revision(), title, word, reasons);
    answer
        .helps
        .push(if agent.condition == AgentCondition::Unreachable {
            let text = "start its agent again, or say that it never comes back";
            help("admin", text, format!("mete node rm {name}"))
        } else {
            help(
                "wait",
                "see what runs there",
                format!("mete task list --node {name}"),
            )
        });
    Ok(answer)
}

/// Why nothing is offered from a node that is not ready.
fn not_ready(agent: &Agent, recovering: bool, now: Timestamp) -> Option<wire::Reason> {
    if recovering {
        let text = "known, but not back since this leader took over: it is waited for";
        return Some(reason(Code::NotReady.as_str(), "node", text));
    }
    if agent.condition == AgentCondition::Ready {
        return None;
    }
    let away = now.since(agent.since).rough();
    let word = condition(agent.condition);
    let text = format!("{word} for {away}: nothing is offered from it");
    let mut told = reason(Code::NotReady.as_str(), "node", text);
    told.since_ms = agent.since.0;
    Some(told)
}

fn placement(free: &Resources, offered: &Resources, waiting: usize) -> wire::Reason {
    let mut left = free.clone();
    left.saturating_subtract(offered);
    if left.is_zero() && !offered.is_zero() {
        let text = format!("all that is free is offered: {} cpu", offered.cpu);
        return reason(Code::Offered.as_str(), "offer", text);
    }
    if left.cpu.is_zero() {
        return reason(Code::CpuShort.as_str(), "node", "no cpu is free");
    }
    if waiting == 0 {
        let text = format!(
            "{} cpu and {} memory are free, and nothing waits",
            left.cpu, left.memory
        );
        return reason(Code::NothingWaits.as_str(), "placement", text);
    }
    let text = format!(
        "{} cpu and {} memory are free; {waiting} claims wait and do not fit, or were declined",
        left.cpu, left.memory
    );
    reason(Code::NoShape.as_str(), "placement", text)
}
