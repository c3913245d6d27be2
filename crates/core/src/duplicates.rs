//! Deduplicates forwarded requests: each is accepted or refused once, however often it
//! arrives.
//!
//! If a duplicate were refused after the first copy was accepted, a client would be told
//! "did not happen" about something that happens. So a leader remembers the newest request
//! numbers of each member until it leads again. Not part of etcd's rules.

use std::collections::BTreeMap;

use crate::pack::pack_fields;
use crate::{Dropped, MemberId, RequestId, Term};

/// The forwarded requests of the newest term that this member led.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct DuplicateFilter {
    term: Term,
    /// By forwarding member. None after a start: earlier requests of that term are not
    /// known, so every request of it may be a duplicate.
    seen: Option<BTreeMap<MemberId, Window>>,
}

pack_fields!(DuplicateFilter { term, seen });

/// The request numbers of one member: the highest, and which of those just below it were
/// seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Window {
    highest: u64,
    /// Bit n stands for `highest - n`.
    mask: u64,
    /// Numbers in a row that were too old to know, each above the one before: how many, and
    /// the last one.
    too_old: u32,
    last_too_old: u64,
}

pack_fields!(Window { highest, mask, too_old, last_too_old });

impl DuplicateFilter {
    /// After a start in this term, which this member may have led.
    pub(crate) fn after_start(term: Term) -> Self {
        Self { term, seen: None }
    }

    /// This member leads this term from now on.
    pub(crate) fn for_leader(term: Term) -> Self {
        Self { term, seen: Some(BTreeMap::new()) }
    }

    /// A request arrives that was sent to the leader of `term`. An error when it may have
    /// been answered before.
    pub(crate) fn check(
        &mut self,
        term: Term,
        from: MemberId,
        request: RequestId,
    ) -> Result<(), Dropped> {
        if term < self.term {
            return Err(Dropped::OldTerm { term, current: self.term });
        }
        if term > self.term {
            return Ok(()); // Not led by this member, so it accepted nothing in it.
        }
        let is_new = self.seen.as_mut().is_some_and(|seen| match seen.get_mut(&from) {
            Some(window) => window.check(request.0),
            None => seen.insert(from, Window::at(request.0)).is_none(),
        });
        if is_new { Ok(()) } else { Err(Dropped::Repeated { from, request }) }
    }
}

impl Window {
    /// So many numbers in a row that are too old, and increase, are not late: the highest
    /// number was not the member's own. Otherwise one request in its name would block all of
    /// its requests for the rest of the term.
    /// Shown by scenarios/proposal_forged_number_does_not_block.txt.
    const START_OVER: u32 = 16;

    fn at(number: u64) -> Self {
        Self { highest: number, mask: 1, too_old: 0, last_too_old: 0 }
    }

    /// Whether this number is new; false when it is too old to know.
    fn check(&mut self, number: u64) -> bool {
        if number > self.highest {
            self.too_old = 0;
            let up = u32::try_from(number - self.highest).unwrap_or(u32::MAX);
            self.mask = self.mask.checked_shl(up).unwrap_or(0) | 1;
            self.highest = number;
            return true;
        }
        let down = u32::try_from(self.highest - number).unwrap_or(u32::MAX);
        let Some(bit) = 1u64.checked_shl(down) else { return self.check_too_old(number) };
        self.too_old = 0;
        let is_new = self.mask & bit == 0;
        self.mask |= bit;
        is_new
    }

    fn check_too_old(&mut self, number: u64) -> bool {
        let increases = self.too_old > 0 && number > self.last_too_old;
        self.too_old = if increases { self.too_old + 1 } else { 1 };
        self.last_too_old = number;
        let starts_over = self.too_old >= Self::START_OVER;
        if starts_over {
            *self = Self::at(number);
        }
        starts_over
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_new_once_and_never_when_too_old() {
        let mut window = Window::at(100);
        assert!(!window.check(100));
        assert!(window.check(103) && window.check(101) && !window.check(101));
        assert!(window.check(40) && !window.check(39) && !window.check(0));
        assert!(window.check(166) && window.check(104) && !window.check(103));
        assert!(window.check(u64::MAX) && !window.check(166));
        assert!(window.check(u64::MAX - 63) && !window.check(u64::MAX - 64));
    }

    #[test]
    fn a_forged_number_blocks_only_a_few_requests() {
        let mut window = Window::at(1 << 62);
        let blocked = (1..100).filter(|number| !window.check(*number)).count();
        assert_eq!(blocked, Window::START_OVER as usize - 1);
        // Late numbers that do not increase, or that come between newer ones, are late.
        let mut window = Window::at(1000);
        assert!((0..100).all(|_| !window.check(1)));
        assert!((0..100).all(|late| !window.check(late) && window.check(1001 + late)));
    }

    #[test]
    fn each_term_starts_empty_and_terms_before_a_start_are_unknown() {
        let (m2, request) = (MemberId(2), RequestId(7));
        let mut filter = DuplicateFilter::after_start(5);
        assert!(filter.check(5, m2, request).is_err() && filter.check(4, m2, request).is_err());
        assert!(filter.check(6, m2, request).is_ok());
        let mut filter = DuplicateFilter::for_leader(6);
        assert!(filter.check(6, m2, request).is_ok() && filter.check(6, m2, request).is_err());
        assert!(filter.check(6, MemberId(3), request).is_ok());
        assert!(filter.check(5, m2, RequestId(8)).is_err());
    }
}
