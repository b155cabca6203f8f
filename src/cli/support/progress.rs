//! What is waited for, said on stderr while it lasts: what, how it stands, how long, how to leave.

use std::io::{IsTerminal, Write};
use std::time::Instant;

use mete_model::Span;
use serde_json::json;

use super::print::note;
use super::schema;
use crate::args::globals::Progress as Mode;

/// How it is said here and now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum How {
    /// One line, drawn again over itself.
    Redrawn,
    /// A line for each change.
    Lines,
    /// The same as JSON.
    Json,
    /// Not at all.
    Silent,
}

/// One wait.
#[derive(Debug)]
pub struct Progress {
    how: How,
    what: String,
    leave: &'static str,
    began: Instant,
    /// How it stood when it was said last.
    state: String,
    /// The line stands on the terminal now.
    drawn: bool,
}

impl Progress {
    /// Begins to wait for `what`; `leave` says how to stop waiting, and what that leaves behind.
    #[must_use]
    pub fn new(mode: Mode, what: impl Into<String>, leave: &'static str) -> Self {
        let how = match mode {
            Mode::Auto if std::io::stderr().is_terminal() => How::Redrawn,
            Mode::Auto | Mode::Plain => How::Lines,
            Mode::Json => How::Json,
            Mode::None => How::Silent,
        };
        Self {
            how,
            what: what.into(),
            leave,
            began: Instant::now(),
            state: String::new(),
            drawn: false,
        }
    }

    /// Says how it stands, if that has changed; a redrawn line shows the time too.
    pub fn say(&mut self, state: &str) {
        let new = state != self.state;
        state.clone_into(&mut self.state);
        match self.how {
            How::Redrawn => self.draw(),
            How::Lines if new => note(&self.line()),
            How::Json if new => note(&self.json()),
            How::Lines | How::Json | How::Silent => {}
        }
    }

    /// Lets the time go on in a redrawn line.
    pub fn tick(&mut self) {
        if self.how == How::Redrawn && !self.state.is_empty() {
            self.draw();
        }
    }

    /// The wait is over, or something else is about to be written: no half line stays.
    pub fn clear(&mut self) {
        if std::mem::take(&mut self.drawn) {
            // Nobody to tell is no reason to fail.
            let _ = write!(std::io::stderr().lock(), "\r\u{1b}[2K");
        }
    }

    fn elapsed(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    fn line(&self) -> String {
        self.line_within(usize::MAX)
    }

    /// The line in so many columns: the state is cut, never the time or how to leave.
    fn line_within(&self, columns: usize) -> String {
        // Whole seconds: it is read, not measured.
        let elapsed = Span::seconds(self.elapsed() / 1000).rough();
        let rest = format!("--{}{elapsed}{}--         ", self.what, self.leave);
        let room = columns.saturating_sub(rest.chars().count());
        let mut state: String = self.state.chars().take(room).collect();
        if state.len() < self.state.len() {
            state.pop();
            state.push('~');
        }
        format!("-- {} {state}   {elapsed}   {} --", self.what, self.leave)
    }

    fn json(&self) -> String {
        json!({
            "schema": schema::NAME,
            "kind": "Progress",
            "waits_for": self.what,
            "state": self.state,
            "elapsed_ms": self.elapsed(),
        })
        .to_string()
    }

    fn draw(&mut self) {
        let width = rustix::termios::tcgetwinsize(std::io::stderr())
            .map_or(80, |size| usize::from(size.ws_col.max(20)));
        let line = self.line_within(width.saturating_sub(1));
        let line: String = line.chars().take(width.saturating_sub(1)).collect();
        let mut stderr = std::io::stderr().lock();
        // Nobody to tell is no reason to fail.
        let _ = write!(stderr, "\r\u{1b}[2K{line}");
        let _ = stderr.flush();
        self.drawn = true;
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_says_what_how_it_stands_how_long_and_how_to_leave() {
        let mut progress = Progress::new(Mode::None, "train-41", "Ctrl-C leaves it running");
        progress.say("waits: NO_CAPACITY");
        assert_eq!(
            progress.line(),
            "-- train-41 waits: NO_CAPACITY   0s   Ctrl-C leaves it running --"
        );
        let narrow = progress.line_within(60);
        assert_eq!(narrow.chars().count(), 60, "{narrow}");
        assert!(
            narrow.contains("~   0s   Ctrl-C leaves it running --"),
            "{narrow}"
        );
        let json: serde_json::Value = serde_json::from_str(&progress.json()).expect("JSON");
        assert_eq!(json["state"], "waits: NO_CAPACITY");
    }
}
