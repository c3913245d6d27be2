//! The arguments of `quorate put`, `get`, `del`, `watch`, `txn` and `lease`, as etcdctl's.

use std::ffi::OsString;

use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::arguments::ClientArguments;
use crate::auth_arguments::KeyArguments;
use crate::examples::{LEASE_EXAMPLES, TXN_EXAMPLES};

#[derive(Args, Debug)]
pub(crate) struct PutArguments {
    #[command(flatten)]
    pub(crate) put: PutOptions,
    #[command(flatten)]
    pub(crate) output: BytesArguments,
    #[command(flatten)]
    pub(crate) client: ClientArguments,
}

#[derive(Args, Debug)]
pub(crate) struct PutOptions {
    /// The key.
    #[arg(id = "put_key", value_name = "KEY")]
    pub(crate) key: String,
    /// The value. Without it, the value is read from standard input.
    #[arg(id = "put_value", value_name = "VALUE")]
    pub(crate) value: Option<String>,
    /// The lease (hex) with which the key is deleted.
    #[arg(long, value_name = "LEASE", default_value = "0", value_parser = lease_id)]
    pub(crate) lease: i64,
    /// Print what the key was before.
    #[arg(long)]
    pub(crate) prev_kv: bool,
    /// Keep the value of the key, and change its lease only.
    #[arg(long, conflicts_with = "put_value")]
    pub(crate) ignore_value: bool,
    /// Keep the lease of the key.
    #[arg(long, conflicts_with = "lease")]
    pub(crate) ignore_lease: bool,
}

#[derive(Args, Debug)]
pub(crate) struct GetArguments {
    #[command(flatten)]
    pub(crate) get: GetOptions,
    /// Print values only.
    #[arg(long)]
    pub(crate) print_value_only: bool,
    #[command(flatten)]
    pub(crate) output: BytesArguments,
    #[command(flatten)]
    pub(crate) client: ClientArguments,
}

#[derive(Args, Debug)]
pub(crate) struct GetOptions {
    #[command(flatten)]
    pub(crate) keys: KeyArguments,
    /// `l`: linearizable. `s`: serializable, that is the data of one member, which may be stale.
    #[arg(long, value_name = "l|s", default_value = "l", value_parser = ["l", "s"])]
    pub(crate) consistency: String,
    /// The order of the keys.
    #[arg(long, value_enum, ignore_case = true, value_name = "ASCEND|DESCEND")]
    pub(crate) order: Option<OrderArgument>,
    /// What the keys are sorted by.
    #[arg(long, value_enum, ignore_case = true, value_name = "CREATE|KEY|MODIFY|VALUE|VERSION")]
    pub(crate) sort_by: Option<SortBy>,
    /// The largest number of keys; 0 is all.
    #[arg(long, value_name = "COUNT", default_value_t = 0)]
    pub(crate) limit: i64,
    /// The revision to read; 0 is the newest.
    #[arg(long, value_name = "REVISION", default_value_t = 0)]
    pub(crate) rev: i64,
    /// Read keys without values.
    #[arg(long)]
    pub(crate) keys_only: bool,
    /// Print the number of keys only.
    #[arg(long, conflicts_with = "keys_only")]
    pub(crate) count_only: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum OrderArgument {
    Ascend,
    Descend,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum SortBy {
    Create,
    Key,
    Modify,
    Value,
    Version,
}

#[derive(Args, Debug)]
pub(crate) struct DeleteArguments {
    #[command(flatten)]
    pub(crate) delete: DeleteOptions,
    #[command(flatten)]
    pub(crate) output: BytesArguments,
    #[command(flatten)]
    pub(crate) client: ClientArguments,
}

#[derive(Args, Debug)]
pub(crate) struct DeleteOptions {
    #[command(flatten)]
    pub(crate) keys: KeyArguments,
    /// Print what was deleted.
    #[arg(long)]
    pub(crate) prev_kv: bool,
}

#[derive(Args, Debug)]
pub(crate) struct WatchArguments {
    #[command(flatten)]
    pub(crate) keys: KeyArguments,
    /// The first revision to print; 0 is the next one.
    #[arg(long, value_name = "REVISION", default_value_t = 0)]
    pub(crate) rev: i64,
    /// Print what each key was before.
    #[arg(long)]
    pub(crate) prev_kv: bool,
    /// Print a line when the server reports its revision without an event.
    #[arg(long)]
    pub(crate) progress_notify: bool,
    /// A command to run for each event, with the event in the variables
    /// ETCD_WATCH_EVENT_TYPE, ETCD_WATCH_KEY, ETCD_WATCH_VALUE and ETCD_WATCH_REVISION.
    #[arg(last = true, value_name = "COMMAND")]
    pub(crate) command: Vec<OsString>,
    #[command(flatten)]
    pub(crate) output: BytesArguments,
    #[command(flatten)]
    pub(crate) client: ClientArguments,
}

#[derive(Args, Debug)]
#[command(after_help = TXN_EXAMPLES)]
pub(crate) struct TxnArguments {
    /// Ask for each part. This is the default on a terminal.
    #[arg(short, long)]
    pub(crate) interactive: bool,
    #[command(flatten)]
    pub(crate) output: BytesArguments,
    #[command(flatten)]
    pub(crate) client: ClientArguments,
}

/// One line of a transaction: an operation without the arguments of a connection.
#[derive(Parser, Debug)]
#[command(no_binary_name = true, disable_help_flag = true, disable_help_subcommand = true)]
pub(crate) enum TxnLine {
    Put(PutOptions),
    Get(GetOptions),
    Del(DeleteOptions),
}

/// How keys and values are printed.
#[derive(Args, Clone, Copy, Debug)]
#[command(next_help_heading = "Connection and output")]
pub(crate) struct BytesArguments {
    /// Print keys and values as hexadecimal bytes.
    #[arg(long)]
    pub(crate) hex: bool,
}

#[derive(Subcommand, Debug)]
#[command(after_help = LEASE_EXAMPLES)]
pub(crate) enum LeaseCommand {
    /// Create a lease. Keys that are put with it are deleted when it expires.
    Grant {
        /// Seconds until the lease expires without a keep-alive.
        #[arg(value_name = "SECONDS", value_parser = clap::value_parser!(i64).range(1..))]
        ttl: i64,
        #[command(flatten)]
        client: ClientArguments,
    },
    /// End a lease and delete its keys.
    Revoke(NamedLease),
    /// Show the remaining time of a lease.
    #[command(name = "timetolive")]
    TimeToLive {
        #[command(flatten)]
        lease: NamedLease,
        /// Show its keys.
        #[arg(long)]
        keys: bool,
    },
    /// List all leases.
    List(ClientArguments),
    /// Keep a lease alive until this command is stopped.
    #[command(name = "keep-alive")]
    KeepAlive {
        #[command(flatten)]
        lease: NamedLease,
        /// Send one keep-alive and exit.
        #[arg(long)]
        once: bool,
    },
}

#[derive(Args, Debug)]
pub(crate) struct NamedLease {
    /// The lease (hex), as `lease grant` prints it.
    #[arg(value_name = "LEASE", value_parser = lease_id)]
    pub(crate) id: i64,
    #[command(flatten)]
    pub(crate) client: ClientArguments,
}

/// Ids of leases are 64 bits in hexadecimal digits.
fn lease_id(text: &str) -> Result<i64, String> {
    let invalid = |_| format!("'{text}' is not a lease; leases are hexadecimal numbers");
    i64::from_str_radix(text, 16).map_err(invalid)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leases_are_hexadecimal() {
        assert_eq!(lease_id("694d71ddacfda227"), Ok(0x694d_71dd_acfd_a227));
        assert!(lease_id("lease").unwrap_err().contains("'lease' is not a lease"));
    }

    #[test]
    fn operations_have_the_arguments_of_the_commands() {
        let line = ["get", "a", "--prefix", "--order", "descend", "--sort-by", "MODIFY"];
        let TxnLine::Get(get) = TxnLine::try_parse_from(line).unwrap() else {
            panic!("not a get");
        };
        assert!(get.keys.prefix);
        assert_eq!((get.order, get.sort_by), (Some(OrderArgument::Descend), Some(SortBy::Modify)));
        assert!(TxnLine::try_parse_from(["put", "a", "b", "--ignore-value"]).is_err());
        assert!(TxnLine::try_parse_from(["get", "a", "--endpoints", "h:1"]).is_err());
    }
}
