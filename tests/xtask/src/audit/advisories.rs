//! Known advisories against the versions in the lock file.
//!
//! The database is the public one of the Rust community: folders `crates/PACKAGE` with one Markdown
//! file for each advisory, whose first block of TOML says which versions are patched and which were
//! never affected. It is fetched anew at every audit; where it cannot be reached, the copy of the
//! last time is used and its age said, and where there is none that is said loudly.
//! `METE_ADVISORIES` names a copy to use instead.

use super::version::{Version, lies_in};
use crate::tidy::Finding;
use crate::toml_subset;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Where the database lives.
const SOURCE: &str = "https://github.com/RustSec/advisory-db";
/// Names a copy that is used as it is.
const CHOSEN: &str = "METE_ADVISORIES";
/// A copy older than this is no answer any more: seven days.
const STALE_SECONDS: u64 = 7 * 86_400;

/// A copy of the database, and what is to be said of it.
#[derive(Debug)]
pub(super) enum Database {
    /// Here; the text says from when it is.
    There { path: PathBuf, said: String },
    /// Nowhere: why.
    Missing(String),
}

/// The chosen copy, else a fresh one, else the one from the last time.
pub(super) fn find(root: &Path) -> Database {
    if let Some(chosen) = std::env::var_os(CHOSEN) {
        let path = PathBuf::from(chosen);
        return if path.join("crates").is_dir() {
            let said = format!("advisories checked, from {}", path.display());
            Database::There { path, said }
        } else {
            Database::Missing(format!("{CHOSEN}={} has no folder crates", path.display()))
        };
    }
    let path = root.join("target").join("advisories");
    match fetch(&path) {
        Ok(()) => Database::There {
            path,
            said: "advisories checked, fetched just now".to_owned(),
        },
        Err(why) => match age(&path) {
            Some(seconds) if seconds < STALE_SECONDS => Database::There {
                path,
                said: format!(
                    "advisories checked with a copy that is {} hours old ({why})",
                    seconds / 3600
                ),
            },
            Some(seconds) => {
                Database::Missing(format!("the copy is {} days old ({why})", seconds / 86_400))
            }
            None => Database::Missing(why),
        },
    }
}

/// Fetches the newest state beside the old copy and puts it in its place.
fn fetch(path: &Path) -> Result<(), String> {
    let fresh = path.with_extension("new");
    let _none_there = fs::remove_dir_all(&fresh);
    let mut git = Command::new("git");
    // A server that is silent for a quarter of a minute is not there; no password is asked for.
    git.args([
        "-c",
        "http.lowSpeedLimit=1000",
        "-c",
        "http.lowSpeedTime=15",
    ])
    .args(["clone", "--quiet", "--depth", "1", SOURCE])
    .arg(&fresh)
    .env("GIT_TERMINAL_PROMPT", "0")
    .stdin(Stdio::null());
    let output = git.output().map_err(|e| format!("start git: {e}"))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        let last = said.trim().lines().last().unwrap_or_default().to_owned();
        return Err(format!("the database cannot be reached: {last}"));
    }
    if !fresh.join("crates").is_dir() {
        return Err("what was fetched has no folder crates".to_owned());
    }
    let _none_there = fs::remove_dir_all(path);
    fs::rename(&fresh, path).map_err(|e| format!("put {} in place: {e}", path.display()))
}

fn age(path: &Path) -> Option<u64> {
    let changed = fs::metadata(path.join("crates")).ok()?.modified().ok()?;
    Some(changed.elapsed().unwrap_or_default().as_secs())
}

/// One advisory, as far as it is needed.
#[derive(Debug, PartialEq, Eq)]
struct Advisory {
    id: String,
    /// "unmaintained", "unsound", "notice"; empty for a vulnerability.
    informational: String,
    title: String,
    withdrawn: bool,
    /// Patched or never affected.
    safe: Vec<String>,
}

/// Every package that an advisory concerns, and every exception that concerns nothing.
///
/// `packages` are names and versions, `excepted` the ids that may stand.
pub(super) fn judge(database: &Path, packages: &[(&str, &str)], excepted: &[&str]) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut used: BTreeMap<&str, bool> = excepted.iter().map(|id| (*id, false)).collect();
    for (name, version) in packages {
        let at = |said: String| Finding::at("advisories", "Cargo.lock", 0, said);
        for file in files(&database.join("crates").join(name)) {
            let advisory = match read(&file) {
                Ok(advisory) => advisory,
                Err(error) => {
                    // Not read is not checked, and this one is about a package of ours.
                    findings.push(at(format!("{}: {error}", file.display())));
                    continue;
                }
            };
            let affected = match affects(&advisory, version) {
                Ok(affected) => affected,
                Err(error) => {
                    findings.push(at(format!("{} for {name} {version}: {error}", advisory.id)));
                    continue;
                }
            };
            if !affected || advisory.withdrawn {
                continue;
            }
            if let Some(excepted) = used.get_mut(advisory.id.as_str()) {
                *excepted = true;
                continue;
            }
            let kind = match advisory.informational.as_str() {
                "" => "vulnerable",
                other => other,
            };
            findings.push(at(format!(
                "{name} {version} is {kind}: {} {}; safe: {}",
                advisory.id,
                advisory.title,
                if advisory.safe.is_empty() {
                    "no version".to_owned()
                } else {
                    advisory.safe.join(" or ")
                }
            )));
        }
    }
    for (id, _) in used.iter().filter(|(_, used)| !**used) {
        let said =
            format!("{id} is excepted and concerns no version in the lock file: take it out");
        findings.push(Finding::at("exceptions", super::LISTS, 0, said));
    }
    findings
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> = fs::read_dir(folder)
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "md"))
        .collect();
    files.sort();
    files
}

fn affects(advisory: &Advisory, version: &str) -> Result<bool, String> {
    let read = Version::parse(version).ok_or("its version cannot be read")?;
    for range in &advisory.safe {
        match lies_in(&read, range) {
            Some(true) => return Ok(false),
            Some(false) => {}
            None => return Err(format!("the range '{range}' cannot be read")),
        }
    }
    Ok(true)
}

fn read(path: &Path) -> Result<Advisory, String> {
    let text = fs::read_to_string(path).map_err(|e| e.to_string())?;
    parse(&text)
}

/// The block of TOML at the head, and the title below it.
fn parse(text: &str) -> Result<Advisory, String> {
    let (_, rest) = text
        .split_once("```toml")
        .ok_or("it has no block of TOML")?;
    let (head, body) = rest
        .split_once("\n```")
        .ok_or("its block of TOML has no end")?;
    let toml = toml_subset::parse(&without_functions(head))?;
    let about = &toml["advisory"];
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let id = text(&about["id"]);
    if id.is_empty() {
        return Err("it has no id".to_owned());
    }
    let mut safe = Vec::new();
    for list in ["patched", "unaffected"] {
        let ranges = toml["versions"][list].as_array();
        safe.extend(ranges.into_iter().flatten().map(text));
    }
    let title = body.lines().find_map(|line| line.strip_prefix("# "));
    Ok(Advisory {
        id,
        informational: text(&about["informational"]),
        title: title.unwrap_or_default().trim().to_owned(),
        withdrawn: !about["withdrawn"].is_null(),
        safe,
    })
}

/// Which functions are affected does not matter here, and their names are no plain keys.
fn without_functions(head: &str) -> String {
    let mut inside = false;
    let kept = head.lines().filter(|line| {
        let line = line.trim();
        if line.starts_with('[') && line.ends_with(']') && !line.contains('"') {
            inside = line == "[affected.functions]";
        }
        !inside && !line.starts_with("functions =") && !line.starts_with("functions=")
    });
    kept.map(|line| format!("{line}\n")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn database() -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/advisories")
    }

    fn said(packages: &[(&str, &str)], excepted: &[&str]) -> String {
        let findings = judge(&database(), packages, excepted);
        findings.iter().map(|f| format!("{f}\n")).collect()
    }

    #[test]
    fn an_affected_version_is_named_with_what_is_safe_and_a_patched_one_passes() {
        let bad = said(&[("leaky", "1.2.9")], &[]);
        assert!(
            bad.contains("leaky 1.2.9 is vulnerable: RUSTSEC-2020-0001 Reads past the end"),
            "{bad}"
        );
        assert!(bad.contains("safe: >= 1.3.0 or ~1.1.4 or < 1.0"), "{bad}");
        assert_eq!(said(&[("leaky", "1.3.0"), ("unknown", "1.0.0")], &[]), "");
        assert_eq!(said(&[("leaky", "0.9.9"), ("leaky", "1.1.5")], &[]), "");
    }

    #[test]
    fn what_nobody_maintains_any_more_is_named_and_what_was_withdrawn_is_not() {
        let abandoned = said(&[("abandoned", "3.0.0")], &[]);
        assert!(
            abandoned.contains("abandoned 3.0.0 is unmaintained"),
            "{abandoned}"
        );
        assert!(abandoned.contains("safe: no version"), "{abandoned}");
        assert_eq!(said(&[("cleared", "1.0.0")], &[]), "");
    }

    #[test]
    fn an_exception_covers_its_advisory_and_one_that_concerns_nothing_is_refused() {
        let packages = [("abandoned", "3.0.0")];
        assert_eq!(said(&packages, &["RUSTSEC-2021-0002"]), "");
        let stale = said(&packages, &["RUSTSEC-2021-0002", "RUSTSEC-2020-0001"]);
        assert!(
            stale.contains("RUSTSEC-2020-0001 is excepted and concerns no version"),
            "{stale}"
        );
    }

    #[test]
    fn an_advisory_of_ours_that_cannot_be_read_is_a_finding() {
        let broken = said(&[("broken", "1.0.0")], &[]);
        assert!(broken.contains("RUSTSEC-2022-0004.md: line"), "{broken}");
    }
}
