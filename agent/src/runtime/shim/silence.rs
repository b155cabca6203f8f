//! How long the run's node has not heard from a leader: the timer that a shim holds, also while no
//! agent runs.
//!
//! It counts on a clock that goes on while the machine sleeps and that nobody sets. At the end of
//! the time the agent's file is looked at; only if no leader was heard meanwhile is the time over.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::path::Path;

use mete_proto::internal::v1::ShimSpec;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};

use crate::contact::BootTime;
use crate::runtime::contact::{ContactFile, now};

/// See the module.
#[derive(Debug)]
pub(super) struct Silence {
    /// Readable when it is time to look.
    pub(super) timer: File,
    limit: u64,
    file: Option<ContactFile>,
    /// The last word that is known of: at first the shim's own beginning, unless the file says more
    /// exactly when it was.
    heard: BootTime,
}

impl Silence {
    /// `None`: the run goes on whatever its node hears.
    ///
    /// # Errors
    /// The kernel has no such timer: the run must not begin.
    pub(super) fn of(spec: &ShimSpec) -> io::Result<Option<Self>> {
        if spec.stop_if_silent_ms == 0 {
            return Ok(None);
        }
        let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
        let timer: OwnedFd = timerfd_create(TimerfdClockId::Boottime, flags)?;
        let file = ContactFile::at(Path::new(&spec.contact_file), spec.boot_id.clone());
        let heard = file.as_ref().and_then(ContactFile::read);
        let silence = Self {
            timer: File::from(timer),
            limit: spec.stop_if_silent_ms,
            heard: heard.unwrap_or_else(now),
            file,
        };
        silence.arm()?;
        Ok(Some(silence))
    }

    /// Says whether the time is over; otherwise the timer is set anew.
    pub(super) fn is_over(&mut self) -> bool {
        if now() < self.end() {
            return false;
        }
        let mut expired = [0_u8; 8];
        let _not_yet = self.timer.read(&mut expired);
        let heard = self.file.as_ref().and_then(ContactFile::read);
        self.heard = heard.map_or(self.heard, |heard| heard.max(self.heard));
        // A timer that cannot be set would never come back: better ended than run twice.
        now() >= self.end() || self.arm().is_err()
    }

    fn end(&self) -> BootTime {
        BootTime(self.heard.0.saturating_add(self.limit))
    }

    fn arm(&self) -> io::Result<()> {
        let end = self.end().0;
        let at = Timespec {
            tv_sec: i64::try_from(end / 1000).unwrap_or(i64::MAX),
            tv_nsec: i64::try_from(end % 1000).unwrap_or(0) * 1_000_000,
        };
        let never = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        let once = Itimerspec {
            it_interval: never,
            it_value: at,
        };
        timerfd_settime(&self.timer, TimerfdTimerFlags::ABSTIME, &once)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use rustix::event::{PollFd, PollFlags, poll};

    use super::*;

    fn spec(file: &ContactFile, limit: u64) -> ShimSpec {
        ShimSpec {
            stop_if_silent_ms: limit,
            contact_file: file.path().to_string_lossy().into_owned(),
            boot_id: "b".to_owned(),
            ..ShimSpec::default()
        }
    }

    fn until_it_rings(silence: &Silence) {
        let mut ready = [PollFd::new(&silence.timer, PollFlags::IN)];
        let patience = Timespec {
            tv_sec: 20,
            tv_nsec: 0,
        };
        assert_eq!(poll(&mut ready, Some(&patience)), Ok(1), "it rings in time");
    }

    #[test]
    fn a_word_moves_the_end_and_silence_does_not() {
        let home = tempfile::tempdir().expect("a directory");
        let file = ContactFile::below(home.path(), "b".to_owned());
        let began = now();
        file.write(began).expect("room");
        let mut silence = Silence::of(&spec(&file, 200))
            .expect("a timer")
            .expect("asked");
        assert!(!silence.is_over(), "not yet");

        let word = BootTime(began.0 + 150);
        until_it_rings(&silence);
        file.write(word).expect("room");
        assert!(!silence.is_over(), "a leader was heard meanwhile");
        until_it_rings(&silence);
        assert!(silence.is_over());
        assert!(now().0 >= word.0 + 200);
    }

    #[test]
    fn an_end_that_has_passed_before_the_run_began_is_over_at_once() {
        let home = tempfile::tempdir().expect("a directory");
        let file = ContactFile::below(home.path(), "b".to_owned());
        file.write(BootTime(now().0.saturating_sub(5000)))
            .expect("room");
        let mut silence = Silence::of(&spec(&file, 1000))
            .expect("a timer")
            .expect("asked");
        until_it_rings(&silence);
        assert!(silence.is_over());
    }

    #[test]
    fn without_a_file_the_time_counts_from_the_beginning() {
        let home = tempfile::tempdir().expect("a directory");
        let file = ContactFile::below(home.path(), "b".to_owned());
        let began = now();
        let mut silence = Silence::of(&spec(&file, 100))
            .expect("a timer")
            .expect("asked");
        until_it_rings(&silence);
        assert!(silence.is_over());
        assert!(now().0 >= began.0 + 100);
        assert!(
            Silence::of(&spec(&file, 0))
                .expect("nothing to do")
                .is_none()
        );
    }
}
