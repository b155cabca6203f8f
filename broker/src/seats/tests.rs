use std::collections::BTreeSet;

use mete_model::Timestamp;
use proptest::prelude::*;

use super::*;

fn master(node: u64, seat: Seat, replaces: u64) -> Master {
    Master {
        node,
        address: format!("m{node}:7443"),
        seat,
        replaces,
        added: Timestamp::default(),
        revision: 0,
    }
}

fn voters(nodes: &[u64]) -> Vec<Master> {
    let named = nodes.iter().map(|node| master(*node, Seat::Voter, 0));
    named.collect()
}

fn members(voters: &[u64], learners: &[u64]) -> Members {
    Members {
        voters: voters.to_vec(),
        learners: learners.to_vec(),
        changing: false,
    }
}

fn ready(node: u64) -> Peer {
    Peer {
        node,
        answers: true,
        caught_up: true,
        matched: 100,
    }
}

fn silent(node: u64) -> Peer {
    Peer {
        node,
        answers: false,
        caught_up: false,
        matched: 0,
    }
}

fn step(masters: &[Master], members: &Members, peers: &[Peer]) -> Option<Step> {
    next_step(&Facts {
        own: 1,
        masters,
        members,
        peers,
        stuck: false,
    })
}

#[test]
fn a_cluster_whose_seats_are_right_rests() {
    let masters = voters(&[1, 2, 3]);
    let rest = step(&masters, &members(&[1, 2, 3], &[]), &[ready(2), silent(3)]);
    assert_eq!(rest, None);
}

#[test]
fn a_new_master_becomes_a_learner_and_gets_its_vote_when_it_has_caught_up() {
    let masters = voters(&[1, 2]);
    let added = step(&masters, &members(&[1], &[]), &[]);
    assert_eq!(added, Some(Step::Change(Change::AddLearner(2))));

    let behind = Peer {
        caught_up: false,
        ..ready(2)
    };
    assert_eq!(step(&masters, &members(&[1], &[2]), &[behind]), None);
    let promoted = step(&masters, &members(&[1], &[2]), &[ready(2)]);
    assert_eq!(promoted, Some(Step::Change(Change::Promote(2))));
    // One that shall stay a learner does.
    let learner = [master(1, Seat::Voter, 0), master(2, Seat::Learner, 0)];
    assert_eq!(step(&learner, &members(&[1], &[2]), &[ready(2)]), None);
}

#[test]
fn a_leader_that_is_to_leave_hands_over_first_and_its_record_goes_last() {
    let masters = [
        master(1, Seat::Leaving, 0),
        master(2, Seat::Voter, 0),
        master(3, Seat::Voter, 0),
    ];
    let all = members(&[1, 2, 3], &[]);
    let handed = step(&masters, &all, &[silent(2), ready(3)]);
    assert_eq!(handed, Some(Step::HandOver(3)));

    let next = |members: &Members, peers: &[Peer]| {
        next_step(&Facts {
            own: 3,
            masters: &masters,
            members,
            peers,
            stuck: false,
        })
    };
    // Two of three answer, and one of them is leaving: the remaining one would be alone.
    assert_eq!(next(&all, &[ready(1), silent(2)]), None);
    let removed = next(&all, &[ready(1), ready(2)]);
    assert_eq!(removed, Some(Step::Change(Change::Remove(1))));
    let forgotten = next(&members(&[2, 3], &[]), &[ready(2)]);
    assert_eq!(forgotten, Some(Step::Forget(1)));
}

#[test]
fn a_replacement_enters_and_the_old_one_leaves_in_one_step() {
    let masters = [
        master(1, Seat::Voter, 0),
        master(2, Seat::Voter, 0),
        master(3, Seat::Voter, 0),
        master(4, Seat::Voter, 2),
    ];
    let peers = [silent(2), ready(3), ready(4)];
    let replaced = step(&masters, &members(&[1, 2, 3], &[4]), &peers);
    let change = Change::Replace {
        enters: 4,
        leaves: 2,
    };
    assert_eq!(replaced, Some(Step::Change(change)));
    // The old one is not taken in again.
    let after = step(&masters, &members(&[1, 3, 4], &[]), &peers);
    assert_eq!(after, Some(Step::Forget(2)));
}

#[test]
fn a_voter_goes_only_when_those_who_stay_have_acknowledged_the_wish() {
    let mut masters = [
        master(1, Seat::Voter, 0),
        master(2, Seat::Leaving, 0),
        master(3, Seat::Voter, 0),
    ];
    masters[1].revision = 200;
    let all = members(&[1, 2, 3], &[]);
    // 3 is heard, but has nothing of the last hundred entries: a snapshot on its way, or a link
    // that carries one way only.
    let behind = [ready(2), ready(3)];
    assert_eq!(step(&masters, &all, &behind), None);
    let has = Peer {
        matched: 200,
        ..ready(3)
    };
    assert_eq!(
        step(&masters, &all, &[ready(2), has]),
        Some(Step::Change(Change::Remove(2)))
    );
}

#[test]
fn an_address_is_answered_again_only_for_one_that_never_held_the_log() {
    let masters = voters(&[1, 2, 3]);
    let all = members(&[1, 2], &[]);
    let fresh = Peer {
        matched: 0,
        ..ready(3)
    };
    let facts = Facts {
        own: 1,
        masters: &masters,
        members: &all,
        peers: &[ready(2), fresh],
        stuck: false,
    };
    assert_eq!(same_again(&facts, "m9:7443", 0), Ok(None));
    assert_eq!(same_again(&facts, "m3:7443", 0), Ok(Some(3)));
    // A voter may come back with an empty disk: it gets another number, or nothing.
    assert!(same_again(&facts, "m2:7443", 0).is_err());
    assert_eq!(same_again(&facts, "m2:7443", 2), Ok(None));
    let held = [ready(2), ready(3)];
    let facts = Facts {
        peers: &held,
        ..facts
    };
    assert!(same_again(&facts, "m3:7443", 0).is_err());
}

#[test]
fn an_address_is_corrected_alone_and_the_level_is_what_all_members_know() {
    let mut masters = voters(&[2, 3]);
    masters[0].seat = Seat::Leaving;
    let all = members(&[1, 2], &[3]);
    let facts = Facts {
        own: 1,
        masters: &masters,
        members: &all,
        peers: &[],
        stuck: false,
    };
    let say = |node, address, level| Said {
        node,
        address,
        level,
    };
    let set = |node, address: &str, seat| {
        Command::SetMaster(SetMaster {
            node,
            address: Some(address.to_owned()),
            seat,
            replaces: None,
            actor: format!("master {node}"),
        })
    };
    // The leader names itself; one that has moved stays on its way out; a stranger names nobody.
    let said = [
        say(2, "new:1", 5),
        say(3, "m3:7443", 4),
        say(9, "x:1", 9),
        say(1, "m1:7443", 6),
    ];
    let expected = [
        set(2, "new:1", None),
        set(1, "m1:7443", Some(Seat::Voter)),
        Command::RaiseLevel { level: 4 },
    ];
    assert_eq!(corrections(&facts, &said, 3), expected);
    // One member that has said nothing holds the level where it is.
    let quiet = [say(3, "m3:7443", 4), say(1, "", 6)];
    assert_eq!(corrections(&facts, &quiet, 3), []);
}

#[test]
fn a_change_left_open_is_settled_when_nobody_else_does() {
    let masters = voters(&[1, 2]);
    let open = Members {
        changing: true,
        ..members(&[1, 2], &[])
    };
    let look = |stuck| {
        next_step(&Facts {
            own: 1,
            masters: &masters,
            members: &open,
            peers: &[],
            stuck,
        })
    };
    assert_eq!(look(false), None);
    assert_eq!(look(true), Some(Step::Change(Change::Settle)));
}

#[test]
fn a_refusal_to_let_a_master_go_shows_the_arithmetic() {
    let masters = voters(&[1, 2, 3]);
    let three = members(&[1, 2, 3], &[9]);
    let facts = Facts {
        own: 1,
        masters: &masters,
        members: &three,
        peers: &[ready(2), silent(3), silent(9)],
        stuck: false,
    };
    assert_eq!(may_leave(&facts, 3), Ok(()));
    assert_eq!(may_leave(&facts, 9), Ok(()));
    assert_eq!(
        may_leave(&facts, 2),
        Err(
            "without master 2 there are 2 voters of which 1 answer (silent: 3), and 2 are \
             needed; bring the silent ones back or remove them first"
                .to_owned()
        )
    );
    // Who is on the way out already does not count as staying.
    let leaving = [
        master(1, Seat::Leaving, 0),
        master(2, Seat::Voter, 0),
        master(3, Seat::Leaving, 0),
    ];
    let peers = [ready(2), ready(3)];
    let last = may_leave(
        &Facts {
            masters: &leaving,
            peers: &peers,
            ..facts
        },
        2,
    );
    assert_eq!(
        last,
        Err(
            "master 2 is the last voter that stays; a cluster without masters decides nothing"
                .to_owned()
        )
    );
    let present = facts.present().to_string();
    assert_eq!(present, "2 of 3 voters answer, 2 are needed, can lose 0");
}

/// What the log's membership makes of a step.
fn take(members: &mut Members, change: Change) {
    match change {
        Change::AddLearner(node) => members.learners.push(node),
        Change::Promote(node) => {
            members.learners.retain(|learner| *learner != node);
            members.voters.push(node);
        }
        Change::Remove(node) => {
            members.learners.retain(|learner| *learner != node);
            members.voters.retain(|voter| *voter != node);
        }
        Change::Replace { enters, leaves } => {
            take(members, Change::Promote(enters));
            take(members, Change::Remove(leaves));
        }
        Change::Settle => members.changing = false,
    }
    members.voters.sort_unstable();
    members.learners.sort_unstable();
}

/// A made-up cluster that takes every step at once.
struct Made {
    own: u64,
    masters: Vec<Master>,
    members: Members,
    silent: BTreeSet<u64>,
}

impl Made {
    /// Answering voters, and how many are needed.
    fn quorum(&self) -> (usize, usize) {
        let voters = &self.members.voters;
        let answering = voters.iter().filter(|node| !self.silent.contains(node));
        (answering.count(), voters.len() / 2 + 1)
    }

    fn next(&self) -> Option<Step> {
        let others = self.masters.iter().map(|master| master.node);
        let peers: Vec<Peer> = others
            .filter(|node| *node != self.own)
            .map(|node| {
                if self.silent.contains(&node) {
                    silent(node)
                } else {
                    ready(node)
                }
            })
            .collect();
        next_step(&Facts {
            own: self.own,
            masters: &self.masters,
            members: &self.members,
            peers: &peers,
            stuck: false,
        })
    }

    /// Takes steps until there are none; fails if one is unsafe or they go round.
    fn run(&mut self) -> Result<(), TestCaseError> {
        for _ in 0..60 {
            match self.next() {
                None => return Ok(()),
                Some(Step::Change(change)) => {
                    let now = format!("{change:?} of {:?}", self.members);
                    prop_assert_eq!(self.members.check(change), Ok(()), "{}", now);
                    take(&mut self.members, change);
                    let (answering, needed) = self.quorum();
                    prop_assert!(answering >= needed, "no majority after {}", now);
                    prop_assert!(self.members.voters.contains(&self.own), "after {}", now);
                }
                Some(Step::HandOver(heir)) => {
                    prop_assert!(self.members.voters.contains(&heir) && heir != self.own);
                    self.own = heir;
                }
                Some(Step::Forget(node)) => {
                    prop_assert!(!self.members.has(node));
                    self.masters.retain(|master| master.node != node);
                    for master in &mut self.masters {
                        if master.replaces == node {
                            master.replaces = 0;
                        }
                    }
                }
            }
        }
        let (masters, members) = (&self.masters, &self.members);
        prop_assert!(false, "the steps go round: {:?} {:?}", masters, members);
        Ok(())
    }
}

fn made() -> impl Strategy<Value = Made> {
    let nodes = |most: usize| proptest::collection::btree_set(1..7_u64, 0..most);
    let wishes = proptest::collection::vec((0..3_usize, 0..7_u64), 1..7);
    (wishes, nodes(5), nodes(3), nodes(3), 0..4_usize).prop_filter_map(
        "needs a leader and a majority",
        |(wishes, seated, learning, silent, own_at)| {
            let last = u64::try_from(wishes.len()).ok()?;
            let seats = [Seat::Learner, Seat::Voter, Seat::Leaving];
            let masters = (1..).zip(&wishes).map(|(node, (seat, replaces))| {
                let known = *replaces <= last && *replaces != node;
                master(node, seats[*seat], if known { *replaces } else { 0 })
            });
            let voters: Vec<u64> = seated.into_iter().filter(|node| *node <= last).collect();
            let learners = learning.into_iter().filter(|node| *node <= last);
            let learners: Vec<u64> = learners.filter(|node| !voters.contains(node)).collect();
            let own = *voters.get(own_at % voters.len().max(1))?;
            let mut made = Made {
                own,
                masters: masters.collect(),
                members: members(&voters, &learners),
                silent,
            };
            made.silent.remove(&own);
            let (answering, needed) = made.quorum();
            (answering >= needed).then_some(made)
        },
    )
}

impl std::fmt::Debug for Made {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self {
            own,
            members,
            silent,
            masters,
        } = self;
        write!(f, "own {own} silent {silent:?} {members:?} {masters:?}")
    }
}

proptest! {
    /// From any seats to any wishes, with any of the others silent: every step is one that the
    /// membership takes, no step leaves fewer answering voters than a majority, and once all answer
    /// the steps end with every seat as it shall be.
    #[test]
    fn the_steps_are_safe_and_end_where_they_shall(mut made in made()) {
        made.run()?;
        made.silent.clear();
        made.run()?;
        for master in &made.masters {
            let votes = made.members.voters.contains(&master.node);
            match master.seat {
                // The last one stays, whatever is wished.
                Seat::Leaving => prop_assert_eq!(&made.members.voters, &vec![master.node]),
                Seat::Voter => prop_assert!(votes, "{:?}", made),
                Seat::Learner => prop_assert!(made.members.has(master.node)),
            }
        }
    }
}
