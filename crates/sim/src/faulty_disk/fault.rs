//! The faults of a disk: which kinds exist, when they occur, and how often they did.

use crate::random::Random;

/// A kind of disk failure or corruption.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Fault {
    /// A write fails without effect.
    WriteError,
    /// A write fails after half of its bytes are written.
    ShortWrite,
    /// No space to create or write a file.
    NoSpace,
    /// A sync fails, and the unsynced data are lost from the page cache too.
    SyncError,
    /// A sync fails. The page cache still shows the unsynced data, but no later sync
    /// writes them.
    SyncErrorUnseen,
    SyncDirError,
    ReadError,
    /// A read returns an older version of a sector.
    StaleRead,
    /// A read returns one wrong bit.
    FlippedRead,
    /// A bit on the disk is flipped.
    BitFlip,
    /// A power loss: unsynced data may or may not survive.
    Crash,
    /// All data are lost.
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
    /// False if no fault is possible: a fast path for the usual case.
    armed: bool,
    /// A fault has occurred since the disk was created or healed.
    struck: bool,
    injected: Vec<(Fault, u32)>,
    /// The rate of each fault, per million operations.
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

    /// Whether this fault occurs in the current operation.
    pub(super) fn strikes(&mut self, fault: Fault) -> bool {
        if !self.armed {
            return false;
        }
        let struck = self.strikes_injected(fault) || self.strikes_at_random(fault);
        if struck {
            self.struck = true;
            self.count(fault);
        }
        struck
    }

    fn strikes_injected(&mut self, fault: Fault) -> bool {
        let Some(position) = self.injected.iter().position(|(injected, _)| *injected == fault)
        else {
            return false;
        };
        let skip = &mut self.injected[position].1;
        if *skip > 0 {
            *skip -= 1;
            return false;
        }
        self.injected.remove(position);
        true
    }

    fn strikes_at_random(&mut self, fault: Fault) -> bool {
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
