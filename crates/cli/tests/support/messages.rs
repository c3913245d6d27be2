//! Messages of the server that tests look for. Messages of the commands are in the tests.

/// In the log of a member that has started and may have no quorum yet.
pub(crate) const ACCEPTING: &str = "accepting client connections";
/// In the log of a member that clients can use.
pub(crate) const READY: &str = "ready to serve client requests";
/// The error of a member that was removed.
pub(crate) const REMOVED: &str = "the member has been permanently removed from the cluster";
/// The error of a change that was prepared from an older membership.
pub(crate) const CHANGED_MEANWHILE: &str = "nothing was changed: the change was prepared from";
/// In the log of a member that connected to a member of another cluster.
pub(crate) const WRONG_CLUSTER: &str = "no member of that cluster";
/// In the log of a member whose disk is not the one of its id.
pub(crate) const IDENTITY_REJECTED: &str =
    "identity rejected: remove this member and add it again under a new id";
/// In the log of a member that starts with a new disk under an old id.
pub(crate) const OTHER_DISK: &str = "has already been bootstrapped on another disk";
/// In the log of a member whose data directory was copied.
pub(crate) const COPIED: &str = "directory was copied or restored since the member last ran";
/// In the status of a member whose log lacks what it confirmed.
pub(crate) const LOST_LOG: &str = "the log lacks what this member confirmed";
/// In the status of its leader.
pub(crate) const PEER_LOST_LOG: &str = "lacks what it confirmed";
/// Refusal of a change while a goal is in progress.
pub(crate) const GOAL_IN_PROGRESS: &str = "a goal is in progress";
/// Refusal of a cancel without a change.
pub(crate) const NO_CHANGE: &str = "no change is in progress";
/// Refusal to promote a member that has not started.
pub(crate) const NOT_STARTED: &str = "the learner has not started yet";
/// Reason for the refusal of another learner.
pub(crate) const TOO_MANY_LEARNERS: &str = "1 learners have started, the limit is 1";
/// Refusal to remove the last voter.
pub(crate) const NO_VOTERS_LEFT: &str = "no voters would be left";
/// Reason for the refusal to remove a live member of two.
pub(crate) const TOO_FEW_LIVE: &str = "afterwards: 2 voters, quorum 2, live and caught up 1";
/// Error for a snapshot file with a wrong checksum.
pub(crate) const DAMAGED_SNAPSHOT: &str = "truncated or damaged";
/// Error for a file that is not a snapshot.
pub(crate) const FOREIGN_SNAPSHOT: &str = "not a snapshot of this program";
/// Error of a recovery without the member itself.
pub(crate) const NOT_IN_MEMBERS: &str = "this is the disk of a, which is not among the members";
