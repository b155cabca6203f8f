//! Every `lib.rs`, `mod.rs` and `main.rs` opens with its story, the packages take the
//! workspace's lints, and the pure crates deny unchecked and floating-point arithmetic.

use super::Finding;
use crate::tree::Tree;

const PURE: [&str; 3] = [
    "proto/model/src/lib.rs",
    "broker/state/src/lib.rs",
    "broker/allocator/src/lib.rs",
];
const ARITHMETIC: [&str; 2] = [
    "clippy::arithmetic_side_effects",
    "clippy::float_arithmetic",
];

pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in tree.rust() {
        let name = file.path.rsplit('/').next().unwrap_or_default();
        let tells = ["lib.rs", "mod.rs", "main.rs"].contains(&name);
        if tells && !file.text.starts_with("//!") {
            let said = "begins without its story: a `//!` that says who calls it, what it \
                        promises and what it does not do";
            findings.push(Finding::at("stories", &file.path, 1, said));
        }
    }
    for path in PURE {
        let text = tree.text(path).unwrap_or_default();
        for lint in ARITHMETIC.iter().filter(|lint| !denies(text, lint)) {
            let said = format!("a pure crate says #![deny({lint})]");
            findings.push(Finding::at("lints", path, 0, said));
        }
    }
    for file in tree
        .files
        .iter()
        .filter(|file| file.path.ends_with("Cargo.toml"))
    {
        if !file.text.contains("[lints]\nworkspace = true") {
            let said = "the package does not take the workspace's lints";
            findings.push(Finding::at("lints", &file.path, 0, said));
        }
    }
    findings
}

fn denies(text: &str, lint: &str) -> bool {
    let squeezed: String = text.split_whitespace().collect();
    squeezed
        .split("#![deny(")
        .skip(1)
        .filter_map(|rest| rest.split(')').next())
        .any(|list| list.split(',').any(|item| item == lint))
}

#[cfg(test)]
mod tests {
    use super::super::said;
    use super::*;

    const STORY: &str = "//! Words.\n#![deny(\n    clippy::arithmetic_side_effects,\n    \
                         clippy::float_arithmetic\n)]\n";

    fn pure(text: &str) -> [(&str, &str); 3] {
        PURE.map(|path| (path, text))
    }

    #[test]
    fn a_told_house_with_its_lints_passes() {
        assert_eq!(said(check, &pure(STORY)), "");
    }

    #[test]
    fn a_module_without_its_story_is_refused() {
        let mut samples = pure(STORY).to_vec();
        samples.push(("agent/src/core/mod.rs", "use std::fmt;\n"));
        samples.push(("agent/src/core/task.rs", "use std::fmt;\n"));

        let said = said(check, &samples);

        assert_eq!(said.lines().count(), 1, "{said}");
        assert!(
            said.contains("agent/src/core/mod.rs:1: [stories]"),
            "{said}"
        );
    }

    #[test]
    fn a_pure_crate_without_its_lints_and_a_manifest_without_ours_are_refused() {
        let pure = said(check, &pure("//! Words.\n"));
        let manifest = [("x/Cargo.toml", "[package]\nname = \"x\"\n")];

        assert_eq!(pure.lines().count(), 6, "{pure}");
        assert!(said(check, &manifest).contains("x/Cargo.toml: [lints]"));
    }
}
