//! Which cluster is meant: flags, environment, contexts in the configuration file.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use mete_model::Code;
use serde::{Deserialize, Serialize};

use super::error::{CliError, Outcome};
use super::print::nearest;

/// `~/.config/mete/config.toml`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClientConfig {
    /// The context that is used when none is named.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub current: Option<String>,
    /// Clusters by name.
    #[serde(default)]
    pub contexts: BTreeMap<String, Context>,
}

/// One cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Context {
    /// `host:port` of each master.
    pub masters: Vec<String>,
}

/// Where the configuration of this user is.
#[must_use]
pub fn config_path() -> PathBuf {
    let base = std::env::var_os("METE_CONFIG").map(PathBuf::from);
    base.unwrap_or_else(|| {
        let home = std::env::var_os("XDG_CONFIG_HOME")
            .map(PathBuf::from)
            .unwrap_or_else(|| {
                let home = std::env::var_os("HOME").unwrap_or_default();
                Path::new(&home).join(".config")
            });
        home.join("mete/config.toml")
    })
}

impl ClientConfig {
    /// Reads the file; a missing one is an empty configuration.
    ///
    /// # Errors
    /// `USAGE` with file, line and the nearest known key.
    pub fn load(path: &Path) -> Outcome<Self> {
        let text = match std::fs::read_to_string(path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                return Ok(Self::default());
            }
            Err(error) => return Err(CliError::file("read", path, &error)),
        };
        toml::from_str(&text).map_err(|error| bad_toml(path, &text, &error))
    }

    /// Writes the file anew: first beside it, then over it.
    ///
    /// # Errors
    /// `FILE`.
    pub fn save(&self, path: &Path) -> Outcome {
        let text = toml::to_string(self)
            .map_err(|error| CliError::new(Code::Internal, format!("writing TOML: {error}")))?;
        let folder = path.parent().unwrap_or(Path::new("."));
        let fresh = path.with_extension("toml.new");
        std::fs::create_dir_all(folder)
            .and_then(|()| std::fs::write(&fresh, text))
            .and_then(|()| std::fs::rename(&fresh, path))
            .map_err(|error| CliError::file("write", path, &error))
    }
}

/// A TOML file that cannot be read: which line, what is wrong, what was meant.
#[must_use]
pub fn bad_toml(path: &Path, text: &str, error: &toml::de::Error) -> CliError {
    let line = error.span().map(|span| {
        text.get(..span.start)
            .map_or(1, |before| before.matches('\n').count().saturating_add(1))
    });
    let place = line.map_or_else(String::new, |line| format!(", line {line}"));
    let message = error.message().replace('\n', " ");
    let mut sentence = format!("{}{place}: {message}", path.display());
    let at = error.span().map(|span| span.start).unwrap_or_default();
    if let Some(hint) = toml_hint(text, at, &message) {
        sentence = format!("{sentence}; {hint}");
    }
    if let Some(rest) = message.strip_prefix("unknown field `")
        && let Some((given, known)) = rest.split_once('`')
    {
        let known: Vec<&str> = known.split('`').skip(1).step_by(2).collect();
        if let Some(near) = nearest(given, &known) {
            sentence = format!("{sentence}; did you mean '{near}'?");
        }
    }
    CliError::new(Code::Usage, sentence)
}

/// What was probably meant, from the line at fault: slips that the parser's words do not explain.
fn toml_hint(text: &str, at: usize, message: &str) -> Option<String> {
    let before = text
        .get(..at)?
        .rfind('\n')
        .map_or(0, |end| end.saturating_add(1));
    let line = text.get(before..)?.lines().next().unwrap_or_default();
    let value = line.split_once('=').map_or("", |(_, value)| value.trim());
    if line.contains(['“', '”', '„', '‘', '’']) {
        return Some("it has typographic quotes: texts stand in \"…\"".to_owned());
    }
    if message.contains("expected a sequence") && message.contains("string") {
        let bare = value.trim_matches(['"', '\'']);
        let words: Vec<String> = bare
            .split_whitespace()
            .map(|word| format!("{word:?}"))
            .collect();
        let example = words.join(", ");
        return Some(format!(
            "it is a list, one text for each word, such as [{example}]"
        ));
    }
    if message.contains("invalid type: sequence") && message.contains("expected a string") {
        return Some("it is one text in quotes, not a list".to_owned());
    }
    let odd = |quote: char| value.matches(quote).count() % 2 == 1;
    if odd('"') || odd('\'') {
        return Some("a quote is missing at one end of a text".to_owned());
    }
    let bare = value.starts_with(|c: char| c.is_alphabetic() || matches!(c, '/' | '_' | '~'));
    if bare && !matches!(value, "true" | "false") {
        return Some(format!("texts stand in quotes: \"{value}\""));
    }
    None
}

/// The masters that are meant, and where that was said.
///
/// # Errors
/// `NO_CONTEXT` with every place that was looked at.
pub fn masters(flags: &[String], context: Option<&str>) -> Outcome<Vec<String>> {
    // The parser takes METE_MASTER for the flag; a context that is named goes before the variable.
    let variable = std::env::var("METE_MASTER").unwrap_or_default();
    let is_flag = variable.split(',').ne(flags.iter().map(String::as_str));
    if !flags.is_empty() && (is_flag || context.is_none()) {
        return Ok(flags.to_vec());
    }
    let path = config_path();
    let config = ClientConfig::load(&path)?;
    let chosen = context
        .map(str::to_owned)
        .or_else(|| config.current.clone());
    let Some(chosen) = chosen else {
        let seen = if path.exists() {
            "names no current context"
        } else {
            "missing"
        };
        return Err(CliError::new(Code::NoContext, "no cluster configured")
            .fact(format!(
                "looked at --master (unset), METE_MASTER (unset), {} ({seen})",
                path.display()
            ))
            .next("mete dev", "local cluster")
            .next(
                "mete context set prod --master m1:7443",
                "one that runs already",
            ));
    };
    match config.contexts.get(&chosen) {
        Some(context) if !context.masters.is_empty() => Ok(context.masters.clone()),
        _ => {
            let known: Vec<&str> = config.contexts.keys().map(String::as_str).collect();
            let near = nearest(&chosen, &known)
                .map_or_else(String::new, |near| format!("; did you mean '{near}'?"));
            Err(
                CliError::new(Code::NoContext, format!("no context '{chosen}'{near}"))
                    .fact(format!("{} has {}", path.display(), known.join(", ")))
                    .next(
                        format!("mete context set {chosen} --master HOST:PORT"),
                        "make it",
                    ),
            )
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_key_is_named_with_its_line_and_the_nearest_one() {
        let text = "current = \"dev\"\n[contexts.dev]\nmaster = [\"a:1\"]\n";
        let error = toml::from_str::<ClientConfig>(text).expect_err("unknown key");
        let shown = bad_toml(Path::new("c.toml"), text, &error).sentence;
        assert!(shown.contains("c.toml, line 3"), "{shown}");
        assert!(shown.contains("did you mean 'masters'"), "{shown}");
    }

    #[test]
    fn a_saved_configuration_reads_the_same() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("deep/config.toml");
        let mut config = ClientConfig {
            current: Some("dev".to_owned()),
            ..Default::default()
        };
        let context = Context {
            masters: vec!["127.0.0.1:7443".to_owned()],
        };
        config.contexts.insert("dev".to_owned(), context.clone());
        config.save(&path).expect("saved");
        let read = ClientConfig::load(&path).expect("read");
        assert_eq!(read.contexts.get("dev"), Some(&context));
    }
}
