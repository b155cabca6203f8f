//! Layer 1 against a broker that does what each test says: finding the leader, resuming, numbering
//! calls, acknowledging, and knowing when it is over.

#![expect(
    clippy::wildcard_enum_match_arm,
    reason = "a test names what it expects"
)]

mod scripted;

use std::time::Duration;

use mete_proto::framework::v1::{self as fw, event::Event as Wire};
use mete_proto::types::v1::{self as pb, TaskPhase as Phase};
use mete_sdk::error::Error;
use mete_sdk::store::Write;
use mete_sdk::{Claim, Code, Connection, Event, Session, TaskPhase};
use scripted::*;
use tonic::Code as Grpc;

#[tokio::test]
async fn a_redirect_is_followed_to_the_leader() {
    let mut follower = Broker::start().await;
    let mut leader = Broker::start().await;
    let (session, mut events) = Session::open(follower.config()).expect("good");

    follower.attempt().await.refuse(not_leader(&leader.address));
    let attempt = leader.attempt().await;
    assert_eq!(attempt.request.name, "hello");
    let _stream = attempt.serve(1).await;

    assert!(matches!(next(&mut events).await, Event::Connected(_)));
    let connection = session.connection().borrow().clone();
    assert_eq!(
        connection,
        Connection::Connected {
            address: leader.address
        }
    );
}

#[tokio::test]
async fn a_master_that_is_not_there_costs_one_try() {
    let mut broker = Broker::start().await;
    let closed = tokio::net::TcpListener::bind("127.0.0.1:0")
        .await
        .expect("a port");
    let nobody = closed.local_addr().expect("bound").to_string();
    drop(closed);
    let mut config = broker.config();
    config.masters.insert(0, nobody);
    let (_session, mut events) = Session::open(config).expect("good");

    let _stream = broker.attempt().await.serve(1).await;
    assert!(matches!(next(&mut events).await, Event::Connected(_)));
}

/// Case 51: nothing but a teardown makes a client forget who it is.
#[tokio::test]
async fn whatever_ends_a_stream_the_same_process_comes_back_as_itself() {
    let mut broker = Broker::start().await;
    let (_session, mut events) = Session::open(broker.config()).expect("good");
    let first = broker.attempt().await;
    assert_eq!(first.request.incarnation, 0, "a new process");
    let mut stream = first.serve(4).await;
    assert!(matches!(next(&mut events).await, Event::Connected(_)));

    let ends = [
        refusal(Grpc::Unavailable, "NO_LEADER"),
        refusal(Grpc::ResourceExhausted, "BUSY"),
        refusal(Grpc::Unknown, "UNKNOWN"),
        tonic::Status::unavailable("transport"),
        tonic::Status::internal("a defect over there"),
    ];
    for end in ends {
        let what = end.to_string();
        stream.end_with(end).await;
        assert!(
            matches!(next(&mut events).await, Event::Disconnected(_)),
            "{what}"
        );
        let attempt = broker.attempt().await;
        assert_eq!(attempt.request.incarnation, 4, "after {what}");
        stream = attempt.serve(4).await;
        assert!(
            matches!(next(&mut events).await, Event::Connected(_)),
            "{what}"
        );
    }
}

/// Case 55: a connection on which nothing comes is found out without help.
#[tokio::test]
async fn silence_is_a_dead_stream() {
    let mut broker = Broker::start().await;
    let mut config = broker.config();
    config.silence = Duration::from_millis(200);
    let (_session, mut events) = Session::open(config).expect("good");
    let silent = broker.attempt().await.serve(1).await;
    assert!(matches!(next(&mut events).await, Event::Connected(_)));

    let again = broker.attempt().await;
    assert_eq!(again.request.incarnation, 1);
    silent.hung_up().await;
}

#[tokio::test]
async fn a_newer_process_stops_this_one_and_it_does_not_fight() {
    let mut broker = Broker::start().await;
    let (session, mut events, stream) = broker.connected().await;
    let moved = fw::Moved {
        code: "STALE_INCARNATION".to_owned(),
        ..fw::Moved::default()
    };
    stream.send(Wire::Moved(moved)).await;

    let mut last = next(&mut events).await;
    if let Event::Disconnected(_) = last {
        last = next(&mut events).await;
    }
    assert!(matches!(last, Event::Closed(Error::Superseded)), "{last:?}");
    assert!(soon("the end", events.next()).await.is_none());
    let refused = session.want("c", Claim::cpus(1)).await.expect_err("over");
    assert!(matches!(refused, Error::Superseded), "{refused:?}");
    broker.no_call();
}

#[tokio::test]
async fn a_fenced_call_stops_the_session_as_well() {
    let mut broker = Broker::start().await;
    let (session, _events, _stream) = broker.connected().await;
    let call = tokio::spawn(async move { session.revive(&[]).await });
    broker
        .call()
        .await
        .fail(refusal(Grpc::FailedPrecondition, "STALE_INCARNATION"));
    let answer = soon("the answer", call).await.expect("no panic");
    assert!(matches!(answer, Err(Error::Superseded)), "{answer:?}");
}

/// Case 45: a lost reply is asked for again under the same number.
#[tokio::test]
async fn a_call_keeps_its_number_until_it_is_answered() {
    let mut broker = Broker::start().await;
    let (session, _events, _stream) = broker.connected().await;
    let caller = session.clone();
    let want = tokio::spawn(async move { caller.want("c", Claim::cpus(1)).await });

    let lost = broker.call().await;
    assert_eq!((lost.name(), lost.header().call), ("UpdateDemand", 1));
    lost.fail(tonic::Status::unavailable("the reply is lost"));
    let again = broker.call().await;
    assert_eq!((again.header().call, again.header().answered), (1, 0));
    let Call::UpdateDemand(request, reply) = again else {
        panic!("the same call")
    };
    assert_eq!((request.version, request.upsert.len()), (1, 1));
    let _ = reply.send(Ok(fw::UpdateDemandResponse {
        revision: 5,
        version: 1,
    }));
    soon("the answer", want)
        .await
        .expect("no panic")
        .expect("declared");
    assert_eq!(session.wanted(), 1);

    let caller = session.clone();
    let next_call = tokio::spawn(async move { caller.suppress(&[]).await });
    let header = broker.call().await.header();
    assert_eq!((header.call, header.answered), (2, 1));
    next_call.abort();
}

#[tokio::test]
async fn a_call_that_was_given_up_leaves_no_gap() {
    let mut broker = Broker::start().await;
    let (session, _events, _stream) = broker.connected().await;
    let caller = session.clone();
    let given_up = tokio::spawn(async move { caller.suppress(&[]).await });
    let first = broker.call().await;
    given_up.abort();
    assert!(given_up.await.expect_err("aborted").is_cancelled());
    first.fail(tonic::Status::unavailable("lost"));

    let again = broker.call().await;
    assert_eq!((again.name(), again.header().call), ("Suppress", 1));
    again.pass();
    let caller = session.clone();
    let second = tokio::spawn(async move { caller.revive(&[]).await });
    let call = broker.call().await;
    assert_eq!(call.header().call, 2);
    call.pass();
    soon("the answer", second)
        .await
        .expect("no panic")
        .expect("revived");
}

#[tokio::test]
async fn calls_in_flight_move_to_the_new_leader_with_the_stream() {
    let mut old = Broker::start().await;
    let mut new = Broker::start().await;
    let (session, mut events, stream) = old.connected().await;
    let caller = session.clone();
    let want = tokio::spawn(async move { caller.want("c", Claim::cpus(1)).await });
    let never_answered = old.call().await;

    let leader_address = new.address.clone();
    let code = "NOT_LEADER".to_owned();
    stream
        .send(Wire::Moved(fw::Moved {
            code,
            leader_address,
            ..fw::Moved::default()
        }))
        .await;
    let _stream = new.attempt().await.serve(1).await;
    let call = new.call().await;
    assert_eq!(call.header().call, never_answered.header().call);
    call.pass();
    soon("the answer", want)
        .await
        .expect("no panic")
        .expect("declared");
    assert!(matches!(next(&mut events).await, Event::Disconnected(_)));
}

#[tokio::test]
async fn a_call_that_is_told_to_go_elsewhere_takes_the_stream_along() {
    let mut old = Broker::start().await;
    let mut new = Broker::start().await;
    let (session, _events, stream) = old.connected().await;
    let want = tokio::spawn(async move { session.want("c", Claim::cpus(1)).await });
    old.call().await.fail(not_leader(&new.address));

    let _stream = new.attempt().await.serve(1).await;
    new.call().await.pass();
    soon("the answer", want)
        .await
        .expect("no panic")
        .expect("declared");
    stream.hung_up().await;
}

#[tokio::test]
async fn declaring_what_stands_sends_nothing() {
    let mut broker = Broker::start().await;
    let snapshot = fw::Snapshot {
        claims: vec![claim("greetings", 3, 3)],
        demand_version: 9,
        ..fw::Snapshot::default()
    };
    let (session, _events, _stream) = broker.connected_with(snapshot).await;
    session
        .want("greetings", Claim::cpus(1).count(3))
        .await
        .expect("stands already");
    assert_eq!(session.wanted(), 0);
    broker.no_call();

    let caller = session.clone();
    let more = tokio::spawn(async move { caller.want_more("greetings", 2).await });
    let Call::UpdateDemand(request, reply) = broker.call().await else {
        panic!("demand")
    };
    assert_eq!((request.version, request.upsert[0].count), (10, 5));
    let _ = reply.send(Ok(fw::UpdateDemandResponse {
        revision: 5,
        version: 10,
    }));
    soon("the answer", more)
        .await
        .expect("no panic")
        .expect("raised");
    assert_eq!(session.wanted(), 2);
}

#[tokio::test]
async fn changes_that_wait_go_out_together_and_each_hears_of_its_own_fault() {
    let mut broker = Broker::start().await;
    let (session, _events, _stream) = broker.connected().await;
    let want = |id: &'static str| {
        let session = session.clone();
        tokio::spawn(async move { session.want(id, Claim::cpus(1)).await })
    };
    let first = want("first");
    let sent = broker.call().await;
    let (good, bad) = (want("good"), want("bad"));
    // One thread: after this both have asked, and wait behind the first one.
    tokio::task::yield_now().await;
    sent.pass();

    let mut sizes = Vec::new();
    for _ in 0..3 {
        let Call::UpdateDemand(request, reply) = broker.call().await else {
            panic!("demand")
        };
        sizes.push(request.upsert.len());
        let answer = if request.upsert.iter().any(|claim| claim.id == "bad") {
            Err(refusal(Grpc::InvalidArgument, "INVALID"))
        } else {
            Ok(fw::UpdateDemandResponse::default())
        };
        let _ = reply.send(answer);
    }
    assert_eq!(sizes, [2, 1, 1], "together, then each alone");
    soon("first", first)
        .await
        .expect("no panic")
        .expect("declared");
    soon("good", good)
        .await
        .expect("no panic")
        .expect("declared");
    let refused = soon("bad", bad)
        .await
        .expect("no panic")
        .expect_err("refused");
    assert!(matches!(refused, Error::Invalid(_)), "{refused:?}");
}

#[tokio::test]
async fn duplicates_are_filtered_and_handled_ones_acknowledged_again() {
    let mut broker = Broker::start().await;
    let (session, mut events, stream) = broker.connected().await;
    stream.status("t#1", 1, Phase::Running).await;
    stream.status("t#1", 1, Phase::Running).await;
    stream.status("t#1", 2, Phase::Finished).await;
    let mut heard = Vec::new();
    for _ in 0..2 {
        let Event::Update(update) = next(&mut events).await else {
            panic!("an update")
        };
        heard.push((update.sequence, update.phase));
    }
    assert_eq!(heard, [(1, TaskPhase::Running), (2, TaskPhase::Finished)]);

    session.acknowledge(&"t#1".parse().expect("a run"), 2);
    let Call::Acknowledge(request, reply) = broker.call().await else {
        panic!("acknowledge")
    };
    assert_eq!(request.header.expect("a header").call, 0, "needs no order");
    assert_eq!(request.items[0].sequence, 2);
    let _ = reply.send(Ok(fw::AcknowledgeResponse::default()));

    // The broker did not hear it after all.
    stream.status("t#1", 2, Phase::Finished).await;
    let Call::Acknowledge(request, _) = broker.call().await else {
        panic!("again")
    };
    assert_eq!(request.items[0].sequence, 2);
    assert_eq!(session.live_tasks(), 0);
}

#[tokio::test]
async fn many_acknowledgements_travel_in_few_calls() {
    let mut broker = Broker::start().await;
    let (session, _events, _stream) = broker.connected().await;
    let run = |number: u32| {
        format!("t{number}#1")
            .parse::<mete_sdk::RunId>()
            .expect("a run")
    };
    session.acknowledge(&run(0), 1);
    let first = broker.call().await;
    session.acknowledge_all((1..2_000).map(|number| (run(number), 1)));
    for sequence in 1..=5 {
        session.acknowledge(&run(7), sequence);
    }
    first.pass();
    let Call::Acknowledge(request, _) = broker.call().await else {
        panic!("acknowledge")
    };
    assert_eq!(request.items.len(), 1_999);
    let seventh = request
        .items
        .iter()
        .find(|item| item.run.as_ref() == Some(&scripted::run("t7#1")));
    assert_eq!(seventh.expect("there").sequence, 5, "cumulative");
}

/// Case 33: a backlog of statuses does not make offers stale, and stale ones are not handed over.
#[tokio::test]
async fn offers_overtake_statuses_and_lapsed_ones_are_dropped() {
    let mut broker = Broker::start().await;
    let (_session, mut events, stream) = broker.connected().await;
    for number in 0..5_000 {
        stream
            .status(&format!("t{number}#1"), 1, Phase::Running)
            .await;
    }
    let offers = vec![offer(1, 1, "c", 1, 0), offer(2, 1, "c", 1, 10_000)];
    stream.send(Wire::Offers(fw::Offers { offers })).await;

    // At the latest when all is here, the offer is the very next thing.
    let mut statuses = 0;
    let standing = loop {
        match next(&mut events).await {
            Event::Update(_) => statuses += 1,
            Event::Offers(offers) => break offers,
            other => panic!("unexpected {other:?}"),
        }
    };
    let numbers: Vec<u64> = standing.iter().map(|offer| offer.id.number).collect();
    assert_eq!(numbers, [2], "the lapsed one is dropped");
    while statuses < 5_000 {
        assert!(matches!(next(&mut events).await, Event::Update(_)));
        statuses += 1;
    }
}

#[tokio::test]
async fn a_snapshot_brings_what_was_missed_and_says_what_is_gone() {
    let mut broker = Broker::start().await;
    let live = |id: &str| fw::RunStatus {
        run: Some(scripted::run(id)),
        phase: Phase::Running.into(),
        last_sequence: 1,
        acknowledged_sequence: 1,
        ..fw::RunStatus::default()
    };
    let snapshot = fw::Snapshot {
        runs: vec![live("ended#1"), live("gone#1"), live("stays#1")],
        ..fw::Snapshot::default()
    };
    let (session, mut events, stream) = broker.connected_with(snapshot).await;
    assert_eq!(session.live_tasks(), 3);
    drop(stream);
    assert!(matches!(next(&mut events).await, Event::Disconnected(_)));

    let ended = fw::RunStatus {
        phase: Phase::Finished.into(),
        last_sequence: 2,
        unacknowledged: vec![status("ended#1", 2, Phase::Finished)],
        ..live("ended#1")
    };
    let snapshot = fw::Snapshot {
        runs: vec![ended, live("stays#1")],
        ..fw::Snapshot::default()
    };
    let _stream = broker.attempt().await.serve_with(1, snapshot, 60).await;
    let Event::Connected(connected) = next(&mut events).await else {
        panic!("connected")
    };
    assert_eq!(connected.snapshot.revision, 60);

    let mut told = Vec::new();
    for _ in 0..2 {
        let Event::Update(update) = next(&mut events).await else {
            panic!("an update")
        };
        told.push((update.task.to_string(), update.phase, update.reason));
    }
    told.sort();
    assert_eq!(
        told,
        [
            ("ended".to_owned(), TaskPhase::Finished, None),
            ("gone".to_owned(), TaskPhase::Lost, Some(Code::NotFound)),
        ]
    );
    assert_eq!(session.live_tasks(), 1);
}

#[tokio::test]
async fn what_a_newer_broker_says_is_passed_over_and_costs_nothing() {
    let mut broker = Broker::start().await;
    let (_session, mut events, stream) = broker.connected().await;
    let mut unknown_phase = status("t#1", 1, Phase::Running);
    unknown_phase.phase = 99;
    stream.send(Wire::Status(unknown_phase)).await;
    let mut unknown_reason = status("t#1", 2, Phase::Failed);
    unknown_reason.reason = "A_REASON_OF_TOMORROW".to_owned();
    unknown_reason.source = 77;
    stream.send(Wire::Status(unknown_reason)).await;

    let Event::Update(update) = next(&mut events).await else {
        panic!("an update")
    };
    assert_eq!(
        (update.sequence, update.phase, update.reason),
        (2, TaskPhase::Failed, None)
    );
}

#[tokio::test]
async fn a_teardown_whose_reply_is_lost_is_a_teardown() {
    let mut broker = Broker::start().await;
    let (session, mut events, _stream) = broker.connected().await;
    let caller = session.clone();
    let teardown = tokio::spawn(async move { caller.teardown().await });
    broker.call().await.fail(tonic::Status::unavailable("lost"));
    broker
        .call()
        .await
        .fail(refusal(Grpc::FailedPrecondition, "TORN_DOWN"));
    soon("the answer", teardown)
        .await
        .expect("no panic")
        .expect("torn down");
    let last = next(&mut events).await;
    assert!(matches!(last, Event::Closed(Error::TornDown)), "{last:?}");
}

#[tokio::test]
async fn the_store_reads_writes_and_names_conflicts() {
    let mut broker = Broker::start().await;
    let (session, _events, _stream) = broker.connected().await;
    let store = session.store();
    let writing = tokio::spawn(async move {
        store
            .write(Write::new().put_at("job/1", "spec", 0).delete("job/0"))
            .await
    });
    let Call::StoreWrite(request, reply) = broker.call().await else {
        panic!("a write")
    };
    assert_eq!(request.puts[0].expected, Some(0));
    assert_eq!(request.deletes[0].expected, None);
    let _ = reply.send(Ok(fw::StoreWriteResponse {
        revision: 8,
        verdict: Some(pb::Verdict {
            code: "CONFLICT".to_owned(),
            ..pb::Verdict::default()
        }),
        conflicts: vec![fw::StoreItem {
            key: "job/1".into(),
            revision: 7,
            ..fw::StoreItem::default()
        }],
    }));
    let conflict = soon("the answer", writing)
        .await
        .expect("no panic")
        .expect_err("conflict");
    let Error::Conflict { keys, .. } = conflict else {
        panic!("{conflict:?}")
    };
    assert_eq!(
        (keys[0].key.as_slice(), keys[0].revision),
        (b"job/1".as_slice(), 7)
    );

    let store = session.store();
    let listing = tokio::spawn(async move { store.list("job/").await });
    for (token, next_token) in [("", "2"), ("2", "")] {
        let Call::StoreList(request, reply) = broker.call().await else {
            panic!("a list")
        };
        assert_eq!(request.page_token, token);
        let _ = reply.send(Ok(fw::StoreListResponse {
            items: vec![fw::StoreItem {
                found: true,
                ..fw::StoreItem::default()
            }],
            next_page_token: next_token.to_owned(),
            revision: 8,
        }));
    }
    assert_eq!(
        soon("the list", listing)
            .await
            .expect("no panic")
            .expect("listed")
            .len(),
        2
    );
}
