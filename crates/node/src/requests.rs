//! The table of open requests: what was asked here and has no answer yet.

use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;
use quorate_core::{Change, EntryId, Index, MemberId, RequestId};

/// Names a request to the caller, from asking to the answer. Never used twice by
/// one driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Ticket(pub u64);

/// What was asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Asked {
    /// A command, sealed with its origin.
    Command(Bytes),
    /// A question to the machine.
    Read(Bytes),
    Change(Box<Change>),
    Transfer(MemberId),
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
    /// When it is offered again, unless something happens before.
    pub(crate) offer_at: u64,
    pub(crate) deadline: u64,
}

/// Open requests by ticket. Tickets grow by one, so a queue is a map.
#[derive(Clone, Debug, Default)]
pub(crate) struct Requests {
    open: VecDeque<Option<Open>>,
    /// The ticket of the first place in `open`.
    first: u64,
    count: usize,
    /// How many of them are changes.
    changes: usize,
    attempts: BTreeMap<RequestId, Ticket>,
}

impl Requests {
    pub(crate) fn new(first: u64) -> Self {
        Self { first, ..Self::default() }
    }

    pub(crate) fn len(&self) -> usize {
        self.count
    }

    /// There are few, and often none: then nobody has to look for them.
    pub(crate) fn has_changes(&self) -> bool {
        self.changes > 0
    }

    /// Every request before this one was answered.
    pub(crate) fn oldest(&self) -> Ticket {
        Ticket(self.first)
    }

    /// The ticket that the next request gets.
    pub(crate) fn next(&self) -> Ticket {
        Ticket(self.first + self.open.len() as u64)
    }

    pub(crate) fn insert(&mut self, open: Open) -> Ticket {
        let ticket = self.next();
        self.changes += usize::from(matches!(open.asked, Asked::Change(_)));
        self.open.push_back(Some(open));
        self.count += 1;
        ticket
    }

    pub(crate) fn get_mut(&mut self, ticket: Ticket) -> Option<&mut Open> {
        let place = ticket.0.checked_sub(self.first)?;
        self.open.get_mut(usize::try_from(place).ok()?)?.as_mut()
    }

    pub(crate) fn remove(&mut self, ticket: Ticket) -> Option<Open> {
        let place = usize::try_from(ticket.0.checked_sub(self.first)?).ok()?;
        let open = self.open.get_mut(place)?.take()?;
        self.count -= 1;
        self.changes -= usize::from(matches!(open.asked, Asked::Change(_)));
        if let Some(attempt) = open.attempt {
            self.attempts.remove(&attempt);
        }
        while let Some(None) = self.open.front() {
            self.open.pop_front();
            self.first += 1;
        }
        Some(open)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (Ticket, &Open)> {
        let numbered = self.open.iter().zip(self.first..);
        numbered.filter_map(|(open, number)| Some((Ticket(number), open.as_ref()?)))
    }

    pub(crate) fn tickets(&self, wanted: impl Fn(&Open) -> bool) -> Vec<Ticket> {
        self.iter().filter(|(_, open)| wanted(open)).map(|(ticket, _)| ticket).collect()
    }

    /// From now on an answer to this attempt belongs to this request, and one to an
    /// earlier attempt to nobody.
    pub(crate) fn expect(&mut self, ticket: Ticket, attempt: RequestId) {
        let Some(open) = self.get_mut(ticket) else { return };
        let earlier = open.attempt.replace(attempt);
        if let Some(earlier) = earlier {
            self.attempts.remove(&earlier);
        }
        self.attempts.insert(attempt, ticket);
    }

    /// Whose attempt was answered, if anybody still waits for it.
    pub(crate) fn answered(&mut self, attempt: RequestId) -> Option<Ticket> {
        let ticket = self.attempts.remove(&attempt)?;
        self.get_mut(ticket)?.attempt = None;
        Some(ticket)
    }
}
