//! The command `quorate-sim`: stories, simulations, the model checker, recorded traces and
//! mutants. `quorate-sim help` lists the commands.

use std::path::PathBuf;
use std::process::ExitCode;

fn main() -> ExitCode {
    let mut args = std::env::args().skip(1);
    let command = args.next();
    let rest: Vec<String> = args.collect();
    let asks_for_help = |word: &str| matches!(word, "help" | "--help" | "-h");
    if command.as_deref().is_some_and(asks_for_help)
        || rest.iter().any(|word| matches!(word.as_str(), "--help" | "-h"))
    {
        println!("{USAGE}");
        return ExitCode::SUCCESS;
    }
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
  quorate-sim scenario --show PATH…      print stories with what happens at each step;
                                    --show-on-append: where memberships count when
                                    they are in the log
  quorate-sim scenario --coverage PATH…  list the known problems that the stories cover
  quorate-sim explore [OPTION…]     run random simulations of whole members;
                                    [--seconds N] [--seeds N] [--from N] [--forever]
                                    [--threads N] [--seed N] [--file F] [--trace]
                                    [--no-shrink] [--hints]
  quorate-sim model NAME…           check all states within a scope; --list names the
                                    scopes; --mutant NAME checks a wrong rule
  quorate-sim conformance DIR       play recorded traces of etcd-io/raft and compare
  quorate-sim mutants [NAME…]       show that the checkers notice wrong rules;
                                    [--short] [--means stories,…] [--rules T] [--list]
                                    [--witnesses]
  quorate-sim help                  print this text";
