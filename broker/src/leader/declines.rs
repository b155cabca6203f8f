//! What frameworks have declined on which agents, and until when. Kept by the leader only: lost at
//! a failover without harm, since demand is persisted.
//!
//! Declines of one framework, role and agent stand side by side, each for its own time and its own
//! resources: a short one takes nothing from a long one. Pure: time is given. Each change is
//! reported in [`Declines::take_touched`], so that the allocator's view can be patched; that only
//! more than what was declined is offered is its business.

use std::collections::{BTreeMap, BTreeSet};

use mete_model::{AgentId, FrameworkId, Resources, RolePath};

use crate::event::Monotonic;
use crate::request::Refuse;

/// Declines that stand side by side for one key; beyond it the one that would end first goes.
const MOST: usize = 8;

/// Who declined, for which role, where.
pub type Key = (FrameworkId, RolePath, AgentId);

/// What was given back, and what it was given back out of.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GivenBack {
    /// What was declined, all together.
    pub resources: Resources,
    /// All that was free on the agent with it: once more is, the decline hides nothing.
    pub free: Resources,
    /// When the last of its offers was made.
    pub made: Monotonic,
}

/// One decline.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decline {
    /// What was declined, all together.
    pub resources: Resources,
    /// All that was free on the agent with it, and what the framework had in hand there and has
    /// declined since.
    pub free: Resources,
    /// When it was made.
    pub at: Monotonic,
    /// When it lapses; `None` = when demand changes.
    pub until: Option<Monotonic>,
    /// In the framework's words.
    pub reason: String,
}

impl Decline {
    /// Says whether this one hides all that the other does, for at least as long.
    fn covers(&self, other: &Self) -> bool {
        // One that ends with a change of demand and one that ends at a time outlive one another.
        let as_long = match (self.until, other.until) {
            (None, None) => true,
            (Some(mine), Some(its)) => mine >= its,
            (None, Some(_)) | (Some(_), None) => false,
        };
        as_long && self.resources.contains(&other.resources) && self.free.contains(&other.free)
    }
}

/// All declines of a term.
#[derive(Debug, Default)]
pub struct Declines {
    /// The oldest first; no list is empty.
    by_key: BTreeMap<Key, Vec<Decline>>,
    /// The ends of those in `by_key`, no others: equal ones of a key share one.
    by_end: BTreeSet<(Monotonic, Key)>,
    touched: BTreeSet<Key>,
}

impl Declines {
    /// Notes a decline beside those of the same framework, role and agent that stand.
    pub fn note(
        &mut self,
        key: Key,
        given_back: GivenBack,
        refuse: Refuse,
        reason: &str,
        now: Monotonic,
    ) {
        let GivenBack {
            resources,
            free,
            made,
        } = given_back;
        let standing = self.by_key.entry(key.clone()).or_default();
        let old = ends(standing);
        for older in standing.iter_mut().filter(|older| made <= older.at) {
            // In hand at the time: that it comes back now frees nothing that was not known.
            older.free.add(&resources);
        }
        let until = match refuse {
            Refuse::UntilDemandChanges => None,
            Refuse::For(span) => Some(now.after(span.0)),
        };
        let new = Decline {
            resources,
            free,
            at: now,
            until,
            reason: reason.to_owned(),
        };
        standing.retain(|older| !new.covers(older));
        standing.push(new);
        if standing.len() > MOST
            && let Some((first, _)) = standing
                .iter()
                .enumerate()
                .min_by_key(|(_, decline)| decline.until.unwrap_or(Monotonic(u64::MAX)))
        {
            standing.remove(first);
        }
        let new = ends(standing);
        self.replace_ends(&key, old, new);
        self.touched.insert(key);
    }

    /// The framework's demand in a role has changed: what was declined until then is lifted.
    pub fn demand_changed(&mut self, framework: FrameworkId, role: &RolePath) {
        for key in self.keys(framework, role) {
            self.keep(&key, |decline| decline.until.is_some());
        }
    }

    /// The framework revived a role: every decline of that role is lifted, no other.
    pub fn revived(&mut self, framework: FrameworkId, role: &RolePath) {
        for key in self.keys(framework, role) {
            self.keep(&key, |_| false);
        }
    }

    /// The framework is no more.
    pub fn forget_framework(&mut self, framework: FrameworkId) {
        let keys = self.of_framework(framework).map(|(key, _)| key.clone());
        let keys: BTreeSet<Key> = keys.collect();
        for key in keys {
            self.keep(&key, |_| false);
        }
    }

    /// The agent is no more.
    pub fn forget_agent(&mut self, agent: AgentId) {
        let keys = self.by_key.keys().filter(|key| key.2 == agent).cloned();
        let keys: Vec<Key> = keys.collect();
        for key in keys {
            self.keep(&key, |_| false);
        }
    }

    /// Lifts every decline whose time has come.
    pub fn lapse(&mut self, now: Monotonic) {
        while let Some((until, _)) = self.by_end.first()
            && *until <= now
            && let Some((_, key)) = self.by_end.pop_first()
        {
            self.keep(&key, |decline| {
                decline.until.is_none_or(|until| until > now)
            });
        }
    }

    /// The declines that stand for a key, the oldest first.
    #[must_use]
    pub fn get(&self, key: &Key) -> &[Decline] {
        self.by_key.get(key).map_or(&[], Vec::as_slice)
    }

    /// All declines of a framework.
    pub fn of_framework(&self, framework: FrameworkId) -> impl Iterator<Item = (&Key, &Decline)> {
        // A role's text never sorts before the lowest one that is permitted.
        self.iter()
            .skip_while(move |(key, _)| key.0 < framework)
            .take_while(move |(key, _)| key.0 == framework)
    }

    /// All declines.
    pub fn iter(&self) -> impl Iterator<Item = (&Key, &Decline)> {
        let lists = self.by_key.iter();
        lists.flat_map(|(key, standing)| standing.iter().map(move |decline| (key, decline)))
    }

    /// What has changed since the last call.
    pub fn take_touched(&mut self) -> BTreeSet<Key> {
        std::mem::take(&mut self.touched)
    }

    fn keys(&self, framework: FrameworkId, role: &RolePath) -> BTreeSet<Key> {
        self.of_framework(framework)
            .filter(|(key, _)| key.1 == *role)
            .map(|(key, _)| key.clone())
            .collect()
    }

    /// Lifts those of a key that are not wanted.
    fn keep(&mut self, key: &Key, wanted: impl Fn(&Decline) -> bool) {
        let Some(standing) = self.by_key.get_mut(key) else {
            return;
        };
        let before = standing.len();
        let old = ends(standing);
        standing.retain(wanted);
        if standing.len() == before {
            return;
        }
        let new = ends(standing);
        if standing.is_empty() {
            self.by_key.remove(key);
        }
        self.replace_ends(key, old, new);
        self.touched.insert(key.clone());
    }

    /// The declines of a key ended at `old` and now end at `new`.
    fn replace_ends(&mut self, key: &Key, old: Vec<Monotonic>, new: Vec<Monotonic>) {
        for until in old {
            if !new.contains(&until) {
                self.by_end.remove(&(until, key.clone()));
            }
        }
        let new = new.into_iter().map(|until| (until, key.clone()));
        self.by_end.extend(new);
    }
}

/// When those that end at a time do.
fn ends(standing: &[Decline]) -> Vec<Monotonic> {
    standing
        .iter()
        .filter_map(|decline| decline.until)
        .collect()
}

#[cfg(test)]
mod tests;
