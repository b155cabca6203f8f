//! The state as a stream of bytes and back, piece by piece.
//!
//! A piece is its length (4 bytes, little endian) and a message of about [`PIECE`] bytes. The last
//! piece says how many records there were, so that a stream that stops early never looks whole.
//! Nothing larger than one piece is held in memory beside the records themselves.

use std::collections::HashSet;
use std::io::{self, Read, Write};
use std::sync::Arc;

use mete_model::TaskSpec;
use mete_proto::internal::v1 as stored;
use mete_state::Part;
use prost::Message;

use super::read::Positions;
use super::snapshot_write::put_part;
use super::{FormatError, SNAPSHOT_FORMAT, check_format};

/// Bytes of a piece at which the next one begins.
pub const PIECE: usize = 1 << 20;

/// The largest piece that is read: a full one, and one record as large as a record can be.
pub const LARGEST_PIECE: usize = 16 << 20;

const WHAT: &str = "snapshot piece";

/// Why a snapshot cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum SnapshotError {
    /// The source failed, or ended in the middle of a piece.
    #[error("read piece {piece} of the snapshot")]
    Read {
        /// Counted from 0.
        piece: u64,
        /// Why.
        source: io::Error,
    },
    /// A piece says that it is larger than any piece.
    #[error("piece {piece} of the snapshot claims {size} bytes, at most {LARGEST_PIECE} can be")]
    TooLarge {
        /// Counted from 0.
        piece: u64,
        /// What it says.
        size: u32,
    },
    /// A piece cannot be read.
    #[error("piece {piece} of the snapshot: {source}")]
    Format {
        /// Counted from 0.
        piece: u64,
        /// Why.
        source: FormatError,
    },
    /// The end does not agree with what came before.
    #[error("the snapshot ends after {found} records but was written with {written}")]
    Count {
        /// Records that came.
        found: u64,
        /// Records that its end speaks of.
        written: u64,
    },
}

/// Writes records as a stream of pieces.
///
/// # Errors
/// Whatever `out` gives.
pub fn write_parts(parts: impl Iterator<Item = Part>, out: &mut dyn Write) -> io::Result<()> {
    let mut total: u64 = 0;
    let mut piece = Piece::default();
    for part in parts {
        total = total.saturating_add(1);
        piece.add(&part);
        if piece.size >= PIECE {
            std::mem::take(&mut piece).write(None, out)?;
        }
    }
    piece.write(Some(total), out)
}

#[derive(Debug, Default)]
struct Piece {
    message: stored::SnapshotPiece,
    specs: Positions<Arc<TaskSpec>>,
    size: usize,
}

impl Piece {
    fn add(&mut self, part: &Part) {
        let before = self.message.specs.len();
        let part = put_part(part, &mut self.specs, &mut self.message.specs);
        // Field headers are not counted: a piece is *about* so large.
        self.size += part.encoded_len();
        self.size += self.message.specs[before..]
            .iter()
            .map(Message::encoded_len)
            .sum::<usize>();
        self.message.parts.push(part);
    }

    fn write(mut self, total: Option<u64>, out: &mut dyn Write) -> io::Result<()> {
        self.message.format = SNAPSHOT_FORMAT;
        self.message.total = total;
        let bytes = self.message.encode_to_vec();
        let size = u32::try_from(bytes.len())
            .map_err(|_| io::Error::other("a piece of the snapshot passes 4 GiB"))?;
        out.write_all(&size.to_le_bytes())?;
        out.write_all(&bytes)
    }
}

/// Reads the records of a snapshot one by one; specs that are equal are shared again.
///
/// After the first error it gives nothing more.
#[derive(Debug)]
pub struct PartsReader<R> {
    source: R,
    ready: std::vec::IntoIter<Part>,
    specs: HashSet<Arc<TaskSpec>>,
    piece: u64,
    found: u64,
    ended: bool,
}

impl<R: Read> PartsReader<R> {
    /// Begins to read.
    pub fn new(source: R) -> Self {
        Self {
            source,
            ready: Vec::new().into_iter(),
            specs: HashSet::new(),
            piece: 0,
            found: 0,
            ended: false,
        }
    }

    fn next_piece(&mut self) -> Result<(), SnapshotError> {
        let piece = self.piece;
        let bytes = self.read_bytes()?;
        let (parts, total) = decode_piece(&bytes, &mut self.specs)
            .map_err(|source| SnapshotError::Format { piece, source })?;
        self.piece = piece.saturating_add(1);
        let count = u64::try_from(parts.len()).unwrap_or(u64::MAX);
        self.found = self.found.saturating_add(count);
        self.ready = parts.into_iter();
        if let Some(written) = total {
            self.ended = true;
            if written != self.found {
                let found = self.found;
                return Err(SnapshotError::Count { found, written });
            }
        }
        Ok(())
    }

    fn read_bytes(&mut self) -> Result<Vec<u8>, SnapshotError> {
        let piece = self.piece;
        let failed = |source| SnapshotError::Read { piece, source };
        let mut size = [0; 4];
        self.source.read_exact(&mut size).map_err(failed)?;
        let size = u32::from_le_bytes(size);
        let length = usize::try_from(size).unwrap_or(usize::MAX);
        if length > LARGEST_PIECE {
            return Err(SnapshotError::TooLarge { piece, size });
        }
        let mut bytes = vec![0; length];
        self.source.read_exact(&mut bytes).map_err(failed)?;
        Ok(bytes)
    }
}

impl<R: Read> Iterator for PartsReader<R> {
    type Item = Result<Part, SnapshotError>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(part) = self.ready.next() {
                return Some(Ok(part));
            }
            if self.ended {
                return None;
            }
            if let Err(error) = self.next_piece() {
                self.ended = true;
                self.ready = Vec::new().into_iter();
                return Some(Err(error));
            }
        }
    }
}

fn decode_piece(
    bytes: &[u8],
    known: &mut HashSet<Arc<TaskSpec>>,
) -> Result<(Vec<Part>, Option<u64>), FormatError> {
    let piece = stored::SnapshotPiece::decode(bytes).map_err(|source| FormatError::Damaged {
        what: WHAT,
        size: bytes.len(),
        source,
    })?;
    check_format(WHAT, piece.format, SNAPSHOT_FORMAT)?;
    let total = piece.total;
    mete_proto::convert::whole(|faults| super::snapshot_read::read_piece(piece, known, faults))
        .map(|parts| (parts, total))
        .map_err(|faults| FormatError::Meaningless { what: WHAT, faults })
}
