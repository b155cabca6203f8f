//! How much of anything there may be. Fixed: two replicas with different limits would differ.

use mete_model::Span;

/// Bytes of a framework's name, and of a node's.
pub const LONGEST_NAME: usize = 253;
/// Characters of a framework's name.
pub const LONGEST_FRAMEWORK_NAME: usize = 128;
/// Roles of one framework.
pub const ROLES_OF_A_FRAMEWORK: usize = 1_000;
/// Frameworks in all.
pub const FRAMEWORKS: usize = 100_000;
/// Roles in all.
pub const ROLES: usize = 100_000;
/// Masters in all, those on their way in or out included.
pub const MASTERS: usize = 15;
/// Bytes of a master's address.
pub const LONGEST_ADDRESS: usize = 300;
/// Agents in all, gone ones included.
pub const AGENTS: usize = 200_000;
/// Devices of one agent.
pub const DEVICES_OF_AN_AGENT: usize = 4_096;
/// Bytes of the labels of one object, names and values together.
pub const LABEL_BYTES: usize = 16 * 1024;
/// Bytes of a spec: command, environment, labels and the rest together.
pub const SPEC_BYTES: usize = 1024 * 1024;
/// Bytes of a text for people: reasons, actors, addresses.
pub const TEXT_BYTES: usize = 4 * 1024;
/// Bytes of a status' message; what is beyond is cut off.
pub const STATUS_BYTES: usize = 64 * 1024;
/// Statuses kept of one run; above it those that were not ends are merged.
pub const STATUSES_OF_A_RUN: usize = 16;
/// The largest weight of a role in thousandths.
pub const LARGEST_WEIGHT_MILLI: u32 = 1_000_000;

/// Claims of one framework.
pub const CLAIMS_OF_A_FRAMEWORK: usize = 10_000;
/// Tasks of one claim.
pub const TASKS_OF_A_CLAIM: u32 = 100_000;
/// Classes of devices in one shape.
pub const CLASSES_OF_A_SHAPE: usize = 64;
/// Tasks of one launch.
pub const TASKS_OF_A_LAUNCH: usize = 10_000;
/// Runs of one kill, items of one acknowledgement, statuses of one record.
pub const ITEMS_OF_A_CALL: usize = 10_000;
/// Runs of one framework that are live, or over and not acknowledged.
pub const RUNS_OF_A_FRAMEWORK: usize = 2_000_000;

/// Calls of one framework that were answered and not said to be.
pub const UNANSWERED_CALLS: u64 = 1_024;
/// Items of the verdicts kept for those calls.
pub const UNANSWERED_ITEMS: usize = 100_000;

/// Bytes of a store key.
pub const STORE_KEY_BYTES: usize = 512;
/// Bytes of a store value.
pub const STORE_VALUE_BYTES: usize = 256 * 1024;
/// Bytes of one store write, keys and values together.
pub const STORE_WRITE_BYTES: usize = 512 * 1024;
/// Bytes of one framework's store.
pub const STORE_BYTES: u64 = 64 << 20;
/// Bytes of all stores.
pub const STORE_BYTES_IN_ALL: u64 = 512 << 20;

/// Ended runs kept whole, per framework.
pub const HISTORY_OF_A_FRAMEWORK: usize = 1_000;
/// Ended runs kept whole, in all.
pub const HISTORY_IN_ALL: usize = 100_000;
/// How long an ended run is kept whole.
pub const HISTORY_AGE: Span = Span::days(7);
/// Ended runs of which the name is kept after that.
pub const ENDED_IN_ALL: usize = 200_000;
/// How long the name of an ended run is kept.
pub const ENDED_AGE: Span = Span::days(14);
/// Torn-down frameworks and gone agents kept, each.
pub const TOMBSTONES: usize = 100_000;
/// How long torn-down frameworks and gone agents are kept.
pub const TOMBSTONE_AGE: Span = Span::days(14);
/// A failover timeout above this means never.
pub const NEVER: Span = Span::days(3_653);
/// Commands that one call of `State::due` gives at the most.
pub const DUE_AT_ONCE: usize = 1_000;
