//! A small relay in user space between the processes of a site: links can be cut, in one direction
//! too, delayed, and made to break. It needs no rights and no network namespaces.
//!
//! Every master is dialled at an address of the relay. Who dials is found by the socket: the
//! kernel's table says which process holds it, and that process' arguments say who it is. So each
//! pair of processes is a link of its own. What is cut is held back, not dropped: as on a network
//! whose packets are lost, connections stay open and go on where they were once the link is whole.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Runtime;
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

use super::reap::entries;

/// Bytes that are carried at once.
const PIECE: usize = 16 << 10;

/// Pieces on their way in one direction of one connection.
const PIECES: usize = 64;

/// From whom, to whom.
type Link = (String, String);

/// What is done to links.
#[derive(Clone, Debug, Default)]
struct Rules {
    cut: BTreeSet<Link>,
    delay: BTreeMap<Link, Duration>,
    /// One piece in so many breaks its connection.
    breaks: BTreeMap<Link, u64>,
}

/// The relay of one site.
#[derive(Debug)]
pub(crate) struct Relay {
    root: PathBuf,
    rules: watch::Sender<Rules>,
    runtime: Option<Runtime>,
}

impl Drop for Relay {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

impl Relay {
    /// A relay for the processes of the site in this directory.
    pub(crate) fn new(root: &Path) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build();
        Self {
            root: root.to_owned(),
            rules: watch::Sender::new(Rules::default()),
            runtime: Some(runtime.expect("a runtime")),
        }
    }

    /// Listens for those who dial `name`, which listens at `target`; gives the address to dial.
    pub(crate) fn carry(&self, name: &str, port: u16, target: &str) -> String {
        let runtime = self.runtime.as_ref().expect("it runs");
        let bound = runtime.block_on(TcpListener::bind(("127.0.0.1", port)));
        let listener = bound.expect("a free port");
        let address = listener.local_addr().expect("an address").to_string();
        let (name, target) = (name.to_owned(), target.to_owned());
        let (root, rules) = (self.root.clone(), self.rules.clone());
        runtime.spawn(async move {
            while let Ok((stream, peer)) = listener.accept().await {
                let own = listener.local_addr().expect("an address").port();
                let from = dialler(&root, peer, own);
                let carried = carry(stream, from, name.clone(), target.clone(), rules.clone());
                tokio::spawn(carried);
            }
        });
        address
    }

    fn change(&self, change: impl FnOnce(&mut Rules)) {
        self.rules.send_modify(change);
    }

    /// Nothing passes from the one to the other any more.
    pub(crate) fn cut(&self, from: &str, to: &str) {
        self.change(|rules| {
            rules.cut.insert((from.to_owned(), to.to_owned()));
        });
    }

    /// Nothing passes between the two any more.
    pub(crate) fn cut_both(&self, one: &str, other: &str) {
        self.cut(one, other);
        self.cut(other, one);
    }

    /// Everything between the two comes later by so much.
    pub(crate) fn slow(&self, one: &str, other: &str, by: Duration) {
        self.change(|rules| {
            rules.delay.insert((one.to_owned(), other.to_owned()), by);
            rules.delay.insert((other.to_owned(), one.to_owned()), by);
        });
    }

    /// Between the two, one piece in so many breaks its connection.
    pub(crate) fn break_some(&self, one: &str, other: &str, of: u64) {
        self.change(|rules| {
            rules.breaks.insert((one.to_owned(), other.to_owned()), of);
            rules.breaks.insert((other.to_owned(), one.to_owned()), of);
        });
    }

    /// All links are whole again.
    pub(crate) fn heal(&self) {
        self.change(|rules| *rules = Rules::default());
    }
}

async fn carry(
    client: TcpStream,
    from: String,
    to: String,
    target: String,
    rules: watch::Sender<Rules>,
) {
    let Ok(server) = TcpStream::connect(&target).await else {
        // Nobody there: whoever dialled sees its connection end at once.
        return;
    };
    // Without it small messages would wait for each other.
    for stream in [&client, &server] {
        stream.set_nodelay(true).expect("a socket");
    }
    let (client_reads, client_writes) = client.into_split();
    let (server_reads, server_writes) = server.into_split();
    let there = pump(
        (from.clone(), to.clone()),
        client_reads,
        server_writes,
        rules.subscribe(),
    );
    let back = pump((to, from), server_reads, client_writes, rules.subscribe());
    // An end of one direction lets the other finish; a break ends both.
    let _ended = tokio::try_join!(there, back);
}

async fn pump(
    link: Link,
    mut reads: OwnedReadHalf,
    mut writes: OwnedWriteHalf,
    mut rules: watch::Receiver<Rules>,
) -> std::io::Result<()> {
    let (sender, mut pieces) = mpsc::channel::<(Instant, Vec<u8>)>(PIECES);
    let reading = async {
        loop {
            let mut piece = vec![0; PIECE];
            let count = reads.read(&mut piece).await?;
            piece.truncate(count);
            let is_end = piece.is_empty();
            if sender.send((Instant::now(), piece)).await.is_err() || is_end {
                return Ok::<(), std::io::Error>(());
            }
        }
    };
    let writing = async {
        let mut carried = 0_u64;
        while let Some((at, piece)) = pieces.recv().await {
            let delay = rules.borrow().delay.get(&link).copied().unwrap_or_default();
            tokio::time::sleep_until(at + delay).await;
            let whole = rules.wait_for(|rules| !rules.cut.contains(&link));
            let is_over = whole.await.is_err();
            if is_over || piece.is_empty() {
                break;
            }
            carried += 1;
            let breaks = rules.borrow().breaks.get(&link).copied();
            if breaks.is_some_and(|of| carried.is_multiple_of(of)) {
                return Err(std::io::Error::other("broken on purpose"));
            }
            writes.write_all(&piece).await?;
        }
        writes.shutdown().await
    };
    tokio::try_join!(reading, writing).map(|_| ())
}

/// Who holds the other end of a connection: the directory of a master or an agent by its last name,
/// a framework by its command, anything else `cli`.
fn dialler(root: &Path, peer: SocketAddr, own: u16) -> String {
    let holder = inode_of(peer.port(), own).and_then(|inode| holder_of(root, inode));
    holder.unwrap_or_else(|| "cli".to_owned())
}

/// The socket from one port of this machine to another.
fn inode_of(from: u16, to: u16) -> Option<u64> {
    let table = std::fs::read_to_string("/proc/net/tcp").ok()?;
    let (from, to) = (format!(":{from:04X}"), format!(":{to:04X}"));
    table.lines().find_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let is_it = fields.get(1)?.ends_with(&from) && fields.get(2)?.ends_with(&to);
        if is_it {
            fields.get(9)?.parse().ok()
        } else {
            None
        }
    })
}

fn holder_of(root: &Path, inode: u64) -> Option<String> {
    let wanted = format!("socket:[{inode}]");
    for process in entries(Path::new("/proc")) {
        let arguments = std::fs::read(process.join("cmdline")).unwrap_or_default();
        let arguments = String::from_utf8_lossy(&arguments).into_owned();
        let arguments: Vec<&str> = arguments.split('\0').collect();
        if arguments.first().is_none_or(|first| *first != super::METE) {
            continue;
        }
        let holds = entries(&process.join("fd"))
            .iter()
            .any(|file| std::fs::read_link(file).is_ok_and(|link| link.as_os_str() == &*wanted));
        if !holds {
            continue;
        }
        let state = arguments.iter().position(|word| *word == "--state-dir");
        let state = state.and_then(|at| arguments.get(at + 1));
        return match (arguments.get(1), state) {
            (Some(&("master" | "agent")), Some(state)) => {
                let name = Path::new(state).strip_prefix(root).ok()?;
                Some(name.display().to_string())
            }
            (Some(command @ &("batch" | "service")), _) if arguments.get(2) == Some(&"start") => {
                Some((*command).to_owned())
            }
            _ => None,
        };
    }
    None
}
