//! Requests that followers pass on are taken or refused once, however often they arrive.
//!
//! A copy that is refused after the first was taken would tell a client "did not happen"
//! about something that happens. So a leader remembers, for each member, the numbers of
//! the newest requests, and does so until it leads again. Not part of etcd's rules.

use std::collections::BTreeMap;

use crate::{Dropped, MemberId, RequestId, Term};

/// What was passed on in the newest term that this member led.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Replay {
    term: Term,
    /// By who passed it on. Nothing after a start: what was taken before is forgotten, so
    /// every request of that term may be a copy.
    seen: Option<BTreeMap<MemberId, Window>>,
}

/// The numbers seen of one member: the highest, and which of those just below it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Window {
    highest: u64,
    /// Bit n stands for `highest - n`.
    mask: u64,
}

impl Replay {
    /// After a start in this term, which this member may have led.
    pub(crate) fn closed(term: Term) -> Self {
        Self { term, seen: None }
    }

    /// It leads this term from now on.
    pub(crate) fn open(term: Term) -> Self {
        Self { term, seen: Some(BTreeMap::new()) }
    }

    /// A request arrives that was meant for the leader of `term`. Refused without an
    /// answer when it may have been answered before.
    pub(crate) fn take(
        &mut self,
        term: Term,
        from: MemberId,
        request: RequestId,
    ) -> Result<(), Dropped> {
        if term < self.term {
            return Err(Dropped::OldTerm { term, current: self.term });
        }
        if term > self.term {
            return Ok(()); // Never led by this member, so nothing of it was taken.
        }
        let fresh = self.seen.as_mut().is_some_and(|seen| match seen.get_mut(&from) {
            Some(window) => window.take(request.0),
            None => seen.insert(from, Window { highest: request.0, mask: 1 }).is_none(),
        });
        if fresh { Ok(()) } else { Err(Dropped::Repeated { from, request }) }
    }
}

impl Window {
    /// Whether this number is seen for the first time; not when it is too old to tell.
    fn take(&mut self, number: u64) -> bool {
        if number > self.highest {
            let up = u32::try_from(number - self.highest).unwrap_or(u32::MAX);
            self.mask = self.mask.checked_shl(up).unwrap_or(0) | 1;
            self.highest = number;
            return true;
        }
        let down = u32::try_from(self.highest - number).unwrap_or(u32::MAX);
        let bit = 1u64.checked_shl(down).unwrap_or(0);
        let fresh = bit != 0 && self.mask & bit == 0;
        self.mask |= bit;
        fresh
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_taken_once_and_not_when_it_is_too_old() {
        let mut window = Window { highest: 100, mask: 1 };
        assert!(!window.take(100));
        assert!(window.take(103) && window.take(101) && !window.take(101));
        assert!(window.take(40) && !window.take(39) && !window.take(0));
        assert!(window.take(166) && window.take(104) && !window.take(103));
        assert!(window.take(u64::MAX) && !window.take(166));
        assert!(window.take(u64::MAX - 63) && !window.take(u64::MAX - 64));
    }

    #[test]
    fn each_reign_begins_anew_and_nothing_is_known_of_one_before_a_start() {
        let (m2, request) = (MemberId(2), RequestId(7));
        let mut replay = Replay::closed(5);
        assert!(replay.take(5, m2, request).is_err() && replay.take(4, m2, request).is_err());
        assert!(replay.take(6, m2, request).is_ok());
        let mut replay = Replay::open(6);
        assert!(replay.take(6, m2, request).is_ok() && replay.take(6, m2, request).is_err());
        assert!(replay.take(6, MemberId(3), request).is_ok());
        assert!(replay.take(5, m2, RequestId(8)).is_err());
    }
}
