//! A limit of frames that cause work and carry no request: pings, settings, resets, priorities,
//! empty data, frames for closed streams. Honest clients send few of them.

use tokio::time::Instant;

use crate::frame::{ConnectionError, Reason};

/// What a client may still send of them.
#[derive(Debug)]
pub(crate) struct FloodLimit {
    left: u32,
    /// When `left` was last refilled.
    refilled_at: Instant,
}

impl FloodLimit {
    pub(crate) fn new() -> Self {
        Self { left: FRAMES_MAX, refilled_at: Instant::now() }
    }

    /// Counts one frame.
    pub(crate) fn count(&mut self) -> Result<(), ConnectionError> {
        if self.left == 0 {
            self.refill();
        }
        match self.left.checked_sub(1) {
            Some(left) => {
                self.left = left;
                Ok(())
            }
            None => {
                let text = "too many frames without a request";
                Err(ConnectionError::new(Reason::ENHANCE_YOUR_CALM, text))
            }
        }
    }

    fn refill(&mut self) {
        let seconds = self.refilled_at.elapsed().as_secs();
        if seconds > 0 {
            let frames = seconds.saturating_mul(u64::from(FRAMES_PER_SECOND));
            self.left = u32::try_from(frames).unwrap_or(FRAMES_MAX).min(FRAMES_MAX);
            self.refilled_at = Instant::now();
        }
    }
}

/// A healthy client may cancel thousands of calls or watches at once.
const FRAMES_MAX: u32 = 20_000;
const FRAMES_PER_SECOND: u32 = 2_000;

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_burst_and_a_steady_rate_are_allowed() {
        let mut limit = FloodLimit::new();
        (0..FRAMES_MAX).for_each(|_| limit.count().unwrap());
        assert_eq!(limit.count().unwrap_err().reason, Reason::ENHANCE_YOUR_CALM);
        tokio::time::advance(Duration::from_secs(2)).await;
        (0..2 * FRAMES_PER_SECOND).for_each(|_| limit.count().unwrap());
        assert!(limit.count().is_err());
        tokio::time::advance(Duration::from_secs(1 << 40)).await;
        (0..FRAMES_MAX).for_each(|_| limit.count().unwrap());
        assert!(limit.count().is_err());
    }
}
