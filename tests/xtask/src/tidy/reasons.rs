//! Every reason code has its page `docs/errors/<CODE>.md`, and every page its code.
//!
//! The page is what `mete help CODE` prints. Codes are read from `proto/model/src/reason.rs`:
//! each string of capitals, digits and underscores that stands in its code, not in its tests.

use super::{Finding, code};
use crate::tree::Tree;
use std::collections::BTreeMap;

const CODES: &str = "proto/model/src/reason.rs";
const PAGES: &str = "docs/errors/";

pub(crate) fn check(tree: &Tree) -> Vec<Finding> {
    let Some(text) = tree.text(CODES) else {
        return vec![Finding::at(
            "reasons",
            CODES,
            0,
            "missing: the reason codes live here",
        )];
    };
    let codes = codes(text);
    let mut findings = Vec::new();
    if codes.is_empty() {
        let said = "no reason code found: they are strings like \"QUOTA_LIMIT\"";
        findings.push(Finding::at("reasons", CODES, 0, said));
    }
    for (code, line) in &codes {
        let page = format!("{PAGES}{code}.md");
        match tree.text(&page) {
            None => {
                let said = format!("{code} has no page {page}");
                findings.push(Finding::at("reasons", CODES, *line, said));
            }
            Some(page_text) => findings.extend(judge(&page, page_text, code)),
        }
    }
    for file in tree.under(PAGES) {
        let name = file.path[PAGES.len()..].trim_end_matches(".md");
        if is_code(name) && !codes.contains_key(name) {
            findings.push(Finding::at(
                "reasons",
                &file.path,
                0,
                "no code of this name exists",
            ));
        }
    }
    findings
}

/// A page begins with its code as the heading and says something below it.
fn judge(page: &str, text: &str, code: &str) -> Option<Finding> {
    let mut lines = text.lines();
    let heading = lines.next().unwrap_or_default();
    let body: usize = lines.map(|line| line.split_whitespace().count()).sum();
    let titled = heading.starts_with("# ") && code::mentions(heading, code);
    if titled && body >= 10 {
        return None;
    }
    let said = format!("begins with '# {code}' and then says what happened and what to do");
    Some(Finding::at("reasons", page, 1, said))
}

/// Each code with the line where it first stands.
fn codes(text: &str) -> BTreeMap<String, usize> {
    let mut found = BTreeMap::new();
    for (number, line) in code::without_tests(text).lines().enumerate() {
        let (code, _) = code::split_comment(line);
        for literal in code
            .split('"')
            .skip(1)
            .step_by(2)
            .filter(|literal| is_code(literal))
        {
            found.entry(literal.to_owned()).or_insert(number + 1);
        }
    }
    found
}

fn is_code(word: &str) -> bool {
    word.len() >= 3
        && word.starts_with(|c: char| c.is_ascii_uppercase())
        && word
            .chars()
            .all(|c| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_')
}

#[cfg(test)]
mod tests {
    use super::super::said;
    use super::*;

    const SOURCE: &str = "/// \"NOT_THIS\"\nNamesTaken => \"NAMES_TAKEN\", // \"NOR_THIS\"\n\
                          #[cfg(test)]\nmod tests { \"NOT_THAT\" }\n";
    const PAGE: &str = "# NAMES_TAKEN\n\nSomebody else was granted a core that this accept names. \
                        Wait for the next offer.\n";

    #[test]
    fn a_code_with_its_page_passes() {
        let samples = [(CODES, SOURCE), ("docs/errors/NAMES_TAKEN.md", PAGE)];

        assert_eq!(said(check, &samples), "");
    }

    #[test]
    fn a_code_without_page_and_a_page_without_code_are_refused() {
        let said = said(check, &[(CODES, SOURCE), ("docs/errors/OLD_CODE.md", PAGE)]);

        assert!(
            said.contains("reason.rs:2: [reasons] NAMES_TAKEN has no page"),
            "{said}"
        );
        assert!(
            said.contains("OLD_CODE.md: [reasons] no code of this name"),
            "{said}"
        );
    }

    #[test]
    fn an_empty_page_and_a_missing_list_are_refused() {
        let empty = [
            (CODES, SOURCE),
            ("docs/errors/NAMES_TAKEN.md", "# NAMES_TAKEN\n\nlater\n"),
        ];

        assert!(said(check, &empty).contains("says what happened"));
        assert!(said(check, &[]).contains("missing: the reason codes"));
        assert!(said(check, &[(CODES, "//! none\n")]).contains("no reason code found"));
    }
}
