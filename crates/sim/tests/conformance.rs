//! The recorded traces of etcd-io/raft, and a few local traces that test the runner where
//! the recorded ones are not available.

use std::io::Write;
use std::path::Path;

use quorate_sim::conformance::{self, TraceFailure};

/// The recorded traces are data outside this repository.
#[test]
fn recorded_traces() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/conformance");
    if !dir.is_dir() {
        // Written directly to stderr: the test harness hides the output of passing tests.
        let text = format!("SKIPPED recorded_traces: no folder {}\n", dir.display());
        std::io::stderr().write_all(text.as_bytes()).unwrap();
        return;
    }
    let report = conformance::run_dir(&dir).unwrap();
    print!("{report}");
    assert_eq!(report.failed(), 0, "\n{report}");
}

fn run_trace(path: &str, trace: &str) -> Result<(), TraceFailure> {
    conformance::run_text(Path::new(path), trace)
}

const QUORUM: &str = "\
# Four voters: three have to agree.
committed cfg=(1, 2, 3, 4) idx=(7,5,_,6)
----
5

committed cfg=(1,2) cfgj=(2,3) idx=(9,8,4)
----
4

committed cfgj=zero
----
∞

vote cfg=(1,2,3) cfgj=(3,4,5) votes=(y,y,_,y,y)
----
VoteWon

vote cfg=(5,6) votes=(y,n)
----
VoteLost
";

const ALGEBRA: &str = "\
simple
v1
----
voters=(1)
1: StateProbe match=0 next=1

simple
v2 v3
----
more than one voter changed without entering joint config

enter-joint autoleave=true
v2 l1 l4
----
voters=(2)&&(1) learners=(4) learners_next=(1) autoleave
1: StateProbe match=0 next=1
2: StateProbe match=0 next=2
4: StateProbe match=0 next=2 learner

leave-joint
----
voters=(2) learners=(1 4)
1: StateProbe match=0 next=1 learner
2: StateProbe match=0 next=2
4: StateProbe match=0 next=2 learner
";

const INTERACTION: &str = r#"
add-nodes 2 voters=(1,2) index=5
----
ok

propose 1 early
----
raft proposal dropped

campaign 1
----
ok

process-ready 1 2
----
> 1 handling Ready
  Ready MustSync=true:
  Lead:0 State:StateCandidate
  HardState Term:1 Vote:1 Commit:5
  Messages:
  1->2 MsgVote Term:1 Log:1/5
> 2 handling Ready
  <empty Ready>

deliver-msgs 1 drop=(2)
----
dropped: 1->2 MsgVote Term:1 Log:1/5

deliver-msgs 1 2
----
no messages

campaign 1
----
ok

stabilize log-level=none
----
ok

propose 1 "it's"
----
ok

stabilize 1
----
> 1 handling Ready
  Ready MustSync=true:
  Entries:
  2/7 EntryNormal "\"it's\""
  Messages:
  1->2 MsgApp Term:2 Log:2/6 Commit:6 Entries:[2/7 EntryNormal "\"it's\""]

raft-log 2
----
2/6 EntryNormal ""

raft-state
----
1: StateLeader (Voter) Term:2 Lead:1
2: StateFollower (Voter) Term:2 Lead:1

status 1
----
1: StateReplicate match=7 next=8
2: StateReplicate match=6 next=8 inflight=1
"#;

#[test]
fn the_folder_or_the_commands_select_the_kind_of_trace() {
    for path in ["quorum/own.txt", "traces/own.txt", "own.txt"] {
        assert_eq!(run_trace(path, QUORUM), Ok(()));
    }
    for path in ["confchange/own.txt", "elsewhere/own.txt"] {
        assert_eq!(run_trace(path, ALGEBRA), Ok(()));
    }
    for path in ["interaction/own.txt", "own.txt"] {
        assert_eq!(run_trace(path, INTERACTION), Ok(()));
    }
    // In the wrong folder the commands are unknown.
    assert!(run_trace("interaction/own.txt", QUORUM).is_err());
}

#[test]
fn a_trace_that_differs_fails_with_a_diff() {
    let wrong = INTERACTION.replace("Vote:1 Commit:5", "Vote:2 Commit:5");
    let failure = run_trace("interaction/own.txt", &wrong).unwrap_err();
    assert_eq!((failure.line, failure.command.as_str()), (14, "process-ready 1 2"));
    let diff = failure.to_string();
    assert!(diff.contains("-   HardState Term:1 Vote:2 Commit:5"), "{diff}");
    assert!(diff.contains("+   HardState Term:1 Vote:1 Commit:5"), "{diff}");
    assert!(run_trace("quorum/own.txt", &QUORUM.replace("VoteLost", "VotePending")).is_err());
    assert!(run_trace("confchange/own.txt", &ALGEBRA.replace("next=2 learner", "next=2")).is_err());
}

#[test]
fn an_invalid_trace_fails_with_a_reason() {
    let broken = [
        ("", "holds no command"),
        ("campaign 1\nok\n", "no ---- follows"),
        ("campaign 1\n----\nok\n", "there is no member 1"),
        ("campaign 0\n----\nok\n", "there is no member 0"),
        ("campaign\n----\nok\n", "expected one member id"),
        ("bogus 1\n----\nok\n", "unknown command `bogus`"),
        ("add-nodes 1 voters=(1\n----\nok\n", "no closing parenthesis"),
        ("add-nodes 1 voters=(1) index=3 colour=red\n----\nok\n", "unknown argument `colour`"),
        ("add-nodes 18446744073709551615\n----\nok\n", "at most 100 members"),
        ("add-nodes 1 voters=(1) index=18446744073709551615\n----\nok\n", "cannot start"),
        ("deliver-msgs type=MsgBogus\n----\nok\n", "unknown message type"),
        ("vote cfg=(1,2) votes=(y)\n----\nVoteWon\n", "1 values for 2 voters"),
        ("simple\nw1\n----\nok\n", "operation `w1`"),
        ("simple\né\n----\nok\n", "operation `é`"),
    ];
    for (trace, why) in broken {
        let failure = run_trace("own.txt", trace).unwrap_err();
        assert!(failure.what.contains(why), "{trace}: {}", failure.what);
    }
}

#[test]
fn a_folder_without_traces_is_an_error() {
    let missing = Path::new(env!("CARGO_MANIFEST_DIR")).join("no-such-folder");
    let why = conformance::run_dir(&missing).unwrap_err().to_string();
    assert!(why.contains("cannot read"), "{why}");
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let why = conformance::run_dir(&sources).unwrap_err().to_string();
    assert!(why.contains("no trace"), "{why}");
}
