//! Outstanding offers of one leader's term: made, accepted, declined, rescinded, expired.
//!
//! Pure: time is given. It only books and unbooks; who gets what, and whether an accept is right,
//! is decided elsewhere. Every change of what is out is reported in [`OfferBook::take_touched`], so
//! that the allocator's view can be patched. The book dies with its term, and its offers with it.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use mete_model::quota::Charge;
use mete_model::{
    AgentId, ClaimId, FrameworkId, Offer, OfferId, Resources, RolePath, Span, Timestamp,
};

use crate::event::Monotonic;

/// Ended offers that are remembered.
const HISTORY: usize = 10_000;

/// After so many expiries in a row the cap halves.
const EXPIRIES_TO_HALVE: u32 = 3;

/// The cap is halved at most so often.
const MOST_HALVINGS: u32 = 10;

/// Why an offer was taken back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Why {
    /// Its agent is lost or has changed.
    Agent,
    /// The framework left the role.
    RoleLeft,
    /// The role is suppressed.
    Suppressed,
    /// The claim is withdrawn or has what it wants.
    ClaimWithdrawn,
    /// An operator said so.
    Operator,
    /// The framework has no stream, or a newer process, or does not read.
    FrameworkAway,
}

impl Why {
    /// The word on the wire.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Agent => "AGENT",
            Self::RoleLeft => "ROLE_LEFT",
            Self::Suppressed => "SUPPRESSED",
            Self::ClaimWithdrawn => "CLAIM_WITHDRAWN",
            Self::Operator => "OPERATOR",
            Self::FrameworkAway => "FRAMEWORK_AWAY",
        }
    }
}

/// How an offer ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum How {
    /// An accept used it.
    Accepted,
    /// The framework gave it back; with its reason.
    Declined(String),
    /// It was taken back.
    Rescinded(Why),
    /// Its time had passed.
    Expired,
}

/// An offer that is over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ended {
    /// What it was.
    pub offer: Offer,
    /// How it ended.
    pub how: How,
    /// When.
    pub at: Timestamp,
}

/// An offer that is out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Booked {
    /// What it is.
    pub offer: Offer,
    /// When it expires.
    pub expires: Monotonic,
    /// An accept of it is on its way through the log: it neither expires nor is it taken back.
    pub accepted: bool,
}

/// What is asked to be offered.
#[derive(Clone, Debug)]
pub struct Wanted {
    /// To whom.
    pub framework: FrameworkId,
    /// Who is charged.
    pub role: RolePath,
    /// `None` for a plain offer.
    pub claim: Option<ClaimId>,
    /// Tasks in it.
    pub slots: u32,
    /// Where.
    pub agent: AgentId,
    /// The agent's topology.
    pub topology_epoch: u64,
    /// By name.
    pub resources: Resources,
}

/// What is out of one agent, to one framework, for one claim has changed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Touched {
    /// Agents that have more or less out.
    pub agents: BTreeSet<AgentId>,
    /// Frameworks that have more or less out.
    pub frameworks: BTreeSet<FrameworkId>,
    /// Of these, frameworks that have less out than before.
    pub relieved: BTreeSet<FrameworkId>,
    /// Claims.
    pub claims: BTreeSet<(FrameworkId, ClaimId)>,
}

/// Counters by outcome since the term began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Made.
    pub made: u64,
    /// Used by an accept.
    pub accepted: u64,
    /// Given back.
    pub declined: u64,
    /// Taken back.
    pub rescinded: u64,
    /// Lapsed.
    pub expired: u64,
}

#[derive(Clone, Debug, Default)]
struct ByFramework {
    numbers: BTreeSet<u64>,
    offered: BTreeMap<RolePath, Charge>,
    expiries_in_a_row: u32,
    halvings: u32,
}

/// The offers of one term.
#[derive(Debug)]
pub struct OfferBook {
    term: u64,
    last_number: u64,
    lifetime: Span,
    booked: BTreeMap<u64, Booked>,
    by_expiry: BTreeSet<(Monotonic, u64)>,
    by_agent: BTreeMap<AgentId, (BTreeSet<u64>, Resources)>,
    by_framework: BTreeMap<FrameworkId, ByFramework>,
    slots: BTreeMap<(FrameworkId, ClaimId), u32>,
    history: VecDeque<Ended>,
    /// Where an ended offer's number stands in `history`, counted from the first ever.
    ended: BTreeMap<u64, u64>,
    dropped_from_history: u64,
    touched: Touched,
    counts: Counts,
}

impl OfferBook {
    /// An empty book for `term`, whose offers live for `lifetime`.
    #[must_use]
    pub fn new(term: u64, lifetime: Span) -> Self {
        Self {
            term,
            last_number: 0,
            lifetime,
            booked: BTreeMap::new(),
            by_expiry: BTreeSet::new(),
            by_agent: BTreeMap::new(),
            by_framework: BTreeMap::new(),
            slots: BTreeMap::new(),
            history: VecDeque::new(),
            ended: BTreeMap::new(),
            dropped_from_history: 0,
            touched: Touched::default(),
            counts: Counts::default(),
        }
    }

    /// Books an offer and gives its id.
    pub fn make(&mut self, wanted: Wanted, now: Timestamp, monotonic: Monotonic) -> OfferId {
        self.last_number = self.last_number.saturating_add(1);
        let id = OfferId {
            term: self.term,
            number: self.last_number,
        };
        let booked = Booked {
            expires: monotonic.after(self.lifetime.0),
            accepted: false,
            offer: Offer {
                id,
                framework: wanted.framework,
                role: wanted.role,
                claim: wanted.claim,
                slots: wanted.slots,
                agent: wanted.agent,
                topology_epoch: wanted.topology_epoch,
                resources: wanted.resources,
                made: now,
                expires: now.after(self.lifetime),
            },
        };
        self.counts.made = self.counts.made.saturating_add(1);
        self.book(booked);
        id
    }

    /// The offer, if it is out.
    #[must_use]
    pub fn get(&self, id: OfferId) -> Option<&Booked> {
        (id.term == self.term)
            .then(|| self.booked.get(&id.number))
            .flatten()
    }

    /// How an offer of this term ended, as far as it is remembered.
    #[must_use]
    pub fn ended(&self, id: OfferId) -> Option<&Ended> {
        if id.term != self.term {
            return None;
        }
        let place = self.ended.get(&id.number)?;
        let at = place.checked_sub(self.dropped_from_history)?;
        self.history.get(usize::try_from(at).ok()?)
    }

    /// The term whose offers these are.
    #[must_use]
    pub fn term(&self) -> u64 {
        self.term
    }

    /// Says whether an offer of this number was ever made in this term.
    #[must_use]
    pub fn was_made(&self, id: OfferId) -> bool {
        id.term == self.term && id.number >= 1 && id.number <= self.last_number
    }

    /// Marks an open offer as accepted; false if it is not open.
    pub fn accept(&mut self, id: OfferId) -> bool {
        let Some(booked) = self.open_mut(id) else {
            return false;
        };
        booked.accepted = true;
        let key = (booked.expires, id.number);
        self.by_expiry.remove(&key);
        true
    }

    /// The accept of an offer has applied, or was refused: it is out no longer. What the launch
    /// took is the state's business, the rest is free again. `used` resets the framework's cap.
    pub fn settle(&mut self, id: OfferId, used: bool, now: Timestamp) {
        let Some(booked) = self.unbook(id) else {
            return;
        };
        if used {
            let framework = self.by_framework.entry(booked.offer.framework).or_default();
            framework.expiries_in_a_row = 0;
            framework.halvings = framework.halvings.saturating_sub(1);
            self.touched.frameworks.insert(booked.offer.framework);
        }
        self.counts.accepted = self.counts.accepted.saturating_add(1);
        self.end(booked.offer, How::Accepted, now);
    }

    /// An accept of this offer was never logged: it is open again, and expires when it would have.
    pub fn reopen(&mut self, id: OfferId) {
        if id.term == self.term
            && let Some(booked) = self.booked.get_mut(&id.number)
            && booked.accepted
        {
            booked.accepted = false;
            self.by_expiry.insert((booked.expires, id.number));
        }
    }

    /// Makes an accepted offer open again when nothing was launched on it, so that it can be given
    /// back; true if it is open then.
    pub fn decline_accepted(&mut self, id: OfferId) -> bool {
        self.reopen(id);
        self.open_mut(id).is_some()
    }

    /// Gives an open offer back; `None` if it is not open.
    pub fn decline(&mut self, id: OfferId, reason: &str, now: Timestamp) -> Option<Offer> {
        self.open_mut(id)?;
        let booked = self.unbook(id)?;
        self.counts.declined = self.counts.declined.saturating_add(1);
        let framework = self.by_framework.entry(booked.offer.framework).or_default();
        framework.expiries_in_a_row = 0;
        self.end(booked.offer.clone(), How::Declined(reason.to_owned()), now);
        Some(booked.offer)
    }

    /// Takes open offers back and gives those that were open.
    pub fn rescind(&mut self, ids: &[OfferId], why: Why, now: Timestamp) -> Vec<Offer> {
        let mut taken = Vec::new();
        for id in ids {
            if self.open_mut(*id).is_none() {
                continue;
            }
            if let Some(booked) = self.unbook(*id) {
                self.counts.rescinded = self.counts.rescinded.saturating_add(1);
                self.end(booked.offer.clone(), How::Rescinded(why), now);
                taken.push(booked.offer);
            }
        }
        taken
    }

    /// When the last of these offers that are out was made; the beginning when none is.
    #[must_use]
    pub fn last_made(&self, ids: &[OfferId]) -> Monotonic {
        let booked = ids.iter().filter_map(|id| self.get(*id));
        let made = booked.map(|booked| booked.expires.0.saturating_sub(self.lifetime.0));
        Monotonic(made.max().unwrap_or_default())
    }

    /// Open offers of an agent.
    #[must_use]
    pub fn open_of_agent(&self, agent: AgentId) -> Vec<OfferId> {
        let numbers = self.by_agent.get(&agent).map(|(numbers, _)| numbers);
        self.open_among(numbers, |_| true)
    }

    /// Open offers to a framework that `wanted` says yes to.
    #[must_use]
    pub fn open_of_framework(
        &self,
        framework: FrameworkId,
        wanted: impl Fn(&Offer) -> bool,
    ) -> Vec<OfferId> {
        let numbers = self.by_framework.get(&framework).map(|by| &by.numbers);
        self.open_among(numbers, wanted)
    }

    /// Lets every offer lapse whose time has come, and gives them.
    pub fn expire(&mut self, now: Timestamp, monotonic: Monotonic) -> Vec<Offer> {
        let mut lapsed: Vec<Offer> = Vec::new();
        while let Some((expires, number)) = self.by_expiry.first().copied()
            && expires <= monotonic
        {
            let id = OfferId {
                term: self.term,
                number,
            };
            let Some(booked) = self.unbook(id) else {
                self.by_expiry.remove(&(expires, number));
                continue;
            };
            self.counts.expired = self.counts.expired.saturating_add(1);
            self.end(booked.offer.clone(), How::Expired, now);
            lapsed.push(booked.offer);
        }
        // Offers that lapse together were made together: one silence, counted once.
        let silent: BTreeSet<FrameworkId> = lapsed.iter().map(|offer| offer.framework).collect();
        for framework in silent {
            let by = self.by_framework.entry(framework).or_default();
            by.expiries_in_a_row = by.expiries_in_a_row.saturating_add(1);
            if by.expiries_in_a_row.is_multiple_of(EXPIRIES_TO_HALVE) {
                by.halvings = by.halvings.saturating_add(1).min(MOST_HALVINGS);
            }
        }
        lapsed
    }

    /// When the next offer lapses.
    #[must_use]
    pub fn next_expiry(&self) -> Option<Monotonic> {
        self.by_expiry.first().map(|(expires, _)| *expires)
    }

    /// What is out of an agent.
    #[must_use]
    pub fn offered_of_agent(&self, agent: AgentId) -> Option<&Resources> {
        self.by_agent.get(&agent).map(|(_, sum)| sum)
    }

    /// What is out to a framework, by role.
    #[must_use]
    pub fn offered_to(&self, framework: FrameworkId) -> Option<&BTreeMap<RolePath, Charge>> {
        self.by_framework.get(&framework).map(|by| &by.offered)
    }

    /// How often the framework's cap is halved.
    #[must_use]
    pub fn halvings(&self, framework: FrameworkId) -> u32 {
        self.by_framework
            .get(&framework)
            .map_or(0, |by| by.halvings)
    }

    /// Tasks of a claim that are out.
    #[must_use]
    pub fn slots_of(&self, framework: FrameworkId, claim: &ClaimId) -> u32 {
        self.slots
            .get(&(framework, claim.clone()))
            .copied()
            .unwrap_or(0)
    }

    /// What has changed since the last call.
    pub fn take_touched(&mut self) -> Touched {
        std::mem::take(&mut self.touched)
    }

    /// Every offer that is out, in order of its number.
    pub fn iter(&self) -> impl Iterator<Item = &Booked> {
        self.booked.values()
    }

    /// How many are out.
    #[must_use]
    pub fn len(&self) -> usize {
        self.booked.len()
    }

    /// Says whether none is out.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.booked.is_empty()
    }

    /// Ended offers, newest first.
    pub fn history(&self) -> impl Iterator<Item = &Ended> {
        self.history.iter().rev()
    }

    /// Counters since the term began.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.counts
    }

    fn open_mut(&mut self, id: OfferId) -> Option<&mut Booked> {
        if id.term != self.term {
            return None;
        }
        self.booked
            .get_mut(&id.number)
            .filter(|booked| !booked.accepted)
    }

    fn open_among(
        &self,
        numbers: Option<&BTreeSet<u64>>,
        wanted: impl Fn(&Offer) -> bool,
    ) -> Vec<OfferId> {
        let open = numbers.into_iter().flatten().filter_map(|number| {
            let booked = self.booked.get(number)?;
            (!booked.accepted && wanted(&booked.offer)).then_some(booked.offer.id)
        });
        open.collect()
    }

    fn book(&mut self, booked: Booked) {
        let offer = &booked.offer;
        let number = offer.id.number;
        self.by_expiry.insert((booked.expires, number));
        let (numbers, sum) = self.by_agent.entry(offer.agent).or_default();
        numbers.insert(number);
        sum.add(&offer.resources);
        let by = self.by_framework.entry(offer.framework).or_default();
        by.numbers.insert(number);
        by.offered
            .entry(offer.role.clone())
            .or_default()
            .add(&Charge::of(&offer.resources));
        if let Some(claim) = &offer.claim {
            let slots = self
                .slots
                .entry((offer.framework, claim.clone()))
                .or_default();
            *slots = slots.saturating_add(offer.slots);
        }
        self.touch(&booked);
        self.booked.insert(number, booked);
    }

    fn unbook(&mut self, id: OfferId) -> Option<Booked> {
        if id.term != self.term {
            return None;
        }
        let booked = self.booked.remove(&id.number)?;
        let offer = &booked.offer;
        self.by_expiry.remove(&(booked.expires, id.number));
        if let Some((numbers, sum)) = self.by_agent.get_mut(&offer.agent) {
            numbers.remove(&id.number);
            sum.saturating_subtract(&offer.resources);
            if numbers.is_empty() {
                self.by_agent.remove(&offer.agent);
            }
        }
        if let Some(by) = self.by_framework.get_mut(&offer.framework) {
            by.numbers.remove(&id.number);
            if let Some(charge) = by.offered.get_mut(&offer.role) {
                charge.subtract(&Charge::of(&offer.resources));
                if charge.is_zero() {
                    by.offered.remove(&offer.role);
                }
            }
        }
        if let Some(claim) = &offer.claim {
            let key = (offer.framework, claim.clone());
            if let Some(slots) = self.slots.get_mut(&key) {
                *slots = slots.saturating_sub(offer.slots);
                if *slots == 0 {
                    self.slots.remove(&key);
                }
            }
        }
        self.touch(&booked);
        self.touched.relieved.insert(booked.offer.framework);
        Some(booked)
    }

    fn touch(&mut self, booked: &Booked) {
        let offer = &booked.offer;
        self.touched.agents.insert(offer.agent);
        self.touched.frameworks.insert(offer.framework);
        if let Some(claim) = &offer.claim {
            self.touched.claims.insert((offer.framework, claim.clone()));
        }
    }

    fn end(&mut self, offer: Offer, how: How, at: Timestamp) {
        let held = u64::try_from(self.history.len()).unwrap_or(u64::MAX);
        let place = self.dropped_from_history.saturating_add(held);
        self.ended.insert(offer.id.number, place);
        self.history.push_back(Ended { offer, how, at });
        if self.history.len() > HISTORY
            && let Some(oldest) = self.history.pop_front()
        {
            self.ended.remove(&oldest.offer.id.number);
            self.dropped_from_history = self.dropped_from_history.saturating_add(1);
        }
    }
}

#[cfg(test)]
mod tests;
