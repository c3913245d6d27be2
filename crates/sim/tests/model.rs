//! Explores the small scopes exhaustively, and shows that the explorer finds violations.

use quorate_core::config::Activation;
use quorate_sim::model::{
    Checks, ModelReport, NetworkModel, Scope, ScopeBounds, ScopeExpectation, SearchLimits, run,
    scopes,
};

fn scope(name: &str) -> Scope {
    let scope = scopes().into_iter().find(|scope| scope.name == name);
    scope.unwrap_or_else(|| panic!("no scope {name}"))
}

fn explore(scope: &Scope) -> Vec<ModelReport> {
    let explore_with = |activation: &Activation| {
        run(scope, *activation, SearchLimits::default())
            .unwrap_or_else(|why| panic!("{}: {why}", scope.name))
    };
    scope.activations.iter().map(explore_with).collect()
}

fn assert_as_expected(scope: &Scope) {
    for report in explore(scope) {
        let (name, activation) = (&scope.name, report.activation);
        let story = report.broken.as_ref().map(|broken| broken.story.as_str());
        let story = story.unwrap_or("no violation");
        assert!(report.is_as_expected(scope.expects), "{name} {activation:?}: {story}");
        let broken = matches!(scope.expects, ScopeExpectation::Broken(_));
        assert!(broken || report.exhausted, "{name} {activation:?} is not exhausted");
    }
}

#[test]
fn names_are_used_once() {
    let mut names: Vec<String> = scopes().into_iter().map(|scope| scope.name).collect();
    let count = names.len();
    names.sort();
    names.dedup();
    assert_eq!(names.len(), count);
}

#[test]
fn elections_of_two_and_three() {
    assert_as_expected(&scope("two-voters"));
    let mut three = scope("three-voters");
    three.bounds.terms = 2;
    assert_as_expected(&three);
}

#[test]
fn changes_of_one_and_two_voters() {
    for name in ["demote-of-two", "move-of-one", "promote-of-two"] {
        assert_as_expected(&scope(name));
    }
}

#[test]
fn without_a_condition_members_are_stuck() {
    for scope in scopes().iter().filter(|scope| scope.expects == ScopeExpectation::Broken("L1")) {
        assert_as_expected(scope);
    }
}

#[test]
fn exploration_from_known_hard_states() {
    let expectations = [ScopeExpectation::Leader, ScopeExpectation::NoLeader];
    let scopes: Vec<Scope> =
        scopes().into_iter().filter(|scope| expectations.contains(&scope.expects)).collect();
    assert!(scopes.len() >= 10);
    scopes.iter().for_each(assert_as_expected);
}

/// In every state, for every set of members, the oracle predicts what the cores do.
#[test]
fn the_oracle_agrees_with_the_cores() {
    for name in ["demote-of-two", "problem-2-promotion"] {
        let mut scope = scope(name);
        scope.bounds.network = NetworkModel::Prompt { delayed: 0 };
        scope.checks = Checks { electable: true, executed: true };
        for report in explore(&scope) {
            assert!(report.broken.is_none(), "{name}: {:?}", report.broken);
            assert!(report.executed > 100, "{name}: {} sets tried", report.executed);
        }
    }
}

#[test]
fn exploration_is_deterministic() {
    let scope = scope("move-of-one");
    let count = |report: &ModelReport| (report.states, report.transitions, report.depth);
    let runs = [explore(&scope), explore(&scope)];
    assert_eq!(
        runs[0].iter().map(count).collect::<Vec<_>>(),
        runs[1].iter().map(count).collect::<Vec<_>>()
    );
}

#[test]
fn a_violation_is_reported_as_a_story() {
    let report =
        run(&scope("problem-2-promotion-without"), Activation::OnApply, SearchLimits::default());
    let broken = report.unwrap().broken.unwrap();
    assert!(broken.story.starts_with("# covers: L1\n# only: on-apply\n"), "{}", broken.story);
    assert!(broken.story.contains("\nchange m1 v3\n---\nm1 change 1 logged 2.3\n"));
    assert!(broken.story.contains("\ndeliver m1 -> m2 Append first\n"));
}

#[test]
fn a_limit_stops_a_run() {
    let scope = scope("two-voters");
    let limited =
        run(&scope, Activation::OnApply, SearchLimits { states: 1000, progress: false }).unwrap();
    assert!(!limited.exhausted && limited.states >= 1000 && limited.states < 1100);
    let mut shallow = scope;
    shallow.bounds = ScopeBounds { depth: 3, ..shallow.bounds };
    let limited = run(&shallow, Activation::OnApply, SearchLimits::default()).unwrap();
    assert!(!limited.exhausted && limited.depth == 3);
}
