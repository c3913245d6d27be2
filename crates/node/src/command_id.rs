//! The identity of a command, so that it runs once however often it is logged.
//!
//! A command that was forwarded to a leader which then failed is sent again to the next one,
//! and both copies may be committed. Each has the same [`CommandId`] in its header;
//! [`CommandDedup`] records, as part of the replicated state, which commands have run.

use std::collections::{BTreeMap, BTreeSet};

use bytes::{Buf, BufMut, Bytes, BytesMut};
use quorate_core::{MemberId, Membership};

use crate::cluster_version::VersionChange;

/// Identifies one command: no two commands ever have the same id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CommandId {
    /// The member that proposed it.
    pub member: MemberId,
    /// The disk of that member.
    pub incarnation: u64,
    /// How often that member had been started on this disk.
    pub start: u64,
    /// Counted from 1 since that start.
    pub sequence: u64,
    /// All commands of this start before this sequence number had ended when this one was
    /// proposed. A copy of one of them that is committed later must not run.
    pub open_from: u64,
}

/// The first byte of a header: what follows it is a command for the machine.
const COMMAND: u8 = 1;
/// What follows the header is a [`VersionChange`].
const VERSION: u8 = 2;
const HEADER_BYTES_MAX: usize = 1 + 8 + 4 * 10;

impl CommandId {
    /// The command with its id in a header in front: the bytes that are logged. The command is
    /// not copied.
    pub fn prepend_to(self, command: impl Into<CommandBuffer>) -> Bytes {
        self.prepend(COMMAND, command.into())
    }

    /// The bytes of a logged change of the cluster version.
    pub fn prepend_to_version(self, change: VersionChange) -> Bytes {
        self.prepend(VERSION, change.encode())
    }

    fn prepend(self, kind: u8, command: CommandBuffer) -> Bytes {
        let CommandBuffer(mut buffer) = command;
        let mut header = [0; HEADER_BYTES_MAX];
        let mut rest = &mut header[..];
        rest.put_u8(kind);
        rest.put_u64_le(self.incarnation);
        let since_open = self.sequence.saturating_sub(self.open_from);
        for part in [self.member.0, self.start, self.sequence, since_open] {
            put_number(&mut rest, part);
        }
        let unused = rest.len();
        let used = HEADER_BYTES_MAX - unused;
        if let (Some(room), Some(header)) =
            (buffer.get_mut(unused..HEADER_BYTES_MAX), header.get(..used))
        {
            room.copy_from_slice(header);
        }
        buffer.advance(unused);
        buffer.freeze()
    }

    /// Splits a logged command into its id and the command, without copying it. Nothing for an
    /// entry without a header, such as the first one of a leader.
    pub fn split_from(logged: &Bytes) -> Option<(Self, Bytes)> {
        match Self::split(logged)? {
            (id, LoggedBody::Command(command)) => Some((id, command)),
            (_, LoggedBody::Version(_)) => None,
        }
    }

    /// Splits a logged command into its id and what it asks for. Nothing for other bytes: they
    /// have no effect, on every member alike. A later version that gives a meaning to a new first
    /// byte has to ignore it as well, while the cluster version is lower.
    pub(crate) fn split(logged: &Bytes) -> Option<(Self, LoggedBody)> {
        let (kind, id, body) = Self::split_head(logged)?;
        let body = logged.slice_ref(body);
        match kind {
            COMMAND => Some((id, LoggedBody::Command(body))),
            VERSION => Some((id, LoggedBody::Version(VersionChange::decode(body)?))),
            _ => None,
        }
    }

    /// The command in these bytes, without its id.
    pub(crate) fn command_of(logged: &[u8]) -> Option<&[u8]> {
        let (kind, _, command) = Self::split_head(logged)?;
        (kind == COMMAND).then_some(command)
    }

    fn split_head(logged: &[u8]) -> Option<(u8, Self, &[u8])> {
        let mut rest = logged;
        let kind = rest.try_get_u8().ok()?;
        let incarnation = rest.try_get_u64_le().ok()?;
        let member = MemberId(take_number(&mut rest)?);
        let start = take_number(&mut rest)?;
        let sequence = take_number(&mut rest)?;
        let open_from = sequence.checked_sub(take_number(&mut rest)?)?;
        Some((kind, Self { member, incarnation, start, sequence, open_from }, rest))
    }

    /// Whether these bytes claim to change the cluster version: only a leader may log them.
    pub(crate) fn is_version_change(logged: &Bytes) -> bool {
        logged.first() == Some(&VERSION)
    }
}

/// What a logged command asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum LoggedBody {
    /// A command for the machine.
    Command(Bytes),
    /// A change of the cluster version.
    Version(VersionChange),
}

/// A command to propose, with room in front of it for the header that makes it unique.
///
/// A command that is encoded into this buffer is not copied again on its way into the log. One
/// that is given as `Bytes`, `Vec<u8>` or text is copied once, into such a buffer.
/// ```
/// use quorate::CommandBuffer;
///
/// let command = CommandBuffer::encode(|out| out.extend_from_slice(b"put color green"));
/// assert_eq!(command.as_slice(), b"put color green");
/// ```
#[derive(Clone)]
pub struct CommandBuffer(BytesMut);

impl CommandBuffer {
    /// An empty command.
    pub fn new() -> Self {
        Self::with_capacity(0)
    }

    /// An empty command with room for this many bytes.
    pub fn with_capacity(bytes: usize) -> Self {
        let mut buffer = BytesMut::with_capacity(HEADER_BYTES_MAX + bytes);
        buffer.put_bytes(0, HEADER_BYTES_MAX);
        Self(buffer)
    }

    /// The command that the closure appends to the buffer. It must append only.
    ///
    /// # Panics
    /// When the closure changes bytes that it did not append.
    pub fn encode(append: impl FnOnce(&mut BytesMut)) -> Self {
        Self::encode_sized(0, append)
    }

    /// The same with room for this many bytes, so that the buffer does not have to grow.
    ///
    /// # Panics
    /// When the closure changes bytes that it did not append.
    pub fn encode_sized(bytes: usize, append: impl FnOnce(&mut BytesMut)) -> Self {
        let mut buffer = Self::with_capacity(bytes);
        append(&mut buffer.0);
        let room = buffer.0.get(..HEADER_BYTES_MAX);
        assert!(room == Some(&[0; HEADER_BYTES_MAX]), "the room for the header was changed");
        buffer
    }

    /// The command.
    pub fn as_slice(&self) -> &[u8] {
        self.0.get(HEADER_BYTES_MAX..).unwrap_or_default()
    }

    /// The length of the command in bytes.
    pub fn len(&self) -> usize {
        self.0.len() - HEADER_BYTES_MAX
    }

    /// Whether the command has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl Default for CommandBuffer {
    fn default() -> Self {
        Self::new()
    }
}

impl std::fmt::Debug for CommandBuffer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Debug::fmt(&self.as_slice().escape_ascii(), f)
    }
}

impl Extend<u8> for CommandBuffer {
    fn extend<T: IntoIterator<Item = u8>>(&mut self, bytes: T) {
        self.0.extend(bytes);
    }
}

impl From<&[u8]> for CommandBuffer {
    fn from(command: &[u8]) -> Self {
        let mut buffer = Self::with_capacity(command.len());
        buffer.0.extend_from_slice(command);
        buffer
    }
}

impl<const N: usize> From<&[u8; N]> for CommandBuffer {
    fn from(command: &[u8; N]) -> Self {
        command.as_slice().into()
    }
}

impl From<&Bytes> for CommandBuffer {
    fn from(command: &Bytes) -> Self {
        command[..].into()
    }
}

impl From<Bytes> for CommandBuffer {
    fn from(command: Bytes) -> Self {
        command[..].into()
    }
}

impl From<Vec<u8>> for CommandBuffer {
    fn from(command: Vec<u8>) -> Self {
        command[..].into()
    }
}

impl From<&str> for CommandBuffer {
    fn from(command: &str) -> Self {
        command.as_bytes().into()
    }
}

impl From<String> for CommandBuffer {
    fn from(command: String) -> Self {
        command.as_bytes().into()
    }
}

/// Seven bits a byte, lowest first; the high bit says that more follow.
fn put_number(out: &mut impl BufMut, mut number: u64) {
    while number >= 0x80 {
        out.put_u8(number as u8 | 0x80);
        number >>= 7;
    }
    out.put_u8(number as u8);
}

fn take_number(from: &mut &[u8]) -> Option<u64> {
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

/// Which commands of every member have run. Equal on all members that have applied the same
/// entries, and part of every snapshot.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Default)]
pub struct CommandDedup {
    disks: BTreeMap<(MemberId, u64), ExecutedCommands>,
}

/// Which commands that were proposed at one disk have run.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Default)]
struct ExecutedCommands {
    start: u64,
    /// Every sequence number up to here counts as run.
    floor: u64,
    above: BTreeSet<u64>,
}

/// See [`CommandDedup::executed_counts`].
#[derive(Clone, Debug)]
pub(crate) struct ExecutedCounts(BTreeMap<(MemberId, u64), ExecutedCount>);

/// Start, floor and sequence numbers above it: each command that runs changes one of them.
type ExecutedCount = (u64, u64, usize);

/// What to do with a committed command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DedupDecision {
    Run,
    /// It has run, or is so old that this is not known; the newest start of its member that
    /// is recorded.
    Repeated {
        start: u64,
    },
    /// Its numbers are beyond what the member can have reached since its last command.
    Implausible,
    /// Its proposer is not a member, or the membership knows it by another disk.
    NotMember,
}

impl CommandDedup {
    /// Sequence numbers that are recorded one by one. A command that is this far behind the
    /// newest one of its member counts as run: its member has ended the request long ago.
    pub const WINDOW: usize = 1 << 16;

    /// Starts of a member between two of its commands, and starts before its first one. More
    /// than this are not plausible: a command that claims them would make all later commands
    /// of its member look old.
    const STARTS_MAX: u64 = 1 << 32;

    /// No sequence number reaches this.
    const SEQUENCE_MAX: u64 = 1 << 62;

    /// Decides whether a command runs, and records it if so.
    pub(crate) fn admit(&mut self, id: CommandId, membership: &Membership) -> DedupDecision {
        if !membership.contains(id.member) {
            return DedupDecision::NotMember;
        }
        let known = membership.incarnation(id.member);
        if known.is_some_and(|known| known != id.incarnation) {
            return DedupDecision::NotMember;
        }
        let key = (id.member, id.incarnation);
        let newest_start = self.disks.get(&key).map_or(0, |executed| executed.start);
        if id.start > newest_start.saturating_add(Self::STARTS_MAX)
            || id.sequence >= Self::SEQUENCE_MAX
        {
            return DedupDecision::Implausible;
        }
        let executed = self.disks.entry(key).or_default();
        let start = executed.start.max(id.start);
        if executed.start > id.start {
            return DedupDecision::Repeated { start };
        }
        if executed.start < id.start {
            *executed = ExecutedCommands { start: id.start, ..ExecutedCommands::default() };
        }
        executed.raise_floor(id.open_from.saturating_sub(1));
        // Without this a command that was sent twice runs twice.
        let is_new = executed.note(id.sequence);
        if is_new { DedupDecision::Run } else { DedupDecision::Repeated { start } }
    }

    /// Whether this command has run, as far as is recorded.
    pub fn has_run(&self, id: CommandId) -> bool {
        let executed = self.disks.get(&(id.member, id.incarnation));
        executed
            .is_some_and(|executed| executed.start == id.start && executed.contains(id.sequence))
    }

    /// How many commands of each disk have run by now.
    pub(crate) fn executed_counts(&self) -> ExecutedCounts {
        ExecutedCounts(self.disks.iter().map(|(disk, ran)| (*disk, ran.count())).collect())
    }

    /// Whether a command of this member may have run since then.
    pub(crate) fn has_run_since(&self, member: MemberId, then: &ExecutedCounts) -> bool {
        let disks = (member, 0)..=(member, u64::MAX);
        self.disks.range(disks).any(|(disk, ran)| then.0.get(disk) != Some(&ran.count()))
    }

    /// Forgets the commands of members that were removed: they never run.
    pub(crate) fn keep_members(&mut self, membership: &Membership) {
        self.disks.retain(|(member, _), _| membership.contains(*member));
    }

    pub(crate) fn encode(&self, out: &mut BytesMut) {
        out.put_u32_le(self.disks.len() as u32);
        for ((member, incarnation), executed) in &self.disks {
            let above = executed.above.len() as u64;
            for part in [member.0, *incarnation, executed.start, executed.floor, above] {
                out.put_u64_le(part);
            }
            executed.above.iter().for_each(|number| out.put_u64_le(*number));
        }
    }

    /// Nothing when the bytes are not what [`CommandDedup::encode`] wrote.
    pub(crate) fn decode(from: &mut Bytes) -> Option<Self> {
        let mut disks = BTreeMap::new();
        for _ in 0..from.try_get_u32_le().ok()? {
            let member = MemberId(from.try_get_u64_le().ok()?);
            let incarnation = from.try_get_u64_le().ok()?;
            let start = from.try_get_u64_le().ok()?;
            let floor = from.try_get_u64_le().ok()?;
            let mut above = BTreeSet::new();
            for _ in 0..from.try_get_u64_le().ok()? {
                above.insert(from.try_get_u64_le().ok()?);
            }
            disks.insert((member, incarnation), ExecutedCommands { start, floor, above });
        }
        Some(Self { disks })
    }
}

impl ExecutedCommands {
    fn count(&self) -> ExecutedCount {
        (self.start, self.floor, self.above.len())
    }

    fn contains(&self, number: u64) -> bool {
        number <= self.floor || self.above.contains(&number)
    }

    fn raise_floor(&mut self, floor: u64) {
        if floor > self.floor {
            self.floor = floor;
            self.above = self.above.split_off(&(floor + 1));
            self.advance_floor();
        }
    }

    /// False when the sequence number was recorded before.
    fn note(&mut self, number: u64) -> bool {
        if self.contains(number) {
            return false;
        }
        if number == self.floor + 1 && self.above.is_empty() {
            self.floor = number;
            return true;
        }
        self.above.insert(number);
        self.advance_floor();
        true
    }

    /// Raises the floor over sequence numbers that follow it without a gap, and over the lowest
    /// one when there are too many to record one by one.
    fn advance_floor(&mut self) {
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

    fn id(sequence: u64) -> CommandId {
        CommandId { member: MemberId(1), incarnation: 7, start: 2, sequence, open_from: 1 }
    }

    fn members() -> Membership {
        Membership::new([MemberId(1), MemberId(2)], [])
    }

    #[test]
    fn header_and_command_are_split_again() {
        let logged = id(5).prepend_to(b"hello");
        assert_eq!(CommandId::split_from(&logged), Some((id(5), Bytes::from_static(b"hello"))));
        assert_eq!(CommandId::split_from(&Bytes::new()), None);
        for cut in 0..logged.len() - b"hello".len() {
            assert_eq!(CommandId::split_from(&logged.slice(..cut)), None);
        }
        let large = CommandId { start: u64::MAX, open_from: 5, ..id(u64::MAX) };
        assert_eq!(CommandId::split_from(&large.prepend_to(b"")), Some((large, Bytes::new())));
        // The command stays where it was encoded.
        let command = CommandBuffer::encode(|out| out.extend_from_slice(b"hello"));
        let place = command.as_slice().as_ptr();
        let (_, split) = CommandId::split_from(&id(5).prepend_to(command)).unwrap();
        assert_eq!(split.as_ptr(), place);
    }

    #[test]
    fn every_command_runs_once_in_any_order() {
        let mut dedup = CommandDedup::default();
        for number in [3, 1, 2, 5] {
            assert_eq!(dedup.admit(id(number), &members()), DedupDecision::Run);
            assert!(dedup.has_run(id(number)));
        }
        assert!(!dedup.has_run(id(4)));
        for number in [1, 2, 3, 5] {
            assert_eq!(dedup.admit(id(number), &members()), DedupDecision::Repeated { start: 2 });
        }
        assert_eq!(dedup.admit(id(4), &members()), DedupDecision::Run);
        assert_eq!(dedup.disks[&(MemberId(1), 7)].floor, 5);
    }

    #[test]
    fn an_ended_request_does_not_run_after_a_later_one() {
        let mut dedup = CommandDedup::default();
        let later = CommandId { open_from: 4, ..id(6) };
        assert_eq!(dedup.admit(later, &members()), DedupDecision::Run);
        assert_eq!(dedup.admit(id(3), &members()), DedupDecision::Repeated { start: 2 });
        assert_eq!(dedup.admit(id(4), &members()), DedupDecision::Run);
        assert_eq!(dedup.admit(id(5), &members()), DedupDecision::Run);
        let executed = &dedup.disks[&(MemberId(1), 7)];
        assert_eq!((executed.floor, executed.above.len()), (6, 0));
    }

    #[test]
    fn a_command_that_ran_since_is_noticed() {
        let mut dedup = CommandDedup::default();
        let mut then = dedup.executed_counts();
        // Without and with gaps, an older one after a newer one, and after a restart.
        let restarted = CommandId { start: 3, ..id(5) };
        for command in [id(1), id(2), id(6), id(4), id(3), restarted] {
            assert_eq!(dedup.admit(command, &members()), DedupDecision::Run);
            assert!(dedup.has_run_since(MemberId(1), &then), "{command:?}");
            assert!(!dedup.has_run_since(MemberId(2), &then));
            then = dedup.executed_counts();
            assert!(!dedup.has_run_since(MemberId(1), &then));
        }
    }

    #[test]
    fn commands_from_before_a_restart_do_not_run() {
        let mut dedup = CommandDedup::default();
        dedup.admit(id(9), &members());
        let again = CommandId { start: 3, ..id(9) };
        assert_eq!(dedup.admit(again, &members()), DedupDecision::Run);
        assert_eq!(dedup.admit(id(10), &members()), DedupDecision::Repeated { start: 3 });
    }

    #[test]
    fn implausible_numbers_leave_no_state() {
        let mut dedup = CommandDedup::default();
        assert_eq!(dedup.admit(id(1), &members()), DedupDecision::Run);
        let before = dedup.clone();
        for start in [u64::MAX, 3 + CommandDedup::STARTS_MAX] {
            let forged = CommandId { start, ..id(1) };
            assert_eq!(dedup.admit(forged, &members()), DedupDecision::Implausible);
        }
        for sequence in [u64::MAX, CommandDedup::SEQUENCE_MAX] {
            let forged = CommandId { open_from: sequence, ..id(sequence) };
            assert_eq!(dedup.admit(forged, &members()), DedupDecision::Implausible);
        }
        assert_eq!(dedup, before);
        assert_eq!(dedup.admit(id(2), &members()), DedupDecision::Run);
    }

    #[test]
    fn commands_of_unknown_members_do_not_run_and_leave_no_state() {
        let mut dedup = CommandDedup::default();
        let unknown = CommandId { member: MemberId(9), ..id(1) };
        assert_eq!(dedup.admit(unknown, &members()), DedupDecision::NotMember);
        assert_eq!(dedup, CommandDedup::default());
        dedup.admit(id(1), &members());
        dedup.keep_members(&Membership::new([MemberId(2)], []));
        assert_eq!(dedup, CommandDedup::default());
    }

    #[test]
    fn memory_is_bounded() {
        let mut dedup = CommandDedup::default();
        for number in 0..2 * CommandDedup::WINDOW as u64 {
            dedup.admit(id(2 + 2 * number), &members());
        }
        assert!(dedup.disks[&(MemberId(1), 7)].above.len() <= CommandDedup::WINDOW);
        assert_eq!(dedup.admit(id(1), &members()), DedupDecision::Repeated { start: 2 });
    }

    #[test]
    fn dedup_survives_encoding() {
        let mut dedup = CommandDedup::default();
        for number in [1, 2, 7, 9] {
            dedup.admit(id(number), &members());
        }
        let mut bytes = BytesMut::new();
        dedup.encode(&mut bytes);
        let bytes = bytes.freeze();
        assert_eq!(CommandDedup::decode(&mut bytes.clone()), Some(dedup));
        for cut in 0..bytes.len() {
            assert_eq!(CommandDedup::decode(&mut bytes.slice(..cut)), None);
        }
    }
}
