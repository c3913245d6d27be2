//! Gray failures: a disk or a state machine that stands still on a member that otherwise
//! runs. The member notices it by counting ticks, tells its leader, does not campaign, and
//! as a leader hands over, or steps down when no member takes over.

use std::fmt;

use crate::role::{Leader, Role};
use crate::{Accepted, Dropped, Event, Index, MemberId, Raft, SaveId, progress::Peer};

/// Which work of a member has made no progress for [`Config::stall_timeouts`].
///
/// [`Config::stall_timeouts`]: crate::Config::stall_timeouts
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(default, deny_unknown_fields))]
pub struct Stalled {
    /// The oldest save is not durable.
    pub disk: bool,
    /// The state machine does not apply the entries, or install the snapshot, that are due.
    pub machine: bool,
}

impl Stalled {
    /// Neither stands still.
    pub const NO: Self = Self { disk: false, machine: false };

    /// Whether anything stands still.
    pub fn any(self) -> bool {
        self.disk || self.machine
    }
}

/// `disk`, `machine`, `disk,machine` or `no`.
impl fmt::Display for Stalled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match (self.disk, self.machine) {
            (false, false) => "no",
            (true, false) => "disk",
            (false, true) => "machine",
            (true, true) => "disk,machine",
        })
    }
}

/// Counts for how many ticks the disk and the state machine have made no progress.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Default)]
pub(crate) struct StallTimer {
    disk: Standstill,
    machine: Standstill,
    /// As it was last reported in an event.
    reported: Stalled,
    /// A snapshot that is durable and that the state machine has not reported as installed,
    /// and what the machine had applied before.
    machine_installs: Option<(Index, Index)>,
}

/// One piece of unfinished work and its age.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
struct Standstill {
    work: Option<u64>,
    ticks: u32,
}

impl Standstill {
    const NONE: Self = Self { work: None, ticks: 0 };

    fn tick(&mut self, work: Option<u64>, limit: u32) {
        let ticks = if work.is_some() && work == self.work { self.ticks + 1 } else { 0 };
        *self = Self { work, ticks: ticks.min(limit) };
    }

    fn lasts(self, work: Option<u64>, limit: u32) -> bool {
        limit > 0 && work.is_some() && work == self.work && self.ticks >= limit
    }
}

impl Raft {
    /// Which work of this member stands still.
    pub fn stalled(&self) -> Stalled {
        let limit = self.config.stall_limit_ticks();
        Stalled {
            disk: self.stall.disk.lasts(self.oldest_save(), limit),
            machine: self.stall.machine.lasts(self.oldest_apply(), limit),
        }
    }

    /// Only counts; nothing to do for a member without unfinished work.
    #[inline]
    pub(crate) fn tick_stall(&mut self) {
        let limit = self.config.stall_limit_ticks();
        if limit == 0 {
            return;
        }
        let (save, apply) = (self.oldest_save(), self.oldest_apply());
        if save.is_none() && apply.is_none() && !self.stall.reported.any() {
            (self.stall.disk, self.stall.machine) = (Standstill::NONE, Standstill::NONE);
            return;
        }
        self.stall.disk.tick(save, limit);
        self.stall.machine.tick(apply, limit);
        let stalled = self.stalled();
        if stalled != self.stall.reported {
            self.stall.reported = stalled;
            self.out.rare().events.push(Event::Stalled(stalled));
        }
    }

    /// Neither the disk nor the state machine has anything to do.
    pub(crate) fn is_work_finished(&self) -> bool {
        self.installing.is_none()
            && self.oldest_save().is_none()
            && self.oldest_apply().is_none()
            && !self.stall.reported.any()
    }

    /// A long command is not a standstill: otherwise a client could depose the leader with a
    /// deletion of very many keys.
    /// Shown by scenarios/stall_long_command_keeps_the_leader.txt.
    pub(crate) fn on_applying(&mut self) -> Result<Accepted, Dropped> {
        self.stall.machine.ticks = 0;
        Ok(Accepted::Done)
    }

    fn oldest_save(&self) -> Option<u64> {
        self.saves.in_flight.front().map(|save| {
            let SaveId(id) = save.id;
            id
        })
    }

    /// What the state machine has applied, if it still has to apply more. A snapshot that is
    /// not durable is work of the disk.
    fn oldest_apply(&self) -> Option<u64> {
        let due = self.installing.is_none()
            && (self.stall.machine_installs.is_some()
                || self.log.applied < self.log.may_apply_to(self.config.apply_unsaved));
        due.then(|| self.applied_by_machine())
    }

    /// Up to where the state machine itself has applied the log. Different from the applied
    /// index of the log while the machine installs a durable snapshot.
    pub(crate) fn applied_by_machine(&self) -> Index {
        self.stall.machine_installs.map_or(self.log.applied, |(_, before)| before)
    }

    /// A snapshot is durable; the state machine is to install it next.
    pub(crate) fn expect_machine_install(&mut self, index: Index) {
        if self.config.stall_timeouts > 0 {
            self.stall.machine_installs = Some((index, self.applied_by_machine()));
        }
    }

    /// The state machine has reached this index. True when that ends an installation.
    pub(crate) fn note_machine_installed(&mut self, index: Index) -> bool {
        self.stall.machine_installs.take_if(|(snapshot, _)| *snapshot <= index).is_some()
    }

    /// A stalled member does not campaign: as a leader it would only hand over again.
    /// A candidate needs its disk for the vote; with a stalled machine it campaigns when no
    /// other member has won for as long as the stall limit, because it may be the only one
    /// that can win.
    /// Shown by scenarios/stall_member_does_not_campaign.txt and
    /// scenarios/stall_machine_campaigns_as_last_resort.txt.
    pub(crate) fn stall_delays_campaign(&self) -> bool {
        let stalled = self.stalled();
        let waited = self.timer.elapsed >= self.config.stall_limit_ticks();
        stalled.disk || stalled.machine && !waited
    }

    /// Whether a campaign is refused because of a stall. `requested`: by the leader or the
    /// operator, so that another member can be chosen.
    pub(crate) fn stall_forbids_campaign(&self, requested: bool) -> bool {
        let stalled = self.stalled();
        stalled.disk || stalled.machine && requested
    }

    /// A stalled leader hands over to the healthiest voter. If that one does not take over
    /// within an election timeout, it steps down, so that the others elect one. It leads on
    /// when the others could not: a leader that stands still is better than none.
    /// Shown by scenarios/stall_leader_disk_hands_over.txt and
    /// scenarios/stall_leader_steps_down.txt.
    pub(crate) fn hand_over_if_stalled(&mut self) {
        let stalled = self.stalled();
        let Role::Leader(leader) = &mut self.role else { return };
        if !stalled.any() {
            leader.handing_over_since = None;
            return;
        }
        let Some(leader) = self.role.leader() else { return };
        // A leader without a vote leaves as soon as its successors know the membership.
        let votes = self.membership().is_voter(self.config.id);
        let successor = if votes { self.healthiest_successor(leader, stalled) } else { None };
        let successor = successor.filter(|_| self.quorum_can_vote(leader, stalled));
        let (clock, timeout) = (leader.clock, u64::from(self.config.election_ticks));
        let (handing_over_since, open) = (leader.handing_over_since, leader.transfer);
        let Role::Leader(leader) = &mut self.role else { return };
        match (successor, handing_over_since) {
            (None, _) => leader.handing_over_since = None,
            (Some(successor), None) => {
                leader.handing_over_since = Some(clock);
                if open.is_none() {
                    let _: Result<_, Dropped> = self.on_transfer(successor);
                }
            }
            (Some(_), Some(since)) if clock - since >= timeout => {
                self.become_follower(self.term, None);
            }
            _ => {}
        }
    }

    /// The healthiest voter. Its state machine must be past the command that this leader's is
    /// stuck at: a command may take long on every member.
    /// Shown by scenarios/stall_same_command_everywhere.txt.
    fn healthiest_successor(&self, leader: &Leader, stalled: Stalled) -> Option<MemberId> {
        let applied = self.applied_by_machine();
        self.healthiest_voter(leader, |peer| !stalled.machine || peer.applied > applied)
    }

    /// The healthiest of the other voters that are ready and fit.
    pub(crate) fn healthiest_voter(
        &self,
        leader: &Leader,
        fit: impl Fn(&Peer) -> bool,
    ) -> Option<MemberId> {
        let membership = self.membership();
        let ready = leader.peers.iter().filter(|peer| {
            peer.id != self.config.id && membership.is_voter(peer.id) && self.is_ready(leader, peer)
        });
        let healthiest = ready.filter(|peer| fit(peer)).max_by_key(|peer| {
            let stays = membership.incoming().contains(peer.id);
            (stays, peer.progress.matched, peer.applied, std::cmp::Reverse(peer.id))
        });
        healthiest.map(|peer| peer.id)
    }

    /// A quorum is live with disks that can record a vote. This member's own disk counts
    /// like the others'.
    pub(crate) fn quorum_can_vote(&self, leader: &Leader, own: Stalled) -> bool {
        self.membership().quorum(|id| {
            if id == self.config.id {
                return !own.disk;
            }
            leader.peer(id).is_some_and(|peer| {
                !peer.stalled.disk && leader.silent_ticks(peer) < self.live_ticks()
            })
        })
    }
}
