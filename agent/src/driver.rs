//! The loop of one agent: events in, core, records, then everything else.
//!
//! One loop serves the real machine and the simulated one; what differs is the [`Host`]. A turn
//! takes everything that is waiting, up to a bound, so that a burst of launches costs one write.
//! The beacon is made here and carries the count of turns: an agent whose loop hangs is not heard.

use std::future::Future;
use std::io;
use std::time::Duration;

use mete_model::{Span, Timestamp};
use tokio::sync::{mpsc, watch};
use tokio::time::MissedTickBehavior;

use crate::contact::{BootTime, Contact};
use crate::core::{Action, AgentCore, Event, HeldRun, Record, RunKey, StartTask};
use crate::link::{FromLink, ToLink};

/// Events taken in one turn from link and host each; one message of the link is never cut.
const MOST_EVENTS: usize = 1024;

/// Statuses in one message: far below what a master takes at a time, in number and in bytes.
const MOST_STATUSES: usize = 1000;

/// How often time is looked at.
const TICK: Duration = Duration::from_millis(500);

/// Where runs really happen, and where records are really kept.
pub trait Host: Send {
    /// Makes the records of one turn durable, all or none.
    ///
    /// # Errors
    /// They are not durable: the agent must stop rather than act on what it would forget.
    fn record(&mut self, records: Vec<Record>) -> impl Future<Output = io::Result<()>> + Send;

    /// Makes the run ready and starts it.
    fn prepare(&mut self, start: StartTask);

    /// Ends the run.
    fn stop(&mut self, key: &RunKey, grace: Span);

    /// Watches a run that an earlier process started.
    fn adopt(&mut self, key: &RunKey);

    /// Removes what is kept of an ended run.
    fn release(&mut self, key: &RunKey);

    /// Waits for something to happen; may be dropped and called again without loss.
    fn next(&mut self) -> impl Future<Output = Event> + Send;

    /// What has happened already, if anything has; never waits. With it a turn takes all that
    /// waits, so that a hundred runs that began at once cost one durable write.
    fn ready(&mut self) -> Option<Event>;

    /// The clock.
    fn now(&self) -> Timestamp;

    /// The clock that nobody sets and that goes on while the machine sleeps.
    fn boot_time(&self) -> BootTime;

    /// When a leader was last heard, as far as this machine remembers.
    fn last_word(&self) -> Option<BootTime>;

    /// A leader's word, as of then: runs that end without one go on.
    fn word(&mut self, at: BootTime);
}

/// What others may see of a running agent.
#[derive(Clone, Debug, Default)]
pub struct AgentState {
    /// The id a leader gave.
    pub agent: Option<mete_model::AgentId>,
    /// A leader has welcomed the present stream.
    pub linked: bool,
    /// Runs that are not over.
    pub live_runs: usize,
}

/// A question for the loop.
#[derive(Debug)]
pub enum Question {
    /// The ledger, the inventory and what is free.
    Ledger(tokio::sync::oneshot::Sender<Answer>),
}

/// The answer to [`Question::Ledger`].
#[derive(Debug)]
pub struct Answer {
    /// The id a leader gave.
    pub agent: Option<mete_model::AgentId>,
    /// Who holds what.
    pub rows: Vec<crate::core::LedgerRow>,
    /// What the machine has.
    pub inventory: mete_model::Inventory,
    /// What nobody holds.
    pub free: mete_model::Resources,
}

/// The ends that the loop holds.
#[derive(Debug)]
pub struct Wiring {
    /// What the link brings.
    pub from_link: mpsc::Receiver<FromLink>,
    /// What the link carries.
    pub to_link: mpsc::Sender<ToLink>,
    /// Told on every change.
    pub state: watch::Sender<AgentState>,
    /// Asked by the node API.
    pub questions: mpsc::Receiver<Question>,
}

/// Runs the loop until `shutdown`. Tasks are left alone.
///
/// # Errors
/// Records could not be made durable.
pub async fn drive<H: Host>(
    mut core: AgentCore,
    mut host: H,
    first: Vec<Action>,
    mut wiring: Wiring,
    beacon: Duration,
    shutdown: impl Future<Output = ()> + Send,
) -> io::Result<()> {
    let mut turns: u64 = 0;
    let mut ticks = tokio::time::interval(TICK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
    let mut beacons = tokio::time::interval(beacon);
    beacons.set_missed_tick_behavior(MissedTickBehavior::Skip);
    let began = host.boot_time();
    let mut contact = Contact::new(host.last_word().unwrap_or(began));
    let mut shutdown = std::pin::pin!(shutdown);
    carry_out(&core, &mut host, first, &wiring).await?;
    loop {
        let mut events = Vec::new();
        tokio::select! {
            biased;
            () = &mut shutdown => return Ok(()),
            Some(question) = wiring.questions.recv() => answer(&core, question),
            Some(from) = wiring.from_link.recv() => {
                take(&core, from, &mut host, &mut contact, &mut events);
            }
            event = host.next() => events.push(event),
            _ = ticks.tick() => {
                events.push(Event::Silent(contact.silence(host.boot_time())));
                events.push(Event::Tick);
            }
            _ = beacons.tick() => {
                let progress = ToLink::Beacon(turns);
                if wiring.state.borrow().linked {
                    if wiring.to_link.try_send(progress).is_ok() {
                        contact.beacon_sent(turns, host.boot_time());
                    } else {
                        tracing::debug!("the link is too full for a beacon");
                    }
                }
            }
        }
        while events.len() < MOST_EVENTS {
            let Ok(from) = wiring.from_link.try_recv() else {
                break;
            };
            take(&core, from, &mut host, &mut contact, &mut events);
        }
        events.extend(std::iter::from_fn(|| host.ready()).take(MOST_EVENTS));
        turns = turns.saturating_add(1);
        let now = host.now();
        let mut actions = Vec::new();
        for event in events {
            actions.extend(core.step(event, now));
        }
        carry_out(&core, &mut host, actions, &wiring).await?;
        publish(&core, &wiring.state);
    }
}

fn take<H: Host>(
    core: &AgentCore,
    from: FromLink,
    host: &mut H,
    contact: &mut Contact,
    events: &mut Vec<Event>,
) {
    match from {
        FromLink::HelloWanted(answer) => {
            let hello = Hello {
                inventory: core.inventory().clone(),
                held: core.held(),
            };
            contact.hello_sent(host.boot_time());
            // The link has given up on this connection: it will ask again.
            let _gone = answer.send(hello);
        }
        FromLink::Heard(progress) => {
            if let Some(at) = contact.heard(progress, host.boot_time()) {
                host.word(at);
            }
        }
        FromLink::Events(list) => {
            let welcome = |event: &Event| matches!(event, Event::Welcome { .. });
            if list.iter().any(welcome)
                && let Some(at) = contact.welcomed()
            {
                host.word(at);
            }
            events.extend(list);
        }
    }
}

/// The first message of a stream.
#[derive(Clone, Debug)]
pub struct Hello {
    /// What the machine has.
    pub inventory: mete_model::Inventory,
    /// Every run there is.
    pub held: Vec<HeldRun>,
}

fn answer(core: &AgentCore, question: Question) {
    let Question::Ledger(reply) = question;
    let answer = Answer {
        agent: core.agent(),
        rows: core.ledger(),
        inventory: core.inventory().clone(),
        free: core.free(),
    };
    let _asker_gone = reply.send(answer);
}

fn publish(core: &AgentCore, state: &watch::Sender<AgentState>) {
    let next = AgentState {
        agent: core.agent(),
        linked: core.is_linked(),
        live_runs: core.live_runs(),
    };
    state.send_if_modified(|present| {
        let changed = (present.agent, present.linked, present.live_runs)
            != (next.agent, next.linked, next.live_runs);
        *present = next;
        changed
    });
}

/// Records first, in one durable write, then the rest in order.
async fn carry_out<H: Host>(
    core: &AgentCore,
    host: &mut H,
    actions: Vec<Action>,
    wiring: &Wiring,
) -> io::Result<()> {
    let mut records = Vec::new();
    let mut rest = Vec::new();
    for action in actions {
        match action {
            Action::Record(record) => records.push(record),
            Action::Prepare(_)
            | Action::Stop { .. }
            | Action::Adopt(_)
            | Action::Release(_)
            | Action::Send(_)
            | Action::SendInventory(_) => rest.push(action),
        }
    }
    if !records.is_empty() {
        host.record(records).await?;
    }
    let mut statuses = Vec::new();
    for action in rest {
        match action {
            Action::Prepare(start) => host.prepare(*start),
            Action::Stop { key, grace } => host.stop(&key, grace),
            Action::Adopt(key) => host.adopt(&key),
            Action::Release(key) => host.release(&key),
            Action::Send(list) => statuses.extend(list),
            Action::SendInventory(inventory) => {
                send(core, wiring, ToLink::Inventory(inventory)).await;
            }
            Action::Record(_) => {}
        }
    }
    while !statuses.is_empty() {
        let rest = statuses.split_off(statuses.len().min(MOST_STATUSES));
        let part = std::mem::replace(&mut statuses, rest);
        send(core, wiring, ToLink::Statuses(part)).await;
    }
    Ok(())
}

/// Waits for room; the link always makes some, also while it has no stream.
async fn send(core: &AgentCore, wiring: &Wiring, message: ToLink) {
    if core.is_linked() && wiring.to_link.send(message).await.is_err() {
        tracing::debug!("the link has ended; the next one will be told");
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::sync::Arc;

    use mete_model::{FrameworkId, GrantId, Inventory, Resources, RunId, TaskId, TaskSpec};
    use tokio::sync::Notify;
    use uuid::Uuid;

    use super::*;

    /// A machine on which everything has begun by the next turn.
    struct AtOnce {
        begun: VecDeque<RunKey>,
        /// How many records each durable write held.
        writes: Arc<std::sync::Mutex<Vec<usize>>>,
        written: Arc<Notify>,
    }

    impl Host for AtOnce {
        async fn record(&mut self, records: Vec<Record>) -> io::Result<()> {
            self.writes.lock().expect("no panic").push(records.len());
            self.written.notify_one();
            Ok(())
        }

        fn prepare(&mut self, start: StartTask) {
            self.begun.push_back(start.key);
        }

        fn stop(&mut self, _key: &RunKey, _grace: Span) {}

        fn adopt(&mut self, _key: &RunKey) {}

        fn release(&mut self, _key: &RunKey) {}

        async fn next(&mut self) -> Event {
            match self.ready() {
                Some(event) => event,
                None => std::future::pending().await,
            }
        }

        fn ready(&mut self) -> Option<Event> {
            let at = self.now();
            let key = self.begun.pop_front()?;
            Some(Event::Started { key, at })
        }

        fn now(&self) -> Timestamp {
            Timestamp(1)
        }

        fn boot_time(&self) -> BootTime {
            BootTime(1)
        }

        fn last_word(&self) -> Option<BootTime> {
            None
        }

        fn word(&mut self, _at: BootTime) {}
    }

    fn start(number: u32) -> Event {
        let task = TaskId::new(&format!("t{number}")).expect("a good task id");
        Event::Start(Box::new(StartTask {
            key: RunKey {
                framework: FrameworkId(Uuid::from_u128(7)),
                run: RunId::new(task, 1),
            },
            grant: GrantId(1),
            resources: Resources::default(),
            spec: Arc::new(TaskSpec::default()),
            environment: std::collections::BTreeMap::new(),
            labels: std::collections::BTreeMap::new(),
            role: None,
            framework_name: String::new(),
        }))
    }

    #[tokio::test]
    async fn runs_that_begin_together_cost_one_durable_write_to_start_and_one_to_tell() {
        const RUNS: u32 = 500;
        let (writes, written) = (Arc::default(), Arc::new(Notify::new()));
        let host = AtOnce {
            begun: VecDeque::new(),
            writes: Arc::clone(&writes),
            written: Arc::clone(&written),
        };
        let (to_driver, from_link) = mpsc::channel(1);
        let (to_link, _from_driver) = mpsc::channel(1);
        let (_asker, questions) = mpsc::channel(1);
        let wiring = Wiring {
            from_link,
            to_link,
            state: watch::channel(AgentState::default()).0,
            questions,
        };
        let events = (0..RUNS).map(start).collect();
        to_driver
            .send(FromLink::Events(events))
            .await
            .expect("room for one");
        let core = AgentCore::new(Inventory::default());
        let all_told = async {
            while writes.lock().expect("no panic").iter().sum::<usize>() < 1000 {
                written.notified().await;
            }
        };
        let driving = drive(
            core,
            host,
            Vec::new(),
            wiring,
            Duration::from_secs(60),
            all_told,
        );
        let driven = tokio::time::timeout(Duration::from_secs(20), driving).await;

        driven
            .expect("all are told in time")
            .expect("nothing fails");
        assert_eq!(*writes.lock().expect("no panic"), [500, 500]);
    }
}
