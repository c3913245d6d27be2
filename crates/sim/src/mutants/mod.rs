//! Shows that wrong rules are noticed: each mutant is switched on in turn,
//! and hunted by one means after the other until something that must hold does not.
//!
//! A means is a [`Hunter`]; [`hunters`] is the list of them. Which mutants nothing can
//! notice, and why, stands in `equivalent`.

mod directed;
mod disks;
mod equivalent;
mod explore;
mod hunt;
mod model;
mod stories;
mod table;

use std::path::PathBuf;
use std::process::ExitCode;

use quorate_core::mutants::{Means, Mutant};

pub use disks::Disks;
pub use equivalent::{EQUIVALENT, reason};
pub use explore::Explore;
pub use hunt::{Effort, Fate, Hunter, Kill, hunt_all, may_notice};
pub use model::Model;
pub use stories::{Rule, Stories};

/// Every means there is, the quickest first. A new one is added here.
pub fn hunters(wanted: &[Means]) -> Result<Vec<Box<dyn Hunter>>, String> {
    let is_wanted = |means: Means| wanted.is_empty() || wanted.contains(&means);
    let mut all: Vec<Box<dyn Hunter>> =
        vec![Box::new(Model::new()), Box::new(Disks), Box::new(Explore)];
    all.retain(|hunter| is_wanted(hunter.means()));
    if is_wanted(Means::Stories) {
        all.insert(0, Box::new(Stories::read(&stories_folder())?));
    }
    Ok(all)
}

/// Where the stories of the core are kept.
pub fn stories_folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../core/tests/scenarios")
}

/// What the command line asks for.
#[derive(Debug, Default)]
struct Wish {
    mutants: Vec<Mutant>,
    means: Vec<Means>,
    effort: Effort,
    /// Show the rules of the catalogue whose ids begin so, each by its own stories.
    rules: Option<String>,
    list: bool,
    /// Name every story that notices.
    witnesses: bool,
}

impl Wish {
    fn parse(args: &[String]) -> Result<Self, String> {
        let mut wish = Self::default();
        let mut args = args.iter();
        while let Some(arg) = args.next() {
            match arg.as_str() {
                "--short" => wish.effort = Effort::Short,
                "--list" => wish.list = true,
                "--witnesses" => wish.witnesses = true,
                "--rules" => {
                    wish.rules =
                        Some(args.next().ok_or("--rules wants the start of an id")?.into());
                }
                "--means" => {
                    let names =
                        args.next().ok_or("--means wants stories, model, disks or explore")?;
                    wish.means = names.split(',').map(means).collect::<Result<_, _>>()?;
                }
                flag if flag.starts_with('-') => return Err(format!("`{flag}` is no flag")),
                name => {
                    let found = Mutant::named(name);
                    wish.mutants.push(found.ok_or(format!("there is no mutant `{name}`"))?);
                }
            }
        }
        if wish.mutants.is_empty() {
            wish.mutants = Mutant::ALL.to_vec();
        }
        Ok(wish)
    }
}

fn means(name: &str) -> Result<Means, String> {
    match name {
        "stories" | "scenarios" => Ok(Means::Stories),
        "model" => Ok(Means::Model),
        "disks" => Ok(Means::Disks),
        "explore" => Ok(Means::Explore),
        _ => Err(format!("`{name}` is no means, want stories, model, disks or explore")),
    }
}

/// `quorate-sim mutants [NAME…] [--short] [--means M,…] [--rules PREFIX] [--list]
/// [--witnesses]`
pub fn main(args: &[String]) -> ExitCode {
    match Wish::parse(args).and_then(|wish| run(&wish)) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(why) => {
            eprintln!("{why}");
            ExitCode::from(2)
        }
    }
}

/// True when every mutant was noticed, or cannot be.
fn run(wish: &Wish) -> Result<bool, String> {
    if wish.list {
        table::print_list(&wish.mutants);
        return Ok(true);
    }
    hunt::silence_panics();
    if let Some(prefix) = &wish.rules {
        let rules = Stories::read(&stories_folder())?.rules(prefix);
        return Ok(table::print_rules(&rules));
    }
    if wish.witnesses {
        let stories = Stories::read(&stories_folder())?;
        table::print_witnesses(&wish.mutants, &stories);
        return Ok(true);
    }
    let hunters = hunters(&wish.means)?;
    let shows = |mutant: &Mutant| hunters.iter().any(|hunter| may_notice(hunter.means(), *mutant));
    let (here, elsewhere): (Vec<Mutant>, Vec<Mutant>) =
        wish.mutants.iter().partition(|mutant| shows(mutant));
    let hunted = hunt_all(&hunters, &here, wish.effort);
    table::print_fates(&hunted);
    table::print_elsewhere(&elsewhere);
    Ok(hunted.iter().all(|(mutant, fate)| fate.is_as_wanted(*mutant)))
}
