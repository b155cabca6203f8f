//! Wrong usage, in the shape of every other error.

use std::ffi::OsString;

use clap::CommandFactory;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use mete_model::Code;

use super::error::{CliError, Outcome};
use super::print::out;
use crate::args::Cli;

/// Commands that are planned and not there yet, and what there is instead.
const LATER: [(&str, &str, &str); 11] = [
    ("kube", "mete help", "see what there is"),
    ("ticket", "mete help", "see what there is"),
    (
        "ui",
        "mete top",
        "roles, nodes and what waits on one screen",
    ),
    ("history", "mete events", "what happened"),
    ("drain", "mete help", "see what there is"),
    ("undrain", "mete help", "see what there is"),
    ("topo", "mete node show NODE", "what a node has"),
    (
        "quota show",
        "mete quota tree",
        "roles, what they use and wait for",
    ),
    (
        "quota plan",
        "mete quota tree",
        "roles, what they use and wait for",
    ),
    (
        "quota apply",
        "mete quota set ROLE --weight N",
        "change one role",
    ),
    ("quota history", "mete events", "what happened"),
];

/// Commands under the name that other systems give them.
const MEANT: [(&str, &str); 3] = [
    ("quota list", "quota tree"),
    ("quota ls", "quota tree"),
    ("quota get", "quota tree"),
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
    .find(|near| !near.is_empty());
    let family = family(arguments);
    let path = [family.as_str(), unknown.as_str()].join(" ");
    let path = path.trim_start();
    if let Some((_, instead, shows)) = LATER.iter().find(|(planned, ..)| *planned == path) {
        let sentence = format!("'{path}' comes in a later release");
        return CliError::new(Code::Unsupported, sentence).next(*instead, *shows);
    }
    let meant = MEANT.iter().find(|(said, _)| *said == path);
    let near = meant.map(|(_, meant)| (*meant).to_owned()).or(near);
    // What another family has of this name is not what was meant below this one.
    let near = near.or_else(|| family.is_empty().then(|| below(&unknown))?);
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
    if error.kind() == ErrorKind::InvalidSubcommand && !family.is_empty() {
        let known = subcommands(&family).join(", ");
        refused = refused.fact(format!("mete {family} has: {known}"));
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

/// The command that was typed as far as it is known, without `mete`: `quota` of `mete quota lsit`.
fn family(arguments: &[OsString]) -> String {
    let mut root = Cli::command();
    root.build();
    let (mut at, mut typed) = (&root, Vec::new());
    for word in arguments.iter().skip(1).filter_map(|word| word.to_str()) {
        let Some(found) = at.find_subcommand(word) else {
            // Flags and their values may stand before the next word of the command.
            continue;
        };
        at = found;
        typed.push(word);
    }
    typed.join(" ")
}

/// What a family of commands has, in the order of its help.
fn subcommands(family: &str) -> Vec<String> {
    let root = Cli::command();
    let mut at = Some(&root);
    for word in family.split_whitespace() {
        at = at.and_then(|at| at.find_subcommand(word));
    }
    let found = at.into_iter().flat_map(clap::Command::get_subcommands);
    let shown = found.filter(|it| !it.is_hide_set());
    shown.map(|it| it.get_name().to_owned()).collect()
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
        let error = said("mete quota show ml/vision");
        assert_eq!(&*error.code, "UNSUPPORTED");
        assert_eq!(error.next[0].0, "mete quota tree");
    }

    #[test]
    fn a_name_of_other_systems_leads_to_the_command_and_never_into_another_family() {
        let error = said("mete quota list");
        assert!(
            error.sentence.contains("did you mean 'quota tree'"),
            "{error}"
        );
        // There is a `wait` elsewhere; nobody who asks for quotas means it.
        let error = said("mete quota wait");
        assert!(!error.sentence.contains("did you mean"), "{error}");
        assert!(error.facts[0].contains("tree, set, rm"), "{error}");
    }

    #[test]
    fn none_of_something_names_the_flag_and_what_is_permitted() {
        for (line, flag) in [
            ("mete batch submit --throttle 0 -- true", "--throttle"),
            ("mete batch submit --cores 0 -- true", "--cores"),
            ("mete batch submit --cpus 0 -- true", "--cpus"),
            (
                "mete master init --state-dir d --masters a:1 --node 0",
                "--node",
            ),
            (
                "mete agent start --state-dir d --master a:1 --name a/b",
                "--name",
            ),
            (
                "mete master init --state-dir d --cluster 00000000-0000-0000-0000-000000000000",
                "--cluster",
            ),
        ] {
            let error = said(line);
            assert_eq!((&*error.code, error.exit), ("USAGE", 2), "{error}");
            assert!(error.sentence.contains(flag), "{error}");
        }
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
