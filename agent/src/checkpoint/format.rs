//! The bytes: a header, then records, each with a checksum that also covers all before it.
//!
//! All numbers little-endian.
//!
//! ```text
//! header   magic 8 | version 4 | length of the header 4 | counter 8 | agent id 16 | boot id 16
//!          | topology epoch 8 | CRC32C of all before 4
//! record   payload length 4 | kind 2 | flags 2 | CRC32C 4 | payload
//! ```
//!
//! The checksum of a record continues that of the record before it (the first one's continues the
//! header's), so bytes left over from an earlier use of the space can never be read as records. The
//! last record of a batch carries a flag; records after the last such flag are not read.

use std::io;

use uuid::Uuid;

const MAGIC: &[u8; 8] = b"METEAGNT";
const VERSION: u32 = 1;
const HEADER: usize = 68;
/// Bytes before a record's payload.
pub(super) const RECORD_HEAD: usize = 12;
/// No record is larger.
const MOST_PAYLOAD: usize = 16 << 20;
/// The last of its batch.
const LAST: u16 = 1;

/// One record: what it is about and its protobuf payload. Kind 0 does not exist.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// See [`super::Entry`].
    pub kind: u16,
    /// A message of `mete/internal/v1/checkpoint.proto`.
    pub payload: Vec<u8>,
}

/// What identifies a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Header {
    /// Raised with each compaction.
    pub(super) counter: u64,
    pub(super) agent_id: Uuid,
    pub(super) boot_id: Uuid,
    pub(super) epoch: u64,
}

impl Header {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(HEADER);
        bytes.extend(MAGIC);
        bytes.extend(VERSION.to_le_bytes());
        bytes.extend(u32::try_from(HEADER).unwrap_or(u32::MAX).to_le_bytes());
        bytes.extend(self.counter.to_le_bytes());
        bytes.extend(self.agent_id.as_bytes());
        bytes.extend(self.boot_id.as_bytes());
        bytes.extend(self.epoch.to_le_bytes());
        let crc = crc32c::crc32c(&bytes);
        bytes.extend(crc.to_le_bytes());
        bytes
    }

    /// The header and where the records begin.
    pub(super) fn decode(bytes: &[u8]) -> Result<(Self, usize), String> {
        let mut at = Reader { bytes, at: 0 };
        if at.take::<8>() != Some(*MAGIC) {
            return Err("does not begin like a checkpoint".to_owned());
        }
        let cut = "has a header that is cut off";
        let version = at.u32().ok_or(cut)?;
        let size = at
            .u32()
            .and_then(|size| usize::try_from(size).ok())
            .ok_or(cut)?;
        // A later version may lengthen the header, its checksum stays at the end of it.
        let covered = size
            .checked_sub(4)
            .and_then(|end| bytes.get(..end))
            .ok_or(cut)?;
        let crc = Reader {
            bytes,
            at: covered.len(),
        }
        .u32()
        .ok_or(cut)?;
        if size < HEADER || crc32c::crc32c(covered) != crc {
            return Err("has a header with a wrong checksum".to_owned());
        }
        if version > VERSION {
            return Err(format!(
                "is of format {version}; this mete reads up to {VERSION}"
            ));
        }
        let header = Self {
            counter: at.u64().ok_or(cut)?,
            agent_id: Uuid::from_bytes(at.take().ok_or(cut)?),
            boot_id: Uuid::from_bytes(at.take().ok_or(cut)?),
            epoch: at.u64().ok_or(cut)?,
        };
        Ok((header, size))
    }
}

/// What the first record's checksum continues.
pub(super) fn header_chain(header: &[u8]) -> u32 {
    crc32c::crc32c(header)
}

/// The bytes of a batch and the checksum it ends with.
///
/// # Errors
/// A record is larger than any may be, or of kind 0.
pub(super) fn encode_batch(records: &[Record], mut chain: u32) -> io::Result<(Vec<u8>, u32)> {
    let invalid = |text: String| io::Error::new(io::ErrorKind::InvalidInput, text);
    let mut bytes = Vec::new();
    for (index, record) in records.iter().enumerate() {
        let size = record.payload.len();
        if size > MOST_PAYLOAD || record.kind == 0 {
            let kind = record.kind;
            return Err(invalid(format!(
                "a record of kind {kind} with {size} bytes cannot be stored; kinds begin with 1 \
                 and payloads end at {MOST_PAYLOAD} bytes"
            )));
        }
        let flags = if index + 1 == records.len() { LAST } else { 0 };
        let mut head = Vec::with_capacity(8);
        head.extend(u32::try_from(size).map_err(io::Error::other)?.to_le_bytes());
        head.extend(record.kind.to_le_bytes());
        head.extend(flags.to_le_bytes());
        chain = crc32c::crc32c_append(chain, &head);
        chain = crc32c::crc32c_append(chain, &record.payload);
        bytes.extend(head);
        bytes.extend(chain.to_le_bytes());
        bytes.extend(&record.payload);
    }
    Ok((bytes, chain))
}

/// What could be read.
pub(super) struct Read {
    pub(super) records: Vec<Record>,
    /// Behind the last whole batch.
    pub(super) end: usize,
    pub(super) chain: u32,
    /// Something followed that is not a whole batch.
    pub(super) torn: bool,
}

/// All records of whole batches from `start` on.
pub(super) fn decode_records(bytes: &[u8], start: usize) -> Read {
    let header = bytes.get(..start).unwrap_or(bytes);
    let mut read = Read {
        records: Vec::new(),
        end: start,
        chain: header_chain(header),
        torn: false,
    };
    let mut batch = Vec::new();
    let (mut at, mut chain) = (start, read.chain);
    while let Some((record, flags, size, sum)) = decode_record(bytes, at, chain) {
        at += size;
        chain = sum;
        batch.push(record);
        if flags & LAST != 0 {
            read.records.append(&mut batch);
            (read.end, read.chain) = (at, chain);
        }
    }
    read.torn = bytes
        .get(read.end..)
        .is_some_and(|rest| rest.iter().any(|byte| *byte != 0));
    read
}

fn decode_record(bytes: &[u8], at: usize, chain: u32) -> Option<(Record, u16, usize, u32)> {
    let mut reader = Reader { bytes, at };
    let size = usize::try_from(reader.u32()?).ok()?;
    let kind = u16::from_le_bytes(reader.take()?);
    let flags = u16::from_le_bytes(reader.take()?);
    let stored = reader.u32()?;
    if kind == 0 || size > MOST_PAYLOAD {
        return None;
    }
    let payload = bytes.get(reader.at..reader.at.checked_add(size)?)?;
    let sum = crc32c::crc32c_append(chain, bytes.get(at..at + 8)?);
    let sum = crc32c::crc32c_append(sum, payload);
    if sum != stored {
        return None;
    }
    Some((
        Record {
            kind,
            payload: payload.to_vec(),
        },
        flags,
        RECORD_HEAD + size,
        sum,
    ))
}

struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl Reader<'_> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let end = self.at.checked_add(N)?;
        let piece = self.bytes.get(self.at..end)?.try_into().ok()?;
        self.at = end;
        Some(piece)
    }

    fn u32(&mut self) -> Option<u32> {
        self.take().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.take().map(u64::from_le_bytes)
    }
}
