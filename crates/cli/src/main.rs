//! The binary `quorate`: a server with etcd's API, and the commands to operate it.
//!
//! Owns the arguments and the exit codes: 0 success, 1 refused or failed, 2 invalid usage.
//! Each command has a file in `command`; connections are in `client`, output is in `print` and
//! `membership_text`.

#![forbid(unsafe_code)]

mod arguments;
mod auth_arguments;
mod client;
mod client_tls;
mod command;
mod cpu_time;
mod credentials;
mod error;
mod examples;
mod gaps;
mod goal_request;
mod goal_wait;
mod histogram;
mod ids;
mod kv_arguments;
mod leader_finder;
mod member_lookup;
mod membership_text;
mod print;
mod progress_bar;
mod snapshot_checksum;
mod tolerance;

use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;

use clap::Parser;

use crate::arguments::{Arguments, CliCommand};
use crate::error::CliError;

/// A request makes about forty allocations, most of them in the gRPC stack, and frees them on
/// another thread. The C library's allocator is slow at that.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    disable_huge_pages();
    let arguments: Vec<OsString> = std::env::args_os().collect();
    let result = match etcd_arguments(&arguments) {
        Some(rest) => command::server::run(rest),
        None => parse(&arguments).and_then(|parsed| run(parsed.command)),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            match asks_for_json(&arguments) {
                true => eprintln!("{}", error.as_json()),
                false => eprintln!("quorate: {error}"),
            }
            ExitCode::from(error.exit_code())
        }
    }
}

/// The allocator asks for huge pages. One that is used for a few kilobytes takes 2 MiB, and clearing
/// it stops the thread that touches it first.
fn disable_huge_pages() {
    #[cfg(target_os = "linux")]
    // Without it the program needs more memory, and works.
    let _ = rustix::thread::disable_transparent_huge_pages(true);
}

/// Prints help, and errors for people, as clap does.
fn parse(arguments: &[OsString]) -> Result<Arguments, CliError> {
    Arguments::try_parse_from(arguments).map_err(|error| {
        if error.use_stderr() && asks_for_json(arguments) {
            return CliError::usage(error.to_string().trim_end().to_string());
        }
        error.exit()
    })
}

/// Whether errors are printed as JSON. Invalid arguments are reported in the format that they
/// ask for, so this does not depend on a successful parse.
fn asks_for_json(arguments: &[OsString]) -> bool {
    let arguments: Vec<_> = arguments.iter().map(|argument| argument.to_string_lossy()).collect();
    let is_server = arguments.get(1).is_some_and(|command| command == "server");
    let joined = arguments
        .iter()
        .any(|argument| matches!(&**argument, "-wjson" | "-w=json" | "--write-out=json"));
    let separate = arguments
        .windows(2)
        .any(|pair| matches!(&*pair[0], "-w" | "--write-out") && pair[1] == "json");
    !is_server && (joined || separate)
}

/// The arguments of a server, if this program was started under the name `etcd`.
fn etcd_arguments(arguments: &[OsString]) -> Option<&[OsString]> {
    let (program, rest) = arguments.split_first()?;
    (Path::new(program).file_stem()? == "etcd").then_some(rest)
}

fn run(command: CliCommand) -> Result<(), CliError> {
    match command {
        CliCommand::Server { arguments } => command::server::run(&arguments),
        CliCommand::DemoMember { arguments } => command::demo_member::run(&arguments),
        CliCommand::DemoProgram { arguments } => command::demo_member::run_program(&arguments),
        CliCommand::Completions { shell } => command::completions::run(shell),
        CliCommand::Import(arguments) => command::new_cluster::import(&arguments),
        CliCommand::Recover(arguments) => command::recover::run(&arguments),
        CliCommand::Man { directory } => command::man::run(&directory),
        CliCommand::Put(arguments) => in_runtime(command::kv::put(arguments)),
        CliCommand::Get(arguments) => in_runtime(command::kv::get(arguments)),
        CliCommand::Del(arguments) => in_runtime(command::kv::delete(arguments)),
        CliCommand::Watch(arguments) => in_runtime(command::kv::watch(arguments)),
        CliCommand::Txn(arguments) => in_runtime(command::kv::txn(arguments)),
        CliCommand::Lease(arguments) => in_runtime(command::lease::run(arguments)),
        CliCommand::Member(arguments) => in_runtime(command::member::run(arguments)),
        CliCommand::Status(arguments) => in_runtime(command::status::run(arguments)),
        CliCommand::Auth(arguments) => in_runtime(command::auth::run_auth(arguments)),
        CliCommand::User(arguments) => in_runtime(command::auth::run_user(arguments)),
        CliCommand::Role(arguments) => in_runtime(command::auth::run_role(arguments)),
        CliCommand::Downgrade(arguments) => in_runtime(command::downgrade::run(arguments)),
        CliCommand::Demo(arguments) => in_runtime(command::demo::run(arguments)),
        CliCommand::Bench(arguments) => in_runtime(command::bench::run(arguments)),
        CliCommand::Snapshot(arguments) => in_runtime(command::snapshot::run(arguments)),
    }
}

fn in_runtime(command: impl Future<Output = Result<(), CliError>>) -> Result<(), CliError> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let runtime = runtime.map_err(|error| CliError::with_cause("cannot start threads", &error))?;
    let result = runtime.block_on(command);
    // Tasks that still wait for a server must not delay the exit.
    runtime.shutdown_background();
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_program_named_etcd_takes_etcd_flags() {
        let given = |program: &str| vec![OsString::from(program), OsString::from("--name")];
        assert_eq!(etcd_arguments(&given("/usr/bin/etcd")).map(<[_]>::len), Some(1));
        assert_eq!(etcd_arguments(&given("etcd")).map(<[_]>::len), Some(1));
        assert!(etcd_arguments(&given("quorate")).is_none());
        assert!(etcd_arguments(&given("/opt/etcd/quorate")).is_none());
        assert!(etcd_arguments(&[]).is_none());
    }

    #[test]
    fn errors_are_json_where_the_arguments_ask_for_it() {
        let asks =
            |given: &[&str]| asks_for_json(&given.iter().map(OsString::from).collect::<Vec<_>>());
        for given in [&["-w", "json"][..], &["--write-out", "json"], &["-wjson"], &["-w=json"]] {
            assert!(asks(&[&["quorate", "status"], given].concat()), "{given:?}");
        }
        assert!(!asks(&["quorate", "status", "-w", "table"]));
        assert!(!asks(&["quorate", "member", "add", "json"]));
        assert!(!asks(&["quorate", "server", "-w", "json"]));
    }
}
