//! `cargo run -p xtask -- tidy`: the rules of the house that a machine can check. It never
//! writes; it prints what is wrong and fails.
//!
//! `cargo run -p xtask -- proto`: the code of `quorate-proto`, generated anew.

mod tidy;

use std::path::Path;
use std::process::{Command, ExitCode};

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let Some(root) = Path::new(env!("CARGO_MANIFEST_DIR")).parent() else {
        eprintln!("xtask stands in no workspace");
        return ExitCode::FAILURE;
    };
    match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["tidy"] => tidy(root),
        ["proto"] => proto(root),
        _ => {
            eprintln!("usage: cargo run -p xtask -- (tidy | proto)");
            ExitCode::from(2)
        }
    }
}

fn tidy(root: &Path) -> ExitCode {
    match tidy::check(root) {
        Ok(faults) if faults.is_empty() => {
            println!("tidy: ok");
            ExitCode::SUCCESS
        }
        Ok(faults) => {
            for fault in &faults {
                println!("{fault}");
            }
            println!("tidy: {} faults", faults.len());
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("tidy: {error}");
            ExitCode::FAILURE
        }
    }
}

/// The test that finds stale code knows how to make it; so nobody who only wants to tidy
/// builds a compiler.
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
