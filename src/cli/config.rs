//! `mete config`: what the command line goes by, and where that was said.

use std::path::Path;

use mete_model::Code;
use serde_json::json;
use toml::de::{DeTable, DeValue};

use super::support::context::{self, ClientConfig, bad_toml, config_path};
use super::support::error::{CliError, Outcome, exit};
use super::support::print::{Listing, Row, Style, nearest, note, out, print_one};
use crate::args::Globals;
use crate::args::objects::Config as Command;

/// Does what was asked.
///
/// # Errors
/// `USAGE` with file and line for a file with a mistake, `FILE` for one that cannot be read.
pub fn run(globals: &Globals, command: Command) -> Outcome {
    match command {
        Command::Default => out(DEFAULT),
        Command::Show { origin } => show(globals, origin),
        Command::Validate { file } => {
            validate(&file.unwrap_or_else(config_path), &Style::of(globals))
        }
    }
}

/// Every key that the file may have, with what stands when it is left out.
const DEFAULT: &str = "\
# Configuration of the command line of mete: which clusters there are, and which one is meant.
# A flag goes before the environment, the environment before this file.
# Kept by `mete context set|use|rm`; held against its form by `mete config validate`.

# The cluster that is meant when neither --context nor --master (METE_CONTEXT, METE_MASTER) says
# another one. Without it there is none.
# current = \"prod\"

# One table for each cluster, by the name that --context takes.
# [contexts.prod]
# Where its masters are, HOST:PORT each; whichever answers tells who leads.
# masters = [\"m1:7443\", \"m2:7443\", \"m3:7443\"]
";

/// Who said it: a variable of the environment, which the parser gives like the flag, or the flag.
fn flag_or_variable(flag: &str, variable: &str, value: &str) -> String {
    match std::env::var(variable) {
        Ok(set) if set == value => format!("environment, {variable}"),
        Ok(_) | Err(_) => format!("flag, {flag}"),
    }
}

fn show(globals: &Globals, origin: bool) -> Outcome {
    let path = config_path();
    let config = ClientConfig::load(&path)?;
    let file = path.display().to_string();
    let named = globals.context.clone().or_else(|| config.current.clone());
    let masters = context::masters(&globals.masters, globals.context.as_deref());
    let spoken = globals.masters.join(",");
    let masters_from = match &masters {
        Err(_) => "not set".to_owned(),
        Ok(masters) if *masters == globals.masters => {
            flag_or_variable("--master", "METE_MASTER", &spoken)
        }
        Ok(_) => {
            let name = named.as_deref().unwrap_or_default();
            format!("file, contexts.{name}.masters in {file}")
        }
    };
    let context_from = match (&globals.context, &named) {
        (Some(name), _) => flag_or_variable("--context", "METE_CONTEXT", name),
        (None, Some(_)) => format!("file, current in {file}"),
        (None, None) => "not set".to_owned(),
    };
    let timeout = globals
        .timeout
        .map_or("30s".to_owned(), |timeout| timeout.to_string());
    let timeout_from = if globals.timeout.is_some() {
        "flag, --timeout"
    } else {
        "default"
    };
    let chosen_by = ["METE_CONFIG", "XDG_CONFIG_HOME", "HOME"]
        .into_iter()
        .find(|variable| std::env::var_os(variable).is_some());
    let there = if path.exists() { "there" } else { "missing" };
    let file_from = format!("environment, {} ({there})", chosen_by.unwrap_or("none"));
    let values = [
        ("context", named.unwrap_or_default(), context_from),
        (
            "masters",
            masters.map(|masters| masters.join(",")).unwrap_or_default(),
            masters_from,
        ),
        ("timeout", timeout, timeout_from.to_owned()),
        ("file", file, file_from),
    ];
    let rows = values.into_iter().map(|(name, value, origin)| {
        let facts = json!({ "name": name, "value": value, "origin": origin });
        Row::new(name, vec![name.to_owned(), value, origin], facts)
    });
    let listing = Listing {
        kind: "ConfigList",
        revision: None,
        columns: vec!["NAME", "VALUE", "ORIGIN"],
        narrow: if origin { 3 } else { 2 },
        rows: rows.collect(),
        footer: String::new(),
        warnings: Vec::new(),
    };
    listing.print(&Style::of(globals))
}

fn validate(path: &Path, style: &Style) -> Outcome {
    let text = match std::fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            let sentence = format!("{} does not exist", path.display());
            let error = CliError::new(Code::File, sentence).exit(exit::USAGE);
            return Err(error.next("mete config default", "see what one looks like"));
        }
        Err(error) => return Err(CliError::file("read", path, &error)),
    };
    let document = DeTable::parse(&text).map_err(|error| bad_toml(path, &text, &error))?;
    let mut reader = Reader {
        text: &text,
        wrong: Vec::new(),
        contexts: Vec::new(),
    };
    reader.file(document.get_ref());
    let (wrong, contexts) = (reader.wrong, reader.contexts);
    let shown = path.display().to_string();
    if wrong.is_empty() {
        let count = contexts.len();
        let noun = if count == 1 { "context" } else { "contexts" };
        let item = json!({ "name": shown, "contexts": count });
        let text = format!("{shown} is valid, {count} {noun}");
        return print_one(style, "ConfigValid", None, item, &text);
    }
    let noun = if wrong.len() == 1 {
        "mistake"
    } else {
        "mistakes"
    };
    let mut sentence = format!("{shown} has {} {noun}", wrong.len());
    if let [only] = wrong.as_slice() {
        sentence = format!("{shown}, {only}");
    } else if wrong.len() > MOST_SHOWN {
        sentence = format!("{sentence}; the first {MOST_SHOWN} of them");
    }
    let mut error = CliError::new(Code::Usage, sentence);
    if wrong.len() > 1 {
        // A list of mistakes, however long, is what was asked for: -o json has them all.
        for one in wrong.iter().take(MOST_SHOWN) {
            note(&format!("{shown}, {one}"));
        }
        error.facts = wrong;
    }
    Err(error)
}

/// Mistakes that are said to people at the most; programs get all.
const MOST_SHOWN: usize = 20;

/// Reads a whole file and goes on after each mistake.
struct Reader<'a> {
    text: &'a str,
    /// Each with its line.
    wrong: Vec<String>,
    contexts: Vec<String>,
}

impl Reader<'_> {
    fn say(&mut self, at: usize, what: impl std::fmt::Display) {
        let before = self.text.get(..at).unwrap_or_default();
        let line = before.matches('\n').count().saturating_add(1);
        self.wrong.push(format!("line {line}: {what}"));
    }

    fn unknown(&mut self, at: usize, key: &str, known: &[&str]) {
        let near = nearest(key, known)
            .map_or_else(String::new, |near| format!("; did you mean '{near}'?"));
        let known = known.join(", ");
        self.say(at, format!("unknown key '{key}'{near} (known: {known})"));
    }

    fn file(&mut self, table: &DeTable<'_>) {
        let mut current = None;
        for (key, value) in table {
            let at = key.span().start;
            match (key.get_ref().as_ref(), value.get_ref()) {
                ("current", DeValue::String(name)) => {
                    current = Some((value.span().start, name.to_string()));
                }
                ("current", _) => self.say(at, "current is the name of a context, a text"),
                ("contexts", DeValue::Table(contexts)) => self.contexts(contexts),
                ("contexts", _) => self.say(at, "contexts is a table: [contexts.NAME]"),
                (other, _) => self.unknown(at, other, &["current", "contexts"]),
            }
        }
        if let Some((at, name)) = current
            && !self.contexts.contains(&name)
        {
            self.say(at, format!("current = '{name}': there is no such context"));
        }
    }

    fn contexts(&mut self, table: &DeTable<'_>) {
        for (name, value) in table {
            let at = name.span().start;
            self.contexts.push(name.get_ref().to_string());
            let DeValue::Table(context) = value.get_ref() else {
                self.say(at, "a context is a table: [contexts.NAME]");
                continue;
            };
            let mut masters = false;
            for (key, value) in context {
                if key.get_ref() == "masters" {
                    masters = true;
                    self.masters(key.span().start, value.get_ref());
                } else {
                    self.unknown(key.span().start, key.get_ref(), &["masters"]);
                }
            }
            if !masters {
                self.say(at, format!("contexts.{} has no masters", name.get_ref()));
            }
        }
    }

    fn masters(&mut self, at: usize, value: &DeValue<'_>) {
        let DeValue::Array(masters) = value else {
            return self.say(at, "masters is a list of HOST:PORT");
        };
        if masters.is_empty() {
            self.say(at, "masters is empty: a cluster has one at least");
        }
        for master in masters {
            let fault = match master.get_ref().as_str() {
                Some(text) => crate::args::values::host_port(text)
                    .err()
                    .map(|fault| format!("master '{text}': {fault}")),
                None => Some("a master is a text HOST:PORT".to_owned()),
            };
            if let Some(fault) = fault {
                self.say(master.span().start, fault);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_mistake_of_a_file_is_named_at_once_with_its_line() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("config.toml");
        let text = "current = \"x\"\nspeed = 3\n[contexts.a]\nmasters = []\n\
                    [contexts.b]\nmasters = [\n  \"nope\",\n  7,\n]\nmaster = 1\n[contexts.c]\n";
        std::fs::write(&path, text).expect("written");
        let error = validate(&path, &Style::default()).expect_err("wrong");
        let mut lines: Vec<&str> = error
            .facts
            .iter()
            .filter_map(|fact| fact.split_once(':').map(|(line, _)| line))
            .collect();
        lines.sort_unstable();
        assert_eq!(
            lines,
            [
                "line 1", "line 10", "line 11", "line 2", "line 4", "line 7", "line 8"
            ],
            "{:?}",
            error.facts
        );
        assert_eq!(error.exit, 2);
    }

    #[test]
    fn the_default_file_is_valid_as_it_is_and_with_every_key_taken_in() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("config.toml");
        std::fs::write(&path, DEFAULT).expect("written");
        validate(&path, &Style::default()).expect("valid");
        // What is commented out and has the form of a key or a table.
        let taken: Vec<&str> = DEFAULT
            .lines()
            .map(|line| match line.strip_prefix("# ") {
                Some(key) if key.starts_with('[') || key.contains(" = ") => key,
                Some(_) | None => line,
            })
            .collect();
        std::fs::write(&path, taken.join("\n")).expect("written");
        validate(&path, &Style::default()).expect("valid");
        let config = ClientConfig::load(&path).expect("read");
        assert_eq!(config.current.as_deref(), Some("prod"));
    }
}
