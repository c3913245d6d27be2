//! Random histories: correct ones pass, and small ones get the same verdict as by brute force.

use super::brute_force::is_linearizable;
use super::generate::{Random, Shape, TYPICAL, history};
use super::*;

#[test]
fn correct_histories_pass() {
    for seed in 0..300 {
        let mut random = Random(seed);
        let shape = Shape {
            operations: 400,
            keys: 1 + random.below(20),
            values: [0, 3, 40][random.below(3) as usize],
            overlap: random.below(6),
            unknown_percent: random.below(10),
            refused_percent: random.below(10),
            swap_percent: random.below(40),
            several_percent: [0, 0, 5][random.below(3) as usize],
            with_index: random.percent(50),
        };
        let report = check(&history(&shape, &mut random), STEPS_MAX);
        assert_eq!(report.verdict, Verdict::Linearizable, "seed {seed}, {shape:?}");
    }
}

#[test]
fn indexes_decide_correct_histories() {
    let shape = Shape { operations: 20_000, overlap: 100, with_index: true, ..TYPICAL };
    let report = check(&history(&shape, &mut Random(1)), STEPS_MAX);
    assert_eq!(report.verdict, Verdict::Linearizable);
    assert!(report.by_index > 45, "{report:?}");
}

const SMALL: Shape = Shape {
    operations: 7,
    keys: 2,
    values: 3,
    overlap: 3,
    unknown_percent: 35,
    refused_percent: 10,
    swap_percent: 35,
    several_percent: 20,
    with_index: false,
};

/// Small histories, about half of them with a changed reply.
fn small(seed: u64) -> History {
    let mut random = Random(seed);
    let shape = Shape {
        operations: 2 + random.below(6) as usize,
        keys: 1 + random.below(2),
        overlap: random.below(5),
        with_index: random.percent(50),
        ..SMALL
    };
    let mut history = history(&shape, &mut random);
    if random.percent(60) {
        let index = random.below(history.operations.len() as u64) as usize;
        tamper(&mut history.operations[index], &mut random);
    }
    history
}

fn tamper(operation: &mut ClientOperation, random: &mut Random) {
    let other = Some(Bytes::from(format!("v{}", random.below(3)))).filter(|_| random.percent(80));
    operation.applied = operation.applied.map(|index| index + random.below(3));
    match &mut operation.seen {
        Seen::Swapped(swapped) => *swapped = !*swapped,
        Seen::Value(value) => *value = other,
        Seen::Values(values) => values[0] = other,
        Seen::Done => operation.seen = Seen::Refused,
        Seen::Refused | Seen::Nothing => operation.called += random.below(30),
    }
}

#[test]
fn small_histories_get_the_same_verdict_as_by_brute_force() {
    let (mut right, mut wrong) = (0, 0);
    for seed in 0..60_000 {
        let history = small(seed);
        let expected = is_linearizable(&history);
        let verdict = check(&history, STEPS).verdict;
        assert_eq!(verdict == Verdict::Linearizable, expected, "seed {seed}: {history:#?}");
        match verdict {
            Verdict::Linearizable => right += 1,
            Verdict::Violation(violation) => {
                wrong += 1;
                assert_minimal(&violation, seed);
            }
            Verdict::Undecided(keys) => panic!("seed {seed}: undecided {keys:?}"),
        }
    }
    assert!(right > 10_000 && wrong > 10_000, "{right} right, {wrong} wrong");
}

/// The reported operations are a violation, and without the unexplained reply they are not.
fn assert_minimal(violation: &Violation, seed: u64) {
    let mut history = History { operations: violation.operations.clone() };
    assert!(!is_linearizable(&history), "seed {seed}: {violation}");
    let end = history.operations[violation.unexplained].returned;
    history.operations[violation.unexplained].returned = None;
    for operation in &mut history.operations {
        if operation.returned >= end && operation.seen != Seen::Refused {
            operation.returned = None;
        }
    }
    assert!(is_linearizable(&history), "seed {seed}: {violation}");
}

/// Wrong indexes disable the fast path and do not change the verdict.
#[test]
fn wrong_indexes_change_no_verdict() {
    for seed in 0..5_000 {
        let mut history = small(seed);
        let verdict = is_linearizable(&history);
        let mut random = Random(seed);
        for operation in &mut history.operations {
            operation.applied = random.percent(90).then(|| random.below(8));
        }
        let with_wrong_indexes = check(&history, STEPS).verdict == Verdict::Linearizable;
        assert_eq!(with_wrong_indexes, verdict, "seed {seed}: {history:#?}");
    }
}
