//! Reads Rust just well enough for the rules: what is code, what is a comment, where a name
//! stands. It looks at one line at a time and knows no grammar.

/// A line split at its `//` comment. A `//` inside a string or an address is no comment.
pub(crate) fn split_comment(line: &str) -> (&str, &str) {
    let bytes = line.as_bytes();
    let mut inside_string = false;
    let mut at = 0;
    while at < bytes.len() {
        match bytes[at] {
            b'\\' if inside_string => at += 1,
            b'"' if !is_char_literal(bytes, at) => inside_string = !inside_string,
            b'/' if !inside_string && bytes.get(at + 1) == Some(&b'/') => {
                return line.split_at(at);
            }
            _ => {}
        }
        at += 1;
    }
    (line, "")
}

/// The quote of `'"'` opens no string.
fn is_char_literal(bytes: &[u8], at: usize) -> bool {
    at > 0 && bytes[at - 1] == b'\'' && bytes.get(at + 1) == Some(&b'\'')
}

/// The code of a line with the contents of its strings left out.
pub(crate) fn without_strings(line: &str) -> String {
    let (code, _) = split_comment(line);
    let mut kept = String::with_capacity(code.len());
    let mut inside_string = false;
    let mut escaped = false;
    let bytes = code.as_bytes();
    for (at, character) in code.char_indices() {
        if inside_string {
            let closes = character == '"' && !escaped;
            escaped = character == '\\' && !escaped;
            inside_string = !closes;
        } else if character == '"' && !is_char_literal(bytes, at) {
            inside_string = true;
        } else {
            kept.push(character);
        }
    }
    kept
}

/// Whether `name` stands in `line` as a whole: `sled::` does not stand in `unsled::x`.
pub(crate) fn mentions(line: &str, name: &str) -> bool {
    let part = |c: Option<char>| c.is_some_and(|c| c.is_alphanumeric() || c == '_');
    line.match_indices(name).any(|(at, _)| {
        let (before, rest) = line.split_at(at);
        let after = &rest[name.len()..];
        let open = part(name.chars().next()) && part(before.chars().next_back());
        let close = part(name.chars().next_back()) && part(after.chars().next());
        !open && !close
    })
}

/// The file up to its inline tests.
pub(crate) fn without_tests(text: &str) -> &str {
    text.split_once("#[cfg(test)]\nmod ")
        .map_or(text, |(before, _)| before)
}

/// The variants of `enum name`, in order; nothing if the file has no such enum.
pub(crate) fn variants(text: &str, name: &str) -> Vec<String> {
    let opening = format!("enum {name} {{");
    let mut inside = false;
    let mut found = Vec::new();
    for line in text.lines() {
        if !inside {
            inside = mentions(line, &opening);
            continue;
        }
        if line.starts_with('}') {
            break;
        }
        // rustfmt puts variants at four spaces; their fields stand deeper.
        let Some(rest) = line.strip_prefix("    ") else {
            continue;
        };
        let word: String = rest
            .chars()
            .take_while(char::is_ascii_alphanumeric)
            .collect();
        if word.starts_with(|c: char| c.is_ascii_uppercase()) {
            found.push(word);
        }
    }
    found
}

/// `AdmitAgent` → `admit_agent`.
pub(crate) fn snake_case(name: &str) -> String {
    let mut snake = String::new();
    for character in name.chars() {
        if character.is_ascii_uppercase() && !snake.is_empty() {
            snake.push('_');
        }
        snake.push(character.to_ascii_lowercase());
    }
    snake
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_comment_begins_outside_strings_only() {
        assert_eq!(split_comment("let a = 1; // why").1, "// why");
        assert_eq!(split_comment("let a = \"http://x\";").1, "");
        assert_eq!(split_comment("let q = '\"'; // quote").1, "// quote");
        assert_eq!(
            without_strings("call(\"sled::Db\", x); // sled::"),
            "call(, x); "
        );
    }

    #[test]
    fn a_name_is_found_as_a_whole_word() {
        assert!(mentions("use sled::Db;", "sled::"));
        assert!(!mentions("use unsled::Db;", "sled::"));
        assert!(mentions("x.await", ".await"));
        assert!(!mentions("fn f64_of()", "f64"));
    }

    #[test]
    fn variants_are_read_from_a_formatted_enum() {
        let text = "/// All.\npub enum Command {\n    /// One.\n    AdmitAgent {\n        id: Id,\n\
                    \x20   },\n    Tick(Time),\n}\n\npub enum Other {\n    No,\n}\n";

        assert_eq!(variants(text, "Command"), ["AdmitAgent", "Tick"]);
        assert_eq!(snake_case("AdmitAgent"), "admit_agent");
    }
}
