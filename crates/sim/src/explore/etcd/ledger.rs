//! What clients were told about their leases, and what became of the leases.
//!
//! * K1: a lease is not revoked as expired before its time has passed since the last grant or
//!   keep-alive that was answered, counted from when the client sent it, by the clock of the
//!   leader that revokes it; and by those of earlier leaders that logged the remaining time.
//! * K3: a keep-alive is answered "no such lease" only if the lease expired or was revoked, and
//!   never as renewed after that.

use std::collections::BTreeMap;

use quorate_kv::{LeaseAnswer, LeaseQuery};

use super::super::workload::{ClientReply, Exchange};
use super::TICK_MS;
use crate::checkers::{Checked, Violation};

/// All leases that clients hold, and all questions about them.
#[derive(Default)]
pub(crate) struct LeaseLedger {
    leases: BTreeMap<i64, LeaseRecord>,
    questions: Vec<LeaseQuestion>,
}

struct LeaseRecord {
    ttl: i64,
    granted: Asked,
    /// The number of the grant.
    grant: usize,
    /// When a client first asked to revoke it, and when one was told that it is revoked.
    revoke_asked: Option<u64>,
    revoked: Option<u64>,
    expiries: Vec<LeaderClock>,
    /// When leaders logged the remaining time.
    checkpoints: Vec<LeaderClock>,
}

/// When a client sent something, by all clocks.
#[derive(Clone, Debug)]
pub(super) struct Asked {
    pub(super) at: u64,
    /// By how much the clock of each member had jumped.
    pub(super) jumped_ms: Vec<u64>,
}

/// When a leader proposed to revoke a lease that has expired, or to log its remaining time.
#[derive(Clone, Copy, Debug)]
pub(super) struct LeaderClock {
    /// Of the proposal.
    pub(super) number: usize,
    pub(super) place: usize,
    pub(super) at: u64,
    /// The leader's clock.
    pub(super) clock_ms: u64,
    pub(super) tick_every: u64,
}

impl LeaderClock {
    /// How much of its own time has passed for this leader since then.
    fn passed_since(&self, asked: &Asked) -> u64 {
        let jumped = asked.jumped_ms.get(self.place).copied().unwrap_or(0);
        let asked_ms = asked.at * TICK_MS / self.tick_every + jumped;
        self.clock_ms.saturating_sub(asked_ms)
    }
}

struct LeaseQuestion {
    query: LeaseQuery,
    /// The member that was asked.
    place: usize,
    asked: Asked,
    answer: Option<(u64, LeaseAnswer)>,
}

impl LeaseRecord {
    /// By how much the clocks of earlier leaders were faster, up to when they last logged the
    /// remaining time: a later leader counts from there.
    fn gained_by_earlier(&self, expiry: &LeaderClock, asked: &Asked) -> u64 {
        let mut gained: BTreeMap<usize, u64> = BTreeMap::new();
        let is_earlier = |one: &&LeaderClock| {
            one.place != expiry.place && one.at >= asked.at && one.at <= expiry.at
        };
        for one in self.checkpoints.iter().filter(is_earlier) {
            let normal = (one.at - asked.at) * TICK_MS / expiry.tick_every;
            let ahead = one.passed_since(asked).saturating_sub(normal);
            let most = gained.entry(one.place).or_default();
            *most = ahead.max(*most);
        }
        gained.values().sum()
    }
}

impl LeaseLedger {
    pub(super) fn grants(&mut self, id: i64, ttl: i64, grant: usize, granted: Asked) {
        let (revoke_asked, revoked) = (None, None);
        let (expiries, checkpoints) = (Vec::new(), Vec::new());
        let record =
            LeaseRecord { ttl, granted, grant, revoke_asked, revoked, expiries, checkpoints };
        self.leases.insert(id, record);
    }

    pub(super) fn revoke_asked(&mut self, id: i64, now: u64) {
        if let Some(lease) = self.leases.get_mut(&id) {
            lease.revoke_asked.get_or_insert(now);
        }
    }

    pub(super) fn revoked(&mut self, id: i64, now: u64) {
        if let Some(lease) = self.leases.get_mut(&id) {
            lease.revoked.get_or_insert(now);
        }
    }

    pub(super) fn asks(&mut self, query: LeaseQuery, place: usize, asked: Asked) -> usize {
        self.questions.push(LeaseQuestion { query, place, asked, answer: None });
        self.questions.len() - 1
    }

    pub(super) fn question(&self, question: usize) -> LeaseQuery {
        self.questions[question].query
    }

    pub(super) fn asked_at(&self, question: usize) -> usize {
        self.questions[question].place
    }

    /// Only the first answer counts: a message may arrive twice.
    pub(super) fn answered(&mut self, question: usize, now: u64, answer: LeaseAnswer) {
        self.questions[question].answer.get_or_insert((now, answer));
    }

    pub(super) fn expires(&mut self, id: i64, leader: LeaderClock) {
        if let Some(lease) = self.leases.get_mut(&id) {
            lease.expiries.push(leader);
        }
    }

    pub(super) fn checkpointed(&mut self, id: i64, leader: LeaderClock) {
        if let Some(lease) = self.leases.get_mut(&id) {
            lease.checkpoints.push(leader);
        }
    }

    /// `revoked` lists the commands that revoked leases: their number, the lease, and whether
    /// it existed.
    pub(super) fn check(&self, history: &[Exchange], revoked: &[(usize, i64, bool)]) -> Checked {
        for question in &self.questions {
            self.answer_is_true(question, history)?;
        }
        for (number, id, existed) in revoked {
            let Some(lease) = self.leases.get(id).filter(|_| *existed) else { continue };
            let Some(expiry) = lease.expiries.iter().find(|expiry| expiry.number == *number) else {
                continue;
            };
            self.is_not_early(*id, lease, expiry, history)?;
        }
        Ok(())
    }

    fn is_not_early(
        &self,
        id: i64,
        lease: &LeaseRecord,
        expiry: &LeaderClock,
        history: &[Exchange],
    ) -> Checked {
        let renewed = self.questions.iter().filter_map(|question| {
            let is_renewal = question.query == LeaseQuery::Renew(id);
            let is_renewed = matches!(question.answer, Some((_, Some(_))));
            (is_renewal && is_renewed).then_some(&question.asked)
        });
        let granted = is_granted(history, lease.grant).then_some(&lease.granted);
        for asked in granted.into_iter().chain(renewed) {
            let passed = expiry.passed_since(asked) + lease.gained_by_earlier(expiry, asked);
            if (passed as i64) < lease.ttl * 1_000 {
                let (at, ended, ttl) = (asked.at, expiry.at, lease.ttl);
                let what = format!(
                    "the lease {id} of {ttl} s is revoked at {ended}, {passed} ms after the \
                     request at {at} that was answered"
                );
                return Err(Violation::new("K1", what));
            }
        }
        Ok(())
    }

    fn answer_is_true(&self, question: &LeaseQuestion, history: &[Exchange]) -> Checked {
        let Some((at, answer)) = question.answer else { return Ok(()) };
        let (id, asked) = (question.query.id(), question.asked.at);
        let Some(lease) = self.leases.get(&id) else { return Ok(()) };
        let ends_before = |at: u64| {
            lease.revoke_asked.is_some_and(|asked| asked <= at)
                || lease.expiries.iter().any(|expiry| expiry.at <= at)
        };
        let fault = match answer {
            None if is_granted(history, lease.grant) && !ends_before(at) => "is not found",
            Some(_) if lease.revoked.is_some_and(|revoked| revoked < asked) => "is still there",
            Some(left) if left > lease.ttl => "has more time than its TTL",
            _ => return Ok(()),
        };
        let what = format!("the lease {id}, asked about at {asked}, {fault}: {answer:?}");
        Err(Violation::new("K3", what))
    }
}

/// The client that holds the lease knows of it.
fn is_granted(history: &[Exchange], grant: usize) -> bool {
    matches!(history[grant].reply, ClientReply::Reply(_))
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::explore::workload::WorkloadRequest;

    fn asked(at: u64) -> Asked {
        Asked { at, jumped_ms: vec![0, 500] }
    }

    /// A lease of 2 seconds, granted at 1000 (0.1 s), renewed at 11000, and what comes after.
    fn ledger() -> (LeaseLedger, Vec<Exchange>) {
        let mut ledger = LeaseLedger::default();
        ledger.grants(7, 2, 0, asked(1_000));
        let renewal = ledger.asks(LeaseQuery::Renew(7), 0, asked(11_000));
        ledger.answered(renewal, 12_000, Some(2));
        let request = WorkloadRequest::Command(Bytes::new());
        let reply = ClientReply::Reply(Bytes::new());
        let grant =
            Exchange { client: 0, request, called: 1, returned: Some(2), reply, ran_at: Some(3) };
        (ledger, vec![grant])
    }

    fn rule(ledger: &LeaseLedger, history: &[Exchange]) -> Option<&'static str> {
        let checked = ledger.check(history, &[(5, 7, true)]);
        checked.err().map(|violation| violation.rule)
    }

    #[test]
    fn a_lease_that_ends_early_is_noticed() {
        // By the clock of the leader, 2 seconds after the renewal; and 1 ms less.
        for (clock_ms, expected) in [(3_100, None), (3_099, Some("K1"))] {
            let (mut ledger, history) = ledger();
            ledger.expires(7, leader(0, 31_000, clock_ms));
            assert_eq!(rule(&ledger, &history), expected);
        }
        // The jump of a clock from before the renewal does not count.
        let (mut jumped, history) = ledger();
        jumped.expires(7, leader(1, 31_000, 3_599));
        assert_eq!(rule(&jumped, &history), Some("K1"));
    }

    /// The clock of an earlier leader jumped by 400 ms, before it logged the remaining time, after
    /// it, or before the renewal.
    #[test]
    fn a_later_leader_counts_from_a_checkpoint() {
        for (at, clock_ms, expected) in
            [(20_000, 2_900, None), (20_000, 2_899, Some("K1")), (20_000, 2_500, Some("K1"))]
        {
            let (mut ledger, history) = ledger();
            ledger.checkpointed(7, leader(1, at, clock_ms));
            ledger.expires(7, leader(0, 27_000, 2_700));
            assert_eq!(rule(&ledger, &history), expected, "{clock_ms}");
        }
        let (mut earlier, history) = ledger();
        earlier.checkpointed(7, leader(1, 10_000, 1_900));
        earlier.expires(7, leader(0, 27_000, 2_700));
        assert_eq!(rule(&earlier, &history), Some("K1"));
    }

    fn leader(place: usize, at: u64, clock_ms: u64) -> LeaderClock {
        LeaderClock { number: 5, place, at, clock_ms, tick_every: 1_000 }
    }

    #[test]
    fn wrong_answers_are_noticed() {
        let (mut lost, history) = ledger();
        let question = lost.asks(LeaseQuery::Renew(7), 0, asked(13_000));
        lost.answered(question, 14_000, None);
        assert_eq!(rule(&lost, &history), Some("K3"));
        lost.revoke_asked(7, 13_500);
        assert_eq!(rule(&lost, &history), None);

        let (mut kept, history) = ledger();
        kept.revoke_asked(7, 12_000);
        kept.revoked(7, 12_500);
        let question = kept.asks(LeaseQuery::TimeLeft(7), 0, asked(13_000));
        kept.answered(question, 14_000, Some(1));
        assert_eq!(rule(&kept, &history), Some("K3"));
    }
}
