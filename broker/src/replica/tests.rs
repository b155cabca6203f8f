//! Replicas over disks in memory: alone and three of them, on a network that loses and reorders.

mod net;

use std::collections::BTreeMap;

use proptest::prelude::*;

use crate::replica::membership::Change;
use crate::replica::tests::net::{CLUSTER, Journal, Net, config};
use crate::replica::{Input, NotLogged, OpenError, Proposal, Replica, Role};
use crate::store::{FaultPlan, MemoryDisk, MemoryStore};

fn lines(prefix: &str, count: usize) -> Vec<String> {
    (0..count)
        .map(|number| format!("{prefix}-{number}"))
        .collect()
}

fn as_strs(lines: &[String]) -> Vec<&str> {
    lines.iter().map(String::as_str).collect()
}

#[test]
fn a_replica_that_is_alone_leads_as_soon_as_it_is_open() {
    let net = Net::new(&[7]);
    let standing = net.replicas[&7].standing();

    assert_eq!(
        (standing.role, standing.leader, standing.ready),
        (Role::Leader, Some(7), true)
    );
}

#[test]
fn all_proposals_of_a_turn_share_one_flush_and_are_answered_in_it() {
    let mut net = Net::new(&[7]);
    let (_, before) = net.disks[&7].operations();

    let tokens = net.propose(7, &as_strs(&lines("line", 100)));

    let (_, after) = net.disks[&7].operations();
    assert_eq!(after - before, 1);
    assert_eq!(net.told.done().into_iter().collect::<Vec<_>>(), tokens);
    assert_eq!(net.machine(7).lines.len(), 100);
}

#[test]
fn a_restart_without_warning_brings_back_every_answered_command() {
    let mut net = Net::new(&[7]);
    // More than one snapshot's worth, so that snapshot, trim and log all take part.
    for round in 0..13 {
        net.propose(7, &as_strs(&lines(&format!("round{round}"), 10)));
    }
    let before = net.machine(7).clone();
    let life = net.replicas[&7].identity().incarnation;

    net.crash(7, 0);
    net.restart(7);

    assert_eq!(*net.machine(7), before);
    assert!(
        net.replicas[&7]
            .live_snapshot()
            .is_some_and(|manifest| manifest.at.index > 1)
    );
    assert_eq!(net.replicas[&7].identity().incarnation, life + 1);
}

#[test]
fn flushes_that_lie_lose_answered_commands_and_this_test_sees_it() {
    let mut net = Net::new(&[7]);
    net.disks[&7].set_faults(FaultPlan {
        flushes_lie: true,
        ..FaultPlan::default()
    });
    net.propose(7, &["precious"]);
    assert!(net.machine(7).holds(b"precious"));

    net.crash(7, 0);
    net.restart(7);

    assert!(
        !net.machine(7).holds(b"precious"),
        "the crash of this disk loses nothing"
    );
}

#[test]
fn three_replicas_elect_one_leader_and_hold_the_same() {
    let mut net = Net::new(&[1, 2, 3]);
    let leader = net.elect();
    let tokens = net.propose(leader, &["a", "b", "c"]);
    net.run_until("all hold the lines", |net| {
        net.replicas
            .values()
            .all(|replica| replica.machine().lines.len() == 3)
    });

    let leaders = net
        .replicas
        .values()
        .filter(|replica| replica.standing().role == Role::Leader);
    assert_eq!(leaders.count(), 1);
    assert!(tokens.iter().all(|token| net.told.done().contains(token)));
    assert_eq!(net.digests().len(), 1);
}

#[test]
fn a_follower_refuses_a_proposal_and_names_the_leader() {
    let mut net = Net::new(&[1, 2, 3]);
    let leader = net.elect();
    net.settle();
    let follower = if leader == 1 { 2 } else { 1 };

    let tokens = net.propose(follower, &["not here"]);

    let term = net.replicas[&leader].standing().term;
    let expected = (
        tokens[0],
        NotLogged::NotLeader {
            leader: Some(leader),
            term,
        },
    );
    assert_eq!(net.told.refused, [expected]);
    assert!(!net.machine(leader).holds(b"not here"));
}

#[test]
fn a_leader_cut_off_says_unknown_and_the_others_go_on() {
    let mut net = Net::new(&[1, 2, 3]);
    let old = net.elect();
    net.settle();
    net.isolated.insert(old);
    let lost = net.propose(old, &["nobody heard this"]);
    net.run_until("another leader", |net| {
        net.leader().is_some_and(|leader| leader != old)
    });
    net.run_until("the old one steps down", |net| {
        net.replicas[&old].standing().role != Role::Leader
    });
    assert_eq!(net.told.unknown, lost);

    let new = net.leader().expect("just seen");
    net.propose(new, &["all hear this"]);
    net.isolated.clear();
    net.run_until("all agree", |net| {
        net.replicas
            .values()
            .all(|replica| replica.machine().holds(b"all hear this"))
    });

    assert!(
        net.replicas
            .values()
            .all(|replica| !replica.machine().holds(b"nobody heard this"))
    );
    assert_eq!(net.digests().len(), 1);
}

#[test]
fn a_follower_behind_the_log_catches_up_by_a_snapshot() {
    let mut net = Net::new(&[1, 2, 3]);
    let leader = net.elect();
    net.settle();
    let away = if leader == 1 { 2 } else { 1 };
    net.crash(away, 0);
    for round in 0..30 {
        net.propose(leader, &as_strs(&lines(&format!("round{round}"), 10)));
        net.settle();
    }

    net.restart(away);
    net.run_until("it has everything", |net| {
        net.machine(away).lines.len() == net.machine(leader).lines.len()
    });

    assert!(
        net.told
            .restored
            .iter()
            .any(|(node, index)| *node == away && *index > 1)
    );
    assert_eq!(net.digests().len(), 1);
    // What it received must also carry its next start.
    net.crash(away, 0);
    net.restart(away);
    net.run_until("it has everything again", |net| {
        net.machine(away).lines.len() == net.machine(leader).lines.len()
    });
}

#[test]
fn a_read_is_answered_by_a_leader_and_dropped_by_a_follower() {
    let mut net = Net::new(&[1, 2, 3]);
    let leader = net.elect();
    net.propose(leader, &["written"]);
    net.settle();
    let follower = if leader == 1 { 2 } else { 1 };

    net.step(
        leader,
        Input {
            reads: vec![501, 502],
            ..Input::default()
        },
    );
    net.settle();
    net.step(
        follower,
        Input {
            reads: vec![503],
            ..Input::default()
        },
    );

    let applied = net.replicas[&leader].applied_index();
    assert_eq!(net.told.reads, [(501, applied), (502, applied)]);
    assert_eq!(net.told.reads_dropped, [503]);
}

#[test]
fn a_read_at_a_leader_cut_off_is_dropped_not_answered() {
    let mut net = Net::new(&[1, 2, 3]);
    let leader = net.elect();
    net.settle();
    net.isolated.insert(leader);

    net.step(
        leader,
        Input {
            reads: vec![501],
            ..Input::default()
        },
    );
    net.run_until("the read is answered one way", |net| {
        !net.told.reads_dropped.is_empty()
    });

    assert_eq!(
        (net.told.reads.len(), net.told.reads_dropped.as_slice()),
        (0, [501].as_slice())
    );
}

#[test]
fn handing_over_the_leadership_needs_no_election_timeout() {
    let mut net = Net::new(&[1, 2, 3]);
    let old = net.elect();
    net.settle();
    let heir = if old == 1 { 2 } else { 1 };

    net.step(
        old,
        Input {
            hand_over_to: Some(heir),
            ..Input::default()
        },
    );
    net.settle();

    assert_eq!(net.leader(), Some(heir));
}

#[test]
fn a_cluster_of_one_grows_through_a_learner_and_shrinks_again() {
    let mut net = Net::new(&[1]);
    net.propose(1, &as_strs(&lines("early", 120)));
    net.start_new(2, &[]);

    net.step(
        1,
        Input {
            change: Some((900, Change::AddLearner(2))),
            ..Input::default()
        },
    );
    net.run_until("the learner has it all", |net| {
        net.machine(2).lines.len() == 120
    });
    net.step(
        1,
        Input {
            change: Some((901, Change::Promote(2))),
            ..Input::default()
        },
    );
    net.run_until("two voters", |net| {
        net.replicas
            .values()
            .all(|replica| replica.members().voters == [1, 2])
    });
    net.propose(1, &["by both"]);
    net.run_until("both hold it", |net| net.machine(2).holds(b"by both"));

    // A member that was away over a change comes back with the membership of its own log.
    net.crash(2, 0);
    net.restart(2);
    assert_eq!(net.replicas[&2].members().voters, [1, 2]);
    net.run_until("a leader again", |net| net.leader() == Some(1));
    net.step(
        1,
        Input {
            change: Some((902, Change::Remove(2))),
            ..Input::default()
        },
    );
    net.run_until("one voter", |net| net.replicas[&1].members().voters == [1]);
    net.propose(1, &["alone again"]);

    assert!(net.machine(1).holds(b"alone again"));
    assert!(
        [900, 901, 902]
            .iter()
            .all(|token| net.told.done().contains(token))
    );
}

#[test]
fn after_a_replacement_no_two_voters_wait_equally_long_before_they_stand() {
    let mut net = Net::new(&[1, 2, 3]);
    let leader = net.elect();
    let leaves = if leader == 1 { 2 } else { 1 };
    net.start_new(4, &[]);
    let change = |net: &mut Net, token, change| {
        net.step(
            leader,
            Input {
                change: Some((token, change)),
                ..Input::default()
            },
        );
    };
    change(&mut net, 900, Change::AddLearner(4));
    net.run_until("the learner is there", |net| {
        net.replicas[&4].members().learners == [4]
    });
    change(&mut net, 901, Change::Replace { enters: 4, leaves });
    net.run_until("the replacement is done", |net| {
        let voters = |node: &u64| net.replicas[node].members().voters.clone();
        net.replicas[&leader].members().voters.contains(&4)
            && voters(&4) == voters(&leader)
            && !net.replicas[&4].members().changing
    });

    let voters = net.replicas[&leader].members().voters.clone();
    let timers = config(&[1]).timers;
    for (rank, node) in voters.iter().enumerate() {
        let waits = net.replicas[node].node.raft.randomized_election_timeout();
        let (from, to) = timers.stand_range(rank);
        assert!((from..to).contains(&waits), "voter {node} waits {waits}");
    }
}

#[test]
fn a_leader_that_applies_its_own_removal_steps_down_and_the_others_go_on() {
    let mut net = Net::new(&[1, 2, 3]);
    let leader = net.elect();
    net.propose(leader, &["before"]);
    net.settle();

    net.step(
        leader,
        Input {
            change: Some((900, Change::Remove(leader))),
            ..Input::default()
        },
    );
    // More is on its way when the removal applies.
    net.propose(leader, &["beside"]);
    net.settle();
    assert_ne!(net.replicas[&leader].standing().role, Role::Leader);

    net.isolated.insert(leader);
    let heir = net.elect();
    net.propose(heir, &["after"]);
    net.settle();
    assert!(net.machine(heir).holds(b"before") && net.machine(heir).holds(b"after"));
    assert!(!net.replicas[&heir].members().has(leader));
}

#[test]
fn a_voter_is_replaced_in_one_step_that_needs_both_majorities() {
    let mut net = Net::new(&[1, 2, 3]);
    let leader = net.elect();
    let leaves = if leader == 2 { 3 } else { 2 };
    net.start_new(4, &[]);
    net.step(
        leader,
        Input {
            change: Some((900, Change::AddLearner(4))),
            ..Input::default()
        },
    );
    net.propose(leader, &["early"]);
    net.run_until("the learner has it", |net| net.machine(4).holds(b"early"));

    let enters = 4;
    net.step(
        leader,
        Input {
            change: Some((901, Change::Replace { enters, leaves })),
            ..Input::default()
        },
    );
    net.run_until("the step is over", |net| {
        let members = net.replicas[&leader].members();
        !members.changing && members.has(4) && !members.has(leaves)
    });
    net.propose(leader, &["late"]);
    net.run_until("the new one has it", |net| net.machine(4).holds(b"late"));
    assert!(net.replicas[&leader].members().voters.contains(&4));
}

#[test]
fn a_heartbeat_that_knows_more_than_was_received_is_refused_and_kills_nobody() {
    let mut net = Net::new(&[1, 2, 3]);
    let leader = net.elect();
    net.propose(leader, &["kept"]);
    net.settle();
    let victim = if leader == 2 { 3 } else { 2 };

    // Its disk is lost, and it comes back under the old number: the leader thinks that it has all.
    net.crash(victim, 0);
    net.start_new(victim, &[]);
    for _ in 0..20 {
        net.tick_all();
        net.settle();
    }
    let refused = &net.told.frames_refused;
    assert!(
        refused.iter().any(|why| why.contains("never received")),
        "{refused:?}"
    );
}

#[test]
fn a_second_change_while_one_is_pending_is_refused() {
    let mut net = Net::new(&[1, 2, 3]);
    let leader = net.elect();
    net.settle();

    net.step(
        leader,
        Input {
            change: Some((900, Change::AddLearner(8))),
            ..Input::default()
        },
    );
    net.step(
        leader,
        Input {
            change: Some((901, Change::AddLearner(9))),
            ..Input::default()
        },
    );
    net.settle();

    assert_eq!(net.told.refused, [(901, NotLogged::ChangePending)]);
    assert_eq!(net.replicas[&leader].members().learners, [8]);
}

#[test]
fn a_nearly_full_disk_refuses_new_commands_and_takes_them_again_later() {
    let mut net = Net::new(&[7]);
    net.disks[&7].set_faults(FaultPlan {
        space_low: true,
        ..FaultPlan::default()
    });
    let refused = net.propose(7, &["no room"]);
    net.disks[&7].set_faults(FaultPlan::default());
    let taken = net.propose(7, &["room"]);

    assert_eq!(net.told.refused, [(refused[0], NotLogged::SpaceLow)]);
    assert!(net.told.done().contains(&taken[0]));
}

#[test]
fn a_command_above_the_limit_is_refused_and_its_neighbours_are_not() {
    let mut net = Net::new(&[7]);
    let limit = config(&[7]).command_bytes;
    let commands = [vec![b'a'], vec![b'b'; limit + 1], vec![b'c'; limit]];
    let proposals = (1..).zip(commands);
    let proposals = proposals
        .map(|(token, command)| Proposal { token, command })
        .collect();

    net.step(
        7,
        Input {
            proposals,
            ..Input::default()
        },
    );

    let refusal = NotLogged::TooLarge {
        bytes: limit + 1,
        limit,
    };
    assert_eq!(net.told.refused, [(2, refusal)]);
    assert_eq!(net.told.done().into_iter().collect::<Vec<_>>(), [1, 3]);
    net.crash(7, 0);
    net.restart(7);
    assert_eq!(net.machine(7).lines.len(), 2);
}

#[test]
fn a_disk_that_fails_ends_the_turn_with_a_fault() {
    let disk = MemoryDisk::new();
    let store = MemoryStore::found(&disk, CLUSTER, 7).expect("an empty disk");
    let opened = Replica::open(config(&[7]), Box::new(store), Journal::default());
    let mut replica = opened.expect("a new replica opens");
    let (_, flushes) = disk.operations();
    disk.set_faults(FaultPlan {
        fail_flushes: vec![flushes + 1],
        ..FaultPlan::default()
    });

    let proposals = vec![Proposal {
        token: 1,
        command: b"x".to_vec(),
    }];
    let result = replica.step(
        Input {
            proposals,
            ..Input::default()
        },
        &mut |_| {},
    );

    let error = result
        .err()
        .map(|fault| fault.to_string())
        .unwrap_or_default();
    assert!(error.contains("planned failure of a flush"), "{error}");
    assert!(!replica.machine().holds(b"x"), "applied though not durable");
}

#[test]
fn whoever_is_not_among_the_founders_does_not_found() {
    let store = MemoryStore::found(&MemoryDisk::new(), CLUSTER, 9).expect("an empty disk");

    let opened = Replica::open(config(&[1, 2, 3]), Box::new(store), Journal::default());

    assert!(matches!(
        opened,
        Err(OpenError::NotAFounder { node: 9, .. })
    ));
}

#[test]
fn frames_that_are_damaged_or_foreign_are_refused_and_change_nothing() {
    let mut net = Net::new(&[1, 2, 3]);
    net.elect();
    let before: BTreeMap<u64, _> = net
        .replicas
        .iter()
        .map(|(node, replica)| (*node, replica.standing()))
        .collect();
    let frames = [Vec::new(), vec![0; 40], vec![1; 9_000_000]];

    for frame in frames {
        net.step(
            1,
            Input {
                messages: vec![frame],
                ..Input::default()
            },
        );
    }

    assert_eq!(net.told.frames_refused.len(), 3);
    assert_eq!(net.replicas[&1].standing(), before[&1]);
}

/// One act of a hostile world.
#[derive(Debug, Clone)]
enum Act {
    Tick,
    Deliver { pick: usize, lose: bool },
    Propose(u8),
    Crash { node: u64, kept: usize },
    Isolate(u64),
    Heal,
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        6 => Just(Act::Tick),
        12 => (0..50_usize, prop::bool::weighted(0.1))
            .prop_map(|(pick, lose)| Act::Deliver { pick, lose }),
        4 => any::<u8>().prop_map(Act::Propose),
        1 => (1..=3_u64, 0..4_usize).prop_map(|(node, kept)| Act::Crash { node, kept }),
        1 => (1..=3_u64).prop_map(Act::Isolate),
        1 => Just(Act::Heal),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, ..ProptestConfig::default() })]

    /// Crashes, cuts, losses and reordering: replicas never disagree about an index (checked at
    /// every apply), and at the end every answered command is held by all, once.
    #[test]
    fn nothing_answered_is_lost_whatever_the_world_does(
        acts in prop::collection::vec(act(), 200..900),
    ) {
        let mut net = Net::new(&[1, 2, 3]);
        net.elect();
        let mut proposed: BTreeMap<u64, String> = BTreeMap::new();
        for (number, act) in acts.into_iter().enumerate() {
            match act {
                Act::Tick => net.tick_all(),
                Act::Deliver { pick, lose } => drop(net.deliver_one(pick, lose)),
                Act::Propose(count) => {
                    let Some(leader) = net.leader() else { continue };
                    let lines = lines(&format!("act{number}"), usize::from(count % 8) + 1);
                    let tokens = net.propose(leader, &as_strs(&lines));
                    proposed.extend(tokens.into_iter().zip(lines));
                }
                Act::Crash { node, kept } => {
                    net.crash(node, kept);
                    net.restart(node);
                }
                Act::Isolate(node) => drop(net.isolated.insert(node)),
                Act::Heal => net.isolated.clear(),
            }
        }
        net.isolated.clear();
        let leader = net.elect();
        net.propose(leader, &["the end"]);
        net.run_until("all hold the end", |net| {
            net.replicas.values().all(|replica| replica.machine().holds(b"the end"))
        });

        prop_assert_eq!(net.digests().len(), 1);
        let machine = net.machine(1);
        for (token, line) in &proposed {
            let held = machine.lines.iter().filter(|(_, held)| held == line.as_bytes()).count();
            prop_assert!(held <= 1, "{} is held {} times", line, held);
            if net.told.done().contains(token) {
                prop_assert_eq!(held, 1, "{} was answered", line);
            }
            if net.told.refused.iter().any(|(refused, _)| refused == token) {
                prop_assert_eq!(held, 0, "{} was refused", line);
            }
        }
    }

    #[test]
    fn arbitrary_frames_never_panic(frame in prop::collection::vec(any::<u8>(), 0..300)) {
        let mut net = Net::new(&[7]);
        net.step(7, Input { messages: vec![frame], ..Input::default() });
        prop_assert_eq!(net.told.frames_refused.len(), 1);
    }
}
