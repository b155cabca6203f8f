//! Wrong usage, in the shape of every other error.

use std::ffi::OsString;

use clap::CommandFactory;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use mete_model::Code;

use super::error::{CliError, Outcome};
use super::print::out;
use crate::args::Cli;

/// Commands that are planned and not there yet.
const LATER: [&str; 8] = [
    "kube", "simulate", "ticket", "ui", "history", "drain", "undrain", "topo",
];

/// Makes an error of what the parser says; help and version are printed and are none.
///
/// # Errors
/// `USAGE`, or `UNSUPPORTED` for commands that come later.
#[expect(
    clippy::wildcard_enum_match_arm,
    reason = "the parser's list of kinds may grow; what is not named is said in its own words"
)]
pub fn from_clap(error: &clap::Error, arguments: &[OsString]) -> Outcome {
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => out(&error.render().to_string()),
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand | ErrorKind::MissingSubcommand => {
            let shown = error.render().to_string();
            let usage = shown.lines().find(|line| line.starts_with("Usage:"));
            let mut refused = CliError::new(Code::Usage, "a command is missing");
            refused = refused.fact(usage.unwrap_or("Usage: mete <COMMAND>"));
            Err(with_help(refused, arguments))
        }
        _ => Err(refused(error, arguments)),
    }
}

#[expect(
    clippy::wildcard_enum_match_arm,
    reason = "the parser's list of kinds may grow; what is not named is said in its own words"
)]
fn refused(error: &clap::Error, arguments: &[OsString]) -> CliError {
    let shown = error.render().to_string();
    let text = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => text.clone(),
        Some(ContextValue::Strings(texts)) => texts.join(", "),
        _ => String::new(),
    };
    let unknown = text(ContextKind::InvalidSubcommand);
    let near = [
        ContextKind::SuggestedArg,
        ContextKind::SuggestedSubcommand,
        ContextKind::SuggestedValue,
    ]
    .into_iter()
    .map(text)
    .find(|near| !near.is_empty())
    .or_else(|| below(&unknown));
    if LATER.contains(&unknown.as_str()) {
        let sentence = format!("'{unknown}' comes in a later release");
        return CliError::new(Code::Unsupported, sentence).next("mete help", "see what there is");
    }
    let argument = text(ContextKind::InvalidArg);
    let sentence = match error.kind() {
        ErrorKind::UnknownArgument if argument.starts_with('-') => {
            format!("unknown flag '{argument}'")
        }
        ErrorKind::UnknownArgument => format!("'{argument}' is one word too many"),
        ErrorKind::InvalidSubcommand => format!("unknown command '{unknown}'"),
        ErrorKind::MissingRequiredArgument => format!("missing: {argument}"),
        _ => first_sentence(&shown),
    };
    let sentence = match near {
        Some(near) => format!("{sentence}; did you mean '{near}'?"),
        None => sentence,
    };
    let mut refused = CliError::new(Code::Usage, sentence);
    if let Some(ContextValue::Strings(valid)) = error.get(ContextKind::ValidValue)
        && !valid.is_empty()
    {
        refused = refused.fact(format!("possible: {}", valid.join(", ")));
    }
    let of_jobs =
        shown.contains("mete run") || shown.contains("mete submit") || shown.contains("mete batch");
    if error.kind() == ErrorKind::UnknownArgument && of_jobs {
        refused =
            refused.fact("a command with its own flags goes after `--`: mete run -- echo -n hello");
    }
    if let Some(usage) = shown.lines().find(|line| line.starts_with("Usage:")) {
        refused = refused.fact(usage);
    }
    with_help(refused, arguments)
}

/// Points at the help of the command that was typed, as far as there is one.
fn with_help(error: CliError, arguments: &[OsString]) -> CliError {
    let mut root = Cli::command();
    root.build();
    let (mut at, mut typed) = (&root, String::from("mete"));
    for word in arguments.iter().skip(1).filter_map(|word| word.to_str()) {
        match at.find_subcommand(word) {
            Some(found) => {
                at = found;
                typed = format!("{typed} {word}");
            }
            None if word == "--" => break,
            None => {}
        }
    }
    error.next(format!("{typed} --help"), "all flags")
}

/// A command of the second level with this name: `wait` is `batch wait`.
fn below(word: &str) -> Option<String> {
    let root = Cli::command();
    let found = root
        .get_subcommands()
        .find(|family| family.find_subcommand(word).is_some())?;
    Some(format!("{} {word}", found.get_name()))
}

/// The parser's sentence, without what it prints around it.
fn first_sentence(shown: &str) -> String {
    let lines = shown.lines().take_while(|line| {
        !line.starts_with("Usage:") && !line.starts_with("For more") && !line.contains("tip:")
    });
    let text: Vec<&str> = lines
        .map(str::trim)
        .filter(|line| !line.is_empty())
        .collect();
    text.join(" ").trim_start_matches("error: ").to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(line: &str) -> CliError {
        let words: Vec<OsString> = line.split_whitespace().map(OsString::from).collect();
        let error = Cli::read(&words).expect_err("refused");
        from_clap(&error, &words).expect_err("an error")
    }

    #[test]
    fn an_unknown_flag_is_named_with_the_nearest_one() {
        let error = said("mete node list --stats ready");
        assert_eq!(&*error.code, "USAGE");
        assert_eq!(error.exit, 2);
        assert!(
            error.sentence.contains("unknown flag '--stats'"),
            "{}",
            error.sentence
        );
        assert!(
            error.sentence.contains("did you mean '--state'"),
            "{}",
            error.sentence
        );
        assert_eq!(error.next[0].0, "mete node list --help");
    }

    #[test]
    fn an_unknown_command_is_named_with_the_nearest_one() {
        let error = said("mete node lsit");
        assert!(
            error.sentence.contains("unknown command 'lsit'"),
            "{}",
            error.sentence
        );
        assert!(
            error.sentence.contains("did you mean 'list'"),
            "{}",
            error.sentence
        );
    }

    #[test]
    fn a_verb_without_its_noun_is_told_the_noun() {
        let error = said("mete wait sleep-1");
        assert!(
            error.sentence.contains("did you mean 'batch wait'"),
            "{}",
            error.sentence
        );
    }

    #[test]
    fn a_planned_command_says_that_it_comes_later() {
        assert_eq!(&*said("mete kube").code, "UNSUPPORTED");
    }

    #[test]
    fn a_bad_value_says_what_is_permitted() {
        let error = said("mete run --cpus many -- true");
        assert!(
            error.sentence.contains("such as 2, 0.5 or 500m"),
            "{}",
            error.sentence
        );
        assert_eq!(error.next[0].0, "mete run --help");
        let error = said("mete why jub x");
        assert!(
            error.sentence.contains("did you mean 'job'"),
            "{}",
            error.sentence
        );
    }

    #[test]
    fn a_command_without_the_two_dashes_is_told_about_them() {
        let error = said("mete run echo hello");
        assert!(error.facts[0].contains("`--`"), "{error}");
    }

    #[test]
    fn nothing_at_all_is_told_how_to_begin() {
        let error = said("mete node");
        assert_eq!(error.sentence, "a command is missing");
        assert_eq!(error.exit, 2);
    }
}
