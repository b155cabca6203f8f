//! The first minutes with mete: a cluster in one command, a command on it, a look around.

#![expect(
    clippy::indexing_slicing,
    reason = "a missing field must fail the story"
)]

mod support;

use std::collections::BTreeSet;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use mete_sdk::Code;
use serde_json::Value;
use support::reap::alive_since;
use support::{Site, holds, until};

/// `mete run` with these flags and this command.
fn run(site: &Site, command: &[&str]) -> support::ask::Answer {
    site.mete(
        &[
            &["run", "--cpus", "0.1", "--memory", "32MiB", "--"],
            command,
        ]
        .concat(),
    )
}

fn plain_outputs(site: &Site) {
    let hello = run(site, &["sh", "-c", "echo hello; exit 7"]);
    assert_eq!(
        (hello.code, hello.stdout.as_str()),
        (7, "hello\n"),
        "{hello}"
    );
    let script = "echo out; echo err >&2; echo more; printf 'no newline'";
    let apart = run(site, &["sh", "-c", script]);
    assert_eq!(
        (apart.code, apart.stdout.as_str()),
        (0, "out\nmore\nno newline"),
        "{apart}"
    );
    assert!(apart.stderr.lines().any(|line| line == "err"), "{apart}");
    // Words go through as they are; nothing is read from here; the task knows what it is.
    let script = "cat; for word in \"$@\"; do echo \"<$word>\"; done; echo $METE_TASK";
    let words = run(
        site,
        &[
            "sh",
            "-c",
            script,
            "sh",
            "--cpus",
            "two words",
            "$HOME",
            "*",
            "",
        ],
    );
    assert_eq!(words.code, 0, "{words}");
    let lines: Vec<&str> = words.stdout.lines().collect();
    assert_eq!(
        lines[..5],
        ["<--cpus>", "<two words>", "<$HOME>", "<*>", "<>"],
        "{words}"
    );
    assert!(!lines[5].is_empty(), "{words}");
    let script = "i=0; while [ $i -lt 5000 ]; do echo line $i; i=$((i+1)); done";
    let many = run(site, &["sh", "-c", script]);
    assert_eq!(many.code, 0, "{many}");
    let wanted: String = (0..5_000)
        .map(|number| format!("line {number}\n"))
        .collect();
    assert!(
        many.stdout == wanted,
        "{} bytes of {}",
        many.stdout.len(),
        wanted.len()
    );
}

fn ends(site: &Site) {
    let plain = site.arg("work/plain");
    std::fs::write(&plain, "#!/bin/sh\necho never\n").expect("a file");
    std::fs::set_permissions(&plain, PermissionsExt::from_mode(0o644)).expect("a mode");
    let ends: [(&[&str], i32); 5] = [
        (&["false"], 1),
        (&[&plain], 126),
        (&["no-such-command-anywhere"], 127),
        (&["sh", "-c", "kill -9 $$"], 128 + 9),
        (&["sh", "-c", "kill -15 $$"], 128 + 15),
    ];
    for (command, code) in ends {
        let answer = run(site, command);
        assert_eq!(answer.code, code, "{answer}");
        assert!(answer.stdout.is_empty(), "{answer}");
    }
    let flags = [
        "run",
        "-o",
        "json",
        "--cpus",
        "0.1",
        "--",
        "sh",
        "-c",
        "echo hi; exit 3",
    ];
    let json = site.mete(&flags);
    assert_eq!(json.code, 3, "{json}");
    let end = support::ask::Envelope::read(&json).one().clone();
    assert_eq!(
        (&end["exit_code"], &end["exit_by"]),
        (&Value::from(3), &Value::from("COMMAND"))
    );
    assert!(json.stderr.lines().any(|line| line == "hi"), "{json}");
}

/// The second try comes after a second; a minute would be the pause of an idle framework.
fn tries_again(site: &Site) {
    let began = std::time::Instant::now();
    let flags = [
        "run",
        "--retries",
        "1",
        "--cpus",
        "0.1",
        "--memory",
        "32MiB",
    ];
    let command = ["--", "sh", "-c", "echo once; exit 5"];
    let answer = site.mete(&[&flags[..], &command[..]].concat());
    assert_eq!(answer.code, 5, "{answer}");
    assert_eq!(answer.stdout.matches("once").count(), 2, "{answer}");
    let took = began.elapsed();
    let most = std::time::Duration::from_secs(30);
    assert!(took < most, "the second try ended after {took:?}");
}

#[test]
fn a_command_runs_on_a_dev_cluster_and_its_output_and_exit_code_come_back() {
    let mut site = Site::dev(&[]);
    let said = site.daemon("dev").said();
    let line = said
        .lines()
        .find(|line| line.contains("DevReady"))
        .expect("one line of JSON");
    let ready: Value = serde_json::from_str(line).expect("JSON");
    assert!(
        ready["ready_ms"].as_u64().is_some_and(|ms| ms > 0),
        "{ready}"
    );
    assert!(
        !site.path("config.toml").exists(),
        "--headless leaves the contexts alone"
    );
    plain_outputs(&site);
    ends(&site);
    tries_again(&site);
}

#[test]
fn a_dev_cluster_needs_no_root_also_where_root_has_one() {
    if !rustix::process::geteuid().is_root() {
        return support::skip("an ordinary user beside root; all else here is without root then");
    }
    // Of the same node names: what root has made must not be in the way.
    let of_root = Site::dev(&[]);
    let site = Site::dev_as_nobody();
    let answer = run(&site, &["sh", "-c", "id -u; echo hello; exit 7"]);
    assert_eq!(
        (answer.code, answer.stdout.as_str()),
        (7, "65534\nhello\n"),
        "{answer}"
    );
    let level =
        |site: &Site| site.json(&["node", "show", "n1"]).one()["enforcement"]["cpu"].clone();
    assert_eq!(
        level(&site),
        "ACCOUNTED_ONLY",
        "what cannot be enforced is said"
    );
    assert_eq!(run(&of_root, &["id", "-u"]).done(), "0");
}

/// One listing in every format: the same rows, the same names.
fn listing(site: &Site, args: &[&str], kind: &str, field: &str, names: &[&str]) {
    let json = site.json(args);
    assert_eq!(json.kind(), kind, "{args:?}");
    for name in names {
        json.find(field, name)
            .unwrap_or_else(|why| panic!("{args:?}: {why}"));
    }
    let lines = |format: &str| site.mete(&[args, &["-o", format]].concat()).done();
    let (table, wide) = (lines("table"), lines("wide"));
    assert!(!table.contains('\u{1b}'), "no colour in a pipe: {table}");
    let yaml = lines("yaml");
    assert!(yaml.contains("schema: mete.cli/v1"), "{yaml}");
    let picked = site.json(&[args, &["--fields", field]].concat());
    for item in picked.items() {
        assert!(
            item.as_object().is_some_and(|item| item.len() == 1),
            "only {field}: {item}"
        );
    }
    // Offers come and go between two looks.
    if names.is_empty() {
        return;
    }
    for item in json.items() {
        let name = item[field].as_str().expect("a name");
        let shown = name.rsplit('/').next().unwrap_or(name);
        assert!(
            table.contains(shown) && wide.contains(shown),
            "{name} in {table} {wide}"
        );
    }
    let quiet = site.mete(&[args, &["-q"]].concat()).done();
    assert_eq!(
        quiet.lines().count(),
        json.items().len(),
        "{args:?} -q: {quiet}"
    );
    let one_each = lines("jsonl");
    assert_eq!(
        one_each.lines().count(),
        json.items().len(),
        "{args:?} -o jsonl"
    );
    for line in one_each.lines() {
        let _item: Value = serde_json::from_str(line).expect("JSON on each line");
    }
}

fn sums(site: &Site) {
    let status = site.json(&["status"]).one().clone();
    let nodes = site.json(&["node", "list"]);
    assert_eq!(
        status["nodes"]["ready"].as_u64(),
        u64::try_from(nodes.items().len()).ok()
    );
    let each = nodes
        .items()
        .iter()
        .filter_map(|node| node["total"]["cpu_milli"].as_u64());
    assert_eq!(status["total"]["cpu_milli"], each.sum::<u64>(), "{status}");
    let screen = site.mete(&["status"]).done();
    assert!(
        screen.contains(status["cluster_id"].as_str().expect("an id")),
        "{screen}"
    );
    assert!(screen.contains("3 ready"), "{screen}");
}

fn reasons(site: &Site, subjects: &[(&str, &str)]) {
    for (kind, name) in subjects {
        let why = site.json(&["why", kind, name]).one().clone();
        let first = why["reasons"][0]["code"].as_str();
        let first = first.unwrap_or_else(|| panic!("no reason: {why}"));
        assert!(first.parse::<Code>().is_ok(), "{first} is a code: {why}");
        let text = site.mete(&["why", kind, name]).done();
        let title = why["title"].as_str().expect("a title");
        let begins = title.split_whitespace().next().expect("a word");
        assert!(
            text.contains(begins) && text.contains("LAYER"),
            "{begins} in {text}"
        );
    }
}

fn events(site: &Site) {
    let events = site.json(&["events", "--since", "1h"]);
    assert!(!events.items().is_empty(), "something happened");
    let text = site.mete(&["events", "--since", "1h"]).done();
    assert!(text.lines().count() >= events.items().len(), "{text}");
    let revisions: Vec<u64> = events
        .items()
        .iter()
        .filter_map(|event| event["revision"].as_u64())
        .collect();
    assert_eq!(
        revisions.len(),
        events.items().len(),
        "every event has its revision"
    );
    assert!(revisions.is_sorted(), "in order: {revisions:?}");
}

#[test]
fn every_listing_says_the_same_to_people_and_to_programs() {
    let site = Site::dev(&["--nodes", "1", "--fake", "2", "--role", "render"]);
    let flags = [
        "submit", "--name", "calm", "--cpus", "0.1", "--", "sleep", "1000",
    ];
    let calm = site.mete(&flags).done();
    let flags = [
        "submit", "--name", "huge", "--cpus", "15", "--array", "0-9", "--", "sleep", "9",
    ];
    let huge = site.mete(&flags).done();
    until("one to run and one to wait", || {
        let jobs = site.json(&["batch", "list", "-A"]);
        let (calm, huge) = (jobs.find("job", &calm)?, jobs.find("job", &huge)?);
        let fine = calm["state"] == "RUNNING" && huge["pending"] != 0;
        holds(fine, || jobs.0.to_string())
    });
    // What is asked, kind of the envelope, the field that names a row, names that must be there.
    let listings: [(&[&str], &str, &str, &[&str]); 7] = [
        (
            &["node", "list"],
            "NodeList",
            "name",
            &["n1", "f00001", "f00002"],
        ),
        (&["framework", "list"], "FrameworkList", "name", &["batch"]),
        (&["task", "list"], "TaskList", "task", &[&calm]),
        (&["batch", "list"], "JobList", "job", &[&calm, &huge]),
        (&["ps", "-A"], "JobList", "job", &[&calm, &huge]),
        (
            &["quota", "tree"],
            "RoleList",
            "path",
            &["batch", "service", "dev", "render"],
        ),
        (&["offer", "list"], "OfferList", "id", &[]),
    ];
    for (args, kind, field, names) in listings {
        listing(&site, args, kind, field, names);
    }
    sums(&site);
    reasons(
        &site,
        &[
            ("job", &huge),
            ("job", &calm),
            ("node", "n1"),
            ("framework", "batch"),
            ("role", "batch"),
            ("task", &calm),
        ],
    );
    events(&site);
}

#[test]
fn a_unique_prefix_is_as_good_as_a_name() {
    let site = Site::dev(&["--nodes", "1", "--fake", "1"]);
    let flags = [
        "submit", "--name", "prefixed", "--cpus", "0.1", "--", "sleep", "1000",
    ];
    let job = site.mete(&flags).done();
    until("it to run", || {
        let tasks = site.json(&["task", "list", "--state", "running"]);
        holds(tasks.items().len() == 1, || tasks.0.to_string())
    });
    assert_eq!(
        site.json(&["batch", "show", "pref"]).one()["job"],
        job.as_str()
    );
    assert_eq!(
        site.json(&["task", "show", "pref"]).one()["task"],
        job.as_str()
    );
    // Longer than what the random id of the other node may begin with by chance.
    assert_eq!(
        site.json(&["node", "show", "f0000"]).one()["name"],
        "f00001"
    );
    assert_eq!(
        site.json(&["framework", "show", "bat"]).one()["name"],
        "batch"
    );
    let id = site.json(&["framework", "list"]).items()[0]["id"]
        .as_str()
        .expect("id")
        .to_owned();
    assert_eq!(
        site.json(&["framework", "show", &id[..8]]).one()["id"],
        id.as_str()
    );
    site.mete(&["task", "kill", "pref", "--yes"]).done();
    let waited = site.mete(&["wait-is-no-command"]);
    waited.refused(2, "USAGE");
    let ended = site.mete(&["batch", "wait", "pref", "--timeout", "60s"]);
    assert_ne!(ended.code, 0, "it was killed: {ended}");
    assert_ne!(ended.code, 7, "it is over: {ended}");
}

#[test]
fn help_explains_every_code_and_every_command() {
    let site = Site::new();
    for code in Code::ALL {
        let page = site.mete(&["help", code.as_str()]).done();
        assert!(
            page.contains(code.as_str()) && page.lines().count() >= 3,
            "{code}: {page}"
        );
    }
    let codes = site.mete(&["help", "codes"]).done();
    let missing: Vec<_> = Code::ALL
        .iter()
        .filter(|code| !codes.contains(code.as_str()))
        .collect();
    assert!(missing.is_empty(), "{missing:?} in {codes}");
    assert!(
        site.mete(&["help", "batch", "run"])
            .done()
            .contains("METE_INDEX")
    );
    assert!(
        site.mete(&["--help"])
            .done()
            .contains("mete run -- echo hello")
    );
    let version = site.mete(&["version"]).done();
    assert!(version.contains(env!("CARGO_PKG_VERSION")), "{version}");
    for shell in ["bash", "zsh", "fish"] {
        let script = site.mete(&["completion", shell]).done();
        assert!(
            script.contains("mete") && script.len() > 100,
            "{shell}: {script}"
        );
    }
    let man = site.arg("man");
    site.mete(&["man", &man]).done();
    let pages = std::fs::read_dir(&man)
        .expect("a directory")
        .flatten()
        .count();
    assert!(pages > 40, "{pages} pages");
    let page = std::fs::read_to_string(site.path("man/mete-batch-run.1")).expect("a page");
    assert!(page.contains(".TH"), "{page}");
}

#[test]
fn the_demo_plays_its_story_and_ends_well() {
    let site = Site::new();
    let answer = site.mete(&["demo"]);
    let story = answer.done();
    for part in ["service", "batch", "mete why job", "mete task kill"] {
        assert!(story.contains(part), "{part} in {answer}");
    }
    assert!(!answer.stderr.contains("error["), "{answer}");
    let left = support::reap::processes_of(site.root());
    assert!(left.is_empty(), "processes that outlive the demo: {left:?}");
}

#[test]
fn two_dev_clusters_on_one_machine_do_not_meet_and_leave_nothing_behind() {
    let mut one = Site::dev(&["--nodes", "2"]);
    let other = Site::dev(&["--nodes", "2"]);
    let submit = |site: &Site| {
        let script = "echo $$ > pid; exec sleep 1000";
        site.mete(&[
            "submit", "--name", "calm", "--cpus", "0.1", "--", "sh", "-c", script,
        ])
        .done()
    };
    let process = |site: &Site| {
        until("the task to say its process id", || {
            let text = std::fs::read_to_string(site.path("work/pid")).unwrap_or_default();
            let pid: u32 = text.trim().parse().map_err(|_| format!("'{text}'"))?;
            alive_since(pid)
                .map(|at| (pid, at))
                .ok_or(format!("{pid} is gone"))
        })
    };
    submit(&one);
    submit(&other);
    let (first, second) = (process(&one), process(&other));
    // Agents of the same name, and nothing shared: each would put its limits over the other's.
    let (theirs, ours) = (groups(first.0), groups(second.0));
    if theirs.is_empty() || ours.is_empty() {
        eprintln!("NOT TESTED: control groups of two clusters; none can be written here");
    }
    assert!(theirs.is_disjoint(&ours), "{theirs:?} {ours:?}");
    one.daemon("dev").stop();
    let left: Vec<_> = theirs.iter().filter(|path| path.exists()).collect();
    assert!(left.is_empty(), "groups of the stopped cluster: {left:?}");
    assert_eq!(groups(second.0), ours, "those of the other are as before");
    // Without a state directory nobody could find it again.
    until("the stopped cluster's task to be gone", || {
        holds(alive_since(first.0) != Some(first.1), || {
            format!("{} lives", first.0)
        })
    });
    assert_eq!(
        process(&other),
        second,
        "the other cluster's task is untouched"
    );
    let answer = run(&other, &["echo", "fine"]);
    assert_eq!(answer.done(), "fine");
}

/// The agent's own control groups, `mete/<agent>` of each hierarchy, of a process that is a task's.
fn groups(pid: u32) -> BTreeSet<PathBuf> {
    let own = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
    let agents: BTreeSet<&str> = own
        .lines()
        .filter_map(|line| line.split_once("/mete/")?.1.split('/').next())
        .collect();
    let hierarchies = std::fs::read_dir("/sys/fs/cgroup").into_iter().flatten();
    let folders = hierarchies.flatten().map(|entry| entry.path());
    folders
        .chain([PathBuf::from("/sys/fs/cgroup")])
        .flat_map(|folder| {
            agents
                .iter()
                .map(move |agent| folder.join("mete").join(agent))
        })
        .filter(|path| path.is_dir())
        .collect()
}

/// What a cluster has outside of its directory: the place in memory for the records of its runs,
/// and the control groups of its agents.
fn outside(home: &Path, tasks: &[(u32, u64)]) -> BTreeSet<PathBuf> {
    let records = std::fs::read_link(home.join("run"));
    assert!(
        records.iter().all(|records| records.is_dir()),
        "{records:?}"
    );
    let groups = tasks.iter().flat_map(|(pid, _)| groups(*pid));
    records.into_iter().chain(groups).collect()
}

/// The directories of dev clusters that keep no state.
fn homes(site: &Site) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(site.path("tmp")).expect("a directory");
    let entries = entries.flatten().map(|entry| entry.path());
    let named = |path: &PathBuf| path.to_string_lossy().contains("mete-dev-");
    entries.filter(named).collect()
}

#[test]
fn what_a_killed_dev_cluster_has_left_is_cleared_by_the_next_one_and_a_living_one_is_not_touched() {
    let mut site = Site::dev(&["--nodes", "2"]);
    let script = "echo $$ >> pids; exec sleep 1000";
    let flags = [
        "submit", "--cpus", "0.1", "--array", "0-1", "--", "sh", "-c", script,
    ];
    let started = |site: &Site, count: usize| -> Vec<(u32, u64)> {
        until("the tasks to say their process ids", || {
            let text = std::fs::read_to_string(site.path("work/pids")).unwrap_or_default();
            let pids = text.lines().filter_map(|line| line.parse::<u32>().ok());
            let alive: Vec<_> = pids
                .filter_map(|pid| alive_since(pid).map(|at| (pid, at)))
                .collect();
            holds(alive.len() == count, || text.clone()).map(|()| alive)
        })
    };
    site.mete(&flags).done();
    let dead = started(&site, 2);
    let [left] = homes(&site).try_into().expect("one directory");
    let outside = outside(&left, &dead);
    site.kill("dev");
    assert_eq!(started(&site, 2), dead, "tasks outlive a killed cluster");
    // Somebody else's that lives, and one without a lock: nothing proves that these are dead.
    let foreign = site.path("tmp/mete-dev-without-lock");
    std::fs::create_dir(&foreign).expect("a directory");
    site.spawn(
        "second",
        &["dev", "--listen", "127.0.0.1:0", "--nodes", "1"],
    );
    until("the second one to be ready", || {
        let said = site.daemon("second").alive()?;
        holds(said.contains("try: mete run"), || said)
    });
    let said = site.daemon("second").said();
    let path = left.display().to_string();
    let lines: Vec<&str> = said.lines().filter(|line| line.contains(&path)).collect();
    assert_eq!(lines.len(), 1, "said in one line: {said}");
    assert!(lines[0].contains("2 tasks ended"), "{said}");
    for (pid, at) in dead {
        assert_ne!(alive_since(pid), Some(at), "{pid} still runs");
    }
    assert!(!left.exists() && foreign.exists(), "{said}");
    let still: Vec<_> = outside.iter().filter(|path| path.exists()).collect();
    assert!(still.is_empty(), "{still:?}");
    // The second one lives: a third finds nothing to clear.
    let [living] = {
        let mut all = homes(&site);
        all.retain(|path| *path != foreign);
        all.try_into().expect("one directory")
    };
    site.spawn(
        "third",
        &[
            "dev",
            "--listen",
            "127.0.0.1:0",
            "--nodes",
            "0",
            "--fake",
            "1",
        ],
    );
    until("the third one to be ready", || {
        let said = site.daemon("third").alive()?;
        holds(said.contains("frameworks batch"), || said)
    });
    let said = site.daemon("third").said();
    assert!(!said.contains("cleared up"), "{said}");
    assert!(living.exists(), "the second one's directory");
    site.daemon("second")
        .alive()
        .expect("the second one goes on");
}

#[test]
fn what_a_dev_cluster_keeps_in_a_state_directory_is_there_again() {
    let mut site = Site::new();
    let state = site.arg("state");
    let listen = format!("127.0.0.1:{}", support::free_port());
    let flags = [
        "dev",
        "--headless",
        "--ready-json",
        "--listen",
        &listen,
        "--state-dir",
        &state,
    ];
    site.spawn("dev", &flags);
    site.set_address(&listen);
    let ready = |site: &mut Site| {
        until("mete dev to be ready", || {
            let said = site.daemon("dev").alive()?;
            holds(said.contains("DevReady"), || said)
        });
    };
    ready(&mut site);
    let script = "echo $$ > pid; exec sleep 1000";
    let flags = [
        "submit", "--name", "kept", "--cpus", "0.1", "--", "sh", "-c", script,
    ];
    let job = site.mete(&flags).done();
    let pid: u32 = until("the task to say its process id", || {
        let text = std::fs::read_to_string(site.path("work/pid")).unwrap_or_default();
        text.trim().parse().map_err(|_| text)
    });
    let before = alive_since(pid);
    assert!(before.is_some(), "it lives");
    for polite in [true, false] {
        if polite {
            site.daemon("dev").stop();
        } else {
            site.kill("dev");
        }
        site.restart("dev");
        ready(&mut site);
        assert_eq!(
            alive_since(pid),
            before,
            "the same process, stopped politely: {polite}"
        );
        until("the job to run as before", || {
            let jobs = site.json(&["batch", "list", "-A"]);
            let row = jobs.find("job", &job)?;
            holds(row["state"] == "RUNNING" && row["running"] == 1, || {
                row.to_string()
            })
        });
    }
    site.mete(&["batch", "cancel", &job, "--yes"]).done();
    until("the task to be gone", || {
        holds(alive_since(pid) != before, || format!("{pid} lives"))
    });
}

#[test]
fn the_bench_of_a_node_starts_real_tasks_and_gives_figures_beside_a_bare_start() {
    let site = Site::new();
    let flags = ["bench", "node", "--starts", "5", "--at-once", "8"];
    let table = site.mete(&flags);
    assert!(table.done().contains("durable_start_p99_ms  "), "{table}");

    let shown = site.json(&flags);

    let figures = shown.one();
    assert_eq!(
        (&figures["starts"], &figures["at_once"]),
        (&5.into(), &8.into())
    );
    let number = |name: &str| {
        let value = figures[name].as_f64();
        value.unwrap_or_else(|| panic!("{name} is a number: {figures}"))
    };
    for name in ["bare_p50_ms", "start_p50_ms", "ratio_p50", "at_once_ratio"] {
        assert!(number(name) > 0.0, "{name}: {figures}");
    }
    let over = number("start_p50_ms") - number("bare_p50_ms");
    assert!((over - number("over_p50_ms")).abs() < 0.02, "{figures}");
    let durable = number("durable_start_p99_ms");
    assert!(durable >= number("start_p50_ms"), "{figures}");

    let refused = site.mete(&["bench", "node", "--starts", "0"]);
    refused.refused(2, "USAGE").says("--starts");
}
