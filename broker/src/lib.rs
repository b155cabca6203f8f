//! One master process: the replicated core, the offers and the services around them.

pub mod rpc;
