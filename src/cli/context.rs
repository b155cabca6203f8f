//! `mete context`: clusters this user knows.

use mete_model::Code;
use serde_json::{Value, json};

use super::support::context::{ClientConfig, Context, config_path};
use super::support::error::{CliError, Outcome};
use super::support::print::{Listing, Row, Style, nearest, print_one};
use crate::args::Globals;
use crate::args::objects::Context as Command;

/// Does what was asked.
///
/// # Errors
/// `NO_CONTEXT` for an unknown one, `FILE` when the configuration cannot be written.
pub fn run(globals: &Globals, command: Command) -> Outcome {
    let path = config_path();
    let mut config = ClientConfig::load(&path)?;
    let style = Style::of(globals);
    let (name, said) = match command {
        Command::List => return listing(&config, None).print(&style),
        Command::Show { name } => {
            let name = name.or_else(|| config.current.clone());
            let name = name.ok_or_else(|| missing(&config, "(current)"))?;
            find(&config, &name)?;
            return listing(&config, Some(&name)).print(&style);
        }
        Command::Use { name } => {
            find(&config, &name)?;
            config.current = Some(name.clone());
            let said = format!("'{name}' is the current context");
            (name, said)
        }
        Command::Set { name } => {
            let said = set(&mut config, globals, name.clone())?;
            (name, said)
        }
        Command::Rm { name } => {
            find(&config, &name)?;
            config.contexts.remove(&name);
            if config.current.as_ref() == Some(&name) {
                config.current = None;
            }
            let said = format!("'{name}' is forgotten");
            (name, said)
        }
    };
    let text = if globals.dry_run {
        format!("dry run, nothing was written: {said}")
    } else {
        config.save(&path)?;
        said
    };
    let Some(row) = listing(&config, Some(&name)).rows.pop() else {
        let item = json!({ "name": name, "dry_run": globals.dry_run });
        return print_one(&style, "ContextRemoved", None, item, &text);
    };
    print_one(&style, "Context", None, Value::Object(row.facts), &text)
}

fn set(config: &mut ClientConfig, globals: &Globals, name: String) -> Outcome<String> {
    if globals.masters.is_empty() {
        return Err(
            CliError::new(Code::Usage, format!("no master was given for '{name}'")).next(
                format!("mete context set {name} --master 127.0.0.1:7443"),
                "say where it is",
            ),
        );
    }
    let said = format!("'{name}' is {}", globals.masters.join(", "));
    config.contexts.insert(
        name.clone(),
        Context {
            masters: globals.masters.clone(),
        },
    );
    if config.current.is_none() {
        config.current = Some(name);
        return Ok(format!("{said}; current, because no other is"));
    }
    Ok(said)
}

fn find<'a>(config: &'a ClientConfig, name: &str) -> Outcome<&'a Context> {
    config
        .contexts
        .get(name)
        .ok_or_else(|| missing(config, name))
}

fn missing(config: &ClientConfig, name: &str) -> CliError {
    let known: Vec<&str> = config.contexts.keys().map(String::as_str).collect();
    let near =
        nearest(name, &known).map_or_else(String::new, |near| format!("; did you mean '{near}'?"));
    let have = if known.is_empty() {
        "none is known".to_owned()
    } else {
        known.join(", ")
    };
    CliError::new(Code::NotFound, format!("no context '{name}'{near}"))
        .fact(format!("known: {have}"))
        .next("mete context set NAME --master HOST:PORT", "make one")
}

fn listing(config: &ClientConfig, only: Option<&str>) -> Listing {
    let rows = config
        .contexts
        .iter()
        .filter(|(name, _)| only.is_none_or(|only| only == *name));
    let rows = rows.map(|(name, context)| {
        let current = config.current.as_ref() == Some(name);
        let mark = if current { "*" } else { "" };
        Row::new(
            name.clone(),
            vec![name.clone(), mark.to_owned(), context.masters.join(",")],
            json!({ "name": name, "current": current, "masters": context.masters }),
        )
    });
    Listing {
        kind: "ContextList",
        revision: None,
        columns: vec!["NAME", "CURRENT", "MASTERS"],
        narrow: 3,
        rows: rows.collect(),
        footer: String::new(),
        warnings: Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_context_becomes_the_current_one_and_later_ones_do_not() {
        let mut config = ClientConfig::default();
        let globals = Globals {
            masters: vec!["m1:7443".to_owned()],
            ..Globals::default()
        };
        set(&mut config, &globals, "prod".to_owned()).expect("set");
        set(&mut config, &globals, "dev".to_owned()).expect("set");
        assert_eq!(config.current.as_deref(), Some("prod"));
        assert_eq!(config.contexts.len(), 2);
    }

    #[test]
    fn a_misspelt_context_is_refused_with_the_nearest_one() {
        let mut config = ClientConfig::default();
        config
            .contexts
            .insert("prod".to_owned(), Context::default());
        let error = find(&config, "prdo").expect_err("unknown");
        assert!(
            error.sentence.contains("did you mean 'prod'"),
            "{}",
            error.sentence
        );
        assert_eq!(error.exit, 3);
    }
}
