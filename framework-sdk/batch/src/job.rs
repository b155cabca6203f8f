//! One job: its spec, its elements, and what they add up to.

use mete_proto::batch::v1 as wire;
use mete_sdk::Exit;
use mete_sdk::model::Timestamp;

use crate::array::{Array, BadArray};
use crate::details::Details;
use crate::element::{Element, State};

/// A job in the queue.
#[derive(Clone, Debug)]
pub struct Job {
    /// Counts from 1; never used twice.
    pub number: u64,
    /// `name-number`.
    pub name: String,
    /// As submitted.
    pub spec: wire::JobSpec,
    /// The submit's idempotency key.
    pub key: String,
    /// When it was submitted.
    pub submitted: Timestamp,
    /// When its first element was launched.
    pub started: Option<Timestamp>,
    /// When its last element ended.
    pub ended: Option<Timestamp>,
    /// The index of each element, rising.
    pub indices: Vec<u32>,
    /// In the order of the indices.
    pub elements: Vec<Element>,
    /// Elements that may run at a time; 0 = all.
    pub throttle: u32,
    /// Which ended elements still have their details.
    pub details: Details,
    counts: Counts,
}

/// How many elements are where.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Waiting for a launch.
    pub pending: u32,
    /// Launched and not over, those being cancelled included.
    pub running: u32,
    /// Completed.
    pub completed: u32,
    /// Over otherwise, cancelled ones left out.
    pub failed: u32,
    /// Cancelled.
    pub cancelled: u32,
}

impl Counts {
    fn slot(&mut self, state: State) -> &mut u32 {
        match state {
            State::Pending => &mut self.pending,
            State::Running | State::Cancelling => &mut self.running,
            State::Completed => &mut self.completed,
            State::Failed | State::Timeout | State::NodeFail | State::OutOfMemory => {
                &mut self.failed
            }
            State::Cancelled => &mut self.cancelled,
        }
    }
}

impl Job {
    /// A job as it was just submitted.
    ///
    /// # Errors
    /// Its array is none.
    pub fn new(
        number: u64,
        spec: wire::JobSpec,
        key: String,
        submitted: Timestamp,
    ) -> Result<Self, BadArray> {
        let array = if spec.array.is_empty() {
            Array {
                indices: vec![0],
                throttle: 0,
            }
        } else {
            spec.array.parse()?
        };
        let elements = vec![Element::default(); array.indices.len()];
        let throttle = if spec.throttle > 0 {
            spec.throttle
        } else {
            array.throttle
        };
        let mut job = Self {
            number,
            name: format!("{}-{number}", spec.name),
            spec,
            key,
            submitted,
            started: None,
            ended: None,
            indices: array.indices,
            elements,
            throttle,
            details: Details::default(),
            counts: Counts::default(),
        };
        job.recount();
        Ok(job)
    }

    /// Counts the elements anew, after they were read from the store.
    pub fn recount(&mut self) {
        self.counts = Counts::default();
        for element in &self.elements {
            let slot = self.counts.slot(element.state);
            *slot = slot.saturating_add(1);
        }
    }

    /// It has indices that mean something.
    #[must_use]
    pub fn is_array(&self) -> bool {
        !self.spec.array.is_empty()
    }

    /// How many elements are where.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// Nothing of it will run any more.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.counts.pending == 0 && self.counts.running == 0
    }

    /// Moves an element to another state.
    pub fn set(&mut self, at: usize, state: State) {
        let Some(element) = self.elements.get_mut(at) else {
            return;
        };
        let old = std::mem::replace(&mut element.state, state);
        let slot = self.counts.slot(old);
        *slot = slot.saturating_sub(1);
        let slot = self.counts.slot(state);
        *slot = slot.saturating_add(1);
    }

    /// The task of an element.
    #[must_use]
    pub fn task(&self, at: usize) -> String {
        match self.indices.get(at) {
            Some(index) if self.is_array() => format!("{}/{index}", self.name),
            _ => self.name.clone(),
        }
    }

    /// The position of an index.
    #[must_use]
    pub fn position(&self, index: u32) -> Option<usize> {
        self.indices.binary_search(&index).ok()
    }

    /// How many elements may be launched now, the throttle heeded.
    #[must_use]
    pub fn wanted(&self) -> u32 {
        if self.throttle == 0 {
            return self.counts.pending;
        }
        self.counts
            .pending
            .min(self.throttle.saturating_sub(self.counts.running))
    }

    /// What the elements add up to.
    #[must_use]
    pub fn state(&self) -> wire::JobState {
        let counts = self.counts;
        if counts.running > 0 || (self.started.is_some() && counts.pending > 0) {
            return wire::JobState::Running;
        }
        if counts.pending > 0 {
            return wire::JobState::Pending;
        }
        if counts.cancelled > 0 {
            return wire::JobState::Cancelled;
        }
        let has = |state| self.elements.iter().any(|element| element.state == state);
        if counts.failed == 0 {
            wire::JobState::Completed
        } else if has(State::Failed) {
            wire::JobState::Failed
        } else if has(State::Timeout) {
            wire::JobState::Timeout
        } else if has(State::OutOfMemory) {
            wire::JobState::OutOfMemory
        } else {
            wire::JobState::NodeFail
        }
    }

    /// The highest exit code, and a signal if any element ended by one.
    fn exits(&self) -> (u32, u32) {
        let mut worst = (0, 0);
        for element in self
            .elements
            .iter()
            .filter(|element| element.state.is_final())
        {
            match element.exit {
                Some(Exit::Code(code)) => worst.0 = worst.0.max(u32::from(code)),
                Some(Exit::Signal(signal)) => worst.1 = worst.1.max(u32::from(signal)),
                None => {}
            }
        }
        worst
    }

    /// The job as a row.
    #[must_use]
    pub fn row(&self) -> wire::JobRow {
        let (exit_code, exit_signal) = self.exits();
        let reason = self
            .elements
            .iter()
            .filter_map(|element| element.present.as_ref())
            .map(|present| present.reason.as_str())
            .find(|reason| !reason.is_empty());
        let ms = |at: Option<Timestamp>| at.map_or(0, |at| at.0);
        wire::JobRow {
            job: self.name.clone(),
            state: self.state().into(),
            user: self.spec.user.clone(),
            role: self.spec.role.clone(),
            submitted_ms: self.submitted.0,
            started_ms: ms(self.started),
            ended_ms: ms(self.ended),
            elements: u32::try_from(self.elements.len()).unwrap_or(u32::MAX),
            pending: self.counts.pending,
            running: self.counts.running,
            completed: self.counts.completed,
            failed: self.counts.failed,
            cancelled: self.counts.cancelled,
            exit_code,
            exit_signal,
            reason: reason.unwrap_or_default().to_owned(),
            command: self.spec.command.clone(),
            array: self.is_array(),
        }
    }

    /// One element as a message.
    #[must_use]
    pub fn element(&self, at: usize, framework: &str) -> Option<wire::Element> {
        let element = self.elements.get(at)?;
        let present = element.present.as_deref().cloned().unwrap_or_default();
        let state = match element.state {
            State::Pending => wire::JobState::Pending,
            State::Running | State::Cancelling => wire::JobState::Running,
            State::Completed => wire::JobState::Completed,
            State::Failed => wire::JobState::Failed,
            State::Timeout => wire::JobState::Timeout,
            State::Cancelled => wire::JobState::Cancelled,
            State::NodeFail => wire::JobState::NodeFail,
            State::OutOfMemory => wire::JobState::OutOfMemory,
        };
        let launched = present.attempt > 0;
        let attempt = if launched {
            present.attempt
        } else {
            u32::from(element.attempts).max(1)
        };
        let known = launched || element.attempts > 0;
        let details_dropped = known && !launched && element.state.is_final();
        Some(wire::Element {
            index: self.indices.get(at).copied().unwrap_or(0),
            state: state.into(),
            attempt: if known { attempt } else { 0 },
            node: present.node,
            agent_id: present.agent,
            node_address: present.node_address,
            exit: element.exit.map(|exit| mete_proto::types::v1::Exit {
                how: Some(match exit {
                    Exit::Code(code) => mete_proto::types::v1::exit::How::Code(code.into()),
                    Exit::Signal(signal) => mete_proto::types::v1::exit::How::Signal(signal.into()),
                }),
            }),
            reason: present.reason,
            message: present.message,
            started_ms: present.started.0,
            ended_ms: present.ended.0,
            run: known.then(|| mete_proto::types::v1::RunRef {
                framework_id: framework.to_owned(),
                run: Some(mete_proto::types::v1::Run {
                    task: self.task(at),
                    attempt,
                }),
            }),
            usage: present.usage.map(|usage| mete_proto::types::v1::Usage {
                cpu_ms: usage.cpu_ms,
                memory_peak_bytes: usage.memory_peak.0,
                wall_ms: usage.wall_ms,
            }),
            details_dropped,
        })
    }
}
