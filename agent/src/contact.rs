//! When this agent last had a leader's word. Pure: the times are given.
//!
//! A word counts from when the agent sent what it answers, not from when it arrived: a beacon of
//! the leader says which beacon of the agent it has heard. So whatever a network holds back, and
//! for however long, a leader that has counted a silence from the last beacon it heard knows that
//! the agent has counted at least as much.

use std::collections::VecDeque;

use mete_model::Span;

/// Milliseconds since the machine was started, its sleep included; no clock that somebody sets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct BootTime(pub u64);

impl BootTime {
    /// How long ago `earlier` was; nothing if it is later.
    #[must_use]
    pub fn since(self, earlier: Self) -> Span {
        Span(self.0.saturating_sub(earlier.0))
    }
}

/// Beacons that are on their way at the most; older ones are of no use.
const MOST_UNHEARD: usize = 64;

/// See the module.
#[derive(Debug)]
pub struct Contact {
    /// When the hello of the present stream was written.
    hello: Option<BootTime>,
    /// Beacons of the present stream that the leader has not named yet: progress, and when.
    beacons: VecDeque<(u64, BootTime)>,
    last: BootTime,
}

impl Contact {
    /// `last`: what an earlier process of this agent has left, or the present when it left nothing.
    #[must_use]
    pub fn new(last: BootTime) -> Self {
        Self {
            hello: None,
            beacons: VecDeque::new(),
            last,
        }
    }

    /// A stream is being opened, its hello written.
    pub fn hello_sent(&mut self, now: BootTime) {
        self.hello = Some(now);
        self.beacons.clear();
    }

    /// A beacon goes out.
    pub fn beacon_sent(&mut self, progress: u64, now: BootTime) {
        if self.beacons.len() >= MOST_UNHEARD {
            self.beacons.pop_front();
        }
        self.beacons.push_back((progress, now));
    }

    /// A leader has answered the hello. Gives the new time, if it is newer.
    pub fn welcomed(&mut self) -> Option<BootTime> {
        let hello = self.hello?;
        self.word(hello)
    }

    /// A leader's beacon names the last one it heard; `None` = it does not say, being older than
    /// that rule. Gives the new time, if it is newer.
    pub fn heard(&mut self, progress: Option<u64>, now: BootTime) -> Option<BootTime> {
        let Some(progress) = progress else {
            return self.word(now);
        };
        let mut sent = None;
        while let Some((_, at)) = self.beacons.pop_front_if(|(next, _)| *next <= progress) {
            sent = Some(at);
        }
        self.word(sent?)
    }

    /// How long there has been no word.
    #[must_use]
    pub fn silence(&self, now: BootTime) -> Span {
        now.since(self.last)
    }

    fn word(&mut self, at: BootTime) -> Option<BootTime> {
        let newer = at > self.last;
        self.last = self.last.max(at);
        newer.then_some(at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_counts_from_when_the_agent_sent_what_it_answers() {
        let mut contact = Contact::new(BootTime(100));
        assert_eq!(contact.silence(BootTime(150)), Span(50));

        contact.hello_sent(BootTime(200));
        assert_eq!(contact.welcomed(), Some(BootTime(200)));
        contact.beacon_sent(1, BootTime(300));
        contact.beacon_sent(2, BootTime(400));
        contact.beacon_sent(3, BootTime(500));

        // Held back on its way for long: it says no more than that the first beacon was heard.
        assert_eq!(contact.heard(Some(1), BootTime(9000)), Some(BootTime(300)));
        assert_eq!(contact.heard(Some(1), BootTime(9001)), None);
        assert_eq!(contact.heard(Some(3), BootTime(9002)), Some(BootTime(500)));
        assert_eq!(contact.silence(BootTime(9002)), Span(8502));
    }

    #[test]
    fn beacons_of_an_earlier_stream_are_never_taken_for_heard() {
        let mut contact = Contact::new(BootTime(0));
        contact.hello_sent(BootTime(10));
        contact.beacon_sent(7, BootTime(20));
        contact.hello_sent(BootTime(30));
        assert_eq!(contact.heard(Some(7), BootTime(40)), None);
        assert_eq!(contact.heard(Some(0), BootTime(41)), None);
        assert_eq!(contact.welcomed(), Some(BootTime(30)));
    }

    #[test]
    fn a_master_that_does_not_say_what_it_heard_counts_from_now() {
        let mut contact = Contact::new(BootTime(0));
        assert_eq!(contact.heard(None, BootTime(70)), Some(BootTime(70)));
    }

    #[test]
    fn beacons_that_nobody_hears_are_bounded() {
        let mut contact = Contact::new(BootTime(0));
        for progress in 0..1000 {
            contact.beacon_sent(progress, BootTime(progress));
        }
        assert_eq!(contact.beacons.len(), MOST_UNHEARD);
        assert_eq!(
            contact.heard(Some(999), BootTime(2000)),
            Some(BootTime(999))
        );
    }
}
