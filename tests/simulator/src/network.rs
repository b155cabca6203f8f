//! What lies between processes: delays, losses, cuts in one or both directions, and streams that
//! break without a word.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use mete_broker::session::agent::AgentOutbox;
use mete_broker::session::framework::FrameworkOutbox;

use crate::agenda::{MILLISECOND, Time};
use crate::random::Dice;

/// Somebody who sends and receives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Place {
    Master(u64),
    Agent(usize),
    Client(usize),
    Operator,
}

/// The second copy of a message comes at most so many milliseconds after the first.
pub(crate) const COPY_WITHIN: u64 = 2_000;

/// How bad the network is at the moment.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Weather {
    /// Of a thousand messages so many are lost…
    pub(crate) lost: u64,
    /// …come twice…
    pub(crate) twice: u64,
    /// …are overtaken by later ones…
    pub(crate) overtaken: u64,
    /// …and take up to this much longer.
    pub(crate) delay: Time,
}

/// Places, and which of them do not reach which.
#[derive(Debug)]
pub(crate) struct Network {
    dice: Dice,
    cuts: BTreeSet<(Place, Place)>,
    pub(crate) weather: Weather,
    /// The latest arrival on each way, so that messages stay in order.
    arrivals: BTreeMap<(Place, Place), Time>,
}

impl Network {
    pub(crate) fn new(dice: Dice) -> Self {
        Self {
            dice,
            cuts: BTreeSet::new(),
            weather: Weather::default(),
            arrivals: BTreeMap::new(),
        }
    }

    pub(crate) fn cut(&mut self, from: Place, to: Place) {
        self.cuts.insert((from, to));
    }

    pub(crate) fn heal(&mut self, from: Place, to: Place) {
        self.cuts.remove(&(from, to));
    }

    pub(crate) fn heal_all(&mut self) {
        self.cuts.clear();
        self.weather = Weather::default();
    }

    pub(crate) fn reaches(&self, from: Place, to: Place) -> bool {
        !self.cuts.contains(&(from, to))
    }

    /// How long one message is on its way.
    pub(crate) fn delay(&mut self) -> Time {
        let plain = self.dice.between(100, 1_500);
        plain + self.dice.below(self.weather.delay + 1)
    }

    /// When copies of a message arrive that leaves now: none, one, or more.
    pub(crate) fn arrivals(&mut self, from: Place, to: Place, now: Time) -> Vec<Time> {
        if !self.reaches(from, to) || self.dice.chance(self.weather.lost) {
            return Vec::new();
        }
        let mut first = now + self.delay();
        let last = self.arrivals.entry((from, to)).or_default();
        if !self.dice.chance(self.weather.overtaken) {
            first = first.max(*last + 1);
            *last = first;
        }
        let mut arrivals = vec![first];
        if self.dice.chance(self.weather.twice) {
            arrivals.push(first + self.dice.between(1, COPY_WITHIN) * MILLISECOND);
        }
        arrivals
    }

    /// How long an end of a broken stream takes to find out.
    pub(crate) fn notice(&mut self) -> Time {
        self.dice.between(1, 2_000) * MILLISECOND
    }
}

/// The master's side of a stream.
#[derive(Clone, Debug)]
pub(crate) enum Outbox {
    Agent(Arc<AgentOutbox>),
    Framework(Arc<FrameworkOutbox>),
}

/// One stream, as reliable and ordered as a connection, until it breaks.
#[derive(Debug)]
pub(crate) struct Stream {
    pub(crate) client: Place,
    /// Which process at that place.
    pub(crate) client_life: u64,
    pub(crate) master: u64,
    pub(crate) master_life: u64,
    pub(crate) outbox: Outbox,
    /// Carries nothing any more.
    pub(crate) broken: bool,
    /// The master's loop knows of it.
    pub(crate) known: bool,
    pub(crate) last_up: Time,
    pub(crate) last_down: Time,
}
