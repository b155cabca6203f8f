//! How a framework's stream begins: who it is, everything the state knows of it in pages, the end
//! of that; to a process that goes on, only what it may not know. Also the form in which a run is
//! shown, here and by `Reconcile`.

use std::collections::BTreeMap;

use mete_model::{AgentId, FrameworkId};
use mete_proto::convert::{write_claim, write_phase, write_resources, write_run, write_status};
use mete_proto::framework::v1::{
    AgentCondition as WireCondition, Event, RunStatus, Snapshot, SnapshotEnd, Subscribed, event,
};
use mete_proto::types::v1::ClaimStatus;
use mete_state::{AgentCondition, ClaimRecord, Run, State};
use prost::Message as _;

use super::dispatch::write_condition;

/// Bytes of one page, roughly.
const PAGE_BYTES: usize = 1 << 20;

/// The largest message that is sent or taken.
pub const MESSAGE_BYTES: u64 = 4 << 20;

/// What the leader knows beside the state, and what the framework has seen already.
#[derive(Clone, Copy)]
pub struct Seen<'a> {
    /// Known as ready and not back since this leader took over.
    pub is_recovering: &'a dyn Fn(AgentId) -> bool,
    /// Agents that came back to this leader, with the state's revision at that time.
    pub returned: &'a BTreeMap<AgentId, u64>,
    /// Runs that have not changed since this revision are left out; `None` = none is.
    pub since: Option<u64>,
}

impl std::fmt::Debug for Seen<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Seen")
            .field("since", &self.since)
            .finish_non_exhaustive()
    }
}

impl Seen<'_> {
    /// Says whether the framework may not know the run as it is. What happened at the very revision
    /// may have reached it in part.
    fn is_news(self, state: &State, run: &Run) -> bool {
        let Some(since) = self.since else {
            return true;
        };
        let ready = |agent: &mete_state::Agent| {
            agent.condition == AgentCondition::Ready
                && agent.revision < since
                && !(self.is_recovering)(agent.id)
                && self.returned.get(&agent.id).is_none_or(|at| *at < since)
        };
        run.revision >= since
            || run.unacknowledged().next().is_some()
            || !state.agent(run.agent).is_some_and(ready)
    }
}

/// The opening events of a stream, complete at the state's revision.
pub fn opening(
    state: &State,
    subscribed: Subscribed,
    framework: FrameworkId,
    seen: Seen<'_>,
) -> Vec<Event> {
    let revision = state.revision();
    let is_recovering = seen.is_recovering;
    let mut pages = Pages::default();
    for run in state.runs(framework) {
        if !seen.is_news(state, run) {
            continue;
        }
        let shown = write_run_status(state, run, is_recovering);
        pages.grow(shown.encoded_len());
        pages.last.runs.push(shown);
    }
    // Always all of them: they are few beside the runs.
    for record in state.claims(framework) {
        let shown = write_claim_status(record);
        pages.grow(shown.encoded_len());
        pages.last.claims.push(shown);
    }
    let mut pages = pages.finish();
    let record = state.framework(framework);
    for page in &mut pages {
        page.demand_version = record.map_or(0, |record| record.demand_version);
        page.suppressed_roles = record.map_or_else(Vec::new, |record| {
            let roles = record.settings.suppressed.iter();
            roles.map(|role| role.as_str().to_owned()).collect()
        });
    }
    let mut events = vec![event_at(revision, event::Event::Subscribed(subscribed))];
    events.extend(
        pages
            .into_iter()
            .map(|page| event_at(revision, event::Event::Snapshot(page))),
    );
    let end = SnapshotEnd { revision };
    events.push(event_at(revision, event::Event::SnapshotEnd(end)));
    events
}

fn event_at(revision: u64, event: event::Event) -> Event {
    Event {
        revision,
        event: Some(event),
    }
}

#[derive(Default)]
struct Pages {
    full: Vec<Snapshot>,
    last: Snapshot,
    bytes: usize,
}

impl Pages {
    /// Begins a new page when the present one would get too large.
    fn grow(&mut self, bytes: usize) {
        self.bytes = self.bytes.saturating_add(bytes);
        if self.bytes > PAGE_BYTES && self.bytes > bytes {
            self.full.push(std::mem::take(&mut self.last));
            self.bytes = bytes;
        }
    }

    fn finish(mut self) -> Vec<Snapshot> {
        self.full.push(self.last);
        self.full
    }
}

/// A claim as the broker has it.
#[must_use]
pub fn write_claim_status(record: &ClaimRecord) -> ClaimStatus {
    ClaimStatus {
        claim: Some(write_claim(&record.claim)),
        launched: record.launched,
        submitted_ms: record.submitted.0,
    }
}

/// A run as its framework sees it.
#[must_use]
pub fn write_run_status(
    state: &State,
    run: &Run,
    is_recovering: &dyn Fn(mete_model::AgentId) -> bool,
) -> RunStatus {
    let agent = state.agent(run.agent);
    let replicated = agent.map_or(AgentCondition::Gone, |agent| agent.condition);
    let condition = if replicated == AgentCondition::Ready && is_recovering(run.agent) {
        WireCondition::Recovering
    } else {
        write_condition(replicated)
    };
    let is_ready = condition == WireCondition::Ready;
    let places = run.replacement.places();
    RunStatus {
        run: Some(write_run(&run.id)),
        agent_id: run.agent.to_string(),
        node: agent.map_or_else(String::new, |agent| agent.node_name.clone()),
        phase: write_phase(run.phase).into(),
        last_sequence: run.sequence,
        acknowledged_sequence: run.acknowledged,
        role: run.role.as_str().to_owned(),
        claim: run
            .claim
            .as_ref()
            .map_or_else(String::new, ToString::to_string),
        resources: Some(write_resources(&run.resources)),
        labels: run.labels.to_map(),
        grant_id: run.grant.0,
        agent_condition: condition.into(),
        agent_condition_since_ms: agent.filter(|_| !is_ready).map_or(0, |agent| agent.since.0),
        unacknowledged: run
            .unacknowledged()
            .map(|status| write_status(run.framework, status, run.agent.to_string()))
            .collect(),
        node_address: agent.map_or_else(String::new, |agent| agent.inventory.node_address.clone()),
        replaceable_since_ms: places
            .replaceable
            .filter(|_| state.is_replaceable(run))
            .map_or(0, |since| since.0),
        replaces: places.replaces.as_ref().map(write_run),
        replaced_by: places.replaced_by.as_ref().map(write_run),
    }
}
