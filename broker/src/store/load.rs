//! What a set of records means when a store is opened: pure, no I/O.
//!
//! The one question here is trust. A power cut may leave an unfinished write at the end of the log:
//! it was never acknowledged, so it is cut off. Anything wrong at or below the flushed mark was
//! acknowledged once, perhaps to a majority that counted on it: then this replica refuses, and says
//! up to where it is good.

use crate::store::chunk::{self, Bad, HEAD_KEY, Key, Piece, Record, Stamp};
use crate::store::plan::{ChunkMap, Extent};
use crate::store::{Applied, ClusterId, Entry, HardState, Manifest};

/// The log as its records tell it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Log {
    /// Newest hard state; its commit is within the log and not below `applied`.
    pub hard: HardState,
    /// The saved applied index, if any.
    pub applied: Option<Applied>,
    /// The entries, without gaps.
    pub entries: Vec<Entry>,
    /// Where they are.
    pub chunks: ChunkMap,
    /// The next free write sequence.
    pub sequence: u64,
    /// Set if an unfinished write was cut off: the first index cut.
    pub cut_from: Option<u64>,
    /// The records of what was cut off: to be removed before the first append.
    pub cut_keys: Vec<Key>,
}

/// The log cannot be trusted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Damage {
    /// What does not hold.
    pub what: String,
    /// The last index good without a doubt; 0 if none.
    pub last_good: u64,
    /// Set if a later release wrote it: not damage, but not readable here.
    pub newer_format: Option<u8>,
}

impl Damage {
    fn new(what: String, last_good: u64) -> Self {
        Self {
            what,
            last_good,
            newer_format: None,
        }
    }
}

/// Reads the records of a log, given in key order (entries, then the head record).
///
/// # Errors
/// [`Damage`] if anything that was flushed once does not hold.
pub fn read(
    records: &[(Key, Vec<u8>)],
    cluster: &ClusterId,
    manifest: Option<&Manifest>,
) -> Result<Log, Damage> {
    let decoded = decode_all(records, cluster)?;
    let newest = newest_stamp(&decoded);
    let flushed = newest.map_or(0, |stamp| stamp.flushed);
    let mut walk = Walk::new(manifest.map(|manifest| manifest.at.index));
    let mut stopped_at = None;
    for (position, (key, record)) in decoded.iter().enumerate() {
        if let Err(what) = walk.take(key, record, records) {
            let at = walk.next_index(key);
            if at <= flushed {
                return Err(Damage::new(what, at.saturating_sub(1)));
            }
            stopped_at = Some((position, at));
            break;
        }
    }
    if let Some(at) = walk.unfinished() {
        if at <= flushed {
            let what = format!("the entry at {at} lacks its last piece");
            return Err(Damage::new(what, at.saturating_sub(1)));
        }
        stopped_at = stopped_at.or(Some((decoded.len(), at)));
    }
    let mut log = walk.finish(newest, stopped_at, records);
    log.sequence = newest.map_or(1, |stamp| stamp.sequence + 1);
    check_ends(&mut log, flushed, manifest)?;
    Ok(log)
}

type Decoded<'a> = (&'a Key, Result<Record, Bad>);

/// Decodes everything. A bad head record or a newer format ends the reading at once.
fn decode_all<'a>(
    records: &'a [(Key, Vec<u8>)],
    cluster: &ClusterId,
) -> Result<Vec<Decoded<'a>>, Damage> {
    let mut decoded = Vec::with_capacity(records.len());
    for (key, value) in records {
        let record = chunk::decode(key, value, cluster);
        if let Err(Bad::Format(found)) = record {
            let what = format!("a record has format {found}");
            return Err(Damage {
                what,
                last_good: 0,
                newer_format: Some(found),
            });
        }
        if key == HEAD_KEY && !matches!(record, Ok(Record::Head(..))) {
            return Err(Damage::new(
                "the hard state's record does not hold".to_owned(),
                0,
            ));
        }
        decoded.push((key, record));
    }
    Ok(decoded)
}

fn stamp_of(record: &Record) -> &Stamp {
    match record {
        Record::Chunk(stamp, _) | Record::Piece(stamp, _) | Record::Head(stamp, _) => stamp,
    }
}

fn newest_stamp(decoded: &[Decoded<'_>]) -> Option<Stamp> {
    let good = decoded
        .iter()
        .filter_map(|(_, record)| record.as_ref().ok());
    good.map(stamp_of)
        .max_by_key(|stamp| stamp.sequence)
        .copied()
}

/// The walk over the records, in key order.
#[derive(Debug)]
struct Walk {
    /// Index of the live snapshot.
    base: Option<u64>,
    entries: Vec<Entry>,
    chunks: ChunkMap,
    applied: Option<Applied>,
    /// A large entry whose last piece has not come yet, its keys and its bytes on disk.
    open: Option<(Entry, u32, u64)>,
}

impl Walk {
    fn new(base: Option<u64>) -> Self {
        Self {
            base,
            entries: Vec::new(),
            chunks: ChunkMap::default(),
            applied: None,
            open: None,
        }
    }

    /// The index that had to come next; for the very first record, the one its key names.
    fn next_index(&self, key: &Key) -> u64 {
        let after_last = self.entries.last().map(|entry| entry.index + 1);
        let named = || chunk::parse_entry_key(key).map(|(first, _)| first);
        let after_base = self.base.map(|base| base + 1);
        match (after_last, named(), after_base) {
            (Some(next), _, _) => next,
            (None, Some(named), Some(base)) => named.min(base),
            (None, Some(named), None) => named,
            (None, None, base) => base.unwrap_or(0),
        }
    }

    fn unfinished(&self) -> Option<u64> {
        self.open.as_ref().map(|(entry, _, _)| entry.index)
    }

    fn take(
        &mut self,
        key: &Key,
        record: &Result<Record, Bad>,
        records: &[(Key, Vec<u8>)],
    ) -> Result<(), String> {
        let bytes = || value_bytes(records, key);
        match record {
            Err(bad) => Err(format!("{}: {bad}", key_text(key))),
            Ok(Record::Head(_, applied)) => {
                self.applied = Some(applied.clone());
                Ok(())
            }
            Ok(Record::Chunk(stamp, entries)) => {
                if let Some(open) = self.unfinished() {
                    return Err(format!("the entry at {open} lacks its last piece"));
                }
                let whole = self.entries.len();
                for entry in entries {
                    if let Err(what) = self.push(entry.clone(), stamp) {
                        // All of a chunk or nothing: what is kept must be in the chunk map.
                        self.entries.truncate(whole);
                        return Err(what);
                    }
                }
                let (first, last) = (entries.first(), entries.last());
                if let (Some(first), Some(last)) = (first, last) {
                    let extent = Extent {
                        last: last.index,
                        keys: 1,
                        bytes: bytes(),
                    };
                    self.chunks.insert(first.index, extent);
                }
                Ok(())
            }
            Ok(Record::Piece(stamp, piece)) => self.take_piece(stamp, piece, bytes()),
        }
    }

    fn take_piece(&mut self, stamp: &Stamp, piece: &Piece, bytes: u64) -> Result<(), String> {
        let Piece {
            index,
            term,
            kind,
            number,
            last,
            data,
        } = piece.clone();
        let (mut entry, keys, sum) = match self.open.take() {
            None if number == 0 => (
                Entry {
                    index,
                    term,
                    kind,
                    data: Vec::new(),
                },
                0,
                0,
            ),
            Some(open) if open.0.index == index && open.1 == number => open,
            None => {
                return Err(format!(
                    "piece {number} of the entry at {index} comes first"
                ));
            }
            Some(open) => {
                let what = format!("the entry at {} lacks piece {}", open.0.index, open.1);
                self.open = Some(open);
                return Err(what);
            }
        };
        entry.data.extend_from_slice(&data);
        let (keys, sum) = (keys + 1, sum + bytes);
        if last {
            self.push(entry, stamp)?;
            self.chunks.insert(
                index,
                Extent {
                    last: index,
                    keys,
                    bytes: sum,
                },
            );
        } else {
            self.open = Some((entry, keys, sum));
        }
        Ok(())
    }

    fn push(&mut self, entry: Entry, stamp: &Stamp) -> Result<(), String> {
        let index = entry.index;
        if entry.term > stamp.hard.term {
            return Err(format!(
                "the entry at {index} is of a term that was not begun yet"
            ));
        }
        match self.entries.last() {
            Some(last) if last.index + 1 != index => {
                return Err(format!("after {} comes {index}", last.index));
            }
            Some(last) if last.term > entry.term => {
                return Err(format!("the term falls at {index}"));
            }
            None if self.base.is_some_and(|base| index > base + 1) => {
                return Err(format!(
                    "the log begins at {index}, above the snapshot's end"
                ));
            }
            Some(_) | None => {}
        }
        self.entries.push(entry);
        Ok(())
    }

    fn finish(
        mut self,
        newest: Option<Stamp>,
        stopped_at: Option<(usize, u64)>,
        records: &[(Key, Vec<u8>)],
    ) -> Log {
        let mut cut_keys = Vec::new();
        if let Some((stop, from)) = stopped_at {
            let is_cut = |position: usize, key: &Key| {
                let pieces = chunk::parse_entry_key(key).is_some_and(|(first, _)| first >= from);
                key.first() == Some(&chunk::ENTRY_PREFIX) && (position >= stop || pieces)
            };
            let keys = records.iter().map(|(key, _)| key).enumerate();
            cut_keys = keys
                .filter(|(at, key)| is_cut(*at, key))
                .map(|(_, key)| key.clone())
                .collect();
            // The head record sorts behind all entries, so a stop in the walk has skipped it.
            let head = records.iter().find(|(key, _)| key == HEAD_KEY);
            self.applied = head.and_then(|(key, value)| {
                let cluster = newest.map(|stamp| stamp.cluster)?;
                match chunk::decode(key, value, &cluster) {
                    Ok(Record::Head(_, applied)) => Some(applied),
                    Ok(Record::Chunk(..) | Record::Piece(..)) | Err(_) => None,
                }
            });
        }
        Log {
            hard: newest.map(|stamp| stamp.hard).unwrap_or_default(),
            applied: self.applied,
            entries: self.entries,
            chunks: self.chunks,
            sequence: 0,
            cut_from: stopped_at.map(|(_, from)| from),
            cut_keys,
        }
    }
}

/// Checks what the end of the log must satisfy, and brings the commit index inside it.
fn check_ends(log: &mut Log, flushed: u64, manifest: Option<&Manifest>) -> Result<(), Damage> {
    let base = manifest.map_or(0, |manifest| manifest.at.index);
    let last = log.entries.last().map_or(base, |entry| entry.index);
    if last < base {
        let what = format!("the log ends at {last}, below the snapshot at {base}");
        return Err(Damage::new(what, last));
    }
    if flushed > last {
        let what = format!("the log was flushed up to {flushed} but ends at {last}");
        return Err(Damage::new(what, last));
    }
    let applied = log.applied.as_ref().map_or(0, |applied| applied.index);
    if applied > last {
        let what = format!("it was applied up to {applied} but ends at {last}");
        return Err(Damage::new(what, last));
    }
    // A saved commit index may be behind what was applied, and beyond what a cut left.
    log.hard.commit = log.hard.commit.min(last).max(applied).max(base);
    Ok(())
}

fn value_bytes(records: &[(Key, Vec<u8>)], key: &Key) -> u64 {
    let found = records.binary_search_by(|(candidate, _)| candidate.cmp(key));
    found
        .ok()
        .and_then(|at| records.get(at))
        .map_or(0, |(_, value)| value.len() as u64)
}

fn key_text(key: &Key) -> String {
    match chunk::parse_entry_key(key) {
        Some((first, 0)) => format!("the record of index {first}"),
        Some((first, piece)) => format!("piece {piece} of index {first}"),
        None => format!("the record {key:?}"),
    }
}
