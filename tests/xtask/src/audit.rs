//! `cargo xtask audit`: may we use what we use, and where does it come from?
//!
//! Reads `cargo metadata` and `.deny.toml`: every package's licence must be allowed, every
//! package must come from the one registry, no package may be on the list of banned ones, and
//! every advisory that we except must still concern a package of the lock file. Needs no network
//! of its own. New advisories are beyond it: where `cargo-deny` is installed it is asked for
//! them, and the note says loudly when they were not checked (decision record 0006).

mod licence;

use crate::tidy::Finding;
use crate::{cargo, toml_subset};
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Stdio;

const LISTS: &str = ".deny.toml";

/// What the audit found, and what a reader should know about its reach.
#[derive(Debug)]
pub(crate) struct Audit {
    pub(crate) findings: Vec<Finding>,
    pub(crate) note: String,
}

/// Judges every package of a build on this machine.
///
/// # Errors
/// `cargo metadata` or `.deny.toml` could not be read.
pub(crate) fn run(root: &Path) -> Result<Audit, String> {
    let text = fs::read_to_string(root.join(LISTS)).map_err(|e| format!("read {LISTS}: {e}"))?;
    let rules = toml_subset::parse(&text).map_err(|e| format!("{LISTS}: {e}"))?;
    let metadata = cargo::all_packages(root)?;
    let mut findings = judge(&metadata, &rules);
    let advisories = ask_cargo_deny(root);
    let note = match advisories {
        Advisories::Checked => "advisories checked by cargo-deny".to_owned(),
        Advisories::NotChecked(why) => format!("NEW ADVISORIES NOT CHECKED: {why}"),
        Advisories::Found(said) => {
            findings.push(Finding::at("advisories", "Cargo.lock", 0, said));
            "cargo-deny names an advisory".to_owned()
        }
    };
    Ok(Audit { findings, note })
}

/// All offline checks. Pure.
fn judge(metadata: &Value, rules: &Value) -> Vec<Finding> {
    let packages = metadata["packages"]
        .as_array()
        .map(Vec::as_slice)
        .unwrap_or_default();
    let foreign: Vec<&Value> = packages.iter().filter(|p| !p["source"].is_null()).collect();
    let mut findings = Vec::new();
    if foreign.is_empty() {
        findings.push(Finding::at(
            "audit",
            "Cargo.lock",
            0,
            "cargo names no packages at all",
        ));
    }
    let allowed = strings(&rules["licenses"]["allow"], None);
    let banned = strings(&rules["bans"]["deny"], Some("crate"));
    for package in &foreign {
        licence_of(package, &allowed, &mut findings);
        source_of(package, &mut findings);
        if banned.contains(text(&package["name"])) {
            let said = format!("{} is on the list of banned packages", label(package));
            findings.push(Finding::at("bans", "Cargo.lock", 0, said));
        }
    }
    exceptions(&rules["advisories"]["ignore"], &foreign, &mut findings);
    open_requirements(packages, &mut findings);
    findings
}

fn licence_of(package: &Value, allowed: &BTreeSet<&str>, findings: &mut Vec<Finding>) {
    let expression = text(&package["license"]);
    if !licence::allows(expression, allowed) {
        let said = format!(
            "{} has the licence '{expression}', which {LISTS} does not allow",
            label(package)
        );
        findings.push(Finding::at("licences", "Cargo.lock", 0, said));
    }
}

/// One registry for all: no package straight from a version control address.
fn source_of(package: &Value, findings: &mut Vec<Finding>) {
    let source = text(&package["source"]);
    if !source.starts_with("registry+") && !source.starts_with("sparse+") {
        let said = format!(
            "{} comes from {source}, not from a registry",
            label(package)
        );
        findings.push(Finding::at("sources", "Cargo.lock", 0, said));
    }
}

/// An exception names its package first in its reason; once the package is gone, so must it be.
fn exceptions(list: &Value, foreign: &[&Value], findings: &mut Vec<Finding>) {
    for entry in list.as_array().map(Vec::as_slice).unwrap_or_default() {
        let (id, reason) = (text(&entry["id"]), text(&entry["reason"]));
        let package = reason.split([' ', ':', ',']).next().unwrap_or_default();
        let known = foreign.iter().any(|p| text(&p["name"]) == package);
        let said = if id.is_empty() || reason.split_whitespace().count() < 4 {
            "an advisory is excepted without its id or without a reason".to_owned()
        } else if !known {
            format!("{id} is excepted for '{package}', which is not among the packages any more")
        } else {
            continue;
        };
        findings.push(Finding::at("exceptions", LISTS, 0, said));
    }
}

/// `*` as a version takes whatever is newest on the day of the update.
fn open_requirements(packages: &[Value], findings: &mut Vec<Finding>) {
    for package in packages.iter().filter(|p| p["source"].is_null()) {
        for needed in package["dependencies"]
            .as_array()
            .map(Vec::as_slice)
            .unwrap_or_default()
        {
            if text(&needed["req"]) == "*" && needed["path"].is_null() {
                let said = format!(
                    "{} takes any version of {}",
                    text(&package["name"]),
                    text(&needed["name"])
                );
                findings.push(Finding::at("bans", "Cargo.toml", 0, said));
            }
        }
    }
}

enum Advisories {
    Checked,
    NotChecked(String),
    Found(String),
}

fn ask_cargo_deny(root: &Path) -> Advisories {
    let there = cargo::command(root, &["deny", "--version"])
        .stderr(Stdio::null())
        .output()
        .is_ok_and(|output| output.status.success());
    if !there {
        return Advisories::NotChecked("cargo-deny is not installed".to_owned());
    }
    match cargo::command(root, &["deny", "check", "advisories"]).output() {
        Ok(output) => sort_answer(
            output.status.success(),
            &String::from_utf8_lossy(&output.stderr),
        ),
        Err(error) => Advisories::NotChecked(format!("cargo-deny did not start: {error}")),
    }
}

/// An unreachable database is no verdict on our packages; anything else that fails is.
fn sort_answer(success: bool, said: &str) -> Advisories {
    let unreachable =
        said.contains("fetch advisory database") || said.contains("load advisory database");
    match (success, unreachable) {
        (true, _) => Advisories::Checked,
        (false, true) => Advisories::NotChecked("its database cannot be reached".to_owned()),
        (false, false) => Advisories::Found(said.trim().to_owned()),
    }
}

/// The strings of a list; with `key`, of that field of its tables.
fn strings<'a>(list: &'a Value, key: Option<&str>) -> BTreeSet<&'a str> {
    let items = list.as_array().map(Vec::as_slice).unwrap_or_default();
    items
        .iter()
        .map(|item| key.map_or(item, |key| &item[key]))
        .filter_map(Value::as_str)
        .collect()
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

fn label(package: &Value) -> String {
    format!("{} {}", text(&package["name"]), text(&package["version"]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn rules() -> Value {
        json!({
            "licenses": { "allow": ["MIT"] },
            "bans": { "deny": [{ "crate": "openssl-sys", "reason": "no system library" }] },
            "advisories": { "ignore": [{ "id": "R-1", "reason": "old 1.0: not reachable here" }] },
        })
    }

    fn package(name: &str, licence: &str, source: &str) -> Value {
        json!({ "name": name, "version": "1.0.0", "license": licence, "source": source })
    }

    fn said(packages: &[Value]) -> String {
        let findings = judge(&json!({ "packages": packages }), &rules());
        findings.iter().map(|f| format!("{f}\n")).collect()
    }

    #[test]
    fn packages_that_keep_every_rule_pass() {
        assert_eq!(said(&[package("old", "MIT OR GPL-3.0", "registry+x")]), "");
    }

    #[test]
    fn a_licence_a_source_and_a_ban_are_each_refused_by_name() {
        let said = said(&[
            package("old", "MIT", "registry+x"),
            package("viral", "GPL-3.0", "registry+x"),
            package("forked", "MIT", "git+https://example.org/forked"),
            package("openssl-sys", "MIT", "registry+x"),
        ]);

        assert!(
            said.contains("viral 1.0.0 has the licence 'GPL-3.0'"),
            "{said}"
        );
        assert!(said.contains("forked 1.0.0 comes from git+"), "{said}");
        assert!(said.contains("openssl-sys 1.0.0 is on the list"), "{said}");
    }

    #[test]
    fn an_exception_for_a_package_that_is_gone_is_refused() {
        let said = said(&[package("new", "MIT", "registry+x")]);

        assert!(said.contains("R-1 is excepted for 'old'"), "{said}");
    }

    #[test]
    fn a_requirement_for_any_version_is_refused() {
        let mut ours = package("ours", "MIT", "");
        ours["source"] = Value::Null;
        ours["dependencies"] = json!([{ "name": "left-pad", "req": "*" }]);
        let said = said(&[package("old", "MIT", "registry+x"), ours]);

        assert!(
            said.contains("ours takes any version of left-pad"),
            "{said}"
        );
    }

    #[test]
    fn a_failing_cargo_deny_is_a_finding_unless_its_database_is_out_of_reach() {
        let far = sort_answer(false, "error: failed to fetch advisory database");
        let bad = sort_answer(false, "error[vulnerability]: uncontrolled recursion");

        assert!(matches!(far, Advisories::NotChecked(_)));
        assert!(matches!(bad, Advisories::Found(_)));
    }
}
