//! Why claims wait: the allocator's last word on each, and a bounded ring of what it said before.
//!
//! Read by `mete why`. A reason begins to hold when it first becomes the dominant one; deciding the
//! same again moves only the time of the decision.

use std::collections::{BTreeMap, VecDeque};

use mete_allocator::{Short, Waiting};
use mete_model::{ClaimId, Code, FrameworkId, Timestamp};

/// Decisions kept in the ring, over all claims.
const RING: usize = 20_000;

/// One decision about one claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Whose.
    pub framework: FrameworkId,
    /// Which.
    pub claim: ClaimId,
    /// Tasks that waited.
    pub remaining: u32,
    /// The dominant reason.
    pub reason: Code,
    /// Want and have, where a kind is short.
    pub short: Option<Short>,
    /// The claim that goes first, for `ORDER`.
    pub behind: Option<(FrameworkId, ClaimId)>,
    /// Since when this reason holds.
    pub since: Timestamp,
    /// When it was last decided.
    pub decided: Timestamp,
}

/// The decisions of a term.
#[derive(Debug, Default)]
pub struct Reasons {
    now: BTreeMap<(FrameworkId, ClaimId), Record>,
    ring: VecDeque<Record>,
}

impl Reasons {
    /// Notes what a round said about a claim that still waits.
    pub fn note(&mut self, waiting: Waiting, at: Timestamp) {
        let key = (waiting.framework, waiting.claim.clone());
        let since = match self.now.get(&key) {
            Some(before) if before.reason == waiting.reason => before.since,
            Some(before) => {
                let before = before.clone();
                self.remember(before);
                at
            }
            None => at,
        };
        let record = Record {
            framework: waiting.framework,
            claim: waiting.claim,
            remaining: waiting.remaining,
            reason: waiting.reason,
            short: waiting.short,
            behind: waiting.behind,
            since,
            decided: at,
        };
        self.now.insert(key, record);
    }

    /// The claim waits for nothing any more.
    pub fn served(&mut self, framework: FrameworkId, claim: &ClaimId) {
        if let Some(record) = self.now.remove(&(framework, claim.clone())) {
            self.remember(record);
        }
    }

    /// Why the claim waits; `None` when nothing was decided or nothing waits.
    #[must_use]
    pub fn get(&self, framework: FrameworkId, claim: &ClaimId) -> Option<&Record> {
        self.now.get(&(framework, claim.clone()))
    }

    /// Earlier decisions about a claim, newest first.
    pub fn earlier<'a>(
        &'a self,
        framework: FrameworkId,
        claim: &'a ClaimId,
    ) -> impl Iterator<Item = &'a Record> {
        self.ring
            .iter()
            .rev()
            .filter(move |record| record.framework == framework && record.claim == *claim)
    }

    /// Says whether any claim waits.
    #[must_use]
    pub fn anything_waits(&self) -> bool {
        !self.now.is_empty()
    }

    /// How many claims wait.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.now.len()
    }

    fn remember(&mut self, record: Record) {
        if self.ring.len() >= RING {
            self.ring.pop_front();
        }
        self.ring.push_back(record);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waiting(reason: Code) -> Waiting {
        Waiting {
            framework: FrameworkId(uuid::Uuid::from_u128(1)),
            claim: ClaimId::new("c").expect("a claim"),
            remaining: 3,
            reason,
            short: None,
            behind: None,
        }
    }

    #[test]
    fn a_reason_holds_since_it_was_first_decided_and_changes_are_remembered() {
        let (framework, claim) = (waiting(Code::Order).framework, waiting(Code::Order).claim);
        let mut reasons = Reasons::default();
        reasons.note(waiting(Code::NoCapacity), Timestamp(1));
        reasons.note(waiting(Code::NoCapacity), Timestamp(5));
        let record = reasons.get(framework, &claim).expect("it waits");
        assert_eq!((record.since, record.decided), (Timestamp(1), Timestamp(5)));

        reasons.note(waiting(Code::Order), Timestamp(9));
        reasons.served(framework, &claim);

        assert!(reasons.get(framework, &claim).is_none() && !reasons.anything_waits());
        let earlier: Vec<Code> = reasons
            .earlier(framework, &claim)
            .map(|record| record.reason)
            .collect();
        assert_eq!(earlier, [Code::Order, Code::NoCapacity]);
    }
}
