//! Frames between agent and shim: a 32-bit big-endian length, then a protobuf message.

use std::io;

use prost::Message;

/// No message between the two is larger.
pub const MOST_BYTES: usize = 64 << 10;

/// One message with its length before it.
///
/// # Errors
/// It is larger than any may be.
pub fn encode<M: Message>(message: &M) -> io::Result<Vec<u8>> {
    let size = message.encoded_len();
    if size > MOST_BYTES {
        let text =
            format!("a message of {size} bytes is too large for a shim; at most {MOST_BYTES}");
        return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
    }
    let mut bytes = Vec::with_capacity(size + 4);
    bytes.extend(u32::try_from(size).map_err(io::Error::other)?.to_be_bytes());
    message.encode(&mut bytes).map_err(io::Error::other)?;
    Ok(bytes)
}

/// What has arrived and is not yet a whole message.
#[derive(Debug, Default)]
pub struct Incoming {
    bytes: Vec<u8>,
}

impl Incoming {
    /// Adds what was read.
    pub fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// The next whole message, if there is one.
    ///
    /// # Errors
    /// The other side does not speak this protocol, or its program could not be executed.
    pub fn take<M: Message + Default>(&mut self) -> io::Result<Option<M>> {
        let Some(head) = self.bytes.first_chunk::<4>() else {
            return Ok(None);
        };
        let size = u32::from_be_bytes(*head);
        if size == super::spawn::EXEC_FAILED {
            let errno = self.bytes.get(4..8).and_then(|bytes| bytes.try_into().ok());
            let errno = errno.map_or(libc::EIO, i32::from_be_bytes);
            return Err(io::Error::from_raw_os_error(errno));
        }
        let size = usize::try_from(size).map_err(io::Error::other)?;
        if size > MOST_BYTES {
            let text = format!("a frame of {size} bytes; at most {MOST_BYTES} are allowed");
            return Err(io::Error::new(io::ErrorKind::InvalidData, text));
        }
        let Some(body) = self.bytes.get(4..4 + size) else {
            return Ok(None);
        };
        let message =
            M::decode(body).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error));
        self.bytes.drain(..4 + size);
        message.map(Some)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mete_proto::internal::v1::{ShimSignal, ShimStop};

    #[test]
    fn messages_come_out_whole_however_they_are_cut() {
        let first = ShimStop {
            grace_ms: 70_000,
            signal: 2,
        };
        let second = ShimSignal { signal: 9 };
        let mut bytes = encode(&first).expect("small");
        bytes.extend(encode(&second).expect("small"));

        for cut in 0..bytes.len() {
            let mut incoming = Incoming::default();
            incoming.push(&bytes[..cut]);
            let mut got: Option<ShimStop> = incoming.take().expect("well formed");
            incoming.push(&bytes[cut..]);
            if got.is_none() {
                got = incoming.take().expect("well formed");
            }
            assert_eq!(got, Some(first), "cut at {cut}");
            assert_eq!(
                incoming.take().expect("well formed"),
                Some(second),
                "cut at {cut}"
            );
        }
    }

    #[test]
    fn a_length_beyond_reason_is_refused_before_anything_is_kept() {
        let mut incoming = Incoming::default();
        incoming.push(&[0x7f, 0xff, 0xff, 0xff]);

        let error = incoming.take::<ShimStop>().expect_err("too large");

        assert!(error.to_string().contains("2147483647"), "{error}");
    }
}
