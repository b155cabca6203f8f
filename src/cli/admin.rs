//! `mete admin`: the masters and the log they share.

use std::time::Duration;

use mete_model::{Bytes, Code, Span};
use mete_proto::admin::v1::{
    AddMasterRequest, GetRaftRequest, GetRaftResponse, Master, PromoteMasterRequest,
    RemoveMasterRequest, TransferLeadershipRequest,
};
use serde_json::json;

use super::support::client::{Client, Cluster, admin};
use super::support::confirm::confirm;
use super::support::error::{CliError, Outcome};
use super::support::print::{Listing, Row, note, print_one};
use super::support::words;
use crate::args::objects::{Admin as Command, Member, MemberAdd, Raft};

/// How long the leader is asked beside the master that has answered.
const LEADER_WITHIN: Duration = Duration::from_secs(2);

/// Does what was asked.
///
/// # Errors
/// The refusal.
pub async fn run(client: &Client, command: Command) -> Outcome {
    match command {
        Command::Raft(Raft::Status) | Command::Member(Member::List) => {
            listing(&raft(client).await?).print(&client.style)
        }
        Command::Raft(Raft::Transfer { to }) => transfer(client, to).await,
        Command::Member(Member::Add(add)) => add_member(client, add).await,
        Command::Member(Member::Promote { master }) => promote(client, master).await,
        Command::Member(Member::Rm { master }) => remove(client, master).await,
    }
}

/// How the masters stand, as the leader knows it; where that is not to be had, as the one knows it
/// that answers.
async fn raft(client: &Client) -> Outcome<GetRaftResponse> {
    let call = |channel| async move { admin(channel).get_raft(GetRaftRequest {}).await };
    let said = client.cluster.read(call).await?;
    if said.leader == said.answered_by {
        return Ok(said);
    }
    let mut masters = said.masters.iter();
    let leader = masters.find(|master| master.id == said.leader);
    let Some(leader) = leader.filter(|leader| !leader.address.is_empty()) else {
        return Ok(said);
    };
    let cluster = Cluster::new(vec![leader.address.clone()], LEADER_WITHIN);
    Ok(cluster.read(call).await.unwrap_or(said))
}

async fn transfer(client: &Client, to: Option<u64>) -> Outcome {
    let request = TransferLeadershipRequest {
        to: to.unwrap_or(0),
        dry_run: client.globals.dry_run,
    };
    let call = |channel| async move { admin(channel).transfer_leadership(request).await };
    let answer = client.cluster.call(call).await?;
    let word = if client.globals.dry_run {
        "would go"
    } else {
        "goes"
    };
    let text = format!("the leadership {word} to {}", name(answer.to));
    let item = json!({
        "name": name(answer.to),
        "id": answer.to,
        "dry_run": client.globals.dry_run,
    });
    print_one(&client.style, "LeadershipTransferred", None, item, &text)
}

async fn add_member(client: &Client, add: MemberAdd) -> Outcome {
    let request = AddMasterRequest {
        address: add.address.clone(),
        learner: add.learner,
        replaces: add.replaces.unwrap_or(0),
        dry_run: client.globals.dry_run,
    };
    let call = |channel| {
        let request = request.clone();
        async move { admin(channel).add_master(request).await }
    };
    let answer = client.cluster.call(call).await?;
    let (id, address, cluster) = (answer.id, &add.address, &answer.cluster_id);
    let item = json!({
        "name": if id == 0 { String::new() } else { name(id) },
        "id": id,
        "address": address,
        "cluster_id": cluster,
        "dry_run": client.globals.dry_run,
    });
    let text = if client.globals.dry_run {
        format!("{address} would be taken in")
    } else {
        format!("{} at {address} is taken in", name(id))
    };
    print_one(
        &client.style,
        "MasterAdded",
        Some(answer.revision),
        item,
        &text,
    )?;
    if !client.globals.dry_run {
        note(&format!(
            "next, on its machine: mete master init --state-dir DIR --cluster {cluster} --node {id}"
        ));
        note(&format!(
            "                      mete master start --state-dir DIR --listen {address}"
        ));
        if !add.learner {
            note("it gets its vote by itself once it has caught up: mete admin raft status");
        }
    }
    Ok(())
}

async fn promote(client: &Client, master: u64) -> Outcome {
    let request = PromoteMasterRequest {
        id: master,
        dry_run: client.globals.dry_run,
    };
    let call = |channel| async move { admin(channel).promote_master(request).await };
    let answer = client.cluster.call(call).await?;
    let text = format!("{} gets its vote once it has caught up", name(master));
    let item = json!({
        "name": name(master),
        "id": master,
        "dry_run": client.globals.dry_run,
    });
    print_one(
        &client.style,
        "MasterPromoted",
        Some(answer.revision),
        item,
        &text,
    )
}

async fn remove(client: &Client, master: u64) -> Outcome {
    let raft = raft(client).await?;
    let known = raft.masters.iter().find(|known| known.id == master);
    let Some(known) = known else {
        let detail = format!("no master {} is known", name(master));
        return Err(CliError::new(Code::NotFound, detail)
            .next("mete admin member list".to_owned(), "who they are"));
    };
    let request = |dry_run| RemoveMasterRequest {
        id: master,
        dry_run,
    };
    let ask = |request| {
        let call = move |channel| async move { admin(channel).remove_master(request).await };
        client.cluster.call(call)
    };
    // What would be refused anyway is not asked about first.
    ask(request(true)).await?;
    let what = format!(
        "master {} at {} leaves for ever; its number is never used again",
        name(master),
        known.address,
    );
    confirm(client, &[what])?;
    let answer = ask(request(client.globals.dry_run)).await?;
    let word = if client.globals.dry_run {
        "would leave"
    } else {
        "leaves"
    };
    let text = format!("master {} {word} the cluster", name(master));
    let item = json!({
        "name": name(master),
        "id": master,
        "dry_run": client.globals.dry_run,
    });
    print_one(
        &client.style,
        "MasterRemoved",
        Some(answer.revision),
        item,
        &text,
    )
}

fn name(id: u64) -> String {
    format!("m{id}")
}

fn listing(raft: &GetRaftResponse) -> Listing {
    let (voters, needed) = (raft.voters, raft.needed);
    let quorum = if raft.leader == raft.answered_by && raft.leader != 0 {
        format!(
            "{} of {voters} voters answer, {needed} are needed, can lose {}",
            raft.answering,
            raft.answering.saturating_sub(needed)
        )
    } else {
        format!(
            "{voters} voters, {needed} are needed; {} answers and does not lead, so it does not \
             know who else does",
            name(raft.answered_by)
        )
    };
    let mut warnings = Vec::new();
    if raft.changing {
        warnings.push("a change of the members is not finished".to_owned());
    }
    if raft.voters == 2 {
        warnings.push("two voters can lose none: add a third one".to_owned());
    }
    Listing {
        kind: "MasterList",
        revision: None,
        columns: vec![
            "MASTER", "ROLE", "VOTE", "TERM", "APPLIED", "LAG", "CONTACT", "VERSION", "ADDRESS",
        ],
        narrow: 9,
        rows: raft
            .masters
            .iter()
            .map(|master| row(master, raft))
            .collect(),
        footer: format!(
            "{quorum}\nlog {}..{}   snapshot at {}   store {}   {} flushes   level {}",
            raft.first_index,
            raft.last_index,
            raft.snapshot_index,
            Bytes(raft.store_bytes),
            raft.flushes,
            raft.level,
        ),
        warnings,
    }
}

fn row(master: &Master, raft: &GetRaftResponse) -> Row {
    let known = raft.leader == raft.answered_by || master.id == raft.answered_by;
    let only = |text: String| if known { text } else { String::new() };
    let lag = if master.id == raft.leader {
        String::new()
    } else {
        only(master.lag.to_string())
    };
    let vote = match (master.voter, master.replaces) {
        (true, _) => "yes".to_owned(),
        (false, 0) if master.wish == "voter" => "when caught up".to_owned(),
        (false, 0) => "no".to_owned(),
        (false, replaced) => format!("for {}", name(replaced)),
    };
    let contact = match master.last_contact_ms {
        _ if master.id == raft.answered_by => String::new(),
        None => "never".to_owned(),
        Some(ago) => format!("{} ago", Span(ago)),
    };
    Row::new(
        name(master.id),
        vec![
            name(master.id),
            master.role.clone(),
            vote,
            master.term.to_string(),
            only(master.applied.to_string()),
            lag,
            contact,
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
            "voter": master.voter,
            "wish": words::known(&master.wish),
            "replaces": master.replaces,
            "last_contact_ms": master.last_contact_ms,
            "receives_snapshot": master.receives_snapshot,
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
            voter: true,
            ..Master::default()
        };
        let mut raft = GetRaftResponse {
            masters: vec![
                master(1, "leader"),
                master(2, "follower"),
                master(3, "follower"),
            ],
            leader: 1,
            answered_by: 1,
            voters: 3,
            answering: 3,
            needed: 2,
            ..GetRaftResponse::default()
        };
        let shown = |raft: &GetRaftResponse| listing(raft).text(&Style::default());
        let text = shown(&raft).expect("a table");
        assert!(
            text.contains("3 of 3 voters answer, 2 are needed, can lose 1"),
            "{text}"
        );
        raft.answered_by = 2;
        let text = shown(&raft).expect("a table");
        assert!(text.contains("m2 answers and does not lead"), "{text}");
    }
}
