//! Machines of other shapes, written out as directory trees, and the parts several agents take of
//! one.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use mete_agent::discover::part::{
    Part, PartError, claim, is_in_memory, run_directories, run_directory, run_directory_in_memory,
};
use mete_agent::discover::separate::{remove_runtime_directory_of, runtime_directory_of};
use mete_agent::discover::{DiscoverError, Inventory, Roots, discover};

/// A machine in a directory: each file by its path and content.
struct Tree(tempfile::TempDir);

impl Tree {
    fn new(online: &str) -> Self {
        let tree = Self(tempfile::tempdir().expect("a temporary directory"));
        tree.put("sys/devices/system/cpu/online", online);
        tree.put("proc/meminfo", "MemTotal: 4194304 kB\nMemFree: 1 kB\n");
        tree.put("proc/sys/kernel/hostname", "box\n");
        tree.put(
            "proc/sys/kernel/random/boot_id",
            "11111111-2222-3333-4444-555555555555\n",
        );
        tree
    }

    fn put(&self, path: &str, content: &str) {
        let path = self.0.path().join(path);
        std::fs::create_dir_all(path.parent().expect("below")).expect("writable");
        std::fs::write(path, content).expect("writable");
    }

    fn cpu(&self, cpu: u32, package: u32, core: u32, siblings: &str) {
        let folder = format!("sys/devices/system/cpu/cpu{cpu}/topology");
        self.put(
            &format!("{folder}/physical_package_id"),
            &package.to_string(),
        );
        self.put(&format!("{folder}/core_id"), &core.to_string());
        self.put(&format!("{folder}/thread_siblings_list"), siblings);
    }

    fn node(&self, node: u32, cpus: &str, kilobytes: u64) {
        let folder = format!("sys/devices/system/node/node{node}");
        self.put(&format!("{folder}/cpulist"), cpus);
        self.put(
            &format!("{folder}/meminfo"),
            &format!("Node {node} MemTotal: {kilobytes} kB\n"),
        );
    }

    fn roots(&self) -> Roots {
        Roots {
            sysfs: self.0.path().join("sys"),
            procfs: self.0.path().join("proc"),
        }
    }

    fn read(&self) -> Inventory {
        discover(&self.roots(), self.0.path()).expect("a whole machine")
    }
}

#[test]
fn core_ids_that_repeat_in_each_socket_and_siblings_apart_are_told_right() {
    let tree = Tree::new("0-7\n");
    // Two sockets, two cores each, two threads a core: thread n and n + 4.
    for cpu in 0..8 {
        let (package, core) = (cpu % 4 / 2, cpu % 2);
        tree.cpu(cpu, package, core, &format!("{},{}", cpu % 4, cpu % 4 + 4));
    }
    tree.put("sys/devices/system/node/online", "0,8\n");
    tree.node(0, "0-1,4-5", 1024);
    tree.node(8, "2-3,6-7", 2048);

    let found = tree.read();

    let by_core: BTreeMap<_, BTreeSet<_>> = found.cores.iter().fold(
        BTreeMap::new(),
        |mut cores: BTreeMap<(u32, u32), BTreeSet<u32>>, core| {
            cores
                .entry((core.package, core.core))
                .or_default()
                .insert(core.cpu);
            cores
        },
    );
    assert_eq!(
        by_core.len(),
        4,
        "a core is named by socket and id: {by_core:?}"
    );
    for core in &found.cores {
        let siblings: Vec<u32> = by_core[&(core.package, core.core)]
            .iter()
            .copied()
            .collect();
        assert_eq!(core.siblings, siblings, "cpu {}", core.cpu);
        assert_eq!(
            core.numa_node,
            Some(if core.package == 0 { 0 } else { 8 }),
            "{}",
            core.cpu
        );
    }
    let nodes: Vec<_> = found
        .memory
        .nodes
        .iter()
        .map(|at| (at.node, at.total_bytes))
        .collect();
    assert_eq!(nodes, [(0, 1 << 20), (8, 2 << 20)]);
}

#[test]
fn four_threads_a_core_and_offline_threads_are_read_and_never_assumed() {
    let tree = Tree::new("0-2,4-7\n");
    for cpu in 0..8 {
        tree.cpu(cpu, 0, cpu / 4, if cpu < 4 { "0-3" } else { "4-7" });
    }
    tree.put("sys/devices/system/cpu/isolated", "7\n");

    let found = tree.read();

    assert_eq!(found.cores.len(), 7);
    assert_eq!(found.cores[0].siblings, [0, 1, 2], "cpu 3 is offline");
    assert_eq!(found.cores[6].siblings, [4, 5, 6, 7]);
    let isolated: Vec<u32> = found
        .cores
        .iter()
        .filter(|core| core.isolated)
        .map(|core| core.cpu)
        .collect();
    assert_eq!(isolated, [7]);
}

#[test]
fn a_machine_that_names_no_topology_still_has_its_cpus_and_memory() {
    let found = Tree::new("0-1\n").read();

    assert_eq!(found.cores.len(), 2);
    assert_eq!(
        (found.cores[1].core, found.cores[1].siblings.as_slice()),
        (1, &[1][..])
    );
    assert_eq!(found.cores[1].numa_node, None);
    assert_eq!(found.memory.machine_bytes, 4 << 30);
    assert_eq!(
        found.memory.usable_bytes,
        4 << 30,
        "our own cgroup says nothing of a fixture"
    );
    assert_eq!((found.hostname.as_str(), found.online_cpus), ("box", 2));
}

#[test]
fn nodes_with_only_memory_or_only_cpus_crash_nothing() {
    let tree = Tree::new("0\n");
    tree.put("sys/devices/system/node/online", "0-2\n");
    tree.node(0, "0", 0);
    tree.node(1, "", 4096);

    let found = tree.read();

    assert_eq!(found.cores[0].numa_node, Some(0));
    let nodes: Vec<u32> = found.memory.nodes.iter().map(|at| at.node).collect();
    assert_eq!(nodes, [0, 1], "the third has no memory file");
}

#[test]
fn what_is_missing_or_damaged_is_told_by_its_path() {
    let tree = Tree::new("0-1,junk\n");
    let error = discover(&tree.roots(), tree.0.path()).expect_err("junk");
    assert!(
        matches!(&error, DiscoverError::Content { found, .. } if found == "junk"),
        "{error}"
    );

    let empty = tempfile::tempdir().expect("a temporary directory");
    let roots = Roots {
        sysfs: empty.path().join("sys"),
        procfs: empty.path().join("proc"),
    };
    let text = discover(&roots, empty.path())
        .expect_err("nothing there")
        .to_string();
    assert!(text.contains("devices/system/cpu/online"), "{text}");
}

#[test]
fn this_machine_is_described_as_its_own_tools_do() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let found = discover(&Roots::default(), directory.path()).expect("a Linux machine");

    let usable = std::thread::available_parallelism().expect("known").get();
    // A quota may lower what std says, never raise it.
    assert!(
        found.cores.len() >= usable,
        "{} cores, {usable} usable",
        found.cores.len()
    );
    assert!(found.memory.usable_bytes <= found.memory.machine_bytes);
    assert!(found.disk.total_bytes >= found.disk.available_bytes);
    assert_eq!(found.boot_id.len(), 36);
}

fn share(cpu_milli: u64, memory_bytes: u64) -> Part {
    Part::Share {
        cpu_milli,
        memory_bytes,
    }
}

fn set(cpus: &[u32]) -> Part {
    Part::Set {
        cpus: cpus.iter().copied().collect(),
        memory_bytes: 1 << 30,
    }
}

fn text(directory: &Path, agent: &str, part: &Part, machine: &Inventory) -> String {
    claim(directory, agent, part, machine)
        .expect_err("does not fit")
        .to_string()
}

#[test]
fn agents_of_one_machine_get_parts_that_never_meet_and_hear_why_not() {
    let machine = Tree::new("0-3\n").read();
    let directory = tempfile::tempdir().expect("a temporary directory");
    let at = directory.path().join("run");
    let first = claim(&at, "a", &set(&[0, 1]), &machine).expect("free");

    assert!(
        text(&at, "b", &set(&[1, 2]), &machine).contains("cpus 1 were already given to agent a")
    );
    assert!(text(&at, "a", &set(&[2]), &machine).contains("choose another --name"));
    assert!(text(&at, "b", &Part::Whole, &machine).contains("--share"));
    let above = text(&at, "b", &share(2001, 1 << 30), &machine);
    assert!(
        above.contains("4001 of 4000 milli-CPUs") && above.contains("at most 2000"),
        "{above}"
    );
    let above = text(&at, "b", &share(10, 4 << 30), &machine);
    assert!(above.contains("bytes of memory"), "{above}");

    let _second = claim(&at, "b", &share(2000, 1 << 30), &machine).expect("exactly what is left");
    drop(first);
    let _third = claim(&at, "c", &set(&[0, 1]), &machine).expect("given back");
}

#[test]
fn a_part_that_no_machine_could_give_is_refused_with_the_least() {
    let machine = Tree::new("0-3\n").read();
    let directory = tempfile::tempdir().expect("a temporary directory");
    let at = directory.path().join("run");
    for part in [
        share(9, 1 << 30),
        share(1000, (64 << 20) - 1),
        set(&[]),
        set(&[2, 9]),
    ] {
        let error = claim(&at, "a", &part, &machine).expect_err("too small or not there");
        assert!(
            matches!(error, PartError::Invalid { .. }),
            "{part:?}: {error}"
        );
        assert!(error.to_string().contains("10m CPU and 64 MiB"), "{error}");
    }
    let error = claim(&at, "a/../b", &Part::Whole, &machine).expect_err("not a name");
    assert!(error.to_string().contains("a/../b"), "{error}");
}

#[test]
fn the_part_of_an_agent_that_was_killed_is_free_at_once() {
    let machine = Tree::new("0-3\n").read();
    let directory = tempfile::tempdir().expect("a temporary directory");
    let at = directory.path().join("run");
    let first = claim(&at, "a", &Part::Whole, &machine).expect("free");
    // A kill drops the lock and leaves the file.
    let file = at.join("parts/a");
    let content = std::fs::read(&file).expect("written");
    drop(first);
    std::fs::write(&file, content).expect("writable");

    claim(&at, "b", &Part::Whole, &machine).expect("nobody holds it");
}

#[test]
fn records_of_runs_are_kept_in_memory_where_there_is_some_and_stay_where_they_are() {
    let shared = Path::new("/dev/shm");
    let on_disk = tempfile::tempdir().expect("a temporary directory");
    if !is_in_memory(shared) || is_in_memory(on_disk.path()) {
        eprintln!("NOT TESTED: needs a tmpfs in /dev/shm and temporary files on a disk");
        return;
    }
    let in_memory = tempfile::tempdir_in(shared).expect("a temporary directory");
    let usual = run_directory(in_memory.path(), "a");
    assert_eq!(run_directory_in_memory(in_memory.path(), "a"), usual);
    assert!(is_in_memory(&usual), "though it is not made yet");

    let usual = run_directory(on_disk.path(), "a");
    let chosen = run_directory_in_memory(on_disk.path(), "a");
    assert!(
        chosen.starts_with(shared) && chosen.ends_with("agents/a"),
        "{chosen:?}"
    );
    std::fs::create_dir_all(usual.join("a-run")).expect("writable");
    let kept = run_directory_in_memory(on_disk.path(), "a");
    assert_eq!(kept, usual, "what an earlier agent left is found again");
}

#[test]
fn a_runtime_directory_of_its_own_is_found_again_from_its_home_and_goes_with_it() {
    let (one, other) = (home(), home());
    let first = runtime_directory_of(one.path()).expect("can be made");
    let second = runtime_directory_of(other.path()).expect("can be made");
    assert_ne!(first, second, "no two agents of one name meet");
    let runs = run_directory(&first, "n1");
    std::fs::create_dir_all(runs.join("a-run")).expect("writable");
    assert_eq!(runtime_directory_of(one.path()).expect("made"), first);
    assert_eq!(run_directories(&first).expect("readable"), [runs]);
    assert_eq!(
        run_directories(&second).expect("nothing yet"),
        Vec::<std::path::PathBuf>::new()
    );

    let expect_memory = is_in_memory(Path::new("/dev/shm")) && !is_in_memory(one.path());
    if expect_memory {
        assert!(is_in_memory(&first), "{first:?}");
        // A boot empties it; the link stays.
        std::fs::remove_dir_all(&first).expect("removable");
        assert_eq!(runtime_directory_of(one.path()).expect("made"), first);
        assert!(first.is_dir());
    } else {
        eprintln!("NOT TESTED: needs a tmpfs in /dev/shm and temporary files on a disk");
    }
    remove_runtime_directory_of(one.path()).expect("removable");
    assert!(!expect_memory || !first.exists());
    remove_runtime_directory_of(one.path()).expect("removed already");
    remove_runtime_directory_of(other.path()).expect("removable");
}

#[test]
fn a_runtime_directory_stays_where_an_earlier_agent_kept_it_and_no_link_leads_elsewhere() {
    let kept = home();
    std::fs::create_dir_all(kept.path().join("run/agents/n1/a-run")).expect("writable");
    let found = runtime_directory_of(kept.path()).expect("there");
    assert_eq!(found, kept.path().join("run"));

    let (strange, victim) = (home(), home());
    let file = victim.path().join("file");
    std::fs::write(&file, "precious").expect("writable");
    std::os::unix::fs::symlink(victim.path(), strange.path().join("run")).expect("a link");
    let error = runtime_directory_of(strange.path()).expect_err("somebody else's");
    assert!(
        error.to_string().contains("not one of this user's"),
        "{error}"
    );
    remove_runtime_directory_of(strange.path()).expect("nothing of ours");
    assert!(
        file.exists(),
        "what a strange link leads to is not ours to remove"
    );
}

/// A directory for the states of agents, on a disk where there is one.
fn home() -> tempfile::TempDir {
    tempfile::tempdir().expect("a temporary directory")
}
