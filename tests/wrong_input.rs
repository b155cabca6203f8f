//! Wrong input as a user meets it: a clear error with what to do, never a panic, nothing lost.

#![expect(
    clippy::indexing_slicing,
    reason = "a missing field must fail the story"
)]

mod support;

use std::collections::BTreeMap;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use mete_sdk::Code;
use support::{Site, ask, holds, skip, until, within};

#[test]
fn an_unknown_word_is_refused_with_the_one_that_was_meant() {
    let site = Site::new();
    let meant: [(&[&str], &str); 7] = [
        (&["node", "list", "--stat", "ready"], "--state"),
        (&["noed", "list"], "node"),
        (&["node", "lst"], "list"),
        (&["node", "list", "-o", "jsn"], "json"),
        (&["submit", "--cpu", "1", "--", "true"], "--cpus"),
        (&["run", "--memry", "1MiB", "--", "true"], "--memory"),
        (&["batch", "submt", "--", "true"], "submit"),
    ];
    for (args, word) in meant {
        let answer = site.mete(args);
        answer.refused(2, "USAGE").says(word);
        assert!(
            answer.stdout.is_empty(),
            "an error goes to stderr: {answer}"
        );
    }
}

#[test]
fn a_quantity_that_cannot_be_meant_is_refused_before_anything_is_sent() {
    let mut site = Site::new();
    // Nobody listens there: whatever is sent would be refused with another code.
    site.set_address("127.0.0.1:1");
    let refused: [(&[&str], &str); 18] = [
        (&["--cpus", "-1"], "such as 2, 0.5 or 500m"),
        (&["--memory", "-1GiB"], "at most 8PiB"),
        (&["--memory", "9PiB"], "at most 8PiB"),
        (&["--retries", "-1"], "-1"),
        (&["--time", "0s"], "at least 1ms"),
        (&["--timeout", "0s"], "at least 1ms"),
        (&["--timeout", "-5s"], "30s"),
        (&["--watch=0.01"], "0.1 seconds"),
        (&["--cpus", "0.0001"], "below 0.001"),
        (&["--cpus", "99999999999999999999"], "cpus"),
        (&["--cpus=-1"], "cpus"),
        (&["--cpus", "nan"], "cpus"),
        (&["--memory", "12XB"], "memory"),
        (&["--memory", "100000EiB"], "memory"),
        (&["--memory", "64"], "memory"),
        (&["--gpus", "1.5"], "gpus"),
        (&["--time", "soon"], "time"),
        (&["--env", "NOVALUE"], "NAME=VALUE"),
    ];
    for (flags, text) in refused {
        let answer = site.mete(&[&["submit"], flags, &["--", "true"]].concat());
        answer.refused(2, "USAGE").says(text);
    }
}

#[test]
fn a_job_file_with_an_unknown_key_names_the_line_and_the_key_that_was_meant() {
    let mut site = Site::new();
    site.set_address("127.0.0.1:1");
    let file = site.arg("work/job.toml");
    let write = |text: &str| std::fs::write(&file, text).expect("a file");
    write("name = \"train\"\n[run]\ncommand = [\"true\"]\n[task]\ncpuss = 2\n");
    let unknown = site.mete(&["submit", &file]);
    unknown
        .refused(2, "USAGE")
        .says("job.toml, line 5")
        .says("did you mean 'cpus'");
    write("name = \"train\"\n[run]\ncommand = [\"true\"\n");
    site.mete(&["submit", &file])
        .refused(2, "USAGE")
        .says("job.toml, line");
    write("[run]\ncommand = [\"true\"]\n[task]\ncpus = 0.0001\n");
    site.mete(&["submit", &file])
        .refused(2, "USAGE")
        .says("line 4")
        .says("below 0.001");
    write("[run]\ncommand = \"true\"\n");
    site.mete(&["submit", &file])
        .refused(2, "USAGE")
        .says("line 2");
    let missing = site.arg("work/none.toml");
    let answer = site.mete(&["submit", &missing]);
    assert!(
        answer.stderr.contains("none.toml") && answer.code != 0,
        "{answer}"
    );
}

#[test]
fn a_configuration_with_an_unknown_key_names_the_line() {
    let site = Site::new();
    let text = "current = \"a\"\n[contexts.a]\nmaster = [\"127.0.0.1:1\"]\n";
    std::fs::write(site.path("config.toml"), text).expect("a file");
    for args in [["node", "list"], ["config", "validate"]] {
        site.mete(&args)
            .refused(2, "USAGE")
            .says("line 3")
            .says("did you mean 'masters'");
    }
}

#[test]
fn without_a_cluster_the_user_is_told_what_was_looked_at() {
    let mut site = Site::new();
    site.mete(&["node", "list"])
        .refused(4, "NO_CONTEXT")
        .says("METE_MASTER")
        .says("mete dev");
    site.mete(&["--context", "prod", "node", "list"])
        .refused(4, "NO_CONTEXT")
        .says("prod");
    site.mete(&["--master", "nonsense", "node", "list"])
        .refused(2, "USAGE")
        .says("HOST:PORT");
    let nobody = format!("127.0.0.1:{}", support::free_port());
    site.set_address(&nobody);
    site.mete(&["node", "list"])
        .refused(4, "UNREACHABLE")
        .says(&nobody);
    let answer = site.mete(&["node", "list", "-o", "json"]);
    assert_eq!(answer.code, 4, "{answer}");
    let text = format!("{}{}", answer.stdout, answer.stderr);
    let error: serde_json::Value = serde_json::from_str(&text).expect("an error in JSON alone");
    assert_eq!(error["kind"], "Error", "{answer}");
    assert_eq!(error["error"]["code"], "UNREACHABLE", "{answer}");
    // What runs long waits for its masters instead; a command of ours that fails is 125.
    let answer = site.mete(&["run", "--timeout", "5s", "--", "true"]);
    assert_eq!(answer.code, 125, "{answer}");
}

#[test]
fn a_port_in_use_and_an_address_that_is_not_loopback_are_refused_by_every_daemon() {
    let mut site = Site::new();
    site.found_master();
    let taken = TcpListener::bind("127.0.0.1:0").expect("a port");
    let taken = taken
        .local_addr()
        .map(|address| (taken, address.to_string()));
    let (_held, taken) = taken.expect("its address");
    let (master, agent) = (site.arg("master"), site.arg("n1"));
    let daemons: [&[&str]; 4] = [
        &["dev", "--headless"],
        &["master", "start", "--state-dir", &master],
        &["agent", "start", "--state-dir", &agent],
        &["batch", "start"],
    ];
    for daemon in daemons {
        let answer = site.mete(&[daemon, &["--listen", &taken]].concat());
        answer.refused(1, "ADDRESS_IN_USE").says(&taken);
        let serves = ["listens on", "serves its node API"];
        assert!(
            !serves.iter().any(|text| answer.stderr.contains(text)),
            "{answer}"
        );
        let answer = site.mete(&[daemon, &["--listen", "0.0.0.0:0"]].concat());
        answer.refused(1, "NOT_LOOPBACK").says("--insecure");
        let answer = site.mete(&[daemon, &["--listen", "nowhere"]].concat());
        answer.refused(2, "USAGE").says("nowhere");
    }
}

#[test]
fn a_state_directory_that_is_missing_or_foreign_is_refused() {
    let mut site = Site::new();
    site.set_address("127.0.0.1:1");
    let none = site.arg("none");
    let start = |directory: &str| site.mete(&["master", "start", "--state-dir", directory]);
    let refused = start(&none);
    refused.refused(1, "STATE_DIRECTORY").says(&none);
    assert!(!refused.stderr.contains("listens on"), "{refused}");
    assert!(!Path::new(&none).exists(), "starting makes no directory");
    let foreign = site.arg("foreign");
    std::fs::create_dir(&foreign).expect("a directory");
    std::fs::write(site.path("foreign/thesis.tex"), "years of work").expect("a file");
    start(&foreign)
        .refused(1, "STATE_DIRECTORY")
        .says("thesis.tex");
    let init = site.mete(&["master", "init", "--state-dir", &foreign]);
    init.refused(1, "STATE_DIRECTORY").says("thesis.tex");
    let kept = std::fs::read_to_string(site.path("foreign/thesis.tex"));
    assert_eq!(kept.expect("still there"), "years of work");
    let file = site.arg("foreign/thesis.tex");
    start(&file).refused(1, "STATE_DIRECTORY");
    let agent = site.mete(&[
        "agent",
        "start",
        "--state-dir",
        &file,
        "--listen",
        "127.0.0.1:0",
    ]);
    agent.refused(1, "STATE_DIRECTORY").says("thesis.tex");
}

#[test]
fn a_state_directory_in_use_is_refused_and_its_owner_notices_nothing() {
    let mut site = Site::new();
    site.start_master();
    let master = site.arg("master");
    let init = site.mete(&["master", "init", "--state-dir", &master]);
    init.refused(1, "STATE_LOCKED").says(&master);
    let second = [
        "master",
        "start",
        "--state-dir",
        &master,
        "--listen",
        "127.0.0.1:0",
    ];
    let refused = site.mete(&second);
    refused.refused(1, "STATE_LOCKED").says(&master);
    assert!(!refused.stderr.contains("listens on"), "{refused}");
    site.start_agent("n1", &["--share", "500m,1GiB"]);
    let (state, run) = (site.arg("n1"), site.arg("run"));
    let second = [
        "agent",
        "start",
        "--state-dir",
        &state,
        "--run-dir",
        &run,
        "--name",
        "other",
    ];
    let second = site.mete(&[&second[..], &["--listen", "127.0.0.1:0"]].concat());
    second.refused(1, "STATE_LOCKED").says(&state);
    assert!(!second.stderr.contains("serves its node API"), "{second}");
    // The first ones noticed nothing.
    site.wait_for_node("n1", "ready");
    let agent = [
        "agent",
        "start",
        "--state-dir",
        &master,
        "--run-dir",
        &run,
        "--name",
        "other",
    ];
    let agent = site.mete(
        &[
            &agent[..],
            &["--listen", "127.0.0.1:0", "--share", "1,1GiB"],
        ]
        .concat(),
    );
    agent.refused(1, "STATE_DIRECTORY").says(&master);
    site.daemon("master").stop();
    let init = site.mete(&["master", "init", "--state-dir", &master]);
    init.refused(1, "STATE_DIRECTORY").says(&master);
}

#[test]
fn an_agent_with_an_impossible_name_or_a_taken_one_ends_with_what_to_do() {
    let mut site = Site::new();
    site.start_master();
    site.start_agent("n1", &["--share", "500m,1GiB"]);
    let taken = site.node("n1");
    let (state, run) = (site.arg("second"), site.arg("run-of-second"));
    let start = |name: &str| {
        let flags = [
            "--listen",
            "127.0.0.1:0",
            "--share",
            "500m,1GiB",
            "--name",
            name,
        ];
        let place = ["agent", "start", "--state-dir", &state, "--run-dir", &run];
        site.mete(&[&place[..], &flags].concat())
    };
    for (name, rule) in [
        ("a b", "white space"),
        ("rack/1", "no '/'"),
        ("", "1 to 253"),
        (&"n".repeat(254), "1 to 253"),
    ] {
        start(name).refused(2, "USAGE").says("--name").says(rule);
    }
    assert!(!site.path("second").exists(), "nothing was made for it");

    let answer = start(&taken);
    answer.refused(6, "IN_USE").says(&format!("'{taken}'"));
    answer.says("give this node another name with --name");
    assert!(answer.stderr.contains("turns this agent away"), "{answer}");
    // The first one noticed nothing.
    site.wait_for_node("n1", "ready");
    assert!(site.path("n1").join("registered").exists());
    assert!(!site.path("second").join("registered").exists());
}

#[test]
fn an_agent_is_given_no_more_than_the_machine_has() {
    let mut site = Site::new();
    site.set_address("127.0.0.1:1");
    let (state, run) = (site.arg("n1"), site.arg("run"));
    let start = ["agent", "start", "--state-dir", &state, "--run-dir", &run];
    for (flags, word) in [
        (["--share", "100000,1GiB"], "milli-CPUs"),
        (["--share", "1,100000GiB"], "memory"),
    ] {
        let answer = site.mete(&[&start[..], &["--listen", "127.0.0.1:0"], &flags].concat());
        answer.refused(1, "PART_TAKEN").says(word);
    }
    let answer = site.mete(&[&start[..], &["--cpus", "9000", "--memory", "1GiB"]].concat());
    assert!(
        answer.code != 0 && answer.stderr.contains("9000"),
        "{answer}"
    );
    let answer = site.mete(&[&start[..], &["--cpus", "0"]].concat());
    answer.refused(2, "USAGE").says("--memory");
    let answer = site.mete(&[&start[..], &["--share", "0,0"]].concat());
    answer.refused(2, "USAGE").says("10m,64MiB");
}

#[test]
fn names_that_are_not_there_and_names_that_mean_several_things_are_told_apart() {
    let site = Site::dev(&["--nodes", "0", "--fake", "2"]);
    for args in [
        ["batch", "show", "nope-1"],
        ["node", "show", "nope"],
        ["framework", "show", "nope"],
        ["task", "show", "nope"],
        ["why", "job", "nope-1"],
        ["why", "node", "nope"],
        ["batch", "cancel", "nope-1"],
        ["task", "kill", "nope"],
        ["quota", "rm", "nope"],
        ["offer", "rescind", "o-1-99"],
    ] {
        let answer = site.mete(&[&args[..], &["--yes"]].concat());
        answer.refused(3, "NOT_FOUND").says(args[2]);
    }
    let answer = site.mete(&["node", "show", "f0000"]);
    answer.refused(2, "AMBIGUOUS").says("f00001").says("f00002");
    let answer = site.mete(&["submit", "--role", "nope", "--", "true"]);
    answer.refused(2, "INVALID").says("nope").says("batch");
    for array in ["9-0", "0-99999999999", "a", "0-4:0", "0-99999999"] {
        let answer = site.mete(&["submit", "--array", array, "--", "true"]);
        answer.refused(2, "INVALID").says(array);
    }
    site.mete(&["quota", "rm", "batch", "--yes"])
        .refused(6, "IN_USE");
    // Larger than anything there: it waits and says so, or it is refused at once; it is never
    // silent.
    let huge = site.mete(&["submit", "--cpus", "5000", "--name", "huge", "--", "true"]);
    if huge.code == 0 {
        let why = until("huge to be judged", || {
            let why = site.mete(&["why", "job", huge.stdout.trim()]).done();
            if why.contains("NOT_DECIDED") {
                Err(why)
            } else {
                Ok(why)
            }
        });
        assert!(why.contains("INFEASIBLE"), "{why}");
    } else {
        huge.refused(8, "INFEASIBLE");
    }
}

/// Every file below with its bytes, locks and logs left out.
fn files(folder: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut all = BTreeMap::new();
    for entry in std::fs::read_dir(folder).expect("a directory").flatten() {
        let path = entry.path();
        if path.is_dir() {
            all.extend(files(&path));
        } else if entry.file_name() != "lock" {
            all.insert(path.clone(), std::fs::read(&path).expect("a file"));
        }
    }
    all
}

#[test]
fn what_cannot_be_written_is_said_and_what_was_done_all_the_same() {
    let site = Site::dev(&["--nodes", "1"]);
    let full = |args: &[&str]| {
        let full = std::fs::OpenOptions::new().write(true).open("/dev/full");
        support::ask::run_to(&site, args, &[], Some(full.expect("the kernel has it")))
    };
    full(&["submit", "--name", "kept", "--cpus", "0.1", "--", "true"])
        .refused(1, "FILE")
        .says("the job kept-1 was submitted all the same");
    site.mete(&["batch", "wait", "kept-1"]).done();
    full(&["run", "--cpus", "0.1", "--", "echo", "hi"])
        .refused(1, "FILE")
        .says("has ended well");
    let failed = full(&["run", "--cpus", "0.1", "--", "sh", "-c", "echo hi; exit 9"]);
    assert_eq!(failed.code, 9, "{failed}");
}

#[test]
fn a_damaged_store_is_named_and_left_as_it_is() {
    let mut site = Site::new();
    site.start_master();
    for number in 0..40 {
        site.mete(&["quota", "set", &format!("team{number}"), "--weight", "2"])
            .done();
    }
    site.daemon("master").stop();
    let good = files(&site.path("master"));
    let (log, bytes) = good
        .iter()
        .filter(|(path, _)| path.file_name().is_some_and(|name| name == "db"))
        .max_by_key(|(_, bytes)| bytes.len())
        .expect("the log's file");
    let mut damaged = bytes.clone();
    let used = bytes
        .iter()
        .rposition(|byte| *byte != 0)
        .expect("something was written");
    for byte in &mut damaged[used / 2..used / 2 + 600] {
        *byte ^= 0x5a;
    }
    std::fs::write(log, &damaged).expect("written");
    let before = files(&site.path("master"));
    let (state, listen) = (site.arg("master"), site.address().to_owned());
    let start = [
        "master",
        "start",
        "--state-dir",
        &state,
        "--listen",
        &listen,
    ];
    let answer = site.mete(&start);
    answer.refused(1, "STORE_DAMAGED").says(&state);
    for (path, bytes) in files(&site.path("master")) {
        if let Some(before) = before.get(&path) {
            assert!(*before == bytes, "{} was changed", path.display());
        }
    }
    // With the bytes as they were everything is there again.
    std::fs::write(log, bytes).expect("written");
    site.restart("master");
    site.wait_for_master();
    let tree = site.json(&["quota", "tree"]);
    assert!(tree.0.to_string().contains("team39"), "{}", tree.0);
}

#[test]
fn a_damaged_checkpoint_keeps_no_agent_from_starting() {
    let mut site = Site::new();
    site.start_master();
    site.start_agent("n1", &[]);
    site.daemon("n1").stop();
    for (path, mut bytes) in files(&site.path("n1")) {
        let is_log = path.to_string_lossy().contains("checkpoint") && bytes.len() > 16;
        if is_log {
            let end = bytes.len();
            bytes.truncate(end - 7);
            std::fs::write(&path, bytes).expect("written");
        }
    }
    site.restart("n1");
    site.wait_for_agent("n1");
    site.wait_for_node("n1", "ready");
}

/// A small file system of its own, unmounted when it is dropped.
struct SmallDisk(PathBuf);

impl SmallDisk {
    /// Puts a state directory of the site on a disk of its own; `None` when nobody may mount here.
    fn below(site: &Site, name: &str, size: &str) -> Option<Self> {
        let path = site.path("disk");
        std::fs::create_dir(&path).expect("a directory");
        let option = format!("size={size}");
        let mounted = std::process::Command::new("mount")
            .args(["-t", "tmpfs", "-o", &option, "mete-test"])
            .arg(&path)
            .output();
        let mounted = mounted.is_ok_and(|mounted| mounted.status.success());
        let disk = mounted.then_some(Self(path))?;
        let state = disk.0.join("state");
        std::fs::create_dir(&state).expect("a directory");
        std::os::unix::fs::symlink(state, site.path(name)).expect("a link");
        Some(disk)
    }

    /// Takes all the space there is.
    fn fill(&self) {
        use std::io::Write;
        let mut file = std::fs::File::create(self.0.join("filler")).expect("a file");
        let block = vec![1_u8; 64 << 10];
        // Until the disk is full, and then the last bytes.
        while file.write_all(&block).is_ok() {}
        while file.write_all(&[1]).is_ok() {}
    }

    fn empty(&self) {
        std::fs::remove_file(self.0.join("filler")).expect("the filler");
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // Lazily: a process that is only just ending may still hold a file there.
        let _ = std::process::Command::new("umount")
            .arg("-l")
            .arg(&self.0)
            .output();
    }
}

#[test]
fn a_master_on_a_full_disk_refuses_changes_still_answers_and_goes_on_when_there_is_room() {
    let mut site = Site::new();
    let Some(disk) = SmallDisk::below(&site, "master", "220m") else {
        return skip("a full disk needs root to mount a tmpfs");
    };
    site.start_master();
    disk.fill();
    let refused = within(Duration::from_secs(20), "a change to be refused", || {
        let answer = site.mete(&["quota", "set", "later"]);
        if answer.code == 0 {
            Err(answer.to_string())
        } else {
            Ok(answer)
        }
    });
    refused.refused(1, "DISK_FULL");
    site.daemon("master").alive().expect("it goes on");
    let roles = site.json(&["quota", "tree"]).0.to_string();
    assert!(roles.contains("batch"), "reading goes on: {roles}");
    // A start on the full disk gives up its reserve, and says so at worst.
    site.kill("master");
    let state = site.arg("master");
    site.restart("master");
    let end = until("it to lead or to say why not", || {
        let daemon = site.daemon("master");
        if let Some(status) = daemon.status() {
            return Ok(Some((status, daemon.said())));
        }
        let answer = site.mete(&["status", "--timeout", "2s"]);
        holds(answer.code == 0, || answer.to_string()).map(|()| None)
    });
    if let Some((status, said)) = end {
        assert_eq!(status.code(), Some(1), "{said}");
        assert!(
            said.contains("error[DISK_FULL]") && !said.contains("panicked"),
            "{said}"
        );
        assert!(said.contains(&state), "{said}");
    }
    disk.empty();
    if site.daemon("master").status().is_some() {
        site.restart("master");
    }
    site.wait_for_master();
    until("changes to be taken again", || {
        let answer = site.mete(&["quota", "set", "later"]);
        holds(answer.code == 0, || answer.to_string())
    });
}

#[test]
fn an_agent_on_a_full_disk_refuses_launches_touches_no_task_and_goes_on_when_there_is_room() {
    let mut site = Site::new();
    let Some(disk) = SmallDisk::below(&site, "n1", "160m") else {
        return skip("a full disk needs root to mount a tmpfs");
    };
    site.start_master();
    site.start_agent("n1", &[]);
    site.start_batch();
    let flags = [
        "submit", "--name", "old", "--cpus", "0.1", "--", "sleep", "1000",
    ];
    let old = site.mete(&flags).done();
    let running = |site: &Site, job: &str, state: &str| {
        let list = site.json(&["batch", "list", "-A"]);
        let row = list.find("job", job)?;
        holds(row["state"] == state, || row.to_string())
    };
    until("the first to run", || running(&site, &old, "RUNNING"));
    disk.fill();
    until("a launch to be refused", || {
        let flags = ["submit", "--name", "no", "--cpus", "0.1", "--", "true"];
        let refused = site.mete(&flags).done();
        let events = site.mete(&["events", "--since", "10m"]).done();
        let waits = site.mete(&["why", "job", &refused]).stdout;
        let told = format!("{events}{waits}");
        holds(told.contains(Code::DiskPressure.as_str()), || told)
    });
    running(&site, &old, "RUNNING").expect("the running task is untouched");
    site.daemon("n1").alive().expect("the agent goes on");
    disk.empty();
    let answer = until("a launch to work again", || {
        let answer = ask::run(&site, &["run", "--cpus", "0.1", "--", "echo", "again"], &[]);
        if answer.code == 0 {
            Ok(answer)
        } else {
            Err(answer.to_string())
        }
    });
    assert_eq!(answer.done(), "again");
    running(&site, &old, "RUNNING").expect("the running task is untouched");
}

#[test]
fn a_submit_on_a_full_disk_is_refused_in_time_and_neither_kept_nor_doubled() {
    let mut site = Site::new();
    let Some(disk) = SmallDisk::below(&site, "master", "220m") else {
        return skip("a full disk needs root to mount a tmpfs");
    };
    site.start_master();
    site.start_agent("n1", &[]);
    site.start_batch();
    let submit = |site: &Site, name: &str| {
        site.mete(&["submit", "--name", name, "--cpus", "0.1", "--", "true"])
    };
    let first = submit(&site, "before").done();
    until("the first to end", || {
        let list = site.json(&["batch", "list", "-A"]);
        let row = list.find("job", &first)?;
        holds(row["state"] == "COMPLETED", || row.to_string())
    });
    disk.fill();
    let began = Instant::now();
    let refused = submit(&site, "full");
    refused.refused(1, "DISK_FULL").says("free space there");
    let took = began.elapsed();
    assert!(took < Duration::from_secs(25), "told after {took:?}");
    let jobs = |site: &Site| {
        let list = site.json(&["batch", "list", "-A"]);
        let names = list.texts("job").into_iter().map(str::to_owned);
        names.collect::<std::collections::BTreeSet<_>>()
    };
    assert_eq!(jobs(&site), [first.clone()].into());
    disk.empty();
    let second = until("a job to be taken again", || {
        let answer = submit(&site, "after");
        holds(answer.code == 0, || answer.to_string()).map(|()| answer.done())
    });
    until("it to end", || {
        let list = site.json(&["batch", "list", "-A"]);
        let row = list.find("job", &second)?;
        holds(row["state"] == "COMPLETED", || row.to_string())
    });
    // Nor does another process find more.
    site.kill("batch");
    site.restart("batch");
    site.wait_for_batch();
    assert_eq!(jobs(&site), [first, second].into());
}
