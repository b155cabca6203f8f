//! The queue alone: what is stored, launched, retried, cancelled and recovered.

use std::collections::BTreeMap;

use mete_proto::batch::v1 as wire;
use mete_sdk::model::{StatusSource, Timestamp};
use mete_sdk::{AgentCondition, Code, Exit, Resources, RunId, RunInfo, TaskPhase, TaskUpdate};
use proptest::prelude::*;

use crate::element::{Present, State};
use crate::queue::Queue;
use crate::records;

mod details;

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
