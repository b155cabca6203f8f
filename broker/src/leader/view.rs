//! State and offer book as the allocator sees them: patched by what changed, rebuilt only when a
//! term begins.
//!
//! Each piece of the view is worked out by one function from the present facts, whether it is
//! patched or built: that is why both come out the same.

use std::collections::BTreeSet;

use mete_allocator::{
    AgentView, Change as Patch, ClaimView, Dirty, FrameworkView, RefusalView, RoleView, View,
};
use mete_model::quota::Charge;
use mete_model::{AgentId, ClaimId, FrameworkId, RolePath};
use mete_state::{AgentCondition, Change, State};

use super::declines::{Decline, Declines, Key};
use super::offer_book::{OfferBook, Touched};

/// What the view is worked out from, beside the state.
#[derive(Clone, Copy)]
pub struct Facts<'a> {
    /// The replicated truth.
    pub state: &'a State,
    /// What is offered.
    pub book: &'a OfferBook,
    /// What was declined.
    pub declines: &'a Declines,
    /// Agents whose stream is open.
    pub agent_is_here: &'a dyn Fn(AgentId) -> bool,
    /// Frameworks whose stream is open.
    pub framework_is_here: &'a dyn Fn(FrameworkId) -> bool,
}

impl std::fmt::Debug for Facts<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Facts")
    }
}

/// Objects whose part of the view must be worked out again.
#[derive(Debug, Default)]
pub struct Stale {
    agents: BTreeSet<AgentId>,
    frameworks: BTreeSet<FrameworkId>,
    roles: BTreeSet<RolePath>,
    claims: BTreeSet<(FrameworkId, ClaimId)>,
    declines: BTreeSet<Key>,
    /// Frameworks that came back, changed their settings, or have less out than before.
    relieved: BTreeSet<FrameworkId>,
}

impl Stale {
    /// Notes what a command has changed.
    pub fn changed(&mut self, change: &Change) {
        match change {
            Change::Agent(agent) => {
                self.agents.insert(*agent);
            }
            Change::Framework(framework) => {
                self.frameworks.insert(*framework);
            }
            Change::Role(role) => {
                self.roles.insert(role.clone());
            }
            Change::Claim(framework, claim) => {
                self.claims.insert((*framework, claim.clone()));
            }
            // A run's part in the view is its agent's, its framework's and its claim's; masters
            // offer nothing of their own.
            Change::Run(..) | Change::Master(_) => {}
        }
    }

    /// Notes what has changed in the book.
    pub fn touched(&mut self, touched: Touched) {
        self.agents.extend(touched.agents);
        self.relieved.extend(touched.relieved);
        self.frameworks.extend(touched.frameworks);
        self.claims.extend(touched.claims);
    }

    /// Notes declines that were made or lifted.
    pub fn declined(&mut self, keys: BTreeSet<Key>) {
        self.declines.extend(keys);
    }

    /// Notes that an agent's stream has opened or closed.
    pub fn agent(&mut self, agent: AgentId) {
        self.agents.insert(agent);
    }

    /// Notes that a framework's stream has opened or closed, or that its settings have changed.
    pub fn framework(&mut self, framework: FrameworkId) {
        self.frameworks.insert(framework);
        self.relieved.insert(framework);
    }
}

/// The view of a term, and what a round must look at.
#[derive(Debug)]
pub struct Kept {
    view: View,
    dirty: Dirty,
}

impl Kept {
    /// Builds the view of a new term; the first round looks at everything.
    #[must_use]
    pub fn build(facts: Facts<'_>) -> Self {
        let mut view = View::default();
        for patch in everything(facts) {
            view.patch(patch);
        }
        Self {
            view,
            dirty: Dirty {
                all: true,
                ..Dirty::default()
            },
        }
    }

    /// Brings the view up to date, and notes what the next round must look at.
    pub fn patch(&mut self, stale: Stale, facts: Facts<'_>) {
        let better = self.bring_up_to_date(stale, facts);
        self.dirty.agents.extend(better.agents);
        self.dirty.claims.extend(better.claims);
        self.dirty.frameworks.extend(better.frameworks);
    }

    /// Brings the view up to date with what a round itself has made: nothing new to look at.
    pub fn patch_quietly(&mut self, stale: Stale, facts: Facts<'_>) {
        self.bring_up_to_date(stale, facts);
    }

    /// Gives what has changed for the better.
    fn bring_up_to_date(&mut self, stale: Stale, facts: Facts<'_>) -> Dirty {
        let mut better = Dirty::default();
        for role in stale.roles {
            let value = role_view(facts, &role);
            self.view.patch(Patch::Role(role, value));
        }
        for framework in stale.frameworks {
            let value = framework_view(facts, framework);
            self.view.patch(Patch::Framework(framework, value));
        }
        better.frameworks.extend(stale.relieved);
        for agent in stale.agents {
            let value = agent_view(facts, agent);
            if has_more(self.view.agent(agent), value.as_ref()) {
                better.agents.push(agent);
            }
            self.view.patch(Patch::Agent(agent, value));
        }
        for (framework, claim) in stale.claims {
            let value = claim_view(facts, framework, &claim);
            better.claims.push((framework, claim.clone()));
            self.view.patch(Patch::Claim(framework, claim, value));
        }
        for key in stale.declines {
            let value = refusal_view(facts, &key);
            // Lifted, maybe: what was hidden may be offered.
            better.frameworks.push(key.0);
            self.view.patch(Patch::Refusal(key.0, key.1, key.2, value));
        }
        better
    }

    /// The view.
    #[must_use]
    pub fn view(&self) -> &View {
        &self.view
    }

    /// What the next round must look at.
    pub fn take_dirty(&mut self) -> Dirty {
        std::mem::take(&mut self.dirty)
    }

    /// Says whether there is anything for a round to look at.
    #[must_use]
    pub fn is_dirty(&self) -> bool {
        let dirty = &self.dirty;
        dirty.all
            || !dirty.claims.is_empty()
            || !dirty.agents.is_empty()
            || !dirty.frameworks.is_empty()
    }

    /// The next round looks at everything.
    pub fn look_at_all(&mut self) {
        self.dirty.all = true;
    }
}

/// Says whether an agent has more to give than before.
fn has_more(before: Option<&AgentView>, now: Option<&AgentView>) -> bool {
    match (before, now) {
        (_, None) => false,
        (None, Some(now)) => now.schedulable,
        (Some(before), Some(now)) => {
            now.schedulable && (!before.schedulable || !before.free.contains(&now.free))
        }
    }
}

/// The whole view, piece by piece.
pub fn everything(facts: Facts<'_>) -> Vec<Patch> {
    let mut patches = Vec::new();
    for role in facts.state.roles() {
        patches.push(Patch::Role(role.path.clone(), role_view(facts, &role.path)));
    }
    for framework in facts.state.frameworks() {
        let id = framework.id;
        patches.push(Patch::Framework(id, framework_view(facts, id)));
        for record in facts.state.claims(id) {
            let claim = record.claim.id.clone();
            let value = claim_view(facts, id, &claim);
            if value.is_some() {
                patches.push(Patch::Claim(id, claim, value));
            }
        }
    }
    for agent in facts.state.agents() {
        let value = agent_view(facts, agent.id);
        if value.is_some() {
            patches.push(Patch::Agent(agent.id, value));
        }
    }
    let keys: BTreeSet<&Key> = facts.declines.iter().map(|(key, _)| key).collect();
    for key in keys {
        let value = refusal_view(facts, key);
        let (framework, role, agent) = key.clone();
        patches.push(Patch::Refusal(framework, role, agent, value));
    }
    patches
}

fn agent_view(facts: Facts<'_>, id: AgentId) -> Option<AgentView> {
    let agent = facts.state.agent(id)?;
    let is_ready = match agent.condition {
        AgentCondition::Ready => true,
        AgentCondition::Unreachable => false,
        AgentCondition::Gone => return None,
    };
    let mut free = facts.state.free(id).cloned().unwrap_or_default();
    if let Some(offered) = facts.book.offered_of_agent(id) {
        free.saturating_subtract(offered);
    }
    Some(AgentView {
        total: agent.inventory.total.clone(),
        free,
        schedulable: is_ready && (facts.agent_is_here)(id),
    })
}

fn framework_view(facts: Facts<'_>, id: FrameworkId) -> Option<FrameworkView> {
    let framework = facts.state.framework(id)?;
    let settings = &framework.settings;
    let mut held: std::collections::BTreeMap<RolePath, Charge> = facts
        .state
        .used_by_framework(id)
        .map(|(role, charge)| (role.clone(), charge.clone()))
        .collect();
    let mut offered = Charge::default();
    for (role, charge) in facts.book.offered_to(id).into_iter().flatten() {
        offered.add(charge);
        held.entry(role.clone()).or_default().add(charge);
    }
    let roles = settings.roles.iter();
    Some(FrameworkView {
        connected: (facts.framework_is_here)(id),
        plain_offers: settings.plain_offers,
        roles: roles
            .map(|role| (role.clone(), settings.suppressed.contains(role)))
            .collect(),
        held,
        offered,
        cap_halvings: facts.book.halvings(id),
    })
}

fn role_view(facts: Facts<'_>, path: &RolePath) -> Option<RoleView> {
    let role = facts.state.role(path)?;
    Some(RoleView {
        weight_milli: role.weight_milli,
    })
}

fn claim_view(facts: Facts<'_>, framework: FrameworkId, id: &ClaimId) -> Option<ClaimView> {
    let record = facts.state.claim(framework, id)?;
    let waiting = record.remaining();
    if waiting == 0 {
        return None;
    }
    Some(ClaimView {
        role: record.claim.role.clone(),
        shape: record.claim.shape.clone(),
        remaining: waiting.saturating_sub(facts.book.slots_of(framework, id)),
        priority: record.claim.priority,
        submitted: record.submitted.0,
    })
}

fn refusal_view(facts: Facts<'_>, key: &Key) -> Option<RefusalView> {
    let one = |decline: &Decline| RefusalView {
        resources: decline.resources.clone(),
        free: decline.free.clone(),
        others: Vec::new(),
    };
    let (last, others) = facts.declines.get(key).split_last()?;
    Some(RefusalView {
        others: others.iter().map(one).collect(),
        ..one(last)
    })
}
