//! A master, its disk and its clocks, and scripted agents and frameworks around it.

use std::collections::BTreeMap;
use std::sync::Arc;

use mete_model::{
    Bytes, Claim, ClaimId, Code, FrameworkId, Inventory, MilliCpu, NodeKey, OfferId, Resources,
    RolePath, RunId, Shape, Status, StatusSource, TaskId, TaskPhase, TaskSpec, Timestamp,
};
use mete_proto::agent::v1::master_message::Message;
use mete_proto::framework::v1::{self as wire, event};
use mete_state::command::{AdmitAgent, FrameworkSettings};
use mete_state::{Caller, LaunchVerdict, Verdict};
use tokio::sync::oneshot;

use crate::config::{Config, Storage};
use crate::error::RunError;
use crate::event::{Event, LinkId, Monotonic, StreamId, SubscribeRequest, Turn};
use crate::master::Master;
use crate::mint::Counted;
use crate::output::Output;
use crate::request::{
    Accept, AcceptLaunch, FrameworkAction, OperatorAction, Refusal, Refuse, Reply, Request,
};
use crate::session::OUTBOX_BYTES;
use crate::session::agent::{AgentOutbox, AgentQueue};
use crate::session::framework::{FrameworkOutbox, FrameworkQueue};
use crate::session::outbox::{Outbox, Popped, Queue};
use crate::store::{Fault, MemoryDisk, MemoryStore};

const START: u64 = 1_700_000_000_000;

pub(super) struct World {
    pub(super) master: Master,
    disk: MemoryDisk,
    milliseconds: u64,
    /// How far the wall clock is ahead of where it began, beside the time that has passed.
    pub(super) ahead: u64,
    last_stream: u64,
    life: u64,
}

pub(super) struct Agent {
    pub(super) link: LinkId,
    pub(super) outbox: Arc<AgentOutbox>,
    pub(super) key: NodeKey,
    pub(super) name: String,
    progress: u64,
}

pub(super) struct Framework {
    pub(super) id: FrameworkId,
    pub(super) incarnation: u64,
    pub(super) stream: StreamId,
    pub(super) outbox: Arc<FrameworkOutbox>,
    pub(super) name: String,
    pub(super) calls: u64,
    pub(super) demand: u64,
}

pub(super) fn role(name: &str) -> RolePath {
    RolePath::new(name).unwrap()
}

pub(super) fn run(name: &str) -> RunId {
    RunId::new(TaskId::new(name).unwrap(), 1)
}

pub(super) fn cpu(milli: u64) -> Resources {
    Resources {
        cpu: MilliCpu(milli),
        memory: Bytes(milli << 20),
        ..Resources::default()
    }
}

pub(super) fn claim(id: &str, in_role: &str, milli: u64, count: u32) -> Claim {
    Claim {
        id: ClaimId::new(id).unwrap(),
        role: role(in_role),
        shape: Shape {
            cpu: MilliCpu(milli),
            memory: Bytes(milli << 20),
            ..Shape::default()
        },
        count,
        priority: 0,
        labels: BTreeMap::new(),
        expected_runtime: None,
    }
}

impl World {
    pub(super) fn new() -> Self {
        let disk = MemoryDisk::new();
        let store = MemoryStore::found(&disk, [7; 16], 1).unwrap();
        let mut world = Self {
            master: open(Box::new(store), 0, |_| ()).unwrap(),
            disk,
            milliseconds: 0,
            ahead: 0,
            last_stream: 0,
            life: 0,
        };
        for name in ["a", "b"] {
            world.set_role(name);
        }
        world
    }

    /// The process dies and starts again on what is on its disk.
    pub(super) fn restart(self) -> Self {
        self.restart_with(|_| ()).unwrap()
    }

    /// The same with other settings.
    pub(super) fn restart_with(self, tune: impl FnOnce(&mut Config)) -> Result<Self, RunError> {
        let Self {
            disk,
            milliseconds,
            ahead,
            last_stream,
            life,
            master,
        } = self;
        drop(master);
        disk.crash(0);
        let store = MemoryStore::open(&disk).unwrap();
        let life = life + 1;
        Ok(Self {
            master: open(Box::new(store), life, tune)?,
            disk,
            milliseconds,
            ahead,
            last_stream,
            life,
        })
    }

    fn turn(&self, tick: bool, events: Vec<Event>) -> Turn {
        Turn {
            now: Timestamp(START + self.ahead + self.milliseconds),
            monotonic: Monotonic(self.milliseconds),
            tick,
            events,
        }
    }

    pub(super) fn step(&mut self, events: Vec<Event>) {
        self.try_step(events).unwrap();
    }

    pub(super) fn try_step(&mut self, events: Vec<Event>) -> Result<(), Fault> {
        let turn = self.turn(true, events);
        for output in self.master.step(turn)? {
            match output {
                Output::Reply { to, answer } => drop(to.send(answer)),
                Output::Subscribed { to, answer } => drop(to.send(answer)),
                Output::SnapshotTaken { to } => drop(to.send(())),
                Output::Removed { .. } | Output::Stopped => {}
            }
        }
        Ok(())
    }

    /// Moves the clocks on without a turn.
    pub(super) fn skip(&mut self, milliseconds: u64) {
        self.milliseconds += milliseconds;
    }

    /// A run "t" on node "n1" that is acknowledged, so that nothing but its agent's condition is
    /// ever owed.
    pub(super) fn running(&mut self) -> (Agent, Framework) {
        let agent = self.agent("n1", 8000);
        let mut framework = self.framework("f", &["a"]);
        self.demand(&mut framework, vec![claim("c", "a", 1000, 1)]);
        let offers = framework.offers();
        self.accept(&mut framework, &[offers[0].0], vec![launch("t", "c", 1000)]);
        self.status(&agent, framework.id, status("t", 1, TaskPhase::Running));
        let items = vec![(run("t"), 1)];
        self.call(&mut framework, FrameworkAction::Acknowledge { items })
            .unwrap();
        framework.hears();
        (agent, framework)
    }

    /// Lets time pass in ticks.
    pub(super) fn pass(&mut self, milliseconds: u64) {
        let end = self.milliseconds + milliseconds;
        while self.milliseconds < end {
            self.milliseconds = (self.milliseconds + 20).min(end);
            self.step(Vec::new());
        }
    }

    /// Lets much time pass in one turn.
    pub(super) fn jump(&mut self, milliseconds: u64) {
        self.milliseconds += milliseconds;
        self.step(Vec::new());
        self.pass(1000);
    }

    /// The same while these agents' work loops are alive.
    pub(super) fn pass_alive(&mut self, milliseconds: u64, agents: &mut [&mut Agent]) {
        for _ in 0..milliseconds.div_ceil(1000) {
            self.pass(1000);
            let beacons = agents.iter_mut().map(|agent| {
                agent.progress += 1;
                Event::AgentBeacon {
                    link: agent.link,
                    progress: agent.progress,
                }
            });
            let beacons = beacons.collect();
            self.step(beacons);
        }
    }

    pub(super) fn ask(&mut self, request: Request) -> Result<Reply, Refusal> {
        let (reply, mut answer) = oneshot::channel();
        self.step(vec![Event::Call { request, reply }]);
        answer
            .try_recv()
            .unwrap_or_else(|_| panic!("the call was not answered"))
    }

    pub(super) fn set_role(&mut self, name: &str) {
        let request = Request::Operator {
            actor: "test".to_owned(),
            action: OperatorAction::SetRole {
                path: role(name),
                weight_milli: None,
            },
            dry_run: false,
        };
        self.ask(request).unwrap();
    }

    fn next_stream(&mut self) -> u64 {
        self.last_stream += 1;
        self.last_stream
    }

    pub(super) fn agent(&mut self, name: &str, milli: u64) -> Agent {
        let key = NodeKey(uuid::Uuid::from_u128(u128::from(self.last_stream) + 77));
        let agent = Agent {
            link: LinkId(0),
            outbox: Outbox::new(AgentQueue::new(OUTBOX_BYTES)),
            key,
            name: name.to_owned(),
            progress: 0,
        };
        self.agent_back(agent, milli, Vec::new())
    }

    /// Opens a (new) stream for the agent.
    pub(super) fn agent_back(
        &mut self,
        agent: Agent,
        milli: u64,
        held: Vec<mete_state::command::HeldRun>,
    ) -> Agent {
        let link = LinkId(self.next_stream());
        let outbox = Outbox::new(AgentQueue::new(OUTBOX_BYTES));
        let hello = AdmitAgent {
            agent: mete_model::AgentId(uuid::Uuid::nil()),
            node_key: agent.key,
            node_name: agent.name.clone(),
            inventory: Inventory {
                total: cpu(milli),
                boot_id: "boot".to_owned(),
                ..Inventory::default()
            },
            held,
        };
        self.step(vec![Event::AgentHello {
            link,
            hello: Box::new(hello),
            outbox: Arc::clone(&outbox),
        }]);
        Agent {
            link,
            outbox,
            progress: 0,
            ..agent
        }
    }

    pub(super) fn framework(&mut self, name: &str, roles: &[&str]) -> Framework {
        self.try_subscribe(name, roles, 0).unwrap()
    }

    pub(super) fn try_subscribe(
        &mut self,
        name: &str,
        roles: &[&str],
        incarnation: u64,
    ) -> Result<Framework, Refusal> {
        self.try_resume(name, roles, incarnation, 0)
    }

    /// Subscribes with what the process has seen last.
    pub(super) fn try_resume(
        &mut self,
        name: &str,
        roles: &[&str],
        incarnation: u64,
        resume_revision: u64,
    ) -> Result<Framework, Refusal> {
        let stream = StreamId(self.next_stream());
        let outbox = Outbox::new(FrameworkQueue::new(OUTBOX_BYTES));
        let (reply, mut answer) = oneshot::channel();
        let roles: Vec<RolePath> = roles.iter().map(|name| role(name)).collect();
        let request = SubscribeRequest {
            principal: "local".to_owned(),
            name: name.to_owned(),
            incarnation,
            resume_revision,
            settings: FrameworkSettings {
                roles,
                failover_timeout: Some(mete_model::Span::days(7)),
                ..FrameworkSettings::default()
            },
        };
        self.step(vec![Event::Subscribe {
            stream,
            request: Box::new(request),
            outbox: Arc::clone(&outbox),
            reply,
        }]);
        let id = answer.try_recv().expect("a subscription is answered")?;
        let record = self
            .master
            .read_state(|state| state.framework(id).cloned())
            .unwrap();
        Ok(Framework {
            id,
            incarnation: record.incarnation,
            stream,
            outbox,
            name: name.to_owned(),
            calls: 0,
            demand: record.demand_version,
        })
    }

    pub(super) fn call(
        &mut self,
        framework: &mut Framework,
        action: FrameworkAction,
    ) -> Result<Reply, Refusal> {
        let caller = framework.next_caller();
        self.ask(Request::Framework { caller, action })
    }

    pub(super) fn demand(&mut self, framework: &mut Framework, upsert: Vec<Claim>) {
        framework.demand += 1;
        let action = FrameworkAction::UpdateDemand {
            version: framework.demand,
            upsert,
            remove: Vec::new(),
        };
        self.call(framework, action).unwrap();
    }

    pub(super) fn accept(
        &mut self,
        framework: &mut Framework,
        offers: &[OfferId],
        launches: Vec<AcceptLaunch>,
    ) -> Vec<LaunchVerdict> {
        let accept = accept_of(offers, launches);
        launched(self.call(framework, FrameworkAction::Accept(accept)))
    }

    pub(super) fn status(&mut self, agent: &Agent, of: FrameworkId, status: Status) {
        self.step(vec![Event::AgentStatuses {
            link: agent.link,
            statuses: vec![(of, status)],
        }]);
    }

    pub(super) fn suppress(&mut self, framework: &mut Framework, roles: &[&str], suppressed: bool) {
        let action = FrameworkAction::Suppress {
            roles: roles.iter().map(|name| role(name)).collect(),
            suppressed,
        };
        self.call(framework, action).unwrap();
    }

    pub(super) fn decline(&mut self, framework: &mut Framework, offers: &[OfferId]) -> Vec<Code> {
        let action = FrameworkAction::Decline {
            offers: offers.to_vec(),
            reason: "not now".to_owned(),
            refuse: Refuse::UntilDemandChanges,
        };
        let Ok(Reply::Offers { verdicts }) = self.call(framework, action) else {
            panic!("a decline has a verdict for each offer");
        };
        verdicts.iter().map(|verdict| verdict.code).collect()
    }
}

pub(super) fn accept_of(offers: &[OfferId], launches: Vec<AcceptLaunch>) -> Accept {
    Accept {
        offers: offers.to_vec(),
        launches,
        each_alone: false,
        unused_reason: String::new(),
        unused_refuse: None,
    }
}

pub(super) fn launched(answer: Result<Reply, Refusal>) -> Vec<LaunchVerdict> {
    let Ok(Reply::Applied {
        verdict: Verdict::Launched(verdicts),
        ..
    }) = answer
    else {
        panic!("an accept has a verdict for each launch");
    };
    verdicts
}

pub(super) fn launch(name: &str, of_claim: &str, milli: u64) -> AcceptLaunch {
    AcceptLaunch {
        run: run(name),
        claim: Some(ClaimId::new(of_claim).unwrap()),
        resources: cpu(milli),
        spec: Arc::new(TaskSpec {
            command: vec!["true".to_owned()],
            ..TaskSpec::default()
        }),
        environment: BTreeMap::new(),
        labels: BTreeMap::new(),
        replaces: None,
    }
}

pub(super) fn status(name: &str, sequence: u64, phase: TaskPhase) -> Status {
    Status {
        run: run(name),
        sequence,
        phase,
        reason: None,
        message: String::new(),
        source: StatusSource::Agent,
        at: Timestamp(START),
        exit: None,
        usage: None,
        coalesced: false,
    }
}

fn open(
    store: Box<MemoryStore>,
    life: u64,
    tune: impl FnOnce(&mut Config),
) -> Result<Master, RunError> {
    let mut config = Config::single(Storage::Memory);
    tune(&mut config);
    let opened = Master::open(
        &config,
        store,
        Box::new(Counted::new(life)),
        "here:1".to_owned(),
    );
    opened.map_err(RunError::from)
}

impl Agent {
    /// Everything that waits to be sent to it.
    pub(super) fn hears(&self) -> Vec<Message> {
        let mut heard = Vec::new();
        while let Popped::Item(Ok(message)) = self.outbox.put(Queue::pop) {
            heard.extend(message.message);
        }
        heard
    }

    /// Names of the tasks it is told to start.
    pub(super) fn starts(&self) -> Vec<String> {
        let mut names = Vec::new();
        for message in self.hears() {
            if let Message::StartTasks(start) = message {
                names.extend(start.tasks.into_iter().map(|task| {
                    task.run
                        .and_then(|run| run.run)
                        .map(|run| run.task)
                        .unwrap_or_default()
                }));
            }
        }
        names
    }
}

impl Framework {
    pub(super) fn next_caller(&mut self) -> Caller {
        self.calls += 1;
        Caller {
            framework: self.id,
            incarnation: self.incarnation,
            call: self.calls,
            answered: self.calls - 1,
        }
    }

    /// Everything that waits to be sent to it.
    pub(super) fn hears(&self) -> Vec<wire::Event> {
        let mut heard = Vec::new();
        while let Popped::Item(Ok(event)) = self.outbox.put(Queue::pop) {
            heard.push(event);
        }
        heard
    }

    /// Offers among what waits, with their agents' names.
    pub(super) fn offers(&self) -> Vec<(OfferId, wire::Offer)> {
        offers_in(&self.hears())
    }
}

pub(super) fn offers_in(events: &[wire::Event]) -> Vec<(OfferId, wire::Offer)> {
    let mut found = Vec::new();
    for event in events {
        if let Some(event::Event::Offers(offers)) = &event.event {
            for offer in &offers.offers {
                let id = offer.id.unwrap();
                let id = OfferId {
                    term: id.term,
                    number: id.number,
                };
                found.push((id, offer.clone()));
            }
        }
    }
    found
}

pub(super) fn rescinds_in(events: &[wire::Event]) -> Vec<(usize, String)> {
    let rescinds = events.iter().filter_map(|event| match &event.event {
        Some(event::Event::Rescinded(rescinded)) => {
            Some((rescinded.offers.len(), rescinded.reason.clone()))
        }
        _ => None,
    });
    rescinds.collect()
}

pub(super) fn phases_in(events: &[wire::Event]) -> Vec<(String, u64)> {
    let statuses = events.iter().filter_map(|event| match &event.event {
        Some(event::Event::Status(status)) => {
            let run = status.run.clone().and_then(|run| run.run).unwrap();
            Some((run.task, status.sequence))
        }
        _ => None,
    });
    statuses.collect()
}

pub(super) fn moved_in(events: &[wire::Event]) -> Option<String> {
    events.iter().find_map(|event| match &event.event {
        Some(event::Event::Moved(moved)) => Some(moved.code.clone()),
        _ => None,
    })
}
