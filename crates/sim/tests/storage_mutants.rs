//! Each wrong version of a storage rule is noticed by what checks the store.
//! `cargo test -p quorate-sim --features mutants --test storage_mutants`

use quorate_core::mutants::{Means, Mutant};
use quorate_sim::mutants::{Effort, hunt_all, hunters};

#[test]
fn every_mutant_of_the_storage_is_noticed_on_disks() {
    let hunters = hunters(&[Means::Disks]).unwrap();
    let of_disks = |mutant: &Mutant| mutant.means() == Means::Disks;
    let mutants: Vec<Mutant> = Mutant::ALL.iter().copied().filter(of_disks).collect();
    let mut wrong = Vec::new();
    for (mutant, fate) in hunt_all(&hunters, &mutants, Effort::Full) {
        let by = fate.kill.as_ref().map(|kill| kill.checker.as_str());
        if by != Some(mutant.checker()) {
            wrong.push(format!("{}: noticed by {by:?}, want {}", mutant.name(), mutant.checker()));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
