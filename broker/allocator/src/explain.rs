//! One claim against every agent, for `mete why`: nothing is decided here, only shown.

use std::collections::BTreeMap;

use mete_model::{AgentId, ClaimId, Code, FrameworkId, Miss, fit};

use crate::reasons::{infeasible, short, short_of};
use crate::round::Short;
use crate::scratch::Scratch;
use crate::view::{AgentView, ClaimView, View};

/// Agents named for each group.
const SAMPLES: usize = 5;

/// Why a claim waits, and what is the matter with each agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Explanation {
    /// A reason of the part "waiting". `NOT_DECIDED` when an agent fits: then the last round's
    /// word counts (`ORDER`, `OFFERED`), or the next round has not come yet.
    pub reason: Code,
    /// The arithmetic behind the reason, where there is one.
    pub short: Option<Short>,
    /// Every agent is counted in exactly one of them. Those that fit come first, then the most
    /// frequent; groups without agents are left out.
    pub groups: Vec<NodeGroup>,
}

/// Agents with the same answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeGroup {
    /// A code of the part "node"; `None` for agents that fit.
    pub code: Option<Code>,
    /// Agents in it.
    pub count: usize,
    /// The first few by id.
    pub samples: Vec<AgentId>,
    /// The agent of the group that comes closest to one task, and what it lacks.
    pub nearest: Option<(AgentId, Short)>,
}

/// Explains one claim; `None` if the view does not know it, `NOTHING_WAITS` without groups if
/// nothing of it remains. Looks at every agent, so it is for people and not for rounds.
#[must_use]
pub fn explain(view: &View, framework: FrameworkId, claim: &ClaimId) -> Option<Explanation> {
    let claim = view.claim(framework, claim)?;
    if claim.remaining == 0 {
        return Some(Explanation {
            reason: Code::NothingWaits,
            short: None,
            groups: Vec::new(),
        });
    }
    let mut groups: BTreeMap<Option<Code>, NodeGroup> = BTreeMap::new();
    for (id, agent) in view.agents() {
        let (code, short) = judge(view, framework, claim, (id, agent));
        let group = groups.entry(code).or_insert_with(|| NodeGroup {
            code,
            count: 0,
            samples: Vec::new(),
            nearest: None,
        });
        group.count = group.count.saturating_add(1);
        if group.samples.len() < SAMPLES {
            group.samples.push(id);
        }
        if let Some(short) = short
            && group
                .nearest
                .as_ref()
                .is_none_or(|(_, best)| is_nearer(&short, best))
        {
            group.nearest = Some((id, short));
        }
    }
    let mut groups: Vec<NodeGroup> = groups.into_values().collect();
    groups.sort_by_key(|group| (group.code.is_some(), std::cmp::Reverse(group.count)));
    let (reason, short) = reason(view, framework, claim, &groups);
    Some(Explanation {
        reason,
        short,
        groups,
    })
}

/// The larger part of what is wanted is nearer.
fn is_nearer(left: &Short, right: &Short) -> bool {
    let product = |a: u64, b: u64| u128::from(a).saturating_mul(u128::from(b));
    product(left.have, right.want) > product(right.have, left.want)
}

/// The group of one agent, and what it lacks.
fn judge(
    view: &View,
    framework: FrameworkId,
    claim: &ClaimView,
    (id, agent): (AgentId, &AgentView),
) -> (Option<Code>, Option<Short>) {
    if !agent.schedulable {
        return (Some(Code::NotReady), None);
    }
    if let Err(miss) = fit(&claim.shape, &agent.total) {
        let none = matches!(&miss, Miss::Devices { class, .. }
            if !agent.total.devices.iter().any(|device| device.class.is_within(class)));
        let code = if none { Code::NoDevice } else { Code::TooSmall };
        return (Some(code), Some(short_of(&miss)));
    }
    match fit(&claim.shape, &agent.free) {
        Err(miss) => (Some(miss.code()), Some(short_of(&miss))),
        Ok(_)
            if view.is_refused(
                (framework, &claim.role),
                id,
                Some(&claim.shape),
                &agent.free,
            ) =>
        {
            (Some(Code::NodeDeclined), None)
        }
        Ok(_) => (None, None),
    }
}

fn reason(
    view: &View,
    framework: FrameworkId,
    claim: &ClaimView,
    groups: &[NodeGroup],
) -> (Code, Option<Short>) {
    let has = |code: Option<Code>| groups.iter().any(|group| group.code == code);
    if !view.is_served(framework, &claim.role) {
        return (Code::FrameworkAway, None);
    }
    if view.schedulable == 0 {
        return (Code::NoAgents, None);
    }
    if has(None) {
        return (Code::NotDecided, None);
    }
    if has(Some(Code::NodeDeclined)) {
        return (Code::Declined, None);
    }
    let Some((shape, entry)) = view.shape(&claim.shape) else {
        return (Code::NotDecided, None);
    };
    let scratch = Scratch::new(view);
    let shape = scratch.shape(shape, entry);
    if let Some(short) = infeasible(view, &shape) {
        return (Code::Infeasible, Some(short));
    }
    match short(view, &scratch, &shape) {
        Some((code, short)) => (code, Some(short)),
        None => (Code::NotDecided, None),
    }
}
