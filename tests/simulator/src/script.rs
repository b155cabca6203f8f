//! What the scripted frameworks do: ask for resources, take what is offered, kill, read and write.

use std::collections::BTreeMap;
use std::sync::Arc;

use mete_broker::request::{Accept, AcceptLaunch, FrameworkAction, Refuse};
use mete_model::device::ClassPath;
use mete_model::task::FakeTask;
use mete_model::{
    Bytes, Claim, ClaimId, Code, DeviceWant, FrameworkId, MilliCpu, OfferId, Resources, RunId,
    Shape, Span, TaskId, TaskPhase, TaskSpec,
};
use mete_proto::convert::{At, read_phase, read_resources, read_shape, read_status, whole};
use mete_proto::framework::v1::{self as wire, event};
use mete_state::LaunchVerdict;

use crate::agenda::MILLISECOND;
use crate::clients::{Seen, role};
use crate::masters::node_of;
use crate::streams::Down;
use crate::world::World;

impl World {
    /// One step of the script.
    pub(super) fn play(&mut self, client: usize) {
        let Some(process) = self.clients.get_mut(client) else {
            return;
        };
        if process.closing {
            return;
        }
        match process.dice.below(100) {
            0..15 => self.claim_more(client),
            15..18 => self.withdraw_some(client),
            18..24 => self.kill_some(client),
            24..26 => {
                let suppressed = process.dice.chance(300);
                let roles = vec![role(process.framework)];
                self.ask(
                    client,
                    FrameworkAction::Suppress { roles, suppressed },
                    None,
                );
            }
            26..75 => self.use_store(client),
            _ => {}
        }
    }

    fn claim_more(&mut self, client: usize) {
        let Some(process) = self.clients.get_mut(client) else {
            return;
        };
        if process.claims.len() >= 4 {
            return;
        }
        let shape = match process.dice.below(10) {
            0..4 => Shape {
                cpu: MilliCpu(process.dice.between(1, 8) * 250),
                memory: Bytes(128 << 20),
                ..Shape::default()
            },
            4..8 => Shape {
                cores: u32::try_from(process.dice.between(1, 2)).unwrap_or(1),
                memory: Bytes(512 << 20),
                ..Shape::default()
            },
            _ => Shape {
                cpu: MilliCpu(500),
                memory: Bytes(256 << 20),
                devices: ClassPath::new("gpu")
                    .ok()
                    .map(|class| DeviceWant {
                        class,
                        count: 1,
                        milli: 1000,
                    })
                    .into_iter()
                    .collect(),
                ..Shape::default()
            },
        };
        let count = u32::try_from(process.dice.between(1, 3)).unwrap_or(1);
        self.declare(client, shape, count);
    }

    /// Declares a claim of this shape.
    pub(super) fn declare(&mut self, client: usize, shape: Shape, count: u32) {
        let Some(process) = self.clients.get_mut(client) else {
            return;
        };
        process.last_claim += 1;
        process.demand_version += 1;
        let name = format!("c{}-{}", process.incarnation, process.last_claim);
        let Ok(id) = ClaimId::new(&name) else { return };
        process.claims.insert(id.clone(), (shape.clone(), count));
        let claim = Claim {
            id,
            role: role(process.framework),
            shape,
            count,
            priority: 0,
            labels: BTreeMap::new(),
            expected_runtime: None,
        };
        let action = FrameworkAction::UpdateDemand {
            version: process.demand_version,
            upsert: vec![claim],
            remove: Vec::new(),
        };
        self.ask(client, action, None);
    }

    fn withdraw_some(&mut self, client: usize) {
        let Some(process) = self.clients.get_mut(client) else {
            return;
        };
        let claims: Vec<ClaimId> = process.claims.keys().cloned().collect();
        if let Some(claim) = process.dice.pick(&claims) {
            self.withdraw(client, claim);
        }
    }

    fn withdraw(&mut self, client: usize, id: ClaimId) {
        let Some(process) = self.clients.get_mut(client) else {
            return;
        };
        process.claims.remove(&id);
        process.demand_version += 1;
        let action = FrameworkAction::UpdateDemand {
            version: process.demand_version,
            upsert: Vec::new(),
            remove: vec![id],
        };
        self.ask(client, action, None);
    }

    fn kill_some(&mut self, client: usize) {
        let Some(process) = self.clients.get_mut(client) else {
            return;
        };
        let live = process
            .runs
            .iter()
            .filter(|(_, run)| !run.phase.is_terminal());
        let live: Vec<RunId> = live.map(|(id, _)| id.clone()).collect();
        let Some(run) = process.dice.pick(&live) else {
            return;
        };
        self.kill_runs(client, vec![run]);
    }

    pub(super) fn kill_runs(&mut self, client: usize, runs: Vec<RunId>) {
        let Some(process) = self.clients.get_mut(client) else {
            return;
        };
        for run in &runs {
            if let Some(id) = process.id {
                self.checkers.status.kill_asked(id, run);
            }
            if let Some(seen) = process.runs.get_mut(run) {
                seen.kill_asked = true;
            }
        }
        let action = FrameworkAction::Kill {
            runs,
            grace: Some(Span(500)),
            reason: "the script says so".to_owned(),
        };
        self.ask(client, action, None);
    }

    /// Something arrived on the stream.
    pub(crate) fn client_receives(&mut self, client: usize, stream: u64, what: Down) {
        let now = self.now();
        let Some(process) = self.clients.get_mut(client) else {
            return;
        };
        if !process.alive || process.stream != Some(stream) {
            return;
        }
        process.heard = now;
        match what {
            Down::Framework(event) => {
                self.trace
                    .say(now, || format!("client {client} <- {:?}", event.event));
                let revision = event.revision;
                if let Some(event) = event.event {
                    self.client_event(client, revision, event);
                }
            }
            Down::Subscribed(Err(refusal)) => {
                let target = refusal.leader.as_ref();
                let target = target.and_then(|leader| node_of(&leader.address));
                self.hang_up(stream);
                self.client_lost_stream(client, stream);
                if let Some(process) = self.clients.get_mut(client) {
                    process.target = target;
                    if target.is_some() {
                        process.try_again = now;
                    }
                }
                if refusal.code() == Code::StaleIncarnation {
                    self.end_client(client);
                }
            }
            Down::Subscribed(Ok(_)) | Down::Agent(_) => {}
            Down::End => self.client_lost_stream(client, stream),
        }
    }

    fn client_event(&mut self, client: usize, revision: u64, event: event::Event) {
        let now = self.now();
        let Some(process) = self.clients.get_mut(client) else {
            return;
        };
        if process.ready {
            process.heard_of(revision);
        }
        match event {
            event::Event::Subscribed(subscribed) => {
                process.id = subscribed.framework_id.parse().ok();
                process.incarnation = subscribed.incarnation;
                if !subscribed.changes_only {
                    process.begins_anew();
                }
                let (framework, incarnation) = (process.framework, process.incarnation);
                let node = process.stream.and_then(|id| self.streams.get(&id));
                process.target = node.map(|stream| stream.master);
                self.checkers
                    .fencing
                    .subscribed(framework, incarnation, now);
                self.say(|| format!("client {client} subscribed, incarnation {incarnation}"));
            }
            event::Event::Snapshot(snapshot) => self.snapshot(client, snapshot),
            event::Event::SnapshotEnd(end) => {
                process.knows_all(end.revision);
                process.ready = true;
            }
            event::Event::Offers(offers) => {
                for offer in offers.offers {
                    self.offered(client, offer);
                }
            }
            event::Event::Status(status) => self.status(client, status),
            event::Event::Moved(moved) => {
                let target = node_of(&moved.leader_address);
                let is_final = moved.code == Code::StaleIncarnation.as_str();
                if let Some(stream) = process.stream {
                    self.client_lost_stream(client, stream);
                }
                if let Some(process) = self.clients.get_mut(client) {
                    process.target = target;
                }
                if is_final {
                    self.end_client(client);
                }
            }
            event::Event::Rescinded(_)
            | event::Event::AgentChanged(_)
            | event::Event::RunsReplaceable(_)
            | event::Event::Heartbeat(_) => {}
        }
    }

    fn snapshot(&mut self, client: usize, snapshot: wire::Snapshot) {
        let Some(process) = self.clients.get_mut(client) else {
            return;
        };
        process.demand_version = process.demand_version.max(snapshot.demand_version);
        let id = process.id;
        for shown in snapshot.claims {
            let Some(claim) = shown.claim else { continue };
            let name = ClaimId::new(&claim.id).ok();
            let shape = whole(|faults| read_shape(claim.shape, At::root("shape"), faults)).ok();
            // A closing process has withdrawn all of them but its last, or is about to.
            if let Some((name, shape)) = name.zip(shape).filter(|_| !process.closing) {
                process.claims.insert(name, (shape, claim.count));
            }
        }
        for shown in snapshot.runs {
            let Some(run) = shown.run.as_ref().and_then(read_run) else {
                continue;
            };
            // Known up to here; what is not acknowledged follows, in the snapshot itself.
            let phase = whole(|faults| read_phase(shown.phase, At::root("phase"), faults));
            let phase = phase.unwrap_or(TaskPhase::Staging);
            let sequence = shown.acknowledged_sequence;
            if let Some(process) = self.clients.get_mut(client) {
                process.runs.entry(run.clone()).or_insert(Seen {
                    sequence,
                    phase,
                    kill_asked: false,
                });
            }
            if let Some(id) = id {
                self.checkers.status.shown(client, id, &run, sequence);
            }
            for status in shown.unacknowledged {
                self.status(client, status);
            }
        }
    }

    fn status(&mut self, client: usize, status: mete_proto::types::v1::Status) {
        let read = whole(|faults| read_status(status, At::root("status"), faults));
        let Ok((framework, status)) = read else {
            self.violated("status", "a status that cannot be read".to_owned());
            return;
        };
        let found = self.checkers.status.told(client, framework, &status);
        for detail in found {
            self.violated("status", detail);
        }
        let Some(process) = self.clients.get_mut(client) else {
            return;
        };
        let seen = process.runs.entry(status.run.clone()).or_insert(Seen {
            sequence: 0,
            phase: TaskPhase::Staging,
            kill_asked: false,
        });
        seen.sequence = seen.sequence.max(status.sequence);
        seen.phase = seen.phase.max(status.phase);
        if status.phase.is_terminal() {
            process.runs.remove(&status.run);
            process.ended.insert(status.run.clone());
        }
        let items = vec![(status.run, status.sequence)];
        self.ask(client, FrameworkAction::Acknowledge { items }, None);
    }

    fn offered(&mut self, client: usize, offer: wire::Offer) {
        let Some(process) = self.clients.get_mut(client) else {
            return;
        };
        let Some(id) = offer.id else { return };
        let id = OfferId {
            term: id.term,
            number: id.number,
        };
        let resources =
            whole(|faults| read_resources(offer.resources, At::root("resources"), faults));
        let Ok(mut left) = resources else {
            self.violated("offer", "an offer that cannot be read".to_owned());
            return;
        };
        let claim = ClaimId::new(&offer.claim).ok();
        let known = claim.as_ref().and_then(|id| process.claims.get(id));
        let shape = known.map(|(shape, _)| shape.clone());
        let closing = process.closing;
        let stray = claim.clone().filter(|_| shape.is_none());
        let draw = process.dice.below(100);
        if draw < 6 && !process.closing {
            // Neither taken nor given back: it lapses.
            return;
        }
        let (Some(claim), Some(shape), true) = (claim, shape, draw >= 14 || process.closing) else {
            let action = FrameworkAction::Decline {
                offers: vec![id],
                reason: "not now".to_owned(),
                refuse: Refuse::For(Span(400)),
            };
            self.ask(client, action, None);
            // What was declared while the process closed is not wanted any more.
            if let (Some(claim), true) = (stray, closing) {
                self.withdraw(client, claim);
            }
            return;
        };
        let mut launches = Vec::new();
        for _ in 0..offer.slots {
            let Some(resources) = carve(&mut left, &shape) else {
                break;
            };
            launches.extend(self.launch(client, claim.clone(), resources));
        }
        let action = FrameworkAction::Accept(Accept {
            offers: vec![id],
            launches,
            each_alone: true,
            unused_reason: String::new(),
            unused_refuse: None,
        });
        self.ask(client, action, None);
    }

    fn launch(
        &mut self,
        client: usize,
        claim: ClaimId,
        resources: Resources,
    ) -> Option<AcceptLaunch> {
        let process = self.clients.get_mut(client)?;
        process.last_task += 1;
        let name = format!("t{}-{}", process.incarnation, process.last_task);
        let run = RunId::new(TaskId::new(&name).ok()?, 1);
        // Most end by themselves, some run until they are killed.
        let lasts = match process.dice.below(10) {
            0..2 => 0,
            2..5 => process.dice.between(20, 300),
            _ => process.dice.between(500, 6_000),
        };
        let lasts = if process.closing { 0 } else { lasts };
        let spec = TaskSpec {
            command: vec!["true".to_owned()],
            fake: FakeTask {
                run: Span(lasts),
                exit_code: 0,
            },
            ..TaskSpec::default()
        };
        Some(AcceptLaunch {
            run,
            claim: Some(claim),
            resources,
            spec: Arc::new(spec),
            environment: BTreeMap::new(),
            labels: BTreeMap::new(),
            replaces: None,
        })
    }

    pub(super) fn launched(&mut self, client: usize, accept: &Accept, verdicts: &[LaunchVerdict]) {
        let Some(id) = self.clients.get(client).and_then(|process| process.id) else {
            return;
        };
        for (launch, verdict) in accept.launches.iter().zip(verdicts) {
            if verdict.code == Code::Ok {
                self.checkers.status.launched(id, &launch.run);
                // A stream that goes on from here says nothing of it before it changes.
                let process = self.clients.get_mut(client);
                if let Some(process) = process.filter(|it| !it.ended.contains(&launch.run)) {
                    let run = launch.run.clone();
                    process.runs.entry(run).or_insert(Seen {
                        sequence: 0,
                        phase: TaskPhase::Staging,
                        kill_asked: false,
                    });
                }
            }
        }
        if accept.launches.len() != verdicts.len() {
            let detail = format!("client {client} got another number of verdicts than launches");
            self.violated("history", detail);
        }
    }

    /// The last act: everything old is killed, and a little is asked for that must be served.
    pub(crate) fn close_client(&mut self, client: usize) {
        let Some(process) = self.clients.get_mut(client) else {
            return;
        };
        process.closing = true;
        process.closing_from = process.last_task;
        process.demand_version += 1;
        let remove: Vec<ClaimId> = std::mem::take(&mut process.claims).into_keys().collect();
        let roles = vec![role(process.framework)];
        let action = FrameworkAction::UpdateDemand {
            version: process.demand_version,
            upsert: Vec::new(),
            remove,
        };
        self.ask(client, action, None);
        let suppressed = false;
        self.ask(
            client,
            FrameworkAction::Suppress { roles, suppressed },
            None,
        );
        self.ask_last(client);
    }

    /// A little that must be served.
    pub(crate) fn ask_last(&mut self, client: usize) {
        let shape = Shape {
            cores: 1,
            memory: Bytes(64 << 20),
            ..Shape::default()
        };
        self.declare(client, shape, 1);
    }

    /// Kills what a closing process finds running that is not its last task.
    pub(crate) fn sweep(&mut self, client: usize, keep: &[RunId]) {
        let Some(process) = self.clients.get(client) else {
            return;
        };
        let others = process
            .runs
            .iter()
            .filter(|(id, run)| !run.phase.is_terminal() && !run.kill_asked && !keep.contains(id));
        let runs: Vec<RunId> = others.map(|(id, _)| id.clone()).collect();
        if !runs.is_empty() {
            self.kill_runs(client, runs);
        }
    }

    /// Delay until something that a person would do.
    pub(crate) fn some_time(&mut self, least: u64, most: u64) -> u64 {
        self.dice.between(least, most) * MILLISECOND
    }
}

fn read_run(run: &mete_proto::types::v1::Run) -> Option<RunId> {
    Some(RunId::new(TaskId::new(&run.task).ok()?, run.attempt))
}

/// Takes one task of this shape out of what was offered.
fn carve(left: &mut Resources, shape: &Shape) -> Option<Resources> {
    let resources = mete_model::fit(shape, left).ok()?;
    left.subtract(&resources).ok()?;
    Some(resources)
}

/// Whose run it is, for a message.
pub(crate) fn named(framework: FrameworkId, run: &RunId) -> String {
    format!("{framework}/{run}")
}
