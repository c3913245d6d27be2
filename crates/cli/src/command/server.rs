//! `quorate server`, also run by a program named `etcd`: runs a member.

use std::ffi::OsString;
use std::hint::black_box;
use std::time::Duration;

use quorate_server::config::{self, Invocation};
use quorate_server::{ServerError, client_threads};

use crate::error::CliError;
use crate::print;

pub(crate) fn run(arguments: &[OsString]) -> Result<(), CliError> {
    let arguments: Vec<String> = arguments.iter().map(utf8).collect::<Result<_, _>>()?;
    // etcd's variables are UTF-8; ignore all others.
    let variables = std::env::vars_os();
    let variables = variables
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)));
    let invocation = config::parse(arguments, variables);
    match invocation.map_err(|error| CliError::usage(error.to_string()))? {
        Invocation::Help => print::line(&config::help()),
        Invocation::Version => {
            print::line(&format!(
                "etcd Version: {}",
                quorate_server::EtcdRelease::default().version()
            ));
            print::line(&format!("Quorate Version: {}", env!("CARGO_PKG_VERSION")));
        }
        Invocation::Run(config) => serve(*config)?,
    }
    Ok(())
}

fn utf8(argument: &OsString) -> Result<String, CliError> {
    let text = argument.to_str().map(str::to_string);
    text.ok_or_else(|| CliError::usage(format!("the argument {} is not UTF-8", argument.display())))
}

fn serve(config: config::ServerConfig) -> Result<(), CliError> {
    let runtime = client_threads::start();
    let runtime = runtime.map_err(|error| CliError::with_cause("cannot start threads", &error))?;
    runtime.spawn(return_freed_memory());
    let result = runtime.block_on(quorate_server::run(config));
    result.map_err(|error| match error {
        ServerError::Removed => CliError::MemberRemoved(error.to_string()),
        error => CliError::with_cause("the server failed", &error),
    })
}

/// Lets the allocator return freed memory to the system. It does so a second after memory was
/// freed, but only when it is called for new pages: a server that is idle after a flood of
/// requests would keep all the memory of the flood.
async fn return_freed_memory() {
    loop {
        tokio::time::sleep(RETURN_INTERVAL).await;
        drop(black_box(Vec::<u8>::with_capacity(NEW_PAGES_BYTES)));
    }
}

const RETURN_INTERVAL: Duration = Duration::from_secs(1);
/// Larger than what the allocator has at hand.
const NEW_PAGES_BYTES: usize = 1 << 20;
