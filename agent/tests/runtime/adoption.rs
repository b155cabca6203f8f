//! What runs outlive: their agent, their shim, the boot of the machine.

use std::path::Path;
use std::time::{Duration, Instant};

use mete_agent::isolate::Isolation;
use mete_agent::runtime::records::RunDirectory;
use mete_agent::runtime::{Ending, FoundState, RunName, Runtime, Stop};

use crate::node::{
    BOOT, Groups, Node, PATIENCE, SHIM, agent_name, both, isolation, kill, named, processes_with,
    read_log, wait_for,
};

#[test]
fn a_restarted_agent_finds_the_same_processes_and_every_end_and_starts_nothing_twice() {
    both(async |groups, directory| {
        let scripts = [
            "echo $$ >> runs-0; while [ ! -e finish ]; do sleep 0.02; done; exit 5",
            "echo $$ >> runs-1; exit 6",
            "kill -11 $$",
        ];
        let name = if groups == Groups::With {
            agent_name(&directory)
        } else {
            String::new()
        };
        let mut agent = std::process::Command::new(SHIM)
            .arg("agent")
            .arg(&directory)
            .args([name.as_str(), BOOT])
            .args(scripts)
            .spawn()
            .expect("the test agent starts");
        let work = directory.join("work");
        let run = |number: u32| named(&directory, &format!("task-{number}"));
        // Ended for whoever looks: the record is there and the shim has left.
        let over = |number| {
            let records = RunDirectory::of(&directory.join("runs"), &run(number));
            let recorded = matches!(records.exit_record(), Ok(Some(_)));
            recorded && matches!(records.shim_lives(), Ok(false))
        };
        wait_for("the long one runs", || work.join("runs-0").exists()).await;
        kill(agent.id());
        agent.wait().expect("our child");
        wait_for("the others have ended", || over(1) && over(2)).await;

        let mut node = Node::open(&directory, groups);
        let found = node.runtime.list().expect("readable");

        assert_eq!(found.len(), 3, "{found:?}");
        for found in &found {
            let alive = found.run == run(0);
            let state = &found.state;
            assert_eq!(
                matches!(state, FoundState::Alive),
                alive,
                "{}: {state:?}",
                found.run
            );
        }
        // The same launch again, as a confused caller would do it: refused, nothing run.
        let mut twice = node.launch("task-1", scripts[1]);
        twice.run = run(1);
        node.runtime.prepare(twice);
        let refused = node.end_of(&run(1)).await;
        assert!(
            matches!(refused.ending, Ending::PrepareFailed { .. }),
            "{refused:?}"
        );
        node.ended.clear();
        for found in &found {
            node.runtime.adopt(&found.run);
        }
        assert_eq!(node.end_of(&run(1)).await.ending, Ending::Code(6));
        assert_eq!(node.end_of(&run(2)).await.ending, Ending::Signal(11));
        assert!(!node.ended.contains_key(&run(0)), "still running");
        std::fs::write(work.join("finish"), "").expect("writable");
        assert_eq!(node.end_of(&run(0)).await.ending, Ending::Code(5));
        for number in 0..2 {
            let text = std::fs::read_to_string(work.join(format!("runs-{number}")));
            assert_eq!(
                text.expect("written").lines().count(),
                1,
                "task {number} ran once"
            );
        }
        for number in 0..3 {
            node.runtime.forget(&run(number));
        }
        let runs = directory.join("runs");
        wait_for("records are removed", || {
            std::fs::read_dir(&runs).expect("there").next().is_none()
        })
        .await;
    });
}

#[test]
fn a_stop_reaches_a_run_of_an_earlier_agent() {
    both(async |groups, directory| {
        let mut first = Node::open(&directory, groups);
        let launch = first.launch("old", "exec sleep 4711");
        let run = launch.run.clone();
        first.runtime.prepare(launch);
        first.started(&run).await;
        let mut second = Node::open(&directory, groups);
        second.runtime.adopt(&run);

        second.runtime.stop(
            &run,
            Stop {
                grace_ms: 10_000,
                signal: 0,
            },
        );

        assert_eq!(second.end_of(&run).await.ending, Ending::Signal(15));
    });
}

#[test]
fn a_shim_that_dies_alone_takes_everything_of_its_run_with_it() {
    both(async |groups, directory| {
        let mut node = Node::open(&directory, groups);
        let script = "(setsid sh -c 'while :; do sleep 0.1; done' &); echo ready; \
                      while :; do sleep 0.1; done";
        let launch = node.launch("orphan", script);
        let run = launch.run.clone();
        node.runtime.prepare(launch);
        node.started(&run).await;
        wait_for("all of it runs", || {
            node.output("orphan").contains("ready") && processes_with(run.as_str()).len() >= 3
        })
        .await;
        let shim = shim_of(&directory, &run);

        kill(shim);

        let ended = node.end_of(&run).await;
        assert_eq!(ended.ending, Ending::SupervisorLost);
        assert_eq!(
            processes_with(run.as_str()),
            Vec::<u32>::new(),
            "{groups:?}"
        );
    });
}

fn shim_of(directory: &Path, run: &RunName) -> u32 {
    let records = RunDirectory::of(&directory.join("runs"), run);
    records
        .run_record()
        .expect("readable")
        .expect("written")
        .shim_pid
}

#[test]
fn after_another_boot_every_run_is_over_and_no_process_id_is_looked_at() {
    both(async |groups, directory| {
        let name = if groups == Groups::With {
            agent_name(&directory)
        } else {
            String::new()
        };
        // What it leaves in another session has no parent that would end it.
        let script = "(setsid sleep 4712 &); echo ready; exec sleep 4711";
        let mut agent = std::process::Command::new(SHIM)
            .arg("agent")
            .arg(&directory)
            .args([name.as_str(), BOOT, script])
            .spawn()
            .expect("the test agent starts");
        let run = named(&directory, "task-0");
        wait_for("it runs", || {
            directory.join("logs/0/log").exists() && read_log(&directory, "0").contains("ready")
        })
        .await;
        kill(agent.id());
        agent.wait().expect("our child");
        kill(shim_of(&directory, &run));
        wait_for("only the one without a parent is left", || {
            processes_with(run.as_str()).len() == 1
        })
        .await;

        // Without control groups, as after a boot: nothing of ours is in any.
        let other = "99999999-2222-3333-4444-555555555555";
        let mut node = Node::open_in_boot(&directory, Groups::Without, other);
        let found = node.runtime.list().expect("readable");
        assert_eq!(found[0].state, FoundState::Lost(Ending::Rebooted));
        node.runtime.adopt(&run);

        assert_eq!(node.end_of(&run).await.ending, Ending::Rebooted);
        let left = processes_with(run.as_str());
        assert_eq!(
            left.len(),
            1,
            "a process id of another boot is a stranger's"
        );
        left.into_iter().for_each(kill);
        let groups = isolation(groups, &agent_name(&directory));
        let until = Instant::now() + PATIENCE;
        while !remove_leaf(&directory, &groups, &run) && Instant::now() < until {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    });
}

fn remove_leaf(directory: &Path, groups: &Isolation, run: &RunName) -> bool {
    use mete_agent::runtime::records::{RunDirectory, leaf_from_wire};

    let spec = RunDirectory::of(&directory.join("runs"), run)
        .spec()
        .expect("written");
    groups
        .remove(&leaf_from_wire(&spec.cgroups.unwrap_or_default()))
        .is_ok()
}
