//! Agents: admitted by their key, lost and found, gone by an operator's word.
//!
//! One record for each machine however often it registers. What an agent brings with it is
//! compared with the state's runs: those that cannot live any more end `Lost` with the reason,
//! those it should not have are discarded, those it never got are started.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use mete_model::text::check_node_name;
use mete_model::{AgentId, Code, FrameworkId, Resources, RunId};

use super::validate::Faults;
use super::{Plan, Turn, preview_of, replace, runs};
use crate::command::{AdmitAgent, AgentCondition, HeldRun};
use crate::effect::{Change, Effect, Verdict};
use crate::limits::AGENTS;
use crate::record::{Agent, Run};
use crate::rejection::Rejection;
use crate::state::{Preview, State};

/// Why a run ends, as code and in words.
type Why = (Code, &'static str);

/// An agent that may come in.
#[derive(Debug)]
pub(crate) struct Admission<'a> {
    admit: &'a AdmitAgent,
    agent: AgentId,
    /// Runs that end with its return, and why.
    ends: Vec<(FrameworkId, RunId, Why)>,
    discard: Vec<(FrameworkId, RunId)>,
    changes: bool,
}

pub(crate) fn admit<'a>(state: &State, admit: &'a AdmitAgent) -> Result<Admission<'a>, Rejection> {
    let mut faults = Faults::default();
    if let Err(bad) = check_node_name(&admit.node_name) {
        faults.add("node_name", bad.rule);
    }
    faults.inventory(&admit.inventory);
    faults.result()?;
    let by_name = state.agent_of_node(&admit.node_name);
    let by_key = state
        .agent_of_key(admit.node_key)
        .filter(|agent| agent.condition != AgentCondition::Gone);
    match (by_key, by_name) {
        (Some(known), Some(other)) if known.id != other.id => Err(Rejection::field(
            "node_name",
            format!(
                "'{}' is the name of agent {}; give this node another name",
                admit.node_name, other.id
            ),
        )),
        (Some(known), _) => Ok(come_back(state, admit, known, false)),
        // The same name with another key is the same node with an empty disk.
        (None, Some(known)) => Ok(come_back(state, admit, known, true)),
        (None, None) => first_time(state, admit),
    }
}

fn first_time<'a>(state: &State, admit: &'a AdmitAgent) -> Result<Admission<'a>, Rejection> {
    if state.agents.contains_key(&admit.agent) {
        let fault = format!("id {} is in use", admit.agent);
        return Err(Rejection::field("agent", fault));
    }
    if state.agents.len() >= AGENTS {
        return Err(Rejection::new(
            Code::Busy,
            format!("there are {AGENTS} agents, no more are permitted; remove those that are gone"),
        ));
    }
    let held = admit.held.iter();
    Ok(Admission {
        admit,
        agent: admit.agent,
        ends: Vec::new(),
        discard: held
            .map(|held| (held.framework, held.run.clone()))
            .collect(),
        changes: true,
    })
}

fn come_back<'a>(
    state: &State,
    admit: &'a AdmitAgent,
    known: &Agent,
    wiped: bool,
) -> Admission<'a> {
    let rebooted = known.inventory.boot_id != admit.inventory.boot_id;
    let held: BTreeMap<(FrameworkId, &RunId), &HeldRun> = admit
        .held
        .iter()
        .map(|held| ((held.framework, &held.run), held))
        .collect();
    let ends: Vec<(FrameworkId, RunId, Why)> = state
        .runs_on(known.id)
        .filter_map(|run| {
            let held = held.get(&(run.framework, &run.id)).copied();
            let why = why_lost(run, held, wiped, rebooted)?;
            Some((run.framework, run.id.clone(), why))
        })
        .collect();
    let ended: BTreeSet<(FrameworkId, &RunId)> = ends
        .iter()
        .map(|(framework, run, _)| (*framework, run))
        .collect();
    let stays = |held: &HeldRun| {
        let run = state.run(held.framework, &held.run);
        run.is_some_and(|run| run.agent == known.id && !run.phase.is_terminal())
            && !ended.contains(&(held.framework, &held.run))
    };
    let discard: Vec<(FrameworkId, RunId)> = admit
        .held
        .iter()
        .filter(|held| !stays(held))
        .map(|held| (held.framework, held.run.clone()))
        .collect();
    let changes = wiped
        || known.condition != AgentCondition::Ready
        || known.node_name != admit.node_name
        || *known.inventory != admit.inventory
        || !ends.is_empty()
        || !discard.is_empty();
    Admission {
        admit,
        agent: known.id,
        ends,
        discard,
        changes,
    }
}

/// Why a live run cannot live any more, by what its agent brings back; `None` if it can.
fn why_lost(run: &Run, held: Option<&HeldRun>, wiped: bool, rebooted: bool) -> Option<Why> {
    // An empty disk cannot say whether the run was ever started.
    if wiped {
        return Some(WIPED);
    }
    match held {
        // It has ended there; how, its statuses will say.
        Some(held) if held.phase.is_terminal() => None,
        Some(_) if rebooted => Some(REBOOTED),
        Some(_) => None,
        // Never reported and not there: it was never begun, so it may be now.
        None if run.sequence == 0 => None,
        None if rebooted => Some(REBOOTED),
        None => Some(NOT_ON_NODE),
    }
}

const WIPED: (Code, &str) = (
    Code::AgentWiped,
    "its node came back with an empty state directory",
);
const REBOOTED: (Code, &str) = (Code::NodeRebooted, "its node was started anew");
const NOT_ON_NODE: (Code, &str) = (Code::NotOnNode, "its agent came back without it");

impl Admission<'_> {
    fn verdict(&self) -> Verdict {
        Verdict::Admitted {
            agent: self.agent,
            discard: self.discard.clone(),
        }
    }
}

impl Plan for Admission<'_> {
    fn preview(&self) -> Preview {
        preview_of(self.changes, &self.verdict())
    }

    fn write(self, state: &mut State, turn: &mut Turn) -> Verdict {
        let verdict = self.verdict();
        if !self.changes {
            return verdict;
        }
        let (id, admit) = (self.agent, self.admit);
        let was_ready = put_agent(state, turn, id, admit);
        for (framework, run, (reason, message)) in &self.ends {
            runs::lose(state, turn, *framework, run, *reason, message);
        }
        replace::settle(state, turn, id, Some(&admit.held));
        if !was_ready {
            tell_frameworks(state, turn, id, AgentCondition::Ready);
        }
        // A run that the agent has needs no start, though nothing was reported of it yet.
        let held = admit.held.iter().map(|held| (held.framework, &held.run));
        let held: BTreeSet<(FrameworkId, &RunId)> = held.collect();
        for effect in state.owed_to_agent(id) {
            let begun = matches!(&effect, Effect::StartTask { framework, run, .. }
                if held.contains(&(*framework, run)));
            if !begun {
                turn.owe(effect);
            }
        }
        state.refresh_agent(id);
        verdict
    }
}

/// Puts the agent's record and says whether it was known and ready before.
fn put_agent(state: &mut State, turn: &mut Turn, id: AgentId, admit: &AdmitAgent) -> bool {
    let before = state.agents.get(&id);
    let was_ready = before.is_some_and(|agent| agent.condition == AgentCondition::Ready);
    let since = before
        .filter(|_| was_ready)
        .map_or(turn.at, |agent| agent.since);
    let admitted = before.map_or(turn.at, |agent| agent.admitted);
    if let Some(before) = before {
        let (key, name) = (before.node_key, before.node_name.clone());
        state.by_key.remove(&key);
        state.by_node.remove(&name);
    }
    state.by_key.insert(admit.node_key, id);
    state.by_node.insert(admit.node_name.clone(), id);
    state.ledger.set_total(id, &admit.inventory.total);
    state.agents.insert(
        id,
        Agent {
            id,
            node_key: admit.node_key,
            node_name: admit.node_name.clone(),
            inventory: Arc::new(admit.inventory.clone()),
            condition: AgentCondition::Ready,
            since,
            admitted,
            revision: turn.revision,
        },
    );
    turn.changed(Change::Agent(id));
    was_ready
}

/// Frameworks with runs on the agent hear how it is, after the statuses this causes.
fn tell_frameworks(state: &State, turn: &mut Turn, agent: AgentId, condition: AgentCondition) {
    for framework in state.frameworks_on(agent) {
        turn.owe(Effect::TellAgent {
            framework,
            agent,
            condition,
        });
    }
}

/// A change of an agent's condition.
#[derive(Debug)]
pub(crate) struct Condition {
    agent: AgentId,
    condition: AgentCondition,
    changes: bool,
}

pub(crate) fn set_condition(
    state: &State,
    agent: AgentId,
    condition: AgentCondition,
) -> Result<Condition, Rejection> {
    let known = find(state, agent)?;
    if condition == AgentCondition::Gone {
        let fault = "only an operator says that an agent is gone: remove it";
        return Err(Rejection::field("condition", fault));
    }
    if known.condition == AgentCondition::Gone {
        return Err(Rejection::new(
            Code::AgentUnavailable,
            format!(
                "agent '{}' is gone for good; admit it anew",
                known.node_name
            ),
        ));
    }
    Ok(Condition {
        agent,
        condition,
        changes: known.condition != condition,
    })
}

pub(crate) fn find(state: &State, agent: AgentId) -> Result<&Agent, Rejection> {
    state
        .agents
        .get(&agent)
        .ok_or_else(|| Rejection::new(Code::NotFound, format!("no agent {agent} is known")))
}

impl Plan for Condition {
    fn preview(&self) -> Preview {
        preview_of(self.changes, &Verdict::Done)
    }

    fn write(self, state: &mut State, turn: &mut Turn) -> Verdict {
        let Some(agent) = state.agents.get_mut(&self.agent).filter(|_| self.changes) else {
            return Verdict::Done;
        };
        agent.condition = self.condition;
        agent.since = turn.at;
        agent.revision = turn.revision;
        turn.changed(Change::Agent(self.agent));
        tell_frameworks(state, turn, self.agent, self.condition);
        if self.condition == AgentCondition::Ready {
            replace::settle(state, turn, self.agent, None);
            for effect in state.owed_to_agent(self.agent) {
                turn.owe(effect);
            }
        }
        state.refresh_agent(self.agent);
        Verdict::Done
    }
}

/// An agent that never comes back.
#[derive(Debug)]
pub(crate) struct Remove {
    agent: AgentId,
    changes: bool,
}

pub(crate) fn remove(state: &State, agent: AgentId, actor: &str) -> Result<Remove, Rejection> {
    let mut faults = Faults::default();
    faults.words("actor", actor);
    faults.result()?;
    let changes = find(state, agent)?.condition != AgentCondition::Gone;
    Ok(Remove { agent, changes })
}

impl Plan for Remove {
    fn preview(&self) -> Preview {
        preview_of(self.changes, &Verdict::Done)
    }

    fn write(self, state: &mut State, turn: &mut Turn) -> Verdict {
        let id = self.agent;
        let Some(agent) = state.agents.get_mut(&id).filter(|_| self.changes) else {
            return Verdict::Done;
        };
        agent.condition = AgentCondition::Gone;
        agent.since = turn.at;
        agent.revision = turn.revision;
        let name = agent.node_name.clone();
        state.by_node.remove(&name);
        turn.changed(Change::Agent(id));
        let frameworks = state.frameworks_on(id);
        let lost: Vec<(FrameworkId, RunId)> = state
            .runs_on(id)
            .map(|run| (run.framework, run.id.clone()))
            .collect();
        for (framework, run) in &lost {
            let message = "an operator removed its agent for good";
            runs::lose(state, turn, *framework, run, Code::GoneByOperator, message);
        }
        // Its capacity counts no more.
        state.ledger.set_total(id, &Resources::default());
        for framework in frameworks {
            turn.owe(Effect::TellAgent {
                framework,
                agent: id,
                condition: AgentCondition::Gone,
            });
        }
        state.refresh_agent(id);
        state.drop_surplus_agents(turn);
        Verdict::Done
    }
}
