//! `cargo run -p xtask -- tidy`: the rules of the house that a machine can check.
//! It never writes; it prints what is wrong and fails.

mod tidy;

use std::path::Path;
use std::process::ExitCode;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if args != ["tidy"] {
        eprintln!("usage: cargo run -p xtask -- tidy");
        return ExitCode::from(2);
    }
    let Some(root) = Path::new(env!("CARGO_MANIFEST_DIR")).parent() else {
        eprintln!("xtask stands in no workspace");
        return ExitCode::FAILURE;
    };
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
