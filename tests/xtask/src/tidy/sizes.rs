//! Sizes: orientation and a ratchet.
//!
//! Lines of code are at most 100 columns. A file above 700 lines or a function above 70 needs
//! an entry with a reason in `tests/xtask/ratchet.toml`; the number listed there may be
//! undercut but not passed, and an entry that is no longer needed has to go. A function is
//! measured from its `fn` line to the brace at the same indent, as rustfmt writes it.

use super::Finding;
use crate::toml_subset;
use crate::tree::{SourceFile, Tree};
use serde_json::Value;

const RATCHET: &str = "tests/xtask/ratchet.toml";
const COLUMNS: usize = 100;
const FILE_LINES: usize = 700;
const FUNCTION_LINES: usize = 70;

/// One exception: `name` is empty for a whole file.
#[derive(Debug)]
struct Entry {
    path: String,
    name: String,
    lines: usize,
}

/// One measured thing above its limit.
#[derive(Debug, PartialEq, Eq)]
struct Long {
    path: String,
    name: String,
    line: usize,
    lines: usize,
}

/// Long lines, and long files and functions against the ratchet.
pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    let entries = match read_ratchet(tree.text(RATCHET)) {
        Ok(entries) => entries,
        Err(error) => {
            findings.push(Finding::at("sizes", RATCHET, 0, error));
            Vec::new()
        }
    };
    let mut long = Vec::new();
    for file in tree.rust() {
        wide_lines(file, &mut findings);
        measure(file, &mut long);
    }
    for thing in &long {
        let entry = entries
            .iter()
            .find(|e| e.path == thing.path && e.name == thing.name);
        if entry.is_none_or(|entry| entry.lines < thing.lines) {
            findings.push(thing.finding(entry));
        }
    }
    for entry in &entries {
        if !long
            .iter()
            .any(|thing| thing.path == entry.path && thing.name == entry.name)
        {
            let said = format!(
                "'{} {}' is not above its limit any more: take the entry out",
                entry.path, entry.name
            );
            findings.push(Finding::at("sizes", RATCHET, 0, said));
        }
    }
    findings
}

impl Long {
    fn finding(&self, entry: Option<&Entry>) -> Finding {
        let Self {
            path,
            name,
            line,
            lines,
        } = self;
        let what = if name.is_empty() {
            "the file".to_owned()
        } else {
            format!("fn {name}")
        };
        let limit = if name.is_empty() {
            FILE_LINES
        } else {
            FUNCTION_LINES
        };
        let said = match entry {
            Some(entry) => format!("{what} grew from {} to {lines} lines", entry.lines),
            None => format!("{what} has {lines} lines, above {limit}"),
        };
        let advice = "shorten it, or list it with a reason in";
        Finding::at("sizes", path, *line, format!("{said}: {advice} {RATCHET}"))
    }
}

fn wide_lines(file: &SourceFile, findings: &mut Vec<Finding>) {
    for (number, line) in file.text.lines().enumerate() {
        let columns = line.chars().count();
        if columns > COLUMNS {
            let said = format!("{columns} columns, above {COLUMNS}");
            findings.push(Finding::at("sizes", &file.path, number + 1, said));
        }
    }
}

fn measure(file: &SourceFile, long: &mut Vec<Long>) {
    let lines: Vec<&str> = file.text.lines().collect();
    let path = &file.path;
    if lines.len() > FILE_LINES {
        long.push(Long {
            path: path.clone(),
            name: String::new(),
            line: 0,
            lines: lines.len(),
        });
    }
    for (at, line) in lines.iter().enumerate() {
        let Some(name) = function_name(line) else {
            continue;
        };
        let indent = &line[..line.len() - line.trim_start().len()];
        let end = lines[at..].iter().position(|line| {
            line.strip_prefix(indent)
                .is_some_and(|rest| rest.starts_with('}'))
                || (line.starts_with(indent)
                    && line.ends_with(';')
                    && function_name(line).is_some())
        });
        let count = end.map_or(0, |end| end + 1);
        if count > FUNCTION_LINES {
            let name = name.to_owned();
            long.push(Long {
                path: path.clone(),
                name,
                line: at + 1,
                lines: count,
            });
        }
    }
}

/// The name, if the line opens a function.
fn function_name(line: &str) -> Option<&str> {
    let mut rest = line.trim_start();
    loop {
        if let Some(after) = rest.strip_prefix("fn ") {
            let end = after.find(|c: char| !(c.is_alphanumeric() || c == '_'))?;
            return Some(&after[..end]);
        }
        let (word, after) = rest.split_once(' ')?;
        let known = word == "pub"
            || word.starts_with("pub(")
            || word.starts_with('"')
            || ["async", "const", "unsafe", "extern", "default"].contains(&word);
        if !known {
            return None;
        }
        rest = after;
    }
}

fn read_ratchet(text: Option<&str>) -> Result<Vec<Entry>, String> {
    let text = text.ok_or("the list of exceptions is missing")?;
    let document = toml_subset::parse(text)?;
    let mut entries = Vec::new();
    for (kind, named) in [("file", false), ("function", true)] {
        for item in document[kind]
            .as_array()
            .map(Vec::as_slice)
            .unwrap_or_default()
        {
            entries.push(read_entry(item, named).ok_or_else(|| {
                format!("a [[{kind}]] needs path, lines and reason, a function its name: {item}")
            })?);
        }
    }
    Ok(entries)
}

fn read_entry(item: &Value, named: bool) -> Option<Entry> {
    let name = item["name"].as_str().unwrap_or_default();
    let reason = item["reason"].as_str()?;
    let lines = usize::try_from(item["lines"].as_u64()?).ok()?;
    let whole = named != name.is_empty() && reason.split_whitespace().count() >= 3;
    whole.then_some(Entry {
        path: item["path"].as_str()?.to_owned(),
        name: name.to_owned(),
        lines,
    })
}

#[cfg(test)]
mod tests {
    use super::super::said;
    use super::*;

    fn function(name: &str, lines: usize) -> String {
        let body = "        work();\n".repeat(lines - 2);
        format!("impl A {{\n    pub(crate) async fn {name}(\n{body}    }}\n}}\n")
    }

    #[test]
    fn what_keeps_the_limits_passes() {
        let text = function("at_the_limit", FUNCTION_LINES);

        assert_eq!(said(check, &[(RATCHET, ""), ("a.rs", &text)]), "");
    }

    #[test]
    fn a_long_line_file_and_function_are_each_refused() {
        let wide = format!("// {}\n", "x".repeat(COLUMNS));
        let file = "//\n".repeat(FILE_LINES + 1);
        let text = function("too_long", FUNCTION_LINES + 1);

        let said = said(
            check,
            &[
                (RATCHET, ""),
                ("w.rs", &wide),
                ("l.rs", &file),
                ("f.rs", &text),
            ],
        );

        assert!(said.contains("w.rs:1: [sizes] 103 columns"), "{said}");
        assert!(
            said.contains("l.rs: [sizes] the file has 701 lines"),
            "{said}"
        );
        assert!(
            said.contains("f.rs:2: [sizes] fn too_long has 71 lines"),
            "{said}"
        );
    }

    #[test]
    fn a_listed_number_may_shrink_but_not_grow() {
        let ratchet = "[[function]]\npath = \"f.rs\"\nname = \"table\"\nlines = 80\n\
                       reason = \"one line per variant\"\n";

        let shrunk = said(
            check,
            &[(RATCHET, ratchet), ("f.rs", &function("table", 75))],
        );
        let grown = said(
            check,
            &[(RATCHET, ratchet), ("f.rs", &function("table", 81))],
        );

        assert_eq!(shrunk, "");
        assert!(grown.contains("grew from 80 to 81 lines"), "{grown}");
    }

    #[test]
    fn an_entry_without_need_or_reason_is_refused() {
        let stale =
            "[[file]]\npath = \"gone.rs\"\nlines = 900\nreason = \"a flat table of codes\"\n";
        let bare = "[[file]]\npath = \"l.rs\"\nlines = 900\n";

        assert!(said(check, &[(RATCHET, stale)]).contains("take the entry out"));
        assert!(said(check, &[(RATCHET, bare)]).contains("needs path, lines and reason"));
        assert!(said(check, &[]).contains("the list of exceptions is missing"));
    }
}
