//! The job file: TOML, every key known or refused by name.

use std::collections::BTreeMap;
use std::io::Read as _;
use std::path::Path;

use mete_model::{Bytes, Code, MilliCpu, Span};
use mete_proto::batch::v1::JobSpec;
use mete_proto::types::v1::Shape;
use serde::Deserialize;
use toml::Spanned;

use super::job;
use crate::args::values::{self, DeviceCount};
use crate::cli::support::context::bad_toml;
use crate::cli::support::error::{CliError, Outcome};

/// Largest job file.
const MOST_BYTES: u64 = 256 << 10;

/// The only schema there is.
const SCHEMA: &str = "mete.job/v1";

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct File {
    schema: Option<Spanned<String>>,
    name: Option<String>,
    role: Option<String>,
    run: Run,
    task: Task,
    limits: Limits,
    logs: Logs,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Run {
    command: Vec<String>,
    script: Option<Spanned<String>>,
    env: BTreeMap<String, String>,
    chdir: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Task {
    count: Option<Spanned<u32>>,
    gang: Option<Spanned<bool>>,
    min: Option<Spanned<u32>>,
    array: Option<Spanned<String>>,
    throttle: Option<Spanned<u32>>,
    cpus: Option<Spanned<Amount>>,
    pinned: Option<Spanned<bool>>,
    memory: Option<Spanned<Amount>>,
    disk: Option<Spanned<Amount>>,
    gpus: Option<Spanned<Gpus>>,
    devices: BTreeMap<String, Spanned<Amount>>,
    priority: Option<i32>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Limits {
    time: Option<Spanned<String>>,
    retries: Option<u32>,
    stop_time: Option<Spanned<String>>,
    no_reclaim: Option<Spanned<bool>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Logs {
    keep: Option<Spanned<String>>,
}

/// A whole number, a decimal one, or a text with a unit.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Amount {
    Whole(u64),
    Decimal(f64),
    Text(String),
}

impl Amount {
    /// As it would be typed; the model's readers say what is permitted.
    fn text(&self) -> String {
        match self {
            Self::Whole(number) => number.to_string(),
            Self::Decimal(number) => number.to_string(),
            Self::Text(text) => text.clone(),
        }
    }
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Gpus {
    Amount(Amount),
    Table(GpuTable),
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct GpuTable {
    count: Amount,
    model: Option<String>,
    same_numa: Option<bool>,
}

/// Reads a job file.
///
/// # Errors
/// `FILE` when it cannot be read; `USAGE` with file, line and what is permitted; `UNSUPPORTED` with
/// the key that this release does not do.
pub fn read(path: &Path) -> Outcome<JobSpec> {
    let unreadable = |error: std::io::Error| {
        CliError::file("read", path, &error).exit(crate::cli::support::error::exit::USAGE)
    };
    // Not by its size: a pipe or a device has none, and may never end.
    let mut bytes = Vec::new();
    std::fs::File::open(path)
        .and_then(|file| file.take(MOST_BYTES + 1).read_to_end(&mut bytes))
        .map_err(unreadable)?;
    if bytes.len() as u64 > MOST_BYTES {
        let sentence = format!(
            "{} has more than {}, the most that a job file may have",
            path.display(),
            Bytes(MOST_BYTES)
        );
        return Err(CliError::new(Code::Usage, sentence));
    }
    let text = text_of(path, bytes)?;
    if text.starts_with("#!") {
        let sentence = format!(
            "{} is a script, not a job file; scripts come later",
            path.display()
        );
        return Err(CliError::new(Code::Unsupported, sentence).next(
            format!("mete submit -- sh {}", path.display()),
            "run it as a command",
        ));
    }
    let file: File = toml::from_str(&text).map_err(|error| bad_toml(path, &text, &error))?;
    Reader { path, text: &text }.job(file)
}

/// The file's text. Editors of some systems put a mark before it that says UTF-8: it means nothing.
fn text_of(path: &Path, bytes: Vec<u8>) -> Outcome<String> {
    let wrong = |what: &str| {
        let sentence = format!("{} {what}, so it is no job file", path.display());
        Err(CliError::new(Code::Usage, sentence).fact("a job file is text in UTF-8"))
    };
    if bytes.starts_with(&[0xff, 0xfe]) || bytes.starts_with(&[0xfe, 0xff]) {
        return wrong("is text in UTF-16; save it as UTF-8");
    }
    match String::from_utf8(bytes) {
        Ok(text) => Ok(match text.strip_prefix('\u{feff}') {
            Some(rest) => rest.to_owned(),
            None => text,
        }),
        Err(_) => wrong("is not text in UTF-8"),
    }
}

struct Reader<'a> {
    path: &'a Path,
    text: &'a str,
}

impl Reader<'_> {
    fn job(&self, file: File) -> Outcome<JobSpec> {
        if let Some(schema) = file.schema.filter(|schema| schema.get_ref() != SCHEMA) {
            let fault = format!(
                "schema '{}' is not known, it is \"{SCHEMA}\"",
                schema.get_ref()
            );
            return Err(self.wrong(&schema, fault));
        }
        self.refuse(&file.run.script, "run.script: give run.command")?;
        self.refuse(&file.limits.stop_time, "limits.stop_time")?;
        self.refuse(&file.limits.no_reclaim, "limits.no_reclaim")?;
        self.refuse(&file.logs.keep, "logs.keep")?;
        self.refuse(&file.task.min, "task.min")?;
        if let Some(gang) = file.task.gang.as_ref().filter(|gang| *gang.get_ref()) {
            return Err(self.later(gang, "task.gang"));
        }
        let time = match &file.limits.time {
            // As `--time`: nothing at all would be the same as no limit.
            Some(time) => {
                let Span(limit) = values::some_time(time.get_ref())
                    .map_err(|fault| self.wrong(time, format!("limits.time: {fault}")))?;
                limit
            }
            None => 0,
        };
        Ok(JobSpec {
            name: file.name.unwrap_or_default(),
            role: file.role.unwrap_or_default(),
            command: file.run.command,
            environment: file.run.env,
            working_directory: file.run.chdir.unwrap_or_default(),
            array: self.array(&file.task)?,
            throttle: self.throttle(&file.task)?,
            priority: file.task.priority.unwrap_or(0),
            shape: Some(self.shape(&file.task)?),
            retries: file.limits.retries.unwrap_or(0),
            time_limit_ms: time,
            ..JobSpec::default()
        })
    }

    /// As `--throttle`: nothing at all would be the same as no throttle.
    fn throttle(&self, task: &Task) -> Outcome<u32> {
        match &task.throttle {
            Some(throttle) if *throttle.get_ref() == 0 => {
                let fault = "task.throttle is at least 1; leave it out for none".to_owned();
                Err(self.wrong(throttle, fault))
            }
            Some(throttle) => Ok(*throttle.get_ref()),
            None => Ok(0),
        }
    }

    /// `count = 4` is the array `0-3`.
    fn array(&self, task: &Task) -> Outcome<String> {
        match (&task.array, &task.count) {
            (Some(_), Some(count)) => Err(self.wrong(
                count,
                "task.count and task.array say the same; give one".to_owned(),
            )),
            (Some(array), None) => Ok(array.get_ref().clone()),
            (None, Some(count)) => match *count.get_ref() {
                0 => Err(self.wrong(count, "task.count is at least 1".to_owned())),
                1 => Ok(String::new()),
                count => Ok(format!("0-{}", count.saturating_sub(1))),
            },
            (None, None) => Ok(String::new()),
        }
    }

    fn shape(&self, task: &Task) -> Outcome<Shape> {
        let mut shape = Shape::default();
        let pinned = task.pinned.as_ref().filter(|pinned| *pinned.get_ref());
        if let Some(cpus) = &task.cpus {
            let MilliCpu(milli) = values::some_cpus(&cpus.get_ref().text())
                .map_err(|fault| self.wrong(cpus, format!("task.cpus: {fault}")))?;
            match pinned {
                Some(pinned) if !milli.is_multiple_of(1000) => {
                    let fault = "pinned cores are whole: task.cpus is not".to_owned();
                    return Err(self.wrong(pinned, fault));
                }
                Some(_) => shape.cores = u32::try_from(milli / 1000).unwrap_or(u32::MAX),
                None => shape.cpu_milli = milli,
            }
        } else if let Some(pinned) = pinned {
            return Err(self.wrong(pinned, "task.pinned needs task.cpus".to_owned()));
        }
        if let Some(memory) = &task.memory {
            shape.memory_bytes = self.bytes(memory)?.0;
        }
        if let Some(disk) = &task.disk {
            shape.disk_bytes = self.bytes(disk)?.0;
        }
        if let Some(gpus) = &task.gpus {
            shape.devices.push(job::want(&self.gpus(gpus)?));
        }
        for (class, amount) in &task.devices {
            let text = format!("{class}={}", amount.get_ref().text());
            let device = values::device_count(&text).map_err(|fault| self.wrong(amount, fault))?;
            shape.devices.push(job::want(&device));
        }
        Ok(shape)
    }

    fn bytes(&self, amount: &Spanned<Amount>) -> Outcome<Bytes> {
        values::bytes(&amount.get_ref().text()).map_err(|fault| self.wrong(amount, fault))
    }

    fn gpus(&self, gpus: &Spanned<Gpus>) -> Outcome<DeviceCount> {
        let text = match gpus.get_ref() {
            Gpus::Amount(amount) => amount.text(),
            Gpus::Table(table) => {
                if table.same_numa == Some(true) {
                    return Err(self.later(gpus, "task.gpus.same_numa"));
                }
                let model = table
                    .model
                    .as_ref()
                    .map_or_else(String::new, |model| format!(":{model}"));
                format!("{}{model}", table.count.text())
            }
        };
        values::gpus(&text).map_err(|fault| self.wrong(gpus, fault))
    }

    fn line(&self, place: &Spanned<impl Sized>) -> usize {
        let before = self.text.get(..place.span().start).unwrap_or_default();
        before.matches('\n').count().saturating_add(1)
    }

    fn wrong(&self, place: &Spanned<impl Sized>, fault: String) -> CliError {
        let line = self.line(place);
        CliError::new(
            Code::Usage,
            format!("{}, line {line}: {fault}", self.path.display()),
        )
    }

    fn later(&self, place: &Spanned<impl Sized>, key: &str) -> CliError {
        let line = self.line(place);
        let sentence = format!(
            "{}, line {line}: this release does not do {key}",
            self.path.display()
        );
        CliError::new(Code::Unsupported, sentence).exit(crate::cli::support::error::exit::USAGE)
    }

    fn refuse<T>(&self, key: &Option<Spanned<T>>, name: &str) -> Outcome {
        key.as_ref()
            .map_or(Ok(()), |place| Err(self.later(place, name)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_text(text: &str) -> Outcome<JobSpec> {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("job.toml");
        std::fs::write(&path, text).expect("written");
        read(&path)
    }

    #[test]
    fn a_job_file_says_what_flags_say() {
        let text = r#"
schema = "mete.job/v1"
name   = "train"
role   = "ml/vision"
[run]
command = ["python", "train.py"]
env     = { OMP_NUM_THREADS = "8" }
[task]
count  = 4
cpus   = 8
pinned = true
memory = "32GiB"
gpus   = { count = 2, model = "a100" }
[limits]
time    = "4h"
retries = 2
"#;
        let spec = read_text(text).expect("a job");
        let shape = spec.shape.expect("a shape");
        assert_eq!(
            (shape.cores, shape.cpu_milli, shape.memory_bytes),
            (8, 0, 32 << 30)
        );
        assert_eq!(
            (shape.devices[0].class.as_str(), shape.devices[0].count),
            ("gpu/a100", 2)
        );
        assert_eq!(spec.array, "0-3");
        assert_eq!((spec.time_limit_ms, spec.retries), (4 * 3_600_000, 2));
    }

    #[test]
    fn every_mistake_names_its_line_and_what_is_permitted() {
        let table = [
            ("naem = \"x\"\n", "line 1", "did you mean 'name'"),
            ("[task]\ncpu = 2\n", "line 2", "did you mean 'cpus'"),
            (
                "[task]\ncpus = 2\nmemory = \"much\"\n",
                "line 3",
                "KiB, MiB, GiB",
            ),
            ("[task]\ncpus = 0.5\npinned = true\n", "line 3", "whole"),
            ("[task]\ncount = 0\n", "line 2", "at least 1"),
            (
                "[task]\nthrottle = 0\n",
                "line 2",
                "task.throttle is at least 1",
            ),
            ("[task]\ncpus = 0\n", "line 2", "more than nothing"),
            (
                "[task]\ncpus = \"0m\"\npinned = true\n",
                "line 2",
                "more than nothing",
            ),
            (
                "[run]\ncommand = \"echo hi\"\n",
                "line 2",
                "[\"echo\", \"hi\"]",
            ),
            ("name = [\"x\"]\n", "line 1", "one text in quotes"),
            ("name = train\n", "line 1", "in quotes"),
            ("name = 'train\n", "line 1", "quote"),
            ("[run]\ncommand = [\"sh\", \"a\tb]\n", "line 2", "quote"),
            ("name = “train”\n", "line 1", "typographic"),
            ("[limits]\ntime = \"soon\"\n", "line 2", "500ms, 30s"),
            (
                "[limits]\nretries = 1\ntime = \"0s\"\n",
                "line 3",
                "at least 1ms",
            ),
            ("schema = \"mete.job/v9\"\n", "line 1", "mete.job/v1"),
            ("[run\n", "line 1", ""),
        ];
        for (text, line, permitted) in table {
            let error = read_text(text).expect_err(text);
            assert_eq!(error.exit, 2, "{error}");
            assert!(error.sentence.contains(line), "{text}: {error}");
            assert!(error.sentence.contains(permitted), "{text}: {error}");
        }
    }

    #[test]
    fn what_this_release_does_not_do_is_refused_by_name() {
        for (text, key) in [
            ("[task]\ngang = true\n", "task.gang"),
            ("[task]\nmin = 2\n", "task.min"),
            ("[limits]\nno_reclaim = true\n", "limits.no_reclaim"),
            ("[limits]\nstop_time = \"30s\"\n", "limits.stop_time"),
            ("[logs]\nkeep = \"7d\"\n", "logs.keep"),
            ("[run]\nscript = \"x.sh\"\n", "run.script"),
            (
                "[task]\ngpus = { count = 1, same_numa = true }\n",
                "task.gpus.same_numa",
            ),
        ] {
            let error = read_text(text).expect_err(text);
            assert_eq!(&*error.code, "UNSUPPORTED");
            assert!(error.sentence.contains(key), "{error}");
        }
        assert!(read_text("[task]\ngang = false\n").is_ok());
    }

    #[test]
    fn a_file_without_an_end_is_refused() {
        let error = read(Path::new("/dev/zero")).expect_err("no job file");
        assert!(error.sentence.contains("has more than 256 KiB"), "{error}");
    }

    #[test]
    fn the_mark_of_utf_8_before_a_file_means_nothing_and_utf_16_is_named() {
        let spec = read_text("\u{feff}name = \"x\"\n[run]\ncommand = [\"true\"]\n");
        assert_eq!(spec.expect("a job").name, "x");
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("job.toml");
        let wide: Vec<u8> = "\u{feff}name"
            .encode_utf16()
            .flat_map(u16::to_le_bytes)
            .collect();
        std::fs::write(&path, wide).expect("written");
        let error = read(&path).expect_err("UTF-16");
        assert!(
            error.sentence.contains("UTF-16; save it as UTF-8"),
            "{error}"
        );
    }

    #[test]
    fn a_script_is_told_apart_from_a_job_file() {
        let error = read_text("#!/bin/sh\necho\n").expect_err("a script");
        assert!(error.next[0].0.contains("-- sh"), "{error}");
    }
}
