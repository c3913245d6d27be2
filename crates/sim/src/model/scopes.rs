//! The scopes that are explored, by name. docs/model.md has what they led to.

use quorate_core::Activation;

use super::scope::{Bounds, Checks, May, Scope};

/// Settings under which a member keeps nothing but what elections, logs and memberships
/// need: no clocks, no windows, no limits.
const PLAIN: &str = "pre-vote=off check-quorum=off election=1000000 \
                     inflight=4294967295 inflight-bytes=max uncommitted-bytes=max";

pub(super) const BOTH: [Activation; 2] = [Activation::OnApply, Activation::OnAppend];

/// All scopes, the small ones first.
pub fn all() -> Vec<Scope> {
    let mut scopes = Vec::new();
    scopes.extend(elections());
    scopes
}

fn scope(name: &str, about: &str, stage: &str) -> Scope {
    Scope {
        name: name.to_owned(),
        about: about.to_owned(),
        stage: stage.replace("PLAIN", PLAIN),
        activations: BOTH.to_vec(),
        bounds: Bounds::default(),
        may: May { beat: true, ..May::default() },
        checks: Checks::default(),
        expects: super::scope::Expects::Clean,
    }
}

/// No membership changes: the Raft that everybody knows.
fn elections() -> Vec<Scope> {
    let plain = |name, about, stage, terms, log| Scope {
        bounds: Bounds { terms, log, ..Bounds::default() },
        may: May { propose: true, beat: true, ..May::default() },
        activations: vec![Activation::OnApply],
        ..scope(name, about, stage)
    };
    vec![
        plain("two-voters", "elections and commands, even size", "cluster m1 m2 PLAIN", 4, 5),
        plain("three-voters", "elections and commands", "cluster m1 m2 m3 PLAIN", 3, 3),
    ]
}
