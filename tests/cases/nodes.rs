//! Nodes: ends that come at once, processes that stay, agents that hang.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use mete_sdk::{Claim, Code, RunId, TaskPhase, TaskSpec};
use rustix::process::Signal;

use crate::job;
use crate::support::framework::{Raw, run, runtime};
use crate::support::reap::alive_since;
use crate::support::{Site, holds, until};

// Case 61.
#[test]
fn the_exit_code_of_a_command_that_ends_at_once_is_never_missed() {
    const COUNT: usize = 300;
    let site = Site::cluster();
    let flags = [
        "submit", "--name", "seven", "--array", "0-299", "--cpus", "0.02",
    ];
    let rest = ["--memory", "8MiB", "--", "sh", "-c", "exit 7"];
    let seven = site.mete(&[&flags[..], &rest[..]].concat()).done();
    let waited = site.mete(&["batch", "wait", &seven, "--timeout", "90s"]);
    assert_eq!(waited.code, 7, "{waited}");
    let shown = site.json(&["batch", "show", &seven]);
    let elements = shown.one()["elements_list"].as_array().expect("elements");
    assert_eq!(elements.len(), COUNT, "every element is shown");
    for element in elements {
        assert_eq!(element["exit_code"], 7, "{element}");
        assert_eq!(element["state"], "FAILED", "{element}");
    }
}

// Case 71.
#[test]
fn a_batch_framework_started_anew_adopts_all_running_elements() {
    const COUNT: u32 = 200;
    let mut site = Site::cluster();
    let script = "echo $$ > pid.$METE_INDEX; exec sleep 1000";
    let flags = [
        "submit", "--name", "wide", "--array", "0-199", "--cpus", "0.01",
    ];
    let rest = ["--memory", "8MiB", "--", "sh", "-c", script];
    let wide = site.mete(&[&flags[..], &rest[..]].concat()).done();
    let all_run = |site: &Site| {
        until("all elements to run", || {
            let row = job(site, &wide);
            holds(row["running"] == COUNT && row["pending"] == 0, || {
                row.to_string()
            })
        });
    };
    all_run(&site);
    let processes = |site: &Site| -> BTreeMap<u32, u64> {
        until("all to say their process id", || {
            (0..COUNT)
                .map(|index| {
                    let path = site.path(&format!("work/pid.{index}"));
                    let text = std::fs::read_to_string(path).unwrap_or_default();
                    let pid = text
                        .trim()
                        .parse()
                        .map_err(|_| format!("{index}: '{text}'"))?;
                    alive_since(pid)
                        .map(|at| (pid, at))
                        .ok_or(format!("{index}: {pid} is gone"))
                })
                .collect()
        })
    };
    let before = processes(&site);
    site.kill("batch");
    site.restart("batch");
    site.wait_for_batch();
    all_run(&site);
    assert_eq!(
        processes(&site),
        before,
        "all elements are the same processes"
    );
    let shown = site.json(&["batch", "show", &wide]);
    let elements = shown.one()["elements_list"]
        .as_array()
        .expect("elements")
        .clone();
    assert!(
        elements.iter().all(|element| element["attempt"] == 1),
        "{elements:?}"
    );
    let live = site.json(&["task", "list", "--state", "staging,starting,running"]);
    assert_eq!(
        live.items().len(),
        before.len(),
        "one live task for each element"
    );
    site.mete(&["batch", "cancel", &wide, "--yes"]).done();
    until("all processes to be gone", || {
        let left = before
            .iter()
            .filter(|(pid, at)| alive_since(**pid) == Some(**at))
            .count();
        holds(left == 0, || format!("{left} are left"))
    });
}

/// A task of which nothing is left, one that runs, one that never was.
struct Three {
    gone: RunId,
    live: RunId,
    never: RunId,
}

fn shape() -> Claim {
    Claim::cpu_milli(100).memory_mib(16).count(1)
}

fn spec(argv: &[&str]) -> TaskSpec {
    TaskSpec::command("t", argv.iter().copied())
}

async fn three(raw: &mut Raw) -> Three {
    raw.session
        .want_all([("a", shape()), ("b", shape())])
        .await
        .expect("declared");
    let (gone, live, never) = (run("gone", 1), run("live", 1), run("never", 1));
    let offer = raw.offer("a").await;
    let verdict = raw.launch_one(&offer, &gone, &spec(&["true"])).await;
    assert!(verdict.outcome.is_ok(), "{verdict:?}");
    let offer = raw.offer("b").await;
    let verdict = raw
        .launch_one(&offer, &live, &spec(&["sleep", "1000"]))
        .await;
    assert!(verdict.outcome.is_ok(), "{verdict:?}");
    raw.update(&gone, "over", |update| update.is_terminal())
        .await;
    raw.update(&live, "running", |update| {
        update.phase == TaskPhase::Running
    })
    .await;
    Three { gone, live, never }
}

fn freeze(site: &mut Site) {
    site.daemon("n1").signal(Signal::STOP);
    let frozen = Instant::now();
    site.wait_for_node("n1", "unreachable");
    let took = frozen.elapsed();
    assert!(
        took >= Duration::from_secs(10),
        "unreachable after {took:?}: too early"
    );
    assert!(
        took < Duration::from_secs(30),
        "unreachable after {took:?}: too late"
    );
}

/// Kills that cannot be carried out yet are answered all the same, and the broker owes them.
async fn kill_while_frozen(site: &Site, raw: &mut Raw, three: &Three) {
    let wanted = [three.never.clone(), three.gone.clone(), three.live.clone()];
    let verdicts = raw
        .session
        .kill(&wanted, None, "asked")
        .await
        .expect("answered");
    let codes: Vec<String> = verdicts
        .iter()
        .map(|verdict| match verdict {
            Ok(()) => "OK".to_owned(),
            Err(reason) => reason.code.clone(),
        })
        .collect();
    assert_eq!(codes, ["NOT_FOUND", "ALREADY_TERMINAL", "OK"]);
    let tasks = site.json(&["task", "list"]);
    let task = tasks.find("task", "live").expect("it is listed");
    assert_eq!(
        task["kill_owed"], true,
        "not shown as killed before it is: {task}"
    );
}

// Cases 73, 85 and the second half of 57.
#[test]
fn a_frozen_agent_is_unreachable_and_kills_and_names_are_still_answered() {
    let mut site = Site::new();
    site.start_master();
    site.start_agent("n1", &["--share", "1,1GiB"]);
    runtime().block_on(async {
        let mut raw = Raw::open(&site, "killer", "dev").await;
        let three = three(&mut raw).await;
        freeze(&mut site);
        // The name of a run that sits on an unreachable agent is taken.
        site.start_agent("n2", &["--share", "500m,1GiB"]);
        raw.session.want("c", shape()).await.expect("declared");
        let offer = raw.offer("c").await;
        let verdict = raw.launch_one(&offer, &three.live, &spec(&["true"])).await;
        let refused = verdict.outcome.expect_err("the name is taken");
        assert!(refused.is(Code::AlreadyExists), "{refused:?}");

        kill_while_frozen(&site, &mut raw, &three).await;
        site.daemon("n1").signal(Signal::CONT);
        site.wait_for_node("n1", "ready");
        raw.update(&three.live, "killed", |update| {
            update.phase == TaskPhase::Killed
        })
        .await;
        let again = raw
            .session
            .kill(&[three.live], None, "again")
            .await
            .expect("answered");
        let reason = again[0].clone().expect_err("it is over");
        assert!(reason.is(Code::AlreadyTerminal), "{reason:?}");
    });
}

// Case 97.
#[test]
fn a_task_is_born_with_three_descriptors_and_its_agent_keeps_none_of_it() {
    let mut site = Site::cluster();
    let descriptors = |site: &mut Site| {
        let pid = site.daemon("n1").pid();
        std::fs::read_dir(format!("/proc/{pid}/fd"))
            .expect("the agent's table")
            .count()
    };
    let mut after = Vec::new();
    for round in 0..2 {
        let script = format!("(ls /proc/$$/fd > fds.{round}.$METE_INDEX); true");
        let flags = [
            "submit", "--name", "fds", "--array", "0-199", "--cpus", "0.01",
        ];
        let rest = ["--memory", "8MiB", "--", "sh", "-c", &script];
        let fds = site.mete(&[&flags[..], &rest[..]].concat()).done();
        let waited = site.mete(&["batch", "wait", &fds, "--timeout", "90s"]);
        assert_eq!(waited.code, 0, "{waited}");
        for index in 0..200 {
            let path = site.path(&format!("work/fds.{round}.{index}"));
            let text = std::fs::read_to_string(path).expect("every element wrote its table");
            let table: Vec<&str> = text.split_whitespace().collect();
            assert_eq!(table, ["0", "1", "2"], "element {index} of round {round}");
        }
        // The last ends may still be on their way.
        let settled = until("the agent's table to be small", || {
            let count = descriptors(&mut site);
            holds(count < 60, || format!("{count} descriptors")).map(|()| count)
        });
        after.push(settled);
    }
    assert!(
        after[1] <= after[0] + 5,
        "the agent's descriptors grow: {after:?}"
    );
}
