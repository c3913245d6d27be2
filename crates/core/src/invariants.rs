//! What must hold for one member after every step. For tests and simulators; too expensive
//! for production.

use crate::membership::history::ActiveMembership;
use crate::progress::Flow;
use crate::role::Role;
use crate::{Input, Raft};

/// Checks everything that one member can know about itself. The error describes the
/// violated invariant.
pub fn check(raft: &Raft) -> Result<(), String> {
    marks_are_in_order(raft)?;
    log_hangs_together(raft)?;
    memberships_fit_the_log(raft)?;
    role_is_allowed(raft)?;
    ensure(raft.is_idle_mark_right(), || "marked as idle, and has work".into())?;
    leader_is_consistent(raft)?;
    hibernation_changes_nothing(raft)
}

/// A member that is packed, ticked and woken equals one that was only ticked.
fn hibernation_changes_nothing(raft: &Raft) -> Result<(), String> {
    let Some(mut packed) = raft.hibernate() else { return Ok(()) };
    ensure(packed.wake() == *raft, || "woken member differs from the packed one".into())?;
    // Timeouts may be very long.
    const TICKS_MAX: usize = 64;
    let mut ticked = raft.clone();
    let mut ticks = 0;
    while ticks < TICKS_MAX && packed.tick() {
        ensure(ticked.step(Input::Tick).is_ok(), || "a tick was refused".into())?;
        ticks += 1;
    }
    ensure(packed.wake() == ticked, || "woken member differs from the ticked one".into())?;
    let ends = !ticked.tick_idle();
    ensure(ends || ticks == TICKS_MAX, || "a hibernated member wakes too early".into())
}

fn ensure(holds: bool, what: impl FnOnce() -> String) -> Result<(), String> {
    if holds { Ok(()) } else { Err(what()) }
}

/// I9: base ≤ snapshot ≤ applied ≤ applying ≤ commit ≤ last, saved ≤ handed ≤ last.
fn marks_are_in_order(raft: &Raft) -> Result<(), String> {
    let log = &raft.log;
    let last = log.last().index;
    ensure(log.base().index <= raft.snapshot.id.index, || {
        format!("log begins at {} after the snapshot {}", log.base(), raft.snapshot.id)
    })?;
    ensure(raft.snapshot.id.index <= log.applied || raft.installing.is_some(), || {
        format!("snapshot {} is beyond applied {}", raft.snapshot.id, log.applied)
    })?;
    ensure(log.applied <= log.applying, || {
        format!("applied {} is beyond applying {}", log.applied, log.applying)
    })?;
    ensure(log.applying <= log.commit && log.commit <= last, || {
        format!("applying {} commit {} last {last}", log.applying, log.commit)
    })?;
    ensure(log.saved() <= log.submitted() && log.submitted() <= last, || {
        format!("saved {} submitted {} last {last}", log.saved(), log.submitted())
    })?;
    ensure(
        raft.config.apply_unsaved || raft.installing.is_some() || log.applying <= log.saved(),
        || format!("applying {} is beyond saved {}", log.applying, log.saved()),
    )
}

fn log_hangs_together(raft: &Raft) -> Result<(), String> {
    let log = &raft.log;
    ensure(log.tail_next() == log.last().index + 1, || {
        format!("tail ends before {}, log at {}", log.tail_next(), log.last())
    })?;
    for (index, entry) in (log.tail_first()..).zip(log.held()) {
        ensure(entry.id.index == index, || format!("entry {} is at index {index}", entry.id))?;
        ensure(log.holds(entry.id), || format!("entry {} has another term", entry.id))?;
    }
    let mut before = log.base();
    for start in log.terms() {
        ensure(start.index > before.index && start.term >= before.term, || {
            format!("term begins at {start} after {before}")
        })?;
        before = *start;
    }
    ensure(before.term <= log.last().term, || format!("{before} after {}", log.last()))
}

/// I8 for one member: the known memberships are exactly those in the log.
fn memberships_fit_the_log(raft: &Raft) -> Result<(), String> {
    let counts = raft.memberships.active(raft.config.activation, raft.log.applying);
    ensure(raft.active == ActiveMembership::new(counts, &raft.config), || {
        format!("{} counts, noticed {}", counts.id, raft.active.logged.id)
    })?;
    let newest = raft.memberships.newest();
    ensure(newest.id.index <= raft.log.last().index, || {
        format!("membership {} is beyond the log", newest.id)
    })?;
    for entry in raft.log.held() {
        if let Some(change) = entry.change()
            && entry.id.index > raft.snapshot.id.index
        {
            let known = raft.memberships.at(entry.id.index);
            ensure(known.id == entry.id && known.membership == change.membership, || {
                format!("membership of {} is not the known one {}", entry.id, known.id)
            })?;
        }
    }
    Ok(())
}

/// I11: only a voter campaigns or leads; a leader may be leaving.
fn role_is_allowed(raft: &Raft) -> Result<(), String> {
    match &raft.role {
        Role::Follower => ensure(raft.leader != Some(raft.config.id), || {
            "a follower considers itself the leader".into()
        }),
        Role::PreCandidate(_) | Role::Candidate(_) => {
            ensure(raft.leader.is_none(), || "a candidate has a leader".into())?;
            let pre = matches!(raft.role, Role::PreCandidate(_));
            ensure(pre || raft.vote == Some(raft.config.id), || {
                "a candidate did not vote for itself".into()
            })
        }
        Role::Leader(_) => ensure(raft.leader == Some(raft.config.id), || {
            "a leader considers another member the leader".into()
        }),
    }
}

fn leader_is_consistent(raft: &Raft) -> Result<(), String> {
    let Some(leader) = raft.role.leader() else { return Ok(()) };
    let last = raft.log.last();
    ensure(last.term == raft.term, || format!("leads term {} with log {last}", raft.term))?;
    for peer in &leader.peers {
        let progress = &peer.progress;
        ensure(progress.matched < progress.next && progress.next <= last.index + 1, || {
            format!("{} match {} next {} last {last}", peer.id, progress.matched, progress.next)
        })?;
        ensure(progress.flow == Flow::Replicate || progress.inflight.count() == 0, || {
            format!("{} has appends in flight in {:?}", peer.id, progress.flow)
        })?;
        let own = peer.id == raft.config.id;
        ensure(!own || progress.matched <= raft.log.saved(), || {
            format!("counts itself to {} with {} saved", progress.matched, raft.log.saved())
        })?;
    }
    ensure(leader.peers.is_sorted_by_key(|peer| peer.id), || "peers are not sorted".into())
}
