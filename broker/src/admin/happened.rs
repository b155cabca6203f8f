//! What happened, for people and audits: worked out from an applied command and what it changed.
//!
//! Kept as ids and written out when read: there may be a million.

use std::collections::BTreeMap;

use mete_model::{
    AgentId, Code, Exit, FrameworkId, RolePath, RunId, StatusSource, TaskPhase, Timestamp,
};
use mete_proto::events::v1 as wire;
use mete_state::{AgentCondition, Change, Command, Outcome, Seat, State, Verdict};

use crate::machine::Done;

/// One event; several may share a revision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Happened {
    /// Position inside the revision.
    pub number: u32,
    /// When, by the leader's stamp.
    pub at: Timestamp,
    /// What.
    pub what: What,
}

/// What happened to what.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(
    missing_docs,
    reason = "the kinds and their texts stand together in `write` below"
)]
pub enum What {
    NodeAdmitted(AgentId),
    NodeReturned(AgentId),
    NodeReady(AgentId),
    NodeUnreachable(AgentId),
    TasksReplaceable(AgentId, u32),
    NodeRemoved(AgentId, Box<str>),
    FrameworkConnected(FrameworkId, u64),
    FrameworkDisconnected(FrameworkId),
    FrameworkChanged(FrameworkId),
    FrameworkTornDown(FrameworkId, Box<str>),
    DemandChanged(FrameworkId, u32, u32),
    RolesSuppressed(FrameworkId, Box<str>, Box<str>),
    RolesRevived(FrameworkId, Box<str>, Box<str>),
    RoleSet(RolePath, Option<u32>, bool, Box<str>),
    RoleRemoved(RolePath, Box<str>),
    TaskLaunched(FrameworkId, RunId, AgentId),
    TaskKillAsked(FrameworkId, RunId, Box<str>, Box<str>),
    TaskEnded(FrameworkId, RunId, TaskPhase, Option<Code>, Option<Exit>),
    MasterSet(u64, Box<str>, Seat, Box<str>),
    MasterRemoved(u64, Box<str>),
}

/// What an applied command did, in order; `state` is that after the batch it belongs to.
#[must_use]
pub fn happened(done: &Done, outcome: &Outcome, state: &State) -> Vec<Happened> {
    // A repeated call changes nothing and is told once only.
    if outcome.changes.is_empty() || outcome.revision != done.revision {
        return Vec::new();
    }
    let at = done.at;
    let mut list = by_command(done, outcome, state);
    list.extend(ends(done, outcome, state));
    (0..)
        .zip(list)
        .map(|(number, what)| Happened { number, at, what })
        .collect()
}

fn by_command(done: &Done, outcome: &Outcome, state: &State) -> Vec<What> {
    match &done.command {
        Command::AdmitAgent(_) => admitted(&outcome.verdict, state, done.at),
        Command::SetAgentCondition { agent, condition } => vec![match condition {
            AgentCondition::Ready => What::NodeReady(*agent),
            AgentCondition::Unreachable => What::NodeUnreachable(*agent),
            AgentCondition::Gone => What::NodeRemoved(*agent, "".into()),
        }],
        Command::RemoveAgent { agent, actor } => {
            vec![What::NodeRemoved(*agent, actor.as_str().into())]
        }
        Command::Subscribe(_) => match &outcome.verdict {
            Verdict::Subscribed {
                framework,
                incarnation,
                ..
            } => vec![What::FrameworkConnected(*framework, *incarnation)],
            Verdict::Done
            | Verdict::Admitted { .. }
            | Verdict::Launched(_)
            | Verdict::Killed(_)
            | Verdict::Acknowledged(_)
            | Verdict::StoreWritten(_)
            | Verdict::TornDown(_)
            | Verdict::MasterAdded { .. }
            | Verdict::RoleSet { .. } => Vec::new(),
        },
        Command::Disconnect { framework, .. } => vec![What::FrameworkDisconnected(*framework)],
        Command::UpdateFramework { caller, .. } => vec![What::FrameworkChanged(caller.framework)],
        Command::UpdateDemand {
            caller,
            upsert,
            remove,
            ..
        } => vec![What::DemandChanged(
            caller.framework,
            count(upsert.len()),
            count(remove.len()),
        )],
        Command::Suppress {
            caller,
            roles,
            suppressed,
        } => suppressed_roles(caller.framework, roles, *suppressed, "")
            .into_iter()
            .collect(),
        Command::SuppressByOperator {
            framework,
            suppress,
            revive,
            actor,
        } => {
            let none = |roles: &[RolePath]| roles.is_empty();
            let mut list = Vec::new();
            if !none(suppress) {
                list.extend(suppressed_roles(*framework, suppress, true, actor));
            }
            if !none(revive) {
                list.extend(suppressed_roles(*framework, revive, false, actor));
            }
            list
        }
        Command::Launch(launch) => launch
            .tasks
            .iter()
            .filter(|task| {
                let change = Change::Run(launch.caller.framework, task.run.clone());
                outcome.changes.binary_search(&change).is_ok()
            })
            .map(|task| What::TaskLaunched(launch.caller.framework, task.run.clone(), launch.agent))
            .collect(),
        Command::Kill {
            caller,
            runs,
            reason,
            ..
        } => {
            let runs = runs.iter().map(|run| (caller.framework, run));
            kills(runs, reason, "", outcome)
        }
        Command::KillByOperator {
            runs,
            reason,
            actor,
            ..
        } => {
            let runs = runs.iter().map(|(framework, run)| (*framework, run));
            kills(runs, reason, actor, outcome)
        }
        Command::Teardown { caller } => {
            vec![What::FrameworkTornDown(caller.framework, "".into())]
        }
        Command::RemoveFramework { framework, actor } => {
            vec![What::FrameworkTornDown(*framework, actor.as_str().into())]
        }
        Command::SetRole {
            path,
            weight_milli,
            actor,
        } => {
            let created = matches!(outcome.verdict, Verdict::RoleSet { created: true });
            let actor = actor.as_str().into();
            vec![What::RoleSet(path.clone(), *weight_milli, created, actor)]
        }
        Command::RemoveRole { path, actor } => {
            vec![What::RoleRemoved(path.clone(), actor.as_str().into())]
        }
        Command::AddMaster(add) => masters_set(outcome, &add.actor, state),
        Command::SetMaster(set) => masters_set(outcome, &set.actor, state),
        Command::RemoveMaster { node, actor } => {
            vec![What::MasterRemoved(*node, actor.as_str().into())]
        }
        Command::MarkReplaceable { agent } => {
            let runs = outcome.changes.iter();
            let runs = runs.filter(|change| matches!(change, Change::Run(..)));
            vec![What::TasksReplaceable(*agent, count(runs.count()))]
        }
        Command::RecordStatuses { .. }
        | Command::Acknowledge { .. }
        | Command::WriteStore { .. }
        | Command::RaiseLevel { .. }
        | Command::Tick => Vec::new(),
    }
}

fn count(length: usize) -> u32 {
    u32::try_from(length).unwrap_or(u32::MAX)
}

fn admitted(verdict: &Verdict, state: &State, at: Timestamp) -> Vec<What> {
    let Verdict::Admitted { agent, .. } = verdict else {
        return Vec::new();
    };
    let new = state
        .agent(*agent)
        .is_some_and(|known| known.admitted == at);
    vec![if new {
        What::NodeAdmitted(*agent)
    } else {
        What::NodeReturned(*agent)
    }]
}

/// Masters that a command has named or changed, as they are now.
fn masters_set(outcome: &Outcome, actor: &str, state: &State) -> Vec<What> {
    let changed = outcome.changes.iter().filter_map(|change| match change {
        Change::Master(node) => state.master(*node),
        Change::Agent(_)
        | Change::Framework(_)
        | Change::Role(_)
        | Change::Claim(..)
        | Change::Run(..) => None,
    });
    changed
        .map(|master| {
            let address = master.address.as_str().into();
            What::MasterSet(master.node, address, master.seat, actor.into())
        })
        .collect()
}

fn suppressed_roles(
    framework: FrameworkId,
    roles: &[RolePath],
    suppressed: bool,
    actor: &str,
) -> Option<What> {
    let roles: Vec<&str> = roles.iter().map(RolePath::as_str).collect();
    let roles = if roles.is_empty() {
        "all".to_owned()
    } else {
        roles.join(" ")
    };
    Some(if suppressed {
        What::RolesSuppressed(framework, roles.into(), actor.into())
    } else {
        What::RolesRevived(framework, roles.into(), actor.into())
    })
}

fn kills<'a>(
    runs: impl Iterator<Item = (FrameworkId, &'a RunId)>,
    reason: &str,
    actor: &str,
    outcome: &Outcome,
) -> Vec<What> {
    runs.filter(|(framework, run)| {
        let change = Change::Run(*framework, (*run).clone());
        outcome.changes.binary_search(&change).is_ok()
    })
    .map(|(framework, run)| {
        What::TaskKillAsked(framework, run.clone(), reason.into(), actor.into())
    })
    .collect()
}

/// Runs that ended with this command: by a status in it, or by the master's own word.
fn ends(done: &Done, outcome: &Outcome, state: &State) -> Vec<What> {
    let ended = |framework: FrameworkId, id: &RunId| {
        let run = state
            .run(framework, id)
            .or_else(|| state.past_run(framework, id))?;
        let end = run.end().filter(|_| run.ended == Some(done.at))?;
        let what = What::TaskEnded(framework, id.clone(), run.phase, end.reason, end.exit);
        Some((what, end.source))
    };
    let changed = outcome.changes.iter().filter_map(|change| match change {
        Change::Run(framework, id) => Some((*framework, id)),
        Change::Agent(_)
        | Change::Framework(_)
        | Change::Role(_)
        | Change::Claim(..)
        | Change::Master(_) => None,
    });
    match &done.command {
        Command::RecordStatuses { statuses, .. } => statuses
            .iter()
            .filter(|(framework, status)| {
                let change = Change::Run(*framework, status.run.clone());
                status.phase.is_terminal() && outcome.changes.binary_search(&change).is_ok()
            })
            .filter_map(|(framework, status)| ended(*framework, &status.run))
            .map(|(what, _)| what)
            .collect(),
        Command::Acknowledge { .. } | Command::Launch(_) => Vec::new(),
        // An agent's status of the same moment is told with its own command.
        Command::AdmitAgent(_)
        | Command::SetAgentCondition { .. }
        | Command::MarkReplaceable { .. }
        | Command::RemoveAgent { .. }
        | Command::Subscribe(_)
        | Command::Disconnect { .. }
        | Command::UpdateFramework { .. }
        | Command::UpdateDemand { .. }
        | Command::Suppress { .. }
        | Command::SuppressByOperator { .. }
        | Command::Kill { .. }
        | Command::KillByOperator { .. }
        | Command::WriteStore { .. }
        | Command::Teardown { .. }
        | Command::RemoveFramework { .. }
        | Command::SetRole { .. }
        | Command::RemoveRole { .. }
        | Command::AddMaster(_)
        | Command::SetMaster(_)
        | Command::RemoveMaster { .. }
        | Command::RaiseLevel { .. }
        | Command::Tick => changed
            .filter_map(|(framework, id)| ended(framework, id))
            .filter(|(_, source)| *source != StatusSource::Agent)
            .map(|(what, _)| what)
            .collect(),
    }
}

impl Happened {
    /// The event as it is sent; `names` gives what people call an agent or a framework.
    #[must_use]
    pub fn write(&self, revision: u64, names: &dyn Names) -> wire::Event {
        let (kind, object, message, actor) = self.texts(names);
        wire::Event {
            revision,
            number: self.number,
            at_ms: self.at.0,
            kind: kind.to_owned(),
            object,
            message,
            actor: actor.to_owned(),
            facts: self.facts(),
        }
    }

    fn texts(&self, names: &dyn Names) -> (&'static str, String, String, &str) {
        let framework = |id: FrameworkId| names.framework(id);
        let by = |actor: &str| {
            if actor.is_empty() {
                String::new()
            } else {
                format!(" by {actor}")
            }
        };
        match &self.what {
            What::NodeAdmitted(id) => (
                "node_admitted",
                names.node(*id),
                "admitted for the first time".to_owned(),
                "",
            ),
            What::NodeReturned(id) => (
                "node_returned",
                names.node(*id),
                "came back, or changed".to_owned(),
                "",
            ),
            What::NodeReady(id) => (
                "node_ready",
                names.node(*id),
                "heard from again".to_owned(),
                "",
            ),
            What::NodeUnreachable(id) => (
                "node_unreachable",
                names.node(*id),
                "not heard from; its tasks may live".to_owned(),
                "",
            ),
            What::TasksReplaceable(id, tasks) => (
                "tasks_replaceable",
                names.node(*id),
                format!("unreachable for so long that {tasks} of its tasks may be replaced"),
                "",
            ),
            What::NodeRemoved(id, actor) => {
                let text = format!("declared gone{}: its tasks are lost", by(actor));
                ("node_removed", names.node(*id), text, actor)
            }
            What::FrameworkConnected(id, incarnation) => {
                let text = format!("connected, incarnation {incarnation}");
                ("framework_connected", framework(*id), text, "")
            }
            What::FrameworkDisconnected(id) => {
                let text = "disconnected; its tasks stay".to_owned();
                ("framework_disconnected", framework(*id), text, "")
            }
            What::FrameworkChanged(id) => (
                "framework_changed",
                framework(*id),
                "changed its settings".to_owned(),
                "",
            ),
            What::FrameworkTornDown(id, actor) => {
                let text = format!("torn down{}: its tasks are being killed", by(actor));
                ("framework_torn_down", framework(*id), text, actor)
            }
            What::DemandChanged(id, put, removed) => {
                let text = format!("{put} claims put, {removed} withdrawn");
                ("demand_changed", framework(*id), text, "")
            }
            What::RolesSuppressed(id, roles, actor) => {
                let text = format!("no more offers for {roles}{}", by(actor));
                ("roles_suppressed", framework(*id), text, actor)
            }
            What::RolesRevived(id, roles, actor) => {
                let text = format!("offers again for {roles}{}", by(actor));
                ("roles_revived", framework(*id), text, actor)
            }
            What::RoleSet(path, weight, created, actor) => {
                let what = if *created { "created" } else { "changed" };
                let weight = weight.map_or(String::new(), |weight| {
                    format!(", weight {}", mete_model::MilliCpu(u64::from(weight)))
                });
                let text = format!("{what}{}{weight}", by(actor));
                ("role_set", path.to_string(), text, actor)
            }
            What::RoleRemoved(path, actor) => (
                "role_removed",
                path.to_string(),
                format!("removed{}", by(actor)),
                actor,
            ),
            What::TaskLaunched(id, run, agent) => {
                let text = format!("launched on {}", names.node(*agent));
                ("task_launched", task(names, *id, run), text, "")
            }
            What::TaskKillAsked(id, run, reason, actor) => {
                let reason = if reason.is_empty() {
                    String::new()
                } else {
                    format!(": {reason}")
                };
                let text = format!("to be ended{}{reason}", by(actor));
                ("task_kill_asked", task(names, *id, run), text, actor)
            }
            What::TaskEnded(id, run, phase, reason, exit) => {
                let reason = reason.map_or(String::new(), |reason| format!(" ({reason})"));
                let text = format!("{phase}{}{reason}", exit_text(*exit));
                ("task_ended", task(names, *id, run), text, "")
            }
            What::MasterSet(node, address, seat, actor) => {
                let text = format!("at {address}, {}{}", seat_text(*seat), by(actor));
                ("master_set", master(*node), text, actor)
            }
            What::MasterRemoved(node, actor) => {
                let text = format!("has left{}", by(actor));
                ("master_removed", master(*node), text, actor)
            }
        }
    }

    fn facts(&self) -> BTreeMap<String, String> {
        let mut facts = BTreeMap::new();
        let mut add = |name: &str, value: String| {
            facts.insert(name.to_owned(), value);
        };
        match &self.what {
            What::NodeAdmitted(id)
            | What::NodeReturned(id)
            | What::NodeReady(id)
            | What::NodeUnreachable(id)
            | What::TasksReplaceable(id, _)
            | What::NodeRemoved(id, _) => add("agent_id", id.to_string()),
            What::FrameworkConnected(id, incarnation) => {
                add("framework_id", id.to_string());
                add("incarnation", incarnation.to_string());
            }
            What::FrameworkDisconnected(id)
            | What::FrameworkChanged(id)
            | What::FrameworkTornDown(id, _)
            | What::DemandChanged(id, ..)
            | What::RolesSuppressed(id, ..)
            | What::RolesRevived(id, ..) => add("framework_id", id.to_string()),
            What::RoleSet(_, weight, created, _) => {
                add("created", created.to_string());
                if let Some(weight) = weight {
                    add("weight_milli", weight.to_string());
                }
            }
            What::RoleRemoved(..) => {}
            What::MasterSet(node, address, ..) => {
                add("node_id", node.to_string());
                add("address", address.to_string());
            }
            What::MasterRemoved(node, _) => add("node_id", node.to_string()),
            What::TaskLaunched(id, run, agent) => {
                add("framework_id", id.to_string());
                add("run", run.to_string());
                add("agent_id", agent.to_string());
            }
            What::TaskKillAsked(id, run, ..) => {
                add("framework_id", id.to_string());
                add("run", run.to_string());
            }
            What::TaskEnded(id, run, phase, reason, exit) => {
                add("framework_id", id.to_string());
                add("run", run.to_string());
                add("phase", phase.to_string());
                if let Some(reason) = reason {
                    add("reason", reason.to_string());
                }
                match exit {
                    Some(Exit::Code(code)) => add("exit_code", code.to_string()),
                    Some(Exit::Signal(signal)) => add("signal", signal.to_string()),
                    None => {}
                }
            }
        }
        facts
    }
}

/// What people call things.
pub trait Names {
    /// The name of an agent's node, or its id when no name is known.
    fn node(&self, id: AgentId) -> String;
    /// The name of a framework, or its id when no name is known.
    fn framework(&self, id: FrameworkId) -> String;
}

fn task(names: &dyn Names, framework: FrameworkId, run: &RunId) -> String {
    format!("{}/{run}", names.framework(framework))
}

fn master(node: u64) -> String {
    format!("master {node}")
}

fn seat_text(seat: Seat) -> &'static str {
    match seat {
        Seat::Learner => "to receive the log without a vote",
        Seat::Voter => "to have a vote once it has caught up",
        Seat::Leaving => "on its way out",
    }
}

fn exit_text(exit: Option<Exit>) -> String {
    match exit {
        Some(Exit::Code(code)) => format!(", exit code {code}"),
        Some(Exit::Signal(signal)) => format!(", signal {signal}"),
        None => String::new(),
    }
}
