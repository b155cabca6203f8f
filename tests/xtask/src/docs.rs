//! `cargo xtask docs`: every link of the documentation leads somewhere, every reason code has
//! its page, every decision record keeps its form, and every invariant of `docs/architecture.md`
//! names a test that exists.
//!
//! Links to other sites are not followed: that needs a network and judges somebody else.

use crate::tidy::{Finding, reasons};
use crate::tree::{SourceFile, Tree};

const INVARIANTS: &str = "docs/architecture.md";
const RECORDS: &str = "docs/decisions/";
const RECORD_INDEX: &str = "docs/decisions/README.md";
const RECORD_PARTS: [&str; 4] = [
    "## Context",
    "## Options",
    "## Decision",
    "## How we would notice that it was wrong",
];

/// All checks of the documentation.
pub(crate) fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = reasons::check(tree);
    let pages = tree
        .with_ending(".md")
        .filter(|file| file.path.starts_with("docs/") || !file.path.contains('/'));
    for page in pages {
        for (line, target) in links(&page.text) {
            if let Some(said) = judge(tree, page, &target) {
                findings.push(Finding::at("links", &page.path, line, said));
            }
        }
    }
    records(tree, &mut findings);
    guards(tree, &mut findings);
    findings
}

/// Every `](target)` outside code, with its line.
fn links(text: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    let mut inside_code = false;
    for (number, line) in text.lines().enumerate() {
        if line.trim_start().starts_with("```") {
            inside_code = !inside_code;
        }
        if inside_code {
            continue;
        }
        let prose: String = line.split('`').step_by(2).collect();
        for rest in prose.split("](").skip(1) {
            let target = rest.split([')', ' ']).next().unwrap_or_default();
            found.push((number + 1, target.to_owned()));
        }
    }
    found
}

fn judge(tree: &Tree, page: &SourceFile, target: &str) -> Option<String> {
    if target.contains("://") || target.starts_with("mailto:") {
        return None;
    }
    let (path, anchor) = target.split_once('#').unwrap_or((target, ""));
    let path = if path.is_empty() {
        page.path.clone()
    } else {
        resolve(&page.path, path)
    };
    let text = tree.text(&path);
    if text.is_none() && !exists(tree, &path) {
        return Some(format!(
            "the link '{target}' leads to {path}, which does not exist"
        ));
    }
    let headed = anchor.is_empty() || text.is_none_or(|text| has_heading(text, anchor));
    (!headed).then(|| format!("the link '{target}': {path} has no heading '{anchor}'"))
}

/// A folder, or a file that is no text.
fn exists(tree: &Tree, path: &str) -> bool {
    let folder = format!("{}/", path.trim_end_matches('/'));
    tree.under(&folder).next().is_some()
        || (!tree.root.as_os_str().is_empty() && tree.root.join(path).exists())
}

/// `docs/a.md` + `../b.md` → `b.md`
fn resolve(page: &str, target: &str) -> String {
    let mut parts: Vec<&str> = page.split('/').collect();
    parts.pop();
    for part in target.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                parts.pop();
            }
            name => parts.push(name),
        }
    }
    parts.join("/")
}

fn has_heading(text: &str, anchor: &str) -> bool {
    text.lines()
        .filter(|line| line.starts_with('#'))
        .any(|line| {
            let title = line.trim_start_matches('#').trim().to_lowercase();
            let slug: String = title
                .chars()
                .filter(|c| c.is_alphanumeric() || " -_".contains(*c))
                .map(|c| if c == ' ' { '-' } else { c })
                .collect();
            slug == anchor
        })
}

fn records(tree: &Tree, findings: &mut Vec<Finding>) {
    let index = tree.text(RECORD_INDEX).unwrap_or_default();
    let mut numbers: Vec<&str> = Vec::new();
    for file in tree
        .under(RECORDS)
        .filter(|file| file.path.ends_with(".md") && file.path != RECORD_INDEX)
    {
        let name = &file.path[RECORDS.len()..];
        if !index.contains(&format!("]({name})")) {
            let said = format!("the record is not listed in {RECORD_INDEX}");
            findings.push(Finding::at("records", &file.path, 0, said));
        }
        let number = name.split('-').next().unwrap_or_default();
        if number.len() != 4 || number.parse::<u16>().is_err() || numbers.contains(&number) {
            let said = "a record is named NNNN-title.md, with a number of its own";
            findings.push(Finding::at("records", &file.path, 0, said));
        }
        numbers.push(number);
        for part in RECORD_PARTS {
            if !file.text.lines().any(|line| line == part) {
                let said = format!("the record has no part '{part}'");
                findings.push(Finding::at("records", &file.path, 0, said));
            }
        }
    }
}

/// Each row of an invariant names what guards it: a golden script, or a test that exists,
/// `| H1 | what | [file](path) `test` |`. Whether a script exists is for the rule about links.
fn guards(tree: &Tree, findings: &mut Vec<Finding>) {
    let Some(page) = tree.files.iter().find(|file| file.path == INVARIANTS) else {
        findings.push(Finding::at("guards", INVARIANTS, 0, "missing"));
        return;
    };
    let mut any = false;
    for (number, line) in page
        .text
        .lines()
        .enumerate()
        .filter(|(_, line)| is_invariant(line))
    {
        any = true;
        if let Some(said) = judge_guards(tree, line) {
            findings.push(Finding::at("guards", INVARIANTS, number + 1, said));
        }
    }
    if !any {
        findings.push(Finding::at(
            "guards",
            INVARIANTS,
            0,
            "there are no numbered invariants",
        ));
    }
}

/// The first cell is a capital letter and a number.
fn is_invariant(line: &str) -> bool {
    let cell = line
        .strip_prefix("| ")
        .and_then(|rest| rest.split_once(" |"));
    let Some((number, _)) = cell else {
        return false;
    };
    number.starts_with(|c: char| c.is_ascii_uppercase())
        && number.len() > 1
        && number[1..].chars().all(|c| c.is_ascii_digit())
}

fn judge_guards(tree: &Tree, line: &str) -> Option<String> {
    let guards: Vec<(String, &str)> = line.split("](").skip(1).filter_map(guard).collect();
    if guards.is_empty() && !line.contains("/tests/scripts/") {
        return Some("names no test: [file](path) `test`".to_owned());
    }
    let missing = guards.iter().find(|(path, test)| {
        let definition = format!("fn {test}(");
        !tree
            .text(path)
            .is_some_and(|text| text.contains(&definition))
    });
    missing.map(|(path, test)| format!("{path} has no test '{test}'"))
}

/// `../path) `test` …` gives path and test.
fn guard(rest: &str) -> Option<(String, &str)> {
    let (target, after) = rest.split_once(") `")?;
    let (test, _) = after.split_once('`')?;
    Some((resolve(INVARIANTS, target), test))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What was said about links and records; the sample trees have no codes and no invariants.
    fn said(samples: &[(&str, &str)]) -> String {
        let all = check(&Tree::of(samples));
        let lines = all.iter().map(|finding| format!("{finding}\n"));
        lines
            .filter(|line| line.contains("[links]") || line.contains("[records]"))
            .collect()
    }

    #[test]
    fn links_to_pages_headings_folders_and_other_sites_pass() {
        let page = "[a](b.md) [b](b.md#two-words) [c](../src) [d](https://x.example) `[e](no.md)`\n\
                    ```\n[f](no.md)\n```\n";
        let samples = [
            ("docs/a.md", page),
            ("docs/b.md", "## Two words\n"),
            ("src/main.rs", ""),
        ];

        assert_eq!(said(&samples), "");
    }

    #[test]
    fn a_link_to_nowhere_is_refused_with_its_line() {
        let samples = [
            ("docs/a.md", "\n[a](gone.md)\n[b](b.md#gone)\n"),
            ("docs/b.md", "# B\n"),
        ];

        let said = said(&samples);

        assert!(
            said.contains("docs/a.md:2: [links]") && said.contains("docs/gone.md"),
            "{said}"
        );
        assert!(
            said.contains("docs/a.md:3: [links]") && said.contains("'gone'"),
            "{said}"
        );
    }

    #[test]
    fn a_record_without_its_parts_or_with_a_taken_number_is_refused() {
        let whole = RECORD_PARTS.join("\n\n");
        let good = ("docs/decisions/0001-a.md", whole.as_str());
        let index = (RECORD_INDEX, "[1](0001-a.md)\n");
        assert_eq!(said(&[good, index]), "");

        let said = said(&[good, index, ("docs/decisions/0001-b.md", "## Context\n")]);

        assert!(
            said.contains("0001-b.md: [records] the record is not listed"),
            "{said}"
        );
        assert!(
            said.contains("0001-b.md: [records] a record is named"),
            "{said}"
        );
        assert!(said.contains("has no part '## Options'"), "{said}");
    }

    #[test]
    fn an_invariant_without_a_test_or_with_one_that_is_gone_is_refused() {
        let table = "| | what | guarded by |\n|---|---|---|\n\
                     | H1 | a | [a](../a.rs) `kept` |\n\
                     | H2 | b | [a](../a.rs) `gone` |\n\
                     | H3 | c | reviews |\n\
                     | H4 | d | [s](../x/tests/scripts/one) |\n";
        let code = "#[test]\nfn kept() {}\n";

        let all = check(&Tree::of(&[
            ("docs/architecture.md", table),
            ("a.rs", code),
        ]));
        let said: String = all.iter().map(|finding| format!("{finding}\n")).collect();

        assert!(!said.contains("architecture.md:3:"), "{said}");
        assert!(
            said.contains("architecture.md:4: [guards] a.rs has no test 'gone'"),
            "{said}"
        );
        assert!(
            said.contains("architecture.md:5: [guards] names no test"),
            "{said}"
        );
    }
}
