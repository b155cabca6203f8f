//! Failures that users of such systems have met, each as one scenario with real processes.
//!
//! The number in a test's comment is that of the case in the project's list of cases. One room for
//! each part that failed: frameworks and their offers, accepts and their runs, nodes and their
//! processes, and input that nobody should send.

#![expect(
    clippy::indexing_slicing,
    reason = "a missing field must fail the story"
)]

#[path = "../support/mod.rs"]
mod support;

mod accepts;
mod attack;
mod frameworks;
mod hostile;
mod nodes;

use serde_json::Value;
use support::Site;

/// The row of a job.
fn job(site: &Site, name: &str) -> Value {
    let list = site.json(&["batch", "list", "-A"]);
    list.find("job", name)
        .unwrap_or_else(|why| panic!("{why}"))
        .clone()
}
