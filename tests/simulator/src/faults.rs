//! Things go wrong, and most of them come right again after a while.

use mete_broker::store::FaultPlan;

use crate::agenda::{MILLISECOND, SECOND, Time};
use crate::agents::ProcessState;
use crate::masters::sync;
use crate::network::{Place, Weather};
use crate::operator::Wish;
use crate::plan::Wrong;
use crate::variant::Variant;
use crate::world::{Happening, World};

/// Something that was asked to happen at its time.
#[derive(Clone, Debug)]
pub(crate) enum Fault {
    /// These ways are open again.
    Heals(Vec<(Place, Place)>),
    /// The network is as it was.
    Clears,
    /// A disk is as fast as it was.
    Fast { node: u64, flush: Time },
    /// A disk has room again.
    Room { node: u64 },
    /// A disk whose flushes lie makes everything durable.
    Syncs,
}

impl World {
    pub(crate) fn choose_fault(&mut self) {
        if self.quiet {
            return;
        }
        let mut dice = self.dice.fork(&format!("fault at {}", self.now()));
        if self.variant == Some(Variant::AcknowledgeBeforeDurable) && dice.chance(300) {
            self.goes(Fault::Syncs);
        }
        if let Some(wrong) = self.plan.choose(&mut dice) {
            self.say(|| format!("wrong: {wrong:?}"));
            self.go_wrong(wrong);
        }
        let wait = self.dice.between(50_000, self.plan.pace);
        self.agenda.after(wait, Happening::ChooseFault);
    }

    /// Any master with a process, the leader more often than not.
    fn some_master(&mut self) -> Option<u64> {
        let leader = self.leader().filter(|_| self.dice.chance(550));
        let running = self.masters.iter().filter(|(_, it)| it.running.is_some());
        let running: Vec<u64> = running.map(|(node, _)| *node).collect();
        leader.or_else(|| self.dice.pick(&running))
    }

    fn some_agent(&mut self) -> usize {
        self.dice.index(self.agents.len())
    }

    fn some_client(&mut self) -> Option<usize> {
        let alive = self.clients.iter().enumerate().filter(|(_, it)| it.alive);
        let alive: Vec<usize> = alive.map(|(client, _)| client).collect();
        self.dice.pick(&alive)
    }

    fn go_wrong(&mut self, wrong: Wrong) {
        match wrong {
            Wrong::MasterDies
            | Wrong::MasterDiesAtWrite
            | Wrong::MasterStandsStill
            | Wrong::SlowDisk
            | Wrong::DiskFull
            | Wrong::ClockJumps
            | Wrong::NewRelease
            | Wrong::DiskLost => {
                if let Some(node) = self.some_master() {
                    self.trouble_master(node, wrong);
                }
            }
            Wrong::MasterCutOff
            | Wrong::OneWayCut
            | Wrong::Split
            | Wrong::AgentCutOff
            | Wrong::ClientCutOff
            | Wrong::BadWeather => self.trouble_network(wrong),
            Wrong::SeatsChange => self.wish_for_seats(),
            Wrong::HandOver => self.operator.wish(Wish::HandOver),
            Wrong::OperatorKills => self.operator.wish(Wish::Kill),
            Wrong::AgentDies
            | Wrong::AgentDiesAtRecord
            | Wrong::AgentStandsStill
            | Wrong::MachineReboots
            | Wrong::MachineWiped
            | Wrong::MachineChanges => self.trouble_agent(wrong),
            Wrong::ClientReplaced | Wrong::ClientStandsStill => self.trouble_client(wrong),
        }
    }

    #[expect(
        clippy::wildcard_enum_match_arm,
        reason = "called with faults of its kind only; the last arm is one of them"
    )]
    fn trouble_master(&mut self, node: u64, wrong: Wrong) {
        let (now, restart) = (self.now(), self.some_time(20, 2_000));
        let until = self.some_time(100, 2_000);
        let draw = self.dice.between(1, 6);
        let Some(process) = self.masters.get_mut(&node) else {
            return;
        };
        match wrong {
            Wrong::MasterDiesAtWrite => {
                let (writes, flushes) = process.disk.operations();
                if self.dice.chance(500) {
                    process.faults.fail_writes = vec![writes + draw];
                } else {
                    process.faults.fail_flushes = vec![flushes + draw];
                }
                process.disk.set_faults(process.faults.clone());
            }
            Wrong::MasterStandsStill => self.pause_master(node, now + until),
            Wrong::SlowDisk => {
                let flush = process.flush;
                process.flush = self.dice.between(10, 300) * MILLISECOND;
                self.agenda
                    .after(until, Happening::Goes(Fault::Fast { node, flush }));
            }
            Wrong::DiskFull => {
                process.faults.space_low = true;
                process.disk.set_faults(process.faults.clone());
                self.agenda
                    .after(until, Happening::Goes(Fault::Room { node }));
            }
            Wrong::ClockJumps => {
                let jump = self
                    .dice
                    .pick(&[-86_400_000, -5_000, 3_000, 3_600_000, 86_400_000]);
                process.clock_error = jump.unwrap_or(0);
            }
            Wrong::NewRelease => {
                process.level = 1;
                self.crash_master(node);
                self.agenda.after(restart, Happening::MasterStarts { node });
            }
            Wrong::DiskLost => self.lose_disk(node),
            _ => {
                self.crash_master(node);
                self.agenda.after(restart, Happening::MasterStarts { node });
            }
        }
    }

    /// A seat's disk is gone: another master, with another id, takes its place.
    fn lose_disk(&mut self, node: u64) {
        // A second lost disk before the first seat is filled could be one too many.
        let Some(leader) = self.leader() else { return };
        if !self.operator.is_settled() || self.unsettled_seats(leader).is_some() {
            return;
        }
        let Some(running) = self.running(leader) else {
            return;
        };
        let members = running.master.replica().members().clone();
        let spare = members.voters.iter().filter(|voter| **voter != node);
        let voters = members.voters.len();
        let up = spare.filter(|voter| {
            let process = self.masters.get(voter);
            process.is_some_and(|process| process.running.is_some())
        });
        if up.count() <= voters / 2 || members.changing || !members.voters.contains(&node) {
            return;
        }
        self.crash_master(node);
        if self.variant == Some(Variant::NodeIdReused) {
            let founders = self.masters.get(&node).map(|it| it.founders.clone());
            let life = self.masters.get(&node).map_or(0, |process| process.life);
            self.found_master(node, founders.unwrap_or_default());
            if let Some(process) = self.masters.get_mut(&node) {
                process.life = life;
            }
            return;
        }
        self.say(|| format!("the disk of master {node} is lost"));
        self.retire(node);
        self.operator.wish(Wish::Replace(node));
    }

    fn wish_for_seats(&mut self) {
        // As long as a disk is lost, one voter fewer could be one too few.
        let Some(leader) = self.leader() else { return };
        if !self.operator.is_settled() || self.unsettled_seats(leader).is_some() {
            return;
        }
        let Some(node) = self.some_master() else {
            return;
        };
        match self.dice.below(3) {
            0 => self.operator.wish(Wish::Replace(node)),
            1 => {
                self.operator.wish(Wish::Add);
                self.operator.wish(Wish::Remove(node));
            }
            _ => {
                self.operator.wish(Wish::AddLearner);
                self.operator.wish(Wish::PromoteLast);
                self.operator.wish(Wish::Remove(node));
            }
        }
    }

    #[expect(
        clippy::wildcard_enum_match_arm,
        reason = "called with faults of its kind only; the last arm is one of them"
    )]
    fn trouble_network(&mut self, wrong: Wrong) {
        let until = self.some_time(100, 2_500);
        let everybody = self.everybody();
        let mut ways = Vec::new();
        match wrong {
            Wrong::BadWeather => {
                self.network.weather = Weather {
                    lost: self.dice.below(200),
                    twice: self.dice.below(150),
                    overtaken: self.dice.below(150),
                    delay: self.dice.below(80) * MILLISECOND,
                };
                self.agenda.after(until, Happening::Goes(Fault::Clears));
                return;
            }
            Wrong::MasterCutOff => {
                let Some(node) = self.some_master() else {
                    return;
                };
                let from = Place::Master(node);
                let masters_only = self.dice.chance(500);
                for other in everybody {
                    if !masters_only || matches!(other, Place::Master(_)) {
                        ways.extend([(from, other), (other, from)]);
                    }
                }
            }
            Wrong::Split => ways = self.two_sides(&everybody),
            Wrong::OneWayCut => {
                let Some(node) = self.some_master() else {
                    return;
                };
                let from = Place::Master(node);
                let outward = self.dice.chance(500);
                let all = self.dice.chance(300);
                for other in everybody {
                    if all || self.dice.chance(400) {
                        ways.push(if outward {
                            (from, other)
                        } else {
                            (other, from)
                        });
                    }
                }
            }
            _ => {
                let place = if wrong == Wrong::AgentCutOff {
                    Place::Agent(self.some_agent())
                } else {
                    let Some(client) = self.some_client() else {
                        return;
                    };
                    Place::Client(client)
                };
                for other in everybody {
                    ways.extend([(place, other), (other, place)]);
                }
            }
        }
        for (from, to) in &ways {
            self.network.cut(*from, *to);
        }
        self.agenda
            .after(until, Happening::Goes(Fault::Heals(ways)));
    }

    /// Every way between two halves.
    fn two_sides(&mut self, everybody: &[Place]) -> Vec<(Place, Place)> {
        let sides: Vec<bool> = everybody.iter().map(|_| self.dice.chance(500)).collect();
        let mut ways = Vec::new();
        for (a, first) in everybody.iter().zip(&sides) {
            for (b, second) in everybody.iter().zip(&sides) {
                if first != second {
                    ways.push((*a, *b));
                }
            }
        }
        ways
    }

    fn everybody(&self) -> Vec<Place> {
        let masters = self.masters.keys().map(|node| Place::Master(*node));
        let agents = (0..self.agents.len()).map(Place::Agent);
        let clients = (0..self.clients.len()).map(Place::Client);
        let operator = [Place::Operator];
        masters
            .chain(agents)
            .chain(clients)
            .chain(operator)
            .collect()
    }

    #[expect(
        clippy::wildcard_enum_match_arm,
        reason = "called with faults of its kind only; the last arm is one of them"
    )]
    fn trouble_agent(&mut self, wrong: Wrong) {
        let agent = self.some_agent();
        let (now, restart) = (self.now(), self.some_time(20, 3_000));
        match wrong {
            Wrong::AgentDiesAtRecord => {
                let at = (self.dice.between(1, 4), self.dice.chance(500));
                if let Some(process) = self.agents.get_mut(agent) {
                    process.die_at_record = Some(at);
                }
                return;
            }
            Wrong::AgentStandsStill => {
                let until = now + self.some_time(200, 7_000);
                self.pause_agent(agent, until);
                return;
            }
            Wrong::MachineChanges => {
                let cores = self.dice.between(2, 6);
                self.change_inventory(agent, cores);
                return;
            }
            Wrong::MachineReboots => self.reboot_agent(agent, false),
            Wrong::MachineWiped => self.reboot_agent(agent, true),
            _ => {
                // What was handed over and had not begun may have come to nothing.
                let nothing_came = self.dice.chance(300);
                self.crash_agent(agent);
                if let Some(process) = self.agents.get_mut(agent)
                    && nothing_came
                {
                    let began = |run: &crate::agents::Process| run.state != ProcessState::Preparing;
                    process.processes.retain(|_, run| began(run));
                }
            }
        }
        self.agenda.after(restart, Happening::AgentStarts { agent });
    }

    fn trouble_client(&mut self, wrong: Wrong) {
        let Some(client) = self.some_client() else {
            return;
        };
        let until = self.now() + self.some_time(200, 6_000);
        if wrong == Wrong::ClientStandsStill {
            self.pause_client(client, until);
            return;
        }
        let Some(framework) = self.clients.get(client).map(|it| it.framework) else {
            return;
        };
        // One that is only thought to be dead goes on until it is told.
        if self.dice.chance(500) {
            self.end_client(client);
        }
        self.start_client(framework);
    }

    pub(crate) fn goes(&mut self, fault: Fault) {
        match fault {
            Fault::Heals(ways) => {
                for (from, to) in ways {
                    self.network.heal(from, to);
                }
            }
            Fault::Clears => self.network.weather = Weather::default(),
            Fault::Fast { node, flush } => {
                if let Some(process) = self.masters.get_mut(&node) {
                    process.flush = flush;
                }
            }
            Fault::Room { node } => {
                if let Some(process) = self.masters.get_mut(&node) {
                    process.faults.space_low = false;
                    process.disk.set_faults(process.faults.clone());
                }
            }
            Fault::Syncs => {
                for process in self.masters.values() {
                    sync(&process.disk, &process.faults);
                }
            }
        }
    }

    /// Nothing goes wrong from here on, and everything that can comes back.
    pub(crate) fn calm_down(&mut self) {
        self.quiet = true;
        self.say(|| "from here on nothing goes wrong".to_owned());
        self.network.heal_all();
        let lies = self.variant == Some(Variant::AcknowledgeBeforeDurable);
        for (node, process) in &mut self.masters {
            process.faults = FaultPlan {
                flushes_lie: lies,
                ..FaultPlan::default()
            };
            process.disk.set_faults(process.faults.clone());
            process.flush = process.flush.min(MILLISECOND);
            self.agenda
                .after(10_000, Happening::MasterStarts { node: *node });
        }
        for agent in 0..self.agents.len() {
            if let Some(process) = self.agents.get_mut(agent) {
                process.die_at_record = None;
            }
            self.agenda.after(10_000, Happening::AgentStarts { agent });
        }
        // Of each framework the newest process is the one that counts.
        for framework in 0..self.plan.frameworks {
            let mine = self.clients.iter().enumerate();
            let alive = mine.filter(|(_, it)| it.framework == framework && it.alive);
            if alive.count() == 0 {
                self.start_client(framework);
            }
        }
    }

    /// How long a stopped world may take to be well again.
    pub(crate) fn patience() -> Time {
        60 * SECOND
    }
}
