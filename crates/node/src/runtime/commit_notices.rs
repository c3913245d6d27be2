//! Commit indexes for peers that do not wait for them.
//!
//! A peer with clients is told at once that entries are committed: its clients wait for it. For a
//! peer without, the commit index leaves with the next entries. An append of its own would cost a
//! save, a reply and several wake-ups of threads on both members. It waits for a short time only,
//! because watches and local reads of the peer should see the entries soon.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use quorate_core::message::{Append, Message};
use quorate_core::{Envelope, Index, MemberId};

/// What a leader holds back.
#[derive(Default)]
pub(crate) struct CommitNotices {
    held: Vec<HeldNotice>,
    /// When a peer last forwarded a request.
    requested: BTreeMap<MemberId, Instant>,
}

struct HeldNotice {
    envelope: Envelope,
    due: Instant,
}

impl CommitNotices {
    /// A peer forwarded a request: it waits for the commit index from now on.
    pub(crate) fn on_request(&mut self, peer: MemberId, now: Instant) {
        self.requested.insert(peer, now);
        for held in self.held.iter_mut().filter(|held| held.envelope.to == peer) {
            held.due = now;
        }
    }

    /// When something has to be sent.
    pub(crate) fn next_due(&self) -> Option<Instant> {
        self.held.iter().map(|held| held.due).min()
    }

    /// Removes from `send` what can wait, and adds what has waited for long enough. `last` is the
    /// end of the log; without it nothing may wait.
    pub(crate) fn pass(&mut self, send: &mut Vec<Envelope>, last: Option<Index>, now: Instant) {
        let may_hold = |envelope: &Envelope| last.is_some_and(|last| is_notice(envelope, last));
        if self.held.is_empty() && !send.iter().any(may_hold) {
            return;
        }
        let mut passed = Vec::with_capacity(send.len() + self.held.len());
        for envelope in send.drain(..) {
            let earlier = self.held.extract_if(.., |held| held.envelope.to == envelope.to);
            // Messages to one peer keep their order. A newer append says the same.
            let earlier = earlier.filter(|held| !replaces(&envelope, &held.envelope));
            passed.extend(earlier.map(|held| held.envelope));
            if may_hold(&envelope) && !self.waits(envelope.to, now) {
                self.held.push(HeldNotice { envelope, due: now + HOLD_TIME });
            } else {
                passed.push(envelope);
            }
        }
        let due = self.held.extract_if(.., |held| last.is_none() || held.due <= now);
        passed.extend(due.map(|held| held.envelope));
        *send = passed;
    }

    /// Whether clients of this peer wait for commit indexes.
    fn waits(&self, peer: MemberId, now: Instant) -> bool {
        self.requested.get(&peer).is_some_and(|at| now.duration_since(*at) < REQUESTS_EXPECTED)
    }
}

/// An append without entries to a peer that has the whole log: only the commit index is new.
fn is_notice(envelope: &Envelope, last: Index) -> bool {
    let Message::Append(append) = &envelope.message else { return false };
    append.entries.is_empty() && append.prev.index == last
}

/// Whether a later append to the same peer carries what the notice does.
fn replaces(later: &Envelope, notice: &Envelope) -> bool {
    let (Message::Append(later_append), Message::Append(append)) =
        (&later.message, &notice.message)
    else {
        return false;
    };
    let continues = |later: &Append| later.prev == append.prev && later.commit >= append.commit;
    later.term == notice.term && continues(later_append)
}

/// How long a commit index waits for the next entries.
const HOLD_TIME: Duration = Duration::from_millis(1);
/// A peer that forwarded a request is expected to forward more for so long.
const REQUESTS_EXPECTED: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use quorate_core::message::Heartbeat;
    use quorate_core::{Entries, Entry, EntryId, Payload};

    use super::*;

    const PEER: MemberId = MemberId(2);
    const OTHER: MemberId = MemberId(3);

    fn envelope(to: MemberId, message: Message) -> Envelope {
        Envelope { from: MemberId(1), to, term: 1, incarnation: 0, joined_at: 0, message }
    }

    fn append(to: MemberId, prev: Index, commit: Index, entries: &[Index]) -> Envelope {
        let entry = |index: &Index| {
            let id = EntryId { term: 1, index: *index };
            Entry { id, payload: Payload::Command("command".into()) }
        };
        let entries: Entries = entries.iter().map(entry).collect::<Vec<_>>().into();
        let prev = EntryId { term: 1, index: prev };
        envelope(to, Message::Append(Append { prev, entries, commit }))
    }

    fn pass(
        notices: &mut CommitNotices,
        send: impl IntoIterator<Item = Envelope>,
        now: Instant,
    ) -> Vec<Envelope> {
        let mut send = send.into_iter().collect();
        notices.pass(&mut send, Some(7), now);
        send
    }

    #[test]
    fn a_commit_index_leaves_with_the_next_entries() {
        let (mut notices, now) = (CommitNotices::default(), Instant::now());
        assert_eq!(pass(&mut notices, [append(PEER, 7, 7, &[])], now), []);
        let next = append(PEER, 7, 7, &[8]);
        assert_eq!(pass(&mut notices, [next.clone()], now), [next]);
        assert_eq!(notices.next_due(), None);
    }

    #[test]
    fn a_commit_index_leaves_alone_when_no_entries_follow() {
        let (mut notices, now) = (CommitNotices::default(), Instant::now());
        let notice = append(PEER, 7, 7, &[]);
        assert_eq!(pass(&mut notices, [notice.clone()], now), []);
        let due = notices.next_due().unwrap();
        assert_eq!(due, now + HOLD_TIME);
        assert_eq!(pass(&mut notices, [], due), [notice]);
        assert_eq!(notices.next_due(), None);
    }

    #[test]
    fn a_peer_that_forwards_requests_is_told_at_once() {
        let (mut notices, now) = (CommitNotices::default(), Instant::now());
        let to_both = || [append(PEER, 7, 7, &[]), append(OTHER, 7, 7, &[])];
        notices.on_request(PEER, now);
        assert_eq!(pass(&mut notices, to_both(), now), to_both()[..1]);
        // The other one forwards a request, such as a read of what has been committed.
        notices.on_request(OTHER, now);
        assert_eq!(pass(&mut notices, [], now), to_both()[1..]);
        // Later both are without clients again.
        assert_eq!(pass(&mut notices, to_both(), now + REQUESTS_EXPECTED), []);
    }

    #[test]
    fn nothing_but_a_notice_waits() {
        let (mut notices, now) = (CommitNotices::default(), Instant::now());
        let heartbeat = Heartbeat { commit: 7, round: 0, sent_at: 0, settled: 0 };
        let others = [
            append(PEER, 7, 7, &[8]),
            append(PEER, 5, 7, &[]),
            envelope(PEER, Message::Heartbeat(heartbeat)),
        ];
        assert_eq!(pass(&mut notices, others.clone(), now), others);
        // Nor while the membership changes.
        let mut send = vec![append(PEER, 7, 7, &[])];
        notices.pass(&mut send, None, now);
        assert_eq!(send, [append(PEER, 7, 7, &[])]);
    }

    #[test]
    fn messages_to_a_peer_keep_their_order() {
        let (mut notices, now) = (CommitNotices::default(), Instant::now());
        let notice = append(PEER, 7, 7, &[]);
        let heartbeat = Heartbeat { commit: 7, round: 0, sent_at: 0, settled: 0 };
        let heartbeat = envelope(PEER, Message::Heartbeat(heartbeat));
        assert_eq!(pass(&mut notices, [notice.clone()], now), []);
        let passed = pass(&mut notices, [heartbeat.clone()], now);
        assert_eq!(passed, [notice.clone(), heartbeat]);
        // A newer commit index replaces an older one, and not the other way round.
        assert_eq!(pass(&mut notices, [append(PEER, 7, 6, &[])], now), []);
        assert_eq!(pass(&mut notices, [notice.clone()], now), []);
        assert_eq!(pass(&mut notices, [], now + HOLD_TIME), [notice]);
        // A leader that has lost its role, or whose membership changes, holds nothing back.
        assert_eq!(pass(&mut notices, [append(PEER, 7, 7, &[])], now), []);
        let mut send = Vec::new();
        notices.pass(&mut send, None, now);
        assert_eq!(send.len(), 1);
    }
}
