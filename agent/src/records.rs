//! The core's records in the checkpoint's words, and back.

use std::collections::BTreeMap;
use std::sync::Arc;

use mete_model::{Code, GrantId, RolePath, Span};
use mete_proto::convert::{
    At, Faults, read_phase, read_resources, read_run_ref, read_spec, read_status, whole,
    write_phase, write_resources, write_run_ref, write_spec, write_status,
};
use mete_proto::internal::v1 as stored;
use mete_proto::types::v1::RunRef;

use crate::checkpoint::{self, Entry};
use crate::core::{Record, RecordedRun, RunKey, StartTask};

/// A record as it is stored.
#[must_use]
pub fn to_entry(record: &Record) -> Entry {
    match record {
        Record::Run {
            start,
            phase,
            next_sequence,
        } => {
            let mut run = describe(start);
            run.phase = write_phase(*phase).into();
            run.next_sequence = *next_sequence;
            Entry::Run(Box::new(run))
        }
        Record::Update { framework, status } => Entry::Update(Box::new(stored::CheckpointUpdate {
            status: Some(write_status(*framework, status, String::new())),
        })),
        Record::Confirmed { key, sequence } => {
            Entry::Acknowledged(stored::CheckpointAcknowledged {
                run: write_key(key),
                sequence: *sequence,
            })
        }
        Record::Kill {
            key,
            grace,
            reason,
            discard,
        } => Entry::Kill(stored::CheckpointKill {
            run: write_key(key),
            grace_ms: grace.0,
            reason: reason.as_str().to_owned(),
            asked_ms: 0,
            discard: *discard,
        }),
        Record::Forget(key) => Entry::Forget(stored::CheckpointForget {
            run: write_key(key),
        }),
    }
}

/// A run as it was asked for: in the checkpoint, and beside the run itself, so that a run whose
/// checkpoint is lost still says what it is.
#[must_use]
pub fn describe(start: &StartTask) -> stored::CheckpointRun {
    stored::CheckpointRun {
        run: write_key(&start.key),
        grant_id: start.grant.0.to_string(),
        resources: Some(write_resources(&start.resources)),
        spec: Some(write_spec(&start.spec)),
        environment: start.environment.clone().into_iter().collect(),
        labels: start.labels.clone().into_iter().collect(),
        role: start
            .role
            .as_ref()
            .map(ToString::to_string)
            .unwrap_or_default(),
        framework_name: start.framework_name.clone(),
        ..stored::CheckpointRun::default()
    }
}

/// What [`describe`] wrote.
///
/// # Errors
/// Every field that cannot be read.
pub fn read_description(run: stored::CheckpointRun) -> Result<StartTask, Faults> {
    let key = read_key(run.run)?;
    let resources = whole(|faults| read_resources(run.resources, At::root("resources"), faults))?;
    let spec = whole(|faults| {
        let Some(spec) = run.spec else {
            faults.add(At::root("spec"), "must be given");
            return None;
        };
        read_spec(spec, At::root("spec"), faults)
    })?;
    Ok(StartTask {
        key,
        // A grant's number is for people here; a run without one is still a run.
        grant: GrantId(run.grant_id.parse().unwrap_or_default()),
        resources,
        spec: Arc::new(spec),
        environment: run.environment.into_iter().collect(),
        labels: run.labels.into_iter().collect(),
        role: RolePath::new(&run.role).ok(),
        framework_name: run.framework_name,
    })
}

fn write_key(key: &RunKey) -> Option<RunRef> {
    Some(write_run_ref(key.framework, &key.run))
}

fn read_key(run: Option<RunRef>) -> Result<RunKey, Faults> {
    whole(|faults| {
        let (framework, run) = read_run_ref(run, At::root("run"), faults)?;
        Some(RunKey { framework, run })
    })
}

/// All records of a checkpoint, folded to what is live.
#[derive(Debug, Default)]
pub struct Folded {
    runs: BTreeMap<RunKey, RecordedRun>,
    /// Of kinds a newer release wrote: carried along.
    unknown: Vec<checkpoint::Record>,
    /// What could not be understood, one sentence each.
    pub damage: Vec<String>,
}

impl Folded {
    /// Folds records, oldest first.
    #[must_use]
    pub fn of(records: &[checkpoint::Record]) -> Self {
        let mut folded = Self::default();
        for record in records {
            folded.add(record);
        }
        folded
    }

    /// Takes one more record in.
    pub fn add(&mut self, record: &checkpoint::Record) {
        let result = match Entry::from_record(record) {
            Entry::Run(run) => self.add_run(*run),
            Entry::Update(update) => self.add_update(*update),
            Entry::Acknowledged(acknowledged) => self.confirm(acknowledged),
            Entry::Kill(kill) => self.add_kill(kill),
            Entry::Forget(forget) => read_key(forget.run).map(|key| {
                self.runs.remove(&key);
            }),
            Entry::Agent(_) => Ok(()),
            Entry::Unknown(record) => {
                self.unknown.push(record);
                Ok(())
            }
        };
        if let Err(faults) = result {
            self.damage.push(format!(
                "a record of kind {} says nothing: {faults}",
                record.kind
            ));
        }
    }

    fn add_run(&mut self, run: stored::CheckpointRun) -> Result<(), Faults> {
        let phase = whole(|faults| read_phase(run.phase, At::root("phase"), faults))?;
        let next_sequence = run.next_sequence;
        let start = read_description(run)?;
        self.runs.insert(
            start.key.clone(),
            RecordedRun {
                start,
                phase,
                next_sequence,
                unconfirmed: Vec::new(),
                kill: None,
            },
        );
        Ok(())
    }

    fn add_update(&mut self, update: stored::CheckpointUpdate) -> Result<(), Faults> {
        let (framework, status) = whole(|faults| {
            let Some(status) = update.status else {
                faults.add(At::root("status"), "must be given");
                return None;
            };
            read_status(status, At::root("status"), faults)
        })?;
        let key = RunKey {
            framework,
            run: status.run.clone(),
        };
        if let Some(run) = self.runs.get_mut(&key) {
            run.phase = status.phase;
            run.next_sequence = status.sequence.saturating_add(1);
            run.unconfirmed
                .retain(|other| other.sequence != status.sequence);
            run.unconfirmed.push(status);
        }
        Ok(())
    }

    fn confirm(&mut self, acknowledged: stored::CheckpointAcknowledged) -> Result<(), Faults> {
        let key = read_key(acknowledged.run)?;
        if let Some(run) = self.runs.get_mut(&key) {
            run.unconfirmed
                .retain(|status| status.sequence > acknowledged.sequence);
            run.next_sequence = run
                .next_sequence
                .max(acknowledged.sequence.saturating_add(1));
        }
        Ok(())
    }

    fn add_kill(&mut self, kill: stored::CheckpointKill) -> Result<(), Faults> {
        let key = read_key(kill.run)?;
        let reason: Code = kill.reason.parse().unwrap_or(Code::KilledByFramework);
        let record = Record::Kill {
            key: key.clone(),
            grace: Span(kill.grace_ms),
            reason,
            discard: kill.discard,
        };
        if let Some(run) = self.runs.get_mut(&key) {
            run.kill = Some(record);
        }
        Ok(())
    }

    /// The live runs, in order.
    #[must_use]
    pub fn runs(&self) -> Vec<RecordedRun> {
        self.runs.values().cloned().collect()
    }

    /// The fewest records that say the same, for a compaction.
    #[must_use]
    pub fn live_records(&self) -> Vec<checkpoint::Record> {
        let mut records = Vec::new();
        for run in self.runs.values() {
            let described = Record::Run {
                start: Box::new(run.start.clone()),
                phase: run.phase,
                next_sequence: run.next_sequence,
            };
            let updates = run.unconfirmed.iter().map(|status| Record::Update {
                framework: run.start.key.framework,
                status: Box::new(status.clone()),
            });
            let all = std::iter::once(described)
                .chain(updates)
                .chain(run.kill.clone());
            records.extend(all.map(|record| to_entry(&record).to_record()));
        }
        records.extend(self.unknown.iter().cloned());
        records
    }
}
