//! The actions of runs that are about one thing: see [`RunSettings::focus`].

use super::action::{Action, ActionKind, ActionTarget};
use super::setting::{RunSettings, TICK};
use crate::random::Random;

/// Situations in which a rule about leases matters, one after the other.
pub(super) fn about_leases(setting: &RunSettings, random: &mut Random) -> Vec<Action> {
    let election = setting.election_ticks * TICK;
    let end = setting.ticks * TICK;
    let mut actions = Vec::new();
    let mut at = 3 * election;
    while at < end {
        let mut add = |after: u64, what, who, number| {
            actions.push(Action { at: at + after, what, who, number });
        };
        // m1, m2 and m3 in some order: one of them leads.
        let first = random.below(3);
        let second = (first + 1 + random.below(2)) % 3;
        let third = 3 - first - second;
        let member = ActionTarget::Member;
        let pattern = random.below(11);
        let longer = if matches!(pattern, 8 | 9) { 4 * election } else { 0 };
        let later = longer + election + random.below(2 * election);
        match pattern {
            // The leader is cut off; the others elect another one.
            0 | 1 => add(0, ActionKind::Isolate, ActionTarget::Leader, 0),
            // It hands over and does not hear what comes of it.
            2 => {
                add(0, ActionKind::Transfer, ActionTarget::Leader, random.below(3));
                add(1, ActionKind::Deafen, ActionTarget::Leader, 0);
            }
            // Two members do not hear each other. The third one is asked to campaign, or
            // forgets what it promised.
            3 | 4 => {
                add(0, ActionKind::CutLink, member(first), second);
                add(0, ActionKind::CutLink, member(second), first);
                add(later, ActionKind::Campaign, member(third), 0);
            }
            5 => {
                add(0, ActionKind::CutLink, member(first), second);
                add(0, ActionKind::CutLink, member(second), first);
                add(later, ActionKind::Crash, member(third), 0);
                add(later + 1, ActionKind::Restart, member(third), 0);
            }
            // The same, and the leader is not heard any more: it relies on what the third one
            // promised before its start.
            6 | 7 => {
                add(0, ActionKind::CutLink, member(first), second);
                add(0, ActionKind::CutLink, member(second), first);
                add(later, ActionKind::Mute, ActionTarget::Leader, 0);
                add(later + 1, ActionKind::Crash, member(third), 0);
                add(later + 2, ActionKind::Restart, member(third), 0);
                add(later + 3 + random.below(election / 2), ActionKind::Campaign, member(first), 0);
                add(
                    later + 3 + random.below(election / 2),
                    ActionKind::Campaign,
                    member(second),
                    0,
                );
            }
            8 | 9 => {
                let all = [first, second, third];
                overtaken_lease(setting, random, all, &mut add);
            }
            // Replies arrive late, while the others have another leader.
            _ => {
                let other = (second + 3 - first) % 3;
                add(0, ActionKind::SlowLink, member(first), 8 * second + 2 * other);
                add(0, ActionKind::SlowLink, member(third), 8 * second + 2 * other);
                add(later, ActionKind::Mute, ActionTarget::Leader, 0);
            }
        }
        let over = later + election + random.below(election);
        add(over, ActionKind::Reconnect, member(0), 0);
        for place in 0..3 {
            add(over, ActionKind::Relieve, member(place), 0);
            add(over, ActionKind::Restart, member(place), 0);
        }
        at += over + election + random.below(2 * election);
    }
    actions
}

/// A leader is cut off so briefly that it keeps its role. Meanwhile one of the others becomes a
/// candidate, and what it sends to the third member arrives when that one follows the leader again:
/// first, if it overtakes the request for a vote, the refusal of a pre-vote, by which the third
/// member enters the candidate's term.
fn overtaken_lease(
    setting: &RunSettings,
    random: &mut Random,
    [leader, voter, candidate]: [u64; 3],
    add: &mut impl FnMut(u64, ActionKind, ActionTarget, u64),
) {
    let election = setting.election_ticks * TICK;
    let member = ActionTarget::Member;
    add(0, ActionKind::Transfer, ActionTarget::Leader, leader);
    let cut = 2 * election + random.below(election);
    add(cut, ActionKind::Isolate, member(leader), 0);
    // Their promises to the leader end after an election timeout, by their own clocks.
    let campaign = cut + election + random.below(election / 3);
    add(campaign, ActionKind::Campaign, member(candidate), 0);
    // By one election timeout, the least that this fault has: 0, 10 and 20 mean so.
    add(campaign + 1, ActionKind::SlowLink, member(candidate), 10 * voter);
    let asked = campaign + 1 + random.below(4 * setting.delay);
    add(asked, ActionKind::Campaign, member(voter), 0);
    let back = asked + 4 * setting.delay + random.below(election / 4);
    add(back, ActionKind::Reconnect, member(0), 0);
    add(back, ActionKind::CutLink, member(leader), candidate);
    add(back, ActionKind::CutLink, member(candidate), leader);
}

/// Changes at the leader, one after the other, some of them interrupted.
pub(super) fn about_commits(setting: &RunSettings, random: &mut Random) -> Vec<Action> {
    let end = setting.ticks * TICK;
    let changes = [
        ActionKind::SetVoters,
        ActionKind::SetVoters,
        ActionKind::RawChange,
        ActionKind::JointImplicit,
        ActionKind::JointExplicit,
        ActionKind::LeaveJoint,
        ActionKind::Goal,
        ActionKind::AddLearner,
    ];
    let faults = [
        ActionKind::Crash,
        ActionKind::Restart,
        ActionKind::Restart,
        ActionKind::Isolate,
        ActionKind::CutLink,
        ActionKind::Reconnect,
        ActionKind::Campaign,
        ActionKind::Transfer,
    ];
    let mut actions = Vec::new();
    let mut at = 2 * setting.election_ticks * TICK;
    while at < end {
        let faulty = random.per_mille(300);
        if random.per_mille(60) {
            // The heir may have to apply a membership first.
            let number = random.below(1 << 16);
            let after = random.below(2 * TICK);
            let who = ActionTarget::Leader;
            actions.push(Action { at, what: ActionKind::SetVoters, who, number });
            let what = ActionKind::Transfer;
            actions.push(Action { at: at + after, what, who, number: number / 7 });
        }
        let kinds = if faulty { &faults } else { &changes };
        let leader = random.per_mille(if faulty { 300 } else { 900 });
        let who =
            if leader { ActionTarget::Leader } else { ActionTarget::Member(random.below(12)) };
        let number = random.below(1 << 16);
        actions.extend(random.pick(kinds).map(|what| Action { at, what: *what, who, number }));
        at += 1 + random.below(4 * TICK);
    }
    actions
}
