//! Which commands and rows belong to which cluster version.
//!
//! A member of an older program does not know newer commands. So each command is proposed, and
//! runs, only when the cluster version says that all members know it. This file is the only place
//! that knows which command needs which version.

use std::fmt;

use crate::command::Command;

/// The lowest cluster version that this crate supports.
pub const VERSION_MIN: u32 = 1;

/// The highest cluster version that this crate supports.
pub const VERSION_MAX: u32 = if cfg!(feature = "next-version-for-tests") { 2 } else { 1 };

impl Command {
    /// The cluster version from which on this command may be proposed. It is the first byte of the
    /// encoded command.
    ///
    /// A transaction needs the highest version of its operations.
    pub fn version(&self) -> u32 {
        match self {
            Self::Noop
            | Self::Put(_)
            | Self::DeleteRange(_)
            | Self::Txn(_)
            | Self::Compact(_)
            | Self::LeaseGrant(_)
            | Self::LeaseRevoke(_)
            | Self::LeaseCheckpoint(_)
            | Self::AlarmActivate(_)
            | Self::AlarmDisarm(_)
            | Self::SetQuota(_)
            | Self::Auth(_) => 1,
            Self::Issued(issued) => issued.command.version(),
            #[cfg(feature = "next-version-for-tests")]
            Self::PutReversed(_) => 2,
        }
    }
}

/// A command, a row or a snapshot of a later cluster version than this crate supports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct NewerVersion {
    /// The cluster version that is needed.
    pub needs: u32,
}

impl fmt::Display for NewerVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let needs = self.needs;
        write!(
            f,
            "cluster version {needs} is needed, this program supports {VERSION_MIN} to \
             {VERSION_MAX}: start a newer program on the same data"
        )
    }
}

impl std::error::Error for NewerVersion {}

/// Why bytes are not a command that may run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CommandDecodeError {
    /// They are not a command of the version that they name.
    Invalid,
    /// They are a command of a version that this crate does not support.
    Newer(NewerVersion),
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::command::Put;

    #[test]
    fn commands_begin_with_their_version_and_newer_ones_are_told_apart() {
        let put = Command::Put(Put { key: "k".into(), ..Put::default() });
        let bytes = put.encode();
        assert_eq!(u32::from(bytes[0]), put.version());
        assert_eq!(Command::decode(&bytes), Ok(put));
        let mut newer = bytes.to_vec();
        newer[0] = 9;
        let expected = CommandDecodeError::Newer(NewerVersion { needs: 9 });
        assert_eq!(Command::decode(&newer.into()), Err(expected));
        for bytes in [&[][..], &[0, 0], &[1, 99], &[1, 0, 0]] {
            let bytes = Bytes::copy_from_slice(bytes);
            assert_eq!(Command::decode(&bytes), Err(CommandDecodeError::Invalid));
        }
    }

    /// Otherwise a member that knows the command would run it, and an older one would not.
    #[cfg(feature = "next-version-for-tests")]
    #[test]
    fn a_command_under_an_older_version_is_invalid() {
        let bytes = Command::PutReversed(Put::default()).encode();
        let mut marked_older = bytes.to_vec();
        marked_older[0] = 1;
        assert_eq!(Command::decode(&marked_older.into()), Err(CommandDecodeError::Invalid));
    }
}
