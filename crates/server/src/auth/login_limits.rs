//! Limits of password checks: how many may wait and run for each user, for each address and
//! overall, and delays after failures.
//!
//! - Attempts from one address are made one after the other, and those for one user a few at a
//!   time. An attempt counts as failed from its start until it succeeds. So a burst gives no more
//!   guesses than a sequence, and an address never has more than one check waiting for a thread.
//! - Delays double with each failure, up to [`DELAY_MAX`]. An attempt that would have to wait longer
//!   than [`WAIT_MAX`] is refused unchecked.
//! - A user cannot be locked out by others: addresses from which the user has logged in before
//!   are not delayed because of failures elsewhere.
//!
//! Names of users that do not exist are treated like others.

use std::collections::HashMap;
use std::hash::Hash;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, sleep};

#[derive(Default)]
pub(crate) struct LoginLimits {
    state: Mutex<LimitsState>,
}

#[derive(Default)]
struct LimitsState {
    users: HashMap<String, Origin>,
    addresses: HashMap<IpAddr, Origin>,
    /// Attempts that wait or run.
    pending: usize,
}

/// What is known about the attempts of a user, or of an address.
struct Origin {
    failures: u32,
    /// The start of the newest attempt that counts as failed.
    last: Instant,
    pending: usize,
    turns: Arc<Semaphore>,
    /// Of a user: the addresses of the newest successful attempts.
    trusted: Vec<IpAddr>,
}

/// Too many attempts of this user or address, or overall.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct TooManyAttempts;

/// An attempt whose password may be checked now. The next one of the same address waits until it
/// is dropped.
pub(crate) struct LoginAttempt {
    limits: Arc<LoginLimits>,
    user: String,
    address: Option<IpAddr>,
    turns: Vec<OwnedSemaphorePermit>,
}

impl LoginLimits {
    /// Waits until this attempt may be made. From then on it counts as failed.
    pub(crate) async fn begin(
        self: &Arc<Self>,
        user: &str,
        address: Option<IpAddr>,
    ) -> Result<LoginAttempt, TooManyAttempts> {
        let arrived = Instant::now();
        let address = address.map(network_of);
        let (mut attempt, turns) = self.enqueue(user, address)?;
        for turn in turns {
            attempt.turns.push(turn.acquire_owned().await.map_err(|_| TooManyAttempts)?);
        }
        let delay = self.state().delay(&attempt, Instant::now());
        if !delay.is_zero() {
            if arrived.elapsed() + delay > WAIT_MAX {
                return Err(TooManyAttempts);
            }
            sleep(delay).await;
        }
        self.state().count(&attempt, Instant::now());
        Ok(attempt)
    }

    /// Enters an attempt into the queues of its user and address. Returns the turns that it has to
    /// wait for.
    fn enqueue(
        self: &Arc<Self>,
        user: &str,
        address: Option<IpAddr>,
    ) -> Result<(LoginAttempt, Vec<Arc<Semaphore>>), TooManyAttempts> {
        let now = Instant::now();
        let mut state = self.state();
        let LimitsState { users, addresses, pending } = &mut *state;
        let mut turns = Vec::new();
        let mut is_first = true;
        if let Some(address) = address {
            let origin = origin_of(addresses, &address, ADDRESS_ATTEMPTS_AT_ONCE, now);
            let delay = origin.delay(now);
            let most = match delay.is_zero() {
                true => ADDRESS_PENDING_MAX,
                false => (WAIT_MAX.as_millis() / delay.as_millis().max(1)) as usize,
            };
            if origin.pending >= most.clamp(1, ADDRESS_PENDING_MAX) {
                return Err(TooManyAttempts);
            }
            is_first = origin.pending == 0;
            turns.push(Arc::clone(&origin.turns));
        }
        let origin = origin_of(users, &user.to_owned(), USER_ATTEMPTS_AT_ONCE, now);
        let is_trusted = address.is_some_and(|address| origin.trusted.contains(&address));
        let is_full = origin.pending >= USER_PENDING_MAX || *pending >= PENDING_MAX;
        // Many addresses together can fill the queues, and must not keep others out.
        if (is_full && !is_first) || *pending >= 2 * PENDING_MAX {
            return Err(TooManyAttempts);
        }
        if !is_trusted {
            turns.push(Arc::clone(&origin.turns));
        }
        origin.pending += 1;
        *pending += 1;
        if let Some(origin) = address.and_then(|address| addresses.get_mut(&address)) {
            origin.pending += 1;
        }
        drop(state);
        let limits = Arc::clone(self);
        Ok((LoginAttempt { limits, user: user.to_owned(), address, turns: Vec::new() }, turns))
    }

    fn state(&self) -> MutexGuard<'_, LimitsState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl LimitsState {
    /// How long an attempt whose turn it is has to wait.
    fn delay(&self, attempt: &LoginAttempt, now: Instant) -> Duration {
        let address = attempt.address.and_then(|address| self.addresses.get(&address));
        let user = self
            .users
            .get(&attempt.user)
            .filter(|user| attempt.address.is_none_or(|address| !user.trusted.contains(&address)));
        let wait = |origin: &Origin| (origin.last + origin.delay(now)).duration_since(now);
        address.into_iter().chain(user).map(wait).max().unwrap_or_default()
    }

    fn count(&mut self, attempt: &LoginAttempt, now: Instant) {
        let address = attempt.address.and_then(|address| self.addresses.get_mut(&address));
        for origin in address.into_iter().chain(self.users.get_mut(&attempt.user)) {
            let is_forgotten = origin.is_forgotten(now);
            origin.failures = if is_forgotten { 1 } else { origin.failures.saturating_add(1) };
            origin.last = now;
        }
    }
}

impl LoginAttempt {
    /// The password is right: it no longer counts as a failure. Other failures of the address
    /// still do, since anyone may have an account of their own.
    pub(crate) fn succeeded(&self) {
        let mut state = self.limits.state();
        let LimitsState { users, addresses, .. } = &mut *state;
        if let Some(origin) = users.get_mut(&self.user) {
            origin.failures = 0;
            if let Some(address) = self.address {
                origin.trusted.retain(|trusted| *trusted != address);
                origin.trusted.insert(0, address);
                origin.trusted.truncate(TRUSTED_MAX);
            }
        }
        if let Some(origin) = self.address.and_then(|address| addresses.get_mut(&address)) {
            origin.failures = origin.failures.saturating_sub(1);
        }
    }
}

impl Drop for LoginAttempt {
    fn drop(&mut self) {
        let mut state = self.limits.state();
        state.pending = state.pending.saturating_sub(1);
        let LimitsState { users, addresses, .. } = &mut *state;
        leave(users, &self.user);
        if let Some(address) = &self.address {
            leave(addresses, address);
        }
    }
}

impl Origin {
    /// The time between the start of the last attempt and that of the next.
    fn delay(&self, now: Instant) -> Duration {
        if self.failures < FREE_FAILURES || self.is_forgotten(now) {
            return Duration::ZERO;
        }
        let doublings = (self.failures - FREE_FAILURES).min(16);
        (DELAY_MIN * 2_u32.pow(doublings)).min(DELAY_MAX)
    }

    fn is_forgotten(&self, now: Instant) -> bool {
        now.duration_since(self.last) > FORGOTTEN_AFTER
    }
}

fn origin_of<'a, K: Clone + Eq + Hash>(
    origins: &'a mut HashMap<K, Origin>,
    key: &K,
    attempts_at_once: usize,
    now: Instant,
) -> &'a mut Origin {
    if origins.len() >= ORIGINS_MAX && !origins.contains_key(key) {
        // Names that an attacker makes up must not take memory without a limit.
        origins.retain(|_, it| it.pending > 0 || (it.failures > 0 && !it.is_forgotten(now)));
        if origins.len() >= ORIGINS_MAX {
            origins.retain(|_, it| it.pending > 0 || it.failures >= FREE_FAILURES);
        }
        if origins.len() >= ORIGINS_MAX {
            origins.retain(|_, it| it.pending > 0);
        }
    }
    origins.entry(key.clone()).or_insert_with(|| Origin {
        failures: 0,
        last: now,
        pending: 0,
        turns: Arc::new(Semaphore::new(attempts_at_once)),
        trusted: Vec::new(),
    })
}

fn leave<K: Eq + Hash>(origins: &mut HashMap<K, Origin>, key: &K) {
    let Some(origin) = origins.get_mut(key) else { return };
    origin.pending = origin.pending.saturating_sub(1);
    if origin.pending == 0 && origin.failures == 0 && origin.trusted.is_empty() {
        origins.remove(key);
    }
}

/// Whoever has one IPv6 address usually has all with the same first 64 bits.
fn network_of(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => {
            IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() & !u128::from(u64::MAX)))
        }
        v4 => v4,
    }
}

/// Failures before the first delay: people mistype.
const FREE_FAILURES: u32 = 3;
const DELAY_MIN: Duration = Duration::from_millis(100);
const DELAY_MAX: Duration = Duration::from_secs(3);
const WAIT_MAX: Duration = Duration::from_secs(10);
const FORGOTTEN_AFTER: Duration = Duration::from_secs(300);
const ADDRESS_ATTEMPTS_AT_ONCE: usize = 1;
/// From different addresses.
const USER_ATTEMPTS_AT_ONCE: usize = 8;
/// Without failures: many programs of one machine may start at the same time.
const ADDRESS_PENDING_MAX: usize = 1_024;
const USER_PENDING_MAX: usize = 1_024;
/// Overall; twice as many if each is the only one of its address.
const PENDING_MAX: usize = 4_096;
const TRUSTED_MAX: usize = 8;
const ORIGINS_MAX: usize = 100_000;

#[cfg(test)]
mod tests;
