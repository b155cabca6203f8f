//! The queue alone: what is stored, launched, retried, cancelled and recovered.

use std::collections::BTreeMap;

use mete_proto::batch::v1 as wire;
use mete_sdk::model::{Bytes, StatusSource, Timestamp, Usage};
use mete_sdk::{AgentCondition, Code, Exit, Resources, RunId, RunInfo, TaskPhase, TaskUpdate};
use proptest::prelude::*;

use crate::details::{MOST_OF_A_KIND, PAGE};
use crate::element::{Present, State};
use crate::queue::Queue;
use crate::records;

const NOW: Timestamp = Timestamp(1_000);

fn spec(array: &str, retries: u32) -> wire::JobSpec {
    wire::JobSpec {
        name: "job".to_owned(),
        role: "batch".to_owned(),
        command: vec!["true".to_owned()],
        array: array.to_owned(),
        retries,
        ..wire::JobSpec::default()
    }
}

fn queue_with(array: &str, retries: u32) -> (Queue, String) {
    let mut queue = Queue::new();
    let name = queue
        .submit(spec(array, retries), String::new(), NOW)
        .expect("a job")
        .name;
    (queue, name)
}

fn ended(run: &RunId, phase: TaskPhase, reason: Option<Code>, exit: Option<Exit>) -> TaskUpdate {
    TaskUpdate {
        task: run.task.clone(),
        attempt: run.attempt,
        sequence: 2,
        phase,
        reason,
        message: String::new(),
        source: StatusSource::Agent,
        at: NOW,
        exit,
        usage: None,
        coalesced: false,
        agent: None,
        claim: None,
    }
}

fn finished(run: &RunId) -> TaskUpdate {
    ended(run, TaskPhase::Finished, None, Some(Exit::Code(0)))
}

fn start(queue: &mut Queue, name: &str) -> Option<RunId> {
    queue
        .start_next(name, Present::default())
        .map(|start| start.run)
}

/// What another process would read.
fn stored_again(stored: &mut BTreeMap<Vec<u8>, Vec<u8>>, queue: &mut Queue) -> Queue {
    store(stored, queue);
    let list: Vec<_> = stored.clone().into_iter().collect();
    let mut fresh = Queue::new();
    let mut jobs = records::read(&list_of(&list, "job/")).expect("our own records");
    assert_eq!(
        records::read_ended(&mut jobs, &list_of(&list, "ended/")),
        []
    );
    for job in jobs {
        fresh.insert(job);
    }
    fresh
}

/// Records under a prefix, as the store lists them.
fn list_of(list: &[(Vec<u8>, Vec<u8>)], prefix: &str) -> Vec<(Vec<u8>, Vec<u8>)> {
    let under = |(key, _): &&(Vec<u8>, Vec<u8>)| key.starts_with(prefix.as_bytes());
    list.iter().filter(under).cloned().collect()
}

/// What users see of the elements that have ended.
fn ended_elements(queue: &Queue, name: &str) -> Vec<wire::Element> {
    let job = queue.find(name).expect("the job");
    (0..job.elements.len())
        .filter(|at| job.elements.get(*at).is_some_and(|it| it.state.is_final()))
        .filter_map(|at| job.element(at, "f"))
        .collect()
}

fn store(stored: &mut BTreeMap<Vec<u8>, Vec<u8>>, queue: &mut Queue) {
    let writes = queue.take_writes();
    stored.extend(writes.puts);
    for key in writes.deletes {
        stored.remove(&key);
    }
}

fn running(run: &RunId) -> RunInfo {
    RunInfo {
        run: run.clone(),
        phase: TaskPhase::Running,
        role: None,
        claim: None,
        agent: None,
        node: "n1".to_owned(),
        node_address: String::new(),
        resources: Resources::default(),
        labels: BTreeMap::new(),
        agent_condition: AgentCondition::Ready,
        replaceable: None,
        replaces: None,
    }
}

#[test]
fn the_same_key_is_the_same_job() {
    let mut queue = Queue::new();
    let first = queue
        .submit(spec("", 0), "k".to_owned(), NOW)
        .expect("a job")
        .number;
    let again = queue
        .submit(spec("", 0), "k".to_owned(), NOW)
        .expect("the job")
        .number;
    assert_eq!(first, again);
    assert_eq!(queue.jobs().count(), 1);
}

#[test]
fn the_throttle_counts_what_runs() {
    let (mut queue, name) = queue_with("0-9%2", 0);
    let a = start(&mut queue, &name).expect("one");
    start(&mut queue, &name).expect("two");
    assert_eq!(start(&mut queue, &name), None);

    queue.update(&finished(&a), NOW);
    assert!(start(&mut queue, &name).is_some());
}

#[test]
fn a_failed_element_is_tried_again_under_the_next_attempt_after_its_delay() {
    let (mut queue, name) = queue_with("", 1);
    let first = start(&mut queue, &name).expect("a run");
    let failed = Some(Exit::Code(7));
    queue.update(
        &ended(&first, TaskPhase::Failed, Some(Code::ExitCode), failed),
        NOW,
    );
    assert_eq!(start(&mut queue, &name), None, "not at once");

    assert_eq!(queue.release_delayed(Timestamp(NOW.0 + 1_000)), None);
    let second = start(&mut queue, &name).expect("again");
    assert_eq!((first.attempt, second.attempt), (1, 2));
    queue.update(
        &ended(&second, TaskPhase::Failed, Some(Code::ExitCode), failed),
        NOW,
    );
    let row = queue.find(&name).expect("the job").row();
    assert_eq!((row.state(), row.exit_code), (wire::JobState::Failed, 7));
}

#[test]
fn a_status_that_comes_twice_changes_nothing() {
    let (mut queue, name) = queue_with("0-1", 3);
    let run = start(&mut queue, &name).expect("a run");
    let failed = ended(
        &run,
        TaskPhase::Failed,
        Some(Code::ExitCode),
        Some(Exit::Code(1)),
    );
    queue.update(&failed, NOW);
    let before = queue.find(&name).expect("the job").row();
    queue.update(&failed, NOW);
    assert_eq!(queue.find(&name).expect("the job").row(), before);
}

#[test]
fn cancelling_ends_what_waits_at_once_and_kills_what_runs() {
    let (mut queue, name) = queue_with("0-2", 0);
    let run = start(&mut queue, &name).expect("a run");
    let kills = queue.cancel(&name, false, NOW).expect("cancelled");
    assert_eq!(kills, std::slice::from_ref(&run));
    assert!(!queue.find(&name).expect("the job").is_over());

    queue.update(
        &ended(&run, TaskPhase::Killed, Some(Code::KilledByFramework), None),
        NOW,
    );
    let row = queue.find(&name).expect("the job").row();
    assert_eq!((row.state(), row.cancelled), (wire::JobState::Cancelled, 3));
    let error = queue.cancel(&name, false, NOW).expect_err("over");
    assert_eq!(error.code, Code::AlreadyTerminal);
}

#[test]
fn elements_are_named_by_index_and_by_range() {
    let (mut queue, name) = queue_with("5,7,9", 0);
    queue
        .cancel(&format!("{name}/7-9"), false, NOW)
        .expect("two of them");
    let row = queue.find(&name).expect("the job").row();
    assert_eq!((row.cancelled, row.pending), (2, 1));
    let error = queue
        .cancel(&format!("{name}/6"), false, NOW)
        .expect_err("no such element");
    assert_eq!(error.code, Code::NotFound);
    queue
        .cancel(&format!("{name}_5"), false, NOW)
        .expect("in the other spelling");
}

#[test]
fn what_the_broker_would_refuse_at_the_launch_is_refused_at_submit() {
    let fault = |change: fn(&mut wire::JobSpec)| {
        let mut spec = spec("", 0);
        change(&mut spec);
        let job = Queue::check(spec, String::new(), 1, NOW).expect("its own rules hold");
        crate::shell::check_task(&job).expect_err("the launch's rules do not")
    };
    assert!(fault(|spec| spec.command = vec![String::new()]).contains("command"));
    assert!(fault(|spec| spec.command = vec!["a\0b".to_owned()]).contains("command"));
    assert!(
        fault(|spec| {
            spec.environment.insert("A=B".to_owned(), String::new());
        })
        .contains("environment")
    );
    assert!(fault(|spec| spec.time_limit_ms = u64::MAX).contains("time_limit_ms"));
}

#[test]
fn what_the_store_refused_is_written_later_and_only_the_last_word_of_it() {
    let (mut queue, name) = queue_with("", 0);
    let run = start(&mut queue, &name).expect("a run");
    let mut refused = queue.take_writes();
    queue.update(&finished(&run), NOW);
    refused.merge(queue.take_writes());

    let keys: std::collections::BTreeSet<_> = refused.puts.iter().map(|(key, _)| key).collect();
    assert_eq!(
        keys.len(),
        refused.puts.len(),
        "a key twice is refused whole"
    );
    let mut again = Queue::new();
    for job in records::read(&list_of(&refused.puts, "job/")).expect("our own records") {
        again.insert(job);
    }
    let row = again.find(&name).expect("the job").row();
    assert_eq!(row.state(), wire::JobState::Completed);
}

#[test]
fn a_job_is_stored_whole_or_not_at_all() {
    let (mut queue, name) = queue_with("0-5000", 0);
    let number = queue.find(&name).expect("the job").number;
    let mut writes = queue.take_writes();
    assert_eq!(writes.puts.len(), 1, "one record, so one step");
    assert!(writes.has_job(number));
    let mut again = Queue::new();
    for job in records::read(&writes.puts).expect("our own records") {
        again.insert(job);
    }
    let row = again.find(&name).expect("the job").row();
    assert_eq!((row.elements, row.pending), (5001, 5001));

    writes.withdraw(number);
    queue.withdraw(number);
    assert!(writes.is_empty() && queue.take_writes().is_empty());
}

#[test]
fn what_can_never_be_set_up_ends_with_a_reason_of_its_own() {
    let (mut queue, name) = queue_with("", 5);
    let mut now = NOW;
    let mut attempts = 0;
    while !queue.find(&name).expect("the job").is_over() {
        attempts += 1;
        assert!(attempts < 10, "for ever");
        now = Timestamp(now.0 + 70_000);
        queue.release_delayed(now);
        let place = Present {
            node: "n1".to_owned(),
            ..Present::default()
        };
        let run = queue.start_next(&name, place).expect("a start").run;
        let reason = Some(Code::PrepareFailed);
        queue.update(&ended(&run, TaskPhase::Failed, reason, None), now);
    }
    assert_eq!(attempts, u32::from(crate::retry::MOST_UNPREPARED));
    let job = queue.find(&name).expect("the job");
    assert_eq!(job.row().reason, "PREPARE_FAILED");
    let element = job.element(0, "f").expect("the element");
    assert!(
        element.message.contains("given up: 6 attempts"),
        "{}",
        element.message
    );
    assert!(element.message.contains("n1"), "{}", element.message);
}

#[test]
fn a_full_store_makes_room_by_forgetting_what_ended_first() {
    let (mut queue, old) = queue_with("", 0);
    let run = start(&mut queue, &old).expect("a run");
    queue.update(&finished(&run), NOW);
    let new = queue
        .submit(spec("", 0), String::new(), NOW)
        .expect("a job")
        .name;
    queue.forget_oldest();
    assert!(queue.find(&old).is_err());
    assert!(queue.find(&new).is_ok(), "what waits or runs is kept");
    assert!(!queue.take_writes().deletes.is_empty());
}

#[test]
fn an_empty_name_means_no_job_even_if_there_is_only_one() {
    let (mut queue, _) = queue_with("", 0);
    let error = queue.cancel("", false, NOW).expect_err("no name");
    assert_eq!(error.code, Code::Invalid);
}

#[test]
fn a_refused_launch_costs_no_attempt() {
    let (mut queue, name) = queue_with("", 0);
    let run = start(&mut queue, &name).expect("a run");
    queue.refused(&run, NOW);
    queue.release_delayed(Timestamp(NOW.0 + 100));
    assert_eq!(start(&mut queue, &name), Some(run));
}

#[test]
fn another_process_adopts_what_runs_and_starts_nothing_twice() {
    let (mut queue, name) = queue_with("0-3", 0);
    let mut stored = BTreeMap::new();
    store(&mut stored, &mut queue);
    let a = start(&mut queue, &name).expect("a run");
    let b = start(&mut queue, &name).expect("a run");
    queue.update(&finished(&a), NOW);

    let mut again = stored_again(&mut stored, &mut queue);
    let kills = again.recover(&[running(&b)], NOW);
    assert_eq!(kills, []);
    let mut started = Vec::new();
    while let Some(run) = start(&mut again, &name) {
        started.push(run.to_string());
    }
    assert_eq!(started, [format!("{name}/2#1"), format!("{name}/3#1")]);
}

#[test]
fn a_cancel_that_was_stored_is_carried_out_by_the_next_process() {
    let (mut queue, name) = queue_with("", 0);
    let run = start(&mut queue, &name).expect("a run");
    queue.cancel(&name, false, NOW).expect("cancelled");
    let mut stored = BTreeMap::new();

    let mut again = stored_again(&mut stored, &mut queue);
    assert_eq!(again.recover(&[running(&run)], NOW), [run]);
}

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

#[test]
fn a_record_that_cannot_be_read_stops_the_queue_and_is_named() {
    let key = b"job/0000000000000001".to_vec();
    let error = records::read(&[(key, vec![0xff, 0xff])]).expect_err("no record");
    assert!(error.contains("job/0000000000000001"), "{error}");
}

proptest! {
    /// Whatever order of launches, ends, refusals, cancels and restarts: every element has exactly
    /// one final state in the end, no run id is ever started twice, and counts agree with states.
    #[test]
    fn any_history_gives_each_element_one_end(
        steps in prop::collection::vec((0_u8..7, any::<prop::sample::Index>()), 1..120),
        retries in 0_u32..3,
    ) {
        let (mut queue, name) = queue_with("0-4", retries);
        let mut stored = BTreeMap::new();
        store(&mut stored, &mut queue);
        let mut live: Vec<RunId> = Vec::new();
        let mut ever: Vec<RunId> = Vec::new();
        let mut now = NOW;
        for (step, which) in steps {
            now = Timestamp(now.0 + 40_000);
            queue.release_delayed(now);
            let pick = |live: &Vec<RunId>| (!live.is_empty()).then(|| which.index(live.len()));
            match step {
                0 | 1 => if let Some(run) = start(&mut queue, &name) {
                    prop_assert!(!ever.contains(&run), "{run} started twice");
                    ever.push(run.clone());
                    queue.launched(&run, now);
                    live.push(run);
                },
                2 => if let Some(at) = pick(&live) {
                    queue.update(&finished(&live.remove(at)), now);
                },
                3 => if let Some(at) = pick(&live) {
                    let run = live.remove(at);
                    let reason = Some(Code::ExitCode);
                    queue.update(&ended(&run, TaskPhase::Failed, reason, Some(Exit::Code(3))), now);
                },
                4 => if let Some(at) = pick(&live) {
                    let run = live.remove(at);
                    queue.update(&ended(&run, TaskPhase::Lost, Some(Code::AgentGone), None), now);
                },
                5 => {
                    let element = which.index(5);
                    let _over = queue.cancel(&format!("{name}/{element}"), false, now);
                }
                _ => {
                    let seen = ended_elements(&queue, &name);
                    queue = stored_again(&mut stored, &mut queue);
                    prop_assert_eq!(ended_elements(&queue, &name), seen);
                    let infos: Vec<RunInfo> = live.iter().map(running).collect();
                    queue.recover(&infos, now);
                }
            }
            store(&mut stored, &mut queue);
        }
        // Then everything ends.
        for _ in 0..200 {
            now = Timestamp(now.0 + 70_000);
            queue.release_delayed(now);
            while let Some(run) = start(&mut queue, &name) {
                prop_assert!(!ever.contains(&run), "{run} started twice");
                ever.push(run.clone());
                live.push(run);
            }
            for run in live.drain(..) {
                queue.update(&finished(&run), now);
            }
        }
        let job = queue.find(&name).expect("the job");
        prop_assert!(job.is_over());
        prop_assert!(job.elements.iter().all(|element| element.state.is_final()));
        let counts = job.counts();
        prop_assert_eq!(counts.completed + counts.failed + counts.cancelled, 5);
        let completed = job.elements.iter().filter(|e| e.state == State::Completed).count();
        prop_assert_eq!(usize::try_from(counts.completed).unwrap_or(0), completed);
    }
}

#[test]
fn a_name_or_a_number_of_retries_out_of_bounds_is_refused_with_its_field() {
    let long = "x".repeat(100_000);
    for name in ["", ".", "..", "-x", ".x", "a b", "a/b", long.as_str()] {
        let spec = wire::JobSpec {
            name: name.to_owned(),
            ..spec("", 0)
        };
        let refused = Queue::check(spec, String::new(), 1, NOW).expect_err("no job name");
        assert_eq!((refused.code, refused.field), (Code::Invalid, "spec.name"));
        assert!(refused.detail.len() < 300, "{}", refused.detail.len());
    }
    let refused = Queue::check(spec("", 101), String::new(), 1, NOW).expect_err("too many");
    assert_eq!(refused.field, "spec.retries");
    for name in ["a", "9", "_x", "a.b-c"] {
        let spec = wire::JobSpec {
            name: name.to_owned(),
            ..spec("", 100)
        };
        Queue::check(spec, String::new(), 1, NOW).expect("a job name");
    }
}
