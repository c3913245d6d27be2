//! What can be said on the command line. What it means is with the commands.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::examples::{
    ADD_EXAMPLES, FIRST_STEPS, PLAN_EXAMPLES, RECOVER_EXAMPLES, REPLACE_EXAMPLES, RESTORE_EXAMPLES,
    SERVER_HELP, SET_EXAMPLES,
};

/// A replicated key-value server that speaks etcd's API and changes its members safely.
#[derive(Parser, Debug)]
#[command(name = "quorate", version, arg_required_else_help = true, after_help = FIRST_STEPS)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Subcommand, Debug)]
pub(crate) enum Command {
    /// Run a member; takes etcd's flags. Started under the name etcd, without this word.
    #[command(disable_help_flag = true, after_help = SERVER_HELP)]
    Server {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "ETCD FLAGS")]
        arguments: Vec<OsString>,
    },
    /// Show, add, replace and remove members.
    #[command(subcommand)]
    Member(MemberCommand),
    /// Show each member's role and lag, and how many more failures the cluster bears.
    Status(StatusArguments),
    /// Three members on this machine, one of them replaced while writes go on.
    Demo(DemoArguments),
    /// Put load on any etcd-compatible server and measure.
    Bench(BenchArguments),
    /// Save, check and restore snapshots.
    #[command(subcommand)]
    Snapshot(SnapshotCommand),
    /// For a cluster that lost its quorum for good: make a new one of a stopped member.
    ///
    /// Asked without --confirm it changes nothing: it tells what would be kept and what lost,
    /// and prints the confirmation for exactly that.
    #[command(after_help = RECOVER_EXAMPLES)]
    Recover(RecoverArguments),
    /// Print completions for a shell.
    Completions { shell: clap_complete::Shell },
    /// Write manual pages, one for each command.
    Man {
        /// Where to; made if it does not exist.
        directory: PathBuf,
    },
    /// A member that ends with who started it: when its standard input ends.
    #[command(hide = true, disable_help_flag = true)]
    DemoMember {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<OsString>,
    },
}

/// How to reach a cluster and how to show what it says.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Reaching the cluster")]
pub(crate) struct ClientArguments {
    /// Where clients find members; the first that answers is asked. Without it
    /// QUORATE_ENDPOINTS, then ETCDCTL_ENDPOINTS, then 127.0.0.1:2379.
    #[arg(long, value_name = "HOST:PORT,...", value_delimiter = ',')]
    pub(crate) endpoints: Vec<String>,
    /// Ask learners as well. They answer little, and may be behind.
    #[arg(long)]
    pub(crate) ask_learners: bool,
    /// How long a connection may take to open.
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = duration)]
    pub(crate) dial_timeout: Duration,
    /// How long a request may take.
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = duration)]
    pub(crate) command_timeout: Duration,
    /// Tables are for people, JSON is for programs.
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
    Table,
    Json,
}

/// How long to stay with a change.
#[derive(Args, Clone, Debug)]
pub(crate) struct WaitArguments {
    /// Return as soon as the change is under way; whoever leads finishes it.
    #[arg(long)]
    pub(crate) no_wait: bool,
    /// Stop watching after this long. The change goes on.
    #[arg(long, value_name = "TIME", default_value = "10m", value_parser = duration)]
    pub(crate) patience: Duration,
}

#[derive(Subcommand, Debug)]
pub(crate) enum MemberCommand {
    /// Show the members.
    List {
        #[command(flatten)]
        client: ClientArguments,
    },
    /// Add a member. It receives the log as a learner first and votes once it has caught up.
    ///
    /// Prints what to start it with.
    #[command(after_help = ADD_EXAMPLES)]
    Add {
        /// NAME=PEER_URL, or a name with --peer-urls.
        member: String,
        /// Where its peers find it.
        #[arg(long, value_name = "URL,...", value_delimiter = ',')]
        peer_urls: Vec<String>,
        /// Keep it a learner.
        #[arg(long)]
        learner: bool,
        #[command(flatten)]
        client: ClientArguments,
    },
    /// Let a learner vote.
    Promote {
        /// Id (hex) or name.
        member: String,
        #[command(flatten)]
        client: ClientArguments,
    },
    /// Remove a member; one that leads hands over first.
    Remove {
        /// Id (hex) or name.
        member: String,
        #[command(flatten)]
        client: ClientArguments,
    },
    /// Replace a member by a new one, in one change.
    ///
    /// Prints what to start the new one with, then stays until the old one is out and any
    /// majority of the new members can go on by itself. Whoever leads finishes it, also when
    /// this command is interrupted.
    #[command(after_help = REPLACE_EXAMPLES)]
    Replace {
        /// Id (hex) or name of the one to go.
        old: String,
        /// NAME=PEER_URL of the one to come.
        new: String,
        #[command(flatten)]
        wait: WaitArguments,
        #[command(flatten)]
        client: ClientArguments,
    },
    /// Say which members there shall be; whoever leads takes the cluster there.
    #[command(after_help = SET_EXAMPLES)]
    Set {
        #[command(flatten)]
        target: TargetArguments,
        #[command(flatten)]
        wait: WaitArguments,
        #[command(flatten)]
        client: ClientArguments,
    },
    /// Show the steps to such members and what could stop the cluster on the way. Changes
    /// nothing.
    #[command(after_help = PLAN_EXAMPLES)]
    Plan {
        #[command(flatten)]
        target: TargetArguments,
        #[command(flatten)]
        client: ClientArguments,
    },
    /// Go back to where the change under way began.
    Cancel {
        #[command(flatten)]
        wait: WaitArguments,
        #[command(flatten)]
        client: ClientArguments,
    },
    /// Print what happens to the membership, until interrupted.
    Watch {
        #[command(flatten)]
        client: ClientArguments,
    },
}

#[derive(Args, Clone, Debug)]
pub(crate) struct TargetArguments {
    /// The voters to end with: ids (hex), names, or NAME=PEER_URL for new ones.
    #[arg(required = true, value_name = "VOTER")]
    pub(crate) voters: Vec<String>,
    /// The learners to end with, named in the same way.
    #[arg(long, value_name = "LEARNER,...", value_delimiter = ',')]
    pub(crate) learners: Vec<String>,
}

#[derive(Args, Debug)]
pub(crate) struct StatusArguments {
    #[command(flatten)]
    pub(crate) client: ClientArguments,
}

#[derive(Args, Clone, Debug)]
pub(crate) struct DemoArguments {
    /// End after the replacement instead of staying up.
    #[arg(long)]
    pub(crate) once: bool,
    /// Where the members keep their data and logs; must be empty or not exist, and stays.
    /// Without it, a temporary directory that is removed at the end.
    #[arg(long, visible_alias = "dir", value_name = "DIR")]
    pub(crate) data_dir: Option<PathBuf>,
    /// How long the load runs besides the replacement itself.
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u64).range(2..=3600))]
    pub(crate) seconds: u64,
    /// Clients that write.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub(crate) clients: u32,
    /// Replace the member that leads instead of one that follows.
    #[arg(long)]
    pub(crate) leader: bool,
    /// Show it with this etcd-compatible server instead of this program's own.
    #[arg(long)]
    pub(crate) program: Option<PathBuf>,
}

#[derive(Args, Clone, Debug)]
pub(crate) struct BenchArguments {
    /// What each client does again and again.
    #[arg(value_enum)]
    pub(crate) operation: Operation,
    /// Clients at work at the same time; each waits for its answer before it asks again.
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(crate) clients: u32,
    /// Connections that they share, spread over the endpoints.
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    pub(crate) connections: u32,
    /// How long the load runs.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub(crate) seconds: u64,
    /// Keys that are written and read.
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) keys: u64,
    /// How large each value is.
    #[arg(long, value_name = "BYTES", default_value_t = 256,
          value_parser = clap::value_parser!(u32).range(16..=1_000_000))]
    pub(crate) value_bytes: u32,
    /// get: take what the asked member has, without asking the others.
    #[arg(long)]
    pub(crate) serializable: bool,
    /// watch: clients that watch; --clients write.
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(crate) watchers: u32,
    /// Processes of the servers on this machine: their CPU time is measured.
    #[arg(long, value_name = "PID,...", value_delimiter = ',')]
    pub(crate) pids: Vec<u32>,
    #[command(flatten)]
    pub(crate) client: ClientArguments,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Operation {
    /// Write a key.
    Put,
    /// Read a key; all are written before.
    Get,
    /// Create a key, or read and write it if it is there.
    Txn,
    /// Write keys that others watch; what is measured is when the watchers see it.
    Watch,
}

#[derive(Subcommand, Debug)]
pub(crate) enum SnapshotCommand {
    /// Save what one member has into a file.
    Save {
        /// What to write; one that exists is replaced once the new one is whole.
        file: PathBuf,
        #[command(flatten)]
        client: ClientArguments,
    },
    /// Check a file and say what it holds.
    Status {
        /// What `quorate snapshot save` or `etcdctl snapshot save` wrote.
        file: PathBuf,
        /// Tables are for people, JSON is for programs.
        #[arg(
            short = 'w',
            long = "write-out",
            value_name = "FORMAT",
            value_enum,
            default_value = "table"
        )]
        write_out: WriteOut,
    },
    /// Make the data directory of a first member of a new cluster from a file.
    ///
    /// Do so for each of them, with the same file and the same initial cluster, then start
    /// them.
    #[command(after_help = RESTORE_EXAMPLES)]
    Restore(RestoreArguments),
}

/// etcdutl's flags for it.
#[derive(Args, Debug)]
pub(crate) struct RestoreArguments {
    /// What `quorate snapshot save` wrote.
    pub(crate) file: PathBuf,
    /// Where the member will keep its data; must be empty or not exist [NAME.etcd].
    #[arg(long, value_name = "DIR")]
    pub(crate) data_dir: Option<String>,
    /// Where it will keep its log, if elsewhere; must not exist.
    #[arg(long, value_name = "DIR")]
    pub(crate) wal_dir: Option<String>,
    /// Which of the first members this is.
    #[arg(long, default_value = "default")]
    pub(crate) name: String,
    /// The first members of the new cluster.
    #[arg(long, value_name = "NAME=URL,...", default_value = "default=http://localhost:2380")]
    pub(crate) initial_cluster: String,
    /// So that clusters on the same addresses stay apart.
    #[arg(long, value_name = "TEXT", default_value = "etcd-cluster")]
    pub(crate) initial_cluster_token: String,
    /// This member's addresses in --initial-cluster.
    #[arg(long, value_name = "URLS", default_value = "http://localhost:2380")]
    pub(crate) initial_advertise_peer_urls: String,
    /// Take a file whose checksum is missing or wrong; each of its parts has one of its own.
    #[arg(long)]
    pub(crate) skip_hash_check: bool,
    /// Begin so many revisions above the saved one, so that what clients saw after it was
    /// saved is not taken for what the new cluster writes. Needs --mark-compacted.
    #[arg(long, value_name = "REVISIONS", default_value_t = 0,
          value_parser = clap::value_parser!(u64).range(..=BUMP_MAX))]
    pub(crate) bump_revision: u64,
    /// Tell clients that hold on to older revisions that these are compacted. Goes with
    /// --bump-revision only.
    #[arg(long)]
    pub(crate) mark_compacted: bool,
}

/// Far below the end of revisions, and far above what a cluster could have written.
const BUMP_MAX: u64 = 1 << 60;

#[derive(Args, Debug)]
pub(crate) struct RecoverArguments {
    /// The data directory of the stopped member that has the most.
    #[arg(long, value_name = "DIR")]
    pub(crate) data_dir: PathBuf,
    /// Where that member keeps its log, if elsewhere.
    #[arg(long, value_name = "DIR")]
    pub(crate) wal_dir: Option<PathBuf>,
    /// All members that the new cluster shall have, this one among them. The others join
    /// with empty directories; without this there is this one alone.
    #[arg(long, value_name = "NAME=PEER_URL,...")]
    pub(crate) members: Option<String>,
    /// What this command printed when it was asked without it.
    #[arg(long, value_name = "TEXT")]
    pub(crate) confirm: Option<String>,
}

/// `500ms`, `2s`, `10m`, `1h`, or seconds without a unit.
fn duration(text: &str) -> Result<Duration, String> {
    let digits = text.trim_end_matches(|letter: char| letter.is_ascii_alphabetic());
    let number: u64 = digits
        .parse()
        .map_err(|_| format!("'{text}' is not a time; write it like 500ms, 2s, 10m or 1h"))?;
    let millis = match &text[digits.len()..] {
        "ms" => Some(number),
        "" | "s" => number.checked_mul(1_000),
        "m" => number.checked_mul(60_000),
        "h" => number.checked_mul(3_600_000),
        other => return Err(format!("'{other}' is not a unit of time; there are ms, s, m and h")),
    };
    millis.map(Duration::from_millis).ok_or_else(|| format!("'{text}' is too long"))
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_arguments_fit_together() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn a_server_gets_every_flag_as_it_is() {
        let given =
            ["quorate", "server", "--name", "a", "--help", "--initial-cluster=a=http://x:1"];
        let Command::Server { arguments } = Arguments::try_parse_from(given).unwrap().command
        else {
            panic!("not a server");
        };
        assert_eq!(arguments, given[2..].iter().map(OsString::from).collect::<Vec<_>>());
    }

    #[test]
    fn times_are_read() {
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
        let Command::Member(MemberCommand::Set { target, .. }) =
            Arguments::try_parse_from(given).unwrap().command
        else {
            panic!("not a set");
        };
        assert_eq!(target.voters, ["a", "d=http://h:1"]);
        assert_eq!(target.learners, ["b", "c"]);
    }

    #[test]
    fn loads_are_bounded() {
        for given in [["--clients", "0"], ["--clients", "10001"], ["--seconds", "0"]] {
            let arguments = ["quorate", "bench", "put", given[0], given[1]];
            assert!(Arguments::try_parse_from(arguments).is_err(), "{given:?}");
        }
    }
}
