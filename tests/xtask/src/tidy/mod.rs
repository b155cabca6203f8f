//! `cargo xtask tidy`: the rules of the house that a machine can check.
//!
//! Each rule is a function from the repository to findings, in a file of its own, and its tests
//! show it a bad sample: a rule that cannot refuse anything is no rule. `docs/architecture.md`
//! says why each exists. What may stand in spite of a rule is listed with a reason, in
//! `tests/xtask/ratchet.toml` (sizes) and `tests/xtask/words.toml` (words).

mod claims;
mod clippy_files;
pub(crate) mod code;
mod commands;
mod dependencies;
mod edges;
mod names;
mod notes;
pub(crate) mod reasons;
mod rpcs;
mod sizes;
mod stories;
mod words;

use crate::cargo;
use crate::tree::Tree;
use std::collections::BTreeMap;
use std::fmt;

/// One thing to mend.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Finding {
    rule: &'static str,
    path: String,
    line: usize,
    said: String,
}

impl Finding {
    /// `line` counts from 1; 0 means the whole file.
    pub(crate) fn at(rule: &'static str, path: &str, line: usize, said: impl Into<String>) -> Self {
        Self {
            rule,
            path: path.to_owned(),
            line,
            said: said.into(),
        }
    }
}

/// `3 to mend (names 2, sizes 1)`, or that there is nothing.
pub(crate) fn sum(findings: &[Finding]) -> String {
    if findings.is_empty() {
        return "nothing to mend".to_owned();
    }
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for finding in findings {
        *counts.entry(finding.rule).or_default() += 1;
    }
    let counts: Vec<String> = counts
        .iter()
        .map(|(rule, n)| format!("{rule} {n}"))
        .collect();
    format!("{} to mend ({})", findings.len(), counts.join(", "))
}

impl fmt::Display for Finding {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            rule,
            path,
            line,
            said,
        } = self;
        match line {
            0 => write!(out, "{path}: [{rule}] {said}"),
            line => write!(out, "{path}:{line}: [{rule}] {said}"),
        }
    }
}

/// A rule over the files.
type Rule = fn(&Tree) -> Vec<Finding>;

const RULES: &[Rule] = &[
    claims::check,
    clippy_files::check,
    commands::check,
    dependencies::check,
    names::check,
    notes::check,
    reasons::check,
    rpcs::check,
    sizes::check,
    stories::check,
    words::check,
];

/// Runs every rule.
///
/// # Errors
/// `cargo metadata` could not be read; the files are read already.
pub(crate) fn run(tree: &Tree) -> Result<Vec<Finding>, String> {
    let mut findings = edges::check(&cargo::members(&tree.root)?);
    for rule in RULES {
        findings.extend(rule(tree));
    }
    findings.sort_by(|a, b| (a.rule, &a.path, a.line).cmp(&(b.rule, &b.path, b.line)));
    Ok(findings)
}

/// What a rule said about samples, one line each: the rules' tests compare it.
#[cfg(test)]
fn said(rule: Rule, samples: &[(&str, &str)]) -> String {
    rule(&Tree::of(samples))
        .iter()
        .map(|finding| format!("{finding}\n"))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sum_counts_by_rule() {
        let at = |rule| Finding::at(rule, "a.rs", 1, "so");

        assert_eq!(
            sum(&[at("sizes"), at("names"), at("sizes")]),
            "3 to mend (names 1, sizes 2)"
        );
        assert_eq!(sum(&[]), "nothing to mend");
        assert_eq!(at("sizes").to_string(), "a.rs:1: [sizes] so");
    }
}
