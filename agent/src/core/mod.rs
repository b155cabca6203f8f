//! The agent's mind: a pure value. Events go in, actions come out.
//!
//! The shell (real machine) or the fake host (simulated one) feeds [`AgentCore::step`] everything
//! that happens and carries out what comes back. Records first, in one durable write for a whole
//! loop turn, then the rest in order: so nothing is started, told or ended that a crash could
//! forget. The core keeps grants only and derives what is free from them; it numbers the statuses
//! of each run and keeps them until the broker has them.
//!
//! It does not know paths, cgroups, processes, streams or gRPC, nor who owns a run.

mod action;
mod adopt;
mod ending;
mod event;
mod ledger;
mod task;
#[cfg(test)]
mod tests;
mod updates;

use std::collections::BTreeMap;

use mete_model::{AgentId, FrameworkId, Inventory, RunId, Span, Status, Timestamp};

pub use self::action::{Action, HeldRun, Record};
pub use self::adopt::{Found, FoundState, RecordedRun};
pub use self::ending::{Ending, RunEnd};
pub use self::event::{Event, KillTask, StartTask};
pub use self::ledger::LedgerRow;

use self::task::Task;

/// A run together with the framework that launched it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RunKey {
    /// Whose.
    pub framework: FrameworkId,
    /// Which.
    pub run: RunId,
}

impl std::fmt::Display for RunKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.framework, self.run)
    }
}

/// A run that takes longer than this to begin is told as `Starting`.
const SLOW_START: Span = Span::seconds(1);

/// A status that is not confirmed for so long is sent again: its confirmation may have been lost in
/// an outbox that was full.
const SEND_AGAIN: Span = Span::seconds(30);

/// Everything one agent knows.
#[derive(Debug)]
pub struct AgentCore {
    inventory: Inventory,
    /// Known once a leader has welcomed this agent.
    agent: Option<AgentId>,
    tasks: BTreeMap<RunKey, Task>,
    /// The disk of state or logs is nearly full: no new launches.
    disk_pressure: Option<String>,
    /// A stream to the leader is open and has been welcomed.
    linked: bool,
    /// The machine has changed while no stream was welcomed: the first message of the stream that
    /// is welcomed next may be older.
    inventory_untold: bool,
    /// When unconfirmed statuses were last sent again.
    sent_again: Timestamp,
}

impl AgentCore {
    /// An agent with nothing on it.
    #[must_use]
    pub fn new(inventory: Inventory) -> Self {
        Self {
            inventory,
            agent: None,
            tasks: BTreeMap::new(),
            disk_pressure: None,
            linked: false,
            inventory_untold: false,
            sent_again: Timestamp(0),
        }
    }

    /// What the machine has.
    #[must_use]
    pub fn inventory(&self) -> &Inventory {
        &self.inventory
    }

    /// The id that a leader gave, once one has.
    #[must_use]
    pub fn agent(&self) -> Option<AgentId> {
        self.agent
    }

    /// Takes one event and says what is to be done, in order.
    pub fn step(&mut self, event: Event, now: Timestamp) -> Vec<Action> {
        let mut actions = Vec::new();
        match event {
            Event::Welcome { agent, discard } => self.welcome(agent, &discard, now, &mut actions),
            Event::LinkLost => self.linked = false,
            Event::Start(start) => self.start(*start, now, &mut actions),
            Event::Kill(kill) => self.kill(kill, now, &mut actions),
            Event::Discard(key) => self.discard(&key, now, &mut actions),
            Event::Forget { key, sequence } => self.forget(&key, sequence, now, &mut actions),
            Event::Started { key, at } => self.started(&key, at, now, &mut actions),
            Event::Stuck { key, message } => self.stuck(&key, message, now, &mut actions),
            Event::Ended { key, end } => self.ended(&key, &end, now, &mut actions),
            Event::DiskPressure(pressure) => self.disk_pressure = pressure,
            Event::Inventory(inventory) => self.replace_inventory(*inventory, &mut actions),
            Event::Silent(silence) => self.end_silent(silence, now, &mut actions),
            Event::Tick => self.tick(now, &mut actions),
        }
        actions
    }

    /// Every run there is, for the first message on a stream.
    #[must_use]
    pub fn held(&self) -> Vec<HeldRun> {
        self.tasks
            .iter()
            .filter(|(_, task)| !task.discarded)
            .map(|(key, task)| HeldRun {
                key: key.clone(),
                phase: task.phase,
                last_sequence: task.updates.last_sequence(),
            })
            .collect()
    }

    /// A leader has welcomed the present stream.
    #[must_use]
    pub fn is_linked(&self) -> bool {
        self.linked
    }

    /// Runs that are not over.
    #[must_use]
    pub fn live_runs(&self) -> usize {
        self.tasks
            .values()
            .filter(|task| !task.phase.is_terminal())
            .count()
    }

    fn welcome(
        &mut self,
        agent: AgentId,
        discard: &[RunKey],
        now: Timestamp,
        actions: &mut Vec<Action>,
    ) {
        self.agent = Some(agent);
        self.linked = true;
        for key in discard {
            self.discard(key, now, actions);
        }
        if std::mem::take(&mut self.inventory_untold) {
            actions.push(Action::SendInventory(Box::new(self.inventory.clone())));
        }
        // Whatever the last stream lost on its way is sent again; the broker counts it once.
        self.send_again(|_| true, now, actions);
    }

    /// Sends what the broker has not confirmed, in order per run.
    fn send_again(
        &mut self,
        wanted: impl Fn(&Status) -> bool,
        now: Timestamp,
        actions: &mut Vec<Action>,
    ) {
        self.sent_again = now;
        let statuses: Vec<_> = self
            .tasks
            .iter()
            .filter(|(_, task)| !task.discarded)
            .flat_map(|(key, task)| {
                let unconfirmed = task.updates.unconfirmed().filter(|status| wanted(status));
                unconfirmed.map(|status| (key.framework, status.clone()))
            })
            .collect();
        if !statuses.is_empty() {
            actions.push(Action::Send(statuses));
        }
    }

    fn replace_inventory(&mut self, inventory: Inventory, actions: &mut Vec<Action>) {
        if self.inventory != inventory {
            self.inventory = inventory.clone();
            self.inventory_untold = !self.linked;
            actions.push(Action::SendInventory(Box::new(inventory)));
        }
    }

    fn tick(&mut self, now: Timestamp, actions: &mut Vec<Action>) {
        let slow: Vec<RunKey> = self
            .tasks
            .iter()
            .filter(|(_, task)| task.is_slow_to_start(now, SLOW_START))
            .map(|(key, _)| key.clone())
            .collect();
        for key in slow {
            self.tell_starting(&key, now, actions);
        }
        self.expire_waiting(now, actions);
        if self.linked && now.since(self.sent_again) >= SEND_AGAIN {
            self.send_again(|status| now.since(status.at) >= SEND_AGAIN, now, actions);
        }
    }
}
