//! A deliberate defect, for the simulator's own tests: they must catch it. Compiled in only with
//! the feature `broken`, which no product build has, and off until a test switches it on for its
//! own thread.

use std::cell::Cell;

thread_local! {
    static LAUNCHES_UNCHECKED: Cell<bool> = const { Cell::new(false) };
}

/// From here on this thread books launches without a look at what is free, or looks again.
pub fn leave_launches_unchecked(unchecked: bool) {
    LAUNCHES_UNCHECKED.set(unchecked);
}

/// Launches are booked without a look at what is free.
pub(crate) fn launches_are_unchecked() -> bool {
    LAUNCHES_UNCHECKED.get()
}
