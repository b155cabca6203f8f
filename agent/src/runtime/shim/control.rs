//! The control socket: agents come and go, requests come in, events go out. Nothing here blocks,
//! and an agent that does not read loses its connection, not the run its shim.

use std::io::{self, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};

use mete_proto::internal::v1::{ShimEvent, ShimRequest};

use super::system;
use crate::runtime::frame::{self, Incoming};
use crate::runtime::records::RunDirectory;

/// One agent, and one more while it restarts; nobody needs many.
const MOST_CONNECTIONS: usize = 4;
/// An agent that leaves more than this unread is not reading.
const MOST_UNREAD: usize = 256 << 10;

/// One agent.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) stream: UnixStream,
    incoming: Incoming,
    outgoing: Vec<u8>,
    closed: bool,
}

impl Connection {
    fn new(stream: UnixStream) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        Ok(Self {
            stream,
            incoming: Incoming::default(),
            outgoing: Vec::new(),
            closed: false,
        })
    }

    pub(super) fn has_unsent(&self) -> bool {
        !self.outgoing.is_empty()
    }

    fn send(&mut self, event: &ShimEvent) {
        match frame::encode(event) {
            Ok(bytes) if self.outgoing.len() + bytes.len() <= MOST_UNREAD => {
                self.outgoing.extend(bytes);
                self.write();
            }
            Ok(_) | Err(_) => self.closed = true,
        }
    }

    fn write(&mut self) {
        while !self.outgoing.is_empty() {
            match self.stream.write(&self.outgoing) {
                Ok(0) => self.closed = true,
                Ok(sent) => {
                    self.outgoing.drain(..sent);
                    continue;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(_) => self.closed = true,
            }
            return;
        }
    }

    fn read(&mut self, requests: &mut Vec<ShimRequest>) {
        let mut bytes = [0_u8; 4096];
        loop {
            match self.stream.read(&mut bytes) {
                Ok(0) => self.closed = true,
                Ok(read) => {
                    self.incoming.push(bytes.get(..read).unwrap_or_default());
                    // What is not understood is not an agent of ours.
                    loop {
                        match self.incoming.take() {
                            Ok(Some(request)) => requests.push(request),
                            Ok(None) => break,
                            Err(_) => {
                                self.closed = true;
                                return;
                            }
                        }
                    }
                    continue;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(_) => self.closed = true,
            }
            return;
        }
    }
}

/// All of them.
#[derive(Debug)]
pub(super) struct Control {
    pub(super) listener: UnixListener,
    pub(super) connections: Vec<Connection>,
}

impl Control {
    /// Listens in the run's directory; the agent that started this shim is connected already.
    pub(super) fn open(directory: &RunDirectory) -> io::Result<Self> {
        let inherited = system::inherited_connection();
        let listener = directory.listen()?;
        listener.set_nonblocking(true)?;
        let mut connections = Vec::new();
        if let Some(stream) = inherited {
            connections.push(Connection::new(stream)?);
        }
        Ok(Self {
            listener,
            connections,
        })
    }

    /// Takes who waits at the door and tells each what is so far.
    pub(super) fn accept(&mut self, so_far: &[ShimEvent]) {
        while let Ok((stream, _)) = self.listener.accept() {
            if self.connections.len() >= MOST_CONNECTIONS {
                // The oldest belongs to an agent that is most likely gone.
                self.connections.remove(0);
            }
            let Ok(mut connection) = Connection::new(stream) else {
                continue;
            };
            so_far.iter().for_each(|event| connection.send(event));
            self.connections.push(connection);
        }
    }

    /// Takes what was asked, sends what waits, and drops who is gone.
    pub(super) fn turn(&mut self) -> Vec<ShimRequest> {
        let mut requests = Vec::new();
        for connection in &mut self.connections {
            connection.read(&mut requests);
            connection.write();
        }
        self.connections.retain(|connection| !connection.closed);
        requests
    }

    /// Tells everybody.
    pub(super) fn tell(&mut self, event: &ShimEvent) {
        self.connections
            .iter_mut()
            .for_each(|connection| connection.send(event));
        self.connections.retain(|connection| !connection.closed);
    }
}
