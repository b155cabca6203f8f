//! The core alone: events in, actions out.

use std::collections::BTreeMap;
use std::sync::Arc;

use mete_model::{
    AgentId, Code, CpuSet, Exit, FrameworkId, GrantId, Inventory, MilliCpu, Resources, RunId, Span,
    Status, TaskId, TaskPhase, TaskSpec, Timestamp,
};
use proptest::prelude::*;
use uuid::Uuid;

use super::*;

const NOW: Timestamp = Timestamp(1_000);

fn key(task: &str) -> RunKey {
    let task = TaskId::new(task).expect("a good task id");
    RunKey {
        framework: FrameworkId(Uuid::from_u128(7)),
        run: RunId::new(task, 1),
    }
}

fn start_on(task: &str, cores: &str) -> StartTask {
    let cores: CpuSet = cores.parse().expect("a set");
    StartTask {
        key: key(task),
        grant: GrantId(1),
        resources: Resources {
            cpu: MilliCpu(1000),
            cores,
            ..Resources::default()
        },
        spec: Arc::new(TaskSpec {
            command: vec!["true".to_owned()],
            ..TaskSpec::default()
        }),
        environment: BTreeMap::new(),
        labels: BTreeMap::new(),
        role: None,
        framework_name: "f".to_owned(),
    }
}

fn agent() -> AgentCore {
    let cores: CpuSet = "0-3".parse().expect("a set");
    let total = Resources {
        cpu: MilliCpu(4000),
        cores,
        ..Resources::default()
    };
    let mut core = AgentCore::new(Inventory {
        total,
        ..Inventory::default()
    });
    core.step(welcome(), NOW);
    core
}

fn welcome() -> Event {
    Event::Welcome {
        agent: AgentId(Uuid::from_u128(1)),
        discard: Vec::new(),
    }
}

fn started(task: &str) -> Event {
    Event::Started {
        key: key(task),
        at: NOW,
    }
}

fn ended(task: &str, ending: Ending, stop_asked: bool) -> Event {
    let mut end = RunEnd::bare(ending);
    end.stop_asked = stop_asked;
    Event::Ended {
        key: key(task),
        end,
    }
}

fn kill(task: &str, grace: Option<u64>) -> Event {
    Event::Kill(KillTask {
        key: key(task),
        grace: grace.map(Span),
        reason: Code::KilledByFramework,
    })
}

fn sent(actions: &[Action]) -> Vec<Status> {
    actions
        .iter()
        .filter_map(|action| match action {
            Action::Send(list) => Some(list.iter().map(|(_, status)| status.clone())),
            Action::Record(_)
            | Action::Prepare(_)
            | Action::Stop { .. }
            | Action::Adopt(_)
            | Action::Release(_)
            | Action::SendInventory(_) => None,
        })
        .flatten()
        .collect()
}

fn prepares(actions: &[Action]) -> usize {
    actions
        .iter()
        .filter(|action| matches!(action, Action::Prepare(_)))
        .count()
}

#[test]
fn a_start_is_recorded_before_it_is_prepared_and_a_second_one_changes_nothing() {
    let mut core = agent();

    let actions = core.step(Event::Start(Box::new(start_on("t", ""))), NOW);
    assert!(
        matches!(actions[0], Action::Record(Record::Run { .. })),
        "{actions:?}"
    );
    assert!(matches!(actions[1], Action::Prepare(_)), "{actions:?}");

    assert_eq!(
        core.step(Event::Start(Box::new(start_on("t", ""))), NOW),
        []
    );
}

#[test]
fn statuses_are_numbered_and_repeated_at_the_next_welcome_until_confirmed() {
    let mut core = agent();
    core.step(Event::Start(Box::new(start_on("t", ""))), NOW);
    core.step(started("t"), NOW);
    core.step(ended("t", Ending::Code(7), false), NOW);
    core.step(Event::LinkLost, NOW);

    let again = sent(&core.step(welcome(), NOW));
    let story: Vec<_> = again
        .iter()
        .map(|s| (s.sequence, s.phase, s.reason, s.exit))
        .collect();
    assert_eq!(
        story,
        [
            (1, TaskPhase::Running, None, None),
            (
                2,
                TaskPhase::Failed,
                Some(Code::ExitCode),
                Some(Exit::Code(7))
            ),
        ]
    );

    core.step(
        Event::Forget {
            key: key("t"),
            sequence: 2,
        },
        NOW,
    );
    assert_eq!(core.held(), []);
    assert_eq!(sent(&core.step(welcome(), NOW)), []);
}

#[test]
fn a_status_whose_confirmation_was_lost_is_sent_again_after_a_while() {
    let mut core = agent();
    core.step(Event::Start(Box::new(start_on("t", ""))), NOW);
    core.step(started("t"), NOW);

    let soon = NOW.after(Span::seconds(20));
    assert_eq!(sent(&core.step(Event::Tick, soon)), []);
    let later = NOW.after(Span::seconds(31));
    assert_eq!(sent(&core.step(Event::Tick, later)).len(), 1);
    assert_eq!(
        sent(&core.step(Event::Tick, later.after(Span(500)))),
        [],
        "not at every tick"
    );
    core.step(
        Event::Forget {
            key: key("t"),
            sequence: 1,
        },
        later,
    );
    let much_later = later.after(Span::minutes(5));
    assert_eq!(sent(&core.step(Event::Tick, much_later)), []);
}

#[test]
fn a_kill_that_overtakes_its_start_ends_the_run_once_and_for_all() {
    let mut core = agent();

    let told = sent(&core.step(kill("t", None), NOW));
    assert_eq!(
        (told[0].phase, told[0].reason),
        (TaskPhase::Killed, Some(Code::KilledByFramework))
    );

    let actions = core.step(Event::Start(Box::new(start_on("t", ""))), NOW);
    assert_eq!(prepares(&actions), 0, "a killed run must never start");
}

#[test]
fn a_later_kill_may_shorten_the_grace_and_never_lengthens_it() {
    let mut core = agent();
    core.step(Event::Start(Box::new(start_on("t", ""))), NOW);
    core.step(started("t"), NOW);

    let first = core.step(kill("t", Some(5_000)), NOW);
    assert!(first.contains(&Action::Stop {
        key: key("t"),
        grace: Span(5_000)
    }));
    assert_eq!(core.step(kill("t", Some(9_000)), NOW), []);
    let shorter = core.step(kill("t", Some(100)), NOW);
    assert!(shorter.contains(&Action::Stop {
        key: key("t"),
        grace: Span(100)
    }));

    let told = sent(&core.step(ended("t", Ending::Signal(15), true), NOW));
    assert_eq!(told[0].phase, TaskPhase::Killed);
}

#[test]
fn a_run_that_ended_by_itself_before_the_kill_keeps_its_own_end() {
    let mut core = agent();
    core.step(Event::Start(Box::new(start_on("t", ""))), NOW);
    core.step(started("t"), NOW);
    core.step(kill("t", None), NOW);
    let told = sent(&core.step(ended("t", Ending::Code(0), false), NOW));
    assert_eq!(told[0].phase, TaskPhase::Finished);
}

#[test]
fn a_core_is_never_doubled_a_start_waits_until_a_discarded_holder_is_gone() {
    let mut core = agent();
    core.step(Event::Start(Box::new(start_on("old", "2"))), NOW);
    core.step(started("old"), NOW);
    core.step(Event::Discard(key("old")), NOW);

    let actions = core.step(Event::Start(Box::new(start_on("new", "1-2"))), NOW);
    assert_eq!(prepares(&actions), 0, "core 2 is still in use: {actions:?}");

    let actions = core.step(ended("old", Ending::Signal(15), true), NOW);
    assert_eq!(prepares(&actions), 1, "core 2 is free now: {actions:?}");
    assert_eq!(sent(&actions), [], "nobody hears of a discarded run");
}

#[test]
fn a_machine_that_changed_before_the_welcome_is_told_after_it() {
    let mut core = AgentCore::new(Inventory::default());
    let grown = Inventory {
        topology_epoch: 2,
        ..Inventory::default()
    };
    // The first message of a stream is on its way, with the machine as it was.
    core.step(Event::Inventory(Box::new(grown.clone())), NOW);

    let told = core.step(welcome(), NOW);

    let expected = Action::SendInventory(Box::new(grown));
    assert!(told.contains(&expected), "{told:?}");
    assert!(
        !core.step(welcome(), NOW).contains(&expected),
        "once is enough"
    );
}

#[test]
fn a_start_that_waits_for_names_never_begins_after_too_long_a_silence() {
    let mut core = agent();
    core.step(Event::Start(Box::new(start_on("old", "2"))), NOW);
    core.step(started("old"), NOW);
    core.step(Event::Discard(key("old")), NOW);
    let mut start = start_on("new", "2");
    Arc::make_mut(&mut start.spec).partition.stop_if_silent = Some(Span::seconds(30));
    core.step(Event::Start(Box::new(start)), NOW);

    assert_eq!(core.step(Event::Silent(Span(29_999)), NOW), []);
    let told = sent(&core.step(Event::Silent(Span::seconds(30)), NOW));
    assert_eq!(
        (told[0].phase, told[0].reason),
        (TaskPhase::Killed, Some(Code::OutOfContact))
    );
    let actions = core.step(ended("old", Ending::Signal(15), true), NOW);
    assert_eq!(
        prepares(&actions),
        0,
        "its names are free too late: {actions:?}"
    );
}

#[test]
fn a_run_that_ended_itself_out_of_contact_says_so_whatever_its_process_made_of_it() {
    for ending in [Ending::Code(0), Ending::Code(1), Ending::Signal(15)] {
        let mut core = agent();
        core.step(Event::Start(Box::new(start_on("a", ""))), NOW);
        core.step(started("a"), NOW);
        let mut end = RunEnd::bare(ending);
        (end.stop_asked, end.out_of_contact) = (true, true);
        let told = sent(&core.step(Event::Ended { key: key("a"), end }, NOW));
        assert_eq!(
            (told[0].phase, told[0].reason),
            (TaskPhase::Killed, Some(Code::OutOfContact))
        );
    }
}

#[test]
fn disk_pressure_refuses_new_launches_and_leaves_running_ones_alone() {
    let mut core = agent();
    core.step(Event::Start(Box::new(start_on("a", ""))), NOW);
    core.step(started("a"), NOW);
    core.step(Event::DiskPressure(Some("3 MiB left".to_owned())), NOW);

    let told = sent(&core.step(Event::Start(Box::new(start_on("b", ""))), NOW));
    assert_eq!(
        (told[0].phase, told[0].reason),
        (TaskPhase::Refused, Some(Code::DiskPressure))
    );
    assert_eq!(core.live_runs(), 1);

    core.step(Event::DiskPressure(None), NOW);
    let actions = core.step(Event::Start(Box::new(start_on("c", ""))), NOW);
    assert_eq!(prepares(&actions), 1);
}

#[test]
fn names_that_the_machine_lacks_are_refused_and_named() {
    let mut core = agent();
    let told = sent(&core.step(Event::Start(Box::new(start_on("t", "9"))), NOW));
    assert_eq!(told[0].phase, TaskPhase::Refused);
    assert!(told[0].message.contains("cores 9"), "{}", told[0].message);
}

#[test]
fn an_agent_that_lost_its_memory_numbers_its_statuses_above_what_the_broker_has() {
    let mut core = AgentCore::new(Inventory::default());
    let orphan = Found {
        key: key("t"),
        start: Some(start_on("t", "")),
        state: FoundState::Adoptable,
    };
    core.restore(Vec::new(), vec![orphan], false, NOW);
    core.step(welcome(), NOW);
    core.step(ended("t", Ending::Code(0), false), NOW);

    let told = sent(&core.step(
        Event::Forget {
            key: key("t"),
            sequence: 5,
        },
        NOW,
    ));
    assert_eq!((told[0].sequence, told[0].phase), (6, TaskPhase::Finished));
}

fn recorded(phase: TaskPhase, kill: Option<Record>) -> RecordedRun {
    RecordedRun {
        start: start_on("t", ""),
        phase,
        next_sequence: 1,
        unconfirmed: Vec::new(),
        kill,
    }
}

#[test]
fn after_a_restart_a_live_run_is_adopted_and_nothing_is_told() {
    let mut core = AgentCore::new(Inventory::default());
    let found = Found {
        key: key("t"),
        start: None,
        state: FoundState::Adoptable,
    };
    let run = recorded(TaskPhase::Running, None);
    let actions = core.restore(vec![run], vec![found], false, NOW);
    assert_eq!(actions, [Action::Adopt(key("t"))]);
}

#[test]
fn after_a_restart_a_recorded_start_without_a_trace_is_done_but_never_a_second_time() {
    let mut core = AgentCore::new(Inventory::default());
    let staged = core.restore(
        vec![recorded(TaskPhase::Staging, None)],
        Vec::new(),
        false,
        NOW,
    );
    assert_eq!(prepares(&staged), 1);

    let mut core = AgentCore::new(Inventory::default());
    let ran = core.restore(
        vec![recorded(TaskPhase::Running, None)],
        Vec::new(),
        false,
        NOW,
    );
    assert_eq!(prepares(&ran), 0, "it may have run: {ran:?}");
    assert_eq!(core.held()[0].phase, TaskPhase::Failed);
}

#[test]
fn after_a_restart_a_start_still_waits_for_cores_that_an_adopted_run_holds() {
    let mut core = agent();
    let mut holder = recorded(TaskPhase::Running, None);
    holder.start = start_on("old", "1");
    let mut waiter = recorded(TaskPhase::Staging, None);
    waiter.start = start_on("new", "0-1");
    let found = Found {
        key: key("old"),
        start: None,
        state: FoundState::Adoptable,
    };

    // The one that waits is first in the order of the checkpoint.
    let actions = core.restore(vec![waiter, holder], vec![found], false, NOW);
    assert_eq!(prepares(&actions), 0, "core 1 is in use: {actions:?}");

    let actions = core.step(ended("old", Ending::Code(0), false), NOW);
    assert_eq!(prepares(&actions), 1, "core 1 is free now: {actions:?}");
}

#[test]
fn after_a_reboot_every_run_is_lost_and_none_is_looked_for() {
    let mut core = AgentCore::new(Inventory::default());
    let actions = core.restore(
        vec![recorded(TaskPhase::Running, None)],
        Vec::new(),
        true,
        NOW,
    );
    assert_eq!(prepares(&actions), 0);
    assert!(!actions.contains(&Action::Adopt(key("t"))));
    assert_eq!(core.held()[0].phase, TaskPhase::Lost);
}

fn any_event() -> impl Strategy<Value = Event> {
    let task = prop::sample::select(vec!["a", "b", "c"]);
    (task, 0_u8..9, 0_u64..6).prop_map(|(task, kind, number)| match kind {
        0 => welcome(),
        1 => Event::LinkLost,
        2 => Event::Start(Box::new(start_on(task, if number > 2 { "1" } else { "" }))),
        3 => kill(task, Some(number)),
        4 => Event::Discard(key(task)),
        5 => Event::Forget {
            key: key(task),
            sequence: number,
        },
        6 => started(task),
        7 => ended(
            task,
            Ending::Code(u8::try_from(number).unwrap_or(0)),
            number > 3,
        ),
        _ => Event::Tick,
    })
}

proptest! {
    /// Whatever happens, in whatever order: a run's phases only move forward, its numbers only
    /// rise, nothing follows its end, and no core is with two runs at a time.
    #[test]
    fn any_history_keeps_the_promises(events in prop::collection::vec(any_event(), 1..60)) {
        let mut core = agent();
        let mut last: BTreeMap<String, (u64, TaskPhase)> = BTreeMap::new();
        let mut now = NOW;
        for event in events {
            now = now.after(Span(700));
            let repeats =
                matches!(event, Event::Welcome { .. } | Event::Forget { .. } | Event::Tick);
            let dropped = if let Event::Forget { key, .. }
            | Event::Discard(key)
            | Event::Ended { key, .. } = &event
            {
                Some(key.run.to_string())
            } else {
                None
            };
            let actions = core.step(event, now);
            for status in sent(&actions) {
                let run = status.run.to_string();
                let (sequence, phase) = last.get(&run).copied().unwrap_or((0, TaskPhase::Staging));
                if status.sequence > sequence {
                    prop_assert!(
                        phase.may_become(status.phase) || (repeats && phase == status.phase),
                        "{run}: {phase} -> {}", status.phase
                    );
                    last.insert(run, (status.sequence, status.phase));
                } else {
                    prop_assert!(repeats, "{run} repeats number {}", status.sequence);
                }
            }
            let holds = |run: &str| core.held().iter().any(|h| h.key.run.to_string() == run);
            if let Some(run) = dropped && !holds(&run) {
                last.remove(&run);
            }
            let mut cores = CpuSet::new();
            for row in core.ledger() {
                let waits = core.tasks[&row.key].waiting;
                if !row.phase.is_terminal() && !waits {
                    let twice = cores.intersection(&row.resources.cores);
                    prop_assert!(twice.is_empty(), "cores {twice} are with two runs");
                    cores = cores.union(&row.resources.cores);
                }
            }
        }
    }
}

#[test]
fn an_end_that_no_other_node_would_change_has_another_reason_than_this_nodes_trouble() {
    let told = |end: RunEnd| {
        let mut core = agent();
        let mut start = start_on("a", "");
        start.resources.memory = mete_model::Bytes(1 << 20);
        core.step(Event::Start(Box::new(start)), NOW);
        let event = Event::Ended { key: key("a"), end };
        let actions = core.step(event, NOW);
        let last = actions.iter().find_map(|action| {
            let Action::Send(list) = action else {
                return None;
            };
            list.first().map(|(_, status)| status.clone())
        });
        let status = last.expect("a status");
        assert_eq!(status.phase, TaskPhase::Failed);
        (status.reason, status.message)
    };
    let text = "what happened".to_owned();
    let bare = |ending: Ending| told(RunEnd::bare(ending));
    assert_eq!(
        bare(Ending::MemoryTooSmall(text.clone())),
        (Some(Code::OutOfMemory), text.clone())
    );
    assert_eq!(
        bare(Ending::ExecFailed(text.clone())),
        (Some(Code::ExecFailed), text.clone())
    );
    let prepare = Ending::PrepareFailed(text.clone());
    assert_eq!(bare(prepare.clone()), (Some(Code::PrepareFailed), text));
    // Ended by its own limit while it was made ready: the limit's doing, with the figures.
    let mut end = RunEnd::bare(prepare);
    end.out_of_memory = Some(true);
    end.usage = Some(mete_model::Usage {
        memory_peak: mete_model::Bytes(1 << 20),
        ..mete_model::Usage::default()
    });
    let (reason, message) = told(end);
    assert_eq!(reason, Some(Code::OutOfMemory));
    assert_eq!(
        message,
        "passed its memory limit of 1 MiB; it used 1 MiB at most"
    );
}
