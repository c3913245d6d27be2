//! The timer of a member's task.
//!
//! A timer of tokio that ends before all others of its runtime wakes the runtime's own thread: a write
//! and a turn of its loop, although that thread is the one that sets it. A busy member sets such a
//! timer for nearly every batch. On Linux a member on a thread of its host uses a timer of the kernel
//! instead, which the thread waits for as for a socket.

use std::time::Instant;

#[cfg(target_os = "linux")]
use kernel::KernelTimer;

/// Waits for one moment at a time.
pub(crate) struct WakeTimer {
    #[cfg(target_os = "linux")]
    kernel: KernelTimerState,
}

#[cfg(target_os = "linux")]
enum KernelTimerState {
    /// It is created when it is first needed: most members of a process with many are idle.
    NotCreated,
    Created(KernelTimer),
    /// The runtime is not the host's own, or the system has no timer left.
    None,
}

impl WakeTimer {
    /// `own_thread` is whether the member runs on a thread of its host, whose runtime can wait for
    /// file descriptors.
    pub(crate) fn new(own_thread: bool) -> Self {
        #[cfg(not(target_os = "linux"))]
        let _ = own_thread;
        Self {
            #[cfg(target_os = "linux")]
            kernel: match own_thread {
                true => KernelTimerState::NotCreated,
                false => KernelTimerState::None,
            },
        }
    }

    /// Returns at this time or later; without one never. A wait that is cancelled may make a later one
    /// return early.
    pub(crate) async fn wait_until(&mut self, at: Option<Instant>) {
        let Some(at) = at else { return std::future::pending().await };
        #[cfg(target_os = "linux")]
        if let Some(kernel) = self.kernel() {
            return kernel.wait_until(at).await;
        }
        tokio::time::sleep_until(at.into()).await;
    }

    #[cfg(target_os = "linux")]
    fn kernel(&mut self) -> Option<&mut KernelTimer> {
        if matches!(self.kernel, KernelTimerState::NotCreated) {
            self.kernel =
                KernelTimer::new().map_or(KernelTimerState::None, KernelTimerState::Created);
        }
        match &mut self.kernel {
            KernelTimerState::Created(timer) => Some(timer),
            KernelTimerState::NotCreated | KernelTimerState::None => None,
        }
    }
}

#[cfg(target_os = "linux")]
mod kernel {
    use std::io;
    use std::os::fd::OwnedFd;
    use std::time::{Duration, Instant};

    use rustix::time::{
        Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
        timerfd_settime,
    };
    use tokio::io::Interest;
    use tokio::io::unix::AsyncFd;

    pub(super) struct KernelTimer {
        fd: AsyncFd<OwnedFd>,
        /// When it ends, unless it has ended.
        set_for: Option<Instant>,
    }

    impl KernelTimer {
        pub(super) fn new() -> io::Result<Self> {
            let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
            let fd = timerfd_create(TimerfdClockId::Monotonic, flags)?;
            #[allow(
                deprecated,
                reason = "unsound only for types that do not own their descriptor; the successor is unsafe"
            )]
            let fd = AsyncFd::with_interest(fd, Interest::READABLE)?;
            Ok(Self { fd, set_for: None })
        }

        pub(super) async fn wait_until(&mut self, at: Instant) {
            if self.set_for != Some(at) && self.set(at).is_err() {
                // A valid time cannot be refused. If it is, the wait still ends.
                return tokio::time::sleep_until(at.into()).await;
            }
            if let Ok(mut ready) = self.fd.readable().await {
                // Setting it again resets it, so nothing is read from it.
                ready.clear_ready();
            }
            self.set_for = None;
        }

        fn set(&mut self, at: Instant) -> io::Result<()> {
            self.set_for = None;
            // Zero would stop it.
            let left = at.saturating_duration_since(Instant::now()).max(Duration::from_nanos(1));
            let it_value = Timespec {
                tv_sec: left.as_secs().try_into().unwrap_or(i64::MAX),
                tv_nsec: left.subsec_nanos().into(),
            };
            let once = Itimerspec { it_interval: Timespec { tv_sec: 0, tv_nsec: 0 }, it_value };
            timerfd_settime(&self.fd, TimerfdTimerFlags::empty(), &once)?;
            self.set_for = Some(at);
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// Waits again after every early return, as a member does.
    async fn wait_fully(timer: &mut WakeTimer, at: Instant) {
        while Instant::now() < at {
            timer.wait_until(Some(at)).await;
        }
    }

    #[tokio::test]
    async fn it_ends_not_before_its_time_also_after_a_cancelled_wait() {
        for own_thread in [false, true] {
            let mut timer = WakeTimer::new(own_thread);
            for milliseconds in [2, 0, 5, 1] {
                let at = Instant::now() + Duration::from_millis(milliseconds);
                wait_fully(&mut timer, at).await;
                assert!(Instant::now() >= at);
                // Cancelled, once long before its end and once close to it.
                for cancelled in [Duration::from_secs(3600), Duration::from_micros(50)] {
                    let cancelled = Instant::now() + cancelled;
                    tokio::select! {
                        biased;
                        () = timer.wait_until(Some(cancelled)) => {}
                        () = tokio::task::yield_now() => {}
                    }
                }
            }
        }
    }

    #[tokio::test]
    async fn a_past_time_has_come_and_no_time_never_comes() {
        for own_thread in [false, true] {
            let mut timer = WakeTimer::new(own_thread);
            let past = Instant::now();
            timer.wait_until(Some(past)).await;
            timer.wait_until(Some(past)).await;
            tokio::select! {
                biased;
                () = timer.wait_until(None) => panic!("no time has come"),
                () = tokio::time::sleep(Duration::from_millis(5)) => {}
            }
        }
    }
}
