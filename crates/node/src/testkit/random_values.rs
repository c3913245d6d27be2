//! Random values from a seed: the same every time.

use std::sync::Arc;

use bytes::Bytes;
use quorate_core::config::Activation;
use quorate_core::membership::{
    ChangeKind, LoggedChange, MemberInfo, MembershipParts, Operation, Transition,
};
use quorate_core::message::{
    Append, AppendReply, Heartbeat, HeartbeatReply, Identity, Message, Proposal, Vote, VoteReply,
};
use quorate_core::{
    Change, Entries, Entry, EntryId, MemberId, MemberSet, Membership, Payload, Refusal, RequestId,
    SnapshotMeta, Stalled,
};

/// Draws numbers (SplitMix64).
pub(crate) struct RandomValues(u64);

/// The number of message kinds, without snapshots.
pub(crate) const MESSAGE_KINDS: u64 = 15;

impl RandomValues {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    fn flip(&mut self) -> bool {
        self.below(2) == 0
    }

    /// Small numbers, large ones, and those near the maximum.
    pub(crate) fn number(&mut self) -> u64 {
        match self.below(4) {
            0 => self.below(4),
            1 => u64::MAX - self.below(2),
            2 => self.below(1 << 32),
            _ => self.next(),
        }
    }

    pub(crate) fn bytes(&mut self) -> Bytes {
        let count = match self.below(8) {
            0 => 0,
            1 => 100_000,
            _ => self.below(300),
        };
        (0..count).map(|_| self.next() as u8).collect()
    }

    fn entry_id(&mut self) -> EntryId {
        EntryId::new(self.number(), self.number())
    }

    fn id(&mut self) -> MemberId {
        MemberId(self.number())
    }

    fn set(&mut self) -> MemberSet {
        (0..self.below(4)).map(|_| self.id()).collect()
    }

    pub(crate) fn membership(&mut self) -> Arc<Membership> {
        let infos = self.set();
        let parts = MembershipParts {
            majorities: (0..self.below(3)).map(|_| self.set()).collect(),
            learners: self.set(),
            learners_next: self.set(),
            auto_leave: self.flip(),
            since: self.entry_id(),
            activation: if self.flip() { Activation::OnApply } else { Activation::OnAppend },
            infos: infos.iter().map(|id| (id, self.info())).collect(),
            ..MembershipParts::from(Membership::default())
        };
        Arc::new(parts.into())
    }

    fn info(&mut self) -> MemberInfo {
        MemberInfo { info: self.bytes(), zone: self.bytes() }
    }

    fn change(&mut self) -> Change {
        let kind = match self.below(3) {
            0 => ChangeKind::Operations {
                operations: vec![Operation::Learner(self.id()), Operation::Remove(self.id())],
                transition: Transition::JointExplicit,
            },
            1 => ChangeKind::Goal { voters: self.set(), learners: self.set() },
            _ => ChangeKind::EditVoters { add: self.set(), remove: self.set(), retain: true },
        };
        let infos = vec![(self.id(), self.info())];
        let expected = self.flip().then(|| self.entry_id());
        Change { kind, context: self.bytes(), expected, infos }
    }

    /// Consecutive entries.
    pub(crate) fn entries(&mut self) -> Entries {
        let first = self.below(1 << 40);
        let entry = |random: &mut Self, nth| {
            let payload = if random.below(4) == 0 {
                let (change, membership) = (random.change(), random.membership());
                Payload::Change(Arc::new(LoggedChange { change, membership }))
            } else {
                Payload::Command(random.bytes())
            };
            Entry { id: EntryId::new(random.number(), first + nth), payload }
        };
        (0..self.below(6)).map(|nth| entry(self, nth)).collect()
    }

    fn refusal(&mut self) -> Refusal {
        loop {
            let numbers: Vec<u64> = (0..self.below(4)).map(|_| self.number()).collect();
            if let Some(refusal) = Refusal::from_parts(self.below(128) as u8, &numbers) {
                return refusal;
            }
        }
    }

    fn vote(&mut self) -> Vote {
        Vote { last: self.entry_id(), forced: self.flip(), committed: self.entry_id() }
    }

    fn vote_reply(&mut self) -> VoteReply {
        VoteReply { granted: self.flip(), committed: self.entry_id() }
    }

    fn append_reply(&mut self) -> AppendReply {
        match self.below(4) {
            0 => AppendReply::Matches { index: self.number(), commit: self.number() },
            1 => AppendReply::Differs { prev: self.number(), hint: self.entry_id() },
            2 => {
                let (confirmed, hint, sent_at) = (self.number(), self.entry_id(), self.number());
                AppendReply::Missing { confirmed, hint, sent_at }
            }
            _ => AppendReply::OldTerm,
        }
    }

    fn request(&mut self) -> RequestId {
        RequestId(self.number())
    }

    pub(crate) fn snapshot_meta(&mut self) -> SnapshotMeta {
        SnapshotMeta { id: self.entry_id(), membership: self.membership() }
    }

    /// A message of this kind, of [`MESSAGE_KINDS`].
    pub(crate) fn message(&mut self, kind: u64) -> Message {
        match kind {
            0 => Message::PreVote(self.vote()),
            1 => Message::PreVoteReply(self.vote_reply()),
            2 => Message::Vote(self.vote()),
            3 => Message::VoteReply(self.vote_reply()),
            4 => Message::Append(Append {
                prev: self.entry_id(),
                entries: self.entries(),
                commit: self.number(),
            }),
            5 => Message::AppendReply(self.append_reply()),
            6 => Message::Heartbeat(Heartbeat {
                commit: self.number(),
                round: self.number(),
                sent_at: self.number(),
                settled: self.number(),
            }),
            7 => Message::HeartbeatReply(HeartbeatReply {
                commit: self.number(),
                round: self.number(),
                sent_at: self.number(),
                applied: self.number(),
                stalled: Stalled { disk: self.flip(), machine: self.flip() },
            }),
            8 => Message::TimeoutNow,
            9 if self.flip() => Message::Propose(self.request(), Proposal::Command(self.bytes())),
            9 => Message::Propose(self.request(), Proposal::Change(Box::new(self.change()))),
            10 if self.flip() => Message::ProposeReply(self.request(), Ok(self.entry_id())),
            10 => Message::ProposeReply(self.request(), Err(self.refusal())),
            11 => Message::Read(self.request()),
            12 if self.flip() => Message::ReadReply(self.request(), Ok(self.number())),
            12 => Message::ReadReply(self.request(), Err(self.refusal())),
            13 => Message::Transfer(self.id()),
            _ => Message::IdentityRejected(Identity {
                incarnation: self.flip().then(|| self.number()),
                joined_at: self.number(),
            }),
        }
    }
}
