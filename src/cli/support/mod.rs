//! What every client command shares: connecting, printing, failing, words for amounts.

pub mod client;
pub mod confirm;
pub mod context;
pub mod error;
pub mod guard;
pub mod logs;
pub mod names;
pub mod print;
pub mod progress;
mod reaching;
pub mod schema;
pub mod usage;
pub mod verdicts;
pub mod watch;
pub mod words;
