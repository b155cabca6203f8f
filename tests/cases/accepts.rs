//! Accepts that are sent twice, and masters that die just after one.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use mete_proto::framework::v1 as fw;
use mete_proto::types::v1 as types;
use mete_sdk::client::{FrameworkServiceClient, framework_client};
use mete_sdk::{Claim, Code, TaskPhase, TaskSpec};
use tonic::Streaming;
use tonic::transport::{Channel, Endpoint};

use crate::support::framework::{Raw, accept, placed, run, runtime};
use crate::support::{DEADLINE, Dice, Site};

// Case 37.
#[test]
fn the_same_run_on_two_offers_and_the_same_accept_twice_start_one_process() {
    let mut site = Site::new();
    site.start_master();
    site.start_agent("n1", &[]);
    let spec = |site: &Site| {
        let script = "echo \"$METE_TASK $METE_ATTEMPT\" >> runs; sleep 1000";
        TaskSpec::command("t", ["sh", "-c", script]).working_directory(&site.arg("work"))
    };
    let lines = |site: &Site| std::fs::read_to_string(site.path("work/runs")).unwrap_or_default();
    runtime().block_on(async {
        let mut raw = Raw::open(&site, "twice", "dev").await;
        let claim = || Claim::cpu_milli(100).memory_mib(16).count(1);
        raw.session
            .want_all([("a", claim()), ("b", claim())])
            .await
            .expect("declared");
        let (one, other) = (raw.offer("a").await, raw.offer("b").await);
        let same = run("same", 1);
        let first = raw.launch_one(&one, &same, &spec(&site)).await;
        assert!(first.outcome.is_ok(), "{first:?}");
        let second = raw.launch_one(&other, &same, &spec(&site)).await;
        let refused = second.outcome.expect_err("one run is one run");
        assert!(refused.is(Code::AlreadyExists), "{refused:?}");
        raw.update(&same, "running", |update| {
            update.phase == TaskPhase::Running
        })
        .await;
        // The second offer's resources are free again: the claim is offered anew.
        let again = raw.offer("b").await;
        assert_ne!(again.id, other.id);
        raw.session.teardown().await.expect("torn down");
    });
    assert_eq!(lines(&site).lines().count(), 1, "{}", lines(&site));
    runtime().block_on(repeated_accept(&site));
    assert_eq!(lines(&site).lines().count(), 2, "{}", lines(&site));
}

/// Layer 0, since the session would not do it: one call sent twice.
struct Plain {
    client: FrameworkServiceClient<Channel>,
    events: Streaming<fw::Event>,
    header: fw::CallHeader,
}

impl Plain {
    async fn subscribe(site: &Site) -> Self {
        let endpoint = Endpoint::from_shared(format!("http://{}", site.address()));
        let channel = endpoint
            .expect("an address")
            .connect()
            .await
            .expect("a master");
        let mut client = framework_client(channel);
        let request = fw::SubscribeRequest {
            name: "plain".to_owned(),
            roles: vec!["dev".to_owned()],
            ..fw::SubscribeRequest::default()
        };
        let events = client
            .subscribe(request)
            .await
            .expect("a stream")
            .into_inner();
        let mut plain = Self {
            client,
            events,
            header: fw::CallHeader::default(),
        };
        let subscribed = plain
            .event("to be subscribed", |event| {
                let fw::event::Event::Subscribed(subscribed) = event else {
                    return None;
                };
                Some(subscribed)
            })
            .await;
        plain.header.framework_id = subscribed.framework_id;
        plain.header.incarnation = subscribed.incarnation;
        plain
    }

    /// The next event of a kind.
    async fn event<T>(&mut self, what: &str, pick: impl Fn(fw::event::Event) -> Option<T>) -> T {
        let look = async {
            loop {
                let event = self
                    .events
                    .message()
                    .await
                    .expect("no error")
                    .expect("no end");
                if let Some(found) = event.event.and_then(&pick) {
                    return found;
                }
            }
        };
        match tokio::time::timeout(DEADLINE, look).await {
            Ok(found) => found,
            Err(_) => panic!("waited {DEADLINE:?} {what}"),
        }
    }

    /// The header of the next call, all before it answered.
    fn next_call(&mut self) -> fw::CallHeader {
        self.header.answered = self.header.call;
        self.header.call += 1;
        self.header.clone()
    }

    /// Wants one task and waits for its offer.
    async fn offer(&mut self) -> fw::Offer {
        let shape = types::Shape {
            cpu_milli: 100,
            memory_bytes: 16 << 20,
            ..Default::default()
        };
        let claim = types::Claim {
            id: "c".to_owned(),
            role: "dev".to_owned(),
            shape: Some(shape),
            count: 1,
            ..Default::default()
        };
        let demand = fw::UpdateDemandRequest {
            header: Some(self.next_call()),
            version: 1,
            upsert: vec![claim],
            remove: Vec::new(),
        };
        self.client.update_demand(demand).await.expect("declared");
        self.event("for an offer", |event| {
            let fw::event::Event::Offers(offers) = event else {
                return None;
            };
            offers.offers.into_iter().next()
        })
        .await
    }
}

/// The very same accept is sent twice, as after a reply that was lost.
async fn repeated_accept(site: &Site) {
    let mut plain = Plain::subscribe(site).await;
    let offer = plain.offer().await;
    let script = "echo again >> runs; sleep 1000";
    let request = fw::AcceptRequest {
        header: Some(plain.next_call()),
        offers: vec![offer.id.expect("an id")],
        launches: vec![fw::Launch {
            run: Some(types::Run {
                task: "again".to_owned(),
                attempt: 1,
            }),
            claim: "c".to_owned(),
            resources: offer.resources,
            ..Default::default()
        }],
        specs: vec![types::TaskSpec {
            command: ["sh", "-c", script].map(str::to_owned).to_vec(),
            working_directory: site.arg("work"),
            ..Default::default()
        }],
        ..Default::default()
    };
    let first = plain
        .client
        .accept(request.clone())
        .await
        .expect("answered")
        .into_inner();
    let verdict = first.launches[0].verdict.clone().expect("a verdict");
    assert_eq!(verdict.code, "OK", "{verdict:?}");
    let repeated = plain
        .client
        .accept(request)
        .await
        .expect("answered")
        .into_inner();
    assert_eq!(
        repeated.launches, first.launches,
        "the repeated call has the first one's verdict"
    );
    plain
        .event("for it to run", |event| {
            let fw::event::Event::Status(status) = event else {
                return None;
            };
            (status.phase() == types::TaskPhase::Running).then_some(())
        })
        .await;
}

// Case 67.
#[test]
fn a_run_whose_master_dies_just_after_the_accept_runs_once_or_ends_lost() {
    let mut site = Site::new();
    site.start_master();
    site.start_agent("n1", &[]);
    let mut dice = Dice::new();
    runtime().block_on(async {
        let mut raw = Raw::open(&site, "unlucky", "dev").await;
        for round in 1..=8 {
            let claim = format!("c{round}");
            let shape = Claim::cpu_milli(100).memory_mib(16).count(3);
            raw.session.want(&claim, shape).await.expect("declared");
            let offer = raw.offer(&claim).await;
            let script = "echo \"$METE_TASK\" >> runs";
            let spec = TaskSpec::command("t", ["sh", "-c", script]);
            let spec = spec.working_directory(&site.arg("work"));
            let slots = offer.slots.min(3);
            let runs: Vec<_> = (0..slots)
                .map(|slot| run(&format!("r{round}-{slot}"), 1))
                .collect();
            let launches = runs.iter().map(|one| placed(&offer, one, &spec)).collect();
            let accepting = raw.session.begin_accept(accept(&offer, launches)).await;
            let accepting = accepting.expect("on its way");
            // Somewhere between the accept, its reply, and what the agent hears of it.
            tokio::time::sleep(Duration::from_micros(dice.below(30_000))).await;
            site.kill("master");
            site.restart("master");
            site.wait_for_master();
            let verdicts = accepting.await.expect("answered in the end");
            for verdict in verdicts {
                // An offer dies with its leader: then nothing was launched.
                if let Err(reason) = &verdict.outcome {
                    let known = reason.is(Code::OfferRescinded) || reason.is(Code::OfferExpired);
                    assert!(known, "{reason:?}");
                    continue;
                }
                let end = raw
                    .update(&verdict.run, "over", |update| update.is_terminal())
                    .await;
                let fine = matches!(end.phase, TaskPhase::Finished | TaskPhase::Lost);
                assert!(fine, "{end:?}");
                assert!(
                    end.phase == TaskPhase::Finished || end.reason.is_some(),
                    "{end:?}"
                );
            }
            raw.session
                .withdraw([claim.as_str()])
                .await
                .expect("withdrawn");
        }
        let text = std::fs::read_to_string(site.path("work/runs")).unwrap_or_default();
        let mut counts: BTreeMap<&str, u32> = BTreeMap::new();
        for line in text.lines() {
            *counts.entry(line).or_default() += 1;
        }
        assert!(
            counts.values().all(|count| *count == 1),
            "runs that ran twice: {counts:?}"
        );
        let finished: BTreeSet<String> = raw
            .updates
            .iter()
            .filter(|update| update.phase == TaskPhase::Finished)
            .map(|update| update.task.to_string())
            .collect();
        let ran: BTreeSet<String> = counts.keys().map(|task| (*task).to_owned()).collect();
        assert_eq!(ran, finished, "what ran was told, and what was told ran");
    });
}
