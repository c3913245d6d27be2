//! A cluster in one thread whose every event is chosen by a tape of numbers: which
//! message arrives, is lost or comes twice, which disk completes, who crashes.
//! After every event everything that must hold is checked.

mod checks;
mod disk;
mod loss;
mod operator;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use quorate_core::config::{Activation, EtcdCompat, Liveness};
use quorate_core::event::SettledEvidence;
use quorate_core::membership::{Operation, Transition};
use quorate_core::message::Message;
use quorate_core::status::RoleKind;
use quorate_core::{
    Accepted, Boot, Change, Config, Dropped, Entries, EntryId, Envelope, Event, Index, Input, Load,
    LoadTarget, MemberId, MemberSet, Membership, Output, Raft, RequestId, Save,
};

use checks::History;
pub(crate) use disk::Disk;

/// The numbers that decide. When they run out the story ends.
pub(crate) struct Tape<'a> {
    numbers: std::slice::Iter<'a, u32>,
}

impl<'a> Tape<'a> {
    pub(crate) fn new(numbers: &'a [u32]) -> Self {
        Self { numbers: numbers.iter() }
    }

    pub(crate) fn next(&mut self) -> Option<u32> {
        self.numbers.next().copied()
    }

    /// A choice out of `count`; the first one when the tape is over.
    pub(crate) fn pick(&mut self, count: usize) -> usize {
        self.next().unwrap_or(0) as usize % count.max(1)
    }
}

pub(crate) struct Member {
    pub(crate) raft: Option<Raft>,
    pub(crate) disk: Disk,
    pub(crate) config: Config,
    saves: Vec<Save>,
    applies: Vec<Entries>,
    loads: Vec<Load>,
    /// The goals of which it said how they ended, since it was started.
    goals_told: BTreeSet<EntryId>,
}

impl Member {
    /// What was on its way to the disk or the machine is lost.
    fn forget(&mut self) {
        self.goals_told.clear();
        self.saves.clear();
        self.applies.clear();
        self.loads.clear();
    }
}

pub(crate) struct World {
    pub(crate) members: BTreeMap<MemberId, Member>,
    pub(crate) network: Vec<Envelope>,
    history: History,
    requests: u64,
    /// What was known to be committed when each read was asked for.
    reads: BTreeMap<RequestId, Index>,
    pub(crate) seen: Seen,
    /// Whether the membership stays as it is.
    pub(crate) no_changes: bool,
    /// Gone for good.
    pub(crate) down: Vec<MemberId>,
}

/// How often something worth reaching was reached.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Seen {
    pub(crate) elections: usize,
    pub(crate) applied: usize,
    pub(crate) memberships: usize,
    pub(crate) joints: usize,
    pub(crate) installs: usize,
    pub(crate) loads: usize,
    pub(crate) trims: usize,
    pub(crate) served: usize,
    pub(crate) transfers: usize,
    pub(crate) accepted: usize,
    pub(crate) settled: usize,
    pub(crate) goals: usize,
    pub(crate) replaced: usize,
}

impl World {
    pub(crate) fn new(tape: &mut Tape<'_>) -> Self {
        let voters = 1 + tape.pick(5) as u64;
        let settings = tape.next().unwrap_or(0);
        let activation = config(MemberId(1), settings).activation;
        let membership =
            Membership::new((1..=voters).map(MemberId), []).with_activation(activation);
        let mut world = Self {
            members: BTreeMap::new(),
            network: Vec::new(),
            history: History::default(),
            requests: 0,
            reads: BTreeMap::new(),
            seen: Seen::default(),
            no_changes: false,
            down: Vec::new(),
        };
        for id in (1..=voters + 2).map(MemberId) {
            let joins_later = id.0 > voters;
            let boot = if joins_later { Boot::empty() } else { Boot::first(membership.clone()) };
            let config = config(id, settings);
            let disk = Disk::new(&boot);
            let raft = Raft::new(config.clone(), boot).unwrap();
            let raft = Some(raft);
            let member = Member {
                raft,
                disk,
                config,
                saves: vec![],
                applies: vec![],
                loads: vec![],
                goals_told: BTreeSet::new(),
            };
            world.members.insert(id, member);
        }
        world
    }

    /// Plays the tape to its end.
    pub(crate) fn play(&mut self, tape: &mut Tape<'_>) {
        while let Some(number) = tape.next() {
            let id = MemberId(1 + u64::from(number >> 8) % self.members.len() as u64);
            self.event(number % 64, id, tape);
            self.history.check(&self.members);
        }
    }

    fn event(&mut self, kind: u32, id: MemberId, tape: &mut Tape<'_>) {
        match kind {
            0..=7 => self.input(id, Input::Tick),
            8..=27 => self.deliver(tape, true),
            28..=29 => self.deliver(tape, false),
            30 => {
                if !self.network.is_empty() {
                    let at = tape.pick(self.network.len());
                    self.network.push(self.network[at].clone());
                }
            }
            31..=38 => self.complete_save(id),
            39..=44 => self.complete_apply(id),
            45..=48 => {
                self.requests += 1;
                self.propose(id, RequestId(self.requests));
            }
            49 => self.restart(id),
            50 | 51 if self.no_changes => {}
            50 | 51 => {
                self.requests += 1;
                let change = change(tape, self.members.len());
                self.input(id, Input::Change(RequestId(self.requests), change));
            }
            52 => {
                let to = MemberId(1 + tape.pick(self.members.len()) as u64);
                self.input(id, Input::Transfer(to));
            }
            53 | 54 => self.read(id),
            55 => self.snapshot(id, tape),
            56 => self.input(id, Input::Campaign),
            57 => self.input(id, Input::ForgetLeader),
            58 => {
                let peer = MemberId(1 + tape.pick(self.members.len()) as u64);
                let report = match tape.pick(4) {
                    0 => Input::Unreachable(peer),
                    3 => Input::ConnectionLost(peer),
                    1 => Input::SnapshotLost(peer),
                    _ => Input::SnapshotSent(peer),
                };
                self.input(id, report);
            }
            59 => self.complete_load(id),
            60 => self.set_up_newcomers(),
            _ => self.burst(tape),
        }
    }

    /// For a while everything works.
    fn burst(&mut self, tape: &mut Tape<'_>) {
        let ids: Vec<MemberId> = self.members.keys().copied().collect();
        for _ in 0..3 {
            (0..6).for_each(|_| self.deliver(tape, true));
            for id in &ids {
                self.complete_save(*id);
                self.complete_apply(*id);
                self.complete_load(*id);
            }
        }
    }

    /// Lets something happen to a member and takes what it wants.
    pub(crate) fn input(&mut self, id: MemberId, input: Input) {
        let Some(raft) = self.members.get_mut(&id).and_then(|member| member.raft.as_mut()) else {
            return;
        };
        let _ = raft.step(input);
        quorate_core::invariants::check(raft).unwrap();
        self.drain(id);
    }

    /// A command that is told by its number.
    fn propose(&mut self, id: MemberId, request: RequestId) {
        let Some(raft) = self.members.get_mut(&id).and_then(|member| member.raft.as_mut()) else {
            return;
        };
        let command = request.0.to_be_bytes().to_vec();
        if let Err(Dropped::Refused(_)) = raft.step(Input::Propose(request, command.into())) {
            self.history.refuse(request);
        }
        self.drain(id);
    }

    fn drain(&mut self, id: MemberId) {
        let mut counted_settled = Vec::new();
        let Some(member) = self.members.get_mut(&id) else { return };
        while let Some(raft) = member.raft.as_mut().filter(|raft| raft.has_output()) {
            let output = raft.take_output();
            quorate_core::invariants::check(raft).unwrap();
            self.history.note(raft, &output);
            let counted = output.events.iter().filter_map(|event| match event {
                Event::Settled { id, membership, evidence: SettledEvidence::Counted(_) } => {
                    Some((*id, membership.clone()))
                }
                _ => None,
            });
            counted_settled.extend(counted);
            Self::take(member, output, &mut self.network, &self.reads, &mut self.seen);
        }
        for (id, membership) in counted_settled {
            checks::is_settled(id, &membership, &self.members);
        }
    }

    fn take(
        member: &mut Member,
        output: Output,
        network: &mut Vec<Envelope>,
        reads: &BTreeMap<RequestId, Index>,
        seen: &mut Seen,
    ) {
        network.extend(output.send);
        seen.applied += output.apply.len();
        seen.loads += output.load.len();
        seen.trims += usize::from(output.trim.is_some());
        seen.accepted += output.accepted.len();
        member.saves.extend(output.save);
        if !output.apply.is_empty() {
            member.applies.push(output.apply);
        }
        member.loads.extend(output.load);
        if let Some(index) = output.trim {
            member.disk.trim(index);
        }
        for (request, index) in output.served {
            // A message that comes twice may be answered twice; the caller has one
            // ticket and takes the first.
            let known = reads.get(&request).copied().unwrap_or(0);
            assert!(index >= known, "stale read: {index} < {known}");
            seen.served += 1;
        }
        for event in output.events {
            match event {
                Event::Membership { membership, .. } => {
                    membership.check().unwrap();
                    seen.memberships += 1;
                    seen.joints += usize::from(membership.is_joint());
                }
                Event::Role { to: RoleKind::Leader, .. } => seen.elections += 1,
                Event::Settled { .. } => seen.settled += 1,
                Event::GoalEnded(ended) => {
                    assert!(member.goals_told.insert(ended.id), "{ended:?} is told twice");
                    seen.goals += 1;
                }
                Event::SnapshotInstalled(_) => seen.installs += 1,
                Event::TransferBegan { .. } => seen.transfers += 1,
                _ => {}
            }
        }
    }

    fn deliver(&mut self, tape: &mut Tape<'_>, arrives: bool) {
        if self.network.is_empty() {
            return;
        }
        // Mostly in order, sometimes not.
        let at = match tape.pick(4) {
            0 => tape.pick(self.network.len()),
            _ => 0,
        };
        let envelope = self.network.remove(at);
        self.hand_over(envelope, arrives);
        // A network that is never drained would only slow the story down.
        while self.network.len() > 200 {
            let envelope = self.network.remove(0);
            self.hand_over(envelope, false);
        }
    }

    /// Who carries a snapshot says what became of it.
    fn hand_over(&mut self, envelope: Envelope, arrives: bool) {
        let (from, to) = (envelope.from, envelope.to);
        let snapshot = matches!(envelope.message, Message::Snapshot(_));
        if arrives {
            self.input(to, Input::Received(envelope));
        }
        if snapshot {
            let report = if arrives { Input::SnapshotSent(to) } else { Input::SnapshotLost(to) };
            self.input(from, report);
        }
    }

    fn complete_save(&mut self, id: MemberId) {
        let Some(member) = self.members.get_mut(&id) else { return };
        if member.saves.is_empty() {
            return;
        }
        let save = member.saves.remove(0);
        member.disk.save(&save);
        self.network.extend(save.then_send);
        self.input(id, Input::Saved(save.id));
    }

    fn complete_apply(&mut self, id: MemberId) {
        let Some(member) = self.members.get_mut(&id) else { return };
        // Who applies what is not saved promises to save it first.
        if member.applies.is_empty() || member.config.apply_unsaved && !member.saves.is_empty() {
            return;
        }
        let entries = member.applies.remove(0);
        let last = entries.last().unwrap().id.index;
        member.disk.applied = member.disk.applied.max(last);
        self.input(id, Input::Applied(last));
    }

    fn complete_load(&mut self, id: MemberId) {
        let Some(member) = self.members.get_mut(&id) else { return };
        if member.loads.is_empty() {
            return;
        }
        let load = member.loads.remove(0);
        let entries = member.disk.load(&load);
        let gone = load.range.start <= member.disk.base.index;
        assert!(!entries.is_empty() || gone || matches!(load.target, LoadTarget::Peer(_)));
        self.input(id, Input::Loaded(load.target, entries));
    }

    fn read(&mut self, id: MemberId) {
        self.requests += 1;
        let request = RequestId(self.requests);
        let Some(raft) = self.members.get_mut(&id).and_then(|member| member.raft.as_mut()) else {
            return;
        };
        let taken = raft.step(Input::Read(request));
        if matches!(taken, Ok(Accepted::Queued | Accepted::Forwarded(_))) {
            self.reads.insert(request, self.history.committed_to());
        }
        self.drain(id);
    }

    fn snapshot(&mut self, id: MemberId, tape: &mut Tape<'_>) {
        let Some(member) = self.members.get_mut(&id) else { return };
        let Some(raft) = &member.raft else { return };
        let index = raft.status().log.applied;
        // The machine's capture is durable with the member's applied index.
        if index <= member.disk.snapshot.id.index || index > member.disk.applied {
            return;
        }
        let Some(entry) = member.disk.entry(index) else { return };
        member.disk.snapshot.id = entry.id;
        member.disk.snapshot.membership = raft.membership_at(index);
        self.input(id, Input::Snapshotted(index));
        if tape.pick(3) == 0 {
            self.input(id, Input::Trim(index));
        }
    }

    /// What was not saved is gone, and so is what waited for it.
    fn restart(&mut self, id: MemberId) {
        if self.down.contains(&id) {
            return;
        }
        let Some(member) = self.members.get_mut(&id) else { return };
        member.forget();
        let raft = Raft::new(member.config.clone(), member.disk.boot()).unwrap();
        quorate_core::invariants::check(&raft).unwrap();
        self.history.restarted(&raft);
        member.raft = Some(raft);
        self.drain(id);
    }

    pub(crate) fn describe(&self) -> String {
        let mut text = String::new();
        for member in self.members.values() {
            let raft = member.raft.as_ref().map(|raft| raft.status().to_string());
            text +=
                &format!("{} {:?}\n", raft.unwrap_or_default(), member.config.etcd_compat.coalesce);
        }
        text
    }

    /// The leader, if the whole cluster agrees on one and it can still get a command
    /// applied by every voter.
    pub(crate) fn works(&mut self) -> bool {
        let leads = |raft: &Raft| raft.status().role == RoleKind::Leader;
        let rafts = self.members.values().filter_map(|member| member.raft.as_ref());
        let Some(leader) = rafts.filter(|raft| leads(raft)).max_by_key(|raft| raft.status().term)
        else {
            return false;
        };
        let id = leader.status().id;
        // A change that is to end by itself has ended.
        if leader.membership().goal().is_some() || leader.membership().auto_leave() {
            return false;
        }
        let voters = leader.membership().voters();
        self.input(id, Input::Propose(RequestId(0), "works".into()));
        let last = |world: &Self| {
            world
                .members
                .get(&id)
                .and_then(|member| member.raft.as_ref())
                .map(|raft| raft.status().log.last)
        };
        let Some(proposed) = last(self) else { return false };
        self.calm(8);
        voters.iter().all(|id| {
            let member = self.members.get(&id).and_then(|member| member.raft.as_ref());
            member.is_some_and(|raft| raft.status().log.applied >= proposed.index)
        })
    }

    fn leader(&self) -> Option<&Raft> {
        let rafts = self.members.values().filter_map(|member| member.raft.as_ref());
        rafts
            .filter(|raft| raft.status().role == RoleKind::Leader)
            .max_by_key(|raft| raft.status().term)
    }

    pub(crate) fn leader_membership(&self) -> Option<Arc<Membership>> {
        self.leader().map(|raft| raft.membership().clone())
    }

    /// Sets a goal by masks of members. Nothing when the leader would not have it.
    pub(crate) fn set_goal(
        &mut self,
        voters: u32,
        learners: u32,
    ) -> Option<(MemberSet, MemberSet)> {
        let members = self.members.len() as u64;
        let ids = |mask: u32| -> MemberSet {
            (1..=members).filter(|id| mask & (1 << (id - 1)) != 0).map(MemberId).collect()
        };
        let (voters, learners) = (ids(voters), ids(learners));
        let id = self.leader()?.status().id;
        let before = self.leader()?.status().log.last;
        let change = Change::goal(voters.iter(), learners.iter());
        self.input(id, Input::Change(RequestId(0), change));
        let taken = self.leader().is_some_and(|raft| {
            raft.status().log.last.index > before.index && raft.status().id == id
        });
        // An entry that never leaves its leader may be lost: let it spread.
        self.calm(1);
        taken.then_some((voters, learners))
    }

    /// Everything is delivered and completed, and time passes, until the cluster
    /// stands still or the rounds are over.
    pub(crate) fn calm(&mut self, rounds: usize) {
        let ids: Vec<MemberId> = self.members.keys().copied().collect();
        for _ in 0..rounds {
            self.set_up_newcomers();
            for id in &ids {
                self.input(*id, Input::Tick);
            }
            let mut carried = 0;
            for _ in 0..20_000 {
                let mut quiet = true;
                while !self.network.is_empty() {
                    let envelope = self.network.remove(0);
                    carried += 1;
                    assert!(
                        carried < 20_000,
                        "members talk without end: {envelope:?}\n{}",
                        self.describe()
                    );
                    self.hand_over(envelope, true);
                    quiet = false;
                }
                for id in &ids {
                    quiet &= self.members.get(id).is_none_or(|member| {
                        member.saves.is_empty()
                            && member.applies.is_empty()
                            && member.loads.is_empty()
                    });
                    self.complete_save(*id);
                    self.complete_apply(*id);
                    self.complete_load(*id);
                }
                if quiet {
                    break;
                }
            }
            self.history.check(&self.members);
        }
    }
}

const NO_PRE_VOTE: u32 = 1;
const NO_CHECK_QUORUM: u32 = 2;
const ETCD_MANNERS: u32 = 64;
const NO_STEP_DOWN: u32 = 512;
const NO_LIVENESS: u32 = 0x3800;

/// Settings under which a cluster must always come back: as by default. Without
/// pre-vote and check-quorum, removed members may disturb for ever.
pub(crate) fn keep_alive(numbers: &mut [u32]) {
    numbers[1] &= !(NO_LIVENESS | ETCD_MANNERS | NO_STEP_DOWN | NO_PRE_VOTE | NO_CHECK_QUORUM);
}

fn config(id: MemberId, settings: u32) -> Config {
    let mut config = Config::new(id);
    config.seed = u64::from(settings);
    config.election_ticks = 4;
    config.pre_vote = settings & NO_PRE_VOTE == 0;
    config.check_quorum = settings & NO_CHECK_QUORUM == 0;
    config.apply_unsaved = settings & 4 != 0;
    if settings & 8 != 0 {
        config.append_bytes_max = 60;
        config.inflight_messages_max = 2;
    }
    if settings & 16 != 0 {
        config.tail_bytes_max = 100;
    }
    if settings & 32 != 0 {
        config.apply_bytes_max = 50;
    }
    if settings & ETCD_MANNERS != 0 {
        // etcd never sends a snapshot that is older than the newest membership.
        config.etcd_compat =
            EtcdCompat { snapshot_must_name_receiver: false, ..EtcdCompat::etcd() };
    }
    config.trim_keep_entries = if settings & 128 != 0 { 0 } else { 3 };
    config.forward_proposals = settings & 256 == 0;
    config.step_down_on_removal = settings & NO_STEP_DOWN == 0;
    if settings & 1024 != 0 {
        config.activation = Activation::OnAppend;
        // etcd's rules go with etcd's activation.
        config.etcd_compat = EtcdCompat::default();
    }
    config.pre_flight = settings & 0x8000 == 0;
    config.etcd_compat.ids_reusable |= settings & 0x10000 == 0;
    config.incarnation = if settings & 0x20000 == 0 { 0 } else { 10 + id.0 };
    if settings & NO_LIVENESS == NO_LIVENESS {
        config.liveness = Liveness::NONE;
    }
    config
}

fn change(tape: &mut Tape<'_>, members: usize) -> Change {
    let some = |tape: &mut Tape<'_>, count| -> MemberSet {
        (0..count).map(|_| MemberId(1 + tape.pick(members) as u64)).collect()
    };
    match tape.pick(6) {
        0 => {
            let count = 1 + tape.pick(4);
            let voters = some(tape, count);
            let learners = some(tape, 2);
            let learners = learners.iter().filter(|id| !voters.contains(*id)).collect::<Vec<_>>();
            return Change::goal(voters.iter(), learners);
        }
        1 if tape.pick(3) == 0 => return Change::cancel(),
        _ => {}
    }
    let count = tape.pick(4);
    let operations = (0..count).map(|_| {
        let id = MemberId(1 + tape.pick(members) as u64);
        match tape.pick(4) {
            0 => Operation::Learner(id),
            1 => Operation::Remove(id),
            _ => Operation::Voter(id),
        }
    });
    let operations: Vec<_> = operations.collect();
    let transition =
        [Transition::Auto, Transition::JointImplicit, Transition::JointExplicit][tape.pick(3)];
    if tape.pick(4) == 0 {
        let majorities = (0..1 + tape.pick(3)).map(|_| {
            (0..1 + tape.pick(4)).map(|_| MemberId(1 + tape.pick(members) as u64)).collect()
        });
        return Change::majorities(majorities.collect::<Vec<MemberSet>>());
    }
    if let ([operation], 0) = (&operations[..], tape.pick(2)) {
        return Change::v1(*operation);
    }
    Change::new(operations).with_transition(transition)
}
