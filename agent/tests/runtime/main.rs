//! The `process` runtime with real processes: exact ends, gates, kills, adoption, isolation.
//!
//! Every story that can runs twice: with the control groups of this host and without any. What the
//! host lacks is said loudly and does not count as tested.
//!
//! Here: how a run begins and ends. Beside it: agents that come back, limits that bite, and what an
//! outsider does to break it.

mod adoption;
mod hostile;
mod limits;
mod node;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use mete_agent::contact::BootTime;
use mete_agent::runtime::contact::{self, ContactFile};
use mete_agent::runtime::process::{ProcessConfig, ProcessRuntime};
use mete_agent::runtime::records::RunDirectory;
use mete_agent::runtime::{Ending, Gate, Runtime, RuntimeEvent, Stop};

use crate::node::{
    BOOT, Node, agent_name, both, isolation, left_of, named, processes_with, wait_for,
};

#[test]
fn every_exit_7_of_many_short_runs_is_a_7_and_no_descriptor_is_left_open() {
    let runs = if std::env::var_os("METE_LONG").is_some() {
        10_000
    } else {
        200
    };
    both(async |groups, directory| {
        let mut node = Node::open(&directory, groups);
        let open = || std::fs::read_dir("/proc/self/fd").expect("procfs").count();
        node.run("warm", "exit 7").await;
        let before = open();
        let (mut begun, mut done) = (0, 0);
        while done < runs {
            while begun < runs && begun - done < 50 {
                let launch = node.launch(&format!("t{begun}"), "exit 7");
                node.runtime.prepare(launch);
                begun += 1;
            }
            if let RuntimeEvent::Ended { run, ended } = node.event().await {
                assert_eq!(ended.ending, Ending::Code(7), "{run} {groups:?}: {ended:?}");
                node.runtime.forget(&run);
                done += 1;
            }
        }
        let runs = directory.join("runs");
        wait_for("all records are removed", || {
            std::fs::read_dir(&runs).expect("there").count() <= 1
        })
        .await;
        wait_for("descriptors are as before", || open() <= before + 2).await;
        assert_eq!(node.runtime.watched(), 0);
    });
}

#[test]
fn signals_output_environment_and_directory_are_exact() {
    both(async |groups, directory| {
        let mut node = Node::open(&directory, groups);

        let ended = node.run("signal", "kill -9 $$").await;
        assert_eq!(ended.ending, Ending::Signal(9));
        assert!(!ended.stop_asked && !ended.forced && ended.started_ms > 0);

        let mut launch = node.launch("env", "env | sort; pwd; echo error >&2; umask; printf end");
        launch
            .environment
            .insert("OWN".to_owned(), "value with = and blanks".to_owned());
        let (run, work) = (launch.run.clone(), launch.working_directory.clone());
        node.runtime.prepare(launch);
        assert_eq!(node.end_of(&run).await.ending, Ending::Code(0));
        let output = node.output("env");
        let mut lines: Vec<&str> = output.lines().collect();
        lines.retain(|line| !line.starts_with("PATH=") && !line.starts_with("PWD="));
        let work = work.display();
        for wanted in [
            format!("HOME={work}"),
            format!("METE_RUN={run}"),
            "OWN=value with = and blanks".to_owned(),
            work.to_string(),
            "error".to_owned(),
            "0022".to_owned(),
            "end".to_owned(),
        ] {
            let at = lines.iter().position(|line| **line == wanted);
            lines.remove(at.unwrap_or_else(|| panic!("{wanted:?} is not in {output}")));
        }
        let rest: Vec<_> = lines
            .iter()
            .filter(|line| !line.starts_with("_=") && !line.starts_with("SHLVL="))
            .collect();
        assert!(rest.is_empty(), "nothing else is inherited: {rest:?}");
        assert!(output.ends_with("end"), "no line end is invented");
    });
}

#[test]
fn what_cannot_be_executed_is_told_with_stage_and_reason() {
    both(async |groups, directory| {
        let mut node = Node::open(&directory, groups);
        let plain = directory.join("plain");
        std::fs::write(&plain, "not a program").expect("writable");
        let plain = plain.to_string_lossy();
        for (task, command, directory, stage, number) in [
            ("absent", "no-such-program", None, "execve", 2),
            ("denied", plain.as_ref(), None, "execve", 13),
            (
                "file",
                "sh",
                Some("/etc/hostname/x"),
                "make the working directory",
                20,
            ),
        ] {
            let mut launch = node.launch(task, "");
            launch.command = vec![command.to_owned()];
            if let Some(directory) = directory {
                launch.working_directory = directory.into();
            }
            let run = launch.run.clone();
            node.runtime.prepare(launch);
            match node.end_of(&run).await.ending {
                Ending::ExecFailed {
                    stage: found,
                    errno,
                    text,
                } => {
                    assert_eq!((found.as_str(), errno), (stage, number), "{text}");
                }
                Ending::PrepareFailed { stage: found, text } => {
                    assert_eq!(found, stage, "{text}");
                    assert!(text.contains("/etc/hostname"), "{text}");
                }
                other @ (Ending::Code(_)
                | Ending::Signal(_)
                | Ending::MemoryTooSmall { .. }
                | Ending::PrepareTimeout { .. }
                | Ending::NeverStarted
                | Ending::SupervisorLost
                | Ending::Unknown
                | Ending::Rebooted) => panic!("{task}: {other:?}"),
            }
        }
        // What no node could do is told as the command's fault, not as this node's.
        for (task, command, variable, word) in [
            ("empty", vec![], "A", "empty"),
            ("nul", vec!["true", "a\0b"], "A", "NUL"),
            ("name", vec!["true"], "A=B", "\"A=B\""),
        ] {
            let mut launch = node.launch(task, "");
            launch.command = command.into_iter().map(str::to_owned).collect();
            launch.environment = BTreeMap::from([(variable.to_owned(), "1".to_owned())]);
            let run = launch.run.clone();
            node.runtime.prepare(launch);
            let ended = node.end_of(&run).await;
            let Ending::ExecFailed { stage, text, .. } = &ended.ending else {
                panic!("{task}: {ended:?}")
            };
            assert_eq!(stage, "check the command");
            assert!(text.contains(word), "{task}: {text}");
        }
    });
}

#[test]
fn a_shim_that_cannot_be_executed_is_told_by_its_path() {
    both(async |groups, directory| {
        let isolation = Arc::new(isolation(groups, &agent_name(&directory)));
        let mut config = ProcessConfig::new(directory.join("runs"), BOOT.to_owned());
        config.shim_program = directory.join("no-such-mete");
        let handle = tokio::runtime::Handle::current();
        let mut node = Node::open(&directory, groups);
        (node.runtime, node.events) =
            ProcessRuntime::new(config, isolation, handle).expect("a directory");

        let ended = node.run("shimless", "exit 1").await;

        let Ending::PrepareFailed { text, .. } = &ended.ending else {
            panic!("{ended:?}")
        };
        assert!(text.contains("no-such-mete: No such file"), "{text}");
    });
}

#[test]
fn nothing_runs_before_the_gate_opens_and_go_brings_its_own_environment() {
    both(async |groups, directory| {
        let mut node = Node::open(&directory, groups);
        let trace = directory.join("trace");
        let mut launch = node.launch("gate", &format!("echo $RANK > {}; exit 3", trace.display()));
        launch.gate = Gate::Wait;
        let run = launch.run.clone();
        node.runtime.prepare(launch.clone());
        node.until(|event| matches!(event, RuntimeEvent::Prepared { .. }))
            .await;
        // A second launch of the same run is not a second run.
        node.runtime.prepare(launch);
        assert!(!trace.exists());

        node.runtime
            .start(&run, BTreeMap::from([("RANK".to_owned(), "4".to_owned())]));

        assert_eq!(node.end_of(&run).await.ending, Ending::Code(3));
        assert_eq!(std::fs::read_to_string(&trace).expect("written"), "4\n");
    });
}

#[test]
fn a_stop_at_any_stage_of_a_launch_ends_in_one_end_and_leaves_no_process() {
    both(async |groups, directory| {
        let mut node = Node::open(&directory, groups);
        let mut runs = Vec::new();
        for number in 0..40_u64 {
            let mut launch = node.launch(&format!("k{number}"), "exec sleep 4711");
            launch.gate = if number % 2 == 0 {
                Gate::Open
            } else {
                Gate::Wait
            };
            let run = launch.run.clone();
            node.runtime.prepare(launch);
            tokio::time::sleep(Duration::from_micros(number * 250)).await;
            node.runtime.stop(
                &run,
                Stop {
                    grace_ms: 5_000,
                    signal: 0,
                },
            );
            runs.push(run);
        }
        for run in &runs {
            let ended = node.end_of(run).await;
            let expected = [Ending::NeverStarted, Ending::Signal(15)];
            assert!(expected.contains(&ended.ending), "{ended:?}");
            assert!(ended.stop_asked, "{ended:?}");
            wait_for("no process of it is there", || {
                processes_with(run.as_str()).is_empty()
            })
            .await;
        }
    });
}

#[test]
fn a_task_that_ignores_the_signal_is_forced_and_a_later_stop_only_shortens_the_grace() {
    both(async |groups, directory| {
        let mut node = Node::open(&directory, groups);
        let launch = node.launch(
            "deaf",
            "trap '' TERM; echo ready; while :; do sleep 0.05; done",
        );
        let run = launch.run.clone();
        node.runtime.prepare(launch);
        node.started(&run).await;
        wait_for("the trap is set", || node.output("deaf").contains("ready")).await;
        let begun = Instant::now();

        node.runtime.stop(
            &run,
            Stop {
                grace_ms: 600_000,
                signal: 0,
            },
        );
        node.runtime.stop(
            &run,
            Stop {
                grace_ms: 300,
                signal: 0,
            },
        );
        node.runtime.stop(
            &run,
            Stop {
                grace_ms: 600_000,
                signal: 0,
            },
        );

        let ended = node.end_of(&run).await;
        assert_eq!(ended.ending, Ending::Signal(9));
        assert!(ended.forced && ended.stop_asked, "{ended:?}");
        assert!(
            begun.elapsed() >= Duration::from_millis(250),
            "the shorter grace was kept"
        );
    });
}

#[test]
fn ended_means_gone_also_for_what_the_main_process_left_behind() {
    both(async |groups, directory| {
        let mut node = Node::open(&directory, groups);
        // One that ignores the signal, one that left the session and its parent.
        let script = "(trap '' TERM; while :; do sleep 0.1; done) & \
                      (setsid sh -c 'while :; do sleep 0.1; done' &) ; \
                      echo $! > left; exit 3";

        let ended = node.run("rest", script).await;

        assert_eq!(ended.ending, Ending::Code(3), "{ended:?}");
        assert!(!ended.forced, "the main process went by itself");
        let run = named(&directory, "rest");
        let left = left_of(&directory, &run);
        assert!(left.is_empty(), "{groups:?}: {left:?}");
    });
}

#[test]
fn a_time_limit_ends_the_run_and_says_so() {
    both(async |groups, directory| {
        let mut node = Node::open(&directory, groups);
        let mut launch = node.launch("limit", "exec sleep 4711");
        launch.time_limit_ms = 100;
        let run = launch.run.clone();
        node.runtime.prepare(launch);

        let ended = node.end_of(&run).await;

        assert_eq!(ended.ending, Ending::Signal(15));
        assert!(ended.time_limit && ended.stop_asked, "{ended:?}");
    });
}

#[test]
fn a_silent_leader_ends_the_run_though_no_agent_is_there_and_a_word_keeps_it_alive() {
    both(async |groups, directory| {
        let mut node = Node::open(&directory, groups);
        let contact = ContactFile::below(&directory.join("runs"), BOOT.to_owned());
        let began = contact::now();
        contact.write(began).expect("room");
        let mut launch = node.launch("silent", "exec sleep 4711");
        launch.stop_if_silent_ms = 1500;
        // Longer than such a run gets.
        launch.kill_grace_ms = 3_600_000;
        let run = launch.run.clone();
        node.runtime.prepare(launch);
        node.started(&run).await;
        let word = contact::now();
        contact.write(word).expect("room");
        drop(node);
        let records = RunDirectory::of(&directory.join("runs"), &run);

        let exit = || records.exit_record().expect("readable");
        wait_for("the run ends itself", || exit().is_some()).await;
        let record = exit().expect("it is there");

        assert!(contact::now().0 >= word.0 + 1500, "not before its time");
        assert!(record.out_of_contact && record.stop_asked, "{record:?}");
        assert!(!record.time_limit && !record.forced, "{record:?}");
        let mut node = Node::open(&directory, groups);
        assert_eq!(node.runtime.list().expect("readable").len(), 1);
        node.runtime.adopt(&run);
        let ended = node.end_of(&run).await;
        assert!(ended.out_of_contact, "{ended:?}");
        assert_eq!(ended.ending, Ending::Signal(15));
    });
}

#[test]
fn a_run_whose_time_is_over_before_it_begins_never_begins() {
    both(async |groups, directory| {
        let mut node = Node::open(&directory, groups);
        let contact = ContactFile::below(&directory.join("runs"), BOOT.to_owned());
        let before = contact::now().0.saturating_sub(60_000);
        contact.write(BootTime(before)).expect("room");
        let mut launch = node.launch("late", "echo begun > begun");
        launch.stop_if_silent_ms = 10_000;
        let run = launch.run.clone();
        node.runtime.prepare(launch);

        let ended = node.end_of(&run).await;

        assert!(ended.out_of_contact, "{ended:?}");
        assert_eq!(ended.ending, Ending::NeverStarted);
        assert!(!directory.join("work/begun").exists());
    });
}

#[test]
fn every_child_has_exactly_the_three_descriptors_also_in_200_parallel_launches() {
    both(async |groups, directory| {
        let mut node = Node::open(&directory, groups);
        for number in 0..200 {
            let mut launch = node.launch(&format!("fd{number}"), "");
            launch.command = ["ls", "/proc/self/fd"].map(str::to_owned).to_vec();
            node.runtime.prepare(launch);
        }
        while node.ended.len() < 200 {
            node.event().await;
        }
        for number in 0..200 {
            // The fourth is the directory that ls itself has open.
            assert_eq!(node.output(&format!("fd{number}")), "0\n1\n2\n3\n");
        }
    });
}

#[test]
fn a_run_that_is_not_ready_in_time_fails_with_the_stage_and_leaves_nothing() {
    both(async |groups, directory| {
        let mut node = Node::open(&directory, groups);
        for number in 0..8_u64 {
            let mut launch = node.launch(&format!("late{number}"), "exec sleep 4711");
            // From "before anything" to "while the shim sets up"; some may just make it.
            launch.prepare_timeout_ms = number;
            let run = launch.run.clone();
            node.runtime.prepare(launch);
            let event = node
                .until(|event| {
                    let ended = matches!(event, RuntimeEvent::Ended { .. });
                    ended || matches!(event, RuntimeEvent::Started { .. })
                })
                .await;
            if matches!(event, RuntimeEvent::Started { .. }) {
                node.runtime.stop(
                    &run,
                    Stop {
                        grace_ms: 10_000,
                        signal: 0,
                    },
                );
                assert_eq!(node.end_of(&run).await.ending, Ending::Signal(15));
                continue;
            }
            let ended = node.end_of(&run).await;
            let Ending::PrepareTimeout { stage } = &ended.ending else {
                panic!("{ended:?}");
            };
            assert!(!stage.is_empty() && ended.started_ms == 0, "{ended:?}");
            wait_for("no process of it is there", || {
                processes_with(run.as_str()).is_empty()
            })
            .await;
        }
    });
}
