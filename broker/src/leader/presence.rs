//! Which agents have a live stream, and since when the others have none. Soft: never in the log.
//!
//! Pure: time is given. The leader asks what is overdue and commits that; whether an agent's
//! capacity may be offered is answered here, since an agent that the state knows as ready may not
//! be back yet since this leader took over.

use std::collections::BTreeMap;

use mete_model::AgentId;

use crate::event::{LinkId, Monotonic};

/// The longest time the window for returning agents stretches to.
const LONGEST_WINDOW: u64 = 120_000;

/// The longest that a stream is told to wait before it comes again.
const LONGEST_WAIT: u64 = 60_000;

/// How many streams may be admitted in a burst, in parts of a second's worth.
const BURST_PARTS: u64 = 4;

/// Times that presence goes by, in milliseconds.
#[derive(Clone, Copy, Debug)]
pub struct Timing {
    /// Without a beacon for so long an agent is unreachable.
    pub silence: u64,
    /// Admissions of streams per second.
    pub admissions_per_second: u64,
}

/// How an agent that is not unreachable stands with this leader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Seen {
    /// Known from the state, not back since this leader took over.
    Awaited,
    /// Its stream is open.
    Here {
        /// Which.
        link: LinkId,
        /// When something was last heard of its work loop.
        heard: Monotonic,
    },
    /// Its stream has closed; it may come back.
    Gone {
        /// When something was last heard.
        heard: Monotonic,
    },
}

/// Who is there.
#[derive(Debug)]
pub struct Presence {
    timing: Timing,
    began: Monotonic,
    agents: BTreeMap<AgentId, Seen>,
    by_link: BTreeMap<LinkId, AgentId>,
    /// Streams that may still be admitted now, in thousandths.
    tokens: u64,
    tokens_at: Monotonic,
    last_turned_away: Option<Monotonic>,
    /// Up to when places are given to streams that were turned away, in microseconds.
    places_until: u64,
}

impl Presence {
    /// At the start of a term: all of `known` are awaited.
    #[must_use]
    pub fn new(timing: Timing, began: Monotonic, known: impl Iterator<Item = AgentId>) -> Self {
        Self {
            timing,
            began,
            agents: known.map(|agent| (agent, Seen::Awaited)).collect(),
            by_link: BTreeMap::new(),
            tokens: Self::most_tokens(timing),
            tokens_at: began,
            last_turned_away: None,
            places_until: 0,
        }
    }

    /// May one more stream be admitted now? Otherwise: come again in so many milliseconds.
    ///
    /// # Errors
    /// The time to come again: each that is turned away gets a place of its own behind those before
    /// it, at the rate of admissions. Told the same time, all would come at once, again and again.
    pub fn admit(&mut self, now: Monotonic) -> Result<(), u64> {
        let rate = self.timing.admissions_per_second.max(1);
        let earned = now.since(self.tokens_at).saturating_mul(rate);
        self.tokens = self
            .tokens
            .saturating_add(earned)
            .min(Self::most_tokens(self.timing));
        self.tokens_at = now;
        if self.tokens >= 1000 {
            self.tokens = self.tokens.saturating_sub(1000);
            return Ok(());
        }
        self.last_turned_away = Some(now);
        let place = 1_000_000_u64.div_ceil(rate);
        let now = now.0.saturating_mul(1000);
        self.places_until = self.places_until.max(now).saturating_add(place);
        let wait = self.places_until.saturating_sub(now).div_ceil(1000);
        Err(wait.min(LONGEST_WAIT))
    }

    fn most_tokens(timing: Timing) -> u64 {
        (timing.admissions_per_second.max(1).saturating_mul(1000) / BURST_PARTS).max(1000)
    }

    /// The agent's stream is open and admitted. Gives the older stream it replaces.
    pub fn here(&mut self, agent: AgentId, link: LinkId, now: Monotonic) -> Option<LinkId> {
        let older = self.link(agent);
        if let Some(older) = older {
            self.by_link.remove(&older);
        }
        self.agents.insert(agent, Seen::Here { link, heard: now });
        self.by_link.insert(link, agent);
        older
    }

    /// The agent's work loop has said something.
    pub fn heard(&mut self, link: LinkId, now: Monotonic) {
        if let Some(agent) = self.by_link.get(&link) {
            self.agents.insert(*agent, Seen::Here { link, heard: now });
        }
    }

    /// A stream has closed. Gives its agent, if it was the agent's present one.
    pub fn closed(&mut self, link: LinkId) -> Option<AgentId> {
        let agent = self.by_link.remove(&link)?;
        if let Some(Seen::Here { heard, .. }) = self.agents.get(&agent).copied() {
            self.agents.insert(agent, Seen::Gone { heard });
        }
        Some(agent)
    }

    /// The agent is unreachable or gone by the log: nothing is awaited of it any more. Gives its
    /// stream, if it still has one.
    pub fn forget(&mut self, agent: AgentId) -> Option<LinkId> {
        let link = self.link(agent);
        if let Some(link) = link {
            self.by_link.remove(&link);
        }
        self.agents.remove(&agent);
        link
    }

    /// Whose stream it is.
    #[must_use]
    pub fn agent(&self, link: LinkId) -> Option<AgentId> {
        self.by_link.get(&link).copied()
    }

    /// The agent's open stream.
    #[must_use]
    pub fn link(&self, agent: AgentId) -> Option<LinkId> {
        match self.agents.get(&agent) {
            Some(Seen::Here { link, .. }) => Some(*link),
            Some(Seen::Awaited | Seen::Gone { .. }) | None => None,
        }
    }

    /// The agent is known and not back since this leader took over.
    #[must_use]
    pub fn is_awaited(&self, agent: AgentId) -> bool {
        matches!(self.agents.get(&agent), Some(Seen::Awaited))
    }

    /// Agents that are known and not back since this leader took over.
    pub fn awaited(&self) -> impl Iterator<Item = AgentId> {
        let awaited = |(agent, seen): (&AgentId, &Seen)| match seen {
            Seen::Awaited => Some(*agent),
            Seen::Here { .. } | Seen::Gone { .. } => None,
        };
        self.agents.iter().filter_map(awaited)
    }

    /// Agents that have been silent for too long: to be committed as unreachable.
    #[must_use]
    pub fn overdue(&self, now: Monotonic) -> Vec<AgentId> {
        let silence = self.timing.silence;
        // While returning streams are still turned away, the missing ones are not to blame.
        let window_end = match self.last_turned_away {
            Some(turned_away) => turned_away
                .after(silence)
                .min(self.began.after(LONGEST_WINDOW))
                .max(self.began.after(silence)),
            None => self.began.after(silence),
        };
        let overdue = self.agents.iter().filter_map(|(agent, seen)| {
            let late = match seen {
                Seen::Awaited => now >= window_end,
                Seen::Here { heard, .. } | Seen::Gone { heard } => now.since(*heard) >= silence,
            };
            late.then_some(*agent)
        });
        overdue.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIMING: Timing = Timing {
        silence: 15_000,
        admissions_per_second: 5000,
    };

    fn agent(number: u128) -> AgentId {
        AgentId(uuid::Uuid::from_u128(number))
    }

    #[test]
    fn an_agent_is_overdue_fifteen_seconds_after_its_last_beacon_not_after_its_stream() {
        let mut presence = Presence::new(TIMING, Monotonic(0), std::iter::empty());
        presence.here(agent(1), LinkId(1), Monotonic(1000));
        presence.heard(LinkId(1), Monotonic(4000));

        assert!(presence.overdue(Monotonic(18_999)).is_empty());
        assert_eq!(presence.overdue(Monotonic(19_000)), [agent(1)]);
        assert_eq!(presence.closed(LinkId(1)), Some(agent(1)));
        assert_eq!(presence.overdue(Monotonic(19_000)), [agent(1)]);
        assert!(presence.link(agent(1)).is_none());
    }

    #[test]
    fn a_new_stream_replaces_the_old_one_whose_end_then_means_nothing() {
        let mut presence = Presence::new(TIMING, Monotonic(0), std::iter::empty());
        presence.here(agent(1), LinkId(1), Monotonic(0));

        assert_eq!(
            presence.here(agent(1), LinkId(2), Monotonic(5)),
            Some(LinkId(1))
        );
        assert_eq!(presence.closed(LinkId(1)), None);
        assert_eq!(presence.link(agent(1)), Some(LinkId(2)));
    }

    #[test]
    fn agents_of_the_term_before_are_awaited_for_the_window() {
        let known = [agent(1), agent(2)];
        let mut presence = Presence::new(TIMING, Monotonic(500), known.into_iter());
        presence.here(agent(1), LinkId(1), Monotonic(14_000));

        assert!(presence.is_awaited(agent(2)));
        assert!(presence.overdue(Monotonic(15_499)).is_empty());
        assert_eq!(presence.overdue(Monotonic(15_500)), [agent(2)]);
    }

    #[test]
    fn a_herd_that_comes_when_it_is_told_is_in_at_the_rate_and_asks_a_few_times_only() {
        const HERD: u64 = 50_000;
        let mut presence = Presence::new(TIMING, Monotonic(0), std::iter::empty());
        let mut coming: std::collections::BTreeMap<u64, u64> =
            std::collections::BTreeMap::from([(0, HERD)]);
        let (mut asked, mut last) = (0, 0);
        while let Some((now, count)) = coming.pop_first() {
            for _ in 0..count {
                asked += 1;
                last = now;
                if let Err(wait) = presence.admit(Monotonic(now)) {
                    *coming.entry(now + wait).or_default() += 1;
                }
            }
        }
        let least = HERD * 1000 / TIMING.admissions_per_second;
        assert!(last <= least + least / 10, "the last is in after {last} ms");
        assert!(asked <= 3 * HERD, "{asked} hellos for {HERD} agents");
    }

    #[test]
    fn a_herd_is_admitted_at_the_rate_and_the_window_waits_for_it_but_not_for_ever() {
        let mut presence = Presence::new(TIMING, Monotonic(0), [agent(9)].into_iter());
        let mut admitted = 0;
        for millisecond in 0..1000 {
            for _ in 0..20 {
                if presence.admit(Monotonic(millisecond)).is_ok() {
                    admitted += 1;
                }
            }
        }
        // A second's worth, and the burst at its start.
        assert!((5000..=6250).contains(&admitted), "{admitted} admitted");

        assert!(presence.overdue(Monotonic(15_500)).is_empty());
        assert_eq!(presence.overdue(Monotonic(15_999)), [agent(9)]);
        for second in 1..200 {
            for _ in 0..6000 {
                let _ = presence.admit(Monotonic(second * 1000));
            }
        }
        assert_eq!(presence.overdue(Monotonic(120_000)), [agent(9)]);
    }
}
