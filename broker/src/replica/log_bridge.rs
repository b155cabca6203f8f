//! Forwards the raft crate's log lines to `tracing`, with their keys and values: they carry the
//! facts.

use std::fmt::Write as _;

use slog::{Drain, Level, Logger, Never, OwnedKVList, Record, Serializer, o};

#[derive(Debug)]
struct Bridge;

impl Drain for Bridge {
    type Ok = ();
    type Err = Never;

    fn log(&self, record: &Record<'_>, values: &OwnedKVList) -> Result<(), Never> {
        let mut facts = Facts(String::new());
        // Writing into a string cannot fail; a value that cannot be shown is left out.
        let _ = slog::KV::serialize(&record.kv(), record, &mut facts);
        let _ = slog::KV::serialize(values, record, &mut facts);
        let facts = facts.0.trim_end();
        let message = record.msg();
        match record.level() {
            Level::Critical | Level::Error => {
                tracing::error!(target: "mete::raft", facts, "{message}");
            }
            Level::Warning => tracing::warn!(target: "mete::raft", facts, "{message}"),
            Level::Info => tracing::info!(target: "mete::raft", facts, "{message}"),
            Level::Debug => tracing::debug!(target: "mete::raft", facts, "{message}"),
            Level::Trace => tracing::trace!(target: "mete::raft", facts, "{message}"),
        }
        Ok(())
    }

    fn is_enabled(&self, level: Level) -> bool {
        match level {
            Level::Critical | Level::Error => true,
            Level::Warning => tracing::enabled!(target: "mete::raft", tracing::Level::WARN),
            Level::Info => tracing::enabled!(target: "mete::raft", tracing::Level::INFO),
            Level::Debug => tracing::enabled!(target: "mete::raft", tracing::Level::DEBUG),
            Level::Trace => tracing::enabled!(target: "mete::raft", tracing::Level::TRACE),
        }
    }
}

struct Facts(String);

impl Serializer for Facts {
    fn emit_arguments(&mut self, key: slog::Key, value: &std::fmt::Arguments<'_>) -> slog::Result {
        write!(self.0, "{key}={value} ").map_err(slog::Error::from)
    }
}

/// The logger that the raft crate is given.
pub(super) fn logger() -> Logger {
    Logger::root(Bridge, o!())
}
