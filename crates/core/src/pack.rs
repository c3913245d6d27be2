//! Compact bytes for the state of a hibernated member.
//!
//! They never leave the process, and are read by the program that wrote them. Every type lists its
//! fields once, for both directions ([`pack_fields`]): a field that is not listed does not
//! compile. Fields that no idle member uses are not written: a member in which one is set has no
//! compact form.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use crate::entry::Slice;
use crate::membership::Membership;
use crate::{EntryId, MemberId, MemberSet};

/// A value with a compact form.
pub(crate) trait Pack: Sized {
    fn pack(&self, to: &mut Writer);
    fn unpack(from: &mut Reader<'_>) -> Self;
}

/// Implements [`Pack`] for a struct by its fields, in this order. Those in `unset` have to
/// have their default value.
macro_rules! pack_fields {
    ($type:ty { $($field:ident),* $(,)? } $(unset { $($unset:ident),* $(,)? })?) => {
        impl $crate::pack::Pack for $type {
            fn pack(&self, to: &mut $crate::pack::Writer) {
                $( $crate::pack::Pack::pack(&self.$field, to); )*
                $( $( to.expect_default(&self.$unset); )* )?
            }

            fn unpack(from: &mut $crate::pack::Reader<'_>) -> Self {
                Self {
                    $( $field: $crate::pack::Pack::unpack(from), )*
                    $( $( $unset: Default::default(), )* )?
                }
            }
        }
    };
}
pub(crate) use pack_fields;

/// Numbers are written in one byte if they are small, or close to one of the two bases: the end
/// of the log for indexes, the leader's clock for times. The two highest bits of the first byte
/// tell which; the rest is the number, the distance, or how many bytes follow.
const SMALL: u8 = 0 << 6;
const NEAR: [u8; 2] = [1 << 6, 2 << 6];
const LONG: u8 = 3 << 6;
const REST: u8 = (1 << 6) - 1;

/// A distance of so many below the base is written as 0.
const MIDDLE: u64 = 32;

pub(crate) struct Writer {
    bases: [u64; 2],
    numbers: Vec<u8>,
    flags: Vec<u8>,
    flag_count: usize,
    slices: Vec<Slice>,
    /// Those that were written so far: each is written once.
    known: Vec<Arc<Membership>>,
    /// Of those, the ones that are not in the numbers.
    kept: Vec<Arc<Membership>>,
    /// Something cannot be written.
    failed: bool,
}

impl Writer {
    pub(crate) fn new(bases: [u64; 2]) -> Self {
        let mut writer = Self {
            bases: [0; 2],
            numbers: Vec::new(),
            flags: Vec::new(),
            flag_count: 0,
            slices: Vec::new(),
            known: Vec::new(),
            kept: Vec::new(),
            failed: false,
        };
        bases.iter().for_each(|base| writer.number(*base));
        writer.bases = bases;
        writer
    }

    /// The bytes, where the flags begin in them, and what is not in them; none if something
    /// could not be written.
    #[allow(clippy::type_complexity, reason = "taken apart at once by the only caller")]
    pub(crate) fn finish(
        mut self,
    ) -> Option<(Box<[u8]>, u32, Box<[Slice]>, Box<[Arc<Membership>]>)> {
        let flags_at = u32::try_from(self.numbers.len()).ok().filter(|_| !self.failed)?;
        self.numbers.append(&mut self.flags);
        Some((self.numbers.into(), flags_at, self.slices.into(), self.kept.into()))
    }

    fn number(&mut self, number: u64) {
        if number <= u64::from(REST) {
            self.numbers.push(SMALL | number as u8);
            return;
        }
        for (base, mark) in self.bases.into_iter().zip(NEAR) {
            let distance = number.wrapping_sub(base).wrapping_add(MIDDLE);
            if distance <= u64::from(REST) {
                self.numbers.push(mark | distance as u8);
                return;
            }
        }
        let bytes = number.to_le_bytes();
        let used = bytes.len() - number.leading_zeros() as usize / 8;
        self.numbers.push(LONG | used as u8);
        self.numbers.extend_from_slice(&bytes[..used]);
    }

    fn flag(&mut self, flag: bool) {
        let bit = self.flag_count % 8;
        if bit == 0 {
            self.flags.push(0);
        }
        if let Some(last) = self.flags.last_mut() {
            *last |= u8::from(flag) << bit;
        }
        self.flag_count += 1;
    }

    /// As an `Option` that is empty.
    pub(crate) fn pack_none(&mut self) {
        self.flag(false);
    }

    /// As an `Option` with this value.
    pub(crate) fn pack_some(&mut self, value: &impl Pack) {
        self.flag(true);
        value.pack(self);
    }

    pub(crate) fn expect_default<T: Default + PartialEq>(&mut self, value: &T) {
        self.failed |= *value != T::default();
    }

    pub(crate) fn fail(&mut self) {
        self.failed = true;
    }
}

pub(crate) struct Reader<'a> {
    bases: [u64; 2],
    numbers: &'a [u8],
    flags: &'a [u8],
    flag_count: usize,
    slices: &'a [Slice],
    known: Vec<Arc<Membership>>,
    kept: &'a [Arc<Membership>],
}

impl<'a> Reader<'a> {
    pub(crate) fn new(
        numbers: &'a [u8],
        flags: &'a [u8],
        slices: &'a [Slice],
        kept: &'a [Arc<Membership>],
    ) -> Self {
        let mut reader =
            Self { bases: [0; 2], numbers, flags, flag_count: 0, slices, known: Vec::new(), kept };
        reader.bases = [reader.number(), reader.number()];
        reader
    }

    fn number(&mut self) -> u64 {
        let first = self.bytes(1)[0];
        let rest = first & REST;
        match first & !REST {
            SMALL => u64::from(rest),
            LONG => {
                let mut bytes = [0; 8];
                bytes[..usize::from(rest)].copy_from_slice(self.bytes(usize::from(rest)));
                u64::from_le_bytes(bytes)
            }
            near => {
                let base = self.bases[usize::from(near == NEAR[1])];
                base.wrapping_add(u64::from(rest)).wrapping_sub(MIDDLE)
            }
        }
    }

    fn bytes(&mut self, count: usize) -> &'a [u8] {
        let (bytes, rest) = self.numbers.split_at(count);
        self.numbers = rest;
        bytes
    }

    fn flag(&mut self) -> bool {
        let (byte, bit) = (self.flag_count / 8, self.flag_count % 8);
        self.flag_count += 1;
        self.flags[byte] >> bit & 1 == 1
    }
}

impl Pack for u64 {
    fn pack(&self, to: &mut Writer) {
        to.number(*self);
    }

    fn unpack(from: &mut Reader<'_>) -> Self {
        from.number()
    }
}

macro_rules! pack_as_number {
    ($($type:ty),*) => {
        $(impl Pack for $type {
            fn pack(&self, to: &mut Writer) {
                to.number(*self as u64);
            }

            fn unpack(from: &mut Reader<'_>) -> Self {
                from.number() as Self
            }
        })*
    };
}
pack_as_number!(u8, u32, usize);

impl Pack for bool {
    fn pack(&self, to: &mut Writer) {
        to.flag(*self);
    }

    fn unpack(from: &mut Reader<'_>) -> Self {
        from.flag()
    }
}

impl Pack for MemberId {
    fn pack(&self, to: &mut Writer) {
        to.number(self.0);
    }

    fn unpack(from: &mut Reader<'_>) -> Self {
        Self(from.number())
    }
}

pack_fields!(EntryId { term, index });

impl<T: Pack> Pack for Option<T> {
    fn pack(&self, to: &mut Writer) {
        match self {
            Some(value) => to.pack_some(value),
            None => to.pack_none(),
        }
    }

    fn unpack(from: &mut Reader<'_>) -> Self {
        from.flag().then(|| T::unpack(from))
    }
}

impl<A: Pack, B: Pack> Pack for (A, B) {
    fn pack(&self, to: &mut Writer) {
        self.0.pack(to);
        self.1.pack(to);
    }

    fn unpack(from: &mut Reader<'_>) -> Self {
        (A::unpack(from), B::unpack(from))
    }
}

/// Writes the number of values, then the values.
fn pack_all<'a, T: Pack + 'a>(values: impl ExactSizeIterator<Item = &'a T>, to: &mut Writer) {
    to.number(values.len() as u64);
    values.for_each(|value| value.pack(to));
}

fn unpack_all<T: Pack, C: FromIterator<T>>(from: &mut Reader<'_>) -> C {
    let count = from.number();
    (0..count).map(|_| T::unpack(from)).collect()
}

macro_rules! pack_collection {
    ($($type:ty),*) => {
        $(impl<T: Pack> Pack for $type {
            fn pack(&self, to: &mut Writer) {
                pack_all(self.iter(), to);
            }

            fn unpack(from: &mut Reader<'_>) -> Self {
                unpack_all(from)
            }
        })*
    };
}
pack_collection!(Vec<T>, Box<[T]>);

impl<K: Pack + Ord, V: Pack> Pack for BTreeMap<K, V> {
    fn pack(&self, to: &mut Writer) {
        to.number(self.len() as u64);
        for (key, value) in self {
            key.pack(to);
            value.pack(to);
        }
    }

    fn unpack(from: &mut Reader<'_>) -> Self {
        unpack_all::<(K, V), _>(from)
    }
}

impl Pack for MemberSet {
    fn pack(&self, to: &mut Writer) {
        pack_all(self.as_slice().iter(), to);
    }

    fn unpack(from: &mut Reader<'_>) -> Self {
        unpack_all(from)
    }
}

/// The slices of a log stay as they are, because their entries are shared.
impl Pack for VecDeque<Slice> {
    fn pack(&self, to: &mut Writer) {
        to.slices.extend(self.iter().cloned());
    }

    fn unpack(from: &mut Reader<'_>) -> Self {
        from.slices.iter().cloned().collect()
    }
}

/// A member refers to the same membership from several places: it is written once.
impl Pack for Arc<Membership> {
    fn pack(&self, to: &mut Writer) {
        let known = to.known.iter().position(|known| known == self);
        known.map_or(0, |at| at + 1).pack(to);
        if known.is_some() {
            return;
        }
        to.known.push(self.clone());
        let is_plain = self.is_plain();
        to.flag(is_plain);
        if is_plain {
            (**self).pack(to);
        } else {
            to.kept.push(self.clone());
        }
    }

    fn unpack(from: &mut Reader<'_>) -> Self {
        let known = usize::unpack(from);
        if let Some(at) = known.checked_sub(1) {
            return from.known[at].clone();
        }
        let membership = if from.flag() {
            Self::new(Membership::unpack(from))
        } else {
            let (first, rest) = from.kept.split_at(1);
            from.kept = rest;
            first[0].clone()
        };
        from.known.push(membership.clone());
        membership
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_every_size_are_read_as_written() {
        let bases = [1_000_000, u64::MAX - 3];
        let mut numbers = vec![0, 1, 63, 64, u64::MAX, u64::MAX / 2, 1 << 56, (1 << 56) - 1];
        for base in bases {
            numbers.extend((0..200).map(|away| (base - 100_u64).wrapping_add(away)));
        }
        let mut writer = Writer::new(bases);
        numbers.pack(&mut writer);
        let flags: Vec<Option<bool>> =
            (0..21).map(|at| (at % 3 > 0).then_some(at % 2 > 0)).collect();
        flags.pack(&mut writer);
        let (bytes, flags_at, slices, kept) = writer.finish().unwrap();
        let (written, bits) = bytes.split_at(flags_at as usize);
        let mut reader = Reader::new(written, bits, &slices, &kept);
        assert_eq!(Vec::<u64>::unpack(&mut reader), numbers);
        assert_eq!(Vec::<Option<bool>>::unpack(&mut reader), flags);
        assert!(reader.numbers.is_empty());
    }
}
