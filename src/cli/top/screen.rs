//! The live view: a terminal of its own, keys, and one pane at a time.

use std::io::{Read, Write};
use std::time::Duration;

use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr};
use tokio::sync::mpsc;

use super::draw::{self, Line, Pane, Subject};
use super::{Frame, look};
use crate::args::objects::{Subject as Kind, Why};
use crate::cli::support::client::Client;
use crate::cli::support::error::{CliError, Outcome};
use crate::cli::support::print::{CLEAR, out};
use crate::cli::why;

/// Keys that wait for the screen at the most.
const MOST_KEYS: usize = 64;

/// Where the terminal was, put back when this is dropped.
struct Terminal(Termios);

impl Terminal {
    fn take() -> Outcome<Self> {
        let failed = |error: rustix::io::Errno| {
            let path = std::path::Path::new("the terminal");
            CliError::file("read", path, &error.into())
        };
        let before = tcgetattr(std::io::stdin()).map_err(failed)?;
        let mut raw = before.clone();
        raw.make_raw();
        // Ctrl-C goes on to end the program; output keeps its line ends.
        raw.local_modes |= rustix::termios::LocalModes::ISIG;
        raw.output_modes |= rustix::termios::OutputModes::OPOST;
        tcsetattr(std::io::stdin(), OptionalActions::Now, &raw).map_err(failed)?;
        let taken = Self(before);
        // A screen of its own, without a cursor; what stood there comes back at the end.
        out("\u{1b}[?1049h\u{1b}[?25l")?;
        Ok(taken)
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let mut stdout = std::io::stdout().lock();
        // A terminal that is gone needs nothing.
        let _ = write!(stdout, "\u{1b}[?25h\u{1b}[?1049l");
        let _ = stdout.flush();
        let _ = tcsetattr(std::io::stdin(), OptionalActions::Now, &self.0);
    }
}

/// What a key means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Key {
    Up,
    Down,
    Char(char),
    Enter,
    Back,
    Escape,
}

/// Reads keys on a thread of its own: a terminal cannot be asked without waiting.
fn keys() -> mpsc::Receiver<Key> {
    let (sender, receiver) = mpsc::channel(MOST_KEYS);
    std::thread::spawn(move || {
        let mut bytes = [0_u8; 16];
        while let Ok(count) = std::io::stdin().lock().read(&mut bytes) {
            let read = bytes.get(..count).unwrap_or_default();
            if read.is_empty() {
                return;
            }
            for key in read_keys(read) {
                if sender.blocking_send(key).is_err() {
                    return;
                }
            }
        }
    });
    receiver
}

fn read_keys(bytes: &[u8]) -> Vec<Key> {
    match bytes {
        [0x1b, b'[' | b'O', b'A'] => vec![Key::Up],
        [0x1b, b'[' | b'O', b'B'] => vec![Key::Down],
        [0x1b, ..] => vec![Key::Escape],
        all => String::from_utf8_lossy(all)
            .chars()
            .map(|c| match c {
                '\r' | '\n' => Key::Enter,
                '\u{7f}' | '\u{8}' => Key::Back,
                c => Key::Char(c),
            })
            .collect(),
    }
}

/// What is seen besides the figures.
#[derive(Clone, Debug, Default)]
struct View {
    pane: Pane,
    selected: usize,
    filter: String,
    /// The filter is being typed.
    typing: bool,
    /// A text over everything: help, or an answer to why.
    over: Option<String>,
    /// What went wrong last.
    trouble: String,
}

const HELP: &str = "\
n nodes   q roles   j what waits   up/down choose   w why (of the chosen line)
/ filter (Enter keeps it, Escape drops it)   ? this help   x leaves

Only looks: nothing is changed from here.";

/// What a key asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Wish {
    Draw,
    Leave,
    Why(Subject),
}

impl View {
    fn lines(&self, frame: &Frame, width: usize) -> Vec<Line> {
        let mut lines = match self.pane {
            Pane::Roles => draw::roles(&frame.roles),
            Pane::Nodes => {
                let mut lines = draw::strip(frame, width);
                lines.extend(draw::nodes(&frame.nodes));
                lines
            }
            Pane::Waiting => draw::waiting(frame),
        };
        lines.retain(|line| line.subject.is_none() || line.text.contains(&self.filter));
        lines
    }

    fn subjects(&self, frame: &Frame) -> Vec<Subject> {
        let lines = self.lines(frame, usize::MAX);
        lines.into_iter().filter_map(|line| line.subject).collect()
    }

    fn press(&mut self, key: Key, frame: &Frame) -> Wish {
        if self.over.take().is_some() {
            return Wish::Draw;
        }
        if self.typing {
            match key {
                Key::Enter => self.typing = false,
                Key::Escape => (self.typing, self.filter) = (false, String::new()),
                Key::Back => drop(self.filter.pop()),
                Key::Char(c) if !c.is_control() => self.filter.push(c),
                Key::Char(_) | Key::Up | Key::Down => {}
            }
            self.selected = 0;
            return Wish::Draw;
        }
        let panes = [
            (Key::Char('n'), Pane::Nodes),
            (Key::Char('q'), Pane::Roles),
            (Key::Char('j'), Pane::Waiting),
        ];
        let pane = panes.into_iter().find(|(wanted, _)| *wanted == key);
        if let Some((_, pane)) = pane {
            (self.pane, self.selected) = (pane, 0);
            return Wish::Draw;
        }
        let last = self.subjects(frame).len().saturating_sub(1);
        match key {
            Key::Char('x') => return Wish::Leave,
            Key::Char('/') => self.typing = true,
            Key::Char('?') => self.over = Some(HELP.to_owned()),
            Key::Up => self.selected = self.selected.saturating_sub(1),
            Key::Down => self.selected = self.selected.saturating_add(1).min(last),
            Key::Char('w') => {
                if let Some(subject) = self.subjects(frame).into_iter().nth(self.selected) {
                    return Wish::Why(subject);
                }
            }
            Key::Escape => self.filter.clear(),
            Key::Char(_) | Key::Enter | Key::Back => {}
        }
        Wish::Draw
    }

    /// The screen, cut to `width` columns and `height` lines.
    fn text(&self, frame: &Frame, width: usize, height: usize) -> String {
        let mut lines: Vec<String> = Vec::new();
        if let Some(over) = &self.over {
            lines.extend(over.lines().map(str::to_owned));
            lines.push(String::new());
            lines.push("any key goes back".to_owned());
            return cut(&lines, width, height);
        }
        lines.extend(draw::head(&frame.status));
        lines.push(String::new());
        let mut number = 0;
        let mut rows = Vec::new();
        let mut chosen = 0;
        for line in self.lines(frame, width) {
            let mut text = line.text;
            if line.subject.is_some() {
                if number == self.selected {
                    chosen = rows.len();
                    text = format!("\u{1b}[7m{}\u{1b}[0m", short(&text, width));
                }
                number += 1;
            }
            rows.push(text);
        }
        // The chosen line is always seen, the head of the pane while there is room.
        let room = height.saturating_sub(lines.len() + 1).max(1);
        let skipped = chosen.saturating_add(1).saturating_sub(room);
        lines.extend(rows.into_iter().skip(skipped).take(room));
        lines.resize(height.saturating_sub(1), String::new());
        lines.push(self.foot());
        cut(&lines, width, height)
    }

    fn foot(&self) -> String {
        if self.typing {
            return format!("/{}_", self.filter);
        }
        let filter = match self.filter.as_str() {
            "" => String::new(),
            filter => format!("   only '{filter}'"),
        };
        let trouble = match self.trouble.as_str() {
            "" => String::new(),
            trouble => format!("   {trouble}"),
        };
        format!("n nodes  q roles  j waiting  w why  / filter  ? help  x leaves{filter}{trouble}")
    }
}

fn short(line: &str, width: usize) -> String {
    line.chars().take(width).collect()
}

fn cut(lines: &[String], width: usize, height: usize) -> String {
    let shown = lines.iter().take(height);
    let shown = shown.map(|line| {
        if line.starts_with('\u{1b}') {
            line.clone()
        } else {
            short(line, width)
        }
    });
    CLEAR.to_owned() + &shown.collect::<Vec<String>>().join("\r\n")
}

/// Shows the live view until `x`.
///
/// # Errors
/// What does not pass: a refusal, or a terminal that is none.
pub(super) async fn run(client: &Client, pause: Duration) -> Outcome {
    let mut frame = look(client).await?;
    let _terminal = Terminal::take()?;
    let mut keys = keys();
    let mut view = View::default();
    let mut ticks = tokio::time::interval(pause);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    ticks.reset();
    let mut resized = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::window_change())
        .map_err(|error| {
            CliError::file(
                "watch the size of",
                std::path::Path::new("the terminal"),
                &error,
            )
        })?;
    loop {
        let size = tcgetwinsize(std::io::stdout());
        let (width, height) = size.map_or((80, 24), |size| {
            (
                usize::from(size.ws_col.max(20)),
                usize::from(size.ws_row.max(6)),
            )
        });
        out(&view.text(&frame, width, height))?;
        tokio::select! {
            _ = ticks.tick() => match look(client).await {
                Ok(new) => {
                    frame = new;
                    view.trouble.clear();
                }
                Err(error) if error.is_passing() => view.trouble = error.sentence,
                Err(error) => return Err(error),
            },
            _ = resized.recv() => {}
            _ = tokio::signal::ctrl_c() => return Ok(()),
            key = keys.recv() => {
                let Some(key) = key else { return Ok(()) };
                match view.press(key, &frame) {
                    Wish::Draw => {}
                    Wish::Leave => return Ok(()),
                    Wish::Why(subject) => view.over = Some(ask(client, subject).await),
                }
            }
        }
    }
}

async fn ask(client: &Client, (kind, name): Subject) -> String {
    let kind = match kind {
        "node" => Kind::Node,
        "role" => Kind::Role,
        _ => Kind::Claim,
    };
    let why = Why {
        subject: kind,
        name,
        nodes: false,
    };
    why::told(client, &why)
        .await
        .unwrap_or_else(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use mete_proto::admin::v1::Role;

    use super::*;

    fn frame() -> Frame {
        let role = |path: &str| Role {
            path: path.to_owned(),
            ..Role::default()
        };
        Frame {
            roles: vec![role("batch"), role("ml"), role("service")],
            ..Frame::default()
        }
    }

    #[test]
    fn keys_choose_a_pane_and_a_line_and_ask_why() {
        let (mut view, frame) = (View::default(), frame());
        assert_eq!(view.press(Key::Down, &frame), Wish::Draw);
        assert_eq!(
            view.press(Key::Char('w'), &frame),
            Wish::Why(("role", "ml".to_owned()))
        );
        for _ in 0..9 {
            view.press(Key::Down, &frame);
        }
        assert_eq!(view.selected, 2, "not below the last line");
        view.press(Key::Char('n'), &frame);
        assert_eq!((view.pane, view.selected), (Pane::Nodes, 0));
        assert_eq!(view.press(Key::Char('w'), &frame), Wish::Draw, "no node");
        assert_eq!(view.press(Key::Char('x'), &frame), Wish::Leave);
    }

    #[test]
    fn a_filter_is_typed_kept_and_dropped() {
        let (mut view, frame) = (View::default(), frame());
        for key in [Key::Char('/'), Key::Char('m'), Key::Char('x'), Key::Back] {
            view.press(key, &frame);
        }
        view.press(Key::Enter, &frame);
        let text = view.text(&frame, 80, 24);
        assert!(text.contains("ml") && !text.contains("service"), "{text}");
        view.press(Key::Escape, &frame);
        assert!(view.text(&frame, 80, 24).contains("service"));
    }

    #[test]
    fn nothing_is_wider_or_higher_than_the_terminal_and_the_chosen_line_is_seen() {
        let mut frame = frame();
        frame.roles = (0..200)
            .map(|number| Role {
                path: format!("role-{number:03}"),
                ..Role::default()
            })
            .collect();
        let mut view = View::default();
        for _ in 0..150 {
            view.press(Key::Down, &frame);
        }
        let text = view.text(&frame, 40, 12);
        let lines: Vec<&str> = text.trim_start_matches(CLEAR).split("\r\n").collect();
        assert_eq!(lines.len(), 12);
        assert!(text.contains("role-150"), "{text}");
        for line in lines {
            let plain = line.replace("\u{1b}[7m", "").replace("\u{1b}[0m", "");
            assert!(plain.chars().count() <= 40, "{line}");
        }
    }

    #[test]
    fn arrows_and_letters_are_told_apart() {
        assert_eq!(read_keys(b"\x1b[A"), [Key::Up]);
        assert_eq!(read_keys(b"\x1bOB"), [Key::Down]);
        assert_eq!(read_keys(b"\x1b"), [Key::Escape]);
        assert_eq!(read_keys(b"nx"), [Key::Char('n'), Key::Char('x')]);
    }
}
