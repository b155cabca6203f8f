//! A job out of flags, a file and the caller's surroundings.

use std::collections::BTreeMap;
use std::path::PathBuf;

use mete_model::{Code, MilliCpu};
use mete_proto::batch::v1::JobSpec;
use mete_proto::types::v1::{DeviceWant, Shape};

use super::file;
use crate::args::batch::JobFlags;
use crate::args::values::DeviceCount;
use crate::cli::support::error::{CliError, Outcome};

/// CPUs of an element when nothing is said.
const USUAL_CPUS: MilliCpu = MilliCpu(500);

/// Longest name made of a command's.
const NAME_BYTES: usize = 40;

/// Variables of the caller that a job gets.
const INHERITED: [&str; 6] = ["PATH", "HOME", "USER", "LANG", "SHELL", "TMPDIR"];

/// The job that is meant: the file first, then the flags over it, then what is usual.
///
/// # Errors
/// `USAGE` when there is no command, or the file has a mistake; `FILE` when it cannot be read.
pub fn spec(flags: &JobFlags, file: Option<&PathBuf>, command: Vec<String>) -> Outcome<JobSpec> {
    let mut spec = match file.or(flags.file.as_ref()) {
        Some(path) => file::read(path)?,
        None => JobSpec::default(),
    };
    if !command.is_empty() {
        spec.command = command;
    }
    if spec.command.is_empty() {
        return Err(CliError::new(Code::Usage, "the job has no command")
            .next("mete run -- echo hello", "the command goes after `--`")
            .next("mete submit job.toml", "or into a job file"));
    }
    apply(flags, &mut spec);
    surround(flags, &mut spec)?;
    Ok(spec)
}

/// Flags go before the file.
fn apply(flags: &JobFlags, spec: &mut JobSpec) {
    let set = |to: &mut String, from: &Option<String>| {
        if let Some(from) = from {
            to.clone_from(from);
        }
    };
    set(&mut spec.name, &flags.name);
    set(&mut spec.role, &flags.role);
    set(&mut spec.array, &flags.array);
    let shape = spec.shape.get_or_insert_default();
    if let Some(MilliCpu(milli)) = flags.cpus {
        (shape.cpu_milli, shape.cores) = (milli, 0);
    }
    if let Some(cores) = flags.cores {
        (shape.cpu_milli, shape.cores) = (0, cores);
    }
    if let Some(memory) = flags.memory {
        shape.memory_bytes = memory.0;
    }
    if let Some(disk) = flags.disk {
        shape.disk_bytes = disk.0;
    }
    if let Some(gpus) = &flags.gpus {
        shape
            .devices
            .retain(|want| want.class != "gpu" && !want.class.starts_with("gpu/"));
        shape.devices.push(want(gpus));
    }
    for device in &flags.devices {
        shape.devices.retain(|want| want.class != device.class);
        shape.devices.push(want(device));
    }
    if shape.cpu_milli == 0 && shape.cores == 0 {
        shape.cpu_milli = USUAL_CPUS.0;
    }
    spec.throttle = flags.throttle.unwrap_or(spec.throttle);
    spec.retries = flags.retries.unwrap_or(spec.retries);
    spec.time_limit_ms = flags.time.map_or(spec.time_limit_ms, |time| time.0);
    spec.priority = flags.priority.unwrap_or(spec.priority);
    if spec.name.is_empty() {
        spec.name = name_of(&spec.command);
    }
}

/// Devices as a claim wants them.
#[must_use]
pub fn want(device: &DeviceCount) -> DeviceWant {
    let whole = u32::try_from(device.milli / 1000).unwrap_or(u32::MAX);
    let part = u32::try_from(device.milli).unwrap_or(1000);
    let (count, milli) = if whole == 0 { (1, part) } else { (whole, 1000) };
    DeviceWant {
        class: device.class.clone(),
        count,
        milli,
    }
}

/// The caller's directory, user and a few variables; what was said explicitly goes before them.
fn surround(flags: &JobFlags, spec: &mut JobSpec) -> Outcome {
    let directory = match &flags.chdir {
        Some(directory) => Some(
            std::path::absolute(directory)
                .map_err(|error| CliError::file("find", directory, &error))?,
        ),
        None if spec.working_directory.is_empty() => std::env::current_dir().ok(),
        None => None,
    };
    if let Some(directory) = directory {
        let text = directory.into_os_string().into_string().map_err(|odd| {
            let sentence = format!("the working directory {} is not UTF-8", odd.display());
            CliError::new(Code::Usage, sentence).next("--chdir /", "run it somewhere else")
        })?;
        spec.working_directory = text;
    }
    let inherited = INHERITED
        .iter()
        .filter_map(|name| Some((*name, std::env::var(name).ok()?)));
    let mut environment: BTreeMap<String, String> = inherited
        .map(|(name, value)| (name.to_owned(), value))
        .collect();
    environment.append(&mut spec.environment);
    environment.extend(flags.environment.iter().cloned());
    spec.environment = environment;
    spec.user = user();
    Ok(())
}

/// Who the caller is.
#[must_use]
pub fn user() -> String {
    let named = ["USER", "LOGNAME"]
        .into_iter()
        .find_map(|name| std::env::var(name).ok());
    named.filter(|name| !name.is_empty()).unwrap_or_else(|| {
        let number = rustix::process::getuid().as_raw().to_string();
        let accounts = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
        // Without a name the number says it.
        account(&accounts, &number).unwrap_or(number)
    })
}

/// The name of a user number in a file of accounts.
fn account(accounts: &str, number: &str) -> Option<String> {
    accounts.lines().find_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        (fields.nth(1)? == number).then(|| name.to_owned())
    })
}

/// The command's own name, made fit for a job's.
fn name_of(command: &[String]) -> String {
    let program = command.first().map(String::as_str).unwrap_or_default();
    let base = program.rsplit('/').next().unwrap_or_default();
    let fit = |c: char| {
        if c.is_ascii_alphanumeric() || matches!(c, '_' | '.') {
            c
        } else {
            '-'
        }
    };
    let name: String = base.chars().map(fit).take(NAME_BYTES).collect();
    let name = name.trim_matches(['-', '.']);
    if name.is_empty() {
        "job".to_owned()
    } else {
        name.to_owned()
    }
}

/// What a job asks of each element, for people.
#[must_use]
pub fn shape_text(shape: &Option<Shape>) -> String {
    let shape = shape.clone().unwrap_or_default();
    let mut words = Vec::new();
    if shape.cores > 0 {
        words.push(format!("{} exclusive cores", shape.cores));
    } else {
        words.push(format!("{} cpu", MilliCpu(shape.cpu_milli)));
    }
    if shape.memory_bytes > 0 {
        words.push(format!("{} memory", mete_model::Bytes(shape.memory_bytes)));
    }
    if shape.disk_bytes > 0 {
        words.push(format!("{} disk", mete_model::Bytes(shape.disk_bytes)));
    }
    for want in &shape.devices {
        let milli = if want.milli == 0 { 1000 } else { want.milli };
        let amount = u64::from(want.count).saturating_mul(u64::from(milli));
        words.push(format!("{} {}", MilliCpu(amount), want.class));
    }
    words.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<String> {
        text.split_whitespace().map(str::to_owned).collect()
    }

    #[test]
    fn a_job_without_a_command_is_told_where_it_goes() {
        let error = spec(&JobFlags::default(), None, Vec::new()).expect_err("no command");
        assert_eq!(error.exit, 2);
        assert!(
            error.to_string().contains("mete run -- echo hello"),
            "{error}"
        );
    }

    #[test]
    fn a_job_is_named_after_its_command_and_takes_half_a_cpu() {
        let spec = spec(&JobFlags::default(), None, words("/usr/bin/my+tool -x")).expect("a job");
        assert_eq!(spec.name, "my-tool");
        assert_eq!(spec.shape.expect("a shape").cpu_milli, 500);
        assert_eq!(spec.command, words("/usr/bin/my+tool -x"));
        assert!(!spec.working_directory.is_empty());
    }

    #[test]
    fn a_user_without_a_name_in_the_environment_is_looked_up() {
        let accounts =
            "root:x:0:0:root:/root:/bin/sh\nbroken\nada:x:1000:1000::/home/ada:/bin/sh\n";
        assert_eq!(account(accounts, "1000").as_deref(), Some("ada"));
        assert_eq!(account(accounts, "7"), None);
    }

    #[test]
    fn flags_go_before_the_file() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("job.toml");
        let text = "name = \"a\"\n[run]\ncommand = [\"x\"]\nenv = { A = \"1\", B = \"1\" }\n\
                    [task]\ncpus = 4\ngpus = 2\n";
        std::fs::write(&path, text).expect("written");
        let flags = JobFlags {
            name: Some("b".to_owned()),
            cores: Some(2),
            gpus: Some(DeviceCount {
                class: "gpu/t4".to_owned(),
                milli: 500,
            }),
            environment: vec![("B".to_owned(), "2".to_owned())],
            ..JobFlags::default()
        };
        let spec = spec(&flags, Some(&path), Vec::new()).expect("a job");
        let shape = spec.shape.expect("a shape");
        assert_eq!(
            (spec.name.as_str(), shape.cpu_milli, shape.cores),
            ("b", 0, 2)
        );
        let gpu = DeviceWant {
            class: "gpu/t4".to_owned(),
            count: 1,
            milli: 500,
        };
        assert_eq!(shape.devices, [gpu]);
        assert_eq!(spec.environment["A"], "1");
        assert_eq!(spec.environment["B"], "2");
    }
}
