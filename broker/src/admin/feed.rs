//! What changed and what happened, newest last, bounded: the memory behind every watch.
//!
//! The loop tells it of every applied command ([`FeedFollower`]), right after the batch: the state
//! may be ahead of the feed for a moment, never behind it. Objects are named, not copied. An entry
//! is held for [`HELD`] or until [`MOST`] newer ones have come; the newest [`LEAST`] stay however
//! old they are.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use mete_model::{AgentId, Span, Timestamp};
use mete_state::{Change, State};
use tokio::sync::watch;

use crate::machine::Done;
use crate::master::Follower;

use super::happened::{Happened, happened};

/// How long an entry is held.
pub const HELD: Span = Span::minutes(10);

/// Entries held at the most.
pub const MOST: usize = 1_000_000;

/// Entries held at the least, whatever their age.
pub const LEAST: usize = 10_000;

/// The changes of this process's lifetime, as far as they are held.
#[derive(Debug)]
pub struct Feed {
    inside: Mutex<Inside>,
    latest: watch::Sender<u64>,
}

#[derive(Debug, Default)]
struct Inside {
    changes: Ring<Change>,
    happened: Ring<Happened>,
    /// The revision of the last change of everything but runs, which know theirs themselves.
    last: BTreeMap<Change, u64>,
    /// Names of agents, for rows that are gone.
    names: HashMap<AgentId, Arc<str>>,
    revision: u64,
    clock: Timestamp,
}

/// Entries in order of their revision; each has a place that never changes.
#[derive(Debug)]
struct Ring<T> {
    entries: VecDeque<(u64, Timestamp, T)>,
    /// Entries that are no longer held.
    dropped: u64,
    /// Everything after this revision is held.
    floor: u64,
}

impl<T> Default for Ring<T> {
    fn default() -> Self {
        Self {
            entries: VecDeque::new(),
            dropped: 0,
            floor: 0,
        }
    }
}

/// Where a reader is in the feed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place(u64);

/// Entries from before this are no longer held; a read may begin after this revision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Compacted(pub u64);

/// Some entries, in order.
#[derive(Debug, PartialEq, Eq)]
pub struct Batch<T> {
    /// Revision and what it is about.
    pub entries: Vec<(u64, T)>,
    /// Where to go on.
    pub next: Place,
    /// All entries up to this revision have been given, in this batch or before.
    pub complete: u64,
    /// Nothing was held beyond the batch.
    pub at_end: bool,
}

impl<T: Clone> Ring<T> {
    fn push(&mut self, revision: u64, at: Timestamp, entry: T) {
        self.entries.push_back((revision, at, entry));
    }

    /// Drops what need not be held; gives it to `dropped`.
    fn trim(&mut self, now: Timestamp, mut dropped: impl FnMut(u64, &T)) {
        while self.entries.len() > LEAST {
            let old = self
                .entries
                .front()
                .is_some_and(|(_, at, _)| now.since(*at) > HELD);
            if self.entries.len() <= MOST && !old {
                break;
            }
            if let Some((revision, _, entry)) = self.entries.pop_front() {
                self.dropped = self.dropped.saturating_add(1);
                self.floor = revision;
                dropped(revision, &entry);
            }
        }
    }

    fn place_after(&self, revision: u64) -> Result<Place, Compacted> {
        if revision < self.floor {
            return Err(Compacted(self.floor));
        }
        let index = self.entries.partition_point(|(at, _, _)| *at <= revision);
        Ok(Place(self.place_of(index)))
    }

    fn place_of(&self, index: usize) -> u64 {
        self.dropped
            .saturating_add(u64::try_from(index).unwrap_or(u64::MAX))
    }

    fn take(&self, place: Place, most: usize, latest: u64) -> Result<Batch<T>, Compacted> {
        let index = place
            .0
            .checked_sub(self.dropped)
            .and_then(|index| usize::try_from(index).ok())
            .ok_or(Compacted(self.floor))?;
        let end = index.saturating_add(most).min(self.entries.len());
        let start = index.min(end);
        let entries: Vec<(u64, T)> = self
            .entries
            .range(start..end)
            .map(|(revision, _, entry)| (*revision, entry.clone()))
            .collect();
        // A revision with more entries to come is not complete.
        let complete = match self.entries.get(end) {
            None => latest,
            Some((following, _, _)) => following.saturating_sub(1),
        };
        Ok(Batch {
            entries,
            next: Place(self.place_of(end)),
            complete,
            at_end: end == self.entries.len(),
        })
    }
}

impl Feed {
    /// An empty feed, and who is to be told of what applies.
    #[must_use]
    pub fn new() -> (Arc<Self>, FeedFollower) {
        let feed = Arc::new(Self {
            inside: Mutex::new(Inside::default()),
            latest: watch::Sender::new(0),
        });
        (Arc::clone(&feed), FeedFollower(feed))
    }

    /// The state was replaced by a snapshot: everything before it is compacted.
    fn restart(&self, state: &State, revision: u64) {
        let mut inside = self.inside();
        *inside = Inside {
            revision,
            clock: state.clock(),
            ..Inside::default()
        };
        // The log's index may be ahead of the last command: nothing has changed in between, and a
        // list says the state's revision.
        inside.changes.floor = state.revision();
        inside.happened.floor = state.revision();
        inside.names = state
            .agents()
            .map(|agent| (agent.id, Arc::from(agent.node_name.as_str())))
            .collect();
        drop(inside);
        self.latest.send_replace(revision);
    }

    /// Notes what an applied command did; `state` is that after the whole batch.
    fn applied(&self, state: &State, done: &Done) {
        let Ok(outcome) = &done.result else {
            return;
        };
        let (revision, at) = (done.revision, done.at);
        let inside = &mut *self.inside();
        inside.clock = at;
        for change in &outcome.changes {
            inside.changes.push(revision, at, change.clone());
            inside.learn(revision, change, state);
        }
        for what in happened(done, outcome, state) {
            inside.happened.push(revision, at, what);
        }
        let last = &mut inside.last;
        inside.changes.trim(at, |revision, change| {
            if last.get(change) == Some(&revision) {
                last.remove(change);
            }
        });
        inside.happened.trim(at, |_, _| {});
    }

    fn complete(&self, revision: u64) {
        self.inside().revision = revision;
        self.latest.send_replace(revision);
    }

    /// The revision up to which everything is here.
    #[must_use]
    pub fn revision(&self) -> u64 {
        self.inside().revision
    }

    /// The last applied revision; changes with each one.
    #[must_use]
    pub fn latest(&self) -> watch::Receiver<u64> {
        self.latest.subscribe()
    }

    /// Where changes after `revision` begin.
    ///
    /// # Errors
    /// [`Compacted`] with the oldest revision that a watch may begin after.
    pub fn place_after(&self, revision: u64) -> Result<Place, Compacted> {
        self.inside().changes.place_after(revision)
    }

    /// Changes from `place` on; at most `most` of them, and not those whose object is known to
    /// change again later. Of runs the reader tells that itself, by their revision.
    ///
    /// # Errors
    /// [`Compacted`] when the place is no longer held.
    pub fn changes(&self, place: Place, most: usize) -> Result<Batch<Change>, Compacted> {
        let inside = self.inside();
        let mut batch = inside.changes.take(place, most, inside.revision)?;
        batch.entries.retain(|(revision, change)| {
            inside.last.get(change).is_none_or(|last| last <= revision)
        });
        Ok(batch)
    }

    /// Where events after `revision` begin.
    ///
    /// # Errors
    /// [`Compacted`] with the oldest revision that a watch may begin after.
    pub fn events_after(&self, revision: u64) -> Result<Place, Compacted> {
        self.inside().happened.place_after(revision)
    }

    /// Where events not older than `span` begin; as far back as they are held.
    #[must_use]
    pub fn events_since(&self, span: Span) -> Place {
        let inside = self.inside();
        let ring = &inside.happened;
        let index = ring
            .entries
            .partition_point(|(_, at, _)| inside.clock.since(*at) > span);
        Place(ring.place_of(index))
    }

    /// Events from `place` on, at most `most` of them.
    ///
    /// # Errors
    /// [`Compacted`] when the place is no longer held.
    pub fn events(&self, place: Place, most: usize) -> Result<Batch<Happened>, Compacted> {
        let inside = self.inside();
        inside.happened.take(place, most, inside.revision)
    }

    /// The revision of an object's last change, as far as it is held; else 0.
    #[must_use]
    pub fn last_change(&self, change: &Change) -> u64 {
        self.inside().last.get(change).copied().unwrap_or(0)
    }

    /// The name of an agent, also of one that is forgotten.
    #[must_use]
    pub fn node_name(&self, agent: AgentId) -> Option<Arc<str>> {
        self.inside().names.get(&agent).cloned()
    }

    fn inside(&self) -> MutexGuard<'_, Inside> {
        self.inside.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The loop's end of a [`Feed`].
#[derive(Debug)]
pub struct FeedFollower(Arc<Feed>);

impl Follower for FeedFollower {
    fn applied(&mut self, state: &State, done: &Done) {
        self.0.applied(state, done);
    }

    fn complete(&mut self, _state: &State, revision: u64) {
        self.0.complete(revision);
    }

    fn restored(&mut self, state: &State, revision: u64) {
        self.0.restart(state, revision);
    }
}

impl Inside {
    fn learn(&mut self, revision: u64, change: &Change, state: &State) {
        match change {
            Change::Run(..) | Change::Master(_) => return,
            Change::Agent(id) => {
                let name = state.agent(*id).map(|agent| agent.node_name.as_str());
                let known = self.names.get(id).map(|name| &**name);
                if name.is_some() && name != known {
                    self.names.insert(*id, Arc::from(name.unwrap_or_default()));
                }
            }
            Change::Framework(_) | Change::Role(_) | Change::Claim(..) => {}
        }
        self.last.insert(change.clone(), revision);
    }
}

#[cfg(test)]
mod tests {
    use mete_model::RolePath;
    use mete_state::{Command, Stamped};

    use super::*;

    /// Applies the making of a role, as the loop would.
    fn set_role(state: &mut State, follower: &mut FeedFollower, path: &str, at: u64) {
        let revision = state.revision() + 1;
        let command = Command::SetRole {
            path: RolePath::new(path).expect("a path"),
            weight_milli: None,
            actor: "ada".to_owned(),
        };
        let stamped = Stamped {
            at: Timestamp(at),
            command,
        };
        let result = state.apply(revision, &stamped);
        let done = Done {
            revision,
            at: state.clock(),
            command: stamped.command,
            result,
        };
        follower.applied(state, &done);
        follower.complete(state, revision);
    }

    #[test]
    fn what_is_too_old_is_compacted_and_a_later_change_stands_for_an_earlier_one() {
        let mut state = State::new();
        let (feed, mut follower) = Feed::new();
        follower.restored(&state, 0);
        for number in 0..LEAST {
            set_role(&mut state, &mut follower, &format!("r{number}"), 1);
        }
        let start = feed.place_after(0).expect("nothing is too old yet");
        assert!(feed.changes(start, 10).is_ok());

        set_role(&mut state, &mut follower, "late", HELD.0 + 2);

        let Compacted(oldest) = feed.place_after(0).expect_err("the first is dropped");
        assert!(
            feed.changes(start, 10).is_err(),
            "a reader there has lost its place"
        );
        let place = feed.place_after(oldest).expect("the oldest itself is fine");
        let first = feed.changes(place, 1).expect("held").entries;
        assert_eq!(first[0].0, oldest + 1);

        // A snapshot from elsewhere: everything before its last command is void.
        follower.restored(&state, 99_999);
        assert_eq!(feed.place_after(oldest), Err(Compacted(state.revision())));
        assert!(
            feed.place_after(state.revision()).is_ok(),
            "as a list says it"
        );
        assert_eq!(feed.revision(), 99_999);
    }

    fn ring(revisions: &[u64]) -> Ring<u64> {
        let mut ring = Ring::default();
        for revision in revisions {
            ring.push(*revision, Timestamp(0), *revision);
        }
        ring
    }

    #[test]
    fn after_means_after_and_a_revision_is_complete_only_with_its_last_entry() {
        let ring = ring(&[3, 5, 5, 5, 9]);
        let place = ring.place_after(3).expect("held");
        let batch = ring.take(place, 2, 9).expect("held");
        assert_eq!((batch.entries.len(), batch.complete), (2, 4));
        let batch = ring.take(batch.next, 1, 9).expect("held");
        assert_eq!(
            (batch.entries[0].0, batch.complete, batch.at_end),
            (5, 8, false)
        );
        let batch = ring.take(batch.next, 100, 9).expect("held");
        assert_eq!(
            (batch.entries[0].0, batch.complete, batch.at_end),
            (9, 9, true)
        );
        let batch = ring.take(batch.next, 100, 12).expect("held");
        assert_eq!((batch.entries.len(), batch.complete), (0, 12));
    }

    #[test]
    fn entries_are_dropped_by_age_but_never_below_the_least() {
        let mut ring: Ring<u64> = Ring::default();
        for revision in 1..=20_000 {
            ring.push(revision, Timestamp(0), revision);
        }
        ring.trim(Timestamp(HELD.0), |_, _| {});
        assert_eq!(ring.entries.len(), 20_000, "not older than they may be");
        ring.trim(Timestamp(HELD.0 + 1), |_, _| {});
        assert_eq!(ring.entries.len(), LEAST);
        assert_eq!(ring.place_after(9_999), Err(Compacted(10_000)));
        let place = ring.place_after(10_000).expect("the floor itself is fine");
        assert_eq!(
            ring.take(place, 1, 20_000).expect("held").entries[0].0,
            10_001
        );
        assert_eq!(ring.take(Place(17), 1, 20_000), Err(Compacted(10_000)));
    }
}
