//! Old wire bytes decode for ever.
//!
//! `corpus/<message>/<name>.bin` holds bytes that some release has sent, `<name>.txt` beside it
//! what they mean. `METE_WRITE_CORPUS=1 cargo test -p mete-proto --test corpus` adds what is
//! missing; it never changes a file that is there.
#![expect(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

mod dice;

use std::fmt::Debug;
use std::path::{Path, PathBuf};

use dice::Dice;
use mete_proto::convert;
use mete_proto::{admin, agent, framework, types};
use prost::Message;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/corpus")
}

fn dump<M: Message + Default + Debug>(bytes: &[u8]) -> String {
    let message = M::decode(bytes).unwrap_or_else(|error| panic!("must decode: {error}"));
    format!("{message:#?}\n")
}

type Dump = fn(&[u8]) -> String;

/// Every message that has a folder in the corpus.
const MESSAGES: &[(&str, Dump)] = &[
    ("types.Claim", dump::<types::v1::Claim>),
    ("types.TaskSpec", dump::<types::v1::TaskSpec>),
    ("types.Resources", dump::<types::v1::Resources>),
    ("types.Inventory", dump::<types::v1::Inventory>),
    ("types.Status", dump::<types::v1::Status>),
    ("framework.Event", dump::<framework::v1::Event>),
    (
        "framework.AcceptRequest",
        dump::<framework::v1::AcceptRequest>,
    ),
    (
        "framework.UpdateDemandRequest",
        dump::<framework::v1::UpdateDemandRequest>,
    ),
    ("agent.AgentMessage", dump::<agent::v1::AgentMessage>),
    ("agent.MasterMessage", dump::<agent::v1::MasterMessage>),
    ("admin.ListResponse", dump::<admin::v1::ListResponse>),
];

/// Runs in pages: what an agent holds, what it must give up.
fn pages_of_runs() -> [(&'static str, &'static str, Vec<u8>); 2] {
    let dice = &mut Dice::new(2);
    let run = convert::write_run_ref(dice.framework(), &dice.run());
    let held_runs = agent::v1::AgentMessage {
        message: Some(agent::v1::agent_message::Message::HeldRuns(
            agent::v1::HeldRuns {
                runs: vec![agent::v1::HeldRun {
                    run: Some(run.clone()),
                    phase: types::v1::TaskPhase::Starting.into(),
                    last_sequence: 1,
                }],
            },
        )),
    };
    let discard = agent::v1::MasterMessage {
        message: Some(agent::v1::master_message::Message::DiscardRuns(
            agent::v1::DiscardRuns {
                runs: vec![run.clone()],
            },
        )),
    };
    [
        ("agent.AgentMessage", "held_runs", held_runs.encode_to_vec()),
        (
            "agent.MasterMessage",
            "discard_runs",
            discard.encode_to_vec(),
        ),
    ]
}

fn samples() -> Vec<(&'static str, &'static str, Vec<u8>)> {
    let dice = &mut Dice::new(1);
    let framework_id = dice.framework();
    let run = dice.run();
    let spec = convert::write_spec(&dice.spec());
    let resources = convert::write_resources(&dice.resources());
    let inventory = convert::write_inventory(&dice.inventory());
    let claim = convert::write_claim(&dice.claim());
    let status = convert::write_status(framework_id, &dice.status(), dice.agent().to_string());
    let header = framework::v1::CallHeader {
        framework_id: framework_id.to_string(),
        incarnation: 3,
        call: 17,
        answered: 16,
    };
    let accept = framework::v1::AcceptRequest {
        header: Some(header.clone()),
        offers: vec![types::v1::OfferId { term: 4, number: 9 }],
        launches: vec![framework::v1::Launch {
            run: Some(convert::write_run(&run)),
            claim: claim.id.clone(),
            resources: Some(resources.clone()),
            spec: 0,
            environment: dice.labels(),
            labels: dice.labels(),
        }],
        mode: framework::v1::AcceptMode::Each.into(),
        specs: vec![spec.clone()],
        unused_reason: "too small".to_owned(),
        unused_refuse: Some(framework::v1::Refuse { duration_ms: 5000 }),
    };
    let demand = framework::v1::UpdateDemandRequest {
        header: Some(header),
        version: 5,
        upsert: vec![claim.clone()],
        remove: vec!["old".to_owned()],
    };
    let event = framework::v1::Event {
        revision: 88_213,
        event: Some(framework::v1::event::Event::Status(status.clone())),
    };
    let hello = agent::v1::AgentMessage {
        message: Some(agent::v1::agent_message::Message::Hello(agent::v1::Hello {
            node_key: dice.uuid().to_string(),
            node_name: "n07".to_owned(),
            inventory: Some(inventory.clone()),
            runs: vec![agent::v1::HeldRun {
                run: Some(convert::write_run_ref(framework_id, &run)),
                phase: types::v1::TaskPhase::Running.into(),
                last_sequence: 2,
            }],
        })),
    };
    let start = agent::v1::MasterMessage {
        message: Some(agent::v1::master_message::Message::StartTasks(
            agent::v1::StartTasks {
                tasks: vec![agent::v1::StartTask {
                    run: Some(convert::write_run_ref(framework_id, &run)),
                    grant_id: 12,
                    resources: Some(resources.clone()),
                    role: "ml/vision".to_owned(),
                    topology_epoch: 1,
                    framework_name: "batch".to_owned(),
                    ..agent::v1::StartTask::default()
                }],
                specs: vec![spec.clone()],
            },
        )),
    };
    let list = admin::v1::ListResponse {
        revision: 7,
        objects: vec![admin::v1::Object {
            revision: 6,
            object: Some(admin::v1::object::Object::Role(admin::v1::Role {
                path: "ml/vision".to_owned(),
                weight_milli: 1500,
                frameworks: vec!["batch".to_owned()],
                waiting: 3,
                ..admin::v1::Role::default()
            })),
        }],
        next_page_token: "token".to_owned(),
    };
    vec![
        ("types.Claim", "first", claim.encode_to_vec()),
        ("types.TaskSpec", "first", spec.encode_to_vec()),
        ("types.Resources", "first", resources.encode_to_vec()),
        ("types.Inventory", "first", inventory.encode_to_vec()),
        ("types.Status", "first", status.encode_to_vec()),
        ("framework.Event", "status", event.encode_to_vec()),
        ("framework.AcceptRequest", "first", accept.encode_to_vec()),
        (
            "framework.UpdateDemandRequest",
            "first",
            demand.encode_to_vec(),
        ),
        ("agent.AgentMessage", "hello", hello.encode_to_vec()),
        ("agent.MasterMessage", "start_tasks", start.encode_to_vec()),
        ("admin.ListResponse", "role", list.encode_to_vec()),
    ]
}

fn dump_of(message: &str) -> Dump {
    MESSAGES
        .iter()
        .find(|(name, _)| *name == message)
        .unwrap_or_else(|| panic!("corpus/{message} has no entry in MESSAGES"))
        .1
}

fn add_what_is_missing() {
    for (message, name, bytes) in samples().into_iter().chain(pages_of_runs()) {
        let folder = root().join(message);
        std::fs::create_dir_all(&folder).unwrap();
        let file = folder.join(format!("{name}.bin"));
        if !file.exists() {
            std::fs::write(folder.join(format!("{name}.txt")), dump_of(message)(&bytes)).unwrap();
            std::fs::write(file, bytes).unwrap();
        }
    }
}

#[test]
fn old_wire_bytes_mean_what_they_meant() {
    if std::env::var_os("METE_WRITE_CORPUS").is_some() {
        add_what_is_missing();
    }
    let mut read = 0;
    for folder in std::fs::read_dir(root()).unwrap() {
        let folder = folder.unwrap().path();
        let message = folder.file_name().unwrap().to_str().unwrap().to_owned();
        for file in std::fs::read_dir(&folder).unwrap() {
            let file = file.unwrap().path();
            if file.extension().is_none_or(|extension| extension != "bin") {
                continue;
            }
            let expected = std::fs::read_to_string(file.with_extension("txt")).unwrap();
            let found = dump_of(&message)(&std::fs::read(&file).unwrap());
            // A field added later shows in the dump with its empty value; none may be lost.
            let lines: Vec<&str> = found.lines().map(str::trim).collect();
            for line in expected.lines().map(str::trim) {
                assert!(lines.contains(&line), "{}: lost {line}", file.display());
            }
            read += 1;
        }
    }
    assert!(
        read >= MESSAGES.len(),
        "only {read} samples: the corpus is not whole"
    );
}
