//! The command line of `cargo xtask`. Pure: words in, a [`Command`] or a sentence out.

/// What is printed for `help` and after a word that is not understood.
pub(crate) const USAGE: &str = "\
usage: cargo xtask <command>

  setup                 install what the tests need, or say what is missing
  ci [--all] [--only STEP]... [--skip STEP]...
                        every check; what this machine cannot run is skipped loudly
                        --all    a skip is a failure
                        steps: fmt tidy docs audit clippy lean tests rustdoc
  tidy                  the rules of the house: floors, names, sizes, words
  docs                  links and pages of the documentation
  audit                 licences, sources and advisory exceptions of the dependencies
  help                  this text

exit code: 0 all well, 1 a check found something, 2 the command could not run";

/// One thing to do.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Command {
    Setup,
    Ci(CiOptions),
    Tidy,
    Docs,
    Audit,
    Help,
}

/// Which steps of `ci` run, and whether a skip is a failure.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct CiOptions {
    pub(crate) skips_fail: bool,
    pub(crate) only: Vec<String>,
    pub(crate) skip: Vec<String>,
}

/// Reads the words after `cargo xtask`.
///
/// # Errors
/// A sentence that names the word and, where there is a list, what could stand there.
pub(crate) fn parse(words: &[String]) -> Result<Command, String> {
    let Some((first, rest)) = words.split_first() else {
        return Err("no command given".to_owned());
    };
    if first == "ci" {
        return parse_ci(rest).map(Command::Ci);
    }
    if let Some(extra) = rest.first() {
        return Err(format!(
            "'{first}' takes no argument, but '{extra}' was given"
        ));
    }
    match first.as_str() {
        "setup" => Ok(Command::Setup),
        "tidy" => Ok(Command::Tidy),
        "docs" => Ok(Command::Docs),
        "audit" => Ok(Command::Audit),
        "help" | "--help" | "-h" => Ok(Command::Help),
        other => Err(format!("there is no command '{other}'")),
    }
}

fn parse_ci(words: &[String]) -> Result<CiOptions, String> {
    let mut options = CiOptions::default();
    let mut rest = words.iter();
    while let Some(word) = rest.next() {
        match word.as_str() {
            "--all" => options.skips_fail = true,
            "--only" => options.only.push(step_after("--only", rest.next())?),
            "--skip" => options.skip.push(step_after("--skip", rest.next())?),
            other => return Err(format!("ci does not know '{other}'")),
        }
    }
    if options.skips_fail && !(options.only.is_empty() && options.skip.is_empty()) {
        return Err("--all runs every step: it cannot stand beside --only or --skip".to_owned());
    }
    Ok(options)
}

fn step_after(option: &str, word: Option<&String>) -> Result<String, String> {
    let names = crate::ci::step_names();
    let Some(word) = word else {
        return Err(format!(
            "{option} needs the name of a step: {}",
            names.join(" ")
        ));
    };
    if names.contains(&word.as_str()) {
        Ok(word.clone())
    } else {
        Err(format!(
            "{option} {word}: no such step; the steps are {}",
            names.join(" ")
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<String> {
        line.split_whitespace().map(str::to_owned).collect()
    }

    #[test]
    fn ci_takes_steps_by_name() {
        let command = parse(&words("ci --only tidy --only fmt")).expect("both steps exist");

        let only = vec!["tidy".to_owned(), "fmt".to_owned()];
        assert_eq!(
            command,
            Command::Ci(CiOptions {
                only,
                ..CiOptions::default()
            })
        );
    }

    #[test]
    fn a_step_that_does_not_exist_is_refused_with_the_list() {
        let error = parse(&words("ci --skip lint")).expect_err("there is no step lint");

        assert!(
            error.contains("lint") && error.contains("clippy"),
            "{error}"
        );
    }

    #[test]
    fn all_together_with_a_choice_of_steps_is_refused() {
        assert!(parse(&words("ci --all --skip tests")).is_err());
    }

    #[test]
    fn the_usage_names_every_step() {
        for name in crate::ci::step_names() {
            assert!(USAGE.contains(&format!(" {name}")), "{name}");
        }
    }

    #[test]
    fn a_stray_word_is_refused() {
        assert!(parse(&words("tidy up")).is_err());
        assert!(parse(&words("clean")).is_err());
        assert!(parse(&[]).is_err());
    }
}
