//! The operator: makes the roles, asks for changes of the masters' seats, and sees to it that every
//! master that has a record also has a process.

use std::collections::{BTreeMap, VecDeque};

use mete_broker::request::{OperatorAction, Refusal, Reply, Request};
use mete_model::RunId;
use mete_state::Seat;

use crate::agenda::{MILLISECOND, Time};
use crate::clients::role;
use crate::masters::address;
use crate::network::Place;
use crate::random::Dice;
use crate::world::{Answer, Happening, World};

/// Something that an operator wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wish {
    /// The role of this framework.
    Role(usize),
    /// A master in the place of this one.
    Replace(u64),
    /// One more master.
    Add,
    /// One more master without a vote.
    AddLearner,
    /// A vote for the master that was added last.
    PromoteLast,
    /// One master fewer.
    Remove(u64),
    /// Another leader.
    HandOver,
    /// The end of some run.
    Kill,
}

/// Who operates the cluster.
#[derive(Debug)]
pub(crate) struct Operator {
    dice: Dice,
    wishes: VecDeque<Wish>,
    /// The call on its way, and when it is given up.
    call: Option<(u64, Time)>,
    /// What the present wish has become, so that asking again asks for the same.
    action: Option<OperatorAction>,
    last_added: u64,
    /// When each framework was asked to close.
    closed: BTreeMap<usize, Time>,
}

impl Operator {
    pub(crate) fn new(dice: Dice) -> Self {
        Self {
            dice,
            wishes: VecDeque::from([Wish::Role(0), Wish::Role(1)]),
            call: None,
            action: None,
            last_added: 0,
            closed: BTreeMap::new(),
        }
    }

    pub(crate) fn note_close(&mut self, framework: usize, at: Time) {
        self.closed.insert(framework, at);
    }

    pub(crate) fn closed_at(&self, framework: usize) -> Time {
        self.closed.get(&framework).copied().unwrap_or(0)
    }

    pub(crate) fn wish(&mut self, wish: Wish) {
        if self.wishes.len() < 8 {
            self.wishes.push_back(wish);
        }
    }

    /// Nothing is asked for.
    pub(crate) fn is_settled(&self) -> bool {
        self.wishes.is_empty()
    }
}

impl World {
    pub(crate) fn operator_tick(&mut self) {
        self.agenda
            .after(100 * MILLISECOND, Happening::OperatorTick);
        self.start_missing_masters();
        let now = self.now();
        if self.operator.call.is_some_and(|(_, until)| now < until) {
            return;
        }
        self.operator.call = None;
        let Some(wish) = self.operator.wishes.front().copied() else {
            return;
        };
        let Some(leader) = self.leader() else { return };
        let action = match self.operator.action.clone() {
            Some(action) => Some(action),
            None => self.action_of(wish, leader),
        };
        let Some(action) = action else {
            self.operator.wishes.pop_front();
            return;
        };
        self.operator.action = Some(action.clone());
        let request = Request::Operator {
            actor: "operator".to_owned(),
            action,
            dry_run: false,
        };
        let call = self.send_call(Place::Operator, leader, request);
        self.operator.call = Some((call, now + 2_000 * MILLISECOND));
    }

    /// What a wish comes to in the cluster as its leader sees it; nothing when it makes no sense.
    fn action_of(&mut self, wish: Wish, leader: u64) -> Option<OperatorAction> {
        let running = self.running(leader)?;
        let (voters, last) = running.master.read_state(|state| {
            let voters = state.masters().filter(|master| master.seat == Seat::Voter);
            (
                voters.map(|it| it.node).collect::<Vec<_>>(),
                state.last_master(),
            )
        });
        let next = last + 1;
        let mut runs = Vec::new();
        if wish == Wish::Kill {
            running.master.read_state(|state| {
                let live = state.all_runs().filter(|run| !run.phase.is_terminal());
                runs.extend(live.map(|run| (run.framework, run.id.clone())));
            });
        }
        let add = |learner: bool, replaces: Option<u64>| {
            Some(OperatorAction::AddMaster {
                address: address(next),
                learner,
                replaces,
                above: 0,
            })
        };
        match wish {
            Wish::Role(framework) => Some(OperatorAction::SetRole {
                path: role(framework),
                weight_milli: None,
            }),
            Wish::Replace(node) if voters.contains(&node) => {
                self.operator.last_added = next;
                add(false, Some(node))
            }
            Wish::Add if voters.len() < 6 => {
                self.operator.last_added = next;
                add(false, None)
            }
            Wish::AddLearner if voters.len() < 6 => {
                self.operator.last_added = next;
                add(true, None)
            }
            Wish::PromoteLast => Some(OperatorAction::PromoteMaster {
                node: self.operator.last_added,
            }),
            Wish::Remove(node) if voters.len() > 3 && voters.contains(&node) => {
                Some(OperatorAction::RemoveMaster { node })
            }
            Wish::HandOver => Some(OperatorAction::HandOver { to: None }),
            Wish::Kill => {
                let (framework, run): (_, RunId) = self.operator.dice.pick(&runs)?;
                self.checkers.status.kill_asked(framework, &run);
                Some(OperatorAction::KillTasks {
                    runs: vec![(framework, run)],
                    grace: None,
                    reason: "the operator says so".to_owned(),
                })
            }
            Wish::Replace(_) | Wish::Add | Wish::AddLearner | Wish::Remove(_) => None,
        }
    }

    pub(crate) fn operator_answered(&mut self, call: u64, answer: Result<Answer, Refusal>) {
        let is_ours = self.operator.call.is_some_and(|(asked, _)| asked == call);
        if !is_ours {
            return;
        }
        match answer {
            Ok(answer) => {
                self.say(|| format!("the operator has {:?}", self.operator.action));
                if let Reply::Applied { revision, verdict } = &answer.reply {
                    let history = &mut self.checkers.history;
                    history.acknowledged((None, 0, 0), *revision, Some(verdict));
                }
                self.operator.wishes.pop_front();
                self.operator.action = None;
                self.operator.call = None;
            }
            Err(refusal) if refusal.code().is_retryable() => {
                let again = self.agenda.now() + 200 * MILLISECOND;
                self.operator.call = Some((0, again));
            }
            Err(refusal) => {
                self.say(|| format!("the operator is refused: {refusal}"));
                self.operator.wishes.pop_front();
                self.operator.action = None;
                self.operator.call = None;
            }
        }
    }

    /// Whoever has a record gets a process; one of its own, on an empty disk, with a new id.
    fn start_missing_masters(&mut self) {
        let Some(leader) = self.leader() else { return };
        let Some(running) = self.running(leader) else {
            return;
        };
        let named: Vec<u64> = running.master.read_state(|state| {
            let masters = state.masters().filter(|it| it.seat != Seat::Leaving);
            masters.map(|master| master.node).collect()
        });
        for node in named {
            if !self.masters.contains_key(&node) {
                self.say(|| format!("master {node} joins"));
                self.found_master(node, Vec::new());
            }
        }
    }
}
