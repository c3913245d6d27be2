//! The binary `quorate`: a server with etcd's API, and the commands to operate it.
//!
//! Owns the arguments and the exit codes: 0 success, 1 refused or failed, 2 invalid usage.
//! Each command has a file in `command`; connections are in `client`, output is in `print` and
//! `membership_text`.

#![forbid(unsafe_code)]

mod arguments;
mod client;
mod command;
mod cpu_time;
mod error;
mod examples;
mod gaps;
mod goal_wait;
mod histogram;
mod ids;
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
    let arguments: Vec<OsString> = std::env::args_os().collect();
    let result = match etcd_arguments(&arguments) {
        Some(rest) => command::server::run(rest),
        None => run(Arguments::parse().command),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("quorate: {error}");
            ExitCode::from(error.exit_code())
        }
    }
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
        CliCommand::Completions { shell } => command::completions::run(shell),
        CliCommand::Recover(arguments) => command::recover::run(&arguments),
        CliCommand::Man { directory } => command::man::run(&directory),
        CliCommand::Member(arguments) => in_runtime(command::member::run(arguments)),
        CliCommand::Status(arguments) => in_runtime(command::status::run(arguments)),
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
}
