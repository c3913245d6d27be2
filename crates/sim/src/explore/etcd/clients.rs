//! Clients that use all of etcd's data model on a few keys.

use std::collections::BTreeMap;

use super::super::workload::{ClientReply, Exchange, Workload, WorkloadRequest, WorkloadVerdict};
use crate::checkers::Violation;
use crate::random::Random;
use bytes::Bytes;
use quorate_kv::{
    Command, Compact, Compare, CompareOperator, CompareTarget, DeleteRange, KeyRange,
    KvCommandReply, KvOutcome, LeaseGrant, Put, Query, Range, Txn, TxnOperation,
};

/// Clients that put, get, delete, transact, compact, and grant and revoke leases.
#[derive(Default)]
pub struct EtcdClients {
    asked: u64,
}

impl EtcdClients {
    fn key(random: &mut Random) -> Bytes {
        format!("key{}", random.below(8)).into()
    }

    fn keys(random: &mut Random) -> KeyRange {
        match random.below(4) {
            0 => KeyRange::all(),
            1 => KeyRange { key: Self::key(random), range_end: "\0".into() },
            _ => KeyRange::single(Self::key(random)),
        }
    }

    fn lease(random: &mut Random) -> i64 {
        if random.below(4) == 0 { 1 + random.below(3) as i64 } else { 0 }
    }

    /// A value of its own, so that it is seen who wrote it.
    fn put(&self, random: &mut Random) -> Put {
        Put {
            key: Self::key(random),
            value: format!("value {}", self.asked).into(),
            lease: Self::lease(random),
            prev_kv: random.below(2) == 0,
            ..Put::default()
        }
    }

    /// Creates a key if it is not there, otherwise says what is.
    fn create(&self, random: &mut Random) -> Txn {
        let put = Put { lease: 0, ..self.put(random) };
        let keys = KeyRange::single(put.key.clone());
        let target = CompareTarget::Create(0);
        let get = TxnOperation::Range(Range { keys: keys.clone(), ..Range::default() });
        let deletion = DeleteRange { keys: Self::keys(random), prev_kv: true };
        Txn {
            compare: vec![Compare { keys, operator: CompareOperator::Equal, target }],
            success: vec![TxnOperation::Put(put)],
            failure: vec![get, TxnOperation::DeleteRange(deletion)],
        }
    }
}

impl Workload for EtcdClients {
    fn command(&mut self, random: &mut Random) -> Bytes {
        self.asked += 1;
        let command = match random.below(20) {
            0..9 => Command::Put(self.put(random)),
            9..11 => {
                let prev_kv = random.below(2) == 0;
                Command::DeleteRange(DeleteRange { keys: Self::keys(random), prev_kv })
            }
            11..15 => Command::Txn(self.create(random)),
            15 => Command::Compact(Compact { revision: 1 + (self.asked / 3) as i64 }),
            16..18 => Command::LeaseGrant(LeaseGrant { id: 1 + random.below(3) as i64, ttl: 9 }),
            18 => Command::LeaseRevoke(1 + random.below(3) as i64),
            _ => Command::Noop,
        };
        command.encode()
    }

    fn query(&mut self, random: &mut Random) -> Bytes {
        self.asked += 1;
        let query = match random.below(8) {
            0 => Query::Leases,
            1 => Query::HashKv(0),
            2 => Query::Lease(1 + random.below(3) as i64),
            _ => {
                let revision = if random.below(3) == 0 { 1 + (self.asked / 3) as i64 } else { 0 };
                Query::Range(Range { keys: Self::keys(random), revision, ..Range::default() })
            }
        };
        query.encode()
    }

    /// Every reply is one, and revisions rise with the log: two puts never share one.
    fn check(&self, history: &[Exchange]) -> WorkloadVerdict {
        let mut revisions = BTreeMap::new();
        for exchange in history {
            let ClientReply::Reply(bytes) = &exchange.reply else { continue };
            let Some(reply) = KvCommandReply::decode(bytes) else {
                return broken(format!("{bytes:?} is no reply to {:?}", exchange.request));
            };
            let is_put = matches!(reply.result, Ok(KvOutcome::Put(_)));
            if let (WorkloadRequest::Command(_), Some(index), true) =
                (&exchange.request, exchange.ran_at, is_put)
            {
                revisions.insert(index, reply.revision);
            }
        }
        let puts: Vec<_> = revisions.into_iter().collect();
        match puts.windows(2).find(|pair| pair[0].1 >= pair[1].1) {
            Some(pair) => broken(format!("puts at {pair:?}: revisions do not rise")),
            None => WorkloadVerdict::Passed,
        }
    }
}

fn broken(what: String) -> WorkloadVerdict {
    WorkloadVerdict::Broken(Violation::new("revisions", what))
}
