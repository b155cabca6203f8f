//! What frameworks have refused on which agents, and until when. Kept by the leader only: lost at
//! a failover without harm, since demand is persisted.
//!
//! Pure: time is given. Each change is reported in [`Refusals::take_touched`], so that the
//! allocator's view can be patched; that only more than what was refused is offered is its
//! business.

use std::collections::{BTreeMap, BTreeSet};

use mete_model::{AgentId, FrameworkId, Resources, RolePath};

use crate::event::Monotonic;
use crate::request::Refuse;

/// Who refused, for which role, where.
pub type Key = (FrameworkId, RolePath, AgentId);

/// What was refused, and what it was refused out of.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Refused {
    /// What was declined, all together.
    pub resources: Resources,
    /// All that was free on the agent with it: once more is, the refusal hides nothing.
    pub free: Resources,
}

/// One refusal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// What was refused, all together.
    pub resources: Resources,
    /// All that was free on the agent with it.
    pub free: Resources,
    /// When it lapses; `None` = when demand changes.
    pub until: Option<Monotonic>,
    /// In the framework's words.
    pub reason: String,
}

/// All refusals of a term.
#[derive(Debug, Default)]
pub struct Refusals {
    by_key: BTreeMap<Key, Refusal>,
    by_end: BTreeSet<(Monotonic, Key)>,
    touched: BTreeSet<Key>,
}

impl Refusals {
    /// Notes a refusal in the place of an older one of the same framework, role and agent.
    pub fn note(
        &mut self,
        key: Key,
        refused: Refused,
        refuse: Refuse,
        reason: &str,
        now: Monotonic,
    ) {
        self.lift(&key);
        let until = match refuse {
            Refuse::UntilDemandChanges => None,
            Refuse::For(span) => Some(now.after(span.0)),
        };
        if let Some(until) = until {
            self.by_end.insert((until, key.clone()));
        }
        self.touched.insert(key.clone());
        let reason = reason.to_owned();
        self.by_key.insert(
            key,
            Refusal {
                resources: refused.resources,
                free: refused.free,
                until,
                reason,
            },
        );
    }

    /// The framework's demand in a role has changed: what was refused until then is lifted.
    pub fn demand_changed(&mut self, framework: FrameworkId, role: &RolePath) {
        self.lift_where(framework, role, |refusal| refusal.until.is_none());
    }

    /// The framework revived a role: every refusal of that role is lifted, no other.
    pub fn revived(&mut self, framework: FrameworkId, role: &RolePath) {
        self.lift_where(framework, role, |_| true);
    }

    /// The framework is no more.
    pub fn forget_framework(&mut self, framework: FrameworkId) {
        let keys: Vec<Key> = self
            .of_framework(framework)
            .map(|(key, _)| key.clone())
            .collect();
        for key in keys {
            self.lift(&key);
        }
    }

    /// The agent is no more.
    pub fn forget_agent(&mut self, agent: AgentId) {
        let keys: Vec<Key> = self
            .by_key
            .keys()
            .filter(|key| key.2 == agent)
            .cloned()
            .collect();
        for key in keys {
            self.lift(&key);
        }
    }

    /// Lifts every refusal whose time has come.
    pub fn lapse(&mut self, now: Monotonic) {
        while let Some((until, key)) = self.by_end.first().cloned()
            && until <= now
        {
            self.lift(&key);
        }
    }

    /// The refusal, if there is one.
    #[must_use]
    pub fn get(&self, key: &Key) -> Option<&Refusal> {
        self.by_key.get(key)
    }

    /// All refusals of a framework.
    pub fn of_framework(&self, framework: FrameworkId) -> impl Iterator<Item = (&Key, &Refusal)> {
        // A role's text never sorts before the lowest one that is permitted.
        self.by_key
            .iter()
            .skip_while(move |(key, _)| key.0 < framework)
            .take_while(move |(key, _)| key.0 == framework)
    }

    /// All refusals.
    pub fn iter(&self) -> impl Iterator<Item = (&Key, &Refusal)> {
        self.by_key.iter()
    }

    /// What has changed since the last call.
    pub fn take_touched(&mut self) -> BTreeSet<Key> {
        std::mem::take(&mut self.touched)
    }

    fn lift_where(
        &mut self,
        framework: FrameworkId,
        role: &RolePath,
        wanted: impl Fn(&Refusal) -> bool,
    ) {
        let keys: Vec<Key> = self
            .of_framework(framework)
            .filter(|(key, refusal)| key.1 == *role && wanted(refusal))
            .map(|(key, _)| key.clone())
            .collect();
        for key in keys {
            self.lift(&key);
        }
    }

    fn lift(&mut self, key: &Key) {
        if let Some(refusal) = self.by_key.remove(key) {
            if let Some(until) = refusal.until {
                self.by_end.remove(&(until, key.clone()));
            }
            self.touched.insert(key.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mete_model::Span;

    fn key(framework: u128, role: &str, agent: u128) -> Key {
        (
            FrameworkId(uuid::Uuid::from_u128(framework)),
            RolePath::new(role).expect("a role"),
            AgentId(uuid::Uuid::from_u128(agent)),
        )
    }

    fn noted(keys: &[Key]) -> Refusals {
        let mut refusals = Refusals::default();
        for key in keys {
            let refuse = Refuse::UntilDemandChanges;
            refusals.note(key.clone(), Refused::default(), refuse, "", Monotonic(0));
        }
        refusals.take_touched();
        refusals
    }

    #[test]
    fn reviving_one_role_lifts_the_refusals_of_that_role_only() {
        let (a, b, other) = (key(1, "a", 1), key(1, "b", 1), key(2, "a", 1));
        let mut refusals = noted(&[a.clone(), b.clone(), other.clone()]);

        refusals.revived(a.0, &a.1);

        assert!(refusals.get(&a).is_none());
        assert!(refusals.get(&b).is_some() && refusals.get(&other).is_some());
        assert_eq!(refusals.take_touched(), BTreeSet::from([a]));
    }

    #[test]
    fn a_refusal_for_a_time_outlives_a_change_of_demand_and_then_lapses() {
        let a = key(1, "a", 1);
        let mut refusals = noted(&[key(1, "a", 2)]);
        let refuse = Refuse::For(Span::seconds(5));
        refusals.note(
            a.clone(),
            Refused::default(),
            refuse,
            "busy",
            Monotonic(100),
        );

        refusals.demand_changed(a.0, &a.1);
        refusals.lapse(Monotonic(5099));
        assert!(refusals.get(&a).is_some());
        assert!(refusals.get(&key(1, "a", 2)).is_none());
        refusals.lapse(Monotonic(5100));
        assert!(refusals.get(&a).is_none());
        assert_eq!(refusals.iter().count(), 0);
    }

    #[test]
    fn a_refusal_longer_than_a_week_means_until_demand_changes() {
        assert_eq!(
            Refuse::from_milliseconds(u64::MAX),
            Refuse::UntilDemandChanges
        );
        assert_eq!(Refuse::from_milliseconds(0), Refuse::UntilDemandChanges);
        assert_eq!(
            Refuse::from_milliseconds(3_600_000),
            Refuse::For(Span(3_600_000))
        );
    }
}
