//! Layer 1: what is kept and repeated until the broker has it, and what a reconnect asks for.

#![expect(
    clippy::wildcard_enum_match_arm,
    reason = "a test names what it expects"
)]

mod scripted;

use std::time::Duration;

use mete_proto::framework::v1::{self as fw, event::Event as Wire};
use mete_proto::types::v1::TaskPhase as Phase;
use mete_sdk::error::Error;
use mete_sdk::store::Write;
use mete_sdk::{Claim, Code, Event, Session, TaskPhase};
use scripted::*;
use tonic::Code as Grpc;

/// Until the broker has taken it, what was handled is acknowledged again, whatever it says
/// meanwhile.
#[tokio::test]
async fn acknowledgements_that_were_refused_are_kept_and_come_again() {
    let mut broker = Broker::start().await;
    let (session, mut events, stream) = broker.connected().await;
    stream.status("t#1", 1, Phase::Running).await;
    assert!(matches!(next(&mut events).await, Event::Update(_)));
    session.acknowledge(&"t#1".parse().expect("a run"), 1);
    let refusals = [
        refusal(Grpc::ResourceExhausted, "DISK_FULL"),
        refusal(Grpc::ResourceExhausted, "BUSY"),
        refusal(Grpc::Internal, "INTERNAL"),
        refusal(Grpc::FailedPrecondition, "OF_TOMORROW"),
        tonic::Status::resource_exhausted("a proxy's word"),
        tonic::Status::unavailable("transport"),
    ];
    for status in refusals {
        let what = status.to_string();
        let call = broker.call().await;
        assert_eq!(call.name(), "Acknowledge", "{what}");
        call.fail(status);
    }
    // Over a reconnect, together with what was handled meanwhile.
    let held = broker.call().await;
    stream.status("u#1", 1, Phase::Running).await;
    assert!(matches!(next(&mut events).await, Event::Update(_)));
    session.acknowledge(&"u#1".parse().expect("a run"), 1);
    held.fail(refusal(Grpc::Internal, "INTERNAL"));
    drop(stream);
    let _stream = broker.attempt().await.serve(1).await;
    let mut taken = Vec::new();
    while taken.len() < 2 {
        let Call::Acknowledge(request, reply) = broker.call().await else {
            panic!("acknowledge")
        };
        let runs = request.items.iter().filter_map(|item| item.run.clone());
        taken.extend(runs.map(|run| run.task));
        let _ = reply.send(Ok(fw::AcknowledgeResponse::default()));
    }
    taken.sort();
    assert_eq!(taken, ["t", "u"]);
    soon(
        "the end",
        session.acknowledged(std::time::Duration::from_secs(9)),
    )
    .await;
}

#[tokio::test]
async fn one_acknowledgement_that_is_wrong_holds_up_no_other() {
    let mut broker = Broker::start().await;
    let (session, _events, _stream) = broker.connected().await;
    let run = |name: &str| format!("{name}#1").parse().expect("a run");
    session.acknowledge_all(["a", "b", "wrong", "z"].map(|name| (run(name), 1)));
    let mut taken = Vec::new();
    while taken.len() < 3 {
        let Call::Acknowledge(request, reply) = broker.call().await else {
            panic!("acknowledge")
        };
        let runs = request.items.iter().filter_map(|item| item.run.clone());
        let tasks: Vec<String> = runs.map(|run| run.task).collect();
        let answer = if tasks.iter().any(|task| task == "wrong") {
            Err(refusal(Grpc::InvalidArgument, "INVALID"))
        } else {
            taken.extend(tasks);
            Ok(fw::AcknowledgeResponse::default())
        };
        let _ = reply.send(answer);
    }
    taken.sort();
    assert_eq!(taken, ["a", "b", "z"]);
}

/// A master may have passed the number of a call that it refuses for now: what comes after would be
/// done first.
#[tokio::test]
async fn a_call_that_is_refused_for_now_is_repeated_at_its_place() {
    let mut broker = Broker::start().await;
    let (session, _events, _stream) = broker.connected().await;
    let caller = session.clone();
    let first = tokio::spawn(async move { caller.suppress(&[]).await });
    let refused = broker.call().await;
    assert_eq!((refused.name(), refused.header().call), ("Suppress", 1));
    refused.fail(refusal(Grpc::ResourceExhausted, "BUSY"));
    let again = broker.call().await;
    assert_eq!((again.name(), again.header().call), ("Suppress", 1));
    let caller = session.clone();
    let second = tokio::spawn(async move { caller.revive(&[]).await });
    tokio::task::yield_now().await;
    again.fail(refusal(Grpc::ResourceExhausted, "BUSY"));

    // The second one has its number and waits: only the first is heard until it is answered.
    let again = broker.call().await;
    assert_eq!((again.name(), again.header().call), ("Suppress", 1));
    again.pass();
    let after = broker.call().await;
    assert_eq!((after.name(), after.header().call), ("Revive", 2));
    assert_eq!(after.header().answered, 1);
    after.pass();
    for call in [first, second] {
        soon("the answer", call)
            .await
            .expect("no panic")
            .expect("done");
    }
}

#[tokio::test]
async fn a_write_gives_up_in_time_when_nothing_was_written_and_leaves_no_gap() {
    let mut broker = Broker::start().await;
    let (session, _events, _stream) = broker.connected().await;
    let writing = |session: &Session, longest: u64| {
        let store = session.store();
        let longest = Duration::from_millis(longest);
        tokio::spawn(async move {
            store
                .write_within(Write::new().put("k", "v"), longest)
                .await
        })
    };
    let write = writing(&session, 100);
    while !write.is_finished() {
        broker.refuse_for(Duration::from_millis(20)).await;
    }
    let refused = soon("the answer", write).await.expect("no panic");
    let Err(Error::Unavailable(reason)) = refused else {
        panic!("{refused:?}")
    };
    assert!(reason.is(Code::Busy), "{reason}");

    // The number counts as answered, so that nothing waits for it.
    let write = writing(&session, 50);
    let call = broker.call().await;
    assert_eq!((call.header().call, call.header().answered), (2, 1));
    // This one may have been done: nobody can tell, and it goes on being asked.
    let unknown = soon("the answer", write).await.expect("no panic");
    let Err(Error::Unavailable(reason)) = unknown else {
        panic!("{unknown:?}")
    };
    assert!(reason.is(Code::Unknown), "{reason}");
    call.fail(tonic::Status::unavailable("the reply is lost"));
    let again = broker.call().await;
    assert_eq!(again.header().call, 2);
    again.pass();
}

fn live(id: &str) -> fw::RunStatus {
    fw::RunStatus {
        run: Some(run(id)),
        phase: Phase::Running.into(),
        last_sequence: 1,
        acknowledged_sequence: 1,
        ..fw::RunStatus::default()
    }
}

/// `resume_revision` names a point up to which everything came in.
#[tokio::test]
async fn a_reconnect_asks_for_what_changed_and_tells_everything() {
    let mut broker = Broker::start().await;
    let (session, mut events) = Session::open(broker.config()).expect("good");
    let first = broker.attempt().await;
    assert_eq!(first.request.resume_revision, 0, "a new process");
    let snapshot = fw::Snapshot {
        runs: vec![live("a#1"), live("b#1")],
        claims: vec![claim("c", 3, 2)],
        ..fw::Snapshot::default()
    };
    let stream = first.serve_with(1, snapshot, 40).await;
    assert!(matches!(next(&mut events).await, Event::Connected(_)));
    stream
        .send_at(50, Wire::Status(status("a#1", 2, Phase::Finishing)))
        .await;
    assert!(matches!(next(&mut events).await, Event::Update(_)));
    drop(stream);
    assert!(matches!(next(&mut events).await, Event::Disconnected(_)));

    // There may be more of revision 50 that did not come through.
    let attempt = broker.attempt().await;
    assert_eq!(attempt.request.resume_revision, 49);
    // Half an opening counts for nothing.
    let half = attempt.open();
    half.send_at(90, Wire::Subscribed(subscribed(1))).await;
    half.send_at(90, Wire::Snapshot(fw::Snapshot::default()))
        .await;
    drop(half);
    let attempt = broker.attempt().await;
    assert_eq!(attempt.request.resume_revision, 49);

    let changed = fw::RunStatus {
        phase: Phase::Finished.into(),
        last_sequence: 2,
        unacknowledged: vec![status("b#1", 2, Phase::Finished)],
        ..live("b#1")
    };
    // Runs that are as they were are left out; claims never are.
    let changes = fw::Snapshot {
        runs: vec![changed],
        claims: vec![claim("c", 3, 2)],
        ..fw::Snapshot::default()
    };
    let _stream = attempt.serve_changes(1, changes, 90).await;
    let Event::Connected(connected) = next(&mut events).await else {
        panic!("connected")
    };
    // The framework is told everything all the same.
    let snapshot = connected.snapshot;
    assert_eq!((snapshot.runs.len(), snapshot.claims.len()), (2, 1));
    assert_eq!(snapshot.revision, 90);
    let Event::Update(update) = next(&mut events).await else {
        panic!("an update")
    };
    assert_eq!((update.task.as_str(), update.sequence), ("b", 2));
    assert_eq!(session.live_tasks(), 1);
}

/// A master that always tells everything is right as well: what is not in it is gone.
#[tokio::test]
async fn a_reconnect_that_asks_for_what_changed_takes_everything_instead() {
    let mut broker = Broker::start().await;
    let snapshot = fw::Snapshot {
        runs: vec![live("a#1"), live("b#1")],
        ..fw::Snapshot::default()
    };
    let (_session, mut events, stream) = broker.connected_with(snapshot).await;
    drop(stream);
    assert!(matches!(next(&mut events).await, Event::Disconnected(_)));
    let attempt = broker.attempt().await;
    assert_eq!(attempt.request.resume_revision, 1);
    let everything = fw::Snapshot {
        runs: vec![live("b#1")],
        ..fw::Snapshot::default()
    };
    let _stream = attempt.serve_with(1, everything, 95).await;
    assert!(matches!(next(&mut events).await, Event::Connected(_)));
    let Event::Update(update) = next(&mut events).await else {
        panic!("an update")
    };
    assert_eq!((update.task.as_str(), update.phase), ("a", TaskPhase::Lost));
}

/// A handler that waits for an answer, with more events waiting than are kept, must not keep its
/// own session from finding the new leader.
#[tokio::test]
async fn a_flood_of_events_does_not_keep_the_session_from_its_new_leader() {
    let mut old = Broker::start().await;
    let mut new = Broker::start().await;
    let (session, mut events, stream) = old.connected().await;
    let flood = tokio::spawn(async move {
        for number in 0..70_000 {
            let event = status(&format!("t{number}#1"), 1, Phase::Running);
            stream.send(Wire::Status(event)).await;
        }
        stream
    });
    let caller = session.clone();
    let want = tokio::spawn(async move { caller.want("c", Claim::cpus(1)).await });
    let call = old.call().await;
    // Until nothing more is read.
    soon("the flood to stand", async {
        while session.live_tasks() < 65_536 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
    call.fail(not_leader(&new.address));
    let _stream = new.attempt().await.serve(1).await;
    new.call().await.pass();
    soon("the answer", want)
        .await
        .expect("no panic")
        .expect("declared");
    flood.abort();
    assert!(matches!(next(&mut events).await, Event::Update(_)));
}
