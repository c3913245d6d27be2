//! Which right each call needs. `docs/operating.md` has the same table.

use crate::access::ClientAction;

/// What a call needs while authentication is enabled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RequiredRight {
    /// Anyone may call it.
    Nothing,
    /// Any user may call it.
    AnyUser,
    /// Only users with the role `root` may call it.
    Root,
    /// It depends on the keys of the request, and is checked where the request runs.
    OfRequest,
}

impl ClientAction<'_> {
    pub(crate) fn required_right(&self) -> RequiredRight {
        match self {
            Self::Health | Self::Metrics | Self::Version | Self::Authenticate => {
                RequiredRight::Nothing
            }
            Self::Status
            | Self::AlarmRead
            | Self::MemberList
            | Self::MemberPlan
            | Self::MembershipStatus => RequiredRight::AnyUser,
            Self::MemberChange
            | Self::Defragment
            | Self::Hash
            | Self::Snapshot
            | Self::AlarmChange
            | Self::MoveLeader
            | Self::Downgrade => RequiredRight::Root,
            Self::Range(_)
            | Self::Put(_)
            | Self::DeleteRange(_)
            | Self::Txn(_)
            | Self::Compact
            | Self::WatchStream
            | Self::Watch(_)
            | Self::LeaseGrant
            | Self::LeaseRevoke { .. }
            | Self::LeaseKeepAlive
            | Self::LeaseTimeToLive { .. }
            | Self::LeaseLeases
            | Self::AuthRead
            | Self::AuthChange => RequiredRight::OfRequest,
        }
    }
}
