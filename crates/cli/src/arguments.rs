//! The arguments of all commands. The commands themselves are in `command`.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};
use quorate_proto::quorate::v1::EntryId;

use crate::auth_arguments::{AuthSubcommand, RoleCommand, UserCommand};
use crate::client_tls::TlsArguments;
use crate::credentials::UserArguments;
use crate::examples::{
    ADD_EXAMPLES, DELETE_EXAMPLES, DEMO_EXAMPLES, FIRST_STEPS, GET_EXAMPLES, IMPORT_EXAMPLES,
    PLAN_EXAMPLES, PUT_EXAMPLES, RECOVER_EXAMPLES, REPLACE_EXAMPLES, RESTORE_EXAMPLES,
    SET_EXAMPLES, WATCH_EXAMPLES,
};
use crate::kv_arguments::{
    DeleteArguments, GetArguments, LeaseCommand, PutArguments, TxnArguments, WatchArguments,
};

/// A replicated key-value server with etcd's API and safe membership changes.
#[derive(Parser, Debug)]
#[command(name = "quorate", version, arg_required_else_help = true, after_help = FIRST_STEPS)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    pub(crate) command: CliCommand,
}

#[derive(Subcommand, Debug)]
pub(crate) enum CliCommand {
    /// Run a member. Takes etcd's flags; a program named `etcd` runs this command.
    #[command(disable_help_flag = true, after_help = quorate_server::config::help())]
    Server {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "ETCD FLAGS")]
        arguments: Vec<OsString>,
    },
    /// Write a key.
    #[command(after_help = PUT_EXAMPLES)]
    Put(PutArguments),
    /// Read a key or a range of keys.
    #[command(after_help = GET_EXAMPLES)]
    Get(GetArguments),
    /// Delete a key or a range of keys.
    #[command(after_help = DELETE_EXAMPLES)]
    Del(DeleteArguments),
    /// Print the changes of a key or a range of keys until interrupted.
    #[command(after_help = WATCH_EXAMPLES)]
    Watch(WatchArguments),
    /// Do several operations at once, if conditions hold.
    Txn(TxnArguments),
    /// Grant, keep alive, revoke and show leases.
    #[command(subcommand)]
    Lease(LeaseCommand),
    /// List, add, promote, replace and remove members.
    #[command(subcommand)]
    Member(MemberCommand),
    /// Show each member's role and lag, and how many more failures the cluster tolerates.
    Status(StatusArguments),
    /// Enable, disable and show authentication.
    #[command(subcommand)]
    Auth(AuthSubcommand),
    /// Add, change and delete users.
    #[command(subcommand)]
    User(UserCommand),
    /// Add, change and delete roles.
    #[command(subcommand)]
    Role(RoleCommand),
    /// Lower the cluster version before members are started with older programs.
    #[command(subcommand)]
    Downgrade(DowngradeCommand),
    /// Run three members on this machine and replace the leader under load.
    #[command(after_help = DEMO_EXAMPLES)]
    Demo(DemoArguments),
    /// Measure throughput and latency of any etcd-compatible server.
    Bench(BenchArguments),
    /// Save, verify and restore snapshots.
    #[command(subcommand)]
    Snapshot(SnapshotCommand),
    /// Create the data directory of an initial member of a new cluster from a stopped etcd.
    ///
    /// Reads the database and the log of the etcd member, and changes nothing there. Run it for
    /// each initial member with a copy of the same directory and the same --initial-cluster, then
    /// start the members.
    #[command(after_help = IMPORT_EXAMPLES)]
    Import(ImportArguments),
    /// Create a new cluster from one stopped member, after a permanent loss of quorum.
    ///
    /// Without --confirm it changes nothing: it shows which data would be kept and which lost,
    /// and prints the value for --confirm, which is valid only for that state.
    #[command(after_help = RECOVER_EXAMPLES)]
    Recover(RecoverArguments),
    /// Print the completion script of a shell.
    Completions { shell: clap_complete::Shell },
    /// Write manual pages, one per command.
    Man {
        /// The directory for the pages; created if it does not exist.
        directory: PathBuf,
    },
    /// A member that exits when its standard input is closed, that is with its parent.
    #[command(hide = true, disable_help_flag = true)]
    DemoMember {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<OsString>,
    },
    /// The same for another program, the first of the arguments.
    #[command(hide = true, disable_help_flag = true)]
    DemoProgram {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<OsString>,
    },
}

/// How to connect to a cluster, and the output format.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Connection and output")]
pub(crate) struct ClientArguments {
    /// Client addresses of members; the first one that answers is used. Default:
    /// $QUORATE_ENDPOINTS, then $ETCDCTL_ENDPOINTS, then 127.0.0.1:2379.
    #[arg(long, value_name = "HOST:PORT,...", value_delimiter = ',')]
    pub(crate) endpoints: Vec<String>,
    #[command(flatten)]
    pub(crate) tls: TlsArguments,
    #[command(flatten)]
    pub(crate) user: UserArguments,
    /// Send requests to learners as well. They refuse most requests and may lag.
    #[arg(long)]
    pub(crate) ask_learners: bool,
    /// Timeout for opening a connection.
    #[arg(long, value_name = "DURATION", default_value = "2s", value_parser = duration)]
    pub(crate) dial_timeout: Duration,
    /// Timeout for a request.
    #[arg(long, value_name = "DURATION", default_value = "5s", value_parser = duration)]
    pub(crate) command_timeout: Duration,
    /// Output format.
    #[arg(
        short = 'w',
        long = "write-out",
        value_name = "FORMAT",
        value_enum,
        default_value = "table"
    )]
    pub(crate) write_out: WriteOut,
}

/// The output format of a command that connects to no cluster.
#[derive(Args, Clone, Copy, Debug)]
pub(crate) struct OutputArguments {
    /// Output format.
    #[arg(
        short = 'w',
        long = "write-out",
        value_name = "FORMAT",
        value_enum,
        default_value = "table"
    )]
    pub(crate) write_out: WriteOut,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum WriteOut {
    #[value(alias = "simple")]
    Table,
    Json,
}

/// Whether and how long to wait for a membership change.
#[derive(Args, Clone, Debug)]
pub(crate) struct WaitArguments {
    /// Return as soon as the change has started; the leader completes it.
    #[arg(long)]
    pub(crate) no_wait: bool,
    /// Stop waiting after this time. The change continues.
    #[arg(long, value_name = "DURATION", default_value = "10m", value_parser = duration)]
    pub(crate) timeout: Duration,
    /// Refuse the command unless this is the present membership, as printed by `member plan`
    /// and `status -w json`.
    ///
    /// Without it, the command itself reads the members first, and is refused if somebody else
    /// changes them before the request arrives.
    #[arg(long, value_name = "TERM.INDEX", value_parser = membership_id)]
    pub(crate) expect: Option<EntryId>,
}

#[derive(Subcommand, Debug)]
pub(crate) enum MemberCommand {
    /// List the members.
    List {
        #[command(flatten)]
        client: ClientArguments,
    },
    /// Add a member. It starts as a learner and becomes a voter once it has caught up.
    ///
    /// Prints the environment variables to start it with.
    #[command(after_help = ADD_EXAMPLES)]
    Add {
        /// NAME=PEER_URL, or NAME together with --peer-urls.
        member: String,
        /// The peer URLs of the new member.
        #[arg(long, value_name = "URL,...", value_delimiter = ',')]
        peer_urls: Vec<String>,
        /// Add it as a learner that is not promoted automatically.
        #[arg(long)]
        learner: bool,
        #[command(flatten)]
        client: ClientArguments,
    },
    /// Promote a learner to a voter.
    Promote {
        /// Name or id (hex) of the member.
        member: String,
        #[command(flatten)]
        client: ClientArguments,
    },
    /// Remove a member. A leader transfers its leadership first.
    Remove {
        /// Name or id (hex) of the member.
        member: String,
        #[command(flatten)]
        client: ClientArguments,
    },
    /// Replace a member with a new one, in one change.
    ///
    /// Prints the environment variables to start the new member with, then waits until the old
    /// member is removed and any majority of the new members can continue without it. The
    /// leader completes the change even if this command is interrupted.
    #[command(after_help = REPLACE_EXAMPLES)]
    Replace {
        /// Name or id (hex) of the member to remove.
        old: String,
        /// NAME=PEER_URL of the member to add.
        new: String,
        #[command(flatten)]
        wait: WaitArguments,
        #[command(flatten)]
        client: ClientArguments,
    },
    /// Set the members that the cluster should have; the leader makes the changes.
    #[command(after_help = SET_EXAMPLES)]
    Set {
        #[command(flatten)]
        target: TargetArguments,
        #[command(flatten)]
        wait: WaitArguments,
        #[command(flatten)]
        client: ClientArguments,
    },
    /// Show the steps to the given members, and which losses would stop the cluster during each.
    ///
    /// Changes nothing.
    #[command(after_help = PLAN_EXAMPLES)]
    Plan {
        #[command(flatten)]
        target: TargetArguments,
        #[command(flatten)]
        client: ClientArguments,
    },
    /// Cancel the change in progress and restore the members it started from.
    Cancel {
        #[command(flatten)]
        wait: WaitArguments,
        #[command(flatten)]
        client: ClientArguments,
    },
    /// Print membership events until interrupted.
    Watch {
        #[command(flatten)]
        client: ClientArguments,
    },
}

#[derive(Args, Clone, Debug)]
pub(crate) struct TargetArguments {
    /// The voters after the change: names, ids (hex), or NAME=PEER_URL for new members.
    #[arg(required = true, value_name = "VOTER")]
    pub(crate) voters: Vec<String>,
    /// The learners after the change, in the same form.
    #[arg(long, value_name = "LEARNER,...", value_delimiter = ',')]
    pub(crate) learners: Vec<String>,
}

#[derive(Args, Debug)]
pub(crate) struct StatusArguments {
    /// Show all columns; the table is then wider than 80 characters.
    #[arg(long)]
    pub(crate) wide: bool,
    #[command(flatten)]
    pub(crate) client: ClientArguments,
}

#[derive(Args, Clone, Debug)]
pub(crate) struct DemoArguments {
    /// Exit after the replacement instead of keeping the cluster running.
    #[arg(long)]
    pub(crate) once: bool,
    /// Directory for the members' data and logs; must be empty or not exist, and is kept.
    /// Default: a temporary directory that is removed at the end.
    #[arg(long, visible_alias = "dir", value_name = "DIR")]
    pub(crate) data_dir: Option<PathBuf>,
    /// Duration of the load in seconds, in addition to the replacement itself.
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u64).range(2..=3600))]
    pub(crate) seconds: u64,
    /// Number of writing clients.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub(crate) clients: u32,
    /// Replace a follower instead of the leader.
    #[arg(long)]
    pub(crate) follower: bool,
    /// Run a second cluster of this program, such as `etcd`, through the same procedure at the
    /// same time, and compare them at the end.
    #[arg(long, value_name = "PROGRAM")]
    pub(crate) beside: Option<PathBuf>,
    /// Encrypt all connections with mutual TLS; the demo makes its own authority.
    #[arg(long)]
    pub(crate) tls: bool,
    /// Run this etcd-compatible server instead of Quorate's own.
    #[arg(long)]
    pub(crate) program: Option<PathBuf>,
}

#[derive(Args, Clone, Debug)]
pub(crate) struct BenchArguments {
    /// The operation that each client repeats.
    #[arg(value_enum)]
    pub(crate) operation: BenchOperation,
    /// Number of concurrent clients; each one waits for a reply before its next request.
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(crate) clients: u32,
    /// Number of connections that the clients share, spread over the endpoints.
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    pub(crate) connections: u32,
    /// Duration of the load in seconds.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub(crate) seconds: u64,
    /// Number of keys that are written and read.
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) keys: u64,
    /// Size of each value.
    #[arg(long, value_name = "BYTES", default_value_t = 256,
          value_parser = clap::value_parser!(u32).range(16..=1_000_000))]
    pub(crate) value_bytes: u32,
    /// get, mixed: read the local data of the member, which may be stale.
    #[arg(long)]
    pub(crate) serializable: bool,
    /// get, mixed: all keys exist already; do not write them before the measurement.
    #[arg(long)]
    pub(crate) filled: bool,
    /// watch: number of watching clients, in addition to the writing --clients.
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(crate) watchers: u32,
    /// Process ids of the servers on this machine, to measure their CPU time.
    #[arg(long, value_name = "PID,...", value_delimiter = ',')]
    pub(crate) pids: Vec<u32>,
    #[command(flatten)]
    pub(crate) client: ClientArguments,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum BenchOperation {
    /// Write a key.
    Put,
    /// Read a key; all keys are written before the measurement.
    Get,
    /// Create a key, or read and update it if it exists.
    Txn,
    /// One write to three reads, of keys that were written before.
    Mixed,
    /// Write keys that other clients watch; measures the time until the event arrives.
    Watch,
    /// Grant a lease of an hour. The leases stay.
    Lease,
}

#[derive(Subcommand, Debug)]
pub(crate) enum DowngradeCommand {
    /// Lower the cluster version, and keep it there until all members run older programs.
    Enable {
        /// The cluster version that the older programs support.
        version: u32,
        #[command(flatten)]
        client: ClientArguments,
    },
    /// Stop a downgrade: the cluster version rises again when all members support more.
    Cancel {
        #[command(flatten)]
        client: ClientArguments,
    },
}

#[derive(Subcommand, Debug)]
pub(crate) enum SnapshotCommand {
    /// Save a snapshot of one member to a file.
    Save {
        /// The file to write; an existing file is replaced once the new one is complete.
        file: PathBuf,
        /// Whose tools can read the file: `etcd` is for `etcdutl snapshot restore` of the release
        /// that the server says it is (`--etcd-release`) and later ones.
        #[arg(long, value_enum, default_value_t = SnapshotFormat::Quorate)]
        format: SnapshotFormat,
        #[command(flatten)]
        client: ClientArguments,
    },
    /// Verify a snapshot file and show its contents.
    Status {
        /// A file written by `quorate snapshot save` or `etcdctl snapshot save`.
        file: PathBuf,
        #[command(flatten)]
        output: OutputArguments,
    },
    /// Create the data directory of an initial member of a new cluster from a snapshot.
    ///
    /// Run it for each initial member, with the same file and the same --initial-cluster, then
    /// start the members.
    #[command(after_help = RESTORE_EXAMPLES)]
    Restore(RestoreArguments),
}

/// The format of a snapshot file.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SnapshotFormat {
    Quorate,
    Etcd,
    #[value(name = "etcd-3.5")]
    Etcd35,
    #[value(name = "etcd-3.6")]
    Etcd36,
    #[value(name = "etcd-3.7")]
    Etcd37,
}

/// The flags of `etcdutl snapshot restore`.
#[derive(Args, Debug)]
pub(crate) struct RestoreArguments {
    /// A file written by `quorate snapshot save` or `etcdctl snapshot save`.
    pub(crate) file: PathBuf,
    /// Data directory of the member; must be empty or not exist [default: NAME.etcd].
    #[arg(long, value_name = "DIR")]
    pub(crate) data_dir: Option<String>,
    /// Directory of its log, if not in the data directory; must not exist.
    #[arg(long, value_name = "DIR")]
    pub(crate) wal_dir: Option<String>,
    /// Accept a file whose checksum is missing or wrong, such as the file `member/snap/db` of a
    /// stopped etcd. In files of Quorate each part still has its own checksum.
    #[arg(long)]
    pub(crate) skip_hash_check: bool,
    #[command(flatten)]
    pub(crate) cluster: NewClusterArguments,
}

#[derive(Args, Debug)]
pub(crate) struct ImportArguments {
    /// Data directory of the stopped etcd member. It is not changed.
    #[arg(long, value_name = "DIR")]
    pub(crate) data_dir: PathBuf,
    /// Directory of its log, if etcd had --wal-dir.
    #[arg(long, value_name = "DIR")]
    pub(crate) wal_dir: Option<PathBuf>,
    /// Data directory of the new member; must be empty or not exist [default: NAME.etcd].
    #[arg(long, value_name = "DIR")]
    pub(crate) new_data_dir: Option<String>,
    /// Directory of its log, if not in the data directory; must not exist.
    #[arg(long, value_name = "DIR")]
    pub(crate) new_wal_dir: Option<String>,
    #[command(flatten)]
    pub(crate) cluster: NewClusterArguments,
}

/// What a new cluster is made of, apart from its data.
#[derive(Args, Debug)]
pub(crate) struct NewClusterArguments {
    /// Name of this member in --initial-cluster.
    #[arg(long, default_value = "default")]
    pub(crate) name: String,
    /// The initial members of the new cluster.
    #[arg(long, value_name = "NAME=URL,...", default_value = "default=http://localhost:2380")]
    pub(crate) initial_cluster: String,
    /// Distinguishes clusters that use the same addresses.
    #[arg(long, value_name = "TEXT", default_value = "etcd-cluster")]
    pub(crate) initial_cluster_token: String,
    /// The peer URLs of this member in --initial-cluster.
    #[arg(long, value_name = "URLS", default_value = "http://localhost:2380")]
    pub(crate) initial_advertise_peer_urls: String,
    /// Start this many revisions above the saved one, so that clients do not confuse revisions
    /// they saw after the snapshot with new ones. Requires --mark-compacted.
    #[arg(long, value_name = "REVISIONS", default_value_t = 0,
          value_parser = clap::value_parser!(u64).range(..=BUMP_MAX))]
    pub(crate) bump_revision: u64,
    /// Report older revisions as compacted to clients that still use them. Requires
    /// --bump-revision.
    #[arg(long)]
    pub(crate) mark_compacted: bool,
    #[command(flatten)]
    pub(crate) output: OutputArguments,
}

/// Far below the largest revision, and far above what a cluster can have written.
const BUMP_MAX: u64 = 1 << 60;

#[derive(Args, Debug)]
pub(crate) struct RecoverArguments {
    /// Data directory of the stopped member with the newest data.
    #[arg(long, value_name = "DIR")]
    pub(crate) data_dir: PathBuf,
    /// Directory of its log, if not in the data directory.
    #[arg(long, value_name = "DIR")]
    pub(crate) wal_dir: Option<PathBuf>,
    /// All members of the new cluster, including this one. The others join with empty data
    /// directories. Default: this member alone.
    #[arg(long, value_name = "NAME=PEER_URL,...")]
    pub(crate) members: Option<String>,
    /// The value that this command prints when it is run without --confirm.
    #[arg(long, value_name = "TEXT")]
    pub(crate) confirm: Option<String>,
    #[command(flatten)]
    pub(crate) output: OutputArguments,
}

/// Parses `500ms`, `2s`, `10m` or `1h`; a number without a unit is in seconds.
fn duration(text: &str) -> Result<Duration, String> {
    let digits = text.trim_end_matches(|character: char| character.is_ascii_alphabetic());
    let number: u64 = digits
        .parse()
        .map_err(|_| format!("'{text}' is not a duration; examples are 500ms, 2s, 10m and 1h"))?;
    let millis = match &text[digits.len()..] {
        "ms" => Some(number),
        "" | "s" => number.checked_mul(1_000),
        "m" => number.checked_mul(60_000),
        "h" => number.checked_mul(3_600_000),
        other => {
            return Err(format!("'{other}' is not a unit of time; the units are ms, s, m and h"));
        }
    };
    millis.map(Duration::from_millis).ok_or_else(|| format!("'{text}' is too long"))
}

fn membership_id(text: &str) -> Result<EntryId, String> {
    let invalid = || format!("'{text}' is not a membership; an example is 2.17");
    let (term, index) = text.split_once('.').ok_or_else(invalid)?;
    let number = |text: &str| text.parse::<u64>().map_err(|_| invalid());
    Ok(EntryId { term: number(term)?, index: number(index)? })
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_arguments_are_consistent() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn the_server_receives_all_flags_unchanged() {
        let given =
            ["quorate", "server", "--name", "a", "--help", "--initial-cluster=a=http://x:1"];
        let CliCommand::Server { arguments } = Arguments::try_parse_from(given).unwrap().command
        else {
            panic!("not a server");
        };
        assert_eq!(arguments, given[2..].iter().map(OsString::from).collect::<Vec<_>>());
    }

    #[test]
    fn durations_are_parsed() {
        assert_eq!(duration("250ms"), Ok(Duration::from_millis(250)));
        assert_eq!(duration("3"), Ok(Duration::from_secs(3)));
        assert_eq!(duration("2m"), Ok(Duration::from_secs(120)));
        assert_eq!(duration("1h"), Ok(Duration::from_secs(3600)));
        assert!(duration("2d").unwrap_err().contains("'d'"));
        assert!(duration("").is_err());
        assert!(duration("99999999999999999999s").is_err());
        assert!(duration("9999999999999999999h").is_err());
    }

    #[test]
    fn a_target_has_voters_and_learners() {
        let given = ["quorate", "member", "set", "a", "d=http://h:1", "--learners", "b,c"];
        let CliCommand::Member(MemberCommand::Set { target, .. }) =
            Arguments::try_parse_from(given).unwrap().command
        else {
            panic!("not a set");
        };
        assert_eq!(target.voters, ["a", "d=http://h:1"]);
        assert_eq!(target.learners, ["b", "c"]);
    }

    #[test]
    fn load_sizes_are_bounded() {
        for given in [["--clients", "0"], ["--clients", "10001"], ["--seconds", "0"]] {
            let arguments = ["quorate", "bench", "put", given[0], given[1]];
            assert!(Arguments::try_parse_from(arguments).is_err(), "{given:?}");
        }
    }
}
