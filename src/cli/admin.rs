//! `mete admin`: the replicas of the masters' log.

use mete_model::Bytes;
use mete_proto::admin::v1::{GetRaftRequest, GetRaftResponse, Master};
use serde_json::json;

use super::support::client::{Client, admin};
use super::support::error::Outcome;
use super::support::print::{Listing, Row};
use super::support::words;
use crate::args::objects::{Admin as Command, Raft};

/// Does what was asked.
///
/// # Errors
/// The refusal.
pub async fn run(client: &Client, command: Command) -> Outcome {
    match command {
        Command::Raft(Raft::Status) => {
            let call = |channel| async move { admin(channel).get_raft(GetRaftRequest {}).await };
            let raft = client.cluster.call(call).await?;
            listing(&raft).print(&client.style)
        }
    }
}

fn listing(raft: &GetRaftResponse) -> Listing {
    let voters = raft
        .masters
        .iter()
        .filter(|master| master.role != "learner")
        .count();
    let quorum = (voters / 2).saturating_add(1);
    Listing {
        kind: "MasterList",
        revision: None,
        columns: vec![
            "MASTER", "ROLE", "TERM", "APPLIED", "LAG", "VERSION", "ADDRESS",
        ],
        narrow: 7,
        rows: raft
            .masters
            .iter()
            .map(|master| row(master, raft))
            .collect(),
        footer: format!(
            "quorum {quorum} of {voters} voters; can lose {}   log {}..{}   snapshot at {}   \
             store {}   {} flushes",
            voters.saturating_sub(quorum),
            raft.first_index,
            raft.last_index,
            raft.snapshot_index,
            Bytes(raft.store_bytes),
            raft.flushes
        ),
        warnings: Vec::new(),
    }
}

fn row(master: &Master, raft: &GetRaftResponse) -> Row {
    let name = format!("m{}", master.id);
    let lag = if master.role == "leader" {
        String::new()
    } else {
        master.lag.to_string()
    };
    Row::new(
        name.clone(),
        vec![
            name,
            master.role.clone(),
            master.term.to_string(),
            master.applied.to_string(),
            lag,
            master.version.clone(),
            master.address.clone(),
        ],
        json!({
            "id": master.id,
            "address": words::known(&master.address),
            "role": master.role,
            "term": master.term,
            "applied": master.applied,
            "lag": master.lag,
            "version": words::known(&master.version),
            "first_index": raft.first_index,
            "last_index": raft.last_index,
            "snapshot_index": raft.snapshot_index,
            "store_bytes": raft.store_bytes,
            "flushes": raft.flushes,
        }),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::support::print::Style;

    #[test]
    fn the_footer_says_how_many_masters_may_be_lost() {
        let master = |id, role: &str| Master {
            id,
            role: role.to_owned(),
            ..Master::default()
        };
        let raft = GetRaftResponse {
            masters: vec![
                master(1, "leader"),
                master(2, "follower"),
                master(3, "follower"),
            ],
            ..GetRaftResponse::default()
        };
        let text = listing(&raft).text(&Style::default()).expect("a table");
        assert!(text.contains("quorum 2 of 3 voters; can lose 1"), "{text}");
    }
}
