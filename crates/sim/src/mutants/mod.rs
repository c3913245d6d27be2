//! Shows that the checkers notice wrong rules: each mutant is switched on in turn, and hunted by
//! one means after the other until something that must hold does not.
//!
//! `mutant` reads the mutants, which are data. `tree` builds a copy of the crates that has
//! all of them, each behind a switch, and runs it; in that build the hunt takes place. A means is
//! a [`Hunter`].

mod directed;
mod disks;
mod explore;
mod hunt;
mod model;
mod mutant;
mod quote;
mod rewrite;
mod short;
mod stories;
mod switch;
mod table;
mod tree;

use std::process::ExitCode;

pub use disks::Disks;
pub use explore::Explore;
pub use hunt::{Effort, HuntResult, Hunter, Kill, hunt_all, may_notice};
pub use model::ModelHunter;
pub use mutant::{
    Edit, Expected, Means, Mutant, Worlds, mutants_folder, parse_mutants, read_mutants,
};
pub use rewrite::rewrite;
pub use stories::{CoveredRow, Stories, stories_folder};
pub use tree::generate;

/// Runs a command that needs mutants: here, if this is the mutated build, otherwise there.
pub fn in_mutated_build(
    command: &str,
    args: &[String],
    run: fn(&[String]) -> ExitCode,
) -> ExitCode {
    if switch::IS_MUTATED {
        return run(args);
    }
    tree::run_mutated(command, args).unwrap_or_else(|why| {
        eprintln!("{why}");
        ExitCode::from(2)
    })
}

/// Switches the mutant of this name on, on this thread.
pub fn switch_on(name: &str) -> Result<(), String> {
    if !switch::IS_MUTATED {
        return Err("this build has no mutants".to_owned());
    }
    let mutants = read_mutants(&mutants_folder())?;
    let mutant = named(&mutants, name)?;
    switch::switch(Some(mutant.number));
    Ok(())
}

fn named<'a>(mutants: &'a [Mutant], name: &str) -> Result<&'a Mutant, String> {
    mutants.iter().find(|mutant| mutant.name == name).ok_or(format!("there is no mutant `{name}`"))
}

/// `quorate-sim mutants [NAME…] [--short] [--means M,…] [--rules PREFIX] [--list] [--witnesses]`
pub fn main(args: &[String]) -> ExitCode {
    let done = read_mutants(&mutants_folder()).and_then(|mutants| {
        let request = MutantsRequest::parse(args, &mutants)?;
        if request.list {
            table::print_list(&request.mutants);
            return Ok(ExitCode::SUCCESS);
        }
        if !switch::IS_MUTATED {
            let mut args = args.to_vec();
            if request.is_whole_short_hunt() {
                args.push(format!("--digest={:016x}", short::digest()));
            }
            return tree::run_mutated("mutants", &args);
        }
        hunt::silence_panics();
        let fine = request.run(&mutants)?;
        Ok(if fine { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    });
    done.unwrap_or_else(|why| {
        eprintln!("{why}");
        ExitCode::from(2)
    })
}

/// What the command line asks for.
#[derive(Debug, Default)]
struct MutantsRequest<'a> {
    mutants: Vec<&'a Mutant>,
    /// They were chosen by name.
    named: bool,
    /// Empty for all.
    means: Vec<Means>,
    short: bool,
    /// Show the rows of the catalogue whose ids begin with this, each by its own stories.
    rules: Option<String>,
    list: bool,
    /// Name every story that notices.
    witnesses: bool,
    /// What random runs come to without mutants. A build passes it to the mutated one.
    digest: Option<u64>,
}

impl<'a> MutantsRequest<'a> {
    fn parse(args: &[String], mutants: &'a [Mutant]) -> Result<Self, String> {
        let mut request = Self::default();
        let digest = |text| u64::from_str_radix(text, 16).map_err(|why| format!("--digest: {why}"));
        let mut args = args.iter();
        while let Some(arg) = args.next() {
            match arg.as_str() {
                "--short" => request.short = true,
                "--list" => request.list = true,
                "--witnesses" => request.witnesses = true,
                "--rules" => {
                    let prefix = args.next().ok_or("--rules needs the beginning of an id")?;
                    request.rules = Some(prefix.clone());
                }
                "--means" => {
                    let names =
                        args.next().ok_or("--means needs stories, model, disks or explore")?;
                    request.means = names.split(',').map(Means::named).collect::<Result<_, _>>()?;
                }
                flag if flag.starts_with("--digest=") => {
                    request.digest = flag.strip_prefix("--digest=").map(digest).transpose()?;
                }
                flag if flag.starts_with('-') => return Err(format!("unknown flag `{flag}`")),
                name => request.mutants.push(named(mutants, name)?),
            }
        }
        request.named = !request.mutants.is_empty();
        if !request.named {
            request.mutants = mutants.iter().collect();
        }
        if request.short && (request.witnesses || request.rules.is_some()) {
            return Err("--short goes with names and --means only".to_owned());
        }
        Ok(request)
    }

    /// Nothing narrows the short hunt down.
    fn is_whole_short_hunt(&self) -> bool {
        self.short && self.means.is_empty() && !self.named
    }

    /// True when every result is the expected one.
    fn run(&self, all: &[Mutant]) -> Result<bool, String> {
        if self.short {
            let mut wrong = short::hunt_short(&self.mutants, self.hunters()?);
            if self.is_whole_short_hunt() {
                wrong.extend(short::rows_without_story(all)?);
                wrong.extend(self.digest.and_then(short::differs_from));
            }
            wrong.iter().for_each(|line| say!("{line}"));
            return Ok(wrong.is_empty());
        }
        if let Some(prefix) = &self.rules {
            let stories = Stories::read(&stories_folder())?;
            return Ok(table::print_rows(&stories.rows(all, prefix)));
        }
        if self.witnesses {
            table::print_witnesses(&self.mutants, &Stories::read(&stories_folder())?);
            return Ok(true);
        }
        let hunters = self.hunters()?;
        let may = |mutant: &&Mutant| hunters.iter().any(|one| may_notice(one.means(), mutant));
        let (hunted, others): (Vec<&Mutant>, Vec<&Mutant>) =
            self.mutants.iter().copied().partition(may);
        let results = hunt_all(&hunters, &hunted, Effort::Full);
        table::print_results(&results);
        table::print_not_hunted(&others);
        Ok(results.iter().all(|(mutant, result)| result.is_expected(mutant)))
    }

    /// The chosen means, the quickest first. A new means is added here.
    fn hunters(&self) -> Result<Vec<Box<dyn Hunter>>, String> {
        let is_chosen = |means: Means| self.means.is_empty() || self.means.contains(&means);
        let mut hunters: Vec<Box<dyn Hunter>> =
            vec![Box::new(ModelHunter::new()), Box::new(Disks), Box::new(Explore)];
        hunters.retain(|hunter| is_chosen(hunter.means()));
        if is_chosen(Means::Stories) {
            hunters.insert(0, Box::new(Stories::read(&stories_folder())?));
        }
        Ok(hunters)
    }
}
