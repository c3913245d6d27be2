use std::sync::Arc;

use quorate_core::config::Activation;
use quorate_core::membership::{
    ChangeKind, EndedGoal, Goal, GoalEnd, LoggedChange, MemberInfo, MembershipParts, Operation,
    Transition,
};
use quorate_core::{
    Change, Entries, Entry, EntryId, MemberId, MemberSet, Membership, Payload, Refusal,
    SnapshotMeta,
};

use super::*;
use crate::test_random::TestRandom;

impl TestRandom {
    fn bytes(&mut self) -> Bytes {
        let count = self.below(5);
        (0..count).map(|_| self.below(256) as u8).collect()
    }

    fn id(&mut self) -> MemberId {
        MemberId(self.below(9))
    }

    fn set(&mut self) -> MemberSet {
        let count = self.below(4);
        (0..count).map(|_| self.id()).collect()
    }

    fn sets(&mut self) -> Vec<MemberSet> {
        let count = self.below(4);
        (0..count).map(|_| self.set()).collect()
    }

    fn entry_id(&mut self) -> EntryId {
        EntryId::new(self.below(100), self.below(100))
    }

    fn info(&mut self) -> MemberInfo {
        MemberInfo { info: self.bytes(), zone: self.bytes() }
    }

    fn membership(&mut self) -> Membership {
        let (some, others) = (self.set(), self.set());
        let goal = Goal {
            id: self.entry_id(),
            voters: self.set(),
            learners: self.set(),
            from_voters: self.set(),
            from_learners: self.set(),
            cancels: self.flip(),
        };
        let parts = MembershipParts {
            majorities: self.sets(),
            learners: self.set(),
            learners_next: self.set(),
            auto_leave: self.flip(),
            since: self.entry_id(),
            activation: if self.flip() { Activation::OnAppend } else { Activation::OnApply },
            goal: self.flip().then_some(goal),
            ended: (0..self.below(3)).map(|_| self.ended()).collect(),
            incarnations: some.iter().map(|id| (id, self.below(1000))).collect(),
            joined: others.iter().map(|id| (id, self.below(1000))).collect(),
            removed: vec![self.id(), self.id()],
            infos: others.iter().map(|id| (id, self.info())).collect(),
        };
        parts.into()
    }

    fn ended(&mut self) -> EndedGoal {
        let end = match self.below(3) {
            0 => GoalEnd::Reached,
            1 => GoalEnd::Cancelled,
            _ => GoalEnd::Replaced,
        };
        EndedGoal { id: self.entry_id(), end, at: self.entry_id() }
    }

    fn operation(&mut self) -> Operation {
        let id = self.id();
        match self.below(4) {
            0 => Operation::Voter(id),
            1 => Operation::Learner(id),
            2 => Operation::Remove(id),
            _ => Operation::Update(id),
        }
    }

    fn kind(&mut self) -> ChangeKind {
        match self.below(8) {
            0 => ChangeKind::Operations {
                operations: vec![self.operation(), self.operation()],
                transition: match self.below(3) {
                    0 => Transition::Auto,
                    1 => Transition::JointImplicit,
                    _ => Transition::JointExplicit,
                },
            },
            1 => ChangeKind::V1(self.operation()),
            2 => ChangeKind::Majorities(self.sets()),
            3 => ChangeKind::AddLearners(self.set()),
            4 => ChangeKind::SetVoters { voters: self.set(), retain: self.flip() },
            5 => {
                let (add, remove, retain) = (self.set(), self.set(), self.flip());
                ChangeKind::EditVoters { add, remove, retain }
            }
            6 => ChangeKind::Goal { voters: self.set(), learners: self.set() },
            _ => ChangeKind::Cancel,
        }
    }

    pub(crate) fn logged_change(&mut self) -> LoggedChange {
        let expected = self.flip().then(|| self.entry_id());
        let infos = vec![(self.id(), self.info())];
        let change = Change { kind: self.kind(), context: self.bytes(), expected, infos };
        LoggedChange { change, membership: Arc::new(self.membership()) }
    }
}

#[test]
fn values_round_trip() {
    let mut random = TestRandom::new(1);
    for _ in 0..5_000 {
        let change = random.logged_change();
        assert_eq!(LoggedChange::from_bytes(change.to_bytes().into()), Ok(change));
        let meta =
            SnapshotMeta { id: random.entry_id(), membership: Arc::new(random.membership()) };
        assert_eq!(SnapshotMeta::from_bytes(meta.to_bytes().into()), Ok(meta));
    }
}

#[test]
fn truncated_and_extended_encodings_are_refused() {
    let mut random = TestRandom::new(2);
    for _ in 0..100 {
        let whole: Bytes = random.logged_change().to_bytes().into();
        for end in 0..whole.len() {
            let part = LoggedChange::from_bytes(whole.slice(..end));
            assert_eq!(part, Err(DecodeError::TooShort), "{end} of {}", whole.len());
        }
        let longer: Bytes = [&whole[..], &[0]].concat().into();
        assert_eq!(LoggedChange::from_bytes(longer), Err(DecodeError::TrailingBytes));
    }
}

#[test]
fn decoded_bytes_encode_to_the_same_bytes() {
    let mut random = TestRandom::new(3);
    let mut decoded = 0;
    for _ in 0..50_000 {
        let mut bytes = random.logged_change().to_bytes();
        for _ in 0..=random.below(3) {
            let at = random.below(bytes.len() as u64) as usize;
            bytes[at] = random.below(256) as u8;
        }
        if let Ok(change) = LoggedChange::from_bytes(bytes.clone().into()) {
            assert_eq!(change.to_bytes(), bytes);
            decoded += 1;
        }
    }
    assert!(decoded > 1_000, "{decoded}");
}

#[test]
fn count_larger_than_the_bytes_is_refused() {
    let mut bytes = u32::MAX.to_bytes();
    bytes.extend([7; 64]);
    assert_eq!(Vec::<u64>::from_bytes(bytes.clone().into()), Err(DecodeError::TooShort));
    assert_eq!(Bytes::from_bytes(bytes.clone().into()), Err(DecodeError::TooShort));
    assert_eq!(MemberSet::from_bytes(bytes.into()), Err(DecodeError::TooShort));
}

#[test]
fn sets_have_one_encoding() {
    let twice = vec![MemberId(2), MemberId(2)].to_bytes();
    assert_eq!(MemberSet::from_bytes(twice.into()), Err(DecodeError::Unsorted));
    let unsorted = vec![MemberId(2), MemberId(1)].to_bytes();
    assert_eq!(MemberSet::from_bytes(unsorted.into()), Err(DecodeError::Unsorted));
}

#[test]
fn later_version_is_reported() {
    let mut bytes = Membership::default().to_bytes();
    bytes[0] += 1;
    assert_eq!(Membership::from_bytes(bytes.into()), Err(DecodeError::UnknownVersion));
}

/// A change of this layout makes existing stores unreadable: increment the version.
#[test]
fn layout_does_not_change() {
    let membership = Membership::new([MemberId(1), MemberId(2)], [MemberId(3)])
        .with_activation(Activation::OnAppend)
        .with_incarnation(MemberId(1), 9);
    let mut expected = vec![1]; // version
    expected.extend([1, 0, 0, 0, 2, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0]);
    expected.extend([1, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0]); // learners
    expected.extend([0, 0, 0, 0]); // next learners
    expected.extend([0; 1 + 16]); // auto-leave, since
    expected.extend([1, 0, 0, 0, 0, 0]); // activation, no goal, none ended
    expected.extend([1, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0]);
    expected.extend([0; 4 + 4 + 4]); // joined, removed, infos
    assert_eq!(membership.to_bytes(), expected);
}

#[test]
fn entries_round_trip_and_share_memory() {
    let mut random = TestRandom::new(4);
    for _ in 0..300 {
        let first = random.below(1 << 40);
        let entries: Entries = (0..random.below(5))
            .map(|offset| {
                let id = EntryId::new(random.below(9), first + offset);
                let payload = if random.flip() {
                    Payload::Command(random.bytes())
                } else {
                    Payload::Change(Arc::new(random.logged_change()))
                };
                Entry { id, payload }
            })
            .collect();
        let bytes: Bytes = entries.to_bytes().into();
        let decoded = Entries::from_bytes(bytes.clone()).unwrap();
        assert_eq!(decoded, entries);
        let within = bytes.as_ptr_range();
        for entry in decoded.iter() {
            if let Payload::Command(command) = &entry.payload {
                assert!(command.is_empty() || within.contains(&command.as_ptr()));
            }
        }
        for end in 0..bytes.len() {
            assert_eq!(Entries::from_bytes(bytes.slice(..end)), Err(DecodeError::TooShort));
        }
    }
}

#[test]
fn refusals_round_trip_and_unknown_ones_are_refused() {
    for (case, numbers) in [(0, 0), (1, 1), (4, 2), (32, 2), (35, 3), (51, 1), (98, 1)] {
        let refusal = Refusal::from_parts(case, &vec![7; numbers]).unwrap();
        assert_eq!(Refusal::from_bytes(refusal.to_bytes().into()), Ok(refusal));
    }
    let unknown = (31u8, vec![0u64]).to_bytes();
    assert_eq!(Refusal::from_bytes(unknown.into()), Err(DecodeError::InvalidValue));
}
