//! The pure crates' own `.clippy.toml` repeats every rule of the root's.
//!
//! Clippy reads the nearest file and merges nothing: a rule that stands in the root only does
//! not hold in a crate that has a file of its own.

use super::Finding;
use crate::toml_subset;
use crate::tree::Tree;
use std::collections::BTreeSet;

const ROOT: &str = ".clippy.toml";
const PURE: [&str; 3] = [
    "proto/model/.clippy.toml",
    "broker/state/.clippy.toml",
    "broker/allocator/.clippy.toml",
];
/// What a pure crate forbids beyond the root's list.
const PURE_ONLY: [&str; 7] = [
    "std::collections::HashMap",
    "std::collections::HashSet",
    "std::time::Instant",
    "std::time::SystemTime",
    "uuid::Uuid::new_v4",
    "std::time::SystemTime::now",
    "std::thread::sleep",
];

pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    let shared = forbidden(tree, ROOT, &mut findings);
    for path in PURE {
        let own = forbidden(tree, path, &mut findings);
        let needed = shared.iter().map(String::as_str).chain(PURE_ONLY);
        for name in needed
            .filter(|name| !own.contains(*name))
            .collect::<BTreeSet<_>>()
        {
            let said = format!("does not forbid {name}; clippy does not merge it from {ROOT}");
            findings.push(Finding::at("clippy", path, 0, said));
        }
    }
    findings
}

fn forbidden(tree: &Tree, path: &str, findings: &mut Vec<Finding>) -> BTreeSet<String> {
    let Some(text) = tree.text(path) else {
        findings.push(Finding::at("clippy", path, 0, "missing"));
        return BTreeSet::new();
    };
    let document = match toml_subset::parse(text) {
        Ok(document) => document,
        Err(error) => {
            findings.push(Finding::at("clippy", path, 0, error));
            return BTreeSet::new();
        }
    };
    let mut names = BTreeSet::new();
    for list in ["disallowed-types", "disallowed-methods"] {
        for entry in document[list]
            .as_array()
            .map(Vec::as_slice)
            .unwrap_or_default()
        {
            let name = entry["path"].as_str().unwrap_or_default();
            if name.is_empty() || entry["reason"].as_str().is_none_or(str::is_empty) {
                let said = format!("an entry of {list} needs path and reason: {entry}");
                findings.push(Finding::at("clippy", path, 0, said));
            }
            names.insert(name.to_owned());
        }
    }
    names
}

#[cfg(test)]
mod tests {
    use super::super::said;
    use super::*;

    fn list(names: &[&str]) -> String {
        let entries: Vec<String> = names
            .iter()
            .map(|name| format!("  {{ path = \"{name}\", reason = \"it is so\" }},\n"))
            .collect();
        format!("disallowed-types = [\n{}]\n", entries.concat())
    }

    #[test]
    fn a_repeated_list_passes_and_a_forgotten_rule_is_refused() {
        let root = list(&["std::sync::Once"]);
        let whole = list(&[&["std::sync::Once"], PURE_ONLY.as_slice()].concat());
        let mut samples = vec![(ROOT, root.as_str())];
        samples.extend(PURE.map(|path| (path, whole.as_str())));
        assert_eq!(said(check, &samples), "");

        let short = list(&PURE_ONLY);
        samples[2].1 = &short;

        let said = said(check, &samples);
        assert_eq!(said.lines().count(), 1, "{said}");
        assert!(said.contains("broker/state/.clippy.toml: [clippy] does not forbid std::sync"));
    }

    #[test]
    fn a_missing_file_and_a_rule_without_reason_are_refused() {
        let bare = "disallowed-types = [{ path = \"x::Y\" }]\n";

        assert!(said(check, &[]).contains(".clippy.toml: [clippy] missing"));
        assert!(said(check, &[(ROOT, bare)]).contains("needs path and reason"));
    }
}
