//! Who is connected to this process: bounded, whoever it is.
//!
//! Connections that have not said who they are must not keep others out: when there are
//! too many, the oldest has to go.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use tokio::net::TcpStream;
use tokio::sync::Notify;
use tokio::task::AbortHandle;

use super::counts::Counted;
use super::incoming::serve;
use super::shared::Shared;
use crate::runtime::{MemberKey, RejectReason, lock};
use quorate_core::MemberId;

/// Every connection that somebody else opened, by a number of its own.
#[derive(Default)]
pub(crate) struct Guests {
    last: u64,
    unidentified: BTreeMap<u64, AbortHandle>,
    identified: BTreeMap<u64, Arc<TurnedAway>>,
}

/// Whom the conversation of a connection has to turn away.
#[derive(Default)]
pub(crate) struct TurnedAway {
    list: Mutex<Vec<(MemberKey, MemberId, RejectReason)>>,
    pub(crate) filled: Notify,
}

impl TurnedAway {
    pub(crate) fn take(&self) -> Vec<(MemberKey, MemberId, RejectReason)> {
        std::mem::take(&mut *lock(&self.list))
    }
}

impl Guests {
    /// Lets somebody in who has yet to say who it is.
    pub(crate) fn let_in(shared: &Arc<Shared>, stream: TcpStream) {
        let mut guests = lock(&shared.guests);
        if guests.unidentified.len() >= shared.config.unidentified_max.max(1)
            && let Some((_, oldest)) = guests.unidentified.pop_first()
        {
            oldest.abort();
            shared.counts.one(Counted::Evicted);
        }
        guests.last += 1;
        let number = guests.last;
        let place = Place { shared: Arc::clone(shared), number };
        // When the transport is stopping, the place comes back; it takes the lock when dropped.
        match shared.spawn(serve(stream, place)) {
            Ok(task) => {
                guests.unidentified.insert(number, task);
            }
            Err(never_run) => {
                drop(guests);
                drop(never_run);
            }
        }
    }

    pub(crate) fn turn_away(&self, key: MemberKey, from: MemberId, why: RejectReason) {
        for guest in self.identified.values() {
            let mut list = lock(&guest.list);
            if !list.contains(&(key, from, why)) {
                list.push((key, from, why));
            }
            drop(list);
            guest.filled.notify_one();
        }
    }

    pub(crate) fn counts(&self) -> [(&'static str, u64); 2] {
        [
            ("connections_unidentified", self.unidentified.len() as u64),
            ("connections_identified", self.identified.len() as u64),
        ]
    }
}

/// The place of one connection among the guests, until it is dropped.
pub(crate) struct Place {
    pub(crate) shared: Arc<Shared>,
    pub(crate) number: u64,
}

impl Place {
    /// It is known who it is. Nothing when there are too many of those.
    pub(crate) fn identified(&self) -> Option<Arc<TurnedAway>> {
        let mut guests = lock(&self.shared.guests);
        if guests.identified.len() >= self.shared.config.identified_max {
            return None;
        }
        guests.unidentified.remove(&self.number)?;
        let turned_away = Arc::new(TurnedAway::default());
        guests.identified.insert(self.number, Arc::clone(&turned_away));
        Some(turned_away)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut guests = lock(&self.shared.guests);
        guests.unidentified.remove(&self.number);
        guests.identified.remove(&self.number);
    }
}
