//! A node that is not heard from: its tasks end themselves or are replaced, as they asked for, and
//! one of two stays when it is back.
//!
//! Separate processes, as in production. The agent is killed and stays away for half a minute,
//! since that is how long a cluster needs to call a node unreachable and more.

#![expect(
    clippy::indexing_slicing,
    reason = "a missing field must fail the story"
)]

mod support;

use std::time::{Duration, Instant};

use serde_json::Value;
use support::reap::alive_since;
use support::{Site, holds, until};

/// The least that may be asked for.
const SILENCE: Duration = Duration::from_secs(10);

/// Starts a service of one task, which writes its process id as a line of a file of that name.
fn serve(site: &mut Site, name: &str, policy: &[&str]) {
    let script = format!(
        "cd {}; echo $$ >> {name}; exec sleep 1000",
        site.arg("work")
    );
    let flags = [
        "service", "start", "--name", name, "--cpus", "0.1", "--memory", "32MiB",
    ];
    let command = ["--", "sh", "-c", &script];
    site.spawn(name, &[&flags[..], policy, &command[..]].concat());
}

/// The processes of a service so far, oldest first, each with its start where it still lives.
fn processes(site: &Site, name: &str) -> Vec<(u32, Option<u64>)> {
    let text = std::fs::read_to_string(site.path(&format!("work/{name}"))).unwrap_or_default();
    let ids = text.lines().filter_map(|line| line.parse().ok());
    ids.map(|pid| (pid, alive_since(pid))).collect()
}

/// The tasks of a service, oldest first.
fn tasks(site: &Site, name: &str) -> Vec<Value> {
    let list = site.json(&["task", "list", "--framework", name]);
    let mut rows = list.items().to_vec();
    rows.sort_by_key(|row| row["launched"].as_str().map(str::to_owned));
    rows
}

fn wait_for_one(site: &Site, name: &str) -> (u32, u64) {
    until("the service's task to run", || {
        let rows = tasks(site, name);
        holds(rows.iter().any(|row| row["phase"] == "RUNNING"), || {
            format!("{rows:?}")
        })?;
        match processes(site, name)[..] {
            [(pid, Some(at))] => Ok((pid, at)),
            ref other => Err(format!("{other:?}")),
        }
    })
}

fn wait_for_replacement(site: &Site, name: &str) -> (u32, u64) {
    until("another task to take the place", || {
        match processes(site, name)[..] {
            [_, (pid, Some(at))] => Ok((pid, at)),
            ref other => Err(format!("{other:?}")),
        }
    })
}

#[test]
fn tasks_of_a_lost_node_end_themselves_and_are_replaced_and_one_stays_when_it_is_back() {
    let mut site = Site::new();
    site.start_master();
    site.start_agent("n1", &["--share", "500m,512MiB"]);
    let strict = ["--replace-after", "11s", "--stop-if-silent", "10s"];
    serve(&mut site, "strict", &strict);
    serve(&mut site, "newest", &["--replace-after", "1s"]);
    let oldest = ["--replace-after", "1s", "--keep", "oldest"];
    serve(&mut site, "oldest", &oldest);
    serve(&mut site, "patient", &[]);
    let names = ["strict", "newest", "oldest", "patient"];
    let old = names.map(|name| wait_for_one(&site, name));
    let shown = site
        .mete(&["task", "show", &name_of(&site, "strict", 0)])
        .done();
    assert!(
        shown.contains("replaced after 11s, keeps the newest"),
        "{shown}"
    );
    assert!(
        shown.contains("ends itself after 10s of silence"),
        "{shown}"
    );
    site.start_agent("n2", &["--share", "500m,512MiB"]);

    // While a leader is heard nothing ends, for longer than the silence that is permitted.
    let watched = Instant::now();
    until("time to pass", || {
        assert_eq!(alive_since(old[0].0), Some(old[0].1), "it ended by itself");
        let passed = watched.elapsed();
        holds(passed > SILENCE + Duration::from_secs(2), || {
            format!("{passed:?}")
        })
    });

    site.kill("n1");
    let killed = Instant::now();
    until("the strict one to end itself", || {
        holds(alive_since(old[0].0) != Some(old[0].1), || {
            "lives".to_owned()
        })
    });
    // Its agent had heard the leader three seconds before at the most, and a beacon takes its time.
    let after = killed.elapsed();
    assert!(after >= SILENCE - Duration::from_secs(5), "after {after:?}");
    let before = processes(&site, "strict");
    assert_eq!(before.len(), 1, "nobody took its place while it could live");

    let new = ["strict", "newest", "oldest"].map(|name| wait_for_replacement(&site, name));
    for (pid, at) in &old[1..] {
        assert_eq!(alive_since(*pid), Some(*at), "the others go on");
    }
    let row = &tasks(&site, "newest")[0];
    assert_eq!(row["agent_state"], "unreachable", "{row}");
    assert_ne!(row["replaced_by"], Value::Null, "{row}");
    let events = site.mete(&["events", "--since", "10m"]).done();
    assert!(events.contains("may be replaced"), "{events}");

    site.restart("n1");
    site.wait_for_agent("n1");
    until("one of each pair to be gone", || {
        let gone = |(pid, at): (u32, u64)| alive_since(pid) != Some(at);
        holds(gone(old[1]) && gone(new[2]), || "both live".to_owned())
    });
    let stays = [new[0], new[1], old[2], old[3]];
    until("the ends to be told", || {
        let reason = |name: &str, at: usize| tasks(&site, name)[at]["reason"].clone();
        let reasons = [
            reason("strict", 0),
            reason("newest", 0),
            reason("oldest", 1),
        ];
        holds(
            reasons == ["OUT_OF_CONTACT", "REPLACED", "REPLACED"],
            || format!("{reasons:?}"),
        )
    });
    // Whoever stays is the only one, and is not started anew.
    let watched = Instant::now();
    until("nothing more to happen", || {
        for (name, (pid, at)) in names.iter().zip(stays) {
            assert_eq!(alive_since(pid), Some(at), "{name} stays");
            let lives = processes(&site, name);
            let lives = lives.iter().filter(|(_, since)| since.is_some()).count();
            assert_eq!(lives, 1, "{name} is there once");
        }
        let passed = watched.elapsed();
        holds(passed > Duration::from_secs(3), || format!("{passed:?}"))
    });
    let counts = names.map(|name| processes(&site, name).len());
    assert_eq!(counts, [2, 2, 2, 1]);
}

fn name_of(site: &Site, service: &str, at: usize) -> String {
    let name = tasks(site, service)[at]["name"].as_str().map(str::to_owned);
    name.expect("a task's name")
}
