//! The leader's work on leases, behind the feature `machine`: which leases to revoke, which
//! remaining times to log, and what to answer to a member that asks about a lease.
//!
//! It has no clock, no tasks and no network. Its owner passes in the time and the term that it
//! leads, proposes what is returned, and reports the result. It also passes in the machine for
//! reading: no lease is granted or revoked meanwhile. The server and the simulator run the same
//! code.
//!
//! Deadlines are not in the log. A deposed leader that does not know it could promise time that
//! the new leader does not grant. So a leader confirms that it still leads before it says how
//! long a lease lasts.

use crate::adapter::{LeaseGrants, SharedKv};
use crate::command::{Command, LeaseCheckpoint};
use crate::deadlines::{LeaseDeadlines, LeaseRenewal};
use crate::machine::Kv;
use crate::table::Table;

/// The time rules of a [`Lessor`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct LessorConfig {
    /// A new leader gives every lease this much more time, in milliseconds.
    pub grace_ms: u64,
    /// How often the remaining time of a lease is logged; 0 for never.
    pub checkpoint_every_ms: u64,
}

/// The lease deadlines of a leader; empty on other members.
#[derive(Clone, Debug, Default)]
pub struct Lessor {
    config: LessorConfig,
    leader: Option<LeaderDeadlines>,
    /// The term in which this member has begun to catch up before it counts.
    starting_term: Option<u64>,
}

#[derive(Clone, Debug)]
struct LeaderDeadlines {
    term: u64,
    deadlines: LeaseDeadlines,
    /// No remaining times are logged before.
    checkpoint_after: u64,
}

/// What is to be done for leases now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LeaseWork {
    /// This member does not lead, or is not ready yet.
    Nothing,
    /// This member no longer leads: the deadlines were dropped.
    Stopped,
    /// Apply everything that is committed (a barrier), then call [`Lessor::start`], or
    /// [`Lessor::start_failed`]. Without the checkpoints of earlier leaders, the remaining time
    /// of a lease would be too short.
    CatchUp {
        /// The term that this member leads.
        term: u64,
    },
    /// Propose these, in this term only: a later leader may have renewed the lease. The entry of
    /// this leader comes before everything that a later leader decides.
    Propose {
        /// The term.
        term: u64,
        /// The leases that expired. Call [`Lessor::forget`] when a revocation ran, or found no
        /// such lease.
        revoke: Vec<i64>,
        /// Remaining times to log.
        checkpoints: Vec<LeaseCheckpoint>,
    },
}

impl Lessor {
    /// A lessor without deadlines.
    pub fn new(config: LessorConfig) -> Self {
        Self { config, ..Self::default() }
    }

    /// The term in which this member keeps deadlines, if it does.
    pub fn term(&self) -> Option<u64> {
        self.leader.as_ref().map(|leader| leader.term)
    }

    /// What is due. `leads` is the term that this member leads. At most `revoke_max` leases
    /// are returned at once.
    pub fn poll<T: Table>(
        &mut self,
        store: &SharedKv<T>,
        kv: &Kv<T>,
        leads: Option<u64>,
        now: u64,
        revoke_max: usize,
    ) -> LeaseWork {
        let Some(term) = leads else {
            self.starting_term = None;
            if self.leader.is_none() {
                return LeaseWork::Nothing;
            }
            self.stop(store);
            return LeaseWork::Stopped;
        };
        if self.term() == Some(term) {
            self.starting_term = None;
            let revoke = self.with(store, kv, now, |deadlines| deadlines.expired(now, revoke_max));
            let checkpoints = self.checkpoints_due(now);
            return LeaseWork::Propose { term, revoke: revoke.unwrap_or_default(), checkpoints };
        }
        if self.starting_term == Some(term) {
            return LeaseWork::Nothing;
        }
        self.starting_term = Some(term);
        LeaseWork::CatchUp { term }
    }

    /// Remaining times to log now. Leases are not due at the same time: without a pause, each
    /// would be an entry of its own, and many leases would fill the log.
    fn checkpoints_due(&mut self, now: u64) -> Vec<LeaseCheckpoint> {
        let Some(leader) = self.leader.as_mut() else { return Vec::new() };
        if now < leader.checkpoint_after {
            return Vec::new();
        }
        let due = leader.deadlines.checkpoints_due(now, CHECKPOINTS_MAX);
        if !due.is_empty() && due.len() < CHECKPOINTS_MAX {
            leader.checkpoint_after = now.saturating_add(CHECKPOINT_PAUSE_MS);
        }
        due
    }

    /// Starts the deadlines of all leases in the store, which has applied all entries of
    /// earlier terms.
    pub fn start<T: Table>(&mut self, store: &SharedKv<T>, kv: &Kv<T>, term: u64, now: u64) {
        // From now on the store collects grants; all earlier ones are in it.
        let _ = store.take_grants();
        let LessorConfig { grace_ms, checkpoint_every_ms } = self.config;
        let deadlines = LeaseDeadlines::new(kv.leases(), now, grace_ms, checkpoint_every_ms);
        self.leader = Some(LeaderDeadlines { term, deadlines, checkpoint_after: 0 });
    }

    /// This member could not catch up in this term. The next poll tries again.
    pub fn start_failed(&mut self, term: u64) {
        if self.starting_term == Some(term) {
            self.starting_term = None;
        }
    }

    /// Drops the deadlines.
    pub fn stop<T: Table>(&mut self, store: &SharedKv<T>) {
        self.leader = None;
        store.stop_tracking_grants();
    }

    /// Removes the deadline of a lease that no longer exists. If it was granted again
    /// meanwhile, its deadline stays.
    pub fn forget<T: Table>(&mut self, store: &SharedKv<T>, kv: &Kv<T>, id: i64, now: u64) {
        self.with(store, kv, now, |deadlines| {
            if kv.lease(id).is_none() {
                deadlines.remove(id);
            }
        });
    }

    /// The ids of all leases in the order in which they end, as etcd lists them. `None` on a
    /// member that keeps no deadlines.
    pub fn by_end<T: Table>(
        &mut self,
        store: &SharedKv<T>,
        kv: &Kv<T>,
        now: u64,
    ) -> Option<Vec<i64>> {
        let ids = self.with(store, kv, now, |deadlines| deadlines.by_end().collect::<Vec<_>>())?;
        Some(ids.into_iter().filter(|id| kv.lease(*id).is_some()).collect())
    }

    /// Adds the leases granted meanwhile, then calls `act` on the deadlines.
    fn with<T: Table, R>(
        &mut self,
        store: &SharedKv<T>,
        kv: &Kv<T>,
        now: u64,
        act: impl FnOnce(&mut LeaseDeadlines) -> R,
    ) -> Option<R> {
        let deadlines = &mut self.leader.as_mut()?.deadlines;
        match store.take_grants() {
            LeaseGrants::Granted(grants) => {
                for (id, ttl) in grants {
                    deadlines.grant(id, ttl, now);
                }
            }
            LeaseGrants::NotTracked | LeaseGrants::Overflowed => {
                for (id, lease) in kv.leases() {
                    if deadlines.seconds_left(id, now).is_none() {
                        deadlines.grant(id, lease.ttl, now);
                    }
                }
            }
        }
        Some(act(deadlines))
    }
}

/// What a member may ask the leader about a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeaseQuery {
    /// Restart the time of the lease.
    Renew(i64),
    /// How much time is left?
    TimeLeft(i64),
}

impl LeaseQuery {
    /// The lease.
    pub fn id(self) -> i64 {
        let (Self::Renew(id) | Self::TimeLeft(id)) = self;
        id
    }
}

/// The leader's answer: the remaining seconds. `None` for a lease that does not exist or has
/// expired.
pub type LeaseAnswer = Option<i64>;

/// A query about a lease that a leader works on.
#[derive(Clone, Debug)]
pub struct LeaseInquiry {
    query: LeaseQuery,
    term: u64,
    stage: InquiryStage,
}

#[derive(Clone, Copy, Debug)]
enum InquiryStage {
    /// The lease is unknown here, but the requester may have seen a grant that this member has
    /// not applied yet.
    NotFound,
    /// The old checkpoint, which has this number, is being cleared. After that, this is the answer.
    Clearing(LeaseAnswer, u64),
    /// This is the answer, if this member still leads.
    Confirming(LeaseAnswer),
}

/// What a [`LeaseInquiry`] needs next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LeaseInquiryStep {
    /// Apply everything that is committed by now (a barrier, which confirms the leadership),
    /// then call [`LeaseInquiry::proceed`].
    CatchUp,
    /// Propose this command in this term only, then call [`LeaseInquiry::proceed`].
    Propose(u64, Command),
    /// The answer.
    Answer(LeaseAnswer),
    /// No answer: this member is not the leader, or cannot confirm it. The requester retries.
    NoAnswer,
}

impl LeaseInquiry {
    /// Begins to answer. `None` if this member keeps no deadlines.
    pub fn begin<T: Table>(
        lessor: &mut Lessor,
        store: &SharedKv<T>,
        kv: &Kv<T>,
        query: LeaseQuery,
        now: u64,
    ) -> Option<(Self, LeaseInquiryStep)> {
        let term = lessor.term()?;
        let mut inquiry = Self { query, term, stage: InquiryStage::NotFound };
        let step = match inquiry.look_up(lessor, store, kv, now) {
            LeaseInquiryStep::Answer(None) => LeaseInquiryStep::CatchUp,
            step => inquiry.confirm_first(step),
        };
        Some((inquiry, step))
    }

    /// The last step has succeeded or failed. `leads` is the term that this member leads now.
    pub fn proceed<T: Table>(
        &mut self,
        lessor: &mut Lessor,
        store: &SharedKv<T>,
        kv: &Kv<T>,
        succeeded: bool,
        leads: Option<u64>,
        now: u64,
    ) -> LeaseInquiryStep {
        if !succeeded {
            return LeaseInquiryStep::NoAnswer;
        }
        match self.stage {
            InquiryStage::NotFound => {
                let step = self.look_up(lessor, store, kv, now);
                self.confirm_first(step)
            }
            InquiryStage::Clearing(answer, checkpoint_number) => {
                let leader = lessor.leader.as_mut().filter(|leader| leader.term == self.term);
                if let Some(leader) = leader {
                    leader.deadlines.cleared(self.query.id(), checkpoint_number);
                }
                self.confirm_first(LeaseInquiryStep::Answer(answer))
            }
            InquiryStage::Confirming(answer) => {
                let id = self.query.id();
                // The requester may have seen a revocation that this member had not applied
                // before.
                let exists = kv.lease(id).is_some();
                if !exists {
                    lessor.forget(store, kv, id, now);
                }
                if leads != Some(self.term) || lessor.term() != Some(self.term) {
                    return LeaseInquiryStep::NoAnswer;
                }
                LeaseInquiryStep::Answer(answer.filter(|_| exists))
            }
        }
    }

    /// An answer counts only after this member has confirmed that it still leads.
    fn confirm_first(&mut self, step: LeaseInquiryStep) -> LeaseInquiryStep {
        let LeaseInquiryStep::Answer(answer) = step else { return step };
        self.stage = InquiryStage::Confirming(answer);
        LeaseInquiryStep::CatchUp
    }

    fn look_up<T: Table>(
        &mut self,
        lessor: &mut Lessor,
        store: &SharedKv<T>,
        kv: &Kv<T>,
        now: u64,
    ) -> LeaseInquiryStep {
        let id = self.query.id();
        if lessor.term() != Some(self.term) {
            return LeaseInquiryStep::NoAnswer;
        }
        if kv.lease(id).is_none() {
            lessor.forget(store, kv, id, now);
            return LeaseInquiryStep::Answer(None);
        }
        let answer = match self.query {
            LeaseQuery::TimeLeft(_) => {
                let left = lessor.with(store, kv, now, |deadlines| deadlines.seconds_left(id, now));
                left.flatten().filter(|left| *left >= 0)
            }
            LeaseQuery::Renew(_) => {
                let renewed = lessor.with(store, kv, now, |deadlines| deadlines.renew(id, now));
                let Some(LeaseRenewal { ttl, clear, checkpoint_number }) = renewed.flatten() else {
                    return LeaseInquiryStep::Answer(None);
                };
                if let Some(clear) = clear {
                    self.stage = InquiryStage::Clearing(Some(ttl), checkpoint_number);
                    let command = Command::LeaseCheckpoint(vec![clear]);
                    return LeaseInquiryStep::Propose(self.term, command);
                }
                Some(ttl)
            }
        };
        LeaseInquiryStep::Answer(answer)
    }
}

/// Checkpoints in one command.
const CHECKPOINTS_MAX: usize = 1_000;
/// Milliseconds between two such commands, unless more are due than fit into one.
const CHECKPOINT_PAUSE_MS: u64 = 500;

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use quorate::Machine;

    use super::*;
    use crate::command::LeaseGrant;
    use crate::table::MemoryTable;

    fn run(store: &SharedKv<MemoryTable>, index: u64, command: &Command) {
        store.clone().apply(index, &command.encode()).unwrap();
    }

    fn leading() -> (Lessor, SharedKv<MemoryTable>) {
        let store = SharedKv::new(Kv::open(MemoryTable::default()).unwrap());
        let config = LessorConfig { grace_ms: 0, checkpoint_every_ms: 1_000 };
        let mut lessor = Lessor::new(config);
        assert_eq!(lessor.poll(&store, &store.read(), None, 0, 9), LeaseWork::Nothing);
        assert_eq!(
            lessor.poll(&store, &store.read(), Some(3), 0, 9),
            LeaseWork::CatchUp { term: 3 }
        );
        assert_eq!(lessor.poll(&store, &store.read(), Some(3), 0, 9), LeaseWork::Nothing);
        lessor.start_failed(3);
        assert_eq!(
            lessor.poll(&store, &store.read(), Some(3), 0, 9),
            LeaseWork::CatchUp { term: 3 }
        );
        lessor.start(&store, &store.read(), 3, 0);
        run(&store, 1, &Command::LeaseGrant(LeaseGrant { id: 7, ttl: 5 }));
        (lessor, store)
    }

    /// Renews a lease, up to its first step.
    fn renewal(
        lessor: &mut Lessor,
        store: &SharedKv<MemoryTable>,
        id: i64,
        now: u64,
    ) -> (LeaseInquiry, LeaseInquiryStep) {
        LeaseInquiry::begin(lessor, store, &store.read(), LeaseQuery::Renew(id), now).unwrap()
    }

    /// Logs the remaining times that are due.
    fn log_checkpoints(
        lessor: &mut Lessor,
        store: &SharedKv<MemoryTable>,
        index: u64,
        now: u64,
    ) -> Vec<i64> {
        let work = lessor.poll(store, &store.read(), Some(3), now, 9);
        let LeaseWork::Propose { revoke, checkpoints, .. } = work else { panic!("{work:?}") };
        assert!(!checkpoints.is_empty());
        run(store, index, &Command::LeaseCheckpoint(checkpoints));
        revoke
    }

    /// The revocation may still be committed: the client must not be told that the lease lasts.
    #[test]
    fn a_lease_stays_expired_when_the_checkpoint_of_another_one_is_not_cleared() {
        let (mut lessor, store) = leading();
        run(&store, 2, &Command::LeaseGrant(LeaseGrant { id: 8, ttl: 60 }));
        assert_eq!(lessor.poll(&store, &store.read(), Some(3), 0, 9), nothing_due());
        assert_eq!(log_checkpoints(&mut lessor, &store, 3, 5_000), [7]);
        let (mut other, step) = renewal(&mut lessor, &store, 8, 5_001);
        assert!(matches!(step, LeaseInquiryStep::Propose(3, _)), "{step:?}");
        let step = other.proceed(&mut lessor, &store, &store.read(), false, Some(3), 5_002);
        assert_eq!(step, LeaseInquiryStep::NoAnswer);
        if let LeaseWork::CatchUp { term } = lessor.poll(&store, &store.read(), Some(3), 5_003, 9) {
            lessor.start(&store, &store.read(), term, 5_003);
        }
        let (mut renewed, step) = renewal(&mut lessor, &store, 7, 5_004);
        assert_eq!(step, LeaseInquiryStep::CatchUp);
        let mut step = renewed.proceed(&mut lessor, &store, &store.read(), true, Some(3), 5_005);
        if step == LeaseInquiryStep::CatchUp {
            step = renewed.proceed(&mut lessor, &store, &store.read(), true, Some(3), 5_006);
        }
        assert_eq!(step, LeaseInquiryStep::Answer(None));
    }

    fn nothing_due() -> LeaseWork {
        LeaseWork::Propose { term: 3, revoke: Vec::new(), checkpoints: Vec::new() }
    }

    /// If the leader is lost before the first clearing is committed, the next one counts from the
    /// checkpoint: until then each renewal has to clear it.
    #[test]
    fn each_renewal_clears_the_checkpoint_until_it_is_cleared() {
        let (mut lessor, store) = leading();
        run(&store, 2, &Command::LeaseGrant(LeaseGrant { id: 8, ttl: 60 }));
        assert_eq!(lessor.poll(&store, &store.read(), Some(3), 0, 9), nothing_due());
        log_checkpoints(&mut lessor, &store, 3, 1_000);
        let clears = |step: &LeaseInquiryStep| matches!(step, LeaseInquiryStep::Propose(3, _));
        let (mut first, step) = renewal(&mut lessor, &store, 8, 1_001);
        assert!(clears(&step), "{step:?}");
        let (mut second, step) = renewal(&mut lessor, &store, 8, 1_002);
        assert!(clears(&step), "{step:?}");
        // A checkpoint that comes after the first clearing has to be cleared as well.
        log_checkpoints(&mut lessor, &store, 4, 2_002);
        for inquiry in [&mut first, &mut second] {
            let step = inquiry.proceed(&mut lessor, &store, &store.read(), true, Some(3), 2_003);
            assert_eq!(step, LeaseInquiryStep::CatchUp);
        }
        let (mut third, step) = renewal(&mut lessor, &store, 8, 2_004);
        assert!(clears(&step), "{step:?}");
        third.proceed(&mut lessor, &store, &store.read(), true, Some(3), 2_005);
        let (_, step) = renewal(&mut lessor, &store, 8, 2_006);
        assert_eq!(step, LeaseInquiryStep::CatchUp);
    }

    /// Otherwise the lease would never expire.
    #[test]
    fn a_lease_that_was_granted_again_keeps_its_deadline() {
        let (mut lessor, store) = leading();
        lessor.forget(&store, &store.read(), 7, 0);
        let has_deadline = |lessor: &mut Lessor| {
            lessor
                .with(&store, &store.read(), 0, |deadlines| deadlines.seconds_left(7, 0).is_some())
                .unwrap()
        };
        assert!(has_deadline(&mut lessor));
        run(&store, 2, &Command::LeaseRevoke(7));
        lessor.forget(&store, &store.read(), 7, 0);
        assert!(!has_deadline(&mut lessor));
    }

    #[test]
    fn leases_are_listed_in_the_order_in_which_they_end() {
        let (mut lessor, store) = leading();
        for (index, id, ttl) in [(2, 1, 90), (3, 9, 2), (4, 3, 60)] {
            run(&store, index, &Command::LeaseGrant(LeaseGrant { id, ttl }));
        }
        assert_eq!(lessor.by_end(&store, &store.read(), 0), Some(vec![9, 7, 3, 1]));
        run(&store, 5, &Command::LeaseRevoke(7));
        assert_eq!(lessor.by_end(&store, &store.read(), 0), Some(vec![9, 3, 1]));
        lessor.stop(&store);
        assert_eq!(lessor.by_end(&store, &store.read(), 0), None);
    }

    #[test]
    fn expired_leases_are_revoked_and_a_deposed_leader_stops() {
        let (mut lessor, store) = leading();
        let due =
            |lessor: &mut Lessor, leads, now| lessor.poll(&store, &store.read(), leads, now, 9);
        let nothing = LeaseWork::Propose { term: 3, revoke: vec![], checkpoints: vec![] };
        assert_eq!(due(&mut lessor, Some(3), 999), nothing);
        let LeaseWork::Propose { revoke, .. } = due(&mut lessor, Some(3), 5_999) else { panic!() };
        assert_eq!(revoke, [7]);
        assert_eq!(due(&mut lessor, None, 6_000), LeaseWork::Stopped);
        assert_eq!(due(&mut lessor, None, 6_000), LeaseWork::Nothing);
    }

    /// Otherwise many leases, each due at another time, would fill the log.
    #[test]
    fn checkpoints_are_logged_together() {
        let (mut lessor, store) = leading();
        for id in 1..=30 {
            lessor.poll(&store, &store.read(), Some(3), id * 50, 9);
            run(&store, 1 + id, &Command::LeaseGrant(LeaseGrant { id: 100 + id as i64, ttl: 60 }));
        }
        let (mut commands, mut leases) = (0, BTreeSet::new());
        for now in (1_500..=3_000).step_by(50) {
            let work = lessor.poll(&store, &store.read(), Some(3), now, 9);
            let LeaseWork::Propose { checkpoints, .. } = work else { panic!() };
            commands += usize::from(!checkpoints.is_empty());
            leases.extend(checkpoints.iter().map(|checkpoint| checkpoint.id));
        }
        assert_eq!(leases.len(), 31, "no lease is left out");
        assert!(commands <= 4, "{commands} commands in 1.5 seconds");
    }

    #[test]
    fn a_renewal_is_answered_once_the_leadership_is_confirmed() {
        let (mut lessor, store) = leading();
        let renew = LeaseQuery::Renew(7);
        let (mut one, step) =
            LeaseInquiry::begin(&mut lessor, &store, &store.read(), renew, 0).unwrap();
        assert_eq!(step, LeaseInquiryStep::CatchUp);
        let answer = one.proceed(&mut lessor, &store, &store.read(), true, Some(3), 0);
        assert_eq!(answer, LeaseInquiryStep::Answer(Some(5)));
        let (mut deposed, _) =
            LeaseInquiry::begin(&mut lessor, &store, &store.read(), renew, 0).unwrap();
        let step = deposed.proceed(&mut lessor, &store, &store.read(), true, Some(4), 0);
        assert_eq!(step, LeaseInquiryStep::NoAnswer);
        let unknown = LeaseQuery::TimeLeft(8);
        let (mut late, step) =
            LeaseInquiry::begin(&mut lessor, &store, &store.read(), unknown, 0).unwrap();
        assert_eq!(step, LeaseInquiryStep::CatchUp);
        run(&store, 2, &Command::LeaseGrant(LeaseGrant { id: 8, ttl: 9 }));
        let step = late.proceed(&mut lessor, &store, &store.read(), true, Some(3), 0);
        assert_eq!(step, LeaseInquiryStep::CatchUp);
        let step = late.proceed(&mut lessor, &store, &store.read(), true, Some(3), 0);
        assert_eq!(step, LeaseInquiryStep::Answer(Some(8)));
    }

    #[test]
    fn a_renewal_clears_the_checkpoint_first() {
        let (mut lessor, store) = leading();
        lessor.poll(&store, &store.read(), Some(3), 0, 9);
        let work = lessor.poll(&store, &store.read(), Some(3), 2_000, 9);
        let LeaseWork::Propose { checkpoints, .. } = work else { panic!("{work:?}") };
        run(&store, 2, &Command::LeaseCheckpoint(checkpoints));
        let renew = LeaseQuery::Renew(7);
        let (mut one, step) =
            LeaseInquiry::begin(&mut lessor, &store, &store.read(), renew, 2_000).unwrap();
        let clear = Command::LeaseCheckpoint(vec![LeaseCheckpoint { id: 7, remaining: 0 }]);
        assert_eq!(step, LeaseInquiryStep::Propose(3, clear));
        let mut failed = one.clone();
        assert_eq!(
            one.proceed(&mut lessor, &store, &store.read(), true, Some(3), 2_000),
            LeaseInquiryStep::CatchUp
        );
        let step = failed.proceed(&mut lessor, &store, &store.read(), false, Some(3), 2_000);
        assert_eq!((step, lessor.term()), (LeaseInquiryStep::NoAnswer, Some(3)));
    }
}
