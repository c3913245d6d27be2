//! Clients that hold leases: they get one, attach keys, keep it alive in time for a while, and
//! then revoke it or let it expire.

use bytes::Bytes;
use quorate_kv::{Command, LeaseGrant, LeaseQuery, Put};

use super::super::setting::TICK;
use super::super::simulation::{SimEvent, Simulation};
use super::super::workload::{ClientReply, WorkloadRequest};
use super::TICK_MS;
use super::ledger::Asked;
use crate::checkers::Checked;

#[derive(Default)]
pub(super) struct LeaseHolder {
    stage: HolderStage,
}

#[derive(Clone, Copy, Default)]
enum HolderStage {
    #[default]
    Idle,
    /// It waits for the reply to this request.
    Granting {
        id: i64,
        ttl: i64,
        number: usize,
    },
    Holding {
        id: i64,
        ttl: i64,
        rounds: u64,
    },
    Revoking {
        id: i64,
        number: usize,
    },
}

/// Units in a second.
const SECOND: u64 = 1_000 / TICK_MS * TICK;

impl Simulation {
    pub(super) fn schedule_holder(&mut self, holder: usize, within: u64) {
        let Some(etcd) = self.etcd.as_mut().filter(|_| !self.quiet) else { return };
        let at = self.now + 1 + etcd.random.below(within);
        self.schedule(at, SimEvent::Holder(holder));
    }

    pub(crate) fn on_holder(&mut self, holder: usize) -> Checked {
        self.report.events += 1;
        let Some(stage) = self.etcd.as_ref().map(|etcd| etcd.holders[holder].stage) else {
            return Ok(());
        };
        let Some(place) = self.draw_awake() else {
            self.schedule_holder(holder, 5 * TICK);
            return Ok(());
        };
        let (stage, within) = match stage {
            HolderStage::Idle => self.grant(place)?,
            HolderStage::Granting { id, ttl, number } => match self.is_answered(number) {
                Some(true) => (HolderStage::Holding { id, ttl, rounds: 0 }, TICK),
                Some(false) => (HolderStage::Idle, SECOND),
                None => (HolderStage::Granting { id, ttl, number }, 2 * TICK),
            },
            HolderStage::Holding { id, ttl, rounds } => self.hold(place, id, ttl, rounds)?,
            HolderStage::Revoking { id, number } => match self.is_answered(number) {
                Some(true) => {
                    if let Some(etcd) = &mut self.etcd {
                        etcd.ledger.revoked(id, self.now);
                    }
                    self.now += 1;
                    self.ask(place, LeaseQuery::Renew(id));
                    (HolderStage::Idle, SECOND)
                }
                Some(false) => (HolderStage::Idle, SECOND),
                None => (HolderStage::Revoking { id, number }, 2 * TICK),
            },
        };
        if let Some(etcd) = &mut self.etcd {
            etcd.holders[holder].stage = stage;
        }
        self.schedule_holder(holder, within);
        Ok(())
    }

    fn grant(&mut self, place: usize) -> Result<(HolderStage, u64), crate::checkers::Violation> {
        let asked = self.asked();
        let Some(etcd) = &mut self.etcd else { return Ok((HolderStage::Idle, SECOND)) };
        let (id, ttl) = (etcd.next_lease, 1 + etcd.random.below(6) as i64);
        etcd.next_lease += 1;
        let number = self.clients.history.len();
        etcd.ledger.grants(id, ttl, number, asked);
        self.report.count("lease grant");
        self.run_command(place, &Command::LeaseGrant(LeaseGrant { id, ttl }))?;
        Ok((HolderStage::Granting { id, ttl, number }, 2 * TICK))
    }

    fn hold(
        &mut self,
        place: usize,
        id: i64,
        ttl: i64,
        rounds: u64,
    ) -> Result<(HolderStage, u64), crate::checkers::Violation> {
        let Some(etcd) = &mut self.etcd else { return Ok((HolderStage::Idle, SECOND)) };
        let (choice, key) = (etcd.random.below(20), etcd.random.below(4));
        let number = self.clients.history.len();
        match choice {
            0 => {
                etcd.ledger.revoke_asked(id, self.now);
                self.report.count("lease revoke");
                self.run_command(place, &Command::LeaseRevoke(id))?;
                return Ok((HolderStage::Revoking { id, number }, 2 * TICK));
            }
            // It is left to expire.
            1 if rounds > 2 => {
                self.report.count("lease abandoned");
                return Ok((HolderStage::Idle, SECOND));
            }
            2..6 => {
                let value = Bytes::from(format!("held {rounds}"));
                let key = Bytes::from(format!("key{key}"));
                let put = Put { key, value, lease: id, ..Put::default() };
                self.run_command(place, &Command::Put(put))?;
            }
            6 => self.ask(place, LeaseQuery::TimeLeft(id)),
            _ => {}
        }
        self.report.count("keep-alive");
        self.ask(place, LeaseQuery::Renew(id));
        let within = (ttl as u64 * SECOND / 2).max(TICK);
        Ok((HolderStage::Holding { id, ttl, rounds: rounds + 1 }, within))
    }

    fn ask(&mut self, place: usize, query: LeaseQuery) {
        let asked = self.asked();
        let Some(etcd) = &mut self.etcd else { return };
        let question = etcd.ledger.asks(query, place, asked);
        self.ask_leader(place, question);
    }

    fn asked(&self) -> Asked {
        let jumped_ms = self.members.iter().map(|member| member.clock_jumped_ms).collect();
        Asked { at: self.now, jumped_ms }
    }

    fn run_command(&mut self, place: usize, command: &Command) -> Checked {
        let client = self.clients.count() + 4;
        let request = WorkloadRequest::Command(command.encode());
        let (number, request) = self.clients.push(client, request);
        self.submit(place, number, request)
    }

    /// Whether a request succeeded; none while it is open.
    fn is_answered(&self, number: usize) -> Option<bool> {
        let exchange = &self.clients.history[number];
        match (&exchange.reply, exchange.returned) {
            (ClientReply::Reply(_), _) => Some(true),
            (_, Some(_)) => Some(false),
            (_, None) => (!self.clients.is_open(number)).then_some(false),
        }
    }

    /// A member that a client can reach.
    pub(super) fn draw_awake(&mut self) -> Option<usize> {
        let up: Vec<usize> =
            (0..self.members.len()).filter(|place| self.is_awake(*place)).collect();
        self.etcd.as_mut().and_then(|etcd| etcd.random.pick(&up).copied())
    }
}
