//! When leases expire: the part of a lease that only the leader knows.
//!
//! Not replicated and not part of the state machine. The leader's server owns it, passes in
//! the time (milliseconds of a monotonic clock) and proposes the resulting commands. A new
//! leader starts with the remaining time in the replicated state, so a lease may expire
//! late but never early.

use std::collections::{BTreeMap, BTreeSet};

use crate::command::LeaseCheckpoint;
use crate::lease::Lease;

/// The deadlines of all leases, as the leader counts them.
#[derive(Clone, Debug)]
pub struct LeaseDeadlines {
    leases: BTreeMap<i64, Deadline>,
    by_end: BTreeSet<(u64, i64)>,
    by_checkpoint: BTreeSet<(u64, i64)>,
    checkpoint_every_ms: u64,
    /// How many checkpoints this leader has proposed.
    checkpoints: u64,
}

#[derive(Clone, Copy, Debug)]
struct Deadline {
    ttl_ms: u64,
    ends: u64,
    /// When the next checkpoint is due; `None` for leases that expire earlier.
    checkpoint: Option<u64>,
    /// Whether the replicated state may hold a remaining time below the full TTL.
    checkpointed: bool,
    /// The newest checkpoint of this lease; 0 for one of an earlier leader.
    checkpoint_number: u64,
    /// Returned by [`LeaseDeadlines::expired`]: it can no longer be renewed.
    expired: bool,
}

/// The result of renewing a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseRenewal {
    /// The full TTL in seconds.
    pub ttl: i64,
    /// Propose this checkpoint before replying to the client. Otherwise a new leader would
    /// use the old checkpoint and revoke the lease early.
    pub clear: Option<LeaseCheckpoint>,
    /// The checkpoint that it clears, for [`LeaseDeadlines::cleared`].
    pub checkpoint_number: u64,
}

/// At most this many leases expire per second after a leader change, because their owners
/// need time to find the new leader.
const EXPIRED_PER_SECOND_MAX: usize = 500;
/// When the revocation of an expired lease is proposed again.
const RETRY_MS: u64 = 3_000;

impl LeaseDeadlines {
    /// For a new leader. Every lease gets its remaining time, counted from `now` plus
    /// `grace_ms`. `checkpoint_every_ms` of 0 disables checkpoints.
    pub fn new<'a>(
        leases: impl Iterator<Item = (i64, &'a Lease)>,
        now: u64,
        grace_ms: u64,
        checkpoint_every_ms: u64,
    ) -> Self {
        let mut deadlines = Self {
            leases: BTreeMap::new(),
            by_end: BTreeSet::new(),
            by_checkpoint: BTreeSet::new(),
            checkpoint_every_ms,
            checkpoints: 0,
        };
        let begin = now.saturating_add(grace_ms);
        let mut ends: Vec<(u64, i64, &Lease)> = leases
            .map(|(id, lease)| (begin.saturating_add(millis(lease.seconds_left())), id, lease))
            .collect();
        ends.sort_unstable_by_key(|(end, id, _)| (*end, *id));
        for position in 0..ends.len() {
            if let Some(earlier) = position.checked_sub(EXPIRED_PER_SECOND_MAX) {
                ends[position].0 = ends[position].0.max(ends[earlier].0.saturating_add(1_000));
            }
            let (end, id, lease) = ends[position];
            deadlines.insert(id, millis(lease.ttl), end, now, lease.remaining > 0);
        }
        deadlines
    }

    fn insert(&mut self, id: i64, ttl_ms: u64, ends: u64, now: u64, checkpointed: bool) {
        self.remove(id);
        let due = now.saturating_add(self.checkpoint_every_ms);
        let checkpoint = (self.checkpoint_every_ms > 0 && due < ends).then_some(due);
        self.by_end.insert((ends, id));
        self.by_checkpoint.extend(checkpoint.map(|due| (due, id)));
        let (checkpoint_number, expired) = (0, false);
        let deadline =
            Deadline { ttl_ms, ends, checkpoint, checkpointed, checkpoint_number, expired };
        self.leases.insert(id, deadline);
    }

    /// Adds a lease that was granted.
    pub fn grant(&mut self, id: i64, ttl: i64, now: u64) {
        let ttl_ms = millis(ttl);
        self.insert(id, ttl_ms, now.saturating_add(ttl_ms), now, false);
    }

    /// Removes a lease that was revoked.
    pub fn remove(&mut self, id: i64) {
        if let Some(deadline) = self.leases.remove(&id) {
            self.by_end.remove(&(deadline.ends, id));
            if let Some(due) = deadline.checkpoint {
                self.by_checkpoint.remove(&(due, id));
            }
        }
    }

    /// Renews a lease (keep-alive). `None` if it does not exist or has expired.
    pub fn renew(&mut self, id: i64, now: u64) -> Option<LeaseRenewal> {
        let deadline = *self.leases.get(&id).filter(|deadline| !deadline.expired)?;
        let Deadline { ttl_ms, checkpointed, checkpoint_number, .. } = deadline;
        self.insert(id, ttl_ms, now.saturating_add(ttl_ms), now, checkpointed);
        if let Some(renewed) = self.leases.get_mut(&id) {
            renewed.checkpoint_number = checkpoint_number;
        }
        // Also by the next renewal, until the command has run: it may be lost.
        let clear = deadline.checkpointed.then_some(LeaseCheckpoint { id, remaining: 0 });
        Some(LeaseRenewal { ttl: (ttl_ms / 1_000) as i64, clear, checkpoint_number })
    }

    /// The command that clears this checkpoint of a lease has run. A newer one is not cleared.
    pub fn cleared(&mut self, id: i64, checkpoint_number: u64) {
        let deadline = self.leases.get_mut(&id);
        if let Some(deadline) = deadline.filter(|one| one.checkpoint_number == checkpoint_number) {
            deadline.checkpointed = false;
        }
    }

    /// Seconds until a lease expires, rounded down as in etcd, where some time has always passed
    /// since the grant: a lease of 60 seconds has 59 left at first. -1 for a lease that has
    /// expired and is not revoked yet.
    pub fn seconds_left(&self, id: i64, now: u64) -> Option<i64> {
        let deadline = self.leases.get(&id)?;
        if deadline.expired {
            return Some(-1);
        }
        Some((deadline.ends.saturating_sub(now + 1) / 1_000) as i64)
    }

    /// The ids of all leases, those that end first before the others.
    pub fn by_end(&self) -> impl Iterator<Item = i64> {
        self.by_end.iter().map(|(_, id)| *id)
    }

    /// Leases to revoke: at most `count_max` expired leases, oldest first. They are returned
    /// again after a retry interval until they are removed.
    pub fn expired(&mut self, now: u64, count_max: usize) -> Vec<i64> {
        let due: Vec<_> = self.by_end.range(..=(now, i64::MAX)).take(count_max).copied().collect();
        for (ends, id) in &due {
            self.by_end.remove(&(*ends, *id));
            if let Some(deadline) = self.leases.get_mut(id) {
                deadline.expired = true;
                deadline.ends = now.saturating_add(RETRY_MS);
                self.by_end.insert((deadline.ends, *id));
                if let Some(due) = deadline.checkpoint.take() {
                    self.by_checkpoint.remove(&(due, *id));
                }
            }
        }
        due.into_iter().map(|(_, id)| id).collect()
    }

    /// Checkpoints to propose: at most `count_max`, for leases longer than the checkpoint
    /// interval.
    pub fn checkpoints_due(&mut self, now: u64, count_max: usize) -> Vec<LeaseCheckpoint> {
        let due: Vec<_> =
            self.by_checkpoint.range(..=(now, i64::MAX)).take(count_max).copied().collect();
        let mut checkpoints = Vec::with_capacity(due.len());
        for (due, id) in due {
            self.by_checkpoint.remove(&(due, id));
            let Some(deadline) = self.leases.get_mut(&id) else { continue };
            let next = now.saturating_add(self.checkpoint_every_ms);
            deadline.checkpoint = (next < deadline.ends).then_some(next);
            self.checkpoints += 1;
            (deadline.checkpointed, deadline.checkpoint_number) = (true, self.checkpoints);
            self.by_checkpoint.extend(deadline.checkpoint.map(|next| (next, id)));
            // Rounded up: a lease may expire late but never early.
            let remaining = deadline.ends.saturating_sub(now).div_ceil(1_000) as i64;
            checkpoints.push(LeaseCheckpoint { id, remaining });
        }
        checkpoints
    }

    /// When the next expiry or checkpoint is due.
    pub fn next_due(&self) -> Option<u64> {
        let first = |set: &BTreeSet<(u64, i64)>| set.first().map(|(due, _)| *due);
        first(&self.by_end).into_iter().chain(first(&self.by_checkpoint)).min()
    }
}

fn millis(seconds: i64) -> u64 {
    (seconds.max(0) as u64).saturating_mul(1_000)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::LeaseGrant;
    use crate::lease::Leases;

    fn leases(count: i64, ttl: i64) -> Leases {
        let mut leases = Leases::default();
        for id in 1..=count {
            leases.grant(&LeaseGrant { id, ttl }).unwrap();
        }
        leases
    }

    #[test]
    fn new_leader_expires_no_lease_early_and_limits_the_rate() {
        let leases = leases(1_200, 10);
        let mut deadlines = LeaseDeadlines::new(leases.iter(), 5_000, 1_000, 0);
        assert_eq!(deadlines.next_due(), Some(16_000));
        assert!(deadlines.expired(15_999, 9_999).is_empty());
        assert_eq!(deadlines.expired(16_000, 9_999).len(), 500);
        assert_eq!(deadlines.expired(16_999, 9_999).len(), 0);
        assert_eq!(deadlines.expired(17_000, 9_999).len(), 500);
        assert_eq!(deadlines.expired(18_000, 9_999).len(), 200);
    }

    #[test]
    fn checkpoint_counts_until_the_lease_is_renewed() {
        let mut leases = leases(1, 600);
        let mut first = LeaseDeadlines::new(leases.iter(), 0, 0, 300_000);
        assert!(first.checkpoints_due(299_999, 10).is_empty());
        let due = first.checkpoints_due(300_500, 10);
        assert_eq!(due, [LeaseCheckpoint { id: 1, remaining: 300 }]);
        leases.checkpoint(due[0]);

        let mut second = LeaseDeadlines::new(leases.iter(), 1_000, 0, 300_000);
        assert_eq!(second.seconds_left(1, 1_000), Some(299));
        let renewal = second.renew(1, 2_000).unwrap();
        assert_eq!(renewal.ttl, 600);
        assert_eq!(renewal.clear, Some(LeaseCheckpoint { id: 1, remaining: 0 }));
        assert_eq!(second.seconds_left(1, 2_000), Some(599));
        assert!(second.renew(1, 3_000).unwrap().clear.is_some(), "not cleared yet");
        second.cleared(1, renewal.checkpoint_number);
        assert_eq!(second.renew(1, 3_000).unwrap().clear, None);
    }

    #[test]
    fn expired_lease_is_not_renewed_and_is_returned_again() {
        let leases = leases(1, 5);
        let mut deadlines = LeaseDeadlines::new(leases.iter(), 0, 0, 0);
        deadlines.grant(2, 5, 0);
        assert_eq!(deadlines.expired(5_000, 1), [1]);
        assert_eq!(deadlines.renew(1, 5_001), None);
        assert_eq!(deadlines.renew(2, 5_001).map(|renewal| renewal.ttl), Some(5));
        assert_eq!(deadlines.seconds_left(1, 5_001), Some(-1));
        assert_eq!(deadlines.expired(7_999, 9), [0i64; 0]);
        assert_eq!(deadlines.expired(8_000, 9), [1]);
        deadlines.remove(1);
        assert_eq!(deadlines.seconds_left(1, 8_000), None);
        assert_eq!(deadlines.next_due(), Some(10_001));
    }
}
