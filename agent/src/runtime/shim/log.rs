//! Writes a task's output into its log files: lines as CRI runtimes write them, put aside by rename
//! when a file is full, never truncated. A full disk drops bytes and counts them; a slow one waits.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use crate::runtime::logs::line::{MOST_CONTENT, Stream, head};
use crate::runtime::logs::{MOST_FILES, file_path};

/// Both streams of one run, into one file.
#[derive(Debug)]
pub(super) struct LogWriter {
    directory: PathBuf,
    file: File,
    /// Bytes in the present file, up to the end of its last line.
    size: u64,
    most_bytes: u64,
    files: u32,
    stdout: Vec<u8>,
    stderr: Vec<u8>,
    /// Formatted lines not yet written.
    lines: Vec<u8>,
    /// How much of the task's own output is in `lines`.
    content: u64,
    /// Lost since the last marker line.
    dropped: u64,
    /// Lost in all.
    dropped_total: u64,
}

impl LogWriter {
    /// Opens the log in `directory`, which is made if it is not there.
    pub(super) fn open(directory: &Path, most_bytes: u64, files: u32) -> io::Result<Self> {
        DirBuilder::new()
            .recursive(true)
            .mode(0o755)
            .create(directory)?;
        let file = open_append(&file_path(directory, 0))?;
        let size = file.metadata()?.len();
        Ok(Self {
            directory: directory.to_owned(),
            file,
            size,
            most_bytes: most_bytes.max(1),
            files: files.clamp(1, MOST_FILES),
            stdout: Vec::new(),
            stderr: Vec::new(),
            lines: Vec::new(),
            content: 0,
            dropped: 0,
            dropped_total: 0,
        })
    }

    /// Takes what the task wrote. Lines that have ended are in the file afterwards.
    pub(super) fn write(&mut self, stream: Stream, bytes: &[u8], at_ns: u64) {
        let mut rest = std::mem::take(self.partial(stream));
        rest.extend_from_slice(bytes);
        let mut at = 0;
        loop {
            let piece = rest.get(at..).unwrap_or_default();
            match piece
                .iter()
                .take(MOST_CONTENT + 1)
                .position(|byte| *byte == b'\n')
            {
                Some(end) => {
                    self.line(stream, piece.get(..end).unwrap_or_default(), true, at_ns);
                    at += end + 1;
                }
                None if piece.len() > MOST_CONTENT => {
                    let part = piece.get(..MOST_CONTENT).unwrap_or_default();
                    self.line(stream, part, false, at_ns);
                    at += MOST_CONTENT;
                }
                None => break,
            }
        }
        rest.drain(..at.min(rest.len()));
        *self.partial(stream) = rest;
        self.flush();
    }

    /// Takes the last line of each stream, though it has not ended.
    pub(super) fn finish(&mut self, at_ns: u64) {
        for stream in [Stream::Stdout, Stream::Stderr] {
            let rest = std::mem::take(self.partial(stream));
            if !rest.is_empty() {
                self.line(stream, &rest, false, at_ns);
            }
        }
        self.flush();
    }

    /// How much of the task's output could not be kept, bytes.
    pub(super) fn dropped_total(&self) -> u64 {
        self.dropped_total
    }

    fn partial(&mut self, stream: Stream) -> &mut Vec<u8> {
        match stream {
            Stream::Stdout => &mut self.stdout,
            Stream::Stderr => &mut self.stderr,
        }
    }

    fn line(&mut self, stream: Stream, content: &[u8], whole: bool, at_ns: u64) {
        let head = head(at_ns, stream, whole);
        let length = size(&head) + size(content) + 1;
        let after = self.size + size(&self.lines) + length;
        if after > self.most_bytes && self.size + size(&self.lines) > 0 {
            self.flush();
            self.rotate();
        }
        if self.dropped > 0 && self.lines.is_empty() {
            let text = format!(
                "[mete: {} bytes of output dropped: no room on the disk]",
                self.dropped
            );
            self.lines.extend(crate::runtime::logs::line::head(
                at_ns,
                Stream::Stderr,
                true,
            ));
            self.lines.extend(text.as_bytes());
            self.lines.push(b'\n');
        }
        self.lines.extend(head);
        self.lines.extend_from_slice(content);
        self.lines.push(b'\n');
        self.content += size(content) + u64::from(whole);
    }

    fn flush(&mut self) {
        if self.lines.is_empty() {
            return;
        }
        match self.file.write_all(&self.lines) {
            Ok(()) => {
                self.size += size(&self.lines);
                self.dropped = 0;
            }
            Err(_full) => {
                // Half a line would glue itself to the next one.
                let _best_effort = self.file.set_len(self.size);
                self.dropped += self.content;
                self.dropped_total += self.content;
            }
        }
        self.lines.clear();
        self.content = 0;
    }

    fn rotate(&mut self) {
        let path = |number| file_path(&self.directory, number);
        for number in (0..self.files.saturating_sub(1)).rev() {
            let renamed = std::fs::rename(path(number), path(number + 1));
            if renamed.is_err_and(|error| error.kind() != io::ErrorKind::NotFound) {
                // Going on in a file that is too long loses nothing; the next line tries again.
                return;
            }
        }
        if self.files == 1 && std::fs::remove_file(path(0)).is_err() {
            return;
        }
        if let Ok(file) = open_append(&path(0)) {
            self.file = file;
            self.size = 0;
        }
    }
}

fn open_append(path: &Path) -> io::Result<File> {
    OpenOptions::new()
        .append(true)
        .create(true)
        .mode(0o644)
        .open(path)
}

fn size(bytes: &[u8]) -> u64 {
    u64::try_from(bytes.len()).unwrap_or(u64::MAX)
}
