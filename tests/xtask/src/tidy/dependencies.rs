//! Every direct dependency has its line in decision record 0006: why it is there.
//!
//! Read from `[workspace.dependencies]` of the root manifest. A line for a package that is no
//! longer used is refused too, and so is a version written anywhere but in that one place.

use super::Finding;
use crate::tree::Tree;

const MANIFEST: &str = "Cargo.toml";
const RECORD: &str = "docs/decisions/0006-dependencies.md";

pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    let (Some(manifest), Some(record)) = (tree.text(MANIFEST), tree.text(RECORD)) else {
        let path = if tree.text(MANIFEST).is_none() {
            MANIFEST
        } else {
            RECORD
        };
        return vec![Finding::at("dependencies", path, 0, "missing")];
    };
    let used = shared(manifest);
    let listed = listed(record);
    for (name, line) in &used {
        if !listed.iter().any(|(other, _)| other == name) {
            let said =
                format!("{name} has no line in {RECORD}: why it, which licence, who keeps it");
            findings.push(Finding::at("dependencies", MANIFEST, *line, said));
        }
    }
    for (name, line) in &listed {
        if !used.iter().any(|(other, _)| other == name) {
            let said = format!("{name} is not among the workspace's dependencies any more");
            findings.push(Finding::at("dependencies", RECORD, *line, said));
        }
    }
    for file in tree
        .files
        .iter()
        .filter(|f| f.path.ends_with("/Cargo.toml"))
    {
        versions_of_their_own(&file.path, &file.text, &mut findings);
    }
    findings
}

/// Names under `[workspace.dependencies]` that are not ours.
fn shared(manifest: &str) -> Vec<(String, usize)> {
    let mut inside = false;
    let mut names = Vec::new();
    for (number, line) in manifest.lines().enumerate() {
        if line.starts_with('[') {
            inside = line.trim() == "[workspace.dependencies]";
        } else if inside && let Some((name, _)) = line.split_once('=') {
            let name = name.trim();
            if !name.starts_with("mete-") && !name.starts_with('#') {
                names.push((name.to_owned(), number + 1));
            }
        }
    }
    names
}

/// Names in the first column of the record's tables, written as code.
fn listed(record: &str) -> Vec<(String, usize)> {
    let first_column = |line: &str| {
        let cell = line.strip_prefix("| `")?;
        Some(cell.split('`').next().unwrap_or_default().to_owned())
    };
    let lines = record.lines().enumerate();
    lines
        .filter_map(|(number, line)| Some((first_column(line)?, number + 1)))
        .collect()
}

fn versions_of_their_own(path: &str, text: &str, findings: &mut Vec<Finding>) {
    let mut inside = false;
    for (number, line) in text.lines().enumerate() {
        if line.starts_with('[') {
            inside = line.contains("dependencies");
        } else if inside
            && line.contains('=')
            && !line.contains("workspace = true")
            && !line.contains(".workspace")
            && !line.trim_start().starts_with('#')
        {
            let said =
                "a dependency takes its version from the workspace: name = { workspace = true }";
            findings.push(Finding::at("dependencies", path, number + 1, said));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::said;
    use super::*;

    const ROOT: &str = "[workspace.dependencies]\nmete-model = { path = \"x\" }\n\
                        prost = \"0.14\"\n\n[profile.dev]\ndebug = 1\n";
    const LISTED: &str = "# 0006\n\n| crate | why |\n|---|---|\n| `prost` | wire |\n";

    #[test]
    fn a_dependency_with_its_reason_passes() {
        let member = "[dependencies]\nprost.workspace = true\nuuid = { workspace = true }\n";
        let samples = [
            (MANIFEST, ROOT),
            (RECORD, LISTED),
            ("agent/Cargo.toml", member),
        ];

        assert_eq!(said(check, &samples), "");
    }

    #[test]
    fn a_dependency_without_a_reason_and_a_reason_without_one_are_refused() {
        let record = LISTED.replace("prost", "nom");
        let said = said(check, &[(MANIFEST, ROOT), (RECORD, &record)]);

        assert!(
            said.contains("Cargo.toml:3: [dependencies] prost has no line"),
            "{said}"
        );
        assert!(said.contains("nom is not among"), "{said}");
    }

    #[test]
    fn a_version_in_a_members_manifest_and_a_missing_record_are_refused() {
        let member = "[dependencies]\nprost = \"0.13\"\n";
        let samples = [
            (MANIFEST, ROOT),
            (RECORD, LISTED),
            ("agent/Cargo.toml", member),
        ];

        assert!(said(check, &samples).contains("agent/Cargo.toml:2: [dependencies]"));
        assert!(said(check, &[(MANIFEST, ROOT)]).contains("0006-dependencies.md"));
    }
}
