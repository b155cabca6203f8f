use mete_model::TaskId;
use mete_proto::types::v1::Status;

use super::*;

fn run(name: &str) -> RunId {
    RunId::new(TaskId::new(name).expect("a good id"), 1)
}

fn status(sequence: u64) -> Event {
    Event {
        revision: sequence,
        event: Some(event::Event::Status(Status {
            sequence,
            message: "m".repeat(100),
            ..Status::default()
        })),
    }
}

fn offer(number: u64) -> (Offers, Vec<OfferId>) {
    let id = OfferId { term: 1, number };
    let offer = mete_proto::framework::v1::Offer {
        node: "n".repeat(100),
        ..Default::default()
    };
    (
        Offers {
            offers: vec![offer],
        },
        vec![id],
    )
}

fn drain(queue: &mut FrameworkQueue) -> Vec<Event> {
    let mut events = Vec::new();
    while let Popped::Item(Ok(event)) = queue.pop() {
        events.push(event);
    }
    events
}

#[test]
fn offers_pass_a_backlog_of_statuses_but_not_the_snapshot() {
    let mut queue = FrameworkQueue::new(1 << 20);
    queue.open([Event {
        revision: 9,
        event: Some(event::Event::SnapshotEnd(Default::default())),
    }]);
    for sequence in 1..=5 {
        assert!(queue.push_firm(status(sequence), Some(run("t"))).queued);
    }
    let (offers, ids) = offer(1);
    assert!(queue.push_offers(offers, ids).queued);

    let events = drain(&mut queue);

    assert!(matches!(
        events[0].event,
        Some(event::Event::SnapshotEnd(_))
    ));
    assert!(matches!(events[1].event, Some(event::Event::Offers(_))));
    let revisions: Vec<u64> = events[2..].iter().map(|event| event.revision).collect();
    assert_eq!(revisions, [1, 2, 3, 4, 5]);
    assert_eq!(queue.bytes(), 0);
}

#[test]
fn when_bytes_run_out_statuses_merge_then_offers_go_and_ends_stay_owed() {
    let mut queue = FrameworkQueue::new(1000);
    let (offers, ids) = offer(7);
    assert!(queue.push_offers(offers, ids).queued);
    // Steps of one run merge: any number of them fits.
    for sequence in 1..=50 {
        let put = queue.push_firm(status(sequence), Some(run("a")));
        assert_eq!(put, Put::queued(), "{sequence}");
    }
    // Ends do not merge: first the offer makes room, then they stay owed.
    let mut dropped = Vec::new();
    let mut ends = 0;
    for sequence in 51..=70 {
        let put = queue.push_firm(status(sequence), None);
        dropped.extend(put.dropped_offers);
        if !put.queued {
            break;
        }
        ends += 1;
    }
    assert_eq!(dropped, [OfferId { term: 1, number: 7 }]);
    assert!((4..12).contains(&ends), "{ends} ends found room");
    assert!(queue.bytes() <= 1000);

    let events = drain(&mut queue);

    let Some(event::Event::Status(merged)) = &events[0].event else {
        panic!("a status");
    };
    assert!(merged.coalesced);
    assert!(queue.take_drained(), "what was dropped can be sent again");
    assert_eq!(queue.bytes(), 0);
    let early = queue.push_firm(status(71), None);
    assert!(!early.queued, "what was dropped goes first");
    queue.caught_up();
    assert!(queue.push_firm(status(71), None).queued);
}

#[test]
fn heartbeats_do_not_pile_up() {
    let mut queue = FrameworkQueue::new(1000);
    for revision in 1..=100 {
        queue.push_heartbeat(Heartbeat {
            revision,
            ..Heartbeat::default()
        });
    }

    let events = drain(&mut queue);

    assert_eq!(events.len(), 1);
    let Some(event::Event::Heartbeat(heartbeat)) = &events[0].event else {
        panic!("a heartbeat");
    };
    assert_eq!(heartbeat.revision, 100);
}

#[test]
fn an_end_is_the_last_thing_the_framework_hears() {
    let mut queue = FrameworkQueue::new(1000);
    queue.push_firm(status(1), None);
    queue.end(Moved {
        code: "STALE_INCARNATION".to_owned(),
        ..Moved::default()
    });
    assert!(!queue.push_firm(status(2), None).queued);

    assert_eq!(drain(&mut queue).len(), 1);
    assert!(matches!(queue.pop(), Popped::End));
}
