//! A network of replicas in one thread: queues for links, ticks by hand, disks that outlive them.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io::{self, Read, Write};

use crate::replica::{
    Applied, Config, Encoding, Image, Input, Machine, NotLogged, Outgoing, Progress, Proposal,
    Received, Replica, RestoreError, Role, Token, Transfer,
};
use crate::store::{ClusterId, MemoryDisk, MemoryStore, TooNew};

pub(super) const CLUSTER: ClusterId = *b"a test's cluster";

/// A machine that keeps what it was told, in order.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(super) struct Journal {
    pub(super) lines: Vec<(u64, Vec<u8>)>,
}

impl Journal {
    fn hash(&self) -> u64 {
        let mut hash = 0xcbf2_9ce4_8422_2325_u64;
        for byte in self.encode() {
            hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
        hash
    }

    fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        for (index, line) in &self.lines {
            out.extend_from_slice(&index.to_le_bytes());
            out.extend_from_slice(&(line.len() as u64).to_le_bytes());
            out.extend_from_slice(line);
        }
        out
    }

    pub(super) fn holds(&self, line: &[u8]) -> bool {
        self.lines.iter().any(|(_, held)| held == line)
    }
}

impl Machine for Journal {
    type Outcome = usize;
    type Image = Self;

    fn apply(&mut self, index: u64, _term: u64, command: &[u8]) -> Result<usize, TooNew> {
        self.lines.push((index, command.to_vec()));
        Ok(self.lines.len())
    }

    fn image(&self) -> Self {
        self.clone()
    }

    fn restore(&mut self, source: &mut dyn Read) -> Result<(), RestoreError> {
        self.lines.clear();
        let mut bytes = Vec::new();
        source.read_to_end(&mut bytes)?;
        let mut rest = bytes.as_slice();
        let short = || RestoreError::Content("a line is cut off".to_owned());
        while !rest.is_empty() {
            let (index, behind) = rest.split_first_chunk::<8>().ok_or_else(short)?;
            let (length, behind) = behind.split_first_chunk::<8>().ok_or_else(short)?;
            let length = usize::try_from(u64::from_le_bytes(*length)).map_err(|_| short())?;
            let (line, behind) = behind.split_at_checked(length).ok_or_else(short)?;
            self.lines.push((u64::from_le_bytes(*index), line.to_vec()));
            rest = behind;
        }
        Ok(())
    }

    fn digest(&self) -> u64 {
        self.hash()
    }
}

impl Image for Journal {
    fn digest(&self) -> u64 {
        self.hash()
    }

    fn write_to(&self, out: &mut dyn Write) -> io::Result<()> {
        out.write_all(&self.encode())
    }
}

/// Small limits, so that a test of a second sees snapshots and trims.
pub(super) fn config(founders: &[u64]) -> Config {
    Config {
        snapshot_entries: 50,
        tail_entries: 10,
        trim_entries: 5,
        encoding: Encoding::Inline,
        ..Config::shipped(founders.to_vec())
    }
}

/// What callers were told, over all replicas.
#[derive(Debug, Default)]
pub(super) struct Told {
    pub(super) applied: Vec<(u64, Applied<usize>)>,
    pub(super) refused: Vec<(Token, NotLogged)>,
    pub(super) unknown: Vec<Token>,
    pub(super) reads: Vec<(Token, u64)>,
    pub(super) reads_dropped: Vec<Token>,
    pub(super) restored: Vec<(u64, u64)>,
    pub(super) frames_refused: Vec<String>,
}

impl Told {
    /// Tokens that were answered with an outcome.
    pub(super) fn done(&self) -> BTreeSet<Token> {
        self.applied
            .iter()
            .filter_map(|(_, applied)| applied.token)
            .collect()
    }
}

pub(super) struct Net {
    pub(super) disks: BTreeMap<u64, MemoryDisk>,
    pub(super) replicas: BTreeMap<u64, Replica<Journal>>,
    founders: Vec<u64>,
    queue: VecDeque<(u64, Outgoing)>,
    /// Nodes that nobody reaches and who reach nobody.
    pub(super) isolated: BTreeSet<u64>,
    pub(super) told: Told,
    /// Index → line as first applied anywhere: replicas must agree on it.
    history: BTreeMap<u64, Applied<usize>>,
    lines: BTreeMap<u64, Vec<u8>>,
    next_token: Token,
}

impl Net {
    pub(super) fn new(founders: &[u64]) -> Self {
        let mut net = Self {
            disks: BTreeMap::new(),
            replicas: BTreeMap::new(),
            founders: founders.to_vec(),
            queue: VecDeque::new(),
            isolated: BTreeSet::new(),
            told: Told::default(),
            history: BTreeMap::new(),
            lines: BTreeMap::new(),
            next_token: 0,
        };
        for node in founders {
            net.start_new(*node, founders);
        }
        net
    }

    pub(super) fn start_new(&mut self, node: u64, founders: &[u64]) {
        let disk = MemoryDisk::new();
        let store = MemoryStore::found(&disk, CLUSTER, node).expect("an empty disk");
        let replica = Replica::open(config(founders), Box::new(store), Journal::default());
        self.disks.insert(node, disk);
        self.replicas
            .insert(node, replica.expect("a new replica opens"));
    }

    /// Stops a replica as a power cut does; of the writes not flushed the first `kept` survive.
    pub(super) fn crash(&mut self, node: u64, kept: usize) {
        self.replicas.remove(&node);
        self.disks[&node].crash(kept);
        let (lost, kept): (VecDeque<_>, VecDeque<_>) = std::mem::take(&mut self.queue)
            .into_iter()
            .partition(|(from, outgoing)| *from == node || receiver(outgoing) == node);
        self.queue = kept;
        // A transfer that ends with its receiver is reported by the sender's side, as ever.
        for (from, outgoing) in lost {
            if matches!(outgoing, Outgoing::Snapshot { .. }) {
                self.report(from, node, index_of(&outgoing), false);
            }
        }
    }

    pub(super) fn restart(&mut self, node: u64) {
        let store = MemoryStore::open(&self.disks[&node]).expect("a crashed disk opens");
        let config = config(&self.founders);
        let replica = Replica::open(config, Box::new(store), Journal::default());
        self.replicas
            .insert(node, replica.expect("a crashed replica opens"));
    }

    pub(super) fn step(&mut self, node: u64, input: Input) {
        let Some(replica) = self.replicas.get_mut(&node) else {
            return;
        };
        let queue = &mut self.queue;
        let mut outlet = |outgoing| queue.push_back((node, outgoing));
        let (progress, mut more) = replica.step(input, &mut outlet).expect("the disk is well");
        let mut turns = vec![progress];
        while more {
            let (progress, again) = replica
                .step(Input::default(), &mut outlet)
                .expect("the disk is well");
            turns.push(progress);
            more = again;
        }
        for progress in turns {
            self.note(node, progress);
        }
    }

    fn note(&mut self, node: u64, progress: Progress<usize>) {
        for applied in progress.applied {
            let line = self.replicas[&node].machine().lines.iter().rev();
            let line = line.clone().find(|(index, _)| *index == applied.index);
            if let Some((index, line)) = line {
                let first = self.lines.entry(*index).or_insert_with(|| line.clone());
                assert_eq!(first, line, "replicas disagree about index {index}");
            }
            let first = self
                .history
                .entry(applied.index)
                .or_insert_with(|| applied.clone());
            assert_eq!(
                first.term, applied.term,
                "two terms at index {}",
                applied.index
            );
            self.told.applied.push((node, applied));
        }
        self.told.refused.extend(progress.refused);
        self.told.unknown.extend(progress.unknown);
        self.told.reads.extend(progress.reads);
        self.told.reads_dropped.extend(progress.reads_dropped);
        self.told
            .restored
            .extend(progress.restored.map(|index| (node, index)));
        self.told.frames_refused.extend(progress.frames_refused);
    }

    /// Delivers what is under way until nothing is.
    pub(super) fn settle(&mut self) {
        for _ in 0..100_000 {
            let Some((from, outgoing)) = self.queue.pop_front() else {
                return;
            };
            self.deliver(from, outgoing);
        }
        panic!("the network never comes to rest");
    }

    /// Delivers or drops one message chosen by `pick`. False if none is under way.
    pub(super) fn deliver_one(&mut self, pick: usize, lose: bool) -> bool {
        if self.queue.is_empty() {
            return false;
        }
        let (from, outgoing) = self
            .queue
            .remove(pick % self.queue.len())
            .expect("the place is within the queue");
        if lose {
            if let Outgoing::Snapshot { to, manifest, .. } = outgoing {
                self.report(from, to, manifest.at.index, false);
            }
            return true;
        }
        self.deliver(from, outgoing);
        true
    }

    fn deliver(&mut self, from: u64, outgoing: Outgoing) {
        let to = receiver(&outgoing);
        let cut = self.isolated.contains(&from) || self.isolated.contains(&to);
        let reachable = !cut && self.replicas.contains_key(&to);
        match outgoing {
            Outgoing::Message { bytes, .. } => {
                if reachable {
                    self.step(
                        to,
                        Input {
                            messages: vec![bytes],
                            ..Input::default()
                        },
                    );
                }
            }
            Outgoing::Snapshot {
                announcement,
                manifest,
                ..
            } => {
                let index = manifest.at.index;
                let sender = self.replicas.get(&from);
                let source = sender.and_then(|sender| sender.snapshot(&manifest).ok());
                let (Some(mut source), true) = (source, reachable) else {
                    self.report(from, to, index, false);
                    return;
                };
                let mut writer = self.replicas[&to]
                    .receive_snapshot(&announcement)
                    .expect("the receiver's disk is well")
                    .expect("a true announcement");
                io::copy(&mut source, &mut writer).expect("a sound snapshot");
                let manifest = writer.finish(manifest.digest).expect("the disk is well");
                let received = vec![Received {
                    manifest,
                    message: announcement,
                }];
                self.step(
                    to,
                    Input {
                        received,
                        ..Input::default()
                    },
                );
                self.report(from, to, index, true);
            }
        }
    }

    fn report(&mut self, from: u64, to: u64, index: u64, finished: bool) {
        let transfers = vec![Transfer {
            to,
            index,
            finished,
        }];
        self.step(
            from,
            Input {
                transfers,
                ..Input::default()
            },
        );
    }

    pub(super) fn tick_all(&mut self) {
        for node in self.replicas.keys().copied().collect::<Vec<_>>() {
            self.step(
                node,
                Input {
                    tick: true,
                    ..Input::default()
                },
            );
        }
    }

    /// Ticks and delivers until `done`, or fails after 20 seconds of virtual time.
    pub(super) fn run_until(&mut self, what: &str, done: impl Fn(&Self) -> bool) {
        for _ in 0..1_000 {
            if done(self) {
                return;
            }
            self.tick_all();
            self.settle();
        }
        panic!("never: {what}; {:?}", self.replicas);
    }

    /// The leader that is ready, not isolated, and of the highest term.
    pub(super) fn leader(&self) -> Option<u64> {
        let ready = self.replicas.iter().filter(|(node, replica)| {
            replica.standing().role == Role::Leader
                && replica.standing().ready
                && !self.isolated.contains(*node)
        });
        ready
            .max_by_key(|(_, replica)| replica.standing().term)
            .map(|(node, _)| *node)
    }

    pub(super) fn elect(&mut self) -> u64 {
        self.run_until("a leader", |net| net.leader().is_some());
        self.leader().expect("just seen")
    }

    /// Proposes lines at `node`; gives their tokens.
    pub(super) fn propose(&mut self, node: u64, lines: &[&str]) -> Vec<Token> {
        let mut tokens = Vec::new();
        let mut proposals = Vec::new();
        for line in lines {
            self.next_token += 1;
            tokens.push(self.next_token);
            let command = line.as_bytes().to_vec();
            proposals.push(Proposal {
                token: self.next_token,
                command,
            });
        }
        self.step(
            node,
            Input {
                proposals,
                ..Input::default()
            },
        );
        tokens
    }

    pub(super) fn digests(&self) -> BTreeSet<u64> {
        self.replicas
            .values()
            .map(|replica| Machine::digest(replica.machine()))
            .collect()
    }

    pub(super) fn machine(&self, node: u64) -> &Journal {
        self.replicas[&node].machine()
    }
}

fn index_of(outgoing: &Outgoing) -> u64 {
    match outgoing {
        Outgoing::Message { .. } => 0,
        Outgoing::Snapshot { manifest, .. } => manifest.at.index,
    }
}

fn receiver(outgoing: &Outgoing) -> u64 {
    match outgoing {
        Outgoing::Message { to, .. } | Outgoing::Snapshot { to, .. } => *to,
    }
}
