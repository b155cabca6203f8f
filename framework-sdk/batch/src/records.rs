//! Jobs as records of the broker's store for frameworks, and back.

use std::collections::{BTreeMap, BTreeSet};

use mete_proto::batch::v1 as wire;
use mete_sdk::model::Timestamp;
use mete_sdk::store::Write;
use prost::Message;

use crate::element::{Element, STORED_BYTES};
use crate::job::Job;

/// Elements in one record.
const PIECE: usize = 4096;

/// The largest job record; the store takes 256 KiB.
pub const MOST_JOB_BYTES: usize = 240 << 10;

/// How many of the first changes go into one write.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Part {
    deletes: usize,
    puts: usize,
}

/// What is to be written, in one step or in several: each record stands alone.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Writes {
    /// Key and value.
    pub puts: Vec<(Vec<u8>, Vec<u8>)>,
    /// Keys.
    pub deletes: Vec<Vec<u8>>,
}

impl Writes {
    /// Takes in what is newer: of one key only the last word stays.
    pub fn merge(&mut self, newer: Self) {
        let mut puts: BTreeMap<Vec<u8>, Vec<u8>> =
            std::mem::take(&mut self.puts).into_iter().collect();
        let mut deletes: BTreeSet<Vec<u8>> =
            std::mem::take(&mut self.deletes).into_iter().collect();
        for (key, value) in newer.puts {
            deletes.remove(&key);
            puts.insert(key, value);
        }
        for key in newer.deletes {
            puts.remove(&key);
            deletes.insert(key);
        }
        self.puts = puts.into_iter().collect();
        self.deletes = deletes.into_iter().collect();
    }

    /// Leaves out what a job would have stored, of which nothing is.
    pub fn withdraw(&mut self, number: u64) {
        let prefix = job_key(number);
        self.puts.retain(|(key, _)| !key.starts_with(&prefix));
    }

    /// Says whether the record of this job is still to be written.
    #[must_use]
    pub fn has_job(&self, number: u64) -> bool {
        let wanted = job_key(number);
        self.puts.iter().any(|(key, _)| *key == wanted)
    }

    /// As many of these as one write of so many bytes takes, at least one, and the write.
    #[must_use]
    pub fn part(&self, most: usize) -> (Part, Write) {
        let mut part = Part::default();
        let mut write = Write::new();
        for key in &self.deletes {
            if !write.is_empty() && write.bytes().saturating_add(key.len()) > most {
                return (part, write);
            }
            part.deletes = part.deletes.saturating_add(1);
            write = write.delete(key.clone());
        }
        for (key, value) in &self.puts {
            let more = key.len().saturating_add(value.len());
            if !write.is_empty() && write.bytes().saturating_add(more) > most {
                return (part, write);
            }
            part.puts = part.puts.saturating_add(1);
            write = write.put(key.clone(), value.clone());
        }
        (part, write)
    }

    /// Takes out a part that was written.
    pub fn written(&mut self, part: Part) {
        self.deletes.drain(..part.deletes.min(self.deletes.len()));
        self.puts.drain(..part.puts.min(self.puts.len()));
    }

    /// Nothing has changed.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.puts.is_empty() && self.deletes.is_empty()
    }
}

/// How many records the elements of a job take.
#[must_use]
pub fn pieces(elements: usize) -> usize {
    elements.div_ceil(PIECE)
}

/// The record that an element is in.
#[must_use]
pub fn piece_of(at: usize) -> usize {
    at / PIECE
}

fn job_key(number: u64) -> Vec<u8> {
    format!("job/{number:016x}").into_bytes()
}

fn piece_key(number: u64, piece: usize) -> Vec<u8> {
    format!("job/{number:016x}/{piece:04x}").into_bytes()
}

/// Every key of a job.
#[must_use]
pub fn keys(number: u64, pieces: usize) -> Vec<Vec<u8>> {
    let pieces = (0..pieces).map(|piece| piece_key(number, piece));
    std::iter::once(job_key(number)).chain(pieces).collect()
}

fn record(job: &Job) -> wire::JobRecord {
    wire::JobRecord {
        number: job.number,
        spec: Some(job.spec.clone()),
        submitted_ms: job.submitted.0,
        key: job.key.clone(),
        started_ms: job.started.map_or(0, |at| at.0),
        ended_ms: job.ended.map_or(0, |at| at.0),
    }
}

/// Bytes of a job's record.
#[must_use]
pub fn job_bytes(job: &Job) -> usize {
    record(job).encoded_len()
}

/// A job's record.
#[must_use]
pub fn job(job: &Job) -> (Vec<u8>, Vec<u8>) {
    (job_key(job.number), record(job).encode_to_vec())
}

/// A record of a job's elements.
#[must_use]
pub fn piece(job: &Job, piece: usize) -> (Vec<u8>, Vec<u8>) {
    let from = piece.saturating_mul(PIECE);
    let elements: Vec<u8> = job
        .elements
        .iter()
        .skip(from)
        .take(PIECE)
        .flat_map(Element::to_bytes)
        .collect();
    let record = wire::PieceRecord {
        elements: elements.into(),
    };
    (piece_key(job.number, piece), record.encode_to_vec())
}

/// Rebuilds the jobs from all records under `job/`, in key order.
///
/// # Errors
/// Which record cannot be read. A queue that is not whole must not start: it would run things
/// twice.
pub fn read(records: &[(Vec<u8>, Vec<u8>)]) -> Result<Vec<Job>, String> {
    let mut jobs: Vec<Job> = Vec::new();
    for (key, value) in records {
        let name = String::from_utf8_lossy(key);
        let bad = |why: &str| format!("the record '{name}' of the store cannot be read: {why}");
        match name.split('/').collect::<Vec<_>>().as_slice() {
            ["job", _] => {
                let record = wire::JobRecord::decode(value.as_slice())
                    .map_err(|error| bad(&error.to_string()))?;
                jobs.push(read_job(record).map_err(|why| bad(&why))?);
            }
            ["job", number, piece] => {
                let numbers = (
                    u64::from_str_radix(number, 16),
                    usize::from_str_radix(piece, 16),
                );
                let (Ok(number), Ok(piece)) = numbers else {
                    return Err(bad("its key is none"));
                };
                let record = wire::PieceRecord::decode(value.as_slice())
                    .map_err(|error| bad(&error.to_string()))?;
                let job = jobs.last_mut().filter(|job| job.number == number);
                let job = job.ok_or_else(|| bad("its job is not there"))?;
                read_piece(job, piece, &record.elements).map_err(bad)?;
            }
            _ => return Err(bad("its key is none of ours")),
        }
    }
    for job in &mut jobs {
        job.recount();
    }
    Ok(jobs)
}

fn read_job(record: wire::JobRecord) -> Result<Job, String> {
    let spec = record.spec.ok_or("it has no spec")?;
    let submitted = Timestamp(record.submitted_ms);
    let mut job =
        Job::new(record.number, spec, record.key, submitted).map_err(|error| error.to_string())?;
    let time = |ms: u64| (ms > 0).then_some(Timestamp(ms));
    job.started = time(record.started_ms);
    job.ended = time(record.ended_ms);
    Ok(job)
}

fn read_piece(job: &mut Job, piece: usize, bytes: &[u8]) -> Result<(), &'static str> {
    let from = piece.saturating_mul(PIECE);
    for (offset, bytes) in bytes.chunks(STORED_BYTES).enumerate() {
        let bytes: [u8; STORED_BYTES] = bytes.try_into().map_err(|_| "its length is odd")?;
        let slot = job
            .elements
            .get_mut(from.saturating_add(offset))
            .ok_or("it is too long")?;
        *slot = Element::from_bytes(bytes).ok_or("an element has no known state")?;
    }
    Ok(())
}
