//! One master process: the replicated core, the offers and the services around them.

pub mod format;
pub mod replica;
pub mod rpc;
pub mod store;
