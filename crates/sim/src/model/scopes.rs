//! The scopes that are explored, by name. docs/model.md has what they led to.

use quorate_core::Term;
use quorate_core::config::Activation;

use super::scope::{Checks, NetworkModel, Scope, ScopeActions, ScopeBounds, ScopeExpectation};

/// Settings under which a member keeps nothing but what elections, logs and memberships
/// need: no clocks, no windows, no limits.
const PLAIN: &str = "pre-vote=off check-quorum=off stall=0 election=1000000 \
                     inflight=4294967295 inflight-bytes=max uncommitted-bytes=max";

const PROMPT: NetworkModel = NetworkModel::Prompt { delayed: 0 };
const LATE: NetworkModel = NetworkModel::Prompt { delayed: 1 };

const BOTH: [Activation; 2] = [Activation::OnApply, Activation::OnAppend];

/// All scopes.
pub fn all() -> Vec<Scope> {
    [elections(), machinery(), changes(), combined(), sequences(), seeds(), stuck()].concat()
}

/// A scope with nothing but elections in it. `PLAIN` in the stage stands for settings;
/// `LED` for a leader m1 of term 2 that all members follow.
fn scope(name: &str, about: &str, stage: &str) -> Scope {
    let stage = stage.replace("LED", "\n(campaign m1)\n(settle)");
    Scope {
        name: name.to_owned(),
        about: about.to_owned(),
        stage: stage.replace("PLAIN", PLAIN),
        activations: BOTH.to_vec(),
        bounds: ScopeBounds::default(),
        may: ScopeActions { beat: true, ..ScopeActions::default() },
        checks: Checks::default(),
        expects: ScopeExpectation::Clean,
    }
}

/// No membership changes: plain Raft.
fn elections() -> Vec<Scope> {
    let plain = |name, about, stage, terms, log, network| Scope {
        bounds: ScopeBounds { terms, log, network, ..ScopeBounds::default() },
        may: ScopeActions { propose: true, beat: true, ..ScopeActions::default() },
        activations: vec![Activation::OnApply],
        ..scope(name, about, stage)
    };
    let (two, three) = ("cluster m1 m2 PLAIN", "cluster m1 m2 m3 PLAIN");
    let four = "cluster m1 m2 m3 m4 PLAIN";
    let free = NetworkModel::Free { link: 1 };
    vec![
        plain("two-voters", "elections and commands, even size", two, 4, 5, free),
        plain("three-voters", "elections and commands, three terms", three, 3, 3, PROMPT),
        plain("three-voters-late", "the same, one message may be late", three, 3, 3, LATE),
        plain("three-voters-free", "two terms, any message may be late", three, 2, 2, free),
        plain("four-voters", "even size, three terms", four, 3, 2, PROMPT),
        plain("figure-8", "four terms (mut.2)", three, 4, 4, PROMPT),
    ]
}

/// What the plain scopes leave out: slow disks and machines, restarts, snapshots,
/// pre-votes, check-quorum, transfers.
fn machinery() -> Vec<Scope> {
    let few = |name, about, stage, restarts| Scope {
        bounds: ScopeBounds { terms: 3, log: 3, restarts, ..ScopeBounds::default() },
        may: ScopeActions { propose: true, beat: true, ..ScopeActions::default() },
        activations: vec![Activation::OnApply],
        ..scope(name, about, stage)
    };
    let slow = "cluster m1 m2 PLAIN\nhold saves all";
    let asking = PLAIN.replace("pre-vote=off", "pre-vote=on");
    let checking = asking.replace("check-quorum=off", "check-quorum=on");
    let forget =
        ScopeActions { propose: true, beat: true, forget: true, ..ScopeActions::default() };
    vec![
        few("slow-disks", "saves complete at any time, restarts in between", slow, 2),
        few("restarts", "two restarts anywhere", "cluster m1 m2 m3 PLAIN", 2).with_terms(2),
        Scope {
            bounds: ScopeBounds { terms: 3, log: 2, ..ScopeBounds::default() },
            ..few(
                "pre-vote",
                "pre-votes before a campaign",
                &format!("cluster m1 m2 m3 {asking}"),
                0,
            )
        },
        Scope {
            may: forget,
            bounds: ScopeBounds { terms: 3, log: 2, ..ScopeBounds::default() },
            ..few(
                "check-quorum",
                "leaders are forgotten",
                &format!("cluster m1 m2 m3 {checking}"),
                0,
            )
        },
        Scope {
            may: ScopeActions {
                propose: true,
                beat: true,
                snapshot: true,
                ..ScopeActions::default()
            },
            bounds: ScopeBounds { terms: 3, log: 4, ..ScopeBounds::default() },
            ..few("snapshots", "logs are trimmed", "cluster m1 m2 m3 PLAIN trim-keep=0 LED", 0)
        },
        Scope {
            may: ScopeActions {
                propose: true,
                beat: true,
                transfer: true,
                ..ScopeActions::default()
            },
            bounds: ScopeBounds { terms: 4, log: 3, ..ScopeBounds::default() },
            ..few("transfers", "leadership is handed over", "cluster m1 m2 m3 PLAIN LED", 0)
        },
    ]
}

/// One change of each kind, at odd and even sizes, with L1 in every state.
fn changes() -> Vec<Scope> {
    let one = |name: &str, about: &str, stage: &str, words: &[&str]| Scope {
        bounds: ScopeBounds { terms: 3, log: 5, changes: 1, ..ScopeBounds::default() },
        may: may_change(words),
        checks: Checks { electable: true, executed: false },
        ..scope(name, about, stage)
    };
    let three = "cluster m1 m2 m3 learners m4 PLAIN LED";
    let four = "cluster m1 m2 m3 m4 PLAIN LED";
    vec![
        one("add-learner", "3 voters, m4 is new", "cluster m1 m2 m3 PLAIN\nempty m4 LED", &["l4"]),
        one("promote", "3 voters to 4", three, &["v4"]),
        one("demote", "3 voters to 2: m3, or the leader", three, &["l3", "l1"]),
        one("remove-learner", "3 voters, m4 leaves", three, &["r4"]),
        one("swap", "a joint: m4 for m3, or for the leader", three, &["v4 l3", "v4 l1"]),
        one("goal", "m4 for m3, step by step", three, &["goal (1 2 4)"]).with_log(7),
        one("goal-leader", "m4 for the leader, step by step", three, &["goal (2 3 4)"]).with_log(7),
        one("promote-of-two", "2 voters to 3", "cluster m1 m2 learners m3 PLAIN LED", &["v3"]),
        one(
            "demote-of-two",
            "2 voters to 1: m2, or the leader",
            "cluster m1 m2 PLAIN LED",
            &["l2", "l1"],
        ),
        one("demote-of-four", "4 voters to 3: m4, or the leader (mut.23)", four, &["l4", "l1"]),
        one(
            "swap-of-two",
            "a joint: m3 for m2, or for the leader",
            "cluster m1 m2 learners m3 PLAIN LED",
            &["v3 l2", "v3 l1"],
        ),
        one(
            "move-of-one",
            "one voter moves",
            "cluster m1 learners m2 PLAIN LED",
            &["v2 l1", "goal (2)"],
        )
        .with_log(7),
    ]
}

/// Changes together with what a cluster does besides: the default settings (pre-vote and
/// check-quorum), snapshots, transfers, cancels.
fn combined() -> Vec<Scope> {
    let defaults = PLAIN.replace("pre-vote=off check-quorum=off", "pre-vote=on check-quorum=on");
    let with = |name: &str, about: &str, stage: &str, may: ScopeActions| Scope {
        bounds: ScopeBounds { terms: 3, log: 4, changes: 1, ..ScopeBounds::default() },
        may,
        checks: Checks { electable: true, executed: false },
        ..scope(name, about, stage)
    };
    let three = "cluster m1 m2 m3 learners m4 PLAIN LED";
    let two = "cluster m1 m2 learners m3 PLAIN LED";
    let default_three = three.replace("PLAIN", &defaults);
    let default_two = two.replace("PLAIN", &defaults);
    let forget = |words: &[&str]| ScopeActions { forget: true, ..may_change(words) };
    let snapshot = |words: &[&str]| ScopeActions { snapshot: true, ..may_change(words) };
    let transfer = |words: &[&str]| ScopeActions { transfer: true, ..may_change(words) };
    let all = |words: &[&str]| ScopeActions { snapshot: true, transfer: true, ..forget(words) };
    let trimmed = two.replace("PLAIN", "PLAIN trim-keep=0");
    let default_trimmed = default_two.replace(" LED", " trim-keep=0 LED");
    let cancel =
        |scope: Scope| Scope { bounds: ScopeBounds { changes: 2, ..scope.bounds }, ..scope };
    vec![
        with(
            "default-promote",
            "pre-vote, check-quorum: 3 voters to 4",
            &default_three,
            forget(&["v4"]),
        ),
        with(
            "default-swap",
            "pre-vote, check-quorum: m3 for m2 or the leader",
            &default_two,
            forget(&["v3 l2", "v3 l1"]),
        ),
        with("change-snapshot", "2 voters to 3, logs are trimmed", &trimmed, snapshot(&["v3"])),
        with(
            "change-transfer",
            "2 voters to 3, the leader hands over",
            two,
            transfer(&["v3", "l1"]),
        ),
        cancel(
            with(
                "change-cancel",
                "m3 for m2, and back",
                two,
                may_change(&["goal (1 3)", "cancel"]),
            )
            .with_log(7),
        ),
        cancel(
            with(
                "default-all",
                "pre-vote, check-quorum, a snapshot, a transfer, a goal and a cancel",
                &default_trimmed,
                all(&["goal (1 3)", "cancel"]),
            )
            .with_log(6),
        ),
    ]
}

/// Several changes in a row, and the places where earlier rules broke.
fn sequences() -> Vec<Scope> {
    let some = |name: &str, about: &str, stage: &str, words: &[&str], terms: Term| Scope {
        bounds: ScopeBounds { terms, log: 4, changes: 2, ..ScopeBounds::default() },
        may: may_change(words),
        ..scope(name, about, stage)
    };
    let shrink = ["l2", "l3"];
    vec![
        some(
            "ongaro",
            "4 voters, two leaders each drop one (mut.3, S10)",
            "cluster m1 m2 m3 m4 PLAIN LED",
            &["l4", "l3"],
            4,
        ),
        some(
            "two-promotions",
            "3 voters to 5 (mut.4, S11)",
            "cluster m1 m2 m3 learners m4 m5 PLAIN LED",
            &["v4", "v5"],
            3,
        ),
        some(
            "exits",
            "a joint is left both ways (T6)",
            "cluster voters=(1 2 3)&&(4) PLAIN LED",
            &["to (1 2 3)", "to (4)"],
            4,
        ),
        some(
            "exits-of-two",
            "the same with two and two",
            "cluster voters=(1 2)&&(3 4) PLAIN LED",
            &["to (1 2)", "to (3 4)"],
            4,
        ),
        Scope {
            bounds: ScopeBounds {
                terms: 3,
                log: 4,
                changes: 2,
                restarts: 1,
                ..ScopeBounds::default()
            },
            ..some(
                "lost-commit",
                "3 to 2 to 1, a restart forgets (T2)",
                "cluster m1 m2 m3 PLAIN LED",
                &shrink,
                3,
            )
        },
        Scope {
            bounds: ScopeBounds { terms: 3, log: 4, changes: 2, ..ScopeBounds::default() },
            ..some(
                "slow-machines",
                "committed, not applied (T7, S13)",
                "cluster m1 learners m2 m3 PLAIN LED\nhold applies all",
                &["v2", "v3"],
                3,
            )
        },
        Scope {
            may: ScopeActions { propose: true, beat: true, ..ScopeActions::default() },
            bounds: ScopeBounds { terms: 3, log: 5, ..ScopeBounds::default() },
            ..scope("two-not-applied", "3 voters grew to 5, two did not apply it (T7)", TWO_BEHIND)
        },
    ]
}

/// m2 and m3 know two changes to be committed and have applied neither.
const TWO_BEHIND: &str = "cluster m1 m2 m3 learners m4 m5 PLAIN LED\nhold applies m2 m3\n\
                          (change m1 v4)\n(settle ticks=2)\n(change m1 v5)\n(settle ticks=2)";

/// The seeds' examples 1 to 4 and both cases of problem 2. With one condition off a
/// state without a way to a leader is found; with all of them on there is none.
fn seeds() -> Vec<Scope> {
    let three = "cluster m1 m2 m3 learners m4 PLAIN LED";
    let four = "cluster m1 m2 m3 m4 PLAIN LED";
    let joint = "cluster voters=(1 2 4)&&(1 2 3) learners_next=(3) PLAIN LED";
    let two = "cluster m1 m2 learners m3 PLAIN LED";
    let pair = "cluster m1 m2 PLAIN LED";
    let off = "votes-tell-commit=off";
    let unsettled = "settle=off demote-first=off";
    let row = |name, about, stage, change, without, off| Seed {
        name,
        about,
        stage,
        change,
        without,
        off,
    };
    let rows = [
        row("example-1", "3 voters, joint: m4 for m3 (S01)", three, "v4 l3", "v4 l3", off),
        row("example-2", "3 voters, m4 promoted (S02)", three, "v4", "v4", off),
        row("example-3", "the joint is left (S03)", joint, "leave", "leave", off),
        row("example-4", "4 voters, m3 demoted (S04)", four, "l3", "l3", off),
        row("problem-2-promotion", "2 voters to 3 (S05)", two, "v3", "v3", unsettled),
        row("problem-2-removal", "2 voters to 1 (S06)", pair, "l1", "r1", unsettled),
    ];
    rows.iter().flat_map(|seed| [seed.scope(), seed.without()]).collect()
}

/// A change that needs a condition.
struct Seed {
    name: &'static str,
    about: &'static str,
    stage: &'static str,
    change: &'static str,
    /// The change as it is made where the condition is switched off.
    without: &'static str,
    off: &'static str,
}

impl Seed {
    fn scope(&self) -> Scope {
        Scope {
            activations: vec![Activation::OnApply],
            bounds: ScopeBounds {
                terms: 2,
                log: 4,
                changes: 1,
                network: LATE,
                ..ScopeBounds::default()
            },
            may: ScopeActions { propose: true, ..may_change(&[self.change]) },
            checks: Checks { electable: true, executed: false },
            ..scope(self.name, self.about, self.stage)
        }
    }

    fn without(&self) -> Scope {
        let stage = self.stage.replace("PLAIN", &format!("PLAIN {}", self.off));
        let (name, about) = (format!("{}-without", self.name), "the same without the condition");
        Scope {
            may: ScopeActions { propose: true, ..may_change(&[self.without]) },
            expects: ScopeExpectation::Broken("L1"),
            ..self.scope().renamed(&name, about, &stage)
        }
    }
}

/// The examples from their critical moment on, with the member that could help down: can
/// a leader be elected, with any number of retries?
fn stuck() -> Vec<Scope> {
    let one = "cluster m1 m2 m3 learners m4 term=2 PLAIN\n\
               log m1 2.2[v4 l3] 2.3 2.4 commit=2\nlog m3 2.2[v4 l3] 2.3 commit=2\n\
               log m4 2.2[v4 l3] 2.3 2.4\n(crash m1)";
    let two = "cluster m1 m2 m3 learners m4 term=2 PLAIN\n\
               log m1 2.2[v4] 2.3 2.4 commit=2\nlog m3 2.2[v4] 2.3 commit=2\n\
               log m4 2.2[v4] 2.3 2.4\n(crash m1)";
    let three = "cluster voters=(1 2 4)&&(1 2 3) learners_next=(3) term=2 PLAIN\n\
                 log m1 2.2[leave] 2.3 commit=2\nlog m3 2.2[leave] 2.3 commit=2\n\
                 log m4 2.2[leave]\n(crash m1)";
    let four = "cluster m1 m2 m3 m4 term=2 PLAIN\n\
                log m1 2.2[l3] 2.3 commit=2\nlog m3 2.2[l3] 2.3 commit=2\n\
                log m4 2.2[l3]\n(crash m1)";
    let promotion = "cluster m1 m2 learners m3 term=2 PLAIN\n\
                     log m1 2.2[v3] commit=2\nlog m2 m3 2.2[v3]\n(crash m1)";
    let removal = "cluster m1 m2 term=2 PLAIN\nlog m1 2.2[l1] commit=2\nlog m2 2.2[l1]\n(crash m1)";
    let rows = [("1", one), ("2", two), ("3", three), ("4", four)];
    let mut scopes = Vec::new();
    for (number, stage) in rows {
        let off = stage.replace("PLAIN", "PLAIN votes-tell-commit=off");
        let name = format!("stuck-{number}");
        scopes.push(moment(
            &name,
            "from the critical state, m1 down",
            stage,
            ScopeExpectation::Leader,
        ));
        let name = format!("{name}-without");
        scopes.push(moment(
            &name,
            "the same, votes do not carry the commit index",
            &off,
            ScopeExpectation::NoLeader,
        ));
    }
    let about = "committed, not settled, and the only member that knows is down";
    scopes.push(moment("stuck-promotion", about, promotion, ScopeExpectation::NoLeader));
    scopes.push(moment("stuck-removal", about, removal, ScopeExpectation::NoLeader));
    scopes
}

fn moment(name: &str, about: &str, stage: &str, expects: ScopeExpectation) -> Scope {
    Scope {
        activations: vec![Activation::OnApply],
        bounds: ScopeBounds { terms: 5, log: 4, ..ScopeBounds::default() },
        expects,
        ..scope(name, about, stage)
    }
}

fn may_change(words: &[&str]) -> ScopeActions {
    let changes = words.iter().map(|words| (*words).to_owned()).collect();
    ScopeActions { changes, beat: true, ..ScopeActions::default() }
}

impl Scope {
    fn renamed(self, name: &str, about: &str, stage: &str) -> Self {
        let Self { name, about, stage, .. } = scope(name, about, stage);
        Self { name, about, stage, ..self }
    }

    fn with_terms(mut self, terms: Term) -> Self {
        self.bounds.terms = terms;
        self
    }

    fn with_log(mut self, log: u64) -> Self {
        self.bounds.log = log;
        self
    }
}
