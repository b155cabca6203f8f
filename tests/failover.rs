//! Three masters as processes, of which any are killed, stopped, cut off, wiped or damaged at any
//! moment: tasks, agents, frameworks and users feel a pause and nothing else.
//!
//! METE_CHAOS_ROUNDS says how often the stories with dice go round (2 without it).

#![expect(
    clippy::indexing_slicing,
    reason = "a missing field must fail the story"
)]

#[path = "failover/seats.rs"]
mod seats;
mod support;

use std::collections::BTreeSet;
use std::time::Duration;

use rustix::process::Signal;
use support::reap::alive_since;
use support::trio::{Checker, MASTERS, Trio};
use support::{Dice, holds, until};

/// Elements of one array.
const ELEMENTS: usize = 200;

/// Agents that divide the machine.
const SHARE: &[&str] = &["--share", "1,512MiB"];

fn rounds() -> u64 {
    let said = std::env::var("METE_CHAOS_ROUNDS").ok();
    said.map_or(2, |said| said.parse().expect("a number of rounds"))
}

/// Agents, the batch framework, and a service of two tasks that write their pids.
fn furnish(trio: &mut Trio) {
    for name in ["n1", "n2"] {
        trio.site.start_agent(name, SHARE);
    }
    trio.site.start_batch();
    let script = format!(
        "cd {}; echo $$ >> pids; exec sleep 10000",
        trio.site.arg("work")
    );
    let flags = [
        "service", "start", "--name", "calm", "--count", "2", "--cpus", "0.1", "--", "sh", "-c",
    ];
    trio.site.spawn("calm", &[&flags[..], &[&script]].concat());
}

/// The processes of the service, each with its start.
fn calm(trio: &Trio) -> Vec<(u32, u64)> {
    until("the service to run", || {
        let text = std::fs::read_to_string(trio.site.path("work/pids")).unwrap_or_default();
        let pids: Vec<(u32, u64)> = text
            .lines()
            .filter_map(|line| {
                let pid = line.parse().ok()?;
                Some((pid, alive_since(pid)?))
            })
            .collect();
        holds(pids.len() == 2 && text.lines().count() == 2, || {
            text.clone()
        })?;
        Ok(pids)
    })
}

/// Submits an array of which each element adds a line to its own file, and ends with its own code.
fn submit_array(trio: &Trio, name: &str) -> String {
    let script = format!(
        "echo \"$METE_INDEX $METE_ATTEMPT\" >> {name}.$METE_INDEX; sleep 0.2; \
                          exit $((METE_INDEX % 3))"
    );
    let last = format!("0-{}", ELEMENTS - 1);
    let flags = [
        "submit", "--name", name, "--array", &last, "--cpus", "0.05", "--memory", "8MiB", "--",
        "sh", "-c", &script,
    ];
    trio.site.mete(&flags).done()
}

/// How many elements have begun.
fn begun(trio: &Trio, name: &str) -> usize {
    let file = |index: usize| trio.site.path("work").join(format!("{name}.{index}"));
    (0..ELEMENTS).filter(|index| file(*index).exists()).count()
}

/// Waits until a part of the array has begun.
fn wait_for_the_middle(trio: &Trio, name: &str) {
    until("some elements to have begun", || {
        let begun = begun(trio, name);
        holds(begun >= ELEMENTS / 8, || format!("{begun} have begun"))
    });
}

/// Every element ran once and ended with its own code.
fn check_array(trio: &Trio, job: &str, name: &str) {
    let waited = trio.site.mete(&["batch", "wait", job, "--timeout", "90s"]);
    assert_eq!(waited.code, 2, "the highest code of an element: {waited}");
    for index in 0..ELEMENTS {
        let file = trio.site.path("work").join(format!("{name}.{index}"));
        let text = std::fs::read_to_string(&file).unwrap_or_default();
        assert_eq!(text, format!("{index} 1\n"), "{name}/{index} ran once");
    }
    let shown = trio.site.json(&["batch", "show", job]);
    let row = shown.one();
    let elements = row["elements_list"].as_array().expect("elements");
    let failed = elements
        .iter()
        .filter(|element| element["state"] == "FAILED");
    let failed: BTreeSet<u64> = failed
        .filter_map(|element| element["index"].as_u64())
        .collect();
    let wanted: BTreeSet<u64> = (0..ELEMENTS as u64)
        .filter(|index| index % 3 != 0)
        .collect();
    if elements.len() == ELEMENTS {
        assert_eq!(failed, wanted, "ends as they were");
    }
    assert_eq!(row["failed"].as_u64(), Some(wanted.len() as u64), "{row}");
    let done = ELEMENTS - wanted.len();
    assert_eq!(row["completed"].as_u64(), Some(done as u64), "{row}");
}

/// A role that was acknowledged must be there for ever, one that was refused never.
#[derive(Default)]
struct Promises {
    kept: Vec<String>,
    /// Refused because nobody leads: must never be there.
    refused: Vec<String>,
}

impl Promises {
    fn make(&mut self, trio: &Trio) {
        let role = format!("kept-{}", self.kept.len());
        trio.site.mete(&["quota", "set", &role]).done();
        self.kept.push(role);
    }

    fn check(&self, trio: &Trio) {
        let roles = trio.site.json(&["quota", "tree"]);
        let roles = roles.texts("path");
        for promised in &self.kept {
            assert!(
                roles.contains(&promised.as_str()),
                "{promised} is lost: {roles:?}"
            );
        }
        for refused in &self.refused {
            assert!(
                !roles.contains(&refused.as_str()),
                "{refused} was refused and is there: {roles:?}"
            );
        }
    }
}

/// A command of a user that runs beside everything else and must end well.
fn user(trio: &mut Trio, name: &str, args: &[&str]) {
    trio.site.spawn(name, args);
}

fn user_is_served(trio: &mut Trio, name: &str, code: i32) {
    let status = trio.site.daemon(name).wait();
    let said = trio.site.daemon(name).said();
    assert_eq!(status.code(), Some(code), "{name}: {said}");
    assert!(!said.contains("error["), "{name}: {said}");
}

/// The leader first, then the leader and another one, then any one or two.
fn victims(round: u64, leader: u64, dice: &mut Dice) -> Vec<u64> {
    match round {
        0 => vec![leader],
        1 => vec![
            leader,
            MASTERS.into_iter().find(|m| *m != leader).expect("one"),
        ],
        _ => {
            let spared = 1 + dice.below(3);
            let both = dice.below(2) == 0;
            let others = MASTERS.into_iter().filter(|master| *master != spared);
            others.take(if both { 2 } else { 1 }).collect()
        }
    }
}

#[test]
fn any_masters_are_killed_under_a_running_array_and_nothing_is_lost_or_done_twice() {
    let mut dice = Dice::new();
    let mut trio = Trio::start(false);
    furnish(&mut trio);
    let before = calm(&trio);
    let checker = Checker::start(&trio);
    let mut promises = Promises::default();
    for round in 0..rounds().max(2) {
        let name = format!("a{round}");
        let job = submit_array(&trio, &name);
        let (waits, runs) = (format!("wait{round}"), format!("run{round}"));
        user(&mut trio, &waits, &["batch", "wait", &job]);
        let script = "echo out; sleep 4; exit 7";
        user(
            &mut trio,
            &runs,
            &["run", "--cpus", "0.05", "--", "sh", "-c", script],
        );
        wait_for_the_middle(&trio, &name);

        let leader = trio.wait_for_leader();
        let victims = victims(round, leader, &mut dice);
        eprintln!("round {round}: m{leader} leads, killed are {victims:?}");
        for victim in &victims {
            trio.kill(*victim);
        }
        if victims.len() == 1 {
            promises.make(&trio);
        } else {
            let role = format!("never-{round}");
            let refused = trio.site.mete(&["quota", "set", &role, "--timeout", "3s"]);
            match refused.code {
                4 => {
                    refused.refused(4, "NO_LEADER");
                    promises.refused.push(role);
                }
                _ => drop(
                    refused
                        .refused(7, "TIMED_OUT")
                        .says("may still take effect"),
                ),
            }
            for victim in &victims {
                trio.restart(*victim);
            }
            promises.make(&trio);
        }
        check_array(&trio, &job, &name);
        user_is_served(&mut trio, &waits, 2);
        user_is_served(&mut trio, &runs, 7);
        if victims.len() == 1 {
            trio.restart(victims[0]);
        }
        for victim in victims {
            trio.wait_until_caught_up(victim);
        }
        promises.check(&trio);
        assert_eq!(calm(&trio), before, "the service keeps its processes");
    }
    until("the nodes to hold the service and nothing else", || {
        let nodes = trio.site.json(&["node", "list"]);
        let tasks: u64 = nodes
            .items()
            .iter()
            .filter_map(|node| node["tasks"].as_u64())
            .sum();
        holds(tasks == 2, || format!("{:?}", nodes.0))
    });
    checker.end();
}

#[test]
fn a_leader_that_was_stopped_for_a_while_answers_nothing_stale() {
    let trio = Trio::start(false);
    for round in 0..rounds() {
        let old = trio.wait_for_leader();
        trio.site.signal(&format!("m{old}"), Signal::STOP);
        let new = trio.wait_for_leader_but(old);
        let role = format!("new-{round}");
        // The user is given all three, the stopped one among them.
        trio.site.mete(&["quota", "set", &role]).done();
        let status = trio.site.json(&["status"]);
        assert_eq!(
            status.one()["leader_address"],
            *trio.dialled[&new],
            "{:?}",
            status.0
        );

        // Asked while it is stopped, so that this is the first thing it sees when it goes on.
        std::thread::scope(|scope| {
            let asked: Vec<_> = (0..4)
                .map(|_| scope.spawn(|| trio.roles(old, false)))
                .collect();
            std::thread::sleep(Duration::from_millis(300));
            trio.site.signal(&format!("m{old}"), Signal::CONT);
            for answer in asked {
                if let Ok(roles) = answer.join().expect("no panic") {
                    assert!(roles.contains(&role), "stale: {roles:?} without {role}");
                }
            }
        });
        until("it to follow", || {
            let raft = trio.raft(old).ok_or_else(|| "no answer".to_owned())?;
            holds(raft.leader == new, || format!("{raft:?}"))
        });
        until("it to have the role", || {
            let roles = trio.roles(old, true).map_err(|status| status.to_string())?;
            holds(roles.contains(&role), || format!("{roles:?}"))
        });
    }
}

/// The number in a row of the members.
#[test]
fn agents_and_frameworks_that_know_one_master_learn_of_the_others() {
    let mut trio = Trio::start(false);
    let all = trio.site.address().to_owned();
    let only = trio.wait_for_leader();
    let address = trio.dialled[&only].clone();
    trio.site.set_address(&address);
    furnish(&mut trio);
    let before = calm(&trio);
    trio.kill(only);
    trio.site.set_address(&all);
    trio.wait_for_leader();
    for name in ["n1", "n2"] {
        trio.site.wait_for_node(name, "ready");
    }
    let script = "exit 5";
    let ran = trio
        .site
        .mete(&["run", "--cpus", "0.05", "--", "sh", "-c", script]);
    assert_eq!(ran.code, 5, "{ran}");
    assert_eq!(calm(&trio), before);
}

/// A task runs from its submission to its end.
fn runs(trio: &Trio, code: i32) {
    let script = format!("exit {code}");
    let ran = trio
        .site
        .mete(&["run", "--cpus", "0.05", "--", "sh", "-c", &script]);
    assert_eq!(ran.code, code, "{ran}");
}

/// A leader that is cut off from both others in this way acknowledges nothing; the others go on.
fn cut_off(trio: &Trio, promises: &mut Promises, cut: impl Fn(&str, &str)) {
    let old = trio.wait_for_leader();
    let name = format!("m{old}");
    for other in MASTERS.into_iter().filter(|other| *other != old) {
        cut(&name, &format!("m{other}"));
    }
    // Asked until it steps down, and after that: none of these may be acknowledged and lost.
    let began = std::time::Instant::now();
    let mut tried = 0;
    let new = loop {
        tried += 1;
        let role = format!("cut-{}-{tried}", promises.kept.len());
        if trio.set_role(old, &role).is_ok() {
            promises.kept.push(role);
        }
        let leader = trio.leader();
        if let Some(new) = leader.filter(|new| *new != old) {
            break new;
        }
        assert!(began.elapsed() < support::DEADLINE, "nobody else leads");
    };
    eprintln!(
        "m{old} was cut off, m{new} leads after {:?}",
        began.elapsed()
    );
    let refused = trio
        .set_role(old, "minority")
        .expect_err("it has no majority");
    assert_eq!(refused.code(), tonic::Code::Unavailable, "{refused}");
    trio.roles(old, false)
        .expect_err("nor may it answer what it had");
    promises.make(trio);
    for node in ["n1", "n2"] {
        trio.site.wait_for_node(node, "ready");
    }
    runs(trio, 3);
    trio.relay().heal();
    trio.wait_until_caught_up(old);
    promises.check(trio);
}

#[test]
fn who_asks_a_follower_while_nobody_leads_is_answered_as_soon_as_somebody_does() {
    let mut trio = Trio::start(false);
    user(&mut trio, "watches", &["events", "-f"]);
    for round in 0..4 {
        let (dead, answers) = trio.ask_during_an_election(|trio, follower, _| {
            trio.set_role(follower, &format!("asked-{round}-{follower}"))
        });
        let mut done = 0;
        for answer in answers {
            // One of them leads then, and the other one names it.
            match answer {
                Ok(()) => done += 1,
                Err(refused) => {
                    let said = refused.message();
                    assert!(said.contains("the leader of term"), "{refused}");
                }
            }
        }
        assert_eq!(done, 1, "one of the two leads");
        trio.restart(dead);
        trio.wait_until_caught_up(dead);
    }
    let watched = trio.site.daemon("watches").said();
    assert!(!watched.contains("error["), "events -f goes on: {watched}");
}

#[test]
fn partitions_cost_time_and_nothing_else() {
    let mut trio = Trio::start(true);
    furnish(&mut trio);
    let before = calm(&trio);
    let checker = Checker::start(&trio);
    let mut promises = Promises::default();
    for _ in 0..rounds().div_ceil(2) {
        let job = submit_array(&trio, &format!("p{}", promises.kept.len()));
        let name = format!("p{}", promises.kept.len());
        wait_for_the_middle(&trio, &name);
        cut_off(&trio, &mut promises, |leader, other| {
            trio.relay().cut_both(leader, other)
        });
        check_array(&trio, &job, &name);
        // What the leader says does not arrive; then what it should hear does not.
        cut_off(&trio, &mut promises, |leader, other| {
            trio.relay().cut(leader, other)
        });

        // Nobody but the leader hears one follower: nothing changes hands for ever.
        let leader = trio.wait_for_leader();
        let others: Vec<u64> = MASTERS.into_iter().filter(|m| *m != leader).collect();
        let pair = (format!("m{}", others[0]), format!("m{}", others[1]));
        trio.relay().cut_both(&pair.0, &pair.1);
        promises.make(&trio);
        runs(&trio, 4);
        assert_eq!(trio.leader(), Some(leader), "a link that it does not need");
        trio.relay().heal();

        // Slow, but everything works.
        for other in &others {
            let by = Duration::from_millis(60);
            trio.relay()
                .slow(&format!("m{leader}"), &format!("m{other}"), by);
        }
        promises.make(&trio);
        runs(&trio, 5);
        assert_eq!(
            trio.leader(),
            Some(leader),
            "60 ms each way is no reason to elect"
        );
        trio.relay().heal();

        // Connections that break all the time, to the agents too.
        let leader = format!("m{leader}");
        for (one, other) in [("n1", &leader), ("batch", &leader), (&*pair.0, &leader)] {
            trio.relay().break_some(one, other, 15);
        }
        let name = format!("q{}", promises.kept.len());
        let job = submit_array(&trio, &name);
        check_array(&trio, &job, &name);
        trio.relay().heal();
        promises.check(&trio);
        assert_eq!(calm(&trio), before, "the service keeps its processes");
    }
    checker.end();
}
