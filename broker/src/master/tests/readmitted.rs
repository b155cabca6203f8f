//! An agent that comes back while it is being declared unreachable.

use std::collections::BTreeMap;

use mete_model::{AgentId, Inventory, NodeKey, Timestamp};
use mete_state::command::{AdmitAgent, AgentCondition};
use mete_state::{Command, State};
use uuid::Uuid;

use super::world::cpu;
use crate::config::Timing;
use crate::event::{Event, LinkId, Monotonic};
use crate::leader::{LeaderTerm, Now};
use crate::machine::Done;
use crate::mint::Counted;
use crate::session::OUTBOX_BYTES;
use crate::session::agent::AgentQueue;
use crate::session::outbox::Outbox;

fn at(milliseconds: u64) -> Now {
    Now {
        at: Timestamp(1_000_000 + milliseconds),
        monotonic: Monotonic(milliseconds),
    }
}

fn hello(link: u64) -> Event {
    let hello = AdmitAgent {
        agent: AgentId(Uuid::from_u128(5)),
        node_key: NodeKey(Uuid::from_u128(6)),
        node_name: "n1".to_owned(),
        inventory: Inventory {
            total: cpu(8000),
            boot_id: "boot".to_owned(),
            ..Inventory::default()
        },
        held: Vec::new(),
    };
    Event::AgentHello {
        link: LinkId(link),
        hello: Box::new(hello),
        outbox: Outbox::new(AgentQueue::new(OUTBOX_BYTES)),
    }
}

/// A state and its leader, with a log that is applied when the test says so.
struct Pair {
    state: State,
    leader: LeaderTerm,
    revision: u64,
}

impl Pair {
    /// What waits to be logged is committed; gives the commands.
    fn commit(&mut self, now: Now) -> Vec<Command> {
        let commands = self.leader.take_work().commands;
        let mut done = Vec::new();
        for (token, stamped) in &commands {
            self.revision += 1;
            let result = self.state.apply(self.revision, stamped);
            let done_now = Done {
                revision: self.revision,
                at: stamped.at,
                command: stamped.command.clone(),
                result,
            };
            done.push((Some(*token), done_now));
        }
        self.leader.applied(done, &self.state, now);
        let commands = commands.into_iter();
        commands.map(|(_, stamped)| stamped.command).collect()
    }

    fn condition(&self) -> AgentCondition {
        let mut agents = self.state.agents();
        agents.next().expect("it is known").condition
    }
}

#[test]
fn one_that_comes_back_before_its_loss_is_committed_is_admitted_again() {
    let state = State::founded(&BTreeMap::from([(1, "a:1".to_owned())]));
    let mint = Box::new(Counted::new(7));
    let leader = LeaderTerm::begin(3, Timing::default(), mint, "a:1".to_owned(), &state, at(0));
    let mut pair = Pair {
        state,
        leader,
        revision: 0,
    };
    pair.leader.take(hello(1), &pair.state, at(0));
    pair.commit(at(0));
    assert_eq!(pair.condition(), AgentCondition::Ready);

    // Silent for too long; its new stream comes before that is applied.
    pair.leader.on_time(&pair.state, at(16_000));
    pair.leader.take(hello(2), &pair.state, at(16_010));
    let commands = pair.commit(at(16_020));
    assert!(
        matches!(commands[..], [Command::SetAgentCondition { .. }]),
        "{commands:?}"
    );
    assert_eq!(pair.condition(), AgentCondition::Unreachable);

    pair.commit(at(16_030));
    assert_eq!(pair.condition(), AgentCondition::Ready);
}
