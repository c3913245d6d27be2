//! What goes wrong, how often, and how often it did.

use crate::random::Random;

/// A way in which a disk fails or lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Fault {
    /// A write fails; nothing of it was done.
    WriteError,
    /// A write fails after half of it.
    ShortWrite,
    /// No room to create or write.
    NoSpace,
    /// A sync fails, and what was to be synced is gone from memory too.
    SyncError,
    /// A sync fails; memory still shows what was to be synced, no later sync writes it.
    SyncErrorUnseen,
    SyncDirError,
    ReadError,
    /// A read returns what a sector held before.
    StaleRead,
    /// A read returns one wrong bit.
    FlippedRead,
    /// A bit on the disk is no longer what it was.
    BitFlip,
    /// Power was lost: what was not synced may be there or not.
    Crash,
    /// The whole disk is gone.
    DiskLost,
}

impl Fault {
    pub const ALL: [Self; 12] = [
        Self::WriteError,
        Self::ShortWrite,
        Self::NoSpace,
        Self::SyncError,
        Self::SyncErrorUnseen,
        Self::SyncDirError,
        Self::ReadError,
        Self::StaleRead,
        Self::FlippedRead,
        Self::BitFlip,
        Self::Crash,
        Self::DiskLost,
    ];
}

#[derive(Clone, Debug, Default)]
pub(super) struct Faults {
    /// Nothing is to go wrong: the usual case, decided at once.
    armed: bool,
    /// Something has gone wrong since the disk was well.
    struck: bool,
    injected: Vec<(Fault, u32)>,
    /// By fault, how often in a million.
    rates: [u32; Fault::ALL.len()],
    random: Option<Random>,
    counts: [u64; Fault::ALL.len()],
}

impl Faults {
    pub(super) fn inject(&mut self, fault: Fault, skip: u32) {
        self.injected.push((fault, skip));
        self.armed = true;
    }

    pub(super) fn set_rates(&mut self, rates: &[(Fault, u32)], random: Random) {
        self.rates = Default::default();
        for (fault, rate) in rates {
            self.rates[*fault as usize] = *rate;
        }
        self.random = Some(random);
        self.armed = true;
    }

    pub(super) fn heal(&mut self) {
        *self = Self { counts: self.counts, ..Self::default() };
    }

    /// An operation of the kind that this fault hits: does it, this time?
    pub(super) fn strikes(&mut self, fault: Fault) -> bool {
        if !self.armed {
            return false;
        }
        let struck = self.strikes_injected(fault) || self.strikes_by_chance(fault);
        if struck {
            self.struck = true;
            self.count(fault);
        }
        struck
    }

    fn strikes_injected(&mut self, fault: Fault) -> bool {
        let Some(at) = self.injected.iter().position(|(injected, _)| *injected == fault) else {
            return false;
        };
        let skip = &mut self.injected[at].1;
        if *skip > 0 {
            *skip -= 1;
            return false;
        }
        self.injected.remove(at);
        true
    }

    fn strikes_by_chance(&mut self, fault: Fault) -> bool {
        let rate = self.rates[fault as usize];
        rate > 0 && self.random.as_mut().is_some_and(|random| random.per_million(u64::from(rate)))
    }

    pub(super) fn has_struck(&self) -> bool {
        self.struck
    }

    pub(super) fn count(&mut self, fault: Fault) {
        self.counts[fault as usize] += 1;
    }

    pub(super) fn counts(&self) -> impl Iterator<Item = (Fault, u64)> + '_ {
        Fault::ALL.into_iter().zip(self.counts)
    }
}
