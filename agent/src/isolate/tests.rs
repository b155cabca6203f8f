//! Both versions and their mix on a fake kernel that records, refuses and loses writes.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use super::*;

/// Directories with the files a kernel would put there.
#[derive(Debug, Default)]
struct Fake {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    files: BTreeMap<PathBuf, String>,
    directories: BTreeSet<PathBuf>,
    writes: Vec<(PathBuf, String)>,
    refused: BTreeSet<&'static str>,
    lost: BTreeSet<&'static str>,
    /// Directories that somebody else removes once, as soon as they are made.
    vanish: BTreeSet<PathBuf>,
}

const V2: &str = "/cg/unified";

impl Fake {
    /// Mounts by directory name: "cpu", "memory", … for v1, and the v2 tree with its controllers.
    fn new(v1: &[&str], v2: Option<&str>) -> (Arc<Self>, Hierarchies) {
        let fake = Self::default();
        let mut found = Hierarchies::default();
        {
            let mut state = fake.state.lock().expect("no panic");
            for name in v1 {
                let mount = PathBuf::from("/cg").join(name);
                let controller = Controller::named(name).expect("a controller");
                state.add(&mount);
                state
                    .files
                    .insert(mount.join("cpuset.cpus"), "0-3\n".to_owned());
                state
                    .files
                    .insert(mount.join("cpuset.mems"), "0\n".to_owned());
                found.v1.insert(
                    controller,
                    Home {
                        mount: mount.clone(),
                        base: mount,
                    },
                );
            }
            if let Some(controllers) = v2 {
                let mount = PathBuf::from(V2);
                state.add(&mount);
                state.files.remove(&mount.join("cgroup.type"));
                state
                    .files
                    .insert(mount.join("cgroup.controllers"), controllers.to_owned());
                found.v2 = Some(Home {
                    mount: mount.clone(),
                    base: mount,
                });
            }
        }
        (Arc::new(fake), found)
    }

    fn refuse(&self, file: &'static str) {
        self.state.lock().expect("no panic").refused.insert(file);
    }

    fn lose(&self, file: &'static str) {
        self.state.lock().expect("no panic").lost.insert(file);
    }

    fn content(&self, path: &str) -> String {
        let state = self.state.lock().expect("no panic");
        state
            .files
            .get(Path::new(path))
            .unwrap_or_else(|| panic!("no {path}"))
            .trim()
            .to_owned()
    }

    fn exists(&self, path: &str) -> bool {
        self.state
            .lock()
            .expect("no panic")
            .directories
            .contains(Path::new(path))
    }

    fn written(&self) -> Vec<PathBuf> {
        let state = self.state.lock().expect("no panic");
        state.writes.iter().map(|(path, _)| path.clone()).collect()
    }
}

impl State {
    fn add(&mut self, path: &Path) {
        self.directories.insert(path.to_owned());
        let v2 = path.starts_with(V2);
        let parent = path.parent().map(|parent| {
            let control = parent.join("cgroup.subtree_control");
            self.files.get(&control).cloned().unwrap_or_default()
        });
        let available = parent.unwrap_or_default();
        let mut add = |file: &str, content: &str| {
            self.files.insert(path.join(file), content.to_owned());
        };
        add("cgroup.procs", "");
        if v2 {
            add("cgroup.type", "domain\n");
            add("cgroup.controllers", &available);
            add("cgroup.subtree_control", "");
            add("cgroup.events", "populated 0\nfrozen 0\n");
            add("cgroup.kill", "");
            for (controller, file, content) in [
                ("cpu", "cpu.weight", "100"),
                ("cpu", "cpu.max", "max 100000"),
                ("memory", "memory.max", "max"),
                ("memory", "memory.swap.max", "max"),
                ("memory", "memory.oom.group", "0"),
                ("pids", "pids.max", "max"),
                ("cpuset", "cpuset.cpus", ""),
            ] {
                if available.split_whitespace().any(|name| name == controller) {
                    add(file, content);
                }
            }
            return;
        }
        for (file, content) in [
            ("tasks", ""),
            ("cpu.shares", "1024"),
            ("cpu.cfs_quota_us", "-1"),
            ("cpu.cfs_period_us", "100000"),
            ("memory.limit_in_bytes", "9223372036854771712"),
            ("pids.max", "max"),
            ("cpuset.cpus", ""),
            ("cpuset.mems", ""),
            ("freezer.state", "THAWED"),
        ] {
            add(file, content);
        }
    }
}

impl CgroupFiles for Fake {
    fn read(&self, path: &Path) -> io::Result<String> {
        let state = self.state.lock().expect("no panic");
        state
            .files
            .get(path)
            .cloned()
            .ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn write(&self, path: &Path, value: &str) -> io::Result<()> {
        let mut state = self.state.lock().expect("no panic");
        let name = path
            .file_name()
            .and_then(|name| name.to_str())
            .expect("a file")
            .to_owned();
        if !state.files.contains_key(path) {
            return Err(io::ErrorKind::NotFound.into());
        }
        if state.refused.contains(name.as_str()) {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        state.writes.push((path.to_owned(), value.to_owned()));
        if state.lost.contains(name.as_str()) {
            return Ok(());
        }
        if name == "cgroup.subtree_control" {
            let names = value.replace('+', "");
            let entry = state.files.entry(path.to_owned()).or_default();
            *entry = format!("{entry} {names}").trim().to_owned();
            return Ok(());
        }
        state.files.insert(path.to_owned(), value.to_owned());
        Ok(())
    }

    fn make_directory(&self, path: &Path) -> io::Result<()> {
        let mut state = self.state.lock().expect("no panic");
        if state.directories.contains(path) {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        let parent = path.parent().expect("below something");
        if !state.directories.contains(parent) {
            return Err(io::ErrorKind::NotFound.into());
        }
        if !state.vanish.remove(path) {
            state.add(path);
        }
        Ok(())
    }

    fn remove_directory(&self, path: &Path) -> io::Result<()> {
        let mut state = self.state.lock().expect("no panic");
        if !state.directories.contains(path) {
            return Err(io::ErrorKind::NotFound.into());
        }
        let busy = state
            .directories
            .iter()
            .any(|other| other.parent() == Some(path))
            || state
                .files
                .get(&path.join("cgroup.procs"))
                .is_some_and(|pids| !pids.is_empty());
        if busy {
            return Err(io::ErrorKind::ResourceBusy.into());
        }
        state.directories.remove(path);
        state.files.retain(|file, _| file.parent() != Some(path));
        Ok(())
    }
}

const NAME: LeafName<'static> = LeafName {
    group: "g",
    run: "r",
};

fn limits() -> Limits {
    Limits {
        cpu_milli: 1500,
        cpu_limit_milli: Some(2000),
        memory_bytes: Some(64 << 20),
        pids: Some(100),
        cores: Vec::new(),
    }
}

fn level(isolation: &Isolation, kind: &str) -> EnforcementLevel {
    let rows = isolation.enforcement();
    rows.into_iter()
        .find(|row| row.kind == kind)
        .expect("a row for each kind")
        .level
}

#[test]
fn a_v2_host_gets_one_leaf_with_every_limit_and_the_weight_on_the_group() {
    let (fake, found) = Fake::new(&[], Some("cpuset cpu memory pids"));
    let isolation = Isolation::open(fake.clone(), found, "a", PartLimits::default());

    let leaf = isolation.create(NAME, &limits()).expect("all there");

    assert_eq!(
        leaf.v2.as_deref(),
        Some(Path::new("/cg/unified/mete/a/g/r"))
    );
    assert!(leaf.v1.is_empty());
    for (file, value) in [
        ("g/cpu.weight", "150"),
        ("g/r/cpu.max", "200000 100000"),
        ("g/r/memory.max", "67108864"),
        ("g/r/memory.swap.max", "0"),
        ("g/r/memory.oom.group", "1"),
        ("g/r/pids.max", "100"),
        ("g/r/cpuset.cpus", ""),
    ] {
        assert_eq!(
            fake.content(&format!("/cg/unified/mete/a/{file}")),
            value,
            "{file}"
        );
    }
    for kind in ["cpu", "memory", "cores", "pids", "tracking"] {
        assert_eq!(
            level(&isolation, kind),
            EnforcementLevel::Enforced,
            "{kind}"
        );
    }
    assert_eq!(
        isolation.differences(&leaf, &limits()).expect("readable"),
        []
    );
}

#[test]
fn a_v1_host_gets_a_directory_in_each_hierarchy_and_one_cpuset_for_all_shared_tasks() {
    let (fake, found) = Fake::new(&["cpu", "cpuset", "memory", "pids", "freezer"], None);
    let isolation = Isolation::open(fake.clone(), found, "a", PartLimits::default());

    let leaf = isolation.create(NAME, &limits()).expect("all there");

    assert_eq!(fake.content("/cg/cpu/mete/a/g/cpu.shares"), "1536");
    assert_eq!(
        fake.content("/cg/cpu/mete/a/g/r/cpu.cfs_quota_us"),
        "200000"
    );
    assert_eq!(
        fake.content("/cg/memory/mete/a/g/r/memory.limit_in_bytes"),
        "67108864"
    );
    assert_eq!(fake.content("/cg/pids/mete/a/g/r/pids.max"), "100");
    let shared = &leaf.v1[&Controller::Cpuset];
    assert_eq!(
        (shared.directory.as_path(), shared.owned),
        (Path::new("/cg/cpuset/mete/a/shared"), false)
    );
    assert_eq!(fake.content("/cg/cpuset/mete/a/shared/cpuset.cpus"), "0-3");
    assert!(
        !fake.exists("/cg/cpuset/mete/a/g"),
        "a shared task has no cpuset of its own"
    );

    isolation.remove(&leaf).expect("empty");
    assert!(!fake.exists("/cg/cpu/mete/a/g") && fake.exists("/cg/cpuset/mete/a/shared"));
}

#[test]
fn named_cores_get_a_cpuset_of_their_own_and_no_quota() {
    let (fake, found) = Fake::new(&["cpu", "cpuset"], None);
    let isolation = Isolation::open(fake.clone(), found, "a", PartLimits::default());

    let limits = Limits {
        cores: vec![2, 3],
        ..limits()
    };
    let leaf = isolation.create(NAME, &limits).expect("all there");

    assert!(leaf.v1[&Controller::Cpuset].owned);
    assert_eq!(fake.content("/cg/cpuset/mete/a/g/r/cpuset.cpus"), "2-3");
    assert_eq!(fake.content("/cg/cpuset/mete/a/g/r/cpuset.mems"), "0");
    assert_eq!(fake.content("/cg/cpu/mete/a/g/r/cpu.cfs_quota_us"), "-1");
}

#[test]
fn a_hybrid_host_limits_in_v1_and_tracks_in_v2() {
    let (fake, found) = Fake::new(&["cpu", "memory", "freezer"], Some("hugetlb pids"));
    let isolation = Isolation::open(fake.clone(), found, "a", PartLimits::default());

    let leaf = isolation.create(NAME, &limits()).expect("all there");

    assert_eq!(isolation.serves(Controller::Memory), Some("v1"));
    assert_eq!(isolation.serves(Controller::Pids), Some("v2"));
    assert!(leaf.v2.is_some() && !leaf.v1.contains_key(&Controller::Freezer));
    isolation.kill(&leaf).expect("a kill file is there");
    assert_eq!(fake.content("/cg/unified/mete/a/g/r/cgroup.kill"), "1");
    assert_eq!(level(&isolation, "cores"), EnforcementLevel::AffinityOnly);
}

#[test]
fn a_write_that_the_kernel_loses_is_noticed_and_the_leaf_is_removed_again() {
    let (fake, found) = Fake::new(&["memory", "pids"], None);
    let isolation = Isolation::open(fake.clone(), found, "a", PartLimits::default());
    fake.lose("memory.limit_in_bytes");

    let error = isolation.create(NAME, &limits()).expect_err("lost");

    let text = error.to_string();
    assert!(matches!(error, IsolateError::NotTaken(_)), "{text}");
    assert!(
        text.contains("67108864") && text.contains("memory.limit_in_bytes"),
        "{text}"
    );
    assert!(
        !fake.exists("/cg/memory/mete/a/g"),
        "nothing half made is left"
    );
}

#[test]
fn a_controller_that_may_not_be_written_is_accounted_only_with_a_reason_and_a_fix() {
    let (fake, found) = Fake::new(&["cpu", "memory"], None);
    fake.refuse("memory.limit_in_bytes");
    let part = PartLimits {
        memory_bytes: Some(1 << 30),
        ..PartLimits::default()
    };

    let isolation = Isolation::open(fake, found, "a", part);

    assert_eq!(level(&isolation, "memory"), EnforcementLevel::AccountedOnly);
    assert_eq!(level(&isolation, "cpu"), EnforcementLevel::Enforced);
    let row = isolation
        .enforcement()
        .into_iter()
        .find(|row| row.kind == "memory");
    let row = row.expect("a row for each kind");
    assert!(row.fact.contains("memory.limit_in_bytes"), "{row:?}");
    assert!(row.fix.contains("root"), "{row:?}");
}

#[test]
fn a_part_is_a_limit_on_the_top_and_no_quota_below_may_pass_it() {
    let (fake, found) = Fake::new(&["cpu", "memory", "cpuset"], None);
    let part = PartLimits {
        cpu_milli: Some(500),
        cores: Vec::new(),
        memory_bytes: Some(1 << 30),
    };
    let isolation = Isolation::open(fake.clone(), found, "a", part);

    isolation.create(NAME, &limits()).expect("all there");

    assert_eq!(fake.content("/cg/cpu/mete/a/cpu.cfs_quota_us"), "50000");
    assert_eq!(
        fake.content("/cg/memory/mete/a/memory.limit_in_bytes"),
        "1073741824"
    );
    assert_eq!(fake.content("/cg/cpu/mete/a/g/r/cpu.cfs_quota_us"), "50000");
}

#[test]
fn a_top_that_was_removed_from_outside_is_made_again_before_the_next_launch() {
    let (fake, found) = Fake::new(&["cpu", "memory", "cpuset"], Some(""));
    let isolation = Isolation::open(fake.clone(), found, "a", PartLimits::default());
    isolation.remove_top();
    assert!(!fake.exists("/cg/memory/mete"));

    isolation.create(NAME, &limits()).expect("made again");

    assert!(fake.exists("/cg/memory/mete/a/g/r") && fake.exists("/cg/unified/mete/a/g/r"));
}

#[test]
fn a_start_beside_an_agent_that_just_removes_the_directory_of_both_loses_no_hierarchy() {
    let (fake, found) = Fake::new(&["cpu", "memory", "cpuset"], Some(""));
    for mount in ["cpu", "memory", "cpuset", "unified"] {
        let both = Path::new("/cg").join(mount).join("mete");
        fake.state.lock().expect("no panic").vanish.insert(both);
    }

    let isolation = Isolation::open(fake.clone(), found, "a", PartLimits::default());

    assert_eq!(isolation.refused(), [""; 0]);
    for mount in ["cpu", "memory", "cpuset", "unified"] {
        assert!(fake.exists(&format!("/cg/{mount}/mete/a")), "{mount}");
    }
}

#[test]
fn nothing_outside_of_our_own_directory_is_ever_written_on_v1() {
    let (fake, found) = Fake::new(&["cpu", "cpuset", "memory", "pids", "freezer"], None);
    let isolation = Isolation::open(fake.clone(), found, "a", PartLimits::default());
    let leaf = isolation.create(NAME, &limits()).expect("all there");
    isolation.kill(&leaf).expect("a freezer is there");
    isolation.remove(&leaf).expect("empty");

    for path in fake.written() {
        assert!(
            path.components().any(|part| part.as_os_str() == "mete"),
            "{}",
            path.display()
        );
    }
    for strange in ["..", "a/b", "", ".x"] {
        let name = LeafName {
            group: strange,
            run: "r",
        };
        assert!(matches!(
            isolation.create(name, &limits()),
            Err(IsolateError::Name { .. })
        ));
    }
}

#[test]
fn a_v1_kill_always_ends_thawed() {
    let (fake, found) = Fake::new(&["freezer"], None);
    let isolation = Isolation::open(fake.clone(), found, "a", PartLimits::default());
    let leaf = isolation.create(NAME, &limits()).expect("all there");
    // Never reaches FROZEN, as with a process that waits for a device.
    fake.lose("freezer.state");

    isolation.kill(&leaf).expect("the loop has a bound");

    let state = fake.state.lock().expect("no panic");
    let last = state
        .writes
        .iter()
        .rfind(|(path, _)| path.ends_with("freezer.state"));
    assert_eq!(last.map(|(_, value)| value.as_str()), Some("THAWED"));
}
