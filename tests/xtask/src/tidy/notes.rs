//! Notes to ourselves need an issue, and nothing of one machine stands in the repository.
//!
//! A note for later is written `TODO(#12)`. Paths of a developer's machine and host names of
//! package registries are refused in every text: a mirror would not be used, a path not exist.

use super::Finding;
use crate::tree::{SourceFile, Tree};

/// Written apart, so that this file passes its own rule.
const MARKS: [&str; 3] = [
    concat!("TO", "DO"),
    concat!("FIX", "ME"),
    concat!("X", "XX"),
];
const FOLDERS: [&str; 4] = [
    concat!("/wo", "rk/"),
    concat!("/fa", "rm/"),
    concat!("/ro", "ot/."),
    concat!("/tmp/", "brief"),
];
const REGISTRIES: [&str; 7] = [
    concat!("crates", ".io"),
    concat!("registry.npmjs", ".org"),
    concat!("pypi", ".org"),
    concat!("proxy.golang", ".org"),
    concat!("deb.debian", ".org"),
    concat!("rubygems", ".org"),
    concat!("registry-1.docker", ".io"),
];

pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in &tree.files {
        for (number, line) in file.text.lines().enumerate() {
            if let Some(said) = judge(line) {
                findings.push(Finding::at("notes", &file.path, number + 1, said));
            }
        }
        merge_mark(file, &mut findings);
    }
    findings
}

fn judge(line: &str) -> Option<String> {
    if let Some(mark) = MARKS.iter().find(|mark| has_loose_mark(line, mark)) {
        return Some(format!("'{mark}' needs its issue: {mark}(#12)"));
    }
    if let Some(path) = FOLDERS.iter().find(|path| has_path(line, path)) {
        return Some(format!("'{path}' is a path of one machine"));
    }
    let host = REGISTRIES.iter().find(|host| line.contains(*host))?;
    Some(format!(
        "'{host}' is the host of a package registry: let the tool's own setting say it"
    ))
}

/// The mark as a whole word, not quoted as a word, and without `(#number)` behind it.
fn has_loose_mark(line: &str, mark: &str) -> bool {
    line.match_indices(mark).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        let after = &line[at + mark.len()..];
        let inside = |c: char| c.is_alphanumeric() || c == '_' || c == '-' || c == '`' || c == '.';
        let whole = !before.is_some_and(inside) && !after.starts_with(inside);
        let number = after
            .strip_prefix("(#")
            .and_then(|rest| rest.split_once(')'));
        whole
            && !number.is_some_and(|(n, _)| !n.is_empty() && n.chars().all(|c| c.is_ascii_digit()))
    })
}

/// The path from the root, not as the end of a longer one.
fn has_path(line: &str, path: &str) -> bool {
    line.match_indices(path).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        !before.is_some_and(|c| c.is_alphanumeric() || "_.-}>*".contains(c))
    })
}

/// A merge that was not finished.
fn merge_mark(file: &SourceFile, findings: &mut Vec<Finding>) {
    let opening = "<".repeat(7) + " ";
    if let Some(at) = file
        .text
        .lines()
        .position(|line| line.starts_with(&opening))
    {
        findings.push(Finding::at(
            "notes",
            &file.path,
            at + 1,
            "an unfinished merge",
        ));
    }
}

#[cfg(test)]
mod tests {
    use super::super::said;
    use super::*;

    fn said_of(line: &str) -> String {
        said(check, &[("a.rs", line)])
    }

    #[test]
    fn a_note_with_its_issue_and_a_relative_path_pass() {
        for good in [
            format!("// {}(#12): later", MARKS[0]),
            format!("a `{}` needs an issue", MARKS[0]),
            format!("cat ..{}x", FOLDERS[0]),
            "mktemp -p XXXXXX.tmp".to_owned(),
            format!("<state>{}x", FOLDERS[0]),
        ] {
            assert_eq!(said_of(&good), "", "{good}");
        }
    }

    #[test]
    fn a_note_without_an_issue_is_refused() {
        for mark in MARKS {
            assert!(
                said_of(&format!("// {mark}: later")).contains("needs its issue"),
                "{mark}"
            );
            assert!(said_of(&format!("// {mark}(me): later")).contains("needs its issue"));
        }
    }

    #[test]
    fn a_path_of_one_machine_and_a_registry_host_are_refused() {
        for path in FOLDERS {
            assert!(said_of(&format!("read(\"{path}x\")")).contains("a path of one machine"));
        }
        for host in REGISTRIES {
            assert!(
                said_of(&format!("https://{host}/x")).contains("package registry"),
                "{host}"
            );
        }
    }

    #[test]
    fn an_unfinished_merge_is_refused() {
        let mark = "<".repeat(7) + " ours\n";

        assert!(said_of(&mark).contains("an unfinished merge"));
    }
}
