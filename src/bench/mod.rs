//! `mete bench`: speed and memory as figures, beside a reference wherever there is one.
//!
//! Every bench prints what it measured and under which conditions; none of them passes or fails by
//! its numbers.

use std::path::PathBuf;

use mete_model::Code;
use serde_json::{Map, Value};
use uuid::Uuid;

use crate::cli::support::error::{CliError, Outcome};
use crate::cli::support::print::{Format, Style, print_one};

pub mod allocator;
pub mod churn;
pub mod commands;
pub mod commit;
pub mod failover;
pub mod launches;
mod masters;
pub mod node;
pub mod recover;
pub mod replay;
pub mod snapshot;
mod subject;

/// Figures of one bench, in the order they are shown.
#[derive(Clone, Debug, Default)]
pub struct Figures(Map<String, Value>);

impl Figures {
    /// Adds a figure.
    pub fn put(&mut self, name: &str, value: impl Into<Value>) {
        self.0.insert(name.to_owned(), value.into());
    }

    /// A figure, for checks.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&Value> {
        self.0.get(name)
    }

    /// Prints them.
    ///
    /// # Errors
    /// stdout cannot be written.
    pub fn print(self, bench: &'static str, style: &Style) -> Outcome {
        let widest = self.0.keys().map(String::len).max().unwrap_or(0);
        let lines: Vec<String> = self
            .0
            .iter()
            .map(|(name, value)| format!("{name:<widest$}  {}", shown(value)))
            .collect();
        let text = lines.join("\n");
        let style = Style {
            format: if style.format == Format::Wide {
                Format::Table
            } else {
                style.format
            },
            ..style.clone()
        };
        print_one(&style, bench, None, Value::Object(self.0), &text)
    }
}

fn shown(value: &Value) -> String {
    value
        .as_str()
        .map_or_else(|| value.to_string(), str::to_owned)
}

/// A directory of its own for one bench, gone with it.
#[derive(Debug)]
struct Home(PathBuf);

impl Home {
    fn make() -> Outcome<Self> {
        let name = format!("mete-bench-{}", Uuid::new_v4().simple());
        let path = std::env::temp_dir().join(name);
        let failed = |error: std::io::Error| {
            CliError::new(Code::File, format!("make {}: {error}", path.display()))
        };
        std::fs::create_dir_all(&path).map_err(failed)?;
        Ok(Self(path))
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        // What is left of it is in a temporary directory.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A measured number with two decimals: figures of a bench may be decimal.
#[must_use]
pub fn decimal(value: f64) -> Value {
    Value::from((value * 100.0).round() / 100.0)
}

/// The value that `percent` of all are not above; nothing of nothing.
#[must_use]
pub fn percentile(values: &mut [f64], percent: usize) -> f64 {
    values.sort_by(f64::total_cmp);
    let last = values.len().saturating_sub(1);
    let at = values
        .len()
        .saturating_mul(percent)
        .div_ceil(100)
        .saturating_sub(1)
        .min(last);
    values.get(at).copied().unwrap_or(0.0)
}

/// Resident memory of this process in MiB.
#[must_use]
pub fn resident_mib() -> u64 {
    resident_mib_of(std::process::id())
}

/// Resident memory of a process in MiB; 0 of one that is gone.
#[must_use]
pub fn resident_mib_of(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib: u64 = line
        .and_then(|line| line.trim().trim_end_matches("kB").trim().parse().ok())
        .unwrap_or(0);
    kib / 1024
}

/// An answer to a wrong argument of a bench.
#[must_use]
pub fn usage(sentence: impl Into<String>) -> CliError {
    CliError::new(Code::Usage, sentence)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_percentile_is_a_measured_value() {
        let mut values: Vec<f64> = (1..=100).map(f64::from).collect();
        assert!((percentile(&mut values, 50) - 50.0).abs() < f64::EPSILON);
        assert!((percentile(&mut values, 99) - 99.0).abs() < f64::EPSILON);
        assert!(percentile(&mut [], 99).abs() < f64::EPSILON);
        assert!((percentile(&mut [7.0], 99) - 7.0).abs() < f64::EPSILON);
    }
}
