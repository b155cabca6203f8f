//! The wire: generated messages and services, and conversions between them and the model.
//!
//! Called by everything that speaks gRPC. It decides nothing: a conversion either succeeds or names
//! every wrong field with the permitted range. Defaults that change meaning live with those who
//! decide, not here.

/// Generated from `mete/**/*.proto`.
#[allow(
    missing_docs,
    missing_debug_implementations,
    unreachable_pub,
    clippy::all,
    clippy::allow_attributes_without_reason,
    clippy::unwrap_used,
    clippy::wildcard_enum_match_arm,
    clippy::disallowed_types,
    reason = "generated code: its documentation is in the .proto files"
)]
mod generated {
    include!(concat!(env!("OUT_DIR"), "/mete.rs"));
}

pub use generated::mete::*;

pub mod convert;
pub mod dial;
#[cfg(feature = "serve")]
pub mod standard;

/// The descriptor set of every package, for gRPC reflection.
pub const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/descriptors.bin"));
