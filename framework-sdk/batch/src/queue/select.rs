//! What people name: jobs by a prefix, elements by a range; and the cancelling of what they named.

use mete_sdk::model::Timestamp;
use mete_sdk::{Code, RunId, TaskId};

use super::{Queue, Refused};
use crate::array::read_indices;
use crate::element::{Element, State};
use crate::job::Job;

impl Queue {
    /// A job by its exact name or a unique prefix.
    ///
    /// # Errors
    /// `NOT_FOUND`, or `AMBIGUOUS` with candidates.
    pub fn find(&self, name: &str) -> Result<&Job, Refused> {
        let number = match self.by_name.get(name) {
            Some(number) => *number,
            None => self.by_prefix(name)?,
        };
        let lost = || Refused::new(Code::Internal, "the index of jobs is not whole");
        self.jobs.get(&number).ok_or_else(lost)
    }

    fn by_prefix(&self, prefix: &str) -> Result<u64, Refused> {
        if prefix.is_empty() {
            // An unset variable must not name whatever job happens to be the only one.
            return Err(Refused::field("job", "a name is needed, it is empty"));
        }
        let matches: Vec<(&String, &u64)> = self
            .by_name
            .range(prefix.to_owned()..)
            .take_while(|(name, _)| name.starts_with(prefix))
            .take(6)
            .collect();
        match matches.as_slice() {
            [(_, number)] => Ok(**number),
            [] => Err(Refused::new(
                Code::NotFound,
                format!("no job '{prefix}'; `mete batch list -A` shows all there are"),
            )),
            several => {
                let names: Vec<&str> = several
                    .iter()
                    .take(5)
                    .map(|(name, _)| name.as_str())
                    .collect();
                Err(Refused::new(
                    Code::Ambiguous,
                    format!(
                        "'{prefix}' may mean {}; give more of the name",
                        names.join(", ")
                    ),
                ))
            }
        }
    }

    /// Cancels a job, an element or a range of elements; gives the runs to be killed.
    ///
    /// # Errors
    /// `NOT_FOUND`, `AMBIGUOUS`, `INVALID`, or `ALREADY_TERMINAL` when all of it is over.
    pub fn cancel(
        &mut self,
        selector: &str,
        dry_run: bool,
        now: Timestamp,
    ) -> Result<Vec<RunId>, Refused> {
        let (number, positions) = self.select(selector)?;
        let live: Vec<usize> = match self.jobs.get(&number) {
            Some(job) => positions
                .into_iter()
                .filter(|at| job.elements.get(*at).is_some_and(|e| !e.state.is_final()))
                .collect(),
            None => Vec::new(),
        };
        if live.is_empty() {
            let detail = format!("'{selector}' is over already");
            return Err(Refused::new(Code::AlreadyTerminal, detail));
        }
        let mut kills = Vec::new();
        if dry_run {
            return Ok(kills);
        }
        for at in live {
            let Some(job) = self.jobs.get_mut(&number) else {
                break;
            };
            let state = job.elements.get(at).map(|element| element.state);
            if state == Some(State::Pending) {
                self.end(number, at, State::Cancelled, now);
                continue;
            }
            job.set(at, State::Cancelling);
            kills.extend(run_of(job, at));
            self.changed(number, at);
        }
        Ok(kills)
    }

    /// `train-41`, `train-41/7`, `train-41/1-3`, and `train-41_7` on input.
    fn select(&self, selector: &str) -> Result<(u64, Vec<usize>), Refused> {
        let (name, range) = match selector.split_once('/') {
            Some((name, range)) => (name, Some(range)),
            None => match selector.rsplit_once('_') {
                Some((name, range)) if self.by_name.contains_key(name) => (name, Some(range)),
                _ => (selector, None),
            },
        };
        let job = self.find(name)?;
        let Some(range) = range else {
            return Ok((job.number, (0..job.elements.len()).collect()));
        };
        let indices =
            read_indices(range).map_err(|error| Refused::field("jobs", error.to_string()))?;
        let positions: Vec<usize> = indices
            .iter()
            .filter_map(|index| job.position(*index))
            .collect();
        if positions.is_empty() {
            return Err(Refused::new(
                Code::NotFound,
                format!("job '{}' has no element {range}", job.name),
            ));
        }
        Ok((job.number, positions))
    }
}

fn run_of(job: &Job, at: usize) -> Option<RunId> {
    let attempt = job.elements.get(at).map(Element::attempt)?;
    Some(RunId::new(TaskId::new(&job.task(at)).ok()?, attempt))
}
