//! What one run is like: drawn from a seed, written down in replay files.
//!
//! Swarm testing: each seed draws which kinds of faults there are at all, how often,
//! and how large things are. A run with one kind of fault and tiny bounds finds what
//! a run with everything hides.

use quorate_core::config::{Activation, ReadMode};
use quorate_core::{Config, MemberId};

use crate::random::Random;

/// Time is counted in units; a member's clock ticks about this often.
pub(crate) const TICK: u64 = 1_000;

/// [`RunSettings::focus`] of runs about leader leases.
pub const FOCUS_LEASES: u64 = 1;
/// Of runs about what members know of commits.
pub const FOCUS_COMMITS: u64 = 2;

macro_rules! setting {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// The numbers that make a run.
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub struct RunSettings {
            $($(#[$doc])* pub $name: u64,)*
        }

        impl RunSettings {
            /// Name and value of each, for replay files.
            pub fn values(&self) -> Vec<(&'static str, u64)> {
                vec![$((stringify!($name), self.$name),)*]
            }

            /// The number of this name.
            pub fn value_mut(&mut self, name: &str) -> Option<&mut u64> {
                match name {
                    $(stringify!($name) => Some(&mut self.$name),)*
                    _ => None,
                }
            }
        }
    };
}

setting! {
    /// Everything that is not written down follows from it.
    seed,
    /// 1 when memberships count as soon as they are logged.
    on_append,
    /// Members at the start.
    voters,
    learners,
    pre_vote,
    check_quorum,
    /// 1 for reads on the strength of a leader lease.
    lease_reads,
    election_ticks,
    clients,
    keys,
    /// Ticks between two requests of one client, at most.
    think_ticks,
    value_bytes,
    /// Ticks with faults; then the world is healed.
    ticks,
    /// Units that a message takes, at most.
    delay,
    /// Of 1000 messages.
    loss,
    duplication,
    /// 1 when messages of one link overtake each other.
    reordering,
    /// Units that a write takes, at most.
    disk_delay,
    apply_delay,
    /// By how many of 1000 parts clocks run fast or slow.
    drift,
    snapshot_entries,
    trim_keep,
    segment_bytes,
    tail_bytes,
    append_bytes,
    inflight,
    uncommitted_bytes,
    /// How many members stay away when the world is healed, at most.
    absent,
    /// 1 when members have different priorities. Only where hints are asked for.
    priorities,
    /// Of 1000 deaths of a process that a peer hears of at once; and of 100 000 ticks at
    /// which a member is told so of its leader, which lives. Only where hints are asked for.
    hints,
    /// Lasting gray faults after the healing, under which the others must make progress.
    gray,
    /// 1 when members have different timeouts and limits.
    mixed,
    /// What the run is about: 0 everything, 1 leader leases, 2 what members know of commits.
    focus,
    /// The faults end when so many changes are committed, and the member that knew of the
    /// last one first stays away; 0 for never.
    end_at_change,
    /// 1 when members run etcd's data model instead of a small map.
    etcd,
    /// Clients that hold leases, and clients that watch.
    holders,
    watchers,
    /// 1 when disks tell their place, so that copies are noticed; and disks are copied.
    places,
    /// 1 when the disk of a follower is rolled back after the healing.
    rollback,
    /// 1 when the majority is lost at the end, and one member makes a new cluster.
    forced,
    /// 1 when programs of several versions run, and are replaced.
    versions,
}

impl RunSettings {
    pub fn draw(seed: u64) -> Self {
        let mut random = Random::stream(seed, 1);
        let some = |random: &mut Random, odds, from, to| {
            if random.per_mille(odds) { random.between(from, to) } else { 0 }
        };
        let small = random.per_mille(400);
        let disk_delay_max = if random.per_mille(200) { 6_000 } else { 600 };
        let apply_delay_max = if random.per_mille(150) { 8_000 } else { 300 };
        let pre_vote = u64::from(random.per_mille(800));
        let check_quorum = u64::from(random.per_mille(800));
        let mut later = Random::stream(seed, 8);
        // Without pre-vote and check-quorum a member that hears nothing disturbs the others.
        let defaults = pre_vote == 1 && check_quorum == 1;
        let gray = if defaults { some(&mut later, 400, 1, 2) } else { 0 };
        Self {
            seed,
            on_append: random.below(2),
            voters: random.between(1, 5),
            learners: some(&mut random, 300, 1, 2),
            pre_vote,
            check_quorum,
            lease_reads: u64::from(check_quorum == 1 && random.per_mille(250)),
            election_ticks: random.between(4, 12),
            clients: random.between(1, 6),
            keys: random.between(1, 5),
            think_ticks: random.between(1, 20),
            value_bytes: if random.per_mille(200) { random.between(1, 3_000) } else { 8 },
            ticks: random.between(100, 500),
            delay: random.between(50, 1_500),
            loss: some(&mut random, 500, 1, 250),
            duplication: some(&mut random, 400, 1, 150),
            reordering: u64::from(random.per_mille(400)),
            disk_delay: random.between(20, disk_delay_max),
            apply_delay: random.between(10, apply_delay_max),
            drift: some(&mut random, 400, 1, 60),
            snapshot_entries: random.between(5, if small { 12 } else { 300 }),
            trim_keep: if small { random.below(6) } else { random.below(100) },
            segment_bytes: if small { 2_048 } else { 16_384 },
            tail_bytes: if small { 256 } else { 1 << 20 },
            append_bytes: if small { random.between(1, 400) } else { 1 << 16 },
            inflight: if small { random.between(1, 3) } else { 64 },
            uncommitted_bytes: if random.per_mille(200) { 600 } else { 1 << 20 },
            absent: some(&mut random, 500, 1, 2),
            priorities: 0,
            hints: 0,
            gray,
            mixed: u64::from(later.per_mille(250)),
            focus: 0,
            end_at_change: 0,
            etcd: 0,
            holders: 0,
            watchers: 0,
            places: 0,
            rollback: 0,
            forced: 0,
            versions: 0,
        }
        .focused(&mut later)
        .with_etcd()
        .with_copies()
        .with_versions()
    }

    /// What a replay file changes. Settings that an older file does not name are off.
    pub(crate) fn before_a_file() -> Self {
        let (etcd, holders, watchers, places, rollback, forced) = (0, 0, 0, 0, 0, 0);
        Self { etcd, holders, watchers, places, rollback, forced, versions: 0, ..Self::draw(0) }
    }

    /// Some runs are about one thing that random faults reach too rarely.
    fn focused(self, random: &mut Random) -> Self {
        match random.below(12) {
            0 => self.about_leases(random),
            1 => self.about_commits(random),
            _ => self,
        }
    }

    /// A part of the other runs has etcd's data model. Drawn by itself, so that the rest of what
    /// a seed means stays as it is.
    fn with_etcd(self) -> Self {
        let mut random = Random::stream(self.seed, 9);
        if self.focus != 0 || !random.per_mille(250) {
            return self;
        }
        let ticks = self.ticks.max(250);
        let (holders, watchers) = (random.between(1, 3), random.between(1, 3));
        Self { etcd: 1, holders, watchers, ticks, ..self }
    }

    /// A part of the runs has copies of disks. Drawn by itself, too.
    fn with_copies(self) -> Self {
        let mut random = Random::stream(self.seed, 11);
        let places = u64::from(self.focus == 0 && random.per_mille(200));
        let defaults = self.pre_vote == 1 && self.check_quorum == 1;
        let rollback = u64::from(self.focus == 0 && defaults && random.per_mille(150));
        let forced = u64::from(random.per_mille(100));
        Self { places, rollback, forced, ..self }
    }

    /// A part of the runs has programs of several versions. Drawn by itself, too. A new cluster that
    /// is made by force has one program.
    fn with_versions(self) -> Self {
        let mut random = Random::stream(self.seed, 12);
        let versions = self.focus == 0 && self.forced == 0 && random.per_mille(150);
        Self { versions: u64::from(versions), ..self }
    }

    /// Clocks differ as much as a lease allows, and clients ask often and everywhere. A lease
    /// lasts half an election timeout, so the slowest clock may take 1.4 times as long for a
    /// tick as the fastest one.
    fn about_leases(self, random: &mut Random) -> Self {
        let setting = Self {
            focus: FOCUS_LEASES,
            lease_reads: 1,
            check_quorum: 1,
            voters: 3,
            learners: 0,
            election_ticks: random.between(6, 12),
            clients: 6,
            keys: 1,
            think_ticks: 1,
            value_bytes: 8,
            ticks: random.between(150, 300),
            delay: random.between(20, 150),
            loss: 0,
            disk_delay: random.between(10, 80),
            apply_delay: random.between(10, 50),
            drift: random.between(100, 180),
            gray: 0,
            mixed: 0,
            hints: if random.per_mille(300) { 1_000 } else { 0 },
            ..self
        };
        // In some runs there is little to do: a candidate whose log is older than the others'
        // gets no vote, whatever they promised to their leader.
        match random.per_mille(300) {
            true => Self { clients: 1, think_ticks: 100, ..setting },
            false => setting,
        }
    }

    /// One change after the other, until the member that knows of a commit is gone.
    fn about_commits(self, random: &mut Random) -> Self {
        let apply_delay_max = if random.per_mille(300) { 6_000 } else { 1_000 };
        Self {
            focus: FOCUS_COMMITS,
            voters: random.between(2, 4),
            learners: random.between(1, 2),
            ticks: 200,
            clients: random.between(1, 3),
            delay: random.between(50, 600),
            loss: if random.per_mille(500) { random.between(20, 250) } else { 0 },
            disk_delay: random.between(20, 600),
            apply_delay: random.between(10, apply_delay_max),
            absent: 24,
            gray: 0,
            mixed: 0,
            end_at_change: random.between(1, 6),
            ..self
        }
    }

    /// The same world in which members are told more than they need. Drawn by itself, so
    /// that the rest of what a seed means stays as it is.
    pub fn with_hints(self) -> Self {
        let mut random = Random::stream(self.seed, 5);
        Self { priorities: random.below(2), hints: random.below(1_001), ..self }
    }

    pub(crate) fn activation(&self) -> Activation {
        if self.on_append == 1 { Activation::OnAppend } else { Activation::OnApply }
    }

    fn priority(&self, id: MemberId) -> u8 {
        if self.priorities == 0 {
            return Config::PRIORITY_MAX;
        }
        let mut random = Random::stream(self.seed, 1 << 40 | id.0);
        random.below(u64::from(Config::PRIORITY_MAX) + 1) as u8
    }

    /// By how much a member differs from the others, where they differ.
    fn difference(&self, id: MemberId, bound: u64) -> u64 {
        let mut random = Random::stream(self.seed, 1 << 41 | id.0);
        if self.mixed == 1 { random.below(bound) } else { 0 }
    }

    pub(crate) fn snapshot_entries_of(&self, id: MemberId) -> u64 {
        (self.snapshot_entries + self.difference(id, 40)).max(1)
    }

    /// The longest election timeout of a member. Leases rely on equal ones.
    pub(crate) fn election_ticks_max(&self) -> u64 {
        let differ = self.mixed == 1 && self.lease_reads == 0;
        if differ { self.election_ticks * 3 / 2 } else { self.election_ticks }
    }

    pub(crate) fn config(&self, id: MemberId, incarnation: u64, run: u64) -> Config {
        let more = self.difference(id, self.election_ticks_max() - self.election_ticks + 1);
        let election_ticks = (self.election_ticks + more).clamp(4, 1_000) as u32;
        let limit = |most: u64| (most / (1 + self.difference(id, 4))).max(1);
        let reads = if self.lease_reads == 1 {
            ReadMode::LeaderLease { drift_ticks: election_ticks / 2 }
        } else {
            ReadMode::Quorum
        };
        let mut config = Config::new(id);
        config.incarnation = incarnation;
        config.seed = Random::stream(self.seed, id.0 << 20 | run).next_u64();
        config.election_ticks = election_ticks;
        config.priority = self.priority(id);
        config.pre_vote = self.pre_vote == 1;
        config.check_quorum = self.check_quorum == 1;
        config.reads = reads;
        config.append_bytes_max = limit(self.append_bytes);
        config.inflight_messages_max = limit(self.inflight).min(1_000) as u32;
        config.uncommitted_bytes_max = self.uncommitted_bytes.max(1);
        config.tail_bytes_max = self.tail_bytes;
        config.trim_keep_entries = self.trim_keep + self.difference(id, 8);
        config.activation = self.activation();
        config
    }
}
