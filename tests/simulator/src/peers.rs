//! Between masters: frames, introductions, and snapshots on their way.

use std::sync::PoisonError;

use mete_broker::event::{Event, PeerEvent, PeerFacts};
use mete_broker::replica::{Outgoing, Received};
use mete_broker::store::Manifest;
use tokio::sync::oneshot;

use crate::agenda::{MILLISECOND, SECOND};
use crate::masters::address;
use crate::network::Place;
use crate::variant::Variant;
use crate::world::{Happening, World};

/// The sending of a snapshot, as its sender knows it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sending {
    from: u64,
    life: u64,
    to: u64,
    index: u64,
}

/// A snapshot between two masters.
#[derive(Debug)]
pub(crate) struct TransferOnTheWay {
    sending: Sending,
    announcement: Vec<u8>,
    manifest: Manifest,
    content: Option<Vec<u8>>,
    report_lost: bool,
}

impl World {
    /// Says to the sender of a snapshot that it was taken in.
    pub(super) fn report_taken(&mut self, node: u64) {
        let Some(running) = self.running(node) else {
            return;
        };
        let mut reports = Vec::new();
        running
            .taken
            .retain_mut(|(taken, sending, lost)| match taken.try_recv() {
                Ok(()) => {
                    reports.push((*sending, *lost));
                    false
                }
                Err(oneshot::error::TryRecvError::Empty) => true,
                Err(oneshot::error::TryRecvError::Closed) => false,
            });
        for (sending, lost) in reports {
            self.report(sending, !lost);
        }
    }

    pub(super) fn report(&mut self, sending: Sending, finished: bool) {
        if !finished && self.variant == Some(Variant::SnapshotReportForgotten) {
            return;
        }
        let delay = self.network.delay();
        let reported = Happening::TransferReported { sending, finished };
        self.agenda.after(delay, reported);
    }

    pub(crate) fn transfer_reported(&mut self, sending: Sending, finished: bool) {
        let Sending {
            from,
            life,
            to,
            index,
        } = sending;
        if self.is_life(from, life) {
            let sent = PeerEvent::SnapshotSent {
                to,
                index,
                finished,
            };
            self.give(from, Event::Peer(sent));
        }
    }

    pub(crate) fn leaves(&mut self, from: u64, life: u64, outgoing: Outgoing) {
        // What has left lives on; what waited for a dead process's flush does not.
        let sent_by_the_dead = self
            .masters
            .get(&from)
            .is_none_or(|process| process.life != life);
        if sent_by_the_dead {
            return;
        }
        match outgoing {
            Outgoing::Message { to, bytes } => {
                let now = self.now();
                let ways = (Place::Master(from), Place::Master(to));
                if !self.knows_address(from, to) {
                    return;
                }
                for arrival in self.network.arrivals(ways.0, ways.1, now) {
                    let bytes = bytes.clone();
                    self.agenda
                        .at(arrival, Happening::Frame { from, to, bytes });
                }
            }
            Outgoing::Snapshot {
                to,
                announcement,
                manifest,
            } => self.begin_transfer(from, life, to, announcement, manifest),
        }
    }

    fn knows_address(&mut self, from: u64, to: u64) -> bool {
        let Some(running) = self.running(from) else {
            // It died after the message had left.
            return true;
        };
        let sent = running.sent.lock().unwrap_or_else(PoisonError::into_inner);
        sent.directory.contains_key(&to)
    }

    fn begin_transfer(
        &mut self,
        from: u64,
        life: u64,
        to: u64,
        announcement: Vec<u8>,
        manifest: Manifest,
    ) {
        let Some(running) = self.running(from) else {
            return;
        };
        let mut content = Vec::new();
        let source = running.master.replica().snapshot(&manifest);
        let read = source.map(|mut source| std::io::copy(&mut source, &mut content).is_ok());
        let breaks = !self.quiet && self.dice.chance(self.plan.transfers_break);
        let report_lost = !self.quiet && self.dice.chance(self.plan.transfers_break / 4);
        let reaches = self.network.reaches(Place::Master(from), Place::Master(to));
        let whole = matches!(read, Ok(true)) && reaches && !breaks;
        self.say(|| {
            let (at, bytes) = (manifest.at.index, content.len());
            format!("snapshot {at} from master {from} to {to}: {bytes} bytes, whole: {whole}")
        });
        let sending = Sending {
            from,
            life,
            to,
            index: manifest.at.index,
        };
        let transfer = TransferOnTheWay {
            sending,
            announcement,
            manifest,
            content: whole.then_some(content),
            report_lost,
        };
        let delay = self.dice.between(1, 400) * MILLISECOND;
        self.agenda
            .after(delay, Happening::TransferEnds(Box::new(transfer)));
    }

    pub(crate) fn transfer_ends(&mut self, transfer: TransferOnTheWay) {
        let TransferOnTheWay {
            sending,
            announcement,
            manifest,
            content,
            report_lost,
        } = transfer;
        let Sending { from, to, .. } = sending;
        let reaches = self.network.reaches(Place::Master(from), Place::Master(to));
        let (Some(content), true, Some(_)) = (content, reaches, self.life(to)) else {
            return self.report(sending, false);
        };
        let Some(running) = self.running(to) else {
            return;
        };
        let begun = running.master.replica().receive_snapshot(&announcement);
        let written = match begun {
            Ok(Ok(mut writer)) => {
                let written = std::io::Write::write_all(&mut writer, &content);
                written
                    .ok()
                    .and_then(|()| writer.finish(manifest.digest).ok())
            }
            Ok(Err(_)) | Err(_) => None,
        };
        let Some(manifest) = written else {
            return self.report(sending, false);
        };
        let (taken, wait) = oneshot::channel();
        running.taken.push((wait, sending, report_lost));
        let received = Box::new(Received {
            manifest,
            message: announcement,
        });
        let received = PeerEvent::SnapshotReceived { received, taken };
        self.give(to, Event::Peer(received));
    }

    pub(crate) fn frame(&mut self, from: u64, to: u64, bytes: Vec<u8>) {
        if self.was_taken_out(from, to) {
            self.give(from, Event::Peer(PeerEvent::Removed { by: to }));
            return;
        }
        let frames = vec![bytes];
        self.give(to, Event::Peer(PeerEvent::Frames { from, frames }));
    }

    /// What the peer service of `by` says to whoever is no member any more.
    fn was_taken_out(&mut self, node: u64, by: u64) -> bool {
        let Some(running) = self.running(by) else {
            return false;
        };
        running.master.read_state(|state| state.has_left(node))
    }

    /// Connections between masters say hello; here they do so again and again.
    pub(crate) fn introduces(&mut self, node: u64, life: u64) {
        if !self.is_life(node, life) {
            return;
        }
        let level = self.masters.get(&node).map_or(0, |process| process.level);
        let facts = PeerFacts {
            node,
            address: address(node),
            version: format!("0.{level}"),
            level,
        };
        let others = self.masters.keys().copied().filter(|other| *other != node);
        for other in others.collect::<Vec<_>>() {
            if !self
                .network
                .reaches(Place::Master(node), Place::Master(other))
            {
                continue;
            }
            if self.was_taken_out(node, other) {
                self.give(node, Event::Peer(PeerEvent::Removed { by: other }));
            } else {
                self.give(other, Event::Peer(PeerEvent::Hello(facts.clone())));
            }
        }
        self.agenda
            .after(SECOND / 2, Happening::Introduces { node, life });
    }
}
