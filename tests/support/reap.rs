//! What is printed when a story fails, and how nothing of it is left behind.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use mete_agent::checkpoint::Checkpoint;
use mete_agent::discover::separate::remove_runtime_directory_of;
use rustix::process::{Pid, Signal, kill_process};

use super::Site;
use super::ask;

/// Lines of each log.
const TAIL: usize = 60;

/// Prints the logs and what the cluster says about itself.
pub(crate) fn report(site: &Site) {
    let mut logs: Vec<PathBuf> = entries(&site.path("logs"));
    logs.sort();
    for log in logs {
        let text = std::fs::read(&log).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let lines: Vec<&str> = text.lines().collect();
        let shown = lines.len().saturating_sub(TAIL);
        let name = log
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        eprintln!(
            "######## log {name} ({} lines, the last {TAIL})",
            lines.len()
        );
        for line in lines.iter().skip(shown) {
            eprintln!("{line}");
        }
    }
    if site.address().is_empty() {
        return;
    }
    const QUESTIONS: [&[&str]; 7] = [
        &["status", "--timeout", "3s"],
        &["node", "list", "-o", "wide", "--timeout", "3s"],
        &["framework", "list", "-o", "wide", "--timeout", "3s"],
        &["offer", "list", "--timeout", "3s"],
        &["batch", "list", "-A", "--timeout", "3s"],
        &["why", "framework", "batch", "--timeout", "3s"],
        &["events", "--since", "5m", "--timeout", "3s"],
    ];
    for question in QUESTIONS {
        let answered = std::panic::catch_unwind(|| ask::run(site, question, &[]));
        match answered {
            Ok(answer) => eprintln!("######## {}", cut(&answer.to_string())),
            Err(_) => eprintln!("######## mete {} could not be asked", question.join(" ")),
        }
    }
}

fn cut(text: &str) -> String {
    let lines: Vec<&str> = text.lines().collect();
    let skipped = lines.len().saturating_sub(2 * TAIL);
    lines
        .into_iter()
        .skip(skipped)
        .map(|line| format!("{line}\n"))
        .collect()
}

/// The paths in a folder; none when it cannot be read.
pub(crate) fn entries(folder: &Path) -> Vec<PathBuf> {
    let listed = std::fs::read_dir(folder).into_iter().flatten().flatten();
    listed.map(|entry| entry.path()).collect()
}

/// Ends every process that belongs to the site: daemons, shims, tasks; then removes what its agents
/// have outside of it: control groups, and records in memory.
pub(crate) fn reap(root: &Path) {
    let began = Instant::now();
    loop {
        let left = processes_of(root);
        if left.is_empty() {
            break;
        }
        for pid in &left {
            if let Some(pid) = Pid::from_raw(*pid) {
                // It may have ended meanwhile.
                let _gone = kill_process(pid, Signal::KILL);
            }
        }
        if began.elapsed() > Duration::from_secs(20) {
            eprintln!("processes of the site that do not end: {left:?}");
            break;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    let mut folders = vec![root.to_owned()];
    let mut agents = Vec::new();
    while let Some(folder) = folders.pop() {
        let _best_effort = remove_runtime_directory_of(&folder);
        if let Some(agent) = Checkpoint::identity(&folder) {
            agents.push(format!("-{}", &agent.simple().to_string()[..8]));
            // What is below are its tasks'.
            continue;
        }
        let below = entries(&folder);
        folders.extend(
            below
                .into_iter()
                .filter(|path| path.is_dir() && !path.is_symlink()),
        );
    }
    for hierarchy in entries(Path::new("/sys/fs/cgroup")) {
        for node in entries(&hierarchy.join("mete")) {
            let name = node.to_string_lossy();
            if agents.iter().any(|agent| name.ends_with(agent)) {
                remove_groups(&node);
            }
        }
    }
}

fn remove_groups(folder: &Path) {
    for below in entries(folder).into_iter().filter(|path| path.is_dir()) {
        remove_groups(&below);
    }
    // A group that is still busy is only an empty directory of the kernel.
    let _busy = std::fs::remove_dir(folder);
}

/// Processes that name the site in their arguments or environment, or work in it. Zombies are over.
pub(crate) fn processes_of(root: &Path) -> Vec<i32> {
    let own = i32::try_from(std::process::id()).unwrap_or(0);
    let mark = root.as_os_str().as_encoded_bytes();
    let mut found = Vec::new();
    for process in entries(Path::new("/proc")) {
        let name = process
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        let Ok(pid) = name.parse::<i32>() else {
            continue;
        };
        if pid == own {
            continue;
        }
        let names = |file: &str| {
            let bytes = std::fs::read(process.join(file)).unwrap_or_default();
            bytes.windows(mark.len()).any(|part| part == mark)
        };
        let works = std::fs::read_link(process.join("cwd")).is_ok_and(|cwd| cwd.starts_with(root));
        if works || names("cmdline") || names("environ") {
            found.push(pid);
        }
    }
    found
}

/// A process is there and is not a zombie; with the moment of its start, so that a number that was
/// given again is not taken for it.
pub(crate) fn alive_since(pid: u32) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let rest = stat.rsplit_once(") ")?.1;
    let fields: Vec<&str> = rest.split(' ').collect();
    let dead = matches!(fields.first(), Some(&("Z" | "X")));
    if dead {
        None
    } else {
        fields.get(19)?.parse().ok()
    }
}
