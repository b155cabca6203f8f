//! Frameworks' streams: who has one, what is sent on it, and what the end of one means.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use mete_model::{AgentId, Code, FrameworkId, OfferId};
use mete_proto::framework::v1::{Heartbeat, Moved, Subscribed};
use mete_state::command::Subscribe;
use mete_state::{AgentCondition, Command, Effect, Preview, State, Verdict};

use super::applied::Waiting;
use super::dispatch::ToFramework;
use super::offer_book::Why;
use super::opening::{MESSAGE_BYTES, Seen, opening};
use super::{LeaderTerm, Now};
use crate::config::Timing;
use crate::event::{Monotonic, StreamId, SubscribeRequest, SubscribeTo};
use crate::output::Output;
use crate::request::Refusal;
use crate::session::framework::{FrameworkOutbox, FrameworkQueue};

/// One open stream of a framework.
#[derive(Debug)]
struct Stream {
    framework: FrameworkId,
    incarnation: u64,
    outbox: Arc<FrameworkOutbox>,
    heartbeat_due: Monotonic,
    /// Demand as the last heartbeat told it: version, and the hash worked out for it.
    demand: Option<(u64, u64)>,
    /// The revision of the first event that found no room and was not told again since.
    missed: Option<u64>,
}

/// A stream whose subscription is on its way through the log.
#[derive(Debug)]
pub(super) struct Opening {
    pub(super) stream: StreamId,
    pub(super) outbox: Arc<FrameworkOutbox>,
    pub(super) reply: SubscribeTo,
    /// What the process goes on from, if it is not a new one.
    pub(super) resume: Option<Resume>,
}

/// The process that goes on, and what it has seen.
#[derive(Clone, Copy, Debug)]
pub(super) struct Resume {
    incarnation: u64,
    revision: u64,
}

/// All streams of a term.
#[derive(Debug, Default)]
pub(super) struct Streams {
    open: BTreeMap<StreamId, Stream>,
    by_framework: BTreeMap<FrameworkId, StreamId>,
    /// Had a stream with the leader before this one: until when it is awaited.
    awaited: BTreeMap<FrameworkId, Monotonic>,
}

impl Streams {
    pub(super) fn begin(state: &State, timing: Timing, now: Now) -> Self {
        let until = now.monotonic.after(timing.silence.0);
        let awaited = state
            .frameworks()
            .filter(|framework| framework.away.is_none())
            .map(|framework| (framework.id, until));
        Self {
            awaited: awaited.collect(),
            ..Self::default()
        }
    }

    pub(super) fn is_here(&self, framework: FrameworkId) -> bool {
        self.by_framework.contains_key(&framework)
    }

    fn of(&self, framework: FrameworkId) -> Option<&Stream> {
        self.open.get(self.by_framework.get(&framework)?)
    }

    fn of_mut(&mut self, framework: FrameworkId) -> Option<&mut Stream> {
        self.open.get_mut(self.by_framework.get(&framework)?)
    }

    /// The same process on a new connection: whoever reads the old one has moved on.
    fn close_older(&mut self, framework: FrameworkId) {
        if let Some(older) = self.by_framework.remove(&framework)
            && let Some(older) = self.open.remove(&older)
        {
            older.outbox.put(FrameworkQueue::close);
        }
    }

    pub(super) fn end_all(&self, why: &Refusal) {
        for stream in self.open.values() {
            end_outbox(&stream.outbox, why);
        }
    }
}

/// Ends a framework's stream with the reason.
fn end_outbox(outbox: &FrameworkOutbox, why: &Refusal) {
    let leader = why.leader.as_ref();
    outbox.put(|queue| {
        queue.end(Moved {
            code: why.code().as_str().to_owned(),
            detail: why.rejection.detail.clone(),
            leader_address: leader.map_or_else(String::new, |leader| leader.address.clone()),
            retry_after_ms: why.retry_after.map_or(0, |span| span.0),
        });
    });
}

/// From which revision on a process must be told; `None` = from the beginning.
///
/// Every record in the state carries the revision of its last change, so any revision will do that
/// this state has passed. What is no longer in the state the process itself has taken out of it: a
/// run leaves when its end is acknowledged, which only the present incarnation can do. Another
/// process, or one that has seen more than there is, gets everything.
fn since(resume: Option<Resume>, incarnation: u64, state: &State) -> Option<u64> {
    let resume = resume.filter(|resume| resume.incarnation == incarnation)?;
    (resume.revision <= state.revision()).then_some(resume.revision)
}

impl LeaderTerm {
    pub(super) fn subscribe(
        &mut self,
        stream: StreamId,
        request: SubscribeRequest,
        outbox: Arc<FrameworkOutbox>,
        reply: SubscribeTo,
        state: &State,
        now: Now,
    ) {
        let (incarnation, revision) = (request.incarnation, request.resume_revision);
        let opening = Opening {
            stream,
            outbox,
            reply,
            resume: (incarnation > 0 && revision > 0).then_some(Resume {
                incarnation,
                revision,
            }),
        };
        let known = state.framework_of_name(&request.principal, &request.name);
        let command = Command::Subscribe(Subscribe {
            framework: known.map_or_else(|| self.mint.framework(), |known| known.id),
            principal: request.principal,
            name: request.name,
            incarnation: request.incarnation,
            settings: request.settings,
        });
        let (command, checked) = self.check(state, command, now);
        match checked {
            // As with calls: a leader that was deposed may not know the process yet.
            Err(refusal) if !refusal.code().is_retryable() => {
                let token = self.next_token();
                let refused = Box::new((opening, refusal));
                self.waiting.insert(token, Waiting::NoStream(refused));
                self.work.reads.push(token);
            }
            Err(refusal) => self.refuse_stream(opening, refusal),
            // Logged all the same: whoever subscribes counts as connected from a revision on.
            Ok(Preview::NoChange(_) | Preview::Repeat { .. } | Preview::Change) => {
                self.log(command, now, Waiting::Subscribe(opening));
            }
        }
    }

    pub(super) fn refuse_stream(&mut self, opening: Opening, refusal: Refusal) {
        self.outputs.push(Output::Subscribed {
            to: opening.reply,
            answer: Err(refusal),
        });
    }

    /// The subscription has applied: the stream begins with a snapshot of the state as it is.
    pub(super) fn open_stream(
        &mut self,
        opened: Opening,
        verdict: &Verdict,
        state: &State,
        now: Now,
    ) {
        let &Verdict::Subscribed {
            framework,
            incarnation,
            known,
        } = verdict
        else {
            let refusal = Refusal::new(Code::Internal, "a subscription got an odd verdict");
            self.refuse_stream(opened, refusal);
            return;
        };
        let present = state.framework(framework).map(|record| record.incarnation);
        if present != Some(incarnation) {
            // Superseded, or torn down, within the same turn.
            let detail = "a newer process of this framework has subscribed meanwhile";
            self.refuse_stream(opened, Refusal::new(Code::StaleIncarnation, detail));
            return;
        }
        if opened.outbox.is_closed() {
            self.log_disconnect(framework, incarnation, now);
            return;
        }
        self.streams.close_older(framework);
        let since = since(opened.resume, incarnation, state);
        let subscribed = Subscribed {
            framework_id: framework.to_string(),
            incarnation,
            term: self.term,
            heartbeat_ms: self.timing.heartbeat.0,
            known,
            max_message_bytes: MESSAGE_BYTES,
            changes_only: since.is_some(),
            masters: self.masters.clone(),
        };
        let presence = &self.presence;
        let seen = Seen {
            is_recovering: &|agent| presence.is_awaited(agent),
            returned: &self.returned,
            since,
        };
        let events = opening(state, subscribed, framework, seen);
        opened.outbox.put(|queue| queue.open(events));
        self.streams.awaited.remove(&framework);
        self.streams.by_framework.insert(framework, opened.stream);
        let stream = Stream {
            framework,
            incarnation,
            outbox: opened.outbox,
            // One at once: a new client learns where its demand stands.
            heartbeat_due: now.monotonic,
            demand: None,
            missed: None,
        };
        self.streams.open.insert(opened.stream, stream);
        // Offers that an older stream had seen mean nothing to this one.
        let open = self.book.open_of_framework(framework, |_| true);
        self.rescind_quietly(&open, Why::FrameworkAway, now);
        self.stale.framework(framework);
        self.outputs.push(Output::Subscribed {
            to: opened.reply,
            answer: Ok(framework),
        });
    }

    pub(super) fn stream_closed(&mut self, stream: StreamId, state: &State, now: Now) {
        let Some(stream) = self.streams.open.remove(&stream) else {
            return;
        };
        self.streams.by_framework.remove(&stream.framework);
        self.framework_is_away(stream.framework, now);
        let is_present = state
            .framework(stream.framework)
            .is_some_and(|record| record.incarnation == stream.incarnation);
        if is_present {
            self.log_disconnect(stream.framework, stream.incarnation, now);
        }
    }

    fn log_disconnect(&mut self, framework: FrameworkId, incarnation: u64, now: Now) {
        let command = Command::Disconnect {
            framework,
            incarnation,
        };
        self.log(command, now, Waiting::Nobody);
    }

    /// Frameworks that did not come back to this leader begin to be away.
    pub(super) fn disconnect_awaited(&mut self, state: &State, now: Now) {
        let late = |(_, until): &(&FrameworkId, &Monotonic)| **until <= now.monotonic;
        let late: Vec<FrameworkId> = self
            .streams
            .awaited
            .iter()
            .filter(late)
            .map(|(id, _)| *id)
            .collect();
        for framework in late {
            self.streams.awaited.remove(&framework);
            if let Some(record) = state.framework(framework)
                && record.away.is_none()
                && !self.streams.is_here(framework)
            {
                self.log_disconnect(framework, record.incarnation, now);
            }
        }
    }

    /// The framework has no stream: its offers are taken back at once.
    fn framework_is_away(&mut self, framework: FrameworkId, now: Now) {
        let open = self.book.open_of_framework(framework, |_| true);
        self.rescind(&open, Why::FrameworkAway, now);
        self.stale.framework(framework);
    }

    pub(super) fn stream_drained(&mut self, stream: StreamId, state: &State) {
        let Some(stream) = self.streams.open.get_mut(&stream) else {
            return;
        };
        stream.outbox.put(FrameworkQueue::caught_up);
        let framework = stream.framework;
        let missed = stream.missed.take();
        let mut owed =
            missed.map_or_else(Vec::new, |since| self.ready_since(framework, since, state));
        owed.extend(state.owed_to_framework(framework));
        // With the revision of the first that is told again: a process that resumes in the middle
        // of them must not count as having seen what it was not told.
        let revision = missed.unwrap_or_else(|| state.revision());
        let mut dispatched = super::dispatch::Dispatched::default();
        for effect in owed {
            dispatched.add(state, revision, &effect);
        }
        let events = dispatched.frameworks.remove(&framework).unwrap_or_default();
        let now = Now::default();
        self.send_to_framework(framework, events, now);
    }

    /// Agents with live runs of a framework that have become ready at this revision or later. The
    /// state owes only what is not as it should be.
    fn ready_since(&self, framework: FrameworkId, since: u64, state: &State) -> Vec<Effect> {
        let live = state.runs(framework).filter(|run| !run.phase.is_terminal());
        let agents: BTreeSet<AgentId> = live.map(|run| run.agent).collect();
        let condition = AgentCondition::Ready;
        let is_news = |agent: &&mete_state::Agent| {
            let returned = self.returned.get(&agent.id).copied();
            agent.condition == condition
                && !self.presence.is_awaited(agent.id)
                && agent.revision.max(returned.unwrap_or(0)) >= since
        };
        let records = agents.into_iter().filter_map(|agent| state.agent(agent));
        let ready = records.filter(is_news).map(|agent| Effect::TellAgent {
            framework,
            agent: agent.id,
            condition,
        });
        ready.collect()
    }

    /// Puts events into a framework's outbox; what finds no room, or no stream, stays owed.
    pub(super) fn send_to_framework(
        &mut self,
        framework: FrameworkId,
        events: Vec<ToFramework>,
        now: Now,
    ) {
        let mut dropped_offers: Vec<OfferId> = Vec::new();
        let mut overflows: u64 = 0;
        for event in events {
            match event {
                ToFramework::Event(event, mergeable) => {
                    let Some(stream) = self.streams.of_mut(framework) else {
                        continue;
                    };
                    let revision = event.revision;
                    let put = stream
                        .outbox
                        .put(|queue| queue.push_firm(*event, mergeable));
                    dropped_offers.extend(put.dropped_offers);
                    if !put.queued {
                        let first = stream.missed.unwrap_or(revision).min(revision);
                        stream.missed = Some(first);
                        overflows = overflows.saturating_add(1);
                    }
                }
                ToFramework::Fence(incarnation) => self.fence(framework, incarnation, now),
                ToFramework::End => {
                    let detail = "the framework was ended on purpose";
                    self.end_stream(framework, &Refusal::new(Code::TornDown, detail), now);
                    self.declines.forget_framework(framework);
                }
            }
        }
        self.counters.outbox_overflows = self.counters.outbox_overflows.saturating_add(overflows);
        self.rescind_quietly(&dropped_offers, Why::FrameworkAway, now);
    }

    fn fence(&mut self, framework: FrameworkId, incarnation: u64, now: Now) {
        let is_older = self
            .streams
            .of(framework)
            .is_some_and(|stream| stream.incarnation < incarnation);
        if is_older {
            let detail = "a newer process of this framework has subscribed; stop this one";
            self.end_stream(
                framework,
                &Refusal::new(Code::StaleIncarnation, detail),
                now,
            );
        }
        self.end_order(framework, incarnation);
    }

    fn end_stream(&mut self, framework: FrameworkId, why: &Refusal, now: Now) {
        if let Some(stream) = self.streams.by_framework.remove(&framework)
            && let Some(stream) = self.streams.open.remove(&stream)
        {
            let open = self.book.open_of_framework(framework, |_| true);
            self.rescind_quietly(&open, Why::FrameworkAway, now);
            end_outbox(&stream.outbox, why);
        }
        self.stale.framework(framework);
    }

    /// The outbox of a framework's stream, if it has one.
    pub(super) fn outbox_of(&self, framework: FrameworkId) -> Option<&Arc<FrameworkOutbox>> {
        self.streams.of(framework).map(|stream| &stream.outbox)
    }

    pub(super) fn send_heartbeats(&mut self, state: &State, now: Now) {
        self.send_beacons(now);
        let next = now.monotonic.after(self.timing.heartbeat.0);
        for stream in self.streams.open.values_mut() {
            if stream.heartbeat_due > now.monotonic {
                continue;
            }
            stream.heartbeat_due = next;
            let Some(record) = state.framework(stream.framework) else {
                continue;
            };
            let version = record.demand_version;
            let hash = match stream.demand {
                Some((told, hash)) if told == version => hash,
                Some(_) | None => state.demand_hash(stream.framework),
            };
            stream.demand = Some((version, hash));
            let heartbeat = Heartbeat {
                revision: state.revision(),
                demand_version: version,
                demand_hash: hash,
                suppressed_roles: record
                    .settings
                    .suppressed
                    .iter()
                    .map(|role| role.as_str().to_owned())
                    .collect(),
                leader_address: self.advertised.clone(),
            };
            stream.outbox.put(|queue| queue.push_heartbeat(heartbeat));
        }
    }
}
