//! Range queries and read-only transactions that are read in steps. Commands may be applied
//! between the steps: the result shows one revision all the same.

use std::ops::ControlFlow;

use bytes::Bytes;

use crate::check;
use crate::command::{Compare, Range, Txn, TxnOperation};
use crate::error::KvError;
use crate::index::ScanEnd;
use crate::machine::Kv;
use crate::range::RangeRead;
use crate::reply::{KvCommandReply, KvOutcome, RangeOutcome, TxnOperationReply, TxnOutcome};
use crate::table::{Table, TableError};

/// How much one step reads. A step may exceed the bytes by one value.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct ReadLimits {
    /// Stop after visiting this many keys, deleted ones included.
    pub keys_max: usize,
    /// Stop after this many bytes of values. A value that is read from a file counts as 16 KiB more.
    pub bytes_max: usize,
}

impl ReadLimits {
    /// Everything in one step.
    pub(crate) const NONE: Self = Self { keys_max: usize::MAX, bytes_max: usize::MAX };

    /// Sets [`Self::keys_max`].
    #[must_use]
    pub fn keys_max(self, keys_max: usize) -> Self {
        Self { keys_max, ..self }
    }

    /// Sets [`Self::bytes_max`].
    #[must_use]
    pub fn bytes_max(self, bytes_max: usize) -> Self {
        Self { bytes_max, ..self }
    }
}

impl Default for ReadLimits {
    /// A fraction of a millisecond of work.
    fn default() -> Self {
        Self { keys_max: 1_000, bytes_max: 1 << 20 }
    }
}

/// How far an [`IncrementalRead`] is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadStage {
    /// The comparisons of a transaction are evaluated. What it reads is not known yet.
    Comparing,
    /// Keys and values are read.
    Reading,
    /// Everything was read.
    Complete,
}

/// A range query or a read-only transaction of one revision that is read in steps.
#[derive(Debug)]
pub struct IncrementalRead {
    query: ReadQuery,
    /// The revision of the store when reading started.
    revision: i64,
    restarts: u32,
    stage: ReadStage,
    branches: Vec<ReadBranch>,
    comparison: Comparison,
    ranges: Vec<RangeRead>,
    /// The range that is being read; all before it are complete.
    reading: usize,
    /// How far the size was determined.
    measured: usize,
}

#[derive(Debug)]
enum ReadQuery {
    Range(Range),
    Txn(Txn),
}

/// One transaction, the outer or a nested one.
#[derive(Debug)]
struct ReadBranch {
    /// Taken apart when the comparisons are evaluated.
    txn: Txn,
    succeeded: bool,
    steps: Vec<ReadStep>,
}

/// One operation of a branch, by its position in [`IncrementalRead`].
#[derive(Clone, Copy, Debug)]
enum ReadStep {
    Range(usize),
    Nested(usize),
    /// A write, which a read-only transaction skips.
    Skipped,
}

/// The comparison that is being evaluated.
#[derive(Debug, Default)]
struct Comparison {
    branch: usize,
    number: usize,
    /// The key to continue with.
    next: Option<Bytes>,
    found: bool,
}

impl IncrementalRead {
    fn new(query: ReadQuery, revision: i64) -> Self {
        Self {
            query,
            revision,
            restarts: 0,
            stage: ReadStage::Comparing,
            branches: Vec::new(),
            comparison: Comparison::default(),
            ranges: Vec::new(),
            reading: 0,
            measured: 0,
        }
    }

    /// How far it is.
    pub fn stage(&self) -> ReadStage {
        self.stage
    }

    /// How often it started over because the revision that it read was compacted. Larger steps
    /// make that less likely: a step is never interrupted.
    pub fn restarts(&self) -> u32 {
        self.restarts
    }

    /// The number of keys and values read so far.
    pub fn keys_read(&self) -> usize {
        self.ranges.iter().map(|range| range.found.kvs.len()).sum()
    }

    /// The bytes of the keys and values read so far.
    pub fn bytes_read(&self) -> u64 {
        self.ranges.iter().map(|range| range.bytes_read).sum()
    }

    /// The bytes that will be read in all, as far as [`Kv::measure_read`] has determined them.
    pub fn bytes_measured(&self) -> u64 {
        self.ranges.iter().map(RangeRead::bytes_measured).sum()
    }

    /// The reply to the query, once the stage is [`ReadStage::Complete`]. Sorts what was read.
    #[must_use]
    pub fn finish(mut self) -> KvCommandReply {
        let revision = self.revision;
        let outcome = match self.query {
            ReadQuery::Range(_) => KvOutcome::Range(self.take_range(0)),
            ReadQuery::Txn(_) => KvOutcome::Txn(self.take_branch(0)),
        };
        KvCommandReply { revision, result: Ok(outcome) }
    }

    fn take_range(&mut self, number: usize) -> RangeOutcome {
        self.ranges.get_mut(number).map(RangeRead::take).unwrap_or_default()
    }

    fn take_branch(&mut self, number: usize) -> TxnOutcome {
        let Some(branch) = self.branches.get_mut(number) else { return TxnOutcome::default() };
        let (succeeded, steps) = (branch.succeeded, std::mem::take(&mut branch.steps));
        let revision = self.revision;
        let replies = steps.into_iter().map(|step| match step {
            ReadStep::Nested(number) => {
                let outcome = KvOutcome::Txn(self.take_branch(number));
                TxnOperationReply { revision: 0, outcome }
            }
            ReadStep::Range(number) => {
                let outcome = KvOutcome::Range(self.take_range(number));
                TxnOperationReply { revision, outcome }
            }
            ReadStep::Skipped => {
                let outcome = KvOutcome::Range(RangeOutcome::default());
                TxnOperationReply { revision, outcome }
            }
        });
        TxnOutcome { succeeded, responses: replies.collect() }
    }

    /// The comparison to evaluate next; `None` after the last one of the last branch.
    fn next_comparison(&mut self) -> Option<&Compare> {
        loop {
            let Comparison { branch, number, .. } = self.comparison;
            if number < self.branches.get(branch)?.txn.compare.len() {
                return self.branches.get(branch)?.txn.compare.get(number);
            }
            self.choose(true);
        }
    }

    /// Chooses the operations of the branch whose comparisons were evaluated, and moves on to
    /// the next branch.
    fn choose(&mut self, succeeded: bool) {
        let nested_from = self.branches.len();
        let mut nested = Vec::new();
        let number = self.comparison.branch;
        self.comparison = Comparison { branch: number + 1, ..Comparison::default() };
        let Some(branch) = self.branches.get_mut(number) else { return };
        branch.succeeded = succeeded;
        let Txn { success, failure, .. } = std::mem::take(&mut branch.txn);
        for operation in if succeeded { success } else { failure } {
            branch.steps.push(match operation {
                TxnOperation::Range(range) => {
                    self.ranges.push(RangeRead::new(range, 0));
                    ReadStep::Range(self.ranges.len() - 1)
                }
                TxnOperation::Txn(txn) => {
                    nested.push(ReadBranch { txn, succeeded: false, steps: Vec::new() });
                    ReadStep::Nested(nested_from + nested.len() - 1)
                }
                TxnOperation::Put(_) | TxnOperation::DeleteRange(_) => ReadStep::Skipped,
            });
        }
        self.branches.extend(nested);
    }

    /// The ranges in the order of the request.
    fn ranges_in_order(&self, branch: usize, ranges: &mut Vec<usize>) {
        for step in self.branches.get(branch).map(|branch| &branch.steps).into_iter().flatten() {
            match *step {
                ReadStep::Range(number) => ranges.push(number),
                ReadStep::Nested(number) => self.ranges_in_order(number, ranges),
                ReadStep::Skipped => {}
            }
        }
    }
}

impl<T: Table> Kv<T> {
    /// Starts reading a range of the current state.
    pub fn start_range(&self, range: Range) -> Result<IncrementalRead, KvError> {
        check::range(&range)?;
        let mut read = IncrementalRead::new(ReadQuery::Range(range), self.state.revision);
        self.begin(&mut read)?;
        Ok(read)
    }

    /// Starts reading a transaction of the current state. Writes in it are skipped.
    pub fn start_txn(&self, txn: Txn) -> Result<IncrementalRead, KvError> {
        check::txn(&txn, usize::MAX)?;
        let mut read = IncrementalRead::new(ReadQuery::Txn(txn), self.state.revision);
        self.begin(&mut read)?;
        Ok(read)
    }

    fn begin(&self, read: &mut IncrementalRead) -> Result<(), KvError> {
        match &read.query {
            ReadQuery::Range(range) => {
                let at = self.readable_revision(range.revision, read.revision)?;
                read.ranges.push(RangeRead::new(range.clone(), at));
                read.stage = ReadStage::Reading;
            }
            ReadQuery::Txn(txn) => {
                let root = ReadBranch { txn: txn.clone(), succeeded: false, steps: Vec::new() };
                read.branches.push(root);
            }
        }
        Ok(())
    }

    /// Starts over at the current revision if the one that is read was compacted. A range that
    /// asks for a compacted revision is refused.
    fn restart_if_compacted(&self, read: &mut IncrementalRead) -> Result<(), KvError> {
        let lowest = match &read.query {
            ReadQuery::Range(range) if range.revision > 0 => range.revision,
            _ => read.revision,
        };
        if lowest >= self.state.compact_revision {
            return Ok(());
        }
        let query = std::mem::replace(&mut read.query, ReadQuery::Txn(Txn::default()));
        let restarts = read.restarts.saturating_add(1);
        *read = IncrementalRead { restarts, ..IncrementalRead::new(query, self.state.revision) };
        self.begin(read)
    }

    /// Reads more, up to the limits. Returns the stage afterwards.
    pub fn continue_read(
        &self,
        read: &mut IncrementalRead,
        limits: ReadLimits,
    ) -> Result<Result<ReadStage, KvError>, TableError> {
        if read.stage == ReadStage::Complete {
            return Ok(Ok(ReadStage::Complete));
        }
        if let Err(refused) = self.restart_if_compacted(read) {
            return Ok(Err(refused));
        }
        let mut left = limits;
        if read.stage == ReadStage::Comparing {
            if !self.compare(read, &mut left)? {
                return Ok(Ok(ReadStage::Comparing));
            }
            if let Err(refused) = self.check_ranges(read) {
                return Ok(Err(refused));
            }
            read.stage = ReadStage::Reading;
        }
        let ReadLimits { keys_max: mut work, bytes_max: mut bytes } = left;
        while let Some(range) = read.ranges.get_mut(read.reading) {
            if work == 0 || bytes == 0 {
                return Ok(Ok(ReadStage::Reading));
            }
            if !self.continue_range(range, &mut work, &mut bytes)? {
                return Ok(Ok(ReadStage::Reading));
            }
            // An operation that visits no key is work as well.
            work = work.saturating_sub(1);
            read.reading += 1;
        }
        read.stage = ReadStage::Complete;
        Ok(Ok(ReadStage::Complete))
    }

    /// Determines how many bytes the ranges have, without reading them. Visits up to `keys_max`
    /// keys, and returns whether it is complete. Call it in the stage [`ReadStage::Reading`].
    pub fn measure_read(&self, read: &mut IncrementalRead, keys_max: usize) -> bool {
        let mut work = keys_max;
        while let Some(range) = read.ranges.get_mut(read.measured) {
            if work == 0 || !self.measure_range(range, &mut work) {
                return false;
            }
            work = work.saturating_sub(1);
            read.measured += 1;
        }
        true
    }

    /// Evaluates comparisons. Returns whether all of them are.
    fn compare(
        &self,
        read: &mut IncrementalRead,
        left: &mut ReadLimits,
    ) -> Result<bool, TableError> {
        let revision = read.revision;
        loop {
            let (next, found) = (read.comparison.next.take(), read.comparison.found);
            let Some(compare) = read.next_comparison() else { return Ok(true) };
            let from = next.unwrap_or_else(|| compare.keys.key.clone());
            if left.keys_max == 0 || left.bytes_max == 0 {
                (read.comparison.next, read.comparison.found) = (Some(from), found);
                return Ok(false);
            }
            match self.compare_some(compare, &from, found, revision, left)? {
                Compared::More { next, found } => {
                    read.comparison.next = Some(next);
                    read.comparison.found = found;
                    return Ok(false);
                }
                Compared::Holds => {
                    let Comparison { branch, number, .. } = read.comparison;
                    read.comparison =
                        Comparison { branch, number: number + 1, ..Comparison::default() };
                }
                Compared::Fails => read.choose(false),
            }
            // A comparison that visits no key is work as well.
            left.keys_max = left.keys_max.saturating_sub(1);
        }
    }

    /// Evaluates one comparison from this key on, up to these limits.
    pub(crate) fn compare_some(
        &self,
        compare: &Compare,
        from: &[u8],
        mut found: bool,
        revision: i64,
        left: &mut ReadLimits,
    ) -> Result<Compared, TableError> {
        let (index, bytes) = (&self.state.index, &mut left.bytes_max);
        let end = index.scan(&compare.keys, from, revision, &mut left.keys_max, |key, seen| {
            if *bytes == 0 {
                return ControlFlow::Break(Ok(Compared::More { next: key.to_bytes(), found }));
            }
            found = true;
            if compare.order_in_index(seen).is_none() {
                let read = seen.row.bytes() as usize + self.file_read_bytes(seen.row);
                *bytes = bytes.saturating_sub(read);
            }
            match self.holds_of_seen(compare, seen) {
                Ok(true) => ControlFlow::Continue(()),
                Ok(false) => ControlFlow::Break(Ok(Compared::Fails)),
                Err(error) => ControlFlow::Break(Err(error)),
            }
        });
        match end {
            ScanEnd::Complete if found || compare.holds_of_missing() => Ok(Compared::Holds),
            ScanEnd::Complete => Ok(Compared::Fails),
            ScanEnd::Next(next) => Ok(Compared::More { next, found }),
            ScanEnd::Stopped(stopped) => stopped,
        }
    }

    /// Checks the revisions of all ranges, as etcd does before it reads any.
    fn check_ranges(&self, read: &mut IncrementalRead) -> Result<(), KvError> {
        let mut in_order = Vec::with_capacity(read.ranges.len());
        read.ranges_in_order(0, &mut in_order);
        for number in in_order {
            if let Some(range) = read.ranges.get_mut(number) {
                let requested = range.range.revision;
                self.check_revision(requested, read.revision)?;
                range.at = self.readable_revision(requested, read.revision)?;
            }
        }
        Ok(())
    }
}

/// The result of evaluating a comparison.
pub(crate) enum Compared {
    Holds,
    Fails,
    /// A limit was reached.
    More {
        next: Bytes,
        found: bool,
    },
}
