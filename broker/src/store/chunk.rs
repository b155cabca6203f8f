//! The form of one record of the log: pure, no I/O.
//!
//! A chunk carries the entries of (part of) one turn *and* the present hard state, so that one
//! insert and one sync make a turn durable, and so that a trim never takes the newest hard state.
//! An entry too large for one value is spread over pieces. Every record carries the cluster id, a
//! write sequence that rises over the store's whole life, the flushed mark (the highest index whose
//! flush had returned when the record was written) and a CRC32C over key and value.
//!
//! Values stay below [`VALUE_LIMIT`]: above it the engine may put values into side files that it
//! never syncs.

use crate::store::{Applied, ClusterId, Entry, EntryKind, HardState, Manifest};

/// The newest form of records that this release writes and reads.
pub const FORMAT: u8 = 1;

/// The most bytes one value has, frame and checksum included.
pub const VALUE_LIMIT: usize = 7_000;

const CHUNK: u8 = 0;
const PIECE: u8 = 1;
const HEAD: u8 = 2;
const META: u8 = 3;

/// version, kind, cluster, sequence, term, vote, commit, flushed
const STAMP_BYTES: usize = 2 + 16 + 8 + 24 + 8;
const CRC_BYTES: usize = 4;
/// term, kind, length
const ENTRY_BYTES: usize = 8 + 1 + 4;
/// first index, count
const CHUNK_BYTES: usize = STAMP_BYTES + 8 + 4 + CRC_BYTES;
/// index, piece, last, term, kind
const PIECE_BYTES: usize = STAMP_BYTES + 8 + 4 + 1 + 8 + 1 + CRC_BYTES;
/// The content bytes of an entry that one piece takes.
const PIECE_ROOM: usize = VALUE_LIMIT - PIECE_BYTES;

/// A record's key.
pub type Key = Vec<u8>;

/// The key of the record with hard state and applied index.
pub const HEAD_KEY: &[u8] = b"h";

/// The first byte of the keys that hold entries.
pub const ENTRY_PREFIX: u8 = b'e';

/// The key of the chunk that begins at `first`, or of one piece of the entry at `first`.
#[must_use]
pub fn entry_key(first: u64, piece: u32) -> Key {
    let mut key = Vec::with_capacity(13);
    key.push(ENTRY_PREFIX);
    key.extend_from_slice(&first.to_be_bytes());
    key.extend_from_slice(&piece.to_be_bytes());
    key
}

/// First index and piece that a key of this shape names.
#[must_use]
pub fn parse_entry_key(key: &[u8]) -> Option<(u64, u32)> {
    let (prefix, rest) = key.split_first()?;
    let (first, piece) = rest.split_first_chunk::<8>()?;
    let piece = <[u8; 4]>::try_from(piece).ok()?;
    (*prefix == ENTRY_PREFIX).then(|| (u64::from_be_bytes(*first), u32::from_be_bytes(piece)))
}

/// What every record of the log says beside its content.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stamp {
    /// The cluster.
    pub cluster: ClusterId,
    /// Rises with every record written.
    pub sequence: u64,
    /// The hard state when the record was written.
    pub hard: HardState,
    /// The highest index whose flush had returned when the record was written.
    pub flushed: u64,
}

/// A record read again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Record {
    /// Whole entries, in order.
    Chunk(Stamp, Vec<Entry>),
    /// A part of one large entry.
    Piece(Stamp, Piece),
    /// Hard state with the applied index.
    Head(Stamp, Applied),
}

/// A part of one large entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Piece {
    /// The entry's index.
    pub index: u64,
    /// Its term.
    pub term: u64,
    /// Its kind.
    pub kind: EntryKind,
    /// Which piece, from 0.
    pub number: u32,
    /// True for the last one.
    pub last: bool,
    /// Its share of the content.
    pub data: Vec<u8>,
}

/// Why bytes are not a record.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Bad {
    /// Written by a later release.
    #[error("format {0} is newer than this release")]
    Format(u8),
    /// The checksum does not hold.
    #[error("checksum does not hold")]
    Checksum,
    /// It belongs to another cluster.
    #[error("another cluster wrote it")]
    Cluster,
    /// Lengths or tags make no sense although the checksum holds.
    #[error("form does not hold")]
    Form,
}

/// Encodes as many of `entries` as fit into one value. At least one must fit, see [`fits_alone`].
/// Gives the value and how many entries it holds.
#[must_use]
pub fn encode_chunk(stamp: &Stamp, entries: &[Entry]) -> (Vec<u8>, usize) {
    let mut room = VALUE_LIMIT - CHUNK_BYTES;
    let mut count = 0_usize;
    for entry in entries {
        let Some(left) = room.checked_sub(ENTRY_BYTES + entry.data.len()) else {
            break;
        };
        room = left;
        count += 1;
    }
    let first = entries.first().map_or(0, |entry| entry.index);
    let mut out = begin(CHUNK, stamp);
    out.extend_from_slice(&first.to_le_bytes());
    // At most VALUE_LIMIT / ENTRY_BYTES entries.
    out.extend_from_slice(&u32::try_from(count).unwrap_or(u32::MAX).to_le_bytes());
    for entry in entries.iter().take(count) {
        out.extend_from_slice(&entry.term.to_le_bytes());
        out.push(kind_to_byte(entry.kind));
        put_bytes(&mut out, &entry.data);
    }
    (seal(&entry_key(first, 0), out), count)
}

/// True if the entry fits into a chunk of its own; else it goes into pieces.
#[must_use]
pub fn fits_alone(entry: &Entry) -> bool {
    CHUNK_BYTES + ENTRY_BYTES + entry.data.len() <= VALUE_LIMIT
}

/// Encodes one large entry as pieces, first piece first, each with its key.
#[must_use]
pub fn encode_pieces(stamp: &Stamp, entry: &Entry) -> Vec<(Key, Vec<u8>)> {
    let parts: Vec<&[u8]> = entry.data.chunks(PIECE_ROOM).collect();
    let last = parts.len().saturating_sub(1);
    let mut records = Vec::with_capacity(parts.len());
    for (position, part) in parts.into_iter().enumerate() {
        // An entry of 2^32 pieces would be 28 TB; commands end at a few MiB.
        let number = u32::try_from(position).unwrap_or(u32::MAX);
        let key = entry_key(entry.index, number);
        let mut out = begin(PIECE, stamp);
        out.extend_from_slice(&entry.index.to_le_bytes());
        out.extend_from_slice(&number.to_le_bytes());
        out.push(u8::from(position == last));
        out.extend_from_slice(&entry.term.to_le_bytes());
        out.push(kind_to_byte(entry.kind));
        out.extend_from_slice(part);
        let value = seal(&key, out);
        records.push((key, value));
    }
    records
}

/// Encodes the record with hard state and applied index, kept under [`HEAD_KEY`].
#[must_use]
pub fn encode_head(stamp: &Stamp, applied: &Applied) -> Vec<u8> {
    let mut out = begin(HEAD, stamp);
    put_applied(&mut out, applied);
    seal(HEAD_KEY, out)
}

/// Decodes any record of the log.
///
/// # Errors
/// [`Bad`] when it is not one that this cluster and release wrote under this key.
pub fn decode(key: &[u8], value: &[u8], cluster: &ClusterId) -> Result<Record, Bad> {
    let mut read = open(key, value)?;
    let kind = read.u8()?;
    let stamp = read_stamp(&mut read)?;
    if stamp.cluster != *cluster {
        return Err(Bad::Cluster);
    }
    match kind {
        CHUNK => {
            let entries = read_chunk(&mut read)?;
            let first = entries.first().ok_or(Bad::Form)?.index;
            if key != entry_key(first, 0) {
                return Err(Bad::Form);
            }
            Ok(Record::Chunk(stamp, entries))
        }
        PIECE => {
            let piece = read_piece(&mut read)?;
            if key != entry_key(piece.index, piece.number) {
                return Err(Bad::Form);
            }
            Ok(Record::Piece(stamp, piece))
        }
        HEAD if key == HEAD_KEY => {
            let applied = read.applied()?;
            read.end()?;
            Ok(Record::Head(stamp, applied))
        }
        _ => Err(Bad::Form),
    }
}

fn read_stamp(read: &mut Reader<'_>) -> Result<Stamp, Bad> {
    Ok(Stamp {
        cluster: read.array()?,
        sequence: read.u64()?,
        hard: HardState {
            term: read.u64()?,
            vote: read.u64()?,
            commit: read.u64()?,
        },
        flushed: read.u64()?,
    })
}

fn read_chunk(read: &mut Reader<'_>) -> Result<Vec<Entry>, Bad> {
    let first = read.u64()?;
    let count = read.u32()?;
    let mut entries = Vec::new();
    for offset in 0..u64::from(count) {
        entries.push(Entry {
            index: first.checked_add(offset).ok_or(Bad::Form)?,
            term: read.u64()?,
            kind: kind_from_byte(read.u8()?)?,
            data: read.bytes()?.to_vec(),
        });
    }
    read.end()?;
    Ok(entries)
}

fn read_piece(read: &mut Reader<'_>) -> Result<Piece, Bad> {
    Ok(Piece {
        index: read.u64()?,
        number: read.u32()?,
        last: read.u8()? == 1,
        term: read.u64()?,
        kind: kind_from_byte(read.u8()?)?,
        data: read.rest().to_vec(),
    })
}

/// Encodes a meta value under its key.
#[must_use]
pub fn encode_meta(key: &[u8], body: &[u8]) -> Vec<u8> {
    let mut out = vec![FORMAT, META];
    out.extend_from_slice(body);
    seal(key, out)
}

/// Gives a meta value's body back.
///
/// # Errors
/// [`Bad`] when it was not written under this key by a known release.
pub fn decode_meta<'a>(key: &[u8], value: &'a [u8]) -> Result<&'a [u8], Bad> {
    let mut read = open(key, value)?;
    if read.u8()? != META {
        return Err(Bad::Form);
    }
    Ok(read.rest())
}

/// Encodes a manifest as the body of a meta value.
#[must_use]
pub fn encode_manifest(manifest: &Manifest) -> Vec<u8> {
    let mut out = Vec::new();
    put_bytes(&mut out, manifest.file.as_bytes());
    put_applied(&mut out, &manifest.at);
    out.extend_from_slice(&manifest.bytes.to_le_bytes());
    out.extend_from_slice(&manifest.digest.to_le_bytes());
    out
}

/// Decodes a manifest.
///
/// # Errors
/// [`Bad::Form`] when it is not one.
pub fn decode_manifest(body: &[u8]) -> Result<Manifest, Bad> {
    let mut read = Reader { left: body };
    let file = String::from_utf8(read.bytes()?.to_vec()).map_err(|_| Bad::Form)?;
    let manifest = Manifest {
        file,
        at: read.applied()?,
        bytes: read.u64()?,
        digest: read.u64()?,
    };
    read.end()?;
    Ok(manifest)
}

fn begin(kind: u8, stamp: &Stamp) -> Vec<u8> {
    let mut out = Vec::with_capacity(VALUE_LIMIT);
    out.push(FORMAT);
    out.push(kind);
    out.extend_from_slice(&stamp.cluster);
    out.extend_from_slice(&stamp.sequence.to_le_bytes());
    out.extend_from_slice(&stamp.hard.term.to_le_bytes());
    out.extend_from_slice(&stamp.hard.vote.to_le_bytes());
    out.extend_from_slice(&stamp.hard.commit.to_le_bytes());
    out.extend_from_slice(&stamp.flushed.to_le_bytes());
    out
}

/// The checksum covers the key too: a value found under another key is as wrong as a flipped bit.
fn seal(key: &[u8], mut out: Vec<u8>) -> Vec<u8> {
    let crc = crc32c::crc32c_append(crc32c::crc32c(key), &out);
    out.extend_from_slice(&crc.to_le_bytes());
    out
}

/// Checks checksum and version; gives a reader behind the version byte.
fn open<'a>(key: &[u8], value: &'a [u8]) -> Result<Reader<'a>, Bad> {
    let (body, crc) = value.split_last_chunk::<CRC_BYTES>().ok_or(Bad::Form)?;
    if crc32c::crc32c_append(crc32c::crc32c(key), body) != u32::from_le_bytes(*crc) {
        return Err(Bad::Checksum);
    }
    let mut read = Reader { left: body };
    match read.u8()? {
        FORMAT => Ok(read),
        other => Err(Bad::Format(other)),
    }
}

fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    // Everything written here is far below 4 GiB: a value has 7 000 bytes, a name a few hundred.
    out.extend_from_slice(&u32::try_from(bytes.len()).unwrap_or(u32::MAX).to_le_bytes());
    out.extend_from_slice(bytes);
}

pub(super) fn put_applied(out: &mut Vec<u8>, applied: &Applied) {
    out.extend_from_slice(&applied.index.to_le_bytes());
    out.extend_from_slice(&applied.term.to_le_bytes());
    put_bytes(out, &applied.membership);
}

fn kind_to_byte(kind: EntryKind) -> u8 {
    match kind {
        EntryKind::Command => 0,
        EntryKind::Change => 1,
        EntryKind::ChangeV2 => 2,
    }
}

fn kind_from_byte(byte: u8) -> Result<EntryKind, Bad> {
    match byte {
        0 => Ok(EntryKind::Command),
        1 => Ok(EntryKind::Change),
        2 => Ok(EntryKind::ChangeV2),
        _ => Err(Bad::Form),
    }
}

/// Takes values off the front of a slice.
#[derive(Debug)]
pub(super) struct Reader<'a> {
    pub(super) left: &'a [u8],
}

impl<'a> Reader<'a> {
    pub(super) fn array<const N: usize>(&mut self) -> Result<[u8; N], Bad> {
        let (front, rest) = self.left.split_first_chunk::<N>().ok_or(Bad::Form)?;
        self.left = rest;
        Ok(*front)
    }

    pub(super) fn u8(&mut self) -> Result<u8, Bad> {
        self.array::<1>().map(|[byte]| byte)
    }

    pub(super) fn u32(&mut self) -> Result<u32, Bad> {
        self.array().map(u32::from_le_bytes)
    }

    pub(super) fn u64(&mut self) -> Result<u64, Bad> {
        self.array().map(u64::from_le_bytes)
    }

    pub(super) fn bytes(&mut self) -> Result<&'a [u8], Bad> {
        let length = usize::try_from(self.u32()?).map_err(|_| Bad::Form)?;
        let (front, rest) = self.left.split_at_checked(length).ok_or(Bad::Form)?;
        self.left = rest;
        Ok(front)
    }

    pub(super) fn applied(&mut self) -> Result<Applied, Bad> {
        Ok(Applied {
            index: self.u64()?,
            term: self.u64()?,
            membership: self.bytes()?.to_vec(),
        })
    }

    pub(super) fn rest(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.left)
    }

    pub(super) fn end(&self) -> Result<(), Bad> {
        if self.left.is_empty() {
            Ok(())
        } else {
            Err(Bad::Form)
        }
    }
}

#[cfg(test)]
mod tests;
