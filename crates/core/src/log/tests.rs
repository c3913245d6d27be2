use super::*;

fn log(base: (Term, Index), ids: &[(Term, Index)]) -> Log {
    let entries = ids.iter().map(|(term, index)| Entry::command(*term, *index, "x")).collect();
    Log::new(EntryId::new(base.0, base.1), Vec::new(), &entries).unwrap()
}

#[test]
fn terms_are_known_over_the_whole_log() {
    let log = log((1, 2), &[(1, 3), (1, 4), (3, 5), (3, 6), (4, 7)]);
    let terms: Vec<_> = (0..10).map(|index| log.term(index)).collect();
    let want = [None, None, Some(1), Some(1), Some(1), Some(3), Some(3), Some(4), None, None];
    assert_eq!(terms, want);
}

#[test]
fn terms_below_the_tail_come_from_the_boot() {
    let tail: Entries = [Entry::command(3, 8, "x")].into_iter().collect();
    let starts = vec![EntryId::new(1, 3), EntryId::new(2, 6)];
    let mut log = Log::new(EntryId::new(1, 2), starts, &tail).unwrap();
    assert_eq!(log.term(5), Some(1));
    assert_eq!(log.term(7), Some(2));
    assert_eq!(log.last(), EntryId::new(3, 8));
    assert!(matches!(log.from(4, u64::MAX), LogRead::OnDisk));
    assert!(matches!(log.from(8, u64::MAX), LogRead::InMemory(entries) if entries.len() == 1));
    // A conflict may reach below the tail.
    log.truncate(5);
    assert_eq!(log.last(), EntryId::new(1, 4));
    log.push(Entry::command(5, 5, "y"));
    assert_eq!(log.term(5), Some(5));
    assert_eq!(log.tail_first(), 5);
}

#[test]
fn boot_refuses_a_log_with_gaps_or_decreasing_terms() {
    let entries = |ids: &[(Term, Index)]| {
        ids.iter().map(|(term, index)| Entry::command(*term, *index, "x")).collect::<Entries>()
    };
    let base = EntryId::new(2, 2);
    assert_eq!(Log::new(base, vec![], &entries(&[(2, 3), (2, 5)])).unwrap_err(), 4);
    assert_eq!(Log::new(base, vec![], &entries(&[(2, 4)])).unwrap_err(), 3);
    assert_eq!(Log::new(base, vec![], &entries(&[(1, 3)])).unwrap_err(), 3);
    assert_eq!(Log::new(base, vec![], &entries(&[(2, 2)])).unwrap_err(), 2);
    assert_eq!(Log::new(base, vec![EntryId::new(3, 4)], &entries(&[(3, 5)])).unwrap_err(), 4);
}

/// The definition, one index at a time.
fn newest_not_above_slowly(log: &Log, index: Index, term: Term) -> EntryId {
    for index in (1..=index).rev() {
        match log.term(index) {
            None => return EntryId::new(0, index),
            Some(ours) if ours <= term => return EntryId::new(ours, index),
            Some(_) => {}
        }
    }
    EntryId::ZERO
}

#[test]
fn conflict_hint_equals_a_linear_search() {
    let logs = [
        log((0, 0), &[]),
        log((0, 0), &[(1, 1), (1, 2), (2, 3), (5, 4), (5, 5)]),
        log((3, 4), &[(3, 5), (3, 6), (6, 7), (7, 8)]),
        log((3, 4), &[]),
    ];
    for log in &logs {
        for index in 0..12 {
            for term in 0..9 {
                let want = newest_not_above_slowly(log, index, term);
                assert_eq!(log.newest_not_above(index, term), want, "{log:?} {index} {term}");
            }
        }
    }
}

#[test]
fn trimming_keeps_the_terms_of_what_is_left() {
    for to in 2..=7 {
        let whole = log((1, 2), &[(1, 3), (1, 4), (3, 5), (3, 6), (4, 7)]);
        let mut trimmed = whole.clone();
        trimmed.trim(to);
        for index in to..=8 {
            assert_eq!(trimmed.term(index), whole.term(index), "trim {to} term {index}");
        }
        assert_eq!(trimmed.base().index, to);
        let rest: Vec<_> =
            whole.held().filter(|entry| entry.id.index > to).map(|entry| entry.id).collect();
        let pairs: Vec<_> = rest.iter().map(|id| (id.term, id.index)).collect();
        let mut fresh = log((whole.term(to).unwrap(), to), &pairs);
        fresh.commit = trimmed.commit;
        fresh.applying = trimmed.applying;
        fresh.applied = trimmed.applied;
        assert_eq!(trimmed, fresh);
    }
}

#[test]
fn truncated_entries_are_not_saved() {
    let mut log = log((1, 2), &[(1, 3), (1, 4), (1, 5)]);
    assert_eq!(log.saved(), 5);
    log.truncate(4);
    assert_eq!(log.saved(), 3);
    log.push(Entry::command(2, 4, "x"));
    assert!(log.has_unsaved());
    assert_eq!(log.take_unsaved().len(), 1);
    assert_eq!(log.saved(), 3);
}

#[test]
fn applying_stops_at_the_limit_but_always_gives_one() {
    let mut log = log((1, 2), &[(1, 3), (1, 4), (1, 5)]);
    log.commit = 5;
    let first = log.take_to_apply(5, 1);
    assert_eq!(first.len(), 1);
    assert!(!log.has_to_apply(5));
    log.applied_to(3);
    assert_eq!(log.take_to_apply(5, u64::MAX).len(), 2);
}
