//! The binary `quorate`: a server that speaks etcd's API, and everything to look after it.
//!
//! Owns the arguments and the exit codes: 0 done, 1 refused or failed, 2 wrong usage.
//! Each command has a file in `command`; how they reach a cluster is in `client`, how they
//! show things in `print` and `words`.

#![forbid(unsafe_code)]

mod arguments;
mod bar;
mod client;
mod command;
mod examples;
mod failure;
mod follow;
mod gaps;
mod histogram;
mod print;
mod processor;
mod tolerance;
mod trailer;
mod whereabouts;
mod who;
mod words;

use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;

use clap::Parser;

use crate::arguments::{Arguments, Command};
use crate::failure::Failure;

/// A request allocates some forty times, most of it in the gRPC stack, and frees on another
/// thread: what the C library's allocator is slow at.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    let given: Vec<OsString> = std::env::args_os().collect();
    let done = match started_as_etcd(&given) {
        Some(rest) => command::server::run(rest),
        None => run(Arguments::parse().command),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("quorate: {failure}");
            ExitCode::from(failure.code())
        }
    }
}

/// What `etcd` was started with, when that is the name of this program.
fn started_as_etcd(given: &[OsString]) -> Option<&[OsString]> {
    let (program, rest) = given.split_first()?;
    (Path::new(program).file_stem()? == "etcd").then_some(rest)
}

fn run(asked: Command) -> Result<(), Failure> {
    match asked {
        Command::Server { arguments } => command::server::run(&arguments),
        Command::DemoMember { arguments } => command::demo_member::run(&arguments),
        Command::Completions { shell } => command::completions::run(shell),
        Command::Recover(asked) => command::recover::run(&asked),
        Command::Man { directory } => command::man::run(&directory),
        Command::Member(asked) => in_runtime(command::member::run(asked)),
        Command::Status(asked) => in_runtime(command::status::run(asked)),
        Command::Demo(asked) => in_runtime(command::demo::run(asked)),
        Command::Bench(asked) => in_runtime(command::bench::run(asked)),
        Command::Snapshot(asked) => in_runtime(command::snapshot::run(asked)),
    }
}

fn in_runtime(work: impl Future<Output = Result<(), Failure>>) -> Result<(), Failure> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let runtime = runtime.map_err(|why| Failure::because("cannot start threads", &why))?;
    let done = runtime.block_on(work);
    // What still waits for a server must not keep the program from ending.
    runtime.shutdown_background();
    done
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_name_etcd_makes_it_etcd() {
        let given = |program: &str| vec![OsString::from(program), OsString::from("--name")];
        assert_eq!(started_as_etcd(&given("/usr/bin/etcd")).map(<[_]>::len), Some(1));
        assert_eq!(started_as_etcd(&given("etcd")).map(<[_]>::len), Some(1));
        assert!(started_as_etcd(&given("quorate")).is_none());
        assert!(started_as_etcd(&given("/opt/etcd/quorate")).is_none());
        assert!(started_as_etcd(&[]).is_none());
    }
}
