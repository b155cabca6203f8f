//! One typed configuration of a real agent, checked once.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use mete_model::text::BadText;
use mete_model::{Device, Span};
use mete_proto::dial::SharedDial;

use crate::discover::Roots;
use crate::discover::part::Part;

/// Everything an agent needs to know before it starts.
#[derive(Clone, Debug)]
pub struct Config {
    /// Where masters may be, `host:port` each, tried in turn.
    pub masters: Vec<String>,
    /// How to reach them.
    pub dial: SharedDial,
    /// Unique among the nodes of a cluster; `None` = the host's name.
    pub node_name: Option<String>,
    /// Checkpoint, task directories and logs. Made when absent.
    pub state_directory: PathBuf,
    /// Records of runs; must not outlive a boot. `None` = below the user's runtime directory.
    pub run_directory: Option<PathBuf>,
    /// What of the machine is this agent's.
    pub part: Part,
    /// Labels of the node.
    pub labels: BTreeMap<String, String>,
    /// Devices that are simply there, beside what plugins will tell.
    pub devices: Vec<Device>,
    /// Where the kernel's files are.
    pub roots: Roots,
    /// A path inside every cgroup hierarchy; `None` = found out.
    pub cgroup_root: Option<String>,
    /// The program that shims are started from, and its first arguments; `None` = this very
    /// program as `mete __shim`.
    pub shim: Option<(PathBuf, Vec<OsString>)>,
    /// Where the node API is reached from outside, `host:port`; empty = there is none.
    pub node_address: String,
    /// Between beacons.
    pub beacon: Duration,
    /// Task directories older than this, of runs that are forgotten, are removed.
    pub keep_tasks: Span,
    /// Memory that is never offered, in bytes; `None` = a sixteenth, at most 1 GiB.
    pub reserved_memory: Option<u64>,
}

/// Checks the name of a node before anything is started under it: the rule of the masters, and that
/// it is the name of one file, for an agent's files bear it.
///
/// # Errors
/// The name and the rule that it broke.
pub fn check_node_name(name: &str) -> Result<(), BadText> {
    mete_model::text::check_node_name(name)?;
    crate::isolate::check_name(name).map_err(|_not_one_file| {
        let rule = "it names files too, so it has no '/' and does not begin with '.'";
        BadText::new("node name", name, rule)
    })
}

impl Config {
    /// The usual settings for masters, a way to reach them, and a state directory.
    #[must_use]
    pub fn new(masters: Vec<String>, dial: SharedDial, state_directory: PathBuf) -> Self {
        Self {
            masters,
            dial,
            node_name: None,
            state_directory,
            run_directory: None,
            part: Part::Whole,
            labels: BTreeMap::new(),
            devices: Vec::new(),
            roots: Roots::default(),
            cgroup_root: None,
            shim: None,
            node_address: String::new(),
            beacon: Duration::from_secs(3),
            keep_tasks: Span::days(7),
            reserved_memory: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_no_master_and_no_file_system_takes_is_refused_with_its_rule() {
        let long = "n".repeat(254);
        for (name, rule) in [
            ("", "1 to 253"),
            ("a b", "white space"),
            ("a\u{7}", "printable"),
            (long.as_str(), "1 to 253"),
            ("a/b", "no '/'"),
            ("..", "begin with '.'"),
        ] {
            let bad = check_node_name(name).expect_err(name).to_string();
            assert!(bad.contains(rule), "{bad}");
        }
        let longest = "n".repeat(253);
        for name in ["n1", "rack-3.node_7", "größe", longest.as_str()] {
            check_node_name(name).expect(name);
        }
    }
}
