//! From effects to messages: one batch for each agent, one event after the other for each
//! framework.
//!
//! Looks everything up in the state at the moment of sending; what is no longer owed by then is not
//! sent. Nothing here is remembered: what finds no room is found again by `State::owed`.

use std::collections::BTreeMap;
use std::sync::Arc;

use mete_model::{AgentId, FrameworkId, RunId, Status};
use mete_proto::agent::v1 as agent_wire;
use mete_proto::agent::v1::master_message::Message;
use mete_proto::convert::{write_resources, write_run, write_run_ref, write_spec, write_status};
use mete_proto::framework::v1 as framework_wire;
use mete_proto::types::v1::RunRef;
use mete_state::{AgentCondition, Effect, Run, State};

/// Tasks of one message to an agent; keeps messages far below the limit of a gRPC message.
const TASKS_OF_A_MESSAGE: usize = 500;

/// Bytes of specs and tasks in one message to an agent, roughly.
const BYTES_OF_A_MESSAGE: usize = 2 << 20;

/// What is to be sent to one agent.
#[derive(Debug, Default)]
pub struct ToAgent {
    starts: Vec<agent_wire::StartTasks>,
    /// Of the last message in `starts`: where each spec stands, by its address, and the bytes.
    specs: BTreeMap<usize, u32>,
    bytes: usize,
    kills: Vec<agent_wire::KillTask>,
    discards: Vec<RunRef>,
    forgets: Vec<agent_wire::ForgetStatus>,
}

impl ToAgent {
    /// The messages, in the order in which an agent should take them.
    pub fn into_messages(self) -> impl Iterator<Item = Message> {
        let starts = self.starts.into_iter().map(Message::StartTasks);
        let kills =
            in_parts(self.kills).map(|tasks| Message::KillTasks(agent_wire::KillTasks { tasks }));
        let discards = discards(self.discards);
        let forgets = in_parts(self.forgets)
            .map(|items| Message::ForgetStatuses(agent_wire::ForgetStatuses { items }));
        starts.chain(kills).chain(discards).chain(forgets)
    }

    fn start(&mut self, state: &State, run: &Run) {
        // The state keeps one copy of equal specs: the address tells them apart.
        let address = Arc::as_ptr(&run.spec).addr();
        let is_full = self.starts.last().is_none_or(|message| {
            message.tasks.len() >= TASKS_OF_A_MESSAGE || self.bytes >= BYTES_OF_A_MESSAGE
        });
        if is_full {
            self.starts.push(agent_wire::StartTasks::default());
            self.specs.clear();
            self.bytes = 0;
        }
        let Some(message) = self.starts.last_mut() else {
            return;
        };
        let spec = match self.specs.get(&address) {
            Some(spec) => *spec,
            None => {
                let at = u32::try_from(message.specs.len()).unwrap_or(u32::MAX);
                let written = write_spec(&run.spec);
                self.bytes = self
                    .bytes
                    .saturating_add(prost::Message::encoded_len(&written));
                message.specs.push(written);
                self.specs.insert(address, at);
                at
            }
        };
        let task = write_start(state, run, spec);
        self.bytes = self
            .bytes
            .saturating_add(prost::Message::encoded_len(&task));
        message.tasks.push(task);
    }
}

/// Runs that an agent must end and forget, in messages.
pub fn discards(runs: Vec<RunRef>) -> impl Iterator<Item = Message> {
    in_parts(runs).map(|runs| Message::DiscardRuns(agent_wire::DiscardRuns { runs }))
}

fn in_parts<T>(items: Vec<T>) -> impl Iterator<Item = Vec<T>> {
    let mut items = items.into_iter();
    std::iter::from_fn(move || {
        let part: Vec<T> = items.by_ref().take(TASKS_OF_A_MESSAGE).collect();
        (!part.is_empty()).then_some(part)
    })
}

fn write_start(state: &State, run: &Run, spec: u32) -> agent_wire::StartTask {
    let framework = state.framework(run.framework);
    let agent = state.agent(run.agent);
    agent_wire::StartTask {
        run: Some(write_run_ref(run.framework, &run.id)),
        grant_id: run.grant.0,
        resources: Some(write_resources(&run.resources)),
        spec,
        environment: run.environment.to_map(),
        labels: run.labels.to_map(),
        role: run.role.as_str().to_owned(),
        topology_epoch: agent.map_or(0, |agent| agent.inventory.topology_epoch),
        framework_name: framework.map_or_else(String::new, |framework| framework.name.clone()),
    }
}

/// What is to be sent to one framework.
#[derive(Debug)]
pub enum ToFramework {
    /// An event that is persisted, with the run of a status that is no end.
    Event(Box<framework_wire::Event>, Option<RunId>),
    /// Streams of incarnations below this one end.
    Fence(u64),
    /// All its streams end.
    End,
}

/// Everything that the effects of a turn come to.
#[derive(Debug, Default)]
pub struct Dispatched {
    /// By agent.
    pub agents: BTreeMap<AgentId, ToAgent>,
    /// By framework, in order.
    pub frameworks: BTreeMap<FrameworkId, Vec<ToFramework>>,
}

impl Dispatched {
    /// Adds what one effect comes to. `revision` is that of the command that gave it.
    pub fn add(&mut self, state: &State, revision: u64, effect: &Effect) {
        match effect {
            Effect::StartTask {
                agent,
                framework,
                run,
            } => {
                let staged = state.run(*framework, run);
                if let Some(run) = staged.filter(|run| !run.phase.is_terminal()) {
                    self.agents.entry(*agent).or_default().start(state, run);
                }
            }
            Effect::KillTask {
                agent,
                framework,
                run,
            } => self.kill(state, *agent, *framework, run),
            Effect::DiscardTask {
                agent,
                framework,
                run,
            } => self
                .agents
                .entry(*agent)
                .or_default()
                .discards
                .push(write_run_ref(*framework, run)),
            Effect::ForgetStatuses {
                agent,
                framework,
                run,
                sequence,
            } => self
                .agents
                .entry(*agent)
                .or_default()
                .forgets
                .push(agent_wire::ForgetStatus {
                    run: Some(write_run_ref(*framework, run)),
                    sequence: *sequence,
                }),
            Effect::TellStatus {
                framework,
                run,
                sequence,
            } => self.status(state, revision, *framework, run, *sequence),
            Effect::TellAgent {
                framework,
                agent,
                condition,
            } => self.agent_changed(state, revision, *framework, *agent, *condition),
            Effect::TellReplaceable {
                framework,
                agent,
                run,
            } => self.replaceable(state, revision, *framework, *agent, run),
            Effect::Fence {
                framework,
                incarnation,
            } => self.tell(*framework, ToFramework::Fence(*incarnation)),
            Effect::EndStreams { framework } => self.tell(*framework, ToFramework::End),
        }
    }

    fn tell(&mut self, framework: FrameworkId, what: ToFramework) {
        self.frameworks.entry(framework).or_default().push(what);
    }

    fn kill(&mut self, state: &State, agent: AgentId, framework: FrameworkId, run: &RunId) {
        let Some(record) = state.run(framework, run) else {
            return;
        };
        let Some(kill) = record.kill.as_ref().filter(|_| !record.phase.is_terminal()) else {
            return;
        };
        self.agents
            .entry(agent)
            .or_default()
            .kills
            .push(agent_wire::KillTask {
                run: Some(write_run_ref(framework, run)),
                grace_ms: kill.grace.map(|grace| grace.0),
                reason: kill.by.as_str().to_owned(),
            });
    }

    fn status(
        &mut self,
        state: &State,
        revision: u64,
        framework: FrameworkId,
        run: &RunId,
        sequence: u64,
    ) {
        let Some(record) = state.run(framework, run) else {
            return;
        };
        let wanted = |status: &&Status| status.sequence == sequence;
        if let Some(status) = record.unacknowledged().find(wanted) {
            let mergeable = (!status.phase.is_terminal()).then(|| run.clone());
            let event = framework_wire::Event {
                revision,
                event: Some(framework_wire::event::Event::Status(write_status(
                    framework,
                    status,
                    record.agent.to_string(),
                ))),
            };
            self.tell(framework, ToFramework::Event(Box::new(event), mergeable));
        }
    }

    fn replaceable(
        &mut self,
        state: &State,
        revision: u64,
        framework: FrameworkId,
        agent: AgentId,
        run: &RunId,
    ) {
        let record = state.run(framework, run);
        let Some(record) = record.filter(|run| state.is_replaceable(run)) else {
            return;
        };
        let since = record.replacement.places().replaceable;
        let mut news = framework_wire::RunsReplaceable {
            agent_id: agent.to_string(),
            since_ms: since.map_or(0, |since| since.0),
            runs: vec![write_run(run)],
        };
        let told = self.frameworks.entry(framework).or_default();
        if joins(told.last_mut(), revision, &mut news) {
            return;
        }
        let event = framework_wire::Event {
            revision,
            event: Some(framework_wire::event::Event::RunsReplaceable(news)),
        };
        told.push(ToFramework::Event(Box::new(event), None));
    }

    fn agent_changed(
        &mut self,
        state: &State,
        revision: u64,
        framework: FrameworkId,
        agent: AgentId,
        condition: AgentCondition,
    ) {
        let record = state.agent(agent);
        let event = framework_wire::event::Event::AgentChanged(framework_wire::AgentChanged {
            agent_id: agent.to_string(),
            node: record.map_or_else(String::new, |agent| agent.node_name.clone()),
            condition: write_condition(condition).into(),
            since_ms: record.map_or(0, |agent| agent.since.0),
            topology_epoch: record.map_or(0, |agent| agent.inventory.topology_epoch),
        });
        let event = framework_wire::Event {
            revision,
            event: Some(event),
        };
        self.tell(framework, ToFramework::Event(Box::new(event), None));
    }
}

/// Puts a run into the last event, if that is one of the same kind, agent and moment with room.
fn joins(
    last: Option<&mut ToFramework>,
    revision: u64,
    news: &mut framework_wire::RunsReplaceable,
) -> bool {
    let Some(ToFramework::Event(event, _)) = last else {
        return false;
    };
    if event.revision != revision {
        return false;
    }
    match &mut event.event {
        Some(framework_wire::event::Event::RunsReplaceable(told))
            if (&told.agent_id, told.since_ms) == (&news.agent_id, news.since_ms)
                && told.runs.len() < TASKS_OF_A_MESSAGE =>
        {
            told.runs.append(&mut news.runs);
            true
        }
        Some(_) | None => false,
    }
}

/// The condition as frameworks read it.
#[must_use]
pub fn write_condition(condition: AgentCondition) -> framework_wire::AgentCondition {
    match condition {
        AgentCondition::Ready => framework_wire::AgentCondition::Ready,
        AgentCondition::Unreachable => framework_wire::AgentCondition::Unreachable,
        AgentCondition::Gone => framework_wire::AgentCondition::Gone,
    }
}
