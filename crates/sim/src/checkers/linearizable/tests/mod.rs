mod brute_force;
mod generate;
mod planted;
mod random;

use bytes::Bytes;

use super::*;

const STEPS: u64 = 100_000;

fn word(text: &'static str) -> Bytes {
    Bytes::from_static(text.as_bytes())
}

/// Builds a history operation by operation. The clock ticks once per call or return, unless a
/// test gives the times.
#[derive(Default)]
struct Story {
    history: History,
    now: u64,
}

impl Story {
    /// An operation that overlaps no other.
    fn alone(&mut self, call: Call, seen: Seen) -> &mut Self {
        let called = self.now + 1;
        self.at(called, Some(called + 1), call, seen)
    }

    /// An operation that is called now and never returns.
    fn unknown(&mut self, call: Call) -> &mut Self {
        self.at(self.now + 1, None, call, Seen::Nothing)
    }

    fn at(&mut self, called: u64, returned: Option<u64>, call: Call, seen: Seen) -> &mut Self {
        let client = self.history.operations.len() as u64;
        let operation = ClientOperation { client, called, returned, call, seen, applied: None };
        self.history.operations.push(operation);
        self.now = self.now.max(returned.unwrap_or(called));
        self
    }

    /// The verdict, which must be the same with log indexes in order of calls.
    fn verdict(&self) -> Verdict {
        let verdict = check(&self.history, STEPS).verdict;
        let mut indexed = self.history.clone();
        for (at, operation) in indexed.operations.iter_mut().enumerate() {
            operation.applied = operation.returned.map(|_| at as u64);
        }
        let with_indexes = check(&indexed, STEPS).verdict;
        let passes = |verdict: &Verdict| *verdict == Verdict::Linearizable;
        assert_eq!(passes(&with_indexes), passes(&verdict));
        verdict
    }

    #[track_caller]
    fn passes(&self) {
        assert_eq!(self.verdict(), Verdict::Linearizable);
    }

    /// The operation with this number has the unexplained reply.
    #[track_caller]
    fn fails_at(&self, number: u64) -> Violation {
        match self.verdict() {
            Verdict::Violation(violation) => {
                let unexplained = &violation.operations[violation.unexplained];
                assert_eq!(unexplained.client, number, "{violation}");
                *violation
            }
            other => panic!("{other:?}"),
        }
    }
}

fn put(key: &'static str, value: &'static str) -> Call {
    Call::Put(word(key), word(value))
}

fn get(key: &'static str) -> Call {
    Call::Get(word(key))
}

fn delete(key: &'static str) -> Call {
    Call::Delete(word(key))
}

fn swap(key: &'static str, expected: &'static str, new: &'static str) -> Call {
    Call::CompareAndSet { key: word(key), expected: Some(word(expected)), new: word(new) }
}

fn saw(value: &'static str) -> Seen {
    Seen::Value(Some(word(value)))
}

const SAW_NONE: Seen = Seen::Value(None);
