//! The settings of one member. Limits and defaults are defined only here.

use std::fmt;

use crate::pack::{Pack, Reader, Writer, pack_fields};
use crate::{Index, MemberId};

/// Settings of one member. All members of a cluster should use the same ticks and the same
/// [`Config::reads`]; the rest may differ.
///
/// Start from [`Config::new`] and assign the fields to change.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(default = "Config::without_id", deny_unknown_fields))]
#[non_exhaustive]
pub struct Config {
    /// The id of this member.
    pub id: MemberId,
    /// The incarnation of this member's disk: a new number after it was wiped, replaced or
    /// restored. 0 where incarnations are not used.
    pub incarnation: u64,
    /// The index of the entry that added this member to a running cluster, as
    /// [`Membership::joined_at`](crate::Membership::joined_at) of any member reports it
    /// once it is committed; 0 for the first members. It belongs to the disk and is stored
    /// there. Every promise carries it, so that a former member with the same id is not
    /// mistaken for this one. The member does not campaign before it holds that entry:
    /// earlier entries may be about the former member.
    pub joined_at: Index,
    /// Seeds the random election timeouts: the same seed and inputs give the same run.
    pub seed: u64,
    /// A follower campaigns after this many ticks without a leader, plus a random number of
    /// ticks below it, drawn for each timeout.
    pub election_ticks: u32,
    /// A leader sends heartbeats at this interval.
    pub heartbeat_ticks: u32,
    /// The preference for this member as leader, from 0 to [`Config::PRIORITY_MAX`], which
    /// is the default. It is a hint: with a lower priority a member waits longer before it
    /// campaigns, by less than an election timeout, so that with equal logs a member of
    /// higher priority campaigns first. A member that alone can win still wins. Without
    /// pre-vote it has no effect: there, every campaign of a member that cannot win would
    /// restart the timeout of the others.
    pub priority: u8,
    /// Check with pre-votes whether an election could be won before starting a term (thesis
    /// §9.6).
    pub pre_vote: bool,
    /// A leader that has not heard from a quorum for an election timeout steps down, and a
    /// member that has just heard from a leader ignores other candidates (thesis §6.2,
    /// §4.2.3).
    pub check_quorum: bool,
    /// A member whose oldest save or apply is unfinished for this many election timeouts is
    /// stalled: it does not campaign, is not chosen as a successor, and as a leader hands
    /// over or steps down. 0 turns this off. A single command must not take the state machine
    /// that long.
    pub stall_timeouts: u32,
    /// A leader hands over when its disk takes more than this many times as long as those of
    /// a quorum of others, for several pieces of work in a row, and at least a quarter of an
    /// election timeout longer. 0 turns this off.
    pub slow_disk_factor: u32,
    /// How linearizable reads are served.
    pub reads: ReadMode,
    /// Followers forward proposals to the leader instead of refusing them.
    pub forward_proposals: bool,
    /// A leader that a change removes or demotes steps down.
    pub step_down_on_removal: bool,
    /// Bytes of entries in one append; at least one entry is sent.
    pub append_bytes_max: u64,
    /// Appends with entries in flight to one peer.
    pub inflight_messages_max: u32,
    /// Bytes of entries in flight to one peer.
    pub inflight_bytes_max: u64,
    /// Bytes in the leader's log that wait for a quorum. The first proposal and an empty
    /// one are always accepted.
    pub uncommitted_bytes_max: u64,
    /// Bytes handed out for applying and not yet reported applied.
    pub apply_bytes_max: u64,
    /// Bytes of saved and applied entries kept in memory for peers.
    pub tail_bytes_max: u64,
    /// Entries kept before a snapshot, so that a slightly lagging peer needs no snapshot.
    pub trim_keep_entries: u64,
    /// Linearizable reads waiting at one leader.
    pub reads_waiting_max: usize,
    /// `Output::apply` may contain entries of the save in the same output, for callers that
    /// complete the save before they apply.
    pub apply_unsaved: bool,
    /// When a membership begins to count. The same for all members, for the whole lifetime
    /// of a cluster.
    pub activation: Activation,
    /// The three conditions under which a membership change never leaves the cluster
    /// without a possible leader.
    pub liveness: Liveness,
    /// Refuse a change of votes after which fewer than a quorum of voters would be live and
    /// caught up.
    pub pre_flight: bool,
    /// Differences from etcd-io/raft that do not affect safety.
    pub etcd_compat: EtcdCompat,
}

pack_fields!(Config {
    id,
    incarnation,
    joined_at,
    seed,
    election_ticks,
    heartbeat_ticks,
    priority,
    pre_vote,
    check_quorum,
    stall_timeouts,
    slow_disk_factor,
    reads,
    forward_proposals,
    step_down_on_removal,
    append_bytes_max,
    inflight_messages_max,
    inflight_bytes_max,
    uncommitted_bytes_max,
    apply_bytes_max,
    tail_bytes_max,
    trim_keep_entries,
    reads_waiting_max,
    apply_unsaved,
    activation,
    liveness,
    pre_flight,
    etcd_compat
});

/// When a membership begins to count. Chosen when a cluster is created and recorded in
/// every membership; members with different rules refuse each other's memberships.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
pub enum Activation {
    /// When it is committed and handed to the state machine, as in etcd.
    #[default]
    OnApply,
    /// As soon as it is in the log, committed or not, as in the thesis and openraft.
    OnAppend,
}

impl Pack for Activation {
    fn pack(&self, to: &mut Writer) {
        (*self == Self::OnAppend).pack(to);
    }

    fn unpack(from: &mut Reader<'_>) -> Self {
        if bool::unpack(from) { Self::OnAppend } else { Self::OnApply }
    }
}

/// What keeps a leader electable at every point of a membership change. Each condition can
/// be turned off only to show what happens without it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(default, deny_unknown_fields))]
#[non_exhaustive]
pub struct Liveness {
    /// Votes, pre-votes and their replies carry the last membership that their sender knows
    /// to be committed.
    pub votes_tell_commit: bool,
    /// A voter that is removed becomes a learner first.
    pub demote_before_removal: bool,
    /// A change is reported as settled once a quorum is known to have it durably committed,
    /// and a leaving leader leads until then.
    pub settle: bool,
}

pack_fields!(Liveness { votes_tell_commit, demote_before_removal, settle });

/// How a leader ensures that a read is not stale (thesis §6.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case", deny_unknown_fields))]
#[non_exhaustive]
pub enum ReadMode {
    /// A round of heartbeats to a quorum for each batch of reads.
    Quorum,
    /// No round while a quorum has answered heartbeats that were sent less than an election
    /// timeout minus `drift_ticks` ago. Requires that no member's clock is faster than
    /// another's by more than that, and `check_quorum` on every member.
    LeaderLease {
        /// How much faster one clock may be than another, in ticks.
        drift_ticks: u32,
    },
}

impl Pack for ReadMode {
    fn pack(&self, to: &mut Writer) {
        match self {
            Self::Quorum => to.pack_none(),
            Self::LeaderLease { drift_ticks } => to.pack_some(drift_ticks),
        }
    }

    fn unpack(from: &mut Reader<'_>) -> Self {
        Option::unpack(from).map_or(Self::Quorum, |drift_ticks| Self::LeaderLease { drift_ticks })
    }
}

/// Choices where etcd-io/raft differs. The default is Quorate's choice;
/// [`EtcdCompat::etcd`] gives what the recorded traces of etcd-io/raft show.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(default, deny_unknown_fields))]
#[non_exhaustive]
pub struct EtcdCompat {
    /// Appends wait for `take_output`, and one message carries all new entries.
    pub coalesce: bool,
    /// Every append, vote and pre-vote reply, including refusals and the member's own, is
    /// in a save's `then_send`, even with nothing to save.
    pub every_reply_waits: bool,
    /// A commit index that advances is saved at once, even alone.
    pub commit_saved_alone: bool,
    /// A refused membership change is logged as an empty entry.
    pub refused_change_logs_empty: bool,
    /// `Transition::Auto` enters a joint by the number of operations, not by the number of
    /// voters that change.
    pub auto_counts_operations: bool,
    /// Operations on member 0 are skipped instead of refused.
    pub ignore_member_zero: bool,
    /// An append or heartbeat of an old term gets a reply only with `check_quorum` or
    /// `pre_vote`.
    pub old_term_unanswered: bool,
    /// A vote request of an old term gets no reply, and no member defers to a candidate
    /// with a newer log.
    pub old_votes_unanswered: bool,
    /// A follower gets no reply to a proposal that it forwarded.
    pub forwards_unanswered: bool,
    /// A snapshot whose membership does not contain the receiver is refused.
    pub snapshot_must_name_receiver: bool,
    /// A removed id may be added again.
    pub ids_reusable: bool,
    /// With leader-lease reads, a member that has heard from a leader may vote for another,
    /// or campaign, as soon as it no longer knows that leader: after a start, a newer term,
    /// or a request. Then a lease may serve a stale read.
    pub loose_leases: bool,
    /// A newer term restarts the election timeout.
    pub newer_term_restarts_timer: bool,
    /// The only voter waits for its election timeout after a start, instead of one tick.
    pub sole_voter_waits: bool,
    /// A leader's request to campaign is dropped if it arrives before the newest committed
    /// membership is applied.
    pub early_timeout_now_dropped: bool,
}

pack_fields!(EtcdCompat {
    coalesce,
    every_reply_waits,
    commit_saved_alone,
    refused_change_logs_empty,
    auto_counts_operations,
    ignore_member_zero,
    old_term_unanswered,
    old_votes_unanswered,
    forwards_unanswered,
    snapshot_must_name_receiver,
    ids_reusable,
    loose_leases,
    newer_term_restarts_timer,
    sole_voter_waits,
    early_timeout_now_dropped
});

impl Config {
    /// The [`Config::joined_at`] of a member that starts with an empty disk and does not
    /// know which entry added it: no entry has this index. It receives the log and does not
    /// count, because it may be an old member that has lost its disk.
    pub const NEVER_JOINED: Index = (1 << 62) - 1;

    /// The highest [`Config::priority`]: such a member has no additional delay.
    pub const PRIORITY_MAX: u8 = 100;

    /// The default settings for a member.
    pub fn new(id: MemberId) -> Self {
        Self {
            id,
            incarnation: 0,
            joined_at: 0,
            seed: 0,
            election_ticks: 10,
            heartbeat_ticks: 1,
            priority: Self::PRIORITY_MAX,
            pre_vote: true,
            check_quorum: true,
            stall_timeouts: 3,
            slow_disk_factor: 3,
            reads: ReadMode::Quorum,
            forward_proposals: true,
            step_down_on_removal: true,
            append_bytes_max: 1 << 20,
            inflight_messages_max: 256,
            inflight_bytes_max: 64 << 20,
            uncommitted_bytes_max: 256 << 20,
            apply_bytes_max: 64 << 20,
            tail_bytes_max: 16 << 20,
            trim_keep_entries: 5_000,
            reads_waiting_max: 65_536,
            apply_unsaved: false,
            activation: Activation::OnApply,
            liveness: Liveness::ALL,
            pre_flight: true,
            etcd_compat: EtcdCompat::default(),
        }
    }

    /// The defaults for settings that a file does not contain. A file without an id does
    /// not pass [`Config::check`].
    #[cfg(feature = "serde")]
    fn without_id() -> Self {
        Self::new(MemberId(0))
    }

    /// The behaviour of etcd-io/raft with its defaults: no pre-vote, no check-quorum, no
    /// step-down, no limits.
    pub fn etcd(id: MemberId) -> Self {
        Self {
            pre_vote: false,
            check_quorum: false,
            stall_timeouts: 0,
            slow_disk_factor: 0,
            step_down_on_removal: false,
            append_bytes_max: u64::MAX,
            inflight_messages_max: u32::MAX,
            inflight_bytes_max: u64::MAX,
            uncommitted_bytes_max: u64::MAX,
            apply_bytes_max: u64::MAX,
            tail_bytes_max: u64::MAX,
            trim_keep_entries: u64::MAX,
            reads_waiting_max: usize::MAX,
            apply_unsaved: true,
            liveness: Liveness::NONE,
            pre_flight: false,
            etcd_compat: EtcdCompat::etcd(),
            ..Self::new(id)
        }
    }

    /// After how many ticks without progress a disk or state machine is stalled; 0 for never.
    pub(crate) fn stall_limit_ticks(&self) -> u32 {
        self.stall_timeouts.saturating_mul(self.election_ticks)
    }

    /// How many ticks a leader may rely on this member for its lease after each message.
    pub(crate) fn lease_guard_ticks(&self) -> u32 {
        match self.reads {
            ReadMode::LeaderLease { .. } if !self.etcd_compat.loose_leases => self.election_ticks,
            _ => 0,
        }
    }

    /// How much longer than other members this member waits before it campaigns. Less than
    /// the random part of the timeout, so that no two members always campaign in the same
    /// order.
    pub(crate) fn priority_delay_ticks(&self) -> u32 {
        let short = Self::PRIORITY_MAX.saturating_sub(self.priority);
        if !self.pre_vote {
            return 0;
        }
        let most = u64::from(self.election_ticks - 1);
        (most * u64::from(short) / u64::from(Self::PRIORITY_MAX)) as u32
    }

    /// Whether the settings are consistent.
    pub fn check(&self) -> Result<(), ConfigError> {
        if self.id.0 == 0 {
            return Err(ConfigError::MemberZero);
        }
        if self.heartbeat_ticks == 0 || self.election_ticks <= self.heartbeat_ticks {
            return Err(ConfigError::Ticks {
                election: self.election_ticks,
                heartbeat: self.heartbeat_ticks,
            });
        }
        if self.priority > Self::PRIORITY_MAX {
            return Err(ConfigError::Priority { priority: self.priority });
        }
        if self.inflight_messages_max == 0 || self.inflight_bytes_max == 0 {
            return Err(ConfigError::NoInflight);
        }
        if let ReadMode::LeaderLease { drift_ticks } = self.reads {
            if !self.check_quorum {
                return Err(ConfigError::LeaseWithoutCheckQuorum);
            }
            if drift_ticks >= self.election_ticks {
                return Err(ConfigError::Drift {
                    drift: drift_ticks,
                    election: self.election_ticks,
                });
            }
        }
        Ok(())
    }
}

impl Default for Liveness {
    fn default() -> Self {
        Self::ALL
    }
}

impl Liveness {
    /// All conditions on: the default.
    pub const ALL: Self =
        Self { votes_tell_commit: true, demote_before_removal: true, settle: true };

    /// As in etcd-io/raft: a membership change may leave the cluster without a leader until
    /// a certain member returns.
    pub const NONE: Self =
        Self { votes_tell_commit: false, demote_before_removal: false, settle: false };
}

impl Default for EtcdCompat {
    fn default() -> Self {
        Self {
            coalesce: true,
            every_reply_waits: false,
            commit_saved_alone: false,
            refused_change_logs_empty: false,
            auto_counts_operations: false,
            ignore_member_zero: false,
            old_term_unanswered: false,
            old_votes_unanswered: false,
            forwards_unanswered: false,
            snapshot_must_name_receiver: false,
            ids_reusable: false,
            loose_leases: false,
            newer_term_restarts_timer: false,
            sole_voter_waits: false,
            early_timeout_now_dropped: false,
        }
    }
}

impl EtcdCompat {
    /// The choices of etcd-io/raft.
    pub const fn etcd() -> Self {
        Self {
            coalesce: false,
            every_reply_waits: true,
            commit_saved_alone: true,
            refused_change_logs_empty: true,
            auto_counts_operations: true,
            ignore_member_zero: true,
            old_term_unanswered: true,
            old_votes_unanswered: true,
            forwards_unanswered: true,
            snapshot_must_name_receiver: true,
            ids_reusable: true,
            loose_leases: true,
            newer_term_restarts_timer: true,
            sole_voter_waits: true,
            early_timeout_now_dropped: true,
        }
    }
}

/// Why a [`Config`] is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ConfigError {
    /// The member needs an id other than 0.
    MemberZero,
    /// An election timeout must be longer than the heartbeat interval.
    Ticks {
        /// The election timeout.
        election: u32,
        /// The heartbeat interval.
        heartbeat: u32,
    },
    /// Priorities are at most [`Config::PRIORITY_MAX`].
    Priority {
        /// The configured priority.
        priority: u8,
    },
    /// A leader without any append in flight cannot replicate.
    NoInflight,
    /// Followers must ignore candidates during a lease: enable check-quorum.
    LeaseWithoutCheckQuorum,
    /// The allowed drift is at least as long as the lease.
    Drift {
        /// The configured drift.
        drift: u32,
        /// The election timeout.
        election: u32,
    },
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::MemberZero => write!(f, "member id must not be 0"),
            Self::Ticks { election, heartbeat } => {
                write!(
                    f,
                    "election timeout of {election} ticks and heartbeat of {heartbeat} ticks: "
                )?;
                write!(f, "must be 1 <= heartbeat < election")
            }
            Self::Priority { priority } => {
                write!(f, "priority {priority} must be at most {}", Config::PRIORITY_MAX)
            }
            Self::NoInflight => write!(f, "in-flight limits must be at least 1"),
            Self::LeaseWithoutCheckQuorum => {
                write!(f, "leader-lease reads require check-quorum")
            }
            Self::Drift { drift, election } => {
                write!(
                    f,
                    "clock drift of {drift} ticks must be less than the election timeout of {election}"
                )
            }
        }
    }
}

impl std::error::Error for ConfigError {}
