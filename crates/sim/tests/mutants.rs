//! Wrong rules are noticed: the short version, by stories and a few random worlds.
//! `cargo test -p quorate-sim --features mutants --test mutants`
#![cfg(feature = "mutants")]

use std::collections::BTreeSet;

use quorate_core::mutants::{Means, Mutant, switch};
use quorate_sim::mutants::{Effort, Stories, hunt_all, hunters, reason, stories_folder};
use quorate_sim::scenario::{Verdict, check};

#[test]
fn every_mutant_is_noticed_by_whom_it_says_or_does_no_harm() {
    let hunters = hunters(&[Means::Stories]).unwrap();
    let of_stories = |mutant: &Mutant| mutant.means() == Means::Stories;
    let mutants: Vec<Mutant> = Mutant::ALL.iter().copied().filter(of_stories).collect();
    let mut wrong = Vec::new();
    for (mutant, fate) in hunt_all(&hunters, &mutants, Effort::Short) {
        let noticed = fate.kill.as_ref().filter(|kill| kill.is_proof);
        let by = noticed.map(|kill| kill.checker.as_str());
        let wanted = reason(mutant).is_none().then_some(mutant.checker());
        if by != wanted {
            wrong.push(format!("{}: noticed by {by:?}, want {wanted:?}", mutant.name()));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Those of the driver, and of what members tell, show in random worlds only.
#[test]
fn mutants_of_the_driver_are_noticed_in_random_worlds() {
    let hunters = hunters(&[Means::Explore]).unwrap();
    let of_worlds = |mutant: &Mutant| mutant.means() == Means::Explore;
    let mutants: Vec<Mutant> = Mutant::ALL.iter().copied().filter(of_worlds).collect();
    let mut wrong = Vec::new();
    for (mutant, fate) in hunt_all(&hunters, &mutants, Effort::Full) {
        let by = fate.kill.as_ref().map(|kill| kill.checker.as_str());
        if by != Some(mutant.checker()) {
            wrong.push(format!("{}: noticed by {by:?}, want {}", mutant.name(), mutant.checker()));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// A row of the catalogue that names a mutant has a story that needs the rule.
#[test]
fn rules_are_needed_by_their_own_stories() {
    let rules = Stories::read(&stories_folder()).unwrap().rules("");
    let mut wrong = Vec::new();
    for rule in &rules {
        if !rule.kill.as_ref().is_some_and(|kill| kill.is_proof) {
            wrong.push(format!("{}: no story of this row needs {}", rule.id, rule.mutant.name()));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    // Those that the exhaustive search over the membership rules asked for.
    let searched = rules.iter().filter_map(|rule| rule.id.strip_prefix('T'));
    let searched: BTreeSet<u32> = searched.filter_map(|number| number.parse().ok()).collect();
    assert_eq!(searched, (1..=9).collect());
}

#[test]
fn mutants_have_names_of_their_own_and_say_what_is_wrong() {
    let names: BTreeSet<String> = Mutant::ALL.iter().map(|mutant| mutant.name()).collect();
    assert_eq!(names.len(), Mutant::ALL.len());
    for mutant in Mutant::ALL {
        assert_eq!(Mutant::named(&mutant.name()), Some(*mutant));
        assert!(mutant.wrong().ends_with('.'), "{}", mutant.name());
    }
}

/// The switch is of one thread, and off again afterwards.
#[test]
fn a_switch_is_felt_by_its_own_thread_alone() {
    let story = stories_folder().join("election_longer_stale_log_loses.txt");
    let passes = || matches!(check(&story, false), Verdict::Passed(_));
    assert!(passes());
    switch(Some(Mutant::VoteForOlderLog));
    let here = passes();
    let there = std::thread::scope(|scope| scope.spawn(passes).join().unwrap());
    switch(None);
    assert!(!here && there && passes());
}
