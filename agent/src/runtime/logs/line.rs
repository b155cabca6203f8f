//! One line of a log file, in the form that CRI runtimes write:
//! `<time> <stdout|stderr> <F|P> <bytes>`, where `P` says that the line goes on.
//!
//! What a task wrote comes out again byte for byte: a `P` adds nothing, an `F` adds the line end. A
//! last line without line end is a `P`.

use std::io::Write;

/// Content of a line beyond this goes into the next one.
pub const MOST_CONTENT: usize = 16 << 10;

/// Where a task wrote it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stream {
    /// Descriptor 1.
    Stdout,
    /// Descriptor 2.
    Stderr,
}

impl Stream {
    /// As written in the file.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Stdout => "stdout",
            Self::Stderr => "stderr",
        }
    }
}

/// One line of a log file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogLine {
    /// Unix nanoseconds.
    pub at_ns: u64,
    /// Where it was written.
    pub stream: Stream,
    /// Whether the task's line ends here.
    pub whole: bool,
    /// What was written, without the line end.
    pub content: Vec<u8>,
}

impl LogLine {
    /// The bytes as the task wrote them.
    #[must_use]
    pub fn bytes(&self) -> Vec<u8> {
        let mut bytes = self.content.clone();
        if self.whole {
            bytes.push(b'\n');
        }
        bytes
    }
}

/// The head of a line: everything before the content.
#[must_use]
pub fn head(at_ns: u64, stream: Stream, whole: bool) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(44);
    let (date, nanos) = (
        Civil::from_unix(at_ns / 1_000_000_000),
        at_ns % 1_000_000_000,
    );
    let Civil {
        year,
        month,
        day,
        hour,
        minute,
        second,
    } = date;
    let tag = if whole { 'F' } else { 'P' };
    let stream = stream.name();
    let written = write!(
        bytes,
        "{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{nanos:09}Z \
         {stream} {tag} "
    );
    debug_assert!(written.is_ok(), "a Vec takes every write");
    bytes
}

/// All whole lines in `bytes` and how many bytes they take. Lines without meaning are passed over.
#[must_use]
pub fn parse_lines(bytes: &[u8]) -> (Vec<LogLine>, usize) {
    let mut lines = Vec::new();
    let mut used = 0;
    for line in bytes.split_inclusive(|byte| *byte == b'\n') {
        let Some(line) = line.strip_suffix(b"\n") else {
            break;
        };
        used += line.len() + 1;
        lines.extend(parse(line));
    }
    (lines, used)
}

fn parse(line: &[u8]) -> Option<LogLine> {
    let mut parts = line.splitn(4, |byte| *byte == b' ');
    let at_ns = parse_time(std::str::from_utf8(parts.next()?).ok()?)?;
    let stream = match parts.next()? {
        b"stdout" => Stream::Stdout,
        b"stderr" => Stream::Stderr,
        _ => return None,
    };
    // The tag may carry more, after colons.
    let whole = match parts.next()?.split(|byte| *byte == b':').next()? {
        b"F" => true,
        b"P" => false,
        _ => return None,
    };
    Some(LogLine {
        at_ns,
        stream,
        whole,
        content: parts.next()?.to_vec(),
    })
}

/// A time in UTC: "2026-01-31T23:59:59.000000001Z".
fn parse_time(text: &str) -> Option<u64> {
    let (date, time) = text.strip_suffix('Z')?.split_once('T')?;
    let mut date = date.split('-').map(|part| part.parse::<u64>().ok());
    let (year, month, day) = (date.next()??, date.next()??, date.next()??);
    let (time, fraction) = time.split_once('.').unwrap_or((time, "0"));
    let mut time = time.split(':').map(|part| part.parse::<u64>().ok());
    let (hour, minute, second) = (time.next()??, time.next()??, time.next()??);
    if !(1970..3000).contains(&year) || !(1..=12).contains(&month) || !(1..=31).contains(&day) {
        return None;
    }
    if hour > 23 || minute > 59 || second > 60 || fraction.is_empty() || fraction.len() > 9 {
        return None;
    }
    let nanos = fraction.parse::<u64>().ok()? * 10_u64.pow(9 - u32::try_from(fraction.len()).ok()?);
    let days = days_before(year, month) + day - 1;
    Some((((days * 24 + hour) * 60 + minute) * 60 + second) * 1_000_000_000 + nanos)
}

struct Civil {
    year: u64,
    month: u64,
    day: u64,
    hour: u64,
    minute: u64,
    second: u64,
}

fn is_leap(year: u64) -> bool {
    (year.is_multiple_of(4) && !year.is_multiple_of(100)) || year.is_multiple_of(400)
}

fn days_in(year: u64, month: u64) -> u64 {
    match month {
        2 if is_leap(year) => 29,
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

/// Days from 1970-01-01 to the first of this month.
fn days_before(year: u64, month: u64) -> u64 {
    let years = (year - 1970) * 365;
    // Leap days of all years before this one, since 1970.
    let before = year - 1;
    let leaps = (before / 4 - before / 100 + before / 400) - (1969 / 4 - 1969 / 100 + 1969 / 400);
    years + leaps + (1..month).map(|month| days_in(year, month)).sum::<u64>()
}

impl Civil {
    fn from_unix(seconds: u64) -> Self {
        let (days, rest) = (seconds / 86_400, seconds % 86_400);
        // Never too late: a year has at least 365 days; at most a few steps back.
        let mut year = 1970 + days / 365;
        while days_before(year, 1) > days {
            year -= 1;
        }
        let mut day = days - days_before(year, 1);
        let mut month = 1;
        while day >= days_in(year, month) {
            day -= days_in(year, month);
            month += 1;
        }
        let (hour, minute, second) = (rest / 3600, rest / 60 % 60, rest % 60);
        Self {
            year,
            month,
            day: day + 1,
            hour,
            minute,
            second,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn times_are_written_as_everybody_writes_them() {
        let text = |at| String::from_utf8(head(at, Stream::Stdout, true)).expect("ASCII");

        assert_eq!(text(0), "1970-01-01T00:00:00.000000000Z stdout F ");
        // Known pairs, from date(1).
        assert_eq!(
            text(951_782_400_000_000_001),
            "2000-02-29T00:00:00.000000001Z stdout F "
        );
        assert_eq!(
            text(1_798_761_599_000_000_000),
            "2026-12-31T23:59:59.000000000Z stdout F "
        );
    }

    #[test]
    fn lines_without_meaning_are_passed_over_and_a_cut_one_waits() {
        let text = b"nonsense\n2026-01-01T00:00:00Z stderr P half\n2026-01-01T00:00:00Z std";

        let (lines, used) = parse_lines(text);

        assert_eq!(lines.len(), 1);
        assert_eq!(lines[0].bytes(), b"half");
        assert_eq!(used, text.len() - b"2026-01-01T00:00:00Z std".len());
    }

    proptest! {
        #[test]
        fn every_line_comes_back_as_it_was_written(
            at_ns in 0_u64..16_000_000_000_000_000_000,
            content in prop::collection::vec(
                any::<u8>().prop_map(|byte| if byte == b'\n' { 0 } else { byte }),
                0..80,
            ),
            whole in any::<bool>(),
        ) {
            let mut bytes = head(at_ns, Stream::Stderr, whole);
            bytes.extend(&content);
            bytes.push(b'\n');
            let (lines, used) = parse_lines(&bytes);
            prop_assert_eq!(used, bytes.len());
            prop_assert_eq!(lines, vec![LogLine { at_ns, stream: Stream::Stderr, whole, content }]);
        }
    }
}
