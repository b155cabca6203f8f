//! Details of ended elements: what is kept, in which order it is stored, and what is gone.

use mete_sdk::model::{Bytes, Usage};

use super::*;
use crate::details::{MOST_OF_A_KIND, PAGE};

fn place(node: &str) -> Present {
    Present {
        node: node.to_owned(),
        agent: "8d0e3f0c-0000-4000-8000-000000000001".to_owned(),
        node_address: format!("{node}:7444"),
        ..Present::default()
    }
}

#[test]
fn another_process_shows_of_ended_elements_what_this_one_did() {
    let (mut queue, name) = queue_with("0-3", 0);
    let ends = [
        (TaskPhase::Finished, None, Some(Exit::Code(0)), ""),
        (
            TaskPhase::Failed,
            Some(Code::ExitCode),
            Some(Exit::Code(7)),
            "exit code 7",
        ),
        (
            TaskPhase::Failed,
            Some(Code::OutOfMemory),
            Some(Exit::Signal(9)),
            "512 MiB passed",
        ),
    ];
    for (at, (phase, reason, exit, message)) in ends.into_iter().enumerate() {
        let node = ["n1", "n2", "n1"][at];
        let run = queue.start_next(&name, place(node)).expect("a start").run;
        let update = ended(&run, TaskPhase::Running, None, None);
        queue.update(
            &TaskUpdate {
                at: Timestamp(2_000),
                ..update
            },
            NOW,
        );
        let update = TaskUpdate {
            message: message.to_owned(),
            at: Timestamp(61_000),
            usage: Some(Usage {
                cpu_ms: 900,
                memory_peak: Bytes(1 << 30),
                wall_ms: 59_000,
            }),
            ..ended(&run, phase, reason, exit)
        };
        queue.update(&update, NOW);
    }
    let seen = ended_elements(&queue, &name);
    let last = seen.last().expect("three");
    assert_eq!(
        (last.node.as_str(), last.reason.as_str()),
        ("n1", "OUT_OF_MEMORY")
    );
    assert_eq!((last.started_ms, last.ended_ms), (2_000, 61_000));

    let again = stored_again(&mut BTreeMap::new(), &mut queue);
    assert_eq!(ended_elements(&again, &name), seen);
    let reason = again.find(&name).expect("the job").row().reason;
    assert_eq!(reason, queue.find(&name).expect("the job").row().reason);
}

#[test]
fn an_element_of_which_only_the_end_is_heard_began_as_long_before_as_it_ran() {
    let (mut queue, name) = queue_with("", 0);
    let run = start(&mut queue, &name).expect("a run");
    let usage = Usage {
        wall_ms: 12_000,
        ..Usage::default()
    };
    let update = TaskUpdate {
        at: Timestamp(61_000),
        usage: Some(usage),
        ..finished(&run)
    };
    queue.update(&update, NOW);
    let seen = ended_elements(&queue, &name);
    assert_eq!((seen[0].started_ms, seen[0].ended_ms), (49_000, 61_000));
}

#[test]
fn details_are_kept_within_bounds_in_memory_and_in_the_store_and_what_is_gone_is_said() {
    let (mut queue, name) = queue_with("0-39999", 0);
    let mut stored = BTreeMap::new();
    for at in 0..40_000 {
        let run = queue.start_next(&name, place("n1")).expect("a start").run;
        // One failure, at the very beginning: the many that completed do not push it out.
        let exit = if at == 0 { 7 } else { 0 };
        let (phase, reason) = match exit {
            0 => (TaskPhase::Finished, None),
            _ => (TaskPhase::Failed, Some(Code::ExitCode)),
        };
        queue.update(&ended(&run, phase, reason, Some(Exit::Code(exit))), NOW);
        if at % 1_000 == 0 {
            store(&mut stored, &mut queue);
        }
    }
    let again = stored_again(&mut stored, &mut queue);
    for queue in [&queue, &again] {
        let elements = ended_elements(queue, &name);
        let (gone, kept): (Vec<_>, Vec<_>) = elements
            .into_iter()
            .partition(|element| element.details_dropped);
        assert!(kept.len() > MOST_OF_A_KIND && kept.len() <= MOST_OF_A_KIND + 64 + 1);
        assert_eq!((kept[0].index, kept[0].reason.as_str()), (0, "EXIT_CODE"));
        assert_eq!(kept.last().map(|element| element.index), Some(39_999));
        assert!(
            gone.iter()
                .all(|element| element.node.is_empty() && element.exit.is_some())
        );
    }
    let pages = stored
        .keys()
        .filter(|key| key.starts_with(b"ended/"))
        .count();
    assert!(pages <= MOST_OF_A_KIND / PAGE + 2, "{pages}");
}

#[test]
fn the_details_of_all_jobs_are_bounded_and_those_of_the_first_jobs_go_first() {
    let mut queue = Queue::new();
    let mut names = Vec::new();
    let mut stored = BTreeMap::new();
    for _ in 0..3 {
        let name = queue
            .submit(spec("0-15999", 0), String::new(), NOW)
            .expect("a job")
            .name;
        for _ in 0..16_000 {
            let run = queue.start_next(&name, place("n1")).expect("a start").run;
            let update = TaskUpdate {
                message: "m".repeat(600),
                ..ended(
                    &run,
                    TaskPhase::Failed,
                    Some(Code::ExitCode),
                    Some(Exit::Code(1)),
                )
            };
            queue.update(&update, NOW);
        }
        names.push(name);
    }
    store(&mut stored, &mut queue);
    let kept = |name: &String| {
        let elements = ended_elements(&queue, name);
        elements
            .iter()
            .filter(|element| !element.details_dropped)
            .count()
    };
    let kept: Vec<usize> = names.iter().map(kept).collect();
    assert_eq!((kept[0], kept[2]), (0, 16_000), "{kept:?}");
    let bytes: usize = stored
        .iter()
        .filter(|(key, _)| key.starts_with(b"ended/"))
        .map(|(_, value)| value.len())
        .sum();
    assert!(bytes <= crate::details::MOST_BYTES, "{bytes}");

    queue.forget_oldest();
    store(&mut stored, &mut queue);
    assert!(
        !stored
            .keys()
            .any(|key| key.starts_with(b"ended/0000000000000001"))
    );
}

#[test]
fn details_go_out_before_the_states_they_belong_to_however_small_the_writes_are() {
    let (mut queue, name) = queue_with("0-3", 0);
    let mut unwritten = queue.take_writes();
    for _ in 0..4 {
        let run = start(&mut queue, &name).expect("a run");
        queue.update(&finished(&run), NOW);
        unwritten.merge(queue.take_writes());
    }
    let mut order = Vec::new();
    while !unwritten.is_empty() {
        let (part, _) = unwritten.part(1);
        let (key, _) = unwritten.puts.first().expect("one for each write");
        order.push(String::from_utf8_lossy(key).into_owned());
        unwritten.written(part);
    }
    let states = order.iter().position(|key| key.starts_with("job/"));
    let details = order.iter().rposition(|key| key.starts_with("ended/"));
    assert!(details.is_some() && details < states, "{order:?}");
}

#[test]
fn a_job_that_is_withdrawn_leaves_nothing_to_be_written() {
    let (mut queue, name) = queue_with("", 0);
    let number = queue.find(&name).expect("the job").number;
    let run = start(&mut queue, &name).expect("a run");
    queue.update(&finished(&run), NOW);
    let mut unwritten = queue.take_writes();
    assert!(!unwritten.is_empty());
    unwritten.withdraw(number);
    assert!(unwritten.is_empty(), "{:?}", unwritten.puts);
}

#[test]
fn an_end_whose_details_alone_were_stored_is_heard_again() {
    let (mut queue, name) = queue_with("0-1", 0);
    let run = start(&mut queue, &name).expect("a run");
    let mut stored = BTreeMap::new();
    store(&mut stored, &mut queue);
    queue.update(&finished(&run), NOW);
    let writes = queue.take_writes();
    let (first, _) = writes.puts.first().expect("its details");
    assert!(
        first.starts_with(b"ended/"),
        "the piece without its details would lose them"
    );
    // The process was killed between the two.
    stored.extend(writes.puts.into_iter().take(1));

    let list: Vec<_> = stored.clone().into_iter().collect();
    let mut jobs = records::read(&list_of(&list, "job/")).expect("our own records");
    let useless = records::read_ended(&mut jobs, &list_of(&list, "ended/"));
    assert_eq!(useless.len(), 1, "nothing has ended as far as is stored");
    let mut again = Queue::new();
    jobs.into_iter().for_each(|job| again.insert(job));
    again.recover(&[running(&run)], NOW);
    again.update(&finished(&run), NOW);
    let seen = ended_elements(&again, &name);
    let last = stored_again(&mut stored, &mut again);
    assert_eq!(ended_elements(&last, &name), seen);
}

#[test]
fn details_that_cannot_be_read_stop_nobody() {
    let (mut queue, name) = queue_with("", 0);
    let run = start(&mut queue, &name).expect("a run");
    queue.update(&finished(&run), NOW);
    let list: Vec<_> = queue.take_writes().puts;
    let mut jobs = records::read(&list_of(&list, "job/")).expect("our own records");
    let good = list_of(&list, "ended/").swap_remove(0).0;
    let other = b"ended/0000000000000009/o/00000000".to_vec();
    let damaged = [
        (good.clone(), vec![0xff, 0xff]),
        (other.clone(), Vec::new()),
        (b"ended/x".to_vec(), Vec::new()),
    ];
    let useless: Vec<_> = records::read_ended(&mut jobs, &damaged)
        .into_iter()
        .map(|(key, _)| key)
        .collect();
    assert_eq!(useless, [good, b"ended/x".to_vec(), other]);
    let mut again = Queue::new();
    jobs.into_iter().for_each(|job| again.insert(job));
    let element = again.find(&name).expect("the job").element(0, "f");
    assert!(element.expect("the element").details_dropped);
}
