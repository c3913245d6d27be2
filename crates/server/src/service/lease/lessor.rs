//! When leases end, as the leader knows it; and how the other members ask it.
//!
//! The leader's deadlines stand in no log. A member that was deposed and does not know it
//! could promise time that the new leader does not grant: so the leader confirms that it
//! still leads before it says how long a lease lasts.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use quorate::{RequestError, RequestRefused};
use quorate_kv::{Command, LeaseCheckpoint, LeaseDeadlines, LeaseGrants, LeaseRenewal};
use tokio::time::Instant;
use tonic::Status;

use crate::context::{Context, Store};
use crate::errors::failed;

/// The deadlines of a leader; empty elsewhere.
pub(crate) struct Lessor {
    leading: Mutex<Option<Leading>>,
    begun: Instant,
}

struct Leading {
    term: u64,
    deadlines: LeaseDeadlines,
}

/// What a member may ask the leader about a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ask {
    /// Let it begin anew.
    Renew(i64),
    TimeLeft(i64),
}

/// What the leader says; in seconds. `None` for a lease that is gone, or about to go.
pub(crate) type Told = Option<i64>;

impl Default for Lessor {
    fn default() -> Self {
        Self { leading: Mutex::new(None), begun: Instant::now() }
    }
}

impl Lessor {
    fn lock(&self) -> MutexGuard<'_, Option<Leading>> {
        self.leading.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) -> u64 {
        self.begun.elapsed().as_millis() as u64
    }

    /// The term in which this member counts, if it does.
    pub(super) fn term(&self) -> Option<u64> {
        self.lock().as_ref().map(|leading| leading.term)
    }

    /// Begins to count for all leases of the store, which is as new as this term.
    pub(super) fn begin(&self, context: &Context, term: u64) {
        // From here on grants are kept, and all earlier ones are in the store.
        context.store.take_grants();
        let limits = &context.limits;
        let (grace, every) = (millis(limits.lease_grace), millis(limits.lease_checkpoint_every));
        let kv = context.store.read();
        let deadlines = LeaseDeadlines::new(kv.leases(), self.now(), grace, every);
        drop(kv);
        *self.lock() = Some(Leading { term, deadlines });
    }

    pub(super) fn end(&self, store: &Store) {
        *self.lock() = None;
        store.stop_tracking_grants();
    }

    /// Leases that have ended, as far as is known here.
    pub(super) fn ended(&self, context: &Context, count_max: usize) -> Vec<i64> {
        let now = self.now();
        self.with(context, |deadlines| deadlines.expired(now, count_max)).unwrap_or_default()
    }

    pub(super) fn checkpoints_due(&self, context: &Context) -> Vec<LeaseCheckpoint> {
        let now = self.now();
        let due = self.with(context, |deadlines| deadlines.checkpoints_due(now, CHECKPOINTS_MAX));
        due.unwrap_or_default()
    }

    /// A lease was seen to be gone. It may have been granted anew since: then it counts on.
    pub(super) fn forget(&self, context: &Context, id: i64) {
        self.with(context, |deadlines| {
            if context.store.read().lease(id).is_none() {
                deadlines.remove(id);
            }
        });
    }

    /// The deadlines, with what was granted meanwhile.
    fn with<R>(&self, context: &Context, act: impl FnOnce(&mut LeaseDeadlines) -> R) -> Option<R> {
        let now = self.now();
        let mut leading = self.lock();
        let deadlines = &mut leading.as_mut()?.deadlines;
        match context.store.take_grants() {
            LeaseGrants::Granted(grants) => {
                for (id, ttl) in grants {
                    deadlines.grant(id, ttl, now);
                }
            }
            LeaseGrants::NotTracked | LeaseGrants::Overflowed => {
                let kv = context.store.read();
                for (id, lease) in kv.leases() {
                    if deadlines.seconds_left(id, now).is_none() {
                        deadlines.grant(id, lease.ttl, now);
                    }
                }
            }
        }
        Some(act(deadlines))
    }

    /// Answers as the leader; `None` if this member is none, or cannot be sure.
    pub(super) async fn answer(&self, context: &Context, ask: Ask) -> Option<Told> {
        let term = self.term()?;
        let mut told = self.look(context, term, ask).await?;
        if told.is_none() {
            // Whoever asks may have seen a grant that has not run here yet.
            context.catch_up().await.ok()?;
            told = self.look(context, term, ask).await?;
        }
        context.catch_up().await.ok()?;
        let leads = context.node.is_leader() && context.node.term() == term;
        (leads && self.term() == Some(term)).then_some(told)
    }

    async fn look(&self, context: &Context, term: u64, ask: Ask) -> Option<Told> {
        let (Ask::Renew(id) | Ask::TimeLeft(id)) = ask;
        if context.store.read().lease(id).is_none() {
            self.forget(context, id);
            return Some(None);
        }
        let now = self.now();
        match ask {
            Ask::TimeLeft(_) => {
                let left = self.with(context, |deadlines| deadlines.seconds_left(id, now))?;
                Some(left.filter(|left| *left >= 0))
            }
            Ask::Renew(_) => {
                let renewed = self.with(context, |deadlines| deadlines.renew(id, now))?;
                let Some(LeaseRenewal { ttl, clear }) = renewed else { return Some(None) };
                let Some(clear) = clear else { return Some(Some(ttl)) };
                let cleared = context.run_in(term, &Command::LeaseCheckpoint(vec![clear])).await;
                if cleared.is_err() {
                    // The deadlines believe that it is: begin anew with what the store says.
                    *self.lock() = None;
                    return None;
                }
                Some(Some(ttl))
            }
        }
    }
}

/// Asks the leader, wherever it is, for as long as it takes to find one.
pub(super) async fn ask_leader(context: &Context, ask: Ask) -> Result<Told, Status> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let why = match context.node.ask_leader(ask.encode()).await {
            Ok(answer) => match decode_told(answer) {
                Some(told) => return Ok(told),
                None => RequestError::Refused(RequestRefused::NoLeader),
            },
            Err(why) => why,
        };
        if !why.is_retryable() || Instant::now() >= deadline {
            return Err(failed(&why));
        }
        tokio::time::sleep(LOOK_AGAIN).await;
    }
}

const RENEW: u8 = 1;
const TIME_LEFT: u8 = 2;

impl Ask {
    fn encode(self) -> Bytes {
        let (kind, id) = match self {
            Self::Renew(id) => (RENEW, id),
            Self::TimeLeft(id) => (TIME_LEFT, id),
        };
        let mut bytes = BytesMut::with_capacity(9);
        bytes.put_u8(kind);
        bytes.put_i64_le(id);
        bytes.freeze()
    }

    pub(super) fn decode(mut bytes: Bytes) -> Option<Self> {
        let kind = bytes.try_get_u8().ok()?;
        let id = bytes.try_get_i64_le().ok()?;
        match kind {
            RENEW if bytes.is_empty() => Some(Self::Renew(id)),
            TIME_LEFT if bytes.is_empty() => Some(Self::TimeLeft(id)),
            _ => None,
        }
    }
}

/// A lease that is gone has less than no time left.
pub(super) fn encode_told(told: Told) -> Bytes {
    Bytes::copy_from_slice(&told.unwrap_or(-1).to_le_bytes())
}

fn decode_told(mut bytes: Bytes) -> Option<Told> {
    let seconds = bytes.try_get_i64_le().ok()?;
    bytes.is_empty().then_some((seconds >= 0).then_some(seconds))
}

fn millis(duration: Duration) -> u64 {
    duration.as_millis() as u64
}

/// Checkpoints in one command.
const CHECKPOINTS_MAX: usize = 1_000;
const PATIENCE: Duration = Duration::from_secs(7);
const LOOK_AGAIN: Duration = Duration::from_millis(50);

#[cfg(test)]
mod tests {
    use quorate::{MemoryNetwork, MemoryStorage, Node, NodeConfig};
    use quorate_kv::{AnyTable, Kv, LeaseGrant};

    use super::*;
    use crate::context::Limits;

    /// Otherwise it would never end.
    #[tokio::test]
    async fn a_lease_that_was_granted_anew_is_not_forgotten() {
        let store = Store::new(Kv::open(AnyTable::default()).unwrap());
        let config = NodeConfig::first(1, 1, [(1, "")]).with_tick(Duration::from_millis(10));
        let (storage, network) = (MemoryStorage::new(), MemoryNetwork::new());
        let node = Node::start(config, storage, store.clone(), network.transport()).await.unwrap();
        let context = Context::new(node.clone(), store, 1, Limits::default());
        let lessor = &context.lessor;
        let counts =
            || lessor.with(&context, |deadlines| deadlines.seconds_left(7, 0).is_some()).unwrap();
        context.catch_up().await.unwrap();
        lessor.begin(&context, node.term());
        let grant = Command::LeaseGrant(LeaseGrant { id: 7, ttl: 60 });
        context.run(&grant).await.unwrap();
        lessor.forget(&context, 7);
        assert!(counts());
        context.run(&Command::LeaseRevoke(7)).await.unwrap();
        lessor.forget(&context, 7);
        assert!(!counts());
        node.stop_now().await;
    }

    #[test]
    fn what_is_asked_and_told_is_understood() {
        for ask in [Ask::Renew(i64::MIN), Ask::TimeLeft(7)] {
            assert_eq!(Ask::decode(ask.encode()), Some(ask));
            assert_eq!(Ask::decode(ask.encode().slice(..8)), None);
        }
        assert_eq!(Ask::decode(Bytes::from_static(&[9; 9])), None);
        for told in [None, Some(0), Some(60)] {
            assert_eq!(decode_told(encode_told(told)), Some(told));
        }
        assert_eq!(decode_told(Bytes::new()), None);
    }
}
