//! The workload, the same for every library: three members in one thread accept proposals,
//! replicate, save and apply them on all three.

use std::fmt::Display;

/// The first member is the leader, because only it campaigns.
pub(crate) const MEMBERS: usize = 3;

/// Every library trims its logs after this many operations, down to `TRIM_KEEP`.
pub(crate) const TRIM_EVERY: u64 = 4096;
pub(crate) const TRIM_KEEP: u64 = 1024;

/// Limits, the same for every library.
pub(crate) const APPEND_BYTES_MAX: u64 = 1 << 20;
pub(crate) const INFLIGHT_MESSAGES_MAX: u32 = 256;

/// One cell of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    /// The bytes of one payload.
    pub(crate) size: usize,
    /// The number of proposals before the cluster runs until it is idle.
    pub(crate) batch: u64,
}

/// What one member's state machine has applied.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct AppliedCommands {
    pub(crate) commands: u64,
    pub(crate) bytes: u64,
    pub(crate) last_index: u64,
}

impl AppliedCommands {
    /// Applies one entry with the least work that still reads it.
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
pub(crate) trait BenchCluster {
    /// Proposes a command to the leader.
    fn propose(&mut self, command: Vec<u8>);

    /// Whether messages wait for this member.
    fn has_messages(&self, at: usize) -> bool;

    /// A member takes its messages and does everything that follows.
    fn turn(&mut self, at: usize);

    /// Delivers messages, saves and applies until no member has output.
    fn settle(&mut self) {
        // Only the leader has work; the others wait for its messages.
        self.turn(0);
        while (0..MEMBERS).any(|at| self.has_messages(at)) {
            for at in [1, 2, 0] {
                if self.has_messages(at) {
                    self.turn(at);
                }
            }
        }
    }

    /// Trims the log of every member to the last `TRIM_KEEP` entries.
    fn trim(&mut self);

    fn applied(&self) -> [AppliedCommands; MEMBERS];

    /// The number of entries in the leader's log, to check trimming.
    fn held(&self) -> u64;

    /// Runs this many operations, rounded up to complete batches, and returns their number.
    /// Panics unless every member applied all of them and the log stayed bounded.
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

/// The value of a result. An error makes the benchmark worthless, so it panics.
pub(crate) fn expect_ok<T, E: Display>(action: &str, result: Result<T, E>) -> T {
    result.unwrap_or_else(|why| panic!("{action}: {why}"))
}
