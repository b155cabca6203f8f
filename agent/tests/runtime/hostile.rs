//! What an outsider does to it: large and loud tasks, trees that will not end, kills at any moment.

use std::collections::{BTreeMap, BTreeSet};
use std::process::{Command, Stdio};
use std::time::Duration;

use mete_agent::isolate::Controller;
use mete_agent::runtime::identity::ProcessStat;
use mete_agent::runtime::records::RunDirectory;
use mete_agent::runtime::{Ending, FoundState, Runtime, RuntimeEvent, Stop};

use crate::node::{
    BOOT, Groups, Node, SHIM, agent_name, both, kill, left_of, named, processes_with, read_log,
    wait_for,
};

#[test]
fn a_run_with_a_description_larger_than_a_frame_is_told_and_stopped_like_any() {
    both(async |groups, directory| {
        let mut node = Node::open(&directory, groups);
        let mut launch = node.launch("large", "echo ${#V0} ${#V9}; exec sleep 4711");
        for number in 0..10 {
            let value = "x".repeat(100 << 10);
            launch.environment.insert(format!("V{number}"), value);
        }
        // The shell puts the whole spec into it.
        launch.reference = vec![7; 1 << 20];
        let run = launch.run.clone();
        node.runtime.prepare(launch);

        // A run that is never told as prepared is ended when its time for that is over.
        node.until(|event| matches!(event, RuntimeEvent::Prepared { .. }))
            .await;
        node.started(&run).await;
        wait_for("it has spoken", || {
            node.output("large") == "102400 102400\n"
        })
        .await;
        let found = node.runtime.list().expect("readable");
        assert_eq!(
            found[0].reference.len(),
            1 << 20,
            "kept where it is looked for"
        );
        let (grace_ms, signal) = (10_000, 0);
        node.runtime.stop(&run, Stop { grace_ms, signal });
        assert_eq!(node.end_of(&run).await.ending, Ending::Signal(15));
    });
}

#[test]
fn a_description_that_no_reader_would_take_is_refused_before_anything_is_made() {
    both(async |groups, directory| {
        let mut node = Node::open(&directory, groups);
        let mut launch = node.launch("huge", "exit 1");
        launch.reference = vec![7; 5 << 20];
        let run = launch.run.clone();
        node.runtime.prepare(launch);

        let ended = node.end_of(&run).await;

        let Ending::ExecFailed { text, .. } = &ended.ending else {
            panic!("{ended:?}")
        };
        assert!(text.contains("4194304"), "{text}");
        assert_eq!(node.runtime.list().expect("readable"), []);
    });
}

#[test]
fn memory_that_no_process_fits_into_is_told_as_that_and_not_as_the_nodes_fault() {
    both(async |groups, directory| {
        let mut node = Node::open(&directory, groups);
        let enforced = node.isolation.serves(Controller::Memory).is_some();
        for bytes in [1, (512 << 10) - 1] {
            let mut launch = node.launch(&format!("least-{bytes}"), "exit 3");
            launch.limits.memory_bytes = Some(bytes);
            let run = launch.run.clone();
            node.runtime.prepare(launch);
            let ended = node.end_of(&run).await;
            // Where it is only counted it is no limit.
            if !enforced {
                assert_eq!(ended.ending, Ending::Code(3), "{groups:?} {bytes}");
                continue;
            }
            let Ending::MemoryTooSmall { text } = &ended.ending else {
                panic!("{groups:?} {bytes}: {ended:?}")
            };
            assert!(text.contains("524288 bytes"), "{text}");
        }
    });
}

#[test]
fn every_exit_code_and_every_deadly_signal_is_told_as_it_was() {
    // Signals whose default is to end a process, without those of job control.
    let signals = (1..=31).filter(|signal| ![17, 18, 19, 20, 21, 22, 23, 28].contains(signal));
    let scripts: BTreeMap<String, (String, Ending)> = (0..=255_u8)
        .map(|code| {
            (
                format!("c{code}"),
                (format!("exit {code}"), Ending::Code(code)),
            )
        })
        .chain(signals.chain([34, 64]).map(|signal: u32| {
            let script = format!("kill -{signal} $$; sleep 9");
            (format!("s{signal}"), (script, Ending::Signal(signal)))
        }))
        .collect();
    both(async |groups, directory| {
        if groups == Groups::OnlyV1 {
            // The same shim and the same waiting.
            return;
        }
        let mut node = Node::open(&directory, groups);
        for (task, (script, _)) in &scripts {
            node.runtime.prepare(node.launch(task, script));
        }
        for (task, (_, ending)) in &scripts {
            let ended = node.end_of(&named(&directory, task)).await;
            assert_eq!(&ended.ending, ending, "{task} {groups:?}");
        }
    });
}

#[test]
fn a_flood_in_one_stream_keeps_neither_the_other_nor_a_stop_waiting() {
    both(async |groups, directory| {
        let mut node = Node::open(&directory, groups);
        let mut launch = node.launch("flood", "yes 0123456789 & sleep 0.2; echo heard >&2; wait");
        launch.log_file_bytes = 64 << 20;
        let (run, logs) = (launch.run.clone(), launch.log_directory.clone());
        node.runtime.prepare(launch);
        node.started(&run).await;
        wait_for("the quiet stream is heard", || {
            heard(&logs, b" stderr F heard\n")
        })
        .await;
        assert!(!left_of(&directory, &run).is_empty(), "what runs is seen");

        let (grace_ms, signal) = (300, 0);
        node.runtime.stop(&run, Stop { grace_ms, signal });

        let ended = node.end_of(&run).await;
        assert!(
            ended.stop_asked && ended.log_bytes_dropped == 0,
            "{ended:?}"
        );
        let mut kept: Vec<_> = std::fs::read_dir(&logs)
            .expect("logs")
            .map(|entry| entry.expect("readable").metadata().expect("there").len())
            .collect();
        kept.sort_unstable();
        assert!(kept.len() <= 5, "no more files than asked for: {kept:?}");
        assert!(kept.iter().all(|bytes| *bytes <= 64 << 20), "{kept:?}");
        let left = left_of(&directory, &run);
        assert!(left.is_empty(), "{groups:?}: {left:?}");
    });
}

fn heard(logs: &std::path::Path, wanted: &[u8]) -> bool {
    let Ok(files) = std::fs::read_dir(logs) else {
        return false;
    };
    files.flatten().any(|file| {
        let bytes = std::fs::read(file.path()).unwrap_or_default();
        bytes.windows(wanted.len()).any(|window| window == wanted)
    })
}

#[test]
fn a_tree_that_detaches_and_ignores_every_signal_is_gone_with_its_run() {
    both(async |groups, directory| {
        let mut node = Node::open(&directory, groups);
        // Each generation leaves its session and its parent, and cleans its environment.
        let deep = "trap '' TERM HUP INT; n=$1; if [ $n -gt 0 ]; then \
                    env -i PATH=$PATH setsid sh $0 $((n-1)) & fi; \
                    echo $n; while :; do sleep 0.1; done";
        let script = directory.join("deep");
        std::fs::write(&script, deep).expect("writable");
        let launch = node.launch("deep", &format!("exec sh {} 8", script.display()));
        let run = launch.run.clone();
        node.runtime.prepare(launch);
        wait_for("all generations are there", || {
            node.output("deep").lines().count() == 9
        })
        .await;

        let (grace_ms, signal) = (100, 0);
        node.runtime.stop(&run, Stop { grace_ms, signal });

        let ended = node.end_of(&run).await;
        assert_eq!(ended.ending, Ending::Signal(9), "{ended:?}");
        let left = processes_with(&script.to_string_lossy());
        assert_eq!(left, Vec::<u32>::new(), "{groups:?}");
    });
}

#[test]
fn a_run_killed_from_outside_at_its_gate_is_no_run_that_was_stopped() {
    both(async |groups, directory| {
        let mut node = Node::open(&directory, groups);
        let mut launch = node.launch("gated", "exit 1");
        launch.gate = mete_agent::runtime::Gate::Wait;
        let run = launch.run.clone();
        node.runtime.prepare(launch);
        let prepared = node
            .until(|event| matches!(event, RuntimeEvent::Prepared { .. }))
            .await;
        let RuntimeEvent::Prepared { pid, .. } = prepared else {
            unreachable!("waited for it")
        };

        kill(pid);

        let ended = node.end_of(&run).await;
        let Ending::PrepareFailed { text, .. } = &ended.ending else {
            panic!("{ended:?}")
        };
        assert!(text.ends_with("signal 9"), "{text}");
    });
}

#[test]
fn an_agent_inherits_nothing_to_a_task_and_its_shims_leave_no_zombies() {
    both(async |groups, directory| {
        let mut node = Node::open(&directory, groups);
        for number in 0..20 {
            let script =
                "ls -l /proc/self/fd | grep -c /; grep -E '^Sig(Blk|Ign)' /proc/self/status";
            node.runtime
                .prepare(node.launch(&format!("q{number}"), script));
        }
        let mut shims = Vec::new();
        for number in 0..20 {
            let task = format!("q{number}");
            let run = named(&directory, &task);
            node.end_of(&run).await;
            let records = RunDirectory::of(&directory.join("runs"), &run);
            let record = records.run_record().expect("readable").expect("written");
            shims.push((record.shim_pid, record.shim_start_ticks));
            let output = node.output(&task);
            for line in output.lines().filter(|line| line.starts_with("Sig")) {
                assert!(line.ends_with("0000000000000000"), "{output}");
            }
            // /dev/null and the directory that ls reads.
            assert_eq!(output.lines().next(), Some("2"), "{output}");
        }
        wait_for("no shim is left, dead or alive", || {
            shims.iter().all(|(pid, at)| {
                let stat = ProcessStat::read("/proc".as_ref(), *pid);
                stat.is_none_or(|stat| stat.start_ticks != *at)
            })
        })
        .await;
    });
}

/// Cases A1, 57, 61: an agent killed again and again while it starts runs.
#[test]
fn an_agent_killed_at_any_moment_of_many_starts_runs_each_of_them_once() {
    const RUNS: usize = 40;
    both(async |groups, directory| {
        let name = if groups == Groups::With {
            agent_name(&directory)
        } else {
            String::new()
        };
        let scripts: Vec<String> = (0..RUNS)
            .map(|number| format!("echo $$ >> ran-{number}; exit {number}"))
            .collect();
        for life in 0..12_u64 {
            let mut agent = Command::new(SHIM)
                .arg("agent")
                .arg(&directory)
                .args([name.as_str(), BOOT])
                .args(&scripts)
                .stdin(Stdio::null())
                .spawn()
                .expect("the test agent starts");
            // Somewhere in the middle, each time elsewhere: that is what is tried here.
            tokio::time::sleep(Duration::from_millis(3 + life * 7)).await;
            kill(agent.id());
            agent.wait().expect("our child");
        }
        let mut node = Node::open(&directory, groups);
        let found = node.runtime.list().expect("readable");
        let mut known: BTreeSet<_> = found.iter().map(|found| found.run.clone()).collect();
        for found in found {
            match found.state {
                FoundState::Alive | FoundState::Ended(_) => node.runtime.adopt(&found.run),
                FoundState::NeverStarted => {
                    node.runtime.forget(&found.run);
                    known.remove(&found.run);
                }
                FoundState::Lost(_) => panic!("no shim was killed: {found:?}"),
            }
        }
        let run = |number: usize| named(&directory, &format!("task-{number}"));
        let again: Vec<usize> = (0..RUNS).filter(|n| !known.contains(&run(*n))).collect();
        wait_for("what never started leaves no trace", || {
            let here = node.runtime.list().expect("readable");
            again
                .iter()
                .all(|n| here.iter().all(|found| found.run != run(*n)))
        })
        .await;
        for number in again {
            let mut launch = node.launch(&format!("task-{number}"), &scripts[number]);
            launch.log_directory = directory.join("logs").join(number.to_string());
            node.runtime.prepare(launch);
        }
        for (number, script) in scripts.iter().enumerate() {
            let ended = node.end_of(&run(number)).await;
            let code = u8::try_from(number).expect("small");
            assert_eq!(ended.ending, Ending::Code(code), "{script} {groups:?}");
            let traces =
                std::fs::read_to_string(directory.join("work").join(format!("ran-{number}")));
            assert_eq!(
                traces.expect("it ran").lines().count(),
                1,
                "{script} ran once"
            );
            let _readable = read_log(&directory, &number.to_string());
        }
    });
}
