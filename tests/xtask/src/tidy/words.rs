//! One word for each idea: the words that the project's tables refuse, where they can be grepped.
//!
//! The list is `tests/xtask/words.toml`: the word, what to say instead, where it is refused
//! (`names` in code, `prose` in comments and pages, or `everywhere`), and the paths where it may
//! stand after all, with a reason. Also refused: folders and files without a job, such as `util`.

use super::{Finding, code};
use crate::toml_subset;
use crate::tree::{SourceFile, Tree};
use serde_json::Value;

const LIST: &str = "tests/xtask/words.toml";
/// The checks' own samples of bad input.
const OWN: &str = "tests/xtask/";
const JOBLESS: [&str; 6] = ["util", "utils", "common", "misc", "manager", "helpers"];

struct Word {
    word: String,
    say: String,
    in_names: bool,
    in_prose: bool,
    except: Vec<String>,
}

pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let words = match tree
        .text(LIST)
        .ok_or("the list of words is missing".to_owned())
    {
        Ok(text) => read_list(text),
        Err(error) => Err(error),
    };
    let words = match words {
        Ok(words) => words,
        Err(error) => return vec![Finding::at("words", LIST, 0, error)],
    };
    let mut findings = Vec::new();
    for file in tree.files.iter().filter(|file| !file.path.starts_with(OWN)) {
        jobless_room(file, &mut findings);
        let is_code = file.path.ends_with(".rs") || file.path.ends_with(".proto");
        if is_code || file.path.ends_with(".md") {
            let words: Vec<&Word> = words
                .iter()
                .filter(|word| !word.excepts(&file.path))
                .collect();
            look(file, is_code, &words, &mut findings);
        }
    }
    findings
}

impl Word {
    fn excepts(&self, path: &str) -> bool {
        self.except
            .iter()
            .any(|start| path.starts_with(start.as_str()))
    }
}

fn jobless_room(file: &SourceFile, findings: &mut Vec<Finding>) {
    let part = file
        .path
        .split('/')
        .find(|part| JOBLESS.contains(&part.trim_end_matches(".rs")));
    if let Some(part) = part.filter(|_| file.path.ends_with(".rs")) {
        let said = format!("'{part}' is a room without a job: name it after what it does");
        findings.push(Finding::at("words", &file.path, 0, said));
    }
}

fn look(file: &SourceFile, is_code: bool, words: &[&Word], findings: &mut Vec<Finding>) {
    for (number, line) in file.text.lines().enumerate() {
        let (names, prose) = if is_code {
            code::split_comment(line)
        } else {
            ("", line)
        };
        let names = parts_of(&code::without_strings(names));
        let prose = parts_of(prose);
        for word in words {
            let stands = (word.in_names && names.contains(&word.word))
                || (word.in_prose && prose.contains(&word.word));
            if stands {
                let said = format!("'{}': we say {}", word.word, word.say);
                findings.push(Finding::at("words", &file.path, number + 1, said));
            }
        }
    }
}

/// The lower-case parts of every name and word of a line: `RevokeTask` is `revoke`, `task`.
/// An apostrophe stays inside a word.
fn parts_of(line: &str) -> Vec<String> {
    let mut parts: Vec<String> = Vec::new();
    let mut previous = ' ';
    for character in line.chars() {
        let joins = character.is_alphanumeric() || (character == '\'' && previous.is_alphabetic());
        let begins = !(previous.is_alphanumeric() || previous == '\'')
            || (character.is_uppercase() && previous.is_lowercase());
        if joins {
            match parts.last_mut() {
                Some(part) if !begins => part.extend(character.to_lowercase()),
                _ => parts.push(character.to_lowercase().collect()),
            }
        }
        previous = character;
    }
    parts
}

fn read_list(text: &str) -> Result<Vec<Word>, String> {
    let document = toml_subset::parse(text)?;
    let items = document["word"]
        .as_array()
        .map(Vec::as_slice)
        .unwrap_or_default();
    if items.is_empty() {
        return Err("the list names no [[word]]".to_owned());
    }
    items
        .iter()
        .map(|item| {
            read_word(item).ok_or_else(|| {
                format!(
                    "a [[word]] needs word, say, where (names, prose, everywhere), and with \
                         except a reason: {item}"
                )
            })
        })
        .collect()
}

fn read_word(item: &Value) -> Option<Word> {
    let place = item["where"].as_str()?;
    let except = match item.get("except") {
        None => Vec::new(),
        Some(list) => texts(list)?,
    };
    let explained = except.is_empty() || item["reason"].as_str().is_some_and(|r| !r.is_empty());
    let known = ["names", "prose", "everywhere"].contains(&place);
    (explained && known).then_some(Word {
        word: item["word"].as_str()?.to_lowercase(),
        say: item["say"].as_str()?.to_owned(),
        in_names: place != "prose",
        in_prose: place != "names",
        except,
    })
}

fn texts(list: &Value) -> Option<Vec<String>> {
    list.as_array()?
        .iter()
        .map(|item| item.as_str().map(str::to_owned))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::super::said;
    use super::*;

    const WORDS: &str = "[[word]]\nword = \"slave\"\nsay = \"agent\"\nwhere = \"everywhere\"\n\
                         except = [\"docs/comparison.md\"]\nreason = \"Mesos' own word\"\n\
                         [[word]]\nword = \"acked\"\nsay = \"acknowledged\"\nwhere = \"names\"\n";

    fn said_of(path: &str, text: &str) -> String {
        said(check, &[(LIST, WORDS), (path, text)])
    }

    #[test]
    fn our_own_words_pass() {
        assert_eq!(
            said_of(
                "agent/src/lib.rs",
                "fn agent_of(enslaved: u8) {} // acked\n"
            ),
            ""
        );
        assert_eq!(
            said_of("docs/comparison.md", "Mesos called it a slave.\n"),
            ""
        );
        assert_eq!(said_of("agent/src/lib.rs", "log(\"slave\")\n"), "");
    }

    #[test]
    fn a_refused_word_is_found_inside_names_and_in_prose() {
        for (path, text) in [
            ("a/src/x.rs", "fn find_slave() {}\n"),
            ("a/src/x.rs", "struct SlaveId;\n"),
            ("a/src/x.rs", "// a slave\n"),
            ("a/x.proto", "string slave_id = 1;\n"),
            ("docs/x.md", "each Slave has\n"),
        ] {
            let said = said_of(path, text);
            assert!(
                said.contains(&format!("{path}:1: [words] 'slave': we say agent")),
                "{text}"
            );
        }
        assert!(said_of("a/src/x.rs", "let is_acked = 1;\n").contains("we say acknowledged"));
    }

    #[test]
    fn a_room_without_a_job_is_refused() {
        assert!(said_of("broker/src/util.rs", "").contains("a room without a job"));
        assert!(said_of("broker/src/common/x.rs", "").contains("a room without a job"));
    }

    #[test]
    fn a_list_that_is_missing_or_cannot_be_understood_is_refused() {
        let unexplained = WORDS.replace("reason = \"Mesos' own word\"\n", "");

        assert!(said(check, &[]).contains("the list of words is missing"));
        assert!(said(check, &[(LIST, "")]).contains("names no [[word]]"));
        assert!(said(check, &[(LIST, &unexplained)]).contains("with except a reason"));
    }
}
