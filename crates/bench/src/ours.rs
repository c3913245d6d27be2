//! Three members of Quorate's core.

use std::collections::VecDeque;
use std::hint::black_box;

use quorate_core::membership::VoterSlots;
use quorate_core::status::RoleKind;
use quorate_core::{
    Boot, Config, Entries, Envelope, Index, Input, MemberId, MemberSet, Membership, Output, Raft,
    RequestId,
};

use crate::cluster::{
    APPEND_BYTES_MAX, AppliedCommands, BenchCluster, INFLIGHT_MESSAGES_MAX, MEMBERS, TRIM_KEEP,
    expect_ok,
};
use crate::counting::Counts;
use crate::idle::{IDLE_TICKS, Memory, Probe, Probes, VOTERS};

pub(crate) struct Ours {
    members: [BenchMember; MEMBERS],
    inboxes: [Vec<Envelope>; MEMBERS],
    requests: u64,
}

struct BenchMember {
    raft: Box<Raft>,
    /// Outputs are taken into this one.
    output: Output,
    /// The saved log: blocks shared with the core.
    disk: VecDeque<Entries>,
    applied: AppliedCommands,
}

impl Ours {
    /// An idle cluster whose first member leads.
    pub(crate) fn new() -> Self {
        Self::with(|_| {})
    }

    fn with(adjust: impl Fn(&mut Config)) -> Self {
        let members = [1, 2, 3].map(|id| BenchMember::new(MemberId(id), &adjust));
        let mut cluster = Self { members, inboxes: Default::default(), requests: 0 };
        expect_ok("campaign", cluster.members[0].raft.step(Input::Campaign));
        cluster.settle();
        assert_eq!(cluster.members[0].raft.status().role, RoleKind::Leader);
        cluster
    }
}

fn deliver(envelopes: &mut Vec<Envelope>, inboxes: &mut [Vec<Envelope>; MEMBERS]) {
    if envelopes.is_empty() {
        return;
    }
    for envelope in envelopes.drain(..) {
        inboxes[envelope.to.0 as usize - 1].push(envelope);
    }
}

impl BenchMember {
    fn new(id: MemberId, adjust: &impl Fn(&mut Config)) -> Self {
        let mut config = Config::new(id);
        config.append_bytes_max = APPEND_BYTES_MAX;
        config.inflight_messages_max = INFLIGHT_MESSAGES_MAX;
        config.trim_keep_entries = TRIM_KEEP;
        adjust(&mut config);
        let boot = Boot::first(Membership::new([1, 2, 3].map(MemberId), []));
        let raft = Box::new(expect_ok("boot", Raft::new(config, boot)));
        let applied = AppliedCommands { last_index: 1, ..AppliedCommands::default() };
        Self { raft, output: Output::default(), disk: VecDeque::new(), applied }
    }

    fn save(&mut self) {
        if let Some(save) = &mut self.output.save {
            if !save.entries.is_empty() {
                self.disk.push_back(std::mem::take(&mut save.entries));
            }
            expect_ok("saved", self.raft.step(Input::Saved(save.id)));
        }
        if let Some(index) = self.output.trim {
            self.trim_disk(index);
        }
    }

    fn apply(&mut self) {
        if self.output.apply.is_empty() {
            return;
        }
        for entry in self.output.apply.chunks().flatten() {
            if let quorate_core::Payload::Command(command) = &entry.payload {
                self.applied.run(entry.id.index, command);
            }
        }
        expect_ok("applied", self.raft.step(Input::Applied(self.applied.last_index)));
    }

    fn trim_disk(&mut self, to: Index) {
        let gone = |entries: &Entries| entries.last().is_some_and(|last| last.id.index <= to);
        while self.disk.front().is_some_and(gone) {
            self.disk.pop_front();
        }
    }
}

impl BenchCluster for Ours {
    fn propose(&mut self, command: Vec<u8>) {
        self.requests += 1;
        let input = Input::Propose(RequestId(self.requests), command.into());
        expect_ok("propose", self.members[0].raft.step(input));
    }

    fn has_messages(&self, at: usize) -> bool {
        !self.inboxes[at].is_empty()
    }

    /// One member processes its messages and its outputs.
    fn turn(&mut self, at: usize) {
        let member = &mut self.members[at];
        for envelope in self.inboxes[at].drain(..) {
            // Votes after the election are dropped. If another message were dropped, some
            // member would not apply every command.
            let _ = member.raft.step(Input::Received(envelope));
        }
        while member.raft.has_output() {
            member.raft.take_output_into(&mut member.output);
            deliver(&mut member.output.send, &mut self.inboxes);
            member.save();
            if let Some(save) = &mut member.output.save {
                deliver(&mut save.then_send, &mut self.inboxes);
            }
            member.apply();
        }
    }

    fn trim(&mut self) {
        for member in &mut self.members {
            let index = member.applied.last_index;
            expect_ok("snapshotted", member.raft.step(Input::Snapshotted(index)));
        }
        (0..MEMBERS).for_each(|at| self.turn(at));
    }

    fn applied(&self) -> [AppliedCommands; MEMBERS] {
        [0, 1, 2].map(|at| self.members[at].applied)
    }

    fn held(&self) -> u64 {
        self.members[0].disk.iter().map(|entries| entries.len() as u64).sum()
    }
}

/// The measurements of idle members.
pub(crate) fn probes() -> Probes {
    let [mut leader, mut follower, _] = idle_members(IDLE_TICKS);
    let [mut beating, _, _] = idle_members(1);
    let (memory, hibernated) = memory();
    Probes {
        tick_follower: Box::new(move |times| tick(&mut follower, times)),
        tick_leader: Box::new(move |times| tick(&mut leader, times)),
        beat: Box::new(move |times| {
            for _ in 0..times {
                expect_ok("tick", beating.step(Input::Tick));
                let _ = black_box(beating.take_output());
            }
        }),
        quorums: VOTERS.map(|(incoming, outgoing)| quorum(incoming, outgoing)),
        memory,
        hibernated: Some(hibernated),
    }
}

/// The members of an idle cluster without elections.
fn idle_members(heartbeat_ticks: u32) -> [Box<Raft>; MEMBERS] {
    let cluster = Ours::with(|config| {
        config.election_ticks = IDLE_TICKS + 1;
        config.heartbeat_ticks = heartbeat_ticks;
    });
    cluster.members.map(|member| member.raft)
}

fn tick(raft: &mut Raft, times: u64) {
    for _ in 0..times {
        expect_ok("tick", raft.step(Input::Tick));
        assert!(!black_box(raft.has_output()), "an idle tick has no output");
    }
}

/// Looks up match indexes as a leader does, by position.
fn quorum(incoming: &[u64], outgoing: &[u64]) -> Probe {
    let ids = |ids: &[u64]| ids.iter().map(|id| MemberId(*id)).collect::<MemberSet>();
    let majorities: Vec<_> =
        [incoming, outgoing].into_iter().filter(|voters| !voters.is_empty()).map(ids).collect();
    let membership = Membership::from_parts(majorities, MemberSet::new(), MemberSet::new());
    let voters = VoterSlots::new(&membership);
    let matched: Vec<Index> = membership.members().iter().map(|id| id.0 * 37 % 11).collect();
    assert_eq!(
        voters.quorum(|slot| matched[slot]),
        membership.quorum(|id| id.0 * 37 % 11),
        "counted by position and by id"
    );
    Box::new(move |times| {
        for _ in 0..times {
            let matched = black_box(&matched);
            black_box(black_box(&voters).quorum(|slot| matched[slot]));
        }
    })
}

/// The bytes that dropping an idle member frees, after a tick in which it has nothing to do. The
/// leader is dropped last, and with it the shared blocks.
fn memory() -> (Memory, Memory) {
    let [leader, follower, other] = idle_members(IDLE_TICKS);
    let freed = |mut raft: Box<Raft>| {
        tick(&mut raft, 2);
        let before = Counts::now();
        drop(raft);
        (-Counts::since(before).live) as u64
    };
    drop(other);
    let awake = Memory { follower: freed(follower), leader: freed(leader) };
    (awake, hibernated_memory())
}

/// The same for members that hibernate after that tick.
fn hibernated_memory() -> Memory {
    let [leader, follower, other] = idle_members(IDLE_TICKS);
    let freed = |mut raft: Box<Raft>| {
        tick(&mut raft, 2);
        let Some(packed) = raft.hibernate().map(Box::new) else { return 0 };
        drop(raft);
        let before = Counts::now();
        drop(packed);
        (-Counts::since(before).live) as u64
    };
    drop(other);
    Memory { follower: freed(follower), leader: freed(leader) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::{Shape, TRIM_EVERY};

    #[test]
    fn every_member_applies_every_command() {
        for batch in [1, 16, 256] {
            let mut cluster = Ours::new();
            assert_eq!(cluster.run(Shape { size: 64, batch }, 512), 512);
            for applied in cluster.applied() {
                assert_eq!((applied.commands, applied.bytes), (512, 512 * 64));
            }
        }
    }

    #[test]
    fn log_is_trimmed_and_stays_bounded() {
        let mut cluster = Ours::new();
        cluster.run(Shape { size: 8, batch: 256 }, 4 * TRIM_EVERY);
        assert!(cluster.held() <= TRIM_EVERY + TRIM_KEEP, "{} entries held", cluster.held());
        assert!(cluster.members[0].raft.status().log.base.index > TRIM_EVERY);
    }

    #[test]
    fn idle_tick_does_not_allocate() {
        let mut probes = probes();
        for probe in [&mut probes.tick_follower, &mut probes.tick_leader] {
            // A leader is idle after it has timed its last entry.
            probe(1);
            let before = Counts::now();
            probe(1000);
            assert_eq!(Counts::since(before).allocations, 0);
        }
    }

    #[test]
    fn idle_follower_is_not_larger_than_its_leader() {
        let (awake, hibernated) = memory();
        for memory in [awake, hibernated] {
            assert!(0 < memory.follower && memory.follower <= memory.leader, "{memory:?}");
        }
    }
}
