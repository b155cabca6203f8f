//! Snapshots of the machine as files: every byte under a checksum, complete or not there.
//!
//! ```text
//! header  magic "metesnap", version, cluster, index, term, membership, CRC32C
//! piece   'p', length ≤ 1 MiB, CRC32C, content          (repeated)
//! footer  'f', number of pieces, bytes, digest, CRC32C
//! ```
//!
//! A file is written as `snap-….new`, synced, renamed, and its directory synced; only then may the
//! log's records name it. So a name without `.new` is always whole, and anything no record names is
//! rubbish of a crash. The pieces go to other masters as they are.

use std::fs::{self, File};
use std::io::{self, BufReader, BufWriter, Read, Write};
use std::path::{Path, PathBuf};

use crate::store::chunk::{Bad, Reader, put_applied};
use crate::store::layout;
use crate::store::{Applied, ClusterId, Fault, Manifest, Origin, SnapshotSource, SnapshotWriter};

const MAGIC: &[u8; 8] = b"metesnap";
const VERSION: u8 = 1;
/// The most content bytes of one piece.
const PIECE_BYTES: usize = 1 << 20;
/// Bounds what a damaged header can make a reader allocate.
const HEADER_LIMIT: u32 = 1 << 20;

/// Writes one snapshot file. Dropped before `finish`, it leaves nothing but a `.new` file, which
/// the next start deletes.
#[derive(Debug)]
pub struct FileWriter {
    dir: PathBuf,
    unfinished: PathBuf,
    out: BufWriter<File>,
    manifest: Manifest,
    piece: Vec<u8>,
    pieces: u64,
}

impl FileWriter {
    /// Begins the file for the machine at `at` in the store's directory.
    ///
    /// # Errors
    /// Whatever the file system says.
    pub fn create(
        dir: &Path,
        cluster: &ClusterId,
        at: &Applied,
        origin: Origin,
    ) -> io::Result<Self> {
        let file = layout::snapshot_name(at.index, origin);
        let unfinished = dir.join(format!("{file}.new"));
        let mut out = BufWriter::new(File::create(&unfinished)?);
        out.write_all(&header(cluster, at))?;
        let manifest = Manifest {
            file,
            at: at.clone(),
            bytes: 0,
            digest: 0,
        };
        let piece = Vec::with_capacity(PIECE_BYTES);
        Ok(Self {
            dir: dir.to_owned(),
            unfinished,
            out,
            manifest,
            piece,
            pieces: 0,
        })
    }

    fn write_piece(&mut self) -> io::Result<()> {
        // A piece never exceeds PIECE_BYTES, which fits.
        let length = u32::try_from(self.piece.len()).unwrap_or(u32::MAX);
        self.out.write_all(b"p")?;
        self.out.write_all(&length.to_le_bytes())?;
        self.out
            .write_all(&crc32c::crc32c(&self.piece).to_le_bytes())?;
        self.out.write_all(&self.piece)?;
        self.pieces += 1;
        self.piece.clear();
        Ok(())
    }

    fn complete(&mut self, digest: u64) -> io::Result<()> {
        if !self.piece.is_empty() {
            self.write_piece()?;
        }
        self.manifest.digest = digest;
        self.out
            .write_all(&footer(self.pieces, self.manifest.bytes, digest))?;
        self.out.flush()?;
        self.out.get_ref().sync_all()?;
        fs::rename(&self.unfinished, self.dir.join(&self.manifest.file))?;
        layout::sync_dir(&self.dir)
    }
}

impl Write for FileWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let room = PIECE_BYTES - self.piece.len();
        let taken = bytes.get(..room).unwrap_or(bytes);
        self.piece.extend_from_slice(taken);
        self.manifest.bytes += taken.len() as u64;
        if self.piece.len() == PIECE_BYTES {
            self.write_piece()?;
        }
        Ok(taken.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl SnapshotWriter for FileWriter {
    fn finish(mut self: Box<Self>, digest: u64) -> Result<Manifest, Fault> {
        self.complete(digest)
            .map_err(Fault::io("complete the snapshot", &self.unfinished))?;
        Ok(self.manifest.clone())
    }
}

fn header(cluster: &ClusterId, at: &Applied) -> Vec<u8> {
    let mut body = Vec::new();
    body.extend_from_slice(cluster);
    put_applied(&mut body, at);
    let mut out = MAGIC.to_vec();
    out.push(VERSION);
    // A membership is a few hundred bytes.
    out.extend_from_slice(&u32::try_from(body.len()).unwrap_or(u32::MAX).to_le_bytes());
    out.extend_from_slice(&body);
    out.extend_from_slice(&crc32c::crc32c(&body).to_le_bytes());
    out
}

fn footer(pieces: u64, bytes: u64, digest: u64) -> Vec<u8> {
    let mut body = Vec::new();
    for number in [pieces, bytes, digest] {
        body.extend_from_slice(&number.to_le_bytes());
    }
    let mut out = vec![b'f'];
    out.extend_from_slice(&body);
    out.extend_from_slice(&crc32c::crc32c(&body).to_le_bytes());
    out
}

/// Reads a snapshot file, checking every piece before a byte of it is given out.
///
/// Works over any byte source, so that a file that is being received is checked by the same code.
#[derive(Debug)]
pub struct SnapshotReader<R> {
    input: R,
    cluster: ClusterId,
    at: Applied,
    piece: Vec<u8>,
    position: usize,
    pieces: u64,
    bytes: u64,
    digest: Option<u64>,
}

impl SnapshotReader<BufReader<File>> {
    /// Opens a file and checks its header.
    ///
    /// # Errors
    /// `InvalidData` if it is not a snapshot or its header does not hold; else what the file
    /// system says.
    pub fn open(path: &Path) -> io::Result<Self> {
        Self::new(BufReader::with_capacity(1 << 16, File::open(path)?))
    }
}

impl<R: Read> SnapshotReader<R> {
    /// Checks the header of `input`.
    ///
    /// # Errors
    /// As [`SnapshotReader::open`].
    pub fn new(mut input: R) -> io::Result<Self> {
        let magic: [u8; 8] = read_array(&mut input)?;
        let [version] = read_array(&mut input)?;
        if magic != *MAGIC {
            return Err(invalid("it is not a snapshot"));
        }
        if version != VERSION {
            return Err(invalid(&format!(
                "version {version} is not known to this release"
            )));
        }
        let length = u32::from_le_bytes(read_array(&mut input)?);
        if length > HEADER_LIMIT {
            return Err(invalid("its header is too long"));
        }
        let body = read_checked(&mut input, length, None)?;
        let mut read = Reader { left: &body };
        let form = |_: Bad| invalid("its header does not hold");
        let cluster = read.array().map_err(form)?;
        let at = read.applied().map_err(form)?;
        let piece = Vec::new();
        let (pieces, bytes, digest) = (0, 0, None);
        Ok(Self {
            input,
            cluster,
            at,
            piece,
            position: 0,
            pieces,
            bytes,
            digest,
        })
    }

    /// The cluster it belongs to.
    pub fn cluster(&self) -> &ClusterId {
        &self.cluster
    }

    /// Index, term and membership it holds.
    pub fn at(&self) -> &Applied {
        &self.at
    }

    /// The digest in the footer; known once the end was reached.
    pub fn digest(&self) -> Option<u64> {
        self.digest
    }

    /// Reads the next piece; false at the footer.
    fn next_piece(&mut self) -> io::Result<bool> {
        if self.digest.is_some() {
            return Ok(false);
        }
        let [tag] = read_array(&mut self.input)?;
        match tag {
            b'p' => {
                let length = u32::from_le_bytes(read_array(&mut self.input)?);
                let crc = u32::from_le_bytes(read_array(&mut self.input)?);
                if length == 0 || length as usize > PIECE_BYTES {
                    return Err(invalid(&format!(
                        "piece {} has a wrong length",
                        self.pieces
                    )));
                }
                self.piece = read_checked(&mut self.input, length, Some(crc))?;
                self.position = 0;
                self.pieces += 1;
                self.bytes += u64::from(length);
                Ok(true)
            }
            b'f' => {
                self.end()?;
                Ok(false)
            }
            _ => Err(invalid(&format!(
                "after piece {} comes rubbish",
                self.pieces
            ))),
        }
    }

    fn end(&mut self) -> io::Result<()> {
        let body = read_checked(&mut self.input, 24, None)?;
        let mut read = Reader { left: &body };
        let form = |_: Bad| invalid("its footer does not hold");
        let pieces = read.u64().map_err(form)?;
        let bytes = read.u64().map_err(form)?;
        let digest = read.u64().map_err(form)?;
        if (pieces, bytes) != (self.pieces, self.bytes) {
            return Err(invalid(&format!(
                "its footer counts {pieces} pieces of {bytes} bytes, there are {} of {}",
                self.pieces, self.bytes
            )));
        }
        let mut beyond = [0_u8; 1];
        if self.input.read(&mut beyond)? != 0 {
            return Err(invalid("something follows its footer"));
        }
        self.digest = Some(digest);
        Ok(())
    }
}

impl<R: Read> Read for SnapshotReader<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.position == self.piece.len() && !self.next_piece()? {
            return Ok(0);
        }
        let rest = self.piece.get(self.position..).unwrap_or_default();
        let taken = rest.len().min(buffer.len());
        let (Some(from), Some(to)) = (rest.get(..taken), buffer.get_mut(..taken)) else {
            return Ok(0);
        };
        to.copy_from_slice(from);
        self.position += taken;
        Ok(taken)
    }
}

impl<R: Read + Send + std::fmt::Debug> SnapshotSource for SnapshotReader<R> {}

/// Reads a whole file, checks everything, gives the manifest it deserves. Used by `mete admin
/// snapshot inspect` and before a snapshot is trusted.
///
/// # Errors
/// As [`SnapshotReader::open`].
pub fn inspect(path: &Path) -> io::Result<(ClusterId, Manifest)> {
    let mut reader = SnapshotReader::open(path)?;
    let bytes = io::copy(&mut reader, &mut io::sink())?;
    let file = path
        .file_name()
        .map(|name| name.to_string_lossy().into_owned())
        .unwrap_or_default();
    let digest = reader.digest().ok_or_else(|| invalid("it has no footer"))?;
    Ok((
        reader.cluster,
        Manifest {
            file,
            at: reader.at,
            bytes,
            digest,
        },
    ))
}

fn read_array<const N: usize>(input: &mut impl Read) -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    input.read_exact(&mut bytes).map_err(short)?;
    Ok(bytes)
}

/// Reads `length` bytes whose checksum is given, or follows them.
fn read_checked(input: &mut impl Read, length: u32, crc: Option<u32>) -> io::Result<Vec<u8>> {
    let mut body = vec![0; length as usize];
    input.read_exact(&mut body).map_err(short)?;
    let crc = match crc {
        Some(crc) => crc,
        None => u32::from_le_bytes(read_array(input)?),
    };
    if crc32c::crc32c(&body) != crc {
        return Err(invalid("a checksum does not hold"));
    }
    Ok(body)
}

/// A file that ends too early is damaged content, not a broken disk.
fn short(error: io::Error) -> io::Error {
    if error.kind() == io::ErrorKind::UnexpectedEof {
        return invalid("it ends too early");
    }
    error
}

fn invalid(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what.to_owned())
}

#[cfg(test)]
mod tests;
