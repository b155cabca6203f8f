//! Random sequences of commands, odd ones among them: after each the invariants hold, `check` has
//! told what `apply` does, a refusal has changed nothing, two replicas are equal, and a snapshot
//! gives the same state again (`support::Cluster::step` checks all of it). What is owed leads to
//! an end: when everything owed is carried out, nothing is owed any more.

#![expect(
    clippy::arithmetic_side_effects,
    clippy::wildcard_enum_match_arm,
    reason = "numbers in tests are small; a step that is of no use somewhere is passed"
)]

mod steps;
mod support;

use std::collections::BTreeSet;

use mete_model::{Code, Span, TaskPhase};
use mete_state::command::Subscribe;
use mete_state::{
    AgentCondition, Caller, Command, Effect, Outcome, Rejection, Stamped, State, StoreVerdict,
    Verdict,
};
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;
use steps::{Step, command, step, step_apart};
use support::{Cluster, admit, agent_id, framework_id, machine, role, settings, status};

/// Roles, agents and frameworks to begin with, so that launches pass often.
fn begun() -> Cluster {
    let mut cluster = Cluster::default();
    for path in ["a", "a/b"] {
        let set = Command::SetRole {
            path: role(path),
            weight_milli: None,
            actor: String::new(),
        };
        cluster.step(set).expect("a new role");
    }
    for number in 0..3 {
        let admit = admit(number, machine("b0"));
        cluster
            .step(Command::AdmitAgent(admit))
            .expect("a new agent");
    }
    for number in 0..3_u8 {
        let subscribe = Subscribe {
            framework: framework_id(number.into()),
            principal: "p".to_owned(),
            name: format!("f{number}"),
            incarnation: 0,
            settings: settings(&["a", "a/b"]),
        };
        cluster
            .step(Command::Subscribe(subscribe))
            .expect("a new framework");
    }
    cluster
}

fn take(cluster: &mut Cluster, step: &Step, last: &mut Option<Command>) {
    match step {
        Step::Wait(hours) => {
            let hours = u64::from(*hours);
            cluster.clock = cluster
                .clock
                .after(Span::minutes(hours * hours * hours * 60));
        }
        Step::Due => {
            for due in cluster.state.due(cluster.clock) {
                cluster.step(due).expect("what is due passes");
            }
            let next = cluster.state.next_due();
            assert!(
                next.is_none_or(|next| next > cluster.clock),
                "due again at once"
            );
        }
        Step::Repeat => {
            if let Some(command) = last.clone() {
                // Whatever it answers, `step` checks that a repeat is one.
                let _answer = cluster.step(command);
            }
        }
        _ => {
            if let Some(command) = command(&cluster.state, step)
                && cluster.step(command.clone()).is_ok()
            {
                *last = Some(command);
            }
        }
    }
}

/// Everything that came out of the sequences, by its name.
fn reached(cluster: &Cluster, result: &Result<Outcome, Rejection>, seen: &mut BTreeSet<String>) {
    let outcome = match result {
        Ok(outcome) => outcome,
        Err(rejection) => {
            seen.insert(format!("rejected {}", rejection.code));
            return;
        }
    };
    match &outcome.verdict {
        Verdict::Launched(tasks) => {
            seen.extend(tasks.iter().map(|task| format!("launch {}", task.code)));
        }
        Verdict::Killed(items) => {
            seen.extend(items.iter().map(|item| format!("kill {}", item.code)));
        }
        Verdict::Acknowledged(items) => {
            seen.extend(
                items
                    .iter()
                    .map(|item| format!("acknowledge {}", item.code)),
            );
        }
        Verdict::StoreWritten(StoreVerdict::Conflict(_)) => {
            seen.insert("store conflict".to_owned());
        }
        Verdict::TornDown(left) if !left.is_empty() => {
            seen.insert("torn down with runs".to_owned());
        }
        Verdict::Admitted { discard, .. } if !discard.is_empty() => {
            seen.insert("discard".to_owned());
        }
        _ => {}
    }
    if outcome.revision < cluster.revision {
        seen.insert("repeat".to_owned());
    }
    for run in cluster.state.all_runs().chain(cluster.state.history()) {
        seen.extend(run.reasons().map(|reason| format!("end {reason}")));
    }
    reached_replacements(&cluster.state, seen);
    for (what, there) in [
        ("history", cluster.state.history().next().is_some()),
        ("tombstone", cluster.state.tombstones().next().is_some()),
        (
            "shrunk",
            cluster.state.agents().any(|agent| {
                let granted = cluster.state.granted(agent.id).expect("its holdings");
                granted.cpu > agent.inventory.total.cpu && agent.condition != AgentCondition::Gone
            }),
        ),
    ] {
        if there {
            seen.insert(what.to_owned());
        }
    }
}

fn reached_replacements(state: &State, seen: &mut BTreeSet<String>) {
    for run in state.all_runs() {
        let places = run.replacement.places();
        if places.replaceable.is_some() {
            seen.insert("replaceable".to_owned());
        }
        if places.replaced_by.is_some() {
            seen.insert("replaced".to_owned());
        }
        let ending = run.kill.as_ref();
        if ending.is_some_and(|kill| kill.by == Code::Replaced) {
            let stays = match places.replaced_by {
                Some(_) => "the newest stays",
                None => "the oldest stays",
            };
            seen.insert(stays.to_owned());
        }
    }
}

/// What random sequences must come upon, or they check too little.
const REACHED: &[&str] = &[
    "launch OK",
    "launch NOT_ALONE",
    "launch NAMES_TAKEN",
    "launch NOT_ENOUGH",
    "launch STALE_EPOCH",
    "launch NOT_OFFERED",
    "launch ALREADY_EXISTS",
    "launch AGENT_UNAVAILABLE",
    "launch NOT_REPLACEABLE",
    "kill OK",
    "kill ALREADY_TERMINAL",
    "kill NOT_FOUND",
    "acknowledge OK",
    "acknowledge INVALID",
    "acknowledge NOT_FOUND",
    "store conflict",
    "rejected STALE_INCARNATION",
    "rejected TORN_DOWN",
    "rejected INVALID",
    "rejected DENIED",
    "rejected STALE_DEMAND",
    "rejected IN_USE",
    "rejected NOT_FOUND",
    "end NODE_REBOOTED",
    "end NOT_ON_NODE",
    "end AGENT_WIPED",
    "end GONE_BY_OPERATOR",
    "end KILLED_BY_FRAMEWORK",
    "end EXIT_CODE",
    "the newest stays",
    "replaceable",
    "replaced",
    "the oldest stays",
    "torn down with runs",
    "discard",
    "repeat",
    "history",
    "tombstone",
    "shrunk",
];

#[test]
fn random_sequences_reach_what_they_are_meant_to_check() {
    let mut runner = TestRunner::deterministic();
    let mut seen = BTreeSet::new();
    for sequence in 0..280 {
        let kind = if sequence < 160 {
            step().boxed()
        } else {
            step_apart().boxed()
        };
        let steps = prop::collection::vec(kind, 60..80);
        let steps = steps.new_tree(&mut runner).expect("steps").current();
        let (mut cluster, mut last) = (begun(), None);
        for step in &steps {
            match command(&cluster.state, step) {
                Some(command) => {
                    let result = cluster.step(command.clone());
                    reached(&cluster, &result, &mut seen);
                    if result.is_ok() {
                        last = Some(command);
                    }
                }
                None => match last.clone().filter(|_| matches!(step, Step::Repeat)) {
                    Some(command) => {
                        let result = cluster.step(command);
                        reached(&cluster, &result, &mut seen);
                    }
                    None => take(&mut cluster, step, &mut last),
                },
            }
        }
    }
    for wanted in REACHED {
        assert!(
            seen.contains(*wanted),
            "never reached: {wanted}; seen {seen:?}"
        );
    }
}

/// Carries out what is owed as agents and frameworks would.
fn settle(cluster: &mut Cluster) {
    for number in 0..9 {
        let ready = Command::SetAgentCondition {
            agent: agent_id(number),
            condition: AgentCondition::Ready,
        };
        let _unknown_or_gone = cluster.step(ready);
    }
    for _round in 0..3 {
        let owed: Vec<Effect> = cluster.state.owed().collect();
        for effect in owed {
            carry_out(cluster, effect);
        }
    }
}

fn carry_out(cluster: &mut Cluster, effect: Effect) {
    match effect {
        Effect::StartTask {
            agent,
            framework,
            run,
        }
        | Effect::KillTask {
            agent,
            framework,
            run,
        } => {
            let live = cluster.state.run(framework, &run).expect("it is owed");
            let ended = status(run, live.sequence + 1, TaskPhase::Killed, None);
            let record = Command::RecordStatuses {
                agent,
                statuses: vec![(framework, ended)],
            };
            cluster.step(record).expect("a known agent's status");
        }
        Effect::TellStatus {
            framework,
            run,
            sequence,
        } => {
            let known = cluster
                .state
                .framework(framework)
                .expect("only live ones are told");
            let told = cluster.state.status(framework, &run, sequence);
            assert!(told.is_some() || cluster.state.past_run(framework, &run).is_some());
            let acknowledge = Command::Acknowledge {
                caller: Caller {
                    framework,
                    incarnation: known.incarnation,
                    call: 0,
                    answered: 0,
                },
                items: vec![(run, sequence)],
            };
            let outcome = cluster.step(acknowledge).expect("its own status");
            let taken = matches!(&outcome.verdict, Verdict::Acknowledged(items)
                if items[0].code == Code::Ok);
            assert!(taken, "{outcome:?}");
        }
        Effect::DiscardTask { .. }
        | Effect::ForgetStatuses { .. }
        | Effect::TellAgent { .. }
        | Effect::TellReplaceable { .. }
        | Effect::Fence { .. }
        | Effect::EndStreams { .. } => panic!("not owed for long: {effect:?}"),
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 96,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn any_sequence_of_commands_keeps_every_promise(
        steps in prop_oneof![
            2 => prop::collection::vec(step(), 1..80),
            1 => prop::collection::vec(step_apart(), 1..80),
        ],
    ) {
        let mut cluster = begun();
        let mut last = None;
        for step in &steps {
            take(&mut cluster, step, &mut last);
        }

        settle(&mut cluster);

        let owed: Vec<Effect> = cluster.state.owed().collect();
        prop_assert!(owed.is_empty(), "still owed: {:?}", owed);
    }

    #[test]
    fn the_clock_of_the_state_never_runs_backwards(
        stamps in prop::collection::vec(0..1000_u64, 2..20),
    ) {
        let mut state = State::new();
        let mut latest = 0;
        for (revision, at) in (1..).zip(&stamps) {
            latest = latest.max(*at);
            let command = Command::SetRole {
                path: role("a"),
                weight_milli: Some(u32::try_from(revision).expect("few")),
                actor: String::new(),
            };
            let stamped = Stamped { at: mete_model::Timestamp(*at), command };
            state.apply(revision, &stamped).expect("a weight");
            prop_assert_eq!(state.clock().0, latest);
        }
    }
}
