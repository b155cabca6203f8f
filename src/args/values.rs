//! Readers of values that the model has no type for. Each refusal says what is permitted.

use mete_agent::discover::part::{LEAST_CPU_MILLI, LEAST_MEMORY_BYTES};
use mete_model::{Bytes, MilliCpu, Span};

/// `NAME=VALUE`; the value may be empty and may hold further `=`.
pub fn key_value(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        Some(_) | None => Err("it has the form NAME=VALUE".to_owned()),
    }
}

/// `32GiB`, `500MB`, `0`. A bare number is refused: hardly anybody means bytes by it.
pub fn bytes(text: &str) -> Result<Bytes, String> {
    let bare = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    if bare && text.bytes().any(|byte| byte != b'0') {
        return Err(format!(
            "the unit is missing, such as {text}MiB or {text}GiB"
        ));
    }
    text.parse().map_err(|error| format!("{error}"))
}

/// `host:port`.
pub fn host_port(text: &str) -> Result<String, String> {
    let bad = || "it has the form HOST:PORT, such as 127.0.0.1:7443".to_owned();
    let (host, port) = text.rsplit_once(':').ok_or_else(bad)?;
    let plain = !host.is_empty() && !host.contains(['/', ' ', '@', '?', '#']);
    match port.parse::<u16>() {
        Ok(port) if plain && port > 0 => Ok(text.to_owned()),
        Ok(_) | Err(_) => Err(bad()),
    }
}

/// `CPUS,MEMORY` of one agent's share of its machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    /// CPUs.
    pub cpu: MilliCpu,
    /// Memory.
    pub memory: Bytes,
}

/// `500m,1GiB`; no part of a machine is smaller than 10m,64MiB.
pub fn share(text: &str) -> Result<Share, String> {
    let form = || "it has the form CPUS,MEMORY, such as 500m,1GiB".to_owned();
    let (cpu, memory) = text.split_once(',').ok_or_else(form)?;
    let cpu: MilliCpu = cpu.trim().parse().map_err(|error| format!("{error}"))?;
    let memory = bytes(memory.trim())?;
    if cpu.0 < LEAST_CPU_MILLI || memory.0 < LEAST_MEMORY_BYTES {
        return Err(format!(
            "the smallest part of a machine is {} CPUs and {}, such as 10m,64MiB",
            MilliCpu(LEAST_CPU_MILLI),
            Bytes(LEAST_MEMORY_BYTES)
        ));
    }
    Ok(Share { cpu, memory })
}

/// Some time, more than none.
pub fn some_time(text: &str) -> Result<Span, String> {
    let span: Span = text.parse().map_err(|error| format!("{error}"))?;
    if span == Span::ZERO {
        return Err("it must be more than nothing: at least 1ms, such as 30s or 5m".to_owned());
    }
    Ok(span)
}

/// Seconds between two looks, as `2`, `0.5` or `500ms`; `0` stands for "when something changes".
pub fn pause(text: &str) -> Result<Span, String> {
    let form = || "it is a number of seconds such as 2 or 0.5, or a time such as 500ms".to_owned();
    let milli = text
        .parse::<MilliCpu>()
        .map(|seconds| Span(seconds.0))
        .ok()
        .filter(|_| !text.ends_with('m'));
    let span = milli.or_else(|| text.parse().ok()).ok_or_else(form)?;
    if span.0 != 0 && span.0 < 100 || span.0 > 86_400_000 {
        return Err("two looks are 0.1 seconds to a day apart".to_owned());
    }
    Ok(span)
}

/// A directory, made absolute at once: daemons and what they start work in other directories.
pub fn directory(text: &str) -> Result<std::path::PathBuf, String> {
    std::path::absolute(text).map_err(|error| error.to_string())
}

/// A master by its node id: `m2` or `2`.
pub fn master(text: &str) -> Result<u64, String> {
    let number = text.strip_prefix('m').unwrap_or(text);
    match number.parse() {
        Ok(0) => Err("masters are numbered from 1, such as m1".to_owned()),
        Ok(id) => Ok(id),
        Err(_) => Err("a master is named by its number, such as m2".to_owned()),
    }
}

/// A node's name, by the rule of agents and masters.
pub fn node_name(text: &str) -> Result<String, String> {
    mete_agent::config::check_node_name(text).map_err(|bad| bad.rule.to_owned())?;
    Ok(text.to_owned())
}

/// The id of a cluster. The nil id stands for "none" wherever it is met: no cluster has it.
pub fn cluster(text: &str) -> Result<uuid::Uuid, String> {
    let example = "such as 3f0c2a9e-5d1b-4c7e-9f60-1a2b3c4d5e6f";
    match text.parse::<uuid::Uuid>() {
        Ok(id) if id.is_nil() => Err(format!(
            "no cluster has the id of zeros; give the one that the first founder has printed, \
             {example}"
        )),
        Ok(id) => Ok(id),
        Err(_) => Err(format!(
            "the id of a cluster has 32 hexadecimal digits, {example}"
        )),
    }
}

/// CPUs, more than none.
pub fn some_cpus(text: &str) -> Result<MilliCpu, String> {
    match text.parse() {
        Ok(MilliCpu(0)) => Err("it must be more than nothing, such as 2, 0.5 or 500m".to_owned()),
        Ok(cpus) => Ok(cpus),
        Err(error) => Err(format!("{error}")),
    }
}

/// How many of something, at least one.
pub fn some(text: &str) -> Result<u32, String> {
    match text.parse() {
        Ok(0) => Err("it is a whole number from 1; leave the flag out for none".to_owned()),
        Ok(number) => Ok(number),
        Err(_) => Err("it is a whole number from 1".to_owned()),
    }
}

/// So many devices of a class.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceCount {
    /// Class without the kind's prefix, "gpu/a100".
    pub class: String,
    /// How many, or which part of one, in thousandths.
    pub milli: u64,
}

impl DeviceCount {
    fn read(class: String, count: &str) -> Result<Self, String> {
        let bad = || format!("'{count}' is no number of devices: 1, 2, … or a part such as 0.5");
        let MilliCpu(milli) = count.parse().map_err(|_| bad())?;
        let whole = milli >= 1000 && milli.is_multiple_of(1000);
        if milli == 0 || (milli > 1000 && !whole) {
            return Err(bad());
        }
        Ok(Self { class, milli })
    }
}

/// `N` or `N:MODEL`, read as devices of class `gpu` or `gpu/MODEL`.
pub fn gpus(text: &str) -> Result<DeviceCount, String> {
    match text.split_once(':') {
        Some((_, "")) => Err("the model after ':' is missing, such as 2:a100".to_owned()),
        Some((count, model)) => DeviceCount::read(format!("gpu/{model}"), count),
        None => DeviceCount::read("gpu".to_owned(), text),
    }
}

/// `CLASS=N`.
pub fn device_count(text: &str) -> Result<DeviceCount, String> {
    let form = || "it has the form CLASS=N, such as gpu/a100=2".to_owned();
    let (class, count) = text.split_once('=').ok_or_else(form)?;
    if class.is_empty() {
        return Err(form());
    }
    DeviceCount::read(class.to_owned(), count)
}

/// `CLASS=ID` of a device that a node has.
pub fn device_id(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((class, id)) if !class.is_empty() && !id.is_empty() => {
            Ok((class.to_owned(), id.to_owned()))
        }
        Some(_) | None => Err("it has the form CLASS=ID, such as gpu/a100=GPU-7f3a".to_owned()),
    }
}

/// A weight, in thousandths: 0.001 to 1 000 000.
pub fn weight(text: &str) -> Result<u32, String> {
    let bad = || "a weight is a number such as 1, 2.5 or 0.1, above 0".to_owned();
    let MilliCpu(milli) = text.parse().map_err(|_| bad())?;
    if milli == 0 || text.ends_with('m') {
        return Err(bad());
    }
    u32::try_from(milli).map_err(|_| bad())
}

/// Where a stream of events begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Since {
    /// After this revision.
    Revision(u64),
    /// So many milliseconds ago.
    Ago(u64),
}

/// `88213` or `5m`.
pub fn since(text: &str) -> Result<Since, String> {
    if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) {
        let revision = text
            .parse()
            .map_err(|_| "the revision is too large".to_owned())?;
        return Ok(Since::Revision(revision));
    }
    let ago = text.parse::<mete_model::Span>();
    let form = "it is a revision such as 88213 or a length of time such as 5m";
    ago.map(|ago| Since::Ago(ago.0))
        .map_err(|_| form.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gpus_read_a_count_a_part_and_a_model() {
        let device = |class: &str, milli| DeviceCount {
            class: class.to_owned(),
            milli,
        };
        assert_eq!(gpus("2"), Ok(device("gpu", 2000)));
        assert_eq!(gpus("1:a100"), Ok(device("gpu/a100", 1000)));
        assert_eq!(gpus("0.25"), Ok(device("gpu", 250)));
        assert_eq!(device_count("nic/mlx5=1"), Ok(device("nic/mlx5", 1000)));
        for bad in ["", "0", "1.5", "-1", "2:", "a100"] {
            assert!(gpus(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn none_of_something_is_refused_and_says_what_is_permitted() {
        assert_eq!((some("1"), some_cpus("1m")), (Ok(1), Ok(MilliCpu(1))));
        for text in ["0", "-1", "many", "1.5", ""] {
            let fault = some(text).expect_err(text);
            assert!(fault.contains("a whole number from 1"), "{fault}");
        }
        for text in ["0", "0m", "0.0"] {
            let fault = some_cpus(text).expect_err(text);
            assert!(fault.contains("more than nothing"), "{fault}");
        }
        let fault = master("0").expect_err("no master");
        assert!(fault.contains("from 1"), "{fault}");
        assert_eq!(master("m0").expect_err("no master"), fault);
    }

    #[test]
    fn no_cluster_has_the_id_of_zeros() {
        let fault = cluster("00000000-0000-0000-0000-000000000000").expect_err("nil");
        assert!(fault.contains("zeros"), "{fault}");
        assert!(
            cluster("abc")
                .expect_err("no id")
                .contains("32 hexadecimal")
        );
        cluster("3f0c2a9e-5d1b-4c7e-9f60-1a2b3c4d5e6f").expect("an id");
    }

    #[test]
    fn an_address_needs_a_host_and_a_port() {
        assert_eq!(host_port("m1:7443"), Ok("m1:7443".to_owned()));
        assert_eq!(host_port("[::1]:7443"), Ok("[::1]:7443".to_owned()));
        for bad in [
            "m1",
            ":7443",
            "m1:",
            "m1:0",
            "http://m1:1",
            "m1:70000",
            "a b:1",
        ] {
            assert!(host_port(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_weight_is_above_nothing_and_exact_to_a_thousandth() {
        assert_eq!(weight("2.5"), Ok(2500));
        for bad in ["0", "-1", "500m", "x", "0.0001", "99999999"] {
            assert!(weight(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn memory_needs_a_unit() {
        assert_eq!(bytes("1.5GiB"), Ok(Bytes(3 << 29)));
        assert_eq!(bytes("0"), Ok(Bytes(0)));
        assert!(bytes("64").is_err_and(|error| error.contains("64MiB")));
        for bad in ["", "-1", "1XB", "100000EiB", "MiB"] {
            assert!(bytes(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn since_is_a_revision_or_a_length_of_time() {
        assert_eq!(since("88213"), Ok(Since::Revision(88_213)));
        assert_eq!(since("5m"), Ok(Since::Ago(300_000)));
        assert!(since("yesterday").is_err());
    }

    #[test]
    fn a_share_is_cpus_and_memory() {
        let half = Share {
            cpu: MilliCpu(500),
            memory: Bytes(1 << 30),
        };
        assert_eq!(share("500m,1GiB"), Ok(half));
        for bad in ["1", "1,", ",1GiB", "1,1XB"] {
            assert!(share(bad).is_err(), "{bad}");
        }
        for small in ["0,0", "9m,1GiB", "1,63MiB"] {
            assert!(share(small).is_err_and(|error| error.contains("10m,64MiB")));
        }
    }

    #[test]
    fn a_directory_of_a_daemon_is_absolute_from_the_beginning() {
        let here = std::env::current_dir().expect("a working directory");
        assert_eq!(directory("rel/x"), Ok(here.join("rel/x")));
        assert_eq!(directory("/srv/mete"), Ok("/srv/mete".into()));
        assert!(directory("").is_err());
        let line = [
            "mete",
            "agent",
            "start",
            "--state-dir",
            "s",
            "--run-dir",
            "r",
        ];
        let cli = crate::args::Cli::read(line.iter().map(ToString::to_string));
        let command = cli
            .map_err(|error| error.to_string())
            .expect("good flags")
            .command;
        let crate::args::Command::Agent(crate::args::daemon::Agent::Start(start)) = command else {
            panic!("another command");
        };
        assert_eq!(start.agent.state_dir, here.join("s"));
        assert_eq!(start.agent.run_dir, Some(here.join("r")));
    }

    #[test]
    fn a_pause_is_seconds_and_a_timeout_more_than_nothing() {
        assert_eq!(pause("2"), Ok(Span::seconds(2)));
        assert_eq!(pause("0.5"), Ok(Span(500)));
        assert_eq!(pause("500ms"), Ok(Span(500)));
        for bad in ["x", "-1", "0.01", "2m0", "100000"] {
            assert!(pause(bad).is_err(), "{bad}");
        }
        assert_eq!(some_time("5s"), Ok(Span::seconds(5)));
        assert!(some_time("0s").is_err_and(|error| error.contains("at least 1ms")));
    }
}
