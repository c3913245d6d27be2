//! `quorate server`, and what the name `etcd` stands for: run a member.

use std::ffi::OsString;

use quorate_server::config::{self, Invocation};

use crate::examples::SERVER_HELP;
use crate::failure::Failure;
use crate::print;

pub(crate) fn run(arguments: &[OsString]) -> Result<(), Failure> {
    let arguments: Vec<String> = arguments.iter().map(plain).collect::<Result<_, _>>()?;
    // Variables that are not text are not etcd's.
    let variables = std::env::vars_os();
    let variables = variables
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)));
    let wanted = config::parse(arguments, variables);
    match wanted.map_err(|why| Failure::usage(why.to_string()))? {
        Invocation::Help => print::line(SERVER_HELP),
        Invocation::Version => {
            print::line(&format!("etcd Version: {}", quorate_server::ETCD_VERSION));
            print::line(&format!("Quorate Version: {}", env!("CARGO_PKG_VERSION")));
        }
        Invocation::Run(config) => serve(*config)?,
    }
    Ok(())
}

fn plain(argument: &OsString) -> Result<String, Failure> {
    let text = argument.to_str().map(str::to_string);
    text.ok_or_else(|| Failure::usage(format!("{} is not text", argument.display())))
}

fn serve(config: config::Config) -> Result<(), Failure> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let runtime = runtime.map_err(|why| Failure::because("cannot start threads", &why))?;
    let served = runtime.block_on(quorate_server::run(config));
    served.map_err(|why| Failure::because("the server does not run", &why))
}
