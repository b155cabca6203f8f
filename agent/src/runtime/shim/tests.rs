//! The log on a disk without room.

use super::log::LogWriter;
use crate::runtime::logs::{Begin, LogLine, LogReader, Stream};

/// A file system of its own with very little room, for as long as it lives.
struct TinyDisk(tempfile::TempDir);

impl TinyDisk {
    fn mount(kilobytes: u32) -> Option<Self> {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let mounted = std::process::Command::new("mount")
            .args(["-t", "tmpfs", "-o", &format!("size={kilobytes}k"), "tmpfs"])
            .arg(directory.path())
            .status();
        mounted
            .is_ok_and(|status| status.success())
            .then_some(Self(directory))
    }
}

impl Drop for TinyDisk {
    fn drop(&mut self) {
        let _left = std::process::Command::new("umount")
            .arg(self.0.path())
            .status();
    }
}

#[test]
fn a_full_disk_drops_output_counts_it_and_says_so_when_there_is_room_again() {
    let Some(disk) = TinyDisk::mount(64) else {
        eprintln!("NOT TESTED: mounting a tmpfs needs root");
        return;
    };
    let path = disk.0.path();
    let mut log = LogWriter::open(path, 10 << 20, 5).expect("room for an empty file");
    let filler = path.join("filler");
    log.write(Stream::Stdout, b"before\n", 1);
    std::fs::write(&filler, vec![0; 80 << 10]).expect_err("less room than that");

    log.write(Stream::Stdout, &[b'x'; 9_999], 2);
    log.write(Stream::Stdout, b"\n", 2);
    std::fs::remove_file(&filler).expect("there");
    log.write(Stream::Stdout, b"after\n", 3);
    log.finish(4);

    assert_eq!(log.dropped_total(), 10_000, "the line and its end");
    let mut reader = LogReader::open(path, Begin::default()).expect("readable");
    let lines = reader.read().expect("readable");
    let text = String::from_utf8(lines.iter().flat_map(LogLine::bytes).collect()).expect("text");
    assert_eq!(
        text,
        "before\n[mete: 10000 bytes of output dropped: no room on the disk]\nafter\n"
    );
}
