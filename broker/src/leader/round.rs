//! When to run a round of the allocator, and what becomes of it: offers in the book and in
//! outboxes, reasons for `mete why`.

use std::collections::BTreeMap;

use mete_allocator::{Limits, Placement, Round, allocate};
use mete_model::{FrameworkId, OfferId};
use mete_proto::convert::write_offer;
use mete_proto::framework::v1::{Offer as WireOffer, Offers};
use mete_state::State;
use prost::Message as _;

use super::offer_book::{Wanted, Why};
use super::view::Facts;
use super::{LeaderTerm, Now};
use crate::event::Monotonic;

/// The work of one round; the rest is done in the next turn.
const LIMITS: Limits = Limits {
    placements: 5_000,
    agents: 500_000,
};

/// Bytes of one event with offers, roughly.
const EVENT_BYTES: usize = 1 << 20;

/// When rounds ran.
#[derive(Debug, Default)]
pub(super) struct Rounds {
    last_full: Option<Monotonic>,
}

impl LeaderTerm {
    /// Brings the view up to date, and offers what may be offered. Says whether there is more to do
    /// at once.
    pub fn round(&mut self, state: &State, now: Now) -> bool {
        self.patch(state, Patching::Noting);
        let full_is_due = self
            .rounds
            .last_full
            .is_none_or(|last| now.monotonic.since(last) >= self.timing.full_round.0);
        if full_is_due && self.reasons.anything_waits() {
            self.kept.look_at_all();
        }
        if !self.kept.is_dirty() {
            return false;
        }
        let dirty = self.kept.take_dirty();
        if dirty.all {
            self.rounds.last_full = Some(now.monotonic);
            self.counters.full_rounds = self.counters.full_rounds.saturating_add(1);
        }
        let round = allocate(self.kept.view(), &dirty, LIMITS);
        self.counters.rounds = self.counters.rounds.saturating_add(1);
        let examined = u64::try_from(round.agents_examined).unwrap_or(u64::MAX);
        self.counters.agents_examined = self.counters.agents_examined.saturating_add(examined);
        let unfinished = round.unfinished;
        let looked_at = dirty.claims;
        self.carry_out(round, state, now);
        for (framework, claim) in looked_at {
            let waits = state
                .claim(framework, &claim)
                .is_some_and(|record| record.remaining() > self.book.slots_of(framework, &claim));
            if !waits {
                self.reasons.served(framework, &claim);
            }
        }
        self.patch(state, Patching::Quietly);
        if unfinished {
            self.kept.look_at_all();
        }
        unfinished
    }

    fn patch(&mut self, state: &State, patching: Patching) {
        self.stale.touched(self.book.take_touched());
        self.stale.declined(self.declines.take_touched());
        let stale = std::mem::take(&mut self.stale);
        let (presence, streams) = (&self.presence, &self.streams);
        let facts = Facts {
            state,
            book: &self.book,
            declines: &self.declines,
            agent_is_here: &|agent| presence.link(agent).is_some(),
            framework_is_here: &|framework| streams.is_here(framework),
        };
        match patching {
            Patching::Noting => self.kept.patch(stale, facts),
            Patching::Quietly => self.kept.patch_quietly(stale, facts),
        }
    }

    fn carry_out(&mut self, round: Round, state: &State, now: Now) {
        let mut by_framework: BTreeMap<FrameworkId, Vec<OfferId>> = BTreeMap::new();
        for placement in round.placements {
            let framework = placement.framework;
            let served = placement.claim.clone();
            let id = self.make(placement, state, now);
            by_framework.entry(framework).or_default().push(id);
            if let Some(claim) = served {
                let waits = state.claim(framework, &claim).is_some_and(|record| {
                    record.remaining() > self.book.slots_of(framework, &claim)
                });
                if !waits {
                    self.reasons.served(framework, &claim);
                }
            }
        }
        for (framework, offers) in by_framework {
            self.send_offers(framework, &offers, state, now);
        }
        for waiting in round.waiting {
            self.reasons.note(waiting, now.at);
        }
    }

    fn make(&mut self, placement: Placement, state: &State, now: Now) -> OfferId {
        let agent = state.agent(placement.agent);
        let wanted = Wanted {
            framework: placement.framework,
            role: placement.role,
            claim: placement.claim,
            slots: placement.slots,
            agent: placement.agent,
            topology_epoch: agent.map_or(0, |agent| agent.inventory.topology_epoch),
            resources: placement.resources,
        };
        self.book.make(wanted, now.at, now.monotonic)
    }

    fn send_offers(&mut self, framework: FrameworkId, ids: &[OfferId], state: &State, now: Now) {
        let mut event: Vec<WireOffer> = Vec::new();
        let mut event_ids: Vec<OfferId> = Vec::new();
        let mut bytes: usize = 0;
        for id in ids {
            let Some(booked) = self.book.get(*id) else {
                continue;
            };
            let Some(agent) = state.agent(booked.offer.agent) else {
                continue;
            };
            let offer = write_offer(&booked.offer, &agent.node_name, &agent.inventory, now.at);
            bytes = bytes.saturating_add(offer.encoded_len());
            event.push(offer);
            event_ids.push(*id);
            if bytes >= EVENT_BYTES {
                bytes = 0;
                let (offers, ids) = (std::mem::take(&mut event), std::mem::take(&mut event_ids));
                self.push_offers(framework, offers, ids, now);
            }
        }
        if !event.is_empty() {
            self.push_offers(framework, event, event_ids, now);
        }
    }

    fn push_offers(
        &mut self,
        framework: FrameworkId,
        offers: Vec<WireOffer>,
        ids: Vec<OfferId>,
        now: Now,
    ) {
        let dropped = match self.outbox_of(framework) {
            Some(outbox) => {
                outbox
                    .put(|queue| queue.push_offers(Offers { offers }, ids))
                    .dropped_offers
            }
            None => ids,
        };
        self.rescind_quietly(&dropped, Why::FrameworkAway, now);
    }
}

/// Whether a patch gives the next round something to look at.
#[derive(Clone, Copy)]
enum Patching {
    Noting,
    Quietly,
}
