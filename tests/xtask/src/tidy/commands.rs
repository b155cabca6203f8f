//! Every `Command` of the replicated state is exercised by a golden script.
//!
//! Scripts lie in `broker/state/tests/scripts/<noun>/<scenario>`. Each of their lines begins with
//! the name of a command, written with hyphens (`admit-agent`); what stands below a `---` is
//! expected output. A command that begins no line of any script is refused.

use super::{Finding, code};
use crate::tree::Tree;
use std::collections::BTreeSet;

const COMMANDS: &str = "broker/state/src/command.rs";
const SCRIPTS: &str = "broker/state/tests/scripts/";

pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let Some(text) = tree.text(COMMANDS) else {
        return vec![Finding::at(
            "scripts",
            COMMANDS,
            0,
            "missing: the commands live here",
        )];
    };
    let variants = code::variants(text, "Command");
    if variants.is_empty() {
        return vec![Finding::at(
            "scripts",
            COMMANDS,
            0,
            "no variants of enum Command found",
        )];
    }
    let written = first_words(tree);
    if written.is_empty() {
        return vec![Finding::at(
            "scripts",
            SCRIPTS,
            0,
            "missing: there are no golden scripts",
        )];
    }
    let mut findings = Vec::new();
    for variant in &variants {
        let word = code::snake_case(variant).replace('_', "-");
        if !written.contains(&word) {
            let said = format!("no golden script says '{word}' (Command::{variant})");
            findings.push(Finding::at("scripts", COMMANDS, 0, said));
        }
    }
    findings
}

/// The first word of every line of every script that is no comment and no expected output.
fn first_words(tree: &Tree) -> BTreeSet<String> {
    let mut words = BTreeSet::new();
    for file in tree.under(SCRIPTS) {
        let mut expected = false;
        for line in file.text.lines() {
            match line.trim() {
                "---" => expected = true,
                "" => expected = false,
                input if !expected => words.extend(command_of(input)),
                _ => {}
            }
        }
    }
    words
}

/// Without the marks of the script language: `(quiet)`, `> literal`, `! fails`, `[tag] …`.
fn command_of(input: &str) -> Option<String> {
    let bare = input.trim_start_matches(['(', '>', '!', ' ']);
    let bare = bare
        .strip_prefix('[')
        .and_then(|rest| rest.split_once("] "))
        .map_or(bare, |t| t.1);
    let word = bare.split_whitespace().next()?.trim_end_matches(')');
    Some(word.to_owned())
}

#[cfg(test)]
mod tests {
    use super::super::said;
    use super::*;

    const ENUM: &str = "\
pub enum Command {
    AdmitAgent(AdmitAgent),
    Kill {
        x: u8,
    },
    Tick,
}
";
    const SCRIPT: &str = "broker/state/tests/scripts/task/one";

    fn said_of(script: &str) -> String {
        said(check, &[(COMMANDS, ENUM), (SCRIPT, script)])
    }

    #[test]
    fn commands_that_scripts_say_pass() {
        assert_eq!(
            said_of("# a\n(admit-agent a1)\nkill t1\n---\nok\n\n!tick\n---\nerr\n"),
            ""
        );
        assert_eq!(
            said_of("[one] admit-agent a1\n(tick)\n> kill t1\n---\nok\n"),
            ""
        );
    }

    #[test]
    fn a_command_that_stands_only_in_expected_output_is_refused() {
        let said = said_of("admit-agent a1\n---\nkill t1\n\ntick\n---\n");

        assert!(said.contains("'kill' (Command::Kill)"), "{said}");
        assert_eq!(said.lines().count(), 1, "{said}");
    }

    #[test]
    fn missing_commands_and_missing_scripts_are_refused() {
        assert!(said(check, &[]).contains("missing: the commands live here"));
        assert!(said(check, &[(COMMANDS, "//! none\n")]).contains("no variants"));
        assert!(said(check, &[(COMMANDS, ENUM)]).contains("no golden scripts"));
    }
}
