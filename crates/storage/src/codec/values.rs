//! Encoding of the core's values, field by field.

use std::sync::Arc;

use quorate_core::config::Activation;
use quorate_core::membership::{
    ChangeKind, EndedGoal, Goal, GoalEnd, LoggedChange, MemberInfo, MembershipParts, Operation,
    Transition,
};
use quorate_core::{Change, EntryId, MemberId, MemberSet, Membership, Refusal, SnapshotMeta};

use super::{Codec, DecodeError, Decoder};

/// The layout version of changes and memberships. Increment it when a field is added; older
/// layouts must stay readable.
const VERSION: u8 = 1;

/// Encodes a struct as its fields in order. Encoder and decoder come from one list.
macro_rules! fields {
    ($type:ty { $($field:ident: $kind:ty),* $(,)? }) => {
        impl Codec for $type {
            const BYTES_MIN: usize = 0 $(+ <$kind as Codec>::BYTES_MIN)*;

            fn encode(&self, into: &mut Vec<u8>) {
                let Self { $($field),* } = self;
                $($field.encode(into);)*
            }

            fn decode(from: &mut Decoder) -> Result<Self, DecodeError> {
                $(let $field = <$kind>::decode(from)?;)*
                Ok(Self { $($field),* })
            }
        }
    };
}

fields!(EntryId { term: u64, index: u64 });
fields!(MemberInfo { info: bytes::Bytes, zone: bytes::Bytes });
fields!(LoggedChange { change: Change, membership: Arc<Membership> });
fields!(SnapshotMeta { id: EntryId, membership: Arc<Membership> });
fields!(EndedGoal { id: EntryId, end: GoalEnd, at: EntryId });
fields!(Goal {
    id: EntryId,
    voters: MemberSet,
    learners: MemberSet,
    from_voters: MemberSet,
    from_learners: MemberSet,
    cancels: bool,
});
fields!(MembershipParts {
    majorities: Vec<MemberSet>,
    learners: MemberSet,
    learners_next: MemberSet,
    auto_leave: bool,
    since: EntryId,
    activation: Activation,
    goal: Option<Goal>,
    ended: Vec<EndedGoal>,
    incarnations: Vec<(MemberId, u64)>,
    joined: Vec<(MemberId, u64)>,
    removed: Vec<MemberId>,
    infos: Vec<(MemberId, MemberInfo)>,
});

impl Codec for Membership {
    const BYTES_MIN: usize = 1 + MembershipParts::BYTES_MIN;

    fn encode(&self, into: &mut Vec<u8>) {
        VERSION.encode(into);
        MembershipParts::from(self.clone()).encode(into);
    }

    fn decode(from: &mut Decoder) -> Result<Self, DecodeError> {
        check_version(from)?;
        let parts = MembershipParts::decode(from)?;
        check_sorted(parts.incarnations.iter().map(|(id, _)| *id))?;
        check_sorted(parts.joined.iter().map(|(id, _)| *id))?;
        check_sorted(parts.infos.iter().map(|(id, _)| *id))?;
        Ok(parts.into())
    }
}

impl Codec for Arc<Membership> {
    const BYTES_MIN: usize = Membership::BYTES_MIN;

    fn encode(&self, into: &mut Vec<u8>) {
        (**self).encode(into);
    }

    fn decode(from: &mut Decoder) -> Result<Self, DecodeError> {
        Membership::decode(from).map(Self::new)
    }
}

impl Codec for Change {
    const BYTES_MIN: usize = 1 + ChangeKind::BYTES_MIN + 4 + 1 + 4;

    fn encode(&self, into: &mut Vec<u8>) {
        let Self { kind, context, expected, infos } = self;
        VERSION.encode(into);
        kind.encode(into);
        context.encode(into);
        expected.encode(into);
        infos.encode(into);
    }

    fn decode(from: &mut Decoder) -> Result<Self, DecodeError> {
        check_version(from)?;
        Ok(Self {
            kind: Codec::decode(from)?,
            context: Codec::decode(from)?,
            expected: Codec::decode(from)?,
            infos: Codec::decode(from)?,
        })
    }
}

impl Codec for ChangeKind {
    const BYTES_MIN: usize = 1;

    fn encode(&self, into: &mut Vec<u8>) {
        match self {
            Self::Operations { operations, transition } => {
                into.push(0);
                operations.encode(into);
                transition.encode(into);
            }
            Self::V1(operation) => {
                into.push(1);
                operation.encode(into);
            }
            Self::Majorities(majorities) => {
                into.push(2);
                majorities.encode(into);
            }
            Self::AddLearners(ids) => {
                into.push(3);
                ids.encode(into);
            }
            Self::SetVoters { voters, retain } => {
                into.push(4);
                voters.encode(into);
                retain.encode(into);
            }
            Self::EditVoters { add, remove, retain } => {
                into.push(5);
                add.encode(into);
                remove.encode(into);
                retain.encode(into);
            }
            Self::Goal { voters, learners } => {
                into.push(6);
                voters.encode(into);
                learners.encode(into);
            }
            Self::Cancel => into.push(7),
        }
    }

    fn decode(from: &mut Decoder) -> Result<Self, DecodeError> {
        Ok(match u8::decode(from)? {
            0 => {
                let operations = Codec::decode(from)?;
                Self::Operations { operations, transition: Codec::decode(from)? }
            }
            1 => Self::V1(Codec::decode(from)?),
            2 => Self::Majorities(Codec::decode(from)?),
            3 => Self::AddLearners(Codec::decode(from)?),
            4 => {
                let voters = Codec::decode(from)?;
                Self::SetVoters { voters, retain: Codec::decode(from)? }
            }
            5 => {
                let add = Codec::decode(from)?;
                let remove = Codec::decode(from)?;
                Self::EditVoters { add, remove, retain: Codec::decode(from)? }
            }
            6 => {
                let voters = Codec::decode(from)?;
                Self::Goal { voters, learners: Codec::decode(from)? }
            }
            7 => Self::Cancel,
            _ => return Err(DecodeError::InvalidValue),
        })
    }
}

impl Codec for Operation {
    const BYTES_MIN: usize = 9;

    fn encode(&self, into: &mut Vec<u8>) {
        let (case, id) = match self {
            Self::Voter(id) => (0, id),
            Self::Learner(id) => (1, id),
            Self::Remove(id) => (2, id),
            Self::Update(id) => (3, id),
        };
        into.push(case);
        id.encode(into);
    }

    fn decode(from: &mut Decoder) -> Result<Self, DecodeError> {
        let case = u8::decode(from)?;
        let id = MemberId::decode(from)?;
        Ok(match case {
            0 => Self::Voter(id),
            1 => Self::Learner(id),
            2 => Self::Remove(id),
            3 => Self::Update(id),
            _ => return Err(DecodeError::InvalidValue),
        })
    }
}

/// Encodes an enum without fields as a number. The match is exhaustive on purpose: a new
/// variant without a number must not compile.
macro_rules! cases {
    ($type:ty { $($number:literal = $case:ident),* $(,)? }) => {
        impl Codec for $type {
            const BYTES_MIN: usize = 1;

            fn encode(&self, into: &mut Vec<u8>) {
                into.push(match self { $(Self::$case => $number),* });
            }

            fn decode(from: &mut Decoder) -> Result<Self, DecodeError> {
                match u8::decode(from)? {
                    $($number => Ok(Self::$case),)*
                    _ => Err(DecodeError::InvalidValue),
                }
            }
        }
    };
}

cases!(Transition { 0 = Auto, 1 = JointImplicit, 2 = JointExplicit });
cases!(GoalEnd { 0 = Reached, 1 = Cancelled, 2 = Replaced });
cases!(Activation { 0 = OnApply, 1 = OnAppend });

impl Codec for Refusal {
    const BYTES_MIN: usize = 5;

    fn encode(&self, into: &mut Vec<u8>) {
        self.to_parts().encode(into);
    }

    fn decode(from: &mut Decoder) -> Result<Self, DecodeError> {
        let (case, numbers) = <(u8, Vec<u64>)>::decode(from)?;
        Self::from_parts(case, &numbers).ok_or(DecodeError::InvalidValue)
    }
}

impl Codec for MemberId {
    const BYTES_MIN: usize = 8;

    fn encode(&self, into: &mut Vec<u8>) {
        self.0.encode(into);
    }

    fn decode(from: &mut Decoder) -> Result<Self, DecodeError> {
        u64::decode(from).map(Self)
    }
}

impl Codec for MemberSet {
    const BYTES_MIN: usize = 4;

    fn encode(&self, into: &mut Vec<u8>) {
        super::encode_count(self.len(), into);
        self.iter().for_each(|id| id.encode(into));
    }

    fn decode(from: &mut Decoder) -> Result<Self, DecodeError> {
        let ids = Vec::<MemberId>::decode(from)?;
        check_sorted(ids.iter().copied())?;
        Ok(ids.into_iter().collect())
    }
}

fn check_version(from: &mut Decoder) -> Result<(), DecodeError> {
    if u8::decode(from)? == VERSION { Ok(()) } else { Err(DecodeError::UnknownVersion) }
}

/// Checks that ids are sorted and unique, because they are binary searched.
fn check_sorted(mut ids: impl Iterator<Item = MemberId>) -> Result<(), DecodeError> {
    let Some(mut before) = ids.next() else { return Ok(()) };
    for id in ids {
        if id <= before {
            return Err(DecodeError::Unsorted);
        }
        before = id;
    }
    Ok(())
}
