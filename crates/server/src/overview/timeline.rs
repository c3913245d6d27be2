//! What this member has seen happen, for people: memberships, elections, snapshots, connections.
//! It is in memory, bounded, and starts with the member.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use quorate::metrics::Event;
use quorate::{EntryId, MemberId, Membership};
use quorate_core::Stalled;
use quorate_proto::quorate::v1;
use tokio::sync::watch;

use crate::service::membership::convert::{entry, record};

/// The newest entries.
#[derive(Debug)]
pub(crate) struct EventTimeline {
    kept: Mutex<KeptEntries>,
    /// The number of the newest entry.
    newest: watch::Sender<u64>,
}

#[derive(Debug, Default)]
struct KeptEntries {
    last: u64,
    entries: VecDeque<v1::TimelineEntry>,
}

impl Default for EventTimeline {
    fn default() -> Self {
        Self { kept: Mutex::default(), newest: watch::Sender::new(0) }
    }
}

/// An entry without a number and a time.
fn draft(kind: &str, text: impl Into<String>) -> v1::TimelineEntry {
    v1::TimelineEntry { kind: kind.to_owned(), text: text.into(), ..Default::default() }
}

impl EventTimeline {
    fn lock(&self) -> MutexGuard<'_, KeptEntries> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn push(&self, draft: v1::TimelineEntry) {
        let number = {
            let mut kept = self.lock();
            kept.last += 1;
            let number = kept.last;
            kept.entries.push_back(v1::TimelineEntry {
                number,
                unix_millis: unix_millis(SystemTime::now()),
                ..draft
            });
            if kept.entries.len() > ENTRIES_MAX {
                kept.entries.pop_front();
            }
            number
        };
        self.newest.send_replace(number);
    }

    /// The entries after this number, oldest first.
    pub(crate) fn after(&self, number: u64) -> Vec<v1::TimelineEntry> {
        let kept = self.lock();
        // A number of an earlier run of this member, which had more entries.
        let number = if number > kept.last { 0 } else { number };
        kept.entries.iter().filter(|entry| entry.number > number).cloned().collect()
    }

    /// Notified of each new entry.
    pub(crate) fn watch(&self) -> watch::Receiver<u64> {
        self.newest.subscribe()
    }

    /// A client of this member requested a change.
    pub(crate) fn proposed(&self, text: impl Into<String>) {
        self.push(draft("proposed", text));
    }

    /// A change that a client requested was refused.
    pub(crate) fn refused(&self, text: impl Into<String>) {
        self.push(draft("refused", text));
    }

    pub(crate) fn committed(&self, id: EntryId, membership: &Membership) {
        self.push(v1::TimelineEntry {
            entry: Some(entry(id)),
            term: id.term,
            membership: Some(record(membership)),
            ..draft("committed", "the membership is committed")
        });
    }

    pub(crate) fn connection(&self, peer: MemberId, is_connected: bool) {
        let (kind, text) = match is_connected {
            true => ("connected", "connected"),
            false => ("disconnected", "the connection is lost"),
        };
        self.push(v1::TimelineEntry { member_id: peer.0, ..draft(kind, text) });
    }

    pub(crate) fn snapshot(&self, text: &str) {
        self.push(draft("snapshot", text));
    }

    pub(crate) fn event(&self, event: &Event) {
        if let Some(draft) = entry_of(event) {
            self.push(draft);
        }
    }
}

/// `None` for events that are shown another way.
fn entry_of(event: &Event) -> Option<v1::TimelineEntry> {
    let of_membership =
        |kind: &str, text: &str, id: &EntryId, membership: &Membership| v1::TimelineEntry {
            entry: Some(entry(*id)),
            term: id.term,
            membership: Some(record(membership)),
            ..draft(kind, text)
        };
    let of_member = |kind: &str, text: &str, member: MemberId| v1::TimelineEntry {
        member_id: member.0,
        ..draft(kind, text)
    };
    Some(match event {
        Event::Role { to, term, .. } => {
            v1::TimelineEntry { term: *term, ..draft("role", format!("this member: {to}")) }
        }
        Event::Leader { leader, term } => v1::TimelineEntry {
            term: *term,
            member_id: leader.map_or(0, |leader| leader.0),
            ..draft("leader", if leader.is_some() { "leads" } else { "no leader is known" })
        },
        Event::Membership { id, membership } => {
            of_membership("active", "the membership counts on this member", id, membership)
        }
        Event::Settled { id, membership, .. } => {
            of_membership("settled", "the membership is settled", id, membership)
        }
        Event::GoalStep { step } => draft("step", step.to_string()),
        Event::GoalEnded(goal) => v1::TimelineEntry {
            entry: Some(entry(goal.id)),
            ..draft("goal_ended", format!("{:?}", goal.end).to_lowercase())
        },
        Event::TransferBegan { to } => {
            of_member("transfer", "leadership is being transferred", *to)
        }
        Event::TransferAborted { to, .. } => {
            of_member("transfer", "the transfer of leadership was aborted", *to)
        }
        Event::IdentityRejected { by, .. } => {
            of_member("identity", "another disk is known under this member's id", *by)
        }
        Event::LogLost { .. } => {
            draft("log_lost", "the log of this member lacks what it confirmed")
        }
        Event::LogComplete => draft("log_lost", "the log of this member is complete again"),
        Event::PeerLostLog { peer, .. } => {
            of_member("log_lost", "its log lacks what it confirmed", *peer)
        }
        Event::Stalled(stalled) => draft("stalled", stalled_text(*stalled)),
        Event::DiskSlow { .. } => {
            draft("stalled", "the disk of this leader is slow: it hands over")
        }
        Event::SnapshotInstalled(id) => v1::TimelineEntry {
            entry: Some(entry(*id)),
            ..draft("snapshot", "a snapshot of the leader replaced the log")
        },
        _ => return None,
    })
}

pub(crate) fn stalled_text(stalled: Stalled) -> &'static str {
    match (stalled.disk, stalled.machine) {
        (true, _) => "the disk stands still",
        (false, true) => "the state machine stands still",
        (false, false) => "disk and state machine make progress again",
    }
}

pub(crate) fn unix_millis(time: SystemTime) -> u64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

const ENTRIES_MAX: usize = 512;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_entries_are_kept_and_numbered() {
        let timeline = EventTimeline::default();
        for _ in 0..ENTRIES_MAX + 10 {
            timeline.proposed("x");
        }
        let all = timeline.after(0);
        assert_eq!((all.len(), all[0].number), (ENTRIES_MAX, 11));
        let last = all.last().unwrap().number;
        assert!(timeline.after(last).is_empty());
        assert_eq!(timeline.after(last - 1).len(), 1);
        assert_eq!(timeline.after(last + 1).len(), ENTRIES_MAX, "numbers of an earlier run");
        assert_eq!(*timeline.watch().borrow(), last);
    }

    #[test]
    fn elections_name_the_leader() {
        let timeline = EventTimeline::default();
        timeline.event(&Event::Leader { leader: Some(MemberId(7)), term: 3 });
        timeline.event(&Event::Leader { leader: None, term: 4 });
        let all = timeline.after(0);
        assert_eq!((all[0].kind.as_str(), all[0].member_id, all[0].term), ("leader", 7, 3));
        assert_eq!((all[1].member_id, all[1].text.as_str()), (0, "no leader is known"));
    }
}
