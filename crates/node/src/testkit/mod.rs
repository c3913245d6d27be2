//! Suites for whoever implements a trait of this crate: call them in your own tests.

pub mod storage;
