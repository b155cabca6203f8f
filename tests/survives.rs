//! What is killed with SIGKILL and started again: nothing is lost, nothing runs twice.
//!
//! Separate processes, as in production: a master, an agent, the batch framework. An array of 1 000
//! real processes goes through the death of each of them; long-running tasks keep their processes.

#![expect(
    clippy::indexing_slicing,
    reason = "a missing field must fail the story"
)]

mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use mete_sdk::{Claim, TaskPhase, TaskSpec};
use serde_json::Value;
use support::framework::{Raw, run, runtime};
use support::reap::alive_since;
use support::{Site, holds, skip, until};

const ELEMENTS: usize = 1_000;

/// Submits the array; each element adds a line to one file and lingers a moment.
fn submit_array(site: &Site) -> String {
    let script = "echo \"$METE_INDEX $METE_ATTEMPT $$\" >> lines; sleep 0.1";
    let last = format!("0-{}", ELEMENTS - 1);
    let flags = [
        "submit", "--name", "many", "--array", &last, "--cpus", "0.02",
    ];
    let rest = ["--memory", "16MiB", "--", "sh", "-c", script];
    site.mete(&[&flags[..], &rest[..]].concat()).done()
}

fn lines(site: &Site) -> Vec<String> {
    let text = std::fs::read_to_string(site.path("work/lines")).unwrap_or_default();
    text.lines().map(str::to_owned).collect()
}

/// Waits until some of the array is done, and says how much; it must not be over.
fn wait_for_the_middle(site: &Site) {
    let done = until("some elements to be over", || {
        let done = lines(site).len();
        if done >= ELEMENTS / 5 {
            Ok(done)
        } else {
            Err(format!("{done} lines"))
        }
    });
    assert!(
        done < ELEMENTS * 4 / 5,
        "{done} of {ELEMENTS} are over: this is not the middle"
    );
}

/// The row of a job.
fn job(site: &Site, name: &str) -> Value {
    let list = site.json(&["batch", "list", "-A"]);
    list.find("job", name)
        .unwrap_or_else(|why| panic!("{why}"))
        .clone()
}

/// Every element ran once, has one result, and nothing is left on the node.
fn check_results(site: &Site, array: &str) {
    let waited = site.mete(&["batch", "wait", array, "--timeout", "90s"]);
    assert_eq!(waited.code, 0, "{waited}");
    let row = job(site, array);
    assert_eq!(row["state"], "COMPLETED", "{row}");
    for (field, count) in [
        ("elements", ELEMENTS),
        ("completed", ELEMENTS),
        ("failed", 0),
    ] {
        assert_eq!(
            row[field].as_u64(),
            u64::try_from(count).ok(),
            "{field} of {row}"
        );
    }
    let mut seen: BTreeMap<usize, Vec<String>> = BTreeMap::new();
    for line in lines(site) {
        let index = line.split(' ').next().and_then(|index| index.parse().ok());
        seen.entry(index.unwrap_or_else(|| panic!("no index in '{line}'")))
            .or_default()
            .push(line);
    }
    let doubled: Vec<_> = seen.values().filter(|lines| lines.len() > 1).collect();
    assert!(
        doubled.is_empty(),
        "elements that ran more than once: {doubled:?}"
    );
    let lost: Vec<usize> = (0..ELEMENTS)
        .filter(|index| !seen.contains_key(index))
        .collect();
    assert!(lost.is_empty(), "elements that never ran: {lost:?}");
    until("the node to hold nothing", || {
        let nodes = site.json(&["node", "list"]);
        let node = nodes.find("name", &site.node("n1"))?;
        holds(
            node["granted"]["cpu_milli"] == 0 && node["tasks"] == 0,
            || node.to_string(),
        )
    });
}

#[test]
fn an_array_of_a_thousand_processes_gives_a_thousand_results() {
    let site = Site::cluster();
    let array = submit_array(&site);
    check_results(&site, &array);
}

#[test]
fn an_array_is_whole_when_its_agent_is_killed_in_the_middle() {
    let mut site = Site::cluster();
    let array = submit_array(&site);
    wait_for_the_middle(&site);
    site.kill("n1");
    // Long enough for everything that ran to end while nobody watched.
    std::thread::sleep(Duration::from_millis(400));
    site.restart("n1");
    site.wait_for_agent("n1");
    check_results(&site, &array);
}

#[test]
fn an_array_is_whole_when_the_master_is_killed_in_the_middle() {
    let mut site = Site::cluster();
    let array = submit_array(&site);
    wait_for_the_middle(&site);
    site.kill("master");
    std::thread::sleep(Duration::from_millis(400));
    site.restart("master");
    site.wait_for_master();
    check_results(&site, &array);
}

#[test]
fn an_array_is_whole_when_the_batch_framework_is_killed_in_the_middle() {
    let mut site = Site::cluster();
    let array = submit_array(&site);
    wait_for_the_middle(&site);
    site.kill("batch");
    site.restart("batch");
    site.wait_for_batch();
    check_results(&site, &array);
}

#[test]
fn who_runs_a_command_gets_its_exit_code_though_the_batch_framework_is_killed_meanwhile() {
    let mut site = Site::cluster();
    let script = format!("cd {}; touch begun; sleep 3; exit 9", site.arg("work"));
    site.spawn("run", &["run", "--cpus", "0.1", "--", "sh", "-c", &script]);
    until("the command to run", || {
        holds(site.path("work/begun").exists(), || "not yet".to_owned())
    });
    site.kill("batch");
    site.restart("batch");
    let status = site.daemon("run").wait();
    let said = site.daemon("run").said();
    assert_eq!(status.code(), Some(9), "{said}");
    assert!(!said.contains("error["), "{said}");
}

#[test]
fn what_a_job_wrote_is_read_after_its_agent_has_come_back_at_another_address() {
    let mut site = Site::cluster();
    let job = site
        .mete(&["submit", "--cpus", "0.1", "--", "echo", "kept"])
        .done();
    site.mete(&["batch", "wait", &job]).done();
    let address =
        |site: &Site| site.json(&["node", "show", "n1"]).one()["node_address"].to_string();
    let before = address(&site);
    site.kill("n1");
    site.restart("n1");
    site.wait_for_agent("n1");
    assert_ne!(address(&site), before, "it takes any free port");
    assert_eq!(site.mete(&["logs", &job]).done(), "kept");
}

/// The process ids that tasks wrote into files of their own, each with its start.
fn processes(site: &Site, count: u32) -> Vec<(u32, u64)> {
    until("every task to say its process id", || {
        (0..count)
            .map(|index| {
                let path = site.path(&format!("work/pid.{index}"));
                let text = std::fs::read_to_string(path).unwrap_or_default();
                let pid: u32 = text
                    .trim()
                    .parse()
                    .map_err(|_| format!("{index}: '{text}'"))?;
                alive_since(pid)
                    .map(|at| (pid, at))
                    .ok_or(format!("{index}: {pid} is gone"))
            })
            .collect()
    })
}

fn element(site: &Site, name: &str) -> Value {
    site.json(&["batch", "show", name]).one()["elements_list"][0].clone()
}

#[test]
fn tasks_keep_their_processes_when_their_agent_is_killed_and_report_what_happened_meanwhile() {
    let mut site = Site::cluster();
    let script = "echo $$ > pid.$METE_INDEX; \
                  if [ $METE_INDEX = 1 ]; then while [ ! -e go ]; do sleep 0.05; done; exit 7; fi; \
                  exec sleep 1000";
    let flags = [
        "submit", "--name", "long", "--array", "0-4", "--cpus", "0.1", "--", "sh", "-c",
    ];
    let long = site.mete(&[&flags[..], &[script]].concat()).done();
    let before = processes(&site, 5);
    until("all to run", || {
        let row = job(&site, &long);
        holds(row["running"] == 5, || row.to_string())
    });

    site.kill("n1");
    assert_eq!(
        processes(&site, 5),
        before,
        "the agent's death touches no task"
    );
    // One ends by itself, one is killed, while nobody watches.
    std::fs::write(site.path("work/go"), "").expect("a file");
    let (killed, _) = before[2];
    let pid = i32::try_from(killed)
        .ok()
        .and_then(rustix::process::Pid::from_raw);
    let kill = rustix::process::kill_process(pid.expect("a pid"), rustix::process::Signal::KILL);
    kill.expect("ours to kill");
    until("two of them to be gone", || {
        let gone = |index: usize| alive_since(before[index].0) != Some(before[index].1);
        holds(gone(1) && gone(2), || "still there".to_owned())
    });
    site.restart("n1");
    site.wait_for_agent("n1");

    until("both ends to be known", || {
        let (ended, killed) = (
            element(&site, &format!("{long}/1")),
            element(&site, &format!("{long}/2")),
        );
        let known = ended["exit_code"] == 7 && killed["exit_signal"] == 9;
        holds(known, || format!("{ended} {killed}"))
    });
    for index in [0, 3, 4] {
        let element = element(&site, &format!("{long}/{index}"));
        assert_eq!(element["state"], "RUNNING", "{element}");
        assert_eq!(element["attempt"], 1, "{element}");
        let (pid, at) = before[index];
        assert_eq!(
            alive_since(pid),
            Some(at),
            "element {index} is the same process"
        );
    }
    site.mete(&["batch", "cancel", &long, "--yes"]).done();
    until("the cancelled tasks to be gone", || {
        let left: Vec<_> = before
            .iter()
            .filter(|(pid, at)| alive_since(*pid) == Some(*at))
            .collect();
        holds(left.is_empty(), || format!("{left:?}"))
    });
}

#[test]
fn a_task_launched_again_under_its_name_survives_a_restart_of_the_agent() {
    let mut site = Site::new();
    site.start_master();
    site.start_agent("n1", &[]);
    runtime().block_on(async {
        let mut raw = Raw::open(&site, "again", "dev").await;
        let claim = Claim::cpu_milli(100).memory_mib(16).count(2);
        raw.session.want("one", claim).await.expect("declared");
        let first = run("t", 1);
        let offer = raw.offer("one").await;
        // One task's worth of an offer that may carry two.
        let spec = TaskSpec::command("t", ["true"]);
        let verdict = raw.launch_one(&offer, &first, &spec).await;
        assert!(verdict.outcome.is_ok(), "{verdict:?}");
        raw.update(&first, "finished", |update| {
            update.phase == TaskPhase::Finished
        })
        .await;

        let second = run("t", 2);
        let offer = raw.offer("one").await;
        let script = "echo $$ > pid.0; exec sleep 1000";
        let spec = TaskSpec::command("t", ["sh", "-c", script]);
        let spec = spec.working_directory(&site.arg("work"));
        let verdict = raw.launch_one(&offer, &second, &spec).await;
        assert!(verdict.outcome.is_ok(), "{verdict:?}");
        raw.update(&second, "running", |update| {
            update.phase == TaskPhase::Running
        })
        .await;
        let before = processes(&site, 1);

        site.kill("n1");
        site.restart("n1");
        site.wait_for_agent("n1");
        raw.listen(Duration::from_secs(1)).await;
        assert_eq!(
            processes(&site, 1),
            before,
            "the second run is the same process"
        );
        let ended: Vec<_> = raw
            .updates
            .iter()
            .filter(|update| update.is_terminal())
            .collect();
        assert!(
            ended.iter().all(|update| update.run() == first),
            "{ended:?}"
        );
        let known = raw.session.run(&second).expect("the run is known");
        assert_eq!(known.phase, TaskPhase::Running);

        let killed = raw
            .session
            .kill(std::slice::from_ref(&second), None, "over")
            .await;
        assert_eq!(killed.expect("answered").len(), 1);
        raw.update(&second, "killed", |update| {
            update.phase == TaskPhase::Killed
        })
        .await;
        raw.session.teardown().await.expect("torn down");
    });
}

/// The names of the running tasks of a framework.
fn running(site: &Site, framework: &str) -> BTreeSet<String> {
    let tasks = site.json(&[
        "task",
        "list",
        "--framework",
        framework,
        "--state",
        "running",
    ]);
    tasks.texts("task").into_iter().map(str::to_owned).collect()
}

#[test]
fn a_service_keeps_its_number_over_the_death_of_a_task_and_its_own() {
    let mut site = Site::new();
    site.start_master();
    site.start_agent("n1", &[]);
    let flags = [
        "service", "start", "--name", "web", "--count", "3", "--cpus", "0.1", "--",
    ];
    let script = "echo $$ >> lines; exec sleep 1000";
    let work = format!("cd {}; {script}", site.arg("work"));
    site.spawn("web", &[&flags[..], &["sh", "-c", &work]].concat());
    let three = |site: &Site| {
        until("three tasks to run", || {
            let names = running(site, "web");
            if names.len() == 3 {
                Ok(names)
            } else {
                Err(format!("{names:?}"))
            }
        })
    };
    let first = three(&site);
    let victim = first.iter().next().expect("one of three").clone();
    site.mete(&["task", "kill", &victim, "--yes"]).done();
    until("the killed one to be replaced", || {
        let names = running(&site, "web");
        holds(names.len() == 3 && !names.contains(&victim), || {
            format!("{names:?}")
        })
    });
    let before = three(&site);
    site.kill("web");
    site.restart("web");
    until("the new process to be connected", || {
        let list = site.json(&["framework", "list"]);
        let row = list.find("name", "web")?;
        holds(
            row["incarnation"] == 2 && row["state"] == "connected",
            || row.to_string(),
        )
    });
    let connected = Instant::now();
    while connected.elapsed() < Duration::from_secs(2) {
        assert_eq!(
            running(&site, "web"),
            before,
            "the same tasks, no more and no others"
        );
    }
    assert_eq!(
        lines(&site).len(),
        4,
        "three at first and one replaced: {:?}",
        lines(&site)
    );
}

#[test]
fn a_second_agent_on_the_host_touches_no_task_of_the_first() {
    let site = Site::cluster();
    let script = "echo $$ > pid.0; exec sleep 1000";
    let flags = [
        "submit", "--name", "calm", "--cpus", "0.1", "--", "sh", "-c", script,
    ];
    let calm = site.mete(&flags).done();
    let before = processes(&site, 1);
    let (state, run, node) = (site.arg("n2"), site.arg("run"), site.node("n2"));
    let flags = [
        "agent",
        "start",
        "--state-dir",
        &state,
        "--run-dir",
        &run,
        "--name",
        &node,
    ];
    let second = site.mete(&[&flags[..], &["--listen", "127.0.0.1:0"]].concat());
    second.refused(1, "PART_TAKEN").says(&site.node("n1"));
    assert_eq!(processes(&site, 1), before);
    let row = job(&site, &calm);
    assert_eq!(row["running"], 1, "{row}");
    site.mete(&["batch", "cancel", &calm, "--yes"]).done();
}

#[test]
fn a_node_that_was_started_anew_keeps_its_id_and_ends_what_ran() {
    let mut site = Site::new();
    site.start_master();
    if !site.may_mount() {
        return skip("another boot id needs root and a mount namespace");
    }
    site.start_agent("n1", &[]);
    site.start_batch();
    let flags = [
        "submit", "--name", "old", "--cpus", "0.1", "--", "sleep", "1000",
    ];
    let old = site.mete(&flags).done();
    until("it to run", || {
        let row = job(&site, &old);
        holds(row["running"] == 1, || row.to_string())
    });
    let id = |site: &Site| {
        let nodes = site.json(&["node", "list"]);
        let node = nodes
            .find("name", &site.node("n1"))
            .expect("the node")
            .clone();
        node["agent_id"].as_str().expect("an id").to_owned()
    };
    let before = id(&site);
    site.kill("n1");
    std::fs::write(site.path("boot"), "99999999-8888-4777-8666-555555555555\n").expect("a file");
    site.restart_under(
        "n1",
        "mount --bind \"$0\"/boot /proc/sys/kernel/random/boot_id",
    );
    site.wait_for_agent("n1");
    assert_eq!(id(&site), before, "the same agent id");
    until("the old run to be ended by the reboot", || {
        let events = site.mete(&["events", "--since", "10m"]).done();
        holds(events.contains("NODE_REBOOTED"), || events)
    });
}
