//! Linearizability of the frameworks' stores, one key at a time.
//!
//! The search of Wing and Gong with the memory of Lowe: an order of the operations is looked for in
//! which each takes effect at one moment between its call and its answer and each read gives what
//! was there. An operation without an answer may have taken effect at any moment since its call, or
//! never. Values are unique, so a read names the write that it saw.

use std::collections::{BTreeMap, BTreeSet};

use crate::agenda::Time;
use crate::random::Digest;

/// A framework and one of its keys, by position.
pub(crate) type Key = (usize, usize);

/// States looked at for one key before the search is given up.
const MOST_STATES: usize = 200_000;

/// What an operation does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Read,
    /// With the revision that must be there, or whatever is there.
    Write {
        expected: Option<u64>,
    },
    Delete,
}

/// How it came out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// Value and revision, or nothing there.
    Read(Option<(u64, u64)>),
    /// At this revision.
    Written(u64),
    /// Something else was there than expected.
    Conflict,
}

#[derive(Clone, Debug)]
struct Operation {
    key: Key,
    kind: Kind,
    /// What it writes; 0 for none.
    value: u64,
    invoked: Time,
    completed: Option<(Time, Outcome)>,
}

/// Everything that was done to the stores.
#[derive(Debug, Default)]
pub(crate) struct Linear {
    operations: Vec<Operation>,
    last_value: u64,
}

impl Linear {
    /// A value that no operation before had.
    pub(crate) fn next_value(&mut self) -> u64 {
        self.last_value += 1;
        self.last_value
    }

    /// An operation begins; a write has the value that was taken last.
    pub(crate) fn invoked(&mut self, key: Key, kind: Kind, at: Time) -> usize {
        let is_write = matches!(kind, Kind::Write { .. });
        self.operations.push(Operation {
            key,
            kind,
            value: if is_write { self.last_value } else { 0 },
            invoked: at,
            completed: None,
        });
        self.operations.len() - 1
    }

    /// Which of its framework's keys an operation is about.
    pub(crate) fn key(&self, operation: usize) -> Option<usize> {
        self.operations.get(operation).map(|it| it.key.1)
    }

    pub(crate) fn completed(&mut self, operation: usize, outcome: Outcome, at: Time) {
        if let Some(operation) = self.operations.get_mut(operation) {
            operation.completed = Some((at, outcome));
        }
    }

    /// The last try was refused; one before it may have been done all the same.
    pub(crate) fn refused(&mut self, _operation: usize, _at: Time) {}

    /// How many operations were answered.
    pub(crate) fn answered(&self) -> usize {
        let answered = self.operations.iter().filter(|it| it.completed.is_some());
        answered.count()
    }

    /// Looks for an order of each key's operations.
    pub(crate) fn finish(&self) -> Vec<String> {
        let mut by_key: BTreeMap<Key, Vec<&Operation>> = BTreeMap::new();
        for operation in &self.operations {
            by_key.entry(operation.key).or_default().push(operation);
        }
        let wrong = by_key
            .into_iter()
            .filter(|(_, operations)| !has_order(operations));
        wrong
            .map(|((framework, key), operations)| {
                format!(
                    "the operations on key {key} of framework {framework} have no order: \
                     {operations:#?}"
                )
            })
            .collect()
    }

    pub(crate) fn digest(&self, digest: &mut Digest) {
        for operation in &self.operations {
            digest.add(operation.invoked);
            digest.add(operation.completed.map_or(0, |(at, _)| at));
        }
    }
}

/// One key's search.
struct Search<'a> {
    operations: Vec<&'a Operation>,
    /// The value that each revision stands for.
    values: BTreeMap<u64, u64>,
    seen: BTreeSet<(Vec<u64>, u64)>,
}

fn has_order(operations: &[&Operation]) -> bool {
    let mut values = BTreeMap::new();
    let mut observed = BTreeSet::new();
    for operation in operations {
        match operation.completed {
            Some((_, Outcome::Read(Some((value, revision))))) => {
                observed.insert(value);
                if values.insert(revision, value).is_some_and(|it| it != value) {
                    return false;
                }
            }
            Some((_, Outcome::Written(revision)))
                if operation.value != 0
                    && values
                        .insert(revision, operation.value)
                        .is_some_and(|it| it != operation.value) =>
            {
                return false;
            }
            Some((_, Outcome::Read(None) | Outcome::Written(_) | Outcome::Conflict)) | None => {}
        }
    }
    let conflicts = |it: &&Operation| matches!(it.completed, Some((_, Outcome::Conflict)));
    let any_conflict = operations.iter().any(conflicts);
    // One that may never have happened and that nobody saw explains nothing.
    let counts = |it: &&&Operation| match (it.completed, it.kind) {
        (Some(_), _) | (None, Kind::Delete) => true,
        (None, Kind::Read) => false,
        (None, Kind::Write { .. }) => any_conflict || observed.contains(&it.value),
    };
    let mut search = Search {
        operations: operations.iter().filter(counts).copied().collect(),
        values,
        seen: BTreeSet::new(),
    };
    search.run()
}

impl Search<'_> {
    fn run(&mut self) -> bool {
        let words = self.operations.len().div_ceil(64);
        let mut waiting = vec![(vec![0_u64; words], 0_u64)];
        while let Some((done, value)) = waiting.pop() {
            if self.seen.len() >= MOST_STATES {
                // Too tangled to tell: no evidence of a fault.
                return true;
            }
            if !self.seen.insert((done.clone(), value)) {
                continue;
            }
            let open = |at: &usize| done[at / 64] & (1 << (at % 64)) == 0;
            let left: Vec<usize> = (0..self.operations.len()).filter(open).collect();
            let ends = left.iter().filter_map(|at| self.operations[*at].completed);
            let Some(first_end) = ends.map(|(at, _)| at).min() else {
                return true;
            };
            for at in left {
                let operation = self.operations[at];
                if operation.invoked > first_end {
                    continue;
                }
                if let Some(next) = self.effects(operation, value) {
                    let mut done = done.clone();
                    done[at / 64] |= 1 << (at % 64);
                    waiting.push((done, next));
                }
            }
        }
        false
    }

    /// What is there after the operation, for each way that it may have gone.
    fn effects(&self, operation: &Operation, value: u64) -> Option<u64> {
        let expected_is_here =
            |revision: u64| value != 0 && self.values.get(&revision) == Some(&value);
        match (
            operation.kind,
            operation.completed.map(|(_, outcome)| outcome),
        ) {
            (Kind::Read, Some(Outcome::Read(read))) => {
                let same = read.map_or(0, |(value, _)| value) == value;
                same.then_some(value)
            }
            (Kind::Write { expected: None }, Some(Outcome::Written(_)) | None) => {
                Some(operation.value)
            }
            (
                Kind::Write {
                    expected: Some(expected),
                },
                Some(Outcome::Written(_)) | None,
            ) => expected_is_here(expected).then_some(operation.value),
            (
                Kind::Write {
                    expected: Some(expected),
                },
                Some(Outcome::Conflict),
            ) => (!expected_is_here(expected)).then_some(value),
            (Kind::Delete, Some(Outcome::Written(_) | Outcome::Conflict) | None) => Some(0),
            (Kind::Read, _) | (Kind::Write { .. } | Kind::Delete, Some(_)) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What, the value, when it was called, and how it was answered.
    type Line = (Kind, u64, Time, Option<(Time, Outcome)>);

    fn history(operations: &[Line]) -> bool {
        let operations: Vec<Operation> = operations
            .iter()
            .map(|(kind, value, invoked, completed)| Operation {
                key: (0, 0),
                kind: *kind,
                value: *value,
                invoked: *invoked,
                completed: *completed,
            })
            .collect();
        has_order(&operations.iter().collect::<Vec<_>>())
    }

    const WRITE: Kind = Kind::Write { expected: None };

    fn wrote(at: Time, revision: u64) -> Option<(Time, Outcome)> {
        Some((at, Outcome::Written(revision)))
    }

    fn read(at: Time, value: u64, revision: u64) -> Option<(Time, Outcome)> {
        Some((at, Outcome::Read(Some((value, revision)))))
    }

    #[test]
    fn a_read_that_begins_after_a_write_was_answered_sees_it() {
        assert!(history(&[
            (WRITE, 1, 0, wrote(10, 5)),
            (Kind::Read, 0, 11, read(12, 1, 5)),
        ]));
        assert!(!history(&[
            (WRITE, 1, 0, wrote(10, 5)),
            (WRITE, 2, 11, wrote(20, 6)),
            (Kind::Read, 0, 21, read(22, 1, 5)),
        ]));
    }

    #[test]
    fn operations_that_overlap_may_take_effect_in_either_order() {
        let both = [(WRITE, 1, 0, wrote(10, 5)), (WRITE, 2, 0, wrote(10, 6))];
        for (value, revision) in [(1, 5), (2, 6)] {
            let mut all = both.to_vec();
            all.push((Kind::Read, 0, 11, read(12, value, revision)));
            assert!(history(&all), "value {value}");
        }
    }

    #[test]
    fn what_was_never_answered_may_have_happened_but_not_twice() {
        let open = (WRITE, 1, 0, None);
        assert!(history(&[open, (Kind::Read, 0, 5, read(6, 1, 5))]));
        assert!(history(&[
            open,
            (Kind::Read, 0, 5, Some((6, Outcome::Read(None)))),
        ]));
        assert!(!history(&[
            open,
            (Kind::Read, 0, 5, read(6, 1, 5)),
            (WRITE, 2, 7, wrote(8, 6)),
            (Kind::Read, 0, 9, read(10, 1, 5)),
        ]));
    }

    #[test]
    fn a_conditional_write_needs_what_it_expects() {
        let expected = Kind::Write { expected: Some(5) };
        let first = (WRITE, 1, 0, wrote(10, 5));
        assert!(history(&[first, (expected, 2, 11, wrote(12, 6))]));
        let other = (WRITE, 3, 11, wrote(12, 6));
        assert!(!history(&[first, other, (expected, 2, 13, wrote(14, 7))]));
        let conflict = Some((14, Outcome::Conflict));
        assert!(history(&[first, other, (expected, 2, 13, conflict)]));
        assert!(!history(&[first, (expected, 2, 13, conflict)]));
    }
}
