//! A whole agent without Linux: the real core, loop and link over a host that only pretends.
//!
//! Used by `mete dev --fake`, the benches and the test broker. Resources and devices are what the
//! configuration says; tasks run for as long as their spec's `fake` part says and end as it says.
//! Nothing is durable: a fake agent that stops has lost everything, like a wiped node, unless its
//! owner keeps it.

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use mete_model::task::FakeTask;
use mete_model::{Inventory, NodeKey, Span, TaskSpec, Timestamp, Usage};
use mete_proto::dial::{Dial, Dialing, SharedDial};
use tokio::sync::{OnceCell, mpsc, watch};
use tokio::time::Instant;
use tonic::transport::Channel;

use crate::contact::BootTime;
use crate::core::{AgentCore, Ending, Event, Record, RunEnd, RunKey, StartTask};
use crate::driver::{AgentState, Host, Wiring, drive};
use crate::link::{Identity, LinkSettings, link};

/// What a fake agent is.
#[derive(Clone, Debug)]
pub struct FakeAgent {
    /// Its identity.
    pub node_key: NodeKey,
    /// Its name.
    pub node_name: String,
    /// What it pretends to have.
    pub inventory: Inventory,
    /// Where masters may be, `host:port` each.
    pub masters: Vec<String>,
    /// How to reach them.
    pub dial: SharedDial,
    /// From start to running.
    pub start_delay: Duration,
    /// Between beacons.
    pub beacon: Duration,
    /// The clock: milliseconds since the epoch. Virtual in tests.
    pub clock: fn() -> Timestamp,
}

impl FakeAgent {
    /// Runs until `shutdown`.
    pub async fn run(
        self,
        state: watch::Sender<AgentState>,
        shutdown: impl Future<Output = ()> + Send,
    ) {
        self.run_playing(FakeTask::default(), state, shutdown).await;
    }

    /// As [`FakeAgent::run`]; plays tasks whose spec does not say how they run as `unsaid` does, so
    /// that frameworks that know nothing of fakes see their tasks end.
    pub async fn run_playing(
        self,
        unsaid: FakeTask,
        state: watch::Sender<AgentState>,
        shutdown: impl Future<Output = ()> + Send,
    ) {
        let (to_link, from_driver) = mpsc::channel(64);
        let (to_driver, from_link) = mpsc::channel(64);
        let (_asker, questions) = mpsc::channel(1);
        let identity = Identity {
            node_key: self.node_key,
            node_name: self.node_name,
            // It keeps nothing, and nobody watches its end: it keeps on asking.
            registered: true,
        };
        let settings = LinkSettings::new(self.masters, self.dial);
        let linking = link(identity, settings, to_driver, from_driver);
        let core = AgentCore::new(self.inventory);
        let mut host = FakeHost::new(self.start_delay, self.clock);
        host.unsaid = unsaid;
        let wiring = Wiring {
            from_link,
            to_link,
            state,
            questions,
        };
        tokio::select! {
            _ended = linking => {}
            result = drive(core, host, Vec::new(), wiring, self.beacon, shutdown) => {
                debug_assert!(result.is_ok(), "a fake host keeps nothing, so nothing can fail");
            }
        }
    }
}

/// The wall clock, for fakes outside tests.
#[must_use]
pub fn wall_clock() -> Timestamp {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    Timestamp(since.map_or(0, |since| {
        u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
    }))
}

/// What happens to a pretended run next.
#[derive(Debug)]
enum Step {
    Start(StartTask),
    End(RunKey, RunEnd),
    /// Ends by itself if no leader was heard for so long.
    Silence(RunKey, Span),
}

/// A host that pretends.
#[derive(Debug)]
struct FakeHost {
    start_delay: Duration,
    clock: fn() -> Timestamp,
    /// How a task is played whose spec does not say.
    unsaid: FakeTask,
    steps: BTreeMap<(Instant, u64), Step>,
    counter: u64,
    /// Runs that are not over, with the moment they began.
    live: BTreeMap<RunKey, Timestamp>,
    /// Told to stop: their own end is void.
    stopped: BTreeSet<RunKey>,
    began: Instant,
    /// When a leader was last heard.
    word: BootTime,
}

impl FakeHost {
    fn new(start_delay: Duration, clock: fn() -> Timestamp) -> Self {
        Self {
            start_delay,
            clock,
            unsaid: FakeTask::default(),
            steps: BTreeMap::new(),
            counter: 0,
            live: BTreeMap::new(),
            stopped: BTreeSet::new(),
            began: Instant::now(),
            word: BootTime(0),
        }
    }

    fn after(&mut self, delay: Duration, step: Step) {
        let at = Instant::now()
            .checked_add(delay)
            .unwrap_or_else(Instant::now);
        self.counter = self.counter.saturating_add(1);
        self.steps.insert((at, self.counter), step);
    }

    /// Plays one step; `None` when it means nothing any more.
    fn play(&mut self, step: Step) -> Option<Event> {
        match step {
            Step::Start(start) => {
                if !self.live.contains_key(&start.key) || self.stopped.contains(&start.key) {
                    return None;
                }
                let at = (self.clock)();
                self.live.insert(start.key.clone(), at);
                if let Some((delay, end)) = own_end(&start.spec, self.unsaid) {
                    self.after(delay, Step::End(start.key.clone(), end));
                }
                Some(Event::Started { key: start.key, at })
            }
            Step::Silence(key, limit) => {
                if !self.live.contains_key(&key) || self.stopped.contains(&key) {
                    return None;
                }
                let left = limit.0.saturating_sub(self.boot_time().since(self.word).0);
                if left > 0 {
                    self.after(Duration::from_millis(left), Step::Silence(key, limit));
                    return None;
                }
                let mut end = RunEnd::bare(Ending::Signal(15));
                end.stop_asked = true;
                end.out_of_contact = true;
                self.play(Step::End(key, end))
            }
            Step::End(key, mut end) => {
                if self.stopped.contains(&key) && !end.stop_asked {
                    return None;
                }
                let began = self.live.remove(&key)?;
                self.stopped.remove(&key);
                let now = (self.clock)();
                end.at = Some(now);
                let wall_ms = now.since(began).0;
                end.usage = Some(Usage {
                    cpu_ms: wall_ms,
                    wall_ms,
                    ..Usage::default()
                });
                Some(Event::Ended { key, end })
            }
        }
    }
}

/// When and how the task ends by itself: its pretended run, or its time limit before that.
fn own_end(spec: &TaskSpec, unsaid: FakeTask) -> Option<(Duration, RunEnd)> {
    let is_said = spec.fake != FakeTask::default();
    let fake = if is_said { spec.fake } else { unsaid };
    let run = fake.run;
    let limit = spec
        .time_limit
        .filter(|limit| run == Span::ZERO || *limit < run);
    if let Some(limit) = limit {
        let mut end = RunEnd::bare(Ending::Signal(15));
        end.time_limit = true;
        return Some((limit.into(), end));
    }
    (run != Span::ZERO).then(|| (run.into(), RunEnd::bare(Ending::Code(fake.exit_code))))
}

impl Host for FakeHost {
    async fn record(&mut self, _records: Vec<Record>) -> io::Result<()> {
        Ok(())
    }

    fn prepare(&mut self, start: StartTask) {
        self.live.insert(start.key.clone(), (self.clock)());
        if let Some(limit) = start.spec.partition.stop_if_silent {
            self.after(Duration::ZERO, Step::Silence(start.key.clone(), limit));
        }
        self.after(self.start_delay, Step::Start(start));
    }

    fn stop(&mut self, key: &RunKey, _grace: Span) {
        if self.live.contains_key(key) && self.stopped.insert(key.clone()) {
            let mut end = RunEnd::bare(Ending::Signal(15));
            end.stop_asked = true;
            self.after(Duration::ZERO, Step::End(key.clone(), end));
        }
    }

    fn adopt(&mut self, _key: &RunKey) {}

    fn release(&mut self, key: &RunKey) {
        self.live.remove(key);
        self.stopped.remove(key);
    }

    async fn next(&mut self) -> Event {
        loop {
            let Some((at, _)) = self.steps.keys().next().copied() else {
                return std::future::pending().await;
            };
            tokio::time::sleep_until(at).await;
            if let Some((_, step)) = self.steps.pop_first()
                && let Some(event) = self.play(step)
            {
                return event;
            }
        }
    }

    fn ready(&mut self) -> Option<Event> {
        let now = Instant::now();
        while self.steps.keys().next().is_some_and(|(at, _)| *at <= now) {
            let (_, step) = self.steps.pop_first()?;
            if let Some(event) = self.play(step) {
                return Some(event);
            }
        }
        None
    }

    fn now(&self) -> Timestamp {
        (self.clock)()
    }

    fn boot_time(&self) -> BootTime {
        let since = self.began.elapsed().as_millis();
        BootTime(u64::try_from(since).unwrap_or(u64::MAX))
    }

    fn last_word(&self) -> Option<BootTime> {
        None
    }

    fn word(&mut self, at: BootTime) {
        self.word = at;
    }
}

/// Streams of fake agents on one connection.
const STREAMS: u32 = 250;

/// A dial that many fake agents share: a few connections to each address, many streams on each.
///
/// Ten thousand agents with a connection each would measure the kernel, not the broker; all on one
/// would wait for each other, and a connection takes only so many streams.
#[derive(Debug)]
pub struct PooledDial {
    inner: SharedDial,
    connections: usize,
    pool: Mutex<BTreeMap<String, Pool>>,
}

/// The connections to one address; each is opened by the first that is to use it.
#[derive(Debug)]
struct Pool {
    channels: Vec<Arc<OnceCell<Channel>>>,
    dials: usize,
}

impl PooledDial {
    /// Shares what `inner` opens among so many agents.
    #[must_use]
    pub fn for_agents(inner: SharedDial, agents: u32) -> Self {
        let connections = agents.div_ceil(STREAMS).max(1);
        Self {
            inner,
            connections: usize::try_from(connections).unwrap_or(usize::MAX),
            pool: Mutex::default(),
        }
    }

    /// The next connection to an address: one after the other.
    fn next(&self, address: &str) -> Arc<OnceCell<Channel>> {
        let mut pools = self.pool.lock().unwrap_or_else(PoisonError::into_inner);
        let pool = pools.entry(address.to_owned()).or_insert_with(|| Pool {
            channels: Vec::new(),
            dials: 0,
        });
        let at = pool.dials.checked_rem(self.connections).unwrap_or(0);
        pool.dials = pool.dials.wrapping_add(1);
        if let Some(channel) = pool.channels.get(at) {
            return Arc::clone(channel);
        }
        let channel = Arc::default();
        pool.channels.push(Arc::clone(&channel));
        channel
    }
}

impl Dial for PooledDial {
    fn dial(&self, address: &str) -> Dialing {
        let (inner, channel) = (Arc::clone(&self.inner), self.next(address));
        let address = address.to_owned();
        Box::pin(async move {
            let opened = channel.get_or_try_init(|| inner.dial(&address)).await;
            opened.cloned()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use tonic::transport::Endpoint;

    /// Opens nothing, and counts how often it was asked to.
    #[derive(Debug, Default)]
    struct Counting(AtomicUsize);

    impl Dial for Counting {
        fn dial(&self, address: &str) -> Dialing {
            self.0.fetch_add(1, Ordering::Relaxed);
            let endpoint = Endpoint::from_shared(format!("http://{address}"));
            Box::pin(async move { Ok(endpoint?.connect_lazy()) })
        }
    }

    #[tokio::test]
    async fn many_agents_share_a_few_connections_to_each_address_also_one_after_the_other() {
        let opened = Arc::new(Counting::default());
        let dial = PooledDial::for_agents(opened.clone(), 600);

        // Sent on by the masters that follow, agents come to the leader one by one.
        for address in ["m1:7443", "m2:7443"] {
            for _agent in 0..600 {
                dial.dial(address).await.expect("nothing is opened");
            }
        }

        assert_eq!(opened.0.load(Ordering::Relaxed), 3 + 3);
    }
}
