//! What an agent serves to others: logs and its ledger, straight to those who ask.

pub mod node_api;

mod refusal;
