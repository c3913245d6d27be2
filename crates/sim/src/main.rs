//! `quorate-sim scenario PATH…`, `quorate-sim conformance DIR`, `quorate-sim model NAME…`.

use std::path::PathBuf;
use std::process::ExitCode;

fn main() -> ExitCode {
    let mut args = std::env::args().skip(1);
    let command = args.next();
    let rest: Vec<String> = args.collect();
    match command.as_deref() {
        Some("explore") => quorate_sim::explore::main(&rest),
        Some("scenario") => quorate_sim::scenario::main(&rest),
        Some("conformance") if rest.len() == 1 => {
            quorate_sim::conformance::main(&PathBuf::from(&rest[0]))
        }
        Some("mutants") => quorate_sim::mutants::main(&rest),
        Some("model") if rest.iter().any(|arg| arg == "--mutant") => {
            quorate_sim::mutants::in_mutated_build("model", &rest, quorate_sim::model::main)
        }
        Some("model") => quorate_sim::model::main(&rest),
        Some("help" | "--help" | "-h") => {
            println!("{USAGE}");
            ExitCode::SUCCESS
        }
        _ => {
            eprintln!("{USAGE}");
            ExitCode::from(2)
        }
    }
}

const USAGE: &str = "\
usage:
  quorate-sim scenario PATH…        play story files (or all in a folder) and compare;
                                    UPDATE=1 rewrites the transcripts
  quorate-sim scenario --show PATH…      tell the story on the terminal
  quorate-sim scenario --coverage PATH…  which known problems the stories stand for
  quorate-sim conformance DIR       play recorded traces of etcd-io/raft and compare
  quorate-sim model NAME…           explore everything within a scope (model --list)
  quorate-sim mutants [NAME…]       show that wrong rules are noticed;
                                    [--short] [--means stories,…] [--rules T] [--list]
                                    [--witnesses]";
