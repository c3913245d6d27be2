//! A cluster of bare cores in which chance decides what happens next: which message
//! arrives, is lost or is duplicated, which disk completes, which member crashes.

use std::collections::BTreeSet;
use std::sync::Arc;

use quorate_core::event::Event;
use quorate_core::status::RoleKind;
use quorate_core::{
    Boot, Change, Dropped, Entry, Input, MemberId, MemberSet, Membership, Output, Payload, Raft,
    RequestId,
};
use quorate_sim::checkers::replies::{CheckedRequest, ReplyChecker, ReplyKind, ReplyViolation};
use quorate_sim::cluster::{Cluster, DiskState, Outputs, WorkKind};
use quorate_sim::random::Random;

use crate::pick;
use crate::settings::{self, Settings};

pub(crate) struct RandomCluster {
    pub(crate) cluster: Cluster,
    requests: Requests,
    pub(crate) counts: Counts,
    /// The membership stays as it is.
    pub(crate) no_changes: bool,
    /// Never come back.
    pub(crate) lost: Vec<MemberId>,
}

/// What clients asked for, and what they were told.
#[derive(Default)]
struct Requests {
    count: u64,
    checker: ReplyChecker,
    /// A duplicated message may be answered twice; the client takes the first reply.
    refused: BTreeSet<RequestId>,
}

/// How often something worth reaching was reached.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Counts {
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

impl RandomCluster {
    /// One to five voters, and two members that may join.
    pub(crate) fn new(settings: Settings, random: &mut Random) -> Self {
        let voters = 1 + random.below(5);
        let config = settings::draw(settings, random);
        let membership =
            Membership::new((1..=voters).map(MemberId), []).with_activation(config.activation);
        let mut cluster = Cluster::default();
        for id in (1..=voters + 2).map(MemberId) {
            let boot = if id.0 > voters { Boot::empty() } else { Boot::first(membership.clone()) };
            let incarnation = if config.incarnation == 0 { 0 } else { config.incarnation + id.0 };
            let mut config = config.clone();
            config.id = id;
            config.incarnation = incarnation;
            cluster.add(config, DiskState::of_boot(&boot)).unwrap();
        }
        Self {
            cluster,
            requests: Requests::default(),
            counts: Counts::default(),
            no_changes: false,
            lost: Vec::new(),
        }
    }

    /// Performs this many random actions.
    pub(crate) fn run(&mut self, events: u64, random: &mut Random) {
        let ids = self.cluster.ids();
        for _ in 0..random.below(events) {
            let id = ids[pick(random, ids.len())];
            self.event(id, random);
        }
    }

    fn event(&mut self, id: MemberId, random: &mut Random) {
        let members = self.cluster.ids().len() as u64;
        let peer = MemberId(1 + random.below(members));
        match random.below(64) {
            0..=7 => self.step(id, Input::Tick),
            8..=27 => self.deliver(random, true),
            28..=29 => self.deliver(random, false),
            30 => {
                let copy = random.pick(&self.cluster.network).cloned();
                self.cluster.network.extend(copy);
            }
            31..=38 => self.complete_save(id),
            39..=44 => self.complete_apply(id),
            45..=48 => self.propose(id),
            49 => self.restart(id),
            50 | 51 if self.no_changes => {}
            50 | 51 => {
                let request = self.requests.next(CheckedRequest::Command);
                self.step(id, Input::Change(request, settings::change(random, members as usize)));
            }
            52 => self.step(id, Input::Transfer(peer)),
            53 | 54 => self.read(id),
            55 => self.snapshot(id, random),
            56 => self.step(id, Input::Campaign),
            57 => self.step(id, Input::ForgetLeader),
            58 => {
                let reports = [
                    Input::Unreachable,
                    Input::SnapshotLost,
                    Input::SnapshotSent,
                    Input::ConnectionLost,
                ];
                self.step(id, reports[pick(random, 4)](peer));
            }
            59 => self.complete_load(id),
            60 => self.replace_readded(),
            _ => self.burst(random),
        }
    }

    /// For a while everything works.
    fn burst(&mut self, random: &mut Random) {
        for _ in 0..3 {
            (0..6).for_each(|_| self.deliver(random, true));
            self.complete_all();
        }
    }

    fn complete_all(&mut self) {
        for id in self.cluster.ids() {
            self.complete_save(id);
            self.complete_apply(id);
            self.complete_load(id);
        }
    }

    pub(crate) fn step(&mut self, id: MemberId, input: Input) {
        let outputs = self.cluster.step(id, input);
        self.take(id, outputs);
    }

    fn complete_save(&mut self, id: MemberId) {
        let outputs = self.cluster.complete(id, WorkKind::Saves);
        self.take(id, outputs);
    }

    fn complete_apply(&mut self, id: MemberId) {
        let outputs = self.cluster.complete(id, WorkKind::Applies);
        self.take(id, outputs);
    }

    fn complete_load(&mut self, id: MemberId) {
        let outputs = self.cluster.complete(id, WorkKind::Loads);
        self.take(id, outputs);
    }

    /// Looks at what members asked for. A violation fails the test.
    fn take(&mut self, id: MemberId, outputs: Outputs) {
        let once =
            self.cluster.config(id).is_some_and(|config| !config.etcd_compat.forwards_unanswered);
        for output in outputs.unwrap_or_else(|violation| panic!("{violation}\n{self}")) {
            let taken = self.requests.take(id, &output, once);
            taken.unwrap_or_else(|violation| panic!("{violation}\n{self}"));
            self.counts.take(&output);
        }
    }

    /// A command that is known by its number.
    fn propose(&mut self, id: MemberId) {
        let request = self.requests.next(CheckedRequest::Command);
        let command = request.0.to_be_bytes().to_vec();
        let (taken, outputs) =
            self.cluster.try_step(id, Input::Propose(request, command.into())).unwrap();
        if let Some(Err(Dropped::Refused(_))) = taken {
            self.requests.refuse(request).unwrap();
        }
        self.take(id, Ok(outputs));
    }

    fn read(&mut self, id: MemberId) {
        let request = self.requests.next(CheckedRequest::Read);
        self.step(id, Input::Read(request));
    }

    fn deliver(&mut self, random: &mut Random, arrives: bool) {
        let count = self.cluster.network.len();
        if count == 0 {
            return;
        }
        // Mostly in order, sometimes not.
        let position = if random.below(4) == 0 { pick(random, count) } else { 0 };
        self.carry(position, arrives);
        // A network that is never drained would only slow the run down.
        while self.cluster.network.len() > 200 {
            self.carry(0, false);
        }
    }

    fn carry(&mut self, position: usize, arrives: bool) {
        let to = self.cluster.network[position].to;
        let outputs = self.cluster.deliver(position, arrives);
        self.take(to, outputs);
    }

    fn snapshot(&mut self, id: MemberId, random: &mut Random) {
        let captured = self.cluster.snapshot(id).unwrap();
        if let (Some(meta), 0) = (captured, random.below(3)) {
            self.step(id, Input::Trim(meta.id.index));
        }
    }

    fn restart(&mut self, id: MemberId) {
        if !self.lost.contains(&id) {
            self.cluster.stop(id);
            self.resume(id);
            let outputs = self.cluster.start(id);
            self.take(id, outputs);
        }
    }

    /// The machine of a member that restarts holds what its disk says.
    fn resume(&mut self, id: MemberId) {
        let applied = self.cluster.disk(id).map_or(0, |disk| disk.applied);
        self.requests.checker.resumed(id, applied);
    }

    /// This member never runs again.
    pub(crate) fn lose(&mut self, id: MemberId) {
        self.lost.push(id);
        self.cluster.stop(id);
    }

    /// A member that was removed and added again under its old id gets an empty disk and a
    /// new incarnation, and knows the entry that added it.
    fn replace_readded(&mut self) {
        let Some(best) = self.cluster.rafts().max_by_key(|raft| raft.log_status().last) else {
            return;
        };
        let membership = Arc::clone(best.membership());
        for id in membership.members().iter() {
            let Some(config) = self.cluster.config(id) else { continue };
            let joined_at = membership.joined_at(id);
            let readded = config.incarnation != 0 && joined_at > config.joined_at;
            if !readded || self.lost.contains(&id) {
                continue;
            }
            let incarnation = config.incarnation + 100;
            let mut config = config.clone();
            (config.joined_at, config.incarnation) = (joined_at, incarnation);
            self.requests.checker.resumed(id, 0);
            let outputs = self.cluster.replace(config);
            self.take(id, outputs);
            self.counts.replaced += 1;
        }
    }

    pub(crate) fn leader(&self) -> Option<&Raft> {
        let leaders = self.cluster.rafts().filter(|raft| raft.role() == RoleKind::Leader);
        leaders.max_by_key(|raft| raft.term())
    }

    pub(crate) fn leader_membership(&self) -> Arc<Membership> {
        Arc::clone(self.leader().unwrap().membership())
    }

    /// A leader gets a command applied by every voter, and no change is in progress.
    pub(crate) fn works(&mut self) -> bool {
        let Some(leader) = self.leader() else { return false };
        let (id, membership) = (leader.config().id, Arc::clone(leader.membership()));
        if membership.goal().is_some() || membership.auto_leave() {
            return false;
        }
        self.step(id, Input::Propose(RequestId(0), "works".into()));
        let Some(proposed) = self.cluster.raft(id).map(|raft| raft.log_status().last) else {
            return false;
        };
        self.run_without_faults(8);
        let applied = |id| self.cluster.raft(id).map(|raft| raft.log_status().applied);
        membership.voters().iter().all(|id| applied(id) >= Some(proposed.index))
    }

    /// Every member that the leader counts knows that its membership is settled.
    pub(crate) fn settled_everywhere(&self) -> bool {
        let Some(leader) = self.leader() else { return false };
        let since = leader.membership().since().index;
        leader
            .membership()
            .members()
            .iter()
            .all(|id| self.cluster.raft(id).is_some_and(|raft| raft.status().settled >= since))
    }

    /// Sets a goal by masks of members. None if the leader refuses it.
    pub(crate) fn set_goal(
        &mut self,
        voters: u64,
        learners: u64,
    ) -> Option<(MemberSet, MemberSet)> {
        let ids = |mask: u64| -> MemberSet {
            self.cluster.ids().into_iter().filter(|id| mask & (1 << (id.0 - 1)) != 0).collect()
        };
        let (voters, learners) = (ids(voters), ids(learners));
        let (id, before) = (self.leader()?.config().id, self.leader()?.log_status().last);
        let change = Change::goal(voters.iter(), learners.iter());
        self.step(id, Input::Change(RequestId(0), change));
        let logged =
            |raft: &Raft| raft.config().id == id && raft.log_status().last.index > before.index;
        let accepted = self.leader().is_some_and(logged);
        // An entry that never leaves its leader may be lost: let it spread.
        self.run_without_faults(1);
        accepted.then_some((voters, learners))
    }

    /// For this many ticks everything is delivered and completed.
    pub(crate) fn run_without_faults(&mut self, ticks: usize) {
        let ids = self.cluster.ids();
        for _ in 0..ticks {
            self.replace_readded();
            for id in &ids {
                self.step(*id, Input::Tick);
            }
            let mut carried = 0;
            loop {
                while !self.cluster.network.is_empty() {
                    carried += 1;
                    assert!(carried < 20_000, "messages never end\n{self}");
                    self.carry(0, true);
                }
                if ids.iter().all(|id| self.cluster.is_idle(*id)) {
                    break;
                }
                self.complete_all();
            }
        }
    }
}

impl std::fmt::Display for RandomCluster {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        writeln!(f, "lost: {:?}", self.lost)?;
        self.cluster.rafts().try_for_each(|raft| writeln!(f, "{}", raft.status()))
    }
}

impl Requests {
    fn next(&mut self, kind: CheckedRequest) -> RequestId {
        self.count += 1;
        let request = RequestId(self.count);
        self.checker.request_sent(request, kind).unwrap();
        request
    }

    fn refuse(&mut self, request: RequestId) -> Result<(), ReplyViolation> {
        // Requests of the test itself have the number 0.
        if request.0 == 0 || !self.refused.insert(request) {
            return Ok(());
        }
        self.checker.reply_received(request, ReplyKind::Refused)
    }

    /// Each command is applied `once`, except with etcd's behaviour.
    fn take(&mut self, id: MemberId, output: &Output, once: bool) -> Result<(), ReplyViolation> {
        if let Some(meta) = output.save.as_ref().and_then(|save| save.install.as_ref()) {
            self.checker.resumed(id, meta.id.index);
        }
        for entry in output.apply.iter() {
            self.checker.committed(entry.id.index);
            if let (true, Some(request)) = (once, request_of(entry)) {
                self.checker.applied(id, entry.id.index, request)?;
            }
        }
        output.refused.iter().try_for_each(|(request, _)| self.refuse(*request))?;
        output.served.iter().try_for_each(|(request, at)| self.checker.served(*request, *at))
    }
}

fn request_of(entry: &Entry) -> Option<RequestId> {
    let Payload::Command(command) = &entry.payload else { return None };
    Some(RequestId(u64::from_be_bytes(command[..].try_into().ok()?)))
}

impl Counts {
    fn take(&mut self, output: &Output) {
        self.applied += output.apply.len();
        self.loads += output.load.len();
        self.trims += usize::from(output.trim.is_some());
        self.accepted += output.accepted.len();
        self.served += output.served.len();
        for event in &output.events {
            match event {
                Event::Membership { membership, .. } => {
                    membership.check().unwrap();
                    self.memberships += 1;
                    self.joints += usize::from(membership.is_joint());
                }
                Event::Role { to: RoleKind::Leader, .. } => self.elections += 1,
                Event::Settled { .. } => self.settled += 1,
                Event::GoalEnded(_) => self.goals += 1,
                Event::SnapshotInstalled(_) => self.installs += 1,
                Event::TransferBegan { .. } => self.transfers += 1,
                _ => {}
            }
        }
    }
}
