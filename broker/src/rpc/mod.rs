//! The gRPC services: decode, ask, encode.
//!
//! Called by `tonic`, once for each call. A service checks every field ([`mete_proto::convert`]),
//! asks the loop through its handle, and writes the answer down. It decides nothing and keeps
//! nothing. Refusals are made in [`status`] and [`redirect`] only.

pub mod redirect;
pub mod status;
