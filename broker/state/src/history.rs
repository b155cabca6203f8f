//! Runs that are over and acknowledged: kept whole for a while, then by name for a while longer.
//!
//! Bounded three ways: per framework, in all, by age. The names keep a late repeat of an old
//! launch from starting it a second time, and let a kill of it be answered.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use mete_model::{FrameworkId, RunId, Timestamp};

use crate::cow_map::CowMap;
use crate::limits::{ENDED_AGE, ENDED_IN_ALL, HISTORY_AGE, HISTORY_IN_ALL, HISTORY_OF_A_FRAMEWORK};
use crate::record::{EndedRun, Run};

/// Numbers grow with each entry; the lowest is the oldest.
type Number = u64;

#[derive(Clone, Debug)]
struct Shelf<T> {
    next: Number,
    entries: CowMap<Number, T>,
    numbers: BTreeMap<FrameworkId, BTreeMap<RunId, Number>>,
}

impl<T> Default for Shelf<T> {
    fn default() -> Self {
        Self {
            next: 0,
            entries: CowMap::default(),
            numbers: BTreeMap::new(),
        }
    }
}

impl<T: Clone> Shelf<T> {
    fn records(&self) -> Self {
        Self {
            next: self.next,
            entries: self.entries.clone(),
            numbers: BTreeMap::new(),
        }
    }

    fn get(&self, framework: FrameworkId, run: &RunId) -> Option<&T> {
        let number = self.numbers.get(&framework)?.get(run)?;
        self.entries.get(number)
    }

    fn put(&mut self, framework: FrameworkId, run: RunId, entry: T) -> Number {
        let number = self.next;
        self.next = self.next.saturating_add(1);
        self.entries.insert(number, entry);
        self.numbers
            .entry(framework)
            .or_default()
            .insert(run, number);
        number
    }

    fn take(&mut self, number: Number, key: impl Fn(&T) -> (FrameworkId, RunId)) -> Option<T> {
        let entry = self.entries.remove(&number)?;
        let (framework, run) = key(&entry);
        if let Some(runs) = self.numbers.get_mut(&framework) {
            runs.remove(&run);
            if runs.is_empty() {
                self.numbers.remove(&framework);
            }
        }
        Some(entry)
    }
}

/// Ended runs, whole and by name.
#[derive(Clone, Debug, Default)]
pub(crate) struct History {
    whole: Shelf<Arc<Run>>,
    order: BTreeMap<FrameworkId, BTreeSet<Number>>,
    names: Shelf<EndedRun>,
}

impl History {
    /// The entries alone, without what finds them.
    pub(crate) fn records(&self) -> Self {
        Self {
            whole: self.whole.records(),
            order: BTreeMap::new(),
            names: self.names.records(),
        }
    }

    /// Takes in a run that is over and acknowledged; gives the runs that are too much for it and of
    /// which only the name is left.
    pub(crate) fn put(&mut self, run: Arc<Run>) -> Vec<(FrameworkId, RunId)> {
        let framework = run.framework;
        let number = self.whole.put(framework, run.id.clone(), run);
        let order = self.order.entry(framework).or_default();
        order.insert(number);
        let mut shortened = Vec::new();
        if order.len() > HISTORY_OF_A_FRAMEWORK
            && let Some(oldest) = order.first().copied()
        {
            shortened.extend(self.shorten(oldest));
        }
        if self.whole.entries.len() > HISTORY_IN_ALL
            && let Some(oldest) = self.whole.entries.first().map(|(number, _)| *number)
        {
            shortened.extend(self.shorten(oldest));
        }
        shortened
    }

    /// Takes in a name; drops the oldest when there are too many.
    pub(crate) fn put_name(&mut self, ended: EndedRun) {
        self.names.put(ended.framework, ended.run.clone(), ended);
        if self.names.entries.len() > ENDED_IN_ALL {
            self.forget_oldest_name();
        }
    }

    /// Of a whole entry only the name is left.
    fn shorten(&mut self, number: Number) -> Option<(FrameworkId, RunId)> {
        let run = self
            .whole
            .take(number, |run| (run.framework, run.id.clone()))?;
        if let Some(order) = self.order.get_mut(&run.framework) {
            order.remove(&number);
            if order.is_empty() {
                self.order.remove(&run.framework);
            }
        }
        let key = (run.framework, run.id.clone());
        self.put_name(EndedRun {
            framework: run.framework,
            agent: run.agent,
            grant: run.grant,
            phase: run.phase,
            ended: run.ended.unwrap_or(run.launched),
            run: run.id.clone(),
        });
        Some(key)
    }

    fn forget_oldest_name(&mut self) {
        if let Some(oldest) = self.names.entries.first().map(|(number, _)| *number) {
            self.names
                .take(oldest, |ended| (ended.framework, ended.run.clone()));
        }
    }

    /// Drops what is too old; gives the runs of which only the name is left.
    pub(crate) fn age(&mut self, now: Timestamp) -> Vec<(FrameworkId, RunId)> {
        let mut shortened = Vec::new();
        while let Some((number, run)) = self.whole.entries.first()
            && whole_until(run) <= now
        {
            let number = *number;
            shortened.extend(self.shorten(number));
        }
        while let Some((_, ended)) = self.names.entries.first()
            && ended.ended.after(ENDED_AGE) <= now
        {
            self.forget_oldest_name();
        }
        shortened
    }

    /// When [`History::age`] next drops something.
    pub(crate) fn next_due(&self) -> Option<Timestamp> {
        let whole = self.whole.entries.values().next();
        let name = self.names.entries.values().next();
        let whole = whole.map(|run| whole_until(run));
        let name = name.map(|ended| ended.ended.after(ENDED_AGE));
        whole.into_iter().chain(name).min()
    }

    pub(crate) fn get(&self, framework: FrameworkId, run: &RunId) -> Option<&Run> {
        self.whole.get(framework, run).map(|run| &**run)
    }

    pub(crate) fn name(&self, framework: FrameworkId, run: &RunId) -> Option<&EndedRun> {
        self.names.get(framework, run)
    }

    /// Whole entries, oldest first.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Run> {
        self.whole.entries.values().map(|run| &**run)
    }

    /// Whole entries of one framework, oldest first.
    pub(crate) fn of(&self, framework: FrameworkId) -> impl Iterator<Item = &Run> {
        let numbers = self.order.get(&framework).into_iter().flatten();
        numbers.filter_map(|number| self.whole.entries.get(number).map(|run| &**run))
    }

    /// Frameworks that have whole entries.
    pub(crate) fn frameworks(&self) -> impl Iterator<Item = FrameworkId> {
        self.whole.numbers.keys().copied()
    }

    /// Names, oldest first.
    pub(crate) fn names(&self) -> impl Iterator<Item = &EndedRun> {
        self.names.entries.values()
    }
}

fn whole_until(run: &Run) -> Timestamp {
    run.ended.unwrap_or(run.launched).after(HISTORY_AGE)
}
