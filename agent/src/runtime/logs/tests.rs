//! Reader and writer of logs together, across rotations.

use std::path::Path;

use super::*;
use crate::runtime::shim::log_for_tests as writer;

fn all(reader: &mut LogReader) -> Vec<u8> {
    let mut bytes = Vec::new();
    loop {
        let lines = reader.read().expect("readable");
        if lines.is_empty() {
            return bytes;
        }
        bytes.extend(lines.iter().flat_map(LogLine::bytes));
    }
}

fn names(directory: &Path) -> Vec<String> {
    let mut names: Vec<String> = std::fs::read_dir(directory)
        .expect("readable")
        .map(|entry| {
            entry
                .expect("readable")
                .file_name()
                .to_string_lossy()
                .into_owned()
        })
        .collect();
    names.sort();
    names
}

#[test]
fn output_comes_back_byte_for_byte_also_binary_and_without_a_last_line_end() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let mut log = writer(directory.path(), 10 << 20, 5);
    let mut wrote: Vec<u8> = (0..=255).cycle().take(100_000).collect();
    wrote.extend(vec![b'x'; 50_000]);

    for piece in wrote.chunks(777) {
        log(Some((Stream::Stdout, piece, 1)));
    }
    log(None);

    let mut reader = LogReader::open(directory.path(), Begin::default()).expect("readable");
    assert_eq!(all(&mut reader), wrote);
    let text = std::fs::read(directory.path().join("log")).expect("readable");
    let longest = text.split(|byte| *byte == b'\n').map(<[u8]>::len).max();
    assert!(
        longest < Some(17 << 10),
        "lines are split at 16 KiB: {longest:?}"
    );
}

#[test]
fn a_reader_that_follows_loses_and_repeats_nothing_across_rotations() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let mut log = writer(directory.path(), 300, 4);
    let mut reader = LogReader::open(directory.path(), Begin::default()).expect("readable");
    let (mut wrote, mut read) = (String::new(), Vec::new());

    for number in 0..500 {
        let line = format!("line {number}\n");
        log(Some((Stream::Stdout, line.as_bytes(), 1)));
        wrote.push_str(&line);
        if number % 7 == 0 {
            read.extend(all(&mut reader));
        }
        if number % 35 == 0 {
            // As another process that was only told the place.
            let place = reader.position().expect("has read");
            reader = LogReader::resume(directory.path(), place).expect("readable");
        }
    }
    read.extend(all(&mut reader));

    assert_eq!(String::from_utf8(read).expect("text"), wrote);
    assert_eq!(names(directory.path()), ["log", "log.1", "log.2", "log.3"]);
}

#[test]
fn a_reader_left_behind_goes_on_with_the_oldest_that_is_kept() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let mut log = writer(directory.path(), 200, 2);
    log(Some((Stream::Stdout, b"first\n", 1)));
    let mut reader = LogReader::open(directory.path(), Begin::default()).expect("readable");
    assert_eq!(all(&mut reader), b"first\n");

    for number in 0..100 {
        log(Some((
            Stream::Stdout,
            format!("line {number}\n").as_bytes(),
            1,
        )));
    }

    let text = String::from_utf8(all(&mut reader)).expect("text");
    assert!(text.ends_with("line 99\n"), "{text}");
    let numbers: Vec<u32> = text
        .lines()
        .map(|line| line.trim_start_matches("line ").parse().expect("a number"))
        .collect();
    // The rest of its own file, then one gap where files are gone, then everything that is kept.
    let gaps = numbers
        .windows(2)
        .filter(|pair| pair[1] != pair[0] + 1)
        .count();
    assert!(gaps <= 1 && numbers.is_sorted(), "{numbers:?}");
}

#[test]
fn tail_and_since_cut_where_they_should() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let mut log = writer(directory.path(), 400, 5);
    for number in 1..=20_u64 {
        let line = format!("line {number}\n");
        log(Some((Stream::Stdout, line.as_bytes(), number * 1_000)));
    }
    let read = |begin| {
        let mut reader = LogReader::open(directory.path(), begin).expect("readable");
        String::from_utf8(all(&mut reader)).expect("text")
    };

    assert_eq!(
        read(Begin {
            tail: Some(2),
            since_ns: None
        }),
        "line 19\nline 20\n"
    );
    assert_eq!(
        read(Begin {
            tail: Some(0),
            since_ns: None
        }),
        ""
    );
    assert_eq!(
        read(Begin {
            tail: Some(1000),
            since_ns: None
        })
        .lines()
        .count(),
        20
    );
    assert_eq!(
        read(Begin {
            tail: None,
            since_ns: Some(19_000)
        }),
        "line 19\nline 20\n"
    );
}

#[test]
fn a_log_that_is_not_there_yet_is_empty_and_then_is_followed() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let mut reader = LogReader::open(directory.path(), Begin::default()).expect("not there yet");
    assert_eq!(all(&mut reader), b"");

    writer(directory.path(), 1000, 2)(Some((Stream::Stderr, b"now\n", 1)));

    assert_eq!(all(&mut reader), b"now\n");
}
