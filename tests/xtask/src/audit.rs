//! `cargo xtask audit`: may we use what we use, and where does it come from?
//!
//! Reads `cargo metadata` and `.deny.toml`: every package's licence must be allowed, every
//! package must come from the one registry, no package may be on the list of banned ones, and no
//! version may have a known advisory that is not excepted with a reason. All but the last needs no
//! network of its own; where the database of advisories cannot be had, the note says so loudly
//! (decision record 0006).

mod advisories;
mod licence;
mod version;

use crate::tidy::Finding;
use crate::{cargo, toml_subset};
use advisories::Database;
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

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
    let note = match advisories::find(root) {
        Database::There { path, said } => {
            findings.extend(known_faults(&path, &metadata, &rules));
            said
        }
        Database::Missing(why) => format!("NEW ADVISORIES NOT CHECKED: {why}"),
    };
    Ok(Audit { findings, note })
}

/// What is known of the packages, without what is excepted.
fn known_faults(database: &Path, metadata: &Value, rules: &Value) -> Vec<Finding> {
    let packages = metadata["packages"].as_array();
    let packages = packages.into_iter().flatten();
    let foreign: Vec<(&str, &str)> = packages
        .filter(|package| !package["source"].is_null())
        .map(|package| (text(&package["name"]), text(&package["version"])))
        .collect();
    let excepted = rules["advisories"]["ignore"].as_array();
    let excepted: Vec<&str> = excepted
        .into_iter()
        .flatten()
        .map(|entry| text(&entry["id"]))
        .collect();
    advisories::judge(database, &foreign, &excepted)
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
    fn a_package_of_the_lock_file_with_an_advisory_is_refused() {
        let database = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/advisories");
        let packages = [
            package("leaky", "MIT", "registry+x"),
            package("old", "MIT", "registry+x"),
        ];
        let metadata = json!({ "packages": packages });

        let findings = known_faults(&database, &metadata, &rules());

        let said: String = findings.iter().map(|f| format!("{f}\n")).collect();
        assert!(
            said.contains("leaky 1.0.0 is vulnerable: RUSTSEC-2020-0001"),
            "{said}"
        );
        assert!(said.contains("R-1 is excepted and concerns no"), "{said}");
    }
}
