//! Every `Command` of the replicated state is exercised by a golden script.
//!
//! Scripts lie in `broker/state/tests/scripts/<noun>/<scenario>`; each of their lines begins with
//! a word. Which word makes which command is read from the runner beside them: the match arm
//! `"word" =>` above the place that names `Command::Variant`, or the arm that calls the function
//! around it. A command whose words begin no line of any script is refused.

use super::{Finding, code};
use crate::tree::Tree;
use std::collections::BTreeSet;

const COMMANDS: &str = "broker/state/src/command.rs";
const RUNNER: &str = "broker/state/tests/";
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
    let runner: Vec<&str> = tree
        .under(RUNNER)
        .filter(|file| file.path.ends_with(".rs"))
        .flat_map(|file| file.text.lines())
        .collect();
    let mut findings = Vec::new();
    for variant in &variants {
        let words = words_for(&runner, variant);
        if !words.iter().any(|word| written.contains(word)) {
            let words: Vec<&str> = words.iter().map(String::as_str).collect();
            let said = format!(
                "no golden script says '{}' (Command::{variant})",
                words.join("' or '")
            );
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
                input if !expected => {
                    // goldenscript: `> quiet`, `!fails`, `[tag] word` and `name: word`.
                    let bare = input.trim_start_matches(['>', '!', ' ']);
                    let bare = bare
                        .strip_prefix('[')
                        .and_then(|b| b.split_once("] "))
                        .map_or(bare, |b| b.1);
                    words.extend(bare.split_whitespace().next().map(str::to_owned));
                }
                _ => {}
            }
        }
    }
    words
}

/// The words that make `variant`: what the runner says, and its own name with hyphens.
fn words_for(runner: &[&str], variant: &str) -> BTreeSet<String> {
    let mut words = BTreeSet::from([code::snake_case(variant).replace('_', "-")]);
    let naming = format!("Command::{variant}");
    for (at, line) in runner.iter().enumerate() {
        if code::mentions(line, &naming) {
            words.extend(arm_above(runner, at));
        }
    }
    words
}

/// The words of the nearest match arm at or above `at`; inside a function, of its callers.
fn arm_above(runner: &[&str], at: usize) -> Vec<String> {
    for line in runner[..=at].iter().rev() {
        let arm = words_of_arm(line);
        if !arm.is_empty() {
            return arm;
        }
        if let Some(name) = line
            .trim_start()
            .strip_prefix("fn ")
            .or_else(|| line.trim_start().split_once(" fn ").map(|(_, name)| name))
        {
            let call = format!("{}(", name.split(['(', '<']).next().unwrap_or_default());
            let calls = runner.iter().filter(|line| code::mentions(line, &call));
            return calls.flat_map(|line| words_of_arm(line)).collect();
        }
    }
    Vec::new()
}

/// `"kill" | "stop" => …` gives both words.
fn words_of_arm(line: &str) -> Vec<String> {
    let Some((pattern, _)) = line.split_once("=>") else {
        return Vec::new();
    };
    pattern
        .split('"')
        .skip(1)
        .step_by(2)
        .map(str::to_owned)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::super::said;
    use super::*;

    const ENUM: &str = "\
pub enum Command {
    Launch(Launch),
    Kill {
        x: u8,
    },
    Tick,
}
";
    const RUN: &str = r#"
match word {
    "start" => self.launch(args),
    "kill" | "end" => {
        Command::Kill { x: 1 }
    }
    "tick" => Command::Tick,
}
fn launch(&self) {
    apply(Command::Launch(l));
}
"#;
    const SCRIPT: &str = "broker/state/tests/scripts/task/one";

    fn said_of(script: &str) -> String {
        said(
            check,
            &[
                (COMMANDS, ENUM),
                ("broker/state/tests/golden.rs", RUN),
                (SCRIPT, script),
            ],
        )
    }

    #[test]
    fn commands_that_scripts_say_pass() {
        assert_eq!(
            said_of("# a\nstart t1\n---\nok\n\n!end t1\n---\nerr\n\n> tick\n---\n"),
            ""
        );
    }

    #[test]
    fn a_command_that_stands_only_in_expected_output_is_refused() {
        let said = said_of("start t1\n---\nkill t1\n\ntick\n---\n");

        assert!(said.contains("'end' or 'kill' (Command::Kill)"), "{said}");
        assert_eq!(said.lines().count(), 1, "{said}");
    }

    #[test]
    fn missing_commands_and_missing_scripts_are_refused() {
        assert!(said(check, &[]).contains("missing: the commands live here"));
        assert!(said(check, &[(COMMANDS, "//! none\n")]).contains("no variants"));
        assert!(said(check, &[(COMMANDS, ENUM)]).contains("no golden scripts"));
    }
}
