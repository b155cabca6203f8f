//! `mete help`: pages of the reason codes, and help of commands.

use clap::CommandFactory;
use mete_model::Code;
use serde_json::json;

use super::support::error::{CliError, Outcome};
use super::support::print::{Listing, Row, Style, nearest, out};
use super::support::schema;
use crate::args::Cli;

macro_rules! pages {
    ($($code:literal,)*) => {
        /// Code and page of each reason.
        const PAGES: &[(&str, &str)] =
            &[$(($code, include_str!(concat!("../../docs/errors/", $code, ".md"))),)*];
    };
}

pages![
    "ADDRESS_IN_USE",
    "AGENT_GONE",
    "AGENT_UNAVAILABLE",
    "AGENT_WIPED",
    "ALREADY_EXISTS",
    "ALREADY_TERMINAL",
    "AMBIGUOUS",
    "BUNDLE_SPLIT",
    "BUSY",
    "CALL_GAP",
    "CHECK_FAILED",
    "COMPACTED",
    "CONFLICT",
    "CORES_SHORT",
    "CPU_SHORT",
    "DECLINED",
    "DENIED",
    "DEVICE_GONE",
    "DEVICE_SHORT",
    "DISK_FULL",
    "DISK_PRESSURE",
    "DISK_SHORT",
    "EXEC_FAILED",
    "EXIT_CODE",
    "EXIT_UNKNOWN",
    "FILE",
    "FRAMEWORK_AWAY",
    "GONE_BY_OPERATOR",
    "INFEASIBLE",
    "INTERNAL",
    "INVALID",
    "IN_USE",
    "KILLED_BY_FRAMEWORK",
    "KILLED_BY_OPERATOR",
    "KILLED_BY_TEARDOWN",
    "LAUNCH_TIMEOUT",
    "MASTER_REMOVED",
    "MEMORY_SHORT",
    "NAMES_TAKEN",
    "NEVER_STARTED",
    "NODE_DECLINED",
    "NODE_OUT_OF_MEMORY",
    "NODE_REBOOTED",
    "NOTHING_WAITS",
    "NOT_ALONE",
    "NOT_DECIDED",
    "NOT_ENOUGH",
    "NOT_FOUND",
    "NOT_LEADER",
    "NOT_LOOPBACK",
    "NOT_OFFERED",
    "NOT_ON_NODE",
    "NOT_READY",
    "NOT_REPLACEABLE",
    "NO_AGENTS",
    "NO_CAPACITY",
    "NO_CONTEXT",
    "NO_DEVICE",
    "NO_LEADER",
    "NO_SHAPE",
    "OFFERED",
    "OFFER_EXPIRED",
    "OFFER_RESCINDED",
    "OK",
    "ORDER",
    "OUT_OF_CONTACT",
    "OUT_OF_MEMORY",
    "PART_TAKEN",
    "PREPARE_FAILED",
    "QUORUM_LOSS",
    "REPLACED",
    "SIGNAL",
    "STALE_DEMAND",
    "STALE_EPOCH",
    "STALE_INCARNATION",
    "STATE_DIRECTORY",
    "STATE_LOCKED",
    "STORE_DAMAGED",
    "STORE_FULL",
    "SUPERVISOR_LOST",
    "TIMED_OUT",
    "TIME_LIMIT",
    "TOO_SMALL",
    "TORN_DOWN",
    "UNKNOWN",
    "UNREACHABLE",
    "UNSUPPORTED",
    "USAGE",
];

/// Prints the help that was asked for.
///
/// # Errors
/// `NOT_FOUND` with the nearest code or command.
pub fn help(topic: &[String], style: &Style) -> Outcome {
    match topic {
        [] => out(&Cli::command().render_long_help().to_string()),
        [word] if word == "codes" => codes().print(style),
        [word] if word == "schema" => out(&schema::document()),
        [word] if word.contains('_') || *word == word.to_uppercase() => page(word),
        words => command(words),
    }
}

/// One line for each code.
fn codes() -> Listing {
    let rows = PAGES.iter().map(|(code, page)| {
        let about = page.lines().skip(1).find(|line| !line.is_empty());
        let about = about.unwrap_or_default().to_owned();
        let facts = json!({ "name": code, "about": about });
        Row::new(*code, vec![(*code).to_owned(), about], facts)
    });
    Listing {
        kind: "CodeList",
        revision: None,
        columns: vec!["CODE", "ABOUT"],
        narrow: 2,
        rows: rows.collect(),
        footer: String::new(),
        warnings: Vec::new(),
    }
}

fn page(word: &str) -> Outcome {
    let code = word.to_uppercase();
    if let Some((_, page)) = PAGES.iter().find(|(known, _)| *known == code) {
        return out(page);
    }
    let known: Vec<&str> = PAGES.iter().map(|(code, _)| *code).collect();
    let near =
        nearest(&code, &known).map_or_else(String::new, |near| format!("; did you mean '{near}'?"));
    Err(CliError::new(
        Code::NotFound,
        format!("no reason is called '{code}'{near}"),
    )
    .next("mete help codes", "all of them"))
}

fn command(words: &[String]) -> Outcome {
    let mut root = Cli::command();
    root.build();
    let mut at = &mut root;
    for word in words {
        let known: Vec<String> = at
            .get_subcommands()
            .map(|command| command.get_name().to_owned())
            .collect();
        match at.find_subcommand_mut(word) {
            Some(found) => at = found,
            None => {
                let known: Vec<&str> = known.iter().map(String::as_str).collect();
                let near = nearest(word, &known)
                    .map_or_else(String::new, |near| format!("; did you mean '{near}'?"));
                let sentence = format!("no command '{}'{near}", words.join(" "));
                return Err(CliError::new(Code::NotFound, sentence)
                    .next("mete help", "all commands")
                    .next("mete help codes", "all reason codes"));
            }
        }
    }
    out(&at.render_long_help().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_has_a_page_and_every_page_a_code() {
        for code in Code::ALL {
            let found = PAGES.iter().any(|(known, _)| *known == code.as_str());
            assert!(found, "{code} has no page in src/cli/help.rs");
        }
        for (known, page) in PAGES {
            assert!(known.parse::<Code>().is_ok(), "{known} is no code");
            assert!(
                page.starts_with(&format!("# {known}\n")),
                "{known}: another code's page"
            );
        }
    }

    #[test]
    fn an_unknown_topic_is_told_the_nearest_one() {
        let error = help(&["NO_CAPACTY".to_owned()], &Style::default()).expect_err("unknown");
        assert!(error.sentence.contains("NO_CAPACITY"), "{error}");
        let error =
            help(&["node".to_owned(), "lst".to_owned()], &Style::default()).expect_err("unknown");
        assert!(error.sentence.contains("did you mean 'list'"), "{error}");
        assert_eq!(error.exit, 3);
    }
}
