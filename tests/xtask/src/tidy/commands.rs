//! Every `Command` of the replicated state has a golden script.
//!
//! placeholder
use super::{Finding, code};
use crate::tree::Tree;

const COMMANDS: &str = "broker/state/src/command.rs";

pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let Some(text) = tree.text(COMMANDS) else {
        return vec![Finding::at(
            "scripts",
            COMMANDS,
            0,
            "missing: the commands live here",
        )];
    };
    let _ = code::variants(text, "Command");
    Vec::new()
}
