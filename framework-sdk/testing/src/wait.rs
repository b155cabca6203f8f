//! Waiting for a condition with a deadline; never for a time and hoping.

use std::time::Duration;

use tokio::time::Instant;

/// Between two looks. On a paused clock it costs nothing.
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// Waits until `condition` holds.
///
/// # Panics
/// After `longest`, with what was waited for: a test that waits in vain has failed.
pub async fn until(what: &str, longest: Duration, condition: impl FnMut() -> bool) {
    if let Err(late) = try_until(what, longest, condition).await {
        panic!("{late}");
    }
}

/// As [`until`], but says that it was in vain.
///
/// # Errors
/// What was waited for, and how long.
pub async fn try_until(
    what: &str,
    longest: Duration,
    mut condition: impl FnMut() -> bool,
) -> Result<(), String> {
    let began = Instant::now();
    while !condition() {
        if began.elapsed() >= longest {
            return Err(format!("waited {longest:?} in vain for: {what}"));
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
    Ok(())
}
