//! Every command of the tree, held against the published schema; no command can be left out.

#![expect(
    clippy::indexing_slicing,
    reason = "a missing field must fail the story"
)]

mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use mete_sdk::Claim;
use serde_json::{Value, json};
use support::ask::Answer;
use support::framework::Raw;
use support::schema::Schema;
use support::{Site, holds, until};

/// What a command prints with `-o json`.
#[derive(Clone, Copy)]
enum Prints {
    /// An envelope of this kind.
    Kind(&'static str),
    /// Lines, each one of these objects.
    Lines(&'static str),
}

/// Commands that print no data of ours, and why.
const APART: &[(&str, &str)] = &[
    (
        "dev",
        "runs until it is stopped; its line of readiness is held against the schema below",
    ),
    (
        "demo",
        "tells a story; the stories of the first contact play it",
    ),
    ("master start", "runs until it is stopped"),
    ("agent start", "runs until it is stopped"),
    ("batch start", "runs until it is stopped"),
    ("service start", "runs until it is stopped"),
    ("completion", "prints a script of a shell"),
    ("man", "writes manual pages"),
    ("config default", "prints a configuration file"),
];

/// What a story has made before the commands are asked.
struct Made {
    site: Site,
    calm: String,
    huge: String,
    done: String,
    nodes: String,
    pods: String,
    founded: String,
}

const NODES: &str = "sn,cpu_milli,memory_mib,gpu,model\nn-1,64000,262144,2,P100\n";

const PODS: &str = "\
name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,\
scheduled_time
p-1,6000,12288,1,1000,,LS,Running,0,12000,0
p-2,1000,1024,0,0,,BE,Running,10,12000,12
";

/// Holds every offer that it gets for a claim of its own, so that there is one to look at.
fn hoard(site: &Site) -> tokio::runtime::Runtime {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let mut hoarder = runtime.block_on(Raw::open(site, "hoarder", "dev"));
    runtime.block_on(async {
        let claim = Claim::cpu_milli(100).memory_mib(16).count(4);
        let wanted = hoarder.session.want("all", claim).await;
        wanted.expect("declared");
        hoarder.offer("all").await;
    });
    runtime.spawn(async move {
        loop {
            hoarder.listen(Duration::from_secs(1)).await;
            hoarder.offers.clear();
        }
    });
    runtime
}

/// Shows an offer that is open: they lapse while one looks, and are made again.
fn show_offer(site: &Site, schema: &Schema) {
    until("an open offer to be shown", || {
        let offers = site.json(&["offer", "list", "--framework", "hoarder"]);
        let id = offers.texts("id").first().copied().map(str::to_owned);
        let id = id.ok_or_else(|| offers.0.to_string())?;
        let answer = site.mete(&["offer", "show", &id, "-o", "json"]);
        holds(answer.code == 0, || answer.to_string())?;
        check(schema, &answer, Prints::Kind("Offer"));
        let text = site.mete(&["offer", "show", &id]);
        holds(text.stdout.contains("hoarder"), || text.to_string())
    });
}

fn made() -> Made {
    let site = Site::dev(&["--nodes", "1", "--fake", "3", "--role", "render"]);
    let submit = |flags: &[&str]| site.mete(&[&["submit"], flags].concat()).done();
    let calm = submit(&["--name", "calm", "--cpus", "0.1", "--", "sleep", "1000"]);
    let huge = submit(&[
        "--name", "huge", "--cpus", "5000", "--array", "0-9", "--", "sleep", "9",
    ]);
    let done = submit(&[
        "--name",
        "done",
        "--cpus",
        "0.1",
        "--",
        "sh",
        "-c",
        "echo hi; exit 3",
    ]);
    until("one to run, one to wait, one to be over", || {
        let jobs = site.json(&["batch", "list", "-A"]);
        let fine = jobs.find("job", &calm)?["state"] == "RUNNING"
            && jobs.find("job", &huge)?["pending"] != 0
            && jobs.find("job", &done)?["state"] == "FAILED";
        holds(fine, || jobs.0.to_string())
    });
    let (nodes, pods) = (site.arg("work/nodes.csv"), site.arg("work/pods.csv"));
    std::fs::write(&nodes, NODES).expect("a file");
    std::fs::write(&pods, PODS).expect("a file");
    let founded = site.arg("founded");
    Made {
        calm,
        huge,
        done,
        nodes,
        pods,
        founded,
        site,
    }
}

/// Command, its arguments, the exit code it shall have, what it prints.
fn asked(made: &Made) -> Vec<(&'static str, Vec<&str>, i32, Prints)> {
    use Prints::{Kind, Lines};
    let (calm, huge, done) = (made.calm.as_str(), made.huge.as_str(), made.done.as_str());
    let quick = ["--cpus", "0.1", "--", "true"];
    let seed = ["--seed", "1", "--trace"];
    let set = ["set", "other", "--master", "127.0.0.1:1"];
    vec![
        ("status", vec![], 0, Kind("Status")),
        ("top", vec![], 0, Kind("Top")),
        ("why", vec!["job", huge], 0, Kind("Why")),
        ("events", vec!["--since", "1h"], 0, Kind("EventList")),
        ("node list", vec![], 0, Kind("NodeList")),
        ("node show", vec!["n1"], 0, Kind("Node")),
        ("node rm", vec!["f00003", "--yes"], 0, Kind("NodeRemoved")),
        ("framework list", vec![], 0, Kind("FrameworkList")),
        ("framework show", vec!["batch"], 0, Kind("Framework")),
        (
            "framework set",
            vec!["batch", "--revive"],
            0,
            Kind("FrameworkSet"),
        ),
        ("offer list", vec![], 0, Kind("OfferList")),
        ("offer show", vec!["o-1-99999"], 3, Kind("Offer")),
        (
            "offer rescind",
            vec!["o-1-99999"],
            3,
            Kind("RescindedOffers"),
        ),
        ("task list", vec![], 0, Kind("TaskList")),
        ("task show", vec![calm], 0, Kind("Task")),
        ("task logs", vec![done], 0, Lines("log_line")),
        ("quota tree", vec![], 0, Kind("RoleList")),
        (
            "quota set",
            vec!["ml/vision", "--weight", "2"],
            0,
            Kind("RoleSet"),
        ),
        ("quota rm", vec!["ml/vision"], 0, Kind("RoleRemoved")),
        ("admin raft status", vec![], 0, Kind("MasterList")),
        (
            "admin raft transfer",
            vec!["--to", "m1", "--dry-run"],
            0,
            Kind("LeadershipTransferred"),
        ),
        ("admin member list", vec![], 0, Kind("MasterList")),
        (
            "admin member add",
            vec!["127.0.0.1:9", "--learner"],
            0,
            Kind("MasterAdded"),
        ),
        (
            "admin member promote",
            vec!["2", "--dry-run"],
            0,
            Kind("MasterPromoted"),
        ),
        (
            "admin member rm",
            vec!["m2", "--yes"],
            0,
            Kind("MasterRemoved"),
        ),
        ("agent show", vec!["n1"], 0, Kind("Ledger")),
        (
            "agent check",
            vec!["--state-dir", &made.founded],
            0,
            Kind("AgentCheck"),
        ),
        (
            "master init",
            vec!["--state-dir", &made.founded],
            0,
            Kind("MasterFounded"),
        ),
        ("batch list", vec!["-A"], 0, Kind("JobList")),
        ("ps", vec!["-A"], 0, Kind("JobList")),
        ("batch show", vec![huge], 0, Kind("Job")),
        ("batch submit", quick.to_vec(), 0, Kind("Submitted")),
        (
            "submit",
            [&["--dry-run"], &quick[..]].concat(),
            0,
            Kind("Submitted"),
        ),
        ("batch run", quick.to_vec(), 0, Kind("JobEnd")),
        (
            "run",
            [&["--dry-run"], &quick[..]].concat(),
            0,
            Kind("Submitted"),
        ),
        ("batch wait", vec![done], 3, Kind("JobEndList")),
        ("batch logs", vec![done], 0, Lines("log_line")),
        ("logs", vec![done], 0, Lines("log_line")),
        ("task kill", vec![calm], 0, Kind("KilledTasks")),
        ("batch cancel", vec![huge], 0, Kind("CancelledJobs")),
        (
            "framework rm",
            vec!["batch", "--dry-run"],
            0,
            Kind("FrameworkRemoved"),
        ),
        (
            "bench allocator",
            vec!["--agents", "20", "--rounds", "1"],
            0,
            Kind("BenchAllocator"),
        ),
        (
            "bench launches",
            vec!["--agents", "4", "--tasks", "8"],
            0,
            Kind("BenchLaunches"),
        ),
        (
            "bench commit",
            vec!["--rounds", "1", "--seconds", "1", "--clients", "2"],
            0,
            Kind("BenchCommit"),
        ),
        (
            "bench failover",
            vec!["--rounds", "1", "--agents", "2"],
            0,
            Kind("BenchFailover"),
        ),
        (
            "bench churn",
            vec!["--writes", "10", "--clients", "2"],
            0,
            Kind("BenchChurn"),
        ),
        (
            "bench recover",
            vec!["--agents", "2", "--tasks", "4"],
            0,
            Kind("BenchRecover"),
        ),
        (
            "bench node",
            vec!["--starts", "2", "--at-once", "2"],
            0,
            Kind("BenchNode"),
        ),
        (
            "bench snapshot",
            vec!["--tasks", "200"],
            0,
            Kind("BenchSnapshot"),
        ),
        (
            "bench replay",
            vec!["--nodes", &made.nodes, "--pods", &made.pods],
            0,
            Kind("BenchReplay"),
        ),
        ("simulate", seed.to_vec(), 0, Kind("Simulation")),
        ("context set", set[1..].to_vec(), 0, Kind("Context")),
        ("context use", vec!["other"], 0, Kind("Context")),
        ("context list", vec![], 0, Kind("ContextList")),
        ("context show", vec!["other"], 0, Kind("ContextList")),
        ("config show", vec!["--origin"], 0, Kind("ConfigList")),
        ("config validate", vec![], 0, Kind("ConfigValid")),
        ("context rm", vec!["other"], 0, Kind("ContextRemoved")),
        ("help", vec!["codes"], 0, Kind("CodeList")),
        ("version", vec![], 0, Kind("Version")),
    ]
}

/// Every command that can be typed, read off the manual pages: those below which there is no other.
fn leaves(site: &Site) -> BTreeSet<String> {
    let folder = site.arg("man");
    site.mete(&["man", &folder]).done();
    let pages: BTreeSet<String> = std::fs::read_dir(&folder)
        .expect("a directory")
        .flatten()
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .map(|name| {
            name.trim_end_matches(".1")
                .trim_start_matches("mete")
                .to_owned()
        })
        .collect();
    let leaf = |page: &&String| {
        !pages
            .iter()
            .any(|other| other.starts_with(&format!("{page}-")))
    };
    let leaves = pages.iter().filter(leaf);
    leaves
        .map(|page| page.trim_start_matches('-').replace('-', " "))
        .collect()
}

fn check(schema: &Schema, answer: &Answer, prints: Prints) {
    match prints {
        Prints::Kind(kind) => {
            let value: Value = serde_json::from_str(&answer.stdout)
                .unwrap_or_else(|error| panic!("no JSON ({error}): {answer}"));
            let faults = schema.faults(kind, &value);
            assert!(faults.is_empty(), "{faults:#?}\nin {answer}");
        }
        Prints::Lines(object) => {
            assert!(!answer.stdout.is_empty(), "{answer}");
            for line in answer.stdout.lines() {
                let value: Value = serde_json::from_str(line).expect("JSON on each line");
                let faults = schema.faults(object, &value);
                assert!(faults.is_empty(), "{faults:#?}\nin {answer}");
            }
        }
    }
}

/// The same command for people, as lines, as YAML, as names: all work, and say the same names.
fn other_formats(made: &Made, schema: &Schema, command: &[&str], kind: &str) {
    let ask = |more: &[&str]| made.site.mete(&[command, more].concat());
    let items = made.site.json(command);
    let names: Vec<&str> = items.texts("name");
    assert_eq!(
        names.len(),
        items.items().len(),
        "every item has a name: {command:?}"
    );
    for format in ["table", "wide", "yaml"] {
        let answer = ask(&["-o", format]);
        assert!(!answer.done().is_empty(), "{answer}");
    }
    for line in ask(&["-o", "jsonl"]).done().lines() {
        let value: Value = serde_json::from_str(line).expect("JSON on each line");
        let faults = schema.faults(&schema.item_of(kind), &value);
        assert!(faults.is_empty(), "{faults:#?} in {command:?} -o jsonl");
    }
    let quiet = ask(&["-q"]).done();
    let quiet: Vec<&str> = quiet.lines().collect();
    assert_eq!(quiet, names, "{command:?} -q");
    let picked = made.site.json(&[command, &["--fields", "name"]].concat());
    for item in picked.items() {
        let fields = item.as_object().map_or(0, serde_json::Map::len);
        assert_eq!(fields, 1, "{command:?} --fields name: {item}");
    }
    let none = made
        .site
        .json(&[command, &["--filter", "name=nobody"]].concat());
    assert!(none.items().is_empty(), "{command:?} --filter: {}", none.0);
    let one = format!("name={}", names.first().copied().unwrap_or_default());
    let one = made.site.json(&[command, &["--filter", &one]].concat());
    assert!(!one.items().is_empty(), "{command:?} --filter: {}", one.0);
    ask(&["--fields", "nonsense"])
        .refused(2, "USAGE")
        .says("fields are");
}

/// Commands that only look and whose answer does not change between two looks.
const CALM: &[&str] = &[
    "status",
    "top",
    "node list",
    "node show",
    "framework list",
    "framework show",
    "task list",
    "task show",
    "quota tree",
    "admin raft status",
    "agent show",
    "batch list",
    "batch show",
    "ps",
    "why",
    "context list",
    "config show",
    "help",
    "version",
];

#[test]
fn every_command_prints_what_the_schema_says_in_every_format() {
    let made = made();
    let schema = Schema::of(&made.site);
    let hoarder = hoard(&made.site);
    show_offer(&made.site, &schema);
    hoarder.shutdown_background();
    let apart: BTreeSet<&str> = APART.iter().map(|(command, _)| *command).collect();
    let asked = asked(&made);
    let known: BTreeSet<String> = asked
        .iter()
        .map(|(command, ..)| (*command).to_owned())
        .chain(apart.iter().map(|command| (*command).to_owned()))
        .collect();
    assert_eq!(
        leaves(&made.site),
        known,
        "a command without a check, or a check without one"
    );
    let mut seen = BTreeSet::new();
    for (command, arguments, code, prints) in &asked {
        let words: Vec<&str> = command.split(' ').collect();
        let whole = [words.as_slice(), arguments.as_slice()].concat();
        if let Prints::Kind(kind) = *prints {
            seen.insert(kind.to_owned());
            if CALM.contains(command) {
                other_formats(&made, &schema, &whole, kind);
            }
        }
        let at = words.len();
        let with = [&whole[..at], &["-o", "json"], &whole[at..]].concat();
        let answer = made.site.mete(&with);
        assert_eq!(answer.code, *code, "{answer}");
        // One that is open is looked at above: they come and go.
        if *command != "offer show" {
            check(&schema, &answer, *prints);
        }
    }
    // Lists inside of something else are only ever shown there.
    let inner = ["ClaimList", "ElementList", "LedgerRunList"].map(str::to_owned);
    let unseen: Vec<String> = schema
        .kinds()
        .difference(&seen)
        .filter(|kind| !inner.contains(kind))
        .cloned()
        .collect();
    assert!(
        unseen.is_empty(),
        "kinds that no command prints: {unseen:?}"
    );
}

#[test]
fn readiness_errors_and_progress_are_described_too() {
    let mut site = Site::dev(&[]);
    let schema = Schema::of(&site);
    let said = site.daemon("dev").said();
    let line = said.lines().find(|line| line.contains("DevReady"));
    let ready: Value = serde_json::from_str(line.expect("a line")).expect("JSON");
    assert_eq!(schema.faults("DevReady", &ready), Vec::<String>::new());
    for args in [&["node", "show", "nope"][..], &["node", "lsit"]] {
        let answer = site.mete(&[args, &["-o", "json"]].concat());
        let error: Value = serde_json::from_str(&answer.stderr).expect("an error in JSON alone");
        assert_eq!(
            schema.faults("Error", &error),
            Vec::<String>::new(),
            "{answer}"
        );
    }
    let flags = [
        "submit",
        "--wait",
        "--progress",
        "json",
        "--cpus",
        "0.1",
        "--",
        "sleep",
        "1",
    ];
    let answer = site.mete(&flags);
    assert_eq!(answer.code, 0, "{answer}");
    let lines = answer.stderr.lines().filter(|line| line.starts_with('{'));
    let lines: Vec<Value> = lines
        .map(|line| serde_json::from_str(line).expect("JSON"))
        .collect();
    assert!(!lines.is_empty(), "nothing was said while it ran: {answer}");
    for line in lines {
        assert_eq!(
            schema.faults("Progress", &line),
            Vec::<String>::new(),
            "{answer}"
        );
    }
    let silent = site.mete(&["run", "--progress", "none", "--cpus", "0.1", "--", "true"]);
    assert_eq!(silent.stderr, "", "{silent}");
}

#[test]
fn the_validator_finds_what_is_wrong() {
    let site = Site::new();
    let schema = Schema::of(&site);
    let good = json!({ "name": "mete", "version": "1" });
    assert_eq!(schema.faults("version", &good), Vec::<String>::new());
    for (bad, why) in [
        (json!({ "name": "mete" }), "version.version is missing"),
        (json!({ "name": 7, "version": "1" }), "version.name is 7"),
        (
            json!({ "name": "m", "version": "1", "x": 1 }),
            "version.x is not described",
        ),
        (json!([]), "version is []"),
    ] {
        let faults = schema.faults("version", &bad);
        assert!(
            faults.iter().any(|fault| fault.contains(why)),
            "{why}: {faults:?}"
        );
    }
}

#[test]
fn check_turns_what_is_amiss_into_its_exit_code_and_changes_no_data() {
    let mut site = Site::cluster();
    let plain = site.json(&["node", "list"]);
    let checked = site.mete(&["node", "list", "--check", "-o", "json"]);
    assert_eq!(checked.code, 0, "{checked}");
    assert_eq!(
        support::ask::Envelope::read(&checked).texts("name"),
        plain.texts("name")
    );
    let flags = ["submit", "--name", "huge", "--cpus", "5000", "--", "true"];
    let job = site.mete(&flags).done();
    until("the job to be known to wait", || {
        let answer = site.mete(&["why", "job", &job]);
        holds(answer.code == 0, || answer.to_string())
    });
    for args in [
        &["why", "job", &job][..],
        &["batch", "show", &job],
        &["batch", "list"],
    ] {
        assert_eq!(site.mete(args).code, 0, "a query that worked is no failure");
        let answer = site.mete(&[args, &["--check"]].concat());
        answer.refused(9, "CHECK_FAILED");
        assert!(
            !answer.stdout.is_empty(),
            "what was found is shown: {answer}"
        );
    }
    site.kill("n1");
    until("the node to be amiss", || {
        let answer = site.mete(&["node", "list", "--check"]);
        holds(answer.code == 9, || answer.to_string())
    });
    let node = site.node("n1");
    let answer = site.mete(&["node", "list", "--check"]);
    answer
        .refused(9, "CHECK_FAILED")
        .says(&node)
        .says("unreachable");
    assert!(answer.stdout.contains(&node), "{answer}");
    site.mete(&["status", "--check"]).refused(9, "CHECK_FAILED");
    assert_eq!(site.mete(&["status"]).code, 0);
    for args in [&["quota", "set", "x", "--check"][..], &["dev", "--dry-run"]] {
        site.mete(args)
            .refused(2, "USAGE")
            .says("does nothing here");
    }
}

#[test]
fn a_watch_says_first_what_is_and_then_what_changes() {
    let mut site = Site::dev(&["--nodes", "0", "--fake", "1"]);
    let commands: [(&str, &[&str]); 3] = [
        ("stream", &["quota", "tree", "--watch", "-o", "json"]),
        ("again", &["quota", "tree", "--watch=0.2", "-o", "json"]),
        ("status", &["status", "--watch=0.2", "-q"]),
    ];
    for (name, args) in commands {
        site.spawn(name, args);
    }
    let said = |site: &mut Site, name: &str, text: &str| {
        until(&format!("{name} to say {text}"), || {
            let said = site.daemon(name).alive()?;
            holds(said.contains(text), || said)
        });
    };
    for name in ["stream", "again"] {
        said(&mut site, name, "\"path\":\"batch\"");
    }
    let id = site.json(&["status"]).one()["cluster_id"].clone();
    let id = id.as_str().expect("an id").to_owned();
    until("the status to be said twice", || {
        let said = site.daemon("status").alive()?;
        holds(said.matches(&id).count() >= 2, || said)
    });
    site.mete(&["quota", "set", "late"]).done();
    for name in ["stream", "again"] {
        said(&mut site, name, "\"path\":\"late\"");
        let lines: BTreeMap<usize, Value> = site
            .daemon(name)
            .said()
            .lines()
            .filter_map(|line| serde_json::from_str(line).ok())
            .enumerate()
            .collect();
        assert!(lines.len() >= 4, "each item is a line of JSON: {lines:?}");
    }
}
