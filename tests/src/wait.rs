//! Waiting for a condition with a deadline. Nothing here sleeps a fixed time and hopes.

use std::{future::Future, time::Duration};

use tokio::time::Instant;

/// Asks until the answer is there, at most `within`. Panics with `what` when it does not come.
pub async fn eventually<T, F: Future<Output = Option<T>>>(
    what: &str,
    within: Duration,
    mut ask: impl FnMut() -> F,
) -> T {
    let deadline = Instant::now() + within;
    let mut pause = Duration::from_millis(10);
    loop {
        if let Some(answer) = ask().await {
            return answer;
        }
        assert!(Instant::now() < deadline, "waited {within:?} in vain for: {what}");
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(Duration::from_millis(250));
    }
}
