//! The arguments of `quorate auth`, `user` and `role`, as etcdctl's.

use clap::{Args, Subcommand, ValueEnum};

use crate::arguments::ClientArguments;
use crate::credentials::SecretText;

#[derive(Subcommand, Debug)]
pub(crate) enum AuthSubcommand {
    /// Check all requests from now on. The user `root` must exist.
    Enable(ClientArguments),
    /// Check no requests from now on.
    Disable(ClientArguments),
    /// Show whether requests are checked.
    Status(ClientArguments),
}

#[derive(Subcommand, Debug)]
pub(crate) enum UserCommand {
    /// Add a user. Asks for the password if none is given.
    Add {
        /// The name, and the password after a colon.
        #[arg(value_name = "NAME[:PASSWORD]")]
        new_user: SecretText,
        /// The user authenticates with the common name of a certificate only.
        #[arg(long)]
        no_password: bool,
        /// The password; then the first argument is the name alone.
        #[arg(long, value_name = "PASSWORD")]
        new_user_password: Option<SecretText>,
        #[command(flatten)]
        client: ClientArguments,
    },
    /// Delete a user. Its tokens become invalid.
    Delete(NamedUser),
    /// Show the roles of a user.
    Get(NamedUser),
    /// List all users.
    List(ClientArguments),
    /// Change the password of a user. Asks for it.
    Passwd {
        /// The user.
        name: String,
        /// The new password, instead of asking for it.
        #[arg(long, value_name = "PASSWORD")]
        new_password: Option<SecretText>,
        #[command(flatten)]
        client: ClientArguments,
    },
    /// Grant a role to a user.
    GrantRole(UserAndRole),
    /// Revoke a role from a user.
    RevokeRole(UserAndRole),
}

#[derive(Args, Debug)]
pub(crate) struct NamedUser {
    /// The user.
    pub(crate) name: String,
    #[command(flatten)]
    pub(crate) client: ClientArguments,
}

#[derive(Args, Debug)]
pub(crate) struct UserAndRole {
    /// The user.
    #[arg(value_name = "USER")]
    pub(crate) user_name: String,
    /// The role.
    pub(crate) role: String,
    #[command(flatten)]
    pub(crate) client: ClientArguments,
}

#[derive(Subcommand, Debug)]
pub(crate) enum RoleCommand {
    /// Add a role without permissions.
    Add(NamedRole),
    /// Delete a role, and revoke it from all users.
    Delete(NamedRole),
    /// Show the permissions of a role.
    Get(NamedRole),
    /// List all roles.
    List(ClientArguments),
    /// Grant a permission on keys to a role.
    GrantPermission {
        /// The role.
        role: String,
        /// What is permitted.
        #[arg(value_enum)]
        mode: PermissionArgument,
        #[command(flatten)]
        keys: KeyArguments,
        #[command(flatten)]
        client: ClientArguments,
    },
    /// Revoke the permission on exactly these keys from a role.
    RevokePermission {
        /// The role.
        role: String,
        #[command(flatten)]
        keys: KeyArguments,
        #[command(flatten)]
        client: ClientArguments,
    },
}

#[derive(Args, Debug)]
pub(crate) struct NamedRole {
    /// The role.
    pub(crate) name: String,
    #[command(flatten)]
    pub(crate) client: ClientArguments,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum PermissionArgument {
    Read,
    Write,
    Readwrite,
}

/// One key, or a range.
#[derive(Args, Debug)]
pub(crate) struct KeyArguments {
    /// The key, or the first key of the range.
    #[arg(id = "first_key", value_name = "KEY")]
    pub(crate) key: String,
    /// The end of the range, which is not part of it.
    #[arg(conflicts_with_all = ["prefix", "from_key"])]
    pub(crate) range_end: Option<String>,
    /// All keys that begin with KEY.
    #[arg(long, conflicts_with = "from_key")]
    pub(crate) prefix: bool,
    /// KEY and all keys after it.
    #[arg(long)]
    pub(crate) from_key: bool,
}

impl KeyArguments {
    /// The key and the end, in the notation of requests.
    pub(crate) fn range(&self) -> (Vec<u8>, Vec<u8>) {
        let key = self.key.clone().into_bytes();
        if self.from_key || (self.prefix && key.is_empty()) {
            let first = if key.is_empty() { vec![0] } else { key };
            return (first, vec![0]);
        }
        if self.prefix {
            let end = prefix_end(&key);
            return (key, end);
        }
        (key, self.range_end.clone().unwrap_or_default().into_bytes())
    }
}

/// The first key after all keys with this prefix.
fn prefix_end(prefix: &[u8]) -> Vec<u8> {
    let mut end = prefix.to_vec();
    while let Some(last) = end.last_mut() {
        if *last < 0xff {
            *last += 1;
            return end;
        }
        end.pop();
    }
    vec![0]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_those_of_etcdctl() {
        let range = |key: &str, end: Option<&str>, prefix, from_key| {
            let (key, range_end) = (key.to_owned(), end.map(str::to_owned));
            KeyArguments { key, range_end, prefix, from_key }.range()
        };
        let bytes = |key: &[u8], end: &[u8]| (key.to_vec(), end.to_vec());
        assert_eq!(range("a", None, false, false), bytes(b"a", b""));
        assert_eq!(range("a", Some("b"), false, false), bytes(b"a", b"b"));
        assert_eq!(range("ab", None, true, false), bytes(b"ab", b"ac"));
        assert_eq!(range("", None, true, false), bytes(b"\0", b"\0"));
        assert_eq!(range("a", None, false, true), bytes(b"a", b"\0"));
        assert_eq!(range("", None, false, true), bytes(b"\0", b"\0"));
        assert_eq!(prefix_end(&[b'a', 0xff]), b"b");
        assert_eq!(prefix_end(&[0xff]), [0]);
    }
}
