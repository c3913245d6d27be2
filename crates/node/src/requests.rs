//! The table of open requests: what was asked here and has no answer yet.

use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;
use quorate_core::{Change, EntryId, Index, MemberId, Refusal, RequestId};

/// Names a request to the caller, from asking to the answer. Never used twice by
/// one driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct RequestToken(pub u64);

impl RequestToken {
    /// Of a change or a transfer.
    pub(crate) fn is_slow(self) -> bool {
        self.0 & SLOW != 0
    }
}

/// What was asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Asked {
    /// A command, sealed with its origin.
    Command(Bytes),
    /// A query to the machine; none for a barrier.
    Read(Option<Bytes>),
    Change(Box<Change>),
    Transfer(MemberId),
}

impl Asked {
    /// May take much longer than others.
    fn is_slow(&self) -> bool {
        matches!(self, Self::Change(_) | Self::Transfer(_))
    }
}

/// How far a request has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// No leader has heard of it: it surely has not happened.
    Waiting,
    /// Offered to a leader; whether it arrived is not known.
    Offered,
    /// The leader that was known when it was offered has it in its log.
    Logged(EntryId),
    /// A change that is committed and not settled.
    Committed(EntryId),
    /// A goal that is committed and pursued.
    Pursued(EntryId),
    /// A read that may run as soon as this index was handed to the machine.
    Confirmed(Index),
    /// The machine was asked.
    Asking,
}

#[derive(Clone, Debug)]
pub(crate) struct Open {
    pub(crate) asked: Asked,
    /// Of this leader or of none: never passed on, never offered again.
    pub(crate) once: bool,
    pub(crate) stage: Stage,
    /// How many offers may have been taken.
    pub(crate) offers: u32,
    /// The newest offer that may be answered.
    pub(crate) attempt: Option<RequestId>,
    /// Why the newest offer was refused, if it is offered again.
    pub(crate) refusal: Option<Refusal>,
    /// When it is offered again, unless something happens before.
    pub(crate) offer_at: u64,
    pub(crate) deadline: u64,
    /// How long it may take once it is committed.
    pub(crate) ticks: u64,
}

/// Open requests by ticket.
///
/// Commands and reads come in great numbers and are answered soon: their tickets grow by
/// one, and a queue is a map. Changes and transfers are few and may take long, so they have
/// a map and numbers of their own: what waits for a member to join does not keep everything
/// asked after it in the table.
#[derive(Clone, Debug, Default)]
pub(crate) struct Requests {
    open: VecDeque<Option<Open>>,
    /// The ticket of the first place in `open`.
    first: u64,
    count: usize,
    slow: BTreeMap<u64, Open>,
    slow_asked: u64,
    attempts: BTreeMap<RequestId, RequestToken>,
}

/// Tickets of changes and transfers have this bit.
const SLOW: u64 = 1 << 63;

impl Requests {
    pub(crate) fn new(first: u64) -> Self {
        Self { first, ..Self::default() }
    }

    pub(crate) fn len(&self) -> usize {
        self.count + self.slow.len()
    }

    /// Every command and read before this one was answered.
    pub(crate) fn oldest(&self) -> RequestToken {
        RequestToken(self.first)
    }

    /// The ticket that the next command or read gets.
    pub(crate) fn next(&self) -> RequestToken {
        RequestToken(self.first + self.open.len() as u64)
    }

    pub(crate) fn insert(&mut self, open: Open) -> RequestToken {
        if open.asked.is_slow() {
            self.slow_asked += 1;
            let number = SLOW | self.slow_asked;
            self.slow.insert(number, open);
            return RequestToken(number);
        }
        let ticket = self.next();
        self.open.push_back(Some(open));
        self.count += 1;
        ticket
    }

    pub(crate) fn get_mut(&mut self, ticket: RequestToken) -> Option<&mut Open> {
        if ticket.is_slow() {
            return self.slow.get_mut(&ticket.0);
        }
        let place = ticket.0.checked_sub(self.first)?;
        self.open.get_mut(usize::try_from(place).ok()?)?.as_mut()
    }

    pub(crate) fn remove(&mut self, ticket: RequestToken) -> Option<Open> {
        let open = if ticket.is_slow() {
            self.slow.remove(&ticket.0)?
        } else {
            let place = usize::try_from(ticket.0.checked_sub(self.first)?).ok()?;
            let open = self.open.get_mut(place)?.take()?;
            self.count -= 1;
            open
        };
        if let Some(attempt) = open.attempt {
            self.attempts.remove(&attempt);
        }
        while let Some(None) = self.open.front() {
            self.open.pop_front();
            self.first += 1;
        }
        Some(open)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (RequestToken, &Open)> {
        let numbered = self.open.iter().zip(self.first..);
        let quick =
            numbered.filter_map(|(open, number)| Some((RequestToken(number), open.as_ref()?)));
        quick.chain(self.slow.iter().map(|(number, open)| (RequestToken(*number), open)))
    }

    pub(crate) fn tickets(&self, wanted: impl Fn(&Open) -> bool) -> Vec<RequestToken> {
        self.iter().filter(|(_, open)| wanted(open)).map(|(ticket, _)| ticket).collect()
    }

    /// Of the changes and transfers alone.
    pub(crate) fn slow_tickets(&self, wanted: impl Fn(&Open) -> bool) -> Vec<RequestToken> {
        let wanted = self.slow.iter().filter(|(_, open)| wanted(open));
        wanted.map(|(number, _)| RequestToken(*number)).collect()
    }

    /// From now on an answer to this attempt belongs to this request, and one to an
    /// earlier attempt to nobody.
    pub(crate) fn expect(&mut self, ticket: RequestToken, attempt: RequestId) {
        let Some(open) = self.get_mut(ticket) else { return };
        let earlier = open.attempt.replace(attempt);
        if let Some(earlier) = earlier {
            self.attempts.remove(&earlier);
        }
        self.attempts.insert(attempt, ticket);
    }

    /// Whose attempt was answered, if anybody still waits for it.
    pub(crate) fn answered(&mut self, attempt: RequestId) -> Option<RequestToken> {
        let ticket = self.attempts.remove(&attempt)?;
        self.get_mut(ticket)?.attempt = None;
        Some(ticket)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open(asked: Asked) -> Open {
        let stage = Stage::Waiting;
        let (once, attempt, refusal) = (false, None, None);
        let offers = 0;
        Open { asked, once, stage, offers, attempt, refusal, offer_at: 0, deadline: 0, ticks: 0 }
    }

    #[test]
    fn a_change_that_waits_long_keeps_nothing_else_in_the_table() {
        let mut requests = Requests::new(1);
        let change = requests.insert(open(Asked::Change(Box::new(Change::leave()))));
        for number in 1..=1_000 {
            let ticket = requests.insert(open(Asked::Command(Bytes::new())));
            assert_eq!(ticket, RequestToken(number));
            assert!(requests.remove(ticket).is_some());
            assert!(requests.open.is_empty());
        }
        assert_eq!((requests.oldest(), requests.len()), (RequestToken(1_001), 1));
        assert_eq!(requests.slow_tickets(|_| true), [change]);
        assert!(requests.remove(change).is_some());
        assert_eq!(requests.len(), 0);
    }
}
