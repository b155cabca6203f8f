//! Agents: the real core, a loop that keeps its records first, and machines that pretend.
//!
//! Three lives are told apart: the agent process (its memory is gone with it), the machine's boot
//! (what runs is gone with it), and the disk (what was recorded is gone with it).

use std::collections::BTreeMap;

use mete_agent::core::{
    Action, AgentCore, Ending, Event, Found, FoundState, Record, RecordedRun, RunEnd, RunKey,
    StartTask,
};
use mete_agent::link::wire::incoming;
use mete_model::{Inventory, NodeKey, Resources, Span, Status};
use mete_proto::agent::v1::master_message::Message;
use mete_state::command::{AdmitAgent, HeldRun};

use crate::agenda::{MILLISECOND, SECOND, Time};
use crate::masters::node_of;
use crate::network::Place;
use crate::random::Dice;
use crate::streams::{Down, Up};
use crate::variant::Variant;
use crate::world::{Happening, World};

/// Between two rounds of an agent's loop that nothing else asks for.
const TICK: Time = 500 * MILLISECOND;
/// A master that is not heard for so long has no stream any more.
const SILENCE: Time = 4 * SECOND;

/// A machine, and the agent processes on it one after the other.
#[derive(Debug)]
pub(crate) struct AgentProcess {
    pub(crate) name: String,
    pub(crate) key: NodeKey,
    pub(crate) inventory: Inventory,
    dice: Dice,
    /// How many processes there were.
    pub(crate) life: u64,
    pub(crate) boot: u64,
    rebooted: bool,
    pub(crate) core: Option<AgentCore>,
    paused_until: Time,
    held_back: Vec<Heard>,
    /// On the disk.
    records: BTreeMap<RunKey, RecordedRun>,
    /// On the machine.
    pub(crate) processes: BTreeMap<RunKey, Process>,
    stream: Option<u64>,
    heard: Time,
    try_again: Time,
    redirect: Option<u64>,
    turns: u64,
    beacon_due: Time,
    failures: u32,
    /// Die at this write of a record, counted down.
    pub(crate) die_at_record: Option<(u64, bool)>,
}

/// Something that an agent's loop is told from outside.
#[derive(Clone, Debug)]
pub(crate) enum Heard {
    Message(u64, Box<Message>),
    Ended(u64),
    Core(Box<Event>),
}

/// A run on a machine.
#[derive(Clone, Debug)]
pub(crate) struct Process {
    pub(crate) start: StartTask,
    pub(crate) state: ProcessState,
    stop_asked: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ProcessState {
    Preparing,
    Alive,
    Over(RunEnd),
}

/// Something happens to a run on its machine, whoever watches.
#[derive(Clone, Debug)]
pub(crate) enum HostStep {
    Starts(RunKey),
    Ends(RunKey, RunEnd),
}

impl World {
    pub(crate) fn add_agent(&mut self, agent: usize) {
        let mut dice = self.dice.fork(&format!("agent {agent}"));
        let cores = dice.between(2, 6);
        let process = AgentProcess {
            name: format!("node-{agent}"),
            key: NodeKey(uuid::Uuid::from_u64_pair(dice.next(), 1)),
            inventory: inventory(0, cores, agent),
            dice,
            life: 0,
            boot: 1,
            rebooted: false,
            core: None,
            paused_until: 0,
            held_back: Vec::new(),
            records: BTreeMap::new(),
            processes: BTreeMap::new(),
            stream: None,
            heard: 0,
            try_again: 0,
            redirect: None,
            turns: 0,
            beacon_due: 0,
            failures: 0,
            die_at_record: None,
        };
        self.agents.push(process);
        self.agenda
            .after(10 * MILLISECOND, Happening::AgentStarts { agent });
    }

    pub(crate) fn start_agent(&mut self, agent: usize) {
        let (now, wall, variant) = (self.now(), self.wall(), self.variant);
        let Some(process) = self.agents.get_mut(agent) else {
            return;
        };
        if process.core.is_some() {
            return;
        }
        process.life += 1;
        process.inventory.boot_id = format!("boot-{}", process.boot);
        let life = process.life;
        let mut core = AgentCore::new(process.inventory.clone());
        let found = process.processes.iter().map(|(key, run)| Found {
            key: key.clone(),
            start: Some(run.start.clone()),
            state: FoundState::Adoptable,
        });
        let mut found: Vec<Found> = found.collect();
        if variant == Some(Variant::StartedTwice) {
            for found in &mut found {
                found.state = FoundState::NeverStarted;
            }
        }
        let recorded = process.records.values().cloned().collect();
        let rebooted = process.rebooted;
        let actions = core.restore(recorded, found, rebooted, wall);
        process.core = Some(core);
        process.held_back.clear();
        process.paused_until = 0;
        process.stream = None;
        process.failures = 0;
        process.try_again = now + process.dice.below(100) * MILLISECOND;
        let phase = process.dice.below(TICK);
        self.say(|| format!("agent {agent} starts, life {life}"));
        self.carry_out_actions(agent, actions);
        // The boot counts as seen once what it ended is on the disk.
        if let Some(process) = self.agents.get_mut(agent).filter(|it| it.core.is_some()) {
            process.rebooted = false;
        }
        self.agenda
            .after(phase, Happening::AgentTick { agent, life });
    }

    /// The agent's process dies; its machine and what runs there go on.
    pub(crate) fn crash_agent(&mut self, agent: usize) {
        let Some(process) = self.agents.get_mut(agent) else {
            return;
        };
        if process.core.take().is_none() {
            return;
        }
        process.die_at_record = None;
        let stream = process.stream.take();
        self.say(|| format!("agent {agent} dies"));
        if let Some(stream) = stream {
            self.break_stream(stream);
        }
    }

    /// The machine loses its power, and with `wiped` also its disk.
    pub(crate) fn reboot_agent(&mut self, agent: usize, wiped: bool) {
        self.crash_agent(agent);
        let Some(process) = self.agents.get_mut(agent) else {
            return;
        };
        process.boot += 1;
        process.rebooted = true;
        let lost: Vec<RunKey> = process.processes.keys().cloned().collect();
        process.processes.clear();
        let recorded: Vec<RunKey> = process.records.keys().cloned().collect();
        if wiped {
            process.records.clear();
            process.key = NodeKey(uuid::Uuid::from_u64_pair(process.dice.next(), 1));
        }
        self.say(|| format!("machine {agent} loses its power, wiped: {wiped}"));
        for key in lost.into_iter().chain(recorded) {
            self.checkers.status.excuse(&key);
        }
        self.checkers
            .status
            .machine_failed(agent, self.agenda.now());
    }

    pub(crate) fn pause_agent(&mut self, agent: usize, until: Time) {
        if let Some(process) = self.agents.get_mut(agent) {
            process.paused_until = process.paused_until.max(until);
            let life = process.life;
            self.agenda.at(until, Happening::AgentWakes { agent, life });
        }
    }

    fn is_agent_life(&self, agent: usize, life: u64) -> bool {
        let process = self.agents.get(agent);
        process.is_some_and(|process| process.life == life && process.core.is_some())
    }

    pub(crate) fn agent_wakes(&mut self, agent: usize, life: u64) {
        if !self.is_agent_life(agent, life) {
            return;
        }
        let Some(process) = self.agents.get_mut(agent) else {
            return;
        };
        for heard in std::mem::take(&mut process.held_back) {
            self.agent_hears(agent, life, heard);
        }
    }

    pub(crate) fn agent_tick(&mut self, agent: usize, life: u64) {
        if !self.is_agent_life(agent, life) {
            return;
        }
        self.agenda
            .after(TICK, Happening::AgentTick { agent, life });
        let now = self.now();
        let Some(process) = self.agents.get_mut(agent) else {
            return;
        };
        if now < process.paused_until {
            return;
        }
        self.step_agent(agent, Event::Tick);
        self.tend_stream(agent);
    }

    /// Keeps a stream to the leader, and beacons on it.
    fn tend_stream(&mut self, agent: usize) {
        let now = self.now();
        let masters = self.known_masters();
        let Some(process) = self.agents.get_mut(agent) else {
            return;
        };
        if let Some(stream) = process.stream {
            if now.saturating_sub(process.heard) > SILENCE {
                self.hang_up(stream);
                let life = self.agents.get(agent).map_or(0, |process| process.life);
                self.agent_lost_stream(agent, life, stream);
            } else if now >= process.beacon_due {
                process.beacon_due = now + SECOND;
                process.turns += 1;
                let progress = process.turns;
                self.send_up(stream, Up::Beacon(progress));
            }
            return;
        }
        if now < process.try_again {
            return;
        }
        let target = process
            .redirect
            .take()
            .or_else(|| process.dice.pick(&masters));
        let (Some(target), Some(core)) = (target, &process.core) else {
            return;
        };
        let held = core.held().into_iter().map(|held| HeldRun {
            framework: held.key.framework,
            run: held.key.run,
            phase: held.phase,
            last_sequence: held.last_sequence,
        });
        let hello = AdmitAgent {
            agent: mete_model::AgentId(uuid::Uuid::nil()),
            node_key: process.key,
            node_name: process.name.clone(),
            inventory: core.inventory().clone(),
            held: held.collect(),
        };
        let life = process.life;
        process.heard = now;
        let place = Place::Agent(agent);
        let stream = self.open_stream(place, life, target, Up::Hello(Box::new(hello)));
        if let Some(process) = self.agents.get_mut(agent) {
            process.stream = Some(stream);
        }
    }

    pub(crate) fn agent_lost_stream(&mut self, agent: usize, life: u64, stream: u64) {
        self.agent_hears(agent, life, Heard::Ended(stream));
    }

    pub(crate) fn agent_receives(&mut self, agent: usize, life: u64, stream: u64, what: Down) {
        match what {
            Down::Agent(message) => self.agent_hears(agent, life, Heard::Message(stream, message)),
            Down::End => self.agent_hears(agent, life, Heard::Ended(stream)),
            Down::Framework(_) | Down::Subscribed(_) => {}
        }
    }

    pub(crate) fn agent_hears(&mut self, agent: usize, life: u64, heard: Heard) {
        if !self.is_agent_life(agent, life) {
            return;
        }
        let now = self.now();
        let Some(process) = self.agents.get_mut(agent) else {
            return;
        };
        if now < process.paused_until {
            process.held_back.push(heard);
            return;
        }
        match heard {
            Heard::Core(event) => self.step_agent(agent, *event),
            Heard::Ended(stream) if process.stream == Some(stream) => {
                process.stream = None;
                process.failures = (process.failures + 1).min(5);
                let bound = 100 << process.failures;
                let wait = process.dice.between(50, bound) * MILLISECOND;
                process.try_again = now + if process.redirect.is_some() { 0 } else { wait };
                self.step_agent(agent, Event::LinkLost);
            }
            Heard::Message(stream, message) if process.stream == Some(stream) => {
                process.heard = now;
                if let Message::Redirect(redirect) = message.as_ref() {
                    process.redirect = node_of(&redirect.leader_address);
                    return;
                }
                process.failures = 0;
                for event in incoming(*message) {
                    self.step_agent(agent, event);
                }
            }
            // Of a stream that was given up.
            Heard::Ended(_) | Heard::Message(..) => {}
        }
    }

    fn step_agent(&mut self, agent: usize, event: Event) {
        let wall = self.wall();
        let Some(core) = self.agents.get_mut(agent).and_then(|it| it.core.as_mut()) else {
            return;
        };
        let said = format!("{event:?}");
        let actions = core.step(event, wall);
        if !said.starts_with("Tick") {
            self.say(|| {
                let said: String = said.chars().take(200).collect();
                let count = actions.len();
                format!("agent {agent} <- {said} ({count} actions)")
            });
        }
        self.carry_out_actions(agent, actions);
    }

    /// Records first, then the rest in order; the process may die in between.
    fn carry_out_actions(&mut self, agent: usize, actions: Vec<Action>) {
        let early = self.variant == Some(Variant::ActsBeforeRecord);
        let (records, rest): (Vec<Action>, Vec<Action>) = actions
            .into_iter()
            .partition(|action| matches!(action, Action::Record(_)));
        let Some(process) = self.agents.get_mut(agent) else {
            return;
        };
        let mut dies = None;
        if let Some((count, after)) = &mut process.die_at_record
            && !records.is_empty()
        {
            *count = count.saturating_sub(1);
            dies = (*count == 0).then_some(*after);
        }
        if dies != Some(false) {
            for record in records {
                if let Action::Record(record) = record {
                    process.record(record);
                }
            }
        }
        if dies.is_none() || early {
            self.act(agent, rest);
        }
        if dies.is_some() {
            self.crash_agent(agent);
            let delay = self.dice.between(10, 1_500) * MILLISECOND;
            self.agenda.after(delay, Happening::AgentStarts { agent });
        }
    }

    fn act(&mut self, agent: usize, actions: Vec<Action>) {
        for action in actions {
            match action {
                Action::Record(_) => {}
                Action::Prepare(start) => self.prepare(agent, *start),
                Action::Stop { key, grace } => self.stop_run(agent, &key, grace),
                Action::Adopt(key) => self.adopt(agent, key),
                Action::Release(key) => {
                    if let Some(process) = self.agents.get_mut(agent) {
                        process.processes.remove(&key);
                    }
                }
                Action::Send(statuses) => self.send_statuses(agent, statuses),
                Action::SendInventory(inventory) => {
                    let process = self.agents.get(agent).filter(|process| process.is_linked());
                    if let Some(stream) = process.and_then(|process| process.stream) {
                        self.send_up(stream, Up::Inventory(inventory));
                    }
                }
            }
        }
    }

    fn send_statuses(&mut self, agent: usize, statuses: Vec<(mete_model::FrameworkId, Status)>) {
        let Some(process) = self.agents.get_mut(agent) else {
            return;
        };
        let (stream, life) = (process.stream, process.life);
        if self.variant == Some(Variant::StatusForgotten) {
            for (framework, status) in &statuses {
                let key = RunKey {
                    framework: *framework,
                    run: status.run.clone(),
                };
                let sequence = status.sequence;
                let heard = Heard::Core(Box::new(Event::Forget { key, sequence }));
                self.agenda
                    .after(1, Happening::AgentHears { agent, life, heard });
            }
        }
        if let Some(stream) = stream {
            for status in statuses {
                // One message each, so that a link has something to lose in between.
                self.send_up(stream, Up::Statuses(vec![status]));
            }
        }
    }

    fn prepare(&mut self, agent: usize, start: StartTask) {
        let Some(process) = self.agents.get_mut(agent) else {
            return;
        };
        let key = start.key.clone();
        let slow = process.dice.chance(100);
        let most = if slow { 1_800 } else { 120 };
        let delay = process.dice.between(5, most) * MILLISECOND;
        let boot = process.boot;
        let state = ProcessState::Preparing;
        let run = Process {
            start,
            state,
            stop_asked: false,
        };
        process.processes.insert(key.clone(), run);
        let step = HostStep::Starts(key);
        self.agenda
            .after(delay, Happening::Host { agent, boot, step });
    }

    fn stop_run(&mut self, agent: usize, key: &RunKey, grace: Span) {
        let Some(process) = self.agents.get_mut(agent) else {
            return;
        };
        let boot = process.boot;
        let longest = grace.0.min(2_000);
        let delay = process.dice.between(1, longest.max(1)) * MILLISECOND;
        let Some(run) = process.processes.get_mut(key) else {
            return;
        };
        run.stop_asked = true;
        let mut end = RunEnd::bare(Ending::Signal(15));
        end.stop_asked = true;
        let step = HostStep::Ends(key.clone(), end);
        self.agenda
            .after(delay, Happening::Host { agent, boot, step });
    }

    /// The end of a run that was not watched is told once it is.
    fn adopt(&mut self, agent: usize, key: RunKey) {
        let Some(process) = self.agents.get(agent) else {
            return;
        };
        let life = process.life;
        let event = match process.processes.get(&key).map(|run| &run.state) {
            Some(ProcessState::Over(end)) => Event::Ended {
                key,
                end: end.clone(),
            },
            Some(ProcessState::Alive) => Event::Started {
                key,
                at: mete_model::Timestamp(0),
            },
            Some(ProcessState::Preparing) | None => return,
        };
        let heard = Heard::Core(Box::new(event));
        self.agenda
            .after(MILLISECOND, Happening::AgentHears { agent, life, heard });
    }

    /// A run begins or ends on its machine, whether or not an agent watches.
    pub(crate) fn host_step(&mut self, agent: usize, boot: u64, step: HostStep) {
        let wall = self.wall();
        let Some(process) = self.agents.get_mut(agent).filter(|it| it.boot == boot) else {
            return;
        };
        let life = process.life;
        let event = match step {
            HostStep::Starts(key) => {
                let Some(run) = process.processes.get_mut(&key) else {
                    return;
                };
                if run.state != ProcessState::Preparing {
                    return;
                }
                run.state = ProcessState::Alive;
                let (spec, resources) = (run.start.spec.fake, run.start.resources.clone());
                self.started(agent, &key, &resources);
                if spec.run != Span::ZERO {
                    let end = RunEnd::bare(Ending::Code(spec.exit_code));
                    let step = HostStep::Ends(key.clone(), end);
                    self.agenda.after(
                        spec.run.0 * MILLISECOND,
                        Happening::Host { agent, boot, step },
                    );
                }
                Event::Started { key, at: wall }
            }
            HostStep::Ends(key, mut end) => {
                let Some(run) = process.processes.get_mut(&key) else {
                    return;
                };
                if matches!(run.state, ProcessState::Over(_)) {
                    return;
                }
                end.stop_asked |= run.stop_asked;
                end.at = Some(wall);
                run.state = ProcessState::Over(end.clone());
                Event::Ended { key, end }
            }
        };
        let heard = Heard::Core(Box::new(event));
        self.agent_hears(agent, life, heard);
    }

    /// The ledger as the machine sees it: nothing is held twice, nothing runs twice.
    fn started(&mut self, agent: usize, key: &RunKey, resources: &Resources) {
        let Some(process) = self.agents.get(agent) else {
            return;
        };
        let alive =
            |(other, run): &(&RunKey, &Process)| *other != key && run.state == ProcessState::Alive;
        let others = process.processes.iter().filter(alive);
        let others = others.map(|(key, run)| (key, &run.start.resources, run.stop_asked));
        let found = self
            .checkers
            .ledger
            .started(agent, key, resources, &process.inventory, others);
        for detail in found {
            self.violated("ledger", detail);
        }
    }

    /// Cores appear or go away on a machine.
    pub(crate) fn change_inventory(&mut self, agent: usize, cores: u64) {
        let Some(process) = self.agents.get_mut(agent) else {
            return;
        };
        // Others than before, as when part of a machine is taken away.
        let first = process.dice.below(4);
        let mut next = inventory(first, cores, agent);
        next.topology_epoch = process.inventory.topology_epoch + 1;
        next.boot_id.clone_from(&process.inventory.boot_id);
        process.inventory = next.clone();
        let life = process.life;
        self.checkers.status.machine_changed(agent);
        self.say(|| format!("machine {agent} has {cores} cores now"));
        let event = Event::Inventory(Box::new(next));
        self.agent_hears(agent, life, Heard::Core(Box::new(event)));
    }
}

impl AgentProcess {
    /// Folds one record into what the disk says.
    fn record(&mut self, record: Record) {
        match record {
            Record::Run {
                start,
                phase,
                next_sequence,
            } => {
                let run = RecordedRun {
                    start: *start,
                    phase,
                    next_sequence,
                    unconfirmed: Vec::new(),
                    kill: None,
                };
                self.records.insert(run.start.key.clone(), run);
            }
            Record::Update { framework, status } => {
                let run = status.run.clone();
                if let Some(run) = self.records.get_mut(&RunKey { framework, run }) {
                    run.phase = status.phase;
                    run.next_sequence = status.sequence.saturating_add(1);
                    let sequence = status.sequence;
                    run.unconfirmed.retain(|other| other.sequence != sequence);
                    run.unconfirmed.push(*status);
                }
            }
            Record::Confirmed { key, sequence } => {
                if let Some(run) = self.records.get_mut(&key) {
                    run.unconfirmed.retain(|status| status.sequence > sequence);
                    run.next_sequence = run.next_sequence.max(sequence.saturating_add(1));
                }
            }
            Record::Kill { ref key, .. } => {
                let key = key.clone();
                if let Some(run) = self.records.get_mut(&key) {
                    run.kill = Some(record);
                }
            }
            Record::Forget(key) => {
                self.records.remove(&key);
            }
        }
    }

    /// A leader has welcomed the present stream.
    pub(crate) fn is_linked(&self) -> bool {
        self.core.as_ref().is_some_and(AgentCore::is_linked)
    }
}

/// What a machine has with so many cores, counted from `first`.
fn inventory(first: u64, cores: u64, agent: usize) -> Inventory {
    use mete_model::device::{ClassPath, Device, DeviceId};
    let class = ClassPath::new("gpu").ok();
    let device = |number: u64| {
        let id = DeviceId::new(&format!("gpu-{agent}-{number}")).ok()?;
        Some((id, class.clone()?))
    };
    let devices: Vec<(DeviceId, ClassPath)> = (0..2).filter_map(device).collect();
    Inventory {
        total: Resources {
            cpu: mete_model::MilliCpu(cores * 1000),
            memory: mete_model::Bytes(cores << 30),
            disk: mete_model::Bytes(cores << 30),
            cores: (first..first + cores)
                .filter_map(|core| u32::try_from(core).ok())
                .collect(),
            devices: devices
                .iter()
                .map(|(id, class)| mete_model::device::DeviceShare {
                    id: id.clone(),
                    class: class.clone(),
                    milli: 1000,
                })
                .collect(),
        },
        devices: devices
            .into_iter()
            .map(|(id, class)| Device {
                id,
                class,
                attributes: BTreeMap::new(),
                healthy: true,
            })
            .collect(),
        topology_epoch: 1,
        fake: true,
        ..Inventory::default()
    }
}
