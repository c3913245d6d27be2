//! The work that every side does, whatever its library: three members in one
//! thread take proposals, replicate them, save them, and apply them on all three.

use std::fmt::Display;

/// The first member is the leader; it was asked to stand alone.
pub(crate) const MEMBERS: usize = 3;

/// Both sides trim their logs after this many operations, down to `TRIM_KEEP`.
pub(crate) const TRIM_EVERY: u64 = 4096;
pub(crate) const TRIM_KEEP: u64 = 1024;

/// Limits that both sides are given.
pub(crate) const APPEND_BYTES_MAX: u64 = 1 << 20;
pub(crate) const INFLIGHT_MESSAGES_MAX: u32 = 256;

/// One cell of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    /// Bytes of one payload.
    pub(crate) size: usize,
    /// Proposals made before the cluster runs until it is quiet.
    pub(crate) batch: u64,
}

/// What one member's state machine has seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Applied {
    pub(crate) commands: u64,
    pub(crate) bytes: u64,
    pub(crate) last_index: u64,
}

impl Applied {
    /// Runs one entry: the least work that still reads it.
    pub(crate) fn run(&mut self, index: u64, command: &[u8]) {
        assert!(index > self.last_index, "entry {index} was applied twice");
        self.last_index = index;
        if !command.is_empty() {
            self.commands += 1;
            self.bytes += command.len() as u64;
        }
    }
}

/// Three members of one library.
pub(crate) trait Cluster {
    /// Offers a command to the leader.
    fn propose(&mut self, command: Vec<u8>);

    /// Carries messages, saves and applies until nobody asks for anything.
    fn settle(&mut self);

    /// Every member drops its log except the last `TRIM_KEEP` entries.
    fn trim(&mut self);

    fn applied(&self) -> [Applied; MEMBERS];

    /// Entries that the leader still holds, to see that trimming trims.
    fn held(&self) -> u64;

    /// Does this many operations, rounded up to whole batches, and returns how
    /// many they were. Panics unless every member applied every one of them and the
    /// log stayed bounded.
    fn run(&mut self, shape: Shape, operations: u64) -> u64 {
        let before = self.applied();
        let mut done = 0;
        let mut until_trim = TRIM_EVERY;
        while done < operations {
            for _ in 0..shape.batch {
                done += 1;
                self.propose(vec![done as u8 | 1; shape.size]);
            }
            self.settle();
            if done >= until_trim {
                self.trim();
                until_trim += TRIM_EVERY;
            }
        }
        for (before, after) in before.iter().zip(self.applied()) {
            assert_eq!(after.commands - before.commands, done, "commands applied");
            assert_eq!(after.bytes - before.bytes, done * shape.size as u64, "bytes applied");
        }
        assert!(self.held() <= TRIM_EVERY + TRIM_KEEP + shape.batch, "{} held", self.held());
        done
    }
}

/// The value, where nothing can go wrong in a benchmark that does not make it
/// worthless.
pub(crate) fn sure<T, E: Display>(what: &str, outcome: Result<T, E>) -> T {
    outcome.unwrap_or_else(|why| panic!("{what}: {why}"))
}
