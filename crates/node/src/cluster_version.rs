//! The cluster version: which commands and formats every member of a cluster understands.
//!
//! It is one number, agreed in the log. Each program supports a range of versions. The leader
//! raises the cluster version when all members support a higher one; only an explicit downgrade
//! lowers it. docs/decisions/010 has the reasons.

use std::collections::BTreeMap;
use std::fmt;

use bytes::{Buf, BufMut, Bytes};
use quorate_core::message::{Message, Proposal};
use quorate_core::{Envelope, Index, MemberId, Term};

use crate::command_id::{CommandBuffer, CommandId};
use crate::driver::Driver;
use crate::request_table::RequestToken;

/// The cluster versions that a program supports: from `min` to `max`, both included.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct VersionRange {
    /// The lowest.
    pub min: u32,
    /// The highest.
    pub max: u32,
}

impl VersionRange {
    /// From `min` to `max`.
    pub const fn new(min: u32, max: u32) -> Self {
        Self { min, max }
    }

    /// Whether the program can be a member of a cluster of this version.
    pub const fn contains(self, version: u32) -> bool {
        self.min <= version && version <= self.max
    }

    /// Fails with the version that is needed.
    pub(crate) const fn check(self, needs: u32) -> Result<(), UnsupportedVersion> {
        if self.contains(needs) {
            Ok(())
        } else {
            Err(UnsupportedVersion { needs, supported: self })
        }
    }
}

impl Default for VersionRange {
    /// Only the first version.
    fn default() -> Self {
        Self::new(ClusterVersion::FIRST, ClusterVersion::FIRST)
    }
}

impl fmt::Display for VersionRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} to {}", self.min, self.max)
    }
}

/// The cluster version as the log says: see [`Node::cluster_version`](crate::Node).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct ClusterVersion {
    /// Commands and formats of this version and of earlier ones may be used.
    pub version: u32,
    /// A downgrade to this version is in progress: the version is not raised until every member
    /// runs a program that supports no higher one, or the downgrade is cancelled.
    pub downgrading: bool,
}

impl ClusterVersion {
    /// The version of every new cluster, until its leader knows that all members support more.
    pub const FIRST: u32 = 1;

    const BYTES: usize = 5;

    pub(crate) fn encode(self, out: &mut impl BufMut) {
        out.put_u32_le(self.version);
        out.put_u8(u8::from(self.downgrading));
    }

    pub(crate) fn decode(from: &mut Bytes) -> Option<Self> {
        let version = from.try_get_u32_le().ok()?;
        let downgrading = match from.try_get_u8().ok()? {
            0 => false,
            1 => true,
            _ => return None,
        };
        (version >= Self::FIRST).then_some(Self { version, downgrading })
    }
}

impl Default for ClusterVersion {
    fn default() -> Self {
        Self { version: Self::FIRST, downgrading: false }
    }
}

impl fmt::Display for ClusterVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let suffix = if self.downgrading { " (downgrade in progress)" } else { "" };
        write!(f, "{}{suffix}", self.version)
    }
}

/// A logged change of the cluster version. It has an effect only on the version that its leader
/// saw, so a repeated or late one changes nothing, on every member alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VersionChange {
    /// The version that the leader saw.
    pub from: ClusterVersion,
    /// The version after it.
    pub to: ClusterVersion,
}

impl VersionChange {
    pub(crate) fn encode(self) -> CommandBuffer {
        let mut buffer = CommandBuffer::with_capacity(2 * ClusterVersion::BYTES);
        let mut bytes = Vec::with_capacity(2 * ClusterVersion::BYTES);
        self.from.encode(&mut bytes);
        self.to.encode(&mut bytes);
        buffer.extend(bytes);
        buffer
    }

    pub(crate) fn decode(mut from: Bytes) -> Option<Self> {
        let change = Self {
            from: ClusterVersion::decode(&mut from)?,
            to: ClusterVersion::decode(&mut from)?,
        };
        from.is_empty().then_some(change)
    }
}

/// The cluster needs another program than this one. Nothing is lost: a program that supports the
/// version continues from the same disk.
///
/// A [`Machine`](crate::Machine) that meets a command or a snapshot of a later version returns
/// this error, and the member stops with
/// [`StopReason::UnsupportedVersion`](crate::StopReason).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct UnsupportedVersion {
    /// The version that is needed.
    pub needs: u32,
    /// What this program supports.
    pub supported: VersionRange,
}

impl fmt::Display for UnsupportedVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { needs, supported } = self;
        let program = if *needs > supported.max { "a newer" } else { "an older" };
        write!(
            f,
            "cluster version {needs} is needed, this program supports {supported}: \
             start {program} program on the same data"
        )
    }
}

impl std::error::Error for UnsupportedVersion {}

/// Why a downgrade was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
#[non_exhaustive]
pub enum DowngradeRefusal {
    /// The target must be lower than the cluster version.
    NotLower {
        /// The target.
        target: u32,
        /// The cluster version.
        current: u32,
    },
    /// A member's program does not support the target.
    Unsupported {
        /// The target.
        target: u32,
        /// The member.
        member: MemberId,
        /// What its program supports.
        supported: VersionRange,
    },
    /// There is no downgrade to cancel.
    NotInProgress,
    /// The cluster version changed meanwhile. Read it, and retry.
    Changed,
}

impl fmt::Display for DowngradeRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotLower { target, current } => {
                write!(f, "{target} is not lower than the cluster version {current}")
            }
            Self::Unsupported { target, member, supported } => {
                write!(f, "member {member} supports {supported}, not {target}")
            }
            Self::NotInProgress => write!(f, "no downgrade is in progress"),
            Self::Changed => write!(f, "the cluster version changed meanwhile"),
        }
    }
}

/// What the programs of members support, as far as they have answered. A leader asks them, and
/// decides by it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SupportedVersions(BTreeMap<MemberId, VersionRange>);

impl SupportedVersions {
    /// A member has answered.
    pub fn insert(&mut self, member: MemberId, supported: VersionRange) {
        self.0.insert(member, supported);
    }

    /// The answer of a member.
    pub fn of(&self, member: MemberId) -> Option<VersionRange> {
        self.0.get(&member).copied()
    }

    /// The change to propose when these members have to agree and have replied as recorded.
    pub fn next_change(&self, now: ClusterVersion, members: &[MemberId]) -> Option<VersionChange> {
        let mut highest = Vec::new();
        for member in members {
            highest.push(self.of(*member)?.max);
        }
        let to = if now.downgrading {
            // Every program is replaced: from now on the version may rise again.
            let done = highest.iter().all(|max| *max <= now.version);
            done.then_some(ClusterVersion { downgrading: false, ..now })?
        } else {
            let version = highest.into_iter().min()?;
            (version > now.version).then_some(ClusterVersion { version, downgrading: false })?
        };
        Some(VersionChange { from: now, to })
    }

    /// The change that a downgrade to `target` asks for; without a target, the end of one.
    pub fn downgrade(
        &self,
        now: ClusterVersion,
        target: Option<u32>,
    ) -> Result<VersionChange, DowngradeRefusal> {
        let Some(target) = target else {
            let to = ClusterVersion { downgrading: false, ..now };
            let change = VersionChange { from: now, to };
            return now.downgrading.then_some(change).ok_or(DowngradeRefusal::NotInProgress);
        };
        if target >= now.version || target < ClusterVersion::FIRST {
            return Err(DowngradeRefusal::NotLower { target, current: now.version });
        }
        // A member that does not answer may be down for good: it must not prevent a downgrade.
        for (member, supported) in &self.0 {
            if !supported.contains(target) {
                let (member, supported) = (*member, *supported);
                return Err(DowngradeRefusal::Unsupported { target, member, supported });
            }
        }
        let to = ClusterVersion { version: target, downgrading: true };
        Ok(VersionChange { from: now, to })
    }
}

impl Driver {
    /// Proposes a change of the cluster version. Only a leader may, since it knows its members.
    pub fn propose_version(&mut self, term: Term, change: VersionChange) -> RequestToken {
        let logged = self.next_command_id().prepend_to_version(change);
        self.request_once(logged, term)
    }

    /// The cluster version, as far as this member has applied the log.
    pub fn cluster_version(&self) -> ClusterVersion {
        self.version
    }

    pub(crate) fn set_cluster_version(&mut self, version: ClusterVersion) {
        self.version = version;
    }

    /// The cluster version that a program has to support to start from this disk. After a
    /// downgrade it is lowered by the next snapshot.
    pub fn storage_version(&self) -> u32 {
        match self.version_changed {
            Some((_, highest)) if !self.is_version_captured() => highest,
            _ => self.version.version,
        }
    }

    /// Whether a snapshot replaces the log of earlier cluster versions. Until then, a program that
    /// supports only the current one cannot start from this disk.
    pub fn is_version_captured(&self) -> bool {
        let snapshot = self.raft.snapshot().id.index;
        self.version_changed.is_none_or(|(index, _)| snapshot >= index)
    }

    pub(crate) fn on_versions(&mut self, versions: &[(Index, ClusterVersion)]) {
        for (index, version) in versions {
            if version.version != self.version.version {
                let highest = self.storage_version().max(version.version);
                self.version_changed = Some((*index, highest));
            }
            self.version = *version;
        }
    }
}

/// Whether a follower forwards a change of the cluster version. No honest one does; a wrong
/// version would stop every member.
pub(crate) fn proposes_version(envelope: &Envelope) -> bool {
    matches!(&envelope.message, Message::Propose(_, Proposal::Command(command))
        if CommandId::is_version_change(command))
}

#[cfg(test)]
mod tests {
    use quorate_core::{Boot, Config, Membership, RequestId};

    use super::*;
    use crate::driver::DriverOptions;

    #[test]
    fn changes_survive_encoding_and_other_bytes_are_refused() {
        let to = ClusterVersion { version: 7, downgrading: true };
        let change = VersionChange { from: ClusterVersion::default(), to };
        let bytes = Bytes::copy_from_slice(change.encode().as_slice());
        assert_eq!(VersionChange::decode(bytes.clone()), Some(change));
        for cut in 0..bytes.len() {
            assert_eq!(VersionChange::decode(bytes.slice(..cut)), None);
        }
        let longer = [&bytes[..], &[0]].concat();
        assert_eq!(VersionChange::decode(longer.into()), None);
        let mut zero = bytes.to_vec();
        zero[5] = 0;
        assert_eq!(VersionChange::decode(zero.into()), None);
    }

    /// A leader knows what its members support; a follower that claims to could stop them all.
    #[test]
    fn a_follower_cannot_change_the_version() {
        let (id, peer) = (MemberId(1), MemberId(2));
        let boot = Boot::first(Membership::new([id, peer], []));
        let mut driver = Driver::new(Config::new(id), boot, 1, DriverOptions::default()).unwrap();
        let to = ClusterVersion { version: u32::MAX, downgrading: false };
        let change = VersionChange { from: ClusterVersion::default(), to };
        let logged = driver.next_command_id().prepend_to_version(change);
        let message = Message::Propose(RequestId(1), Proposal::Command(logged));
        let (term, incarnation, joined_at) = (1, 0, 0);
        let envelope = Envelope { from: peer, to: id, term, incarnation, joined_at, message };
        assert!(proposes_version(&envelope));
        assert_eq!(driver.receive(envelope), None);
        assert_eq!(driver.dropped().get("version change of a follower"), Some(&1));
    }

    fn answers(replies: &[(u64, u32, u32)]) -> SupportedVersions {
        let range = |min, max| VersionRange::new(min, max);
        let replies = replies.iter();
        SupportedVersions(
            replies.map(|(id, min, max)| (MemberId(*id), range(*min, *max))).collect(),
        )
    }

    fn at(version: u32, downgrading: bool) -> ClusterVersion {
        ClusterVersion { version, downgrading }
    }

    const MEMBERS: [MemberId; 3] = [MemberId(1), MemberId(2), MemberId(3)];

    #[test]
    fn the_version_is_the_lowest_that_all_support() {
        let next = |answers: SupportedVersions| answers.next_change(at(1, false), &MEMBERS);
        assert_eq!(next(answers(&[(1, 1, 3), (2, 1, 3)])), None, "one has not answered");
        assert_eq!(next(answers(&[(1, 1, 3), (2, 1, 3), (3, 1, 1)])), None);
        let change = next(answers(&[(1, 1, 3), (2, 1, 3), (3, 1, 2)])).unwrap();
        assert_eq!((change.from, change.to), (at(1, false), at(2, false)));
    }

    #[test]
    fn a_downgrade_ends_when_no_program_supports_more() {
        let held = |answers: SupportedVersions| answers.next_change(at(1, true), &MEMBERS);
        assert_eq!(held(answers(&[(1, 1, 3), (2, 1, 3), (3, 1, 3)])), None);
        assert_eq!(held(answers(&[(1, 1, 3), (2, 1, 1), (3, 1, 1)])), None);
        let change = held(answers(&[(1, 1, 1), (2, 1, 1), (3, 1, 1)])).unwrap();
        assert_eq!(change.to, at(1, false));
    }

    #[test]
    fn downgrades_need_a_lower_version_that_all_who_answer_support() {
        let all = answers(&[(1, 1, 3), (2, 1, 3)]);
        let lowered = all.downgrade(at(3, false), Some(2)).unwrap();
        assert_eq!(lowered.to, at(2, true));
        let refused = |target| all.downgrade(at(3, false), target).unwrap_err();
        assert!(matches!(refused(Some(3)), DowngradeRefusal::NotLower { .. }));
        assert!(matches!(refused(Some(0)), DowngradeRefusal::NotLower { .. }));
        assert_eq!(refused(None), DowngradeRefusal::NotInProgress);
        assert_eq!(all.downgrade(at(2, true), None).unwrap().to, at(2, false));
        let newer = answers(&[(1, 1, 3), (2, 3, 4)]);
        let refused = newer.downgrade(at(3, false), Some(2)).unwrap_err();
        assert!(matches!(refused, DowngradeRefusal::Unsupported { member: MemberId(2), .. }));
    }

    #[test]
    fn texts_say_what_to_start() {
        let supported = VersionRange::new(2, 3);
        let newer = UnsupportedVersion { needs: 4, supported }.to_string();
        assert!(newer.contains("version 4 is needed") && newer.contains("a newer"), "{newer}");
        let older = UnsupportedVersion { needs: 1, supported }.to_string();
        assert!(older.contains("supports 2 to 3") && older.contains("an older"), "{older}");
    }
}
