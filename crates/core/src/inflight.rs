//! Appends in flight to one peer.

use std::collections::VecDeque;

use crate::Index;
use crate::pack::pack_fields;

/// The flow-control window of one peer: the number and the bytes of appends with entries
/// that it has not answered.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Inflight {
    /// The last index and the bytes of each append, in order.
    sent: VecDeque<(Index, u64)>,
    bytes: u64,
    messages_max: u32,
    bytes_max: u64,
}

pack_fields!(Inflight { messages_max, bytes_max } unset { sent, bytes });

impl Inflight {
    pub(crate) fn new(messages_max: u32, bytes_max: u64) -> Self {
        Self { sent: VecDeque::new(), bytes: 0, messages_max, bytes_max }
    }

    pub(crate) fn add(&mut self, last: Index, bytes: u64) {
        self.sent.push_back((last, bytes));
        self.bytes += bytes;
    }

    /// The peer has acknowledged everything up to here.
    pub(crate) fn free(&mut self, to: Index) {
        while let Some((last, bytes)) = self.sent.front() {
            if *last > to {
                break;
            }
            self.bytes -= bytes;
            self.sent.pop_front();
        }
    }

    pub(crate) fn free_buffer(&mut self) {
        if self.sent.is_empty() {
            self.sent = VecDeque::new();
        }
    }

    pub(crate) fn clear(&mut self) {
        self.sent.clear();
        self.bytes = 0;
    }

    pub(crate) fn count(&self) -> usize {
        self.sent.len()
    }

    pub(crate) fn is_full(&self) -> bool {
        self.sent.len() >= self.messages_max as usize || self.bytes >= self.bytes_max
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn full_by_count_or_by_bytes_and_freed_in_order() {
        let mut inflight = Inflight::new(3, 100);
        inflight.add(5, 10);
        inflight.add(7, 10);
        assert!(!inflight.is_full());
        inflight.add(9, 10);
        assert!(inflight.is_full());
        inflight.free(7);
        assert_eq!(inflight.count(), 1);
        inflight.add(12, 90);
        assert!(inflight.is_full());
        inflight.free(8);
        assert_eq!(inflight.count(), 2);
        inflight.free(12);
        assert_eq!((inflight.count(), inflight.bytes), (0, 0));
    }
}
