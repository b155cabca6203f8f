//! Jobs as records of the broker's store for frameworks, and back.

use std::collections::{BTreeMap, BTreeSet};

use mete_proto::batch::v1 as wire;
use mete_sdk::model::{Bytes, Timestamp, Usage};
use mete_sdk::store::Write;
use prost::Message;

use crate::details::{self, Kind, PageId};
use crate::element::{Element, Present, STORED_BYTES};
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
        let (job, details) = (job_key(number), ended_prefix(number));
        let is_of_it = |key: &[u8]| key.starts_with(&job) || key.starts_with(&details);
        self.puts.retain(|(key, _)| !is_of_it(key));
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

/// What the keys of a job's pages of details begin with.
fn ended_prefix(number: u64) -> Vec<u8> {
    format!("ended/{number:016x}/").into_bytes()
}

/// The key of a page of details. It sorts before every key of a job: writes that wait go out in the
/// order of their keys, and details must not come after the states that they belong to.
#[must_use]
pub fn ended_key(number: u64, page: PageId) -> Vec<u8> {
    let kind = match page.kind {
        Kind::Failed => 'f',
        Kind::Other => 'o',
    };
    let mut key = ended_prefix(number);
    key.extend(format!("{kind}/{:08x}", page.number).into_bytes());
    key
}

/// Every key of a job, those of its details left out.
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

/// A record of details of a job's ended elements; `None` if the page is kept no longer.
#[must_use]
pub fn ended(job: &Job, page: PageId) -> Option<(Vec<u8>, Vec<u8>)> {
    let mut record = wire::EndedRecord::default();
    for position in job.details.positions(page)? {
        let at = usize::try_from(*position).unwrap_or(usize::MAX);
        let present = job.elements.get(at).and_then(|it| it.present.as_deref());
        let Some(present) = present else { continue };
        let place = wire::EndedPlace {
            node: present.node.clone(),
            agent_id: present.agent.clone(),
            node_address: present.node_address.clone(),
        };
        let known = record.places.iter().position(|known| *known == place);
        let place = known.unwrap_or_else(|| {
            record.places.push(place);
            record.places.len().saturating_sub(1)
        });
        record.elements.push(wire::EndedElement {
            position: *position,
            attempt: present.attempt,
            place: u32::try_from(place).unwrap_or(u32::MAX),
            started_ms: present.started.0,
            ended_ms: present.ended.0,
            reason: present.reason.clone(),
            message: present.message.clone(),
            usage: present.usage.map(|usage| mete_proto::types::v1::Usage {
                cpu_ms: usage.cpu_ms,
                memory_peak_bytes: usage.memory_peak.0,
                wall_ms: usage.wall_ms,
            }),
        });
    }
    Some((ended_key(job.number, page), record.encode_to_vec()))
}

/// Gives the jobs the details of their ended elements, from all records under `ended/`, in any
/// order. Gives the keys of records that serve nothing, each with why: they are to be deleted. They
/// stop nobody, for no element is run by what they say.
pub fn read_ended(
    jobs: &mut [Job],
    records: &[(Vec<u8>, Vec<u8>)],
) -> Vec<(Vec<u8>, &'static str)> {
    let mut useless = Vec::new();
    let mut pages = Vec::new();
    for (key, value) in records {
        match (
            read_ended_key(key),
            wire::EndedRecord::decode(value.as_slice()),
        ) {
            (Some((number, page)), Ok(record)) => pages.push((number, page, record, key)),
            (None, _) => useless.push((key.clone(), "its key is none of ours")),
            (Some(_), Err(_)) => useless.push((key.clone(), "it cannot be read")),
        }
    }
    // The newest page first: what it says of an element is the last word.
    pages.sort_unstable_by_key(|(number, page, _, _)| std::cmp::Reverse((*number, *page)));
    for (number, page, record, key) in pages {
        let at = jobs.binary_search_by_key(&number, |job| job.number);
        let Some(job) = at.ok().and_then(|at| jobs.get_mut(at)) else {
            useless.push((key.clone(), "its job is gone"));
            continue;
        };
        if !restore(job, page, &record) {
            useless.push((key.clone(), "no element of it has ended so"));
        }
    }
    useless
}

fn read_ended_key(key: &[u8]) -> Option<(u64, PageId)> {
    let text = std::str::from_utf8(key).ok()?;
    let mut words = text.split('/');
    let ("ended", number) = (words.next()?, words.next()?) else {
        return None;
    };
    let kind = match words.next()? {
        "f" => Kind::Failed,
        "o" => Kind::Other,
        _ => return None,
    };
    let page = PageId {
        kind,
        number: u32::from_str_radix(words.next()?, 16).ok()?,
    };
    let number = u64::from_str_radix(number, 16).ok()?;
    // Spelled otherwise it would be deleted under a key that is not there.
    (ended_key(number, page) == key).then_some((number, page))
}

/// Says whether any element of the record ended as it says.
fn restore(job: &mut Job, page: PageId, record: &wire::EndedRecord) -> bool {
    let mut positions = Vec::new();
    let mut bytes: usize = 0;
    for ended in record.elements.iter().rev() {
        let at = usize::try_from(ended.position).unwrap_or(usize::MAX);
        let Some(element) = job.elements.get_mut(at) else {
            continue;
        };
        let fits = element.state.is_final() && Kind::of(element.state) == page.kind;
        if !fits || u32::from(element.attempts) != ended.attempt || element.present.is_some() {
            continue;
        }
        let place = usize::try_from(ended.place).ok();
        let place = place.and_then(|place| record.places.get(place).cloned());
        let place = place.unwrap_or_default();
        let present = Present {
            attempt: ended.attempt,
            node: place.node,
            agent: place.agent_id,
            node_address: place.node_address,
            started: Timestamp(ended.started_ms),
            ended: Timestamp(ended.ended_ms),
            reason: ended.reason.clone(),
            message: ended.message.clone(),
            usage: ended.usage.map(|usage| Usage {
                cpu_ms: usage.cpu_ms,
                memory_peak: Bytes(usage.memory_peak_bytes),
                wall_ms: usage.wall_ms,
            }),
            running: ended.started_ms > 0,
        };
        bytes = bytes.saturating_add(details::cost(&present));
        element.present = Some(Box::new(present));
        positions.push(ended.position);
    }
    if positions.is_empty() {
        return false;
    }
    positions.reverse();
    job.details.restore(page, positions, bytes);
    true
}
