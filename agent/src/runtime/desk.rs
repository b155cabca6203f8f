//! What is wanted of one run: verbs arrive here from any thread and are merged until the run's own
//! task carries them out, so the queue of a run cannot grow.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::Notify;

use super::Stop;

/// Signals that wait; more are the same flood.
const MOST_SIGNALS: usize = 16;
/// No deadline is further away than a year.
const FAR: Duration = Duration::from_secs(366 * 86_400);

#[derive(Debug, Default)]
struct Wanted {
    go: Option<BTreeMap<String, String>>,
    stop: Option<(Instant, u32)>,
    stop_is_new: bool,
    signals: VecDeque<u32>,
    /// A process may exist.
    born: bool,
    /// None may be made any more.
    closed: bool,
    forget: bool,
}

/// One run's desk.
#[derive(Debug, Default)]
pub(crate) struct Desk {
    wanted: Mutex<Wanted>,
    changed: Notify,
}

/// What is to be sent to the shim now.
#[derive(Debug, Default)]
pub(crate) struct Orders {
    pub(crate) go: Option<BTreeMap<String, String>>,
    pub(crate) stop: Option<Stop>,
    pub(crate) signals: Vec<u32>,
}

impl Desk {
    fn wanted(&self) -> MutexGuard<'_, Wanted> {
        // Nothing below can panic while it holds the lock, and plain data has no half states.
        self.wanted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn go(&self, environment: BTreeMap<String, String>) {
        self.wanted().go.get_or_insert(environment);
        self.changed.notify_one();
    }

    /// A later stop may shorten the grace, never lengthen it.
    pub(crate) fn stop(&self, stop: Stop) {
        let force_at = Instant::now() + Duration::from_millis(stop.grace_ms).min(FAR);
        {
            let mut wanted = self.wanted();
            if wanted.stop.is_none_or(|(earlier, _)| force_at < earlier) {
                let signal = wanted.stop.map_or(stop.signal, |(_, signal)| signal);
                wanted.stop = Some((force_at, signal));
                wanted.stop_is_new = true;
            }
        }
        self.changed.notify_one();
    }

    pub(crate) fn signal(&self, signal: u32) {
        {
            let mut wanted = self.wanted();
            if wanted.signals.len() < MOST_SIGNALS {
                wanted.signals.push_back(signal);
            }
        }
        self.changed.notify_one();
    }

    pub(crate) fn forget(&self) {
        self.wanted().forget = true;
    }

    pub(crate) fn is_forgotten(&self) -> bool {
        self.wanted().forget
    }

    pub(crate) fn is_stopped(&self) -> bool {
        self.wanted().stop.is_some()
    }

    /// Carries `birth` out unless the run was stopped or given up before. Holding the desk over it
    /// is the point: afterwards it is certain whether a process can exist.
    pub(crate) fn be_born<T>(&self, birth: impl FnOnce() -> T) -> Option<T> {
        let mut wanted = self.wanted();
        if wanted.closed || wanted.stop.is_some() {
            return None;
        }
        wanted.born = true;
        Some(birth())
    }

    /// From now on no process is made; says whether one may exist already.
    pub(crate) fn close(&self) -> bool {
        let mut wanted = self.wanted();
        wanted.closed = true;
        wanted.born
    }

    /// Waits for a verb. One that came before is not missed.
    pub(crate) async fn changed(&self) {
        self.changed.notified().await;
    }

    /// What was asked since the last time. After a reconnect the shim is told everything again:
    /// call [`Desk::repeat`] first.
    pub(crate) fn take(&self) -> Orders {
        let mut wanted = self.wanted();
        let new = std::mem::take(&mut wanted.stop_is_new);
        let stop = wanted.stop.filter(|_| new).map(|(force_at, signal)| {
            let grace = force_at.saturating_duration_since(Instant::now());
            Stop {
                grace_ms: u64::try_from(grace.as_millis()).unwrap_or(u64::MAX),
                signal,
            }
        });
        Orders {
            go: wanted.go.clone(),
            stop,
            signals: wanted.signals.drain(..).collect(),
        }
    }

    /// Makes the next [`Desk::take`] name the stop again.
    pub(crate) fn repeat(&self) {
        self.wanted().stop_is_new = true;
        self.changed.notify_one();
    }
}
