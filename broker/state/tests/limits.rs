//! What is bounded stays bounded, and says so before anything is lost.

#![expect(clippy::arithmetic_side_effects, reason = "numbers in tests are small")]

mod support;

use mete_model::{Code, FrameworkId, RunId, TaskPhase, Timestamp};
use mete_state::command::{Launch, StorePut, Subscribe};
use mete_state::{
    Caller, Command, Outcome, Rejection, Stamped, State, StoreVerdict, Verdict, invariants, limits,
};
use support::{
    admit, agent_id, claim, claim_id, framework_id, machine, resources, role, run_id, settings,
    status, task,
};

struct Small {
    state: State,
    revision: u64,
}

impl Small {
    /// One agent, one framework.
    fn new() -> Self {
        let mut small = Self {
            state: State::new(),
            revision: 0,
        };
        small.pass(Command::SetRole {
            path: role("batch"),
            weight_milli: None,
            actor: String::new(),
        });
        small.pass(Command::AdmitAgent(admit(1, machine("b"))));
        small.subscribe(1);
        small
    }

    fn apply(&mut self, command: Command) -> Result<Outcome, Rejection> {
        self.revision += 1;
        let stamped = Stamped {
            at: Timestamp(self.revision),
            command,
        };
        self.state.apply(self.revision, &stamped)
    }

    fn pass(&mut self, command: Command) -> Verdict {
        self.apply(command).expect("a good command").verdict
    }

    fn subscribe(&mut self, number: u128) {
        self.pass(Command::Subscribe(Subscribe {
            framework: framework_id(number),
            principal: "p".to_owned(),
            name: format!("f{number}"),
            incarnation: 0,
            settings: settings(&["batch"]),
        }));
    }

    fn launch(&mut self, run: RunId, call: u64) -> Result<Outcome, Rejection> {
        self.apply(Command::Launch(Launch {
            caller: caller(framework_id(1), call),
            role: role("batch"),
            agent: agent_id(1),
            topology_epoch: 1,
            tasks: vec![task(run, None, resources(1, 0, "", Vec::new()))],
            each_alone: false,
        }))
    }

    fn tell(&mut self, run: &RunId, sequence: u64, phase: TaskPhase) {
        let one = status(run.clone(), sequence, phase, None);
        self.pass(Command::RecordStatuses {
            agent: agent_id(1),
            statuses: vec![(framework_id(1), one)],
        });
    }

    fn whole_life(&mut self, run: RunId) {
        self.launch(run.clone(), 0).expect("there is room");
        self.tell(&run, 1, TaskPhase::Finished);
        self.pass(Command::Acknowledge {
            caller: caller(framework_id(1), 0),
            items: vec![(run, 1)],
        });
    }

    fn put(&mut self, framework: u128, key: &str, length: usize) -> Verdict {
        self.pass(Command::WriteStore {
            caller: caller(framework_id(framework), 0),
            puts: vec![StorePut {
                key: key.as_bytes().to_vec(),
                value: vec![0; length],
                expected: None,
            }],
            deletes: Vec::new(),
        })
    }
}

fn caller(framework: FrameworkId, call: u64) -> Caller {
    Caller {
        framework,
        incarnation: 1,
        call,
        answered: 0,
    }
}

fn numbered(number: usize) -> RunId {
    run_id(&format!("t{number}#1"))
}

#[test]
fn history_keeps_the_last_thousand_runs_and_the_names_of_older_ones() {
    let mut small = Small::new();
    let count = limits::HISTORY_OF_A_FRAMEWORK + 50;
    for number in 0..count {
        small.whole_life(numbered(number));
    }

    let kept = small.state.history_of(framework_id(1));
    assert_eq!(kept.count(), limits::HISTORY_OF_A_FRAMEWORK);
    let first = small.state.history().next().expect("a full history");
    assert_eq!(first.id, numbered(50));
    let ended = small.state.ended_run(framework_id(1), &numbered(0));
    assert_eq!(ended.map(|ended| ended.phase), Some(TaskPhase::Finished));
    let again = small.launch(numbered(0), 0).expect("a verdict");
    let Verdict::Launched(tasks) = again.verdict else {
        panic!("a launch is answered as one");
    };
    assert_eq!(tasks[0].code, Code::AlreadyExists);
    assert_eq!(invariants::check(&small.state), []);
}

#[test]
fn statuses_of_a_run_are_merged_when_nobody_acknowledges_them() {
    let mut small = Small::new();
    small.launch(numbered(1), 0).expect("there is room");
    for sequence in 1..=40 {
        small.tell(&numbered(1), sequence, TaskPhase::Running);
    }
    small.tell(&numbered(1), 41, TaskPhase::Finished);

    let run = small
        .state
        .run(framework_id(1), &numbered(1))
        .expect("not acknowledged");
    assert_eq!(run.statuses.len(), limits::STATUSES_OF_A_RUN);
    assert!(run.statuses[0].coalesced, "the merge is marked");
    let last = run.end().expect("an end is never merged away");
    assert_eq!((last.sequence, last.phase), (41, TaskPhase::Finished));
    assert_eq!(invariants::check(&small.state), []);
}

#[test]
fn a_store_that_is_full_takes_only_what_makes_room() {
    let mut small = Small::new();
    let value = limits::STORE_VALUE_BYTES;
    let most = usize::try_from(limits::STORE_BYTES).expect("64 MiB") / value;
    for number in 0..most - 1 {
        let written = small.put(1, &format!("k{number}"), value);
        assert_eq!(written, Verdict::StoreWritten(StoreVerdict::Written));
    }
    let used = small.state.store_bytes(framework_id(1));

    let refused = small.put(1, "one-more", value);
    let Verdict::StoreWritten(StoreVerdict::Full {
        used: said,
        wanted,
        limit,
    }) = refused
    else {
        // The keys count too, so the last value does not fit.
        panic!("must be full: {refused:?}");
    };
    assert_eq!((said, limit), (used, limits::STORE_BYTES));
    assert!(wanted > limit);
    let smaller = small.put(1, "k0", 10);
    assert_eq!(smaller, Verdict::StoreWritten(StoreVerdict::Written));
    assert!(small.state.store_bytes(framework_id(1)) < used);
    assert_eq!(
        small.state.store_bytes_in_all(),
        small.state.store_bytes(framework_id(1))
    );
    assert_eq!(invariants::check(&small.state), []);
}

#[test]
fn a_framework_has_ten_thousand_claims_and_no_more() {
    let mut small = Small::new();
    let claims = |range: std::ops::Range<usize>| {
        range
            .map(|at| claim(&format!("c{at}"), "batch", 10, 1))
            .collect::<Vec<_>>()
    };
    let demand = |version, upsert, remove: &[&str]| Command::UpdateDemand {
        caller: caller(framework_id(1), 0),
        version,
        upsert,
        remove: remove.iter().map(|id| claim_id(id)).collect(),
    };
    let most = limits::CLAIMS_OF_A_FRAMEWORK;
    small.pass(demand(1, claims(0..most), &[]));

    let refused = small
        .apply(demand(2, claims(most..most + 1), &[]))
        .expect_err("too many");
    assert_eq!(
        (refused.code, refused.fields[0].field.as_str()),
        (Code::Invalid, "upsert")
    );
    small.pass(demand(2, claims(most..most + 1), &["c0"]));
    assert_eq!(small.state.claims(framework_id(1)).count(), most);
}

#[test]
fn verdicts_of_unanswered_calls_are_kept_up_to_the_window_and_then_the_framework_must_wait() {
    let mut small = Small::new();
    for call in 1..=limits::UNANSWERED_CALLS {
        small
            .launch(run_id(&format!("t{call}#1")), call)
            .expect("within the window");
    }

    let refused = small
        .launch(run_id("more#1"), limits::UNANSWERED_CALLS + 1)
        .expect_err("beyond the window");
    assert_eq!(refused.code, Code::Busy);
    let first = small
        .launch(run_id("t1#1"), 1)
        .expect("a repeat is always answered");
    assert!(first.revision < small.revision && first.effects.is_empty());
    assert_eq!(invariants::check(&small.state), []);
}

#[test]
fn a_cluster_that_runs_for_long_grows_with_what_lives_only() {
    let mut small = Small::new();
    let parts = |state: &State| state.to_parts().count();
    let mut after_first_round = 0;
    for round in 0..6_u64 {
        for number in 0..60 {
            let framework = 100 + u128::from(round) * 100 + number;
            small.subscribe(framework);
            small.put(framework, "key", 10);
            small.pass(Command::AdmitAgent(admit(framework, machine("b"))));
            small.pass(Command::RemoveFramework {
                framework: framework_id(framework),
                actor: "ops".to_owned(),
            });
            small.pass(Command::RemoveAgent {
                agent: agent_id(framework),
                actor: "ops".to_owned(),
            });
            small.whole_life(run_id(&format!("r{round}-{number}#1")));
        }
        // Fifteen days pass.
        small.revision += 15 * 24 * 3_600_000;
        while let Some(due) = small.state.due(Timestamp(small.revision)).pop() {
            small.pass(due);
        }
        if round == 0 {
            after_first_round = parts(&small.state);
        }
    }

    assert_eq!(parts(&small.state), after_first_round);
    assert_eq!(small.state.tombstones().count(), 0);
    assert_eq!(small.state.agents().count(), 1);
    assert_eq!(small.state.history().count(), 0);
    assert_eq!(invariants::check(&small.state), []);
}
