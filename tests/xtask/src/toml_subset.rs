//! Reads the part of TOML that this tool's own lists are written in.
//!
//! Tables, arrays of tables, and `key = value` with strings, integers, booleans, arrays (over
//! several lines if need be) and inline tables. Everything else, dates, floats, multi-line
//! strings, dotted keys, is refused with its line, never guessed. It exists so that the checks
//! build without a dependency; whatever an *operator* writes is read by the real `toml`.

use serde_json::{Map, Value};

/// The document as a tree.
///
/// # Errors
/// The line and what stands there.
pub(crate) fn parse(text: &str) -> Result<Value, String> {
    let mut reader = Reader {
        rest: text,
        line: 1,
    };
    let mut document = Map::new();
    let mut path: Vec<String> = Vec::new();
    loop {
        reader.skip_blank();
        if reader.rest.is_empty() {
            return Ok(Value::Object(document));
        }
        if reader.take("[[") {
            path = reader.header("]]")?;
            let list = array_at(&mut document, &path).ok_or_else(|| reader.error("a table"))?;
            list.push(Value::Object(Map::new()));
        } else if reader.take("[") {
            path = reader.header("]")?;
            table_at(&mut document, &path).ok_or_else(|| reader.error("a list"))?;
        } else {
            let (key, value) = reader.pair()?;
            let table = table_at(&mut document, &path).ok_or_else(|| reader.error("a list"))?;
            if table.insert(key.clone(), value).is_some() {
                return Err(reader.error(&format!("'{key}' a second time")));
            }
            reader.end_of_line()?;
        }
    }
}

/// The table that a header names; in an array of tables the last one.
fn table_at<'a>(
    top: &'a mut Map<String, Value>,
    path: &[String],
) -> Option<&'a mut Map<String, Value>> {
    let mut table = top;
    for name in path {
        let next = table
            .entry(name)
            .or_insert_with(|| Value::Object(Map::new()));
        let next = if next.is_array() {
            next.as_array_mut()?.last_mut()?
        } else {
            next
        };
        table = next.as_object_mut()?;
    }
    Some(table)
}

fn array_at<'a>(top: &'a mut Map<String, Value>, path: &[String]) -> Option<&'a mut Vec<Value>> {
    let (last, above) = path.split_last()?;
    let table = table_at(top, above)?;
    table
        .entry(last)
        .or_insert_with(|| Value::Array(Vec::new()))
        .as_array_mut()
}

struct Reader<'a> {
    rest: &'a str,
    line: usize,
}

impl Reader<'_> {
    fn error(&self, what: &str) -> String {
        format!("line {}: {what} cannot stand here", self.line)
    }

    fn advance(&mut self, bytes: usize) {
        self.line += self.rest[..bytes].matches('\n').count();
        self.rest = &self.rest[bytes..];
    }

    fn take(&mut self, token: &str) -> bool {
        let found = self.rest.starts_with(token);
        if found {
            self.advance(token.len());
        }
        found
    }

    fn skip_spaces(&mut self) {
        let blank = self.rest.len() - self.rest.trim_start_matches([' ', '\t']).len();
        self.advance(blank);
    }

    /// Skips spaces, line ends and comments.
    fn skip_blank(&mut self) {
        loop {
            let blank = self.rest.len() - self.rest.trim_start().len();
            self.advance(blank);
            if !self.rest.starts_with('#') {
                return;
            }
            self.advance(self.rest.find('\n').unwrap_or(self.rest.len()));
        }
    }

    fn end_of_line(&mut self) -> Result<(), String> {
        self.skip_spaces();
        if self.rest.is_empty() || self.rest.starts_with(['\n', '\r', '#']) {
            return Ok(());
        }
        let what: String = self.rest.chars().take(12).collect();
        Err(self.error(&format!("'{what}'")))
    }

    fn header(&mut self, close: &str) -> Result<Vec<String>, String> {
        let end = self
            .rest
            .find(close)
            .ok_or_else(|| self.error("a header without its end"))?;
        let names: Vec<String> = self.rest[..end]
            .split('.')
            .map(|name| name.trim().to_owned())
            .collect();
        if !names.iter().all(|name| is_bare(name)) {
            return Err(self.error("this header"));
        }
        self.advance(end + close.len());
        self.end_of_line()?;
        Ok(names)
    }

    fn pair(&mut self) -> Result<(String, Value), String> {
        let end = self
            .rest
            .find('=')
            .ok_or_else(|| self.error("a line without '='"))?;
        let key = self.rest[..end].trim().trim_matches('"').to_owned();
        if !is_bare(&key) {
            return Err(self.error(&format!("the key '{}'", key.replace('\n', " "))));
        }
        self.advance(end + 1);
        self.skip_spaces();
        Ok((key, self.value()?))
    }

    fn value(&mut self) -> Result<Value, String> {
        if self.take("\"") {
            return self.string().map(Value::String);
        }
        if self.take("[") {
            return self.array();
        }
        if self.take("{") {
            return self.inline_table();
        }
        if self.take("true") {
            return Ok(Value::Bool(true));
        }
        if self.take("false") {
            return Ok(Value::Bool(false));
        }
        let digits = self
            .rest
            .find(|c: char| !c.is_ascii_digit())
            .unwrap_or(self.rest.len());
        let number = self.rest[..digits]
            .parse::<u64>()
            .map_err(|_| self.error("this value"))?;
        self.advance(digits);
        Ok(Value::from(number))
    }

    /// The text up to the closing quote; the opening one is already taken.
    fn string(&mut self) -> Result<String, String> {
        let mut text = String::new();
        let mut chars = self.rest.char_indices();
        while let Some((at, character)) = chars.next() {
            match character {
                '"' => {
                    self.advance(at + 1);
                    return Ok(text);
                }
                '\n' => break,
                '\\' => match chars.next() {
                    Some((_, escaped @ ('"' | '\\'))) => text.push(escaped),
                    Some((_, 'n')) => text.push('\n'),
                    _ => return Err(self.error("this escape")),
                },
                other => text.push(other),
            }
        }
        Err(self.error("a string without its end"))
    }

    fn array(&mut self) -> Result<Value, String> {
        let mut items = Vec::new();
        loop {
            self.skip_blank();
            if self.take("]") {
                return Ok(Value::Array(items));
            }
            items.push(self.value()?);
            self.skip_blank();
            if !self.take(",") && !self.rest.starts_with(']') {
                return Err(self.error("an array without ',' or ']'"));
            }
        }
    }

    fn inline_table(&mut self) -> Result<Value, String> {
        let mut table = Map::new();
        loop {
            self.skip_blank();
            if self.take("}") {
                return Ok(Value::Object(table));
            }
            let (key, value) = self.pair()?;
            table.insert(key, value);
            self.skip_blank();
            if !self.take(",") && !self.rest.starts_with('}') {
                return Err(self.error("an inline table without ',' or '}'"));
            }
        }
    }
}

fn is_bare(name: &str) -> bool {
    !name.is_empty()
        && name
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || "-_".contains(c))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn tables_lists_and_inline_tables_are_read() {
        let text = "# a list\n[licenses]\nallow = [\n  \"MIT\", # short\n  \"Zlib\",\n]\n\
                    [[file]]\npath = \"a.rs\"\nlines = 812\n[[file]]\npath = \"b \\\"x\\\".rs\"\n\
                    [advisories]\nignore = [{ id = \"R-1\", reason = \"why\" }]\nyanked = true\n";

        let read = parse(text).expect("all of it is in the subset");

        let expected = json!({
            "licenses": { "allow": ["MIT", "Zlib"] },
            "file": [{ "path": "a.rs", "lines": 812 }, { "path": "b \"x\".rs" }],
            "advisories": { "ignore": [{ "id": "R-1", "reason": "why" }], "yanked": true },
        });
        assert_eq!(read, expected);
    }

    #[test]
    fn what_is_not_in_the_subset_is_refused_with_its_line() {
        for bad in [
            "a = 1.5",
            "a = \"x",
            "a.b = 1",
            "a = [1 2]",
            "a",
            "a = 1\na = 2",
            "[x",
            "a = -1",
        ] {
            let error = parse(&format!("\n{bad}\n")).expect_err(bad);
            assert!(error.starts_with("line "), "{bad}: {error}");
        }
    }
}
