//! `mete config`: what the command line goes by, and where that was said.

use std::path::Path;

use mete_model::Code;
use serde_json::json;

use super::support::context::{self, ClientConfig, config_path};
use super::support::error::{CliError, Outcome};
use super::support::print::{Listing, Row, Style, note};
use crate::args::Globals;
use crate::args::objects::Config as Command;

/// Does what was asked.
///
/// # Errors
/// `USAGE` with file and line for a file with a mistake, `FILE` for one that cannot be read.
pub fn run(globals: &Globals, command: Command) -> Outcome {
    match command {
        Command::Show { origin } => show(globals, origin),
        Command::Validate { file } => validate(&file.unwrap_or_else(config_path)),
    }
}

fn show(globals: &Globals, origin: bool) -> Outcome {
    let path = config_path();
    let config = ClientConfig::load(&path)?;
    let file = path.display().to_string();
    let named = globals.context.clone().or_else(|| config.current.clone());
    // A flag goes before the environment; the parser gives either.
    let said = |variable: &str, flag: &str| {
        if std::env::var_os(variable).is_some() {
            format!("{flag} or {variable}")
        } else {
            flag.to_owned()
        }
    };
    let masters = context::masters(&globals.masters, globals.context.as_deref());
    let masters_from = if globals.masters.is_empty() {
        format!("context of {file}")
    } else {
        said("METE_MASTER", "--master")
    };
    let context_from = match (&globals.context, &named) {
        (Some(_), _) => said("METE_CONTEXT", "--context"),
        (None, Some(_)) => format!("current in {file}"),
        (None, None) => "not set".to_owned(),
    };
    let timeout = globals
        .timeout
        .map_or("30s".to_owned(), |timeout| timeout.to_string());
    let timeout_from = if globals.timeout.is_some() {
        "--timeout"
    } else {
        "default"
    };
    let values = [
        ("context", named.unwrap_or_default(), context_from),
        (
            "masters",
            masters.map(|masters| masters.join(",")).unwrap_or_default(),
            masters_from,
        ),
        ("timeout", timeout, timeout_from.to_owned()),
        (
            "file",
            file,
            if path.exists() { "there" } else { "missing" }.to_owned(),
        ),
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

fn validate(path: &Path) -> Outcome {
    if !path.exists() {
        let sentence = format!("{} does not exist", path.display());
        return Err(CliError::new(Code::File, sentence).exit(super::support::error::exit::USAGE));
    }
    let config = ClientConfig::load(path)?;
    let mut wrong = Vec::new();
    for (name, context) in &config.contexts {
        if context.masters.is_empty() {
            wrong.push(format!("contexts.{name}.masters is empty"));
        }
        for master in &context.masters {
            if let Err(fault) = crate::args::values::host_port(master) {
                wrong.push(format!("contexts.{name}.masters: '{master}': {fault}"));
            }
        }
    }
    if let Some(current) = &config.current
        && !config.contexts.contains_key(current)
    {
        wrong.push(format!("current = '{current}': there is no such context"));
    }
    match wrong.len() {
        0 => {
            note(&format!(
                "{} is valid, {} contexts",
                path.display(),
                config.contexts.len()
            ));
            Ok(())
        }
        count => {
            let noun = if count == 1 { "mistake" } else { "mistakes" };
            let sentence = format!("{} has {count} {noun}", path.display());
            let mut error = CliError::new(Code::Usage, sentence);
            error.facts = wrong;
            Err(error)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_mistake_of_a_file_is_named_at_once() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("config.toml");
        let text =
            "current = \"x\"\n[contexts.a]\nmasters = []\n[contexts.b]\nmasters = [\"nope\"]\n";
        std::fs::write(&path, text).expect("written");
        let error = validate(&path).expect_err("wrong");
        assert_eq!(error.facts.len(), 3, "{error}");
        assert_eq!(error.exit, 2);
    }
}
