//! Masters that are lost, damaged, strange to each other or needed: what may take their places.

use std::collections::BTreeSet;

use super::Promises;
use super::support::trio::{MASTERS, Trio};
use super::support::{free_port, holds, until};

fn members(trio: &Trio) -> Vec<(u64, bool)> {
    let list = trio.site.json(&["admin", "member", "list"]);
    let rows = list.items().iter();
    rows.map(|row| {
        let voter = row["voter"].as_bool().expect("a vote or none");
        (row["id"].as_u64().expect("a number"), voter)
    })
    .collect()
}

#[test]
fn a_master_that_lost_its_directory_comes_back_under_a_new_number() {
    let mut trio = Trio::start(false);
    let mut promises = Promises::default();
    promises.make(&trio);
    let leader = trio.wait_for_leader();
    let lost = MASTERS.into_iter().find(|m| *m != leader).expect("another");
    let (name, address) = (format!("m{lost}"), trio.dialled[&lost].clone());
    trio.kill(lost);
    std::fs::remove_dir_all(trio.site.path(&name)).expect("its directory");
    promises.make(&trio);
    let state = trio.site.arg(&name);
    let join = |trio: &Trio, more: &[&str]| {
        let at = trio.dialled[&trio.wait_for_leader()].clone();
        let flags = ["master", "init", "--state-dir", &state, "--join", &at];
        let flags = [&flags[..], &["--advertise", &address], more].concat();
        trio.site.mete(&flags)
    };
    // Under its old number it would have forgotten what it has agreed to.
    let refused = join(&trio, &[]);
    refused
        .refused(6, "IN_USE")
        .says(&format!("--replaces {name}"));
    assert!(!trio.site.path(&name).exists() || members(&trio).len() == 3);
    join(&trio, &["--replaces", &name]).done();
    trio.restart(lost);
    until("the new one to have the vote of the old one", || {
        let members = members(&trio);
        let wanted: BTreeSet<(u64, bool)> = MASTERS
            .into_iter()
            .filter(|m| *m != lost)
            .chain([4])
            .map(|m| (m, true))
            .collect();
        let are: BTreeSet<(u64, bool)> = members.iter().copied().collect();
        holds(are == wanted, || format!("{members:?}"))
    });
    // Its vote counts: without the old leader the two others go on.
    trio.kill(leader);
    promises.make(&trio);
    trio.restart(leader);
    trio.wait_until_caught_up(leader);
    promises.check(&trio);
}

/// The largest file of a master's store.
fn largest(folder: &std::path::Path) -> std::path::PathBuf {
    let mut files = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).expect("a folder").flatten() {
            let (path, meta) = (entry.path(), entry.metadata().expect("facts"));
            if meta.is_dir() {
                folders.push(path);
            } else if path.file_name().is_some_and(|name| name != "RESERVE") {
                files.push((meta.len(), path));
            }
        }
    }
    files.into_iter().max().expect("a file").1
}

#[test]
fn a_master_whose_store_is_damaged_refuses_to_start_and_says_how_to_come_back() {
    let mut trio = Trio::start(false);
    let mut promises = Promises::default();
    for _ in 0..20 {
        promises.make(&trio);
    }
    let leader = trio.wait_for_leader();
    let victim = MASTERS.into_iter().find(|m| *m != leader).expect("another");
    trio.wait_until_caught_up(victim);
    trio.kill(victim);
    let file = largest(&trio.site.path(&format!("m{victim}")));
    let mut bytes = std::fs::read(&file).expect("the file");
    // Everything that is not empty is turned over: no length or mark can be believed any more.
    for byte in bytes.iter_mut().filter(|byte| **byte != 0) {
        *byte = !*byte;
    }
    std::fs::write(&file, &bytes).expect("the file");
    trio.restart(victim);
    let name = format!("m{victim}");
    let status = trio.site.daemon(&name).wait();
    let said = trio.site.daemon(&name).said();
    assert_eq!(status.code(), Some(1), "{said}");
    assert!(said.contains("error[STORE_DAMAGED]"), "{said}");
    assert!(
        said.contains("--replaces"),
        "it says how to come back: {said}"
    );
    assert!(!said.contains("panicked"), "{said}");
    promises.make(&trio);
    promises.check(&trio);
}

#[test]
fn directories_and_addresses_that_cannot_serve_are_refused_and_named() {
    let trio = Trio::found(false);
    let all = trio.site.address().to_owned();
    let (m1, junk) = (trio.site.arg("m1"), trio.site.arg("junk"));
    std::fs::create_dir(trio.site.path("junk")).expect("a folder");
    std::fs::write(trio.site.path("junk/file"), "mine").expect("a file");

    let found = ["master", "init", "--masters", &all, "--node", "1"];
    let found = |at: &str| trio.site.mete(&[&found[..], &["--state-dir", at]].concat());
    found(&m1).refused(1, "STATE_DIRECTORY");
    found(&junk).refused(1, "STATE_DIRECTORY").says("file");
    let foreign = [
        "master",
        "start",
        "--state-dir",
        &junk,
        "--listen",
        "127.0.0.1:0",
    ];
    trio.site
        .mete(&foreign)
        .refused(1, "STATE_DIRECTORY")
        .says("file");
    let twice = format!("{},{}", trio.dialled[&1], trio.dialled[&1]);
    let flags = [
        "master",
        "init",
        "--state-dir",
        "x",
        "--masters",
        &twice,
        "--node",
        "1",
    ];
    trio.site.mete(&flags).refused(2, "USAGE");
    let flags = [
        "master",
        "init",
        "--state-dir",
        "x",
        "--masters",
        &all,
        "--node",
        "4",
    ];
    trio.site.mete(&flags).refused(2, "USAGE");
}

#[test]
fn a_master_of_another_cluster_is_told_so_and_one_directory_serves_one_process() {
    let mut trio = Trio::found(false);
    let all = trio.site.address().to_owned();
    let cluster = trio.cluster.clone();
    let (m1, m3) = (trio.site.arg("m1"), trio.site.arg("m3"));
    // One that was founded for another cluster is told so, by the others and in its own log.
    std::fs::remove_dir_all(trio.site.path("m3")).expect("its directory");
    let other = "00000000-0000-4000-8000-000000000001";
    let flags = [
        "master",
        "init",
        "--state-dir",
        &m3,
        "--masters",
        &all,
        "--node",
        "3",
    ];
    let flags = |id| [&flags[..], &["--cluster", id]].concat();
    trio.site.mete(&flags(other)).done();
    for master in MASTERS {
        trio.start_master(master);
    }
    trio.wait_for_leader();
    until("the stranger to say that it is one", || {
        let said = trio.site.daemon("m3").alive()?;
        holds(said.contains(other) && said.contains(&cluster), || said)
    });
    trio.kill(3);
    std::fs::remove_dir_all(trio.site.path("m3")).expect("its directory");
    trio.site.mete(&flags(&cluster)).done();

    let flags = [
        "master",
        "start",
        "--state-dir",
        &m3,
        "--listen",
        &trio.listens[&1],
    ];
    trio.site.mete(&flags).refused(1, "ADDRESS_IN_USE");
    let flags = [
        "master",
        "start",
        "--state-dir",
        &m1,
        "--listen",
        "127.0.0.1:0",
    ];
    trio.site.mete(&flags).refused(1, "STATE_LOCKED");
}

#[test]
fn nobody_is_taken_out_or_in_so_that_the_majority_is_lost() {
    let mut trio = Trio::found(false);
    for master in [1, 2] {
        trio.start_master(master);
    }
    // m3 is dead; nobody that is needed may go, and nobody dead can lead.
    let admin = |args: &[&str]| trio.site.mete(&[&["admin"], args].concat());
    let leader = format!("m{}", trio.wait_for_leader());
    admin(&["raft", "transfer", "--to", "m3"])
        .refused(1, "BUSY")
        .says("master 3");
    admin(&["raft", "transfer", "--to", "m7"]).refused(3, "NOT_FOUND");
    admin(&["member", "rm", &leader, "--yes"])
        .refused(1, "QUORUM_LOSS")
        .says("silent: 3");
    admin(&["member", "rm", "m7", "--yes"]).refused(3, "NOT_FOUND");
    admin(&["member", "promote", "m7"]).refused(3, "NOT_FOUND");
    admin(&["member", "add", &trio.dialled[&1]])
        .refused(6, "IN_USE")
        .says("--replaces m1");
    // One that was taken in and has not come yet keeps its number when that is asked for again.
    let fourth = format!("127.0.0.1:{}", free_port());
    let add = || trio.site.json(&["admin", "member", "add", &fourth]);
    assert_eq!(add().one()["id"], 4);
    assert_eq!(add().one()["id"], 4);
    assert!(members(&trio).iter().any(|(id, voter)| *id == 4 && !voter));
    admin(&["member", "rm", "m4", "--yes"]).done();
    until("it to be gone", || {
        let members = members(&trio);
        holds(members.len() == 3, || format!("{members:?}"))
    });
    down_to_one(&trio, &leader);
}

#[test]
fn what_is_asked_of_the_seats_during_an_election_is_judged_by_the_leader_that_comes() {
    let mut trio = Trio::start(false);
    // Each of the two that are left is needed, and the dead one cannot lead.
    type Call = fn(&Trio, u64, u64) -> Result<(), tonic::Status>;
    let calls: [(Call, &str); 2] = [
        (
            |trio, follower, _| trio.remove(follower, follower),
            "silent: ",
        ),
        (
            |trio, follower, dead| trio.transfer(follower, dead),
            "does not answer",
        ),
    ];
    for (call, why) in calls {
        let (dead, answers) = trio.ask_during_an_election(call);
        let said = answers.into_iter().map(|answer| {
            let refused = answer.expect_err("it is refused");
            refused.message().to_owned()
        });
        let said: Vec<String> = said.collect();
        let judged = said.iter().filter(|said| said.contains(why));
        assert_eq!(judged.count(), 1, "by the one that leads then: {said:?}");
        trio.restart(dead);
        trio.wait_until_caught_up(dead);
        assert!(members(&trio).iter().all(|(_, voter)| *voter));
    }
}

/// Takes out everyone but the leader, which must stay.
fn down_to_one(trio: &Trio, leader: &str) {
    let admin = |args: &[&str]| trio.site.mete(&[&["admin"], args].concat());
    admin(&["member", "rm", "m3", "--yes"]).done();
    until("two to be left", || {
        let members = members(trio);
        holds(members.len() == 2, || format!("{members:?}"))
    });
    let follower = if leader == "m1" { "m2" } else { "m1" };
    admin(&["member", "rm", follower, "--yes"]).done();
    until("one to be left", || {
        let members = members(trio);
        holds(members.len() == 1, || format!("{members:?}"))
    });
    admin(&["member", "rm", leader, "--yes"]).refused(1, "QUORUM_LOSS");
    admin(&["raft", "transfer"]).refused(1, "QUORUM_LOSS");
    trio.site.mete(&["quota", "set", "alone"]).done();
}
