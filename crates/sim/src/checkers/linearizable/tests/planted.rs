//! Errors of a broken cluster, each of which must be detected, next to the most similar
//! correct history.

use super::*;

#[test]
fn a_stale_read() {
    let mut story = Story::default();
    story.alone(put("x", "1"), Seen::Done).alone(put("x", "2"), Seen::Done);
    story.alone(get("x"), saw("2")).passes();
    let violation = story.alone(get("x"), saw("1")).fails_at(3);
    assert_eq!(violation.operations.len(), 4);
    assert_eq!(violation.possible, [[Some(word("2"))]]);
}

#[test]
fn a_read_that_overlaps_a_write_may_see_either() {
    for seen in ["1", "2"] {
        let mut story = Story::default();
        story.at(1, Some(2), put("x", "1"), Seen::Done);
        story.at(3, Some(6), put("x", "2"), Seen::Done);
        story.at(4, Some(5), get("x"), saw(seen)).passes();
    }
}

#[test]
fn a_lost_write() {
    let mut story = Story::default();
    story.alone(put("x", "1"), Seen::Done).alone(get("x"), SAW_NONE).fails_at(1);
}

#[test]
fn a_write_seen_before_its_call() {
    let mut story = Story::default();
    story.alone(get("x"), saw("1")).alone(put("x", "1"), Seen::Done).fails_at(0);
}

#[test]
fn an_unknown_write_seen_before_its_call() {
    let mut story = Story::default();
    story.alone(get("x"), saw("1")).unknown(put("x", "1")).fails_at(0);
}

#[test]
fn a_refused_write_seen() {
    let mut story = Story::default();
    story.alone(put("x", "1"), Seen::Refused).passes();
    let violation = story.alone(get("x"), saw("1")).fails_at(1);
    assert_eq!(
        violation.operations[0].seen,
        Seen::Refused,
        "the violation includes the refused write"
    );
}

#[test]
fn a_refused_swap_that_took_effect() {
    let mut story = Story::default();
    story.alone(put("x", "1"), Seen::Done).alone(swap("x", "1", "2"), Seen::Refused);
    story.alone(swap("x", "1", "3"), Seen::Swapped(false)).fails_at(2);
}

/// The swap from 1 to 2 is applied again after another client has restored 1.
#[test]
fn a_swap_applied_twice() {
    let mut story = Story::default();
    story.alone(put("x", "1"), Seen::Done).alone(swap("x", "1", "2"), Seen::Swapped(true));
    story.alone(swap("x", "2", "1"), Seen::Swapped(true)).passes();
    story.alone(get("x"), saw("2")).fails_at(3);
}

#[test]
fn two_swaps_from_the_same_value() {
    let mut story = Story::default();
    story.at(1, Some(2), put("x", "1"), Seen::Done);
    story.at(3, Some(9), swap("x", "1", "2"), Seen::Swapped(true)).passes();
    story.at(4, Some(8), swap("x", "1", "3"), Seen::Swapped(true)).fails_at(1);
}

#[test]
fn a_swap_that_should_have_found_its_value() {
    let mut story = Story::default();
    story.alone(put("x", "1"), Seen::Done);
    story.alone(swap("x", "1", "2"), Seen::Swapped(false)).fails_at(1);
}

#[test]
fn reads_that_go_back_in_time() {
    let mut story = Story::default();
    story.at(1, Some(2), put("x", "1"), Seen::Done);
    story.at(3, Some(20), put("x", "2"), Seen::Done);
    story.at(4, Some(5), get("x"), saw("2"));
    story.at(6, Some(7), get("x"), saw("1")).fails_at(3);
}

#[test]
fn an_unknown_write_appears_once_or_never() {
    let mut story = Story::default();
    story.alone(put("x", "1"), Seen::Done).unknown(put("x", "2"));
    story.alone(get("x"), saw("1")).alone(get("x"), saw("1")).passes();
    story.alone(get("x"), saw("2")).alone(put("x", "3"), Seen::Done).passes();
    story.alone(get("x"), saw("2")).fails_at(6);
}

#[test]
fn an_unknown_swap_appears_once() {
    let mut story = Story::default();
    story.alone(put("x", "1"), Seen::Done).unknown(swap("x", "1", "2"));
    story.alone(get("x"), saw("2")).alone(put("x", "1"), Seen::Done).passes();
    story.alone(get("x"), saw("2")).fails_at(4);
}

/// Unknown writes that only other unknown writes observe.
#[test]
fn a_chain_of_unknown_swaps() {
    let mut story = Story::default();
    story.unknown(put("x", "1")).unknown(swap("x", "1", "2")).unknown(swap("x", "2", "3"));
    story.alone(get("x"), SAW_NONE).alone(get("x"), saw("3")).passes();
    story.alone(get("x"), saw("2")).fails_at(5);
}

#[test]
fn an_unknown_delete() {
    let mut story = Story::default();
    story.alone(put("x", "1"), Seen::Done).unknown(delete("x"));
    story.alone(get("x"), saw("1")).alone(get("x"), SAW_NONE).passes();
    story.alone(get("x"), saw("1")).fails_at(4);
}

/// No client sees the unknown value itself, only that the old value disappeared.
#[test]
fn an_unknown_write_explains_a_failed_swap() {
    let mut story = Story::default();
    story.alone(put("x", "1"), Seen::Done);
    let mut correct = Story { history: story.history.clone(), now: story.now };
    correct.unknown(put("x", "2")).alone(swap("x", "1", "3"), Seen::Swapped(false)).passes();
    story.unknown(put("x", "1")).alone(swap("x", "1", "3"), Seen::Swapped(false)).fails_at(2);
}

#[test]
fn a_read_of_several_keys_is_atomic() {
    let both = || Call::GetSeveral(vec![word("x"), word("y")]);
    let saw_both = |x, y| Seen::Values(vec![Some(word(x)), Some(word(y))]);
    let mut story = Story::default();
    story.alone(put("x", "1"), Seen::Done).alone(put("y", "1"), Seen::Done);
    story.at(10, Some(20), put("x", "2"), Seen::Done);
    story.at(10, Some(20), put("y", "2"), Seen::Done);
    story.at(11, Some(12), both(), saw_both("2", "1")).passes();
    story.at(13, Some(14), both(), saw_both("1", "2")).fails_at(5);
}

#[test]
fn two_unknown_writes_seen_together() {
    let both = || Call::GetSeveral(vec![word("x"), word("y")]);
    let mut story = Story::default();
    story.unknown(put("x", "1")).unknown(put("y", "1")).alone(get("x"), SAW_NONE);
    story.alone(both(), Seen::Values(vec![Some(word("1")), Some(word("1"))])).passes();
    story.alone(both(), Seen::Values(vec![None, Some(word("1"))])).fails_at(4);
}

/// The unknown write could explain the first read, but then not the last one.
#[test]
fn an_unknown_write_is_used_only_where_it_is_needed() {
    let mut story = Story::default();
    story.unknown(put("x", "a"));
    story.at(2, Some(20), put("x", "b"), Seen::Done);
    story.at(3, Some(21), swap("x", "b", "a"), Seen::Swapped(true));
    story.at(4, Some(5), get("x"), saw("a"));
    story.alone(put("x", "c"), Seen::Done).alone(get("x"), saw("a")).passes();
    story.alone(put("x", "d"), Seen::Done).alone(get("x"), saw("a")).fails_at(7);
}

#[test]
fn a_late_error_is_found_after_a_correct_prefix() {
    let mut story = Story::default();
    for _ in 0..1000 {
        story.alone(put("x", "1"), Seen::Done).alone(get("x"), saw("1"));
        story.alone(put("y", "1"), Seen::Done).alone(delete("x"), Seen::Done);
    }
    let violation = story.alone(get("x"), saw("1")).alone(get("x"), saw("9")).fails_at(4000);
    assert_eq!(violation.keys, [word("x")]);
    let text = violation.to_string();
    assert!(text.lines().count() < 50, "{text}");
}

#[test]
fn the_first_of_several_violations_is_reported() {
    let mut story = Story::default();
    story.alone(put("x", "1"), Seen::Done).alone(put("y", "1"), Seen::Done);
    story.alone(get("y"), SAW_NONE).alone(get("x"), SAW_NONE).fails_at(2);
}

#[test]
fn a_reply_of_the_wrong_kind_is_a_violation() {
    let mut story = Story::default();
    story.alone(put("x", "1"), saw("1")).fails_at(0);
    let mut story = Story::default();
    story.at(9, Some(8), get("x"), SAW_NONE).fails_at(0);
}

#[test]
fn running_out_of_steps_is_reported() {
    let mut story = Story::default();
    for value in ["1", "2", "3", "4", "5", "6", "7", "8", "9"] {
        story.at(1, Some(100), put("x", value), Seen::Done);
    }
    story.at(101, Some(102), get("x"), SAW_NONE);
    assert_eq!(check(&story.history, 10).verdict, Verdict::Undecided(vec![word("x")]));
    story.fails_at(9);
}

#[test]
fn a_violation_is_readable() {
    let mut story = Story::default();
    story.alone(put("x", "1"), Seen::Done).unknown(put("x", "2"));
    story.alone(delete("x"), Seen::Refused).alone(swap("x", "1", "3"), Seen::Swapped(true));
    story.history.operations[3].applied = Some(7);
    let violation = story.alone(get("x"), saw("1")).fails_at(4);
    let expected = "\
not linearizable: x
         1 .. 2        client 0    put x = 1                        done
         3 .. ?        client 1    put x = 2                        unknown
         4 .. 5        client 2    delete x                         refused
         6 .. 7        client 3    set x from '1' to 3              swapped (at index 7)
=>       8 .. 9        client 4    get x                            saw '1'
no order explains that client 4 saw '1'; x may have been '3'";
    assert_eq!(violation.to_string(), expected);
}
