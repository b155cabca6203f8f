use mete_model::{RolePath, Shape, TaskId};

use super::*;

fn run(text: &str) -> RunId {
    text.parse().expect("a run")
}

fn claim(id: &str, count: u32, launched: u32) -> ClaimInfo {
    ClaimInfo {
        claim: mete_model::Claim {
            id: ClaimId::new(id).expect("an id"),
            role: RolePath::new("dev").expect("a role"),
            shape: Shape::default(),
            count,
            priority: 0,
            labels: BTreeMap::new(),
            expected_runtime: None,
        },
        launched,
    }
}

fn launch(id: &str, claim: &str) -> RunInfo {
    RunInfo {
        claim: Some(ClaimId::new(claim).expect("an id")),
        ..RunInfo::unknown(run(id))
    }
}

fn status(id: &str, sequence: u64, phase: TaskPhase) -> TaskUpdate {
    TaskUpdate {
        sequence,
        phase,
        ..vanished_update(&RunInfo::unknown(run(id)))
    }
}

fn view_with_claim() -> View {
    let mut view = View::default();
    view.declared(&[claim("c", 2, 0).claim], &[]);
    view
}

#[test]
fn a_launch_counts_from_the_moment_it_is_sent_and_only_once() {
    let mut view = view_with_claim();
    view.launching([launch("t#1", "c")]);
    assert_eq!((view.live(), view.wanted()), (1, 1));

    // The first status overtakes the reply.
    let mut first = status("t#1", 1, TaskPhase::Running);
    assert_eq!(view.receive(&mut first), Receipt::New);
    assert_eq!(first.claim.as_ref().map(ClaimId::as_str), Some("c"));
    view.launched(&run("t#1"), 7);
    assert_eq!((view.live(), view.wanted()), (1, 1));
}

#[test]
fn a_refused_launch_is_wanted_again() {
    let mut view = view_with_claim();
    view.launching([launch("t#1", "c")]);
    view.refused(&run("t#1"));
    assert_eq!((view.live(), view.wanted()), (0, 2));
    // A second word about it changes nothing.
    view.refused(&run("t#1"));
    assert_eq!(view.live(), 0);
}

#[test]
fn a_task_is_live_until_its_end_was_handed_over() {
    let mut view = view_with_claim();
    view.launching([launch("t#1", "c")]);
    let mut end = status("t#1", 1, TaskPhase::Finished);
    assert_eq!(view.receive(&mut end), Receipt::New);
    assert_eq!(view.live(), 1);
    view.hand_over(&end);
    view.hand_over(&end);
    assert_eq!(view.live(), 0);
}

#[test]
fn duplicates_are_known_before_during_and_after_handling() {
    let mut view = view_with_claim();
    let mut end = status("t#1", 3, TaskPhase::Finished);
    assert_eq!(view.receive(&mut end), Receipt::New);
    assert_eq!(view.receive(&mut end.clone()), Receipt::Duplicate);
    view.hand_over(&end);
    view.handled(&end.run(), 3);
    assert_eq!(view.receive(&mut end.clone()), Receipt::Handled);
    view.acknowledged(&end.run(), 3);
    assert_eq!(view.receive(&mut end.clone()), Receipt::Handled);
    assert_eq!(view.live(), 0, "a late duplicate must not revive the run");
}

#[test]
fn memory_of_ended_runs_is_bounded() {
    let mut view = View::default();
    for number in 0..ENDED_KEPT + 10 {
        let task = TaskId::new(&format!("t{number}")).expect("an id");
        let mut end = status("t#1", 1, TaskPhase::Finished);
        end.task = task;
        view.receive(&mut end);
        view.hand_over(&end);
        view.handled(&end.run(), 1);
        view.acknowledged(&end.run(), 1);
    }
    assert_eq!(view.ended.len(), ENDED_KEPT);
    assert!(view.runs.is_empty());
}

#[test]
fn a_snapshot_counts_its_own_launches_and_finds_what_vanished() {
    let mut view = view_with_claim();
    view.launching([
        launch("in#1", "c"),
        launch("late#1", "c"),
        launch("old#1", "c"),
    ]);
    view.launched(&run("late#1"), 90);
    view.launched(&run("old#1"), 10);

    let open = view.restore(Arrived {
        runs: vec![SnapshotRun {
            info: launch("in#1", "c"),
            acknowledged: 0,
            unacknowledged: vec![status("in#1", 1, TaskPhase::Running)],
        }],
        claims: vec![claim("c", 9, 2)],
        revision: 50,
        ..Arrived::default()
    });

    // `old` was committed before the snapshot and is not in it; `late` came after it.
    let told: Vec<(String, TaskPhase)> = open
        .iter()
        .map(|update| (update.run().to_string(), update.phase))
        .collect();
    assert_eq!(
        told,
        [
            ("in#1".to_owned(), TaskPhase::Running),
            ("old#1".to_owned(), TaskPhase::Lost)
        ]
    );
    assert_eq!(view.wanted(), 7);
    // Its verdict comes late and counts nothing twice.
    view.launched(&run("in#1"), 40);
    assert_eq!(view.wanted(), 7);
}

#[test]
fn a_snapshot_of_changes_only_takes_no_run_away_and_names_every_claim() {
    let mut view = view_with_claim();
    view.declared(&[claim("gone", 3, 0).claim], &[]);
    view.launching([launch("t#1", "c")]);
    view.launched(&run("t#1"), 10);
    assert_eq!((view.live(), view.wanted()), (1, 4));
    let open = view.restore(Arrived {
        revision: 50,
        changes_only: true,
        claims: vec![claim("c", 2, 1)],
        ..Arrived::default()
    });
    assert!(open.is_empty());
    assert_eq!(
        (view.live(), view.wanted()),
        (1, 1),
        "one claim was withdrawn"
    );
}
