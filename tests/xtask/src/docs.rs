//! `cargo xtask docs`: every link of the documentation leads somewhere, every reason code has
//! its page, and every decision record keeps its form.
//!
//! Links to other sites are not followed: that needs a network and judges somebody else.

use crate::tidy::{Finding, reasons};
use crate::tree::{SourceFile, Tree};

const RECORDS: &str = "docs/decisions/";
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
    let mut numbers: Vec<&str> = Vec::new();
    for file in tree
        .under(RECORDS)
        .filter(|file| file.path.ends_with(".md"))
    {
        let name = &file.path[RECORDS.len()..];
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

#[cfg(test)]
mod tests {
    use super::*;

    fn said(samples: &[(&str, &str)]) -> String {
        let all = check(&Tree::of(samples));
        let ours = all
            .iter()
            .map(Finding::to_string)
            .filter(|line| !line.contains("[reasons]"));
        ours.map(|line| line + "\n").collect()
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
        assert_eq!(said(&[good]), "");

        let said = said(&[good, ("docs/decisions/0001-b.md", "## Context\n")]);

        assert!(
            said.contains("0001-b.md: [records] a record is named"),
            "{said}"
        );
        assert!(said.contains("has no part '## Options'"), "{said}");
    }
}
