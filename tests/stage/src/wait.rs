//! Waiting for what a stage does in its own time: looked at often, given up after long.

use std::time::Duration;

use tokio::time::Instant;

const LOOK: Duration = Duration::from_millis(15);
const GIVE_UP: Duration = Duration::from_secs(120);

/// Waits until `is_so` answers yes. Panics with `what` when it never does.
pub async fn until(what: &str, mut is_so: impl AsyncFnMut() -> bool) {
    let deadline = Instant::now() + GIVE_UP;
    while !is_so().await {
        assert!(Instant::now() < deadline, "never came: {what}");
        tokio::time::sleep(LOOK).await;
    }
}
