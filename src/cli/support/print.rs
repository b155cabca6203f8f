//! Output: data to stdout, all else to stderr; the same facts in every format.

use std::io::{IsTerminal, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use clap::ValueEnum;
use comfy_table::{ContentArrangement, Table as Grid, presets};
use serde_json::{Map, Value, json};

use super::error::{CliError, Outcome};
use crate::args::Globals;
use crate::args::globals::Color;

/// Formats of a listing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// Aligned columns for people.
    #[default]
    Table,
    /// More columns.
    Wide,
    /// One envelope with all items.
    Json,
    /// One item on each line.
    Jsonl,
    /// The envelope as YAML.
    Yaml,
    /// Bare names.
    Name,
}

impl Format {
    /// For programs: never coloured, never cut, never changed by the environment.
    #[must_use]
    pub fn is_machine(self) -> bool {
        matches!(self, Self::Json | Self::Jsonl | Self::Yaml | Self::Name)
    }
}

/// How a listing is to be shown.
#[derive(Clone, Debug, Default)]
pub struct Style {
    /// The format.
    pub format: Format,
    /// Only these fields, in this order.
    pub fields: Vec<String>,
    /// `field=value`, all of which must hold.
    pub filter: Vec<(String, String)>,
    /// Sorted by this field.
    pub sort: Option<String>,
    /// What is not as wanted is an error.
    pub check: bool,
}

impl Style {
    /// What the flags of every command say.
    #[must_use]
    pub fn of(globals: &Globals) -> Self {
        let quiet = if globals.quiet {
            Format::Name
        } else {
            Format::default()
        };
        let mut format = globals.output.unwrap_or(quiet);
        if globals.watch.is_some() && matches!(format, Format::Json | Format::Yaml) {
            // What goes on has no end, so it has no envelope: one line for each item.
            format = Format::Jsonl;
        }
        Self {
            format,
            fields: globals.fields.clone(),
            filter: globals.filter.clone(),
            sort: globals.sort.clone(),
            check: globals.check,
        }
    }

    /// The plain table, for a list inside of a text.
    #[must_use]
    pub fn as_table(&self) -> Self {
        let wide = self.format == Format::Wide;
        Self {
            format: if wide { Format::Wide } else { Format::Table },
            ..Self::default()
        }
    }
}

/// Rows of one kind.
#[derive(Clone, Debug)]
pub struct Listing {
    /// For the envelope: "NodeList".
    pub kind: &'static str,
    /// The revision it was read at; `None` where there is none.
    pub revision: Option<u64>,
    /// Heads of the columns; those after the bar are for `wide`.
    pub columns: Vec<&'static str>,
    /// How many of the columns belong to the plain table.
    pub narrow: usize,
    /// The rows.
    pub rows: Vec<Row>,
    /// A line below the table, for people.
    pub footer: String,
    /// Said on stderr, and in the envelope.
    pub warnings: Vec<String>,
}

/// One row: what a table shows and what a program reads.
#[derive(Clone, Debug)]
pub struct Row {
    /// Its name, for `-o name`.
    pub name: String,
    /// In the order of the columns.
    pub cells: Vec<String>,
    /// All facts by name; `name` is always one of them.
    pub facts: Map<String, Value>,
    /// Why it is not as one wants it, for `--check`; empty when it is.
    pub amiss: String,
}

impl Row {
    /// A row from a name, its cells, and an object of facts.
    #[must_use]
    pub fn new(name: impl Into<String>, cells: Vec<String>, facts: Value) -> Self {
        let name = name.into();
        let mut facts = if let Value::Object(facts) = facts {
            facts
        } else {
            Map::from_iter([("value".to_owned(), facts)])
        };
        facts.entry("name").or_insert_with(|| json!(name));
        Self {
            name,
            cells,
            facts,
            amiss: String::new(),
        }
    }

    /// With what is not as wanted about it; nothing when all is well.
    #[must_use]
    pub fn amiss(mut self, amiss: impl Into<String>) -> Self {
        self.amiss = amiss.into();
        self
    }

    fn fact(&self, field: &str) -> String {
        match find(&self.facts, field) {
            Some(Value::String(text)) => text.clone(),
            Some(Value::Null) | None => String::new(),
            Some(other) => other.to_string(),
        }
    }
}

/// `total.cpu_milli`: a fact, or one inside of it. The names of labels may hold dots themselves.
fn find<'a>(facts: &'a Map<String, Value>, field: &str) -> Option<&'a Value> {
    if let Some(fact) = facts.get(field) {
        return Some(fact);
    }
    let dots = field.match_indices('.').map(|(at, _)| at);
    dots.filter_map(|at| field.split_at_checked(at))
        .find_map(|(head, tail)| {
            let inner = facts.get(head)?.as_object()?;
            find(inner, tail.strip_prefix('.')?)
        })
}

impl Listing {
    /// Filters, sorts and writes the listing to stdout.
    ///
    /// # Errors
    /// `USAGE` for a field that the rows do not have.
    pub fn print(mut self, style: &Style) -> Outcome {
        self.choose(style)?;
        let text = self.text(style)?;
        for warning in &self.warnings {
            note(&format!("warning: {warning}"));
        }
        out(&text)?;
        self.check(style)
    }

    /// With `--check` whatever is shown has to be as one wants it.
    fn check(&self, style: &Style) -> Outcome {
        let amiss = || self.rows.iter().filter(|row| !row.amiss.is_empty());
        let Some(first) = amiss().next().filter(|_| style.check) else {
            return Ok(());
        };
        let said = |row: &Row| format!("{} {}", row.name, row.amiss);
        let sentence = if let [_] = self.rows.as_slice() {
            said(first)
        } else {
            let (bad, all) = (amiss().count(), self.rows.len());
            format!("{bad} of {all} are not as wanted: {}", said(first))
        };
        let mut error = CliError::new(mete_model::Code::CheckFailed, sentence);
        error.facts = amiss().skip(1).map(said).collect();
        Err(error)
    }

    /// Keeps the rows that are wanted, in the order that is wanted.
    ///
    /// # Errors
    /// `USAGE` for a field that the rows do not have.
    pub fn choose(&mut self, style: &Style) -> Outcome {
        self.check_fields(style)?;
        self.rows.retain(|row| {
            style
                .filter
                .iter()
                .all(|(field, wanted)| row.fact(field) == *wanted)
        });
        if let Some(field) = &style.sort {
            self.rows.sort_by_key(|row| {
                let number = find(&row.facts, field).and_then(Value::as_u64);
                // Equal ones by name, so that a row stands where it stood the last time.
                (number, row.fact(field), row.name.clone())
            });
        }
        Ok(())
    }

    /// The listing in the wanted format.
    ///
    /// # Errors
    /// It cannot be written as YAML.
    pub fn text(&self, style: &Style) -> Outcome<String> {
        Ok(match style.format {
            Format::Table | Format::Wide => self.table(style),
            Format::Json => pretty(&self.envelope(style)),
            Format::Jsonl => {
                let lines = self
                    .rows
                    .iter()
                    .map(|row| pick(row, style).to_string() + "\n");
                lines.collect()
            }
            Format::Yaml => yaml(&self.envelope(style))?,
            Format::Name => self
                .rows
                .iter()
                .map(|row| row.name.clone() + "\n")
                .collect(),
        })
    }

    /// A field that no row of this kind has is refused, also when there is no row at all.
    fn check_fields(&self, style: &Style) -> Outcome {
        let known: Vec<&str> = match self.rows.first() {
            Some(first) => first.facts.keys().map(String::as_str).collect(),
            None => super::schema::fields(self.kind),
        };
        let asked = style
            .fields
            .iter()
            .chain(style.filter.iter().map(|(field, _)| field));
        for field in asked.chain(style.sort.as_ref()) {
            let whole = known.contains(&field.as_str());
            let head = field.split('.').next().unwrap_or_default();
            if whole || (head != field && known.contains(&head)) {
                continue;
            }
            let sentence = format!("{} has no field '{field}'", self.kind);
            let mut error = CliError::new(mete_model::Code::Usage, sentence)
                .fact(format!("fields are {}", known.join(", ")));
            if let Some(near) = nearest(field, &known) {
                error.sentence = format!("{}; did you mean '{near}'?", error.sentence);
            }
            return Err(error);
        }
        Ok(())
    }

    fn envelope(&self, style: &Style) -> Value {
        let items: Vec<Value> = self.rows.iter().map(|row| pick(row, style)).collect();
        json!({
            "schema": "mete.cli/v1",
            "kind": self.kind,
            "revision": self.revision,
            "items": items,
            "warnings": self.warnings,
        })
    }

    fn table(&self, style: &Style) -> String {
        let mut grid = Grid::new();
        grid.load_style(presets::NOTHING);
        if let Some(width) = terminal_width() {
            grid.set_content_arrangement(ContentArrangement::Dynamic)
                .set_width(width);
        }
        let (heads, cells): (Vec<String>, Vec<Vec<String>>) = if style.fields.is_empty() {
            let width = match style.format {
                Format::Wide => self.columns.len(),
                Format::Table | Format::Json | Format::Jsonl | Format::Yaml | Format::Name => {
                    self.narrow
                }
            };
            let heads = self
                .columns
                .iter()
                .take(width)
                .map(|head| (*head).to_owned())
                .collect();
            let cut = |row: &Row| row.cells.iter().take(width).cloned().collect();
            (heads, self.rows.iter().map(cut).collect())
        } else {
            let heads = style
                .fields
                .iter()
                .map(|field| field.to_uppercase())
                .collect();
            let picked = |row: &Row| style.fields.iter().map(|field| row.fact(field)).collect();
            (heads, self.rows.iter().map(picked).collect())
        };
        grid.set_header(heads);
        for row in cells {
            let blank = |cell: String| {
                if cell.is_empty() {
                    "-".to_owned()
                } else {
                    cell
                }
            };
            grid.add_row(row.into_iter().map(blank));
        }
        for column in grid.column_iter_mut() {
            column.set_padding((0, 2));
        }
        let lines: Vec<String> = grid
            .to_string()
            .lines()
            .map(|line| line.trim_end().to_owned())
            .collect();
        let mut text = lines.join("\n") + "\n";
        if !self.footer.is_empty() {
            text = text + &self.footer + "\n";
        }
        text
    }
}

fn pick(row: &Row, style: &Style) -> Value {
    if style.fields.is_empty() {
        return Value::Object(row.facts.clone());
    }
    let picked = style.fields.iter().map(|field| {
        (
            field.clone(),
            find(&row.facts, field).cloned().unwrap_or(Value::Null),
        )
    });
    Value::Object(picked.collect())
}

fn pretty(value: &Value) -> String {
    serde_json::to_string_pretty(value).unwrap_or_default() + "\n"
}

fn yaml(value: &Value) -> Outcome<String> {
    serde_saphyr::to_string(value).map_err(|error| {
        CliError::new(mete_model::Code::Internal, format!("writing YAML: {error}"))
    })
}

/// Writes one thing: a block of text for people, or an object in an envelope. Its `name` is what
/// `-q` prints.
///
/// # Errors
/// `USAGE` for a field that it does not have; stdout is closed.
pub fn print_one(
    style: &Style,
    kind: &'static str,
    revision: Option<u64>,
    item: Value,
    text: &str,
) -> Outcome {
    print_checked(style, kind, revision, item, text, "")
}

/// The same of something that `--check` judges: `amiss` says why it is not as one wants it.
///
/// # Errors
/// As [`print_one`]; `CHECK_FAILED`.
pub fn print_checked(
    style: &Style,
    kind: &'static str,
    revision: Option<u64>,
    item: Value,
    text: &str,
    amiss: &str,
) -> Outcome {
    let name = item.get("name").and_then(Value::as_str).unwrap_or(kind);
    let mut listing = Listing {
        kind,
        revision,
        columns: Vec::new(),
        narrow: 0,
        rows: vec![Row::new(name.to_owned(), Vec::new(), item).amiss(amiss)],
        footer: String::new(),
        warnings: Vec::new(),
    };
    listing.choose(style)?;
    let block = matches!(style.format, Format::Table | Format::Wide) && style.fields.is_empty();
    if !block {
        out(&listing.text(style)?)?;
    } else if !listing.rows.is_empty() {
        out(&format!("{}\n", text.trim_end()))?;
    }
    listing.check(style)
}

/// Columns of the terminal that stdout is; `None` when it is none.
fn terminal_width() -> Option<u16> {
    let stdout = std::io::stdout();
    let width = rustix::termios::tcgetwinsize(&stdout).ok()?.ws_col;
    (stdout.is_terminal() && width >= 40).then_some(width)
}

/// Set once nobody reads stdout any more.
static READER_GONE: AtomicBool = AtomicBool::new(false);

/// Says whether whoever read stdout has gone away: an endless stream may end.
#[must_use]
pub fn reader_is_gone() -> bool {
    READER_GONE.load(Ordering::Relaxed)
}

/// The error in the shape that was asked for, on stderr.
pub fn show_error(error: &CliError, format: Format, color: Color, verbose: u8) {
    if format.is_machine() && format != Format::Name {
        return note(&error.to_json().to_string());
    }
    let stderr = std::io::stderr();
    let colored = match color {
        Color::Always => true,
        Color::Never => false,
        Color::Auto => {
            let plain = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
            stderr.is_terminal() && !plain
        }
    };
    let mut text = error.to_string();
    if colored && let Some((label, rest)) = text.split_once(": ") {
        text = format!("\u{1b}[1;31m{label}\u{1b}[0m: {rest}");
    }
    if verbose > 0 && !error.cause.is_empty() {
        text = format!("{text}\n  cause:    {}", error.cause);
    }
    note(&text);
}

/// Writes data to stdout. A reader that has gone away is no error: it had enough.
///
/// # Errors
/// stdout cannot be written.
pub fn out(text: &str) -> Outcome {
    out_bytes(text.as_bytes())
}

/// What is written while a frame is open; it appears at once when the frame is closed.
static FRAME: Mutex<Option<Vec<u8>>> = Mutex::new(None);

/// Opens a frame: what is written from now on waits until [`close_frame`].
pub fn open_frame() {
    *FRAME.lock().unwrap_or_else(PoisonError::into_inner) = Some(Vec::new());
}

/// Writes what was kept; on a terminal in place of the frame before.
///
/// # Errors
/// stdout cannot be written.
pub fn close_frame() -> Outcome {
    let kept = FRAME.lock().unwrap_or_else(PoisonError::into_inner).take();
    let mut bytes = Vec::new();
    if std::io::stdout().is_terminal() {
        bytes.extend_from_slice(CLEAR.as_bytes());
    }
    bytes.extend(kept.unwrap_or_default());
    out_bytes(&bytes)
}

/// Clears a terminal and goes to its first place.
pub const CLEAR: &str = "\u{1b}[2J\u{1b}[H";

/// Writes bytes to stdout as they are.
///
/// # Errors
/// stdout cannot be written.
pub fn out_bytes(bytes: &[u8]) -> Outcome {
    if let Some(frame) = FRAME
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .as_mut()
    {
        frame.extend_from_slice(bytes);
        return Ok(());
    }
    let mut stdout = std::io::stdout().lock();
    match stdout.write_all(bytes).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => {
            READER_GONE.store(true, Ordering::Relaxed);
            Ok(())
        }
        Err(error) => Err(CliError::file(
            "write",
            std::path::Path::new("stdout"),
            &error,
        )),
        Ok(()) => Ok(()),
    }
}

/// Says something to the person at the terminal, on stderr.
pub fn note(text: &str) {
    // Nobody to tell is no reason to fail.
    let _ = writeln!(std::io::stderr().lock(), "{text}");
}

/// The known word that is closest to `text`, if one is close.
#[must_use]
pub fn nearest<'a>(text: &str, known: &[&'a str]) -> Option<&'a str> {
    let scored = known
        .iter()
        .map(|word| (strsim::damerau_levenshtein(text, word), *word));
    let (distance, word) = scored.min()?;
    (distance <= 3 && distance < text.len()).then_some(word)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listing() -> Listing {
        Listing {
            kind: "NodeList",
            revision: Some(7),
            columns: vec!["NAME", "STATE"],
            narrow: 2,
            rows: vec![Row::new(
                "n1",
                vec!["n1".to_owned(), "ready".to_owned()],
                json!({ "name": "n1", "state": "ready", "memory_bytes": u64::MAX }),
            )],
            footer: String::new(),
            warnings: Vec::new(),
        }
    }

    #[test]
    fn the_envelope_holds_whole_numbers_and_the_revision() {
        let envelope = listing().envelope(&Style::default());
        assert_eq!(envelope["schema"], "mete.cli/v1");
        assert_eq!(envelope["revision"], 7);
        assert_eq!(envelope["items"][0]["memory_bytes"], u64::MAX);
    }

    #[test]
    fn an_unknown_field_is_refused_with_the_nearest_one() {
        let style = Style {
            fields: vec!["stat".to_owned()],
            ..Style::default()
        };
        let error = listing().check_fields(&style).expect_err("no such field");
        assert!(
            error.sentence.contains("did you mean 'state'"),
            "{}",
            error.sentence
        );
    }

    #[test]
    fn a_field_inside_of_another_is_found_also_when_its_name_has_dots() {
        let mut listing = listing();
        let labels = json!({ "example.org/rack": "r3" });
        listing.rows[0].facts.insert("labels".to_owned(), labels);
        let style = Style {
            fields: vec!["labels.example.org/rack".to_owned()],
            filter: vec![("labels.example.org/rack".to_owned(), "r3".to_owned())],
            ..Style::default()
        };
        listing.choose(&style).expect("a known field");
        assert_eq!(
            listing.envelope(&style)["items"][0]["labels.example.org/rack"],
            "r3"
        );
    }

    #[test]
    fn with_check_the_first_row_that_is_amiss_is_the_error() {
        let mut listing = listing();
        let mut style = Style::default();
        assert!(listing.check(&style).is_ok());
        listing.rows[0].amiss = "is unreachable".to_owned();
        assert!(listing.check(&style).is_ok(), "nobody asked");
        style.check = true;
        let error = listing.check(&style).expect_err("amiss");
        assert_eq!(error.sentence, "n1 is unreachable");
        assert_eq!(error.exit, super::super::error::exit::CHECK);
    }

    #[test]
    fn a_table_has_no_trailing_blanks_and_marks_what_is_empty() {
        let mut listing = listing();
        listing.rows[0].cells[1] = String::new();
        let table = listing.table(&Style::default());
        assert_eq!(table, "NAME  STATE\nn1    -\n");
    }
}
