//! One kind of task: which index is taken by which run, and when an empty one is due. No I/O.

use std::collections::BTreeMap;
use std::time::Duration;

use mete_model::{RunId, TaskPhase};
use tokio::time::Instant;

use super::{GroupStatus, end_text, works};
use crate::task::TaskUpdate;

/// A task that ran so long has not failed quickly: its next pause is the first one again.
const LONG_ENOUGH: Duration = Duration::from_secs(30);

#[derive(Debug)]
enum Place {
    Empty {
        /// `None` = at once.
        due: Option<Instant>,
        failures: u32,
    },
    Taken {
        run: RunId,
        phase: TaskPhase,
        /// Since it does its work.
        since: Option<Instant>,
        failures: u32,
    },
}

/// What was found out about a run of a snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// It has its place.
    Placed,
    /// Another run has this place.
    Another,
}

/// How a run is that had lost its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Away {
    /// Nothing of it is left.
    Over,
    /// It may be replaced.
    Replaceable,
    /// It lives, and may not be replaced any more.
    Back,
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Group {
    count: u32,
    places: BTreeMap<u32, Place>,
    by_run: BTreeMap<RunId, u32>,
    /// Runs that lost their place because they may be replaced, oldest first: they may live, and
    /// come back.
    away: BTreeMap<u32, Vec<RunId>>,
    restarts: u64,
    last_end: String,
}

impl Group {
    /// How many there shall be. Surplus places go when their runs are over.
    pub(super) fn resize(&mut self, count: u32) {
        self.count = count;
        for index in 0..count {
            self.places.entry(index).or_insert(Place::Empty {
                due: None,
                failures: 0,
            });
        }
        self.places
            .retain(|index, place| *index < count || matches!(place, Place::Taken { .. }));
    }

    pub(super) fn is_empty(&self) -> bool {
        self.places.is_empty() && self.away.is_empty()
    }

    /// Runs beyond the count that nobody has asked to stop, or that have not stopped.
    pub(super) fn surplus(&self) -> Vec<RunId> {
        let surplus = self.places.range(self.count..);
        let away = self.away.range(self.count..);
        let away = away.flat_map(|(_, runs)| runs.iter().cloned());
        surplus
            .filter_map(|(_, place)| match place {
                Place::Taken { run, phase, .. } if *phase != TaskPhase::Finishing => {
                    Some(run.clone())
                }
                Place::Taken { .. } | Place::Empty { .. } => None,
            })
            .chain(away)
            .collect()
    }

    fn due_places(&self, now: Instant) -> impl Iterator<Item = u32> + '_ {
        self.places
            .range(..self.count)
            .filter(move |(_, place)| match place {
                Place::Empty { due, .. } => due.is_none_or(|due| due <= now),
                Place::Taken { .. } => false,
            })
            .map(|(index, _)| *index)
    }

    /// How many tasks are to be started now.
    pub(super) fn due(&self, now: Instant) -> u32 {
        u32::try_from(self.due_places(now).count()).unwrap_or(u32::MAX)
    }

    pub(super) fn next_due(&self, now: Instant) -> Option<u32> {
        self.due_places(now).next()
    }

    /// A launch may still be refused: its place is due again then.
    pub(super) fn may_be_refused(&self) -> bool {
        self.places.values().any(
            |place| matches!(place, Place::Taken { phase, .. } if *phase == TaskPhase::Staging),
        )
    }

    pub(super) fn started(&mut self, index: u32, run: RunId) {
        let failures = match self.places.get(&index) {
            Some(Place::Empty { failures, .. } | Place::Taken { failures, .. }) => *failures,
            None => 0,
        };
        self.by_run.insert(run.clone(), index);
        let place = Place::Taken {
            run,
            phase: TaskPhase::Staging,
            since: None,
            failures,
        };
        self.places.insert(index, place);
    }

    /// The run of this kind may be replaced: its place is due at once. Says whether it is one.
    pub(super) fn may_be_replaced(&mut self, run: &RunId) -> bool {
        let Some(index) = self.by_run.get(run).copied() else {
            return false;
        };
        let Some(Place::Taken { failures, .. }) = self.places.get(&index) else {
            return false;
        };
        let failures = *failures;
        // One that is too many anyway is not replaced: it goes when its agent is back.
        if index < self.count {
            self.by_run.remove(run);
            self.away.entry(index).or_default().push(run.clone());
            let due = None;
            self.places.insert(index, Place::Empty { due, failures });
        }
        true
    }

    /// A snapshot has this run at this index, and another that took its place.
    pub(super) fn was_replaced(&mut self, index: u32, run: &RunId) {
        let away = self.away.entry(index).or_default();
        if !away.contains(run) {
            away.push(run.clone());
        }
    }

    /// The run whose place the next one at this index takes.
    pub(super) fn replaces(
        &self,
        index: u32,
        is_replaceable: impl Fn(&RunId) -> bool,
    ) -> Option<RunId> {
        let mut away = self.away.get(&index)?.iter().rev();
        away.find(|run| is_replaceable(run)).cloned()
    }

    /// Forgets runs that were away and are over, and gives those their place again that live, may
    /// not be replaced any more, and were not: their agent is back.
    pub(super) fn settle_away(&mut self, how: impl Fn(&RunId) -> Away) {
        for (index, mut runs) in std::mem::take(&mut self.away) {
            runs.retain(|run| how(run) != Away::Over);
            let empty = matches!(self.places.get(&index), None | Some(Place::Empty { .. }));
            let back = runs.iter().position(|run| how(run) == Away::Back);
            if let (true, Some(at)) = (empty, back) {
                let run = runs.remove(at);
                self.started(index, run);
            }
            if !runs.is_empty() {
                self.away.insert(index, runs);
            }
        }
    }

    /// A snapshot has this run at this index.
    pub(super) fn find(&mut self, index: u32, found: &RunId, found_phase: TaskPhase) -> Found {
        match self.places.get_mut(&index) {
            Some(Place::Taken { run, phase, .. }) if run == found => {
                *phase = found_phase;
                Found::Placed
            }
            Some(Place::Taken { .. }) => Found::Another,
            Some(Place::Empty { .. }) | None => {
                self.started(index, found.clone());
                if let Some(Place::Taken { phase, since, .. }) = self.places.get_mut(&index) {
                    *phase = found_phase;
                    *since = works(found_phase).then(Instant::now);
                }
                Found::Placed
            }
        }
    }

    /// Empties the places of runs that were never heard of and that the session does not know
    /// either: they were not sent, or refused.
    pub(super) fn forget_unsent(&mut self, is_known: impl Fn(&RunId) -> bool) {
        let unsent: Vec<RunId> = self
            .places
            .values()
            .filter_map(|place| match place {
                Place::Taken {
                    run,
                    phase: TaskPhase::Staging,
                    ..
                } if !is_known(run) => Some(run.clone()),
                Place::Taken { .. } | Place::Empty { .. } => None,
            })
            .collect();
        for run in unsent {
            self.not_granted(&run);
        }
    }

    /// Says whether the run is one of this kind.
    pub(super) fn heard(
        &mut self,
        run: &RunId,
        update: &TaskUpdate,
        pause: (Duration, Duration),
        now: Instant,
    ) -> bool {
        let Some(index) = self.by_run.get(run).copied() else {
            return false;
        };
        let Some(Place::Taken {
            phase,
            since,
            failures,
            ..
        }) = self.places.get_mut(&index)
        else {
            return false;
        };
        if !update.phase.is_terminal() {
            *phase = update.phase;
            if works(update.phase) && since.is_none() {
                *since = Some(now);
            }
            return true;
        }
        let long = since.is_some_and(|since| now.duration_since(since) >= LONG_ENOUGH);
        let failures = if long { 0 } else { *failures };
        self.by_run.remove(run);
        self.restarts += 1;
        self.last_end = end_text(run, update);
        let place = Place::Empty {
            due: Some(now + pause_after(failures, pause)),
            failures: failures.saturating_add(1),
        };
        self.places.insert(index, place);
        true
    }

    /// The launch was not granted: the place is due again at once.
    pub(super) fn not_granted(&mut self, run: &RunId) {
        let Some(index) = self.by_run.remove(run) else {
            return;
        };
        if let Some(Place::Taken { failures, .. }) = self.places.get(&index) {
            let failures = *failures;
            let due = None;
            self.places.insert(index, Place::Empty { due, failures });
        }
    }

    pub(super) fn status(&self, name: &str, wanted: u32, now: Instant) -> GroupStatus {
        let mut status = GroupStatus {
            name: name.to_owned(),
            wanted,
            restarts: self.restarts,
            last_end: self.last_end.clone(),
            ..GroupStatus::default()
        };
        for place in self.places.values() {
            let counter = match place {
                Place::Taken { phase, .. } if works(*phase) => &mut status.running,
                Place::Taken { .. } => &mut status.moving,
                Place::Empty { due: Some(due), .. } if *due > now => &mut status.pausing,
                Place::Empty { .. } => &mut status.waiting,
            };
            *counter += 1;
        }
        status
    }
}

/// Doubles with each quick failure.
fn pause_after(failures: u32, (first, most): (Duration, Duration)) -> Duration {
    first.saturating_mul(1 << failures.min(16)).min(most)
}

#[cfg(test)]
mod tests {
    use mete_model::{StatusSource, Timestamp};

    use super::*;

    const PAUSE: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));

    fn run(text: &str) -> RunId {
        text.parse().expect("a run")
    }

    fn says(run: &RunId, phase: TaskPhase) -> TaskUpdate {
        TaskUpdate {
            task: run.task.clone(),
            attempt: run.attempt,
            sequence: 1,
            phase,
            reason: None,
            message: String::new(),
            source: StatusSource::Agent,
            at: Timestamp::default(),
            exit: None,
            usage: None,
            coalesced: false,
            agent: None,
            claim: None,
        }
    }

    #[test]
    fn a_task_that_fails_quickly_waits_longer_each_time_and_one_that_ran_long_does_not() {
        let mut group = Group::default();
        group.resize(1);
        let mut now = Instant::now();
        let mut pauses = Vec::new();
        for attempt in 1..=4 {
            let id = run(&format!("web#{attempt}"));
            assert_eq!(group.next_due(now), Some(0));
            group.started(0, id.clone());
            group.heard(&id, &says(&id, TaskPhase::Running), PAUSE, now);
            if attempt == 4 {
                now += LONG_ENOUGH;
            }
            group.heard(&id, &says(&id, TaskPhase::Failed), PAUSE, now);
            let mut waited = Duration::ZERO;
            while group.due(now) == 0 {
                now += Duration::from_millis(500);
                waited += Duration::from_millis(500);
            }
            pauses.push(waited.as_secs());
        }
        assert_eq!(pauses, [1, 2, 4, 1]);
    }

    #[test]
    fn a_smaller_count_stops_the_highest_indices_and_keeps_the_rest() {
        let mut group = Group::default();
        group.resize(3);
        for index in 0..3 {
            group.started(index, run(&format!("web-{index}#1")));
        }
        group.resize(1);
        assert_eq!(group.surplus(), [run("web-1#1"), run("web-2#1")]);
        let now = Instant::now();
        for id in group.surplus() {
            group.heard(&id, &says(&id, TaskPhase::Killed), PAUSE, now);
        }
        group.resize(1);
        assert_eq!(group.places.len(), 1);
        assert_eq!(group.due(now), 0);
    }

    #[test]
    fn a_second_run_of_one_index_is_told_apart() {
        let mut group = Group::default();
        assert_eq!(
            group.find(0, &run("a#1"), TaskPhase::Running),
            Found::Placed
        );
        assert_eq!(
            group.find(0, &run("a#1"), TaskPhase::Running),
            Found::Placed
        );
        assert_eq!(
            group.find(0, &run("b#1"), TaskPhase::Running),
            Found::Another
        );
    }

    #[test]
    fn a_launch_that_was_not_granted_is_due_at_once_and_counts_as_no_failure() {
        let mut group = Group::default();
        group.resize(1);
        group.started(0, run("a#1"));
        let now = Instant::now();
        assert_eq!(group.due(now), 0);
        assert!(group.may_be_refused());
        group.not_granted(&run("a#1"));
        assert!(!group.may_be_refused());
        assert_eq!(group.due(now), 1);
        assert_eq!(group.restarts, 0);
        // Nor does one that was noted and never sent.
        group.started(0, run("b#1"));
        group.forget_unsent(|known| *known == run("b#1"));
        assert_eq!(group.due(now), 0);
        group.forget_unsent(|_| false);
        assert_eq!(group.due(now), 1);
    }

    #[test]
    fn a_run_that_may_be_replaced_gives_its_place_away_and_takes_it_again_when_it_is_back() {
        let mut group = Group::default();
        group.resize(1);
        let (old, new) = (run("old#1"), run("new#1"));
        let now = Instant::now();
        group.started(0, old.clone());
        assert!(!group.may_be_replaced(&new), "none of this kind");
        assert!(group.may_be_replaced(&old));
        assert_eq!(group.due(now), 1, "at once, without a pause");
        assert_eq!(group.replaces(0, |run| *run == old), Some(old.clone()));
        assert_eq!(group.replaces(0, |_| false), None);

        // Its agent came back before anybody took its place.
        group.settle_away(|_| Away::Back);
        assert_eq!((group.due(now), group.restarts), (0, 0));
        assert!(group.heard(&old, &says(&old, TaskPhase::Running), PAUSE, now));

        // Lost again, and replaced: the old one is of no concern while the new one is there.
        assert!(group.may_be_replaced(&old));
        group.started(0, new.clone());
        group.settle_away(|_| Away::Back);
        assert!(!group.heard(&old, &says(&old, TaskPhase::Finishing), PAUSE, now));
        assert_eq!(group.due(now), 0);

        // The oldest stays: the new one is ended, and nothing new is begun.
        group.heard(&new, &says(&new, TaskPhase::Killed), PAUSE, now);
        group.settle_away(|_| Away::Back);
        assert_eq!(group.due(now + PAUSE.1), 0);
        group.heard(&old, &says(&old, TaskPhase::Killed), PAUSE, now);
        assert_eq!(group.due(now + PAUSE.1), 1);
    }

    #[test]
    fn runs_that_are_away_are_stopped_with_their_places_and_forgotten_when_over() {
        let mut group = Group::default();
        group.resize(2);
        let (old, new) = (run("old#1"), run("new#1"));
        group.started(1, old.clone());
        group.may_be_replaced(&old);
        group.started(1, new.clone());
        group.resize(1);
        assert_eq!(group.surplus(), [new.clone(), old.clone()]);
        assert!(group.may_be_replaced(&new), "of this kind, and too many");
        assert_eq!(group.surplus(), [new.clone(), old.clone()]);
        group.settle_away(|_| Away::Over);
        assert_eq!(group.surplus(), [new]);
    }
}
