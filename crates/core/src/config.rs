//! How one member behaves. Limits and defaults stand here and nowhere else.

use std::fmt;

use crate::{Index, MemberId};

/// Settings of one member. All members of a cluster should agree on ticks and on
/// [`Config::reads`]; the rest may differ.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(default = "Config::of_nobody", deny_unknown_fields))]
pub struct Config {
    pub id: MemberId,
    /// The disk behind this member: another number after it was wiped, swapped or
    /// restored. 0 where nobody tells disks apart.
    pub incarnation: u64,
    /// The index of the entry that added this member, for one that joined a running
    /// cluster: of a committed one, as [`Membership::joined_at`](crate::Membership) of any
    /// member tells; 0 for the first members. It belongs to the disk: kept there, and
    /// never changed while the disk lives. It goes with every promise, so that a former
    /// member of the same id is told from this one. And this member does not stand for
    /// election before it holds that entry: what it reads on its way may be about the
    /// former one.
    pub joined_at: Index,
    /// Where election timeouts come from: the same seed and inputs, the same run.
    pub seed: u64,
    /// A follower campaigns after this many ticks without a leader, and up to
    /// twice as many, drawn anew each time.
    pub election_ticks: u32,
    pub heartbeat_ticks: u32,
    /// How welcome this member is as a leader, from 0 to [`Config::PRIORITY_MAX`], which is
    /// the default. A hint, no rule: the lower, the longer it waits before it campaigns,
    /// by less than an election timeout, so that with all else equal a member of higher
    /// priority comes first. Whoever alone can win still does. Without pre-vote it has no
    /// effect: there, every campaign of a member that cannot win would make those wait
    /// again who can.
    pub priority: u8,
    /// Ask whether an election could be won before disturbing anybody's term.
    pub pre_vote: bool,
    /// A leader that has not heard from a quorum for an election timeout steps
    /// down, and who has just heard from a leader ignores other candidates.
    pub check_quorum: bool,
    pub reads: ReadMode,
    /// Followers pass proposals on to the leader instead of refusing them.
    pub forward_proposals: bool,
    /// A leader that a change removes or demotes steps down.
    pub step_down_on_removal: bool,
    /// Bytes of entries in one append, one entry at least.
    pub append_bytes_max: u64,
    /// Appends with entries on their way to one peer.
    pub inflight_messages_max: u32,
    /// Bytes of entries on their way to one peer.
    pub inflight_bytes_max: u64,
    /// Bytes in the leader's log that wait for a quorum. The first proposal is
    /// always taken, and so is an empty one.
    pub uncommitted_bytes_max: u64,
    /// Bytes handed out for applying and not yet reported applied.
    pub apply_bytes_max: u64,
    /// Bytes of saved and applied entries kept in memory for peers.
    pub tail_bytes_max: u64,
    /// Entries kept before a snapshot, so that a peer a little behind needs none.
    pub trim_keep_entries: u64,
    /// Linearizable reads waiting at one leader.
    pub reads_waiting_max: usize,
    /// `Output::apply` may hold entries of the save beside it: for callers that
    /// finish the save before they apply.
    pub apply_unsaved: bool,
    /// When a membership begins to count. The same for every member, for the whole
    /// life of a cluster.
    pub activation: Activation,
    /// The three conditions under which a change of membership never leaves the
    /// cluster without a leader.
    pub liveness: Liveness,
    /// Refuse a change of votes that too few live and caught-up voters could carry.
    pub pre_flight: bool,
    /// Differences in manner, not in safety, from etcd-io/raft.
    pub etcd_compat: EtcdCompat,
}

/// When a membership begins to count. Chosen when a cluster is created and kept in
/// every membership; members that disagree refuse each other's memberships.
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

/// What keeps every moment of a membership change electable. Each is a switch so
/// that its absence can be shown; there is no reason to turn one off otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(default, deny_unknown_fields))]
pub struct Liveness {
    /// Votes and pre-votes, questions and answers, tell the last membership that
    /// their sender knows to be committed.
    pub votes_tell_commit: bool,
    /// Who loses its vote becomes a learner first; a voter is never removed at once.
    pub demote_before_removal: bool,
    /// A change is reported settled once a quorum is known to have it durably
    /// committed, and a leader on its way out leads until then.
    pub settle: bool,
}

/// How a leader makes sure that a read is not stale.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case", deny_unknown_fields))]
pub enum ReadMode {
    /// A round of heartbeats to a quorum for each batch of reads.
    Quorum,
    /// No round while a quorum has answered heartbeats sent less than an election
    /// timeout ago, less `drift_ticks`. Trusts that no member's clock runs faster
    /// than another's by more than that. Needs `check_quorum` on every member.
    LeaderLease { drift_ticks: u32 },
}

/// Where a choice is open, how to choose. The default is ours; [`EtcdCompat::etcd`]
/// is what the recorded traces of etcd-io/raft show.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(default, deny_unknown_fields))]
pub struct EtcdCompat {
    /// Appends wait for `take_output` and one message carries all that is new.
    pub coalesce: bool,
    /// Every append, vote and pre-vote reply, refusals and those to oneself too,
    /// goes into a save's `then_send`, even with nothing to save.
    pub every_reply_waits: bool,
    /// A commit index that moves is saved at once, alone if need be.
    pub commit_saved_alone: bool,
    /// A refused membership change is logged as an empty entry.
    pub refused_change_logs_empty: bool,
    /// `Transition::Auto` goes joint by the number of operations, not by how many
    /// voters really change.
    pub auto_counts_operations: bool,
    /// Operations on member 0 are skipped instead of refused.
    pub ignore_member_zero: bool,
    /// An append or heartbeat of an old term is answered only with `check_quorum`
    /// or `pre_vote` on.
    pub old_term_silent: bool,
    /// A vote asked for in an old term is not answered, and nobody gives way to a
    /// candidate with a newer log.
    pub old_votes_unanswered: bool,
    /// A follower is not told what became of a proposal it passed on.
    pub forwarders_hear_nothing: bool,
    /// A snapshot whose membership lacks the receiver is refused.
    pub snapshot_must_name_receiver: bool,
    /// A removed id may be added again.
    pub ids_return: bool,
    /// With leader-lease reads, who has heard from a leader may vote for another, or
    /// stand itself, as soon as it has forgotten that leader: by a start, a newer
    /// term, or a request. Then a lease may serve a stale read.
    pub loose_leases: bool,
    /// Hearing of a newer term starts the wait for a leader anew.
    pub newer_term_restarts_timer: bool,
}

impl Config {
    /// The [`Config::joined_at`] of a member that starts with an empty disk and was not
    /// told which entry added it: no entry has this index. It receives the log and
    /// counts nowhere, because it may be an old member that has lost its disk.
    pub const NEVER_JOINED: Index = (1 << 62) - 1;

    /// The highest [`Config::priority`]: such a member waits no longer than it must.
    pub const PRIORITY_MAX: u8 = 100;

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

    /// What stands in for settings that a file leaves out. One that leaves out the id
    /// does not pass [`Config::check`].
    #[cfg(feature = "serde")]
    fn of_nobody() -> Self {
        Self::new(MemberId(0))
    }

    /// Behaves exactly as etcd-io/raft with its defaults: no pre-vote, no
    /// check-quorum, no step-down, no limits.
    pub fn etcd(id: MemberId) -> Self {
        Self {
            pre_vote: false,
            check_quorum: false,
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

    /// How long a leader that was heard may count on this member with its lease.
    pub(crate) fn loyal_ticks(&self) -> u32 {
        match self.reads {
            ReadMode::LeaderLease { .. } if !self.etcd_compat.loose_leases => self.election_ticks,
            _ => 0,
        }
    }

    /// How much longer than others this member waits before it campaigns. Less than the
    /// chance in every timeout, so that no two members are always in the same order.
    pub(crate) fn handicap_ticks(&self) -> u32 {
        let short = Self::PRIORITY_MAX.saturating_sub(self.priority);
        if !self.pre_vote {
            return 0;
        }
        let most = u64::from(self.election_ticks - 1);
        (most * u64::from(short) / u64::from(Self::PRIORITY_MAX)) as u32
    }

    /// Whether the settings make sense together.
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
    pub const ALL: Self =
        Self { votes_tell_commit: true, demote_before_removal: true, settle: true };

    /// As etcd-io/raft: a change of membership may leave the cluster without a
    /// leader until a certain member comes back.
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
            old_term_silent: false,
            old_votes_unanswered: false,
            forwarders_hear_nothing: false,
            snapshot_must_name_receiver: false,
            ids_return: false,
            loose_leases: false,
            newer_term_restarts_timer: false,
        }
    }
}

impl EtcdCompat {
    pub const fn etcd() -> Self {
        Self {
            coalesce: false,
            every_reply_waits: true,
            commit_saved_alone: true,
            refused_change_logs_empty: true,
            auto_counts_operations: true,
            ignore_member_zero: true,
            old_term_silent: true,
            old_votes_unanswered: true,
            forwarders_hear_nothing: true,
            snapshot_must_name_receiver: true,
            ids_return: true,
            loose_leases: true,
            newer_term_restarts_timer: true,
        }
    }
}

/// Why a [`Config`] cannot work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ConfigError {
    /// Give the member an id of its own.
    MemberZero,
    /// An election timeout must be longer than the heartbeat interval.
    Ticks { election: u32, heartbeat: u32 },
    /// Priorities end at [`Config::PRIORITY_MAX`].
    Priority { priority: u8 },
    /// A leader that may not have one append on its way cannot replicate.
    NoInflight,
    /// Followers must ignore candidates while the lease runs: turn check-quorum on.
    LeaseWithoutCheckQuorum,
    /// The drift allowed for eats the whole lease.
    Drift { drift: u32, election: u32 },
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::MemberZero => write!(f, "member id is 0, want any other"),
            Self::Ticks { election, heartbeat } => {
                write!(f, "election timeout {election} and heartbeat {heartbeat} ticks, want ")?;
                write!(f, "1 <= heartbeat < election")
            }
            Self::Priority { priority } => {
                write!(f, "priority {priority}, want at most {}", Config::PRIORITY_MAX)
            }
            Self::NoInflight => write!(f, "in-flight limit is 0, want at least 1"),
            Self::LeaseWithoutCheckQuorum => {
                write!(f, "leader-lease reads without check-quorum, want both or neither")
            }
            Self::Drift { drift, election } => {
                write!(f, "clock drift of {drift} ticks, want less than {election}")
            }
        }
    }
}

impl std::error::Error for ConfigError {}
