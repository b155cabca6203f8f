//! Layer 2 against a broker that does what each test says: handlers, offers, failures, the end.

#![expect(
    clippy::wildcard_enum_match_arm,
    reason = "a test names what it expects"
)]

mod scripted;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use mete_proto::framework::v1::{self as fw, event::Event as Wire};
use mete_proto::types::v1::{self as pb, TaskPhase as Phase};
use mete_sdk::{
    Connected, Error, Framework, LaunchVerdict, Offers, Refuse, Result, Runner, Session, TaskSpec,
    TaskUpdate,
};
use scripted::*;
use tokio::sync::{mpsc, oneshot};

/// What a handler was called with.
#[derive(Debug, PartialEq, Eq)]
enum Heard {
    Connected,
    Offers(usize),
    Update(String, u64),
    Refused(String),
    Tick,
}

/// A framework that tells the test everything and fails when it is told to.
struct Probe {
    heard: mpsc::Sender<Heard>,
    /// Updates of this task fail so many times.
    fail: (String, Arc<AtomicU32>),
    panics: Arc<AtomicU32>,
    launch: bool,
}

impl Probe {
    fn new() -> (Self, mpsc::Receiver<Heard>) {
        let (heard, hears) = mpsc::channel(1_024);
        let probe = Self {
            heard,
            fail: (String::new(), Arc::default()),
            panics: Arc::default(),
            launch: false,
        };
        (probe, hears)
    }

    async fn tell(&self, heard: Heard) {
        self.heard.send(heard).await.expect("the test listens");
    }
}

fn take_one(counter: &AtomicU32) -> bool {
    counter
        .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| {
            left.checked_sub(1)
        })
        .is_ok()
}

impl Framework for Probe {
    async fn connected(&mut self, _: &Session, _: Connected) -> Result<()> {
        self.tell(Heard::Connected).await;
        Ok(())
    }

    async fn offers(&mut self, _: &Session, offers: &mut Offers) -> Result<()> {
        self.tell(Heard::Offers(offers.iter().count())).await;
        while self.launch
            && let Some(slot) = offers.take("c")
        {
            offers.launch(slot, TaskSpec::command("t", ["true"]));
        }
        offers.decline("not today", Refuse::UntilDemandChanges);
        Ok(())
    }

    async fn update(&mut self, _: &Session, update: TaskUpdate) -> Result<()> {
        self.tell(Heard::Update(update.task.to_string(), update.sequence))
            .await;
        if take_one(&self.panics) {
            panic!("told to");
        }
        if update.task.as_str() == self.fail.0 && take_one(&self.fail.1) {
            return Err(Error::handler("told to"));
        }
        Ok(())
    }

    async fn refused(&mut self, _: &Session, launches: Vec<LaunchVerdict>) -> Result<()> {
        for verdict in launches {
            let reason = verdict.outcome.expect_err("refused");
            self.tell(Heard::Refused(reason.code)).await;
        }
        Ok(())
    }

    async fn tick(&mut self, _: &Session) -> Result<()> {
        self.tell(Heard::Tick).await;
        Ok(())
    }
}

struct Running {
    session: Session,
    hears: mpsc::Receiver<Heard>,
    stop: oneshot::Sender<()>,
    end: tokio::task::JoinHandle<Result<()>>,
    stream: Stream,
}

impl Running {
    async fn start(
        broker: &mut Broker,
        snapshot: fw::Snapshot,
        make: impl FnOnce(&mut Probe),
    ) -> Self {
        let (mut probe, hears) = Probe::new();
        make(&mut probe);
        let (stop, stopped) = oneshot::channel::<()>();
        let runner = Runner::new(vec![broker.address.clone()])
            .name("hello")
            .role("dev");
        let stopping = async move {
            if stopped.await.is_err() {
                std::future::pending::<()>().await;
            }
        };
        let (session, end) = runner.spawn(probe, stopping).expect("good");
        let stream = broker.attempt().await.serve_with(1, snapshot, 1).await;
        let mut running = Self {
            session,
            hears,
            stop,
            end,
            stream,
        };
        assert_eq!(running.hear().await, Heard::Connected);
        running
    }

    async fn hear(&mut self) -> Heard {
        soon("the framework", self.hears.recv())
            .await
            .expect("it runs")
    }
}

fn with_claim() -> fw::Snapshot {
    fw::Snapshot {
        claims: vec![claim("c", 9, 0)],
        ..fw::Snapshot::default()
    }
}

fn update(task: &str, sequence: u64) -> Heard {
    Heard::Update(task.to_owned(), sequence)
}

#[tokio::test]
async fn a_status_is_acknowledged_after_its_handler_returned_ok_and_not_before() {
    let mut broker = Broker::start().await;
    let fails = Arc::new(AtomicU32::new(2));
    let told = Arc::clone(&fails);
    let mut running = Running::start(&mut broker, fw::Snapshot::default(), |probe| {
        probe.fail = ("bad".to_owned(), told);
    })
    .await;
    running.stream.status("bad#1", 1, Phase::Running).await;
    running.stream.status("bad#1", 2, Phase::Finished).await;
    running.stream.status("good#1", 1, Phase::Running).await;

    let mut heard = Vec::new();
    let mut acknowledged = Vec::new();
    while acknowledged.len() < 2 {
        let Call::Acknowledge(request, reply) = broker.call().await else {
            panic!("acknowledge")
        };
        for item in &request.items {
            let task = item.run.as_ref().expect("a run").task.clone();
            if task == "bad" {
                assert_eq!(
                    fails.load(Ordering::SeqCst),
                    0,
                    "acknowledged before it was handled"
                );
            }
            if task == "good" || item.sequence == 2 {
                acknowledged.push((task, item.sequence));
            }
        }
        let _ = reply.send(Ok(fw::AcknowledgeResponse::default()));
    }
    while let Ok(event) = running.hears.try_recv() {
        heard.push(event);
    }
    // The good run did not wait for the bad one, and the bad one kept its order.
    assert_eq!(acknowledged[0], ("good".to_owned(), 1));
    let bad: Vec<&Heard> = heard
        .iter()
        .filter(|event| matches!(event, Heard::Update(task, _) if task == "bad"))
        .collect();
    assert_eq!(
        bad,
        [
            &update("bad", 1),
            &update("bad", 1),
            &update("bad", 1),
            &update("bad", 2)
        ]
    );
}

#[tokio::test]
async fn a_panic_is_survived_and_the_framework_hears_anew_where_things_stand() {
    let mut broker = Broker::start().await;
    let mut running = Running::start(&mut broker, fw::Snapshot::default(), |probe| {
        probe.panics = Arc::new(AtomicU32::new(1));
    })
    .await;
    running.stream.status("t#1", 1, Phase::Running).await;
    assert_eq!(running.hear().await, update("t", 1));
    assert_eq!(running.hear().await, Heard::Connected);
    assert_eq!(running.hear().await, update("t", 1));
    // The only call is the acknowledgement: no kill, no teardown.
    assert_eq!(broker.call().await.name(), "Acknowledge");
    assert!(!running.end.is_finished());
}

#[tokio::test]
async fn offers_of_one_agent_go_in_one_accept_and_those_of_two_in_two_at_once() {
    let mut broker = Broker::start().await;
    let mut running = Running::start(&mut broker, with_claim(), |probe| probe.launch = true).await;
    let offers = vec![
        offer(1, 1, "c", 2, 10_000),
        offer(2, 1, "c", 1, 10_000),
        offer(3, 2, "c", 1, 10_000),
        offer(4, 3, "other", 1, 10_000),
    ];
    running
        .stream
        .send(Wire::Offers(fw::Offers { offers }))
        .await;
    assert_eq!(running.hear().await, Heard::Offers(4));

    let mut accepts = Vec::new();
    let mut declined = Vec::new();
    let mut numbers = Vec::new();
    for _ in 0..3 {
        let call = broker.call().await;
        numbers.push(call.header().call);
        match call {
            Call::Accept(request, reply) => accepts.push((request, reply)),
            Call::Decline(request, reply) => {
                assert_eq!(request.reason, "not today");
                declined.extend(request.offers.iter().map(|offer| offer.number));
                let _ = reply.send(Ok(fw::DeclineResponse::default()));
            }
            other => panic!("unexpected {}", other.name()),
        }
    }
    numbers.sort_unstable();
    assert_eq!(numbers, [1, 2, 3], "none waited for another one's answer");
    assert_eq!(declined, [4]);
    accepts.sort_by_key(|(request, _)| request.launches.len());
    let shape: Vec<(usize, usize, usize)> = accepts
        .iter()
        .map(|(request, _)| {
            (
                request.offers.len(),
                request.launches.len(),
                request.specs.len(),
            )
        })
        .collect();
    assert_eq!(shape, [(1, 1, 1), (2, 3, 1)]);
    assert_eq!(
        (running.session.live_tasks(), running.session.wanted()),
        (4, 5)
    );

    let mut ids: Vec<String> = accepts
        .iter()
        .flat_map(|(request, _)| &request.launches)
        .map(|launch| launch.run.as_ref().expect("a run").task.clone())
        .collect();
    ids.sort();
    assert_eq!(ids, ["t-1-1", "t-1-2", "t-1-3", "t-1-4"]);
    for (request, reply) in accepts {
        let mut launches = ok_verdicts(request.launches.len());
        if request.launches.len() == 1 {
            launches[0].verdict = Some(pb::Verdict {
                code: "NAMES_TAKEN".to_owned(),
                ..pb::Verdict::default()
            });
        }
        let _ = reply.send(Ok(fw::AcceptResponse {
            revision: 9,
            launches,
        }));
    }
    assert_eq!(
        running.hear().await,
        Heard::Refused("NAMES_TAKEN".to_owned())
    );
    assert_eq!(
        (running.session.live_tasks(), running.session.wanted()),
        (3, 6)
    );
}

/// Case 37: the reply to an accept is lost; the same call comes again and launches nothing twice.
#[tokio::test]
async fn an_accept_whose_reply_is_lost_comes_again_unchanged() {
    let mut broker = Broker::start().await;
    let mut running = Running::start(&mut broker, with_claim(), |probe| probe.launch = true).await;
    let offers = vec![offer(1, 1, "c", 1, 10_000)];
    running
        .stream
        .send(Wire::Offers(fw::Offers { offers }))
        .await;
    assert_eq!(running.hear().await, Heard::Offers(1));
    let Call::Accept(first, reply) = broker.call().await else {
        panic!("an accept")
    };
    let _ = reply.send(Err(tonic::Status::unavailable("lost")));
    let Call::Accept(again, reply) = broker.call().await else {
        panic!("the same accept")
    };
    assert_eq!(
        first.header.expect("a header").call,
        again.header.expect("a header").call
    );
    assert_eq!(first.launches, again.launches);
    let launches = ok_verdicts(1);
    let _ = reply.send(Ok(fw::AcceptResponse {
        revision: 9,
        launches,
    }));
    running.stream.status("t-1-1#1", 1, Phase::Running).await;
    assert_eq!(running.hear().await, update("t-1-1", 1));
    assert_eq!(running.session.live_tasks(), 1);
}

#[tokio::test]
async fn a_polite_stop_acknowledges_what_was_handled_and_leaves_tasks_alone() {
    let mut broker = Broker::start().await;
    let mut running = Running::start(&mut broker, fw::Snapshot::default(), |_| {}).await;
    running.stream.status("t#1", 1, Phase::Running).await;
    assert_eq!(running.hear().await, update("t", 1));
    running.stop.send(()).expect("it runs");
    let call = broker.call().await;
    assert_eq!(call.name(), "Acknowledge");
    call.pass();
    soon("the end", running.end)
        .await
        .expect("no panic")
        .expect("a polite end");
    running.stream.hung_up().await;
    broker.no_call();
}

#[tokio::test]
async fn a_stop_is_heard_although_the_framework_cannot_be_told_where_things_stand() {
    struct Deaf;
    impl Framework for Deaf {
        async fn connected(&mut self, _: &Session, _: Connected) -> Result<()> {
            Err(Error::handler("never"))
        }
        async fn offers(&mut self, _: &Session, _: &mut Offers) -> Result<()> {
            Ok(())
        }
        async fn update(&mut self, _: &Session, _: TaskUpdate) -> Result<()> {
            Ok(())
        }
    }
    let mut broker = Broker::start().await;
    let (stop, stopped) = oneshot::channel::<()>();
    let runner = Runner::new(vec![broker.address.clone()])
        .name("deaf")
        .role("dev");
    let stopping = async move { drop(stopped.await) };
    let (session, end) = runner.spawn(Deaf, stopping).expect("good");
    let _stream = broker.attempt().await.serve(1).await;
    soon("the session", session.ready()).await.expect("stands");
    stop.send(()).expect("it runs");
    soon("the end", end)
        .await
        .expect("no panic")
        .expect("a polite end");
}

/// A framework that knows nothing of its tasks yet would start them a second time.
#[tokio::test]
async fn nothing_is_asked_of_a_framework_before_it_has_heard_where_things_stand() {
    let mut broker = Broker::start().await;
    let (probe, mut hears) = Probe::new();
    let runner = Runner::new(vec![broker.address.clone()])
        .name("hello")
        .role("dev")
        .tick(std::time::Duration::from_millis(1));
    let (session, _end) = runner.spawn(probe, std::future::pending()).expect("good");
    session.wake();
    // The subscription waits: so long there is nothing to be told.
    let attempt = broker.attempt().await;
    assert!(hears.try_recv().is_err());
    let stream = attempt.open();
    // Everything at once, the offer last: it still comes after where things stand.
    stream.send(Wire::Subscribed(subscribed(2))).await;
    stream.send(Wire::Snapshot(with_claim())).await;
    stream
        .send(Wire::SnapshotEnd(fw::SnapshotEnd { revision: 1 }))
        .await;
    let offers = vec![offer(1, 1, "c", 1, 10_000)];
    stream.send(Wire::Offers(fw::Offers { offers })).await;
    let first = soon("the framework", hears.recv()).await;
    assert_eq!(first, Some(Heard::Connected));
    let mut heard = Vec::new();
    while !(heard.contains(&Heard::Tick) && heard.contains(&Heard::Offers(1))) {
        heard.extend(soon("offers and ticks", hears.recv()).await);
    }
}

#[tokio::test]
async fn waking_calls_tick() {
    let mut broker = Broker::start().await;
    let mut running = Running::start(&mut broker, fw::Snapshot::default(), |_| {}).await;
    running.session.wake();
    assert_eq!(running.hear().await, Heard::Tick);
}

#[tokio::test]
async fn somebody_elses_teardown_is_an_error_of_its_own() {
    let mut broker = Broker::start().await;
    let running = Running::start(&mut broker, fw::Snapshot::default(), |_| {}).await;
    let moved = fw::Moved {
        code: "TORN_DOWN".to_owned(),
        ..fw::Moved::default()
    };
    running.stream.send(Wire::Moved(moved)).await;
    let end = soon("the end", running.end).await.expect("no panic");
    assert!(matches!(end, Err(Error::TornDown)), "{end:?}");
}
