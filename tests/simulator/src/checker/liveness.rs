//! Liveness: once nothing goes wrong any more, everything is well again within a bound, and short
//! stops of one process change nothing.

use mete_agent::core::AgentCore;
use mete_model::{RunId, TaskPhase};
use mete_state::{Seat, State};

use crate::agenda::{MILLISECOND, SECOND};
use crate::agents::ProcessState;
use crate::masters::address;
use crate::network::COPY_WITHIN;
use crate::world::World;

/// A last task that came to nothing is asked for again after this.
const ASK_AGAIN: u64 = 10 * SECOND;

impl World {
    /// From the calm to the end: waits until all is well, then looks at everything once more.
    pub(crate) fn recover(&mut self) {
        let end = self.now() + Self::patience();
        let mut unmet = vec!["nothing was looked at".to_owned()];
        while self.checkers.found.is_empty() && !unmet.is_empty() && self.now() < end {
            let next = self.now() + 200 * MILLISECOND;
            self.run_until(next);
            self.close_clients();
            unmet = self.unmet();
        }
        if !self.checkers.found.is_empty() {
            return;
        }
        if !unmet.is_empty() {
            let bound = Self::patience() / SECOND;
            let detail = format!("{bound} s after the last fault: {}", unmet.join("; "));
            self.violated("liveness", detail);
            return;
        }
        self.say(|| "all is well".to_owned());
        self.hiccup();
        if self.checkers.found.is_empty() {
            self.last_look();
        }
    }

    /// The newest process of each framework asks for its last task.
    fn close_clients(&mut self) {
        let now = self.now();
        for framework in 0..self.plan.frameworks {
            let Some(client) = self.newest_client(framework) else {
                continue;
            };
            let (closing, keep) = match self.clients.get(client) {
                Some(process) => (process.closing, self.last_runs(client)),
                None => continue,
            };
            if !closing {
                self.close_client(client);
                self.operator.note_close(framework, now);
                continue;
            }
            self.sweep(client, &keep);
            let runs = self.clients.get(client).map(|it| &it.runs);
            let waits = keep
                .iter()
                .all(|run| runs.is_none_or(|runs| !runs.contains_key(run)));
            if waits && now > self.operator.closed_at(framework) + ASK_AGAIN {
                self.operator.note_close(framework, now);
                self.ask_last(client);
            }
        }
    }

    fn newest_client(&self, framework: usize) -> Option<usize> {
        let mine = self.clients.iter().enumerate();
        let ready = mine.filter(|(_, it)| it.framework == framework && it.alive && it.ready);
        let newest = ready.max_by_key(|(_, it)| it.incarnation);
        newest.map(|(client, _)| client)
    }

    /// Runs that a closing process has launched since it began to close.
    fn last_runs(&self, client: usize) -> Vec<RunId> {
        let Some(process) = self.clients.get(client) else {
            return Vec::new();
        };
        let runs = process.runs.iter().filter(|(run, _)| process.is_last(run));
        // One is enough; the one that is furthest.
        let furthest = runs.max_by_key(|(_, seen)| seen.phase.min(TaskPhase::Running));
        furthest.map(|(run, _)| run.clone()).into_iter().collect()
    }

    /// What is not well yet.
    fn unmet(&mut self) -> Vec<String> {
        let mut unmet = Vec::new();
        for (agent, process) in self.agents.iter().enumerate() {
            if !process.is_linked() {
                unmet.push(format!("agent {agent} is not back"));
            }
        }
        if !self.operator.is_settled() {
            unmet.push("the operator still waits for something".to_owned());
        }
        for framework in 0..self.plan.frameworks {
            let served = self.newest_client(framework).is_some_and(|client| {
                let last = self.last_runs(client);
                let runs = &self.clients[client].runs;
                let is_up = |run: &RunId| {
                    runs.get(run)
                        .is_some_and(|it| it.phase == TaskPhase::Running)
                };
                self.clients[client].closing && last.iter().any(is_up)
            });
            if !served {
                unmet.push(format!("framework {framework} does not get what fits"));
            }
        }
        match self.leader() {
            None => unmet.push(format!("no master leads: {}", self.standings())),
            Some(leader) => {
                self.unmet_seats(leader, &mut unmet);
                self.unmet_runs(leader, &mut unmet);
            }
        }
        unmet
    }

    /// How the seats differ from what they shall be, as this leader sees it.
    pub(crate) fn unsettled_seats(&self, leader: u64) -> Option<String> {
        let running = self.masters.get(&leader)?.running.as_ref()?;
        let members = running.master.replica().members();
        let seats = |seat: Seat| {
            running.master.read_state(|state| {
                let masters = state.masters().filter(|master| master.seat == seat);
                masters.map(|master| master.node).collect::<Vec<u64>>()
            })
        };
        let wished = (seats(Seat::Voter), seats(Seat::Learner));
        let is = (members.voters.clone(), members.learners.clone());
        let settled = !members.changing && wished == is && seats(Seat::Leaving).is_empty();
        (!settled).then(|| format!("the seats are {is:?} and shall be {wished:?}"))
    }

    /// What each replica says of itself, for a message.
    fn standings(&self) -> String {
        let running = self.masters.iter().filter_map(|(node, process)| {
            let replica = process.running.as_ref()?.master.replica();
            let standing = replica.standing();
            let (first, last) = (replica.applied_index(), replica.last_index());
            let members = replica.members();
            let (role, term) = (standing.role, standing.term);
            Some(format!(
                "master {node} is {role:?} in term {term}, applied {first} of {last}, {members:?}"
            ))
        });
        running.collect::<Vec<String>>().join(", ")
    }

    fn unmet_seats(&self, leader: u64, unmet: &mut Vec<String>) {
        let Some(running) = self.masters.get(&leader).and_then(|it| it.running.as_ref()) else {
            return;
        };
        unmet.extend(self.unsettled_seats(leader));
        let replica = running.master.replica();
        let members = replica.members();
        let index = replica.applied_index();
        for node in members.voters.iter().chain(&members.learners) {
            let process = self.masters.get(node).and_then(|it| it.running.as_ref());
            let applied = process.map_or(0, |it| it.master.replica().applied_index());
            if applied != index {
                unmet.push(format!(
                    "master {node} is at {applied}, the leader at {index}"
                ));
            }
        }
    }

    fn unmet_runs(&self, leader: u64, unmet: &mut Vec<String>) {
        let Some(running) = self.masters.get(&leader).and_then(|it| it.running.as_ref()) else {
            return;
        };
        let (live, open) = running.master.read_state(|state| {
            let live = state.all_runs().filter(|run| !run.phase.is_terminal());
            let open = state
                .all_runs()
                .filter(|run| run.phase.is_terminal() || run.unacknowledged().next().is_some());
            (live.count(), open.count())
        });
        let alive = |run: &crate::agents::Process| run.state == ProcessState::Alive;
        let processes = self
            .agents
            .iter()
            .flat_map(|agent| agent.processes.values());
        let alive = processes.filter(|run| alive(run)).count();
        let held: usize = self
            .agents
            .iter()
            .filter_map(|agent| agent.core.as_ref())
            .map(|core: &AgentCore| core.held().len())
            .sum();
        let last = self.plan.frameworks;
        if (live, alive, held, open) != (last, last, last, 0) {
            unmet.push(format!(
                "{last} runs shall live: the state has {live}, machines have {alive}, agents \
                 hold {held}, statuses of {open} are not acknowledged"
            ));
        }
    }

    /// A follower that stands still for a while does not stand for election when it goes on, and
    /// the leader stays.
    fn hiccup(&mut self) {
        // A late copy of an operator's call may still give the office to another one.
        self.run_until(self.now() + (COPY_WITHIN + 500) * MILLISECOND);
        let Some(leader) = self.leader() else { return };
        let term = |world: &mut Self| {
            let running = world.running(leader)?;
            let standing = running.master.replica().standing();
            standing.ready.then_some(standing.term)
        };
        let before = term(self);
        let members = self.running(leader).map(|running| {
            let members = running.master.replica().members();
            members.voters.clone()
        });
        let others = members.unwrap_or_default();
        let others: Vec<u64> = others.into_iter().filter(|node| *node != leader).collect();
        let Some(node) = self.dice.pick(&others) else {
            return;
        };
        if let Some(running) = self.running(node) {
            running.stood = false;
        }
        let until = self.now() + self.some_time(800, 1_600);
        self.pause_master(node, until);
        self.run_until(until + 500 * MILLISECOND);
        let stood = self.running(node).is_some_and(|running| running.stood);
        if stood {
            let detail = format!("master {node} stood for election after a short stop");
            self.violated("liveness", detail);
        }
        if self.checkers.found.is_empty() && term(self) != before {
            let detail = format!("master {leader} lost its office to a stop of master {node}");
            self.violated("liveness", detail);
        }
    }

    /// The ledger in the state of every replica.
    pub(crate) fn look(&mut self) {
        let mut found = Vec::new();
        for (node, process) in &self.masters {
            let Some(running) = &process.running else {
                continue;
            };
            running.master.read_state(|state| {
                for violation in mete_state::invariants::check(state) {
                    found.push(format!("master {node}: {violation}"));
                }
            });
        }
        for detail in found {
            self.violated("ledger", detail);
        }
    }

    fn last_look(&mut self) {
        self.look();
        let Some(leader) = self.leader() else {
            self.violated("liveness", "no master leads at the end".to_owned());
            return;
        };
        let Some(running) = self.running(leader) else {
            return;
        };
        let state = running.master.read_state(State::clone);
        let founders: Vec<u64> = (1..=self.plan.masters).collect();
        let founders = founders.into_iter().map(|node| (node, address(node)));
        let founded = State::founded(&founders.collect());
        for detail in self.checkers.history.finish(founded, &state) {
            self.violated("history", detail);
        }
        for detail in self.checkers.status.finish(&state) {
            self.violated("status", detail);
        }
        for detail in self.checkers.linear.finish() {
            self.violated("linear", detail);
        }
        self.digest.add(state.digest());
    }
}
