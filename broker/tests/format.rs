//! Stored commands and snapshots come back the same, stay small, and damage is an error.
//!
//! `corpus/log/*.bin` and `corpus/snapshot/*.bin` hold bytes that some release has written, with
//! what they mean beside them. `METE_WRITE_CORPUS=1` adds what is missing, and changes nothing.
#![expect(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

#[path = "../../proto/tests/dice/mod.rs"]
mod dice;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use dice::Dice;
use mete_broker::format::{
    FormatError, PartsReader, SnapshotError, decode_command, encode_command, write_parts,
};
use mete_model::{Code, GrantId, MilliCpu, Resources, RunId, TaskId, TaskSpec, Timestamp};
use mete_state::command::{
    AddMaster, AdmitAgent, FrameworkSettings, HeldRun, Launch, LaunchTask, SetMaster, StoreDelete,
    StorePut, Subscribe,
};
use mete_state::{
    Agent, AgentCondition, Caller, ClaimRecord, Command, EndedRun, Framework, ItemVerdict, Kill,
    LaunchVerdict, Master, Meta, Part, Places, Replacement, Role, Run, Seat, Stamped, StoreRecord,
    StoreVerdict, StoredVerdict, Texts, Tombstone, Verdict,
};
use proptest::prelude::*;

fn caller(dice: &mut Dice) -> Caller {
    Caller {
        framework: dice.framework(),
        incarnation: dice.roll(),
        call: dice.upto(u64::MAX),
        answered: dice.upto(5),
    }
}

fn settings(dice: &mut Dice) -> FrameworkSettings {
    FrameworkSettings {
        roles: dice.list(3, Dice::role),
        suppressed: dice.list(2, Dice::role),
        failover_timeout: dice.maybe(Dice::long),
        plain_offers: dice.yes(),
        labels: dice.labels(),
        service_address: dice.text(),
    }
}

fn launch(dice: &mut Dice) -> Launch {
    let specs = [Arc::new(dice.spec()), Arc::new(dice.spec())];
    let claims = [dice.claim_id(), dice.claim_id()];
    Launch {
        caller: caller(dice),
        role: dice.role(),
        agent: dice.agent(),
        topology_epoch: dice.roll(),
        tasks: dice.list(6, |dice| LaunchTask {
            run: dice.run(),
            claim: dice.maybe(|dice| claims[usize::from(dice.yes())].clone()),
            resources: dice.resources(),
            spec: Arc::clone(&specs[usize::from(dice.yes())]),
            environment: dice.labels(),
            labels: dice.labels(),
            replaces: dice.maybe(Dice::run),
        }),
        each_alone: dice.yes(),
    }
}

fn bytes(dice: &mut Dice) -> Vec<u8> {
    dice.word().into_bytes()
}

/// One command of every kind.
fn commands(dice: &mut Dice) -> Vec<Command> {
    let condition = [AgentCondition::Ready, AgentCondition::Unreachable];
    vec![
        Command::AdmitAgent(AdmitAgent {
            agent: dice.agent(),
            node_key: mete_model::NodeKey(dice.uuid()),
            node_name: dice.word(),
            inventory: dice.inventory(),
            held: dice.list(3, |dice| HeldRun {
                framework: dice.framework(),
                run: dice.run(),
                phase: dice.phase(),
                last_sequence: dice.roll(),
            }),
        }),
        Command::SetAgentCondition {
            agent: dice.agent(),
            condition: dice.of(&condition),
        },
        Command::RemoveAgent {
            agent: dice.agent(),
            actor: dice.text(),
        },
        Command::Subscribe(Subscribe {
            framework: dice.framework(),
            principal: dice.text(),
            name: dice.word(),
            incarnation: dice.roll(),
            settings: settings(dice),
        }),
        Command::Disconnect {
            framework: dice.framework(),
            incarnation: dice.roll(),
        },
        Command::UpdateFramework {
            caller: caller(dice),
            settings: settings(dice),
        },
        Command::UpdateDemand {
            caller: caller(dice),
            version: dice.roll(),
            upsert: dice.list(3, Dice::claim),
            remove: dice.list(3, Dice::claim_id),
        },
        Command::Suppress {
            caller: caller(dice),
            roles: dice.list(3, Dice::role),
            suppressed: dice.yes(),
        },
        Command::SuppressByOperator {
            framework: dice.framework(),
            suppress: dice.list(2, Dice::role),
            revive: dice.list(2, Dice::role),
            actor: dice.text(),
        },
        Command::Launch(launch(dice)),
        Command::Kill {
            caller: caller(dice),
            runs: dice.list(3, Dice::run),
            grace: dice.maybe(|dice| mete_model::Span(dice.upto(9))),
            reason: dice.text(),
        },
        Command::KillByOperator {
            runs: dice.list(3, |dice| (dice.framework(), dice.run())),
            grace: dice.maybe(|dice| mete_model::Span(dice.upto(9))),
            reason: dice.text(),
            actor: dice.text(),
        },
        {
            let frameworks = [dice.framework(), dice.framework()];
            Command::RecordStatuses {
                agent: dice.agent(),
                statuses: dice.list(5, |dice| (dice.of(&frameworks), dice.status())),
            }
        },
        Command::Acknowledge {
            caller: caller(dice),
            items: dice.list(5, |dice| (dice.run(), dice.roll())),
        },
        Command::WriteStore {
            caller: caller(dice),
            puts: dice.list(3, |dice| StorePut {
                key: bytes(dice),
                value: bytes(dice),
                expected: dice.maybe(|dice| dice.upto(7)),
            }),
            deletes: dice.list(3, |dice| StoreDelete {
                key: bytes(dice),
                expected: dice.maybe(|dice| dice.upto(7)),
            }),
        },
        Command::Teardown {
            caller: caller(dice),
        },
        Command::RemoveFramework {
            framework: dice.framework(),
            actor: dice.text(),
        },
        Command::SetRole {
            path: dice.role(),
            weight_milli: dice.maybe(|dice| dice.small(0, 5000)),
            actor: dice.text(),
        },
        Command::RemoveRole {
            path: dice.role(),
            actor: dice.text(),
        },
        Command::AddMaster(AddMaster {
            address: dice.text(),
            seat: seat(dice),
            replaces: dice.upto(9),
            above: dice.roll(),
            actor: dice.text(),
        }),
        Command::SetMaster(SetMaster {
            node: dice.roll(),
            address: dice.maybe(Dice::text),
            seat: dice.maybe(seat),
            replaces: dice.maybe(|dice| dice.upto(9)),
            actor: dice.text(),
        }),
        Command::RemoveMaster {
            node: dice.roll(),
            actor: dice.text(),
        },
        Command::RaiseLevel {
            level: dice.small(0, 90),
        },
        Command::Tick,
        Command::MarkReplaceable {
            agent: dice.agent(),
        },
        // Last, so that the samples before it keep their places.
        Command::Launch(launch(dice)),
    ]
}

fn seat(dice: &mut Dice) -> Seat {
    dice.of(&[Seat::Learner, Seat::Voter, Seat::Leaving])
}

fn time(dice: &mut Dice) -> Timestamp {
    Timestamp(dice.upto(1 << 50))
}

fn run(dice: &mut Dice, spec: &Arc<TaskSpec>) -> Box<Run> {
    let id = dice.run();
    let statuses = dice.list(3, Dice::status).into_iter().map(|mut status| {
        status.run = id.clone();
        status
    });
    Box::new(Run {
        framework: dice.framework(),
        agent: dice.agent(),
        role: dice.role(),
        claim: dice.maybe(Dice::claim_id),
        grant: GrantId(dice.roll()),
        resources: dice.resources(),
        spec: Arc::clone(spec),
        environment: Texts::from(&dice.labels()),
        labels: Texts::from(&dice.labels()),
        phase: dice.phase(),
        launched: time(dice),
        launched_at: dice.roll(),
        started: dice.maybe(time),
        ended: dice.maybe(time),
        sequence: dice.roll(),
        acknowledged: dice.roll(),
        kill: dice.maybe(|dice| {
            Box::new(Kill {
                since: time(dice),
                grace: dice.maybe(Dice::long),
                by: Code::KilledByOperator,
                actor: dice.text(),
                reason: dice.text(),
            })
        }),
        replacement: Replacement::from(Places {
            replaceable: dice.maybe(time),
            replaces: dice.maybe(Dice::run),
            replaced_by: dice.maybe(Dice::run),
        }),
        revision: dice.roll(),
        statuses: statuses.collect(),
        id,
    })
}

fn verdicts(dice: &mut Dice) -> Vec<Verdict> {
    let item = |dice: &mut Dice| ItemVerdict {
        code: dice.of(&[Code::Ok, Code::NotFound]),
        detail: dice.text(),
    };
    vec![
        Verdict::Done,
        Verdict::Admitted {
            agent: dice.agent(),
            discard: dice.list(2, |dice| (dice.framework(), dice.run())),
        },
        Verdict::Subscribed {
            framework: dice.framework(),
            incarnation: dice.roll(),
            known: dice.yes(),
        },
        Verdict::Launched(dice.list(3, |dice| LaunchVerdict {
            code: dice.of(&[Code::Ok, Code::NamesTaken]),
            detail: dice.text(),
            grant: dice.maybe(|dice| GrantId(dice.upto(3))),
        })),
        Verdict::Killed(dice.list(3, item)),
        Verdict::Acknowledged(dice.list(3, item)),
        Verdict::StoreWritten(StoreVerdict::Written),
        Verdict::StoreWritten(StoreVerdict::Conflict(
            dice.list(3, |dice| (bytes(dice), dice.roll())),
        )),
        Verdict::StoreWritten(StoreVerdict::Full {
            used: dice.roll(),
            wanted: dice.roll(),
            limit: dice.roll(),
        }),
        Verdict::TornDown(dice.list(3, Dice::run)),
        Verdict::MasterAdded { node: dice.roll() },
        Verdict::RoleSet {
            created: dice.yes(),
        },
    ]
}

/// One record of every kind, some twice.
fn parts(dice: &mut Dice) -> Vec<Part> {
    let spec = Arc::new(dice.spec());
    let other = Arc::new(dice.spec());
    let mut parts = vec![
        Part::Meta(Meta {
            revision: dice.roll(),
            clock: time(dice),
            last_grant: GrantId(dice.roll()),
            last_master: dice.roll(),
            level: dice.small(0, 90),
        }),
        Part::Master(Master {
            node: dice.roll(),
            address: dice.text(),
            seat: seat(dice),
            replaces: dice.upto(9),
            added: time(dice),
            revision: dice.roll(),
        }),
        Part::Role(Role {
            path: dice.role(),
            weight_milli: dice.small(0, 9000),
            created: time(dice),
            revision: dice.roll(),
        }),
        Part::Agent(Agent {
            id: dice.agent(),
            node_key: mete_model::NodeKey(dice.uuid()),
            node_name: dice.word(),
            inventory: Arc::new(dice.inventory()),
            condition: dice.of(&[AgentCondition::Gone, AgentCondition::Ready]),
            since: time(dice),
            admitted: time(dice),
            revision: dice.roll(),
        }),
        Part::Framework(Framework {
            id: dice.framework(),
            principal: dice.text(),
            name: dice.word(),
            incarnation: dice.roll(),
            settings: settings(dice),
            subscribed: time(dice),
            away: dice.maybe(time),
            demand_version: dice.roll(),
            answered: dice.roll(),
            revision: dice.roll(),
        }),
        Part::Tombstone(Tombstone {
            framework: dice.framework(),
            principal: dice.text(),
            name: dice.word(),
            incarnation: dice.roll(),
            call: dice.roll(),
            actor: dice.text(),
            torn_down: time(dice),
            settled: dice.maybe(time),
            revision: dice.roll(),
        }),
        Part::Claim(ClaimRecord {
            framework: dice.framework(),
            claim: dice.claim(),
            launched: dice.small(0, 9),
            submitted: time(dice),
            declared: dice.roll(),
            revision: dice.roll(),
        }),
        Part::Run(run(dice, &spec)),
        Part::Run(run(dice, &spec)),
        Part::History(run(dice, &other)),
        Part::Ended(EndedRun {
            framework: dice.framework(),
            run: dice.run(),
            agent: dice.agent(),
            grant: GrantId(dice.roll()),
            phase: dice.phase(),
            ended: time(dice),
        }),
        Part::Store(StoreRecord {
            framework: dice.framework(),
            key: bytes(dice),
            value: Arc::from(bytes(dice)),
            revision: dice.roll(),
        }),
    ];
    let verdicts = verdicts(dice);
    parts.extend(verdicts.into_iter().map(|verdict| {
        Part::Verdict(StoredVerdict {
            framework: dice.framework(),
            call: dice.roll(),
            revision: dice.roll(),
            verdict,
        })
    }));
    parts
}

fn written(parts: &[Part]) -> Vec<u8> {
    let mut bytes = Vec::new();
    write_parts(parts.iter().cloned(), &mut bytes).unwrap();
    bytes
}

fn read(bytes: &[u8]) -> Result<Vec<Part>, SnapshotError> {
    PartsReader::new(bytes).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn every_command_comes_back_from_the_log_as_it_went_in(seed: u64) {
        let dice = &mut Dice::new(seed);
        for command in commands(dice) {
            let stamped = Stamped { at: time(dice), command };
            let bytes = encode_command(&stamped);
            prop_assert_eq!(decode_command(&bytes).unwrap(), stamped);
        }
    }

    #[test]
    fn every_record_comes_back_from_a_snapshot_as_it_went_in(seed: u64) {
        let parts = parts(&mut Dice::new(seed));
        prop_assert_eq!(read(&written(&parts)).unwrap(), parts);
    }

    #[test]
    fn damaged_bytes_are_an_error_or_another_command_and_never_a_panic(
        seed: u64, at: prop::sample::Index, flip in 1_u8..,
    ) {
        let dice = &mut Dice::new(seed);
        for command in commands(dice) {
            let mut bytes = encode_command(&Stamped { at: Timestamp(1), command });
            let place = at.index(bytes.len());
            // A cut either misses what is required or is a shorter message: it must not panic.
            let _ = decode_command(&bytes[..place]);
            bytes[place] ^= flip;
            let _ = decode_command(&bytes);
        }
        let mut bytes = written(&parts(dice));
        let place = at.index(bytes.len());
        prop_assert!(read(&bytes[..place]).is_err(), "a cut snapshot must not look whole");
        bytes[place] ^= flip;
        let _ = read(&bytes);
    }

    #[test]
    fn noise_is_never_a_panic(noise in prop::collection::vec(any::<u8>(), 0..512)) {
        let _ = decode_command(&noise);
        let _ = read(&noise);
    }
}

#[test]
fn a_launch_of_ten_thousand_tasks_that_share_a_spec_fits_one_message() {
    let dice = &mut Dice::new(7);
    let spec = Arc::new(TaskSpec {
        command: vec!["/bin/sh".to_owned(), "-c".to_owned(), "x".repeat(4000)],
        ..TaskSpec::default()
    });
    let claim = dice.claim_id();
    let tasks = (1..=10_000).map(|index| LaunchTask {
        run: RunId::new(TaskId::new(&format!("train-41[{index}]")).unwrap(), 1),
        claim: Some(claim.clone()),
        resources: Resources {
            cpu: MilliCpu(500),
            ..Resources::default()
        },
        spec: Arc::clone(&spec),
        environment: BTreeMap::from([("METE_ARRAY_INDEX".to_owned(), index.to_string())]),
        labels: BTreeMap::from([("job".to_owned(), "train-41".to_owned())]),
        replaces: None,
    });
    let command = Command::Launch(Launch {
        tasks: tasks.collect(),
        ..launch(dice)
    });
    let stamped = Stamped {
        at: Timestamp(1),
        command,
    };
    let bytes = encode_command(&stamped);
    assert!(bytes.len() < 1 << 20, "{} bytes", bytes.len());
    assert_eq!(decode_command(&bytes).unwrap(), stamped);
}

#[test]
fn specs_are_shared_again_after_a_snapshot_was_read() {
    let dice = &mut Dice::new(3);
    let spec = Arc::new(TaskSpec {
        command: vec!["x".repeat(100_000)],
        ..TaskSpec::default()
    });
    // Enough for several pieces, and each run with a spec of its own address.
    let runs: Vec<Part> = (0..4_000)
        .map(|_| Part::Run(run(dice, &Arc::new((*spec).clone()))))
        .collect();
    let bytes = written(&runs);
    assert!(
        bytes.len() > 1 << 20,
        "{} bytes are one piece only",
        bytes.len()
    );
    assert!(
        bytes.len() < 20 << 20,
        "{} bytes: specs were repeated",
        bytes.len()
    );

    let back = read(&bytes).unwrap();
    assert_eq!(back, runs);
    let specs = back.iter().map(|part| {
        let Part::Run(run) = part else {
            panic!("only runs were written: {part:?}");
        };
        Arc::as_ptr(&run.spec)
    });
    assert_eq!(specs.collect::<std::collections::BTreeSet<_>>().len(), 1);
}

#[test]
fn what_a_newer_release_wrote_is_refused_and_said_so() {
    // Field 1 is the format: 2 is one more than this release knows.
    let error = decode_command(&[0x08, 0x02]).unwrap_err();
    assert!(
        matches!(
            error,
            FormatError::Newer {
                found: 2,
                known: 1,
                ..
            }
        ),
        "{error}"
    );
    let error = read(&[2, 0, 0, 0, 0x08, 0x02]).unwrap_err();
    assert!(error.to_string().contains("format 2"), "{error}");
    let error = decode_command(&[0x08, 0x01]).unwrap_err();
    assert!(error.to_string().contains("command: is missing"), "{error}");
}

#[test]
fn a_piece_that_claims_too_much_allocates_nothing() {
    let error = read(&[0xff, 0xff, 0xff, 0xff, 0]).unwrap_err();
    assert!(
        matches!(error, SnapshotError::TooLarge { piece: 0, .. }),
        "{error}"
    );
}

fn corpus(kind: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/corpus")
        .join(kind)
}

fn add(kind: &str, name: &str, bytes: &[u8], meaning: &str) {
    let folder = corpus(kind);
    std::fs::create_dir_all(&folder).unwrap();
    let file = folder.join(format!("{name}.bin"));
    if !file.exists() {
        std::fs::write(folder.join(format!("{name}.txt")), meaning).unwrap();
        std::fs::write(file, bytes).unwrap();
    }
}

fn meaning_of_commands(bytes: &[u8]) -> String {
    format!("{:#?}\n", decode_command(bytes).unwrap())
}

fn meaning_of_parts(bytes: &[u8]) -> String {
    format!("{:#?}\n", read(bytes).unwrap())
}

#[test]
fn old_stored_bytes_mean_what_they_meant() {
    if std::env::var_os("METE_WRITE_CORPUS").is_some() {
        let dice = &mut Dice::new(1);
        for (index, command) in commands(dice).into_iter().enumerate() {
            let at = Timestamp(1_700_000_000_000);
            let bytes = encode_command(&Stamped { at, command });
            add(
                "log",
                &format!("first-{index:02}"),
                &bytes,
                &meaning_of_commands(&bytes),
            );
        }
        let bytes = written(&parts(dice));
        add("snapshot", "first", &bytes, &meaning_of_parts(&bytes));
    }
    let mut found = 0;
    for (kind, meaning) in [
        ("log", meaning_of_commands as fn(&[u8]) -> String),
        ("snapshot", meaning_of_parts),
    ] {
        for file in std::fs::read_dir(corpus(kind)).unwrap() {
            let file = file.unwrap().path();
            if file.extension().is_some_and(|extension| extension == "bin") {
                let expected = std::fs::read_to_string(file.with_extension("txt")).unwrap();
                let now = meaning(&std::fs::read(&file).unwrap());
                // A field added later shows with its empty value; none may be lost.
                let lines: Vec<&str> = now.lines().map(str::trim).collect();
                for line in expected.lines().map(str::trim) {
                    assert!(lines.contains(&line), "{}: lost {line}", file.display());
                }
                found += 1;
            }
        }
    }
    assert!(found > 20, "only {found} samples: the corpus is not whole");
}
