//! Which cgroup hierarchies this host has, and where this process is in each: read from
//! `self/mountinfo` and `self/cgroup`, never guessed from path names.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::Controller;

/// One hierarchy and the place in it below which the agent may work.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Home {
    /// Where it is mounted.
    pub mount: PathBuf,
    /// The directory that will hold `mete/<agent>`.
    pub base: PathBuf,
}

/// The hierarchies of a host.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Hierarchies {
    /// The v2 tree, if one is mounted.
    pub v2: Option<Home>,
    /// For each controller that is mounted as v1.
    pub v1: BTreeMap<Controller, Home>,
}

struct Mount {
    root: String,
    point: PathBuf,
    kind: String,
    options: String,
}

impl Hierarchies {
    /// Reads them below a procfs root. `chosen` is a path inside every hierarchy to use instead of
    /// this process's own place.
    ///
    /// # Errors
    /// Neither file can be read.
    pub fn read(procfs: &Path, chosen: Option<&str>) -> std::io::Result<Self> {
        let mounts = std::fs::read_to_string(procfs.join("self/mountinfo"))?;
        let places = std::fs::read_to_string(procfs.join("self/cgroup"))?;
        Ok(Self::parse(&mounts, &places, chosen))
    }

    /// From the text of the two files. What cannot be understood is passed over: such a hierarchy
    /// is then not used.
    #[must_use]
    pub fn parse(mountinfo: &str, places: &str, chosen: Option<&str>) -> Self {
        let mut found = Self::default();
        for mount in mountinfo.lines().filter_map(mount) {
            if mount.kind == "cgroup2" {
                // The first mount wins: later ones are often bind mounts of containers.
                if found.v2.is_none() {
                    found.v2 = home(
                        &mount,
                        place(places, |names, number| number == "0" && names.is_empty()),
                        chosen,
                    );
                }
                continue;
            }
            for controller in mount.options.split(',').filter_map(Controller::named) {
                let own = place(places, |names, _| {
                    names.split(',').any(|name| name == controller.name())
                });
                if let Some(home) = home(&mount, own, chosen) {
                    found.v1.entry(controller).or_insert(home);
                }
            }
        }
        found
    }
}

/// One line of mountinfo(5), if it is a cgroup mount.
fn mount(line: &str) -> Option<Mount> {
    let (left, right) = line.split_once(" - ")?;
    let mut left = left.split(' ').skip(3);
    let (root, point) = (left.next()?, left.next()?);
    let mut right = right.split(' ');
    let (kind, _source, options) = (right.next()?, right.next()?, right.next()?);
    if kind != "cgroup" && kind != "cgroup2" {
        return None;
    }
    Some(Mount {
        root: unescape(root),
        point: PathBuf::from(unescape(point)),
        kind: kind.to_owned(),
        options: options.to_owned(),
    })
}

/// mountinfo writes blanks and backslashes as octal.
fn unescape(text: &str) -> String {
    text.replace("\\040", " ")
        .replace("\\011", "\t")
        .replace("\\134", "\\")
}

/// This process's path in the hierarchy that `matches` picks (its controllers, its number).
fn place(places: &str, matches: impl Fn(&str, &str) -> bool) -> Option<&str> {
    places.lines().find_map(|line| {
        let (number, rest) = line.split_once(':')?;
        let (names, path) = rest.split_once(':')?;
        matches(names, number).then_some(path)
    })
}

fn home(mount: &Mount, own: Option<&str>, chosen: Option<&str>) -> Option<Home> {
    let inside = match chosen {
        Some(path) => path.trim_matches('/'),
        None => {
            let own = own?;
            // Outside of what is mounted here: this process cannot name its own place.
            let below = own.strip_prefix(mount.root.trim_end_matches('/'))?;
            below.trim_matches('/')
        }
    };
    if inside.split('/').any(|part| part == "..") {
        return None;
    }
    let base = if inside.is_empty() {
        mount.point.clone()
    } else {
        mount.point.join(inside)
    };
    Some(Home {
        mount: mount.point.clone(),
        base,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const HYBRID: &str = "\
30 24 0:26 / /sys/fs/cgroup ro,nosuid - tmpfs tmpfs ro,mode=755
31 30 0:27 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw,nsdelegate
32 30 0:28 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct
33 30 0:29 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory
34 30 0:30 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,xattr,name=systemd
";
    const PLACES: &str = "\
4:memory:/pod/one
3:cpu,cpuacct:/
2:name=systemd:/user
0::/user
";

    #[test]
    fn a_hybrid_host_is_told_apart_by_controller_and_each_has_its_own_place() {
        let found = Hierarchies::parse(HYBRID, PLACES, None);

        let v2 = found.v2.expect("a cgroup2 mount is there");
        assert_eq!(v2.base, Path::new("/sys/fs/cgroup/unified/user"));
        assert_eq!(found.v1.len(), 3, "cpu, cpuacct, memory: {:?}", found.v1);
        assert_eq!(
            found.v1[&Controller::Cpu].base,
            Path::new("/sys/fs/cgroup/cpu,cpuacct")
        );
        assert_eq!(
            found.v1[&Controller::Memory].base,
            Path::new("/sys/fs/cgroup/memory/pod/one")
        );
    }

    #[test]
    fn a_chosen_root_is_the_same_path_in_every_hierarchy() {
        let found = Hierarchies::parse(HYBRID, PLACES, Some("/mete.slice/"));

        assert_eq!(
            found.v1[&Controller::Memory].base,
            Path::new("/sys/fs/cgroup/memory/mete.slice")
        );
        let v2 = found.v2.expect("a cgroup2 mount is there");
        assert_eq!(v2.base, Path::new("/sys/fs/cgroup/unified/mete.slice"));
    }

    #[test]
    fn a_container_that_sees_only_its_own_subtree_works_below_it() {
        let mounts = "31 30 0:27 /docker/ab /sys/fs/cgroup rw - cgroup2 cgroup rw\n";

        let inside = Hierarchies::parse(mounts, "0::/docker/ab/init\n", None);
        let outside = Hierarchies::parse(mounts, "0::/../other\n", None);
        let climbing = Hierarchies::parse(mounts, "0::/\n", Some("a/../../b"));

        assert_eq!(
            inside.v2.expect("below its own root").base,
            Path::new("/sys/fs/cgroup/init")
        );
        assert_eq!(
            outside.v2, None,
            "a place outside of the mount cannot be named"
        );
        assert_eq!(climbing.v2, None, "a chosen root may not climb out");
    }

    #[test]
    fn lines_without_meaning_are_passed_over() {
        let found = Hierarchies::parse("\nnonsense\n1 2 - cgroup2\n", "zero\n", None);

        assert_eq!(found, Hierarchies::default());
    }
}
