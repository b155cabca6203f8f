//! Agents' streams: hello, beacons, statuses, and the end of one.

use std::collections::BTreeMap;
use std::sync::Arc;

use mete_model::{AgentId, FrameworkId, Inventory, RunId, Span, Status};
use mete_proto::agent::v1::master_message::Message;
use mete_proto::agent::v1::{MasterBeacon, Redirect, Welcome};
use mete_proto::convert::write_run_ref;
use mete_proto::types::v1::RunRef;
use mete_state::command::AdmitAgent;
use mete_state::{AgentCondition, Command, Effect, Preview, State};

use super::applied::Waiting;
use super::dispatch::{Dispatched, discards};
use super::offer_book::Why;
use super::{LeaderTerm, Now, preflight};
use crate::event::LinkId;
use crate::request::Refusal;
use crate::session::agent::AgentOutbox;

/// Statuses of one command; more go into the next one.
const STATUSES_OF_A_COMMAND: usize = 2_000;

/// Runs to discard that stand in the welcome itself; more follow in messages of their own.
const DISCARDS_OF_A_WELCOME: usize = 500;

/// One open stream of an agent.
#[derive(Debug)]
pub(super) struct Link {
    outbox: Arc<AgentOutbox>,
    /// The last hello, or the inventory that came after it; for a change of inventory.
    hello: AdmitAgent,
    /// The agent behind it, once admitted.
    agent: Option<AgentId>,
    progress: u64,
    /// Statuses that came since the last turn.
    statuses: Vec<(FrameworkId, Status)>,
}

impl Link {
    pub(super) fn end(&self, why: &Refusal) {
        end_outbox(&self.outbox, why);
    }
}

/// Ends an agent's stream with the reason.
pub(super) fn end_outbox(outbox: &AgentOutbox, why: &Refusal) {
    let leader = why.leader.as_ref();
    outbox.put(|queue| {
        queue.end(Redirect {
            code: why.code().as_str().to_owned(),
            detail: why.rejection.detail.clone(),
            leader_address: leader.map_or_else(String::new, |leader| leader.address.clone()),
            retry_after_ms: why.retry_after.map_or(0, |span| span.0),
        });
    });
}

impl LeaderTerm {
    pub(super) fn hello(
        &mut self,
        link: LinkId,
        mut hello: AdmitAgent,
        outbox: Arc<AgentOutbox>,
        state: &State,
        now: Now,
    ) {
        if outbox.is_closed() {
            return;
        }
        if let Err(again_in) = self.presence.admit(now.monotonic) {
            let detail = "more agents come back at once than are admitted; come again";
            end_outbox(&outbox, &Refusal::busy(detail, Span(again_in)));
            return;
        }
        hello.agent = match state.agent_of_key(hello.node_key) {
            Some(known) => known.id,
            None => self.mint.agent(),
        };
        // The same name with another key is a node whose disk was wiped, or another machine that
        // was given the name by mistake. While the first is heard it is the second.
        let holder = state.agent_of_node(&hello.node_name);
        if let Some(holder) = holder.filter(|holder| holder.node_key != hello.node_key)
            && self.presence.link(holder.id).is_some()
        {
            let detail = format!(
                "node name {} belongs to agent {}, which is connected; choose another --name",
                hello.node_name, holder.id
            );
            tracing::warn!(node = %hello.node_name, "a second agent of this name is turned away");
            end_outbox(&outbox, &Refusal::new(mete_model::Code::InUse, detail));
            return;
        }
        let entry = Link {
            outbox,
            hello: hello.clone(),
            agent: None,
            progress: 0,
            statuses: Vec::new(),
        };
        self.links.insert(link, entry);
        self.admit(link, hello, state, now);
    }

    /// Logs the admission, unless nothing at all is new.
    fn admit(&mut self, link: LinkId, hello: AdmitAgent, state: &State, now: Now) {
        let known = hello.agent;
        let command = Command::AdmitAgent(hello);
        let (command, checked) = self.check(state, command, now);
        match checked {
            Err(refusal) => self.turn_away(link, &refusal),
            Ok(Preview::NoChange(mete_state::Verdict::Admitted { agent, discard })) => {
                self.welcome(link, agent, &discard, state, now);
            }
            Ok(Preview::NoChange(_) | Preview::Repeat { .. }) => {
                self.welcome(link, known, &[], state, now);
            }
            Ok(Preview::Change) => {
                self.log(command, now, Waiting::Admit { link });
            }
        }
    }

    fn turn_away(&mut self, link: LinkId, refusal: &Refusal) {
        if let Some(link) = self.links.remove(&link) {
            tracing::warn!(node = %link.hello.node_name, %refusal, "agent turned away");
            link.end(refusal);
        }
    }

    /// The admission was refused at the commit.
    pub(super) fn admission_refused(&mut self, link: LinkId, refusal: &Refusal) {
        self.turn_away(link, refusal);
    }

    /// The agent is admitted: it may begin, and hears at once what it is owed.
    pub(super) fn welcome(
        &mut self,
        link: LinkId,
        agent: AgentId,
        discard: &[(FrameworkId, RunId)],
        state: &State,
        now: Now,
    ) {
        let Some(entry) = self.links.get_mut(&link) else {
            return;
        };
        let is_first = entry.agent.is_none();
        entry.agent = Some(agent);
        if is_first {
            let mut discard: Vec<RunRef> = discard
                .iter()
                .map(|(framework, run)| write_run_ref(*framework, run))
                .collect();
            let rest = discard.split_off(discard.len().min(DISCARDS_OF_A_WELCOME));
            let welcome = Welcome {
                agent_id: agent.to_string(),
                term: self.term,
                beacon_ms: self.timing.beacon.0,
                discard,
                masters: self.masters.clone(),
            };
            entry.outbox.put(|queue| {
                queue.open(
                    [Message::Welcome(welcome)]
                        .into_iter()
                        .chain(discards(rest)),
                );
            });
            let due = now.monotonic.after(self.timing.beacon.0);
            self.beacons.push_back((due, link));
        }
        if self.presence.is_awaited(agent) {
            self.returned.insert(agent, state.revision());
            self.tell_ready(agent, state, now);
        }
        if let Some(older) = self.presence.here(agent, link, now.monotonic)
            && older != link
            && let Some(older) = self.links.remove(&older)
        {
            let refusal = Refusal::new(
                mete_model::Code::StaleIncarnation,
                "a newer stream of the same agent has replaced this one",
            );
            older.end(&refusal);
        }
        self.stale.agent(agent);
        self.send_owed_to_agent(agent, state);
    }

    /// Frameworks were told that the agent is awaited; that it is back is no command, so nothing
    /// else tells them.
    fn tell_ready(&mut self, agent: AgentId, state: &State, now: Now) {
        let condition = AgentCondition::Ready;
        let mut frameworks: Vec<FrameworkId> =
            state.runs_on(agent).map(|run| run.framework).collect();
        // Runs come by framework, so equal ones stand together.
        frameworks.dedup();
        let mut dispatched = Dispatched::default();
        for framework in frameworks {
            let effect = Effect::TellAgent {
                framework,
                agent,
                condition,
            };
            dispatched.add(state, state.revision(), &effect);
        }
        for (framework, events) in dispatched.frameworks {
            self.send_to_framework(framework, events, now);
        }
    }

    /// Sends everything again that is owed to an agent. Harmless when it has it already.
    fn send_owed_to_agent(&mut self, agent: AgentId, state: &State) {
        let mut dispatched = Dispatched::default();
        for effect in state.owed_to_agent(agent) {
            dispatched.add(state, state.revision(), &effect);
        }
        self.send_to_agents(dispatched.agents);
    }

    /// Puts messages into agents' outboxes; what finds no room, or no stream, stays owed.
    pub(super) fn send_to_agents(&mut self, batches: BTreeMap<AgentId, super::dispatch::ToAgent>) {
        for (agent, batch) in batches {
            let Some(link) = self.presence.link(agent) else {
                continue;
            };
            let Some(link) = self.links.get(&link) else {
                continue;
            };
            let (dropped, is_owed) = link.outbox.put(|queue| {
                let (mut dropped, mut is_owed): (u64, bool) = (0, true);
                for message in batch.into_messages() {
                    let discards = matches!(message, Message::DiscardRuns(_));
                    if !queue.push(message) {
                        dropped = dropped.saturating_add(1);
                        is_owed = is_owed && !discards;
                    }
                }
                (dropped, is_owed)
            });
            if !is_owed {
                // The state owes no discard: the agent's next hello brings it about again.
                let detail =
                    "this agent does not keep up; what it was to be told follows its return";
                link.end(&Refusal::busy(detail, Span::seconds(1)));
            }
            self.counters.outbox_overflows = self.counters.outbox_overflows.saturating_add(dropped);
        }
    }

    pub(super) fn agent_drained(&mut self, link: LinkId, state: &State) {
        if let Some(agent) = self.presence.agent(link) {
            self.send_owed_to_agent(agent, state);
        }
    }

    pub(super) fn statuses(
        &mut self,
        link: LinkId,
        statuses: Vec<(FrameworkId, Status)>,
        now: Now,
    ) {
        // Of a stream that is not admitted, or replaced: sent again on the next one.
        if self.presence.agent(link).is_none() {
            return;
        }
        if let Some(entry) = self.links.get_mut(&link) {
            if statuses.is_empty() {
                return;
            }
            if entry.statuses.is_empty() {
                self.status_links.push((link, now));
            }
            entry.statuses.extend(statuses);
        }
    }

    /// Logs what came in this turn, one command for each agent.
    pub(super) fn flush_statuses(&mut self) {
        for (link, now) in std::mem::take(&mut self.status_links) {
            let Some(agent) = self.presence.agent(link) else {
                continue;
            };
            let Some(entry) = self.links.get_mut(&link) else {
                continue;
            };
            let mut statuses = std::mem::take(&mut entry.statuses);
            while !statuses.is_empty() {
                let rest = statuses.split_off(statuses.len().min(STATUSES_OF_A_COMMAND));
                let count = u64::try_from(statuses.len()).unwrap_or(u64::MAX);
                let command = Command::RecordStatuses { agent, statuses };
                self.log(command, now, Waiting::Statuses { link, count });
                statuses = rest;
            }
        }
    }

    pub(super) fn beacon(&mut self, link: LinkId, progress: u64, now: Now) {
        let Some(entry) = self.links.get_mut(&link) else {
            return;
        };
        // A beacon without progress comes from a network thread, not from the work loop.
        if progress > entry.progress {
            entry.progress = progress;
            self.presence.heard(link, now.monotonic);
        }
    }

    pub(super) fn inventory(
        &mut self,
        link: LinkId,
        inventory: Inventory,
        state: &State,
        now: Now,
    ) {
        let Some(agent) = self.presence.agent(link) else {
            return;
        };
        let Some(entry) = self.links.get_mut(&link) else {
            return;
        };
        entry.hello.inventory = inventory;
        self.admit_again(agent, state, now);
    }

    /// Admits an agent once more that has an open stream: its machine has changed, or it came back
    /// while it was being declared unreachable.
    pub(super) fn admit_again(&mut self, agent: AgentId, state: &State, now: Now) {
        let Some(link) = self.presence.link(agent) else {
            return;
        };
        let Some(entry) = self.links.get(&link) else {
            return;
        };
        let mut hello = entry.hello.clone();
        hello.agent = agent;
        // What it holds is what the state says of it: its tasks are the same as before.
        hello.held = preflight::held_by_state(state, agent);
        self.admit(link, hello, state, now);
    }

    pub(super) fn agent_closed(&mut self, link: LinkId, now: Now) {
        self.links.remove(&link);
        if let Some(agent) = self.presence.closed(link) {
            self.agent_is_away(agent, now);
        }
    }

    /// The agent has no stream: its open offers are taken back at once.
    fn agent_is_away(&mut self, agent: AgentId, now: Now) {
        let open = self.book.open_of_agent(agent);
        self.rescind(&open, Why::Agent, now);
        self.stale.agent(agent);
    }

    /// Logs as unreachable who has been silent for too long.
    pub(super) fn declare_unreachable(&mut self, state: &State, now: Now) {
        for agent in self.presence.overdue(now.monotonic) {
            if let Some(link) = self.presence.forget(agent)
                && let Some(link) = self.links.remove(&link)
            {
                let detail = "nothing was heard of the agent's work loop for too long";
                link.end(&Refusal::new(mete_model::Code::Unreachable, detail));
            }
            self.agent_is_away(agent, now);
            let is_ready = state
                .agent(agent)
                .is_some_and(|agent| agent.condition == AgentCondition::Ready);
            if is_ready {
                tracing::warn!(%agent, "agent unreachable");
                let condition = AgentCondition::Unreachable;
                let command = Command::SetAgentCondition { agent, condition };
                self.log(command, now, Waiting::Nobody);
            }
        }
    }

    /// An operator has removed the agent.
    pub(super) fn agent_removed(&mut self, agent: AgentId, now: Now) {
        if let Some(link) = self.presence.forget(agent)
            && let Some(link) = self.links.remove(&link)
        {
            let detail = "an operator said that this node never comes back";
            link.end(&Refusal::new(mete_model::Code::GoneByOperator, detail));
        }
        self.declines.forget_agent(agent);
        self.returned.remove(&agent);
        self.agent_is_away(agent, now);
    }

    pub(super) fn send_beacons(&mut self, now: Now) {
        let next = now.monotonic.after(self.timing.beacon.0);
        while let Some((due, link)) = self.beacons.front().copied()
            && due <= now.monotonic
        {
            self.beacons.pop_front();
            // A stream that is over leaves the row.
            if let Some(entry) = self.links.get(&link) {
                let beacon = MasterBeacon {
                    term: self.term,
                    heard: Some(entry.progress),
                };
                entry
                    .outbox
                    .put(|queue| queue.push(Message::Beacon(beacon)));
                self.beacons.push_back((next, link));
            }
        }
    }
}
