//! The agent's own control groups: told apart by the agent's identity, removed when nothing is in
//! them any more.
//!
//! A node's name alone is unique in its cluster only. Agents of two clusters on one machine may
//! have the same name, and must not write their limits over each other's.

use std::path::Path;
use std::time::Duration;

use tokio::time::{Instant, sleep};
use uuid::Uuid;

use crate::checkpoint::Checkpoint;
use crate::isolate::{Isolation, PartLimits};

/// Longest time for the last shims to leave.
const LEAVE: Duration = Duration::from_secs(1);

/// Between two tries.
const PAUSE: Duration = Duration::from_millis(5);

/// Longest beginning of a name that is kept, in bytes: a directory's name has 255 at the most.
const MOST_NAME: usize = 200;

/// What the directories of an agent are called: readable first, then the beginning of its identity.
pub(super) fn name(node: &str, agent: Uuid) -> String {
    let id = agent.simple().to_string();
    let end = node.floor_char_boundary(MOST_NAME);
    let (node, id) = (node.get(..end).unwrap_or(node), id.get(..8).unwrap_or(&id));
    format!("{node}-{id}")
}

/// Removes them unless something is left in them; waits a little for shims that are just leaving.
pub(super) async fn leave(isolation: &Isolation) {
    let until = Instant::now() + LEAVE;
    while !isolation.remove_top() && Instant::now() < until {
        sleep(PAUSE).await;
    }
}

/// Removes those that an agent which is gone, and whose tasks are, has left on this machine.
///
/// `node` is its name, `state_directory` what it kept its state in; without a readable checkpoint
/// there they cannot be told and stay.
pub async fn remove_groups(procfs: &Path, state_directory: &Path, node: &str) {
    let Some(agent) = Checkpoint::identity(state_directory) else {
        return;
    };
    let name = name(node, agent);
    leave(&Isolation::probe(
        procfs,
        None,
        &name,
        PartLimits::default(),
    ))
    .await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agents_of_one_name_have_groups_of_their_own_and_any_name_fits() {
        let (one, other) = (Uuid::from_u128(1 << 100), Uuid::from_u128(2 << 100));
        assert_eq!(name("n1", one), "n1-00000010");
        assert_ne!(name("n1", one), name("n1", other));
        let long = "\u{e4}".repeat(127);
        assert!(crate::isolate::check_name(&long).is_ok());
        assert!(crate::isolate::check_name(&name(&long, one)).is_ok());
        assert_ne!(name(&long, one), name(&long, other));
    }
}
