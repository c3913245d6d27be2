//! Who proposed a command, so that it runs once however often it is logged.
//!
//! A request that was passed on to a leader which then fell silent is offered again
//! to the next one, and both copies may be committed. Each carries the same origin;
//! [`CommandDedup`] remembers, as part of the replicated state, which ones have run.

use std::collections::{BTreeMap, BTreeSet};

use bytes::{Buf, BufMut, Bytes, BytesMut};
use quorate_core::{MemberId, Membership};

/// The address of one request: no two requests ever share it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CommandId {
    /// Where the client asked.
    pub member: MemberId,
    /// The disk of that member.
    pub incarnation: u64,
    /// How often that member had been started on this disk.
    pub boot: u64,
    /// Counted from 1 since that start.
    pub number: u64,
    /// All requests before this number had their answer when this one was asked. If
    /// one of them is still on its way, it has come too late to run.
    pub open_from: u64,
}

const FORMAT: u8 = 1;
const HEADER_BYTES_MAX: usize = 1 + 8 + 4 * 10;

impl CommandId {
    /// The command with its origin in front: what goes into the log.
    pub fn seal(self, command: &[u8]) -> Bytes {
        let mut sealed = BytesMut::with_capacity(HEADER_BYTES_MAX + command.len());
        sealed.put_u8(FORMAT);
        sealed.put_u64_le(self.incarnation);
        let since_open = self.number.saturating_sub(self.open_from);
        for part in [self.member.0, self.boot, self.number, since_open] {
            put_number(&mut sealed, part);
        }
        sealed.put_slice(command);
        sealed.freeze()
    }

    /// Takes a logged command apart, without copying it. Nothing for an entry that
    /// no client asked for.
    pub fn open(sealed: &Bytes) -> Option<(Self, Bytes)> {
        let mut rest = sealed.clone();
        if rest.try_get_u8().ok()? != FORMAT {
            return None;
        }
        let incarnation = rest.try_get_u64_le().ok()?;
        let member = MemberId(take_number(&mut rest)?);
        let boot = take_number(&mut rest)?;
        let number = take_number(&mut rest)?;
        let open_from = number.checked_sub(take_number(&mut rest)?)?;
        Some((Self { member, incarnation, boot, number, open_from }, rest))
    }
}

/// Seven bits a byte, lowest first; the high bit says that more follow.
fn put_number(out: &mut BytesMut, mut number: u64) {
    while number >= 0x80 {
        out.put_u8(number as u8 | 0x80);
        number >>= 7;
    }
    out.put_u8(number as u8);
}

fn take_number(from: &mut Bytes) -> Option<u64> {
    let mut number = 0u64;
    for shift in (0..64).step_by(7) {
        let byte = from.try_get_u8().ok()?;
        let part = u64::from(byte & 0x7f);
        if part << shift >> shift != part {
            return None;
        }
        number |= part << shift;
        if byte < 0x80 {
            return Some(number);
        }
    }
    None
}

/// Which requests have run, of every member. Equal on all members that have applied
/// the same entries, and part of every snapshot.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Default)]
pub struct CommandDedup {
    disks: BTreeMap<(MemberId, u64), Seen>,
}

/// What has run of the requests asked at one disk.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Default)]
struct Seen {
    boot: u64,
    /// Every number up to here counts as run.
    floor: u64,
    above: BTreeSet<u64>,
}

/// Whether a command is to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Run,
    /// It has run, or is so old that nobody can say; nobody waits for it either.
    Repeated,
    /// Its origin is not a member, or another disk speaks in its name.
    Foreign,
}

impl CommandDedup {
    /// Numbers remembered one by one. A request that is this far behind the newest
    /// one of its member counts as run: its member gave it up long ago.
    pub const WINDOW: usize = 1 << 16;

    /// Notes that a command of this origin is about to run.
    pub(crate) fn admit(&mut self, origin: CommandId, membership: &Membership) -> Verdict {
        if !membership.contains(origin.member) {
            return Verdict::Foreign;
        }
        let named = membership.incarnation(origin.member);
        if named.is_some_and(|named| named != origin.incarnation) {
            return Verdict::Foreign;
        }
        let seen = self.disks.entry((origin.member, origin.incarnation)).or_default();
        if seen.boot > origin.boot {
            return Verdict::Repeated;
        }
        if seen.boot < origin.boot {
            *seen = Seen { boot: origin.boot, ..Seen::default() };
        }
        seen.raise_floor(origin.open_from.saturating_sub(1));
        // Without this a command that was offered twice runs twice.
        if seen.note(origin.number) { Verdict::Run } else { Verdict::Repeated }
    }

    /// Whether a command of this origin has run, as far as is remembered.
    pub fn has_run(&self, origin: CommandId) -> bool {
        let seen = self.disks.get(&(origin.member, origin.incarnation));
        seen.is_some_and(|seen| seen.boot == origin.boot && seen.contains(origin.number))
    }

    /// Who is gone asks for nothing any more.
    pub(crate) fn keep_members(&mut self, membership: &Membership) {
        self.disks.retain(|(id, _), _| membership.contains(*id));
    }

    pub(crate) fn encode(&self, out: &mut BytesMut) {
        out.put_u32_le(self.disks.len() as u32);
        for ((id, incarnation), seen) in &self.disks {
            for part in [id.0, *incarnation, seen.boot, seen.floor, seen.above.len() as u64] {
                out.put_u64_le(part);
            }
            seen.above.iter().for_each(|number| out.put_u64_le(*number));
        }
    }

    /// Nothing when the bytes are not what [`CommandDedup::encode`] wrote.
    pub(crate) fn decode(from: &mut Bytes) -> Option<Self> {
        let mut disks = BTreeMap::new();
        for _ in 0..from.try_get_u32_le().ok()? {
            let id = MemberId(from.try_get_u64_le().ok()?);
            let incarnation = from.try_get_u64_le().ok()?;
            let boot = from.try_get_u64_le().ok()?;
            let floor = from.try_get_u64_le().ok()?;
            let mut above = BTreeSet::new();
            for _ in 0..from.try_get_u64_le().ok()? {
                above.insert(from.try_get_u64_le().ok()?);
            }
            disks.insert((id, incarnation), Seen { boot, floor, above });
        }
        Some(Self { disks })
    }
}

impl Seen {
    fn contains(&self, number: u64) -> bool {
        number <= self.floor || self.above.contains(&number)
    }

    fn raise_floor(&mut self, floor: u64) {
        if floor > self.floor {
            self.floor = floor;
            self.above = self.above.split_off(&(floor + 1));
            self.sink();
        }
    }

    /// False when the number was there before.
    fn note(&mut self, number: u64) -> bool {
        if self.contains(number) {
            return false;
        }
        if number == self.floor + 1 && self.above.is_empty() {
            self.floor = number;
            return true;
        }
        self.above.insert(number);
        self.sink();
        true
    }

    /// What follows the floor without a gap becomes part of it, and so does the
    /// lowest when there are too many to remember one by one.
    fn sink(&mut self) {
        while self.above.first() == Some(&(self.floor + 1))
            || self.above.len() > CommandDedup::WINDOW
        {
            let Some(lowest) = self.above.pop_first() else { break };
            self.floor = lowest;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn origin(number: u64) -> CommandId {
        CommandId { member: MemberId(1), incarnation: 7, boot: 2, number, open_from: 1 }
    }

    fn members() -> Membership {
        Membership::new([MemberId(1), MemberId(2)], [])
    }

    #[test]
    fn a_sealed_command_opens_again() {
        let sealed = origin(5).seal(b"hello");
        assert_eq!(CommandId::open(&sealed), Some((origin(5), Bytes::from_static(b"hello"))));
        assert_eq!(CommandId::open(&Bytes::new()), None);
        for cut in 0..sealed.len() - b"hello".len() {
            assert_eq!(CommandId::open(&sealed.slice(..cut)), None);
        }
        let large = CommandId { boot: u64::MAX, open_from: 5, ..origin(u64::MAX) };
        assert_eq!(CommandId::open(&large.seal(b"")), Some((large, Bytes::new())));
    }

    #[test]
    fn every_number_runs_once_in_any_order() {
        let mut origins = CommandDedup::default();
        for number in [3, 1, 2, 5] {
            assert_eq!(origins.admit(origin(number), &members()), Verdict::Run);
            assert!(origins.has_run(origin(number)));
        }
        assert!(!origins.has_run(origin(4)));
        for number in [1, 2, 3, 5] {
            assert_eq!(origins.admit(origin(number), &members()), Verdict::Repeated);
        }
        assert_eq!(origins.admit(origin(4), &members()), Verdict::Run);
        assert_eq!(origins.disks[&(MemberId(1), 7)].floor, 5);
    }

    #[test]
    fn what_was_given_up_does_not_run_after_what_came_later() {
        let mut origins = CommandDedup::default();
        let later = CommandId { open_from: 4, ..origin(6) };
        assert_eq!(origins.admit(later, &members()), Verdict::Run);
        assert_eq!(origins.admit(origin(3), &members()), Verdict::Repeated);
        assert_eq!(origins.admit(origin(4), &members()), Verdict::Run);
        assert_eq!(origins.admit(origin(5), &members()), Verdict::Run);
        let seen = &origins.disks[&(MemberId(1), 7)];
        assert_eq!((seen.floor, seen.above.len()), (6, 0));
    }

    #[test]
    fn a_restart_counts_anew_and_ends_what_was_before() {
        let mut origins = CommandDedup::default();
        origins.admit(origin(9), &members());
        let again = CommandId { boot: 3, ..origin(9) };
        assert_eq!(origins.admit(again, &members()), Verdict::Run);
        assert_eq!(origins.admit(origin(10), &members()), Verdict::Repeated);
    }

    #[test]
    fn strangers_do_not_run_and_leave_nothing() {
        let mut origins = CommandDedup::default();
        let stranger = CommandId { member: MemberId(9), ..origin(1) };
        assert_eq!(origins.admit(stranger, &members()), Verdict::Foreign);
        assert_eq!(origins, CommandDedup::default());
        origins.admit(origin(1), &members());
        origins.keep_members(&Membership::new([MemberId(2)], []));
        assert_eq!(origins, CommandDedup::default());
    }

    #[test]
    fn memory_is_bounded() {
        let mut origins = CommandDedup::default();
        for number in 0..2 * CommandDedup::WINDOW as u64 {
            origins.admit(origin(2 + 2 * number), &members());
        }
        assert!(origins.disks[&(MemberId(1), 7)].above.len() <= CommandDedup::WINDOW);
        assert_eq!(origins.admit(origin(1), &members()), Verdict::Repeated);
    }

    #[test]
    fn what_was_encoded_is_decoded() {
        let mut origins = CommandDedup::default();
        for number in [1, 2, 7, 9] {
            origins.admit(origin(number), &members());
        }
        let mut bytes = BytesMut::new();
        origins.encode(&mut bytes);
        let bytes = bytes.freeze();
        assert_eq!(CommandDedup::decode(&mut bytes.clone()), Some(origins));
        for cut in 0..bytes.len() {
            assert_eq!(CommandDedup::decode(&mut bytes.slice(..cut)), None);
        }
    }
}
