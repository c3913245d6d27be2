//! A global allocator that counts allocations per thread.
//!
//! Thread-local counters cost a few instructions. Shared ones would cost more than some of the
//! allocations they count, and distort the result of the library that allocates most.

#![allow(unsafe_code, reason = "GlobalAlloc is an unsafe trait; every call is forwarded unchanged")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

pub(crate) struct Counting;

/// The allocations of this thread so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    /// Calls that returned new memory; growing a block in place counts too.
    pub(crate) allocations: u64,
    /// Bytes requested in those calls.
    pub(crate) bytes: u64,
    /// Bytes allocated and not freed.
    pub(crate) live: i64,
}

thread_local! {
    static COUNTS: Cell<Counts> = const {
        Cell::new(Counts { allocations: 0, bytes: 0, live: 0 })
    };
}

impl Counts {
    pub(crate) fn now() -> Self {
        COUNTS.get()
    }

    /// The allocations since `before`.
    pub(crate) fn since(before: Self) -> Self {
        let now = Self::now();
        Self {
            allocations: now.allocations - before.allocations,
            bytes: now.bytes - before.bytes,
            live: now.live - before.live,
        }
    }
}

#[inline]
fn count(allocations: u64, bytes: usize, live: i64) {
    COUNTS.with(|counts| {
        let mut now = counts.get();
        now.allocations += allocations;
        now.bytes += bytes as u64;
        now.live += live;
        counts.set(now);
    });
}

// SAFETY: every method forwards its arguments unchanged to the system allocator, whose
// contract is the same; counting neither allocates nor unwinds.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(1, layout.size(), layout.size() as i64);
        // SAFETY: the caller's guarantees about `layout` are forwarded.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(1, layout.size(), layout.size() as i64);
        // SAFETY: the caller's guarantees about `layout` are forwarded.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        count(0, 0, -(layout.size() as i64));
        // SAFETY: `block` came from the system allocator, by one of these methods.
        unsafe { System.dealloc(block, layout) }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(1, size, size as i64 - layout.size() as i64);
        // SAFETY: `block` came from the system allocator, by one of these methods.
        unsafe { System.realloc(block, layout, size) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn box_is_counted_once_and_freed_bytes_are_subtracted() {
        let before = Counts::now();
        let block = Box::new([7_u8; 100]);
        let held = Counts::since(before);
        assert_eq!((held.allocations, held.bytes, held.live), (1, 100, 100));
        drop(std::hint::black_box(block));
        assert_eq!(Counts::since(before).live, 0);
    }
}
