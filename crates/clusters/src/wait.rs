//! Waits for a state with a deadline: never for a duration, never for "something changed".

use std::time::{Duration, Instant};

use crate::error::Error;

/// Asks `look` until it returns `Ok`, at most for `deadline`. What `look` says while it is not satisfied ends up in the error.
pub async fn until<T, F>(what: &str, deadline: Duration, mut look: F) -> Result<T, Error>
where
    F: AsyncFnMut() -> Result<T, String>,
{
    let started = Instant::now();
    let mut seen = "nothing yet".to_string();
    loop {
        let left = deadline.saturating_sub(started.elapsed());
        if left.is_zero() {
            return Err(Error::Timeout { what: what.to_string(), after: deadline, seen });
        }
        // One look may hang (a frozen server); it must not eat the whole deadline unheard.
        match tokio::time::timeout(left.min(Duration::from_secs(10)), look()).await {
            Ok(Ok(found)) => return Ok(found),
            Ok(Err(reason)) => seen = reason,
            Err(_) => seen = "no answer within 10 s".to_string(),
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}
