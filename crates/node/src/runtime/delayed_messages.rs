//! Messages that nobody waits for leave with the next message to the same peer.
//!
//! A leader tells a peer with clients at once that entries are committed: the clients wait for it. For
//! a peer without, the commit index leaves with the next entries. An append of its own would cost a
//! save, a reply and several wake-ups of threads on both members. It waits for a short time only,
//! because watches and local reads of the peer should see the entries soon.
//!
//! A follower that was told only a commit index confirms again what it has confirmed before. The
//! leader waits for that only after it lost messages, and while the membership changes.
//!
//! While requests are gathered, a follower that saves entries replies to a heartbeat when they are saved.
//! Reads that wait for it were gathered with the entries; so one message ends both.
//!
//! If messages to a peer are rare, none waits.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use quorate_core::message::{Append, AppendReply, Message};
use quorate_core::{Envelope, Index, MemberId, Term};

/// What a member holds back.
#[derive(Default)]
pub(crate) struct DelayedMessages {
    held: Vec<HeldMessage>,
    peers: BTreeMap<MemberId, PeerTraffic>,
    /// The newest confirmation.
    confirmed: Option<Confirmation>,
}

/// What is known of the messages from and to a peer.
#[derive(Default)]
struct PeerTraffic {
    /// When it last forwarded a request.
    requested_at: Option<Instant>,
    /// A message that could wait, until the next one.
    could_wait: Option<CouldWait>,
    /// Nothing followed the last one that could wait in time. Then it is better sent at once: a timer
    /// costs as much as the message.
    waits_in_vain: bool,
}

/// When there was a message that could wait, and for how long.
#[derive(Clone, Copy)]
struct CouldWait {
    at: Instant,
    hold_time: Duration,
}

struct HeldMessage {
    envelope: Envelope,
    due: Instant,
}

/// A follower has told a leader that their logs match up to an index.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Confirmation {
    leader: MemberId,
    term: Term,
    index: Index,
}

/// Which messages may wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MayWait {
    /// None: the membership changes, or a member was removed that has yet to learn of it.
    Nothing,
    /// Those of a leader whose log ends here.
    OfLeader { last: Index },
    /// Those of a follower. `save` is for how long the reply to a heartbeat may wait for a save in
    /// progress, which another message waits for.
    OfFollower { save: Option<Duration> },
}

impl DelayedMessages {
    /// A peer forwarded a request: it waits for the commit index from now on.
    pub(crate) fn on_request(&mut self, peer: MemberId, now: Instant) {
        self.peers.entry(peer).or_default().requested_at = Some(now);
        for held in self.held.iter_mut().filter(|held| held.envelope.to == peer) {
            held.due = now;
        }
    }

    /// When something has to be sent.
    pub(crate) fn next_due(&self) -> Option<Instant> {
        self.held.iter().map(|held| held.due).min()
    }

    /// Removes from `send` what can wait, and adds what has waited for long enough.
    pub(crate) fn pass(&mut self, send: &mut Vec<Envelope>, may_wait: MayWait, now: Instant) {
        for envelope in send.iter() {
            if let Some(peer) = self.peers.get_mut(&envelope.to) {
                peer.follow(now);
            }
        }
        if self.held.is_empty() && !send.iter().any(|sent| hold_time(sent, may_wait).is_some()) {
            return;
        }
        let mut passed = Vec::with_capacity(send.len() + self.held.len());
        for envelope in send.drain(..) {
            let mut replaced_due = None;
            // Messages to one peer keep their order. A newer one of the kind says the same.
            for held in self.held.extract_if(.., |held| held.envelope.to == envelope.to) {
                if replaces(&envelope, &held.envelope) {
                    replaced_due = Some(held.due);
                } else {
                    passed.push(held.envelope);
                }
            }
            let is_repeated = self.confirm(&envelope);
            match hold_time(&envelope, may_wait).filter(|_| is_repeated) {
                Some(time) if self.peers.entry(envelope.to).or_default().lets_wait(now, time) => {
                    let due = replaced_due.unwrap_or(now + time);
                    self.held.push(HeldMessage { envelope, due });
                }
                _ => passed.push(envelope),
            }
        }
        let due = self.held.extract_if(.., |held| {
            held.due <= now || hold_time(&held.envelope, may_wait).is_none()
        });
        passed.extend(due.map(|held| held.envelope));
        *send = passed;
    }

    /// Whether a message confirms nothing that its receiver has not been told before. Remembers what
    /// it confirms.
    fn confirm(&mut self, envelope: &Envelope) -> bool {
        let Message::AppendReply(AppendReply::Matches { index, .. }) = envelope.message else {
            return true;
        };
        let confirmation = Confirmation { leader: envelope.to, term: envelope.term, index };
        self.confirmed.replace(confirmation) == Some(confirmation)
    }
}

impl PeerTraffic {
    /// There is a message for it.
    fn follow(&mut self, now: Instant) {
        if let Some(CouldWait { at, hold_time }) = self.could_wait.take() {
            // Timers may be late by as much as the hold time.
            self.waits_in_vain = now.duration_since(at) > 2 * hold_time;
        }
    }

    /// Whether a message that could wait does: no client of the peer waits for it, and another one
    /// is expected soon.
    fn lets_wait(&mut self, now: Instant, hold_time: Duration) -> bool {
        self.could_wait = Some(CouldWait { at: now, hold_time });
        let expects_requests = |at: Instant| now.duration_since(at) < REQUESTS_EXPECTED;
        !self.waits_in_vain && !self.requested_at.is_some_and(expects_requests)
    }
}

/// How long a message may wait for the next one; none if it may not: on a leader an append without entries
/// to a peer that has the whole log, which only tells the commit index; on a follower the reply to an
/// append, and the reply to a heartbeat while a save is in progress.
fn hold_time(envelope: &Envelope, may_wait: MayWait) -> Option<Duration> {
    match (&envelope.message, may_wait) {
        (Message::Append(append), MayWait::OfLeader { last }) => {
            (append.entries.is_empty() && append.prev.index == last).then_some(NOTICE_HOLD_TIME)
        }
        (Message::AppendReply(AppendReply::Matches { .. }), MayWait::OfFollower { .. }) => {
            Some(CONFIRMATION_HOLD_TIME)
        }
        (Message::HeartbeatReply(_), MayWait::OfFollower { save }) => save,
        _ => None,
    }
}

/// Whether a later message to the same peer carries what the one that waits does.
fn replaces(later: &Envelope, held: &Envelope) -> bool {
    let is_newer = match (&later.message, &held.message) {
        (Message::Append(later), Message::Append(Append { prev, commit, .. })) => {
            later.prev == *prev && later.commit >= *commit
        }
        (
            Message::AppendReply(AppendReply::Matches { index: later_index, commit: later_commit }),
            Message::AppendReply(AppendReply::Matches { index, commit }),
        ) => later_index >= index && later_commit >= commit,
        _ => false,
    };
    later.term == held.term && is_newer
}

/// How long a commit index waits: watches and local reads of the peer should see the entries soon.
const NOTICE_HOLD_TIME: Duration = Duration::from_millis(1);
/// How long a repeated confirmation waits: longer than requests are gathered on a busy member, so that it
/// leaves with those that the member forwards next, or with the next confirmation.
const CONFIRMATION_HOLD_TIME: Duration = Duration::from_millis(10);
/// A peer that forwarded a request is expected to forward more for so long.
const REQUESTS_EXPECTED: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use quorate_core::message::{Heartbeat, HeartbeatReply};
    use quorate_core::{Entries, Entry, EntryId, Payload, Stalled};

    use super::*;

    const PEER: MemberId = MemberId(2);
    const OTHER: MemberId = MemberId(3);
    const LEADER: MayWait = MayWait::OfLeader { last: 7 };
    const FOLLOWER: MayWait = MayWait::OfFollower { save: None };

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
        notices: &mut DelayedMessages,
        send: impl IntoIterator<Item = Envelope>,
        now: Instant,
    ) -> Vec<Envelope> {
        let mut send = send.into_iter().collect();
        notices.pass(&mut send, LEADER, now);
        send
    }

    #[test]
    fn a_commit_index_leaves_with_the_next_entries() {
        let (mut notices, now) = (DelayedMessages::default(), Instant::now());
        assert_eq!(pass(&mut notices, [append(PEER, 7, 7, &[])], now), []);
        let next = append(PEER, 7, 7, &[8]);
        assert_eq!(pass(&mut notices, [next.clone()], now), [next]);
        assert_eq!(notices.next_due(), None);
    }

    #[test]
    fn a_commit_index_leaves_alone_when_no_entries_follow() {
        let (mut notices, now) = (DelayedMessages::default(), Instant::now());
        let notice = append(PEER, 7, 7, &[]);
        assert_eq!(pass(&mut notices, [notice.clone()], now), []);
        let due = notices.next_due().unwrap();
        assert_eq!(due, now + NOTICE_HOLD_TIME);
        assert_eq!(pass(&mut notices, [], due), [notice]);
        assert_eq!(notices.next_due(), None);
    }

    #[test]
    fn a_peer_that_forwards_requests_is_told_at_once() {
        let (mut notices, now) = (DelayedMessages::default(), Instant::now());
        let to_both = || [append(PEER, 7, 7, &[]), append(OTHER, 7, 7, &[])];
        notices.on_request(PEER, now);
        assert_eq!(pass(&mut notices, to_both(), now), to_both()[..1]);
        // The other one forwards a request, such as a read of what has been committed.
        notices.on_request(OTHER, now);
        assert_eq!(pass(&mut notices, [], now), to_both()[1..]);
        // Later both are without clients again.
        let later = now + REQUESTS_EXPECTED;
        assert_eq!(pass(&mut notices, to_both(), later), to_both(), "nothing has followed before");
        assert_eq!(pass(&mut notices, to_both(), later), []);
    }

    #[test]
    fn nothing_but_a_notice_waits() {
        let (mut notices, now) = (DelayedMessages::default(), Instant::now());
        let heartbeat = Heartbeat { commit: 7, round: 0, sent_at: 0, settled: 0 };
        let others = [
            append(PEER, 7, 7, &[8]),
            append(PEER, 5, 7, &[]),
            envelope(PEER, Message::Heartbeat(heartbeat)),
        ];
        assert_eq!(pass(&mut notices, others.clone(), now), others);
        // Nor while the membership changes.
        let mut send = vec![append(PEER, 7, 7, &[])];
        notices.pass(&mut send, MayWait::Nothing, now);
        assert_eq!(send, [append(PEER, 7, 7, &[])]);
    }

    #[test]
    fn messages_to_a_peer_keep_their_order() {
        let (mut notices, now) = (DelayedMessages::default(), Instant::now());
        let notice = append(PEER, 7, 7, &[]);
        let heartbeat = Heartbeat { commit: 7, round: 0, sent_at: 0, settled: 0 };
        let heartbeat = envelope(PEER, Message::Heartbeat(heartbeat));
        assert_eq!(pass(&mut notices, [notice.clone()], now), []);
        let passed = pass(&mut notices, [heartbeat.clone()], now);
        assert_eq!(passed, [notice.clone(), heartbeat]);
        // A newer commit index replaces an older one, and not the other way round.
        assert_eq!(pass(&mut notices, [append(PEER, 7, 6, &[])], now), []);
        assert_eq!(pass(&mut notices, [notice.clone()], now), []);
        assert_eq!(pass(&mut notices, [], now + NOTICE_HOLD_TIME), [notice]);
        // A leader that has lost its role, or whose membership changes, holds nothing back.
        assert_eq!(pass(&mut notices, [append(PEER, 7, 7, &[])], now), []);
        let mut send = Vec::new();
        notices.pass(&mut send, MayWait::Nothing, now);
        assert_eq!(send.len(), 1);
    }

    fn confirmation(index: Index, commit: Index) -> Envelope {
        envelope(PEER, Message::AppendReply(AppendReply::Matches { index, commit }))
    }

    fn pass_as_follower(
        messages: &mut DelayedMessages,
        send: impl IntoIterator<Item = Envelope>,
        now: Instant,
    ) -> Vec<Envelope> {
        let mut send = send.into_iter().collect();
        messages.pass(&mut send, FOLLOWER, now);
        send
    }

    #[test]
    fn a_repeated_confirmation_leaves_with_the_next_message() {
        let (mut messages, now) = (DelayedMessages::default(), Instant::now());
        let first = confirmation(7, 5);
        assert_eq!(pass_as_follower(&mut messages, [first.clone()], now), [first]);
        // Only the commit index is new.
        assert_eq!(pass_as_follower(&mut messages, [confirmation(7, 7)], now), []);
        let request = envelope(PEER, Message::Read(quorate_core::RequestId(1)));
        let passed = pass_as_follower(&mut messages, [request.clone()], now);
        assert_eq!(passed, [confirmation(7, 7), request]);
        assert_eq!(messages.next_due(), None);
    }

    #[test]
    fn a_confirmation_of_new_entries_does_not_wait_and_replaces_one_that_does() {
        let (mut messages, now) = (DelayedMessages::default(), Instant::now());
        assert_eq!(pass_as_follower(&mut messages, [confirmation(7, 5)], now).len(), 1);
        assert_eq!(pass_as_follower(&mut messages, [confirmation(7, 7)], now), []);
        let next = confirmation(8, 7);
        assert_eq!(pass_as_follower(&mut messages, [next.clone()], now), [next]);
        assert_eq!(messages.next_due(), None);
        // Another leader, and the same one in another term, have been told nothing.
        let other = Envelope { to: OTHER, ..confirmation(8, 7) };
        assert_eq!(pass_as_follower(&mut messages, [other.clone()], now), [other]);
        let later = Envelope { term: 2, ..confirmation(8, 7) };
        assert_eq!(pass_as_follower(&mut messages, [later.clone()], now), [later]);
    }

    #[test]
    fn a_message_that_replaces_another_one_waits_no_longer_than_that() {
        let (mut messages, now) = (DelayedMessages::default(), Instant::now());
        pass_as_follower(&mut messages, [confirmation(9, 5)], now);
        assert_eq!(pass_as_follower(&mut messages, [confirmation(9, 6)], now), []);
        let later = now + CONFIRMATION_HOLD_TIME / 2;
        assert_eq!(pass_as_follower(&mut messages, [confirmation(9, 7)], later), []);
        assert_eq!(messages.next_due(), Some(now + CONFIRMATION_HOLD_TIME));
    }

    #[test]
    fn a_repeated_confirmation_leaves_alone_when_nothing_follows() {
        let (mut messages, now) = (DelayedMessages::default(), Instant::now());
        pass_as_follower(&mut messages, [confirmation(7, 5)], now);
        let repeated = confirmation(7, 7);
        assert_eq!(pass_as_follower(&mut messages, [repeated.clone()], now), []);
        let due = messages.next_due().unwrap();
        assert_eq!(due, now + CONFIRMATION_HOLD_TIME);
        let passed = pass_as_follower(&mut messages, [], due);
        assert_eq!(passed, std::slice::from_ref(&repeated));
        // Nor does it wait while the membership changes.
        assert_eq!(pass_as_follower(&mut messages, [repeated.clone()], now), []);
        let mut send = Vec::new();
        messages.pass(&mut send, MayWait::Nothing, now);
        assert_eq!(send, [repeated]);
    }

    #[test]
    fn a_reply_to_a_heartbeat_leaves_with_the_confirmation_of_a_save() {
        let (mut messages, now) = (DelayedMessages::default(), Instant::now());
        let stalled = Stalled::default();
        let reply = HeartbeatReply { commit: 5, round: 3, sent_at: 0, applied: 5, stalled };
        let reply = envelope(PEER, Message::HeartbeatReply(reply));
        let pass = |messages: &mut DelayedMessages, send: &[Envelope], save| {
            let mut send = send.to_vec();
            messages.pass(&mut send, MayWait::OfFollower { save }, now);
            send
        };
        let replies = [reply.clone()];
        assert_eq!(pass(&mut messages, &replies, None), replies, "no save is in progress");
        let save = Some(Duration::from_millis(3));
        assert_eq!(pass(&mut messages, &replies, save), []);
        assert_eq!(messages.next_due(), Some(now + Duration::from_millis(3)));
        let passed = pass(&mut messages, &[confirmation(7, 5)], None);
        assert_eq!(passed, [reply, confirmation(7, 5)]);
        // It waits for nothing else.
        assert_eq!(pass(&mut messages, &replies, save), []);
        assert_eq!(pass(&mut messages, &[], None), replies, "the save has ended");
    }

    #[test]
    fn nothing_waits_if_messages_are_rare() {
        let (mut messages, mut now) = (DelayedMessages::default(), Instant::now());
        let notice = |commit| append(PEER, 7, commit, &[]);
        assert_eq!(pass(&mut messages, [notice(5)], now), []);
        now += NOTICE_HOLD_TIME;
        assert_eq!(pass(&mut messages, [], now), [notice(5)], "it has waited in vain");
        for commit in [6, 7] {
            now += 10 * NOTICE_HOLD_TIME;
            assert_eq!(pass(&mut messages, [notice(commit)], now), [notice(commit)]);
            assert_eq!(messages.next_due(), None);
        }
        // They are frequent again.
        now += NOTICE_HOLD_TIME / 2;
        assert_eq!(pass(&mut messages, [append(PEER, 7, 7, &[8])], now).len(), 1);
        assert_eq!(pass(&mut messages, [notice(7)], now), []);
    }
}
