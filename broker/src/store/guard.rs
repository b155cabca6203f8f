//! The guarded opening: a panic of the storage engine while it opens is an answer, not an end.
//!
//! A panic anywhere else ends the process. The program's panic hook asks [`thread_is_guarded`]
//! before it aborts; only the opening of a store (and the preflight's dry run, which has its own
//! guard) may say yes.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread;

thread_local! {
    static GUARDED: Cell<bool> = const { Cell::new(false) };
}

/// True while the calling thread runs inside a guard: its panic will be caught and answered.
#[must_use]
pub fn thread_is_guarded() -> bool {
    GUARDED.with(Cell::get)
}

/// Runs `work` on a thread of its own and turns a panic into its message.
///
/// A thread of its own, because a panicked engine may have left thread-local state behind that
/// nobody should meet again.
///
/// # Errors
/// The panic's message, or that no thread could be started.
pub fn run_guarded<T: Send + 'static>(
    name: &str,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, String> {
    let guarded = move || {
        GUARDED.with(|flag| flag.set(true));
        // The closure's captures are not looked at again after a panic.
        catch_unwind(AssertUnwindSafe(work)).map_err(|panic| panic_text(panic.as_ref()))
    };
    let started = thread::Builder::new().name(name.to_owned()).spawn(guarded);
    match started {
        Ok(handle) => handle
            .join()
            .unwrap_or_else(|panic| Err(panic_text(panic.as_ref()))),
        Err(error) => Err(format!("start the thread {name}: {error}")),
    }
}

/// Runs `work` on the calling thread and turns a panic into its message.
///
/// For work that only reads: nothing it has touched may be half changed by a panic.
///
/// # Errors
/// The panic's message.
pub fn run_guarded_here<T>(work: impl FnOnce() -> T) -> Result<T, String> {
    let was_guarded = GUARDED.replace(true);
    let done = catch_unwind(AssertUnwindSafe(work));
    GUARDED.set(was_guarded);
    done.map_err(|panic| panic_text(panic.as_ref()))
}

fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic
        .downcast_ref::<&str>()
        .map(|text| (*text).to_owned())
        .or_else(|| panic.downcast_ref::<String>().cloned());
    text.unwrap_or_else(|| "a panic without a message".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_inside_the_guard_comes_back_as_its_message() {
        let answer = run_guarded("guard-test", || -> u32 { panic!("page {} is gone", 7) });

        assert_eq!(answer, Err("page 7 is gone".to_owned()));
    }

    #[test]
    fn only_the_guarded_thread_says_that_it_is_guarded() {
        let inside = run_guarded("guard-test", thread_is_guarded);

        assert_eq!(inside, Ok(true));
        assert!(!thread_is_guarded());
    }
}
