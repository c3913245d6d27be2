//! Many members in one thread: the ways we watch the core work.
//!
//! [`scenario`] plays stories written as text files and prints what happens,
//! [`conformance`] plays the recorded traces of etcd-io/raft.

pub mod conformance;
pub mod scenario;
