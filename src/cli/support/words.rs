//! Amounts, times and states as people read them, and as programs do.

use mete_model::{Bytes, MilliCpu, Span, Timestamp};
use mete_proto::types::v1 as types;
use serde_json::{Value, json};

/// The clock of this process.
#[must_use]
pub fn now() -> Timestamp {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    Timestamp(since.map_or(0, |since| {
        u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
    }))
}

/// `used/total` CPU.
#[must_use]
pub fn cpu_of(used: u64, total: u64) -> String {
    format!("{}/{}", MilliCpu(used), MilliCpu(total))
}

/// `used/total` memory with the unit once.
#[must_use]
pub fn memory_of(used: u64, total: u64) -> String {
    let (used, total) = (Bytes(used).to_string(), Bytes(total).to_string());
    match (used.split_once(' '), total.split_once(' ')) {
        (Some((number, unit)), Some((_, same))) if unit == same => format!("{number}/{total}"),
        _ => format!("{used}/{total}"),
    }
}

/// How long ago, in the two largest units; empty for never.
#[must_use]
pub fn ago(at_ms: u64) -> String {
    if at_ms == 0 {
        String::new()
    } else {
        span(now().since(Timestamp(at_ms)).0)
    }
}

/// RFC 3339 in UTC, or null.
#[must_use]
pub fn time(at_ms: u64) -> Value {
    if at_ms == 0 {
        return Value::Null;
    }
    let stamp = i64::try_from(at_ms)
        .ok()
        .and_then(|ms| jiff::Timestamp::from_millisecond(ms).ok());
    stamp.map_or(Value::Null, |stamp| json!(format!("{stamp:.3}")))
}

/// A duration as people read it.
#[must_use]
pub fn span(ms: u64) -> String {
    Span(ms).rough()
}

/// Resources by name, units last.
#[must_use]
pub fn resources(resources: &Option<types::Resources>) -> Value {
    let resources = resources.clone().unwrap_or_default();
    let devices: Vec<Value> = resources
        .devices
        .iter()
        .map(|share| json!({ "id": share.id, "class": share.class, "milli": share.milli }))
        .collect();
    json!({
        "cpu_milli": resources.cpu_milli,
        "memory_bytes": resources.memory_bytes,
        "disk_bytes": resources.disk_bytes,
        "cores": resources.cores,
        "devices": devices,
    })
}

/// `2 cpu 512 MiB gpu/t4 1`.
#[must_use]
pub fn amounts(resources: &Option<types::Resources>) -> String {
    let resources = resources.clone().unwrap_or_default();
    let mut words = vec![format!("{} cpu", MilliCpu(resources.cpu_milli))];
    if resources.memory_bytes > 0 {
        words.push(Bytes(resources.memory_bytes).to_string());
    }
    if !resources.cores.is_empty() {
        words.push(format!("cores {}", resources.cores));
    }
    for (class, milli) in by_class(&resources) {
        words.push(format!("{} {class}", MilliCpu(milli)));
    }
    words.join(", ")
}

/// Thousandths of devices by class.
#[must_use]
pub fn by_class(resources: &types::Resources) -> std::collections::BTreeMap<String, u64> {
    let mut sums = std::collections::BTreeMap::new();
    for share in &resources.devices {
        let sum: &mut u64 = sums.entry(share.class.clone()).or_default();
        *sum = sum.saturating_add(u64::from(share.milli));
    }
    sums
}

/// `4/8 gpu/a100, 0/1 nic`: devices in use, by class.
#[must_use]
pub fn devices_of(used: &Option<types::Resources>, total: &Option<types::Resources>) -> String {
    let used = used.as_ref().map(by_class).unwrap_or_default();
    let total = total.as_ref().map(by_class).unwrap_or_default();
    let words: Vec<String> = total
        .iter()
        .map(|(class, all)| {
            let used = used.get(class).copied().unwrap_or(0);
            format!("{} {class}", cpu_of(used, *all))
        })
        .collect();
    words.join(", ")
}

/// Devices of resources: `2 gpu/a100`.
#[must_use]
pub fn devices(resources: &Option<types::Resources>) -> String {
    let sums = resources.as_ref().map(by_class).unwrap_or_default();
    let words: Vec<String> = sums
        .iter()
        .map(|(class, milli)| format!("{} {class}", MilliCpu(*milli)))
        .collect();
    words.join(", ")
}

/// How many logical CPUs a set such as `0-3,8` names.
#[must_use]
pub fn core_count(cores: &str) -> u32 {
    cores
        .parse::<mete_model::CpuSet>()
        .map_or(0, |set| set.len())
}

/// A text, or null when it is empty.
#[must_use]
pub fn known(text: &str) -> Value {
    if text.is_empty() {
        Value::Null
    } else {
        json!(text)
    }
}

/// A number, or null when it is nothing.
#[must_use]
pub fn known_number(number: u64) -> Value {
    if number == 0 {
        Value::Null
    } else {
        json!(number)
    }
}

/// What a run used; null where it is not known.
#[must_use]
pub fn usage(usage: &Option<types::Usage>) -> Value {
    let usage = usage.unwrap_or_default();
    json!({
        "cpu_ms": known_number(usage.cpu_ms),
        "memory_peak_bytes": known_number(usage.memory_peak_bytes),
        "wall_ms": known_number(usage.wall_ms),
    })
}

/// Lines `name  value`, aligned; empty values are left out.
#[must_use]
pub fn sheet(lines: &[(&str, String)]) -> String {
    let shown = || lines.iter().filter(|(_, value)| !value.is_empty());
    let widest = shown().map(|(name, _)| name.len()).max().unwrap_or(0);
    shown()
        .map(|(name, value)| format!("{name:<widest$}  {value}\n"))
        .collect()
}

/// An enum's value without its type's prefix.
#[must_use]
pub fn bare(name: &str, prefix: &str) -> String {
    name.strip_prefix(prefix).unwrap_or(name).to_owned()
}

/// The lower-case word of a phase.
#[must_use]
pub fn phase(phase: types::TaskPhase) -> String {
    phase
        .as_str_name()
        .trim_start_matches("TASK_PHASE_")
        .to_lowercase()
}

/// `0`, `7`, `9:SIGKILL`, or nothing.
#[must_use]
pub fn exit(exit: &Option<types::Exit>) -> String {
    match exit.as_ref().and_then(|exit| exit.how.as_ref()) {
        Some(types::exit::How::Code(code)) => code.to_string(),
        Some(types::exit::How::Signal(signal)) => format!("signal {signal}"),
        None => String::new(),
    }
}

/// Exit code and signal as facts, null where there is none.
#[must_use]
pub fn exit_facts(exit: &Option<types::Exit>) -> (Value, Value) {
    match exit.as_ref().and_then(|exit| exit.how.as_ref()) {
        Some(types::exit::How::Code(code)) => (json!(code), Value::Null),
        Some(types::exit::How::Signal(signal)) => (Value::Null, json!(signal)),
        None => (Value::Null, Value::Null),
    }
}

/// A bar of twenty cells, `#` for each that is used.
#[must_use]
pub fn bar(used: u64, total: u64) -> String {
    let width: u64 = 20;
    let filled = used
        .saturating_mul(width)
        .checked_div(total)
        .unwrap_or(0)
        .min(width);
    let cells = |count: u64, mark: &str| mark.repeat(usize::try_from(count).unwrap_or(0));
    cells(filled, "#") + &cells(width.saturating_sub(filled), "-")
}

/// Labels as `a=1,b=2`.
#[must_use]
pub fn labels<'a>(labels: impl IntoIterator<Item = (&'a String, &'a String)>) -> String {
    let mut list: Vec<String> = labels
        .into_iter()
        .map(|(name, value)| format!("{name}={value}"))
        .collect();
    list.sort();
    list.join(",")
}
