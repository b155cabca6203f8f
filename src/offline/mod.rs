//! Commands that need no cluster.

pub mod simulate;
