//! Commands for developers: `cargo run -p xtask -- COMMAND`.
//!
//! - `tidy` checks the rules of this repository. It writes nothing; it prints what is wrong and
//!   fails. `tidy --idioms` prints the idiom count of each crate.
//! - `msrv` checks that no dependency of a package needs a newer Rust than the package declares.
//! - `proto` generates the code of `quorate-proto` again.

mod msrv;
mod tidy;

use std::path::Path;
use std::process::{Command, ExitCode};

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let Some(root) = Path::new(env!("CARGO_MANIFEST_DIR")).parent() else {
        eprintln!("xtask: the workspace root was not found");
        return ExitCode::FAILURE;
    };
    match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["tidy"] => report("tidy", tidy::check(root)),
        ["tidy", "--idioms"] => print_idioms(root),
        ["msrv"] => report("msrv", msrv::check(root)),
        ["proto"] => proto(root),
        _ => {
            eprintln!("usage: cargo run -p xtask -- (tidy [--idioms] | msrv | proto)");
            ExitCode::from(2)
        }
    }
}

fn print_idioms(root: &Path) -> ExitCode {
    match tidy::idiom_report(root) {
        Ok(lines) => {
            lines.iter().for_each(|line| println!("{line}"));
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("tidy: {error}");
            ExitCode::FAILURE
        }
    }
}

fn report(command: &str, result: std::io::Result<Vec<String>>) -> ExitCode {
    match result {
        Ok(faults) if faults.is_empty() => {
            println!("{command}: ok");
            ExitCode::SUCCESS
        }
        Ok(faults) => {
            for fault in &faults {
                println!("{fault}");
            }
            println!("{command}: {} faults", faults.len());
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("{command}: {error}");
            ExitCode::FAILURE
        }
    }
}

/// The test that finds stale generated code also generates it; so xtask does not depend on the
/// protobuf compiler.
fn proto(root: &Path) -> ExitCode {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let test = ["test", "--package", "quorate-proto", "--test", "generated"];
    match Command::new(cargo).args(test).env("UPDATE", "1").current_dir(root).status() {
        Ok(status) if status.success() => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("proto: cannot run cargo: {error}");
            ExitCode::FAILURE
        }
    }
}
