//! A limit on bytes per second.

use std::sync::Mutex;
use std::time::Duration;

use tokio::time::Instant;

use crate::runtime::lock;

/// A token bucket that holds at most a quarter of a second's worth. It may be overdrawn: the
/// caller then waits until it is filled again.
pub(crate) struct RateLimit {
    bytes_per_second: Option<f64>,
    bucket: Mutex<TokenBucket>,
}

struct TokenBucket {
    bytes: f64,
    at: Instant,
}

const BURST_SECONDS: f64 = 0.25;

impl RateLimit {
    pub(crate) fn new(bytes_per_second: Option<u64>) -> Self {
        let bytes_per_second = bytes_per_second.map(|rate| rate.max(1) as f64);
        Self {
            bytes_per_second,
            bucket: Mutex::new(TokenBucket { bytes: 0.0, at: Instant::now() }),
        }
    }

    /// Takes these bytes out. The caller sends them after the returned pause.
    pub(crate) fn take(&self, bytes: usize) -> Duration {
        let Some(rate) = self.bytes_per_second else { return Duration::ZERO };
        let mut bucket = lock(&self.bucket);
        let now = Instant::now();
        let filled = bucket.bytes + now.duration_since(bucket.at).as_secs_f64() * rate;
        bucket.at = now;
        bucket.bytes = filled.min(rate * BURST_SECONDS) - bytes as f64;
        Duration::try_from_secs_f64((-bucket.bytes / rate).max(0.0)).unwrap_or(Duration::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn bytes_are_sent_at_the_rate_and_idle_time_allows_a_small_burst() {
        let rate = RateLimit::new(Some(1000));
        assert_eq!(rate.take(500), Duration::from_millis(500));
        assert_eq!(rate.take(500), Duration::from_millis(1000));
        tokio::time::advance(Duration::from_secs(60)).await;
        assert_eq!(rate.take(250), Duration::ZERO);
        assert_eq!(rate.take(100), Duration::from_millis(100));
        assert_eq!(RateLimit::new(None).take(usize::MAX), Duration::ZERO);
    }
}
