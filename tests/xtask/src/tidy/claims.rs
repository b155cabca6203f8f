//! A test is a claim: its name is a sentence, it can fail, and it runs.
//!
//! Refused: names that begin with `test`, names of one word, a bare `#[ignore]`, and an assertion
//! of what is always true.

use super::{Finding, code};
use crate::tree::{SourceFile, Tree};

const TEST: [&str; 2] = ["#[test]", "#[tokio::test"];
/// Written apart, so that this file passes its own rule.
const SLEEPS: &str = concat!("#[ign", "ore]");
const EMPTY: [&str; 2] = [
    concat!("assert!(", "true"),
    concat!("assert_eq!(", "true, true"),
];

pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in tree.rust() {
        look(file, &mut findings);
    }
    findings
}

fn look(file: &SourceFile, findings: &mut Vec<Finding>) {
    let mut expects_name = false;
    for (number, line) in file.text.lines().enumerate() {
        let code = code::without_strings(line);
        let trimmed = code.trim();
        let mut refuse = |said: String| {
            findings.push(Finding::at("claims", &file.path, number + 1, said));
        };
        if trimmed == SLEEPS {
            refuse("a test that does not run says why: #[ignore = \"…\"]".to_owned());
        }
        if EMPTY.iter().any(|empty| trimmed.starts_with(empty)) {
            refuse("this assertion cannot fail".to_owned());
        }
        expects_name |= TEST.iter().any(|mark| trimmed.starts_with(mark));
        if let Some(name) = name(trimmed).filter(|_| expects_name) {
            expects_name = false;
            if name.starts_with("test") || !name.contains('_') {
                refuse(format!("'{name}' is no claim: name the test as a sentence"));
            }
        }
    }
}

fn name(line: &str) -> Option<&str> {
    let rest = line
        .strip_prefix("async ")
        .unwrap_or(line)
        .strip_prefix("fn ")?;
    rest.split(['(', '<']).next()
}

#[cfg(test)]
mod tests {
    use super::super::said;
    use super::*;

    #[test]
    fn a_sentence_passes_and_so_does_code_that_is_no_test() {
        let text = "#[test]\nfn a_core_is_granted_once() {\n    assert!(x);\n}\nfn test_bed() {}\n\
                    #[test]\n#[ignore = \"needs an hour\"]\nfn it_holds_for_an_hour() {}\n";

        assert_eq!(said(check, &[("a.rs", text)]), "");
    }

    #[test]
    fn a_name_that_claims_nothing_is_refused() {
        for name in ["test_quota_2", "works"] {
            let text = format!("#[tokio::test(start_paused = true)]\nasync fn {name}() {{}}\n");
            let said = said(check, &[("a.rs", &text)]);
            assert!(
                said.contains(&format!("a.rs:2: [claims] '{name}'")),
                "{said}"
            );
        }
    }

    #[test]
    fn a_test_that_sleeps_or_cannot_fail_is_refused() {
        assert!(said(check, &[("a.rs", SLEEPS)]).contains("says why"));
        for empty in EMPTY {
            assert!(
                said(check, &[("a.rs", empty)]).contains("cannot fail"),
                "{empty}"
            );
        }
    }
}
